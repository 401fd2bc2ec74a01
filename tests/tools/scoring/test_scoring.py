"""`decomp score`: what its figures count, what they say is missing, and the page and the badge."""

from dataclasses import replace
import functools
import json
from xml.etree import ElementTree

import pytest
import torch

import decomp
from decomp.advice.jobs import Setting
from decomp.tools.bringup.report import BringUp
from decomp.tools.bringup.rows import BringUpRow
from decomp.tools.cli.arguments import load_target
from decomp.tools.proving.proving import prove, table_of
from decomp.tools.proving.records import ProvedCall, TargetProof
from decomp.tools.scoring.families import FAMILIES
from decomp.tools.scoring.numeric import numeric
from decomp.tools.scoring.pages import badge_of, page_of
from decomp.tools.scoring.records import Lack, ScoreHalf, TargetScore
from decomp.tools.scoring.score import score
from decomp.tools.scoring.structural import ModelAnswer, of_calls_in_models, of_models, of_ops, structural
from decomp_rules import targets
from decomp_rules.samples.in_models import ops_in_models
from tests.commands import run, said


def legal(call):
    return ProvedCall(f"{call}(float32[4, 4])", "legal")


def blocked(call, *needs):
    return ProvedCall(f"{call}(float32[4, 4])", "blocked", needs=needs, reason="no rule")


def proof_of(**ops):
    calls = {f"aten.{op}": tuple(found) for op, found in ops.items()}
    return TargetProof({"torch": "2.13.0", "decomp": "0.2.0"}, "chip", {}, {}, calls, {})


def counted(*overloads):
    calls = {row.op: row.calls for row in ops_in_models()}
    return sum(calls[overload] for overload in overloads)


def test_an_op_counts_if_all_its_sample_calls_reach_the_target():
    some = [legal("aten.pow.Scalar"), blocked("aten.pow.Tensor_Scalar", ("exp2", "log2"))]
    figure = of_ops(
        proof_of(add=[legal("aten.add.Tensor")], pow=some, erf=[blocked("aten.erf.default", ("exp2",))], cat=[])
    )
    assert (figure.reached, figure.total, figure.untried) == (1, 3, ("aten.cat",)) and figure.share == 1 / 3
    assert figure.lacks == (Lack(("exp2",), 1, ("aten.erf",)), Lack(("exp2", "log2"), 1, ("aten.pow",)))


def test_an_op_for_which_no_set_is_enough_is_not_said_to_need_what_its_other_calls_need():
    figure = of_ops(proof_of(sort=[blocked("aten.sort.default"), blocked("aten.sort.stable", ("topk",))]))
    assert figure.lacks == (Lack((), 1, ("aten.sort",)),)


def test_a_lost_op_is_not_reached():
    figure = of_ops(replace(proof_of(add=[legal("aten.add.Tensor")]), lost={"aten.svd": "crashes: SIGSEGV"}))
    assert (figure.reached, figure.total, figure.lacks) == (1, 2, (Lack((), 1, ("aten.svd",)),))


def test_calls_of_models_are_weighted_by_their_number():
    linear, gelu = [legal("aten.linear.default")], [blocked("aten.gelu.default", ("erf",))]
    figure = of_calls_in_models(proof_of(linear=linear, gelu=gelu))
    assert figure.reached == counted("aten.linear.default")
    assert figure.total == counted("aten.linear.default", "aten.gelu.default")
    assert figure.lacks == (Lack(("erf",), counted("aten.gelu.default"), ("aten.gelu",)),)
    assert "aten.add.Tensor" in figure.untried


def test_an_overload_has_its_own_calls_and_one_in_place_those_of_its_op():
    some = [legal("aten.add.Scalar"), blocked("aten.add.Tensor", ("sub",))]
    figure = of_calls_in_models(proof_of(add=some, relu=[legal("aten.relu.default")]))
    assert figure.lacks[0].gain == counted("aten.add.Tensor", "aten.add_.Tensor")
    assert figure.reached >= counted("aten.relu.default", "aten.relu_.default") > counted("aten.relu.default")


@pytest.fixture(scope="module")
def found():
    few = decomp.Target("few", targets.tinygrad - ["mul"])
    return score(
        prove(lambda: (few, decomp.Options()), ops=["add", "abs"]), lambda: (few, decomp.Options()), models=["mlp"]
    )


def test_a_model_that_is_not_lowered_waits_for_ops_with_which_it_is(found):
    models = found.structural.figure("models")
    assert (models.reached, models.total) == (0, 1)
    ((add, gain, of),) = [(each.add, each.gain, each.of) for each in models.lacks]
    assert gain == 1 and of == ("mlp",) and add
    wider = decomp.Target("few", targets.tinygrad - ["mul"]) | add
    models = structural(proof_of(), lambda: (wider, decomp.Options()), models=["mlp"]).figure("models")
    assert (models.reached, models.lacks) == (1, ())


