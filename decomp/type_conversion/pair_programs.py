"""Applies pairs to a functional program for a target without complex dtypes: decides whether pairs are needed and which
complex calls stay, and reports the conversions at the border."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from decomp.errors import count_noun
from decomp.ir.call import call_if_bound, metadata
from decomp.ir.module import ProgramGraph
from decomp.ir.ops import op as op_of
from decomp.metadata.fakes import mode_of
from decomp.rules.target import Target
from decomp.torch_internals.pytree import tensors_in
from decomp.type_conversion.pair_recording import PairRecorder, is_complex_call, is_complex_inside
from decomp.type_conversion.pairs import MERGE_COMPLEX, SPLIT_COMPLEX, complex_as_real


def split_complex_program(own: ProgramGraph, recorder: PairRecorder, target: Target) -> ProgramGraph:
    """A graph with pairs of real numbers instead of complex ones; itself if `target` knows every complex dtype in
    it."""
    graph = own.graph
    # A target that says nothing of dtypes is taken to know all.
    if target.dtypes is None or mode_of(graph) is None or not any(_unknown(node, target) for node in graph.nodes):
        return own
    kept = {node for node in graph.nodes if is_complex_call(node) and _may_stay(node, target)}
    written = {write.value for write in own.writes}
    found = complex_as_real(graph, recorder, kept, written, own.attribute_names)
    after = own.rewritten(found.rewrite, "split complex", why=found.why, chains=found.chains, constants=found.constants)
    return replace(after, stale_strides={**after.stale_strides, **found.stale_strides})


def _unknown(node: fx.Node, target: Target) -> bool:
    dtypes = {each.dtype for each in tensors_in(metadata(node)) if isinstance(each, torch.Tensor)}
    if is_complex_inside(node):
        # `irfft` of real numbers is complex in between, although no tensor is.
        dtypes = {dtype.to_complex() for dtype in dtypes}
    return any(dtype.is_complex and not target.knows_dtype(dtype) for dtype in dtypes)


def _may_stay(node: fx.Node, target: Target) -> bool:
    """Whether the target or the user explicitly allows a complex call. (A `detach` for any dtype does not count: it
    does not show that the target has complex numbers.)"""
    call = call_if_bound(node)
    return call is not None and call.op != op_of("detach") and target.why_illegal(call) is None


def border_conversions(graph: fx.Graph) -> Iterator[fx.Node]:
    """The calls of a graph that split complex inputs and merge complex outputs, of the graph or of calls that stay
    complex. Not at the border: a split directly after a merge, and a merge that is only split again."""
    for node in graph.nodes:
        if (
            node.target is SPLIT_COMPLEX
            and node.args[0].target is not MERGE_COMPLEX
            or node.target is MERGE_COMPLEX
            and all(user.target is not SPLIT_COMPLEX for user in node.users)
        ):
            yield node


def describe_border(graph: fx.Graph) -> str:
    """The conversions at the border: `x split by view_as_real; y merged by view_as_complex`."""
    calls = list(border_conversions(graph))
    apart = dict.fromkeys(node.args[0] for node in calls if node.target is SPLIT_COMPLEX)
    together = [node for node in calls if node.target is MERGE_COMPLEX]
    said = [
        f"{_names(apart)} split by view_as_real" if apart else "",
        f"{_names(together)} merged by view_as_complex" if together else "",
    ]
    return "; ".join(filter(None, said))


def describe_pairs(own: ProgramGraph) -> str:
    """A sentence for plans and reports on a graph on pairs: how many calls compute on them, and the conversions at the
    border."""
    calls = count_noun(sum(not isinstance(why, str) for why in own.why.values()), "call")
    at_border = describe_border(own.graph)
    return f"complex numbers: {calls} on pairs of real numbers" + (f"; at the border {at_border}" if at_border else "")


def _names(nodes: Any) -> str:
    return ", ".join(node.name for node in nodes)
