"""The committed certificates of the library, as data: a file for each module of rules, a line of JSON for each rule."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from decomp.errors import spell_target
from decomp.rules.accuracy import LEVELS
from decomp.rules.certificate import Certificate
from decomp.rules.library import shipped
from decomp.rules.rules import Rule

SUFFIX = ".jsonl"


def certificate_of(rule: Any) -> Certificate | None:
    """The committed certificate of a rule of the library."""
    name = identity(rule)
    # A user's rule has a certificate of its own making, which is in no file of the library.
    return _of_family(family(name)).get(name) if name.startswith("decomp_rules.") else None


@functools.cache
def _of_family(name: str) -> dict[str, Certificate]:
    path = directory() / f"{name}{SUFFIX}"
    return read(path) if path.is_file() else {}


def level_of(rule: Rule) -> str:
    """The level of accuracy whose limits apply to a rule: the strictest for a rule without a level."""
    return rule.level or LEVELS[0]


def identity(rule: Rule) -> str:
    """The identity of a rule in certificates and jobs: `decomp_rules.pointwise.activation:relu for aten.relu`. Closures
    have the same name at all levels, so the level is added unless it is exact."""
    function = rule.function
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    if name and "<locals>" in name and level_of(rule) != LEVELS[0]:
        name = f"{name} at {rule.level}"
    return f"{module}:{name} for {rule.op}" if name and module else f"{spell_target(function)} for {rule.op}"


def directory() -> Path:
    """The directory of the library's certificates."""
    return shipped().CERTIFICATES


def family(rule: Rule | str) -> str:
    """The file that a rule's certificate is in, without its suffix: the module that defines the rule."""
    name = rule if isinstance(rule, str) else identity(rule)
    return name.partition(":")[0].partition(".")[2]


def read_committed(where: Path | None = None) -> dict[str, Certificate]:
    """Every committed certificate by rule. Raises `ValueError`, naming the file, for one that cannot be read."""
    found: dict[str, Certificate] = {}
    for path in sorted((where or directory()).glob(f"*{SUFFIX}")):
        found.update(read(path))
    return found


def read(path: Path) -> dict[str, Certificate]:
    """The certificates of one file, by rule. Raises `ValueError`, naming it, where it cannot be read."""
    found: dict[str, Certificate] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            one = Certificate.from_json(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}:{number} is not a certificate: {type(error).__name__}: {error}") from error
        found[one.rule] = one
    return found
