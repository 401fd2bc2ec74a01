"""The command line: every verb, every exit code, and what it says to wrong input, word for word."""

import inspect
import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import decomp
from decomp import __main__ as entry
from decomp.tools.cli.app import COMMANDS, EXIT_CODES, app, imported
from decomp_rules import samples
from tests.commands import run, said


def squeezed(text):
    return " ".join(text.split())


# lower


def test_lower_shows_the_report_of_a_sample():
    result = run("lower", "mlp", "--to", "core_aten")
    assert result.exit_code == 0
    assert "lowered to core_aten: 3 calls of 2 ops became 5 of 3" in result.output
    assert "aten.addmm.default" in result.output
    assert "5 calls legal" in squeezed(result.output)


def test_lower_saves_a_program_that_runs_and_can_be_lowered_again(tmp_path):
    path = tmp_path / "mlp.pt2"
    assert run("lower", "mlp", "--to", "core_aten", "-o", path).exit_code == 0
    model, args = samples.model("mlp")
    torch.testing.assert_close(torch.export.load(path).module()(*args), model(*args))
    assert [found.name for found in tmp_path.iterdir()] == ["mlp.pt2"]
    again = run("lower", path, "--to", "tinygrad", "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["before"]["aten.addmm.default"] == 2


def test_a_recurrent_model_is_lowered_without_a_word_on_stderr():
    result = CliRunner().invoke(app, ["plan", "lstm", "--to", "core_aten"])
    assert result.exit_code == 0
    assert result.stderr == ""


def test_lower_keeps_an_op():
    result = run("lower", "mlp", "--to", "tinygrad", "--keep", "F.linear", "--keep", "relu", "--json")
    assert json.loads(result.stdout)["after"] == {"aten.linear.default": 2, "aten.relu.default": 1}


def test_no_verify_says_that_nothing_was_verified():
    assert "not checked (verify=False)" in run("lower", "mlp", "--to", "core_aten", "--no-verify").output


@pytest.fixture
def adder(tmp_path):
    path = tmp_path / "adder.toml"
    ops = ["add", "mul", "view", "permute", "sum.dim_IntList"]
    path.write_text(f'name = "adder"\ndescription = "adds"\nops = {ops}\n')
    return path


def test_lower_exits_with_1_and_lists_what_blocks(adder):
    code, text = said(run("lower", "mlp", "--to", adder))
    assert code == 1
    advice = "  1 more op is enough for the blocked op on adder; no smaller set is\n"
    assert text.startswith(f"error: 1 op cannot be lowered to adder; the program is unchanged\n\n{advice}")
    assert "\n  aten.relu at relu\n" in text
    assert text.endswith("on the command line: --keep OP, --partial")


def test_json_of_a_failure_has_the_blockers(adder):
    result = run("lower", "mlp", "--to", adder, "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert data["error"] == "NotLowered"
    assert [blocker["op"] for blocker in data["blockers"]] == ["aten.relu"]
    assert data["blockers"][0]["nodes"] == ["relu"]


def test_partial_lowers_the_rest_and_exits_with_0(adder):
    result = run("lower", "mlp", "--to", adder, "--partial")
    assert result.exit_code == 0
    assert "lowered in part to adder" in result.output
    assert "not lowered  aten.relu at relu" in result.output


# plan, explain, rules, targets, demo


def test_plan_shows_rules_and_exits_with_0_when_complete():
    result = run("plan", "mlp", "--to", "tinygrad")
    assert result.exit_code == 0
    assert result.output.startswith("plan for tinygrad: 0 calls legal, 3 derived, 0 blocked\n")
    assert "(linear.py:" in result.output


def test_plan_exits_with_1_when_something_blocks(adder):
    result = run("plan", "mlp", "--to", adder)
    assert result.exit_code == 1
    assert "blocked aten.relu at relu" in result.output
    data = json.loads(run("plan", "mlp", "--to", adder, "--json").stdout)
    assert [entry["node"] for entry in data["derived"]] == ["linear", "linear_1"]
    assert [blocker["op"] for blocker in data["blockers"]] == ["aten.relu"]


def test_plan_shows_what_other_levels_cost():
    result = run("plan", "mlp", "--to", "tinygrad", "--accuracy", "exact", "--json")
    costs = json.loads(result.stdout)["costs"]
    assert costs["cost"] == "decomp.costs.calls"
    linear = next(each for each in costs["derived"] if each["op"] == "aten.linear")
    assert linear["count"] == 2 and linear["chosen"]["calls"] == 10
    assert "5 calls each" in run("plan", "mlp", "--to", "tinygrad", "--accuracy", "exact").output


@pytest.mark.parametrize("name", ["calls", "flops", "bytes", "peak_memory"])
def test_a_cost_has_a_name(name):
    result = run("plan", "mlp", "--to", "tinygrad", "--cost", name, "--json")
    assert json.loads(result.stdout)["costs"]["cost"] == f"decomp.costs.{name}"


def test_a_cost_may_be_a_file(tmp_path):
    path = tmp_path / "npu.toml"
    path.write_text("[costs]\ndefault = 2\n")
    result = run("plan", "mlp", "--to", "tinygrad", "--cost", path, "--json")
    (linear,) = (each for each in json.loads(result.stdout)["costs"]["derived"] if each["op"] == "aten.linear")
    assert (linear["chosen"]["calls"], linear["chosen"]["cost"]) == (10, 12)  # four are views, which are free
    path.write_text("[costs]\nexq = 2\n")
    code, text = said(run("plan", "mlp", "--to", "tinygrad", "--cost", path))
    assert code == 2 and text.startswith(f"error: {path}: [costs]: unknown op 'exq'")


def test_an_unknown_cost_or_level_names_the_nearest():
    assert said(run("plan", "mlp", "--to", "tinygrad", "--cost", "byte")) == (
        2,
        "error: no cost 'byte'. Did you mean 'bytes'? Available: calls, flops, bytes, peak_memory, fused, measured, "
        "and .toml files",
    )
    assert said(run("lower", "mlp", "--to", "tinygrad", "--accuracy", "gelu=fats")) == (
        2,
        "error: --accuracy gelu=fats: no level 'fats'. Did you mean 'fast'? Available: exact, standard, fast",
    )
    assert said(run("lower", "mlp", "--to", "tinygrad", "--accuracy", "fast", "--accuracy", "exact")) == (
        2,
        "error: --accuracy exact: duplicate level for all ops",
    )
    assert said(run("plan", "mlp", "--to", "tinygrad", "--accuracy", "gelo=fast"))[1].startswith(
        "error: unknown op 'gelo'; did you mean 'gelu'"
    )


@pytest.mark.parametrize(
    "command, verb",
    [("lower", decomp.lower), ("budget", decomp.budget)]
    + [(command, decomp.advise) for command in ("advise", "prove", "score", "snapshot")]
    + [(command, decomp.plan) for command in ("plan", "explain", "diff", "memory")],
)
def test_a_command_has_a_flag_for_each_option_of_its_verb(command, verb):
    options = inspect.signature(verb).parameters.keys() & inspect.signature(decomp.Options).parameters.keys()
    assert {each.name for each in imported(command).params} >= options - {"verify"}


def test_limits_in_ulp_are_written_as_levels_are():
    limits = ["--max-ulp", "gelu=64", "--max-ulp", "4"]
    derived = json.loads(run("plan", "mlp", "--to", "tinygrad", *limits, "--json").stdout)["derived"]
    assert [entry["node"] for entry in derived] == ["linear", "relu", "linear_1"]
    assert said(run("plan", "mlp", "--to", "tinygrad", "--max-ulp", "gelu=few")) == (
        2,
        "error: --max-ulp gelu=few: must be a number of ULP, or OP=ULP",
    )
    assert said(run("plan", "mlp", "--to", "tinygrad", "--max-ulp", "0")) == (
        2,
        "error: max_ulp= must be ULP, a number above 0, or a dict of them by op, not 0.0",
    )


def test_lower_takes_levels_a_cost_and_a_factor():
    exact = json.loads(run("lower", "gpt", "--to", "tinygrad", "--no-verify", "--accuracy", "exact", "--json").stdout)
    fast = json.loads(
        run("lower", "gpt", "--to", "tinygrad", "--no-verify", "--accuracy", "fast", "--cost", "calls", "--json").stdout
    )
    assert sum(fast["after"].values()) < sum(exact["after"].values())
    picked = run("lower", "mlp", "--to", "tinygrad", "--no-verify", "--max-error", "3")
    assert picked.exit_code == 0
    assert "times the program's own, of 3 allowed" in squeezed(picked.output)


def test_explain_takes_a_level():
    exact = run("explain", "softmax", "--to", "tinygrad", "--accuracy", "exact").output
    assert "derived  aten.softmax.int(float32[3, 8], 1)" in exact
    assert exact != run("explain", "softmax", "--to", "tinygrad", "--accuracy", "standard").output


# budget


def test_budget_shows_what_each_op_loses():
    result = run("budget", "mlp", "--to", "tinygrad")
    assert result.exit_code == 0
    text = squeezed(result.output)
    assert text.startswith("error ") and " on tinygrad at " in text
    assert "op error calls of all alone PyTorch's at other levels" in text
    assert "interaction" in text and "linear" in text
    data = json.loads(run("budget", "mlp", "--to", "tinygrad", "--accuracy", "exact", "--json").stdout)
    assert sum(loss["share"] for loss in data["losses"]) + data["interaction"] == pytest.approx(1)
    assert data["accuracy"] == "exact"


def test_explain_shows_docstrings_and_a_derivation():
    result = run("explain", "F.softmax", "--to", "tinygrad")
    assert result.exit_code == 0
    assert result.output.startswith("aten.softmax\n\n1. softmax  softmax.py:")
    assert "exp(xᵢ) / Σ exp(xⱼ)" in result.output
    assert "derived  aten.softmax.int(float32[3, 8], 1)\n└── softmax (softmax.py:" in result.output
    assert "aten.amax.default" in result.output


def test_explain_says_that_an_op_is_legal_or_blocked(adder):
    assert "legal  aten.exp2.default(float32[4, 4])" in run("explain", "exp2", "--to", "tinygrad").output
    blocked = run("explain", "exp2", "--to", adder).output
    assert "blocked  aten.exp2.default(float32[4, 4])" in blocked
    assert "└── tried exp2 (exponential.py:" in blocked


def test_explain_without_a_target_shows_the_rules_alone():
    result = run("explain", "nn.ReLU")
    assert result.exit_code == 0
    assert "relu  activation.py:" in result.output
    assert "sample calls" not in result.output


def test_rules_lists_and_filters():
    every, some = run("rules").output, run("rules", "softmax").output
    assert "aten.linear " in every and "aten.linear " not in some
    assert "softmax.py:" in some
    assert len(every.splitlines()) > 300


def test_rules_lists_what_is_beyond_them():
    lines = run("rules", "--limitations").output.splitlines()
    assert any(
        line.split() == "aten.equal every call the result is a Python value read from data".split() for line in lines
    )
    random = next(line for line in lines if line.startswith("aten.rand "))
    assert random.split()[1:7] == "every call on targets without aten.rand".split()
    assert next(line for line in lines if line.startswith("aten.one_hot ")).split()[1:3] == ["some", "calls"]
    assert lines[-1].split()[1::3] == ["limitations", "ops"]
    assert len(run("rules", "--limitations", "aten.rand_like").output.splitlines()) == 4
    assert said(run("rules", "--limitations", "softmaxx")) == (
        2,
        "error: no limitation with 'softmaxx' in its op or reason",
    )


def test_lint_finds_nothing_in_the_library():
    result = run("lint")
    assert result.exit_code == 0
    assert result.output.startswith("0 findings in ")


def test_targets_lists_them_and_shows_one_with_its_conditions():
    listed = run("targets").output
    assert all(name in listed for name in ("core_aten", "luminal", "onnx", "prims", "stablehlo", "tinygrad"))
    one = run("targets", "tinygrad").output
    assert one.startswith("tinygrad, 38 ops: tinygrad's primitives")
    assert "aten.add                   alpha is 1\n" in "\n".join(map(str.rstrip, one.splitlines())) + "\n"


def test_targets_shows_a_file(adder):
    assert run("targets", adder).output.startswith("adder, 5 ops: adds\n")


def test_demo_lowers_compares_and_times():
    result = run("demo")
    text = squeezed(result.output)
    assert result.exit_code == 0
    assert "lowered to tinygrad: 36 calls of 12 ops became" in text
    assert "Lowered, the model's outputs agree with the original's to" in text
    assert "outputs" in text and "gradients" in text and "times as long" in text


# what goes wrong, word for word


def test_an_unknown_model_names_the_nearest():
    assert said(run("lower", "gtp", "--to", "tinygrad")) == (
        2,
        "error: no model 'gtp'. Did you mean 'gpt'? Available: the samples gpt, mlp, resnet, lstm, unet, encoder, vit, "
        ".pt2 files, package.module:callable, file.py:callable, and hf:NAME",
    )


def test_an_unknown_target_names_the_nearest():
    assert said(run("lower", "mlp", "--to", "tinygrd")) == (
        2,
        "error: no target 'tinygrd'. Did you mean 'tinygrad'? Available: core_aten, coreai, coremltools, executorch, "
        "iree, litert, luminal, onnx, onnxruntime, openvino, prims, stablehlo, tensorrt, tinygrad, torch_mlir, "
        "torch_onnx, tosa, ttnn, tvm, .toml files, and file.py:name",
    )


def test_an_unknown_op_names_the_nearest():
    code, text = said(run("explain", "conv2"))
    assert code == 2
    assert text.startswith("error: unknown op 'conv2'; did you mean 'conv2d'")
    assert said(run("lower", "mlp", "--to", "tinygrad", "--keep", "rellu"))[0] == 2


def test_a_file_with_an_unknown_key_is_refused(tmp_path):
    path = tmp_path / "chip.toml"
    path.write_text('name = "chip"\nopps = ["add"]\n')
    code, text = said(run("lower", "mlp", "--to", path))
    assert code == 2
    assert text.startswith(f"error: {path}: unknown key 'opps'")


def test_a_target_file_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "none.toml"
    assert said(run("targets", path)) == (2, f"error: {path}: cannot be read: No such file or directory")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 not quite"])
def test_a_corrupt_file_is_named_without_a_traceback(tmp_path, content, capfd):
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    code, text = said(run("lower", path, "--to", "tinygrad"))
    assert code == 2
    assert text.startswith(f"error: cannot read {path}: it is not a .pt2 archive, or damaged (")
    assert "Traceback" not in text + "".join(capfd.readouterr())


def test_half_of_a_saved_program_is_refused(tmp_path):
    path = tmp_path / "mlp.pt2"
    assert run("lower", "mlp", "--to", "core_aten", "-o", path).exit_code == 0
    path.write_bytes(path.read_bytes()[:-200])
    assert said(run("lower", path, "--to", "tinygrad"))[0] == 2


def test_a_model_file_that_is_not_there_is_named():
    assert said(run("lower", "nowhere.pt2", "--to", "tinygrad")) == (2, "error: no file nowhere.pt2")


def test_a_missing_target_is_wrong_usage():
    code, text = said(run("lower", "mlp"))
    assert code == 2
    assert "Missing option '--to'" in text


def test_a_filter_without_a_match_says_so():
    assert said(run("rules", "softmaxx")) == (2, "error: no rule with 'softmaxx' in its op, name or file")


PROGRAMS = """
import torch
from torch import nn

import decomp


def good():
    return nn.Linear(3, 2), (torch.ones(1, 3),)


def named():
    return nn.Linear(3, 2), {"input": torch.ones(1, 3)}


def alone():
    return nn.Linear(3, 2)


def broken():
    raise RuntimeError("no weights here")


class Picky(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def picky():
    return Picky(), torch.ones(3)


number = 3
module = torch.nn.Linear(2, 2)

rules = decomp.Rules()
table = {torch.ops.aten.lerp.Scalar: lambda self, weight, end: self}


@rules.register("softplus")
def softplus(x, beta=2.0, threshold=20.0):
    return x
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    (tmp_path / "my_programs.py").write_text(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    yield "my_programs"
    sys.modules.pop("my_programs", None)


@pytest.mark.parametrize("name", ["good", "named"])
def test_a_callable_gives_a_model_and_its_inputs(programs, name):
    result = run("lower", f"{programs}:{name}", "--to", "core_aten", "--json")
    assert json.loads(result.stdout)["after"] == {"aten.permute.default": 1, "aten.addmm.default": 1}


def test_a_callable_that_is_not_there_or_none_is_wrong_usage(programs):
    assert said(run("lower", f"{programs}:bad", "--to", "tinygrad")) == (
        2,
        "error: cannot find my_programs:bad: module 'my_programs' has no attribute 'bad'",
    )
    assert said(run("lower", "no_such_module:f", "--to", "tinygrad")) == (
        2,
        "error: cannot find no_such_module:f: No module named 'no_such_module'",
    )
    assert said(run("lower", f"{programs}:number", "--to", "tinygrad")) == (
        2,
        "error: my_programs:number is of type int, not a callable",
    )
    assert said(run("lower", f"{programs}:module", "--to", "tinygrad")) == (
        2,
        "error: my_programs:module is a module, without example inputs\n"
        "  to do: name a function that returns both: def example(): return model, (x,)",
    )
    assert said(run("lower", f"{programs}:alone", "--to", "tinygrad")) == (
        2,
        "error: my_programs:alone must return a module and example inputs, or an ExportedProgram, not Linear",
    )


def test_lint_shows_what_contradicts_a_schema_and_exits_with_1(programs):
    result = run("lint", f"{programs}:rules")
    assert result.exit_code == 1
    assert "has beta=2.0 by default, where the op has 1" in result.output
    assert result.output.splitlines()[-1] == "1 findings in 1 rule"
    found = run("lint", f"{programs}:table", "--json")
    assert found.exit_code == 1
    assert [finding["op"] for finding in json.loads(found.stdout)] == ["aten.lerp.Scalar"] * 2


def test_lint_takes_rules_and_tables_alone(programs):
    assert said(run("lint", f"{programs}:number")) == (
        2,
        "error: my_programs:number must be a decomp.Rules or a table of functions by op, not int",
    )
    assert said(run("lint", f"{programs}:nothing"))[0] == 2


def test_an_error_of_the_users_own_exits_with_2_and_debug_shows_where(programs, capfd):
    assert said(run("lower", f"{programs}:broken", "--to", "tinygrad")) == (
        2,
        "error: my_programs:broken raised RuntimeError: no weights here (--debug shows where)",
    )
    result = run("lower", f"{programs}:broken", "--to", "tinygrad", "--debug")
    assert result.exit_code == 2
    assert 'raise RuntimeError("no weights here")' in result.stderr


def test_a_model_that_cannot_be_captured_exits_with_3(programs):
    code, text = said(run("lower", f"{programs}:picky", "--to", "tinygrad"))
    assert code == 3
    assert "error: torch.export could not capture Picky: " in text
    assert "Traceback" not in text


# help, and the way in

SECTIONS = ("Models", "Targets and backends", "Rules", "Installation")


def test_help_documents_the_exit_codes_once():
    assert squeezed(EXIT_CODES) in squeezed(run("--help").output)
    for words in (["lower"], ["plan"], ["explain"], ["certify"], ["rules"], ["lint"], ["targets"], ["demo"]):
        result = run(*words, "--help")
        assert result.exit_code == 0
        assert "Exit codes" not in result.output


def test_help_lists_each_command_in_a_section_by_how_its_own_help_begins():
    lines = run("--help").output.splitlines()
    assert [line for line in lines if line.endswith(":")] == ["Options:", *(f"{each}:" for each in SECTIONS)]
    width = max(map(len, COMMANDS))
    for name, summary in COMMANDS.items():
        at = lines.index(f"  {name:<{width}}  {summary.text}")
        assert next(line for line in reversed(lines[:at]) if line.endswith(":")) == f"{summary.section}:"
        assert imported(name).help.replace("\n", " ").startswith(summary.text)


WITHOUT_TORCH = """
import os, sys
from decomp.__main__ import main

def run(*words):
    sys.argv = ["decomp", *words]
    try:
        main()
    except SystemExit as ended:
        return ended.code

for words in (["--help"], ["--version"], ["lowr"], []):
    run(*words)
os.environ |= {"_DECOMP_COMPLETE": "complete_bash", "COMP_WORDS": "decomp l", "COMP_CWORD": "1"}
run()
print({"torch", "rich", "networkx", "decomp.errors"} & set(sys.modules))
os.environ |= {"COMP_WORDS": "decomp lower --no-", "COMP_CWORD": "2"}
run()
del os.environ["_DECOMP_COMPLETE"]
from decomp.tools.cli.app import COMMANDS
for name in COMMANDS:
    print(name, run(name, "--help"), run(name, "--no-such-option"), {"torch", "networkx"} & set(sys.modules))
print([run(*words) for words in (["lower"], ["plan", "mlp"], ["probe", "openvino"])], "torch" in sys.modules)
"""


def test_what_needs_no_command_needs_no_pytorch():
    """Its import takes seconds."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("Usage: decomp [OPTIONS] COMMAND") and f"torch {torch.__version__}\n" in done.stdout
    assert "No such command 'lowr'" in done.stderr
    *before, last = done.stdout.partition("Usage: decomp demo")
    assert before[0].splitlines()[-6:] == ["lower", "lint", "set()", "--no-simplify", "--no-verify", "--no-weights"]
    for name, summary in COMMANDS.items():
        assert f"{name} 0 2 set()" in last.splitlines(), done.stderr
        assert summary.text in squeezed(last)
    assert last.splitlines()[-1] == "[2, 2, 2] False"


def test_an_interrupt_while_a_command_is_imported_ends_with_130(monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("decomp.tools.cli.app.imported", interrupted)
    assert said(run("lint")) == (130, "interrupted")


def test_without_typer_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "decomp.tools.cli.app")
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == 'the command line needs typer: pip install "decomp[cli]"\n'


# cache


def test_cache_says_where_it_is_and_deletes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DECOMP_CACHE", str(tmp_path))
    (tmp_path / "a.decomp-cache").write_bytes(b"1234")
    assert json.loads(run("cache", "--json").output) == {"directory": str(tmp_path), "files": 1, "bytes": 4}
    assert "deleted 1 file, 4 bytes from" in squeezed(run("cache", "clear").output)
    assert "0 files, 0 bytes" in squeezed(run("cache").output)
    assert said(run("cache", "burn"))[0] != 0


def test_cache_says_that_it_is_off(monkeypatch):
    monkeypatch.setenv("DECOMP_CACHE", "off")
    assert run("cache").output.strip() == "the cache is off (DECOMP_CACHE)"


def test_memory_shows_what_a_model_takes_and_draws_it(tmp_path):
    words = ["memory", "gpt", "--to", "tinygrad", "--plot", tmp_path / "plan.svg"]
    shown = run(*words)
    assert shown.exit_code == 0, shown.output
    assert "without a plan; lower bound" in shown.output and (tmp_path / "plan.svg").is_file()
    data = run(*words[:2], "--json")
    assert data.exit_code == 0 and json.loads(data.output)["peak"] > 0


def test_checks_lists_every_invariant():
    found = run("lower", "mlp", "--to", "core_aten", "--checks").output
    assert "\nchecked:\n" in found and "\n  all 5 calls are legal\n" in found


def test_a_plan_and_a_lowering_are_shown_by_layer():
    for verb in ("plan", "lower"):
        result = run(verb, "encoder", "--to", "core_aten", "--by", "layer")
        assert result.exit_code == 0 and "2 × TransformerEncoderLayer" in result.stdout
    data = json.loads(run("plan", "encoder", "--to", "core_aten", "--by", "layer", "--json").stdout)
    assert [(row["path"], row["count"]) for row in data["layers"]["rows"]] == [("layers.0, 1", 2)]


def test_methods_are_of_models_by_configuration():
    code, text = said(run("plan", "gpt", "--to", "core_aten", "--methods", "prefill,decode"))
    assert code == 2 and "--methods is for models of transformers, hf:NAME, not gpt" in text
