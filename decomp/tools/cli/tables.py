"""The output of commands as rich renderables. Each function renders one kind of result, and computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import inspect

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Frame
from rich.text import Text
from rich.tree import Tree

from decomp.advice.suggestions import Suggestion
from decomp.breakdown.layers import Layers
from decomp.breakdown.model_methods import Methods
from decomp.budgets import Budget, notes_of, table_of
from decomp.costs.plans import spell_price
from decomp.derive.decisions import Plan
from decomp.ir.ops import Op, resolve
from decomp.refolding.outcome import RefoldReport
from decomp.report import ROWS, Report, fold_modules, fold_rows
from decomp.rules.certificate import Certificate
from decomp.rules.certificates import identity
from decomp.rules.limitation import Limitation
from decomp.rules.linting import Finding
from decomp.rules.rules import Rule
from decomp.rules.target import Target
from decomp.tables import Table
from decomp.tools.certification.rule_index import limitation_index, summary
from decomp.tools.certification.tables import in_brief
from decomp.tools.cli.demo import Demo, DemoComparison
from decomp.tools.explaining import DerivationStep, Route
from decomp.tools.open_table import OpenTable


def _verified(report: Report) -> Frame:
    parts = Frame.grid(padding=(0, 1))
    for part in report.verified:
        parts.add_row(Text(part.mark, style="green" if part.checked else "yellow"), part.part, Text(part.text))
    return parts


def report_table(report: Report) -> RenderableType:
    """The report of a lowering: a headline, for what it was planned, calls, cost, error and what was verified; then
    calls by op and by module, and rules."""
    facts = Frame.grid(padding=(0, 2))
    for blocker in report.blockers:
        facts.add_row(Text("not lowered", style="red"), Text(f"{blocker['op']} at {', '.join(blocker['nodes'])}"))
    for name, text in report.facts:
        facts.add_row(name, Text(text))
    facts.add_row("verified", _verified(report))
    facts.add_row("expansions", Text(report.effort))
    facts.add_row("time", Text(report.timing))
    parts: list[RenderableType] = [Text(report.headline, style="bold"), Padding(facts, (0, 0, 0, 2)), ""]
    after = _counts(report.target, report.after, "calls")
    parts.append(Columns([_counts("before", report.before, "calls"), after], padding=(0, 4)))
    if len(report.modules) > 1:
        parts += ["", OpenTable(Table(("module", ">before", ">after"), fold_modules(report.modules, ROWS)))]
    if report.rules:
        parts += ["", _counts("rule", report.rules, "used")]
    return Group(*parts)


def layers_table(layers: Layers) -> RenderableType:
    """What each layer costs."""
    return Group("", Text(layers.headline, style="bold"), OpenTable(layers.table()))


def checks_table(report: Report) -> RenderableType:
    """Every invariant that was checked."""
    return Group("", "checked:", *(indented(f"  {check}") for check in report.checks))


def refold_table(report: RefoldReport) -> RenderableType:
    """What was folded, near misses with their reasons, and what was verified."""
    parts: list[RenderableType] = [Text(report.headline, style="bold")]
    for table in report.tables():
        parts += ["", OpenTable(table)]
    facts = Frame.grid(padding=(0, 2))
    facts.add_row("time", Text(report.timing))
    facts.add_row("verified", Text(report.verdict, style="green" if report.checks else "yellow"))
    return Group(*parts, "", facts)


def plan_table(plan: Plan, lacks: Suggestion | None = None) -> RenderableType:
    """What a lowering would do; which ops are blocked, and what the target lacks."""
    costs = plan.costs()
    parts: list[RenderableType] = [Text(plan.headline, style="bold")]
    parts += (indented(f"  {note}") for note in (*costs.summary(), *plan.notes))
    if lacks is not None:
        first, *rest = lacks.lines()
        parts += ["", Text(first, style="green"), *map(indented, rest)]
    if costs.derived:
        columns = ("op", "by rule", "source", "comes to", *([f">{costs.unit or 'cost'}"] if costs.priced else []))
        rows = [
            (each.op, each.chosen.rule, each.count, each, *([spell_price(each.chosen.cost)] if costs.priced else []))
            for each in sorted(costs.derived, key=lambda each: -each.count)
        ]
        parts += ["", OpenTable(Table(columns, rows))]
    parts += blockers_table(plan, other_targets=lacks is None)
    return Group(*parts)


def blockers_table(plan: Plan, other_targets: bool = True) -> Iterator[RenderableType]:
    """What is blocked in a plan, and why."""
    for blocker in plan.blockers:
        first, *rest = blocker.lines(other_targets=other_targets)
        yield from ("", Text.assemble(("blocked ", "red"), first), *map(indented, rest))


def methods_table(methods: Methods) -> RenderableType:
    """What several methods of a model need and cost."""
    return Group(
        Text(methods.headline, style="bold"), "", OpenTable(methods.table()), "", OpenTable(methods.table_of_ops())
    )


def indented(line: str) -> RenderableType:
    """A line of text with a hanging indent: wrapped lines start below its first word."""
    text = line.lstrip(" ")
    return Padding(Text(text), (0, 0, 0, len(line) - len(text)), expand=False) if len(text) < len(line) else Text(line)


def change_groups(groups: Iterable[tuple[str, str, Sequence[str]]], most: int | None) -> Iterator[RenderableType]:
    """Changes in groups: the title of each, its style, and its lines, of which at most `most` are shown."""
    for title, style, lines in groups:
        yield from ("", Text(f"{title} ({len(lines)})", style=style))
        yield from (indented(f"  {line}") for line in lines[:most])
        left = len(lines) - len(lines[:most])
        if left:
            yield Text(f"  and {left} more (--all)")


def budget_table(budget: Budget) -> RenderableType:
    """The error of a lowered program by op, and advice."""
    parts: list[RenderableType] = [Text(budget.headline, style="bold"), "", OpenTable(table_of(budget))]
    parts += [Text(note) for note in notes_of(budget)]
    parts += [Text(str(each), style="green") for each in budget.advice]
    return Group(*parts)


def rules_table(rules: Iterable[Rule], certificates: Mapping[str, Certificate]) -> RenderableType:
    """One row per rule: op, name, location, its certificate, and the first line of its docstring."""
    columns = ("op", "rule", "where", "ULP / PyTorch", "certified", "what it computes")
    rows = [
        (
            rule.op,
            rule.name,
            rule.location,
            *in_brief(certificates.get(identity(rule))),
            summary(rule),
        )
        for rule in rules
    ]
    return OpenTable(Table(columns, rows))


def limitations_table(limitations: Iterable[Limitation]) -> RenderableType:
    """One row per limitation: op, the calls and targets that it applies to, and the reason."""
    return OpenTable(limitation_index(limitations))


def findings_table(findings: Iterable[Finding]) -> RenderableType:
    """One row per finding of the linter."""
    rows = [(finding.op, finding.rule, finding.problem) for finding in findings]
    return OpenTable(Table(("op", "rule", "problem"), rows))


def documentation(rule: Rule) -> str:
    """A rule's docstring; empty for a rule that is not a Python function of its own."""
    return (inspect.getdoc(rule.function) or "") if inspect.isfunction(rule.function) else ""


