"""Operands of several dtypes, and of 16 bits, in TVM's importer (0.27). It makes numbers of the dtype of the tensor
beside them: integers times 2.5 are integers times 2 without a word. It refuses tensors of two dtypes in `where`,
`cat` and integer quotients. Products and convolutions of 16 bits are float32, and some functions are not compiled in 16
bits. Here operands are first cast to the dtype that PyTorch computes in, and results of 16 bits are rounded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
from typing import Any

import torch
from torch import fx

from decomp_rules.support.operands import HALVES

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
_TESTS = ("isfinite.default", "isinf.default", "isnan.default")
_WIDE = (
    *("addmm.default", "baddbmm.default", "bmm.default", "matmul.default", "mm.default"),
    *("convolution.default", "conv1d.default", "conv2d.default", "conv3d.default"),
    *("conv_transpose1d.default", "conv_transpose2d.input", "linalg_vector_norm.default"),
    *(f"{name}.default" for name in ("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "sinh")),
    *("fmod.Scalar", "fmod.Tensor", "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", *_TESTS),
)
"""What is computed in float32 where operands have 16 bits."""


def dtype_of(node: fx.Node) -> str:
    """The name of the dtype of a node's tensor, which is TVM's, too."""
    return _name_of(node.meta["val"].dtype)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _in_one_dtype(name: str, node: fx.Node, importer: Any) -> Any:
    """What the importer makes of a call of the overload `name`, with its operands in the dtype that it is computed
    in."""
    dtype = _computed_in(name, node)
    is_wide = name in _WIDE and dtype in HALVES
    before = {each: importer.env[each] for each in node.all_input_nodes}
    importer.env |= {each: _in_dtype(importer, each, torch.float32 if is_wide else dtype) for each in before}
    try:
        found = _own_translations(importer)[name](node)
    finally:
        importer.env |= before
    return _cast(importer, found, dtype) if is_wide and name not in _TESTS else found


def _own_translations(importer: Any) -> Mapping[str, Callable[[fx.Node], Any]]:
    """Those that the importer has without a `custom_convert_map`, which replaced some, made once."""
    known = importer.convert_map
    if _OWN not in known:
        known[_OWN] = importer.create_convert_map()
    found: Mapping[str, Callable[[fx.Node], Any]] = known[_OWN]
    return found


_OWN = "decomp: the translations of the importer itself"


def _in_dtype(importer: Any, operand: fx.Node, dtype: torch.dtype) -> Any:
    """The value of an operand, cast if it is a tensor of another dtype; of an open size a tensor without dimensions."""
    value, known = importer.env[operand], operand.meta.get("val")
    if isinstance(known, torch.SymInt):
        return _cast(importer, _size_as_tensor(importer, value), dtype)
    if not isinstance(known, torch.Tensor) or known.dtype == dtype:
        return value
    return _cast(importer, value, dtype)


def _cast(importer: Any, value: Any, dtype: torch.dtype) -> Any:
    from tvm import relax

    return importer.block_builder.emit(relax.op.astype(value, _name_of(dtype)))


def _size_as_tensor(importer: Any, size: Any) -> Any:
    """int64, (): Relax has no arithmetic of a tensor and a size."""
    from tvm import relax

    sizes = importer.block_builder.emit(relax.op.shape_to_tensor(relax.ShapeExpr([size])))
    return importer.block_builder.emit(relax.op.reshape(sizes, ()))


def _computed_in(name: str, node: fx.Node) -> torch.dtype:
    """The dtype of the results, but for calls whose results are bools."""
    given = [each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args[:2]]
    if name in _COMPARISONS:
        return torch.result_type(*given)
    found: torch.dtype = (given[0] if name in _TESTS else node.meta["val"]).dtype
    return found


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
    **{name: functools.partial(_in_one_dtype, name) for name in (*_COMPARISONS, *_BITS, *_OTHERS, *_WIDE)},
    "div.Tensor_mode": _rounded_quotient,
    "where.self": _where,
}
"""By overload, for the `custom_convert_map` of the importer."""
