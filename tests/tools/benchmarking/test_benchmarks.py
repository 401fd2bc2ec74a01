"""The machinery of the benchmarks, at tiny sizes: no assertion on the clock."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import contenders, lowering, measuring, programs
import decomp
from decomp.costs.machine import describe_machine
from decomp.tools.benchmarking.comparing import compare_results
from decomp.tools.benchmarking.records import BenchmarkResults

RESULTS = Path(lowering.__file__).parent / "results"


def test_the_rules_compute_what_the_ops_do():
    x, gm = torch.linspace(-1, 1, 32).view(4, 8), programs.stack(2)
    torch.testing.assert_close(decomp.decompose(gm, programs.rules())(x), gm(x))


def test_every_contender_that_does_the_same_work_emits_the_same_nodes():
    program = programs.exported_stack(1)
    found = {c.name: c.run for c in contenders.contenders(program, 0)}
    expected = len(contenders.graph_of(found["lower, warm"]()).nodes)
    for name in ("Graph.create_node", "lower, cold", "decompose, warm", "Graph.graph_copy", "make_fx on fakes"):
        assert len(contenders.graph_of(found[name]()).nodes) == expected, name


def test_a_synthetic_program_has_about_the_requested_nodes():
    program = programs.synthetic(600)
    lowered = decomp.decompose(program, programs.rules())
    assert 590 <= len(lowered.graph.nodes) <= 610


def test_contenders_over_their_limit_sit_out():
    graph = torch.fx.Graph()
    graph.placeholder("x")
    field = [contenders.Contender("fast", lambda: graph, 10), contenders.Contender("slow", lambda: graph, 5)]
    assert [r.variant for r in measuring.compare("p", 1, 8, field, 2)] == ["fast"]


def test_results_are_saved_as_json_and_markdown_and_can_be_compared(tmp_path):
    case = ("synthetic", 60)
    results = BenchmarkResults(
        "test",
        describe_machine(torch.device("cpu")),
        0,
        tuple(lowering.measured(case, 2)),
        notes={"bytes_per_node": {"lower, warm": 1.0}},
    )
    lowering.save(tmp_path, results)
    saved = BenchmarkResults.load(tmp_path / "lowering.json")
    assert {r.variant for r in saved.rows} >= {"Graph.create_node", "lower, warm", "lower, warm, verified"}
    assert saved.rows[0].to_baseline.median == 1 and saved.rows[0].seconds.rounds == 2
    assert "### synthetic, 60" in (tmp_path / "lowering.md").read_text()
    assert compare_results(saved, results) == []


def test_the_plots_are_of_programs_that_grow_and_of_contenders(tmp_path):
    plotting = pytest.importorskip("benchmarks.plotting", exc_type=ImportError)
    kept = BenchmarkResults.load(RESULTS / "lowering.json")
    made = plotting.plots(kept.rows, tmp_path)
    assert [path.name for path in made] == ["lowering_growth.png", "lowering_contenders.png"]
    assert plotting.plots([row for row in kept.rows if row.case.name == "stack"], tmp_path) == []
    assert plotting.GROWN in {row.case.name for row in kept.rows} >= {plotting.CONTENDED}
    assert plotting.GROWING.keys() <= {row.variant for row in kept.rows}
    assert all(path.stat().st_size > 10_000 and (RESULTS / path.name).is_file() for path in made)
