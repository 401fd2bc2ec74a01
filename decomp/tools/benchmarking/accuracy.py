"""The error of a result against the exact one."""

from __future__ import annotations

from collections.abc import Sequence
import math

import torch

from decomp.validation.ulp import deviation


def error_of(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor] | None) -> tuple[float | None, float | None]:
    """The largest and the mean error in ULP, over all float outputs. (None, None) without an exact result; infinity if
    a NaN or an infinity is wrong, or outputs differ in number or shape."""
    if exact is None:
        return None, None
    if [t.shape for t in found] != [t.shape for t in exact]:
        return math.inf, math.inf
    largest, total, count = 0.0, 0.0, 0
    for mine, theirs in zip(found, exact):
        compared = deviation(mine.cpu(), theirs, signed_zero=False)
        if bool(compared.special.any()):
            return math.inf, math.inf
        errors = compared.error.nan_to_num(0.0)
        largest = max(largest, float(errors.max())) if errors.numel() else largest
        total, count = total + float(errors.sum()), count + errors.numel()
    return largest, total / max(count, 1)
