"""Effects keep their number, order and region through a lowering; what breaks that is named, word for word."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from decomp.proof.checks import check
from decomp.proof.correspondence import Correspondence, EffectsChanged
from tests.proof.paired_graphs import Pair, broken, lowering, node_of

aten = torch.ops.aten


def dropout(*targets: Any, p: float = 0.5, train: bool = True) -> Correspondence:
    """A dropout whose expansion calls `targets` in turn."""
    pair = Pair()
    x, lx = pair.both("placeholder", "x")
    drop = pair.source.create_node("call_function", aten.dropout.default, (x, p, train), name="drop")
    last = lx
    for i, target in enumerate(targets):
        arguments = ([2],) if target is aten.rand.default else (last, last)
        used = pair.expand(drop, target, *arguments, name=f"drop_{i}")
        last = pair.expand(drop, aten.mul.Tensor, last, used, name=f"drop_{i}_mul")
    pair.values[drop] = last
    return pair.returning(drop)


def test_a_random_op_draws_once() -> None:
    check(dropout(aten.rand.default))
    assert broken(dropout(aten.rand.default, aten.rand.default), EffectsChanged) == (
        "the effects of 'drop' changed\n"
        "  lowered node 'drop_0' (call_function aten.rand.default)\n"
        "  source node 'drop' (call_function aten.dropout.default)\n"
        "  expected: 1 random draw\n"
        "  found: 1 random draw by 'drop_0', 1 random draw by 'drop_1'"
    )
    assert broken(dropout(), EffectsChanged) == (
        "the effects of 'drop' changed\n"
        "  source node 'drop' (call_function aten.dropout.default)\n"
        "  expected: 1 random draw\n"
        "  found: no effect"
    )


@pytest.mark.parametrize("settings", [{"train": False}, {"p": 0.0}])
def test_dropout_that_does_nothing_draws_nothing(settings: Any) -> None:
    check(dropout(**settings))
    assert "expected: no effect" in broken(dropout(aten.rand.default, **settings), EffectsChanged)


def test_dropout_of_everything_may_draw() -> None:
    check(dropout(p=1.0))
    check(dropout(aten.rand.default, p=1.0))


def effects_in_turn(*targets: Any) -> Pair:
    pair = Pair()
    x, _ = pair.both("placeholder", "x")
    for i, target in enumerate(targets):
        pair.both("call_function", target, x, name=f"effect_{i}")
    return pair


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (aten.relu_.default, "mutation"),
        (aten._assert_async.default, "assertion"),
        (torch._assert, "assertion"),
        (aten.bernoulli.default, "1 random draw"),
        (aten.uniform_.default, "mutation, 1 random draw"),
        (torch.ops._c10d_functional.wait_tensor.default, "collective"),
    ],
)
def test_effects_keep_their_order(first: Any, text: str) -> None:
    pair = effects_in_turn(first, aten.bernoulli.default)
    good = pair.returning(node_of(pair.source, "x"))
    check(good)
    node_of(good.lowered, "effect_1").append(node_of(good.lowered, "effect_0"))
    assert broken(good, EffectsChanged).startswith(
        f"'effect_0' ({text}) comes after an effect of a later source node\n  lowered node 'effect_0' ("
    )


def test_no_effect_is_lost_nor_added() -> None:
    pair = effects_in_turn(aten.relu_.default)
    bad = pair.returning(node_of(pair.source, "x"))
    bad.lowered.erase_node(node_of(bad.lowered, "effect_0"))
    bad.values[node_of(bad.source, "effect_0")] = None
    assert "  expected: mutation\n  found: no effect" in broken(bad, EffectsChanged)
    bad = lowering()
    node_of(bad.lowered, "gelu").target = aten.add_.Tensor
    assert "  expected: no effect\n  found: mutation by 'gelu'" in broken(bad, EffectsChanged)


def test_calls_stay_in_their_region_of_no_grad() -> None:
    pair = Pair()
    x, _ = pair.both("placeholder", "x")
    pair.both("call_function", torch._C._set_grad_enabled, False, name="off")
    y, _ = pair.both("call_function", aten.sin.default, x, name="y")
    pair.both("call_function", torch._C._set_grad_enabled, True, name="on")
    bad = pair.returning(y)
    assert "every call is in its region of 3" in check(bad).checks
    node_of(bad.lowered, "on").append(node_of(bad.lowered, "y"))
    assert broken(bad, EffectsChanged) == (
        "'y' moved out of its no_grad or autocast region\n"
        "  lowered node 'y' (call_function aten.sin.default)\n"
        "  source node 'y' (call_function aten.sin.default)"
    )


def test_results_of_a_call_may_be_taken_in_any_region() -> None:
    pair = Pair()
    x, _ = pair.both("placeholder", "x")
    pair.both("call_function", torch._C._set_grad_enabled, False, name="off")
    parts, _ = pair.both("call_function", aten.split.Tensor, x, 1, name="parts")
    part, _ = pair.both("call_function", operator.getitem, parts, 0, name="part")
    pair.both("call_function", torch._C._set_grad_enabled, True, name="on")
    moved = pair.returning(part)
    node_of(moved.lowered, "on").append(node_of(moved.lowered, "part"))
    assert "every call is in its region of 3" in check(moved).checks
    node_of(moved.lowered, "on").append(node_of(moved.lowered, "parts"))
    assert "'parts' moved out of its no_grad or autocast region" in broken(moved, EffectsChanged)
