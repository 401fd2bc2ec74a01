"""The body of a run of row-wise calls: a graph that computes one block of rows. It is planned like a program, writes
its results into memory that the caller passes, and uses the same scratch memory for all blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import math
from typing import Any

import torch
from torch import fx

from decomp.ir.aliases import short_name
from decomp.ir.call import metadata
from decomp.memory.applying import PlanRewriter
from decomp.memory.lifetimes import compute_lifetimes
from decomp.memory.packing import ALIGNMENT
from decomp.memory.placing import ARENA, Buffer, Placement, place_in_arena
from decomp.memory.rows import is_view, row_mask

RESHAPES = ("view", "reshape", "_unsafe_view", "expand")


@dataclass(frozen=True)
class BlockBody:
    """The graph that runs on each block, and how it relates to the program."""

    graph: fx.Graph
    """The planned graph. Its inputs: blocks of `sliced`, all of `whole`, blocks of the memory of `results`, and pieces
    of the scratch memory."""
    unplanned: fx.Graph
    placement: Placement
    sliced: tuple[fx.Node, ...]
    """Operands from outside that are split into rows."""
    whole: tuple[fx.Node, ...]
    """Operands from outside that each row uses as a whole."""
    results: tuple[fx.Node, ...]
    """Calls of the run whose results are used outside it."""
    scratch: int
    """Bytes of scratch memory."""
    copies: dict[fx.Node, fx.Node]
    """By call of the run: its copy in `unplanned`."""
    spec: tuple[Any, ...]
    """The sizes of the rows and of a block; for each sliced value, a mask of the dimensions that it has; the pieces."""


def build_body(nodes: Sequence[fx.Node], rows: tuple[int, ...], block: tuple[int, ...]) -> BlockBody | None:
    """The body for blocks of the given sizes; None if an operand has its rows in other dimensions."""
    operands = _operands(nodes, rows)
    if operands is None:
        return None
    sliced = {used: mask for used, mask in operands.items() if mask}
    whole = [used for used in operands if used not in sliced]
    results = _results(nodes)
    # The memory of a view is that of a call, which is the result then.
    if not sliced or not results or any(is_view(result) for result in results):
        return None
    graph, copies = _graph(nodes, sliced, whole, results, rows, block)
    placement = place_in_arena(compute_lifetimes(graph, None), rooms=_is_aligned(results, rows, block))
    applied = _AppliedBody(graph, placement)
    spec = (rows, block, tuple(sliced.values()), tuple(applied.specs))
    outside = tuple(sliced), tuple(whole), tuple(results)
    return BlockBody(applied.graph, graph, placement, *outside, placement.arena, copies, spec)


def _operands(nodes: Sequence[fx.Node], rows: tuple[int, ...]) -> dict[fx.Node, tuple[bool, ...]] | None:
    """The operands from outside the run, each with a mask of the dimensions in which it has the rows; None if two uses
    of an operand disagree."""
    inside, found = set(nodes), dict[fx.Node, tuple[bool, ...]]()
    for node in nodes:
        made = metadata(node)
        for used in node.all_input_nodes:
            given = metadata(used)
            same = is_view(node) or given.dim() != made.dim() or tuple(given.shape) == tuple(made.shape)
            prefix = tuple(given.shape[: len(rows)]) == rows
            # The same sizes may be at other places: broadcasting aligns at the last dimension, and rows are the first.
            mask = (True,) * len(rows) if prefix and same and not _aligns_right(node) else row_mask(given, made, rows)
            if mask is None or used in inside and mask != (True,) * len(rows) or found.get(used, mask) != mask:
                return None
            if used not in inside:
                found[used] = mask
    return found


def _aligns_right(node: fx.Node) -> bool:
    """Whether operands are aligned with the result at the last dimension, as in broadcasting pointwise ops."""
    return torch.Tag.pointwise in node.target.tags


def _results(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The calls whose memory is used outside the run, directly or through views."""
    inside, found = set(nodes), dict[fx.Node, None]()
    for node in nodes:
        if all(user in inside for user in node.users):
            continue
        base = node
        while base in inside and is_view(base):
            base = base.all_input_nodes[0]
        if base in inside:
            found[base] = None
    return list(found)


