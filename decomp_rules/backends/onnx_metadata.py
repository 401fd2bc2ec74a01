"""What viewers show of a model beside its operators: where each comes from, in the keys that `torch.onnx` writes (Model
Explorer groups nodes by `namespace`), the shapes of all values, and the user's names of open axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
import functools
from importlib import metadata
from typing import Any

import onnx
import torch
from torch import fx

import decomp
from decomp_rules.backends.onnx_weights import without_data


def version() -> str:
    """The version of this package; empty where it is run from its source."""
    try:
        return metadata.version("decomp")
    except metadata.PackageNotFoundError:
        return ""


def annotating(program: Any) -> Callable[[fx.Node], Mapping[str, str]]:
    """A function from nodes to their metadata: modules, call, line of the user, and of a lowering the rules as well."""
    record = program.provenance if isinstance(program, decomp.Lowering) else None

    @functools.cache
    def annotated(node: fx.Node) -> Mapping[str, str]:
        try:
            found = record(node) if record is not None else None
        except KeyError:
            found = None
        call, op = (node.name, str(node.target)) if found is None else (found.source, str(found.op))
        said = _placed(node, call, op)
        if found is not None:
            rules = " > ".join(name for name, _ in found.chain)
            said |= {"decomp.source": f"{call} = {op}", "decomp.module": found.module, "decomp.rules": rules}
        return {key: text for key, text in said.items() if text}

    return annotated


def _placed(node: fx.Node, call: str, op: str) -> dict[str, str]:
    """The metadata that `torch.onnx` writes. All nodes of one call of the source are in one namespace."""
    stack = [(str(name), _class_name(kind)) for name, kind in (node.meta.get("nn_module_stack") or {}).values()]
    return {
        "namespace": "/".join(f"{name}: {kind}" for name, kind in (*stack, (call, op))),
        "pkg.torch.onnx.class_hierarchy": repr([*(kind for _, kind in stack), op]),
        "pkg.torch.onnx.name_scopes": repr([*(name for name, _ in stack), call]),
        "pkg.torch.onnx.fx_node": str(node.format_node()),
        "pkg.torch.onnx.stack_trace": node.meta.get("stack_trace") or "",
    }


def _class_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def axis_names(values: Iterable[Any]) -> Mapping[str, str]:
    """The names that the user gave sizes, as in `Dim("batch")`, by symbol."""
    sizes = (size for value in values if isinstance(value, torch.Tensor) for size in value.shape)
    env = next((size.node.shape_env for size in sizes if isinstance(size, torch.SymInt)), None)
    # Only the ShapeEnv of a program that was exported in this process has the names (torch 2.11 to 2.15).
    names, symbols = (getattr(env, name, {}) for name in ("source_name_to_debug_name", "source_to_var"))
    return {str(symbols[source]): name for source, name in names.items() if source in symbols}


def infer_edges(model: onnx.ModelProto) -> None:
    """Add the dtypes and shapes of values between the operators of one call, as ONNX infers them."""
    known = {each.name for each in (*model.graph.value_info, *model.graph.output)}
    inferred = onnx.shape_inference.infer_shapes(without_data(model), data_prop=True).graph.value_info
    model.graph.value_info.extend(each for each in inferred if each.name not in known)
