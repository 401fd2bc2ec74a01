"""Rules of the user's that are edited, and what they read: between two processes, and between two lowerings in one."""

from __future__ import annotations

import json
import os
from pathlib import Path
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.cache import expansions
from decomp_rules import RULES, targets

ROOT = Path(decomp.__file__).parents[1]
X = torch.ones(2)
CHIP = decomp.Target("chip", ["mul", "add", "sub", "detach"])

# Rules for ops, each of which multiplies by a number that is read somewhere else.
MINE = """
import functools, json, os
import decomp, helpers
from helpers import C as imported
from torch.nn import functional as F

K = float(os.environ["K"])
data = json.load(open("k.json"))


class Scale:
    def __init__(self, k):
        self.k = k

    def rule(self, x):
        return x * self.k

    def __call__(self, x):
        return x * self.k


def scaled(x, k):
    return x * k


def same(x):
    return x


def closing(k):
    return lambda x: x * k


def switched(x):
    return x + x - x.sub(0) + x.sub(0)


rules = decomp.Rules({
    "relu": lambda x: helpers.scaled(x),
    "gelu": lambda x, approximate="none": x * imported,
    "silu": lambda x: x * K,
    "exp": Scale(K).rule,
    "sin": lambda x: x * data,
    "cos": functools.partial(scaled, k=K),
    "tan": Scale(K),
    "erf": closing(K),
    "sinh": functools.wraps(same)(lambda x: x * K),
    "cosh": lambda x: x * float(os.environ["K"]),
    "exp2": lambda x: x * json.load(open("k.json")),
    "log1p": [switched, lambda x: x * 3.0],
})
target = decomp.Target("chip", ["mul", "add", "detach"]).legal_if("sub", lambda call: helpers.OK, "the chip subtracts")
"""
CALLS = """
import json, sys, types
import torch
import decomp
import mine


class Net(torch.nn.Module):
    def forward(self, x):
        return [getattr(torch.ops.aten, op)(x) for op in OPS]


OPS = [op.short for op in mine.rules.ops]
x = torch.ones(1)
low = decomp.lower(torch.export.export(Net(), (x,)), to=mine.target, rules=mine.rules, verify=True)
print(json.dumps(dict(zip(OPS, [each.item() for each in low.result.module()(x)]))))
"""


