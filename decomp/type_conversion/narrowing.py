"""Rewrites a graph so that calls compute in narrow dtypes. Wide inputs are cast where they are first used, and wide
outputs are cast back before they are returned, so that callers see the same dtypes. Where PyTorch only takes or returns
a wide tensor (`argmax`, the index of `take`), the call gets casts before and after it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx

from decomp.ir.arguments import equal, substituted
from decomp.ir.call import call_if_bound, inherited_meta, is_host, is_projection, metadata, projected
from decomp.ir.dtypes import name_of
from decomp.ir.narrow_calls import CAST
from decomp.ir.op_facts import TAKES_INT64
from decomp.ir.schema import parameters
from decomp.metadata.symbolic_sizes import same_shape
from decomp.torch_internals.pytree import tensors_in, tree_leaves
from decomp.type_conversion.conversion import TypeConversion
from decomp.type_conversion.ranges import Dtypes, fits_dtype

_BITS = ("view", "view_copy")
SHIFT_OPS = ("bitwise_left_shift", "__lshift__")


def narrow_graph(source: fx.Graph, dtypes: Dtypes, written: Collection[fx.Node] = ()) -> Narrowing | None:
    """`source` in narrow dtypes; None if nothing in it is wide. `written`: see `TypeConversion.walk`."""
    if not any(_wide_in(node, dtypes) for node in source.nodes):
        return None
    conversion = Narrowing(source, dtypes)
    conversion.walk(written)
    return conversion


def _wide_in(node: fx.Node, dtypes: Dtypes) -> bool:
    return any(each.dtype in dtypes for each in tensors_in(metadata(node)))


class Narrowing(TypeConversion):
    """A conversion of wide tensors to narrow ones, whose images are nodes."""

    def __init__(self, source: fx.Graph, dtypes: Dtypes) -> None:
        super().__init__(source)
        self.dtypes = dtypes
        self.refused: dict[fx.Node, tuple[str, str]] = {}
        """Calls of the source that cannot be narrowed: what they take, and the dtype that cannot represent it."""

    def converts(self, node: fx.Node) -> bool:
        value = metadata(node)
        return isinstance(value, torch.Tensor) and value.dtype in self.dtypes

    def concerns(self, node: fx.Node) -> bool:
        if not node.op.startswith("call") or node.op == "call_module":
            return False
        return _wide_in(node, self.dtypes) or any(_wide_in(given, self.dtypes) for given in node.all_input_nodes)

    def reads_sizes(self, node: fx.Node) -> bool:
        return is_host(node)

    def any_form(self, value: fx.Node) -> Any:
        return self.converted.get(value) or self.rewrite.values[value]

    def make_original(self, value: fx.Node) -> fx.Node:
        return self.emit(CAST, (self.converted[value],), value, "wide", dtype=metadata(value).dtype)

    def make_image(self, value: fx.Node) -> fx.Node:
        dtype = self.dtypes[metadata(value).dtype]
        return self.emit(CAST, (self.originals[value],), value, "narrow", dtype=dtype)

    def note(self, node: fx.Node, new: Any) -> None:
        if not isinstance(new, fx.Node) or not self.converts(node):
            return
        if is_projection(node):
            new.meta = {**inherited_meta(node), "val": projected(node, metadata(new.args[0]))}
        # By what PyTorch returned: some ops give int64 whatever they are given.
        known = self.originals if metadata(new).dtype == metadata(node).dtype else self.converted
        known[node] = new

    def convert(self, node: fx.Node) -> None:
        # Bodies are narrowed as graphs of their own, with wide inputs and results.
        if isinstance(node.target, torch._ops.HigherOrderOperator) or _is_handed_on_whole(node):
            self.copy(node)
            return
        reason = why_not_narrow(node, self.dtypes)
        if reason is not None:
            self.refused[node] = reason
            self.copy(node)
            return
        if node.meta.get("unbacked_bindings"):
            self._of_sizes_by_data(node)
            return
        # As few wide operands as possible first.
        for stay in _left_wide(node, self.dtypes):
            found = self._tried(node, stay)
            if found is not None:
                self._put(node, stay, *found)
                return
        # PyTorch takes none of the combinations: the call stays wide, between casts.
        self.copy(node)

    def _of_sizes_by_data(self, node: fx.Node) -> None:
        """Narrow a call with data-dependent sizes. It is not run on fake tensors again, because that would create new
        symbols for the same sizes."""
        *_, stay = _left_wide(node, self.dtypes)
        reals = {wide for wide in self.dtypes if wide.is_floating_point or wide.is_complex}
        expected = metadata(node)
        if not isinstance(expected, torch.Tensor) or not reals & {each.dtype for each in tensors_in(expected)}:
            self._put(node, stay, node.args, dict(node.kwargs), expected)
            return
        value = self.run(CAST, (expected,), {"dtype": self.dtypes[expected.dtype]})
        self._put(node, stay, node.args, dict(node.kwargs), value)

    def _put(self, node: fx.Node, stay: Collection[fx.Node], args: Any, kwargs: Any, value: Any) -> None:
        args, kwargs = substituted((args, kwargs), lambda x: self.original(x) if x in stay else self.image(x))
        new = self.rewrite.add(node.op, node.target, args, kwargs, None, at=node)
        new.meta = {**inherited_meta(node), "val": value}
        self.rewrite.replace(node, new)
        self.note(node, new)
        self.note_strides(new, metadata(node))

    def _tried(self, node: fx.Node, stay: Collection[fx.Node]) -> tuple[Any, Any, Any] | None:
        """The arguments and the metadata of a call in narrow dtypes, with the operands `stay` left wide; None if
        PyTorch does not take these dtypes."""
        args, kwargs = substituted((node.args, dict(node.kwargs)), lambda x: self.dtypes.get(x, x), torch.dtype)
        for more in _asking(node, self.dtypes):
            try:
                given = substituted((args, {**kwargs, **more}), lambda each: self._fake(each, each in stay))
                value = self.run(node.target, *given)
            except Exception:  # PyTorch raises various types if it needs a wide tensor here
                return None
            if _agree(metadata(node), value, self.dtypes, several=isinstance(value, (tuple, list))):
                return args, {**kwargs, **more}, value
        # Several results may differ in dtype, as values and indices of `topk` do.
        return (args, kwargs, value) if _agree(metadata(node), value, self.dtypes, several=True) else None

    def _fake(self, given: fx.Node, stays: bool) -> Any:
        """The metadata that an argument will have, wide or narrow."""
        if not self.converts(given):
            # With the strides that it has now, as a cast may have changed those of an operand.
            return metadata(self.rewrite.values[given]) if given in self.rewrite.values else metadata(given)
        known = self.originals if stays else self.converted
        value = metadata(given)
        dtype = value.dtype if stays else self.dtypes[value.dtype]
        return metadata(known[given]) if given in known else self.run(CAST, (value,), {"dtype": dtype})


def _is_handed_on_whole(node: fx.Node) -> bool:
    """Whether a tuple of results is used as one value, which a cast cannot produce."""
    return isinstance(metadata(node), (tuple, list)) and not all(map(is_projection, node.users))


def _left_wide(node: fx.Node, dtypes: Dtypes) -> Iterator[set[fx.Node]]:
    """The sets of arguments to leave wide, in the order to try them: those that PyTorch only takes as int64, then all
    int64 arguments."""
    call = call_if_bound(node)
    # `take` and `index_copy`, for instance, have kernels for int64 indices only.
    names = TAKES_INT64.get(call.op.short, ()) if call is not None else ()
    integers = {
        each
        for each in node.all_input_nodes
        if torch.int64 in dtypes and getattr(metadata(each), "dtype", None) == torch.int64
    }
    yield {given for given in integers if call is not None and any(call.arguments.get(name) is given for name in names)}
    yield integers


def _asking(node: fx.Node, dtypes: Dtypes) -> Iterator[dict[str, Any]]:
    """The keyword arguments to try so that a call returns narrow dtypes: none, `dtype`, or `out_int32`."""
    yield {}
    expected, call = metadata(node), call_if_bound(node)
    if call is None or not isinstance(expected, torch.Tensor) or expected.dtype not in dtypes:
        return
    narrow = dtypes[expected.dtype]
    # `sum` and `cumsum` make int64 of integers unless they are given a dtype.
    if "dtype" in call.arguments and call.arguments["dtype"] is None:
        yield {"dtype": narrow}
    # `searchsorted` and `bucketize` have this flag in the place of a dtype.
    if "out_int32" in call.arguments and narrow == torch.int32:
        yield {"out_int32": True}


def _agree(expected: Any, found: Any, dtypes: Dtypes, several: bool) -> bool:
    """Whether a call returns the expected shapes in narrow dtypes; with `several`, wide ones are allowed as well."""

    def agree(one: Any, other: Any) -> bool:
        if not isinstance(one, torch.Tensor):
            return not isinstance(other, torch.Tensor)
        wanted = dtypes.get(one.dtype, one.dtype)
        allowed = {wanted, one.dtype} if several else {wanted}
        return isinstance(other, torch.Tensor) and same_shape(one.shape, other.shape) and other.dtype in allowed

    return equal(expected, found, agree)


# Numbers.


def why_not_narrow(node: fx.Node, dtypes: Dtypes) -> tuple[str, str] | None:
    """Why a call cannot be narrowed: a scalar argument, or the bits that it reads, and the narrow dtype that cannot
    represent it. None if the call can be narrowed."""
    call = call_if_bound(node)
    packet = call.op.packet if call is not None else None
    if call is None or packet is None:
        return None
    wide = {each.dtype for each in tensors_in([metadata(node), *map(metadata, node.all_input_nodes)])} & dtypes.keys()
    if call.op.short in _BITS and call.overload == "dtype":
        read = min(wide, key=str)
        return f"the bits of a {name_of(read)}", name_of(dtypes[read])
    # The number that is shifted is not known, so only shifts that leave no bit of an int32 are refused.
    count = call.arguments.get("other") if call.op.short in SHIFT_OPS else None
    if torch.int64 in wide and isinstance(count, int) and count >= torch.iinfo(dtypes[torch.int64]).bits - 1:
        return f"numbers shifted by {count}", name_of(dtypes[torch.int64])
    for parameter in parameters(getattr(packet, call.overload or "default")):
        # Bounds of `randint` are numbers, though their type is a size.
        if parameter.type in ("number", "Tensor") or parameter.name in ("low", "high"):
            for number in tree_leaves(call.arguments.get(parameter.name)):
                outside = next((dtypes[dtype] for dtype in wide if not fits_dtype(dtypes[dtype], number)), None)
                if outside is not None:
                    return str(number), name_of(outside)
    return None
