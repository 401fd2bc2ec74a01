"""`memory_plan`: the memory that a program takes when it is interpreted call by call, and a program that takes less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import fx

from decomp.errors import NotPortable, boundary
from decomp.figures import place_of_plot
from decomp.forks import collector_paused
from decomp.ir.call import of_node
from decomp.loading import Unlifted, has_dynamic_sizes, is_computation, load
from decomp.memory.applying import apply_plan
from decomp.memory.blocks import BlockedProgram, run_in_blocks
from decomp.memory.checking import verify_placement
from decomp.memory.lifetimes import Lifetimes, compute_lifetimes
from decomp.memory.placing import ARENA, Placement, place
from decomp.memory.table import render_plan
from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.rules.options import CHECKS


@dataclass(frozen=True)
class OpMemory:
    """The most memory held while the calls of one op run. For a lowered program: an op of its source."""

    op: str
    calls: int
    before: int
    """Bytes without the plan."""
    after: int
    """Bytes with the plan."""
    in_place: int
    """How many of the calls overwrite an operand."""
    in_arena: int
    """How many write into planned memory."""
    in_blocks: int
    """How many run in blocks of rows."""


@dataclass(frozen=True)
class MemoryPlan:
    """The memory that a program takes, without its inputs, parameters and constants, and the places of its results.
    `print(plan)` shows it by op, `apply()` returns the planned program.

    Runs of large row-wise calls run on one block of rows after the other, so that intermediate results only take the
    memory of a block. Results of elementwise ops overwrite an operand that dies with the call. Other intermediate
    results are placed in one arena, at offsets that are multiples of 64 bytes, or in the memory of a returned result
    until that is computed. Returned results have memory of their own.
    """

    peak: int
    """Bytes held at the widest step, with the plan."""
    unplanned_peak: int
    """The same without the plan: each result has memory of its own, freed after its last use."""
    lower_bound: int
    """The most bytes of results alive at one step: no packing needs less, given the results that overwrite operands."""
    arena: int
    """Bytes of the arena; 0 without one."""
    ops: tuple[OpMemory, ...]
    """By op, the widest first."""
    dynamic: bool
    """Whether sizes vary; all figures are then those of the example inputs."""
    program: Unlifted = field(repr=False)
    """The program that was planned."""
    planned: PlannedMemory = field(repr=False)
    """The program with runs of calls in blocks, and the place of each result."""
    before: tuple[int, ...] = field(repr=False)
    """Bytes held at each step without the plan."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPortable(
            "a MemoryPlan cannot be pickled: it holds nodes of your program\n  to do: pickle str(plan), or plan the "
            "program's memory in the other process"
        )

    def __copy__(self) -> MemoryPlan:
        return self

    def __deepcopy__(self, memo: Any) -> MemoryPlan:
        return self

    @property
    def ratio(self) -> float:
        """The peak with the plan over the peak without."""
        return self.peak / self.unplanned_peak if self.unplanned_peak else 1.0

    @property
    def placement(self) -> Placement:
        """The place of each result."""
        return self.planned.placement

    @property
    def in_place(self) -> int:
        """How many calls overwrite an operand."""
        return sum(op.in_place for op in self.ops)

    @property
    def in_arena(self) -> int:
        """How many calls write into planned memory, including those that overwrite an operand there."""
        return sum(op.in_arena for op in self.ops)

    @property
    def in_blocks(self) -> int:
        """How many calls run in blocks of rows."""
        return sum(op.in_blocks for op in self.ops)

    def offset(self, node: fx.Node | str) -> int | None:
        """The offset in bytes of a call's result in the arena; None if it is elsewhere. Raises `UnknownNode`, also for
        a call that allocates no memory, such as a view."""
        buffers = {made.name: buffer for made, buffer in self.placement.of.items()}
        found = of_node(buffers, node, "a call of the program that allocates memory")
        return found.offset if found.memory == ARENA else None

    def apply(self) -> fx.GraphModule:
        """Return the program with calls in their in-place and `out=` forms, for inference. Its results are the same bit
        for bit, and it shares the parameters of the original. Each run allocates its arena on the device of the inputs,
        so that copies of the program and concurrent runs share no memory.

        Results have no gradient: in grad mode an input that requires one raises an error. An input of another dtype or
        size than planned raises `InputMismatch`, unless its size may vary. On inputs with other strides the program
        runs without the plan, because results would have other strides, and their last bits may differ.
        """
        return apply_plan(self.planned.root.graph, self.planned.root, self.placement, self.program.root)

    def check(self) -> None:
        """Verify the plan again, as when it was made: no value is read after it was overwritten, only ops that may do
        so overwrite an operand, and nothing in planned memory is returned. Raises `UnsoundPlan`."""
        self.planned.check()

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        names = ["peak", "unplanned_peak", "lower_bound", "arena", "ratio", "dynamic"]
        names += ["in_place", "in_arena", "in_blocks"]
        return {name: getattr(self, name) for name in names} | {"ops": [vars(op) for op in self.ops]}

    @boundary("MemoryPlan.plot")
    def plot(self, path: str | Path) -> Path:
        """Plot offsets in the arena over time, and the bytes held at each step with and without the plan. Needs
        matplotlib, of the extra `plot`. Returns the path. Raises `ArgumentError` if the file cannot be written, and
        `PackageMissing`."""
        from decomp.memory.plotting import plot

        return plot(self, place_of_plot(path))

    def __str__(self) -> str:
        return "\n".join(render_plan(self))


