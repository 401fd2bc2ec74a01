"""Equality of values: in structure; in shape, dtype and device; and bitwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from decomp.ir.arguments import equal, substituted
from decomp.ir.call import metadata
from decomp.ir.dtypes import BYTE_FLOATS
from decomp.metadata.nonfinite_constants import same_constant
from decomp.metadata.strides import same_strides
from decomp.metadata.symbolic_sizes import same_shape, same_size


def same_structure(before: Any, after: Any, values: Mapping[fx.Node, Any] | None) -> bool:
    """Whether `after` is `before`, container by container, with each node replaced by its value in `values`; without
    `values`, by any node."""
    if isinstance(before, fx.Node):
        return isinstance(after, fx.Node) if values is None else equal(values.get(before), after, _is_same_value)
    if isinstance(before, (tuple, list)):
        alike = isinstance(after, tuple if isinstance(before, tuple) else list) and len(before) == len(after)
        return alike and all(same_structure(b, a, values) for b, a in zip(before, after))
    if isinstance(before, dict):
        # In this order: a pytree has the leaves of a dict in the order of its keys.
        alike = isinstance(after, dict) and list(before) == list(after)
        return alike and all(same_structure(before[key], after[key], values) for key in before)
    return same_constant(after, before)


def _is_same_value(expected: Any, found: Any) -> bool:
    """Whether a value is the expected one. Several results may be a tuple or a list: the op decides, not the
    program."""
    return expected is found if isinstance(expected, fx.Node) else same_constant(found, expected)


def shown(value: Any, values: Mapping[fx.Node, Any] | None = None) -> str:
    """A nested value as short text, with each node replaced by its value."""
    text = str(fx.node.map_arg(value, lambda node: values.get(node, node)) if values else value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def metadata_of(value: Any) -> Any:
    """The metadata of a node, of each of several, or the constant itself."""
    return substituted(value, metadata)


def same_metadata(expected: Any, found: Any) -> bool:
    """Whether two values have the same shape, dtype and device, or are sizes that are surely equal. Of several results,
    those that are None are not computed."""
    return equal(expected, found, lambda one, other: one is None and one is not expected or _alike(one, other))


def _alike(expected: Any, found: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        if not isinstance(found, torch.Tensor) or expected.dtype is not found.dtype:
            return False
        return expected.device == found.device and same_shape(expected.shape, found.shape)
    if isinstance(expected, (int, torch.SymInt)) and isinstance(found, (int, torch.SymInt)):
        return same_size(expected, found)
    return not isinstance(found, torch.Tensor)


def described(value: Any) -> str:
    """Metadata in short notation: `float32[2, s0] on cpu`."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}] on {value.device}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(described, value))})"
    return "no metadata" if value is None else str(value)


def same_bits(one: Any, other: Any) -> bool:
    """Whether two values are bitwise the same, including strides if there is more than one element; NaN equals NaN.
    Strides of dimensions of size one, which a view may choose, are not compared."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and repr(one) == repr(other)
    return same_elements(one, other) and same_strides(one, other)


def same_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape, and bitwise the same elements; NaN equals NaN."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.is_complex():
        # Complex numbers have no `signbit`.
        return same_elements(*(torch.view_as_real(t.resolve_conj()) for t in (one, other)))
    if not one.is_floating_point():
        return bool(torch.equal(one, other))
    if one.dtype in BYTE_FLOATS:  # for which there is no `signbit`
        alike = one.view(torch.uint8) == other.view(torch.uint8)
        return bool((alike | (one.isnan() & other.isnan())).all())
    # `torch.equal` says that 0.0 equals −0.0, and that NaN differs from NaN.
    alike = (one == other) & (torch.signbit(one) == torch.signbit(other))
    return bool((alike | (one.isnan() & other.isnan())).all())
