"""The report of a lowering: what was there, what is there now, how it came about; as a table and as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from decomp.calls import is_host, is_projection, module_path
from decomp.errors import spelled

if TYPE_CHECKING:
    from decomp.lowering import Lowering


@dataclass(frozen=True)
class Report:
    """`str(report)` is a table, `as_dict()` the same for machines."""

    target: str
    before: dict[str, int]
    """Calls by op in the source."""
    after: dict[str, int]
    """Calls by op in the lowered program."""
    modules: dict[str, tuple[int, int]]
    """Calls before and after by module."""
    rules: dict[str, int]
    """How often each rule served."""
    runs: int
    """Rules run on proxies in this lowering."""
    stamped: int
    """Expansions put into the program."""
    expansions: int
    """Distinct expansions among them."""
    seconds: dict[str, float]
    checks: tuple[str, ...]
    blockers: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def report_of(lowering: Lowering) -> Report:
    """The report of a lowering."""
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    modules: dict[str, list[int]] = {}
    rules: Counter[str] = Counter()
    stamped = expansions = 0
    for piece in lowering.pieces:
        for node in piece.source.nodes:
            _count(node, piece.origin(node), before, modules, 0)
        for node in piece.retraced.graph.nodes:
            source = piece.retraced.origin.get(node)
            _count(node, piece.origin(source) if source is not None else node, after, modules, 1)
        rules.update(str(getattr(d, "rule")) for d in piece.decisions.values() if hasattr(d, "rule"))
        stamped += sum(piece.retraced.stamps.values())
        expansions += len(piece.retraced.stamps)
    return Report(
        target=lowering.target.name,
        before=dict(before.most_common()),
        after=dict(after.most_common()),
        modules={name: (a, b) for name, (a, b) in modules.items()},
        rules=dict(rules.most_common()),
        runs=lowering.runs,
        stamped=stamped,
        expansions=expansions,
        seconds=dict(lowering.times),
        checks=lowering.proof.checks if lowering.proof is not None else (),
        blockers=tuple(asdict(blocker) for blocker in lowering.blockers),
    )


def _count(node: fx.Node, source: fx.Node, ops: Counter[str], modules: dict[str, list[int]], column: int) -> None:
    if not node.op.startswith("call") or is_host(node) or is_projection(node):
        return
    ops[spelled(node.target)] += 1
    path = module_path(source.meta.get("nn_module_stack")) or "(top)"
    modules.setdefault(path, [0, 0])[column] += 1


def _lines(report: Report) -> list[str]:
    total, now = sum(report.before.values()), sum(report.after.values())
    lines = [f"lowered to {report.target}: {total} calls of {len(report.before)} ops became {now} of {len(report.after)}"]
    lines += ["", *_columns("before", report.before, "after", report.after)]
    if report.rules:
        lines += ["", "rules used"] + [f"  {count:6d}  {rule}" for rule, count in report.rules.items()]
    lines += ["", f"expansions: {report.runs} run, {report.stamped} stamped, {report.expansions} distinct"]
    spent = ", ".join(f"{stage} {1000 * seconds:.1f}" for stage, seconds in report.seconds.items())
    lines += [f"time in ms: {spent}"]
    if report.checks:
        lines += ["verified:"] + [f"  ✓ {phrase}" for phrase in report.checks]
    if report.blockers:
        lines += ["not lowered:"] + [f"  {blocker['op']} at {', '.join(blocker['nodes'])}" for blocker in report.blockers]
    return lines


def _columns(left: str, first: dict[str, int], right: str, second: dict[str, int]) -> list[str]:
    """Two lists of counts side by side."""
    width = max([len(name) for name in first] + [len(left)])
    rows = [f"  {left:<{width}} {'calls':>6}   {right}"]
    a, b = list(first.items()), list(second.items())
    for i in range(max(len(a), len(b))):
        one = f"{a[i][0]:<{width}} {a[i][1]:>6}" if i < len(a) else " " * (width + 7)
        two = f"{b[i][0]:<32} {b[i][1]:>6}" if i < len(b) else ""
        rows.append(f"  {one}   {two}".rstrip())
    return rows
