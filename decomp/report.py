"""The report of a lowering: the program before and after, and how it was lowered; as a table and as data. The phrases
of the table are properties, so that all renderings of a report agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
import textwrap
from typing import TYPE_CHECKING, Any

from torch import fx

from decomp.breakdown.accounts import composite_calls, lowered_calls, source_calls, source_composites
from decomp.costs.counting import CALLS
from decomp.costs.model import price_of_graph, unit_of
from decomp.costs.plans import Totals
from decomp.derive.decisions import ERASED_GUARD, Decision, Derived
from decomp.derive.outlining import composite_key, spell_composite
from decomp.errors import CostError, count_noun, spell_target
from decomp.former_names import former_name
from decomp.ir.accounting import COMPOSITE, WRITE_BACK, calls_for_target, effects_in
from decomp.ir.call import module_path
from decomp.ir.module import ProgramGraph
from decomp.tables import Table, folded, titled

if TYPE_CHECKING:
    from decomp.ir.ops import Op
    from decomp.lowering import Lowering
    from decomp.patterns.pattern import Pattern


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """What was checked of one part of a lowering, in a line."""

    part: str
    """`structure`, `interface`, `simplified`, `rules` or `program`."""
    checked: bool
    """Whether it was; what does not hold is an error, and never in a report."""
    text: str
    """What holds, or why it was not checked."""

    @property
    def mark(self) -> str:
        """`✓`, or `–` for what was not checked."""
        return "✓" if self.checked else "–"


@dataclass(frozen=True)
class Report:
    """`str(report)` is a table whose long columns are cut; `as_dict()` has everything, for machines."""

    target: str
    before: dict[str, int]
    """Calls by op in the source, the most frequent first."""
    after: dict[str, int]
    """Calls by op in the lowered program, the most frequent first."""
    modules: dict[str, tuple[int, int]]
    """Calls before and after by module, in the order of the program."""
    rules: dict[str, int]
    """How many calls of the source each rule expanded, the most frequent first."""
    runs: int
    """Rules run on proxies in this lowering; results of earlier ones are cached."""
    inserted: int
    """Expansions inserted into the program."""
    expansions: int
    """Distinct expansions among them."""
    seconds: dict[str, float]
    """By stage, in order."""
    checks: tuple[str, ...]
    """Every invariant that was checked, one phrase each; empty with `verify=False`."""
    blockers: tuple[dict[str, Any], ...]
    """What was not lowered (with `partial=True`)."""
    effects: dict[str, int] = field(default_factory=dict)
    """What the lowered program has besides calls that the target must support: assertions, regions, control flow,
    write-backs."""
    proved: int = 0
    """Assertions of the source that metadata proves true, and that were dropped."""
    picked: str = ""
    """The levels of accuracy that `max_error=` picked, and the error of the program at these."""
    unsimplified: int = 0
    """How many calls the lowered program had before simplification."""
    removed: dict[str, int] = field(default_factory=dict)
    """How many nodes each pass of `decomp.simplify` removed, the largest first; parts of results and sizes, too."""
    verified: tuple[CheckedPart, ...] = ()
    """What was checked, part by part; `checks` has all of it."""
    notes: tuple[str, ...] = ()
    """How complex numbers are represented on a target without them, and where they are converted."""
    planned_for: str = ""
    """What the plan is best at: fewest calls, a compiler that fuses, or what else the cost model counts."""
    costs: Totals | None = None
    """What the lowered program costs before and after simplification; None where each call costs 1."""
    composites: tuple[str, ...] = ()
    """The composites of the lowered program, and what became of other calls that were to be composites."""
    worst: str = ""
    """The rule with the largest error that verification measured; empty if it measured none."""

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @property
    def headline(self) -> str:
        """`lowered to tinygrad: 36 calls of 12 ops became 475 of 20`."""
        before, after = sum(self.before.values()), sum(self.after.values())
        verb = "lowered in part" if self.blockers else "lowered"
        counted = f"{count_noun(before, 'call')} of {count_noun(len(self.before), 'op')}"
        return f"{verb} to {self.target}: {counted} became {after} of {len(self.after)}"

    stamped = former_name("Report.stamped", "inserted")

    @property
    def effort(self) -> str:
        """`27 inserted, 14 of them distinct; 88 rules run`."""
        return f"{self.inserted} inserted, {self.expansions} of them distinct; {count_noun(self.runs, 'rule')} run"

    @property
    def besides(self) -> str:
        """`assertion ×3, write-back ×2; 5 assertions proved and dropped`."""
        kept = ", ".join(f"{kind} ×{count}" for kind, count in self.effects.items())
        dropped = f"{count_noun(self.proved, 'assertion')} proved and dropped" if self.proved else ""
        return "; ".join(filter(None, (kept, dropped)))

    @property
    def simplified(self) -> str:
        """`277 → 214 calls (chains 38, common subexpressions 25)`; empty where nothing was removed."""
        return f"{self.unsimplified} → {sum(self.after.values())} calls ({self._passes})" if self.removed else ""

    @property
    def _passes(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in self.removed.items())

    @property
    def counted(self) -> str:
        """`36 in the source, 277 expanded, 214 simplified (chains 38, common subexpressions 25)`."""
        before, after = sum(self.before.values()), sum(self.after.values())
        simplified = f", {after} simplified ({self._passes})" if self.removed else ""
        return f"{before} in the source, {self.unsimplified or after} expanded{simplified}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What a report begins with: names and texts."""
        found = [("planned for", self.planned_for), ("calls", self.counted), ("cost", str(self.costs or ""))]
        found += [("worst rule", self.worst), ("error", self.picked), ("besides", self.besides)]
        found += [("besides", note) for note in self.notes]
        found += [("composite", each) for each in self.composites]
        return [(name, text) for name, text in found if text]

    @property
    def timing(self) -> str:
        """`336 ms: capture 245, plan 1.0, expand 14, verify 4.7, rebuild 71`."""
        stages = ", ".join(f"{stage} {_milliseconds(seconds)}" for stage, seconds in self.seconds.items())
        return f"{_milliseconds(sum(self.seconds.values()))} ms: {stages}"

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        modules = [(name, before, after) for name, (before, after) in self.modules.items()]
        listed = {
            "ops of the source": ("op", ">calls", [*self.before.items()]),
            "ops of the lowered program": ("op", ">calls", [*self.after.items()]),
            "rules": ("rule", ">used", [*self.rules.items()]),
        }
        facts = [*self.facts, ("expansions", self.effort), ("time", self.timing)]
        verified = [(each.mark, each.part, each.text) for each in self.verified]
        return titled(
            self.headline,
            Table(("", ""), facts).html(),
            Table(("", "verified", ""), verified).html(),
            Table(("op not lowered", "at"), [(each["op"], ", ".join(each["nodes"])) for each in self.blockers]).html(),
            *(folded(f"{len(rows)} {name}", Table(columns, rows).html()) for name, (*columns, rows) in listed.items()),
            folded(f"{len(modules)} modules", Table(("module", ">calls before", ">after"), modules).html()),
        )


