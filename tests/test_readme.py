"""The README and `docs/` are correct: Python and commands run, tables are current, and the files they name exist."""

import json
import re
import sys

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

import decomp
from decomp.tools.benchmarking.records import BenchmarkResults
from decomp.tools.benchmarking.table import summary
from decomp.tools.cli.app import app
from decomp_rules import RULES, targets
from tests.documents import ROOT, Document, Documents, run
from tests.forms import Holder
from tests.pytorch_differences import OTHER_LINES

PAGES = (
    "README.md",
    "docs/guides/first-chip.md",
    "docs/guides/rules.md",
    "docs/guides/accuracy.md",
    "docs/guides/verification.md",
    "docs/guides/page.md",
    "docs/guides/simplification.md",
    "docs/guides/dtypes.md",
    "docs/guides/compile.md",
    "docs/guides/backends.md",
    "docs/guides/partition.md",
    "docs/guides/portable.md",
    "docs/guides/composites.md",
    "docs/guides/sharded.md",
    "docs/guides/comparing.md",
    "docs/guides/transformers.md",
    "docs/guides/command-line.md",
    "docs/results/coverage.md",
    "docs/results/backends.md",
    "docs/results/costs.md",
    "docs/limits.md",
)
README = Documents(tuple(map(Document, PAGES)))
ARCHITECTURE = Document("docs/developing/architecture.md")
RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("title", README.sections("python"))
def test_the_python_of_a_section_runs(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(README, title)


def test_the_commands_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [line.split() for line in README.lines("sh")]
    assert len(commands) >= 6
    for program, *words in commands:
        result = CliRunner().invoke(app, words)
        assert program == "decomp" and result.exit_code == 0, (words, result.output)


def test_the_transcript_of_the_first_hour(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    title, commands = "From nothing to a chip of 25 ops", 0
    for block in README.blocks(title):
        if block.language == "python":
            with open(re.match(r"# (\w+\.py)\n", block.text)[1], "a", encoding="utf-8") as file:
                file.write(block.text)
        for command in block.text.split("$ ")[1:] if block.language == "console" else ():
            for module in ("chip", "mine"):  # each command is a process of its own
                monkeypatch.delitem(sys.modules, module, raising=False)
            words, *expected = command.splitlines()
            expected = [OTHER_LINES.get(line, line) for line in expected]
            result = CliRunner().invoke(app, words.split()[1:])
            said = [line.rstrip() for line in result.output.splitlines()]
            assert result.exit_code == 0, (words, result.output)
            assert [line for line in expected if line != "..." and line not in said] == [], result.output
            commands += 1
    assert commands == 5


def test_the_two_commands_are_there_word_for_word():
    assert 'pip install torch==2.13.0 -e ".[cli]" && decomp demo\n' in README.text
    assert 'pip install torch==2.13.0 -e ".[test]" && pytest\n' in README.text


def test_the_lowering_to_ones_own_target_takes_twenty_lines():
    block, *_ = README.blocks("Your target, in twenty lines")
    lines = [line for line in block.text.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 20


# The comparison with PyTorch's own


def exported(function, *args):
    return torch.export.export(Holder(function), args, strict=False)


def overloads(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    "op, function",
    [
        ("searchsorted", lambda x: torch.searchsorted(x.sort(1).values, x)),
        ("kthvalue", lambda x: x.kthvalue(2).values),
    ],
    ids=["searchsorted", "kthvalue"],
)
def test_an_op_without_a_decomposition_stays_without_a_word(op, function):
    program, row = exported(function, torch.randn(4, 4)), "| an op that nothing decomposes |"
    assert f"`{op}`" in next(line for line in README.text.splitlines() if line.startswith(row))
    assert any(f".{op}." in name for name in overloads(program.run_decompositions()))
    assert decomp.op(op) not in targets.core_aten
    lowered = decomp.lower(program, to=targets.core_aten).result
    assert not any(f".{op}." in name for name in overloads(lowered))


def test_a_key_that_matches_no_overload_does_nothing_without_a_word():
    program = exported(lambda x: F.relu(x) * 2, torch.randn(3))
    for key in (torch.ops.aten.relu, "aten.relu.default"):
        assert "aten.relu.default" in overloads(program.run_decompositions({key: lambda x: x}))
    with pytest.raises(decomp.errors.UnknownOp, match="relu"):
        decomp.Rules({"aten.rellu": lambda x: x})


def test_a_region_without_gradients_is_lost_in_one_and_kept_in_the_other():
    def function(x):
        with torch.no_grad():
            y = 2 * x
        return x + y

    program = exported(function, torch.ones(2))
    gradients = []
    for lowered in (program.run_decompositions(), decomp.lower(program, to=targets.core_aten).result):
        x = torch.ones(2, requires_grad=True)
        lowered.module()(x).sum().backward()
        gradients.append(x.grad[0].item())
    assert gradients == [3, 1]


def test_the_times_of_the_comparison_are_those_measured():
    (measured,) = [line for line in README.text.splitlines() if line.startswith("| transformer of 24 layers, exported")]
    ours, verified, *_, theirs = [cell.strip() for cell in measured.strip("| ").split("|")[1:]]
    said = f"| {theirs} that of creating the nodes (the same rules) | {ours}, with verification {verified} |"
    assert said in README.text


# Tables, maps and plots


def test_the_map_names_every_package_and_no_file_that_does_not_exist():
    named = set(re.findall(r"`((?:decomp|decomp_rules|tests|benchmarks)/[\w./]*)`", ARCHITECTURE.text))
    assert len(named) > 30 and [name for name in named if not (ROOT / name).exists()] == []
    packages = {
        path.parent.relative_to(ROOT).as_posix()
        for part in ("decomp", "decomp_rules")
        for path in (ROOT / part).rglob("__init__.py")
    }
    section = ARCHITECTURE.section("A map of the code")
    assert [package for package in packages - {"decomp"} if f"`{package}/`" not in section] == []


def test_the_map_has_one_table_and_a_row_for_each_place():
    lines = ARCHITECTURE.section("A map of the code").splitlines()
    rows = [place for place, line in enumerate(lines) if line.startswith("|")]
    assert rows == list(range(rows[0], rows[-1] + 1))
    places = [lines[row].split("|")[1].strip() for row in rows]
    assert len(places) > 20 and [place for place in places if places.count(place) > 1] == []


def test_every_reason_why_an_op_is_out_of_reach_is_listed_by_the_command():
    assert "decomp rules --limitations" in README.lines("sh")
    shown = CliRunner().invoke(app, ["rules", "--limitations"], env={"COLUMNS": "200"}).output
    listed = " ".join(shown.split())
    declared = {(limitation.op.name, limitation.reason) for limitation in RULES.limitations}
    assert [op for op, reason in declared if op not in listed or reason.split()[0] not in listed] == []


def test_the_share_of_clean_entries_is_the_one_that_was_measured():
    section, runs = README.section("Operators and modules"), json.loads((RESULTS / "rules.json").read_text())
    for target, found in runs.items():
        cells = " | ".join(f"{counts['clean'] / total:.1%} of {total}" for _, total, counts in found["table"])
        assert f"\n| `{target}` | {cells} |\n" in section
    assert section.count("\n| `") == len(runs)


def test_the_run_time_tables_are_of_what_was_measured():
    measured = summary(BenchmarkResults.load(RESULTS / "fused_vs_primitive.json"))
    shown = [line for line in README.section("What primitives cost at run time").splitlines() if line.startswith("|")]
    assert len(shown) >= 8 and [line for line in shown if line not in measured] == []


def test_the_plots_that_are_shown_exist():
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README.text)
    assert len(shown) >= 2
