"""Storages as trees of views. Each storage is a tree of aliases: the root is the tensor that was allocated, each child
a view of its parent.

A write only replaces the value of the alias it went through, and makes it the `last_written` one of its storage.
Nothing else is emitted until another alias is read: then the write is scattered into its bases up to the nearest common
ancestor of both, and the views from there down to the alias that is read are taken again from their new bases. So a
program that keeps writing through one view emits no scatters in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from decomp.functionalize.functional_ops import cast
from decomp.functionalize.gradients import reaches
from decomp.functionalize.views import View, replay, write_into_base
from decomp.functionalize.writes import can_require_grad
from decomp.graphs.graph_builder import Emitter
from decomp.ir.aliases import refusal, spelling_of
from decomp.ir.call import metadata
from decomp.metadata.strides import dense_order


@dataclass(eq=False)
class Storage:
    """Memory shared by a tensor and its views."""

    source: fx.Node
    """The node of the source graph that allocated it."""
    write_count: int = 0
    last_written: Alias | None = None
    """The alias that was written last. Its bases, up to the root, lack only writes that have not been scattered into
    them yet; every other alias is current, or can be taken again from one of these."""
    writer: fx.Node | None = None
    """The node of the source graph that wrote last."""
    value_in_autograd: fx.Node | None = None
    """The value of `whole` before the first write that autograd did not see (under `no_grad`), if any."""
    detached: bool = False
    """Whether it was written through a `detach()`."""
    whole: Alias | None = None
    """The root: the tensor that was allocated, of which all others are views."""
    only_untracked: bool = True
    """Whether gradients were disabled at every write."""
    uncertain: list[Alias] = field(default_factory=list)
    """Views that may be identical to their base (such as the result of `contiguous()`)."""
    detached_in_place: dict[Alias, bool] = field(default_factory=dict)
    """Tensors whose history a `detach_()` took, and whether that is what they were before an in-place change of shape:
    to autograd such a change is a write, so earlier views have lost their history too."""

    @property
    def has_gradient_of_before(self) -> bool:
        """Whether it was written with gradients and later without: its gradient is then that of the earlier writes."""
        return self.value_in_autograd is not None and not self.only_untracked


@dataclass(eq=False)
class Alias:
    """A tensor on a storage: the root (no parent), or a view of its parent."""

    storage: Storage
    value: fx.Node
    """Its last known value, in the functional graph."""
    version: int
    """The `write_count` of the storage for which `value` was current."""
    requires_grad: bool
    parent: Alias | None = None
    view: View | None = None
    depth: int = 0
    region: int = 0
    """The gradient-mode region (`AliasMemory.region`) in which `value` was taken with gradients disabled, or 0."""
    is_tuple: bool = False
    """Whether this is a tuple of views, such as the result of chunk."""
    index: int | None = None
    """Its index in `parent`, which is a tuple."""
    untracked: bool = False
    """Whether it is not a view to autograd: it is a `detach()`, or was taken with gradients disabled."""
    reshaped: fx.Node | None = None
    """The node that changed in place the shape of a tensor to which this one may be identical."""
    overwritten: fx.Node | None = None
    """The value before it was overwritten completely, if `value` does not depend on it: in PyTorch autograd still
    connects the two, with a gradient of zero."""
    in_autograd: fx.Node | None = None
    """For a `detach()` that was written with gradients: the value whose gradient it has. Later writes to its base do
    not change that."""

    @property
    def written_base(self) -> Alias:
        """The tensor into which a write to this one is scattered."""
        assert self.parent is not None
        return self.parent.written_base if self.parent.is_tuple else self.parent

    @property
    def source_metadata(self) -> Any:
        """Its metadata in the source program, where its strides may be others than those of `value`."""
        return metadata(self.storage.source if self.view is None else self.view.source)


@dataclass(eq=False)
class Tensor:
    """The tensor object that a source node denotes. Ops such as `squeeze_()` change which alias it is."""

    alias: Alias


def filling_its_memory(alias: Alias) -> Alias:
    """The nearest tensor of which `alias` is a view, or `alias` itself, whose elements fill a part of the memory
    without gaps or repetitions; `alias` if none does."""
    value, above = alias.source_metadata, alias
    while isinstance(value, torch.Tensor):
        found = above.source_metadata
        if isinstance(found, torch.Tensor) and not _same_elements(found, value):
            break
        if isinstance(found, torch.Tensor) and dense_order(found) is not None:
            return above
        if above.parent is None or above.view is None or above.untracked or above.view.may_be_base:
            break
        above = above.parent
    return alias


def _same_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether an element of one has the same meaning, and size in memory, as of the other."""
    kinds = [(value.dtype, value.is_conj(), value.is_neg()) for value in (one, other)]
    return kinds[0] == kinds[1]


