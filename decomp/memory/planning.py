"""`memory_plan`: what memory a program takes when it is interpreted call by call, and a program that takes less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import fx

from decomp.errors import ArgumentError, boundary
from decomp.memory.applying import planned_program
from decomp.memory.checking import check
from decomp.memory.lifetimes import Lifetimes, lifetimes_of
from decomp.memory.loading import Loaded, computes, load, varies
from decomp.memory.placing import ARENA, Placement, place
from decomp.memory.table import lines
from decomp.metadata.ambient_modes import neutral
from decomp.rules.options import CHECKS


@dataclass(frozen=True)
class OpMemory:
    """The memory held while the calls of one op run, at most; of a lowered program, of an op of its source."""

    op: str
    calls: int
    before: int
    """Bytes, as the program is."""
    after: int
    """Bytes, as it is planned."""
    in_place: int
    """How many of the calls write over an operand."""
    in_arena: int
    """How many write into memory that the plan chose."""


@dataclass(frozen=True)
class MemoryPlan:
    """What memory a program takes, beyond its inputs, parameters and constants, and where its results go. `print(plan)`
    shows it by op, `apply()` makes the program.

    A result takes the place of an operand that dies with the call, where the op works element by element. Of the other
    results those that stay inside the program lie in one arena, at offsets that are multiples of 64 bytes, or in the
    memory of a result that leaves the program, until that is made. What leaves the program has memory of its own.
    """

    peak: int
    """Bytes held at the widest step, as planned."""
    unplanned_peak: int
    """The same as the program is: each result in memory of its own, freed behind its last use."""
    lower_bound: int
    """The most bytes of results that are alive at one step, whatever the packing, with what is in place in place."""
    arena: int
    """Bytes of the arena; 0 if there is none, because it would take more than freeing results one by one."""
    ops: tuple[OpMemory, ...]
    """By op, the widest first."""
    dynamic: bool
    """Whether sizes vary; all figures are then those of the example inputs."""
    program: Loaded = field(repr=False)
    """What was planned."""
    placement: Placement = field(repr=False)
    """Where each result goes."""
    before: tuple[int, ...] = field(repr=False)
    """Bytes held at each step as the program is."""

    @property
    def ratio(self) -> float:
        """The planned peak over that of the program as it is."""
        return self.peak / self.unplanned_peak if self.unplanned_peak else 1.0

    @property
    def in_place(self) -> int:
        """How many calls write over an operand."""
        return len(self.placement.over)

    @property
    def in_arena(self) -> int:
        """How many results lie in memory that the plan chose, those in place among them."""
        return sum(len(buffer.storages) for buffer in self.placement.buffers if buffer.memory)

    def offset(self, node: fx.Node | str) -> int | None:
        """Where in the arena the result of a call lies, in bytes; None if it lies elsewhere. Raises `KeyError` for a
        call without memory of its own, such as a view."""
        name = node if isinstance(node, str) else node.name
        found = {made.name: buffer for made, buffer in self.placement.of.items()}
        return found[name].offset if found[name].memory == ARENA else None

    def apply(self) -> fx.GraphModule:
        """The program in its in-place and `out=` forms, for inference. It gives the results of the planned one bit for
        bit, and shares its parameters. Each call allocates its arena, on the device of the inputs, so that copies of
        the program and calls in other threads have nothing in common.

        What it gives has no gradient: in grad mode an input that requires one raises an error. An input of another
        dtype or size than planned raises `InputMismatch`; sizes that vary may be any.
        """
        return planned_program(self.program.graph, self.program.root, self.placement)

    def check(self) -> None:
        """Hold the plan against the program, as is done when it is made: nothing is read that was overwritten, nothing
        is written over an operand but by an op that may, nothing leaves the program that lies in the plan's memory.
        Raises `UnsoundPlan`."""
        check(self.program.graph, self.program.root, self.placement)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        names = ("peak", "unplanned_peak", "lower_bound", "arena", "ratio", "in_place", "in_arena", "dynamic")
        return {name: getattr(self, name) for name in names} | {"ops": [vars(op) for op in self.ops]}

    def plot(self, path: str | Path) -> Path:
        """Draw lifetimes against offsets in the arena, and what is held step by step, before and after. Needs
        matplotlib, of the extra `plot`. Returns the path."""
        from decomp.memory.plotting import plot

        return plot(self, Path(path))

    def __str__(self) -> str:
        return "\n".join(lines(self))


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}= must be True or False, not {value!r}")


def _choice(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(f"{name}= must be True, False or None, not {value!r}")


@boundary("memory_plan", {"args": CHECKS["args"], "kwargs": CHECKS["kwargs"], "in_place": _flag, "arena": _choice})
def memory_plan(
    program: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    in_place: bool = True,
    arena: bool | None = None,
    dynamic_shapes: Any = None,
) -> MemoryPlan:
    """Plan the memory of a program that is interpreted call by call, for inference.

    - `program`: what `lower` returns, an `ExportedProgram`, a `GraphModule`, or, with `args` and `kwargs`, an
      `nn.Module`. It is not changed. Sizes are those of its metadata; symbolic ones count as in the example inputs.
    - `in_place`: whether results may take the place of operands.
    - `arena`: whether those that stay inside lie in one. By default they do where that takes no more than the program
      as it is, and at most a tenth more than memory that is freed piece by piece; True: always; False: never.

    But for `arena=True` the plan never holds more than the program as it is. It is checked before it is returned.
    Raises `CostError` where a program has no metadata (pass `args`), `CaptureError` where a module cannot be captured.
    """
    with neutral():
        loaded = load(program, args, kwargs, dynamic_shapes)
        found = lifetimes_of(loaded.graph, loaded.root)
        placement = place(found, in_place, arena)
        check(loaded.graph, loaded.root, placement)
    before = found.profile()
    return MemoryPlan(
        placement.peak, max(before, default=0), placement.lower_bound, placement.arena,
        tuple(_by_op(loaded, found, placement, before)), any(varies(s.value) for s in found.storages.values()),
        loaded, placement, tuple(before),
    )  # fmt: skip


def _by_op(loaded: Loaded, found: Lifetimes, placement: Placement, before: list[int]) -> list[OpMemory]:
    rows: dict[str, list[int]] = {}
    for step, node in enumerate(found.nodes):
        if not computes(node):
            continue
        row = rows.setdefault(loaded.source_op(node), [0, 0, 0, 0, 0])
        buffer = placement.of.get(node)
        row[0] += 1
        row[1] = max(row[1], before[step])
        row[2] = max(row[2], placement.profile[step])
        row[3] += node in placement.over
        row[4] += buffer is not None and bool(buffer.memory)
    ops = [OpMemory(op, *row) for op, row in rows.items()]
    return sorted(ops, key=lambda op: (-op.before, op.op))
