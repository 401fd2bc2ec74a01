"""What the layers of a model cost: a row for each module; repeated blocks whose calls have equal signatures are one
row, however many there are. A module is opened, that is, shown as its parts, if blocks repeat inside of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from decomp.breakdown.accounts import CountedCall, ProgramAccount
from decomp.costs.plans import spell_bytes
from decomp.costs.sizes import nbytes
from decomp.errors import ArgumentError
from decomp.tables import Table, titled


@dataclass(frozen=True, slots=True)
class Layer:
    """A module, or some that are equal; figures are of all of them."""

    path: str
    """`model.layers.0…79`; empty for calls outside of modules."""
    kind: str
    """The name of the class; empty if it is not known."""
    count: int
    before: int
    """Calls of the source."""
    after: int
    """Calls that they became."""
    weights: int
    """Bytes of parameters and buffers; one that several modules share counts for the first."""
    operations: float
    """Of the lowered calls, as `decomp.costs.flops` counts them."""
    moved: float
    """Bytes that the lowered calls read and write, by `decomp.costs.bytes`: each call on its own."""


@dataclass(frozen=True)
class Layers:
    """What the layers of a program cost on a target. `print(layers)` shows the table."""

    target: str
    rows: tuple[Layer, ...]
    """In the order of the program."""

    @property
    def total(self) -> Layer:
        """The sum of all rows."""
        return _sum("total", "", 1, self.rows)

    def table(self) -> Table:
        """The rows, and their sum; percentages are shares of their sum."""
        total = self.total
        columns = ("module", ">calls", ">lowered", ">weights", ">operations", ">bytes moved", "class")
        return Table(columns, [_cells(row, total) for row in (*self.rows, total)])

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {"target": self.target, "rows": [asdict(row) for row in self.rows], "total": asdict(self.total)}

    @property
    def headline(self) -> str:
        """`layers on tinygrad: 4861 calls became 8408`."""
        return f"layers on {self.target}: {self.total.before} calls became {self.total.after}"

    def __repr__(self) -> str:
        return f"<{self.headline}; print(layers) shows them>"

    def __str__(self) -> str:
        return "\n".join((self.headline, *self.table().lines("  ")))

    def _repr_html_(self) -> str:
        return titled(self.headline, self.table().html())


def layers_of(account: ProgramAccount) -> Layers:
    """The layers of a program. Raises `ArgumentError` for one whose calls have no module paths."""
    if not any(call.modules for call in account.before):
        raise ArgumentError(
            "the calls of this program have no module paths (nn_module_stack), so there are no layers\n"
            "  to do: lower the nn.Module, or its ExportedProgram"
        )
    root = _tree(account)
    _sign(root, {})
    return Layers(account.target, tuple(_rows(root)))


@dataclass(eq=False)
class _Part:
    """A module with the calls that it makes itself."""

    path: str
    kind: str = ""
    parts: dict[str, _Part] = field(default_factory=dict)
    signatures: list[Hashable] = field(default_factory=list)
    after: int = 0
    weights: int = 0
    operations: float = 0.0
    moved: float = 0.0
    shapes: list[Hashable] = field(default_factory=list)
    """Names, shapes and dtypes of its own weights."""
    number: int = -1
    """Equal for modules that are equal, with all of their parts."""

    def at(self, path: str) -> _Part:
        """The module of a path below this one."""
        found = self
        for name in path.split(".") if path else ():
            below = f"{found.path}.{name}" if found.path else name
            found = found.parts.setdefault(name, _Part(below))
        return found

    def own(self) -> Layer:
        """What it costs without its parts."""
        figures = self.after, self.weights, self.operations, self.moved
        return Layer(self.path, self.kind, 1, len(self.signatures), *figures)

    def whole(self) -> Layer:
        """What it costs."""
        return _sum(self.path, self.kind, 1, [self.own(), *(part.whole() for part in self.parts.values())])


def _tree(account: ProgramAccount) -> _Part:
    root = _Part("")
    for call in account.before:
        _maker(root, call).signatures.append(call.signature)
    for call in account.after:
        part = _maker(root, call)
        part.after += 1
        part.operations += call.operations
        part.moved += call.moved
    seen: set[int] = set()
    for name, tensor in account.weights.items():
        path, _, leaf = name.rpartition(".")
        part = root.at(path)
        part.shapes.append((leaf, tuple(tensor.shape), tensor.dtype))
        part.weights += 0 if id(tensor) in seen else nbytes(tensor)
        seen.add(id(tensor))
    return root


def _maker(root: _Part, call: CountedCall) -> _Part:
    """The innermost module that makes a call."""
    for path, kind in call.modules:
        root.at(path).kind = kind
    return root.at(call.modules[-1][0]) if call.modules else root


def _sign(part: _Part, known: dict[Hashable, int]) -> int:
    below = tuple((name, _sign(each, known)) for name, each in part.parts.items())
    # Bottom up: equal numbers of the parts make equal numbers of the whole, as in hash consing.
    key = part.kind, tuple(part.signatures), tuple(part.shapes), below
    part.number = known.setdefault(key, len(known))
    return part.number


def _rows(part: _Part) -> Iterator[Layer]:
    """The rows of a module that is opened: its own calls, then its parts."""
    own = part.own()
    if own.before or own.after or own.weights:
        yield own
    groups = _groups(part.parts)
    folds = any(len(group) > 1 for group in groups)
    for group in groups:
        (name, first), *_ = group.items()
        if len(group) > 1:
            path = f"{part.path}.{_numbers([*map(int, group)])}".removeprefix(".")
            yield _sum(path, first.kind, len(group), [each.whole() for each in group.values()])
        # A block that differs from its repeated neighbours stays a row like them.
        elif (len(groups) == 1 or _repeats(first)) and first.parts and not (folds and name.isdecimal()):
            yield from _rows(first)
        else:
            yield first.whole()


def _groups(parts: Mapping[str, _Part]) -> list[dict[str, _Part]]:
    """Parts that are equal, if their names are numbers; each other part alone."""
    found: dict[Any, dict[str, _Part]] = {}
    for name, part in parts.items():
        # Only items of a list or `Sequential`: `q_proj` and `k_proj` may be equal, and are not the same layer.
        found.setdefault(part.number if name.isdecimal() else name, {})[name] = part
    return list(found.values())


def _repeats(part: _Part) -> bool:
    """Whether blocks repeat inside of a module."""
    groups = _groups(part.parts)
    return any(len(group) > 1 for group in groups) or any(map(_repeats, part.parts.values()))


def _numbers(numbers: Sequence[int]) -> str:
    """`0…79`, `0, 2…78` for steps of 2, or `0, 1, 5`."""
    steps = {right - left for left, right in pairwise(numbers)}
    if steps == {1} and len(numbers) > 2:
        return f"{numbers[0]}…{numbers[-1]}"
    if len(steps) == 1 and len(numbers) > 3:
        return f"{numbers[0]}, {numbers[1]}…{numbers[-1]}"
    return ", ".join(map(str, numbers))


def _sum(path: str, kind: str, count: int, rows: Sequence[Layer]) -> Layer:
    names = ("before", "after", "weights", "operations", "moved")
    return Layer(path, kind, count, *(sum(getattr(row, name) for row in rows) for name in names))


def _cells(row: Layer, total: Layer) -> tuple[Any, ...]:
    operations = f"{row.operations:.3g}{_share(row.operations, total.operations)}"
    moved = f"{spell_bytes(row.moved)}{_share(row.moved, total.moved)}"
    counts = f"{row.before:,}", f"{row.after:,}", spell_bytes(row.weights)
    return row.path or "(top)", *counts, operations, moved, f"{row.count} × {row.kind}" if row.count > 1 else row.kind


def _share(part: float, total: float) -> str:
    """`  99%`, of four columns."""
    return f"  {part / total:>4.0%}" if total else ""