def refuse_change_of_shape(node: fx.Node, target: fx.Node, tensor: Tensor, names: list[fx.Node]) -> None:
    """Raise `MutationError` where `node`, a `squeeze_()` or similar, changes the shape of a tensor that may be
    identical to another one, of an input itself, or of a dropout's result under another of the tensor's `names`: in
    PyTorch's metadata a dropout that returns its input returns a copy, which keeps the old shape (torch 2.13)."""
    _refuse_uncertain(node, tensor, f"changes the shape of {target.name!r}", "use the function that returns a view")
    remedy = "use the function that returns a view"
    if tensor.alias.parent is None and tensor.alias.storage.source.op in ("placeholder", "get_attr"):
        raise refusal(node, f"it changes the shape of the input {tensor.alias.storage.source.name!r} itself", remedy)
    for other in names if metadata(node) is not None else ():
        if other.op in ("call_function", "call_method") and spelling_of(other).op.short.endswith("dropout"):
            raise refusal(
                node, f"it changes the shape of the result of {other.name!r}, which metadata does not show", remedy
            )


def refuse_detached_input(node: fx.Node, target: fx.Node, tensor: Tensor) -> None:
    """Raise `MutationError` where `node`, a `detach_()`, detaches an input, which is visible to the caller, or a tensor
    that may be identical to another one."""
    alias = tensor.alias
    _refuse_uncertain(node, tensor, f"detaches {target.name!r}", "use what detach() returns")
    if alias.parent is None and alias.requires_grad and alias.storage.source.op in ("placeholder", "get_attr"):
        raise refusal(
            node,
            f"it detaches the input {alias.storage.source.name!r} itself, which then has no gradient "
            "outside of the program either",
            "use what x.detach() returns, or pass training=False",
        )


def _refuse_uncertain(node: fx.Node, tensor: Tensor, what: str, remedy: str) -> None:
    if tensor.alias.view is not None and tensor.alias.view.may_be_base:
        raise refusal(
            node,
            f"it {what}, which may or may not be another tensor",
            f"pass args=, so that shapes and strides are known; or {remedy}",
        )


