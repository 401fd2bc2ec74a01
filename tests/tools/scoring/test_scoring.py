"""`decomp score`: what its figures count, what they say is missing, and the page and the badge."""

from dataclasses import replace
import functools
import json
from xml.etree import ElementTree

import pytest

import decomp
from decomp.advice.jobs import Setting
from decomp.tools.proving.proving import prove, table_of
from decomp.tools.proving.records import ProvedCall, TargetProof
from decomp.tools.scoring.pages import badge_of, page_of
from decomp.tools.scoring.score import Lack, TargetScore, of_calls_in_models, of_ops, score
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
    *_, models = found.figures
    assert (models.reached, models.total) == (0, 1)
    ((add, gain, of),) = [(each.add, each.gain, each.of) for each in models.lacks]
    assert gain == 1 and of == ("mlp",) and add
    wider = decomp.Target("few", targets.tinygrad - ["mul"]) | add
    *_, models = score(proof_of(), lambda: (wider, decomp.Options()), models=["mlp"]).figures
    assert (models.reached, models.lacks) == (1, ())


def test_a_score_is_the_mean_of_its_figures(found):
    assert found.value == pytest.approx(100 * sum(each.share for each in found.figures) / 3)
    assert found.headline == f"few: {found.value:.1f} of 100, structural"


def test_a_score_is_read_as_it_was_written(found, tmp_path):
    found.save(tmp_path / "score.json")
    assert TargetScore.load(tmp_path / "score.json") == found
    assert json.loads((tmp_path / "score.json").read_text())["score"] == round(found.value, 1)
    with pytest.raises(decomp.ArgumentError, match=r"is not a score, or is damaged"):
        (tmp_path / "proof.json").write_text('{"kind": "decomp proof"}')
        TargetScore.load(tmp_path / "proof.json")


def test_a_badge_is_a_picture_that_loads_nothing_and_says_the_score(found):
    odd = replace(found, target="<a & b>")
    picture = ElementTree.fromstring(badge_of(odd))
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert picture.attrib["aria-label"] == f"decomp <a & b>: {found.value:.1f} of 100"
    assert "href" not in badge_of(odd) and "url(" not in badge_of(odd)


def test_a_page_says_what_is_missing_and_loads_nothing(found):
    page = page_of(replace(found, target="<script>"))
    assert "What is missing: sample models" in page and "<script>" not in page
    assert "src=" not in page and "href=" not in page


def asked_of_tinygrad():
    return targets.tinygrad, decomp.Options()


def test_the_command_scores_a_proof_and_writes_a_page_and_a_badge(tmp_path, monkeypatch):
    monkeypatch.setattr("decomp.tools.scoring.score.score", functools.partial(score, models=("mlp",)))
    known = prove(asked_of_tinygrad, ops=["linalg_eig"], known=None, header={"asked": "tinygrad"})
    others = {name: () for name in table_of(Setting.of(*asked_of_tinygrad()))}
    replace(known, ops={**others, **known.ops}).save(tmp_path / "proof.json")
    words = ("--proof", tmp_path / "proof.json", "-o", tmp_path / "score.json", "--badge", tmp_path / "score.svg")
    result = run("score", "tinygrad", *words, "--page", tmp_path / "score.html", "--workers", 1)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert lines[0] == "tinygrad: 33.3 of 100, structural"
    assert "ops of the table of sample calls 0 of 1 0.0%" in lines and "sample models 1 of 1 100.0%" in lines
    assert all((tmp_path / f"score.{suffix}").is_file() for suffix in ("json", "svg", "html"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("chip", "-o", "score.txt"), "error: -o score.txt: the name must end in .json"),
        (("chip", "--badge", "score.png"), "error: score.png: the name must end in .svg"),
        (("chip", "--page", "score.pdf"), "error: score.pdf: the name must end in .html"),
        (("tinygrat",), "error: no target 'tinygrat'. Did you mean 'tinygrad'? Available: "),
    ],
)
def test_wrong_words_are_refused(words, message):
    code, text = said(run("score", *words))
    assert code == 2 and text.startswith(message)
