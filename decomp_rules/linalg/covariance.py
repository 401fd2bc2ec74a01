"""Covariance and correlation of the rows of a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.support.operands import HALVES, cast

RULES = Rules(level="exact")
register = RULES.register


@register(aten.cov)
def cov(x: Tensor, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """Σ w (x − x̄) (x − x̄)ᴴ / max(Σ w − correction, 0) over the observations, which are columns; with weights `a` of
    importance, the correction is times Σ w a / Σ w."""
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    dtype = x.dtype if x.is_floating_point() or x.is_complex() else torch.get_default_dtype()
    if aweights is not None:
        dtype = torch.promote_types(dtype, aweights.dtype)
    rows = cast(rows, torch.float32 if dtype in HALVES else dtype)
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    if weights is None:
        centred = rows - torch.mean(rows, [1], keepdim=True)
        gram = torch.matmul(centred, _adjoint(centred))
        return cast(gram / max(rows.shape[1] - correction, 0), dtype).squeeze()
    weights = cast(weights, rows.real.dtype if rows.is_complex() else rows.dtype)
    total = torch.sum(weights)
    centred = rows - torch.sum(rows * weights, [1], keepdim=True) / total
    count = total
    if correction and aweights is not None:
        count = total - correction * torch.sum(weights * aweights) / total
    elif correction:
        count = total - correction
    gram = torch.matmul(centred, _adjoint(centred * weights))
    return cast(gram / torch.clamp(count, min=0), dtype).squeeze()


@register(aten.corrcoef)
def corrcoef(x: Tensor) -> Tensor:
    """cᵢⱼ / √(cᵢᵢ cⱼⱼ), its parts clamped to [−1, 1]."""
    c = cov(x)  # PyTorch's own implementation reads data, which is not available while a program is captured
    if c.dim() == 0:
        return c / c
    diagonal = torch.diagonal(c)
    deviation = torch.sqrt(torch.real(diagonal) if c.is_complex() else diagonal)
    c = c / deviation.view(-1, 1) / deviation.view(1, -1)
    if not c.is_complex():
        return torch.clamp(c, -1, 1)
    return torch.complex(torch.clamp(torch.real(c), -1, 1), torch.clamp(torch.imag(c), -1, 1))


def _adjoint(x: Tensor) -> Tensor:
    return torch.conj_physical(x.t()) if x.is_complex() else x.t()