@dataclass
class AliasMemory:
    """Reads and writes of aliases, emitted as nodes of the functional graph."""

    emit: Emitter
    grad_enabled: bool = True
    region: int = 0
    """The number of changes of the gradient mode."""
    storages: list[Storage] = field(default_factory=list)
    written: list[Storage] = field(default_factory=list)
    """Storages that have been written, in order of the first write."""

    def new(self, source: fx.Node, value: fx.Node, requires_grad: bool) -> Alias:
        """A new tensor on a storage of its own."""
        storage = Storage(source)
        self.storages.append(storage)
        storage.whole = Alias(storage, value, 0, requires_grad)
        return storage.whole

    def derive(
        self, parent: Alias, view: View, *, is_tuple: bool = False, index: int | None = None, in_place: bool = False
    ) -> Alias:
        """A view of `parent` whose value has just been computed; `in_place`: whether the tensor itself becomes that
        view."""
        # An in-place change of shape keeps the tensor's history even where gradients are disabled.
        untracked = view.is_detach or parent.is_tuple and parent.untracked or not (self.grad_enabled or in_place)
        requires = parent.requires_grad and not untracked
        alias = Alias(
            parent.storage,
            view.value,
            parent.storage.write_count,
            requires,
            parent,
            view,
            parent.depth + 1,
            is_tuple=is_tuple,
            index=index,
            untracked=untracked,
        )
        # If the shape of the tensor is changed in place later, it is not known whether this view is that tensor.
        if view.may_be_base:
            parent.storage.uncertain.append(alias)
        return alias

    def reshape(self, alias: Alias, view: View, at: fx.Node) -> Alias:
        """The alias for a tensor whose shape `at` changed in place: a view of its previous one."""
        for other in alias.storage.uncertain:
            if _may_be(other, alias):
                other.reshaped = at
        return self.derive(alias, view, in_place=True)

    def detach_in_place(self, alias: Alias, at: fx.Node) -> None:
        """Take its history from `alias`, whose value is current, at the `detach_()` `at`. It is no write: views keep
        the history that they have, until a later write makes them views of what has none. PyTorch detaches no views, so
        what is between `alias` and a root, or a `detach()`, is that tensor before its shape was changed in place."""
        tensor = [alias]
        while tensor[-1].parent is not None and not tensor[-1].untracked:
            tensor.append(tensor[-1].parent)
        if tensor[-1].parent is None:
            alias.storage.value_in_autograd = None
        for one in tensor:
            value = self.read(one, at, data_only=True)
            one.value = self.emit.call("detach", (value,), at=at)
            one.overwritten = one.in_autograd = None
            one.requires_grad, one.region = False, 0
            alias.storage.detached_in_place[one] = one is not alias

    def read(self, alias: Alias, at: fx.Node, *, data_only: bool = False) -> fx.Node:
        """The current value of `alias`, read by the source node `at`. With `data_only` its gradient may be wrong."""
        storage = alias.storage
        if alias.reshaped is not None:
            raise refusal(
                at,
                f"it uses a tensor that may or may not be the one whose shape {alias.reshaped.name!r} changes",
                "pass args=, so that shapes and strides are known",
            )
        # Before it is asked whether the value is current: this replaces the value of the whole storage.
        if alias.requires_grad and not data_only:
            self._restore_gradient(storage, at)
        if self._is_current(alias):
            if not data_only:
                self._connect(alias)
            return alias.value
        if alias.version != storage.write_count and storage.last_written is not None:
            self._flush(storage, _common_ancestor(alias, storage.last_written), at)
        # Walk up to the nearest current ancestor, then take the views again on the way down.
        stale = []
        while not self._is_current(alias):
            stale.append(alias)
            assert alias.parent is not None
            alias = alias.parent
        self._connect(alias)
        for one in reversed(stale):
            self._rederive(one, at)
        return stale[0].value if stale else alias.value

    def write(
        self, alias: Alias, value: fx.Node, requires_grad: bool, at: fx.Node, overwritten: fx.Node | None = None
    ) -> None:
        """Make `value` the value of `alias`; `at` is the source node that writes. `overwritten`: see `Alias`."""
        storage = alias.storage
        self._restore_gradient(storage, at)
        # This write is unseen by autograd: keep the value whose gradient the storage must have once gradients are
        # enabled.
        if alias.requires_grad and not self.grad_enabled and storage.value_in_autograd is None:
            assert storage.whole is not None
            storage.value_in_autograd = self.read(storage.whole, at, data_only=True)
        # Pending writes outside of this alias would be lost if `last_written` moved here before they are scattered into
        # a common base. Those inside of it are overwritten anyway.
        if storage.last_written is None or not _is_within(storage.last_written, alias):
            if alias.parent is not None:
                self.read(alias.parent, at, data_only=True)
        self._note_gradient(alias, requires_grad)
        if storage.writer is None:
            self.written.append(storage)
        storage.write_count += 1
        storage.last_written, storage.writer = alias, at
        alias.value, alias.version = value, storage.write_count
        alias.region = 0 if self.grad_enabled else self.region
        # Autograd does not see that a write into a `detach()` reaches the tensor behind it.
        alias.overwritten = None if _is_detached(alias) else overwritten
        self._note_detached(alias)
        self._flush_repeating(alias, at)

    def _flush_repeating(self, alias: Alias, at: fx.Node) -> None:
        """Scatter a write below those views on the path to `alias` that may contain an element several times: they and
        their views are correct only when taken again."""
        passed: list[Alias] = []
        while alias.parent is not None:
            passed.append(alias)
            if alias.view is not None and alias.view.repeats:
                self._flush(alias.storage, alias.written_base, at)
                for one in passed:
                    one.version = -1
            alias = alias.parent

    def flush(self, at: fx.Node) -> None:
        """Scatter all pending writes into their storages, as the gradient mode is about to change."""
        for storage in self.storages:
            if storage.last_written is not None and storage.last_written.parent is not None:
                whole = storage.last_written
                while whole.parent is not None:
                    whole = whole.parent
                self._flush(storage, whole, at)
            if storage.whole is not None:
                self._connect(storage.whole)

    def set_grad_enabled(self, enabled: bool, at: fx.Node) -> None:
        """Switch the gradient mode for the nodes that follow."""
        # What is pending must be scattered in the mode in which it was written.
        if enabled != self.grad_enabled:
            self.flush(at)
            self.grad_enabled, self.region = enabled, self.region + 1

    def _note_gradient(self, alias: Alias, requires_grad: bool) -> None:
        if self.grad_enabled:
            # A write into a detach() is tracked for that tensor, but not for its base.
            alias.storage.only_untracked &= _is_detached(alias)
            alias.requires_grad |= requires_grad

    def _note_detached(self, alias: Alias) -> None:
        if self.grad_enabled and alias.requires_grad and alias.view is not None and alias.view.is_detach:
            alias.in_autograd = alias.value

    def _is_current(self, alias: Alias) -> bool:
        """Whether `alias.value` can be used. A view taken with gradients disabled cannot while they are enabled."""
        if alias.version != alias.storage.write_count:
            return False
        if alias.requires_grad and alias.storage.detached_in_place and _has_lost_history(alias):
            return False
        # A view taken without gradients lacks the history that reading it now must have, so it is taken again.
        return not (
            alias.region
            and alias.parent is not None
            and self.grad_enabled
            and alias.requires_grad
            and alias is not alias.storage.last_written
        )

    def _connect(self, alias: Alias) -> None:
        """Make a value depend, with a gradient of zero, on the one it overwrote, as an in-place op does."""
        if alias.overwritten is None or not self.grad_enabled:
            return
        writer = alias.storage.writer or alias.storage.source
        alias.value = connected(self.emit, alias.value, alias.overwritten, writer)
        alias.overwritten = None

    def _rederive(self, alias: Alias, at: fx.Node) -> None:
        assert alias.parent is not None and alias.view is not None
        alias.value = replay(self.emit, alias.view, alias.parent.value, at)
        if alias.untracked and self.grad_enabled and not alias.is_tuple and not alias.view.is_detach:
            alias.value = self.emit.call("detach", (alias.value,), at=at)
        alias.version, alias.overwritten = alias.storage.write_count, None
        alias.region = 0 if self.grad_enabled else self.region
        alias.requires_grad = alias.parent.requires_grad and not alias.untracked
        if alias.in_autograd is not None:
            alias.requires_grad = True
            if self.grad_enabled:
                alias.value = _with_gradient(self.emit, alias.value, alias.in_autograd, at)

    def _flush(self, storage: Storage, upto: Alias, at: fx.Node) -> None:
        """Scatter pending writes into their bases, up to `upto`."""
        writer = storage.writer or at
        # Each step scatters the deepest pending write one level up; its base then holds all pending writes itself.
        while (child := storage.last_written) is not None and child is not upto and child.depth > upto.depth:
            base = child.written_base
            assert child.view is not None
            # `reaches` looks at what is emitted after `last` alone.
            old, last = base.value, next(iter(reversed(self.emit.graph.nodes)))
            value = write_into_base(self.emit, child.view, old, child.value, writer)
            if child.overwritten is not None and base.overwritten is None and not reaches(value, old, last):
                base.overwritten = old
            storage.detached |= child.view.is_detach
            if child.untracked:
                value = self._unseen(base, child.view, old, value, writer)
            elif child.requires_grad:
                base.requires_grad = True
            base.value = value
            base.version, storage.last_written = storage.write_count, base
            base.region = 0
            self._note_detached(base)

    def _unseen(self, base: Alias, view: View, old: fx.Node, value: fx.Node, writer: fx.Node) -> fx.Node:
        """`value` of a tensor written through a view unknown to autograd: the tensor keeps its own gradient."""
        storage = base.storage
        # An input that required no gradient in the example may require one at run time.
        may_have = view.is_detach and storage.source.op == "placeholder" and can_require_grad(metadata(old))
        if not base.requires_grad and not may_have:
            return value
        if self.grad_enabled:
            part = value if view.is_detach else self.emit.call("detach", (value,), at=writer)
            return _with_gradient(self.emit, part, old, writer)
        assert storage.whole is not None
        storage.value_in_autograd = storage.value_in_autograd or storage.whole.value
        return value

    def _restore_gradient(self, storage: Storage, at: fx.Node) -> None:
        """Where gradients are enabled again, give a storage the gradient that it had before the unseen writes."""
        if storage.value_in_autograd is None or not self.grad_enabled:
            return
        assert storage.whole is not None
        before, storage.value_in_autograd = storage.value_in_autograd, None
        value = self.emit.call("detach", (self.read(storage.whole, at, data_only=True),), at=at)
        # A write, although no data changes: views have to be taken again, to get their gradient from the new value.
        storage.write_count += 1
        storage.last_written = storage.whole
        storage.whole.value, storage.whole.version = _with_gradient(self.emit, value, before, at), storage.write_count