def fold_rows(counts: Mapping[str, int], rows: int) -> list[tuple[str, int]]:
    """The first `rows` of `counts`; if there are more, the last row is the sum of the rest."""
    items = list(counts.items())
    if len(items) <= rows:
        return items
    rest = items[rows - 1 :]
    return [*items[: rows - 1], (f"and {len(rest)} more", sum(count for _, count in rest))]


def fold_modules(modules: Mapping[str, tuple[int, int]], rows: int) -> list[tuple[str, int, int]]:
    """Modules with their calls before and after, folded in the same way, the largest first."""
    after = dict(sorted(((name, counts[1]) for name, counts in modules.items()), key=lambda item: -item[1]))
    before = {name: modules[name][0] for name in after}
    return [(name, a, b) for (name, a), (_, b) in zip(fold_rows(before, rows), fold_rows(after, rows))]


@dataclass
class _Tally:
    """What is counted over the graphs of a lowering, as a `Report` has it."""

    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    modules: dict[str, list[int]] = field(default_factory=dict)
    rules: Counter[str] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)
    inserted: int = 0
    expansions: int = 0
    unsimplified: int = 0
    proved: int = 0

    def add(self, piece: ProgramGraph) -> None:
        """Count a graph of the program."""
        for node, source in source_calls(piece.planned):
            self._count(node, source, self.before, 0)
        found = effects_in(piece.graph)
        # Both are counted elsewhere: composites by name, write-backs by the recorded writes.
        self.effects.update(kind for kind in found.values() if kind not in (WRITE_BACK, COMPOSITE))
        if piece.writes:
            self.effects[WRITE_BACK] += len(piece.writes)
        for node, source in lowered_calls(piece, found):
            self._count(node, source, self.after, 1)
        self.unsimplified += len(calls_for_target(piece.expanded.graph))
        self._remove(piece, 1)
        decisions = _decisions(piece)
        derived = [each for each in decisions if isinstance(each, Derived)]
        self.rules.update(str(each.rule) for each in derived)
        self.inserted += len(derived)
        self.expansions += len({each.template for each in derived})
        self.proved += sum(each is ERASED_GUARD for each in decisions)

    def add_composite(self, body: ProgramGraph, calls: Sequence[fx.Node]) -> None:
        """Count the body of a composite, which is one graph and runs once for each of its calls."""
        for node in calls_for_target(body.graph):
            for call in calls:
                self._count(node, call, self.after, 1)
        self._remove(body, len(calls))

    def _count(self, node: fx.Node, source: fx.Node, ops: Counter[str], column: int) -> None:
        ops[spell_target(node.target)] += 1
        path = module_path(source.meta.get("nn_module_stack")) or "(top)"
        self.modules.setdefault(path, [0, 0])[column] += 1

    def _remove(self, piece: ProgramGraph, times: int) -> None:
        simplified = piece.record("simplify")
        for name, count in (simplified.counts if simplified is not None else {}).items():
            self.removed[name] += count * times


