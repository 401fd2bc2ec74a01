"""What the README says, done: its Python, its commands, its target file, and the files that it names."""

from pathlib import Path
import re

import pytest
from typer.testing import CliRunner

import decomp
from decomp.tools.benchmarking.records import Results
from decomp.tools.benchmarking.table import summary
from decomp.tools.cli.app import app
from decomp_rules import RULES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_each_python_block_runs_on_its_own(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "block.py"
    path.write_text(blocks("python")[number])
    exec(compile(path.read_text(), path, "exec"), {"__name__": "block"})


def test_the_commands_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [line.split() for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) >= 6
    for program, *words in commands:
        result = CliRunner().invoke(app, words)
        assert program == "decomp" and result.exit_code == 0, (words, result.output)


def test_the_target_file_is_one(tmp_path):
    (text,) = blocks("toml")
    (tmp_path / "mychip.toml").write_text(text)
    chip = decomp.Target.load(tmp_path / "mychip.toml")
    assert (chip.name, len(chip)) == ("mychip", 5)


def test_the_two_commands_are_there_word_for_word():
    assert 'pip install torch==2.13.0 -e ".[cli]" && decomp demo\n' in README
    assert 'pip install torch==2.13.0 -e ".[test]" && pytest\n' in README


def test_the_lowering_to_ones_own_target_takes_twenty_lines():
    (block,) = [block for block in blocks("python") if 'Target("mychip"' in block]
    lines = [line for line in block.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 20


def test_the_map_names_files_that_exist():
    named = re.findall(r"`((?:decomp|decomp_rules|tests)/[\w./]*)`", README)
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_what_is_declared_to_be_out_of_reach_is_listed():
    section = README.partition("## What is reached")[2].partition("\n## ")[0]
    reasons = {limitation.reason for limitation in RULES.limitations}
    assert [reason for reason in sorted(reasons) if f"- {reason}: " not in section.replace("\n  ", " ")] == []


def test_the_table_is_the_one_that_was_measured():
    table = (ROOT / "benchmarks" / "results" / "rules.md").read_text().partition("\n\n")[2].strip()
    assert table in README


def test_the_run_time_table_is_the_one_that_was_measured():
    results = Results.load(ROOT / "benchmarks" / "results" / "fused_vs_primitive.json")
    assert "\n".join(summary(results)) in README


def test_the_plots_that_are_shown_exist():
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert len(shown) >= 3 and [path for path in shown if not (ROOT / path).exists()] == []
