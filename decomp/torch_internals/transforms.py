"""The transforms of `torch.func` (vmap, grad, jvp): levels that a process enters, in which tensors are wrapped, and how
to pass a call to the innermost level while calls above autograd are recorded."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

import torch
from torch import fx
from torch._C import _functorch
from torch._functorch import predispatch, pyfunctorch
from torch.overrides import TorchFunctionMode

from decomp.torch_internals import modes as _modes
from decomp.torch_internals.pytree import tree_leaves as _tree_leaves, tree_map as _tree_map
from decomp.torch_internals.versions import Namespace as _Namespace

_aten = _Namespace("aten")

depth = _functorch.get_dynamic_layer_stack_depth
current_level = _functorch.maybe_current_level
is_wrapped = _functorch.is_functorch_wrapped_tensor


enter_vmap = _functorch._vmap_increment_nesting
leave_vmap = _functorch._vmap_decrement_nesting
outside_of_all = pyfunctorch.temporarily_clear_interpreter_stack
unwrap_for_grad = getattr(predispatch, "_unwrap_for_grad", _functorch._unwrap_for_grad)
"""A function that a graph of overloads may contain; torch 2.13 has it, 2.12 lacks it."""


def attention_formula(*args: Any, **kwargs: Any) -> Any:
    """The computation of `flex_attention`: products and a softmax, with scores modified by a vmapped function."""
    from torch._higher_order_ops.flex_attention import sdpa_dense  # slow to import

    args, kwargs = _tree_map(lambda each: _indexing(each) if callable(each) else each, (args, kwargs))
    return sdpa_dense(*args, **kwargs)


def _indexing(function: Callable[..., Any]) -> Callable[..., Any]:
    def indexing(*args: Any) -> Any:
        with _ByIndex():
            return function(*args)

    return indexing


class _ByIndex(TorchFunctionMode):
    """Evaluates `x[i]` for a tensor i by `aten.index`, where torch 2.13 uses an `autograd.Function` with the same
    values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = (args[1] if isinstance(args[1], tuple) else (args[1],)) if func is torch.Tensor.__getitem__ else ()
        if not places or not all(isinstance(place, torch.Tensor) for place in places):
            return func(*args, **(kwargs or {}))
        # `ModIndex` exists for the backward of compiled attention (`zeros_and_scatter`); its forward is this call.
        return _aten.index.Tensor(args[0], list(places))


def has_transforms(module: fx.GraphModule) -> bool:
    """Whether a graph, or the body of one, has calls of transforms."""
    graphs = (each.graph for each in module.modules() if isinstance(each, fx.GraphModule))
    return any(is_of_transform(node.target) or _is_flex(node.target) for graph in graphs for node in graph.nodes)


def _is_flex(target: Any) -> bool:
    return type(target) is not str and getattr(target, "__name__", "") == "flex_attention"


def unwrapped(value: Any) -> Any:
    """The tensor inside all levels."""
    while isinstance(value, torch.Tensor) and is_wrapped(value):
        value = _functorch.get_unwrapped(value)
    return value


def is_of_transform(target: Any) -> bool:
    """Whether a function in a graph enters or leaves a level, or wraps tensors for one."""
    if type(target) is str:
        return False
    if isinstance(target, torch._ops.OpOverload):
        return target in _DUALS
    module = str(getattr(target, "__module__", ""))
    if module.startswith(("torch._functorch", "torch._C._functorch")):
        return True
    return module == "torch._C" and getattr(target, "__name__", "") in _DUAL_LEVELS


def handed_on(func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """The result of a call at the innermost level. Calls that it makes in turn return to the mode that records above
    autograd: those of the next level, and, once all levels are passed, of the program. (Without redispatch below the
    recording keys, the same call would return to the mode.)"""
    func = _with_number(func, args)
    # The set that the dispatcher itself computes for a call: what this thread includes, the keys of the tensors, less
    # what this thread excludes.
    keys = torch._C._dispatch_tls_local_include_set()
    for leaf in _tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            keys = keys | torch._C._dispatch_keys(leaf)
    keys = (keys - torch._C._dispatch_tls_local_exclude_set()) & _BELOW_RECORDING
    return func.redispatch(_with_kernels(func.name(), keys), *args, **kwargs)


# The set of keys after any key contains PythonDispatcher, which precedes all (torch 2.13): with it, the call would be
# recorded again.
_BELOW_RECORDING = torch._C._dispatch_keyset_full_after(_modes.PRE_DISPATCH).remove(
    torch._C.DispatchKey.PythonDispatcher
)
_DUALS = (_aten._make_dual.default, _aten._unpack_dual.default)
_DUAL_LEVELS = ("_enter_dual_level", "_exit_dual_level", "_set_fwd_grad_enabled")


def _with_kernels(name: str, keys: Any) -> Any:
    """The keys that have kernels for a call, which redispatch does not filter by itself (torch 2.13)."""
    fall_through, rest = _falling_through(name), keys
    while (key := rest.highestPriorityTypeId()) != torch._C.DispatchKey.Undefined:
        rest = rest.remove(key)
        if key.name in fall_through:
            keys = keys.remove(key)
    return keys


@functools.lru_cache(maxsize=4096)
def _falling_through(name: str) -> frozenset[str]:
    rows = (row.partition(":") for row in torch._C._dispatch_dump_table(name).splitlines())
    return frozenset(key for key, _, kernel in rows if kernel.strip().startswith("fallthrough"))


def _with_number(func: torch._ops.OpOverload, args: Any) -> torch._ops.OpOverload:
    """The overload for a number, if one is passed for a tensor: redispatch does not wrap it in a tensor."""
    for argument, value in zip(func._schema.arguments, args):
        if isinstance(value, (bool, int, float, complex)) and str(argument.type) == "Tensor":
            name = {"Tensor": "Scalar", "Tensor_mode": "Scalar_mode", "Tensor_Tensor": "Tensor_Scalar"}.get(
                func._overloadname
            )
            # The names of overloads for numbers follow no rule, so an unknown one must not become a silent mistake.
            if name is None or not hasattr(func._overloadpacket, name):
                raise NotImplementedError(f"{func} with a number in the place of {argument.name}, in a transform")
            return getattr(func._overloadpacket, name)
    return func