def report_of(lowering: Lowering) -> Report:
    """The report of a lowering."""
    internals = lowering.internals
    found = _Tally()
    for piece in internals.pieces:
        found.add(piece)
    for body, calls in composite_calls(lowering):
        found.add_composite(body, calls)
    return Report(
        target=lowering.target.name,
        before=dict(found.before.most_common()),
        after=dict(found.after.most_common()),
        modules={name: (a, b) for name, (a, b) in found.modules.items()},
        rules=dict(found.rules.most_common()),
        runs=internals.runs,
        inserted=found.inserted,
        expansions=found.expansions,
        seconds=dict(internals.times),
        checks=lowering.proof.checks if lowering.proof is not None else (),
        verified=tuple(_verified(lowering)),
        blockers=tuple(asdict(blocker) for blocker in lowering.blockers),
        effects=dict(found.effects.most_common()),
        picked=str(internals.picked or ""),
        notes=lowering.plan.notes,
        unsimplified=found.unsimplified,
        removed=dict(found.removed.most_common()),
        planned_for=internals.request.policy.aim(lowering.target.costs),
        costs=_costs(lowering),
        composites=tuple(_composites(lowering)),
        worst=_worst(lowering),
        proved=found.proved,
    )


def _costs(lowering: Lowering) -> Totals | None:
    """What the program costs before and after it was simplified; None where each call costs 1, or one has no price."""
    internals = lowering.internals
    cost = internals.request.policy.cost or lowering.target.costs or CALLS
    if cost is CALLS:
        return None
    try:
        expanded = sum(price_of_graph(cost, piece.expanded.graph) for piece in internals.pieces)
        if all(piece.record("simplify") is None for piece in internals.pieces):
            return Totals(repr(cost), unit_of(cost), expanded)
        simplified = price_of_program(cost, lowering)
    except CostError:
        return None
    return Totals(repr(cost), unit_of(cost), expanded, simplified)


