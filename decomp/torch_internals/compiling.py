"""What `torch.compile` is made of, for a backend of it, and for counting what Inductor wrote. To import this module
costs seconds."""

from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import (
    aot_module_simplified as aot_module_simplified,  # the public wrapper compiles a module anew at every call of it
)
from torch._functorch.aot_autograd import (
    make_boxed_func as make_boxed_func,
)
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

from decomp.torch_internals.fakes import TracingContext

__all__ = ["GraphLowering", "aot_module_simplified", "compile_fx", "compile_fx_inner", "compiler_config",
           "donate_nothing", "functorch_config", "inductor_config", "list_mode_options", "list_options",
           "make_boxed_func", "metrics", "select_decomp_table"]


def donate_nothing() -> None:
    """While AOTAutograd compiles: no saved tensor is the backward graph's own, to write into. AOTAutograd sees neither
    that two of them share memory (torch 2.13) nor that a lowered forward graph may save an input for one of its own."""
    context = TracingContext.try_get()
    donated = getattr(context and context.fw_metadata, "bw_donated_idxs", None)
    if donated:
        donated.clear()  # in place: AOTAutograd holds the list twice
