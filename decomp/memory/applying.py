"""Applies a plan: builds a program of the same calls under the same names, in their in-place and `out=` forms. They
write to pieces of an arena, which is allocated in each run."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from decomp.capture.frontends import graph_module
from decomp.capture.lowered_module import run_on_other_strides
from decomp.capture.module_hooks import carry_hooks
from decomp.graphs.rewrite import Rewrite
from decomp.ir.aliases import attribute, mutated_args
from decomp.ir.call import metadata
from decomp.memory import running
from decomp.memory.forms import ALLOCATES, find_form
from decomp.memory.lifetimes import LiveStorage
from decomp.memory.placing import ARENA, Buffer, Placement
from decomp.metadata.symbolic_sizes import SYMBOLIC


def apply_plan(graph: fx.Graph, root: nn.Module, placement: Placement, unplanned: fx.GraphModule) -> fx.GraphModule:
    """A module that shares parameters and buffers with `root`, and runs `graph` with its results placed by the plan. A
    plan is only valid for the strides of its example inputs: they determine the strides of all results, and the last
    bits that kernels compute. On inputs with other strides the module runs `unplanned`."""
    made = PlanRewriter(graph, root, placement).rewritten()
    bodies = {name: module for name, module in root.named_modules() if name and isinstance(module, fx.GraphModule)}
    result = graph_module(root, made, bodies=bodies)
    carry_hooks(root, result)
    run_on_other_strides(result, unplanned)
    return result


class PlanRewriter:
    """The rewrite of a graph into its planned form."""

    def __init__(self, graph: fx.Graph, root: nn.Module | None, placement: Placement) -> None:
        self.graph, self.root, self.placement = graph, root, placement
        self.rewrite = Rewrite.of(graph)
        # An input that the program writes must stay the caller's tensor.
        self.written = {written for node in graph.nodes for written in mutated_args(node, root)}
        self.pieces: dict[Any, fx.Node] = {}
        self.early: dict[int, list[Buffer]] = {}
        for buffer in placement.buffers:
            if buffer.early is not None:
                self.early.setdefault(buffer.early, []).append(buffer)
        self.like: dict[torch.device, fx.Node] = {}
        """By device: a tensor on it, whose device the arena takes when the program runs."""

    def rewritten(self) -> fx.Graph:
        inputs = self.graph.find_nodes(op="placeholder")
        # All placeholders come first, as fx requires.
        for node in inputs:
            self.rewrite.copy(node)
        for node in inputs:
            self._input(node)
        inside = self.placement.in_arena()
        # Allocated as late as possible, which the profile counts on.
        first = min((buffer.birth for buffer in inside), default=None)
        for step, node in enumerate(self.graph.nodes):
            if node.op == "placeholder":
                continue
            if step == first:
                self._arena(inside[0], node)
            for buffer in self.early.get(step, ()):
                self._result_memory(buffer, node)
            self._node(node)
        return self.rewrite.graph

    def _input(self, node: fx.Node) -> None:
        value = metadata(node)
        if not isinstance(value, torch.Tensor):
            return
        shape = tuple(size if type(size) is int else None for size in value.shape)
        args = (str(node.target), self.rewrite.values[node], value.dtype, shape)
        self._stand_in(node, running.check_input, args, value)

    def _stand_in(self, node: fx.Node, function: Any, args: tuple[Any, ...], value: torch.Tensor) -> None:
        checked = self.rewrite.add("call_function", function, args, {}, f"{node.name}_planned", at=node)
        checked.meta.update(node.meta)
        self.like.setdefault(value.device, checked)
        if node not in self.written:
            self.rewrite.replace(node, checked)

    def _arena(self, buffer: Buffer, node: fx.Node) -> None:
        # Only buffers of one device are in the arena (`_commonest_device`).
        device = buffer.head.value.device
        args = (self.placement.arena, *self._place(device))
        made = self.rewrite.add("call_function", running.arena, args, {}, "arena", at=node)
        made.meta["val"] = _fake_like(buffer.head.value, torch.uint8, (self.placement.arena,), (1,))
        self.pieces[ARENA] = made

    def _place(self, device: torch.device) -> tuple[Any, ...]:
        """A tensor on the device, or the device itself if no input is on it."""
        return (self.like.get(device, device),)

    def _result_memory(self, buffer: Buffer, node: fx.Node) -> None:
        value = buffer.head.value
        args = (*self._place(value.device), value.dtype, tuple(value.shape), tuple(value.stride()))
        name = f"{buffer.head.node.name}_memory"
        made = self.rewrite.add("call_function", running.result_memory, args, {}, name, at=node)
        made.meta["val"] = value
        self.pieces[buffer.head.node] = made

    def _node(self, node: fx.Node) -> None:
        buffer = self.placement.of.get(node)
        if node.op == "get_attr":
            self._state(node)
        elif buffer is None:
            self.rewrite.copy(node)
        elif node in self.placement.over:
            self._in_place(node, self.placement.over[node])
        elif buffer.memory:
            self._into(node, self._piece(buffer, buffer.head))
        elif self._has_memory(buffer):
            self._into(node, self.pieces[node])
        else:
            self.rewrite.copy(node)

    def _state(self, node: fx.Node) -> None:
        copied = self.rewrite.copy(node)
        tensor = attribute(self.root, str(node.target))
        # Integers have no gradient, and are not converted by `model.half()`.
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and isinstance(metadata(node), torch.Tensor):
            self._stand_in(node, running.check_state, (str(node.target), copied, tensor.dtype), tensor)

    def _piece(self, buffer: Buffer, storage: LiveStorage) -> fx.Node:
        """The memory of a result. Results with the same memory, offset and layout share a node."""
        value = storage.value
        form = value.dtype, tuple(value.shape), tuple(value.stride())
        key = buffer.memory, buffer.offset, form
        # Making a piece takes a microsecond or two in each run.
        if key not in self.pieces:
            self.pieces[key] = self._piece_of(buffer, form, storage.node)
            self.pieces[key].meta["val"] = value
        return self.pieces[key]

    def _piece_of(self, buffer: Buffer, form: tuple[Any, ...], at: fx.Node) -> fx.Node:
        args = (self.pieces[buffer.memory], buffer.offset, *form)
        return self.rewrite.add("call_function", running.piece, args, {}, "piece", at=at)

    def _has_memory(self, buffer: Buffer) -> bool:
        """Whether the memory of a result is allocated before the call that computes it."""
        return buffer.early is not None

    def _into(self, node: fx.Node, memory: fx.Node) -> None:
        """The call with `out=`."""
        form = find_form(node)
        if form is ALLOCATES:
            self.rewrite.replace(node, memory)
            return
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.rewrite.values.__getitem__)
        if form.copies:
            self._call(node, form.out, (memory, args[0]), {})
        else:
            self._call(node, form.out, args, {**kwargs, "out": memory})

    def _in_place(self, node: fx.Node, operand: fx.Node) -> None:
        form, there = find_form(node), self.rewrite.values[operand]
        # A copy of a value that dies is the value itself.
        if form.copies:
            self.rewrite.replace(node, there)
        elif form.out is not None:
            self._into(node, there)
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.rewrite.values.__getitem__)
            self._call(node, form.inplace, args, kwargs)

    def _call(self, node: fx.Node, target: Any, args: Any, kwargs: Any) -> None:
        made = self.rewrite.add("call_function", target, args, kwargs, at=node)
        made.meta.update(node.meta)
        self.rewrite.replace(node, made)


def _fake_like(value: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """A fake (or meta) tensor like `value`, with another dtype and layout."""
    assert not any(isinstance(size, SYMBOLIC) for size in shape)
    return value.new_empty_strided(shape, strides, dtype=dtype)
