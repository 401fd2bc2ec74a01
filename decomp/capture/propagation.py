"""Propagation of metadata: a copy of a graph is run on fake tensors, and each node records its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.exporting import Infer, lacks_data
from decomp.errors import CaptureError, NotLowered, first_line
from decomp.graphs.rewrite import Rewrite, copy_graph
from decomp.graphs.tracing import without_guards
from decomp.ir.aliases import changes_metadata
from decomp.metadata.fakes import new_mode
from decomp.ops import aten
from decomp.torch_internals.fakes import FakeTensor, FakeTensorMode
from decomp.torch_internals.modes import enable_python_dispatcher
from decomp.torch_internals.pytree import tree_map


class NeedsData(CaptureError):
    """The program has an op that does not run on fake tensors, because it reads their data."""


def propagate_metadata(
    graph: fx.Graph, root: nn.Module, values: Sequence[Any], infer: Infer | None, mode: FakeTensorMode | None = None
) -> tuple[Rewrite, FakeTensorMode]:
    """A copy of `graph` with metadata propagated from `values` of its inputs, and the fake mode: `mode`, if the values
    are fake tensors of one. Raises `CaptureError`, `NotLowered`."""
    rewrite = copy_graph(graph)
    module = fx.GraphModule(root, rewrite.graph)
    mode = mode or new_mode()
    values = [tree_map(lambda v: _fake(v, mode), value) for value in values]
    try:
        _Propagation(module, mode, infer).run(*values)
    except NotLowered:
        raise
    except Exception as error:
        kind = NeedsData if lacks_data(error) else CaptureError
        remedy = "pass an ExportedProgram, or inputs on which the program runs"
        problem = f"the program does not run on the example inputs: {first_line(error)}"
        raise kind(f"{problem}\n  to do: {remedy}") from error
    inputs = module.graph.find_nodes(op="placeholder")
    for node, value in zip(inputs, values):
        if value is None:
            _inline_none(node)
    return rewrite, mode


def _fake(value: Any, mode: FakeTensorMode) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    try:
        return mode.from_tensor(value)
    except Exception as error:
        kind = "nested" if value.is_nested else f"{value.dtype} {str(value.layout).removeprefix('torch.')}"
        raise CaptureError(
            f"PyTorch cannot make a fake tensor of an example input, a {kind} tensor: {first_line(error)}\n"
            "  to do: pass dense tensors of plain dtypes"
        ) from error


def _inline_none(absent: fx.Node) -> None:
    """Replace an input that is None by the literal None: a rule would take the node for a tensor without metadata."""
    for user in list(absent.users):
        user.args, user.kwargs = fx.node.map_arg((user.args, user.kwargs), lambda n: None if n is absent else n)


class _Propagation(fx.Interpreter):
    """Runs a graph on fake tensors and records the result of each node."""

    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode, infer: Infer | None) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.mode, self.infer = mode, infer
        self.reshapes = any(map(changes_metadata, module.graph.nodes))

    def run(self, *args: Any, **_: Any) -> Any:
        # Without the Python dispatcher some kernels, such as that of polar, specialise dynamic sizes to the example's.
        with self.mode, enable_python_dispatcher(), torch.no_grad(), without_guards(self.mode):
            return super().run(*args, enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        try:
            result = super().run_node(n)
        except Exception as error:
            result = self.infer(n) if self.infer is not None and lacks_data(error) else None
            if result is None:
                raise
        if n.op == "get_attr" and isinstance(result, torch.Tensor) and not isinstance(result, FakeTensor):
            result = self.mode.from_tensor(result, static_shapes=True)
        n.meta["val"] = tree_map(_alias_now, result) if self.reshapes else result
        return result


def _alias_now(value: Any) -> Any:
    """An alias of a tensor, which keeps its shape when the tensor itself is resized in place."""
    return aten.alias.default(value) if isinstance(value, FakeTensor) else value
