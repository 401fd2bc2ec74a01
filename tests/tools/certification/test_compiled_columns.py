"""The column "compiled" of certificates: lowered programs compiled by Inductor, compared with the same programs run
call by call; that faults are seen by it, and that what is committed is true."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import functools
import json
import os
import random

import pytest
import torch

from decomp import Rules
from decomp.results import Certificate
from decomp.rules.certificate import Implementation
from decomp.rules.certificates import identity
from decomp.tools.certification import certificates, compiled_columns
from decomp.tools.measurement.as_compiled import columns
from decomp.tools.measurement.joint_graphs import JointlyCompiled, JointProgram, NoCompiler, require_compiler
from decomp_rules import RULES, targets
from tests.commands import run
from tests.installed import NEEDS_COMPILER
from tests.pytorch_differences import OVERFLOW_IS_SEEN
from tests.tools.certification import miscompiled_rules

SEED, DRAWN = 2026, 3
"""So many ways are compiled again, drawn by the seed from those of up to `SMALL` calls."""
SMALL = 60
MOST_CALLS = compiled_columns.MOST_CALLS
DIFFERING = {
    # Plain C++ adds one number after the other, and is off by more ULP than PyTorch's kernels, which add in a tree.
    "_trilinear",
    "var_by_sums",
    # Of a scale that is NaN the reference, too, casts NaN to an integer.
    "quantize_per_channel_group",
    "quantize_per_token",
    # Of +0 and -0 either is the greater one.
    "each_maximum",
    "each_minimum",
}
"""Rules that differ where they are compiled. They may become fewer."""


def rules_of(op, function):
    rules = Rules(level="exact")
    rules.register(op)(function)
    return rules


def column_of(op, function, most_calls=MOST_CALLS):
    """The verdicts on a function as the rule of an op."""
    (found,) = columns([(rules_of(op, function)[op][0], targets.tinygrad, "exact")], most_calls)
    return found.verdicts


# what it finds


def negative_by_shift(x):
    """Counts on wrap-around: of a product that has a value, the top bit is its sign."""
    n = torch.clamp(x, -1000, 1000).to(torch.int32)
    top = torch.bitwise_right_shift(n * -4194304, 31)
    return torch.where(top != 0, 1.0, 0.0) * x


def nan_by_cast(x):
    """Counts on a cast that has no value: PyTorch's kernel makes 0 of NaN."""
    neither = torch.bitwise_not((torch.abs(x) < 1) | (torch.abs(x) >= 1))
    return (x.to(torch.int8) == 0) & neither


def half_of_whole(x):
    return torch.bitwise_right_shift(torch.clamp(x, -1000, 1000).to(torch.int32), 1).to(x.dtype)


FUNCTIONS = {
    "overflow": ("relu", negative_by_shift, targets.tinygrad),
    "cast": ("isnan", nan_by_cast, targets.core_aten - ["isnan"]),
    "half": ("floor", half_of_whole, targets.tinygrad),
    "sine": ("cos", lambda x: torch.sin(x) + 1, targets.tinygrad),
    "infinite times 0": ("relu", lambda x: torch.where(x < 0, x * 0, x), targets.tinygrad),
    "power": ("exp", lambda x: torch.exp2(x * 1.5), targets.tinygrad),
}
"""Functions, each as the rule of an op for a target."""


@pytest.fixture(scope="module")
def said():
    """The verdicts on these in float32. They are compiled together, so one that differs costs no other."""
    ways = [(rules_of(op, function)[op][0], target, "exact") for op, function, target in FUNCTIONS.values()]
    return {name: found.verdicts["float32"] for name, found in zip(FUNCTIONS, columns(ways, MOST_CALLS))}


@NEEDS_COMPILER
def test_signed_overflow_is_seen(said):
    assert (" differ, " in said["overflow"]) == OVERFLOW_IS_SEEN


@NEEDS_COMPILER
def test_a_cast_of_a_float_to_an_integer_that_does_not_hold_it_is_seen(said):
    assert said["cast"].endswith(" differ, False instead of True at nan")


