"""A program in narrow dtypes: each call is made on tensors of narrow dtypes, and asked for them. What comes in wide is
cast where it is first used, and what goes out wide is cast before it leaves; where PyTorch takes or gives a wide tensor
whatever is asked (`argmax`, the index of `take`), the call stands between two casts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
import math
from typing import Any

import torch
from torch import fx

from decomp.graphs.graph_builder import own_memory
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.tracing import on_metadata
from decomp.ir.call import (
    call_if_bound,
    call_target,
    inherited_meta,
    is_host,
    is_projection,
    metadata,
    projected,
    substituted,
)
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
"""By a wide dtype, the narrow one."""
_BITS = ("view", "view_copy")
LEFT_SHIFTS = ("bitwise_left_shift", "__lshift__")


@dataclass
class Narrowed:
    """A graph in narrow dtypes, and how it relates to the one that it was made from."""

    source: fx.Graph
    rewrite: Rewrite
    dtypes: Dtypes
    refused: dict[fx.Node, tuple[str, str]] = field(default_factory=dict)
    """Calls of the source that do not fit narrow dtypes: what they take, and which dtype does not hold it."""
    stale_strides: dict[fx.Node, Any] = field(default_factory=dict)
    """Results that have other strides than was captured, and the metadata that was."""

    @property
    def graph(self) -> fx.Graph:
        """The new graph."""
        return self.rewrite.graph


def in_narrow_dtypes(source: fx.Graph, dtypes: Dtypes, written: Collection[fx.Node] = ()) -> Narrowed | None:
    """`source` in narrow dtypes; None if nothing in it is wide. `written` values are observed wide though no node uses
    them."""
    if not any(_wide_in(node, dtypes) for node in source.nodes):
        return None
    walk = _NarrowingWalk(source, dtypes)
    for node in source.nodes:
        walk.visit(node)
        if node in written and _is(node, dtypes):
            walk.observed(node)
    return walk.out


def _wide_in(node: fx.Node, dtypes: Dtypes) -> bool:
    return any(each.dtype in dtypes for each in tensors_in(metadata(node)))


def _is(node: fx.Node, dtypes: Dtypes) -> bool:
    value = metadata(node)
    return isinstance(value, torch.Tensor) and value.dtype in dtypes


class _NarrowingWalk:
    """One pass over a graph."""

    def __init__(self, source: fx.Graph, dtypes: Dtypes) -> None:
        mode = mode_of(source)
        assert mode is not None
        self.dtypes, self.mode = dtypes, mode
        self.rewrite = Rewrite.of(source)
        self.out = Narrowed(source, self.rewrite, dtypes)
        self.wide: dict[fx.Node, fx.Node] = {}
        """What stands for a wide value of the source as a wide tensor, where there is one."""
        self.narrow: dict[fx.Node, fx.Node] = {}
        """The same as a narrow tensor."""
        self.casts: list[tuple[dict[fx.Node, fx.Node], fx.Node]] = []
        """What of these is a cast that was made in this region (no_grad, autocast)."""

    def visit(self, node: fx.Node) -> None:
        """Copy a node, or make the same call in narrow dtypes."""
        if switches(node):
            for known, given in self.casts:
                del known[given]  # it has a gradient, or none, as that region had: the next one makes it anew
            self.casts = []
        concerned = _wide_in(node, self.dtypes) or any(_wide_in(given, self.dtypes) for given in node.all_input_nodes)
        if not node.op.startswith("call") or node.op == "call_module" or not concerned:
            self._copy(node)
        elif is_projection(node):
            self._note(node, self.rewrite.copy(node))
        elif is_discharged_assertion(node):
            self.rewrite.replace(node, None)
        elif is_host(node):
            self.rewrite.copy(node, lambda given: self.narrow.get(given) or self.rewrite.values[given])
        elif isinstance(node.target, torch._ops.HigherOrderOperator) or _is_handed_on_whole(node):
            self._copy(node)
        else:
            self._call(node)

    def observed(self, node: fx.Node) -> None:
        """From here on a wide tensor stands for a value, for it leaves the program."""
        self.rewrite.replace(node, self._as_wide(node))

    # Values.

    def _copy(self, node: fx.Node) -> None:
        self._note(node, self.rewrite.copy(node, self._as_wide))

    def _note(self, node: fx.Node, new: Any) -> None:
        """Remember what stands for a node, as what it is."""
        if not isinstance(new, fx.Node) or not _is(node, self.dtypes):
            return
        if is_projection(node):
            new.meta = {**inherited_meta(node), "val": projected(node, metadata(new.args[0]))}
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
        reason = does_not_fit(node, self.dtypes)
        if reason is not None:
            self.out.refused[node] = reason
            self._copy(node)
            return
        if node.meta.get("unbacked_bindings"):
            self._of_sizes_by_data(node)
            return
        for stay in _left_wide(node, self.dtypes):
            found = self._tried(node, stay)
            if found is not None:
                self._put(node, stay, *found)
                return
        self._copy(node)

    def _of_sizes_by_data(self, node: fx.Node) -> None:
        """A call whose sizes data decide: to run it again would be to give these other names."""
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
            self.out.stale_strides[new] = own_memory(value.new_empty_strided(expected.shape, expected.stride()))

    def _tried(self, node: fx.Node, stay: Collection[fx.Node]) -> tuple[Any, Any, Any] | None:
        """The arguments and the metadata of a call in narrow dtypes, those that `stay` being wide; None where PyTorch
        does not take it so."""
        args, kwargs = substituted((node.args, dict(node.kwargs)), lambda x: self.dtypes.get(x, x), torch.dtype)
        for more in _asking(node, self.dtypes):
            try:
                given = substituted((args, {**kwargs, **more}), lambda each: self._fake(each, each in stay))
                value = self._run(node.target, *given)
            except Exception:  # of PyTorch, which takes a wide tensor here
                return None
            if _agree(metadata(node), value, self.dtypes, several=isinstance(value, (tuple, list))):
                return args, {**kwargs, **more}, value
        return (args, kwargs, value) if _agree(metadata(node), value, self.dtypes, several=True) else None

    def _fake(self, given: fx.Node, stays: bool) -> Any:
        """The metadata of an argument."""
        if not _is(given, self.dtypes):
            return metadata(self.rewrite.values[given]) if given in self.rewrite.values else metadata(given)
        known = self.wide if stays else self.narrow
        value = metadata(given)
        dtype = value.dtype if stays else self.dtypes[value.dtype]
        return metadata(known[given]) if given in known else self._run(CAST, (value,), {"dtype": dtype})

    def _run(self, target: Any, args: Any, kwargs: Any) -> Any:
        with on_metadata(self.mode):
            return call_target(target, args, kwargs)


def _is_handed_on_whole(node: fx.Node) -> bool:
    """Whether several results of a call are used as one value, which no cast makes of others."""
    return isinstance(metadata(node), (tuple, list)) and not all(map(is_projection, node.users))


def _left_wide(node: fx.Node, dtypes: Dtypes) -> Iterator[set[fx.Node]]:
    """Which arguments of a call stay wide, in the order in which it is tried: those that PyTorch takes in 64 bits
    alone; then all integers."""
    call = call_if_bound(node)
    names = TAKES_INT64.get(call.op.short, ()) if call is not None else ()
    integers = {each for each in node.all_input_nodes if _is(each, dtypes) and metadata(each).dtype == torch.int64}
    yield {given for given in integers if call is not None and any(call.arguments.get(name) is given for name in names)}
    yield integers


def _asking(node: fx.Node, dtypes: Dtypes) -> Iterator[dict[str, Any]]:
    """What is to be added to a call for it to give narrow dtypes: nothing, or its `dtype`, or `out_int32`."""
    yield {}
    expected, call = metadata(node), call_if_bound(node)
    if call is None or not isinstance(expected, torch.Tensor) or expected.dtype not in dtypes:
        return
    narrow = dtypes[expected.dtype]
    if "dtype" in call.arguments and call.arguments["dtype"] is None:
        yield {"dtype": narrow}
    if "out_int32" in call.arguments and narrow == torch.int32:
        yield {"out_int32": True}


def _agree(expected: Any, found: Any, dtypes: Dtypes, several: bool) -> bool:
    """Whether a call gives what it gave, in narrow dtypes; with `several`, or in wide ones."""
    if isinstance(expected, (tuple, list)):
        same = isinstance(found, (tuple, list)) and len(found) == len(expected)
        return same and all(_agree(one, other, dtypes, several) for one, other in zip(expected, found))
    if not isinstance(expected, torch.Tensor):
        return not isinstance(found, torch.Tensor)
    wanted = dtypes.get(expected.dtype, expected.dtype)
    allowed = {wanted, expected.dtype} if several else {wanted}
    return isinstance(found, torch.Tensor) and same_shape(expected.shape, found.shape) and found.dtype in allowed


# Numbers.


def does_not_fit(node: fx.Node, dtypes: Dtypes) -> tuple[str, str] | None:
    """What keeps a call from being made in narrow dtypes, and the dtype that does not hold it: a number among its
    arguments, or the bits that it reads. None if it can be made."""
    call = call_if_bound(node)
    packet = call.op.packet if call is not None else None
    if call is None or packet is None:
        return None
    wide = {each.dtype for each in tensors_in([metadata(node), *map(metadata, node.all_input_nodes)])} & dtypes.keys()
    if call.op.short in _BITS and call.overload == "dtype":
        read = min(wide, key=str)
        return f"the bits of a {name_of(read)}", name_of(dtypes[read])
    count = call.arguments.get("other") if call.op.short in LEFT_SHIFTS else None
    if torch.int64 in wide and isinstance(count, int) and count >= torch.iinfo(dtypes[torch.int64]).bits - 1:
        return f"numbers shifted by {count}", name_of(dtypes[torch.int64])
    for parameter in parameters(getattr(packet, call.overload or "default")):
        if parameter.type in ("number", "Tensor") or parameter.name in ("low", "high"):
            for number in tree_leaves(call.arguments.get(parameter.name)):
                outside = next((dtypes[dtype] for dtype in wide if not holds(dtypes[dtype], number)), None)
                if outside is not None:
                    return str(number), name_of(outside)
    return None


def holds(dtype: torch.dtype, number: Any) -> bool:
    """Whether a number is within the range of a dtype; of what is none, and of infinity, this is true."""
    if isinstance(number, bool) or not isinstance(number, (int, float, complex)):
        return True
    if dtype.is_floating_point or dtype.is_complex:
        parts = (number.real, number.imag)
        return all(not math.isfinite(part) or abs(part) <= torch.finfo(dtype).max for part in parts)
    info = torch.iinfo(dtype)
    return not isinstance(number, int) or info.min <= number <= info.max
