"""What can go wrong between a program and a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from decomp.errors import DecompError, InputMismatch, describe, first_line, located, source_line


class LoadError(DecompError):
    """A backend cannot run a program. `problems` has a line for each thing that is in the way, `nodes` the first node
    that has it; nothing has run."""

    def __init__(
        self, backend: str, problems: Sequence[str], remedies: Sequence[str], nodes: Sequence[fx.Node] = ()
    ) -> None:
        self.backend, self.problems, self.nodes = backend, tuple(problems), tuple(nodes)
        lines = [f"{backend} cannot run this program; nothing has run", *(f"  {line}" for line in self.problems)]
        lines += ["  to do, the easiest first:", *(f"    {i}. {line}" for i, line in enumerate(remedies, 1))]
        super().__init__("\n".join(lines))


class PrimitiveError(DecompError):
    """A function of a backend failed while a program ran; `__cause__` is what it raised, `node` the call. `before` says
    in words which earlier function gave something else than the program has there."""

    def __init__(self, backend: str, function: Any, node: fx.Node, cause: BaseException, before: str = "") -> None:
        self.backend, self.function, self.node = backend, function, node
        lines = [f"{backend}: {_named(function)} failed: {type(cause).__name__}: {first_line(cause)}"]
        lines.append(f"  at {describe(node)}")
        line = source_line(node)
        super().__init__("\n".join([*lines, *([f"  {line}"] if line else []), *([f"  {before}"] if before else [])]))


class BackendError(DecompError):
    """What a backend was given beside its functions (`from_torch`, `to_torch`, `jit`) failed, in which case `__cause__`
    is what it raised; or a result is no tensor of the shape and dtype that it has in the program."""

    def __init__(self, backend: str, problem: str, remedy: str, node: fx.Node | None = None, before: str = "") -> None:
        self.backend, self.node = backend, node
        places = [describe(node), source_line(node), before] if node is not None else []
        where = [f"  at {places[0]}", *(f"  {line}" for line in places[1:] if line)] if places else []
        super().__init__("\n".join([f"{backend}: {problem}", *where, f"  to do: {remedy}"]))


def _named(function: Any) -> str:
    return f"{getattr(function, '__name__', repr(function))} ({located(function)})"


def gave(function: Any, node: fx.Node, found: str, expected: str) -> str:
    """What is said of a function that gave something else than the program has there."""
    return f"first {_named(function)} gave {found} at {describe(node)}, which is {expected} in the program"


def failed(backend: str, option: str, on: str, cause: BaseException) -> BackendError:
    """The error of an option of a backend, a function that failed on a value."""
    problem = f"{option}= failed on {on}: {type(cause).__name__}: {first_line(cause)}"
    return BackendError(backend, problem, f"mend the function that was given as {option}=, so that it takes this")


class WrongInputs(InputMismatch):
    """A loaded program was called with other inputs than it takes: too few, too many, of other sizes, no tensors."""

    def __init__(self, inputs: Sequence[str], cause: BaseException) -> None:
        DecompError.__init__(
            self,
            f"these are not the inputs of the program: {first_line(cause).rstrip(': ')}\n"
            f"  it takes: {'; '.join(inputs) or 'nothing'}\n"
            "  to do: call it as the model that was lowered; lower that with dynamic_shapes= where sizes are to vary",
        )
