"""The machinery of benchmarks: turns, warm-up, counts, errors, comparisons, plots; never how long anything takes."""

from dataclasses import replace
import json
import os
import resource

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import decomp
from decomp.tools.benchmarking import attributing, comparing, machine, needs, plots, running, suite, table
from decomp.tools.benchmarking.accuracy import error_of
from decomp.tools.benchmarking.clock import Clock, Effort, time_interleaved
from decomp.tools.benchmarking.counting import CompilationCounts, count_call
from decomp.tools.benchmarking.records import BenchmarkCase, BenchmarkResults, BenchmarkRow, Spread
from decomp.tools.benchmarking.workload import MODES, Variant, Workload, task, variants, with_plain
from decomp.tools.cli.app import app
from decomp_rules import targets
from decomp_rules.samples.workloads import OPS, PRODUCTS, workloads

CPU = torch.device("cpu")
ONCE = Effort(warm_up=0, seconds=0.0, least=2, sample=0.0)
MACHINE = {
    "processor": "p",
    "cores": 2,
    "threads": 1,
    "vectors": "AVX2",
    "device": "cpu",
    "torch": "2.13.0",
    "python": "3.11",
    "system": "Linux",
    "pages": "kept",
    "copy": 1e10,
    "matmul": 1e11,
}


class Told(Clock):
    """A clock that takes a run's word for how long it took."""

    def seconds(self, run, repeats=1):
        return run()


def block() -> Workload:
    return Workload("block", "op", "small", lambda: (nn.Sequential(nn.Linear(4, 4), nn.GELU()), (torch.randn(2, 4),)))


def shifted(module):
    return lambda *args: module(*args) + 1e-3


def plan(*chosen, **options) -> suite.SuitePlan:
    return suite.SuitePlan(
        [block()], chosen or (Variant("fused"), Variant("core_aten", targets.core_aten)), effort=ONCE, **options
    )


def row(variant="lowered", ratio=1.0, spread=0.02, name="softmax", **options) -> BenchmarkRow:
    times = Spread(ratio * 1e-3, ratio * 0.98e-3, ratio * 1.02e-3, 9)
    ratios = Spread(ratio, ratio * (1 - spread), ratio * (1 + spread), 9)
    return BenchmarkRow(
        BenchmarkCase(name, "op", "small", "forward", "cpu"),
        variant,
        times,
        ratios,
        ratios,
        needed=1000,
        moved=4000,
        kernels=4,
        memory=2000,
        operations=0,
        of_limit=0.5,
        ulp=1.5,
        mean_ulp=0.4,
        **options,
    )


def results(*rows: BenchmarkRow, **options) -> BenchmarkResults:
    return BenchmarkResults("decomp bench", MACHINE, 0, rows, **options)


def test_contenders_take_turns_in_an_order_that_changes_after_they_are_warm():
    calls = []
    runs = {name: lambda name=name: calls.append(name) or 1e-3 for name in "abc"}
    timing = time_interleaved(runs, Told(CPU), Effort(warm_up=3, seconds=10, least=4, most=6, sample=0), seed=1)
    warm, rounds = calls[: 4 * 3], calls[4 * 3 :]
    assert sorted(warm) == sorted("aaaabbbbcccc")
    turns = [rounds[i : i + 6 : 2] for i in range(0, 36, 6)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len({"".join(turn) for turn in turns}) > 1
    assert [len(taken) for taken in timing.taken.values()] == [6, 6, 6]


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="an option of this C library")
def test_large_tensors_reuse_pages_during_a_run():
    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(1 << 24)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with machine.kept_pages() as pages:
        touched = [faults() for _ in range(10)]
    assert pages == "kept"
    assert 10 * touched[-1] < (1 << 26) // os.sysconf("SC_PAGE_SIZE")


def test_a_planted_slow_contender_is_seen_within_rounds_though_rounds_differ():
    pace = iter(range(1, 1000))
    costs = {}

    def at(factor):
        return lambda: factor * costs.setdefault("round", next(pace))

    timing = time_interleaved({"fast": at(1), "slow": at(3)}, Told(CPU), ONCE, seed=0)
    assert timing.ratio("slow", "fast").median == 3


