"""Properties known from a call's overload alone agree with those of the node."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from decomp.ir.aliases import is_view, view_bases
from decomp.ir.effects import EffectTable
from decomp.simplification.rewrite_constraints import PlainCalls

aten = torch.ops.aten


def call_of(overload: torch._ops.OpOverload) -> fx.Node:
    """A call of an overload on inputs alone."""
    graph = fx.Graph()
    inputs = [graph.placeholder(argument.name) for argument in overload._schema.arguments if not argument.kwarg_only]
    return graph.call_function(overload, tuple(inputs))


def test_a_plain_call_is_known_by_its_overload():
    plain, effects, views, others = PlainCalls(), EffectTable(), 0, 0
    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
            node = call_of(getattr(packet, overload))
            found = plain.of(node)
            if found is None:
                continue
            assert not effects.of(node), node.target
            bases = tuple(base for base in view_bases(node) if is_view(node, base) is not False)
            assert bases == (node.args[:1] if found.is_view else ()), node.target
            views, others = views + found.is_view, others + (not found.is_view)
    assert views > 30 and others > 500


@pytest.mark.parametrize(
    "target, is_view",
    [
        (aten.view.default, True),
        (aten._unsafe_view.default, True),
        (aten.split.Tensor, True),
        (aten.detach.default, True),
        (aten.mul.Tensor, False),
        (aten.clone.default, False),
        (aten._softmax.default, False),
    ],
)
def test_what_is_a_view(target, is_view):
    found = PlainCalls().of(call_of(target))
    assert found is not None and found.is_view == is_view and found.gradients == (target is not aten.detach.default)


@pytest.mark.parametrize(
    "target",
    [
        aten.reshape.default,
        aten.contiguous.default,
        aten.einsum.default,
        aten.broadcast_tensors.default,
        aten.add_.Tensor,
        aten.bernoulli.default,
        aten._assert_async.default,
        aten.transpose_.default,
    ],
)
def test_what_depends_on_more_or_has_an_effect_is_not_plain(target):
    assert PlainCalls().of(call_of(target)) is None


def test_a_view_of_an_operand_that_is_given_by_name_is_looked_at():
    graph = fx.Graph()
    x = graph.placeholder("x")
    assert PlainCalls().of(graph.call_function(aten.view.default, (), {"self": x, "size": [2]})) is None
