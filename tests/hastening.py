"""What PyTorch does again and again in tests, done once, or not at all where it is bookkeeping: each function patches
one part of it, and what is computed stays the same."""

import functools
import inspect
import sys
import traceback
import types
import typing

CALLS = {"fallback_by_default": True}
"""Options with which Inductor calls PyTorch's kernels and has no C++ compiled, for what is true whatever it calls."""


def hasten():
    """Patch the parts that were imported."""
    _decompositions()
    _seeds()
    _guards()
    _modes()
    _stacks()
    _recompiling()
    _generated_code()


def _decompositions():
    """Have `ExportedProgram.run_decompositions` take half its time, which hardly depends on the program (torch 2.13):
    it registers kernels for each composite op by a function whose annotations are made at each call, and walks through
    the ops that C++ registers once for each namespace."""
    utils = sys.modules.get("torch._export.utils")
    if utils is not None:
        utils._materialize_cpp_cia_ops = functools.cache(utils._materialize_cpp_cia_ops)
        sys.modules["torch._ops"].Callable = typing.Callable  # which remembers what it was subscripted with


def _seeds():
    """Have `torch.manual_seed` keep no formatted stack of each of its calls for devices that may be there later, where
    there are none. PyTorch is not imported here: the process that only hands cases to the others does without it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.accelerator.current_accelerator(check_available=True) is None:
        for devices in (torch.cuda.random, torch.mtia, torch.xpu.random):
            devices._lazy_call = lambda *args, **kwargs: None


def _guards():
    """Have `torch.compile` not measure how long its guards take, for its logs: it flushes the caches of the processor
    before, once for each graph, which takes as long as compiling a small one (torch 2.13)."""
    guards = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        guards.profile_guard_manager = lambda *given: 0.0


def _modes():
    """Have a mode of export's, which asks all ops that were ever called to forget who handles them, ask those that have
    learned it since (torch 2.13): each trace of a rule begins with such a mode."""
    ops, fresh = sys.modules.get("torch._ops"), set()

    def forgetting():
        while fresh:
            yield fresh.pop()

    if ops is not None:
        fresh |= ops.cached_ops
        ops.add_cached_op, ops.get_cached_ops = fresh.add, forgetting


def _stacks():
    """Have the frames of stacks, of which each node of a graph gets one, read their lines of source once, and fake
    modes not read the stack on which they are made, for an error about two of them (torch 2.13)."""
    stacks = sys.modules.get("torch.utils._traceback")
    if stacks is not None:
        frame = functools.cache(traceback.FrameSummary)
        stacks._extract_symbolized_tb = lambda found, skip: traceback.StackSummary(
            frame(each["filename"], each["line"], each["name"]) for each in reversed(found[skip:])
        )
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    if fakes is not None:
        fakes.traceback = types.SimpleNamespace(extract_stack=list, format_list=traceback.format_list)


def _recompiling():
    """Have `fx.GraphModule` compile the same source once. Dynamo, which remembers what it has compiled by the code
    object, is given a code object of its own each time."""
    modules = sys.modules.get("torch.fx.graph_module")
    if modules is not None:
        compiled = functools.cache(compile)

        def compile_anew(source, file, mode, dont_inherit):
            code = compiled(source, "", mode, dont_inherit=dont_inherit)
            constants = (c.replace(co_filename=file) if isinstance(c, types.CodeType) else c for c in code.co_consts)
            return code.replace(co_filename=file, co_consts=tuple(constants))

        modules.compile = compile_anew


def _generated_code():
    """Have what writes the source of graphs find out once which arguments each of its methods takes (torch 2.13)."""
    graphs = sys.modules.get("torch.fx.graph")
    if graphs is not None:
        parameters = functools.cache(lambda function: frozenset(inspect.signature(function).parameters))

        def call(self, method, *args, **kwargs):
            known = parameters(getattr(method, "__func__", method))
            return method(*args, **{name: value for name, value in kwargs.items() if name in known})

        graphs.CodeGen._call_method_with_signature_check = call