def test_one_that_takes_seconds_leaves_after_two_rounds():
    timing = time_interleaved(
        {"fast": lambda: 1e-3, "slow": lambda: 8.0}, Told(CPU), Effort(least=5, patience=60), seed=0
    )
    assert len(timing.taken["slow"]) == 2 and len(timing.taken["fast"]) > 2
    assert timing.ratio("slow", "fast").rounds == 2


def test_a_planted_error_shows_in_ulp_and_a_nan_is_beyond_them():
    exact = [torch.ones(3, dtype=torch.float64)]
    assert error_of([torch.tensor([1.0, 1 + 5 * 2**-23, 1.0])], exact) == (5.0, 5 / 3)
    assert error_of([torch.tensor([1.0, float("nan"), 1.0])], exact)[0] == float("inf")
    assert error_of([torch.ones(2)], exact)[0] == float("inf")


def test_a_case_is_measured_in_every_variant_and_a_wrong_one_is_found():
    found = suite.run(
        plan(
            Variant("fused"), Variant("tinygrad", targets.tinygrad), Variant("wrong", targets.tinygrad, passes=shifted)
        ),
        "test",
    )
    fused, lowered, wrong = found.rows
    assert fused.ulp < 64 and lowered.ulp < 64 and wrong.ulp > 1000
    assert fused.to_baseline.median == 1 and fused.nodes is None and lowered.nodes > 10
    assert lowered.kernels > fused.kernels and lowered.moved > fused.moved
    assert fused.needed == 4 * (8 + 16 + 4 + 8) and fused.operations == 2 * 2 * 4 * 4
    assert 0 < fused.of_limit


def test_what_fails_is_a_row_with_its_error_and_the_others_go_on():
    def broken(module):
        raise RuntimeError("no such pass\nand more")

    target = decomp.Target("nothing", ["add"])
    found = suite.run(
        plan(
            Variant("fused"),
            Variant("broken", targets.core_aten, passes=broken),
            Variant("none", target),
            Variant("last", targets.core_aten),
        ),
        "test",
    )
    assert [r.error and r.error.partition(":")[0] for r in found.rows] == [None, "RuntimeError", "NotLowered", None]
    assert found.rows[1].error == "RuntimeError: no such pass"
    assert "no such pass" in table.document(found)


def test_a_workload_that_cannot_be_made_is_a_row():
    unmade = Workload("unmade", "model", "whole", lambda: ([].pop(), ()))
    found = suite.run(replace(plan(), workloads=[unmade, block()]), "test")
    assert [r.case.name for r in found.rows] == ["unmade", "block", "block"]
    assert found.rows[0].error == "IndexError: pop from empty list"


def test_what_would_not_fit_is_not_run():
    with torch.device("meta"):
        module, x = nn.Linear(1 << 12, 1 << 14), torch.empty(1 << 12, 1 << 12)
    lowered = decomp.lower(module, to=targets.tinygrad, args=(x,))
    assert needs.bytes_held(lowered.result.graph) >= 4 << 38
    with pytest.raises(running.TooLarge, match="it would hold [0-9.]+ GiB at once, more than 15% of the memory of"):
        running.refuse_too_large(lowered.result.graph, CPU)


def test_the_bytes_a_graph_holds_are_given_back_after_the_last_use():
    lowered = decomp.lower(nn.Sequential(*[nn.Tanhshrink()] * 5), to=targets.core_aten, args=(torch.randn(100),))
    assert needs.bytes_held(lowered.result.graph) == 3 * 400


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_of_parameters_and_inputs(mode):
    module, args = block().made(0, CPU)
    found = task(module, module, args, mode)()
    assert [t.shape for t in found] == ([(4, 4), (4,), (2, 4)] if mode == MODES[1] else [(4,), (4,)])


