"""Replaces each run of row-wise calls by one call, which runs them on one block of rows after the other, so that the
intermediate results need the memory of a block, not of whole tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
import math
import operator
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.frontends import graph_module
from decomp.capture.module_hooks import carry_hooks
from decomp.graphs.rewrite import Rewrite
from decomp.ir.call import metadata
from decomp.memory import running
from decomp.memory.bodies import BlockBody, build_body
from decomp.memory.rows import VECTOR, count_row_dims, is_view, needs_whole_vectors
from decomp.ops import aten

# 256 KiB in float32: a few of them fit a second-level cache of a core.
MAX_BLOCK_ELEMENTS = 1 << 16
"""The maximum number of elements of the widest tensor in a block."""
MAX_BLOCK_GROWTH = 16
"""A block may be this many times larger if it has to end with a whole vector; there must then be this many blocks."""
# 2 MiB in float32.
MIN_BLOCKED_ELEMENTS = 1 << 19
"""The minimum number of elements for which blocks pay off: smaller tensors fit the caches anyway."""


@dataclass
class RowwiseCalls:
    """Consecutive row-wise calls. `before` has the factories between them, which are moved before the run."""

    nodes: list[fx.Node] = field(default_factory=list)
    before: list[fx.Node] = field(default_factory=list)
    kept: int = 0
    """The number of leading dimensions in which all calls are row-wise."""
    rows: tuple[int, ...] = ()
    """The sizes of these dimensions."""
    members: set[fx.Node] = field(default_factory=set)
    """The nodes as a set."""
    widest: int = 0
    """The number of elements of the largest result."""

    def add(self, node: fx.Node, kept: int) -> None:
        """Add a call that is row-wise in its first `kept` dimensions."""
        shape = metadata(node).shape
        self.nodes.append(node)
        self.members.add(node)
        self.kept, self.rows = kept, tuple(shape[:kept])
        self.widest = max(self.widest, shape.numel())


@dataclass(frozen=True)
class BlockedProgram:
    """A program in which each run is one call."""

    root: fx.GraphModule
    calls: dict[fx.Node, fx.Node]
    """By call in a run of the source program: the call that replaces the run."""
    copies: dict[fx.Node, fx.Node]
    """By node of the source program: its copy here."""
    bodies: dict[fx.Node, BlockBody]
    """By call that replaces a run: the body that it runs on each block."""


def run_in_blocks(graph: fx.Graph, root: fx.GraphModule) -> BlockedProgram | None:
    """The program with its runs of row-wise calls in blocks; None if no run is worth it."""
    runs = [(run, shape) for run in _runs(graph) if (shape := _block(run)) is not None]
    chosen = [(run, body) for run, shape in runs if (body := build_body(run.nodes, run.rows[: len(shape)], shape))]
    if not chosen:
        return None
    return _Blocking(graph, root, chosen).done()


def _runs(graph: fx.Graph) -> list[RowwiseCalls]:
    found, run = [], RowwiseCalls()
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        # Otherwise a mask or an attribute in the middle would end a run.
        if _is_made_of_nothing(node):
            run.before.append(node)
        elif not _joins(run, node):
            found.append(run)
            run = RowwiseCalls()
            _joins(run, node)
    return [run for run in [*found, run] if run.nodes]


def _is_made_of_nothing(node: fx.Node) -> bool:
    """Whether a node has no operands and can be moved up: an attribute, or a `full`."""
    return node.op == "get_attr" or node.target is aten.full.default and not node.all_input_nodes


def _joins(run: RowwiseCalls, node: fx.Node) -> bool:
    """Try to add a call to a run; returns whether it is row-wise together with the others and was added."""
    kept = count_row_dims(node)
    if not kept:
        return False
    made = metadata(node)
    if not run.nodes:
        run.add(node, kept)
        return True
    inside = [used for used in node.all_input_nodes if used in run.members]
    kept = min(kept, run.kept, made.dim())
    shapes = [tuple(metadata(used).shape) for used in (node, *inside)]
    # Rows must be the same ones in all calls: the run has the dimensions that all share.
    while kept and any(shape[:kept] != run.rows[:kept] for shape in shapes):
        kept -= 1
    # One row alone would be larger than a block.
    if kept == 0 or math.prod(run.rows[:kept]) < 2 or math.prod(run.rows[:kept]) * MAX_BLOCK_ELEMENTS < run.widest:
        return False
    run.add(node, kept)
    return True


def _block(run: RowwiseCalls) -> tuple[int, ...] | None:
    """The sizes of a block in the dimensions of the rows: several rows of one dimension, and size 1 in the dimensions
    before it. None if the run is not worth it, or its rows do not divide into equal blocks."""
    computed = [node for node in run.nodes if not is_view(node)]
    # One call has no intermediate result.
    if len(computed) < 2 or run.widest < MIN_BLOCKED_ELEMENTS:
        return None
    for j in range(run.kept):
        unit = run.widest // math.prod(run.rows[: j + 1])
        if unit > MAX_BLOCK_ELEMENTS:
            continue
        fits = MAX_BLOCK_ELEMENTS // unit
        # Equal blocks, so that one body with fixed sizes serves all.
        sizes = [n for n in range(1, fits + 1) if run.rows[j] % n == 0 and _ends_with_vectors(run, j, n)]
        if sizes:
            return (
                # Blocks of less than an eighth of the size spend their time in calls.
                (*(1,) * j, sizes[-1]) if sizes[-1] * unit * 8 >= min(MAX_BLOCK_ELEMENTS, run.rows[j] * unit) else None
            )
        # A tensor with one element per row needs many rows to fill a vector.
        wider = range(fits + 1, min(MAX_BLOCK_GROWTH * fits, run.rows[j] // MAX_BLOCK_GROWTH) + 1)
        found = next((n for n in wider if run.rows[j] % n == 0 and _ends_with_vectors(run, j, n)), None)
        return (*(1,) * j, found) if found is not None else None
    return None


def _ends_with_vectors(run: RowwiseCalls, j: int, n: int) -> bool:
    """Whether a block of `n` rows ends with a whole vector in every call that needs it, also if the elements are split
    between threads."""
    # `at::parallel_for` splits elements evenly between threads, and each piece has a remainder of its own.
    share = VECTOR * torch.get_num_threads()
    for node in run.nodes:
        made = metadata(node)
        if not is_view(node) and needs_whole_vectors(node):
            if made.numel() % share or n * (made.numel() // math.prod(made.shape[: j + 1])) % VECTOR:
                return False
            if any(
                metadata(used).shape != made.shape or not metadata(used).is_contiguous()
                for used in node.all_input_nodes
                if metadata(used).numel() > 1
            ):
                return False
    return n > 1 or math.prod(run.rows[j + 1 : run.kept]) > 1


class _Blocking:
    """The rewrite of a graph that replaces its runs."""

    def __init__(self, graph: fx.Graph, root: fx.GraphModule, runs: list[tuple[RowwiseCalls, BlockBody]]) -> None:
        self.graph, self.root = graph, root
        self.rewrite = Rewrite.of(graph)
        self.modules: dict[str, nn.Module] = {}
        self.first = {run.nodes[0]: (run, body) for run, body in runs}
        self.early = {run.nodes[0]: run.before for run, _ in runs}
        self.inside = {node: run for run, _ in runs for node in run.nodes}
        self.calls: dict[fx.Node, fx.Node] = {}
        self.bodies: dict[fx.Node, BlockBody] = {}

    def done(self) -> BlockedProgram:
        for node in self.graph.nodes:
            if node in self.first:
                for factory in self.early[node]:
                    self._copy(factory)
                self._run(*self.first[node])
            if node not in self.inside:
                self._views(node)
                self._copy(node)
        bodies = {name: m for name, m in self.root.named_modules() if name and isinstance(m, fx.GraphModule)}
        root = graph_module(self.root, self.rewrite.graph, bodies={**bodies, **self.modules})
        carry_hooks(self.root, root)
        copies = {source: new for new, source in self.rewrite.origin.items() if new.name == source.name}
        return BlockedProgram(root, self.calls, copies, self.bodies)

    def _copy(self, node: fx.Node) -> None:
        if node not in self.rewrite.values:
            self.rewrite.copy(node)

    def _views(self, node: fx.Node) -> None:
        """Repeat views from inside a run that are used outside it."""
        for used in node.all_input_nodes:
            self._value(used)

    def _value(self, node: fx.Node) -> fx.Node:
        """The image of a node outside the runs."""
        if node not in self.rewrite.values:
            self._views(node)
            self.rewrite.copy(node)
        found: fx.Node = self.rewrite.values[node]
        return found

    def _run(self, run: RowwiseCalls, body: BlockBody) -> None:
        at, value = run.nodes[0], self._value
        name = self.rewrite.free(f"rows_of_{at.name}")
        self.modules[name] = fx.GraphModule(nn.Module(), body.graph, "Rows")
        module = self.rewrite.add("get_attr", name, (), {}, name, at=at)
        like = value(body.sliced[0])
        outs = [self._memory(like, out, metadata(out), f"{out.name}_rows") for out in body.results]
        bytes_of = metadata(at).new_empty((body.scratch,), dtype=torch.uint8)
        work = self._memory(like, at, bytes_of, "scratch") if body.scratch else None
        args = (module, tuple(map(value, body.sliced)), tuple(map(value, body.whole)), tuple(outs), work, body.spec)
        call = self.rewrite.add("call_function", running.in_blocks, args, {}, f"{at.name}_in_blocks", at=at)
        call.meta["val"] = tuple(metadata(out) for out in body.results)
        self.bodies[call] = body
        self.calls.update(dict.fromkeys(run.nodes, call))
        for i, out in enumerate(body.results):
            taken = self.rewrite.add("call_function", operator.getitem, (call, i), {}, at=out)
            taken.meta.update(out.meta)
            self.rewrite.replace(out, taken)

    def _memory(self, like: fx.Node, at: fx.Node, value: torch.Tensor, name: str) -> fx.Node:
        args: Any = (like, value.dtype, tuple(value.shape), tuple(value.stride()))
        made = self.rewrite.add("call_function", running.result_memory, args, {}, name, at=at)
        made.meta["val"] = value
        return made
