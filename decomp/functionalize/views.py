"""Views in both directions: `replay` takes a view again from a new base; `write_into_base` scatters a new value of a
view into its base."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import operator
from typing import Any

import torch
from torch import fx

from decomp.functionalize.overlap import StridedRegion, is_within, overlaps_itself
from decomp.graphs.graph_builder import Emitter
from decomp.ir.aliases import refusal, spelling_of
from decomp.ir.call import call_if_bound, metadata
from decomp.ir.op_facts import VIEW_KINDS, ViewKind
from decomp.metadata.strides import dense_order, inverse, same_strides
from decomp.metadata.symbolic_sizes import expression, same_shape
from decomp.ops import aten

REPEATING = {op for op, kind in VIEW_KINDS.items() if kind in (ViewKind.EXPANDED, ViewKind.STRIDED)} | {"unfold"}
"""Views that may contain an element several times."""


@dataclass(eq=False)
class View:
    """A view of a base: the call that takes it, with its arguments bound by name to nodes of the functional graph."""

    source: fx.Node
    """The source node that takes the view."""
    op: str
    arguments: dict[str, Any]
    base: fx.Node
    """The base, in the functional graph."""
    value: fx.Node
    """The call, in the functional graph."""
    certain: bool = True
    """Whether it surely shares memory with its base; `reshape` without metadata, for instance, may copy."""
    may_be_base: bool = False
    """Whether it may be identical to its base, as whenever it is not certain to be a view."""
    layouts: tuple[Any, Any] = (None, None)
    """For `as_strided`: the metadata of its operand and of its base in the source program."""

    def __post_init__(self) -> None:
        self.may_be_base |= not self.certain

    @property
    def is_detach(self) -> bool:
        """Whether the view hides its base from autograd."""
        return self.op in ("detach", "data", "detach_")

    @property
    def repeats(self) -> bool:
        """Whether it may contain elements of the base more than once, so that a write to one changes others."""
        if self.op not in REPEATING:
            return False
        found = metadata(self.value)
        return not isinstance(found, torch.Tensor) or overlaps_itself(found)


def element_view(node: fx.Node, value: fx.Node, whole: View) -> View:
    """The view that `node` takes out of `whole`, a tuple of views."""
    return View(node, whole.op, {**whole.arguments, "index_in_tuple": node.args[1]}, whole.value, value, whole.certain)


def refuse_unless_unpacked(node: fx.Node) -> None:
    """Raise `MutationError` where the views, or written tensors, that a call returns are used other than one by one."""
    if not all(user.target is operator.getitem and type(user.args[1]) is int for user in node.users):
        raise refusal(
            node,
            "it returns views of several tensors, and one of them is written",
            "take the views out of the tuple one by one, or clone() the one that is written",
        )


def listed_view(emit: Emitter, node: fx.Node, whole: fx.Node, base: fx.Node, like: fx.Node) -> View:
    """The view of `base` that `node` takes out of the results of `whole`, a call that returns views of several tensors;
    `like` is its copy, with the values at the time of the call."""
    name = spelling_of(whole).op.short
    op = {"broadcast_tensors": "expand_as", "meshgrid": ""}.get(name, "view_as")
    if not op:
        # A view in one dimension, expanded: which one depends on the position and on `indexing`.
        return View(node, name, {}, base, like, certain=False)
    unknown = not isinstance(metadata(node), torch.Tensor)
    return View(node, op, {}, base, emit.call(op, (base, like), at=node), may_be_base=unknown)


def view_of(
    node: fx.Node, value: fx.Node, base: fx.Node, value_of: Callable[[fx.Node], fx.Node], certain: bool
) -> View:
    """The view that the source node `node` takes; `value` is its copy in the functional graph."""
    if node.target is operator.getitem or node.target == "__getitem__":
        index = fx.node.map_arg(node.args[1], value_of)
        return View(node, "getitem", {"index": index}, base, value, certain)
    if node.target is getattr:
        return View(node, str(node.args[1]), {}, base, value, certain)
    if node.op == "call_module":
        return View(node, "call_module", {}, base, value, certain)
    call = call_if_bound(node)
    if call is None:
        raise refusal(
            node,
            "its arguments match no overload of its op, so the view that it takes is unknown",
            "call the op as documented",
        )
    arguments = fx.node.map_arg(call.arguments, value_of)
    op = "view_dtype" if call.op.short == "view" and "dtype" in call.arguments else call.op.short
    return View(node, op, dict(arguments), base, value, certain)


def replay(emit: Emitter, view: View, base: fx.Node, at: fx.Node) -> fx.Node:
    """Take the view again from a new value of its base."""
    if not view.certain:
        raise _unknown_view(view, at)
    old = view.value
    args, kwargs = fx.node.map_arg((old.args, old.kwargs), lambda n: base if n is view.base else n)
    target = old.target
    # The new base may be dense where the old one was not, or the reverse; reshape copies if it must.
    if view.op == "view" and not _viewable(emit, old.op, target, args, kwargs):
        target = aten.reshape.default if isinstance(target, torch._ops.OpOverload) else "reshape"
    if view.op == "as_strided":
        return strided(emit, view, base)
    return emit.node(old.op, target, args, kwargs, at=view.source, label=view.source.name)


def _viewable(emit: Emitter, op: str, target: Any, args: Any, kwargs: Any) -> bool:
    """Whether `Tensor.view` works with the strides of the new base, which may differ from those of the old one."""
    if emit.mode is None:
        return False
    try:
        return emit.computed(target, args, kwargs) is not None
    except (RuntimeError, ValueError):
        return False


def changes_nothing(base: fx.Node, view: fx.Node) -> bool:
    """Whether a view is known to have the same elements as its base, at the same addresses."""
    before, after = metadata(base), metadata(view)
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    places = [expression(value.storage_offset()) for value in (before, after)]
    return places[0] == places[1] and same_shape(before.shape, after.shape) and same_strides(before, after)


def strided(emit: Emitter, view: View, base: fx.Node, *, replaces: bool = False) -> fx.Node:
    """What `view`, an `as_strided`, reads from `base`, the current value of its base. `as_strided` addresses memory, so
    `base`, whose strides may be others, is first laid out as in the source program. If `replaces`, the result takes the
    place of the source node. Raises `MutationError` where it is not known which elements are read."""
    node, size, stride = view.source, view.arguments["size"], view.arguments["stride"]
    order, start = _places(view)
    if order != sorted(order):
        base = emit.call("permute", (base, order), at=node)
    found = metadata(base)
    if not found.is_contiguous() or found.storage_offset() != 0:
        base = emit.call("clone", (base,), {"memory_format": torch.contiguous_format}, at=node)
    if not replaces:
        return emit.call("as_strided", (base, size, stride, start), at=node, label=node.name)
    target = aten.as_strided.default if emit.is_aten else torch.as_strided
    return emit.like(node, "call_function", target, (base, size, stride, start), {})


def _places(view: View) -> tuple[list[int], int]:
    """The dimensions of the base of an `as_strided` from the slowest to the fastest, and where the first element that
    is read is among its elements in this order. Raises `MutationError`, also if it reads others than its operand's:
    these have no gradient in PyTorch."""
    node, (operand, base) = view.source, view.layouts
    if not isinstance(operand, torch.Tensor) or not isinstance(base, torch.Tensor):
        raise _unknown_places(node, "which operand it has is not known without metadata")
    start = view.arguments.get("storage_offset")
    start = operand.storage_offset() if start is None else start
    found = StridedRegion(view.arguments["size"], view.arguments["stride"], start - base.storage_offset())
    own = StridedRegion(operand.shape, operand.stride(), operand.storage_offset() - base.storage_offset())
    if not all(type(n) is int for size, stride, start in (found, own) for n in (*size, *stride, start, *base.shape)):
        raise _unknown_places(node, "its sizes are not numbers")
    order = dense_order(base)
    if order is None:
        raise _unknown_places(node, "its operand does not fill its memory")
    if not is_within(found, own, is_dense=dense_order(operand) is not None):
        raise _unknown_places(node, "it reaches elements that are not its operand's")
    return order, 0 if 0 in found.size else found.offset


def _unknown_places(node: fx.Node, why: str) -> Exception:
    return refusal(
        node,
        f"as_strided addresses memory that has been written, and {why}",
        "use view, select or slice instead of as_strided",
    )


def _unknown_view(view: View, at: fx.Node) -> Exception:
    if view.op == "meshgrid":
        return refusal(
            at,
            f"{view.source.name!r} is a view of one of several tensors that meshgrid returns, and one of "
            "the two is written",
            "clone() before the write",
        )
    if isinstance(metadata(view.source), torch.Tensor):  # with metadata, only results of regions are uncertain
        return refusal(
            at,
            f"{view.source.name!r} is a view that a region (no_grad, autocast) returns, and its base is written later",
            "clone() the view in the region, or take it outside",
        )
    return refusal(
        at,
        f"{view.source.name!r} may or may not share memory with its argument, and one of them is written before "
        "the other is used",
        "pass args=, so that shapes and strides are known; or clone() before the write",
    )


ViewScatter = Callable[[Emitter, View, fx.Node, fx.Node, fx.Node], fx.Node]


def write_into_base(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    """The base with the elements of the view replaced by `value`; `at` is the source node that writes. Raises
    `MutationError` for views through which this is not possible."""
    if not view.certain:
        raise _unknown_view(view, at)
    kind = VIEW_KINDS.get(view.op)
    if kind is None:
        raise refusal(
            at,
            f"it writes through {view.source.name!r}, and a write through {view.op} has no functional form",
            "write to the tensor itself, or clone() the view before writing to it",
        )
    return VIEW_SCATTER[kind](emit, view, base, value, at)


def _unchanged(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    return value


def _reshaped(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    return emit.reshape(value, base, at)


def _detached(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    return emit.call("detach", (value,), at=at)


def _expanded(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    one, two = metadata(base), metadata(value)
    # Without metadata the reshape is emitted: if sizes differ it fails at run time, as the in-place write would.
    if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor) or one.numel() == two.numel():
        return emit.reshape(value, base, at)
    raise _repeated(view, at)


def _repeated(view: View, at: fx.Node) -> Exception:
    return refusal(
        at,
        f"it writes through {view.source.name!r}, a tensor of which several elements share memory",
        f"clone() the result of {view.op} before writing to it",
    )


def _permuted(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    dims = [d % len(view.arguments["dims"]) for d in view.arguments["dims"]]
    return emit.call("permute", (value, [dims.index(i) for i in range(len(dims))]), at=at)


def _transposed(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    names = [n for n in ("dim0", "dim1", "axis0", "axis1") if n in view.arguments]
    return emit.call("transpose", (value, *(view.arguments[n] for n in names)), at=at)


def _moved(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    source, destination = (view.arguments[name] for name in ("source", "destination"))
    if not isinstance(source, (list, tuple)):
        source, destination = [source], [destination]
    return emit.call("movedim", (value, list(destination), list(source)), at=at)


def _by_same_call(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    """Views that are their own inverse: t, T, mT, conj, …"""
    old = view.value
    args, kwargs = fx.node.map_arg((old.args, old.kwargs), lambda n: value if n is view.base else n)
    return emit.node(old.op, old.target, args, kwargs, at=at, label=at.name)


def _selected(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    return emit.placed("select", base, value, view.arguments["dim"], view.arguments["index"], at=at)


def _element(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    """One of the results of split, chunk, unbind and similar ops."""
    i = view.arguments["index_in_tuple"]
    dim = {"hsplit": 1, "vsplit": 0, "dsplit": 2}.get(view.op, view.arguments.get("dim", 0))
    # It splits the columns, and what has one dimension along that one.
    if view.op == "hsplit" and isinstance(metadata(base), torch.Tensor):
        dim = min(1, metadata(base).dim() - 1)
    if view.op == "unbind":
        return emit.placed("select", base, value, dim, i, at=at)
    sizes = view.arguments.get("split_sizes")
    if isinstance(sizes, (list, tuple)):
        start, end = _total(emit, sizes[:i], at), _total(emit, sizes[: i + 1], at)
    elif isinstance(view.arguments.get("split_size"), int):
        start, end = i * view.arguments["split_size"], (i + 1) * view.arguments["split_size"]
    else:
        start, end = _bounds_of_element(view, dim, i, at)
    return emit.placed("slice", base, value, dim, start, end, 1, at=at)


def _total(emit: Emitter, sizes: Any, at: fx.Node) -> Any:
    total: Any = sum(size for size in sizes if not isinstance(size, fx.Node))
    for size in sizes:
        if isinstance(size, fx.Node):
            total = emit.node("call_function", operator.add, (total, size), {}, at=at)
    return total


def _bounds_of_element(view: View, dim: int, i: int, at: fx.Node) -> tuple[int, int]:
    parts = metadata(view.base)
    sizes: list[Any] = [part.shape[dim] for part in parts] if isinstance(parts, (list, tuple)) else [None]
    if not all(isinstance(size, int) for size in sizes):
        raise refusal(
            at,
            f"it writes to an element of {view.source.name!r}, and where that begins is not known",
            "pass args=, or use split_with_sizes or slices in the model",
        )
    return sum(sizes[:i]), sum(sizes[: i + 1])


def _sliced(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    bounds = (view.arguments[n] for n in ("dim", "start", "end", "step"))
    return emit.placed("slice", base, value, *bounds, at=at)


def _narrowed(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    dim, start, length = (view.arguments[n] for n in ("dim", "start", "length"))
    if isinstance(start, fx.Node) and isinstance(metadata(start), torch.Tensor):
        raise refusal(
            at, f"it writes through {view.source.name!r}, a narrow() whose start is a tensor", "use a number as start"
        )
    end: Any = None
    if isinstance(start, fx.Node) or isinstance(length, fx.Node):
        end = emit.node("call_function", operator.add, (start, length), {}, at=at)
    # Where a range that is counted from behind ends with the dimension, its end would be 0, the beginning; None is the
    # end.
    elif start >= 0 or start + length < 0:
        end = start + length
    return emit.placed("slice", base, value, dim, start, end, 1, at=at)


def _diagonal(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    # `torch.linalg.diagonal` is of matrices in the last two dimensions.
    default = (0, -2, -1) if view.op == "linalg_diagonal" else (0, 0, 1)
    bounds = (view.arguments.get(n, d) for n, d in zip(("offset", "dim1", "dim2"), default))
    return emit.call("diagonal_scatter", (base, value, *bounds), at=at)


def _strided(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    """By scatter at flat indices: as_strided_scatter has a wrong derivative (torch 2.13: zero for the rest)."""
    # The derivative is 1 for the elements that are overwritten, and 0 for all others; it should be the other way round.
    # (https://github.com/pytorch/pytorch/pull/87646 put zeros there in the place of uninitialized memory.)
    order, start = _places(view)
    if view.repeats:
        raise _repeated(view, at)
    found = metadata(base)
    positions = emit.call("arange", (found.numel(),), {"device": found.device}, at=at)
    bounds = (view.arguments["size"], view.arguments["stride"], start)
    positions = emit.call("as_strided", (positions, *bounds), at=at)
    laid_out = base if order == sorted(order) else emit.call("permute", (base, order), at=at)
    flat = emit.call("reshape", (laid_out, [-1]), at=at)
    positions, value = (emit.call("reshape", (tensor, [-1]), at=at) for tensor in (positions, value))
    written = emit.reshape(emit.call("scatter", (flat, 0, positions, value), at=at), laid_out, at)
    return written if laid_out is base else emit.call("permute", (written, inverse(order)), at=at)


def _dtype_viewed(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    if not isinstance(metadata(base), torch.Tensor):
        raise refusal(
            at,
            f"it writes through {view.source.name!r}, and the dtype of its base is not known",
            "pass args=, so that dtypes are known",
        )
    return emit.call("view_dtype", (value, metadata(base).dtype), at=at)


def _as_complex(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    return emit.call("view_as_complex", (value,), at=at)


def _as_real(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    return emit.call("view_as_real", (value,), at=at)


def _real_part(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    found = metadata(base)
    # `x.real` of a real tensor is that tensor.
    if isinstance(found, torch.Tensor) and not found.is_complex():
        return value
    return emit.call("complex", (value, emit.call("imag", (base,), at=at)), at=at)


def _imaginary_part(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    return emit.call("complex", (emit.call("real", (base,), at=at), value), at=at)


def _indexed(emit: Emitter, view: View, base: fx.Node, value: fx.Node, at: fx.Node) -> fx.Node:
    return put_index(emit, base, view.arguments["index"], lambda _: value, at)


def put_index(emit: Emitter, base: fx.Node, index: Any, new: Callable[[fx.Node], fx.Node], at: fx.Node) -> fx.Node:
    """`base` with the elements at a basic `index` (numbers, slices, None, Ellipsis) replaced by `new` of them."""
    steps = list(_elementary(index if isinstance(index, tuple) else (index,)))
    chain = [base]
    for name, *arguments in steps:
        chain.append(emit.call(name, (chain[-1], *arguments), at=at))
    # Take the views down to the indexed elements, then scatter on the way back up.
    value = new(chain.pop())
    for below, (name, *arguments) in zip(reversed(chain), reversed(steps)):
        if name == "unsqueeze":
            value = emit.call("squeeze", (value, *arguments), at=at)
        else:
            value = emit.placed(name, below, value, *arguments, at=at)
    return value


def _elementary(index: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """An index as a chain of select, slice and unsqueeze; dimensions after an Ellipsis count from the end."""
    left, right = split_at_ellipsis(index)
    dim = 0
    for item in left:
        yield from _step(item, dim)
        dim += isinstance(item, slice) or item is None
    dim = -1
    for item in reversed(right):
        yield from _step(item, dim)
        dim -= isinstance(item, slice) or item is None


def split_at_ellipsis(index: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The items of an index before and after its Ellipsis."""
    place = next((i for i, item in enumerate(index) if item is Ellipsis), len(index))
    return index[:place], index[place + 1 :]


