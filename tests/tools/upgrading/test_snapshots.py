"""`decomp snapshot` and `decomp upgrade`: what a snapshot holds, that it is the same each time, and bad input."""

import functools
import json
import os

import pytest
import torch

from decomp.jobs import answers, within
from decomp.rules.library import samples
from decomp.tools.measurement import points
from decomp.tools.measurement.trials import takes
from decomp.tools.upgrading.kernels import behaviours
from decomp.tools.upgrading.numbers import UNKNOWN, read
from decomp.tools.upgrading.records import VersionRecord
from decomp.tools.upgrading.taking import OpJob, calls_of
from decomp_rules.samples.edges import EDGES
from tests.commands import run, said

OPS = ("clamp", "maximum", "quantile", "dropout", "empty_like", "svd", "_ctc_loss", "add", "bitwise_left_shift")
"""With ties, random draws, undefined values, choices that are left open, and complex numbers among them."""
WORDS = ("mlp", "--to", "tinygrad", *(word for op in OPS for word in ("--op", op)), "--workers", 1)


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    path = tmp_path_factory.mktemp("snapshots") / "here.json"
    assert run("snapshot", *WORDS, "-o", path).exit_code == 0
    return path


def test_two_snapshots_of_one_environment_say_the_same(taken, tmp_path):
    """All but last digits are equal, and what an op leaves open: LAPACK promises neither from run to run."""
    assert run("snapshot", *WORDS, "-o", tmp_path / "again.json").exit_code == 0
    first, second = (json.loads(path.read_text()) for path in (taken, tmp_path / "again.json"))
    assert first.pop("header")["torch"] == second.pop("header")["torch"] == torch.__version__
    assert list(unequal(first, second)) == []
    result = run("upgrade", taken, tmp_path / "again.json")
    assert result.exit_code == 0 and "mlp: 11 calls, were 11" in result.output
    changes = json.loads(run("upgrade", taken, tmp_path / "again.json", "--json").stdout)["changes"]
    assert [each for each in changes if each["kind"] not in ("digits", "open")] == []


def unequal(first, second, at=""):
    """Where two records differ, but for the numbers of a value. A digest that differs says nothing more than these."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        for key in first:
            yield from unequal(first[key], second[key], f"{at}/{key}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (one, other) in enumerate(zip(first, second)):
            yield from unequal(one, other, f"{at}[{index}]")
    elif first != second and not (are_values(first, second) and form(first) == form(second)):
        yield f"{at}: {first} != {second}"


def are_values(*texts):
    return all(isinstance(text, str) and "]" in text and not text.endswith(UNKNOWN) for text in texts)


def form(text):
    return read(text).form, len(read(text).numbers)


def test_a_snapshot_is_read_as_it_was_written(taken, tmp_path):
    VersionRecord.load(taken).save(tmp_path / "copy.json")
    assert (tmp_path / "copy.json").read_text() == taken.read_text()


def test_a_snapshot_holds_derivations_values_and_gradients(taken):
    record = VersionRecord.load(taken)
    (call, *_) = record.ops["aten.clamp"]
    assert call.verdict == "derived" and call.rules and call.calls >= 1 and set(call.numbers) == {-0.5, 0.5}
    found = call.behaviours["float32, points"]
    assert found.values and found.gradients and found.at in record.points
    labels = {label for each in record.ops["aten.quantile"] for label in each.behaviours}
    assert {"float32, as sampled", "float32, with ties", "float32, NaN planted"} <= labels
    undefined = [each for call in record.ops["aten.empty_like"] for each in call.behaviours.values()]
    assert undefined and all(text.endswith(" -") for each in undefined for text in each.values)
    assert record.models["mlp"].exported and sum(record.models["mlp"].lowered.values()) == 11


def test_a_gradient_that_is_another_is_found_in_a_snapshot(taken, tmp_path):
    data = json.loads(taken.read_text())
    found = data["ops"]["aten.clamp"][0]["behaviours"]["float32, points"]
    head, _, *numbers = found["gradients"][0].split(" ")
    at = read_first(data["points"][found["at"]][0], 0.5)
    assert numbers[at] in ("0", "1")
    numbers[at] = "0.5"
    found["gradients"] = [" ".join([head, "00000000", *numbers])]
    (tmp_path / "other.json").write_text(json.dumps(data))
    result = run("upgrade", taken, tmp_path / "other.json")
    assert result.exit_code == 1
    assert "`clamp`: gradient at ties was " in result.output and ", is 0.5: aten.clamp.default" in result.output
    (change,) = json.loads(run("upgrade", taken, tmp_path / "other.json", "--json").stdout)["changes"]
    assert change["kind"] == "meaning" and change["about"] == "aten.clamp"


def read_first(text, wanted):
    """Where a number stands in a text."""
    return [float(each) for each in text.split(" ")[2:]].index(wanted)


CHIP = """
import decomp

