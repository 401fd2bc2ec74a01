"""Memory as a tree of views: one root a storage, one alias a tensor that looks at it. A write is kept where it is made
and put into the tensors above only when one of them is read; a view is derived again only when it is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import fx

from decomp.functionalize.gradients import reaches
from decomp.functionalize.views import View, put, replay
from decomp.functionalize.writes import can_require_grad
from decomp.graphs.graph_builder import Emitter
from decomp.ir.call import metadata


@dataclass(eq=False)
class Root:
    """A storage. `clock` counts the writes to it."""

    source: fx.Node
    """The node of the source that made it."""
    clock: int = 0
    head: Alias | None = None
    """The alias that was written last. On the way from it to the top, each value lacks only what is pending below it;
    every other alias is current or can be derived from one of these."""
    writer: fx.Node | None = None
    """The node of the source that wrote last."""
    tracked: fx.Node | None = None
    """The whole as autograd knows it, if there were writes since that it did not see."""
    detached: bool = False
    """Whether it was written through `detach()`, as what has a gradient is."""
    top: Alias | None = None
    """The whole."""
    only_untracked: bool = True
    """Whether every write was made with gradients off."""


@dataclass(eq=False)
class Alias:
    """A tensor that looks at a storage: the whole (no parent), or a view of its parent."""

    root: Root
    value: fx.Node
    """In the functional graph; current if `version` is the root's clock."""
    version: int
    requires_grad: bool
    parent: Alias | None = None
    view: View | None = None
    depth: int = 0
    region: int = 0
    """The region of gradient mode in which `value` was derived again, or 0."""
    many: bool = False
    """Whether this is a tuple of views, as chunk gives."""
    piece: int | None = None
    """Which of its parent's tuple this is."""
    overwritten: fx.Node | None = None
    """What it was before it was wholly overwritten, to which autograd still connects it, and `value` does not."""

    @property
    def above(self) -> Alias:
        """The tensor that a write to this one goes into."""
        assert self.parent is not None
        return self.parent.above if self.parent.many else self.parent


@dataclass(eq=False)
class Tensor:
    """What a node of the source denotes: a tensor object, of which squeeze_() and its like change the alias."""

    alias: Alias