def _step(item: Any, dim: int) -> Iterator[tuple[Any, ...]]:
    if item is None:
        yield "unsqueeze", dim
    elif not isinstance(item, slice):
        yield "select", dim, item
    # A full slice is left out: it would be scattered back for nothing.
    elif item != slice(None):
        yield "slice", dim, item.start, item.stop, 1 if item.step is None else item.step


VIEW_SCATTER: dict[ViewKind, ViewScatter] = {
    ViewKind.WHOLE: _unchanged,
    ViewKind.RESHAPED: _reshaped,
    ViewKind.EXPANDED: _expanded,
    ViewKind.TRANSPOSED: _transposed,
    ViewKind.MOVED: _moved,
    ViewKind.PERMUTED: _permuted,
    ViewKind.OWN_INVERSE: _by_same_call,
    ViewKind.DETACHED: _detached,
    ViewKind.DIAGONAL: _diagonal,
    ViewKind.PIECE: _element,
    ViewKind.SELECTED: _selected,
    ViewKind.SLICED: _sliced,
    ViewKind.NARROWED: _narrowed,
    ViewKind.STRIDED: _strided,
    ViewKind.BITS: _dtype_viewed,
    ViewKind.AS_REAL: _as_complex,
    ViewKind.AS_COMPLEX: _as_real,
    ViewKind.REAL_PART: _real_part,
    ViewKind.IMAGINARY_PART: _imaginary_part,
    ViewKind.INDEXED: _indexed,
}
"""How to write into the base through a view, by kind of view."""
