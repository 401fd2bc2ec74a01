"""The contenders: each is a function that lowers a program once and returns the graph that it built."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass
import os
import shutil
import tempfile
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks import programs
import decomp
from decomp.cache_directory import VARIABLE

Run = Callable[[], Any]


@dataclass(frozen=True)
class Contender:
    """One implementation to compare."""

    name: str
    run: Run
    """The timed part."""
    limit: int = 1 << 30
    """The largest program, in source nodes, on which it finishes in reasonable time."""


def graph_of(result: Any) -> fx.Graph:
    """The graph in the result of a contender."""
    return result if isinstance(result, fx.Graph) else result.graph


def contenders(program: Any, slow_limit: int) -> list[Contender]:
    """All contenders on `program`, beginning with the floor."""
    warm = programs.rules()
    target = programs.target(graph_of(program))
    lowered = decomp.lower(program, rules=warm, to=target, verify=False).result
    decomp.decompose(program, warm, verify=False)

    def lower(rules: decomp.Rules, verify: bool | str) -> Run:
        return lambda: decomp.lower(program, rules=rules, to=target, verify=verify).result

    kept = tempfile.mkdtemp(prefix="decomp-")
    atexit.register(shutil.rmtree, kept, ignore_errors=True)
    cached(kept, lambda: lower(programs.rules(), False)())()
    found = [
        Contender("Graph.create_node", floor(graph_of(lowered))),
        Contender("Graph.create_node(name=)", floor(graph_of(lowered), named=True)),
        Contender("lower, warm", lower(warm, False)),
        Contender("lower, warm, verified", lower(warm, True)),
        Contender("lower, warm, measured", lower(warm, "values"), limit=20_000),
        Contender("lower, warm, code generated", lambda: with_code(lower(warm, False)())),
        Contender("lower, cold", cached("off", lambda: lower(programs.rules(), False)())),
        Contender("lower, from disk", cached(kept, lambda: lower(programs.rules(), False)())),
        Contender("lower, cold, verified", cached("off", lambda: lower(programs.rules(), True)())),
        Contender("lower, cold, measured", cached("off", lambda: lower(programs.rules(), "values")()), limit=20_000),
        Contender("decompose, warm", lambda: decomp.decompose(program, warm, verify=False)),
        Contender("Graph.graph_copy", lambda: copied(graph_of(lowered))),
    ]
    if isinstance(program, ExportedProgram):
        return found + exported_contenders(program, slow_limit)
    return [*found, Contender("fx.Transformer", transformed(lowered), limit=20_000)]


def cached(place: str, run: Run) -> Run:
    """Run with this directory as the cache of expansions, or without a cache if it is "off"."""

    def within() -> Any:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = place
        try:
            return run()
        finally:
            del os.environ[VARIABLE]
            if before is not None:
                os.environ[VARIABLE] = before

    return within


def exported_contenders(program: ExportedProgram, limit: int) -> list[Contender]:
    """PyTorch's own tools, on an exported program."""
    return [
        Contender("fx.Transformer", transformed(program.graph_module), limit=20_000),
        Contender("make_fx on fakes", on_fakes(program), limit),
        Contender("run_decompositions", lambda: program.run_decompositions(programs.table()), limit),
        Contender("run_decompositions, default table", program.run_decompositions, limit),
    ]


def floor(graph: fx.Graph, named: bool = False) -> Run:
    """`create_node` once for each node of `graph`, with its op, target and arguments; every input is one placeholder,
    so that looking up arguments costs nothing."""
    only = fx.Graph().placeholder("x")
    recipe = [
        (
            n.op,
            n.target,
            fx.map_arg(n.args, lambda _: only),
            fx.map_arg(n.kwargs, lambda _: only),
            n.name if named else None,
        )
        for n in graph.nodes
    ]

    def run() -> fx.Graph:
        new = fx.Graph()
        for op, called, args, kwargs, name in recipe:
            new.create_node(op, called, args, kwargs, name)
        only.users.clear()
        return new

    return run


def with_code(result: Any) -> Any:
    """The lowered program, with its Python code generated, which otherwise happens when it is first run."""
    module = result.graph_module if isinstance(result, ExportedProgram) else result
    assert module.code
    return result


def copied(graph: fx.Graph) -> fx.Graph:
    """A copy of the lowered graph."""
    new = fx.Graph()
    new.output(new.graph_copy(graph, {}))
    return new


def transformed(module: fx.GraphModule) -> Run:
    """An `fx.Transformer` that changes nothing."""
    return lambda: fx.Transformer(module).transform()


def on_fakes(program: ExportedProgram) -> Run:
    """`make_fx` of the exported graph with the same rules. In inference mode, so that composite ops reach the table."""
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    mode = inputs[0].fake_mode

    def run() -> fx.GraphModule:
        with mode, torch.inference_mode():
            fresh = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in inputs]
            trace = make_fx(program.graph_module, decomposition_table=programs.table())
            return trace(*fresh)

    return run
