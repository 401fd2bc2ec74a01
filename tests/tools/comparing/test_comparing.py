"""What `decomp.compare` says of programs: drift, wrong compilers, wrong rules, and runtimes without a backend."""

import importlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import decomp
from decomp.tools.cli.app import app
from decomp_rules import backends
from decomp_rules.backends import numpy_arrays
from tests.forms import Holder
from tests.tools.comparing import faults

X = torch.linspace(-2, 2, 12).view(3, 4)


def exported(function, *args):
    return torch.export.export(Holder(function), args, strict=False)


def lowered(function, *args, to=backends.numpy):
    return decomp.lower(exported(function, *args), to=to.target, training=False, verify=False)


def waves(x):
    return torch.exp2(torch.sin(x * 3.0) + 1.0) * 0.5


def with_faults(**functions):
    chip = numpy_arrays.make()
    for name, function in functions.items():
        chip.implements(name)(function)
    return chip


def rough_sine(x):
    return np.sin(x) * np.float32(1.001)


def test_a_wrong_call_is_described_with_its_origin_and_similarity():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU())
    chip = with_faults(exp2=lambda x: np.exp2(x) + np.float32(0.25))
    program = torch.export.export(model.eval(), (X,))
    lowering = decomp.lower(program, to=chip.target, training=False, verify=False)
    comparison = decomp.compare(lowering, model, (X,), on=chip)
    first = comparison.first
    assert (first.primitive, first.op, first.module, first.verdict) == ("exp2", "aten.gelu.default", "1", "wrong")
    assert "activation.py" in first.source and first.call == "aten.exp2.default(float32[3, 8])"
    assert first.ulp > 1e5 and first.own < 2 and 0.9 < first.cosine < 1 and first.alone == "wrong"
    assert comparison.culprits == {"exp2": 1} and comparison.rows[0] is first
    assert comparison.headline.startswith("numpy: exp2 is wrong: 1 of ") and first.node in comparison.headline


def test_a_result_that_is_not_a_number_has_infinite_error():
    chip = with_faults(sin=lambda x: np.where(x > 3, np.float32("nan"), np.sin(x)))
    first = decomp.compare(lowered(waves, X), waves, (X,), on=chip).first
    assert first.primitive == "sin" and math.isinf(first.ulp) and math.isnan(first.pcc)


def test_rows_are_ordered_by_gravity_and_the_first_is_that_of_the_program():
    chip = with_faults(sin=rough_sine, exp2=lambda x: np.exp2(x) + 1)
    comparison = decomp.compare(lowered(waves, X), waves, (X,), on=chip)
    assert [row.primitive for row in comparison.rows[:2]] == ["exp2", "sin"]
    assert comparison.first.primitive == "sin" and list(comparison.culprits) == ["sin", "exp2"]


def drifting(x):
    """Exact in PyTorch."""
    for i in range(120):
        x = x * (0.5 if i % 2 else 2.0)
    return x


def three_steps_up(x, y):
    found = x * np.float32(y)
    for _ in range(3):
        found = np.nextafter(found, np.copysign(np.float32("inf"), found))
    return found


def test_errors_that_add_up_are_drift_and_no_call_is_wrong():
    chip = with_faults(mul=three_steps_up)
    comparison = decomp.compare(lowered(drifting, X), drifting, (X,), on=chip)
    assert comparison.verdict == "drift" and comparison.first is None and not comparison.culprits
    assert all(row.verdict == "right" for row in comparison.calls)
    assert {row.primitive for row in comparison.shown()} == {"mul"}
    assert "each call is right on its own operands, and the results are wrong: errors add up" in str(comparison)


def test_a_program_that_is_not_the_model_is_no_fault_of_the_backend():
    comparison = decomp.compare(lowered(waves, X), lambda x: waves(x) * 1.1, (X,), on=backends.numpy)
    assert comparison.verdict == "lowering" and not comparison.ok
    assert comparison.headline == "numpy: the backend does what the program says, and the program is not the model"


# Runtimes that run programs as a whole.


def runs(prefix, *inputs):
    """A runtime without a backend: PyTorch."""
    return prefix(*inputs)


def runs_badly(prefix, *inputs):
    """Its sine is off."""
    for node in prefix.graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            with prefix.graph.inserting_after(node):
                scaled = prefix.graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.001))
            node.replace_all_uses_with(scaled, lambda user, scaled=scaled: user is not scaled)
    prefix.recompile()
    return prefix(*inputs)


@pytest.mark.parametrize("bisect", [False, True])
def test_a_runtime_needs_only_a_function_that_runs_prefixes(bisect):
    lowering = lowered(waves, X)
    assert decomp.compare(lowering, waves, (X,), on=runs, bisect=bisect).ok
    comparison = decomp.compare(lowering, waves, (X,), on=runs_badly, bisect=bisect)
    assert comparison.verdict == "wrong" and comparison.first.primitive == "sin"
    assert len(comparison.calls) == (1 if bisect else 5)
    assert comparison.piece == (("sin",) if bisect else ())


def test_bisection_reads_few_values():
    read = []

    def counted(prefix, *inputs):
        read.append(len(prefix.graph.output_node().args[0]))
        return runs_badly(prefix, *inputs)

    def deep(x):
        for _ in range(15):
            x = torch.exp2(x * 0.5) - 0.5
        return torch.sin(x).exp2()

    comparison = decomp.compare(lowered(deep, X), deep, (X,), on=counted, bisect=True)
    assert comparison.piece == ("sin",) and len(comparison.calls) == 1
    assert sum(read) < 12


