"""The page of a difference: which calls of two programs belong together, what became of each, and how it is read."""

import pytest
import torch
from torch import nn
import torch.nn.functional as F

import decomp
from decomp.page.differences import differences
from decomp_rules import targets

X = torch.randn(2, 4)


class Block(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.linear, self.extra = nn.Linear(4, 4), extra

    def forward(self, x):
        x = F.gelu(self.linear(x))
        return x.tanh() if self.extra else x


class Model(nn.Module):
    """Two blocks, the first of which may have a call more."""

    def __init__(self, extra=False):
        super().__init__()
        self.blocks = nn.Sequential(Block(extra), Block(False))

    def forward(self, x):
        return self.blocks(x) + 1


def lowered(model=None, to=targets.tinygrad, **options):
    return decomp.lower(model or Model(), to=to, args=(X,), **options)


def by_name(contents):
    return {(call.module, call.op.split(".")[1]): call for call in contents.calls}


def test_what_became_something_else_has_its_calls_and_the_rest_only_their_number():
    found = differences(lowered(), lowered(accuracy={"gelu": "fast", ...: "standard"}))
    assert [call.op.split(".")[1] for call in found.calls] == ["linear", "gelu", "linear", "gelu", "add"]
    linear, gelu = by_name(found)["blocks.0.linear", "linear"], by_name(found)["blocks.0", "gelu"]
    assert linear.alike and linear.old.lines == () and linear.old.count == linear.new.count > 0
    assert not gelu.alike and gelu.old.how != gelu.new.how
    assert [len(side.lines) for side in (gelu.old, gelu.new)] == [gelu.old.count, gelu.new.count]
    assert gelu.old.count > gelu.new.count and gelu.line.endswith("x = F.gelu(self.linear(x))")
    assert all(":" in line and line.startswith("aten.") for line in gelu.new.lines)
    kinds = [kind for kind, _ in found.changes]
    assert kinds[0] == "options" and "what the program costs" in kinds and found.old.target == "tinygrad"


def test_a_call_that_one_of_two_models_lacks_is_where_it_would_be():
    for old, new, side in ((False, True, "old"), (True, False, "new")):
        found = differences(lowered(Model(old)), lowered(Model(new)))
        assert [call.op.split(".")[1] for call in found.calls] == ["linear", "gelu", "tanh", "linear", "gelu", "add"]
        tanh = by_name(found)["blocks.0", "tanh"]
        assert getattr(tanh, side) is None and not tanh.alike
        assert all(call.alike for call in found.calls if call is not tanh)


def test_a_call_that_one_target_lacks_is_blocked_there():
    whole, lacking = (
        decomp.Target("whole", ["linear", "gelu", "add", "tanh"]),
        decomp.Target("lacking", ["linear", "gelu", "add"]),
    )
    options = dict(partial=True, rules=decomp.Rules())
    found = differences(lowered(Model(True), whole), lowered(Model(True), lacking, **options))
    tanh = by_name(found)["blocks.0", "tanh"]
    assert (tanh.old.how, tanh.old.kind, tanh.new.kind) == ("kept", "legal", "blocked")
    assert tanh.new.how.startswith("blocked: ") and tanh.new.count == 1


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "difference.html"
    return lowered(Model(True)).html(path, before=lowered(accuracy={"gelu": "fast", ...: "standard"}))


@pytest.mark.parametrize("width", [1440, 400])
def test_the_page_is_folded_searched_and_read(browser, page, width):
    browser.size(width, 900)
    browser.errors.clear()
    browser.open(page)

    def texts(selector):
        return browser.run(f"[...document.querySelectorAll({selector!r})].map(each => each.textContent)")

    assert texts("h2") == ["3 calls of 6 became something else"]
    assert texts(".module .label") == ["blocks.0", "blocks.1"]
    browser.do("document.querySelector('.module').click()")
    assert "gelu" in texts(".op .label") and "tanh" in texts(".op .label") and "linear" not in texts(".op .label")
    browser.do("document.getElementById('all').click()")
    assert "linear" in texts(".op .label")
    browser.do("reveal(data.calls.find(each => shortOp(each.op) === 'gelu'))")
    assert texts("#details h2") == ["gelu"]
    assert len(texts(".both .come")) > len(texts(".both .gone")) > 0
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.do("document.getElementById('search').value = 'tanh'")
    browser.do("document.getElementById('search').dispatchEvent(new Event('input'))")
    browser.do("await new Promise(done => setTimeout(done, 300))")
    assert texts("#found") == ["1 of 6 calls"] and texts(".op .label") == ["tanh"]
    assert browser.errors == []
