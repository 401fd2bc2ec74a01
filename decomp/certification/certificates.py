"""Committed certificates: one JSON file a family of rules, sorted and without dates, so that a difference between two
versions is a difference between two rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import functools
import json
from pathlib import Path
from typing import Any

from decomp.certification.certificate import Certificate
from decomp.certification.sources import content_hash
from decomp.certification.ways import identity
from decomp.lowering import library
from decomp.rules import Rule
from decomp.writing import whole

TARGETS = ("core_aten", "tinygrad", "luminal")
"""The targets that committed certificates measure."""
WIDTH = 118
"""What fits into so many columns stands on one line."""


def directory() -> Path:
    """Where the certificates of the library lie."""
    import decomp_rules

    return Path(decomp_rules.__file__).parent / "certificates"


def family(rule: Rule | str) -> str:
    """The file that a rule's certificate is in: the module that defines it."""
    name = rule if isinstance(rule, str) else identity(rule)
    return name.partition(":")[0].rpartition(".")[2]


def committed(where: Path | None = None) -> dict[str, Certificate]:
    """Every committed certificate by rule. Raises `ValueError`, naming the file, for one that cannot be read."""
    found: dict[str, Certificate] = {}
    for path in sorted((where or directory()).glob("*.json")):
        found.update(read(path))
    return found


def read(path: Path) -> dict[str, Certificate]:
    """The certificates of one file, by rule. Raises `ValueError`, naming it, where it cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {rule: Certificate.from_json({**one, "rule": rule}) for rule, one in data.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} holds no certificates: {type(error).__name__}: {error}") from error


def commit(certificates: Iterable[Certificate], where: Path | None = None) -> list[Path]:
    """Put certificates in the place of those of the same rules, drop those of rules that the library has no more, and
    return the files written."""
    where = where or directory()
    where.mkdir(exist_ok=True)
    there = {identity(rule) for rule in library()}
    new = {one.rule: one for one in certificates}
    all_of_them = {rule: one for rule, one in {**committed(where), **new}.items() if rule in there}
    files: dict[str, dict[str, Any]] = {}
    for rule in sorted(all_of_them):
        files.setdefault(family(rule), {})[rule] = _body(all_of_them[rule])
    for path in where.glob("*.json"):
        if path.stem not in files:
            path.unlink()
    return [path for name, content in files.items() if _written(path := where / f"{name}.json", content)]


def _body(certificate: Certificate) -> dict[str, Any]:
    return {name: value for name, value in certificate.to_json().items() if name != "rule"}


def _written(path: Path, content: Mapping[str, Any]) -> bool:
    """Write a file if it would change."""
    text = "\n".join(_laid_out(content, "")) + "\n"
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    with whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return True


def _laid_out(value: Any, indent: str) -> Iterator[str]:
    """JSON whose small parts stand on one line each."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= WIDTH or not isinstance(value, (dict, list)):
        yield flat
        return
    pairs = (
        [(f"{json.dumps(k)}: ", v) for k, v in value.items()] if isinstance(value, dict) else [("", v) for v in value]
    )
    yield "{" if isinstance(value, dict) else "["
    for i, (name, item) in enumerate(pairs):
        first, *rest = _laid_out(item, indent + " ")
        lines = [f"{indent} {name}{first}", *rest]
        lines[-1] += "," if i + 1 < len(pairs) else ""
        yield from lines
    yield indent + ("}" if isinstance(value, dict) else "]")


def stale(rule: Rule, certificate: Certificate | None) -> str:
    """Why a committed certificate says nothing of the rule as it is now; empty if it does."""
    if certificate is None:
        return "there is no certificate"
    if certificate.hash != content_hash([rule]):
        return "the rule has changed since"
    for way in certificate.ways:
        if way.rules and way.hash != _hash_of(way.rules):
            return f"a rule on the way to {way.name} has changed since"
    return ""


@functools.lru_cache(maxsize=None)
def _hash_of(names: tuple[str, ...]) -> str:
    """The hash of rules of the library, by identity; that of nothing where one is gone."""
    by_name = _library()
    return content_hash([by_name[name] for name in names]) if all(name in by_name for name in names) else ""


@functools.lru_cache(maxsize=1)
def _library() -> dict[str, Rule]:
    return {identity(rule): rule for rule in library()}