def test_a_score_is_the_mean_of_its_figures(found):
    half = found.structural
    assert half.value == pytest.approx(100 * sum(each.share for each in half.figures) / 3)
    assert found.headline == f"few: {half.value:.1f} of 100, structural"


def test_a_figure_that_was_not_tried_does_not_count_and_says_why(found):
    families = found.structural.figure("families")
    assert (families.total, families.note) == (0, "not asked for")
    assert "Not tried: families of language models: not asked for." in page_of(found)
    with pytest.raises(LookupError, match="no figure 'family'; there are ops, calls, models, families"):
        found.structural.figure("family")


def test_a_score_is_read_as_it_was_written(found, tmp_path):
    found.save(tmp_path / "score.json")
    assert TargetScore.load(tmp_path / "score.json") == found
    written = json.loads((tmp_path / "score.json").read_text())
    assert written["structural"]["score"] == round(found.structural.value, 1) and "numeric" not in written
    with pytest.raises(decomp.errors.ArgumentError, match=r"is not a score, or is damaged"):
        (tmp_path / "proof.json").write_text('{"kind": "decomp proof"}')
        TargetScore.load(tmp_path / "proof.json")


def test_a_badge_is_a_picture_that_loads_nothing_and_says_the_score(found):
    odd = replace(found, target="<a & b>")
    picture = ElementTree.fromstring(badge_of(odd))
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert picture.attrib["aria-label"] == f"decomp <a & b>: {found.structural.value:.1f} of 100 structural"
    assert "href" not in badge_of(odd) and "url(" not in badge_of(odd)


def test_a_page_says_what_is_missing_and_loads_nothing(found):
    page = page_of(replace(found, target="<script>"))
    assert "What is missing: sample models" in page and "<script>" not in page
    assert "src=" not in page and "href=" not in page


def asked_of_tinygrad():
    return targets.tinygrad, decomp.Options()


def test_the_command_scores_a_proof_and_writes_a_page_and_a_badge(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "decomp.tools.scoring.score.structural", functools.partial(structural, models=("mlp",), families={})
    )
    known = prove(asked_of_tinygrad, ops=["linalg_eig"], known=None, header={"asked": "tinygrad"})
    others = {name: () for name in table_of(Setting.of(*asked_of_tinygrad()))}
    replace(known, ops={**others, **known.ops}).save(tmp_path / "proof.json")
    words = ("--proof", tmp_path / "proof.json", "-o", tmp_path / "score.json", "--badge", tmp_path / "score.svg")
    result = run("score", "tinygrad", *words, "--page", tmp_path / "score.html", "--workers", 1)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert lines[0] == "tinygrad: 50.0 of 100, structural"
    assert "ops of the table of sample calls 0 of 1 0.0%" in lines and "sample models 1 of 1 100.0%" in lines
    assert all((tmp_path / f"score.{suffix}").is_file() for suffix in ("json", "svg", "html"))


def named(kind, name, verdict="right", blames=""):
    return BringUpRow(kind, name, verdict, cases=3, blames=blames)


ROWS = (
    named("primitive", "aten.mul"),
    named("primitive", "aten.amax", "by design"),
    named("primitive", "aten.sin", "crashes"),
    named("primitive", "aten.exp2", "missing"),
    named("op", "aten.cos", "blames", "sin"),
    named("op", "aten.tan", "blames", "sin"),
    named("op", "aten.exp", "blames", "exp2"),
    named("op", "aten.square"),
    named("op", "aten.cumsum", "refused"),
    named("op", "aten.sort", "not lowered"),
    named("model", "mlp"),
)


def test_the_numeric_half_says_which_primitive_is_to_blame_and_what_mending_it_gains():
    primitives, ops, models = numeric(BringUp("chip", "chip", ROWS)).figures
    assert (primitives.reached, primitives.total) == (2, 4)
    assert primitives.lacks == (
        Lack(("sin",), 1, ("aten.cos", "aten.tan"), "crashes"),
        Lack(("exp2",), 1, ("aten.exp",), "missing"),
    )
    assert (ops.reached, ops.total, ops.untried) == (1, 5, ("aten.sort",))
    assert ops.lacks == (
        Lack(("sin",), 2, ("aten.cos", "aten.tan")),
        Lack(("exp2",), 1, ("aten.exp",)),
        Lack((), 1, ("aten.cumsum",), "refused"),
    )
    assert (models.reached, models.total, models.lacks) == (1, 1, ())


def test_a_score_with_a_numeric_half_shows_both(found, tmp_path):
    both = replace(found, numeric=numeric(BringUp("chip", "chip", ROWS)))
    mean = 100 * (2 / 4 + 1 / 5 + 1) / 3
    assert both.headline == f"few: {found.structural.value:.1f} of 100, structural; {mean:.1f} of 100, numeric"
    both.save(tmp_path / "score.json")
    assert TargetScore.load(tmp_path / "score.json") == both
    assert f"{found.structural.value:.1f} / {mean:.1f}" in badge_of(both)
    page = page_of(both)
    assert "What is wrong: primitives of the backend" in page and "sin (crashes)" in page
    assert "(no op is known to be enough: refused)" in page


