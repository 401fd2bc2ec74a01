"""The proof of a lowering: each invariant holds for a sound one, and each broken one is named, word for word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

from decomp.verify import Correspondence, InventedDependency, check

aten = torch.ops.aten


def lowering() -> Correspondence:
    """`add(gelu(x), y)`, with gelu stamped as `mul(mul(x, x), x)`."""
    source, lowered = fx.Graph(), fx.Graph()
    x, y = source.placeholder("x"), source.placeholder("y")
    gelu = source.call_function(aten.gelu.default, (x,))
    add = source.call_function(aten.add.Tensor, (gelu, y))
    output = source.output((add,))
    lx, ly = lowered.placeholder("x"), lowered.placeholder("y")
    square = lowered.call_function(aten.mul.Tensor, (lx, lx))
    cube = lowered.call_function(aten.mul.Tensor, (square, lx))
    total = lowered.call_function(aten.add.Tensor, (cube, ly))
    result = lowered.output((total,))
    origin = {lx: x, ly: y, square: gelu, cube: gelu, total: add, result: output}
    return Correspondence(source, lowered, origin, {x: lx, y: ly, gelu: cube, add: total})


def named(graph: fx.Graph, name: str) -> Any:
    return next(node for node in graph.nodes if node.name == name)


def test_a_sound_lowering_is_proved() -> None:
    proof = check(lowering(), full=True)
    assert proof.nodes == 6 and proof.expansions == 0 and proof.seconds > 0
    assert "all 3 calls are legal" in proof.checks


def test_an_expansion_may_not_read_what_its_source_does_not() -> None:
    broken = lowering()
    named(broken.lowered, "mul_tensor").args = (named(broken.lowered, "x"), named(broken.lowered, "y"))
    with pytest.raises(InventedDependency) as error:
        check(replace(broken))
    assert str(error.value) == (
        "'mul_tensor' reads 'y', but 'gelu_default' does not depend on 'y'\n"
        "  lowered node 'mul_tensor' (call_function aten.mul.Tensor)\n"
        "  source node 'gelu_default' (call_function aten.gelu.default)"
    )
