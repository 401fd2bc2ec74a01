"""The shortest program that still has a fault: lines are dropped as long as it stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
import itertools

from tests.fuzzing.checking import Verdict, check
from tests.fuzzing.programs import Program


def reduced(program: Program, verdict: Verdict) -> Program:
    """The program without what its fault does not need."""

    def fails(candidate: Program) -> bool:
        try:
            found = list(check(candidate, [(verdict.form, verdict.target)]))
        except Exception:  # a line that is needed was dropped
            return False
        return any(other.status == "fault" and other.kind == verdict.kind for other in found)

    return smallest(program, fails)


def smallest(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program with as few lines as `fails` allows."""
    while True:
        found = next((candidate for candidate in _shorter(program) if fails(candidate)), None)
        if found is None:
            return program
        program = found


def _shorter(program: Program) -> Iterator[Program]:
    """Programs with a line less, and simpler ones."""
    for part in ("body", "returned", "setup", "inputs"):
        lines = getattr(program, part)
        for index in reversed(range(len(lines))):
            if part in ("body", "setup") or len(lines) > 1:
                yield program.without(part, index)
    if program.packing != "({})":
        yield replace(program, packing="({})")
    if program.dynamic:
        yield replace(program, dynamic=False)
    for index, line in enumerate(program.body):
        for shorter in _simpler(line):
            yield replace(program, body=(*program.body[:index], shorter, *program.body[index + 1 :]))


def _simpler(statement: str) -> Iterator[str]:
    """A statement of several lines without a region, and without each line."""
    lines = statement.splitlines()
    for index, line in enumerate(lines) if len(lines) > 1 else ():
        inside = list(itertools.takewhile(lambda other: _indent(other) > _indent(line), lines[index + 1 :]))
        rest = lines[index + 1 + len(inside) :]
        yield "\n".join([*lines[:index], *(other[4:] for other in inside), *rest])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
