"""Composites inside `torch.compile`: calls of the forward graph, and of the backward graph for their gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.ir.composites import composites_in
from decomp_rules import targets
from decomp_rules.backends import numpy_arrays
from tests.derive.nested import NESTED, NESTED_RULES, Nested, queries

pytestmark = pytest.mark.usefixtures("fresh_compiler", "seeded")


def x(*shape):
    return torch.randn(*(shape or (4, 6)), generator=torch.Generator().manual_seed(0))


def value_and_gradients(function, *args):
    """What a function returns, and the gradients of its inputs."""
    given = [each.clone().requires_grad_(each.is_floating_point()) for each in args]
    torch.manual_seed(0)
    found = function(*given)
    results = [each for each in (found if isinstance(found, (tuple, list)) else [found]) if each.requires_grad]
    torch.autograd.backward(results, [torch.full_like(each, 1.5) for each in results])
    return found, [each.grad for each in given]


def compiled(function, ops, to=targets.tinygrad, dynamic=None, **options):
    backend = decomp.backend(to=to, composites=ops, **options)
    return torch.compile(function, backend=backend, dynamic=dynamic), backend


def names(backend):
    """The composites of each graph behind autograd, at any depth."""
    graphs = [each.graph for each in backend.graphs if each.stage != "before autograd"]
    inner = [[each for each in graph.modules() if isinstance(each, torch.fx.GraphModule)] for graph in graphs]
    return [sorted(made.name for each in bodies for made in composites_in(each.graph).values()) for bodies in inner]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.heads, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = (each.view(rows, length, 2, 4).transpose(1, 2) for each in self.heads(self.norm(x)).split(8, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, length, 8)
        return x + F.gelu(self.out(y)) + F.gelu(self.out(self.norm(y)))


def test_composites_are_calls_of_the_forward_and_of_the_backward_graph():
    model, ops = Block(), {F.scaled_dot_product_attention: 3, F.layer_norm: 1, F.gelu: 2}
    run, backend = compiled(model, ops)
    for rows in (2, 3, 5):
        given, parameters = x(rows, 3, 8), [*model.parameters()]
        found = []
        for each in (model, run):
            found.append((value_and_gradients(each, given), [p.grad for p in parameters]))
            model.zero_grad()
        torch.testing.assert_close(*found)
    called = ["aten.gelu"] * 2 + ["aten.layer_norm"] * 2 + ["aten.scaled_dot_product_attention"]
    assert names(backend) == [called, [f"{name}.backward" for name in called]] * 2

    forward, backward = backend.graphs[1:3]
    gelu = next(made for made in composites_in(backward.graph.graph).values() if made.short == "backward")
    assert (gelu.name, gelu.version, gelu.overload) == ("aten.gelu.backward", 2, None)
    assert gelu.attributes == {"approximate": "none"} and gelu.results == (0,)
    assert gelu.operands == {"self": {"operand": 0}, "gradients": [{"operand": 1}]}
    bodies = [node.args[0].target for node, made in composites_in(forward.graph.graph).items() if made.version == 2]
    assert len(bodies) == 2 and len(set(bodies)) == 1
    assert [line.split(" (")[0] for line in backward.report.composites] == [
        "aten.gelu.backward",
        "aten.layer_norm.backward",
        "aten.scaled_dot_product_attention.backward",
    ]


CASES = {
    # name: (function, ops, names in the forward and in the backward graph)
    "one of several results": (lambda x: x.max(1)[0] * 2, {"max"}, [["aten.max"], ["aten.max.backward"]]),
    "a result without a gradient": (lambda x: x.max(1), {"max"}, [["aten.max"], ["aten.max.backward"]]),
    "the same operand twice": (lambda x: torch.atan2(x, x), {"atan2"}, [["aten.atan2"], ["aten.atan2.backward"]]),
    "in place": (lambda x: F.silu(x * 1, inplace=True), {F.silu}, [["aten.silu"], ["aten.silu.backward"]]),
    "no gradient": (lambda x: F.gelu(x.detach()) * x, {"gelu"}, [["aten.gelu"], []]),
    # AOTAutograd inlines these.
    "views": (lambda x: x.split(2, 1)[1] + 1, {"split"}, [[], []]),
    "branches": (lambda x: torch.cond(x.sum() > 0, lambda x: F.gelu(x), lambda x: x + 1, (x,)), {"gelu"}, [[], []]),
}


@pytest.mark.each_row
@pytest.mark.parametrize("case", CASES)
def test_calls_of_every_kind_have_their_values_and_gradients(case):
    function, ops, expected = CASES[case]
    run, backend = compiled(function, ops, dynamic=case == "the same operand twice")
    torch.testing.assert_close(value_and_gradients(run, x()), value_and_gradients(function, x()))
    assert names(backend) == expected


def test_a_call_that_draws_is_a_composite_only_where_nothing_is_trained():
    found = []
    for ops in ({F.dropout}, ()):
        run, backend = compiled(lambda x: F.dropout(x, 0.5) * 2, ops)
        found.append(value_and_gradients(run, x()))
        assert names(backend) == [[], []]
    torch.testing.assert_close(*found)
    run, backend = compiled(lambda x: F.dropout(x, 0.5) * 2, {F.dropout})
    run(x())
    assert names(backend) == [["aten.dropout"]]


def test_composites_within_composites_have_gradients():
    run, backend = compiled(Nested(), NESTED, rules=NESTED_RULES)
    torch.testing.assert_close(value_and_gradients(run, queries()), value_and_gradients(Nested(), queries()))
    forward, backward = names(backend)
    assert {each for each in forward if each != "aten.scaled_dot_product_attention"} < set(forward)
    assert {f"{each}.backward" for each in forward} <= set(backward)


@pytest.mark.parametrize("partial", [False, True])
def test_a_backend_runs_the_names_that_it_knows(partial):
    chip, seen = numpy_arrays.make(), []

    @chip.implements("gelu")
    def gelu(x, approximate="none"):
        seen.append(f"gelu {approximate}")
        return F.gelu(torch.from_numpy(x), approximate=approximate).numpy()

    @chip.implements("wrap")
    def region(made, body, *operands):
        seen.append(made.name)
        return body(*operands)

    def function(x):
        return F.gelu(x, approximate="tanh").erf() * F.softmax(x, -1)

    to = numpy_arrays.make().target - ({"erf"} if partial else set())
    run, _ = compiled(function, {"gelu", "softmax"}, to, compiler=chip, partial=partial)
    torch.testing.assert_close(value_and_gradients(run, x()), value_and_gradients(function, x()))
    assert sorted(seen) == ["aten.gelu.backward", "aten.softmax", "aten.softmax.backward", "gelu tanh"]


def test_inductor_is_refused():
    with pytest.raises(decomp.errors.ArgumentError) as raised:
        decomp.backend(to=targets.core_aten, compiler="inductor", composites={"gelu"})
    assert str(raised.value) == (
        "compiler='inductor' compiles ops and knows no composites\n"
        "  to do: leave out composites=, or pass a Backend or a function as compiler="
    )