@dataclass
class Memory:
    """Reads and writes of aliases, as nodes of the functional graph."""

    emit: Emitter
    grad_enabled: bool = True
    region: int = 0
    """Counts changes of the gradient mode."""
    roots: list[Root] = field(default_factory=list)
    written: list[Root] = field(default_factory=list)
    """Roots that have been written, in order of the first write."""

    def new(self, source: fx.Node, value: fx.Node, requires_grad: bool) -> Alias:
        """A tensor on memory of its own."""
        root = Root(source)
        self.roots.append(root)
        root.top = Alias(root, value, 0, requires_grad)
        return root.top

    def derive(self, parent: Alias, view: View, *, many: bool = False, piece: int | None = None) -> Alias:
        """A view of `parent`, whose value has just been taken."""
        requires = parent.requires_grad and not view.is_detach
        return Alias(parent.root, view.value, parent.root.clock, requires, parent, view, parent.depth + 1, many=many,
                     piece=piece)

    def read(self, alias: Alias, at: fx.Node, *, data_only: bool = False) -> fx.Node:
        """The current value of `alias`, for the source node `at`. With `data_only`, gradients do not matter."""
        root = alias.root
        if alias.requires_grad and not data_only:
            self._track(root, at)
        if self._is_current(alias):
            if not data_only:
                self._connect(alias)
            return alias.value
        if alias.version != root.clock and root.head is not None:
            self._flush(root, _meeting(alias, root.head), at)
        stale = []
        while not self._is_current(alias):
            stale.append(alias)
            assert alias.parent is not None
            alias = alias.parent
        self._connect(alias)
        for one in reversed(stale):
            self._rederive(one, at)
        return stale[0].value if stale else alias.value

    def write(self, alias: Alias, value: fx.Node, requires_grad: bool, at: fx.Node,
              overwritten: fx.Node | None = None) -> None:
        """`value` becomes the value of `alias`; `at` is the node of the source that writes. `overwritten`: the value
        before, if autograd is to connect the two and `value` does not depend on it."""
        root = alias.root
        self._track(root, at)
        if alias.requires_grad and not self.grad_enabled and root.tracked is None:
            assert root.top is not None
            root.tracked = self.read(root.top, at, data_only=True)
        if root.head is None or not _is_within(root.head, alias):
            if alias.parent is not None:
                self.read(alias.parent, at, data_only=True)
        self._note_gradient(alias, requires_grad)
        if root.writer is None:
            self.written.append(root)
        root.clock += 1
        root.head, root.writer = alias, at
        alias.value, alias.version, alias.region = value, root.clock, self.region if not self.grad_enabled else 0
        alias.overwritten = None if _is_detached(alias) else overwritten

    def flush(self, at: fx.Node) -> None:
        """Put every pending write into its root, as the gradient mode is about to change."""
        for root in self.roots:
            if root.head is not None and root.head.parent is not None:
                top = root.head
                while top.parent is not None:
                    top = top.parent
                self._flush(root, top, at)
            if root.top is not None:
                self._connect(root.top)

    def set_grad_enabled(self, enabled: bool, at: fx.Node) -> None:
        """From here on, autograd sees what is done, or does not."""
        if enabled != self.grad_enabled:
            self.flush(at)
            self.grad_enabled, self.region = enabled, self.region + 1

    def _note_gradient(self, alias: Alias, requires_grad: bool) -> None:
        if self.grad_enabled and (requires_grad or not _is_detached(alias)):
            alias.root.only_untracked = False
            alias.requires_grad |= requires_grad

    def _is_current(self, alias: Alias) -> bool:
        """A value that was derived with gradients off does not serve where they are on."""
        if alias.version != alias.root.clock:
            return False
        return not (alias.region and alias.parent is not None and self.grad_enabled and alias.requires_grad
                    and alias is not alias.root.head)

    def _connect(self, alias: Alias) -> None:
        """Give a value that took the place of another a gradient of zero in it, as the write gave it."""
        if alias.overwritten is None or not self.grad_enabled:
            return
        writer = alias.root.writer or alias.root.source
        nothing = self.emit.call("fill", (alias.overwritten, 0), at=writer)
        # Less 0, not plus: −0 stays −0.
        alias.value = self.emit.call("sub", (alias.value, nothing), at=writer)
        alias.overwritten = None

    def _rederive(self, alias: Alias, at: fx.Node) -> None:
        assert alias.parent is not None and alias.view is not None
        alias.value = replay(self.emit, alias.view, alias.parent.value, at)
        alias.version, alias.overwritten = alias.root.clock, None
        alias.region = 0 if self.grad_enabled else self.region
        alias.requires_grad = alias.parent.requires_grad and not alias.view.is_detach

    def _flush(self, root: Root, upto: Alias, at: fx.Node) -> None:
        """Put what is pending below `upto` into it."""
        writer = root.writer or at
        while root.head is not None and root.head is not upto and root.head.depth > upto.depth:
            child = root.head
            above = child.above
            assert child.view is not None
            old, last = above.value, next(iter(reversed(self.emit.graph.nodes)))
            value = put(self.emit, child.view, old, child.value, writer)
            if child.overwritten is not None and above.overwritten is None and not reaches(value, old, last):
                above.overwritten = old
            if child.view.is_detach:
                value = self._through_detach(above, old, value, writer)
            elif child.requires_grad:
                above.requires_grad = True
            above.value = value
            above.version, root.head = root.clock, above
            above.region = 0

    def _through_detach(self, above: Alias, old: fx.Node, value: fx.Node, writer: fx.Node) -> fx.Node:
        """The value of a tensor that was written through `detach()`: its gradient is the one that it had."""
        root = above.root
        root.detached = True
        # An input that had no gradient in the example may have one when the program runs.
        if not above.requires_grad and not (root.source.op == "placeholder" and can_require_grad(metadata(old))):
            return value
        if self.grad_enabled:
            return _with_gradient(self.emit, value, old, writer)
        assert root.top is not None
        root.tracked = root.tracked or root.top.value
        return value

    def _track(self, root: Root, at: fx.Node) -> None:
        """Where gradients are on: give the whole the gradient that it had before it was written with gradients off."""
        if root.tracked is None or not self.grad_enabled:
            return
        assert root.top is not None
        tracked, root.tracked = root.tracked, None
        value = self.emit.call("detach", (self.read(root.top, at, data_only=True),), at=at)
        root.clock += 1
        root.head = root.top
        root.top.value, root.top.version = _with_gradient(self.emit, value, tracked, at), root.clock


def _with_gradient(emit: Emitter, value: fx.Node, of: fx.Node, at: fx.Node) -> fx.Node:
    """`value`, which has no gradient, with that of `of`: less a difference that is 0, and whose derivative is −1. Where
    `of` is not finite it is NaN; it counts as 0 there, and has no gradient."""
    difference = emit.call("sub", (emit.call("detach", (of,), at=at), of), at=at)
    nothing = emit.call("masked_fill", (difference, emit.call("isnan", (difference,), at=at), 0), at=at)
    return emit.call("sub", (value, nothing), at=at)


def _is_detached(alias: Alias) -> bool:
    """Whether it looks at its memory through `detach()`, so that autograd sees no write of it."""
    while alias.parent is not None:
        if alias.view is not None and alias.view.is_detach:
            return True
        alias = alias.parent
    return False


def _is_within(alias: Alias, ancestor: Alias) -> bool:
    while alias.depth > ancestor.depth:
        assert alias.parent is not None
        alias = alias.parent
    return alias is ancestor


def _meeting(one: Alias, two: Alias) -> Alias:
    """The lowest tensor that both look at."""
    while one is not two:
        if one.depth < two.depth:
            one, two = two, one
        assert one.parent is not None
        one = one.parent
    return one.above if one.many else one
