"""A program as a list of calls of a backend's functions: run as one generated Python function, or call by call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
import functools
import itertools
import linecache
import math
from typing import Any

from torch import fx

from decomp.ir.arguments import nodes_in, substituted, text
from decomp.runtime.current import is_walking, set_current_node

Visit = Callable[[fx.Node, tuple[Any, ...], Mapping[str, Any], Any], None]
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class GeneratedStep:
    """One call."""

    node: fx.Node
    """The node that it computes. In the arguments, nodes represent values."""
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    primitive: bool
    """Whether it is an op of the backend and not host code (sizes, projections, regions)."""


@dataclass(frozen=True)
class GeneratedProgram:
    """A sequence of calls."""

    inputs: tuple[fx.Node, ...]
    steps: tuple[GeneratedStep, ...]
    results: Any
    """The results, nested, with nodes for values."""
    constants: Mapping[fx.Node, Any] = field(default_factory=dict)
    """Values of nodes that are neither inputs nor computed."""

    @functools.cached_property
    def source(self) -> tuple[str, dict[str, Any], tuple[GeneratedStep, ...]]:
        """The Python source of a function `run`, the values of its global names, and the step of each line (starting
        at line 2)."""
        return _Writer(self).written()

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The code as one Python function of its inputs."""
        text, names, _ = self.source
        # Tracebacks then show the line of the generated code, and `step_at` finds the call.
        linecache.cache[self.filename] = (len(text), None, text.splitlines(True), self.filename)
        # One generated function is called several times faster than a loop over steps: no lookups of arguments.
        exec(compile(text, self.filename, "exec"), names)  # our own text; values are passed by name
        made: Callable[..., Any] = names["run"]
        return made

    @functools.cached_property
    def filename(self) -> str:
        """The file name of the generated code in tracebacks."""
        return f"<lowered program {next(_numbers)}>"

    def step_at(self, line: int) -> GeneratedStep | None:
        """The step that a line of the generated code runs."""
        steps = self.source[2]
        return steps[line - 2] if 0 <= line - 2 < len(steps) else None

    def walk(self, values: Sequence[Any], visit: Visit | None = None) -> Any:
        """Run call by call; `visit(node, args, kwargs, result)` is called after each call of a primitive."""
        env: dict[fx.Node, Any] = {**self.constants, **dict(zip(self.inputs, values, strict=True))}
        # Arrays are freed as in the generated code, so that both need the same memory.
        last = self.last_uses()
        for i, step in enumerate(self.steps):
            args = tuple(substituted(arg, env.__getitem__) for arg in step.args)
            kwargs = {key: substituted(value, env.__getitem__) for key, value in step.kwargs.items()}
            with set_current_node(step.node):
                result = env[step.node] = step.function(*args, **kwargs)
                if visit is not None and step.primitive:
                    visit(step.node, args, kwargs, result)
            for node in last.get(i, ()):
                del env[node]
        return substituted(self.results, env.__getitem__)

    def last_uses(self) -> dict[int, list[fx.Node]]:
        """By the number of a step: the values that no later step reads."""
        kept, found = set(nodes_in(self.results)), dict[fx.Node, int]()
        for i, step in enumerate(self.steps):
            found[step.node] = i
            found.update((node, i) for node in nodes_in((step.args, step.kwargs)) if node in found)
        last: dict[int, list[fx.Node]] = {}
        for node, i in found.items():
            if node not in kept:
                last.setdefault(i, []).append(node)
        return last


class GeneratedBody:
    """The body of a higher-order op as a function of arrays."""

    def __init__(self, code: GeneratedProgram, name: str) -> None:
        self.code, self.__name__ = code, name

    def __call__(self, *operands: Any) -> Any:
        # A body within a walk is walked, too, so that `node_now` is the inner call.
        return self.code.walk(operands) if is_walking() else self.code.function(*operands)

    def __repr__(self) -> str:
        return f"<body {self.__name__}>"


class _Writer:
    """Writes code as Python source."""

    def __init__(self, code: GeneratedProgram) -> None:
        self.code = code
        self.names: dict[str, Any] = {}
        self._by_identity: dict[int, str] = {}
        values = itertools.chain(code.inputs, (step.node for step in code.steps))
        # Names of nodes may be keywords of Python, or names of the globals below.
        self.locals = {node: f"v{i}" for i, node in enumerate(values)}
        for node, value in code.constants.items():
            self.locals[node] = self._named("c", value)

    def written(self) -> tuple[str, dict[str, Any], tuple[GeneratedStep, ...]]:
        parameters = ", ".join(self.locals[node] for node in self.code.inputs)
        last = self.code.last_uses()
        lines = [f"def run({parameters}):"]
        for i, step in enumerate(self.code.steps):
            given = [self._text(arg) for arg in step.args]
            given += [f"{key}={self._text(value)}" for key, value in step.kwargs.items()]
            gone = ", ".join(self.locals[node] for node in last.get(i, ()))
            call = f"{self._named('f', step.function)}({', '.join(given)})"
            # Python frees a local at the end of the function otherwise.
            lines.append(f"    {self.locals[step.node]} = {call}{f'; del {gone}' if gone else ''}")
        lines.append(f"    return {self._text(self.code.results)}")
        return "\n".join(lines) + "\n", self.names, self.code.steps

    def _named(self, letter: str, value: Any) -> str:
        # The values are kept in `names`, so that their ids are not reused.
        name = self._by_identity.get(id(value))
        if name is None:
            name = self._by_identity[id(value)] = f"{letter}{len(self.names)}"
            self.names[name] = value
        return name

    def _text(self, value: Any) -> str:
        return text(value, self._leaf)

    def _leaf(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return self.locals[value]
        # `inf` and `nan` are no literals.
        if value is None or type(value) in (bool, int, str) or type(value) is float and math.isfinite(value):
            return repr(value)
        return self._named("k", value)
