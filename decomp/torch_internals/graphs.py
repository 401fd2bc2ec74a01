"""Private parts of torch.fx graphs and exported programs."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx, nn
from torch.export.exported_program import (
    _common_getitem_elimination_pass,
    _override_composite_implicit_decomp,
    _split_decomp_table_to_cia_and_python_decomp,
)
from torch.fx._lazy_graph_module import _LazyGraphModule, _make_graph_module, _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx as make_fx

from decomp.torch_internals import fakes as _fakes

# The codegen of graphs that take and return pytrees: of `torch.export`'s modules, and of traces with concrete
# arguments.
PyTreeCodeGen = fx.graph._PyTreeCodeGen

# The tree specs of such a codegen.
tree_info = fx.graph._PyTreeInfo

# The pass run by the constructor of `ExportedProgram`.
share_getitems = _common_getitem_elimination_pass


def export_below_autograd(
    model: nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    """As `torch.export.export`, traced below autograd, where PyTorch asks a tensor subclass what it computes; in the
    ops of `run_decompositions({})`, which itself loses the constants that a subclass creates, until torch 2.15
    (`exported_program.py`: `constants=ep.constants`). A subclass that knows only the parts of a composite op is asked
    for these, as when the module runs, and all composite ops are taken apart."""
    from torch.export._trace import _export  # deferred, as in torch.export: it imports Dynamo

    traced = functools.partial(_export, model, args, kwargs, dynamic_shapes, strict=False, pre_dispatch=False)
    found: torch.export.ExportedProgram
    try:
        with _override_composite_implicit_decomp(_split_decomp_table_to_cia_and_python_decomp({})[0]):
            found = traced()
    except Exception:  # whatever a subclass's own code raises
        found = traced()
    return found


# The function that Dynamo calls for `.data` of a tensor.
get_data_attr = torch._C._autograd._get_data_attr

# The base of the dropout modules.
DropoutNd = nn.modules.dropout._DropoutNd


# A `GraphModule` that generates its code when it is first run; the public class does so at once, in 30 µs per node:
# https://github.com/pytorch/pytorch/pull/117911.
LazyGraphModule = _LazyGraphModule


def change_class(module: fx.GraphModule, kind: Any) -> None:
    """Change the class of an existing module; each `GraphModule` has a class of its own."""
    # `GraphModule.__new__` makes a subclass for each object, as `recompile` assigns `forward` to the class: an object
    # that had `kind` itself as its class would change the forward of all others.
    own: Any = type(kind.__new__(kind))
    own.__name__ = type(module).__name__
    module.__class__ = own


def skip_frame(function: Any) -> Any:
    """Keep Dynamo from compiling the frame of a function, but not those of functions that it calls. (The public
    decorator imports Dynamo.)"""
    frames: Any = torch._C._dynamo.eval_frame
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    frames.set_code_exec_strategy(function.__code__, strategy)
    return function


class BodyModule(_LazyGraphModule):
    """A body of a higher-order op. When it runs with gradients, PyTorch traces it in a fake mode that accepts no other
    tensors (torch 2.13, `materialize_as_graph`): there its constants are copied into the mode."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if not isinstance(value, torch.Tensor) or isinstance(value, _fakes.FakeTensor):
            return value
        # The op with which PyTorch's own graphs read their constants: the only one whose argument may be a real tensor.
        return value if _fakes.active_fake_mode() is None else torch.ops.aten.lift_fresh_copy.default(value)


def lazy_graph_module(
    root: Any, graph: fx.Graph, name: str, kind: type[fx.GraphModule] = LazyGraphModule
) -> fx.GraphModule:
    """A `GraphModule` of class `kind` that generates its code when it is first run."""
    with _use_lazy_graph_module(True):
        module: fx.GraphModule = _make_graph_module(root, graph, class_name=name, graph_module_cls=kind)
    return module
