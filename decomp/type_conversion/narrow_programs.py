"""Narrows a functional program for a target: decides whether it has wide tensors, checks that parameters, constants and
inputs are in the range of the narrow dtypes, and reports what is still wide at the border."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from decomp.errors import CaptureError, OutOfRange, spell_target
from decomp.ir.aliases import attribute
from decomp.ir.arguments import nodes_in
from decomp.ir.call import metadata
from decomp.ir.dtypes import name_of
from decomp.ir.module import ProgramGraph
from decomp.metadata.fakes import mode_of
from decomp.rules.target import Target
from decomp.torch_internals.pytree import tensors_in
from decomp.type_conversion.narrowing import narrow_graph
from decomp.type_conversion.ranges import Dtypes, require_fits


def narrow_program(own: ProgramGraph, target: Target, state: Mapping[str, Any]) -> ProgramGraph:
    """A graph in narrow dtypes; itself if the target declares none, or nothing is wide. `state`: the tensors behind
    inputs. Raises `OutOfRange` for a tensor or a number that does not fit, and `CaptureError` if the graph has no
    metadata."""
    graph = own.graph
    if not target.narrower:
        return own
    if mode_of(graph) is None:
        if any(node.op.startswith("call") for node in graph.nodes):
            raise CaptureError("narrow=True needs the dtypes of the program, which it does not have: pass args=(...)")
        return own
    found = narrow_graph(graph, target.narrower, {write.value for write in own.writes})
    if found is None:
        return own
    for call, (what, dtype) in found.refused.items():
        raise OutOfRange(f"{spell_target(call.target)} (at {call.name}) takes", what, dtype)
    # Weights and constants are known now, so that they are checked here and not in each run.
    for node in graph.nodes:
        tensor = state.get(node.name) if node.op == "placeholder" else None
        tensor = attribute(own.owner, str(node.target)) if node.op == "get_attr" else tensor
        if isinstance(tensor, torch.Tensor):
            require_fits(str(node.target), tensor, target.narrower)
    after = own.rewritten(found.rewrite, "narrow", why=target.narrower)
    return replace(after, stale_strides={**after.stale_strides, **found.stale_strides})


def describe_narrowing(own: ProgramGraph) -> str:
    """A sentence for plans and reports on a graph in narrow dtypes: which dtypes were replaced, and what is still wide
    at the border."""
    assert own.before is not None
    source, dtypes = own.before.graph, own.why
    by_dtype: dict[torch.dtype, list[str]] = {}
    given = [node for node in source.nodes if node.op in ("placeholder", "get_attr")]
    for node in given:
        _list(node, dtypes, by_dtype)
    results: dict[torch.dtype, list[str]] = {}
    for node in dict.fromkeys(nodes_in(source.output_node().args)):
        _list(node, dtypes, results)
    made = {each for node in source.nodes for each in _dtypes_of(node)} & dtypes.keys()
    said = []
    for wide in sorted(made, key=str):
        border = [f"given {_named(by_dtype[wide])}"] if wide in by_dtype else []
        border += [f"returned {_named(results[wide])}"] if wide in results else []
        at = f"; still {name_of(wide)} at the border: {', '.join(border)}" if border else ""
        said.append(f"{name_of(dtypes[wide])} instead of {name_of(wide)}{at}")
    return "; ".join(said)


def _list(node: fx.Node, dtypes: Dtypes, into: dict[torch.dtype, list[str]]) -> None:
    for dtype in _dtypes_of(node):
        if dtype in dtypes:
            into.setdefault(dtype, []).append(node.name)


def _dtypes_of(node: fx.Node) -> set[torch.dtype]:
    return {each.dtype for each in tensors_in(metadata(node))}


def _named(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST else f"{', '.join(names[:_MOST])} and {len(names) - _MOST} more"


_MOST = 6
"""How many names of inputs, or of results, are listed."""
