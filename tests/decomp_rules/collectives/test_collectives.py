"""Collectives by other collectives: which are made, in which order, for the rank of this process. (What they compute is
tested in several processes, by tests/sharded.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import decomp
from decomp_rules import RULES, collectives, targets
from tests.forms import Holder
from tests.sharded.calls import CALLS, GROUP
from tests.sharded.groups import process_group

c10d = torch.ops._c10d_functional
X = torch.arange(12.0).reshape(4, 3)


def lowered(function: Callable[[torch.Tensor], Any], *legal: str, rules: Any = None) -> decomp.Lowering:
    target = targets.core_aten | {f"_c10d_functional.{name}" for name in (*legal, "wait_tensor")}
    program = torch.export.export(Holder(function), (X,))
    return decomp.lower(program, to=target, rules=rules or RULES | collectives.RULES, verify="full")


def made(lowering: decomp.Lowering) -> list[str]:
    names = [node.target._opname for node in lowering.result.graph.nodes if "c10d" in str(node.target)]
    return [name for name in names if name != "wait_tensor"]


def all_reduce(x: torch.Tensor, op: str = "sum") -> Any:
    return c10d.wait_tensor(c10d.all_reduce(x, op, GROUP))


def test_collectives_are_legal_where_the_target_names_them() -> None:
    with process_group():
        lowering = lowered(all_reduce, "all_reduce")
    assert made(lowering) == ["all_reduce"]
    said = (
        "the collectives of 1 group in the order of the source (2 kept, 0 derived), each waited for before it is read"
    )
    assert said in lowering.proof.checks


@pytest.mark.parametrize("name", CALLS)
def test_each_collective_is_derived_from_each_that_can_do_it(name: str) -> None:
    with process_group():
        for legal in CALLS[name].derived_from:
            program = torch.export.export(CALLS[name].module(4), (CALLS[name].example(4, 0),))
            target = targets.core_aten | {f"_c10d_functional.{legal}", "_c10d_functional.wait_tensor"}
            lowering = decomp.lower(program, to=target, rules=RULES | collectives.RULES, verify="full")
            assert set(made(lowering)) == {legal}


def test_an_all_reduce_in_two_steps_pads_what_is_not_divisible() -> None:
    rules = RULES | decomp.Rules(
        [rule for rule in collectives.RULES.entries if getattr(rule, "name", "") == "all_reduce_by_scatter"]
    )
    with process_group(size=5):
        lowering = lowered(all_reduce, "reduce_scatter_tensor", "all_gather_into_tensor", rules=rules)
    assert made(lowering) == ["reduce_scatter_tensor", "all_gather_into_tensor"]
    shapes = [tuple(node.meta["val"].shape) for node in lowering.result.graph.nodes if "c10d" in str(node.target)]
    assert shapes[:3:2] == [(3,), (15,)] and lowering.result.graph.output_node().args[0][0].meta["val"].shape == (4, 3)


def test_the_program_of_one_rank_is_not_that_of_another(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither from memory nor from the cache on disk."""
    monkeypatch.setenv("DECOMP_CACHE", str(tmp_path))
    function = lambda x: c10d.wait_tensor(c10d.reduce_scatter_tensor(x, "sum", 4, GROUP))
    starts = []
    for rank in (0, 2, 0):
        with process_group(rank=rank):
            nodes = lowered(function, "all_reduce").result.graph.nodes
            starts += [node.args[2] for node in nodes if node.target is torch.ops.aten.slice.Tensor]
    assert starts == [0, 2, 0]


def test_without_a_group_a_rule_declines() -> None:
    with process_group():
        program = torch.export.export(Holder(all_reduce), (X,))
    target = targets.core_aten | {"_c10d_functional.all_gather_into_tensor", "_c10d_functional.wait_tensor"}
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(program, to=target, rules=RULES | collectives.RULES)
    assert "this process has no process group '0': initialise it first" in str(caught.value)


def test_an_average_is_a_sum_for_targets_that_only_sum() -> None:
    with process_group():
        program = torch.export.export(Holder(lambda x: all_reduce(x, "avg")), (X,))
        target = (targets.core_aten | {"_c10d_functional.wait_tensor"}).legal_if(
            "_c10d_functional.all_reduce", lambda call: call.argument("reduce_op") == "sum", "it is a sum"
        )
        lowering = decomp.lower(program, to=target, rules=RULES | collectives.RULES)
    (reduce,) = [node for node in lowering.result.graph.nodes if node.target is c10d.all_reduce.default]
    assert reduce.args[1] == "sum" and any(n.target is torch.ops.aten.div.Tensor for n in lowering.result.graph.nodes)


def test_equal_collectives_are_neither_merged_nor_dropped() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        all_reduce(x)  # unused, and other processes wait for it
        return all_reduce(x) + all_reduce(x)

    with process_group():
        assert made(lowered(twice, "all_reduce")) == ["all_reduce"] * 3


def test_what_dynamo_records_of_collectives_of_torch_distributed_is_lowered() -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.distributed.all_reduce(y)
        return y + 1

    with process_group():
        assert made(lowered(in_place, "all_reduce")) == ["all_reduce"]
