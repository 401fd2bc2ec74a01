"""A lowered program is in its target, apart from calls that no target needs to know."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

import decomp
from decomp.ir.effects import is_discharged_assertion
from decomp_rules import samples, targets
from tests.models import MODELS, build

aten = torch.ops.aten
CASES = [(name, samples.model) for name in samples.MODELS] + [(name, build) for name in MODELS]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, make", CASES, ids=[f"{name}-{make.__module__}" for name, make in CASES])
def test_every_call_of_a_lowered_model_is_in_the_target(name: str, make: Any) -> None:
    model, args = make(name)
    lowering = decomp.lower(model, to=targets.core_aten, args=args)
    calls = decomp.calls(lowering.result)
    assert calls and all(call.op in targets.core_aten for call in calls)
    assert sum(lowering.report().after.values()) == len(calls)


class Counting(nn.Module):
    """Writes a buffer, converts, asserts what data decide, and branches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        count = n.item()
        torch._check(count >= 1)
        y = torch.cond(x.sum() > 0, lambda x: x.exp(), lambda x: x.sin(), (x.to(torch.float32),))
        return y * torch.full((count,), 2.0).sum()


ARGS = torch.ones(3, dtype=torch.float64), torch.tensor(2)


def test_calls_outside_the_target_are_counted() -> None:
    lowering = decomp.lower(Counting(), to=targets.core_aten, args=ARGS)
    report = lowering.report()
    assert report.effects["write-back"] == 1 and report.effects["control flow"] == 1 and report.effects["assertion"] > 0
    assert report.proved > 0
    assert f"{report.proved} assertion" in str(report) and "write-back ×1" in str(report)
    assert all(call.op in targets.core_aten for call in decomp.calls(lowering.result))


def test_calls_outside_the_target_are_found_by_name() -> None:
    lowering = decomp.lower(Counting(), to=targets.core_aten, args=ARGS)
    for spelling in (aten.copy_, torch.ops.higher_order.cond):
        assert len(decomp.calls(lowering.result, spelling)) == 1
    assert not decomp.calls(lowering.result, aten._assert_tensor_metadata)


def test_an_assertion_that_data_decide_stays_and_holds() -> None:
    result = decomp.lower(Counting(), to=targets.core_aten, args=ARGS).result
    torch.testing.assert_close(result(*ARGS), Counting()(*ARGS))
    with pytest.raises(RuntimeError):
        result(ARGS[0], torch.tensor(0))


@pytest.mark.parametrize(
    "asserted, proved",
    [
        ({}, True),
        ({"dtype": torch.float32, "device": torch.device("cpu"), "layout": torch.strided}, True),
        ({"size": [2, 3], "stride": [3, 1]}, True),
        ({"dtype": torch.float64}, False),
        ({"size": [3, 2]}, False),
        ({"device": torch.device("meta")}, False),
    ],
)
def test_an_assertion_is_proved_by_metadata_alone(asserted: dict[str, Any], proved: bool) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 3)
    assert is_discharged_assertion(graph.call_function(aten._assert_tensor_metadata.default, (x,), asserted)) is proved


def test_without_metadata_nothing_is_proved() -> None:
    graph = fx.Graph()
    node = graph.call_function(aten._assert_tensor_metadata.default, (graph.placeholder("x"),), {"dtype": torch.int8})
    assert not is_discharged_assertion(node)


def test_attention_with_a_function_of_scores_is_no_op_of_the_lowered_program() -> None:
    class Attention(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            from torch.nn.attention.flex_attention import flex_attention

            return flex_attention(q, q, q)

    source = torch.export.export(Attention(), (torch.randn(1, 1, 128, 16),), strict=False)
    lowering = decomp.lower(source, to=targets.core_aten)
    assert lowering.plan.complete and not lowering.plan.blockers
    assert not lowering.result.graph.find_nodes(op="call_function", target=torch.ops.higher_order.flex_attention)


def test_a_copy_in_the_middle_of_a_program_is_no_write_back() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.call_function(aten.copy_.default, (x, y))
    last = graph.call_function(aten.exp.default, (x,))
    graph.call_function(aten.copy_.default, (y, last))
    graph.output(last)
    assert [call.node for call in decomp.calls(graph)] == [x.next.next, last]