def test_a_rule_that_reads_something_else_in_the_next_process_is_run_there(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    said = []
    for k in (2, 3):
        (tmp_path / "helpers.py").write_text(f"C = {k}\nOK = {k == 2}\ndef scaled(x):\n    return x * {k}\n")
        (tmp_path / "k.json").write_text(f"{k}.0")
        for path in tmp_path.glob("*.*"):
            os.utime(path, (1e9 + k,) * 2)
        env = {
            **os.environ,
            "DECOMP_CACHE": str(tmp_path / "kept"),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
            "K": str(k),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-c", CALLS]
        said.append(json.loads(subprocess.check_output(command, env=env, cwd=tmp_path, text=True)))
    assert len(said[0]) == 12
    assert set(said[0].values()) == {2.0} and set(said[1].values()) == {3.0}, said


# In one process.


C = 2.0
TABLE = {"k": [2.0]}
helpers = types.ModuleType("helpers")
helpers.K = 2.0


class Config:
    K = 2.0


class Scale:
    __slots__ = ("k",)

    def rule(self, x):
        return x * self.k


SCALE = Scale()
ARRAY = np.array([2.0])


def helper(x):
    return x * C


def closing():
    k = 2.0

    def rule(x):
        return x * k

    def put(value):
        nonlocal k
        k = value

    return rule, put


CLOSED, put = closing()


def put_all(value):
    """Let all that the rules below read be `value`."""
    global C
    C = helpers.K = Config.K = SCALE.k = value
    TABLE["k"][0] = value
    ARRAY[0] = value
    put(value)
    os.environ["DECOMP_TEST_K"] = str(value)


READING = {
    "a global": lambda x: x * C,
    "a global of a function that it calls": lambda x: helper(x),
    "what is in a container": lambda x: x * TABLE["k"][0],
    "an attribute of a module": lambda x: x * helpers.K,
    "an attribute of a class": lambda x: x * Config.K,
    "the object of a method": SCALE.rule,
    "an object": lambda x: x * SCALE.k,
    "a closure cell": CLOSED,
    "the data of an array": lambda x: x * float(ARRAY[0]),
    "the environment": lambda x: x * float(os.environ["DECOMP_TEST_K"]),
    "the environment by a function": lambda x: x * float(os.getenv("DECOMP_TEST_K")),
}


def program(sizes):
    given = torch.ones(3)
    return torch.export.export(nn.ReLU(), (given,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},) if sizes else None)


PROGRAMS = {"static": program(False), "dynamic": program(True)}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("function", READING.values(), ids=READING)
def test_a_rule_is_run_again_when_what_it_reads_has_changed_and_only_then(function, program):
    rules = decomp.Rules({F.relu: function}) | RULES
    put_all(2.0)
    first, again = (decomp.lower(program, to=CHIP, rules=rules) for _ in range(2))
    put_all(3.0)
    changed = decomp.lower(program, to=CHIP, rules=rules)
    put_all(2.0)
    back = decomp.lower(program, to=CHIP, rules=rules)
    assert [low.result.module()(torch.ones(3))[0].item() for low in (first, again, changed, back)] == [2, 2, 3, 2]
    assert (first.report().runs, again.report().runs, changed.report().runs) == (1, 0, 1)


def test_a_condition_is_asked_again_when_what_it_reads_has_changed():
    allowed = {"relu": True}
    target = (targets.tinygrad | ["relu"]).legal_if("relu", lambda call: allowed["relu"], "allowed")
    counts = []
    for allowed["relu"] in (True, True, False, True):
        counts.append(str(decomp.lower(PROGRAMS["static"], to=target).result.graph).count("aten.relu"))
    assert counts == [1, 1, 0, 1]


def test_a_rule_that_counts_its_calls_is_not_run_for_that():
    calls = []

    def rule(x):
        calls.append(x)
        return x * 2.0

    rules = decomp.Rules({F.relu: rule})
    for _ in range(3):
        decomp.lower(PROGRAMS["static"], to=CHIP, rules=rules)
    assert len(calls) == 1


def test_what_the_library_found_out_is_known_when_a_rule_of_the_users_changes():
    scale = {"k": 2.0}
    rules = decomp.Rules({F.relu: lambda x: x * scale["k"]}) | RULES
    model = nn.Sequential(nn.ReLU(), nn.GELU())
    first = decomp.lower(model, to=targets.tinygrad, args=(X,), rules=rules)
    scale["k"] = 3.0
    again = decomp.lower(model, to=targets.tinygrad, args=(X,), rules=rules)
    assert first.report().runs > 5 and again.report().runs == 1


def test_a_function_that_reads_what_cannot_be_compared_is_run_each_time():
    numbers = (number for number in (2.0, 3.0))
    rules = decomp.Rules({F.relu: lambda x: x * next(numbers)})
    low = [decomp.lower(PROGRAMS["static"], to=CHIP, rules=rules) for _ in range(2)]
    assert [each.result.module()(torch.ones(3))[0].item() for each in low] == [2, 3]


def test_what_is_decomposed_reads_what_has_changed():
    global C
    rules = decomp.Rules({F.relu: lambda x: x * C})
    found = []
    for number in (2.0, 3.0, 2.0):
        C = number
        found.append(decomp.decompose(nn.ReLU(), rules)(X)[0].item())
    assert found == [2, 3, 2]


def test_another_default_dtype_is_another_expansion():
    rules = decomp.Rules({F.relu: lambda x: x * torch.full((2,), 2.0).to(torch.float32)})
    target = CHIP | ["full", "to", "_to_copy"]

    def dtypes():
        low = decomp.lower(nn.ReLU(), to=target, args=(X,), rules=rules, simplify=False)
        return [n.meta["val"].dtype for n in low.result.graph.nodes if "full" in str(n.target)]

    first = dtypes()
    torch.set_default_dtype(torch.float64)
    try:
        second = dtypes()
    finally:
        torch.set_default_dtype(torch.float32)
    assert (first, second, dtypes()) == ([torch.float32], [torch.float64], [torch.float32])


# What an author gives a version.


def lowered(k):
    rules = decomp.Rules({F.relu: closing_over({"k": k})}, version="1.3") | RULES
    return decomp.lower(nn.Sequential(nn.ReLU(), nn.GELU()), to=targets.tinygrad, args=(X,), rules=rules)


def closing_over(_):
    return lambda x: x * TABLE["k"][0]


@pytest.fixture
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("DECOMP_CACHE", str(tmp_path))
    put_all(2.0)
    yield
    put_all(2.0)


def test_what_has_a_version_is_kept_on_disk(place, monkeypatch):
    monkeypatch.setattr(expansions, "SHARE", 1 << 60)
    first, second = lowered(2.0), lowered(2.0)
    assert first.report().runs > second.report().runs == 0
    put_all(3.0)
    assert lowered(2.0).result(X)[0] == second.result(X)[0]  # the author has promised that it is the same


def test_what_is_drawn_and_differs_is_dropped_with_a_warning(place, monkeypatch):
    right = [lowered(2.0).result(X), lowered(2.0).result(X)]
    monkeypatch.setattr(expansions, "SHARE", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lowered(2.0).report().runs == 0
    put_all(3.0)
    with pytest.warns(UserWarning) as said:
        found = lowered(2.0)
    assert [each.filename for each in said] == [__file__]  # where `lowered` calls the library
    line = closing_over({}).__code__.co_firstlineno
    assert [str(each.message) for each in said] == [
        f"the cached expansion of aten.relu.default by <lambda> (test_edited_rules.py:{line}) is not what the rule "
        "records now: it was dropped, and the new recording is used\n  to do: change the version of "
        "Rules(version=...) when a rule changes, or what it reads; `decomp cache clear` deletes the cache"
    ]
    assert torch.equal(right[0], right[1])
    torch.testing.assert_close(found.result(X), F.gelu(3 * X))
    monkeypatch.setattr(expansions, "SHARE", 1 << 60)
    again = lowered(2.0)
    assert again.report().runs == 0 and torch.equal(again.result(X), found.result(X))