@dataclass(frozen=True)
class PlannedMemory:
    """The program to run, and the places of its results."""

    root: fx.GraphModule
    placement: Placement
    blocked: BlockedProgram | None = None
    """How it relates to the source program, if some of its calls run in blocks."""

    def check(self) -> None:
        """Raises `UnsoundPlan`."""
        verify_placement(self.root.graph, self.root, self.placement)
        for body in self.blocked.bodies.values() if self.blocked is not None else ():
            verify_placement(body.unplanned, None, body.placement)

    def held_at(self, node: fx.Node) -> int:
        """Bytes held while a call of the source program runs."""
        return self.placement.profile[self.placement.lifetimes.steps[self._here(node)]]

    def is_in_place(self, node: fx.Node) -> bool:
        """Whether a call of the source program overwrites an operand."""
        placement, there = self._placed(node)
        return there in placement.over

    def is_in_arena(self, node: fx.Node) -> bool:
        """Whether it writes into planned memory."""
        placement, there = self._placed(node)
        return there in placement.of and bool(placement.of[there].memory)

    def is_in_blocks(self, node: fx.Node) -> bool:
        """Whether it runs in blocks of rows."""
        return self.blocked is not None and node in self.blocked.calls

    def _here(self, node: fx.Node) -> fx.Node:
        if self.blocked is None:
            return node
        return self.blocked.calls.get(node) or self.blocked.copies[node]

    def _placed(self, node: fx.Node) -> tuple[Placement, fx.Node]:
        """The placement that has the call, of the program or of a body, and the call's copy there."""
        call = self.blocked.calls.get(node) if self.blocked is not None else None
        if call is None or self.blocked is None:
            return self.placement, self._here(node)
        body = self.blocked.bodies[call]
        return body.placement, body.copies[node]


def _planned(root: fx.GraphModule, found: Lifetimes, in_place: bool, arena: bool | None, blocks: bool) -> PlannedMemory:
    """The better of the plan with blocks and the plan without."""
    plain = PlannedMemory(root, place(found, in_place, arena))
    blocked = run_in_blocks(root.graph, root) if blocks and in_place else None
    if blocked is None:
        return plain
    other = PlannedMemory(
        blocked.root, place(compute_lifetimes(blocked.root.graph, blocked.root), in_place, arena), blocked
    )
    # Blocks also save traffic to memory, so equal peaks go to them.
    return other if other.placement.peak <= plain.placement.peak else plain


_CHECKS = {
    "args": CHECKS["args"],
    "kwargs": CHECKS["kwargs"],
    "in_place": CHECKS["simplify"],
    "arena": CHECKS["training"],
    "blocks": CHECKS["simplify"],
    "dynamic_shapes": CHECKS["dynamic_shapes"],
}


@boundary("memory_plan", _CHECKS)
def memory_plan(
    program: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    in_place: bool = True,
    arena: bool | None = None,
    blocks: bool = True,
    dynamic_shapes: Any = None,
) -> MemoryPlan:
    """Plan the memory of a program that is interpreted call by call, for inference; returns a `MemoryPlan`.

    - `program`: the result of `lower`, an `ExportedProgram`, a `GraphModule`, or, with `args` and `kwargs`, an
      `nn.Module`. It is not changed. Sizes are those of its metadata; symbolic ones count as in the example inputs.
    - `in_place`: whether results may overwrite operands.
    - `blocks`: whether runs of large row-wise calls may run on one block of rows after the other. Results are the same
      bit for bit (with the current number of threads).
    - `arena`: whether intermediate results share an arena. By default they do if that takes no more memory than without
      a plan, and at most a tenth more than freeing results one by one; True: always; False: never.

    Except with `arena=True` the plan never takes more memory than no plan. It is verified before it is returned.
    Raises `CostError` if a program has no metadata (pass `args`), `CaptureError` if a module cannot be captured.
    """
    with without_ambient_modes(), collector_paused():
        loaded = load(program, args, kwargs, dynamic_shapes)
        found = compute_lifetimes(loaded.graph, loaded.root)
        planned = _planned(loaded.root, found, in_place, arena, blocks)
        # Before anybody runs it: an unsound plan gives wrong numbers without an error.
        planned.check()
    before, placement = found.profile(), planned.placement
    return MemoryPlan(
        placement.peak,
        max(before, default=0),
        placement.lower_bound,
        placement.arena,
        tuple(_by_op(loaded, found, planned, before)),
        any(has_dynamic_sizes(s.value) for s in found.storages.values()),
        loaded,
        planned,
        tuple(before),
    )


def _by_op(loaded: Unlifted, found: Lifetimes, planned: PlannedMemory, before: list[int]) -> list[OpMemory]:
    rows: dict[str, list[int]] = {}
    for step, node in enumerate(found.nodes):
        if not is_computation(node):
            continue
        row = rows.setdefault(loaded.source_op(node), [0, 0, 0, 0, 0, 0])
        row[0] += 1
        row[1] = max(row[1], before[step])
        row[2] = max(row[2], planned.held_at(node))
        row[3] += planned.is_in_place(node)
        row[4] += planned.is_in_arena(node)
        row[5] += planned.is_in_blocks(node)
    ops = [OpMemory(op, *row) for op, row in rows.items()]
    return sorted(ops, key=lambda op: (-op.before, op.op))