def targets_table(targets: Iterable[Target]) -> RenderableType:
    """One row per target."""
    rows = [(target.name, len(target), _dtypes(target), target.description) for target in targets]
    return OpenTable(Table(("target", ">ops", "dtypes", "description"), rows))


def target_table(target: Target) -> RenderableType:
    """The ops of one target, each with its condition, except that on dtypes."""
    table = OpenTable(Table(("op", "legal if"), [(name, condition(target, name)) for name in target]))
    about = f": {target.description}" if target.description else ""
    lines = [Text(f"{target.name}, {len(target)} ops{about}", style="bold")]
    lines += [Text(f"dtypes: {_dtypes(target)}")] if target.dtypes is not None else []
    return Group(*lines, "", table)


def _dtypes(target: Target) -> str:
    """The dtypes that tensors may have on a target: `float, integer, bool`."""
    return "any" if target.dtypes is None else ", ".join(target.dtypes)


def condition(target: Target, name: str) -> str:
    """The condition under which the op that `target` lists as `name` is legal; empty if it is always legal."""
    spelling = resolve(name)
    known = target._entries
    alternatives = known.get((spelling.op, spelling.overload)) or known.get((spelling.op, None), ())
    own = ([condition for condition in conditions if not condition.of_all] for conditions in alternatives)
    return " or ".join(" and ".join(condition.reason for condition in conditions) for conditions in own)


