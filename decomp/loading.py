"""Loads programs of every kind into one form: a graph with metadata, the module that owns its attributes, and the
source op of each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.calling import unlift
from decomp.capture.exporting import export
from decomp.capture.frontends import capture, graph_module
from decomp.capture.module_hooks import carry_hooks
from decomp.errors import CaptureError, spell_target
from decomp.ir.call import CALLS, is_host, is_projection
from decomp.ir.module import Module
from decomp.lowering import Lowering


@dataclass(frozen=True)
class Unlifted:
    """A program to run or to plan, with parameters as attributes instead of inputs."""

    root: fx.GraphModule
    source_op: Callable[[fx.Node], str]
    """Maps a call to the op of the source program that it came from, or to its own op."""

    @property
    def graph(self) -> fx.Graph:
        """Its graph."""
        return self.root.graph


def load(model: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> Unlifted:
    """The program behind `model`. Raises `CaptureError`."""
    if isinstance(model, Lowering):
        return Unlifted(load(model.result, args, kwargs, dynamic_shapes).root, _by_provenance(model))
    program = capture(model, args, kwargs, dynamic_shapes=dynamic_shapes)
    return Unlifted(_module_of(model, program, args, kwargs), spelled_op)


def _module_of(model: nn.Module, program: Module, args: Any, kwargs: Any) -> fx.GraphModule:
    if program.exported is None and program.dialect == "torch" and (args is not None or kwargs):
        # Overloads have variants that write into given memory; functions and methods of torch do not.
        with contextlib.suppress(CaptureError):
            return unlift(export(model, args or (), kwargs))
    if program.exported is not None:
        return unlift(program.exported)
    if isinstance(model, fx.GraphModule) and program.graph is model.graph:
        return model
    root = graph_module(program.root, program.graph)
    carry_hooks(program.root, root)
    return root


def _by_provenance(lowering: Lowering) -> Callable[[fx.Node], str]:
    def source_op(node: fx.Node) -> str:
        try:
            return lowering.provenance(node).op
        except KeyError:  # write-backs
            return spelled_op(node)

    return source_op


def spelled_op(node: fx.Node) -> str:
    """The op of a call, as the program spells it."""
    return spell_target(node.target)


def is_computation(node: fx.Node) -> bool:
    """Whether a node is a call that creates or modifies tensors."""
    calls = node.op in CALLS
    return calls and not is_host(node) and not is_projection(node)


def has_dynamic_sizes(value: Any) -> bool:
    """Whether a value is a tensor with dynamic sizes."""
    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)
