"""Narrows a functional program for a target: decides whether it has wide tensors, checks that parameters, constants and
inputs are in the range of the narrow dtypes, and reports what is still wide at the border."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.lowered_module import add_input_check
from decomp.errors import CaptureError, OutOfRange, spell_target
from decomp.ir.aliases import attribute
from decomp.ir.arguments import nodes_in
from decomp.ir.call import metadata
from decomp.ir.dtypes import name_of
from decomp.ir.module import ProgramGraph
from decomp.metadata.fakes import mode_of
from decomp.metadata.meta_values import convert_constant, known_value
from decomp.narrowing.program import Dtypes, fits_dtype, narrow_graph
from decomp.rules.target import Target
from decomp.torch_internals.pytree import tensors_in, tree_leaves


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


def require_fits(name: str, tensor: torch.Tensor, dtypes: Dtypes) -> None:
    """Raise `OutOfRange` if a tensor has finite values out of the range of the narrow dtype."""
    narrow = dtypes.get(tensor.dtype)
    value = known_value(tensor) if narrow is not None else None
    if narrow is None or value is None or not value.numel():
        return
    # A complex number fits if its parts do; comparing needs an order.
    parts = torch.view_as_real(value.detach().resolve_conj()) if value.is_complex() else value.detach()
    # Infinities and NaN exist in narrow floats, too.
    parts = parts[parts.isfinite()] if parts.is_floating_point() else parts
    if not parts.numel():
        return
    low, high = (float(end) if parts.is_floating_point() else int(end) for end in parts.aminmax())
    # `finfo` of a complex dtype is that of its parts.
    info = torch.finfo(narrow) if narrow.is_floating_point or narrow.is_complex else torch.iinfo(narrow)
    wrong = next((end for end in (low, high) if not info.min <= end <= info.max), None)
    if wrong is not None:
        raise OutOfRange(f"{name} holds", wrong, name_of(narrow))


def narrow_tensor(name: str, tensor: torch.Tensor, dtypes: Dtypes) -> torch.Tensor:
    """Cast a tensor to its narrow dtype. Raises `OutOfRange` if values are out of range."""
    if tensor.dtype not in dtypes:
        return tensor
    require_fits(name, tensor, dtypes)
    return convert_constant(lambda value: value.to(dtypes[tensor.dtype]), tensor)


@dataclass(frozen=True)
class IntegerRangeCheck:
    """A hook that checks the integer inputs of a program in narrow dtypes. (Floats need no check: one that is too large
    becomes infinite, which is visible.)"""

    dtypes: Dtypes

    def added(self, module: fx.GraphModule) -> None:
        """Add the check to the module of a lowered program."""
        add_input_check(module, self)

    def __call__(self, module: nn.Module, given: Mapping[str, Any]) -> None:
        """Raises `OutOfRange` for an integer that does not fit."""
        require_integers_fit(given, self.dtypes)


def require_integers_fit(given: Mapping[str, Any], dtypes: Dtypes) -> None:
    """Raise `OutOfRange` if an input is, or contains, an integer out of the range of the narrow dtype."""
    narrow = dtypes.get(torch.int64)
    for name, value in given.items() if narrow is not None else ():
        for leaf in tree_leaves(value):
            # Not `bool`, which is an int to `isinstance`.
            if type(leaf) is int and not fits_dtype(narrow, leaf):
                raise OutOfRange(f"input {name!r} is", leaf, name_of(narrow))
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.int64:
                require_fits(f"input {name!r}", leaf, dtypes)


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
