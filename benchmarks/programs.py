"""Programs to lower, and one small set of rules that every contender can use: as `decomp` rules, and as a table of
decompositions for `make_fx` and `run_decompositions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

import decomp
from decomp_rules import samples

WIDTH = 8


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x Wᵀ + b"""
    return torch.matmul(x, weight.t()) + bias


def layer_norm(x: Tensor, normalized_shape: Any, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """(x − mean) / √(var + ε) · w + b, over the last dimension."""
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + eps) * weight + bias


def gelu(x: Tensor) -> Tensor:
    """x/2 · (1 + erf(x/√2))"""
    return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))


def rules() -> decomp.Rules:
    """The rules as a new object, with nothing cached."""
    made = decomp.Rules()
    for op, rule in ((F.linear, linear), (F.layer_norm, layer_norm), (F.gelu, gelu)):
        made.register(op)(rule)
    return made


def table() -> dict[Any, Callable[..., Any]]:
    """The same rules as a decomposition table of PyTorch."""
    aten = torch.ops.aten
    return {
        aten.linear.default: linear,
        aten.layer_norm.default: lambda x, shape, w, b, eps=1e-5, cudnn_enable=True: layer_norm(x, shape, w, b, eps),
        aten.gelu.default: lambda x, approximate="none": gelu(x),
    }


def target(graph: fx.Graph) -> decomp.Target:
    """A target with the ops that the rules emit, and every overload in `graph` that has no rule."""
    names = ["add", "sub", "mul", "mean", "rsqrt", "erf", "matmul", "t"]
    others = {node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)} - table().keys()
    return decomp.Target("benchmark", [*names, *sorted(others, key=str)])


class Stack(nn.Module):
    """Layers of linear, layer norm, GELU and a residual."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        for i in range(layers):
            self.register_parameter(f"matrix{i}", nn.Parameter(torch.linspace(-1, 1, WIDTH**2).view(WIDTH, WIDTH)))
            for name in ("offset", "scale", "shift"):
                self.register_parameter(f"{name}{i}", nn.Parameter(torch.ones(WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        """x: float, (*, 8). Returns the same shape."""
        for i in range(self.layers):
            matrix, offset, scale, shift = (getattr(self, f"{n}{i}") for n in ("matrix", "offset", "scale", "shift"))
            x = x + F.gelu(F.layer_norm(F.linear(x, matrix, offset), (WIDTH,), scale, shift))
        return x


def stack(layers: int) -> fx.GraphModule:
    """The stack, traced to calls of functions, without metadata."""
    return fx.symbolic_trace(Stack(layers))


def exported_stack(layers: int) -> torch.export.ExportedProgram:
    """The stack, exported to calls of overloads, with metadata."""
    return torch.export.export(Stack(layers), (torch.ones(4, WIDTH),))


def transformer(layers: int = 24) -> torch.export.ExportedProgram:
    """Pre-norm transformer layers, exported."""
    module = nn.Sequential(*[samples.Block(16, 2) for _ in range(layers)]).eval()
    return torch.export.export(module, (torch.ones(1, 4, 16),))


def synthetic(emitted: int) -> fx.GraphModule:
    """GELU and addition in turn, over values that stay live for a while: about `emitted` nodes when lowered."""
    graph = fx.Graph()
    values = [graph.placeholder("x")]
    for _ in range(emitted // 6):
        new = graph.call_function(F.gelu, (values[-1],))
        values.append(graph.call_function(torch.add, (new, values[-min(len(values), 7)])))
        del values[:-16]
    graph.output(values[-1])
    return fx.GraphModule(nn.Module(), graph)
