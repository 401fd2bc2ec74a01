"""Parts of `torch.compile`, for implementing a backend, and for counting the kernels that Inductor generates. Importing
this module takes seconds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._dynamo.utils import get_metrics_context
from torch._export import config as export_config
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import (
    aot_module_simplified as aot_module_simplified,  # the public wrapper compiles a module again at every call
    make_boxed_func as make_boxed_func,
)
from torch._functorch.partitioners import (
    default_partition as default_partition,
    min_cut_rematerialization_partition,
)
from torch._guards import CompileContext
from torch._inductor import (
    compile_fx as compile_fx,
    config as inductor_config,
    list_mode_options as list_mode_options,
    list_options as list_options,
    metrics as metrics,
)
from torch._inductor.compile_fx import compile_fx_inner as compile_fx_inner
from torch._inductor.decomposition import select_decomp_table as select_decomp_table
from torch._inductor.graph import GraphLowering as GraphLowering
from torch.compiler import config as compiler_config
from torch.export._trace import _export_to_torch_ir as export_to_torch_ir

from decomp.torch_internals.fakes import TracingContext

__all__ = [
    "GraphLowering",
    "aot_module_simplified",
    "as_boxed",
    "compile_fx",
    "compile_fx_inner",
    "compiler_config",
    "current_compilation",
    "default_partition",
    "donate_nothing",
    "export_config",
    "export_to_torch_ir",
    "functorch_config",
    "inductor_config",
    "is_boxed",
    "list_mode_options",
    "list_options",
    "make_boxed_func",
    "metrics",
    "outputs_as_traced",
    "recomputing_partition",
    "select_decomp_table",
]


def as_boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, marked as one that takes its arguments as one list. AOTAutograd then passes a list that the callee
    may clear, which frees inputs early: https://github.com/pytorch/pytorch/pull/83137."""
    vars(function)["_boxed_call"] = True
    return function


def is_boxed(function: Callable[..., Any]) -> bool:
    """Whether a function is so marked."""
    return getattr(function, "_boxed_call", False)


def recomputing_partition(joint: Any, inputs: Any, **options: Any) -> Any:
    """A partition of the joint graph whose backward recomputes values where that is cheaper than saving them, by
    Inductor's cost model. Inner `detach` calls are removed first: the partitioner would save each result separately."""
    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        if all(user.op != "output" for user in node.users):
            node.replace_all_uses_with(node.args[0])
            joint.graph.erase_node(node)
    return min_cut_rematerialization_partition(joint, inputs, **options)


def current_compilation() -> tuple[str, str]:
    """Dynamo's number of the compilation that is going on, `frame/recompilation`, and why it compiles the frame again;
    both empty outside Dynamo, the reason also the first time. (Dynamo passes the reason to its log alone, after the
    compilation: torch 2.11 to 2.15.)"""
    number = CompileContext.current_compile_id()
    context = get_metrics_context()
    reason = context._metrics.get("recompile_reason") if context.in_progress() else None
    return str(number or ""), str(reason or "")


def donate_nothing() -> None:
    """To be called while AOTAutograd compiles: forbid the backward graph to reuse the memory of saved tensors.
    AOTAutograd does not see that two of them share memory (torch 2.13), or that a lowered forward graph may save an
    input instead of a tensor of its own."""
    context = TracingContext.try_get()
    # Buffers are donated on the ground that they alias no input and no output of the traced forward; the lowered one is
    # another graph. https://github.com/pytorch/pytorch/pull/130580.
    donated = getattr(context and context.fw_metadata, "bw_donated_idxs", None)
    if donated:
        donated.clear()  # in place: AOTAutograd has two references to the list


class Outputs(NamedTuple):
    """The outputs of a forward graph, by how AOTAutograd uses them; it assumes their traced sizes, strides and offsets
    (torch 2.13)."""

    views: frozenset[int] = frozenset()
    """Those of which it only reads the layout, to take a view of an input or of another output."""
    whole: frozenset[int] = frozenset()
    """Those of which it takes such views, or which it writes back to inputs."""
    results: frozenset[int] = frozenset()
    """Those that it returns to the caller directly."""


def outputs_as_traced() -> Outputs:
    """The outputs of the forward graph that AOTAutograd is compiling."""
    context = TracingContext.try_get()
    found = context and context.fw_metadata
    if found is None:
        return Outputs()
    written = [found.input_info[i] for i in found.mutated_inp_runtime_indices]
    # The order of results in AOTAutograd's forward: effect tokens, new values of inputs, results of the user, bases of
    # views, then what is saved for the backward (`ViewAndMutationMeta` in _functorch/_aot_autograd/schemas.py).
    first = len(found.tokens)
    whole = {first + i for i, info in enumerate(written) if info.mutates_metadata}
    first += len(written)
    infos = dict(enumerate(found.output_info, first))
    views = {i: info for i, info in infos.items() if "alias_of" in info.output_type.name}
    bases = range(first + len(infos), first + len(infos) + found.num_intermediate_bases)
    users = {first + info.base_idx for info in views.values() if info.output_type.name.endswith("base_is_user_output")}
    read = frozenset(i for i, info in views.items() if not _is_replayed(info))
    return Outputs(read, frozenset(whole | users | {*bases}), frozenset(infos.keys() - views.keys()))


def _is_replayed(info: Any) -> bool:
    """Whether AOTAutograd takes the view again call by call, without reading strides."""
    taken = info.view_meta_sequence
    replays = functorch_config.view_replay_for_aliased_outputs and taken is not None
    # A view with symbolic sizes is not replayed: `gen_alias_from_base` falls back to `as_strided` for it (torch 2.13).
    return bool(replays) and not any(view.has_symbolic_inputs for view in taken.sequence)