def test_eager_kernels_bytes_and_memory_are_counted():
    x = torch.randn(1000)
    counts = count_call(lambda: (x.view(10, 100).T + 1).exp(), CPU, None)
    assert (counts.kernels, counts.moved) == (2, 2 * 8000)
    assert 8000 <= counts.memory <= 8000 + 64


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own making
def test_compiled_kernels_and_bytes_are_counted():
    x, noted = torch.randn(1000), CompilationCounts()
    compiled = torch.compile(lambda x: torch.exp(x + 1) @ torch.ones(1000, 2))
    with noted.noting():
        compiled(x)
    assert noted.kernels == 2
    assert 8000 <= noted.moved <= 32000
    assert count_call(lambda: compiled(x), CPU, noted).kernels == 2


def test_the_shares_of_source_ops_add_up_to_the_whole():
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    args = (torch.randn(2, 4),)
    source = torch.export.export(module, args).module(check_guards=False)
    lowering = decomp.lower(source, to=targets.tinygrad, args=args)
    found = attributing.attribute_time(
        BenchmarkCase("m", "model", "whole", "forward", "cpu"), "tinygrad", source, lowering, args, 1
    )
    assert sum(share.seconds for share in found.shares) == pytest.approx(found.seconds)
    assert sum(share.source_seconds or 0 for share in found.shares) == pytest.approx(found.source_seconds)
    calls = {share.label: (share.calls, share.nodes > share.calls) for share in found.shares}
    assert calls["* · gelu"] == (1, True) and calls["*.* · gelu"] == (1, True)
    lowered = [node for node in lowering.result.graph.nodes if node.op == "call_function"]
    assert sum(share.nodes for share in found.shares) == len(lowered)


def test_results_come_back_from_json_as_they_were(tmp_path):
    module, args = block().made(0, CPU)
    found = suite.run(plan(attribute=("core_aten",)), "test", tmp_path / "r.json")
    assert BenchmarkResults.load(tmp_path / "r.json") == found
    assert json.loads((tmp_path / "r.json").read_text())["machine"]["torch"] == torch.__version__


@pytest.mark.parametrize("text", ["", "[]", '{"format": 0}', '{"format": 1}'])
def test_another_file_is_refused_by_name(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match="r.json holds no benchmark results"):
        BenchmarkResults.load(tmp_path / "r.json")


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    path, made = tmp_path / "r.json", []

    def build(name):
        def make():
            made.append(name)
            if name == "second" and made.count("second") == 1:
                raise KeyboardInterrupt
            return nn.ReLU(), (torch.randn(3),)

        return make

    whole = replace(plan(), workloads=[Workload(n, "op", "small", build(n)) for n in ("first", "second", "third")])
    with pytest.raises(KeyboardInterrupt):
        suite.run(whole, "test", path)
    resumed = suite.run(whole, "test", path, resume=True)
    assert made.count("first") == 1
    assert [r.case.name for r in resumed.rows if r.variant == "fused"] == ["first", "second", "third"]
    assert all(r.error is None for r in resumed.rows)
    with pytest.raises(ValueError, match="cannot be resumed here: seed 0 -> 7\n  to do: run without --resume"):
        suite.run(replace(whole, seed=7), "test", path, resume=True)


def test_a_case_in_which_the_process_died_is_a_row_and_is_not_tried_again(tmp_path):
    whole, path = plan(), tmp_path / "r.json"
    first = suite.run(whole, "test", path)
    replace(first, rows=(), running=first.cases()[0]).save(path)
    (died,) = suite.run(whole, "test", path, resume=True).rows
    assert (died.case, died.error) == (first.cases()[0], "the process died while this case ran, or was killed")


def test_progress_and_the_estimate_end_at_nothing_left():
    told = []
    whole = plan()
    found = suite.run(whole, "test", progress=lambda *what: told.append(what))
    assert told[0][:3] == (0, 1, "block, small, forward, cpu") and told[0][3] == whole.estimate()
    assert told[-1] == (1, 1, "done", 0.0) and whole.estimate(found) == 0


def test_a_planted_regression_is_flagged_and_noise_is_not():
    before = results(row("fused"), row(ratio=2.0))
    noisy = results(row("fused", 1.01), row(ratio=2.05, spread=0.1))
    slower = results(row("fused"), row(ratio=3.0))
    assert comparing.compare_results(before, noisy) == []
    (change,) = comparing.compare_results(before, slower)
    assert change.worse
    assert str(change) == "softmax, small, forward, cpu, lowered: time to fused 2 -> 3 (1.50 ×)"
    (change,) = comparing.compare_results(slower, before)
    assert not change.worse


