"""How a lowered module is called."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets

X = torch.linspace(-3, 3, 6).view(2, 3)


def lowered(module, *args, **options):
    return decomp.lower(module, to=targets.tinygrad, args=args, **options).result


class Named(nn.Module):
    def forward(self, first, second):
        return [first + second, nn.functional.silu(second)]


def test_plain_results_keep_their_kind_and_are_called_without_trees():
    module = lowered(Named(), X, X)
    found = module(X, second=X)
    assert type(found) is list and next(torch.equal(a, b) for a, b in zip(found, Named()(X, X)))
    assert "tree" not in module.code


def test_other_results_keep_their_structure():
    class Tree(nn.Module):
        def forward(self, x):
            return {"silu": nn.functional.silu(x), "twice": (x + x,)}

    assert lowered(Tree(), X)(X)["twice"][0].equal(X + X)


@pytest.mark.parametrize("call", [lambda m, x: m(x, x), lambda m, x: m(x, second=x)], ids=["by position", "by name"])
def test_an_input_of_another_shape_is_refused_with_what_to_do(call):
    module = lowered(Named(), X, X)
    with pytest.raises(decomp.errors.InputMismatch) as error:
        call(module, X.T)
    assert str(error.value) == (
        "input 'first' has shape (3, 2), the program was lowered for (2, 3)\n"
        "  to do: lower it with inputs of this shape, or with dynamic_shapes= if the size varies"
    )


def test_sizes_that_vary_are_not_checked():
    module = lowered(nn.SiLU(), X, dynamic_shapes={"input": {0: torch.export.Dim("n", max=9)}})
    assert module(torch.ones(5, 3)).shape == (5, 3)


def test_a_compiler_sees_one_whole_graph():
    torch._dynamo.reset()
    explained = torch._dynamo.explain(lowered(nn.Sequential(nn.Linear(3, 3), nn.GELU()), X))(X)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