def test_a_model_that_cannot_be_made_is_not_counted():
    answers = {
        "llama": ModelAnswer(True),
        "next": ModelAnswer(False, is_made=False),
        "odd": ModelAnswer(False, why="E"),
    }
    figure = of_models("families", "families", answers)
    assert (figure.reached, figure.total, figure.untried) == (1, 2, ("next",))
    assert figure.lacks == (Lack((), 1, ("odd",), "E"),)


def configured_model(source):
    assert source == "hf:ours"
    return torch.nn.Linear(2, 3), (torch.ones(1, 2),)


def test_families_are_made_and_lowered():
    half = structural(
        proof_of(), asked_of_tinygrad, models=(), families={"ours": "hf:ours"}, configured=configured_model
    )
    assert (half.figure("families").reached, half.figure("families").total) == (1, 1)
    assert ScoreHalf.read(half.as_dict()) == half


def test_each_family_is_made_by_the_installed_transformers_and_reaches_a_target():
    pytest.importorskip("transformers", reason="pip install decomp[bench]")
    from decomp.tools.cli.configured_models import configured

    for source in FAMILIES.values():
        model, inputs = configured(source)
        assert all(each.is_meta for each in (*model.parameters(), *inputs))
        assert sum(each.numel() for each in model.parameters()) < 1_000_000
    half = structural(
        proof_of(), asked_of_tinygrad, models=(), families={"llama": FAMILIES["llama"]}, configured=configured
    )
    assert half.figure("families").reached == 1


BACKEND = """
import decomp
from decomp_rules.backends import numpy_arrays

chip = decomp.Backend(
    "chip",
    decomp.Target("chip", ["mul", "abs"]),
    from_torch=numpy_arrays.to_numpy,
    to_torch=numpy_arrays.to_torch,
    dtypes=numpy_arrays.DTYPES,
)
(multiply,) = (each.function for each in numpy_arrays.make() if str(each.key[0]) == "aten.mul")
chip.implements("mul")(multiply)
chip.implements("abs")(lambda a: a)
"""


def test_the_command_runs_a_backend_unless_it_is_asked_not_to(tmp_path, monkeypatch):
    few = functools.partial(structural, models=(), families={})
    monkeypatch.setattr("decomp.tools.scoring.score.structural", few)
    monkeypatch.setattr("decomp.bring_up", functools.partial(decomp.bring_up, ops=["mul", "abs"]))
    (tmp_path / "scored_chip.py").write_text(BACKEND)
    proof, name = tmp_path / "proof.json", f"{tmp_path / 'scored_chip.py'}:chip"
    target = load_target(name)
    known = prove(lambda: (target, decomp.Options()), ops=["mul"])
    untried = {each: () for each in table_of(Setting.of(target, decomp.Options()))}
    replace(known, ops={**untried, **known.ops}).save(proof)
    result = run("score", name, "--proof", proof, "--workers", 1)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "primitives of the backend 1 of 2 50.0%" in lines and "abs (wrong) 1 abs" in lines
    without = run("score", name, "--proof", proof, "--structural", "--json", "--workers", 1)
    assert "numeric" not in json.loads(without.output)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("core_aten", "--numeric"), "error: no backend 'core_aten'. Available: "),
        (
            ("decomp_rules.targets:tinygrad", "--numeric"),
            "error: decomp_rules.targets:tinygrad is of type Target, not a ",
        ),
        (("chip", "-o", "score.txt"), "error: -o score.txt: the name must end in .json"),
        (("chip", "--badge", "score.png"), "error: --badge score.png: the name must end in .svg"),
        (("chip", "--page", "score.pdf"), "error: --page score.pdf: the name must end in .html"),
        (("tinygrat",), "error: no target 'tinygrat'. Did you mean 'tinygrad'? Available: "),
    ],
)
def test_wrong_words_are_refused(words, message):
    code, text = said(run("score", *words))
    assert code == 2 and text.startswith(message)


@pytest.mark.filterwarnings("ignore")  # of the cluster's own event loop, when it closes
def test_models_are_lowered_over_dask():
    distributed = pytest.importorskip("distributed", reason="needs Dask: pip install decomp[dask]")
    how = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "protocol": "tcp", "dashboard_address": None}
    with distributed.LocalCluster(**how) as cluster, distributed.Client(cluster) as client:
        there = structural(proof_of(), asked_of_tinygrad, models=["mlp"], executor=client.get_executor())
    assert there == structural(proof_of(), asked_of_tinygrad, models=["mlp"]) and there.figure("models").reached == 1
