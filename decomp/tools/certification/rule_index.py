"""The index of a library: each rule with its error, its price on some targets and what it computes; the ops that no
rule can decompose; and the errors of the project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import inspect
import re
from typing import Any

from decomp import errors
from decomp.rules.certificate import Certificate, Implementation
from decomp.rules.certificates import identity
from decomp.rules.limitation import Limitation
from decomp.rules.requirements import spell_group
from decomp.rules.rules import Rule
from decomp.tables import Table
from decomp.tools.certification.tables import in_brief


def rule_index(
    rules: Iterable[Rule], certificates: Mapping[str, Certificate], targets: Sequence[str]
) -> dict[str, Table]:
    """By module of the library, a table of its rules: the op that each computes, its largest error in float32 in ULP
    beside that of PyTorch's own kernel, and the calls that the first sample call becomes on each target, at the level
    of the rule."""
    columns = (
        "op",
        "rule",
        "level",
        ">ULP / PyTorch",
        *(f">calls, {target}" for target in targets),
        "what it computes",
    )
    found: dict[str, list[tuple[Any, ...]]] = {}
    for rule in sorted(rules, key=lambda each: (str(each.op), each.name)):
        certificate = certificates.get(identity(rule))
        calls = (_calls(certificate.way(target)) if certificate is not None else "" for target in targets)
        module = identity(rule).partition(":")[0].partition(".")[2]
        row = (str(rule.op), rule.name, rule.level or "", in_brief(certificate)[0], *calls, summary(rule))
        found.setdefault(module, []).append(row)
    return {module: Table(columns, found[module]) for module in sorted(found)}


def _calls(way: Implementation | None) -> str:
    """The number of calls; "native" where the target has the op."""
    if way is None:
        return ""
    calls = way.cost.get("calls")
    return "native" if way.verdict == "legal" else f"{calls:.0f}" if calls is not None else ""


def summary(rule: Rule) -> str:
    """The first sentence of a rule's docstring; empty for a rule that is not a Python function of its own."""
    text = _paragraph(inspect.getdoc(rule.function) or "") if inspect.isfunction(rule.function) else ""
    return re.split(r"(?<=\.) |; ", text, maxsplit=1)[0]


def limitation_index(limitations: Iterable[Limitation]) -> Table:
    """The ops that no rule decomposes: the calls and targets that this is true of, and the reason."""
    rows = []
    for limitation in sorted(limitations, key=str):
        calls = "some calls" if limitation.when is not None else "every call"
        lacking = f" on targets without {', '.join(map(spell_group, limitation.needs))}" if limitation.needs else ""
        rows.append((limitation.op, calls + lacking, limitation.reason))
    return Table(("op", "applies to", "why no rule can decompose it"), rows)


def error_index() -> Table:
    """Every error that the project raises, what it is one of, and what it means."""
    found = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.DecompError)]
    rows = [(each.__name__, each.__mro__[1].__name__, _paragraph(inspect.getdoc(each) or "")) for each in found]
    return Table(("error", "is a", "raised where"), sorted(rows))


def _paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())
