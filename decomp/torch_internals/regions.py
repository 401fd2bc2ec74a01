"""A region that survives AOTAutograd: a higher-order op that runs a body on operands, and in whose place AOTAutograd
traces one call forward and one backward, each with a body. PyTorch's own `invoke_subgraph` saves values from inside
its body for the backward (torch 2.11 to 2.15), which a function for the whole region could not return: here the
backward computes them again from the operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import suspend_functionalization
from torch._higher_order_ops.utils import _from_fun, _maybe_reenter_make_fx, reenter_make_fx
from torch._ops import HigherOrderOperator
from torch._subclasses.functional_tensor import disable_functional_mode
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, track_tensor_tree

from decomp.torch_internals.fakes import FakeTensorMode
from decomp.torch_internals.modes import ProxyTorchDispatchMode

__all__ = ["region"]


class RegionOp(HigherOrderOperator):
    """`region(body, *operands, label=...)` returns the tuple `body(*operands)`. Its calls keep the `label`, a text. A
    call backward takes the operands and then gradients; `gradients` says of which results, `wanted` of which operands
    it returns some."""

    def __init__(self) -> None:
        super().__init__("decomp_region")
        # As `torch._higher_order_ops.base_hop.BaseHOP` registers them, of which only PyTorch may derive classes.
        self.py_autograd_impl(self._differentiated)
        self.py_functionalize_impl(self._functionalized)
        self.py_impl(ProxyTorchDispatchMode)(self._traced)
        self.py_impl(FakeTensorMode)(self._faked)
        self.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(self._run)

    def __call__(self, body: Any, /, *operands: Any, label: str, **backward: Sequence[int]) -> Any:
        return super().__call__(body, *operands, label=label, **backward)

    def _run(self, body: Any, *operands: Any, **_: Any) -> Any:
        return body(*operands)

    def _faked(self, mode: Any, body: Any, *operands: Any, **_: Any) -> Any:
        with mode:
            return body(*operands)

    def _functionalized(self, ctx: Any, body: Any, *operands: Any, **kept: Any) -> Any:
        given = ctx.unwrap_tensors(operands)
        with ctx.redispatch_to_next():
            return ctx.wrap_tensors(self(ctx.functionalize(body), *given, **kept))

    def _traced(self, mode: Any, body: Any, *operands: Any, **kept: Any) -> Any:
        graph = reenter_make_fx(body)(*operands)
        tracer = mode.tracer
        tracer.root.register_module(tracer.get_fresh_qualname("region"), graph)
        args = torch.utils._pytree.tree_map(tracer.unwrap_proxy, (graph, *operands))
        call = tracer.create_proxy("call_function", self, args, kept)
        return track_tensor_tree(self(body, *operands, **kept), call, constant=None, tracer=tracer)

    def _differentiated(self, body: Any, *operands: Any, **kept: Any) -> Any:
        return _RegionFunction.apply(body, kept, *operands)


class _RegionFunction(torch.autograd.Function):
    """A region for autograd, which saves the operands alone."""

    @staticmethod
    def forward(ctx: Any, body: Any, kept: dict[str, Any], *operands: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.body, ctx.kept, ctx.operands = body, kept, operands
        with torch._C._AutoDispatchBelowAutograd():
            return region(body, *operands, **kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        operands = ctx.operands
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        read = [i for i, each in enumerate(gradients) if each is not None]
        given = (*operands, *(gradients[i] for i in read))
        backward, found = _traced_backward(ctx.body, given, len(operands), wanted, read)
        results = region(backward, *given, label=ctx.kept["label"], gradients=read, wanted=found) if found else ()
        by_operand = dict(zip(found, results))
        return (None, None, *(by_operand.get(i) for i in range(len(operands))))


def _traced_backward(
    body: Callable[..., Any], given: Sequence[Any], count: int, wanted: Sequence[int], read: Sequence[int]
) -> tuple[fx.GraphModule, list[int]]:
    """The graph of the gradients of a body, on its operands (of which there are `count`) and the gradients of the
    results `read`; and the operands that have one, of those whose gradient is wanted."""
    found: list[int] = []

    def gradients(*values: Any) -> tuple[torch.Tensor, ...]:
        results = body(*values[:count])
        pairs = [(results[i], each) for i, each in zip(read, values[count:]) if results[i].requires_grad]
        if not pairs:
            return ()
        outputs, given = zip(*pairs)
        made = torch.autograd.grad(outputs, [values[i] for i in wanted], given, allow_unused=True)
        found[:] = [i for i, each in zip(wanted, made) if each is not None]
        return tuple(each for each in made if each is not None)

    # The state in which PyTorch traces the backward of its own `invoke_subgraph` and `BaseHOP`.
    with suspend_functionalization(), disable_functional_mode(), disable_proxy_modes_tracing(), torch.enable_grad():
        graph = _maybe_reenter_make_fx(gradients)(*map(_from_fun, given))
    return graph, found


region = RegionOp()
