"""How the module of a captured program is called. Export's own module flattens and compares trees, and checks
constraints, before each call: forty times the cost of a small op, and a break in the graph under `torch.compile`. Where
inputs are plain tensors of fixed sizes, a Python signature and one look at the tensors do the same. Dtypes are checked
here in any case: export's own module does not look at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from decomp.capture.input_checks import ANYTHING, InputCheck, Scope, scope_of, tensor_input
from decomp.capture.lowered_module import look_before
from decomp.ir.call import metadata
from decomp.metadata.symbolic_sizes import has_fixed_sizes
from decomp.torch_internals import pytree


def unlifted(program: ExportedProgram, source: fx.Graph | None = None) -> fx.GraphModule:
    """The module of an exported program, of which `source` is what it computes, if it was lowered. Its training flag is
    that of a plain module: what the flag did is recorded."""
    module = program.module(check_guards=False)
    for name in ("train", "eval"):
        module.__dict__.pop(name, None)
    inputs = module.graph.find_nodes(op="placeholder")
    expected = _expected(inputs, scope_of(module.graph, source or module.graph))
    check = InputCheck([str(node.target) for node in inputs], expected)
    if _takes_fixed_tensors(inputs, program):
        _called_plainly(module, check.names, program.call_spec.out_spec)
    else:
        check.codegen = module.graph._codegen
    look_before(module, check)
    return module


def _expected(inputs: list[fx.Node], scope: Scope) -> list[Any]:
    """What the tensors among the inputs are to be; numbers are checked by export's own module."""
    values = [metadata(node) for node in inputs]
    return [tensor_input(value, scope) if isinstance(value, torch.Tensor) else ANYTHING for value in values]


def _takes_fixed_tensors(inputs: list[fx.Node], program: ExportedProgram) -> bool:
    """Whether all inputs are tensors of fixed sizes, given by position or by name."""
    names, spec = [str(node.target) for node in inputs], program.call_spec.in_spec
    if spec is None or not all(map(str.isidentifier, names)) or not all(has_fixed_sizes(metadata(n)) for n in inputs):
        return False
    named = list(spec.child(1).context)
    by_name = {name: 0 for name in named}
    flat = spec == pytree.tree_structure(((0,) * (len(names) - len(named)), by_name))
    return flat and names[len(names) - len(named) :] == named


def _is_plain(spec: pytree.TreeSpec) -> bool:
    """Whether results are one tensor, or a tuple or list of them."""
    return spec.is_leaf() or spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children())


def _called_plainly(module: fx.GraphModule, names: Sequence[str], out: pytree.TreeSpec | None) -> None:
    """Let a module take its inputs by position or by name, without the hooks of torch.export."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        hooks.clear()
    for more in (module._forward_pre_hooks_with_kwargs, module._forward_hooks_always_called):
        more.clear()
    if out is not None and _is_plain(out):
        module.graph._codegen = fx.graph.CodeGen()
        output = module.graph.output_node()
        output.args = (pytree.tree_unflatten(list(output.args[0]), out),)
    else:
        codegen = module.graph._codegen
        by_place = pytree.tree_structure(((0,) * len(names), {}))
        codegen.pytree_info = codegen.pytree_info._replace(orig_args=list(names), in_spec=by_place)