def test_counts_errors_and_failures_are_compared_without_noise():
    before = results(row("fused"), row())
    after = results(row("fused"), replace(row(), kernels=8, ulp=30.0, memory=2001))
    assert [(c.what, c.factor) for c in comparing.compare_results(before, after)] == [("ulp", 20.0), ("kernels", 2.0)]
    failed = results(row("fused"), BenchmarkRow(row().case, "lowered", error="RuntimeError: no"))
    (change,) = comparing.compare_results(before, failed)
    assert change.worse and change.what == "error"
    assert not comparing.compare_results(failed, before)[0].worse


def test_the_table_has_means_by_size_and_a_row_a_variant():
    text = table.document(
        results(
            row("fused"),
            row("fused, compiled"),
            row(ratio=2.0),
            row(ratio=8.0, name="gelu"),
            row("core_aten, compiled", 1.1),
        )
    )
    assert "| lowered | 4.00 (2) |" in text
    assert "| lowered | 2 ms ± 2% | 2.00 | 2.00 | 2 kB | 4 | 1 kB | 4 kB | 50% | 1.5 (0.4) |" in text
    assert "| core_aten, compiled | 1.10 (1) |" in text


def test_a_variant_that_is_not_simplified_shows_what_simplification_saves():
    both = with_plain((Variant("fused"), Variant("tinygrad", targets.tinygrad)))
    assert [(each.name, each.simplify) for each in both] == [
        ("fused", True),
        ("tinygrad", True),
        ("tinygrad, not simplified", False),
    ]
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True).eval()
    model = layer, (torch.randn(2, 3, 8),)
    fewer, more = (len(decomp.calls(each.lowered(*model, "forward").result)) for each in both[1:])
    assert fewer < more
    rows = [row("fused"), row("tinygrad", 2.0, nodes=30), row("tinygrad, not simplified", 2.5, nodes=40)]
    text = table.document(results(*rows))
    assert "| simplified: time over not | small |" in text and "| tinygrad | 0.80 (1) |" in text
    [line] = [line for line in text.splitlines() if line.startswith("| tinygrad | 2 ms")]
    assert line.endswith("| 0.80 (30 of 40 calls) |")
    assert "simplified |" not in table.document(results(*rows[:2]))


def test_plots_are_made_and_show_every_variant(tmp_path):
    shares = tuple(attributing.Share(f"blocks.*.attention · op{i}", 0.01 * i, 0.002, 2, 9) for i in range(12))
    whole = row().case
    one = attributing.Attribution(replace(whole, name="GPT"), "tinygrad", 0.66, 0.024, shares)
    rows = [
        row("fused"),
        row("fused, compiled", 0.8),
        row("tinygrad", 7.0),
        row("tinygrad, compiled", 1.2),
        replace(row("fused", name="linear"), operations=10**6),
    ]
    made = plots.plot_all(results(*rows, attributions=(one,)), tmp_path)
    assert [path.name.removeprefix("fused_vs_primitive_") for path in made] == [
        "compiled.png",
        "eager.png",
        "roofline.png",
        "waterfall.png",
    ]
    from matplotlib.image import imread

    for path in made:
        picture = imread(path)
        assert picture.shape[1] >= 900 and (picture[..., :3].min(axis=2) < 0.9).mean() > 0.005


def test_targets_without_products_come_in_a_variant_that_keeps_them():
    names = [v.name for v in variants([targets.core_aten, targets.tinygrad], [targets.tinygrad], PRODUCTS)]
    assert names == [
        "fused",
        "core_aten",
        "tinygrad",
        "tinygrad + products",
        "fused, compiled",
        "tinygrad + products, compiled",
    ]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", OPS)
