"""Whether rules agree with the op they compute: each alternative is bound to a call as a graph would bind it, run on
real tensors, and compared in value, shape, dtype and gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

import decomp
from decomp import Rules
from decomp.ir.binding import bind_function
from decomp.ir.call import kind_of
from decomp.rules.declining import Declined
from decomp_rules import targets
from tests.forms import Holder

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


def agrees(
    rules: Rules,
    overload: Any,
    *args: Any,
    gradient: bool = True,
    tolerance: float | None = None,
    fixed: tuple[int, ...] = (),
    **kwargs: Any,
) -> None:
    """Assert that every exact rule for this call equals the op, in its gradients too, but not those of the arguments at
    `fixed`. At least one rule must serve the call."""
    trained = [gradient and i not in fixed for i in range(len(args))]
    expected, grads = evaluated(overload, args, kwargs, trained)
    served = 0
    for rule in rules.of(bound(overload, args, kwargs).op):
        if rule.level not in (None, "exact") or rule.forward_only:
            continue

        def run(*args: Any, rule: Any = rule, **kwargs: Any) -> Any:
            accepted = rule.accept(bound(overload, args, kwargs))
            return accepted if isinstance(accepted, Declined) else rule.function(*accepted[0], **accepted[1])

        found, found_grads = evaluated(run, args, kwargs, trained)
        if found is None:
            continue
        served += 1
        compare(found, expected, tolerance, f"{rule.name}: value")
        compare(found_grads, grads, tolerance, f"{rule.name}: gradient")
    assert served, f"no rule serves {overload}"


def bound(overload: Any, args: Any, kwargs: Any) -> Any:
    """The call, bound by the schema."""
    return bind_function(overload, args, kwargs, kind_of)


def evaluated(function: Any, args: Any, kwargs: Any, trained: list[bool]) -> tuple[Any, Any]:
    """The results of a call, and the gradients of their weighted sum; None where a rule declines."""
    call_args = [pytree.tree_map(lambda leaf: fresh(leaf, wanted), arg) for arg, wanted in zip(args, trained)]
    call_kwargs = pytree.tree_map(lambda leaf: fresh(leaf, any(trained)), kwargs)
    inputs = pytree.tree_leaves((call_args, call_kwargs))
    result = function(*call_args, **call_kwargs)
    if isinstance(result, Declined):
        return None, None
    outputs = pytree.tree_leaves(result)
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    first = next((out for out in outputs if isinstance(out, torch.Tensor)), None)
    if not wanted or first is None or first.grad_fn is None:
        return outputs, None
    grads = torch.autograd.grad(first, wanted, ramp(first), allow_unused=True)
    return outputs, [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, grads)]


def fresh(leaf: Any, gradient: bool) -> Any:
    """A leaf of its own for each tensor, laid out alike; it requires a gradient if one is wanted and it can."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(gradient and leaf.dtype.is_floating_point)


def ramp(like: torch.Tensor) -> torch.Tensor:
    """A gradient that differs from element to element."""
    return torch.linspace(0.5, 1.5, like.numel(), dtype=torch.float64).to(like.dtype).reshape(like.shape)


def compare(found: Any, expected: Any, tolerance: float | None, what: str) -> None:
    """Assert that two lists of tensors are alike: shape and dtype exactly, values as closely as the dtype allows."""
    if found is None and expected is not None:  # no gradient at all, where the op has one of zeros
        found = [torch.zeros_like(x) for x in expected]
    for mine, theirs in zip(found or [], expected or [], strict=True):
        if theirs is None or mine is None:
            assert mine is None and theirs is None, what
            continue
        assert mine.dtype == theirs.dtype, f"{what}: {mine.dtype} is not {theirs.dtype}"
        bound = tolerance if tolerance is not None else TOLERANCE.get(theirs.dtype, 0)
        torch.testing.assert_close(
            mine, theirs, rtol=bound, atol=bound, equal_nan=True, check_stride=False, msg=lambda text: f"{what}: {text}"
        )


def lowered_agrees(function: Any, *args: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Assert that a function, lowered to Core ATen and to tinygrad, gives the same values and gradients."""
    module = Holder(function)
    expected, grads = evaluated(module, args, {}, [True] * len(args))
    for target in (targets.core_aten, targets.tinygrad):
        lowered = decomp.lower(module, to=target, args=args, accuracy="exact").result
        found, found_grads = evaluated(lowered, args, {}, [True] * len(args))
        compare(found, expected, tolerance, f"{target.name}: value")
        compare(found_grads, grads, tolerance, f"{target.name}: gradient")