def price_of_program(cost: Any, lowering: Lowering) -> float:
    """What the lowered program costs, with the body of a composite for each of its calls. Raises `CostError`."""
    graphs = sum(price_of_graph(cost, piece.graph) for piece in lowering.internals.pieces)
    return graphs + sum(len(calls) * price_of_graph(cost, body.graph) for body, calls in composite_calls(lowering))


def _composites(lowering: Lowering) -> Iterator[str]:
    """`aten.gelu (composite, 26 calls inside), 2 times`; and why calls of an op are no composites."""
    internals = lowering.internals
    made = set()
    listed = [(body.composite, body, len(calls)) for body, calls in composite_calls(lowering)]
    for composite, body, count in (*listed, *source_composites(lowering)):
        assert composite is not None
        made.add(composite.name)
        times = f", {count} times" if count > 1 else ""
        yield f"{composite.described(len(calls_for_target(body.graph)))}{times}"
    for piece in internals.pieces:
        record = piece.record("composites")
        for name, reason in (record.left if record is not None else {}).items():
            yield f"{name}: no composite, {reason}"
    for op in internals.request.versions:
        name = spell_composite(op)
        if name not in made and f"{name}.backward" not in made:
            yield f"{name}: no composite, {_why_none(lowering, op)}"


def _why_none(lowering: Lowering, op: Op | Pattern) -> str:
    """Why a program has no composite of this op or pattern."""
    internals, key = lowering.internals, composite_key(op)
    called, captured = (
        {composite_key(node) for graph in graphs for node in graph.nodes}
        for graphs in (
            # Those that rules make, too.
            [graph for piece in internals.pieces for graph in (piece.planned.graph, piece.expanded.graph)],
            [piece.captured.graph for piece in internals.pieces],
        )
    )
    if key in called:
        known = op in lowering.target
        return f"its calls are legal on {lowering.target.name}" if known else "no call of it is decomposed"
    converted = "its calls were made functional, or converted, before"
    return converted if key in captured else "neither the program nor a rule that was used calls it"


def _decisions(piece: ProgramGraph) -> Iterable[Decision]:
    return (piece.planned.decisions or {}).values()


def _verified(lowering: Lowering) -> Iterator[CheckedPart]:
    """The five parts of verification."""
    internals = lowering.internals
    proof = lowering.proof
    off = "not checked (verify=False)"
    if proof is None:
        yield CheckedPart("structure", False, off)
        return
    yield CheckedPart("structure", True, _structure(lowering))
    graph = internals.pieces[0].graph
    inputs, outputs = len(graph.find_nodes(op="placeholder")), len(graph.output_node().all_input_nodes)
    kept = f"{count_noun(inputs, 'input')}, {count_noun(outputs, 'output')}"
    kept += ", parameters, buffers and hooks as in the source"
    yield CheckedPart("interface", True, kept)
    done = [found for piece in internals.pieces if (found := piece.record("simplify")) is not None]
    laws, merged = sum(len(each.applied) for each in done), sum(len(each.merged) for each in done)
    changed = f"{count_noun(laws, 'call')} changed by laws and {merged} merged, each replayed"
    yield CheckedPart("simplified", bool(done), changed if done else "nothing was simplified")
    if not proof.program:
        left = 'not run; verify="values" runs it'
        yield CheckedPart("rules", False, left)
        yield CheckedPart("program", False, left)
        return
    yield _rules(lowering)
    text = proof.program.removeprefix("the whole program ")
    yield CheckedPart("program", text.startswith("run "), text)


def _measured(lowering: Lowering) -> tuple[set[Any], list[Any]]:
    """The distinct expansions, and what verification measured of them."""
    internals = lowering.internals
    templates = {each.template for piece in internals.pieces for each in _decisions(piece) if isinstance(each, Derived)}
    return templates, [internals.verdicts[template] for template in templates if template in internals.verdicts]


