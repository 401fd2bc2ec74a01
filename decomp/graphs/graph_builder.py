"""Creation of nodes in a functional graph: in the dialect of the program, with metadata if the program has it, with
names that no source node has, and with a record of the source node for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
import operator
from typing import Any

import torch
from torch import fx

from decomp.graphs.rewrite import Rewrite
from decomp.graphs.tracing import fake_like, on_metadata, without_guards
from decomp.ir.aliases import bodies, spelling_of
from decomp.ir.arguments import nodes_in
from decomp.ir.call import call_target, metadata
from decomp.ir.dtypes import is_complex
from decomp.ir.op_facts import ASSERTS, MODE_SWITCHES
from decomp.metadata.fakes import captured_metadata, fakes_in
from decomp.metadata.open_kernels import kernels_of
from decomp.metadata.strides import is_in_order, same_layout
from decomp.ops import aten
from decomp.torch_internals.fakes import FakeTensor
from decomp.torch_internals.pytree import tree_map

OVERLOADS = {
    "slice": "Tensor",
    "select": "int",
    "transpose": "int",
    "squeeze": "dim",
    "movedim": "intlist",
    "view_dtype": "dtype",
    "to_dtype": "dtype",
    "scatter": "src",
    "flatten": "using_ints",
    "mean": "dim",
    "var": "correction",
    "lerp": "Scalar",
    "sub": "Tensor",
    "masked_fill": "Scalar",
    "fill": "Scalar",
}
"""Overloads of the ATen ops that are emitted here, if not the default one."""


class Emitter:
    """Appends nodes to the functional graph, and records their source nodes."""

    def __init__(self, source: fx.Graph) -> None:
        self.rewrite = Rewrite.of(source)
        self.graph = self.rewrite.graph
        self.emitted: set[fx.Node] = set()
        """New nodes, as opposed to copies."""
        self.stale_strides: dict[fx.Node, Any] = {}
        """Nodes whose strides differ from the captured metadata with which their users were traced, mapped to that
        metadata."""
        self.is_aten = is_aten(source)
        self.key, self.mode = captured_metadata(source)
        self._fakes = fakes_in(self.mode) if self.mode is not None else None

    def copy(self, node: fx.Node, value_of: Callable[[fx.Node], fx.Node]) -> fx.Node:
        """Copy `node`, with its name and metadata."""
        new: fx.Node = self.rewrite.copy(node, value_of)
        if self.mode is not None:
            for given in node.all_input_nodes:
                self._compare(value_of(given), metadata(given))
        return new

    def like(self, node: fx.Node, op: str, target: Any, args: Any, kwargs: Any) -> fx.Node:
        """A node that replaces `node`, with its name and metadata, on memory of its own."""
        new = self.rewrite.add(op, target, tuple(args), dict(kwargs), at=node)
        self.emitted.add(new)
        new.meta = dict(node.meta)
        if self.key is not None and self.key in new.meta:
            value = metadata(node)
            given = value if value is not None else self.computed(target, args, kwargs)  # `__setitem__` has none
            new.meta[self.key] = self.fresh(given)
            if isinstance(value, torch.Tensor) and not is_in_order(value):
                # In new memory, without gaps, a value may have strides other than those of the tensor that was written.
                found = self.computed(target, args, kwargs)
                if isinstance(found, torch.Tensor) and found.dim() == value.dim():
                    new.meta[self.key] = self.fresh(found)
                    self._compare(new, value)
        return new

    def _compare(self, new: fx.Node, captured: Any) -> None:
        """Record a node whose strides differ from those with which its users were captured."""
        value = metadata(new)
        if isinstance(value, torch.Tensor) and isinstance(captured, torch.Tensor) and value is not captured:
            if not same_layout(value, captured):
                self.stale_strides.setdefault(new, captured)

    def call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, at: fx.Node, label: str = ""
    ) -> fx.Node:
        """A call of the ATen op `name`, in the dialect of the program; its source node is `at`."""
        if self.is_aten:
            packet = getattr(aten, name.removesuffix("_dtype"))
            target = getattr(packet, OVERLOADS.get(name, "default"))
            return self.node("call_function", target, args, kwargs or {}, at=at, label=label)
        if name == "slice":
            tensor, dim, *bounds = args
            # `torch` has no function for a slice, and without metadata the number of dimensions before it is unknown.
            after = (Ellipsis, slice(*bounds), *(slice(None),) * (-dim - 1))
            index = after if dim < 0 else (slice(None),) * dim + (slice(*bounds),)
            return self.node("call_function", operator.getitem, (tensor, index), {}, at=at, label=label)
        function = getattr(torch, name, None)
        kind, target = ("call_function", function) if function is not None else ("call_method", name)
        return self.node(
            kind,
            target.removesuffix("_dtype") if isinstance(target, str) else target,
            args,
            kwargs or {},
            at=at,
            label=label,
        )

    def placed(self, name: str, base: fx.Node, value: fx.Node, dim: Any, *place: Any, at: fx.Node) -> fx.Node:
        """`base` with the elements of the view `name` (select, slice) replaced by `value`, which has its dtype."""
        if not is_complex(metadata(base)):
            return self.call(f"{name}_scatter", (base, value, dim, *place), at=at)
        # The scatters have no derivative for complex numbers (torch 2.13), but they have one for the parts.
        # view_as_real refuses tensors with a conjugate bit.
        parts = [self.call("view_as_real", (self._resolved(x, at),), at=at) for x in (base, value)]
        new = self.call(f"{name}_scatter", (*parts, dim - 1 if dim < 0 else dim, *place), at=at)
        return self.call("view_as_complex", (new,), at=at)

    def _resolved(self, tensor: fx.Node, at: fx.Node) -> fx.Node:
        value = metadata(tensor)
        conjugate = isinstance(value, torch.Tensor) and value.is_conj()
        return self.call("resolve_conj", (tensor,), at=at) if conjugate else tensor

    def node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, at: fx.Node, label: str = ""
    ) -> fx.Node:
        """A new node whose source node is `at`. Its metadata is computed from that of its inputs."""
        new = self.rewrite.add(op, target, args, kwargs, f"{label or at.name}_updated", at=at)
        self.emitted.add(new)
        # Where the call comes from. What else `at` has, such as the bindings of symbols, describes its own value.
        kept = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "seq_nr")
        new.meta = {key: at.meta[key] for key in kept if key in at.meta}
        if self.key is not None:
            value = self.computed(target, args, kwargs)
            if value is not None:
                new.meta[self.key] = value
        return new

    def fresh(self, value: Any) -> Any:
        """`value` on memory of its own: a fake tensor shared by two nodes would make them look like one storage."""
        return tree_map(own_memory, value)

    def computed(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call on the metadata of its arguments; None if any of them has no metadata."""
        if self.mode is None:
            return None
        if any(metadata(n) is None for n in nodes_in((args, kwargs))):
            return None
        args, kwargs = fx.node.map_aggregate((args, kwargs), lambda a: metadata(a) if isinstance(a, fx.Node) else a)
        if self._fakes is not None and isinstance(target, torch._ops.OpOverload):
            # A new one each time, as it keeps alive all tensors that it has seen.
            found = kernels_of(self._fakes).run(target, args, dict(kwargs))
            if found is not NotImplemented:
                return found
        with on_metadata(self.mode):
            return call_target(target, args, kwargs)

    def sizes(self, tensor: fx.Node, at: fx.Node) -> list[Any]:
        """The sizes of a tensor of known shape: numbers, and nodes for dynamic ones."""
        found: list[Any] = []
        for dim, size in enumerate(metadata(tensor).shape):
            if isinstance(size, torch.SymInt):
                found.append(self.node("call_function", aten.sym_size.int, (tensor, dim), {}, at=at, label="size"))
            else:
                found.append(size)
        return found

    def reshape(self, tensor: fx.Node, like: fx.Node, at: fx.Node) -> fx.Node:
        """`tensor` in the shape of `like`."""
        if isinstance(metadata(like), torch.Tensor):
            # By sizes where they are known: `reshape_as` would keep a use of `like`, and so a tensor that is no longer
            # needed.
            return self.call("reshape", (tensor, self.sizes(like, at)), at=at)
        return self.node("call_method", "reshape_as", (tensor, like), {}, at=at)

    def sweep(self, candidates: Iterable[fx.Node]) -> None:
        """Erase unused nodes of `candidates`, which are in reverse order."""
        for node in candidates:
            if not node.users and not _has_effect(node):
                self.stale_strides.pop(node, None)
                self.rewrite.erase(node)


