"""Workloads, the variants of each, and the modes in which a variant is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from decomp.backends import when_fused
from decomp.costs.model import Cost
from decomp.lowering import Lowering, lower
from decomp.rules.accuracy import DEFAULT
from decomp.rules.target import Target
from decomp.runtime.tables import Backend
from decomp.torch_internals import pytree

MODES = ("forward", "forward + backward")


@dataclass(frozen=True, slots=True)
class Workload:
    """A module and the inputs to call it with, at one size."""

    name: str
    family: str
    """"op" or "model"."""
    size: str
    """"small", "cached", "medium", "large" or "huge"."""
    build: Callable[[], tuple[nn.Module, tuple[Any, ...]]]
    """Builds the module, in eval mode if it matters, and positional inputs, from the global random state."""

    def made(self, seed: int, device: torch.device) -> tuple[nn.Module, tuple[Any, ...]]:
        """The module and its inputs on a device, deterministic by seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module, args = self.build()
        return module.to(device), pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), args)


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant of a workload: how it is lowered and run."""

    name: str
    target: Target | None = None
    """The target that it is lowered to; None: not lowered."""
    keep: tuple[Any, ...] = ()
    """Ops that are kept although the target does not have them."""
    compiled: bool = False
    """Whether it runs under `torch.compile`."""
    accuracy: str = DEFAULT
    """The level at which it is lowered."""
    cost: Cost | None = None
    """The cost of calls, if not 1 each."""
    expanded: bool = False
    """Whether matrix products are expanded. Only ops are run like this: a call of a model would take many seconds."""
    passes: Callable[[Any], Any] | None = None
    """Transforms the lowered module before it runs."""
    simplify: bool = True
    """Whether the lowered program is simplified."""
    backend: Backend | None = None
    """The backend that runs the lowered program instead of PyTorch; without gradients."""

    def lowered(self, module: nn.Module, args: tuple[Any, ...], mode: str) -> Lowering | None:
        """The lowering for a mode, if there is one. Raises what `lower` raises."""
        return self.lowering_of(module, args, mode) if self.target is not None else None

    def lowering_of(self, program: Any, args: tuple[Any, ...], mode: str) -> Lowering:
        """A program lowered like this variant; without the ops that only gradients need if it runs only forward. Raises
        what `lower` raises."""
        assert self.target is not None
        how: dict[str, Any] = dict(keep=self.keep, accuracy=self.accuracy, cost=self.cost, simplify=self.simplify)
        return lower(program, to=self.target, args=args, training=False if mode == "forward" else None, **how)

    def callable(self, module: nn.Module, lowering: Lowering | None) -> Callable[..., Any]:
        """The callable to time."""
        if self.backend is not None:
            return self.backend.load(lowering)
        program = module if lowering is None else lowering.result
        program = self.passes(program) if self.passes is not None else program
        compiled: Callable[..., Any] = torch.compile(program, dynamic=False) if self.compiled else program
        return compiled


def variants(
    targets: Sequence[Target],
    compiled: Sequence[Target] = (),
    products: Sequence[Any] = (),
    levels: Sequence[str] = (DEFAULT,),
) -> tuple[Variant, ...]:
    """The usual variants: the original, lowered to each target, and both also compiled. With `products`, ops that a
    compiler has kernels for, there is a variant that keeps them for each target without them, also compiled. Each
    lowering exists at each level of accuracy, which is in the name unless it is the default. Compiled variants are
    lowered with the costs of `decomp.backend(compiler="inductor")`."""
    eager, named = [Variant("fused")], [Variant("fused, compiled", compiled=True)]
    for level in levels:
        suffix = "" if level == DEFAULT else f", {level}"
        for target in targets:
            lacks = _lacks(target, products)
            eager.append(Variant(f"{target.name}{suffix}", target, expanded=lacks, accuracy=level))
            if lacks:
                name = f"{target.name} + products{suffix}"
                eager.append(Variant(name, target, tuple(products), accuracy=level))
        for target in compiled:
            keep = tuple(products) if _lacks(target, products) else ()
            name = f"{target.name} + products" if keep else target.name
            fused = when_fused(target)
            named.append(Variant(f"{name}{suffix}, compiled", fused, keep, compiled=True, accuracy=level))
    return (*eager, *named)


PLAIN = ", not simplified"


def with_plain(made: Sequence[Variant]) -> tuple[Variant, ...]:
    """The variants, each lowered one followed by one without simplification."""
    pairs = ((each, replace(each, name=each.name + PLAIN, simplify=False)) for each in made)
    return tuple(one for both in pairs for one in (both if both[0].target is not None else both[:1]))


def on_backend(backend: Backend, level: str = DEFAULT) -> Variant:
    """The variant that is lowered to the target of a backend, and run by it."""
    suffix = "" if level == DEFAULT else f", {level}"
    return Variant(f"on {backend.name}{suffix}", backend.target, accuracy=level, backend=backend)


def _lacks(target: Target, ops: Sequence[Any]) -> bool:
    return bool(ops) and not any(op in target for op in ops)


def task(program: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], mode: str) -> Callable[[], Any]:
    """A call of `program` in a mode: it returns the outputs, or the gradients of parameters and float inputs."""
    if mode == "forward":
        return lambda: _without_gradients(program, args)
    wanted = [p for p in module.parameters() if p.requires_grad]
    inputs = pytree.tree_map_only(torch.Tensor, _leaf, args)
    wanted += [t for t in pytree.tensors_in(inputs) if t.requires_grad]
    cotangents: list[torch.Tensor] = []

    def run() -> Any:
        outputs = [t for t in pytree.tensors_in(program(*inputs)) if t.requires_grad]
        if not cotangents:
            cotangents.extend(torch.ones_like(t) for t in outputs)
        return torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True)

    return run


def _without_gradients(program: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    with torch.no_grad():
        return program(*args)


def _leaf(t: torch.Tensor) -> torch.Tensor:
    return t.detach().clone().requires_grad_(t.is_floating_point())


def exact_outputs(module: nn.Module, args: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """The results of the workload in float64 on the CPU; None if it does not run in float64."""
    with contextlib.suppress(RuntimeError, TypeError, ValueError, NotImplementedError), torch.no_grad():
        wide = copy.deepcopy(module).cpu().double()
        return tensors(wide(*pytree.tree_map_only(torch.Tensor, _widened, args)))
    return None


def _widened(t: torch.Tensor) -> torch.Tensor:
    return t.cpu().double() if t.is_floating_point() else t.cpu()


def tensors(result: Any) -> list[torch.Tensor]:
    """The float tensors of a result."""
    leaves = pytree.tree_leaves(result)
    return [t.detach() for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]
