"""The rules that a command is about: by op or name, by family, or all of the library."""

from __future__ import annotations

import decomp
from decomp.rules.certificates import family
from decomp.rules.library import library
from decomp.tools.cli.arguments import near
from decomp.tools.cli.terminal import Unusable


def chosen_rules(name: str | None, family: str | None, everything: bool) -> list[decomp.Rule]:
    """The rules to certify. Raises `Unusable`, `UnknownOp`."""
    rules = list(library())
    if name is not None:
        named = [rule for rule in rules if rule.name == name]
        rules = list(library().of(decomp.op(name))) if not named else _of_op_or_name(name, named)
        if not rules:
            raise Unusable(f"there is no rule for {decomp.op(name)}")
    elif family is not None:
        known = sorted({name for rule in rules for name in _families(rule)})
        rules = [rule for rule in rules if family in _families(rule)]
        if not rules:
            raise Unusable(f"no family {family!r}.{near(family, known)} Available: {', '.join(known)}")
    elif not everything:
        raise Unusable("which rules? Name an op, or pass --family FAMILY, --stale or --all")
    return rules


def _families(rule: decomp.Rule) -> tuple[str, str, str]:
    """The names of a rule's family: the package, the module in it, the module's own name."""
    module = family(rule)
    return module.partition(".")[0], module, module.rpartition(".")[2]


def _of_op_or_name(name: str, named: list[decomp.Rule]) -> list[decomp.Rule]:
    """The rules of a name, where ops take precedence: `relu` is an op and a rule, `sort_scattered` only a rule."""
    try:
        return list(library().of(decomp.op(name))) or named
    except decomp.errors.UnknownOp:
        return named
