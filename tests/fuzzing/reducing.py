"""The shortest program that still has a fault: lines are dropped as long as it stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

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
        if line.startswith("with "):
            body = (*program.body[:index], line.splitlines()[1].strip(), *program.body[index + 1:])
            yield replace(program, body=body)
