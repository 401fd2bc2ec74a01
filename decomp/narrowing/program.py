"""Rewrites a graph so that calls compute in narrow dtypes. Wide inputs are cast where they are first used, and wide
outputs are cast back before they are returned, so that callers see the same dtypes. Where PyTorch only takes or returns
a wide tensor (`argmax`, the index of `take`), the call gets casts before and after it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
import math
from typing import Any

import torch
from torch import fx

from decomp.graphs.graph_builder import own_memory
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.tracing import on_metadata
from decomp.ir.arguments import equal, substituted
from decomp.ir.call import call_if_bound, call_target, inherited_meta, is_host, is_projection, metadata, projected
from decomp.ir.dtypes import name_of
from decomp.ir.effects import is_discharged_assertion, switches
from decomp.ir.narrow_calls import CAST
from decomp.ir.op_facts import TAKES_INT64
from decomp.ir.schema import parameters
from decomp.metadata.fakes import mode_of
from decomp.metadata.strides import same_layout
from decomp.metadata.symbolic_sizes import same_shape
from decomp.torch_internals.pytree import tensors_in, tree_leaves

Dtypes = Mapping[torch.dtype, torch.dtype]
"""Maps a wide dtype to the narrow one that replaces it."""
_BITS = ("view", "view_copy")
SHIFT_OPS = ("bitwise_left_shift", "__lshift__")


def narrow_graph(source: fx.Graph, dtypes: Dtypes, written: Collection[fx.Node] = ()) -> Narrowing | None:
    """`source` in narrow dtypes; None if nothing in it is wide. `written` values are written back to inputs or buffers
    after the run, so that they are needed in the wide dtype though no node uses them."""
    if not any(_wide_in(node, dtypes) for node in source.nodes):
        return None
    walk = Narrowing(source, dtypes)
    for node in source.nodes:
        walk.visit(node)
        if node in written and _is(node, dtypes):
            walk.observed(node)
    return walk


def _wide_in(node: fx.Node, dtypes: Dtypes) -> bool:
    return any(each.dtype in dtypes for each in tensors_in(metadata(node)))


def _is(node: fx.Node, dtypes: Dtypes) -> bool:
    value = metadata(node)
    return isinstance(value, torch.Tensor) and value.dtype in dtypes


class Narrowing:
    """One pass over a graph, and what came of it."""

    def __init__(self, source: fx.Graph, dtypes: Dtypes) -> None:
        mode = mode_of(source)
        assert mode is not None
        self.dtypes, self.mode = dtypes, mode
        self.rewrite = Rewrite.of(source)
        self.refused: dict[fx.Node, tuple[str, str]] = {}
        """Calls of the source that cannot be narrowed: what they take, and the dtype that cannot represent it."""
        self.stale_strides: dict[fx.Node, Any] = {}
        """The captured metadata of results whose strides differ from it now."""
        self.wide: dict[fx.Node, fx.Node] = {}
        """Maps a wide value of the source to the new node that has it as a wide tensor, if there is one."""
        self.narrow: dict[fx.Node, fx.Node] = {}
        """The same for narrow tensors."""
        self.casts: list[tuple[dict[fx.Node, fx.Node], fx.Node]] = []
        """The entries of these two that are casts made in the current region (no_grad, autocast)."""

    def visit(self, node: fx.Node) -> None:
        """Copy a node, or make the same call in narrow dtypes."""
        if switches(node):
            for known, given in self.casts:
                # Whether a cast has a gradient depends on its region: the next region needs a cast of its own.
                del known[given]
            self.casts = []
        concerned = _wide_in(node, self.dtypes) or any(_wide_in(given, self.dtypes) for given in node.all_input_nodes)
        if not node.op.startswith("call") or node.op == "call_module" or not concerned:
            self._copy(node)
        elif is_projection(node):
            self._note(node, self.rewrite.copy(node))
        elif is_discharged_assertion(node):
            self.rewrite.replace(node, None)
        elif is_host(node):
            # Host calls only read sizes, which the narrow tensor has as well: no cast is needed for them.
            self.rewrite.copy(node, lambda given: self.narrow.get(given) or self.rewrite.values[given])
        # Bodies are narrowed as graphs of their own, with wide inputs and results.
        elif isinstance(node.target, torch._ops.HigherOrderOperator) or _is_handed_on_whole(node):
            self._copy(node)
        else:
            self._call(node)

    def observed(self, node: fx.Node) -> None:
        """Map a value to its wide tensor from here on, because it leaves the program."""
        self.rewrite.replace(node, self._as_wide(node))

    # Values.

    def _copy(self, node: fx.Node) -> None:
        self._note(node, self.rewrite.copy(node, self._as_wide))

    def _note(self, node: fx.Node, new: Any) -> None:
        """Record the image of a node, as wide or narrow by its dtype."""
        if not isinstance(new, fx.Node) or not _is(node, self.dtypes):
            return
        if is_projection(node):
            new.meta = {**inherited_meta(node), "val": projected(node, metadata(new.args[0]))}
        # By what PyTorch returned: some ops give int64 whatever they are given.
        known = self.wide if metadata(new).dtype == metadata(node).dtype else self.narrow
        known[node] = new

    def _as_wide(self, given: fx.Node) -> Any:
        if not _is(given, self.dtypes):
            return self.rewrite.values[given]
        if given not in self.wide:
            self.wide[given] = self._cast(given, self.narrow[given], metadata(given).dtype, "wide")
            self.casts.append((self.wide, given))
        return self.wide[given]

    def _as_narrow(self, given: fx.Node) -> Any:
        if not _is(given, self.dtypes):
            return self.rewrite.values[given]
        if given not in self.narrow:
            dtype = self.dtypes[metadata(given).dtype]
            self.narrow[given] = self._cast(given, self.wide[given], dtype, "narrow")
            self.casts.append((self.narrow, given))
        return self.narrow[given]

    def _cast(self, source: fx.Node, given: fx.Node, dtype: torch.dtype, label: str) -> fx.Node:
        new = self.rewrite.add("call_function", CAST, (given,), {"dtype": dtype}, f"{source.name}_{label}", at=source)
        new.meta = inherited_meta(source)
        new.meta["val"] = self._run(CAST, (metadata(given),), {"dtype": dtype})
        return new

    # Calls.

    def _call(self, node: fx.Node) -> None:
        reason = why_not_narrow(node, self.dtypes)
        if reason is not None:
            self.refused[node] = reason
            self._copy(node)
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
        self._copy(node)

    def _of_sizes_by_data(self, node: fx.Node) -> None:
        """Narrow a call with data-dependent sizes. It is not run on fake tensors again, because that would create new
        symbols for the same sizes."""
        *_, stay = _left_wide(node, self.dtypes)
        reals = {wide for wide in self.dtypes if wide.is_floating_point or wide.is_complex}
        expected = metadata(node)
        if not isinstance(expected, torch.Tensor) or not reals & {each.dtype for each in tensors_in(expected)}:
            self._put(node, stay, node.args, dict(node.kwargs), expected)
            return
        value = self._run(CAST, (expected,), {"dtype": self.dtypes[expected.dtype]})
        self._put(node, stay, node.args, dict(node.kwargs), value)

    def _put(self, node: fx.Node, stay: Collection[fx.Node], args: Any, kwargs: Any, value: Any) -> None:
        args, kwargs = substituted((args, kwargs), lambda x: self._as_wide(x) if x in stay else self._as_narrow(x))
        new = self.rewrite.add(node.op, node.target, args, kwargs, None, at=node)
        new.meta = {**inherited_meta(node), "val": value}
        self.rewrite.replace(node, new)
        self._note(node, new)
        expected = metadata(node)
        if isinstance(value, torch.Tensor) and isinstance(expected, torch.Tensor) and not same_layout(value, expected):
            self.stale_strides[new] = own_memory(value.new_empty_strided(expected.shape, expected.stride()))

    def _tried(self, node: fx.Node, stay: Collection[fx.Node]) -> tuple[Any, Any, Any] | None:
        """The arguments and the metadata of a call in narrow dtypes, with the operands `stay` left wide; None if
        PyTorch does not take these dtypes."""
        args, kwargs = substituted((node.args, dict(node.kwargs)), lambda x: self.dtypes.get(x, x), torch.dtype)
        for more in _asking(node, self.dtypes):
            try:
                given = substituted((args, {**kwargs, **more}), lambda each: self._fake(each, each in stay))
                value = self._run(node.target, *given)
            except Exception:  # PyTorch raises various types if it needs a wide tensor here
                return None
            if _agree(metadata(node), value, self.dtypes, several=isinstance(value, (tuple, list))):
                return args, {**kwargs, **more}, value
        # Several results may differ in dtype, as values and indices of `topk` do.
        return (args, kwargs, value) if _agree(metadata(node), value, self.dtypes, several=True) else None

    def _fake(self, given: fx.Node, stays: bool) -> Any:
        """The metadata that an argument will have, wide or narrow."""
        if not _is(given, self.dtypes):
            # With the strides that it has now, as a cast may have changed those of an operand.
            return metadata(self.rewrite.values[given]) if given in self.rewrite.values else metadata(given)
        known = self.wide if stays else self.narrow
        value = metadata(given)
        dtype = value.dtype if stays else self.dtypes[value.dtype]
        return metadata(known[given]) if given in known else self._run(CAST, (value,), {"dtype": dtype})

    def _run(self, target: Any, args: Any, kwargs: Any) -> Any:
        with on_metadata(self.mode):
            return call_target(target, args, kwargs)


def _is_handed_on_whole(node: fx.Node) -> bool:
    """Whether a tuple of results is used as one value, which a cast cannot produce."""
    return isinstance(metadata(node), (tuple, list)) and not all(map(is_projection, node.users))


def _left_wide(node: fx.Node, dtypes: Dtypes) -> Iterator[set[fx.Node]]:
    """The sets of arguments to leave wide, in the order to try them: those that PyTorch only takes as int64, then all
    int64 arguments."""
    call = call_if_bound(node)
    # `take` and `index_copy`, for instance, have kernels for int64 indices only.
    names = TAKES_INT64.get(call.op.short, ()) if call is not None else ()
    integers = {each for each in node.all_input_nodes if _is(each, dtypes) and metadata(each).dtype == torch.int64}
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


def fits_dtype(dtype: torch.dtype, number: Any) -> bool:
    """Whether a number is within the range of a dtype. True for infinities, NaN, and values that are not numbers."""
    if isinstance(number, bool) or not isinstance(number, (int, float, complex)):
        return True
    if dtype.is_floating_point or dtype.is_complex:
        parts = (number.real, number.imag)
        return all(not math.isfinite(part) or abs(part) <= torch.finfo(dtype).max for part in parts)
    info = torch.iinfo(dtype)
    return not isinstance(number, int) or info.min <= number <= info.max