@NEEDS_COMPILER
def test_what_is_defined_is_as_eager_however_wrong(said):
    assert said["half"] == said["sine"] == said["power"] == "as eager"


@NEEDS_COMPILER
def test_a_product_by_the_number_0_is_nan_where_it_is_infinite_times_0(said):
    assert said["infinite times 0"] == "as eager"


def test_what_is_not_compiled_says_why():
    assert column_of("exp", lambda x: torch.exp2(x * 1.5) + 1, most_calls=1) == {
        "all": "not compiled: 3 calls, more than 1"
    }
    assert column_of("bernoulli", lambda x, *, generator=None: torch.rand_like(x)) == {
        "all": "not compiled: it draws random numbers"
    }


@NEEDS_COMPILER
def test_a_way_that_crashes_costs_no_other():
    places = [
        (f"{miscompiled_rules.__name__}:{name} for aten.{op}", "tinygrad", "exact")
        for name, op in (("exp", "exp"), ("crashes", "relu"))
    ]
    with ThreadPoolExecutor(1) as thread:  # with which the process that measures ends
        found = thread.submit(compiled_columns.find_in_process, compiled_columns.ColumnJob(tuple(places))).result()
    assert found[places[0]][0] == {"float32": "as eager", "int64": "as eager"}
    assert found[places[1]][0] == {"all": "crashes: SIGABRT"}


def test_without_a_compiler_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ, "PATH": ""})
    with pytest.raises(NoCompiler, match=r"install it \(apt install g\+\+\), or set CXX"):
        require_compiler()


# programs


def program(function, *tensors):
    graph = torch.fx.experimental.proxy_tensor.make_fx(function)(*tensors)
    return JointProgram(graph, tensors, 1)


def test_a_fingerprint_is_that_of_the_calls_their_constants_and_what_they_are_given():
    x, table, same, other = torch.ones(3), *(torch.tensor([1.0, 2.0, last]) for last in (3, 3, 4))
    one = program(lambda x: x * 2 + table, x).fingerprint
    assert one == program(lambda y: y * 2 + same, torch.zeros(3)).fingerprint
    others = [
        program(lambda x: x * 3 + table, x),
        program(lambda x: x * 2 + other, x),
        program(lambda x: x * 2 + table, torch.ones(3, dtype=torch.float64)),
    ]
    assert one not in {other.fingerprint for other in others}


@NEEDS_COMPILER
def test_programs_that_are_compiled_together_run_on_inputs_of_their_own():
    x, y = torch.arange(5.0), torch.arange(4).view(2, 2)
    together = JointlyCompiled([program(lambda x: x + 1, x), program(lambda y: y.t() * 2, y)])
    for shift in (0, 7):
        (first,), (second,) = together([(x + shift,), (y + shift,)])
        assert torch.equal(first, x + shift + 1) and torch.equal(second, (y + shift).t() * 2)


# how it is kept


MM = Certificate(
    "mm",
    "h",
    ways=(
        Implementation(
            "tinygrad", "measured", hash="1", compiled={"float32": "as eager", "int64": "3 differ, 1 instead of 2 at 0"}
        ),
        Implementation("luminal", "measured", hash="2", compiled={"all": "not compiled: why"}),
        Implementation("core_aten", "measured", hash="3"),
    ),
)


def test_a_column_is_shown_judged_and_survives_json():
    assert Certificate.from_json(json.loads(json.dumps(MM.to_json()))) == MM
    assert MM.faults == ("tinygrad: compiled, int64: 3 differ, 1 instead of 2 at 0",)
    assert MM.ways[0].reaches == "exact", "how exact it is has nothing to do with a compiler"
    assert "    compiled, float32: as eager\n    compiled, int64: 3 differ, 1 instead of 2 at 0\n" in str(MM)


