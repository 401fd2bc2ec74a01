"""Compiles many programs by Inductor as one graph: the cost per graph is paid once, and as programs share no tensors,
they are not fused with each other. A fingerprint identifies equal programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import functools
import hashlib
import operator
import shutil
from typing import Any

import torch
from torch import fx, nn

from decomp.errors import DecompError, first_line
from decomp.torch_internals import pytree

Tensors = Sequence[torch.Tensor]
ALONE: dict[str, Any] = {"compile_threads": 1, "fx_graph_cache": False}
"""Options of Inductor: compile in one process, and do not cache graphs, which do not recur."""
SCALAR: dict[str, Any] = {"cpp.simdlen": 1}
"""Options for scalar C++, which Inductor generates on any machine for what it cannot vectorise. In scalar code integer
overflow is undefined, while vector instructions wrap; and it compiles in a quarter of the time."""


@dataclass(frozen=True, eq=False)
class JointProgram:
    """A program, inputs to compile it for, and the number of its result tensors."""

    module: fx.GraphModule
    tensors: tuple[torch.Tensor, ...]
    results: int

    @functools.cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits: equal for the same calls with the same constants, on inputs with the same
        metadata."""
        places = {node: f"%{i}" for i, node in enumerate(self.module.graph.nodes)}
        text = [f"{t.dtype} {tuple(t.shape)} {t.stride()}" for t in self.tensors]
        for node in self.module.graph.nodes:
            target = _digest(self.module, node.target) if node.op == "get_attr" else str(node.target)
            named = "" if node.op == "placeholder" else target
            text.append(f"{node.op} {named} {fx.map_arg((node.args, node.kwargs), lambda n: places[n])}")
        return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]


def _digest(module: fx.GraphModule, name: str) -> str:
    """The content of a constant of a program, as text."""
    value = operator.attrgetter(name)(module)
    if not isinstance(value, torch.Tensor):
        return f"{name} {getattr(value, 'code', value)}"
    held = hashlib.sha256(str(value.detach().tolist()).encode()).hexdigest()
    return f"{value.dtype} {tuple(value.shape)} {held}"


class NoCompiler(DecompError, RuntimeError):
    """Inductor has no C++ compiler; the message says what to do."""


class JointlyCompiled:
    """Programs that were compiled together, scalar or vectorised, each run on inputs of its own. Raises what Inductor
    raises."""

    def __init__(self, programs: Sequence[JointProgram], vectors: bool = False) -> None:
        self.programs = programs
        inputs = [t.clone() for program in programs for t in program.tensors]
        with torch.no_grad():
            self._run = _by_inductor(_joined(programs), inputs, ALONE if vectors else {**ALONE, **SCALAR})

    def __call__(self, tensors: Sequence[Tensors]) -> list[list[torch.Tensor]]:
        """The results of each program on its tensors, which are not modified."""
        with torch.no_grad():
            found = iter(pytree.tensors_in(self._run(*(t.detach().clone() for own in tensors for t in own))))
        return [[next(found).clone() for _ in range(program.results)] for program in self.programs]


def failure(error: BaseException) -> str:
    """The error of Inductor for a program that it does not compile, in one line."""
    cause = getattr(error, "inner_exception", None) or error
    return f"{type(cause).__name__}: {first_line(cause)[:160]}"


def _joined(programs: Sequence[JointProgram]) -> fx.GraphModule:
    """One graph that calls each program, with the inputs and results of all."""
    graph, parts = fx.Graph(), nn.Module()
    inputs = [
        [graph.placeholder(f"input_{i}_{j}") for j in range(len(program.tensors))] for i, program in enumerate(programs)
    ]
    results = []
    for i, (program, given) in enumerate(zip(programs, inputs)):
        parts.add_module(f"program_{i}", _Flat(program.module))
        call = graph.call_module(f"program_{i}", tuple(given))
        results += [graph.call_function(operator.getitem, (call, j)) for j in range(program.results)]
    graph.output(tuple(results))
    return fx.GraphModule(parts, graph)


class _Flat(nn.Module):
    """A program whose results are a flat tuple of tensors."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(pytree.tensors_in(self.module(*tensors)))


def require_compiler() -> str:
    """The path of Inductor's C++ compiler. Raises `NoCompiler` without one."""
    from decomp.torch_internals.compiling import inductor_config

    name: str = inductor_config.cpp.cxx[1]
    found = shutil.which(name)
    if found is None:
        raise NoCompiler(f"Inductor compiles with {name}, which is missing: install it (apt install g++), or set CXX")
    return found


def _by_inductor(graph: fx.GraphModule, inputs: list[torch.Tensor], config: dict[str, Any]) -> Any:
    from decomp.torch_internals.compiling import compile_fx, inductor_config

    with inductor_config.patch(config):
        return compile_fx.compile_fx(graph, inputs)
