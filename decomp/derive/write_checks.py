"""A lowered program writes its inputs and buffers once, after it has read everything. In the source model, tensors that
overlap a written one would change midway, so a call with such tensors is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.lowered_module import add_input_check
from decomp.errors import InputsOverlap, NotWritable
from decomp.functionalize.overlap import MemoryRange, memory_range_of, overlap
from decomp.ir.aliases import attribute, mutated_args, spelling_of
from decomp.torch_internals.pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class Writes:
    """The names of tensors that a program reads and writes: inputs, and attributes of its module."""

    inputs: tuple[str, ...]
    read_inputs: tuple[str, ...]
    state: tuple[str, ...]
    read_state: tuple[str, ...]
    recorded: tuple[str, ...] = ()
    """Inputs whose writes are recorded by autograd."""

    def __call__(self, module: nn.Module, given: Mapping[str, Any]) -> None:
        """Raise `InputsOverlap` if a tensor that is written overlaps another input."""
        if torch.compiler.is_compiling():
            return  # while it is compiled or exported there are no addresses
        for name in self.inputs:
            # fx writes `*args` as the target of its placeholder.
            _refuse_unwritable(name.lstrip("*"), given.get(name), name in self.recorded)
        inputs = {name: tuple(_places(given.get(name))) for name in (*self.inputs, *self.read_inputs)}
        for i, one in enumerate(self.inputs):
            for other in (*self.inputs[i + 1 :], *self.read_inputs):
                if _meet(inputs[one], inputs[other]):
                    raise InputsOverlap(_input(one), _input(other))
            # State is looked up at each call: `load_state_dict(assign=True)` and `.to()` replace it.
            for name in (*self.state, *self.read_state):
                if _meet(inputs[one], tuple(_places(attribute(module, name)))):
                    raise InputsOverlap(_input(one), repr(name))
        # A caller may pass a buffer of the module, or a view of it, as an input.
        for name in self.state if self.read_inputs else ():
            found = tuple(_places(attribute(module, name)))
            for other in self.read_inputs:
                if _meet(found, inputs[other]):
                    raise InputsOverlap(repr(name), _input(other))


def _refuse_unwritable(name: str, value: Any, recorded: bool) -> None:
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            # Expanded: PyTorch refuses an in-place write to it as well, in its own words and later.
            if any(size > 1 and not stride for size, stride in zip(leaf.shape, leaf.stride())):
                raise NotWritable(name, "has elements that share memory", "")
            # Autograd refuses to record a write to a leaf; the check comes before anything is computed.
            if recorded and leaf.is_leaf and leaf.requires_grad and torch.is_grad_enabled():
                raise NotWritable(name, "is a leaf that requires a gradient", ", or under torch.no_grad()")


def _input(name: str) -> str:
    return f"input {name.lstrip('*')!r}"


def _places(value: Any) -> Iterator[MemoryRange]:
    for leaf in (value,) if isinstance(value, torch.Tensor) else tree_leaves(value):
        found = memory_range_of(leaf)
        if found is not None:
            yield found


def _meet(ones: tuple[MemoryRange, ...], others: tuple[MemoryRange, ...]) -> bool:
    return any(overlap(one, other) for one in ones for other in others)


def check_writes(module: fx.GraphModule) -> None:
    """Add a check of memory overlap to the module of a lowered program that writes. All its writes must be at its
    end."""
    writes = _writes(module.graph)
    # Buffers of a module overlap one another as in the source, and nobody else can pass them.
    if not writes.inputs and not (writes.state and writes.read_inputs):
        return
    add_input_check(module, writes)


def _writes(graph: fx.Graph) -> Writes:
    written = [target for node in graph.nodes for target in mutated_args(node)]
    targets = {_source(target): None for target in written}
    read = [node for node in graph.nodes if node.users and node not in targets]
    inputs, state = ([_named(nodes, op) for nodes in (targets, read)] for op in ("placeholder", "get_attr"))
    return Writes(inputs[0], inputs[1], state[0], state[1], _named(written, "placeholder"))


def _named(nodes: Iterable[fx.Node], op: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(node.target) for node in nodes if node.op == op))


def _source(node: fx.Node) -> fx.Node:
    """The tensor that is written through `detach()`, which hides the write from autograd."""
    while node.op in ("call_function", "call_method") and spelling_of(node).op.short == "detach":
        node = node.all_input_nodes[0]
    return node
