"""What a notebook shows of a lowering, a report, a plan, a certificate and advice: tables, and nothing that runs."""

from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import decomp
from decomp.rules.library import certificate_of
from decomp.tables import Markup, Table, titled
from decomp_rules import RULES, targets
from decomp_rules.backends import numpy_arrays

X = torch.randn(3, 4)
ODD = "</table><script>alert(1)</script>"
CHIP = decomp.Target("chip", ["add", "mul"])


class Parsed(HTMLParser):
    """The tags that are open, and those that were."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == [], "a tag is not closed"

    def handle_starttag(self, tag, attrs):
        assert attrs == [], "an attribute may run or load something"
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


KNOWN = {"p", "b", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}


def shown(value):
    parsed = Parsed(value._repr_html_())
    assert set(parsed.seen) <= KNOWN
    return parsed.text


@pytest.fixture(scope="module")
def partial():
    model = nn.Sequential()
    model.add_module(ODD, nn.GELU())
    return decomp.lower(model, to=CHIP, args=(X,), partial=True)


def test_a_lowering_shows_its_report():
    lowering = decomp.lower(nn.GELU(), to=targets.tinygrad, args=(X,))
    text = shown(lowering)
    assert text == shown(lowering.report())
    assert lowering.report().headline in text and "gelu_of_logistic" in text and "✓" in text


def test_what_is_blocked_is_listed(partial):
    assert "aten.gelu" in shown(partial) and "aten.gelu" in shown(partial.plan)


def test_names_are_text(partial):
    assert ODD in shown(partial)


def test_a_plan_shows_what_other_levels_cost():
    plan = decomp.plan(nn.GELU(), to=targets.tinygrad, args=(X,))
    text = shown(plan)
    assert plan.headline in text and "fast: 20 at 48" in text


def test_a_certificate_shows_its_measurements():
    certificate = certificate_of(RULES["gelu"][0])
    text = shown(certificate)
    assert certificate.rule in text and all(way.title in text for way in certificate.ways)


def test_advice_shows_what_to_implement_next():
    found = decomp.advise({"gelu": (nn.GELU(), (X,))}, to=CHIP)
    assert "implement next" in shown(found)


def test_a_bring_up_and_a_comparison_show_what_is_wrong():
    chip = numpy_arrays.make()
    chip.implements("exp2")(lambda x: x)
    report = decomp.bring_up(chip, ops=["exp2", "add", "tanh"], models=(), only=["primitive", "op"], isolate=False)
    text = shown(report)
    assert report.headline in text and "exp2" in text and "PyTorch" in text and "exp2: wrong" in text
    lowering = decomp.lower(nn.GELU(), to=chip.target, args=(X,))
    comparison = decomp.compare(lowering, nn.GELU(), (X,), on=chip)
    text = shown(comparison)
    assert comparison.headline in text and "gelu_exp2" in text and "cosine" in text


def test_a_value_says_what_it_is_in_a_line():
    plan = decomp.plan(nn.GELU(), to=targets.tinygrad, args=(X,))
    advice = decomp.advise({"gelu": (nn.GELU(), (X,))}, to=CHIP)
    budget = decomp.budget(nn.GELU(), to=targets.tinygrad, args=(X,))
    for value in (plan, plan.costs(), advice, budget):
        assert repr(value).startswith("<") and len(repr(value).splitlines()) == 1 and len(str(value).splitlines()) > 1


def test_a_table_escapes_what_is_not_markup():
    made = Table(("a<b",), [("<i>", Markup("<i></i>"))]).html()
    assert "<th>a&lt;b</th>" in made and "<td>&lt;i&gt;</td><td><i></i></td>" in made
    assert Table(("a",), []).html() == "" and titled("x", "") == "<p><b>x</b></p>"
