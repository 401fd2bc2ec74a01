"""One library for several versions of PyTorch: an op that the installed version lacks is absent, and no error."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import decomp
from decomp import ops, supported
from decomp.torch_internals import versions
from decomp_rules import RULES
from tests.forms import Holder

LACKING = next(
    name
    for name, known in sorted(versions.names_by_version().items())
    if versions.in_words(versions.INSTALLED) not in known and name.startswith("aten.")
)
"""An op that another supported version has, and the installed one lacks."""
BUILDING_BLOCKS = {"aten.linear", "aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.batch_norm"}
"""Functions that modules of PyTorch itself apply, and for which the library has patterns."""


def lacking():
    return getattr(ops.aten, LACKING.partition(".")[2])


def test_an_op_that_this_version_has_is_pytorchs_own():
    assert ops.aten.relu is torch.ops.aten.relu and ops.prims.exp is torch.ops.prims.exp


def test_an_op_that_no_version_has_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'reluu'"):
        ops.aten.reluu


def test_an_absent_op_can_be_named_with_its_overloads():
    assert str(lacking()) == LACKING and str(lacking().default) == f"{LACKING}.default"
    assert lacking().__name__ == LACKING.partition(".")[2] and lacking().default != torch.ops.aten.relu.default


def test_rules_and_targets_may_name_an_absent_op():
    rules = decomp.Rules()

    @rules.register(lacking(), LACKING, torch.relu, needs=[lacking()])
    def rule(x):
        return x

    assert decomp.op(lacking()) == decomp.op(LACKING) and len(rules[LACKING]) == 2
    assert decomp.Target("chip", ["add", LACKING]).knows(decomp.op(LACKING))


def test_a_name_that_no_version_has_is_still_misspelt():
    with pytest.raises(decomp.errors.UnknownOp, match="unknown op 'aten.reluu'; did you mean"):
        decomp.op("aten.reluu")


def test_a_rule_that_calls_an_absent_op_declines():
    rules, chip = decomp.Rules(), decomp.Target("chip", ["mul"])

    @rules.register("gelu")
    def by_absent(x):
        return lacking()(x)

    plan = decomp.plan(torch.nn.GELU(), to=chip, args=(torch.randn(2),), rules=rules)
    version = versions.in_words(versions.INSTALLED)
    assert f"calls an op that this PyTorch lacks: {LACKING} is not in torch {version}" in str(plan)


def test_a_condition_of_a_target_file_may_be_of_an_absent_op(tmp_path):
    text = f'ops = ["add", "{LACKING}"]\n[[when]]\nop = "{LACKING}"\nargument = "any"\nequals = 1\n'
    (tmp_path / "chip.toml").write_text(text)
    assert len(decomp.Target.load(tmp_path / "chip.toml")) == 2


@pytest.mark.parametrize("installed", ["2.8.0+cu126", "2.10.1"])
def test_an_older_pytorch_is_refused_when_the_package_is_imported(installed):
    code = f"import types, sys; sys.modules['torch'] = types.SimpleNamespace(__version__='{installed}'); import decomp"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    wanted = f"ImportError: decomp runs on torch 2.11 to 2.15; this is {installed}: pip install 'torch>=2.11'"
    assert done.stderr.splitlines()[-1] == wanted


def test_a_newer_pytorch_than_those_known_runs_with_a_warning():
    with pytest.warns(UserWarning, match="^decomp was tested on torch 2.11 to 2.15; this is 2.99.0$"):
        supported.require_supported("2.99.0")


def test_the_version_is_known_without_importing_pytorch():
    code = (
        "import decomp, sys; from decomp.supported import torch_version; print('torch' in sys.modules, torch_version())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"False {torch.__version__}\n"


@pytest.mark.parametrize("text, wanted", [("2.13.0+cpu", (2, 13)), ("2.15.0a0+git1", (2, 15)), ("3.0", (3, 0))])
def test_versions_are_read_with_any_suffix(text, wanted):
    assert versions.version_of(text) == wanted


def test_the_installed_version_is_in_the_table():
    assert versions.in_words(versions.INSTALLED) in versions.versions_with("aten.relu")


def named_by_rules():
    return {str(rule.op) for rule in RULES if versions.versions_with(str(rule.op))} - BUILDING_BLOCKS


def hidden(*arguments):
    command = [sys.executable, "-W", "ignore", "-m", "tests.absent_ops", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_project_is_imported_by_a_pytorch_that_lacks_every_op_that_it_has_rules_for():
    done = hidden("--import", *sorted(named_by_rules()))
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_pytorch_without_distributed_imports_the_project_and_has_no_rules_for_collectives():
    assert hidden("--without-distributed", "--import").returncode == 0
    assert hidden("--without-distributed").stderr.endswith(
        "decomp.errors.DecompError: decomp_rules.collectives.RULES needs the collectives of torch.distributed, "
        "and this PyTorch was built without it\n"
        "  to do: install a PyTorch that was built with USE_DISTRIBUTED=1, as those of pip are\n"
    )


def test_models_are_lowered_by_a_pytorch_that_lacks_ops_that_they_do_not_call():
    done = hidden(*sorted(name for name in named_by_rules() if "linalg" in name or "special" in name))
    assert done.returncode == 0, done.stderr[-2000:]


# What PyTorch does otherwise from a version on.


def gradient(function, *values):
    tensors = [torch.tensor(value, requires_grad=True) for value in values]
    return [each.item() for each in torch.autograd.grad(function(*tensors), tensors)]


def place_of(q):
    x = torch.arange(11.0, requires_grad=True)
    return torch.autograd.grad(torch.quantile(x, q), x)[0].nonzero().flatten().tolist()


def exported(function, *args):
    try:
        return torch.export.export(Holder(function), args)
    except GuardOnDataDependentSymNode:
        return None


def states_of_an_exported_lstm():
    program = torch.export.export(torch.nn.LSTM(3, 4), (torch.ones(5, 2, 3),))
    return next(node.meta["val"][1] for node in program.graph.nodes if "lstm" in node.name)


def saved_by_miopen():
    with FakeTensorMode():
        x, weight = torch.empty(2, 3, dtype=torch.float16), torch.empty(3)
        return torch.ops.aten.miopen_batch_norm(x, weight, None, None, None, True, 0.1, 1e-5)[1]


PROBES = {
    "ties_share_gradients": lambda: (
        (gradient(torch.fmax, 1.0, 1.0), gradient(lambda x: x.clamp(min=1.0), 1.0)) == ([0.5, 0.5], [0.0])
    ),
    "nan_shares_gradients": lambda: gradient(torch.fmax, 1.0, float("nan")) == [1.0, 1.0],
    "quantile_places_in_float64": lambda: place_of(0.3) == [3, 4],
    "miopen_saves_in_dtype_of_weight": lambda: saved_by_miopen().dtype is torch.float32,
    "lstm_states_are_exported_right": lambda: states_of_an_exported_lstm().shape == (1, 2, 4),
    "rows_by_data_are_exported": lambda: exported(lambda row: torch.ones(3, 2)[row], torch.tensor(1)) is not None,
}
"""For each change, whether the installed PyTorch does so."""


@pytest.mark.parametrize("name", PROBES)
def test_a_declared_change_is_what_the_installed_pytorch_does(name):
    assert bool(getattr(ops.changes, name)) == PROBES[name](), getattr(ops.changes, name).what


def test_each_declared_change_is_measured_and_has_a_source():
    declared = {field.name: getattr(ops.changes, field.name) for field in dataclasses.fields(ops.changes)}
    assert declared.keys() == PROBES.keys()
    assert all("github.com/pytorch" in change.source for change in declared.values())


def test_a_change_begins_with_one_version_and_may_end_with_another(monkeypatch):
    change = versions.Change((2, 12), "", "", until=(2, 14))
    for installed, wanted in (((2, 11), False), ((2, 12), True), ((2, 13), True), ((2, 14), False)):
        monkeypatch.setattr(versions, "INSTALLED", installed)
        assert bool(change) is wanted


def test_a_rule_for_another_version_is_left_out():
    rules = decomp.Rules()
    rules.register("relu", when=False)(lambda x: x)
    rules.register("relu", when=versions.Change((2, 11), "", ""))(lambda x: x + 1)
    assert len(rules["relu"]) == 1