def _worst(lowering: Lowering) -> str:
    """`1.26 ULP off (linear_by_sum (linear.py:34))`; empty if nothing was measured."""
    done = [verdict for verdict in _measured(lowering)[1] if verdict.values is not None]
    worst = max(done, key=lambda verdict: verdict.values or 0.0, default=None)
    return f"{worst.values:.3g} ULP off ({worst.rule})" if worst is not None else ""


def _rules(lowering: Lowering) -> CheckedPart:
    """What measuring each distinct expansion found out, the worst rule by name."""
    templates, found = _measured(lowering)
    done = [verdict for verdict in found if verdict.values is not None]
    if not templates:
        return CheckedPart("rules", False, "none was used")
    parts = [f"{len(done)} of {count_noun(len(templates), 'distinct expansion')} run"]
    if done:
        parts[0] += f", at most {_worst(lowering)}"
        parts.append(f"gradients of {sum(verdict.gradients is not None for verdict in done)}")
    left = Counter(verdict.reason for verdict in found if verdict.values is None)
    parts += [f"{count} not run: {reason}" for reason, count in left.items()]
    return CheckedPart("rules", bool(done), "; ".join(parts))


def _structure(lowering: Lowering) -> str:
    assert lowering.proof is not None
    calls = sum(node.op.startswith("call") for piece in lowering.internals.pieces for node in piece.graph.nodes)
    blocked = sum(len(blocker.nodes) for blocker in lowering.blockers)
    legal = (
        f"{count_noun(calls, 'call')} legal" if not blocked else f"{count_noun(calls, 'call')}, of which {blocked} stay"
    )
    expansions = f"{count_noun(lowering.proof.expansions, 'expansion')} acyclic"
    return f"{count_noun(lowering.proof.nodes, 'node')} as recorded, {legal}, {expansions}"


ROWS = 12
"""How many rows of each list a table shows."""


def _lines(report: Report) -> Iterator[str]:
    yield report.headline
    for blocker in report.blockers:
        yield f"  not lowered {blocker['op']} at {', '.join(blocker['nodes'])}"
    for name, text in report.facts:
        yield from textwrap.wrap(text, 110, initial_indent=f"  {name:<11} ", subsequent_indent=" " * 14)
    for place, part in enumerate(report.verified):
        head = f"  {'' if place else 'verified':<11} {part.mark} {part.part:<11} "
        yield from textwrap.wrap(part.text, 110, initial_indent=head, subsequent_indent=" " * len(head))
    yield f"  expansions  {report.effort}"
    yield f"  time        {report.timing}"
    yield ""
    yield from _side_by_side(
        _columns("before", fold_rows(report.before, ROWS)), _columns("after", fold_rows(report.after, ROWS))
    )
    if len(report.modules) > 1:
        yield ""
        rows = fold_modules(report.modules, ROWS)
        yield from (f"  {line}" for line in _columns("module", rows, "before", "after"))
    if report.rules:
        yield ""
        yield from (f"  {line}" for line in _columns("rule", fold_rows(report.rules, ROWS), "used"))


def _columns(title: str, rows: Sequence[tuple[Any, ...]], *numbers: str) -> list[str]:
    """A title and rows of a name and one number or more, aligned."""
    numbers = numbers or ("calls",)
    width = max([len(row[0]) for row in rows] + [len(title)])
    lines = [f"{title:<{width}}" + "".join(f" {name:>7}" for name in numbers)]
    return lines + [f"{row[0]:<{width}}" + "".join(f" {number:>7}" for number in row[1:]) for row in rows]


def _side_by_side(left: list[str], right: list[str]) -> Iterator[str]:
    """Two blocks of lines side by side."""
    width = max(map(len, left))
    for i in range(max(len(left), len(right))):
        first, second = (lines[i] if i < len(lines) else "" for lines in (left, right))
        yield f"  {first:<{width}}    {second}".rstrip()


def _milliseconds(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:.1f}" if milliseconds < 10 else f"{milliseconds:.0f}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
