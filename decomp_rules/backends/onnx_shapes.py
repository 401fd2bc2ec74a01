"""Emits the ops of the ONNX target that move elements, create tensors or control flow: one operator each, plus casts,
constants, and the few others stated in a function's docstring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
import sys
from typing import Any

import torch
from torch import fx

from decomp.ops import aten
from decomp_rules.backends.onnx_graph import (
    DTYPES,
    Size,
    Table,
    Value,
    cast,
    compute,
    constant,
    entering,
    graph,
    kernel_dtype,
    moved,
    node,
    result,
    rounded,
    several,
    tensor_proto,
)
from decomp_rules.support.sizes import surely_at_least

OPS: Table = {}
emits = entering(OPS)
FILLED = 1 << 15
"""Bytes up to which a tensor of one number is a constant, and no operator."""

# Shapes.


@emits("cat")
def cat(tensors: Sequence[Value], dim: int = 0) -> Value:
    """Empty vectors, which PyTorch passes over, are left out."""
    rank = max(each.rank for each in tensors)
    taken = [each for each in tensors if each.rank == rank]
    return compute("Concat", *taken, at=result().dtype, axis=dim)


@emits("expand")
def expand(self: Value, size: Any) -> Value:
    """Dimensions that stay as they are have the size 1 in Expand."""
    old, new = self.meta.shape, result().shape
    kept = [i >= len(new) - len(old) and _same(old[i - len(new)], new[i]) for i in range(len(new))]
    return moved("Expand", self, [1 if stays else each for each, stays in zip(size, kept)])


@emits("reshape", "view.default")
def reshape(self: Value, size: Any) -> Value:
    """A dimension of unknown size that stays where it is is 0 in Reshape, and the only other one -1: no sizes are
    computed then."""
    known = _constant_sizes(self.meta.shape, result().shape)
    if known is not None:
        return moved("Reshape", self, known, allowzero=int(0 in result().shape))
    inferred = any(type(each) is int and each == -1 for each in size)
    return moved("Reshape", self, list(size), allowzero=int(not inferred))


def _constant_sizes(old: Sequence[Any], new: Sequence[Any]) -> list[int] | None:
    """Sizes for Reshape that are numbers, if there are."""
    if all(type(each) is int for each in new):
        return list(new)
    if not all(surely_at_least(each, 1) for each in new):
        return None  # a size that may be 0 does not say what -1 is
    found = [
        each if type(each) is int else 0 if i < len(old) and _same(old[i], each) else -1 for i, each in enumerate(new)
    ]
    return found if found.count(-1) <= 1 else None


def _same(one: Any, other: Any) -> bool:
    return str(one) == str(other)


@emits("constant_pad_nd")
def constant_pad(self: Value, pad: Any, value: Any = 0) -> Value:
    wide = kernel_dtype("Pad", self.dtype)
    return moved("Pad", self, _pads(pad, self.rank), cast(rounded(value, self.dtype), wide))


@emits("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(self: Value, padding: Any) -> Value:
    return moved("Pad", self, _pads(padding, self.rank), mode="reflect")


@emits("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(self: Value, padding: Any) -> Value:
    return moved("Pad", self, _pads(padding, self.rank), mode="edge")


def _pads(pad: Sequence[Any], rank: int) -> list[Any]:
    """Convert pairs, last dimension first, to all amounts before the dimensions, then all amounts after."""
    none = [0] * (rank - len(pad) // 2)
    return [*none, *reversed(pad[0::2]), *none, *reversed(pad[1::2])]


@emits("slice.Tensor")
def slice_(self: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    stop = sys.maxsize if end is None else end
    return moved("Slice", self, [0 if start is None else start], [stop], [dim], [step])


@emits("split_with_sizes")
def split(self: Value, split_sizes: Any, dim: int = 0) -> Sequence[Value]:
    wide = kernel_dtype("Split", self.dtype)
    parts = node("Split", cast(self, wide), list(split_sizes), dtype=wide, outputs=len(split_sizes), axis=dim)
    return parts if isinstance(parts, tuple) else (parts,)


@emits("squeeze")
def squeeze(self: Value, dim: Any = None) -> Value:
    """Dimensions of another size than 1 stay."""
    dims = range(self.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = [each for each in dims if self.rank and type(self.meta.shape[each]) is int and self.meta.shape[each] == 1]
    return moved("Squeeze", self, axes) if axes else self


@emits("unsqueeze")
def unsqueeze(self: Value, dim: int) -> Value:
    return moved("Unsqueeze", self, [dim])


@emits("repeat")
def repeat(self: Value, repeats: Any) -> Value:
    """Unsqueeze before Tile, if it adds dimensions."""
    added = list(range(len(repeats) - self.rank))
    return moved("Tile", moved("Unsqueeze", self, added) if added else self, list(repeats))


@emits("permute")
def permute(self: Value, dims: Any) -> Value:
    return moved("Transpose", self, perm=[each % self.rank for each in dims]) if self.rank else self


@emits("tril")
def tril(self: Value, diagonal: int = 0) -> Value:
    return moved("Trilu", self, constant(torch.tensor(diagonal)), upper=0)


@emits("triu")
def triu(self: Value, diagonal: int = 0) -> Value:
    return moved("Trilu", self, constant(torch.tensor(diagonal)), upper=1)


# Indices.


@emits("select.int")
def select(self: Value, dim: int, index: Any) -> Value:
    return moved("Gather", self, cast(index, torch.int64), axis=dim)


@emits("index_select")
def index_select(self: Value, dim: int, index: Value) -> Value:
    return moved("Gather", self, index, axis=dim)


@emits("embedding")
def embedding(weight: Value, indices: Value, **only_of_gradients: Any) -> Value:
    return moved("Gather", weight, indices, axis=0)


@emits("gather")
def gather(self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """Of single numbers as vectors."""
    if self.rank and index.rank:
        return moved("GatherElements", self, index, axis=dim)
    found = moved("GatherElements", moved("Reshape", self, [-1]), moved("Reshape", index, [-1]), axis=0)
    return found if index.rank else moved("Squeeze", found, [0])


@emits("index")
def index(self: Value, indices: Sequence[Value | None]) -> Value:
    """Gather. By a mask, Compress, after Reshape if the mask has not one dimension."""
    ((axis, places),) = [(axis, each) for axis, each in enumerate(indices) if each is not None]
    if places.dtype != torch.bool:
        return moved("Gather", self, places, axis=axis)
    if places.rank == 1:
        return moved("Compress", self, places, axis=axis)
    sizes = self.shape
    masked = math.prod(sizes[axis : axis + places.rank])
    rows = moved("Reshape", self, [*sizes[:axis], masked, *sizes[axis + places.rank :]], allowzero=1)
    return moved("Compress", rows, moved("Reshape", places, [-1]), axis=axis)


@emits("index_put")
def index_put(self: Value, indices: Sequence[Value], values: Value, accumulate: bool = False) -> Value:
    """Unsqueeze, which makes each index a vector, before ScatterND, and Expand of values that are fewer."""
    (places,) = indices
    target = torch.Size([*places.meta.shape, *self.meta.shape[1:]])
    if values.meta.shape != target:
        values = moved("Expand", values, [*places.shape, *self.shape[1:]])
    vectors = node("Unsqueeze", cast(places, torch.int64), [-1], dtype=torch.int64)
    wide, how = kernel_dtype("ScatterND", self.dtype), "add" if accumulate else "none"
    found = node("ScatterND", cast(self, wide), vectors, cast(values, wide), dtype=wide, reduction=how)
    return cast(found, self.dtype)


@emits("scatter.src")
def scatter(self: Value, dim: int, index: Value, src: Value) -> Value:
    return _scattered(self, dim, index, src, "none")


@emits("scatter_reduce.two")
def scatter_reduce(self: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool = True) -> Value:
    return _scattered(self, dim, index, src, {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}[reduce])


@emits("scatter_add")
def scatter_add(self: Value, dim: int, index: Value, src: Value) -> Value:
    return _scattered(self, dim, index, src, "add")


def _scattered(self: Value, dim: int, index: Value, src: Value, reduction: str) -> Value:
    """ScatterElements, which wants no more elements than indices: of more, a Slice. Of single numbers as vectors."""
    if not (self.rank and index.rank and src.rank):
        lines = [moved("Reshape", each, [-1]) for each in (self, index, src)]
        found = _scatter_elements(lines[0], 0, *lines[1:], reduction)
        return found if self.rank else moved("Squeeze", found, [0])
    if src.meta.shape != index.meta.shape:
        src = moved("Slice", src, [0] * src.rank, list(index.shape), list(range(src.rank)))
    return _scatter_elements(self, dim, index, src, reduction)


def _scatter_elements(self: Value, dim: int, index: Value, src: Value, reduction: str) -> Value:
    wide = kernel_dtype("ScatterElements", self.dtype)
    found = node("ScatterElements", cast(self, wide), index, cast(src, wide), dtype=wide, axis=dim, reduction=reduction)
    return cast(found, self.dtype)


@emits("nonzero")
def nonzero(self: Value) -> Value:
    """Transpose after NonZero, which has a row a dimension."""
    known = kernel_dtype("NonZero", self.dtype)
    places = node(
        "NonZero", cast(self, torch.bool if known == self.dtype == torch.float64 else known), dtype=torch.int64
    )
    return moved("Transpose", places, perm=[1, 0])


@emits("topk")
def topk(self: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Sequence[Value]:
    wide = kernel_dtype("TopK", self.dtype)
    values, places = node(
        "TopK", cast(self, wide), [k], dtype=wide, outputs=2, axis=dim, largest=int(largest), sorted=int(sorted)
    )
    places.dtype = torch.int64
    return cast(values, self.dtype), places


# New tensors.


@emits("full.default")
def full(size: Any, fill_value: Any, dtype: Any = None) -> Value:
    """A size that is known when the model runs is spread by Expand."""
    at = result().dtype
    if isinstance(fill_value, Size):
        return moved("Expand", cast(fill_value, at), list(size))
    return _constant_of_shape(size, torch.tensor([fill_value], dtype=at))


def _constant_of_shape(size: Any, value: torch.Tensor) -> Value:
    """A constant, if the size is known and not large."""
    if all(type(each) is int for each in size) and math.prod(size) * value.itemsize <= FILLED:
        return constant(value[0].expand(size))
    found: Value = node("ConstantOfShape", list(size), dtype=value.dtype, value=tensor_proto(value, ""))
    return found


@emits("arange.default")
def arange(end: Any, dtype: Any = None) -> Value:
    return arange_from(0, end)


@emits("arange.start", "arange.start_step")
def arange_from(start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Value:
    """Neg of the Range of opposite numbers, where a bound may be negative: onnxruntime 1.32 makes a Slice of a Gather
    by a Range, where a negative bound counts from the end."""
    at = result().dtype
    if at not in (torch.int64, torch.int32) or all(map(_is_size, graph().now().args[:2])):
        return compute("Range", start, end, step, at=at)
    return node("Neg", compute("Range", -start, -end, -step, at=at), dtype=at)


def _is_size(bound: Any) -> bool:
    """Whether a bound, as the program has it, is no less than 0: a number, or the size of a tensor."""
    return bound.target is aten.sym_size.int if isinstance(bound, fx.Node) else bool(bound >= 0)


@emits("eye.default", "eye.m")
def eye(n: Any, m: Any = None, dtype: Any = None) -> Value:
    """EyeLike of a ConstantOfShape."""
    wide = kernel_dtype("EyeLike", result().dtype)
    shape = _constant_of_shape([n, n if m is None else m], torch.zeros(1, dtype=wide))
    found: Value = node("EyeLike", shape, dtype=wide)
    return found


@emits("rand.default")
def rand(size: Any, dtype: Any = None) -> Value:
    return _drawn("RandomUniform", size)


@emits("randn.default")
def randn(size: Any, dtype: Any = None) -> Value:
    return _drawn("RandomNormal", size)


def _drawn(op_type: str, size: Any) -> Value:
    """Of sizes that are known when the model runs: like a ConstantOfShape."""
    wide = kernel_dtype(op_type, result().dtype)
    how: dict[str, Any] = {"dtype_": DTYPES[wide]}
    if all(type(each) is int for each in size):
        found: Value = node(op_type, dtype=wide, shape=list(size), **how)
    else:
        found = node(f"{op_type}Like", _constant_of_shape(size, torch.zeros(1, dtype=wide)), dtype=wide, **how)
    return found


# Control flow.


@emits("cond")
def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    """If, whose branches read the values around them."""
    branches = [_branch(name, body, operands) for name, body in (("then", true_fn), ("else", false_fn))]
    (then_branch, values), (else_branch, _) = branches
    return several("If", [pred], values, then_branch=then_branch, else_branch=else_branch)


def _branch(name: str, body: Callable[..., Any], operands: Sequence[Any]) -> tuple[Any, list[Value]]:
    with graph().nested() as inner:
        values = [inner.named(cast(each, each.dtype)) for each in body(*operands)]
        return inner.proto(name, [], values), values


@emits("while_loop")
def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Sequence[Value], more: Sequence[Any] = ()
) -> Any:
    """Loop, and what tells before it whether to begin."""
    (begins,) = _as_list(cond_fn(*carried, *more))
    with graph().nested() as inner:
        counter, goes_on = inner.input("step", torch.int64, ()), inner.input("goes_on", torch.bool, ())
        values = [inner.input("carried", each.dtype, each.meta) for each in carried]
        found = [inner.named(each) for each in _as_list(body_fn(*values, *more))]
        (again,) = _as_list(cond_fn(*(_like(each, old) for each, old in zip(found, carried)), *more))
        body = inner.proto("body", [counter, goes_on, *values], [inner.named(again), *found])
    return several("Loop", [None, begins, *carried], list(carried), body=body)


@emits("scan")
def scan(combine_fn: Callable[..., Any], init: Sequence[Value], xs: Sequence[Value], more: Sequence[Any] = ()) -> Any:
    """Scan, over the first dimension of the rows."""
    with graph().nested() as inner:
        values = [inner.input("carried", each.dtype, each.meta) for each in init]
        rows = [inner.input("row", each.dtype, each.meta[0]) for each in xs]
        found = [inner.named(each) for each in _as_list(combine_fn(*values, *rows, *more))]
        body = inner.proto("body", [*values, *rows], found)
    return several("Scan", [*init, *xs], found, body=body, num_scan_inputs=len(xs))


@emits("map_impl")
def map_rows(f: Callable[..., Any], xs: Sequence[Value], more: Sequence[Any] = ()) -> Any:
    """A Scan that carries nothing."""
    return scan(f, (), xs, more)


def _like(value: Value, other: Value) -> Value:
    value.meta = other.meta
    return value


def _as_list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (list, tuple)) else [found]
