"""Collectives keep their number, order, group and waits through a lowering; each sabotage of a lowered program is
named, word for word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
import torch.distributed._functional_collectives  # which registers the ops

import decomp
from decomp.proof.checks import check
from decomp.proof.correspondence import Correspondence, EffectsChanged
from tests.proof.paired_graphs import Pair, broken, node_of
from tests.sharded.groups import process_group

c10d = torch.ops._c10d_functional
aten = torch.ops.aten


def two_sums() -> Correspondence:
    """`wait(all_reduce(x)) + wait(all_reduce(y))`, kept as it is."""
    pair = Pair()
    x, _ = pair.both("placeholder", "x")
    y, _ = pair.both("placeholder", "y")
    first, _ = pair.both("call_function", c10d.all_reduce.default, x, "sum", "0", name="first")
    first_wait, _ = pair.both("call_function", c10d.wait_tensor.default, first, name="first_wait")
    second, _ = pair.both("call_function", c10d.all_reduce.default, y, "max", "0", name="second")
    second_wait, _ = pair.both("call_function", c10d.wait_tensor.default, second, name="second_wait")
    total, _ = pair.both("call_function", aten.add.Tensor, first_wait, second_wait, name="total")
    return pair.returning(total)


def derived(*, group: str = "0", waits: bool = True) -> Correspondence:
    """An all-reduce by an all-gather whose result is waited for, and summed."""
    pair = Pair()
    x, lx = pair.both("placeholder", "x")
    reduce = pair.call(c10d.all_reduce.default, x, "sum", "0", name="reduce")
    gathered = pair.expand(reduce, c10d.all_gather_into_tensor.default, lx, 2, group, name="gather")
    if waits:
        gathered = pair.expand(reduce, c10d.wait_tensor.default, gathered, name="gather_wait")
    pair.expand(reduce, aten.sum.dim_IntList, gathered, [0], name="reduce")
    wait, _ = pair.both("call_function", c10d.wait_tensor.default, reduce, name="wait")
    return pair.returning(wait)


def test_collectives_that_are_kept_or_derived_are_proved() -> None:
    said = (
        "the collectives of 1 group in the order of the source (4 kept, 0 derived), each waited for before it is read"
    )
    assert said in check(two_sums()).checks
    assert said.replace("4 kept, 0 derived", "1 kept, 1 derived") in check(derived()).checks


def _drop(work: Correspondence) -> None:
    node = node_of(work.lowered, "second")
    node.replace_all_uses_with(node.args[0])
    work.lowered.erase_node(node)
    work.values[node_of(work.source, "second")] = node.args[0]


def _duplicate(work: Correspondence) -> None:
    node = node_of(work.lowered, "second")
    with work.lowered.inserting_after(node):
        again = work.lowered.call_function(node.target, (node, *node.args[1:]))
    node_of(work.lowered, "second_wait").args = (again,)
    work.origin[again] = node_of(work.source, "second")


def _swap(work: Correspondence) -> None:
    node_of(work.lowered, "y").append(node_of(work.lowered, "second"))


def _other_group(work: Correspondence) -> None:
    node = node_of(work.lowered, "second")
    node.args = (*node.args[:2], "7")


def _no_wait(work: Correspondence) -> None:
    wait = node_of(work.lowered, "second_wait")
    wait.replace_all_uses_with(wait.args[0])
    work.lowered.erase_node(wait)
    work.values[node_of(work.source, "second_wait")] = wait.args[0]


@pytest.mark.parametrize(
    ("sabotage", "text"),
    [
        (_drop, "the collective 'second' is lost"),
        (_duplicate, "the collective 'second' is made 2 times"),
        (_swap, "the collective 'first' is made after one that follows it"),
        (_other_group, "'second' communicates with another group of processes"),
        (_no_wait, "the collective 'second_wait' is lost"),
    ],
)
def test_a_sabotaged_collective_is_named(sabotage: Callable[[Any], None], text: str) -> None:
    work = two_sums()
    check(work)
    sabotage(work)
    assert broken(work, EffectsChanged).startswith(f"{text}\n")


def test_a_rule_must_wait_for_what_it_reads_and_stay_in_the_group() -> None:
    assert broken(derived(waits=False), EffectsChanged) == (
        "'reduce' reads the result of 'gather', which is not waited for\n"
        "  lowered node 'reduce' (call_function aten.sum.dim_IntList)\n"
        "  source node 'reduce' (call_function _c10d_functional.all_reduce.default)"
    )
    assert broken(derived(group="7"), EffectsChanged) == (
        "'gather' communicates with another group of processes\n"
        "  lowered node 'gather' (call_function _c10d_functional.all_gather_into_tensor.default)\n"
        "  source node 'reduce' (call_function _c10d_functional.all_reduce.default)\n"
        "  expected: 0\n"
        "  found: 7"
    )


class TwoSums(nn.Module):
    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.ops = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = (c10d.wait_tensor(c10d.all_reduce(x, op, "0")) for op in self.ops)
        return one * other


def test_two_programs_make_the_same_collectives_in_the_same_order() -> None:
    with process_group():
        source, same, swapped = (
            torch.export.export(TwoSums(*ops), (torch.ones(2),))
            for ops in (("sum", "max"), ("sum", "max"), ("max", "sum"))
        )
    assert "the same collectives in the same order on 1 group" in decomp.verify(source, same).checks
    with pytest.raises(EffectsChanged) as caught:
        decomp.verify(source, swapped)
    assert str(caught.value).startswith(
        "the collectives of group '0' are others, or in another order\n"
        "  expected: _c10d_functional.all_reduce.default(sum, 0), _c10d_functional.all_reduce.default(max, 0)\n"
        "  found: _c10d_functional.all_reduce.default(max, 0), _c10d_functional.all_reduce.default(sum, 0)"
    )