def test_a_column_is_missing_if_not_measured_or_the_rules_changed():
    assert not compiled_columns.uncompiled(MM)
    bare = replace(MM, ways=tuple(replace(way, compiled={}) for way in MM.ways))
    assert compiled_columns.uncompiled(bare) and not compiled_columns.uncompiled(bare.with_compiled_of(MM))
    changed = replace(bare, ways=tuple(replace(way, hash=f"{way.hash}, too") for way in bare.ways))
    assert changed.with_compiled_of(MM) == changed and compiled_columns.uncompiled(changed)


def test_a_program_that_is_known_to_be_large_is_not_even_lowered():
    large = replace(MM, ways=(Implementation("tinygrad", "measured", cost={"calls": 1833.0}), MM.ways[2]))
    ((found,),) = compiled_columns.with_columns([large])
    assert found.ways[0].compiled == {"all": "not compiled: 1,833 calls, more than 250"}
    assert not compiled_columns.uncompiled(found)


def test_a_certificate_is_worse_where_what_was_as_eager_differs():
    good = replace(MM, ways=(replace(MM.ways[0], compiled={"int64": "as eager"}), *MM.ways[1:]))
    assert MM.worse_than(good) == ("tinygrad: compiled, int64: 3 differ, 1 instead of 2 at 0",)
    assert not MM.worse_than(MM) and not good.worse_than(MM)


@NEEDS_COMPILER
def test_the_command_adds_the_column_and_changes_nothing_else(tmp_path, monkeypatch):
    (rule,) = [rule for rule in RULES if rule.name == "deg2rad"]
    stored = certificates.read_committed()[identity(rule)]
    bare = replace(stored, ways=tuple(replace(way, compiled={}, programs=()) for way in stored.ways))
    monkeypatch.setattr("decomp_rules.CERTIFICATES", tmp_path)
    certificates.commit([bare])
    shown = run("certify", "deg2rad", "--compiled", "--stale", "--update")
    assert shown.exit_code == 0 and "compiled, float32, int64: as eager" in shown.output
    found = certificates.read_committed()[bare.rule]
    assert not compiled_columns.uncompiled(found)
    assert replace(found, ways=tuple(replace(way, compiled={}, programs=()) for way in found.ways)) == bare
    assert run("certify", "deg2rad", "--compiled", "--stale").output == "", "there is nothing to do"


# the library


@functools.cache
def columns_of_the_library():
    rules, found = {identity(rule): rule for rule in RULES}, certificates.read_committed()
    certified = [(rule, found[name]) for name, rule in rules.items() if name in found]
    return [(rule, way) for rule, one in certified for way in compiled_columns.compilable(one)]


def test_every_way_that_is_taken_by_default_is_compiled():
    missing = [f"{rule.name}, {way.title}" for rule, way in columns_of_the_library() if not way.compiled]
    assert not missing, (
        f"{len(missing)} columns are missing, {missing[:3]}; to do: decomp certify --compiled --stale --all --update"
    )


def test_what_differs_where_it_is_compiled_is_known():
    differing = {fault.partition(": ")[0] for fault in faults_of_the_library()}
    assert differing <= DIFFERING, faults_of_the_library()


def faults_of_the_library():
    return [
        f"{rule.name}: {way.title}, {dtype}: {said}"
        for rule, way in columns_of_the_library()
        for dtype, said in way.compiled.items()
        if not said.startswith(("as eager", "not compiled"))
    ]


def small_ways():
    return [(rule, way) for rule, way in columns_of_the_library() if way.programs and way.cost.get("calls", 0) <= SMALL]


@NEEDS_COMPILER
def test_sampled_columns_are_still_true_and_hold_with_vectors():
    """With another seed, other ways: SEED is above."""
    drawn = random.Random(SEED).sample(small_ways(), DRAWN)
    asked = [(rule, targets.get(way.name), way.level) for rule, way in drawn]
    for (rule, way), column in zip(drawn, columns(asked, MOST_CALLS, vectors=True)):
        assert (column.verdicts, column.programs) == (way.compiled, way.programs), rule
