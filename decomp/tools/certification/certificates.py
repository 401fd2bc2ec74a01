"""Committed certificates: a line of JSON for each rule, a file for each module of rules, sorted and without dates, so
that a changed rule is a changed line."""

from __future__ import annotations

from collections.abc import Iterable
import functools
import json
from pathlib import Path

from decomp._library import library
from decomp.rules.rules import Rule
from decomp.tools.certification.certificate import Certificate, Implementation
from decomp.tools.certification.implementations import identity, level_of
from decomp.tools.certification.sources import content_hash
from decomp.tools.writing import write_atomically

TARGETS = ("core_aten", "tinygrad", "luminal")
"""The targets that committed certificates measure."""
SUFFIX = ".jsonl"


def directory() -> Path:
    """The directory of the library's certificates."""
    import decomp_rules

    return Path(decomp_rules.__file__).parent / "certificates"


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
