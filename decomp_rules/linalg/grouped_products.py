"""Grouped matrix products, as in mixtures of experts: rows are sorted by expert, and each group has its own matrix.
Where a group ends is data, so each row is multiplied by the matrices of all groups, and the product of its own group is
selected. Shapes are static, at the cost of one product per group for each row."""

import torch
from torch import Tensor

from decomp import Op, Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast

RULES = Rules(level="exact")
register = RULES.register

# Ops of another library, which may not be installed: models exported without a grouped kernel call them.
FALLBACK = Op("transformers.grouped_mm_fallback")
FALLBACK_BACKWARD = Op("transformers.grouped_mm_fallback_backward")


@register(aten._grouped_mm)
def _grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """A product for each group: of matrices (3-d by 3-d), or of the rows (2-d by 3-d), columns (3-d by 2-d) or summands
    (2-d by 2-d) up to each offset. Elements past the last offset, which PyTorch leaves undefined, are 0."""
    if bias is not None:
        return decline("the kernel has no bias")
    dtype = self.dtype if out_dtype is None else out_dtype
    return cast(grouped_product(self, mat2, offs), dtype)


@register(FALLBACK)
def grouped_mm_fallback(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """(rows, inner), (groups, inner, columns) → (rows, columns): the rows up to each offset by their group's matrix."""
    return _by_row(input, weight, offs)


@register(FALLBACK_BACKWARD)
def grouped_mm_fallback_backward(
    input: Tensor, weight: Tensor, offs: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor]:
    """g Wᵀ by row, and xᵀ g by group."""
    return _by_row(grad_output, weight.transpose(1, 2), offs), _by_summand(input.t(), grad_output, offs)


def grouped_product(left: Tensor, right: Tensor, ends: Tensor | None) -> Tensor:
    """A product for each group, the groups being matrices of their own or ending in a dimension at `ends`."""
    if left.dim() == 3 and right.dim() == 3:
        return torch.bmm(left, right)
    assert ends is not None
    if left.dim() == 2 and right.dim() == 2:
        return _by_summand(left, right, ends)
    if left.dim() == 2:
        return _by_row(left, right, ends)
    return _by_row(right.t(), left.transpose(1, 2), ends).t()


def _by_row(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Each row by the matrix of its group; 0 for rows of none."""
    groups, length = matrices.shape[0], rows.shape[0]
    products = torch.bmm(rows.unsqueeze(0).expand(groups, -1, -1), matrices)
    group = torch.sum(_places(length, ends) >= ends.unsqueeze(1), [0])
    own = torch.clamp(group, max=groups - 1).view(1, length, 1).expand(1, length, matrices.shape[2])
    return torch.where((group < groups).unsqueeze(1), torch.gather(products, 0, own).squeeze(0), 0)


def _by_summand(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """For each group, the product of its columns on the left and of its rows on the right."""
    place = _places(right.shape[0], ends)
    starts = torch.cat((torch.zeros_like(ends[:1]), ends[:-1]))
    inside = (place >= starts.unsqueeze(1)) & (place < ends.unsqueeze(1))
    return torch.bmm(torch.where(inside.unsqueeze(1), left, 0), torch.where(inside.unsqueeze(2), right, 0))


def _places(length: int, like: Tensor) -> Tensor:
    return torch.arange(length, dtype=like.dtype, device=like.device)
