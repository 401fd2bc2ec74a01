"""Walks over nested arguments."""

import torch
from torch import fx

from decomp.ir.arguments import equal, key, leaves, nodes_in, substituted, text, zipped

GRAPH = fx.Graph()
X, Y = GRAPH.placeholder("x"), GRAPH.placeholder("y")
NESTED = ([X, 1.0], {"k": (Y, None)}, slice(X, torch.float32, None))


def test_leaves_come_in_order_with_repeats_out_of_each_kind_of_container():
    assert leaves(NESTED) == [X, 1.0, Y, None, X, torch.float32, None]
    assert list(nodes_in(NESTED)) == [X, Y, X]
    assert leaves(3) == [3] and list(nodes_in(X)) == [X]


def test_what_is_substituted_stands_in_plain_containers():
    call = GRAPH.call_function(torch.cat, ([X, Y],), {"dim": 0})
    found = substituted((call.args, call.kwargs), str)
    assert found == ((["x", "y"],), {"dim": 0}) and type(found[0][0]) is list and type(found[1]) is dict
    assert substituted(NESTED, lambda leaf: 0, object) == ([0, 0], {"k": (0, 0)}, slice(0, 0, 0))
    assert substituted((1, 2.5), lambda number: -number, float) == (1, -2.5)


def test_values_are_equal_if_nested_alike_with_equal_leaves():
    def same(one, other):
        return type(one) is type(other) and one == other

    assert equal(NESTED, NESTED, same) and equal([1, (2,)], (1, [2]), same)
    assert not equal([1, (2,)], (1, [2]), same, strict=True)
    for other in ([1], [1, 2, 3], {"k": 1}, 1, [1, 2.0], [1, [2]]):
        assert not equal([1, 2], other, same)
    assert not equal({"k": 1}, {"j": 1}, same) and not equal(slice(1, 2), (1, 2, None), same)


def test_leaves_are_paired_with_what_stands_in_their_place():
    assert list(zipped(([1], {"k": 2}, slice(3)), (["a"], {"k": ("b", "c")}, slice("d")))) == [
        (1, "a"),
        (2, ("b", "c")),
        (None, None),
        (3, "d"),
        (None, None),
    ]


def test_keys_tell_containers_and_types_apart():
    def form(value):
        return key(value, form)

    values = ([1], (1,), (1.0,), (True,), slice(1), {"k": 1}, 1)
    assert len({hash(form(value)) for value in values}) == len({form(value) for value in values}) == len(values)


def test_text_is_python_source():
    source = text(NESTED, lambda leaf: leaf.name if isinstance(leaf, fx.Node) else repr(leaf))
    assert source == "([x, 1.0], {'k': (y, None)}, slice(x, torch.float32, None))"
    assert eval(source, {"x": X, "y": Y, "torch": torch}) == NESTED
    assert text((1,), repr) == "(1,)" and text((), repr) == "()"
