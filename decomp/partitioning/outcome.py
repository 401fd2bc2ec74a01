"""`Partition`: a program split between a chip and the host, as it is returned, shown and run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import functools
from typing import Any

from torch import fx, nn

from decomp.derive.decisions import op_of_node
from decomp.errors import ArgumentError, count_noun, spell_target
from decomp.ir.call import is_host, is_projection, metadata
from decomp.lowering import Lowering
from decomp.partitioning.assignment import CHIP, HOST, Assignment, AssignmentProblem, crosses, is_cheapest
from decomp.partitioning.choices import Choices, bytes_of
from decomp.partitioning.more_ops import MoreOps
from decomp.partitioning.parts import Cut, OnBackend, program_of_parts
from decomp.runtime.tables import Backend
from decomp.tables import Table, titled


@dataclass(frozen=True)
class Part:
    """One part: calls of one side that run one after another."""

    name: str
    """`fused_0` on the chip, `host_0` on the host: the submodule of `Partition.module`."""
    side: str
    """"chip" or "host"."""
    ops: Mapping[str, int]
    """How many calls of each op of the source it has, the most frequent first."""
    calls: int
    """How many calls these are."""
    lowered: int
    """How many calls of the target they became; on the host, the calls themselves."""
    bytes_in: int
    """The bytes of the tensors that it takes from the other side or from the caller; without parameters."""
    bytes_out: int
    """The bytes of the tensors that it returns to the other side or to the caller."""
    nodes: tuple[str, ...] = field(repr=False)
    """Its calls, by name in the functional program."""
    lowering: Lowering | None = field(repr=False, compare=False, default=None)
    """How it was lowered and verified; None on the host."""

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        names = ("name", "side", "calls", "lowered", "bytes_in", "bytes_out")
        return {**{name: getattr(self, name) for name in names}, "ops": dict(self.ops), "nodes": list(self.nodes)}


@dataclass(frozen=True)
class HostOp:
    """An op that runs on the host."""

    op: str
    """As `aten.sort`."""
    calls: int
    why: str
    """Why it does, as a clause."""


@dataclass(frozen=True)
class Partition:
    """What `partition` returns: a program of parts, each on the chip or on the host. It is called like the source.
    `print(partition)` shows its parts."""

    to: str
    """The name of the target."""
    host: str
    """The device of the other side."""
    module: fx.GraphModule = field(repr=False)
    """The program: a graph with one `call_module` for each part. Those on the chip are lowered programs, run by PyTorch
    until they are loaded on a backend."""
    parts: tuple[Part, ...]
    """In the order in which they run."""
    price: float
    """The price of the whole: the calls on each side, and the transfers."""
    at_least: float
    """No assignment that is allowed is cheaper."""
    prices: Mapping[str, float]
    """`price` by "chip", "host" and "transfers"."""
    unit: str
    """The unit of all prices."""
    supported: float
    """The price if everything that can run on the chip did, as `CapabilityBasedPartitioner` of `torch.fx` has it."""
    on_host: tuple[HostOp, ...]
    """The ops on the host, those with most calls first."""
    limit: int | None
    """The most parts on the chip that were allowed; None if any number was."""
    advising: Callable[[], tuple[MoreOps, ...]] = field(repr=False, compare=False)
    """Finds `advice`."""
    choices: Choices = field(repr=False, compare=False)
    cuts: tuple[Cut, ...] = field(repr=False, compare=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program in PyTorch, with gradients."""
        return self.module(*args, **kwargs)

    @property
    def exact(self) -> bool:
        """Whether it is proved that no assignment is cheaper."""
        return is_cheapest(self.price, self.at_least)

    @functools.cached_property
    def advice(self) -> tuple[MoreOps, ...]:
        """Which more ops on the target would leave fewer parts on the chip or cost less, the best first; the program is
        planned again for each, on first access."""
        # Without a blocked call no op would change anything.
        return self.advising() if self.choices.blocked else ()

    def load(self, backend: Any) -> fx.GraphModule:
        """The program with its parts on the chip loaded on a `Backend`, the others run by PyTorch; without gradients.
        `backend.load(partition)` is the same. Raises `LoadError`."""
        if not isinstance(backend, Backend):
            raise ArgumentError(f"partition.load takes a decomp.Backend, not {type(backend).__name__}")
        modules: dict[str, nn.Module] = {}
        for part, cut in zip(self.parts, self.cuts):
            on_chip = part.lowering is not None
            modules[cut.name] = OnBackend(backend.load(part.lowering), cut) if on_chip else cut.module
        return program_of_parts(self.choices, self.cuts, modules, gradients=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        own = ("to", "host", "price", "at_least", "unit", "supported", "exact", "limit")
        found: dict[str, Any] = {name: getattr(self, name) for name in own}
        ops = [{"op": each.op, "calls": each.calls, "why": each.why} for each in self.on_host]
        return {**found, "prices": dict(self.prices), "parts": [part.as_dict() for part in self.parts], "on_host": ops}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The partition as text, at most 80 columns wide but for names."""
        yield self.headline
        yield from self.table.lines("  ")
        yield from self.remarks
        if self.choices.blocked:
            yield "  .advice says which more ops would leave fewer parts"

    @property
    def remarks(self) -> Iterator[str]:
        """What the text says below the table: the price, and why calls are on the host."""
        yield from (f"  {line}" for line in self._price_lines())
        if self.on_host:
            yield f"on the host ({self.host}):"
        for each in self.on_host:
            yield f"  {each.op} ({count_noun(each.calls, 'call')}): {each.why}"

    @property
    def headline(self) -> str:
        """`partition to mychip: 23 of 25 calls on the chip, in 2 parts`."""
        on_chip = [part for part in self.parts if part.side == CHIP]
        calls, total = (sum(part.calls for part in parts) for parts in (on_chip, self.parts))
        parts = count_noun(len(on_chip), "part")
        return f"partition to {self.to}: {calls} of {count_noun(total, 'call')} on the chip, in {parts}"

    @property
    def table(self) -> Table:
        """The parts."""
        columns = ("part", ">calls", ">lowered to", ">bytes in", ">bytes out", "ops")
        rows = [
            (part.name, part.calls, part.lowered, f"{part.bytes_in:,}", f"{part.bytes_out:,}", _few(part.ops))
            for part in self.parts
        ]
        return Table(columns, rows)

    def _price_lines(self) -> Iterator[str]:
        parts = ", ".join(f"{name} {_amount(price)}" for name, price in self.prices.items())
        yield f"price in {self.unit}: {_amount(self.price)} ({parts})"
        if self.limit is not None:
            few = f"with at most {count_noun(self.limit, 'part')} on the chip"
            above = f"{100 * (self.price / self.at_least - 1):.2g}%" if self.at_least else "any amount"
            bound = f"at most {above} above the cheapest assignment {few}"
            yield f"no assignment {few} is cheaper" if self.exact else bound
        elif self.supported <= self.price:
            yield "no assignment is cheaper; all that can run on the chip does"
        else:
            yield f"no assignment is cheaper; with all on the chip that can run there, {_amount(self.supported)}"

    def _repr_html_(self) -> str:
        hosted = Table(("on the host", ">calls", "why"), [(each.op, each.calls, each.why) for each in self.on_host])
        return titled(self.headline, self.table.html(), *self._price_lines(), hosted.html())

    def __repr__(self) -> str:
        return f"<{self.headline}; the program is .module, the rest print(partition)>"


def _few(ops: Mapping[str, int]) -> str:
    """`3 linear, gelu and 2 more`, in at most 30 columns."""
    names = [
        op.removeprefix("aten.") if count == 1 else f"{count} {op.removeprefix('aten.')}" for op, count in ops.items()
    ]
    for shown in range(len(names), 0, -1):
        rest = f" and {len(names) - shown} more" if shown < len(names) else ""
        text = ", ".join(names[:shown]) + rest
        if len(text) <= 30:
            return text
    rest = f"… and {len(names) - 1} more" if len(names) > 1 else "…"
    return names[0][: 30 - len(rest)] + rest if names else ""


def _amount(price: float) -> str:
    return f"{price:,.0f}" if price >= 1000 or price == int(price) else f"{price:.4g}"


def parts_of(choices: Choices, cuts: tuple[Cut, ...], lowerings: Mapping[str, Lowering]) -> tuple[Part, ...]:
    """The parts, as they are reported."""
    side_of = {node: cut.side for cut in cuts for node in cut.nodes}
    return tuple(_part(choices, cut, lowerings.get(cut.name), side_of) for cut in cuts)


def _part(choices: Choices, cut: Cut, lowering: Lowering | None, side_of: Mapping[fx.Node, str]) -> Part:
    calls = [node for node in cut.nodes if not is_host(node) and not is_projection(node)]
    ops = Counter(op_name(node) for node in calls)
    crossing_in = [each for each in cut.inputs if side_of.get(each, HOST) != cut.side]
    other = {each: any(side_of.get(user, HOST) != cut.side for user in choices.readers(each)) for each in cut.outputs}
    return Part(
        cut.name,
        cut.side,
        dict(ops.most_common()),
        len(calls),
        len(calls) if lowering is None else sum(map(_calls_tensor, lowering.internals.pieces[0].graph.nodes)),
        sum(bytes_of(metadata(each)) for each in crossing_in),
        sum(bytes_of(metadata(each)) for each, crossing in other.items() if crossing),
        tuple(node.name for node in cut.nodes),
        lowering,
    )


def _calls_tensor(node: fx.Node) -> bool:
    return node.op.startswith("call") and not is_host(node) and not is_projection(node)


def op_name(node: fx.Node) -> str:
    """The op of a call, as `aten.sort`."""
    op = op_of_node(node)
    return spell_target(node.target) if op is None else str(op)


def hosted(choices: Choices, assignment: Assignment) -> tuple[HostOp, ...]:
    """The ops on the host with the reason, those with most calls first."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for node, i in choices.number.items():
        if i not in assignment.chip and not is_host(node) and not is_projection(node):
            found.setdefault((op_name(node), choices.why.get(node.name)), []).append(node.name)
    ops = [HostOp(op, len(names), why or _cheaper(choices, names)) for (op, why), names in found.items()]
    return tuple(sorted(ops, key=lambda each: -each.calls))


def _cheaper(choices: Choices, names: Sequence[str]) -> str:
    """Why calls that the chip can run are on the host."""
    host, chip = (sum(prices[name] for name in names) for prices in (choices.host, choices.chip))
    if host < chip:
        return f"cheaper here: {_amount(host)}, and {_amount(chip)} on the chip"
    return f"cheaper here: {_amount(chip)} on the chip, but more is transferred"


def prices_of(problem: AssignmentProblem, assignment: Assignment) -> Mapping[str, float]:
    """The price of an assignment, by what it is for."""
    numbered = list(enumerate(problem.calls))
    return {
        "chip": sum(call.chip or 0.0 for i, call in numbered if i in assignment.chip),
        "host": sum(call.host for i, call in numbered if i not in assignment.chip),
        "transfers": sum(value.price for value in problem.values if crosses(value, assignment.chip) is not None),
    }