def connected(emit: Emitter, value: fx.Node, to: fx.Node, at: fx.Node) -> fx.Node:
    """`value`, depending on `to` with a gradient of zero."""
    zero = emit.call("fill", (_subtractable(emit, to, at), 0), at=at)
    # −0 − 0 is −0; −0 + 0 would be +0.
    return _difference(emit, value, zero, at)


def _with_gradient(emit: Emitter, value: fx.Node, of: fx.Node, at: fx.Node) -> fx.Node:
    """`value`, which has no gradient, with the gradient of `of`: value − (detach(of) − of), a difference that is 0 and
    has the derivative −1. Where `of` is not finite the difference is NaN and is replaced by 0, without a gradient."""
    of = _subtractable(emit, of, at)
    difference = emit.call("sub", (emit.call("detach", (of,), at=at), of), at=at)
    zero = emit.call("masked_fill", (difference, emit.call("isnan", (difference,), at=at), 0), at=at)
    return _difference(emit, value, zero, at)


def _subtractable(emit: Emitter, tensor: fx.Node, at: fx.Node) -> fx.Node:
    """`tensor`, promoted if it may be of dtype bool, which cannot be subtracted: without metadata any tensor may."""
    return tensor if metadata(tensor) is not None else emit.call("mul", (tensor, 1), at=at)


