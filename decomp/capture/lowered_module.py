"""The module of a lowered program. It checks its inputs in the code generated for its graph: a forward pre-hook would
cost as much as a small kernel at each call, and under `torch.compile` adds guards for everything that it reads. Copies
and unpickled modules check their inputs, too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
import copy
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.inputs.checks import ANYTHING, AlternativeProgram, InputCheck, Look, expected_inputs
from decomp.capture.inputs.layouts import order_of
from decomp.capture.traced_regions import holds_custom_functions
from decomp.errors import DecompError, NotPortable
from decomp.forks import ForkSafeLock
from decomp.ir.call import metadata
from decomp.metadata.symbolic_sizes import has_fixed_sizes
from decomp.torch_internals.graphs import LazyGraphModule, PyTreeCodeGen, change_class, skip_frame

_GENERATING = ForkSafeLock()
"""Held while code is generated, as the graph's code transformer is set temporarily."""


class LoweredModule(LazyGraphModule):
    """A `GraphModule` that compares its inputs with those it was lowered for, and generates its code when it is first
    run."""

    _input_check: InputCheck | None = None

    def _real_recompile(self) -> Any:
        line = _line(self)
        first = [] if line is None else [line]
        with _GENERATING:
            # The check is added by a code transformer rather than as nodes, so that the graph stays the lowered
            # program.
            with self.graph.on_generate_code(lambda before: lambda body: [*first, *(before(body) if before else body)]):
                code = super()._real_recompile()
            if line is not None:
                # `code`, which is printed, saved and traced, shows the program without the check.
                self._code = code.src = code.src.replace(f"    {line}", "", 1)
            del type(self).__call__  # saves two frames per call; its message is in the traceback anyway
        return code

    @skip_frame
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        check = self._input_check
        # Here and not in the generated code, as hooks must run without gradients as well.
        if check is not None and check.inference and torch.is_grad_enabled():
            check.refuse_gradients(args, kwargs)
            with torch.no_grad():
                return self(*args, **kwargs)
        if check is not None and check.otherwise is not None and check.is_laid_out_otherwise(args, kwargs):
            check(self, args, kwargs)
            return check.otherwise.run(self, args, kwargs)
        try:
            return super().__call__(*args, **kwargs)
        except Exception as error:
            # Most often PyTorch's error about a kernel is due to an input that differs, which this names.
            if check is not None and not isinstance(error, DecompError):
                check.explain(args, kwargs, error)
            raise

    def _lazy_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Replaces that of torch 2.13, which calls the module again once the code is generated, so that hooks would run
        twice."""
        self.real_recompile()
        return self.forward(*args, **kwargs)

    forward = _lazy_forward

    def __deepcopy__(self, memo: dict[int, Any]) -> fx.GraphModule:
        return _complete_copy(super().__deepcopy__(memo), list(self.state_dict()), self._input_check)

    def __copy__(self) -> fx.GraphModule:
        return _complete_copy(super().__copy__(), list(self.state_dict()), self._input_check)

    def __reduce__(self) -> tuple[Any, ...]:
        if holds_custom_functions(self):
            raise NotPortable(
                "a lowered program with a torch.autograd.Function cannot be pickled: PyTorch reads a GraphModule by "
                "tracing it, which would lose the backward\n"
                "  to do: save its state_dict() and lower the model again, or lower it with training=False"
            )
        made, (state, *more) = super().__reduce__()
        state = {name: value for name, value in state.items() if name not in _NOT_SAVED and "_hooks" not in name}
        return _restore_pickled, (made, (state, *more), list(self.state_dict()), self._input_check)


_NOT_SAVED = ("_input_check", "_tracer_cls", "_tracer_extras")
"""State that an unpickled `GraphModule` does not take over: it creates its own, and tracers of torch.export cannot be
re-created."""


def install_input_check(module: fx.GraphModule, check: InputCheck) -> None:
    """Make `module`, whose class becomes `LoweredModule`, check its inputs whenever it is run."""
    if not isinstance(module, LoweredModule):
        change_class(module, LoweredModule)
    # A copied module has the hook of the one that it was copied from.
    for key in [key for key, hook in module._forward_pre_hooks.items() if hook is module._input_check or hook is check]:
        del module._forward_pre_hooks[key], module._forward_pre_hooks_with_kwargs[key]
    module._input_check = check
    # A hook is slower than the generated line, so it is only used for checks that the line cannot express.
    if not check.is_said_by_line or _line(module) is None and check.line() is not None:
        module.register_forward_pre_hook(check, with_kwargs=True)
    module.recompile()


def _line(module: LoweredModule) -> str | None:
    """The first line of a module's code, which checks its inputs; None if a hook does so: there are further checks, or
    the graph takes other inputs (a loaded module that was re-traced takes pytrees)."""
    check = module._input_check
    inputs = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
    return check.line() if check is not None and inputs == list(check.names) else None


def check_inputs(module: fx.GraphModule, source: fx.Graph, derived: Collection[fx.Node] | None) -> None:
    """Make `module` check the inputs on which the calls `derived` of its source depend: tensors that reach one, and
    values of numbers that reach one as numbers. With None it checks all inputs: for a program that writes tensors
    (aliasing was decided by metadata), or that has parts captured for these inputs only."""
    expected = expected_inputs(module.graph, source, derived)
    if any(each is not ANYTHING for each in expected):
        check, before = _check(source, expected), check_of(module)
        install_input_check(module, check if before is None else check.after(before))


def check_of(module: nn.Module) -> InputCheck | None:
    """The input check of a module, if it is that of a lowered program."""
    return module._input_check if isinstance(module, LoweredModule) else None


def add_input_check(module: fx.GraphModule, look: Look) -> None:
    """Add `look` to the input checks of a lowered program's module."""
    inputs = module.graph.find_nodes(op="placeholder")
    install_input_check(module, (check_of(module) or _check(module.graph, [ANYTHING] * len(inputs))).showing(look))


