"""Operands of several dtypes in TVM's importer (0.27): it makes numbers of the dtype of the tensor beside them, so that
integers times 2.5 are integers times 2 without a word, and refuses tensors of two dtypes in `where`, `cat` and integer
quotients. Here they are first cast to the dtype that PyTorch computes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
from typing import Any

import torch
from torch import fx

_COMPARISONS = tuple(f"{name}.{kind}" for name in ("eq", "ne", "ge", "gt", "le", "lt") for kind in ("Scalar", "Tensor"))
_BITS = tuple(f"bitwise_{name}.{kind}" for name in ("and", "or", "xor") for kind in ("Scalar", "Tensor"))
_OTHERS = (
    *("add.Tensor", "sub.Tensor", "rsub.Tensor", "rsub.Scalar", "mul.Tensor", "div.Tensor", "floor_divide.default"),
    *("fmod.Scalar", "fmod.Tensor", "remainder.Scalar", "remainder.Tensor"),
    *("pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "atan2.default", "logaddexp.default"),
    *("max.other", "min.other", "maximum.default", "minimum.default"),
    *("clamp.default", "clamp_max.default", "clamp_min.default"),
    *("cat.default", "stack.default", "prod.default", "reciprocal.default"),
)


def dtype_of(node: fx.Node) -> str:
    """The name of the dtype of a node's tensor, which is TVM's, too."""
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _in_one_dtype(name: str, node: fx.Node, importer: Any) -> Any:
    """What the importer makes of a call of the overload `name`, with its operands in the dtype that it is computed
    in."""
    dtype = _compared_in(node) if name in _COMPARISONS else node.meta["val"].dtype
    before = {each: importer.env[each] for each in node.all_input_nodes}
    importer.env |= {each: _in_dtype(importer, each, dtype) for each in before}
    try:
        return _own_translations(importer)[name](node)
    finally:
        importer.env |= before


def _own_translations(importer: Any) -> Mapping[str, Callable[[fx.Node], Any]]:
    """Those that the importer has without a `custom_convert_map`, which replaced some, made once."""
    known = importer.convert_map
    if _OWN not in known:
        known[_OWN] = importer.create_convert_map()
    found: Mapping[str, Callable[[fx.Node], Any]] = known[_OWN]
    return found


_OWN = "decomp: the translations of the importer itself"


def _in_dtype(importer: Any, operand: fx.Node, dtype: torch.dtype) -> Any:
    """The value of an operand, cast if it is a tensor of another dtype; sizes are numbers."""
    from tvm import relax

    value, known = importer.env[operand], operand.meta.get("val")
    if not isinstance(known, torch.Tensor) or known.dtype == dtype:
        return value
    return importer.block_builder.emit(relax.op.astype(value, str(dtype).removeprefix("torch.")))


def _compared_in(node: fx.Node) -> torch.dtype:
    first, second = (each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args[:2])
    return torch.result_type(first, second)


def _rounded_quotient(node: fx.Node, importer: Any) -> Any:
    """A quotient that is rounded: the importer makes int32 of a number, whatever it divides."""
    from tvm import relax

    if node.kwargs.get("rounding_mode") == "floor":
        return _in_one_dtype("floor_divide.default", node, importer)
    found = _in_one_dtype("div.Tensor", node, importer)
    is_cut = node.kwargs.get("rounding_mode") == "trunc" and node.meta["val"].dtype.is_floating_point
    return importer.block_builder.emit(relax.op.trunc(found)) if is_cut else found


def _where(node: fx.Node, importer: Any) -> Any:
    from tvm import relax

    condition, *values = node.args
    chosen = (_in_dtype(importer, each, node.meta["val"].dtype) for each in values)
    return importer.block_builder.emit(relax.op.where(importer.env[condition], *chosen))


TRANSLATIONS: Mapping[str, Callable[[fx.Node, Any], Any]] = {
    **{name: functools.partial(_in_one_dtype, name) for name in (*_COMPARISONS, *_BITS, *_OTHERS)},
    "div.Tensor_mode": _rounded_quotient,
    "where.self": _where,
}
"""By overload, for the `custom_convert_map` of the importer."""