chip = decomp.Target("chip", ["add", "mul", "relu"]).legal_if("mul", lambda call: True, "always")
"""


def test_a_target_of_ones_own_with_conditions_is_found_by_other_processes(tmp_path):
    (tmp_path / "own_chip.py").write_text(CHIP)
    words = ("--to", f"{tmp_path / 'own_chip.py'}:chip", "--op", "relu", "--op", "exp", "--only", "derivations")
    assert run("snapshot", *words, "--workers", 1, "-o", tmp_path / "chip.json").exit_code == 0
    record = VersionRecord.load(tmp_path / "chip.json")
    assert record.primitives["aten.mul"] == "always" and not record.points
    assert {call.verdict for call in record.ops["aten.exp"]} == {"blocked"}
    assert record.ops["aten.relu"][0].verdict == "legal" and not record.ops["aten.relu"][0].behaviours


def test_an_op_whose_process_dies_costs_that_op_alone():
    dies = OpJob("aten.relu", functools.partial(os._exit, 3))
    lives = OpJob("aten.relu", functools.partial(os._exit, 3), ("kernels",))
    found = [answer for _, answer in answers([dies, lives], 1, within(60))]
    assert found[0] == "crashes: exit code 3" and len(found[1].calls) == len(calls_of("aten.relu"))


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is not a snapshot, or is damaged"),
        ("[]", "is not a snapshot, or is damaged"),
        ('{"rows": []}', "is not a snapshot, or is damaged"),
        ('{"kind": "decomp snapshot", "format": 0}', "is of format 0, and this decomp reads format 1"),
        ('{"kind": "decomp snapshot", "format": 1}', "is a damaged snapshot: KeyError: 'header'"),
    ],
)
def test_a_file_that_is_not_a_snapshot_is_refused_with_what_to_do(taken, tmp_path, text, message):
    (tmp_path / "bad.json").write_text(text)
    code, words = said(run("upgrade", taken, tmp_path / "bad.json"))
    assert (
        code == 2
        and words.startswith(f"error: {tmp_path / 'bad.json'} {message}")
        and "\n  to do: make it by decomp snapshot" in words
    )


def test_a_file_that_is_not_there_is_named(taken, tmp_path):
    assert said(run("upgrade", taken, tmp_path / "none.json")) == (
        2,
        f"error: {tmp_path / 'none.json'}: No such file or directory",
    )


def test_snapshots_of_two_targets_are_refused(taken, tmp_path):
    data = json.loads(taken.read_text())
    (tmp_path / "npu.json").write_text(json.dumps({**data, "target": "npu"}))
    code, words = said(run("upgrade", taken, tmp_path / "npu.json"))
    wanted = f"{taken} is of the target tinygrad, and {tmp_path / 'npu.json'} of npu: compare those of one"
    assert (code, words) == (2, f"error: {wanted}")


@pytest.mark.parametrize(
    "words, message",
    [
        (("-o", "x.txt"), "error: -o x.txt: the name must end in .json"),
        (("-o", "nowhere/x.json"), "error: -o nowhere/x.json: there is no directory nowhere"),
        (
            ("-o", "x.json", "--only", "kernel"),
            "error: --only kernel: Did you mean 'kernels'? There are derivations, kernels, models",
        ),
        (("-o", "x.json", "--op", "reluu"), "error: unknown op 'reluu'; did you mean"),
        (("gtp", "-o", "x.json"), "error: no model 'gtp'. Did you mean 'gpt'?"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_computed(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, text = said(run("snapshot", "--to", "tinygrad", *words))
    assert code == 2 and text.startswith(message) and not list(tmp_path.iterdir())


def test_an_op_that_the_library_registers_is_found_by_a_process_that_looks_at_kernels_alone(tmp_path):
    op = "quantized_decomposed.quantize_per_tensor"
    words = ("--to", "tinygrad", "--op", op, "--only", "kernels", "--workers", 1, "-o", tmp_path / "kernels.json")
    assert run("snapshot", *words).exit_code == 0
    record = VersionRecord.load(tmp_path / "kernels.json")
    assert not record.lost and all(call.behaviours and not call.verdict for call in record.ops[op])


def test_memory_that_a_kernel_leaves_as_it_is_has_one_value():
    (call, *_) = calls_of("aten._ctc_loss")
    (_, alphas) = behaviours(call, {})["float32, as sampled"].values
    assert alphas.split(" ").count("nan") > 3
    assert not torch.are_deterministic_algorithms_enabled()


def test_polynomials_of_an_endless_degree_are_not_tried():
    for call in calls_of("aten.special_laguerre_polynomial_l"):
        assert call.domain is not None and not any(label.startswith("int") for label in behaviours(call, {}))


@pytest.mark.parametrize("name", EDGES)
def test_every_call_at_an_edge_is_taken(name):
    found = samples().edges_of(getattr(torch.ops.aten, name))
    assert found and all(map(takes, found))


def test_few_points_have_ties_special_values_and_what_no_integer_holds():
    (one,) = points.few(1, torch.float32, (0.1,))
    assert len(one) == points.FEW and bool(one.isnan().any()) and bool((one == 2.0**31).any())
    assert bool((one == torch.tensor(0.1)).any())
    first, second = points.few(2, torch.float32)
    assert int((first == second).sum()) >= 7 and bool((first.isnan() & second.isfinite()).any())
    shifted, by = points.few_whole_numbers(2, torch.int64)
    assert bool((by > 63).any()) and bool((by < 0).any()) and not bool((by == 0).any()) and len(shifted) == points.FEW
