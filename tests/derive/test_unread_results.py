"""Calls with several results of which some are not read: these are not computed."""

import pytest
import torch
from torch import nn

import decomp
import decomp_rules
from decomp_rules import targets
from tests.forms import Holder

RULES = decomp.Rules()
TARGET = decomp.Target("tiny", ["amax", "argmax", "sin", "cos", "slice.Tensor"])


@RULES.register(torch.ops.aten.max)
def max_dim(x, dim, keepdim=False):
    return torch.amax(x, [dim], keepdim), torch.argmax(x, dim, keepdim)


def called(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


READ = {
    "the values": (lambda x: x.max(1)[0], ["aten.amax.default"]),
    "the values, by name": (lambda x: x.max(1).values, ["aten.amax.default"]),
    "the indices": (lambda x: x.max(1)[-1], ["aten.argmax.default"]),
    "both": (lambda x: tuple(x.max(1)), ["aten.amax.default", "aten.argmax.default"]),
    "the values of one call, both of another": (
        lambda x: (x.max(1)[0], *x.max(1)),
        ["aten.amax.default", "aten.amax.default", "aten.argmax.default"],
    ),
    "one part of three": (lambda x: x.chunk(3, 1)[1], ["aten.slice.Tensor"]),
}


@pytest.mark.parametrize("function, wanted", READ.values(), ids=READ)
@pytest.mark.parametrize("kind", ["module", "exported"])
def test_only_what_is_read_is_computed(function, wanted, kind):
    x = torch.arange(12.0).view(2, 6)
    model = Holder(function)
    program = torch.export.export(model, (x,)) if kind == "exported" else model
    low = decomp.lower(
        program, to=TARGET, rules=RULES | decomp_rules.RULES, args=(x,) if kind == "module" else None, verify="full"
    )
    assert called(low.result) == wanted
    decomp.verify(program, low, level="values")
    run = low.result.module() if kind == "exported" else low.result
    torch.testing.assert_close(run(x), function(x))


def test_what_is_written_back_is_read():
    model = nn.BatchNorm1d(4)
    lowered = decomp.lower(model, to=targets.tinygrad, args=(torch.randn(3, 4),)).result
    own, x = nn.BatchNorm1d(4), torch.randn(3, 4)
    torch.testing.assert_close(lowered(x), own(x))
    torch.testing.assert_close(lowered.state_dict(), own.state_dict(), check_dtype=True)


def test_a_rule_that_gives_a_wrong_result_which_is_read_is_refused():
    rules = decomp.Rules()

    @rules.register(torch.ops.aten.max)
    def max_dim(x, dim, keepdim=False):
        return torch.amax(x, [dim], keepdim), torch.amax(x, [dim], keepdim)

    x = torch.ones(2, 6)
    assert called(decomp.lower(Holder(lambda x: x.max(1)[0]), to=TARGET, rules=rules, args=(x,)).result)
    with pytest.raises(decomp.errors.RuleError, match="returned dtype torch.float32, the op returns torch.int64"):
        decomp.lower(Holder(lambda x: x.max(1)[1]), to=TARGET, rules=rules, args=(x,))