def _difference(emit: Emitter, value: fx.Node, zero: fx.Node, at: fx.Node) -> fx.Node:
    """`value` − `zero`, in the dtype of `value`. (Bools can be added to integers, and −0 + −0 is −0.)"""
    if metadata(value) is not None:
        if metadata(zero).dtype != metadata(value).dtype:
            zero = cast(emit, at, zero, value, final=False)
        return emit.call("sub", (value, zero), at=at)
    found = emit.call("add", (value, emit.call("neg", (zero,), at=at)), at=at)
    return emit.call("type_as", (found, value), at=at)


def _is_detached(alias: Alias) -> bool:
    """Whether it is a view of a `detach()`, so that autograd does not see writes through it."""
    while alias.parent is not None:
        if alias.view is not None and alias.view.is_detach:
            return True
        alias = alias.parent
    return False


def _may_be(alias: Alias, other: Alias) -> bool:
    """Whether `alias` may be identical to its ancestor `other`."""
    while alias.parent is not None and alias.view is not None and alias.view.may_be_base:
        alias = alias.parent
        if alias is other:
            return True
    return False


def _has_lost_history(alias: Alias) -> bool:
    """Whether it is a view of a tensor before an in-place change of shape, and that tensor was detached in place."""
    while alias.parent is not None and alias not in alias.storage.detached_in_place:
        alias = alias.parent
    return alias.storage.detached_in_place.get(alias, False)


def _is_within(alias: Alias, ancestor: Alias) -> bool:
    while alias.depth > ancestor.depth:
        assert alias.parent is not None
        alias = alias.parent
    return alias is ancestor


def _common_ancestor(one: Alias, two: Alias) -> Alias:
    """The nearest tensor of which both are views."""
    while one is not two:
        if one.depth < two.depth:
            one, two = two, one
        assert one.parent is not None
        one = one.parent
    return one.written_base if one.is_tuple else one
