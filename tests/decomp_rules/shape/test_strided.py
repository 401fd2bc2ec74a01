"""Reading and writing by strides agree with the ops wherever the memory is the input's own."""

import pytest
import torch

import decomp
from decomp_rules import targets
from decomp_rules.shape import strided
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
X = torch.arange(30.0).reshape(5, 6)


def test_strided_reading():
    agrees(strided.RULES, aten.as_strided.default, X, [3, 4], [6, 1], 7)
    agrees(strided.RULES, aten.as_strided.default, X, [5, 3, 2], [1, 1, 0])


def test_strided_writing():
    # PyTorch's own gradient of self is 1 where it is overwritten and 0 elsewhere, torch 2.13.
    agrees(strided.RULES, aten.as_strided_scatter.default, X, torch.randn(3, 4), [3, 4], [6, 1], 7, fixed=(0,))


def test_memory_in_another_order_than_the_dimensions():
    for x in (X.t(), X.reshape(5, 2, 3).permute(1, 0, 2)):
        assert torch.equal(strided.as_strided(x, [4, 3], [3, 1], 2), x.as_strided([4, 3], [3, 1], 2))
        src = -torch.ones(4)
        found = strided.as_strided_scatter(x, src, [4], [7], 1)
        assert torch.equal(found, torch.as_strided_scatter(x, src, [4], [7], 1))


def test_a_part_of_memory_is_read_as_far_as_it_goes():
    part = X[1:]
    assert torch.equal(strided.as_strided(part, [2, 2], [3, 1], 8), part.as_strided([2, 2], [3, 1], 8))
    for x, start in ((part, 5), (part, 29), (X[:, 1:], 1), (X[:2], 11), (X[:0], 0)):
        assert strided.as_strided(x, [2], [1], start).reason == "it reaches memory that its input does not hold"


def test_lowered_to_the_end():
    lowered_agrees(lambda x: torch.as_strided(x, [3, 4], [6, 1], 7), X)


@pytest.mark.parametrize("view", [lambda x: x.chunk(2)[0], lambda x: x[1:], lambda x: x.unfold(0, 2, 2)[0]])
def test_of_dynamic_sizes_only_what_is_all_of_its_memory_is_read(view):
    class Reads(torch.nn.Module):
        def __init__(self, of):
            super().__init__()
            self.of = of

        def forward(self, x):
            return torch.as_strided(self.of(x), (2, x.shape[0] // 3), (1, 1))

    def lower(module):
        sizes = ({0: torch.export.Dim.AUTO},)
        return decomp.lower(module, to=targets.tinygrad, args=(torch.arange(6.0),), dynamic_shapes=sizes).result

    whole = Reads(lambda x: (x + 1).view(-1))
    lowered = lower(whole)
    for x in (torch.arange(6.0), torch.arange(7.0)):
        assert torch.equal(lowered(x), whole(x))
    with pytest.raises(decomp.errors.InputMismatch, match=r"x\.shape\[0\] // 3 != 1"):  # which torch.export assumes
        lowered(torch.arange(3.0))
    with pytest.raises(decomp.NotLowered, match="it may access memory outside of its input"):
        lower(Reads(view))


def test_a_result_of_a_region_is_read_where_sizes_are_dynamic():
    class Reads(torch.nn.Module):
        def forward(self, x):
            y = torch.cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x.cos(),), (x,))[0]
            return torch.as_strided(y, (2, 2), (1, 1))

    sizes, x = ({0: torch.export.Dim.AUTO},), torch.arange(5.0)
    lowered = decomp.lower(Reads(), to=targets.tinygrad, args=(x,), dynamic_shapes=sizes).result
    torch.testing.assert_close(lowered(x[1:].clone()), Reads()(x[1:].clone()))


def test_a_rule_that_reads_no_sizes_serves_without_metadata():
    rules = decomp.Rules({aten.as_strided.default: lambda x, size, stride, storage_offset=None: x * 1})
    graph = torch.fx.Graph()
    graph.output(graph.call_function(aten.as_strided.default, (graph.placeholder("x"), [2], [1])))
    lowered = decomp.lower(torch.fx.GraphModule(torch.nn.Module(), graph), to=targets.tinygrad, rules=rules)
    assert torch.equal(lowered.result(torch.arange(2.0)), torch.arange(2.0))