def fuses_badly(prefix, *inputs):
    """Wrong where a product of a sine is not read in between."""
    nodes = prefix.graph.output_node().args[0]
    found = list(prefix(*inputs))
    return [x * 1.1 if node.name == "exp2" and len(nodes) == 1 else x for node, x in zip(nodes, found)]


def test_a_compiler_that_is_wrong_where_no_value_is_read_is_named_as_such():
    comparison = decomp.compare(lowered(lambda x: x.sin().exp2(), X), None, (X,), on=fuses_badly)
    assert comparison.verdict == "compiled" and comparison.first is None
    assert "exp2" in comparison.piece


def test_a_runtime_that_fails_is_blamed_on_the_call_that_it_fails_at():
    def fails(prefix, *inputs):
        if any("exp2" in str(node.target) for node in prefix.graph.nodes):
            raise NotImplementedError("no exp2")
        return prefix(*inputs)

    first = decomp.compare(lowered(waves, X), waves, (X,), on=fails).first
    assert (first.primitive, first.verdict, first.problem) == ("exp2", "fails", "NotImplementedError: no exp2")


def test_a_compiled_backend_is_compared_by_prefixes_of_the_program():
    comparison = decomp.compare(lowered(waves, X, to=backends.stablehlo), waves, (X,), on=backends.stablehlo)
    assert comparison.ok and {row.primitive for row in comparison.calls} >= {"sin", "mul"}


# Calls that are made again.


@pytest.mark.parametrize("module", ["rough", "rough-chip"])
def test_a_wrong_call_is_saved_with_a_script_that_makes_it_again(tmp_path, monkeypatch, module):
    (tmp_path / f"{module}.py").write_text(
        "import numpy as np\nfrom decomp_rules.backends import numpy_arrays\nchip = numpy_arrays.make()\n\n\n"
        "@chip.implements('sin')\ndef sine(x):\n    return np.sin(x) * np.float32(1.001)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    chip = importlib.import_module(module).chip
    comparison = decomp.compare(lowered(waves, X), waves, (X,), on=chip, save=tmp_path / "wrong")
    script = comparison.first.file
    assert script == str(tmp_path / "wrong" / "sin.py") and f"again: python {script}" in str(comparison)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stdout.startswith("numpy: sin is wrong: 1 of 1 call, first sin"), ran.stderr
    del sys.modules[module]


def test_a_call_that_is_right_alone_points_to_what_ran_before():
    seen = []

    def sine(x):
        seen.append(x)
        return np.sin(seen[max(0, len(seen) - 2)]) if x.shape == (3, 4) and len(seen) % 3 == 2 else np.sin(x)

    def both(x):
        return x.sin() + (x * 2.0).sin() + (x * 3.0).sin()

    first = decomp.compare(lowered(both, X), both, (X,), on=with_faults(sin=sine)).first
    assert first.primitive == "sin" and first.alone == "right"


def test_data_for_machines_have_no_numbers_that_json_lacks():
    chip = with_faults(sin=lambda x: np.full_like(x, np.nan))
    data = decomp.compare(lowered(waves, X), waves, (X,), on=chip).as_dict()
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again["calls"][0]["ulp"] == "inf" and again["verdict"] == "wrong"


# What is not taken.


def test_a_program_that_nothing_runs_is_refused():
    with pytest.raises(decomp.errors.ArgumentError) as raised:
        decomp.compare(lowered(waves, X), waves, (X,))
    assert str(raised.value) == (
        "compare() needs what runs the program\n"
        "  to do: pass on=backend, or a function on=run that runs a prefix of it: run(prefix, *inputs)"
    )
    loaded = backends.numpy.load(lowered(waves, X))
    assert decomp.compare(loaded, waves, (X,)).ok
    with pytest.raises(decomp.errors.ArgumentError, match="on= is for a program that is not loaded on a backend yet"):
        decomp.compare(loaded, waves, (X,), on=runs)


def test_state_and_inputs_are_not_changed():
    model, x = faults.Network().eval(), X.clone()
    program = torch.export.export(model, (x,))
    loaded = backends.numpy.load(decomp.lower(program, to=backends.numpy.target, training=False, verify=False))
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    assert decomp.compare(loaded, model, (x,)).ok
    assert torch.equal(x, X) and all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())


def test_the_command_line_lowers_compares_and_exits_with_1(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "roughly.py").write_text(
        "import numpy as np, torch\nfrom decomp_rules.backends import numpy_arrays\nchip = numpy_arrays.make()\n"
        "chip.implements('sin')(lambda x: np.sin(x) * np.float32(1.001))\n\n\n"
        "class Sine(torch.nn.Module):\n    def forward(self, x):\n        return x.sin()\n\n\n"
        "def make():\n    return Sine(), (torch.ones(3),)\n\n\ndef run(prefix, *inputs):\n    return prefix(*inputs)\n"
    )
    words = ["compare", "roughly.py:make", "--on", "roughly.py:chip", "--narrow", "--inference"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1 and result.output.startswith("numpy: sin is wrong: 1 of 1 call, first sin"), (
        result.output
    )
    assert "again: python wrong/sin.py" in result.output and (tmp_path / "wrong" / "sin.pt").exists()
    right = CliRunner().invoke(app, [*words[:3], "roughly.py:run", "--to", "tinygrad"])
    assert right.exit_code == 0 and right.output.startswith("run: 1 call and the results are right"), right.output
    unclear = CliRunner().invoke(app, [*words[:3], "roughly.py:run"])
    assert unclear.exit_code == 2 and "so --to must say what" in " ".join(unclear.stderr.split())
