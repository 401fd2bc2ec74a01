"""Training on backends: `python -m benchmarks.backends --training`. A training step is one program (forward, backward,
gradient descent that writes weights and running statistics back). After ten steps weights, statistics and losses are
compared with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import decomp
from decomp_rules import backends
from decomp_rules.samples import GPT, Residual

STEPS = 10
RATE = 0.1
Tensors = dict[str, Tensor]


def _mlp() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), torch.randn(8, 6)


def _gpt() -> tuple[nn.Module, Tensor]:
    return GPT(vocabulary=7, width=8, heads=2, layers=1, context=4), torch.randint(0, 7, (2, 4))


def _resnet() -> tuple[nn.Module, Tensor]:
    stem = nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.ReLU()
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    return nn.Sequential(*stem, Residual(2, 4, 2), *head), torch.randn(4, 1, 6, 6)


MODELS: Mapping[str, Callable[[], tuple[nn.Module, Tensor]]] = {"mlp": _mlp, "gpt": _gpt, "resnet": _resnet}


def step_of(model: nn.Module) -> Callable[[Tensors, Tensors, Tensor, Tensor], Tensor]:
    """A function of weights, buffers, inputs and labels that writes weights and buffers, and returns the loss."""

    def step(weights: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Tensor:
        leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        with torch.enable_grad():
            found = functional_call(model, {**leaves, **buffers}, (x,))
            loss = F.cross_entropy(found.flatten(0, -2), y.flatten())
            gradients = torch.autograd.grad(loss, list(leaves.values()))
        for weight, gradient in zip(weights.values(), gradients):
            weight.sub_(gradient * RATE)
        return loss.detach()

    return step


@dataclass
class State:
    """The tensors that a step writes, and the losses so far."""

    weights: Tensors
    buffers: Tensors
    losses: list[Tensor]


def state_of(model: nn.Module) -> State:
    """Copies of the weights and buffers of a model."""
    weights, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    return State(_copied(weights), _copied(buffers), [])


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def trained(backend: decomp.Backend, name: str) -> tuple[State, State, State]:
    """The state of a model after ten steps on a backend, after ten in PyTorch, and before. Raises what lowering and
    loading raise."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    y = torch.randint(0, 3, x.shape if name == "gpt" else x.shape[:1])
    step, before, traced = step_of(model.train()), state_of(model), state_of(model)
    graph = make_fx(step)(traced.weights, traced.buffers, x, y)
    args = (before.weights, before.buffers, x, y)
    program = backend.load(decomp.lower(graph, to=backend.target, args=args, training=False))
    mine, own = state_of(model), state_of(model)
    for state, run in ((mine, program), (own, step)):
        for _ in range(STEPS):
            state.losses.append(run(state.weights, state.buffers, x, y))
    return mine, own, before


def difference(one: State, other: State) -> float:
    """The largest difference of a weight or a buffer."""
    pairs = zip((*one.weights.values(), *one.buffers.values()), (*other.weights.values(), *other.buffers.values()))
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def table(chosen: Sequence[str], models: Sequence[str] = ()) -> None:
    """Print, for each model and backend, the largest difference of a weight or a buffer after ten steps."""
    print(f"| model | {' | '.join(chosen)} |")
    print("|---" * (len(chosen) + 1) + "|")
    for name in models or MODELS:
        cells: list[Any] = []
        for each in chosen:
            mine, own, _ = trained(backends.get(each), name)
            cells.append(f"{difference(mine, own):.1e}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
