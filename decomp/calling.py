"""How the module of a captured program is called. Export's own module flattens and compares trees, and checks
constraints, before each call: forty times the cost of a small op, and a break in the graph under `torch.compile`. Where
inputs are plain tensors of fixed sizes, a Python signature and one look at the shapes do the same."""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from decomp.calls import metadata
from decomp.input_checks import InputCheck


def unlifted(program: ExportedProgram) -> fx.GraphModule:
    """The module of an exported program. Its training flag is that of a plain module: what the flag did is recorded."""
    module = program.module(check_guards=False)
    for name in ("train", "eval"):
        module.__dict__.pop(name, None)
    shapes = _fixed_shapes(module.graph, program)
    if shapes is not None and _is_plain(program.call_spec.out_spec):
        _made_plain(module, shapes, program.call_spec.out_spec)
    return module


def _fixed_shapes(graph: fx.Graph, program: ExportedProgram) -> dict[str, torch.Size] | None:
    """The shapes of the inputs by name; None unless all are tensors of fixed sizes, given by position."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    values = [metadata(node) for node in inputs]
    fixed = all(isinstance(v, torch.Tensor) and all(type(size) is int for size in v.shape) for v in values)
    names = [str(node.target) for node in inputs]
    spec = program.call_spec.in_spec
    flat = spec is not None and spec == pytree.tree_structure(((0,) * len(inputs), {}))
    if not (fixed and flat) or any(not name.isidentifier() for name in names):
        return None
    return {name: value.shape for name, value in zip(names, values)}


def _is_plain(spec: pytree.TreeSpec | None) -> bool:
    """Whether results are one tensor, or a tuple or list of them."""
    if spec is None:
        return False
    return spec.is_leaf() or spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children())


def _made_plain(module: fx.GraphModule, shapes: dict[str, torch.Size], out: pytree.TreeSpec) -> None:
    module.graph._codegen = fx.graph.CodeGen()
    output = module.graph.output_node()
    output.args = (pytree.tree_unflatten(list(output.args[0]), out),)
    module.recompile()
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        hooks.clear()
    for more in (module._forward_pre_hooks_with_kwargs, module._forward_hooks_always_called):
        more.clear()
    module.register_forward_pre_hook(InputCheck(list(shapes), list(shapes.values())), with_kwargs=True)