def test_every_workload_runs_and_reaches_the_compiled_targets(name):
    (workload,) = workloads([name], ["small"])
    module, args = workload.made(0, CPU)
    expected = module(*args)
    for target in (targets.core_aten, targets.tinygrad):
        found = decomp.lower(module, to=target, args=args, keep=PRODUCTS).result(*args)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def run(*args: str):
    return CliRunner().invoke(app, ["bench", *args], env={"COLUMNS": "160"})


def test_the_command_writes_results_a_table_and_plots(tmp_path):
    found = run("linear", "--size", "small", "--to", "core_aten", "--out", str(tmp_path), "--quick")
    assert found.exit_code == 0, found.output
    assert {path.name for path in tmp_path.iterdir()} == {"fused_vs_primitive.json", "fused_vs_primitive.md"} | {
        f"fused_vs_primitive_{plot}.png" for plot in ("compiled", "eager", "roofline")
    }
    kept = BenchmarkResults.load(tmp_path / "fused_vs_primitive.json")
    assert [r.variant for r in kept.rows] == ["fused", "core_aten", "fused, compiled", "core_aten, compiled"]
    assert all(r.error is None for r in kept.rows)
    assert "1 cases, about" in found.output and "core_aten, compiled" in found.output


def test_backends_run_beside_pytorch(tmp_path):
    found = run("softmax", "--size", "small", "--quick", "--backend", "numpy", "--out", str(tmp_path))
    assert found.exit_code == 0 and "on numpy" in found.output, found.output
    *_, row = BenchmarkResults.load(tmp_path / "fused_vs_primitive.json").rows
    assert (row.variant, row.error, row.kernels, row.memory) == ("on numpy", None, None, None)
    assert row.to_compiled.median > 0 and row.ulp < 64


def test_the_command_compares(tmp_path):
    for name, ratio in (("a", 2.0), ("b", 3.0)):
        results(row("fused"), row(ratio=ratio)).save(tmp_path / f"{name}.json")
    same = run("--compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"))
    assert (same.exit_code, same.output) == (0, "2 rows compared, 0 figures worse, 0 better\n")
    worse = run("--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert worse.exit_code == 1 and "time to fused 2 -> 3 (1.50 ×)" in worse.output


@pytest.mark.parametrize(
    "args, said",
    [
        (["sotfmax"], "no workload 'sotfmax'; there are softmax, log_softmax"),
        (["--size", "huge"], "no size 'huge'; there are small, cached, medium, large"),
        (["--device", "tpu"], "no device 'tpu'; available: cpu, cuda"),
        (["--to", "tinigrad"], "tinygrad"),
        (["--backend", "nunpy"], "no backend 'nunpy'. Did you mean 'numpy'?"),
        (["--backend", "numpy", "--backward"], "--backend runs without gradients: leave out --backward"),
        (["--compare", "none.json", "none.json"], "none.json"),
    ],
)
def test_what_cannot_be_run_is_said(args, said, tmp_path):
    found = run(*args, "--out", str(tmp_path))
    assert found.exit_code == 2 and said in found.output


def test_functions_of_workloads_are_what_their_names_say():
    module, args = workloads(["softmax"], ["small"])[0].made(0, CPU)
    assert module(*args).equal(F.softmax(args[0], -1))


def test_a_saved_program_is_a_workload(tmp_path):
    path = tmp_path / "mine.pt2"
    torch.export.save(torch.export.export(nn.Linear(4, 4), (torch.randn(2, 4),)), path)
    found = run(str(path), "--quick", "--to", "core_aten", "--compile", "tinygrad", "--out", str(tmp_path))
    assert found.exit_code == 0, found.output
    rows = BenchmarkResults.load(tmp_path / "fused_vs_primitive.json").rows
    assert [(r.case.name, r.case.family, r.variant, r.error) for r in rows] == [
        (str(path), "model", variant, None) for variant in ("fused", "core_aten", "fused, compiled")
    ]


@pytest.mark.parametrize("name", ["torch:nothing", "nowhere.pt2", "nonsense"])
def test_a_model_that_is_not_there_is_wrong_usage_before_anything_runs(tmp_path, name):
    found = run(name, "--quick", "--out", str(tmp_path))
    assert found.exit_code == 2 and not list(tmp_path.iterdir())
