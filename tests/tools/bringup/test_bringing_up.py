"""Bring-up: planted faults are blamed on the primitives that have them, nothing else is accused, and what hangs or
crashes is a row."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from typer.testing import CliRunner

import decomp
from decomp.tools.bringup import blaming
from decomp.tools.bringup.cases import cases, samples_for
from decomp.tools.bringup.jobs import fingerprint
from decomp.tools.bringup.report import BringUp
from decomp.tools.bringup.rows import BringUpRow
from decomp.tools.cli.app import app
from decomp.tools.comparing.reproducing import place_of
from decomp_rules.backends import numpy_arrays
from tests.forms import Holder
from tests.tools.bringup import chips

aten = torch.ops.aten


@pytest.fixture(scope="module")
def faulty():
    """The report of a backend with five faults."""
    names = set(chips.FAULTS) | {"add", "amax"}
    target = chips.faulty.target
    chosen = decomp.Target("few", [name for name in target if name.removeprefix("aten.") in names]) & target
    few = chips._made("few", chips.FAULTS, chosen)
    primitives = decomp.bring_up(few, only=["primitive"], quick=True, isolate=False)
    ops = ["relu", "relu6", "fix", "mean", "amax", "prod", "narrow", "logaddexp", "tanh"]
    rest = decomp.bring_up(chips.faulty, only=["op", "model"], ops=ops, models=["mlp"], isolate=False, quick=True)
    return BringUp("faulty", "tinygrad", (*primitives.rows, *rest.rows))


def test_planted_faults_are_found(faulty):
    wrong = {row.name.removeprefix("aten.") for row in faulty.of("primitive") if not row.fine}
    assert wrong == set(chips.FAULTS)
    assert all(row.verdict == "right" and row.cases > 3 for row in faulty.of("primitive") if row.fine)


@pytest.mark.parametrize(
    "name, where, expected, got",
    [
        ("maximum", "float32", "nan", None),
        ("prod.dim_int", "int64, large", None, None),
        ("trunc", "float32", "-0", "-1"),
    ],
)
def test_each_fault_is_named_with_its_values(faulty, name, where, expected, got):
    problem = faulty.row("primitive", name).problems[0]
    assert problem.where.startswith(where)
    assert expected is None or problem.expected == expected
    assert got is None or problem.got == got
    assert problem.at and problem.call.startswith(f"aten.{name.partition('.')[0]}")


def test_wrong_ops_are_blamed_on_primitives(faulty):
    blamed = {row.name.removeprefix("aten."): row.blames for row in faulty.of("op") if not row.fine}
    assert set(blamed.values()) <= set(chips.FAULTS)
    assert all(row.verdict in ("right", "blames") for row in (*faulty.of("op"), *faulty.of("model")))
    assert faulty.row("op", "tanh").verdict == "right"


def _difference(function, *args):
    module = make_fx(function)(*args)
    lowering = decomp.lower(module, to=chips.faulty.target, args=args, verify=False)
    return blaming.difference_in(chips.faulty, lowering, args, "here")


def test_the_first_difference_in_a_program_is_named():
    x, y = torch.tensor([1.0, float("nan"), -0.5, 2.0]), torch.ones(4)
    found = _difference(lambda x, y: aten.trunc(aten.mul(aten.maximum(x, y), y)), x, y)
    assert found.primitive == "maximum" and found.problem.at.startswith("index [1]")
    assert found.problem.expected == "nan" and "float32[4]" in found.problem.call


def test_functions_that_emit_are_not_to_blame_for_what_comes_of_the_whole():
    """Walked, they have nothing to emit into."""
    graphs = []

    def jit(function):
        def run(x):
            graphs.append([])
            function("x")
            names = graphs.pop()
            return (getattr(torch, names[0])(x) if len(names) == 1 else x.cos(),)  # a compiler that is wrong

        return run

    chip = decomp.Backend("emits", from_torch=lambda x: x, to_torch=lambda x: x, jit=jit)
    for name in ("sin", "exp"):
        chip.implements(name)(lambda x, name=name: graphs[-1].append(name))
    models = {"waves": (Holder(lambda x: x.exp().sin()), torch.ones(2))}
    (row,) = decomp.bring_up(chip, models=models, only="model", isolate=False).rows
    assert row.verdict == "wrong" and not row.blames


def test_right_programs_have_no_difference():
    assert _difference(lambda x: aten.add(aten.mul(x, x), 1.0), torch.randn(3)) is None


def test_what_hangs_or_crashes_is_a_row_and_is_not_run_again():
    report = decomp.bring_up(
        chips.lost, ops=["sqrt", "rsqrt", "sin", "mul", "reciprocal"], quick=True, timeout=15, workers=1
    )
    verdicts = {row.name.removeprefix("aten."): row.verdict for row in report.of("primitive")}
    assert verdicts == {"sin": "hangs", "sqrt": "crashes", "mul": "right", "reciprocal": "right"}
    assert "SIGABRT" in report.row("primitive", "sqrt").problems[0].problem
    assert report.row("primitive", "sin").problems[0].call.startswith("aten.sin")
    blamed = {row.name.removeprefix("aten."): row.blames for row in report.of("op") if not row.fine}
    assert blamed == {"sqrt": "sqrt", "rsqrt": "sqrt", "sin": "sin"}
    assert "not run" in report.row("op", "rsqrt").problems[0].where


def test_what_is_not_reached_is_named_with_what_stands_in_the_way():
    chip = chips._made("few", {}, decomp.Target("few", ["mul", "reciprocal"]))
    report = decomp.bring_up(chip, ops=["relu", "threshold"], models=(), only=["op"], quick=True, isolate=False)
    assert report.headline == "few: nothing was computed; 2 ops not reached by what few has"
    assert not report.reached and not report.ok
    (line,) = [line for line in report.lines() if line.startswith("not lowered: relu")]
    assert "aten.relu is not reached: relu" in line and "needs aten." in line


def test_an_op_need_not_return_values_that_only_gradients_need():
    names = ["sub", "exp", "mul", "reciprocal", "amax", "sum.dim_IntList", "div.Tensor"]
    chip = decomp.Backend("inference", from_torch=numpy_arrays.to_numpy, to_torch=numpy_arrays.to_torch)
    for name, function in zip(
        names, (np.subtract, np.exp, np.multiply, np.reciprocal, numpy_arrays.amax, numpy_arrays.sum, np.divide)
    ):
        chip.implements(name)(function)
    report = decomp.bring_up(chip, ops=["softmax"], models=(), only=["op"], quick=True, isolate=False)
    assert report.row("op", "softmax").verdict == "right"


def test_rows_are_kept_and_not_made_again(tmp_path):
    told = []
    how = dict(only=["primitive"], quick=True, isolate=False, results=tmp_path)
    target = decomp.Target("two", ["mul", "trunc"])
    first = decomp.bring_up(chips._made("two", {}, target), **how)
    (file,) = tmp_path.iterdir()
    kept = json.loads(file.read_text().splitlines()[0])
    file.write_text(json.dumps({**kept, "points": 7}) + "\n{cut off")
    again = decomp.bring_up(chips._made("two", {}, target), **how, progress=lambda *each: told.append(each))
    assert again.row("primitive", kept["name"]).points == 7 and first.ok and again.ok
    assert [each[:2] for each in told] == [(2, 2)]


def test_the_fingerprint_depends_on_the_backend():
    assert fingerprint(chips.faulty, False) != fingerprint(chips.right, False)
    assert fingerprint(chips.faulty, False) != fingerprint(chips.faulty, True)


def test_where_other_processes_find_a_backend():
    from decomp_rules import backends

    assert place_of(backends.get("numpy")) == ("numpy", "")
    name, directory = place_of(chips.faulty)
    assert name == "tests.tools.bringup.chips:faulty" and (chips.__file__.startswith(directory))
    assert place_of(chips._made("local", {})) is None
    with pytest.raises(decomp.errors.ArgumentError, match="top level of a module"):
        decomp.bring_up(chips._made("local", {}), isolate=True)


def test_missing_primitives_are_rows():
    chip = decomp.Backend("empty", decomp.Target("t", ["add"]), from_torch=lambda x: x, to_torch=lambda x: x)
    report = decomp.bring_up(chip, only=["primitive"], isolate=False)
    assert not report.ok and report.row("primitive", "add").verdict == "missing"
    assert "no function implements add" in str(report)


def test_cases_cover_dtypes_shapes_and_strides():
    found = list(cases(samples_for(decomp.op("sum"), "dim_IntList")[:1]))
    labels = {case.label for case in found}
    assert {"float32", "float16", "float64", "int64", "bool", "int64, large"} <= labels
    assert {"float32, dimensions from the end", "float32, other strides", "float32, empty"} <= labels
    pointwise = {case.label for case in cases(samples_for(decomp.op("maximum"), None)[:1], quick=True)}
    assert {"float32, without dimensions", "float32, broadcast", "float32, one without dimensions"} <= pointwise
    shifts = {case.label for case in cases(samples_for(decomp.op("bitwise_left_shift"), None)[:1], quick=True)}
    assert "uint8" in shifts  # of which ONNX has shifts, and of no others


def test_reports_travel_and_compare(faulty, tmp_path):
    path = faulty.save(tmp_path / "report.json")
    again = BringUp.load(path)
    assert again.rows == faulty.rows and again.headline == faulty.headline
    trunc = faulty.row("primitive", "trunc")
    rows = (BringUpRow("primitive", row.name, cases=9) if row is trunc else row for row in faulty.rows)
    mended = BringUp("faulty", "tinygrad", tuple(rows))
    (change,) = mended.compare(faulty)
    assert change.better and str(change).startswith("better: primitive trunc: wrong in")
    (change,) = faulty.compare(mended)
    assert change.better is False
    with pytest.raises(decomp.errors.ArgumentError, match="is not a bring-up report"):
        BringUp.load(__file__)


def test_the_page_needs_nothing_else(faulty, tmp_path):
    text = faulty.save(tmp_path / "report.html").read_text()
    assert "://" not in text and "<script src" not in text
    assert "maximum" in text and "What is to blame" in text and "&lt;" not in faulty.headline


def test_the_command_line(tmp_path):
    args = ["bringup", "numpy", "--quick", "--here", "--fresh", "--op", "relu", "--only", "op", "--only", "model"]
    args += ["--model", f"{__file__}:small", "-o", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    assert "1 of 1 ops right, 1 of 1 models right" in done.output
    assert CliRunner().invoke(app, [*args, "--compare", str(tmp_path / "r.json"), "--json"]).exit_code == 0
    assert CliRunner().invoke(app, ["bringup", "nupmy"]).exit_code == 2


def test_the_command_line_takes_primitives_and_ops_by_one_name():
    here = ["bringup", "numpy", "--quick", "--here", "--fresh"]
    done = CliRunner().invoke(app, [*here, "--op", "sum", "--op", "relu"])
    assert done.exit_code == 0 and "1 of 1 primitives right, 2 of 2 ops right\n" in done.output
    done = CliRunner().invoke(app, [*here, "--op", "maximun"])
    assert done.exit_code == 2 and "unknown op 'maximun'; did you mean 'maximum'" in done.output
    done = CliRunner().invoke(app, [*here, "--op", "cos", "--op", "lt.Tensor", "--only", "primitive"])
    assert done.exit_code == 2 and "cos is not a primitive of numpy" in done.output


def test_an_overload_is_that_primitive_alone():
    how = dict(only="primitive", quick=True, isolate=False)
    for name in ("sum.dim_IntList", "lt.Scalar", torch.maximum):
        (row,) = decomp.bring_up(chips.right, ops=name, **how).rows
        assert row.verdict == "right" and row.name in ("aten.sum.dim_IntList", "aten.lt", "aten.maximum")


def small():
    """A model for the command line."""
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (torch.randn(4, 3),)


def test_unusable_arguments():
    with pytest.raises(decomp.errors.ArgumentError, match="takes a decomp.Backend"):
        decomp.bring_up("numpy")
    with pytest.raises(decomp.errors.ArgumentError, match="available are primitive, op, model"):
        decomp.bring_up(chips.right, only=["rule"])
    with pytest.raises(decomp.errors.ArgumentError, match="no sample model 'gtp'; available: gpt, "):
        decomp.bring_up(chips.right, models="gtp")
    with pytest.raises(decomp.errors.ArgumentError, match="a module and its inputs by name.*this is Linear"):
        decomp.bring_up(chips.right, models={"mine": nn.Linear(2, 2)})


def test_a_model_that_cannot_be_tried_is_not_right():
    x, how = torch.ones(4, 3), dict(only="model", isolate=False)
    models = {
        "named": (nn.Linear(3, 2), {"input": x}),
        "sizes": (nn.Linear(2, 2), (x,)),
        "data": (Holder(lambda x: x if x.sum() > 0 else -x), x),
    }
    report = decomp.bring_up(chips.right, models=models, **how)
    assert [row.verdict for row in report.rows] == ["right", "fails", "fails"] and not report.ok
    assert "model sizes: fails in 1 of 1 cases before the backend is asked" in str(report)
    assert "mat1 and mat2 shapes" in str(report) and "data-dependent" in str(report)


def test_a_function_that_does_not_take_its_arguments_is_to_blame():
    def total(x, axis):
        return x.sum(tuple(axis))

    chip = chips._made("narrow", {"sum.dim_IntList": total})
    report = decomp.bring_up(chip, ops="softmax", only="op", isolate=False, quick=True)
    assert report.row("op", "softmax").blames == "sum.dim_IntList"
    assert "total: got an unexpected keyword argument 'keepdim'" in str(report)


@pytest.mark.parametrize("name", ["flip", "amax", "sum", "permute"])
@pytest.mark.parametrize("lost", [lambda x: abs(x) < 1e-20, lambda x: abs(x) > 1e20])
def test_small_and_large_numbers_belong_to_what_a_primitive_is_tried_on(name, lost):
    chip = decomp.Backend(
        "chip", from_torch=numpy_arrays.to_numpy, to_torch=numpy_arrays.to_torch, dtypes=numpy_arrays.DTYPES
    )
    for each in numpy_arrays.make():
        if each.key[0].short != name:
            chip.implements(each.key)(each.function)
            continue

        @chip.implements(each.key)
        def losing(*args, function=each.function, **kwargs):
            found = function(*args, **kwargs)
            return np.where(lost(found), found.dtype.type(0), found) if found.dtype == np.float32 else found

    report = decomp.bring_up(chip, ops=[name], models=(), only=["primitive"], quick=True, isolate=False)
    (row,) = report.of("primitive")
    assert row.verdict == "wrong"
    assert {found.where for found in row.problems} & {"float32, small numbers", "float32, large numbers"}


def test_a_model_is_lowered_with_rules_of_its_own_in_narrow_dtypes():
    target = decomp.Target("plain", ["mul", "add", "_to_copy"]).with_dtypes([torch.float32])
    chip = chips._made("plain", {}, target)
    rules = decomp.Rules({"sinh": lambda x: x + x * x * x * 0.16666667})
    models = {"curve": (Holder(torch.sinh), torch.rand(4, dtype=torch.float64) * 0.01)}
    plain = decomp.bring_up(chip, models=models, only="model", isolate=False)
    assert plain.rows[0].verdict == "not lowered" and not plain.ok
    row = decomp.bring_up(chip, models=models, only="model", isolate=False, rules=rules, narrow=True).rows[0]
    assert row.verdict == "right" and row.cases == 1, (row.notes, row.problems)


def test_rows_are_ordered_by_gravity_and_the_error_of_a_wrong_row_is_that_of_its_wrong_values(faulty):
    rows = sorted(faulty.of("primitive"), key=lambda row: row.gravity)
    assert [row.fine for row in rows] == sorted(row.fine for row in rows) and not rows[0].fine
    assert faulty.row("primitive", "maximum").ulp["float32"][0] == float("inf")


def test_ops_of_another_library_are_registered_where_they_are_tried():
    pytest.importorskip("transformers")
    code = (
        "from decomp.tools.bringup import trying; from decomp_rules import backends\n"
        "row = trying.op(backends.numpy, 'transformers.grouped_mm_fallback', True, (), lambda case: None)\n"
        "print(row.verdict, row.cases)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split()[-2:] == ["right", "1"]
