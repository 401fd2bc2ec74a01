"""Committed certificates: a line of JSON for each rule, a file for each module of rules, sorted and without dates, so
that a changed rule is a changed line."""

from __future__ import annotations

from collections.abc import Iterable
import functools
import json
from pathlib import Path

from decomp.files import write_atomically
from decomp.rules.certificate import Certificate, Implementation
from decomp.rules.certificates import SUFFIX, directory, family, identity, level_of, read_committed
from decomp.rules.library import library
from decomp.rules.rules import Rule
from decomp.rules.sources import content_hash
from decomp.tools.certification import TARGETS as TARGETS


def commit(certificates: Iterable[Certificate], where: Path | None = None) -> list[Path]:
    """Replace the certificates of these rules, drop those of rules that the library no longer has, and return the files
    written."""
    where = where or directory()
    where.mkdir(exist_ok=True)
    there = {identity(rule) for rule in library()}
    new = {one.rule: one for one in certificates}
    all_of_them = {rule: one for rule, one in {**read_committed(where), **new}.items() if rule in there}
    files: dict[str, list[str]] = {}
    for rule in sorted(all_of_them):
        line = json.dumps(all_of_them[rule].to_json(), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        files.setdefault(family(rule), []).append(line)
    for path in where.glob(f"*{SUFFIX}"):
        if path.stem not in files:
            path.unlink()
    return [path for name, lines in files.items() if _written(path := where / f"{name}{SUFFIX}", lines)]


def _written(path: Path, lines: list[str]) -> bool:
    """Write a file if it would change."""
    text = "\n".join(lines) + "\n"
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    with write_atomically(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return True


def why_stale(rule: Rule, certificate: Certificate | None) -> str:
    """Why a committed certificate is out of date; empty if it is up to date."""
    if certificate is None:
        return "there is no certificate"
    if certificate.hash != content_hash([rule]):
        return "the rule has changed since"
    if certificate.level != level_of(rule):
        return f"it was measured for the level {certificate.level}"
    return _changed_on_the_way(certificate.ways)


def changed_here(rule: Rule, certificate: Certificate) -> str:
    """Why a certificate is of other code than is here; empty if it is not. A rule on its way that the installed PyTorch
    leaves out (`when=`) is not a change: the program is then lowered by others."""
    if certificate.hash != content_hash([rule]):
        return "the rule has changed since"
    return _changed_on_the_way(way for way in certificate.ways if all(name in _library() for name in way.rules))


def _changed_on_the_way(ways: Iterable[Implementation]) -> str:
    for way in ways:
        if way.rules and way.hash != _hash_of(way.rules):
            return f"a rule on the way to {way.title} has changed since"
    return ""


@functools.cache
def _hash_of(names: tuple[str, ...]) -> str:
    """The hash of rules of the library, by identity; the hash of nothing if one no longer exists."""
    by_name = _library()
    return content_hash([by_name[name] for name in names]) if all(name in by_name for name in names) else ""


@functools.lru_cache(maxsize=1)
def _library() -> dict[str, Rule]:
    return {identity(rule): rule for rule in library()}