def explanation(
    op: Op, rules: Iterable[Rule], routes: Iterable[Route] = (), target: Target | None = None
) -> RenderableType:
    """The rules of an op with their docstrings, and the route of each sample call to the target."""
    parts: list[RenderableType] = [Text(str(op), style="bold")]
    for i, rule in enumerate(rules, 1):
        parts += ["", Text.assemble(f"{i}. ", (rule.name, "cyan"), f"  {rule.location}")]
        parts.append(Padding(Text(documentation(rule) or "(no docstring)"), (0, 0, 0, 3)))
    if len(parts) == 1:
        parts += ["", "no rule is registered for it"]
    if target is None:
        return Group(*parts)
    trees = [_route(route) for route in routes]
    if not trees:
        verb = "has" if op in target else "does not have"
        return Group(*parts, "", f"{target.name} {verb} it; there is no sample call to try")
    return Group(*parts, "", Text(f"sample calls lowered to {target.name}", style="bold"), *trees)


def _route(route: Route) -> RenderableType:
    colour = {"legal": "green", "derived": "green", "blocked": "red"}[route.verdict]
    tree = Tree(Text.assemble((route.verdict, colour), "  ", route.call))
    for reason in route.reasons:
        tree.add(Text(reason, style="dim" if route.verdict == "derived" else ""))
    _grow(tree, route.derivation)
    return tree


def _grow(tree: Tree, step: DerivationStep) -> None:
    if step.calls:
        tree.add(Text(", ".join(f"{count} × {name}" if count > 1 else name for name, count in step.calls.items())))
    for rule, inner in step.rules.items():
        _grow(tree.add(Text(rule, style="cyan")), inner)


def demo_table(demo: Demo) -> RenderableType:
    """The comparison of a lowered model with its original, as a table and in sentences."""
    rows = [
        (row.what, f"{row.difference:.1e}", *(f"{x:.1f}" for x in (row.ulp, row.original_error, row.lowered_error)))
        for row in (demo.outputs, demo.gradients, *([demo.elsewhere] if demo.elsewhere is not None else []))
    ]
    columns = ("", ">largest difference", ">in ULP", ">error of the original", ">error when lowered")
    words = [
        f"Lowered, the model's outputs agree with the original's {_in_words(demo.outputs)}, its gradients "
        f"{_in_words(demo.gradients)}.",
        "A ULP is one unit in the last place of a tensor's largest element; errors are those against float64.",
        f"A forward pass takes at best {1000 * demo.fused_seconds:.2f} ms with PyTorch's own fused kernels, and "
        f"{1000 * demo.primitive_seconds:.2f} ms, {demo.primitive_seconds / demo.fused_seconds:.1f} times as long, "
        "with primitives run one by one: fusing them is up to the backend.",
    ]
    if demo.elsewhere is not None:
        words.append(
            f"NumPy, a backend of {demo.functions} functions without PyTorch, runs the same program: its "
            f"outputs agree {_in_words(demo.elsewhere)}."
        )
    return Group(OpenTable(Table(columns, rows)), "", *map(Text, words))


def _in_words(row: DemoComparison) -> str:
    return "to the last bit" if row.ulp == 0 else f"to {row.ulp:.1f} ULP"


def _counts(title: str, counts: Mapping[str, int], column: str) -> OpenTable:
    return OpenTable(Table((title, f">{column}"), fold_rows(counts, ROWS)))
