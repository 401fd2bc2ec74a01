"""The same lowering inside `torch.compile`: once before autograd, so that gradients are those of the lowered ops, and
once more on the forward and backward graphs, for what autograd added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import fx

from decomp.errors import ArgumentError, boundary
from decomp.lowering import lower
from decomp.options import CHECKS
from decomp.plan import Cost
from decomp.rules import Rules
from decomp.target import Target

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""What is given a lowered graph of overloads and its example inputs, and returns something to call."""


@boundary("backend", CHECKS)
def backend(
    to: Target,
    *,
    rules: Rules | Mapping[Any, Any] | None = None,
    keep: Iterable[Any] = (),
    cost: Cost | None = None,
    partial: bool = False,
    compiler: str | Compiler = "eager",
    verify: bool | str = True,
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend for `torch.compile` that lowers to a target and hands the graphs on.

    `compiler`: "eager" runs them as they are, "inductor" compiles them, or a function from a GraphModule of overloads
    and its example inputs to a callable. The other arguments are those of `lower`; raises what `lower` raises.
    """
    inner = _compilers(compiler)
    kept = tuple(keep) if not isinstance(keep, str) and not callable(keep) else (keep,)

    def lowered(module: fx.GraphModule, partially: bool) -> fx.GraphModule:
        result = lower(module, to=to, rules=rules, keep=kept, cost=cost, partial=partially, verify=verify).result
        assert isinstance(result, fx.GraphModule)
        return result

    def compiled(module: fx.GraphModule, inputs: Sequence[Any], is_backward: bool) -> Callable[..., Any]:
        return inner(lowered(module, partial), inputs, is_backward)

    # A second of imports that only torch.compile needs.
    from torch._functorch.aot_autograd import aot_module_simplified

    def compile_graph(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        # What does not reach the target yet may do so once autograd has spelled it in ATen; that step has the last
        # word.
        before_autograd = lowered(module, True)
        result: Callable[..., Any] = aot_module_simplified(
            before_autograd,
            list(example_inputs),
            fw_compiler=lambda graph, inputs: compiled(graph, inputs, False),
            bw_compiler=lambda graph, inputs: compiled(graph, inputs, True),
        )
        return result

    return compile_graph


def _compilers(compiler: str | Compiler) -> Callable[[fx.GraphModule, Sequence[Any], bool], Callable[..., Any]]:
    if compiler == "eager":
        return lambda module, inputs, is_backward: _boxed(module.forward)
    if compiler == "inductor":
        return _inductor
    if callable(compiler):
        return lambda module, inputs, is_backward: _boxed(compiler(module, inputs))
    raise ArgumentError(f"compiler must be 'eager', 'inductor' or a function, not {compiler!r}")


def _boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import make_boxed_func

    found: Callable[..., Any] = make_boxed_func(function)
    return found


def _inductor(module: fx.GraphModule, inputs: Sequence[Any], is_backward: bool) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx_inner

    found: Callable[..., Any] = compile_fx_inner(module, list(inputs), is_backward=is_backward)
    return found
