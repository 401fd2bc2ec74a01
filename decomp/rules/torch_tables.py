"""Rules from decomposition tables such as those of `torch._decomp`: functions by overload. They cannot run on proxies:
they check whether arguments are tensors, mutate their intermediate results, and call ops below autograd. Such a
function is therefore traced once for each signature, functionalized, and the trace is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from decomp.errors import UnknownOp
from decomp.ir.ops import Spelling, of_function
from decomp.rules.declining import Declined
from decomp.rules.rules import Rule
from decomp.torch_internals import pytree
from decomp.torch_internals.fakes import FakeTensorMode
from decomp.torch_internals.graphs import make_fx

Entry = tuple[torch._ops.OpOverload, Callable[..., Any]]


def rules_of(table: Mapping[Any, Callable[..., Any]]) -> list[Rule]:
    """A rule for each functional entry of `table`; in-place and `out=` entries are skipped, as the functional overload
    covers them. Raises `UnknownOp` for a key that is not an op."""
    return [_rule(overload, function) for overload, function in entries(table) if _functional(overload)]


def entries(table: Mapping[Any, Callable[..., Any]]) -> Iterable[Entry]:
    """Pairs of overload and function, with packets split into their overloads; without higher-order ops."""
    for key, function in table.items():
        if isinstance(key, torch._ops.OpOverload):
            yield key, function
        elif isinstance(key, torch._ops.OpOverloadPacket):
            yield from ((getattr(key, name), function) for name in key.overloads())
        elif not isinstance(key, torch._ops.HigherOrderOperator):
            raise UnknownOp(key)


def _functional(overload: torch._ops.OpOverload) -> bool:
    schema = overload._schema
    written = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    return not written and any("Tensor" in str(r.type) for r in schema.returns)


def _rule(overload: torch._ops.OpOverload, function: Callable[..., Any]) -> Rule:
    spelling: Spelling = of_function(overload)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', overload.__name__)}"
    return Rule(spelling.op, function, name, overload=overload)


def trace_entry(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], mode: FakeTensorMode
) -> tuple[fx.GraphModule, list[Any], dict[str, Any]] | Declined:
    """Trace `function` on these arguments (fake tensors, numbers): a graph with the tensors as inputs, and the
    arguments; or why it does not support them."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def of_tensors(*values: torch.Tensor) -> Any:
        supply = iter(values)
        filled = [next(supply) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        positional, named = spec.unflatten(filled)
        result = function(*positional, **named)
        # How decompositions of PyTorch give up, `max_pool2d_with_indices_backward` under deterministic algorithms for
        # one.
        if result is NotImplemented:
            raise NotImplementedError("it returns NotImplemented")
        # Generated code cannot construct named tuples.
        return tuple(result) if isinstance(result, (list, tuple)) else result

    try:
        # These functions decompose below autograd, where PyTorch calls them.
        with torch.no_grad(), mode:
            # Views stay: with "mutations_and_views" they would become copies (`view_copy`).
            graph = make_fx(torch.func.functionalize(of_tensors, remove="mutations"))(*tensors)
    except Exception as error:  # a failure in third-party code means: try the next rule
        said = str(error).strip().splitlines()
        return Declined(f"cannot be traced: {type(error).__name__}: {said[0] if said else ''}")
    return graph, tensors, {}
