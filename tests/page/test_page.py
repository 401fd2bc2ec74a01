"""The page in a browser: it opens without an error and without a network, and is folded, searched, stepped through and
read at two widths. One browser serves all tests."""

import os
import re

import pytest
import torch
from torch import nn

import decomp
from decomp.page.contents import (
    CALL,
    INPUT,
    DecisionText,
    GraphColumns,
    GraphStages,
    PageContents,
    RuleOutcome,
    RuleText,
    StageTitle,
)
from decomp.page.writing import html
from decomp_rules import targets
from tests.page.test_contents import ODD, Branch, Odd

X = torch.randn(3, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def page(folder):
    """A page of a program with a GELU, whose title is as odd as the name of its module."""
    return decomp.lower(Odd(), to=targets.tinygrad, args=(X,)).html(folder / "odd.html", title=ODD)


@pytest.fixture
def opened(browser, page):
    """The browser with the page, which must log no error."""
    browser.size(1440, 900)
    browser.errors.clear()
    browser.open(page)
    yield browser
    assert browser.errors == []


def texts(browser, selector):
    return browser.run(f"[...document.querySelectorAll({selector!r})].map(each => each.textContent)")


def press_row(browser, name):
    browser.do(f"reveal(opRows.find(each => each.label === {name!r}))")


def pointer_to(browser, selector, click=False):
    place = f"document.querySelector({selector!r}).getBoundingClientRect()"
    browser.do(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    x, y = browser.run(f"[{place}.x + {place}.width / 2, {place}.y + {place}.height / 2]")
    browser.move(x, y, click)


def test_the_page_is_one_file_that_asks_for_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"<(script|img|link|iframe)[^>]*(src|href)=", text) and "@import" not in text
    assert "sourceMappingURL" not in text and "Chris Pettitt" in text


def test_no_name_breaks_out_of_the_page(page, opened):
    text = page.read_text(encoding="utf-8")
    assert ODD not in text and text.count("</script>") == 3
    assert texts(opened, "h1") == [f"{ODD}→tinygrad"]
    assert opened.run("document.title") == f"{ODD} → tinygrad"
    assert opened.run("document.querySelectorAll('h1 b').length") == 0


def test_the_head_has_the_stages_and_the_checks(opened):
    assert [re.sub(r"\d+", " n", each) for each in texts(opened, "#titles > div")] == [
        "Source n",
        "Functional n",
        "Expanded n",
        "Simplified n",
    ]
    assert texts(opened, "#checks button") == ["✓ structure", "✓ interface", "✓ simplified", "– rules", "– program"]


def test_the_overview_leads_to_the_costliest_op_and_what_would_be_cheaper(opened):
    first = texts(opened, "#details tbody tr:first-child td")
    assert first[0].startswith("gelu") and first[1] == "1 × 26" and first[3] == "20 at fast"
    pointer_to(opened, "#details tbody tr", click=True)
    assert texts(opened, "#details h2") == ["gelu became 26 calls"]
    assert texts(opened, ".tip code") == ['accuracy={"gelu": "fast", ...: "standard"}']


def test_alternatives_are_listed_with_calls_or_reasons(opened):
    press_row(opened, "gelu")
    rows = opened.run("[...document.querySelectorAll('#details tbody')][0].innerText")
    assert "gelu_of_logistic\t26" in rows and "used, standard" in rows
    assert "gelu_by_binary\t20\t48 ULP\tfast 6 calls fewer" in rows
    assert "is for targets that know aten.erf" in rows


def test_rows_fold_and_unfold(opened):
    press_row(opened, "gelu")
    before = opened.run("visible.length")
    assert before > 20 and opened.run("selected.open")
    pointer_to(opened, ".row.selected .twist", click=True)
    assert opened.run("visible.length") < 10
    opened.do("byId('fold').click()")
    assert opened.run("visible.every(each => !each.open)")


def test_a_rule_inside_opens_down_to_calls(opened):
    press_row(opened, "gelu")
    rules = opened.run("visible.filter(each => each.kind === 'rule').map(each => each.label)")
    assert "neg" in rules
    opened.do("const rule = visible.find(each => each.label === 'neg'); toggle(rule, true); refresh()")
    assert opened.run("visible[visible.findIndex(each => each.label === 'neg') + 1].kind") == "call"


def test_keys_move_fold_and_search(opened):
    opened.do("byId('rows').focus()")
    opened.press("ArrowDown", "ArrowDown")
    assert opened.run("selected.label") == "linear"
    opened.press("ArrowRight")
    assert opened.run("selected.open")
    opened.press("ArrowLeft")
    assert not opened.run("selected.open")
    opened.press("/")
    assert opened.run("document.activeElement.id") == "search"


def test_search_shows_the_calls_that_match_and_what_they_are_in(opened):
    opened.do("byId('search').value = 'gelu_of_logistic'; searchFor('gelu_of_logistic')")
    assert texts(opened, "#found") == ["1 of 5 calls"]
    assert texts(opened, ".row .label") == ["gelu"] and texts(opened, ".row mark") == ["gelu_of_logistic"]
    opened.do("searchFor('')")
    assert opened.run("visible.length") > 4


class Complex(nn.Module):
    def forward(self, x):
        return (torch.complex(x, x) * torch.complex(x, x + 1)).real


def test_calls_that_were_decided_one_by_one_are_explained_one_by_one(browser, folder):
    path = decomp.lower(Complex(), to=targets.tinygrad, args=(X,)).html(folder / "complex.html")
    browser.errors.clear()
    browser.size(1440, 900)
    browser.open(path, "#mul")
    assert "decided for itself" in texts(browser, ".say")[0] and texts(browser, ".tip") == []
    browser.do("select(children(selected).find(each => each.label === 'sub'))")
    assert texts(browser, "#details h2") == ["sub became 2 calls"]
    assert browser.errors == []


def test_bodies_of_higher_order_ops_are_folded_apart(browser, folder):
    path = decomp.lower(Branch(), to=targets.tinygrad, args=(X,)).html(folder / "branch.html")
    browser.errors.clear()
    browser.open(path)
    assert texts(browser, ".row .label") == ["main graph", "true_graph_0", "false_graph_0"]
    assert browser.errors == []


def test_a_rewrite_is_stepped_through(opened):
    press_row(opened, "gelu")
    steps = texts(opened, ".steps button")
    assert steps[1] == "1 gelu" and steps[2] == "2 gelu_of_logistic" and steps[-2].endswith(" simplified")
    drawn = []
    for place in range(1, len(steps) - 1):
        opened.do(f"document.querySelectorAll('.steps button')[{place}].click()")
        drawn.append(opened.run("[document.querySelectorAll('svg .node:not(.input)').length, selected.kind]")[0])
    assert drawn[0] == 1 and drawn[1] < drawn[2] == 26 == drawn[3]
    assert opened.run("document.querySelectorAll('svg .box').length") == 0


def test_a_box_of_the_drawing_opens_the_next_step(opened):
    press_row(opened, "gelu")
    assert "neg" in texts(opened, "svg .box text:first-of-type")
    opened.do("document.querySelector('svg .box').dispatchEvent(new MouseEvent('click'))")
    assert opened.run("document.querySelectorAll('svg .box').length") == 0


def test_a_call_shows_shapes_dtype_line_and_rule(opened):
    press_row(opened, "gelu")
    opened.do("document.querySelector('svg .node.plain').dispatchEvent(new MouseEvent('click'))")
    facts = opened.run("document.querySelector('#details dl').innerText")
    assert "f32[3, 4]" in facts or "b8[3, 4]" in facts
    assert "test_contents.py:" in facts
    assert "decomp_rules/pointwise/gelu.py:" in opened.run("byId('text').innerText")


def test_a_pointer_over_a_row_shows_the_node(opened):
    press_row(opened, "gelu")
    pointer_to(opened, ".row.selected")
    assert not opened.run("byId('hint').hidden")
    assert "aten.gelu.default(%linear" in texts(opened, "#hint")[0]


def test_colours_are_by_rule_module_cost_or_error(opened):
    seen = set()
    for by in ("rule", "module", "cost", "error"):
        opened.do(f"byId('colour').value = {by!r}; byId('colour').dispatchEvent(new Event('change'))")
        seen.add(tuple(texts(opened, "#legend span")))
        assert opened.run("document.querySelectorAll('#legend i').length") >= 1
    assert len(seen) == 4


def test_an_anchor_opens_the_page_at_a_call(opened, page):
    opened.open(page, "#gelu")
    assert texts(opened, "#details h2") == ["gelu became 26 calls"]
    assert opened.run("selected.open")


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_a_phone(browser, page, dark):
    browser.errors.clear()
    browser.size(400, 800, dark)
    browser.open(page)
    assert browser.run("document.documentElement.scrollWidth") == 400
    assert browser.run("getComputedStyle(byId('details')).display") == "none"
    assert browser.run("[...document.querySelectorAll('#titles > div')].filter(each => each.offsetWidth).length") == 2
    browser.open(page, "#gelu")
    assert browser.run("getComputedStyle(byId('details')).display") == "block"
    assert browser.run("byId('details').scrollWidth <= 400")
    browser.do("document.querySelector('.close').click()")
    assert browser.run("getComputedStyle(byId('details')).display") == "none"
    assert browser.errors == []


def test_what_is_blocked_is_red_and_says_what_is_missing(browser, folder):
    chip = decomp.Target("chip", ["add", "mul"])
    path = decomp.lower(Odd(), to=chip, args=(X,), partial=True).html(folder / "blocked.html")
    browser.errors.clear()
    browser.size(1440, 900)
    browser.open(path)
    assert texts(browser, "#checks button")[0] == "✗ 2 calls blocked"
    assert "aten.gelu at gelu: " in texts(browser, ".alarm")[0]
    press_row(browser, "gelu")
    assert texts(browser, ".alarm b") == ["aten.gelu cannot be lowered to chip. "]
    assert browser.errors == []


def long_contents(calls, modules=40):
    """A program of so many calls in a chain, expanded from half as many, in modules."""
    graph, half = [GraphColumns() for _ in range(3)], calls // 2
    for stage, columns in enumerate(graph):
        size = 1 + (half if stage < 2 else calls)
        columns.names = ["x", *(f"mul_{i}" for i in range(1, size))]
        columns.kinds, columns.ops, columns.types = [INPUT] + [CALL] * (size - 1), [-1] + [0] * (size - 1), [1] * size
        columns.arguments = ["", *(f"(%{name}, 2)" for name in columns.names[:-1])]
        columns.operands = [[], *([i] for i in range(size - 1))]
        columns.origins = [-1] * size if stage == 0 else [0, *(1 + i // (stage) for i in range(size - 1))]
        columns.why, columns.results = [-1] * size, [size - 1]
    graph[0].modules = [-1, *(2 + i * modules // half for i in range(half))]
    graph[1].decisions = [-1] + [0] * half
    graph[2].chains = [-1] + [0] * calls
    texts = ("aten.mul.Tensor", "f32[4]", *(f"layers.{i}" for i in range(modules)))
    rule = RuleText("twice", "aten.mul", "rules.py:1", "rules.py", 1, "", "def twice(x):\n    return x * 1 * 2\n", None)
    used = RuleOutcome("twice (rules.py:1)", "", "exact", 2, 2.0)
    stages = [StageTitle("", name, "", columns.kinds.count(CALL)) for name, columns in zip("abc", graph)]
    shared = {"texts": texts, "rules": (rule,), "chains": ((0,),), "graphs": (GraphStages("", tuple(graph)),)}
    decisions = (DecisionText("derived", "aten.mul", 0, "exact", used),)
    return PageContents("long", "chip", "", (), (), (), "calls", tuple(stages), decisions=decisions, **shared)


def test_ten_thousand_calls_open_folded_and_only_rows_in_sight_are_drawn(browser, folder):
    path = folder / "long.html"
    path.write_text(html(long_contents(10_000)), encoding="utf-8")
    browser.errors.clear()
    browser.size(1440, 900)
    browser.open(path)
    assert browser.run("visible.length") == 41
    assert browser.run("opRows.length") == 5000
    browser.do("walk(tree, (each) => { each.open = true; }); refresh()")
    assert browser.run("visible.length") == 1 + 1 + 40 + 5000 + 10_000
    assert browser.run("document.querySelectorAll('.row').length") < 80
    browser.do("byId('rows').scrollTop = 30 * 12000")
    assert browser.run("document.querySelectorAll('.row').length") < 80
    assert browser.run("[...document.querySelectorAll('.row')].some(each => rowOf.get(each).place === 12005)")
    browser.do("searchFor('mul_4999')")
    assert texts(browser, "#found") == ["2 of 5,000 calls"]
    assert browser.errors == []


def test_an_error_in_the_page_is_noticed(browser, page, folder):
    broken = folder / "broken.html"
    text = page.read_text(encoding="utf-8")
    broken.write_text(text.replace("fillHead();\nfillControls();", "fillHead(;"), encoding="utf-8")
    browser.errors.clear()
    browser.open(broken)
    assert any("SyntaxError" in error for error in browser.errors)
    browser.errors.clear()


# Where it cannot be written


@pytest.fixture(scope="module")
def small():
    return decomp.lower(nn.ReLU(), to=decomp.Target("chip", ["relu"]), args=(X,))


def test_a_directory_is_no_file(small, tmp_path):
    with pytest.raises(decomp.errors.ArgumentError) as error:
        small.html(tmp_path)
    assert str(error.value) == f"html: {tmp_path} is a directory\n  to do: name a file, as {tmp_path / 'page.html'}"


def test_a_directory_that_is_not_there_is_named(small, tmp_path):
    with pytest.raises(decomp.errors.ArgumentError) as error:
        small.html(tmp_path / "missing" / "page.html")
    assert (
        str(error.value) == f"html: there is no directory {tmp_path / 'missing'}\n  to do: make it, or write elsewhere"
    )


def test_a_failed_write_leaves_the_page_that_was_there(small, tmp_path):
    path = small.html(tmp_path / "page.html")
    before = path.read_bytes()
    (tmp_path / f".page.{os.getpid()}.html").mkdir()
    with pytest.raises(decomp.errors.ArgumentError, match="^html: cannot write .*page.html: Is a directory$"):
        small.html(path)
    assert path.read_bytes() == before