def _is_aligned(results: Iterable[fx.Node], rows: tuple[int, ...], block: tuple[int, ...]) -> bool:
    """Whether all blocks of the results begin at multiples of the alignment."""
    share = math.prod(block) / math.prod(rows)
    # Only then may other results use their memory meanwhile: offsets count from the start of a block.
    return all(metadata(result).nbytes * share % ALIGNMENT == 0 for result in results)


def _graph(
    nodes: Sequence[fx.Node],
    sliced: dict[fx.Node, tuple[bool, ...]],
    whole: Sequence[fx.Node],
    results: Sequence[fx.Node],
    rows: tuple[int, ...],
    block: tuple[int, ...],
) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    graph, values = fx.Graph(), dict[fx.Node, fx.Node]()
    for used in (*sliced, *whole):
        values[used] = graph.placeholder(used.name)
        values[used].meta["val"] = _of_block(metadata(used), sliced.get(used, ()), block)
    for node in nodes:
        new = values[node] = graph.node_copy(node, values.__getitem__)
        if is_view(node):
            _resize(new, metadata(node), block)
            args, kwargs = fx.node.map_arg((new.args, new.kwargs), metadata)
            # On the meta device, as its strides follow from those of the block.
            new.meta = {"val": new.target(*args, **kwargs)}
        else:
            new.meta = {"val": _of_block(metadata(node), (True,) * len(rows), block)}
    graph.output(tuple(values[result] for result in results))
    return graph, values


def _of_block(value: torch.Tensor, mask: tuple[bool, ...], block: tuple[int, ...]) -> torch.Tensor:
    """The metadata of a block of a tensor: contiguous if the tensor is, else with the strides of the tensor."""
    sizes = [n if has else size for size, n, has in zip(value.shape, block, mask)] + list(value.shape[len(mask) :])
    if value.is_contiguous():
        # No device is asked: a body is planned once for whatever runs it.
        return torch.empty(sizes, dtype=value.dtype, device="meta")
    return torch.empty_strided(sizes, value.stride(), dtype=value.dtype, device="meta")


def _resize(new: fx.Node, value: torch.Tensor, block: tuple[int, ...]) -> None:
    """Replace the sizes in the arguments of a reshape by those of a block."""
    name = short_name(new.target)
    if name in RESHAPES and not isinstance(new.args[1], torch.dtype):
        new.args = (new.args[0], [*block, *value.shape[len(block) :]], *new.args[2:])


class _AppliedBody(PlanRewriter):
    """The rewrite of a body into its planned form. The memory of its results, and the pieces of the scratch memory, are
    inputs, so that pieces are made once for all blocks."""

    def __init__(self, graph: fx.Graph, placement: Placement) -> None:
        super().__init__(graph, None, placement)
        self.specs: list[tuple[Any, ...]] = []
        nodes = list(graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        for node in inputs:
            self.rewrite.copy(node)
        output = nodes[-1]
        self.memory = {placement.of[result].head.node: self._given(result) for result in output.args[0]}
        self.pieces.update(self.memory)
        for buffer in placement.in_arena():
            self._piece(buffer, buffer.head)
        for node in nodes[len(inputs) : -1]:
            self._node(node)
        self.rewrite.graph.output(())
        self.graph = self.rewrite.graph

    def _given(self, result: fx.Node) -> fx.Node:
        return self.rewrite.add("placeholder", f"{result.name}_out", (), {}, f"{result.name}_out", at=result)

    def _piece_of(self, buffer: Buffer, form: tuple[Any, ...], at: fx.Node) -> fx.Node:
        if buffer.memory != ARENA:
            return super()._piece_of(buffer, form, at)
        name = f"piece_{len(self.specs)}"
        self.specs.append((buffer.offset, *form))
        return self.rewrite.add("placeholder", name, (), {}, name, at=at)

    def _has_memory(self, buffer: Buffer) -> bool:
        return buffer.head.node in self.memory
