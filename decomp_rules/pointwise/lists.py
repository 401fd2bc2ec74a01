"""Ops on lists of tensors, `_foreach_add` and its like: the op of one tensor on the i-th elements of all lists, as
PyTorch's own kernels define them (the slow ones of `ForeachOpsKernels.cpp`). A tensor or number beside the lists is an
operand of every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, constant, is_scalar, promoted, wide

RULES = Rules(level="exact")

Function = Callable[..., Tensor]

ALIKE = (
    "abs acos add asin atan ceil clamp_max clamp_min clone copy cos cosh div erf erfc exp expm1 floor frac lerp lgamma"
    " log log10 log1p log2 max mm mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc zero"
).split()
"""Ops of one tensor, each with one of lists that has the same arguments."""


def _maximum(x: Tensor, other: Any) -> Tensor:
    return torch.maximum(x, constant(x, other, promoted(x, other)) if is_scalar(other) else other)


def _minimum(x: Tensor, other: Any) -> Tensor:
    return torch.minimum(x, constant(x, other, promoted(x, other)) if is_scalar(other) else other)


def _norm(x: Tensor, ord: Any = 2, dtype: torch.dtype | None = None) -> Tensor:
    return aten.linalg_vector_norm(x, ord, dtype=dtype)


def _powsum(x: Tensor, ord: Any = 2, dtype: torch.dtype | None = None) -> Tensor:
    magnitude = torch.abs(cast(x, dtype or x.dtype))
    return cast(torch.sum(torch.pow(wide(magnitude), ord)), magnitude.dtype)


OTHERS: Mapping[str, Function] = {
    "maximum": _maximum,
    "minimum": _minimum,
    "norm": _norm,
    "powsum": _powsum,
}
"""Functions of one tensor for the ops on lists that have other arguments than the op of one tensor."""


def _on_each(function: Function) -> Callable[..., tuple[Tensor, ...]]:
    """The rule that calls `function` on the elements of lists."""

    def on_each(*args: Any, **options: Any) -> tuple[Tensor, ...]:
        """The op of one tensor on the i-th elements of all lists."""
        length = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
        operands = [arg if isinstance(arg, (list, tuple)) else [arg] * length for arg in args]
        return tuple(function(*each, **options) for each in zip(*operands))

    return on_each


def _with_factors(function: Function) -> Callable[..., Any]:
    """The rule that calls `function`, which scales a product, on the elements of lists."""

    def on_each(x: Any, tensor1: Any, tensor2: Any, value: Any = 1, scalars: Any = None) -> Any:
        """The op of one tensor on the i-th elements of all lists."""
        factors = [value] * len(x) if scalars is None else scalars
        if not isinstance(factors, (list, tuple)):
            return decline("PyTorch reads the numbers from the tensor of factors")
        return tuple(function(*each, value=factor) for *each, factor in zip(x, tensor1, tensor2, factors))

    return on_each


for _name, _function in {**{name: getattr(aten, name) for name in ALIKE}, **OTHERS}.items():
    RULES.register(getattr(aten, f"_foreach_{_name}"), name=f"each_{_name}")(_on_each(_function))
for _op, _function in ((aten._foreach_addcmul, torch.addcmul), (aten._foreach_addcdiv, torch.addcdiv)):
    RULES.register(_op, name=f"each_{_function.__name__}")(_with_factors(_function))
