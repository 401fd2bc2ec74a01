"""The walk that converts the dtypes of a graph, as MLIR's dialect conversion does. A value of a dtype that the target
lacks has two forms, the original and the converted one, and a node for each is made where a call first needs it.
`Narrowing` and `ComplexAsReal` say which values are converted, and how a call is made on the converted ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx

from decomp.graphs.graph_builder import own_memory
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.tracing import on_metadata
from decomp.ir.call import call_target, inherited_meta, is_projection, metadata
from decomp.ir.effects import is_discharged_assertion, switches
from decomp.metadata.fakes import mode_of
from decomp.metadata.strides import same_layout


class TypeConversion(ABC):
    """One pass over a graph, and what came of it. What enters and leaves the graph keeps its dtype, so that callers see
    no difference, and so do the calls that cannot be converted."""

    def __init__(self, source: fx.Graph) -> None:
        mode = mode_of(source)
        assert mode is not None
        self.source, self.mode = source, mode
        self.rewrite = Rewrite.of(source)
        self.stale_strides: dict[fx.Node, Any] = {}
        """The captured metadata of results whose strides differ from it now."""
        self.originals: dict[Any, fx.Node] = {}
        """Maps a converted value of the source to the new node that has it in its original dtype, if there is one. The
        key is the source node, or the node and the index of a result."""
        self.converted: dict[fx.Node, Any] = {}
        """Maps a converted value of the source to its image in the dtypes of the target, if there is one."""
        self._of_region: list[tuple[dict[Any, Any], Any]] = []
        """The entries of these two that were made from the other form in the current region (no_grad, autocast)."""

    @abstractmethod
    def converts(self, node: fx.Node) -> bool:
        """Whether the value of a node is a tensor of a dtype that is converted."""

    @abstractmethod
    def concerns(self, node: fx.Node) -> bool:
        """Whether a call is to be made on converted values."""

    @abstractmethod
    def reads_sizes(self, node: fx.Node) -> bool:
        """Whether a call that is concerned reads no data, so that the image of an operand serves as well."""

    @abstractmethod
    def make_original(self, value: fx.Node) -> fx.Node:
        """Add the calls that make the original of a value from its image."""

    @abstractmethod
    def make_image(self, value: fx.Node) -> Any:
        """Add the calls that make the image of a value from its original."""

    @abstractmethod
    def any_form(self, value: fx.Node) -> Any:
        """A node that has the sizes of a value, in whichever form."""

    @abstractmethod
    def convert(self, node: fx.Node) -> None:
        """Make a call on converted values, or copy it."""

    @abstractmethod
    def note(self, node: fx.Node, new: Any) -> None:
        """Record the copy of a node of the source."""

    def walk(self, written: Collection[fx.Node]) -> None:
        """Convert the whole graph. `written` values are written back to inputs or buffers after the run, so that they
        are needed in their own dtype though no node uses them."""
        for node in self.source.nodes:
            self.visit(node)
            if node in written:
                self.rewrite.replace(node, self.leaving(node))

    def visit(self, node: fx.Node) -> None:
        """Copy a node, or convert it."""
        if switches(node):
            self.enter_region()
        if node.op == "output":
            self.rewrite.copy(node, self.leaving)
        elif is_projection(node):
            self.project(node)
        elif not self.concerns(node):
            self.copy(node)
        # It asserts a dtype that no value here has.
        elif is_discharged_assertion(node):
            self.rewrite.replace(node, None)
        elif self.reads_sizes(node):
            self.note(node, self.rewrite.copy(node, self.any_form))
        else:
            self.convert(node)

    def enter_region(self) -> None:
        """Begin another region. Whether a conversion has a gradient depends on its region, so those of the last region
        are not used again."""
        for known, value in self._of_region:
            del known[value]
        self._of_region = []

    def project(self, node: fx.Node) -> None:
        """Copy the selection of one result."""
        self.note(node, self.rewrite.copy(node))

    def copy(self, node: fx.Node) -> None:
        """Copy a node on the originals of its operands."""
        self.note(node, self.rewrite.copy(node, self.original))

    def leaving(self, node: fx.Node) -> Any:
        """What is returned or written back for a value."""
        return self.original(node)

    # Values.

    def original(self, value: fx.Node) -> Any:
        """A value of the source in its own dtype."""
        if not self.converts(value):
            return self.rewrite.values[value]
        return self.made_once(self.originals, value, lambda: self.make_original(value))

    def image(self, value: fx.Node) -> Any:
        """A value of the source in the dtypes of the target."""
        if not self.converts(value):
            return self.rewrite.values[value]
        return self.made_once(self.converted, value, lambda: self.make_image(value))

    def made_once(self, known: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
        """The entry of `known`, which is made in each region that needs it."""
        if key not in known:
            known[key] = make()
            self._of_region.append((known, key))
        return known[key]

    # Calls.

    def emit(self, target: Any, args: tuple[Any, ...], at: fx.Node, label: str, **kwargs: Any) -> fx.Node:
        """Add a call whose origin is the source node `at`, with the metadata that PyTorch gives it."""
        new = self.rewrite.add("call_function", target, args, kwargs, f"{at.name}_{label}", at=at)
        new.meta = inherited_meta(at)
        new.meta["val"] = self.run(target, *fx.node.map_arg((args, kwargs), metadata))
        return new

    def run(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The result of a call on fake tensors."""
        with on_metadata(self.mode):
            return call_target(target, args, kwargs)

    def note_strides(self, new: Any, expected: Any) -> None:
        """Record the captured metadata of a result whose strides differ from it."""
        found = metadata(new) if isinstance(new, fx.Node) else None
        if isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor) and not same_layout(found, expected):
            self.stale_strides[new] = own_memory(found.new_empty_strided(expected.shape, expected.stride()))
