"""Samples: small whole models by name, and example calls by op. Tests, the demonstration, certificates and benchmarks
all draw on this one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
import functools
import importlib
from typing import Any

import torch
from torch.nn import functional as F

from decomp import Sample
from decomp_rules.samples import (
    derivatives,
    devices,
    edges,
    kernels,
    layers,
    lists,
    matrices,
    pointwise,
    reductions,
    shapes,
)
from decomp_rules.samples.leeways import leeway_of
from decomp_rules.samples.making import f, p
from decomp_rules.samples.models import (
    GPT as GPT,
    LSTM as LSTM,
    MODELS as MODELS,
    Block as Block,
    CausalSelfAttention as CausalSelfAttention,
    Example as Example,
    Residual as Residual,
    ResNet as ResNet,
    UNet as UNet,
    ViT as ViT,
    model as model,
)

_TABLES = (pointwise, reductions, shapes, matrices, layers, kernels, lists)
CALLS: Mapping[str, Any] = functools.reduce(lambda all_, table: {**all_, **table.CALLS}, _TABLES, {})
"""Calls of ops whose arguments cannot be guessed from a schema, by name: functions that make them."""

FUNCTIONS: Mapping[str, Callable[[], tuple[Sample, ...]]] = {
    "operator.getitem": kernels.items,
    "torch.nn.functional.softsign": lambda: (
        Sample(F.softsign, (f(4, 4),), elementwise=True, leeway=leeway_of("div", (), {})),
    ),
    "torch.nn.functional.tanhshrink": lambda: (Sample(F.tanhshrink, (f(4, 4),), elementwise=True),),
    "torch.nn.functional.normalize": lambda: (Sample(F.normalize, (f(3, 8),)), Sample(F.normalize, (f(3, 8), 1.0, 0))),
    "torch.nn.functional.interpolate": lambda: (Sample(F.interpolate, (f(2, 3, 5, 4), [7, 9])),),
    "torch.nn.functional.grid_sample": lambda: (Sample(F.grid_sample, (f(2, 3, 5, 6), f(2, 3, 4, 2).tanh())),),
    "torch.nn.functional.gaussian_nll_loss": lambda: (Sample(F.gaussian_nll_loss, (f(5, 4), f(5, 4), p(5, 4))),),
    **kernels.QUANTISED,
    "transformers.grouped_mm_fallback": lambda: _of_transformers("grouped_mm_fallback"),
    "transformers.grouped_mm_fallback_backward": lambda: _of_transformers("grouped_mm_fallback_backward", f(8, 5)),
}
"""Sample calls of functions and ops that are not in ATen."""


def _of_transformers(name: str, *gradient: torch.Tensor) -> tuple[Sample, ...]:
    """A call of an op on groups of rows that transformers registers; none where that is not installed."""
    try:
        importlib.import_module("transformers.integrations.moe")
    except ImportError:
        return ()
    op = getattr(torch.ops.transformers, name)
    return (Sample(op.default, (f(8, 6), f(3, 6, 5), torch.tensor([2, 2, 7]), *gradient)),)


def calls_of(op: Any) -> tuple[Sample, ...]:
    """Sample calls of an op: those of `CALLS`; else, for a pointwise op, one guessed from the schema an overload."""
    text = op._qualified_op_name.replace("::", ".") if isinstance(op, torch._ops.OpOverloadPacket) else op
    if text in FUNCTIONS or not isinstance(op, torch._ops.OpOverloadPacket):
        return _seeded(FUNCTIONS[text]) if text in FUNCTIONS else ()
    namespace, _, name = op._qualified_op_name.partition("::")
    given = CALLS.get(name) if namespace in ("aten", "torch_nn") else None
    exact = "shape" if name in shapes.SHAPE else "own" if name in pointwise.OWN | kernels.OWN else "float64"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if given is not None:
            return tuple(_of(op, name, args, exact) for args in given())
        if namespace == "aten" and name in devices.CALLS:
            return devices.calls_of(op, name)
        # Only pointwise ones: to others, square matrices may be so wrong that a kernel crashes.
        overloads = [getattr(op, each) for each in op.overloads() if "out" not in each]
        guesses = [_guessed(each) for each in overloads if torch.Tag.pointwise in each.tags]
        found = (guess for guess in guesses if guess is not None and guess.tensors and _runs(guess))
        return tuple(
            replace(
                guess,
                domain=kernels.domain_of(guess.overload),
                leeway=leeway_of(name, guess.args, guess.kwargs),
                differentiable=derivatives.DIFFERENTIABLE.get(name),
            )
            for guess in found
        )


def names() -> tuple[str, ...]:
    """The ops whose calls are written in the tables, as far as the installed PyTorch has them."""
    aten = [f"aten.{name}" for name in (*CALLS, *devices.CALLS) if hasattr(torch.ops.aten, name)]
    return tuple(dict.fromkeys((*aten, *FUNCTIONS)))


def edges_of(op: Any) -> tuple[Sample, ...]:
    """Calls of an op at the edges of what it defines, if there are any; those of `calls_of` are not among them."""
    name = op._qualified_op_name if isinstance(op, torch._ops.OpOverloadPacket) else ""
    make = edges.EDGES.get(name.removeprefix("aten::")) if name.startswith("aten::") else None
    return _seeded(lambda: tuple(_of(op, op.__name__, args, "float64") for args in make())) if make is not None else ()


def _seeded(make: Callable[[], tuple[Sample, ...]]) -> tuple[Sample, ...]:
    """The same tensors each time, and the random state of the caller left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def _of(op: torch._ops.OpOverloadPacket, name: str, args: tuple[Any, ...], exact: str) -> Sample:
    """A call as the tables write it: positional arguments, and a dict of the others at the end."""
    kwargs = args[-1] if args and isinstance(args[-1], dict) else {}
    args = args[:-1] if kwargs else args
    # The reduction of a loss is a whole number, and 0 is none.
    unreduced = name in pointwise.LOSSES and any(type(arg) is int and arg == 0 for arg in args)
    elementwise = unreduced or name in pointwise.UNTAGGED
    found = Sample.of(
        op,
        args,
        kwargs,
        exact=exact,
        elementwise=elementwise,
        leeway=leeway_of(name, args, kwargs),
        documented=kernels.DOCUMENTED.get(name),
        differentiable=derivatives.DIFFERENTIABLE.get(name),
        parameters=layers.PARAMETERS.get(name) or kernels.PARAMETERS.get(name, ()),
        fixed=kernels.FIXED.get(name, ()),
        saved=kernels.SAVED.get(name),
    )
    return replace(found, domain=kernels.domain_of(found.overload))


_FILLED: Mapping[str, Callable[[], Any]] = {
    "Tensor": lambda: torch.randn(4, 4),
    "List[Tensor]": lambda: [torch.randn(4, 4), torch.randn(4, 4)],
    "number": lambda: 2,
    "int": lambda: 1,
    "List[int]": lambda: [1],
    "float": lambda: 0.5,
    "bool": lambda: False,
}
"""Values for required arguments, by type."""


def _guessed(overload: torch._ops.OpOverload) -> Sample | None:
    """A call whose required arguments are filled by type: square matrices, small numbers."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in overload._schema.arguments:
        if argument.has_default_value() or str(argument.type).startswith("Optional"):
            if not argument.has_default_value() and not argument.kwarg_only:
                args.append(None)
            continue
        fill = _FILLED.get(str(argument.type))
        if fill is None or (argument.alias_info is not None and argument.alias_info.is_write):
            return None
        if argument.kwarg_only:
            kwargs[argument.name] = fill()
        else:
            args.append(fill())
    return Sample(overload, tuple(args), kwargs)


def _runs(sample: Sample) -> bool:
    try:
        sample.run()
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return False
    return True