def own_memory(value: Any) -> Any:
    """A fake tensor like `value` on memory of its own; other values unchanged."""
    if not isinstance(value, FakeTensor):
        return value
    with without_guards(value.fake_mode):
        return fake_like(value.fake_mode, value)


def is_aten(graph: fx.Graph) -> bool:
    """Whether a graph calls ops only as overloads, like graphs of `torch.export`. One with functions, methods or
    modules as well is in the torch dialect, which may contain overloads. If it only calls higher-order ops, their
    bodies decide."""
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    return (
        (any(isinstance(target, torch._ops.OpOverload) for target in targets) or _has_aten_bodies(graph))
        and not any(
            node.op == "call_method" or node.op == "call_module" and not checks_inputs(node) for node in graph.nodes
        )
        and not any(map(_is_function_of_torch, targets))
    )


def checks_inputs(node: fx.Node) -> bool:
    """Whether a node is the check of the inputs that `ExportedProgram.module()` calls; it calls no other module."""
    return bool(node.op == "call_module" and node.target == "_guards_fn")


def _has_aten_bodies(graph: fx.Graph) -> bool:
    return any(is_aten(body.graph) for node in graph.nodes for _, body in bodies(node, graph.owning_module))


def _is_function_of_torch(target: Any) -> bool:
    """Whether a target is a function that names an op, as opposed to a mode switch or arithmetic on sizes."""
    name, module = getattr(target, "__name__", ""), getattr(target, "__module__", None) or "torch"
    if isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return False
    return module.split(".")[0] == "torch" and name not in MODE_SWITCHES and not name.startswith(("sym_", *ASSERTS))


def _has_effect(node: fx.Node) -> bool:
    # A `get_attr` without users may be written back at the end, by a `copy_` that is appended later.
    if node.op in ("placeholder", "get_attr", "output", "call_module"):
        return True
    if node.op == "call_function" and node.is_impure():
        return True
    packet = spelling_of(node).op.packet
    overload = getattr(packet, packet.overloads()[0]) if packet is not None else None
    # If an unused random call were dropped, all later draws would change.
    return overload is not None and torch.Tag.nondeterministic_seeded in overload.tags
