"""Symbolic sizes that are equal for all values, and those that only look equal."""

import pytest
import sympy
import torch
from torch.export import Dim

from decomp.metadata.symbolic_sizes import (
    Undecided,
    combination,
    decided_at_every_size,
    has_fixed_sizes,
    is_at_least,
    same_size,
)


def size_of(bound=None):
    """A size of a program captured with 12, of which `bound` may be asked."""
    found = []

    class Asking(torch.nn.Module):
        def forward(self, x):
            found.append(x.shape[0])
            return x.reshape(-1, bound) if bound else x + 1

    dim = Dim("n", max=1200) if bound is None else bound * Dim("n", max=1200)
    torch.export.export(Asking(), (torch.ones(12),), dynamic_shapes=({0: dim},), strict=False)
    return found[0]


def test_a_multiple_divided_and_multiplied_is_itself():
    n = size_of(bound=4)
    assert same_size(n // 2 * 2, n) and same_size(n // 4 * 4, n)


@pytest.mark.parametrize("other", [lambda n: n // 2 * 2, lambda n: n + 1, lambda n: 12, lambda n: (n + 1) // 2 * 2])
def test_sizes_that_agree_only_where_the_program_was_captured_differ(other):
    n = size_of()
    assert not same_size(other(n), n)


def test_remainders_are_from_0_to_their_divisor():
    n, is_known = size_of(), decided_at_every_size
    with is_known(n.node.shape_env):
        assert all(is_at_least(size, 0) for size in (-2 % n, n - -2 % n, n - 1 - 5 % n, 2 * n - 5 % n - 7 % n))
        assert is_at_least(n - -2 % n, 1) and is_at_least(4, 3) and not is_at_least(2, 3)
        half = (n + 1) // 2
        assert is_at_least(half - -2 % half, 1) and is_at_least(-2 % half, 0)
    for open_to_both in (n - 5 % (n + 2), 5 % n - 1, n - (5 % n) * (7 % n)):
        with pytest.raises(Undecided), is_known(n.node.shape_env):
            is_at_least(open_to_both, 0)


def test_a_guard_and_the_ranges_are_added_up():
    found = []

    def backend(graph, inputs):
        shape = next(node for node in graph.graph.nodes if node.op == "placeholder" and node.name == "l_x_")
        n = shape.meta["example_value"].shape[0]
        part, env = (n + 2) // 3, n.node.shape_env
        with decided_at_every_size(env):
            found.append([is_at_least(size, 0) for size in (n - 2 * part, n - part, n - part - 1)])
        with pytest.raises(Undecided), decided_at_every_size(env):
            is_at_least(n - 3 * part, 0)
        return graph

    torch._dynamo.reset()
    torch.compile(lambda x: torch.cat(x.chunk(3)[::-1]), backend=backend, dynamic=True)(torch.ones(9, 2))
    assert found == [[True] * 3]


def test_plain_sizes_are_compared_as_they_are():
    assert same_size(3, 3) and not same_size(3, 4)


def test_sizes_are_fixed_where_all_are_numbers():
    found = []

    class Asking(torch.nn.Module):
        def forward(self, x):
            found.append(x + 1)
            return x + 1

    torch.export.export(Asking(), (torch.ones(12, 3),), dynamic_shapes=({0: Dim("n")},), strict=False)
    assert has_fixed_sizes(torch.ones(12, 3)) and not has_fixed_sizes(found[0]) and not has_fixed_sizes(12)


def test_sizes_are_combined_of_others():
    a, b, c = sympy.symbols("a b c", integer=True)
    assert combination([a + b, -a], b) == [1, 1]
    assert combination([2 * a + b, a + b, c], 3 * a + 7) == [3, -3, 0]
    assert combination([a * b, a // 2, a + b - 4, b], a) == [0, 0, 1, -1]
    assert combination([a + b], a) is None and combination([2 * a], a) is None and combination([], a) is None
    assert combination([a, b], a * b) is None