def disable_gradients(module: fx.GraphModule) -> None:
    """Make the module of a program lowered for inference run without gradients, and refuse inputs that require one:
    what only gradients need was removed from it."""
    inputs = module.graph.find_nodes(op="placeholder")
    install_input_check(module, (check_of(module) or _check(module.graph, [ANYTHING] * len(inputs))).for_inference())


def run_on_other_strides(module: fx.GraphModule, program: fx.GraphModule) -> None:
    """Make `module` run `program` on inputs with strides other than those in the metadata of its graph, with the
    current parameters and buffers of `module`."""
    inputs = {str(node.target): metadata(node) for node in module.graph.find_nodes(op="placeholder")}
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    fixed = {name: value.stride() for name, value in tensors.items() if has_fixed_sizes(value)}
    orders = {name: order_of(value) for name, value in tensors.items() if name not in fixed}
    found = copy.copy(check_of(module) or _check(module.graph, [ANYTHING] * len(inputs)))
    found.otherwise = AlternativeProgram(
        program, fixed, {name: order for name, order in orders.items() if order is not None}
    )
    install_input_check(module, found)


def _check(source: fx.Graph, expected: Sequence[Any]) -> InputCheck:
    inputs = source.find_nodes(op="placeholder")
    codegen = source._codegen if isinstance(source._codegen, PyTreeCodeGen) else None
    defaults = {str(node.target): node.args[0] for node in inputs if node.args}
    return InputCheck([str(node.target) for node in inputs], expected, codegen, defaults)


def has_replaced_forward(module: fx.GraphModule) -> bool:
    """Whether the forward of a module, on the instance or its class, is not the one generated for its graph."""
    forward = type(module).forward
    own = forward in (LoweredModule._lazy_forward, LazyGraphModule._lazy_forward)
    generated = getattr(getattr(forward, "__code__", None), "co_filename", "").startswith("<eval_with_key>")
    return "forward" in vars(module) or not own and not generated


def leave_out_of_state(module: nn.Module, path: str) -> None:
    """Make a buffer non-persistent: a `GraphModule` is built with persistent buffers only."""
    owner, _, name = path.rpartition(".")
    holder = module.get_submodule(owner)
    if isinstance(buffer := dict(holder.named_buffers(recurse=False)).get(name), torch.Tensor):
        holder.register_buffer(name, buffer, persistent=False)


def _complete_copy(module: fx.GraphModule, state: Sequence[str], check: InputCheck | None) -> fx.GraphModule:
    """A copied lowered module, with what copies of a `GraphModule` lack. `state`: the names in the state dict."""
    for path in {name for name, _ in module.named_buffers(remove_duplicate=False)} - set(state):
        leave_out_of_state(module, path)
    if check is not None:
        install_input_check(module, check)
    return module


def _restore_pickled(make: Callable[..., fx.GraphModule], args: tuple[Any, ...], *more: Any) -> fx.GraphModule:
    """A module from a pickle."""
    return _complete_copy(make(*args), *more)
