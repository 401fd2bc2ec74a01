"""Products of matrices and vectors. Every spelling becomes `mm` or `bmm`, and those become a broadcast product and a
sum. Dtypes narrower than 32 bits are multiplied and summed in float32 and rounded once, as matrix kernels do."""

from collections.abc import Sequence
import math

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.linalg import einsum
from decomp_rules.linalg.matrices import unaffected_by
from decomp_rules.support.operands import HALVES, cast, wide

RULES = Rules(einsum.RULES, level="exact")
register = RULES.register

SMALL = 400
"""Products of fewer factors are not given to BLAS (`bmm_out_or_baddbmm_`): there, 0 times infinity counts."""


@register(aten.linear)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x wᵀ + b over the last dimension, as one matrix product."""
    if x.dim() < 2 or weight.dim() < 2:
        product = torch.matmul(x, weight.t() if weight.dim() == 2 else weight)
        return product if bias is None else product + bias
    rows = folded(x)
    out = torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    return out if x.dim() == 2 else out.view(*x.shape[:-1], weight.shape[0])


@register(aten.linear, level="standard", unless=("mm",))
def linear_by_sum(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Σₖ xₖ wₙₖ + bₙ, for targets without matrix products: rounded once, for any number of dimensions."""
    if weight.dim() < 2:
        return decline("there is one output")
    product = torch.sum(wide(x).unsqueeze(-2) * wide(weight), [-1])
    return cast(product if bias is None else product + wide(bias), x.dtype)


@register(aten.matmul, aten.linalg_matmul)
def matmul(x: Tensor, other: Tensor) -> Tensor:
    """The product of matrices or vectors, broadcast over the leading dimensions, by `dot`, `mv`, `mm` or `bmm`."""
    if x.dim() == 1 and other.dim() == 1:
        return torch.dot(x, other)
    if other.dim() == 1:
        return torch.mv(folded(x), other) if x.dim() == 2 else torch.mv(folded(x), other).view(*x.shape[:-1])
    if x.dim() == 1:
        return torch.matmul(x.unsqueeze(0), other).squeeze(-2)
    if other.dim() == 2:
        return (
            torch.mm(folded(x), other)
            if x.dim() == 2
            else torch.mm(folded(x), other).view(*x.shape[:-1], other.shape[1])
        )
    batch = broadcast(x.shape[:-2], other.shape[:-2])
    product = torch.bmm(stacked(x, batch), stacked(other, batch))
    return product if len(batch) == 1 else product.view(*batch, x.shape[-2], other.shape[-1])


@register(aten.matmul, aten.linalg_matmul, level="standard", unless=("mm", "bmm"))
def matmul_by_sum(x: Tensor, other: Tensor) -> Tensor:
    """Σₖ xᵢₖ yₖⱼ, broadcast over the leading dimensions, for targets without matrix products."""
    if other.dim() == 1:
        return summed_product(x, other, -1)
    second = other if other.dim() == 2 or x.dim() == 1 else other.unsqueeze(-3)
    return summed_product(x.unsqueeze(-1), second, -2)


@register(aten.mm)
def mm(x: Tensor, mat2: Tensor) -> Tensor:
    """Σₖ xᵢₖ yₖⱼ, as a product that is broadcast and summed."""
    return summed_product(x.unsqueeze(2), mat2, 1)


@register(aten.bmm)
def bmm(x: Tensor, mat2: Tensor) -> Tensor:
    """Σₖ xᵦᵢₖ yᵦₖⱼ, as a product that is broadcast and summed."""
    return summed_product(x.unsqueeze(3), mat2.unsqueeze(1), 2)


@register(aten.mv)
def mv(x: Tensor, vec: Tensor) -> Tensor:
    """Σₖ xᵢₖ yₖ, as a matrix with one column."""
    return torch.mm(x, vec.unsqueeze(1)).squeeze(1)


@register(aten.dot)
def dot(x: Tensor, tensor: Tensor) -> Tensor:
    """Σₖ xₖ yₖ."""
    return summed_product(x, tensor, 0)


@register(aten.vdot)
def vdot(x: Tensor, other: Tensor) -> Tensor:
    """Σₖ conj(xₖ) yₖ."""
    return torch.dot(torch.conj(x) if x.is_complex() else x, other)


@register(aten.addmm)
def addmm(x: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """β x + α m₁ m₂; x is not looked at where β is 0, the product not where α is."""
    if alpha == 0 and not narrow(x):
        return without_product(x, [mat1.shape[0], mat2.shape[1]], beta)
    return accumulated(x, torch.mm(wide(mat1), wide(mat2)), beta, alpha)


@register(aten.baddbmm)
def baddbmm(x: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """β x + α b₁ b₂ for each pair of a batch; x is not looked at where β is 0, large products not where α is."""
    batch, rows, inner, columns = *batch1.shape, batch2.shape[2]
    if alpha == 0 and not narrow(x):
        if not all(isinstance(size, int) for size in (rows, inner, columns)):
            return decline("whether infinities count in the product depends on sizes that are not known")
        if rows * inner * columns >= SMALL:
            return without_product(x, [batch, rows, columns], beta)
    return accumulated(x, torch.bmm(wide(batch1), wide(batch2)), beta, alpha)


@register(aten.addbmm)
def addbmm(x: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """β x + α Σ b₁ b₂ over a batch, as one product of wider matrices; x is not looked at where β is 0, the product not
    where α is."""
    if alpha == 0 and not narrow(x):
        return without_product(x, [batch1.shape[1], batch2.shape[2]], beta)
    product = torch.mm(wide(batch1).transpose(0, 1).flatten(1), wide(batch2).flatten(0, 1))
    return accumulated(x, product, beta, alpha)


@register(aten.addmv)
def addmv(x: Tensor, mat: Tensor, vec: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """β x + α m v; x is not looked at where β is 0, a real product not where α is."""
    if alpha == 0 and not narrow(x) and not x.is_complex():
        return without_product(x, [mat.shape[0]], beta)
    return accumulated(x, torch.mv(wide(mat), wide(vec)), beta, alpha)


@register(aten.addr)
def addr(x: Tensor, vec1: Tensor, vec2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """β x + α v₁ v₂ᵀ; x is not looked at where β is 0."""
    dtype = torch.promote_types(x.dtype, torch.promote_types(vec1.dtype, vec2.dtype))
    return accumulated(cast(x, dtype), torch.outer(wide(vec1), wide(vec2)), beta, alpha)


@register(aten._addmm_activation)
def _addmm_activation(
    x: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1, use_gelu: bool = False
) -> Tensor:
    """ReLU or GELU of β x + α m₁ m₂."""
    out = torch.addmm(x, mat1, mat2, beta=beta, alpha=alpha)
    return torch.nn.functional.gelu(out) if use_gelu else torch.relu(out)


@register(aten.outer, aten.ger)
def outer(x: Tensor, vec2: Tensor) -> Tensor:
    """xᵢ yⱼ."""
    return x.unsqueeze(1) * vec2


@register(aten.inner)
def inner(x: Tensor, other: Tensor) -> Tensor:
    """Σₖ over the last dimension of both."""
    if x.dim() == 0 or other.dim() == 0:
        return x * other
    return contracted(x, other, [x.dim() - 1], [other.dim() - 1])


@register(aten.tensordot)
def tensordot(x: Tensor, other: Tensor, dims_self: Sequence[int], dims_other: Sequence[int]) -> Tensor:
    """Σ over pairs of dimensions, as one matrix product."""
    first, second = [d % x.dim() for d in dims_self], [d % other.dim() for d in dims_other]
    if [x.shape[d] for d in first] != [other.shape[d] for d in second]:
        return decline("the summed dimensions differ in size")
    return contracted(x, other, first, second)


@register(aten.kron)
def kron(x: Tensor, other: Tensor) -> Tensor:
    """xᵢ y for every element of x, laid out as blocks."""
    rank = x.dim() if x.dim() > other.dim() else other.dim()
    left, right = [1] * (rank - x.dim()) + list(x.shape), [1] * (rank - other.dim()) + list(other.shape)
    product = x.reshape(between(left, [1] * rank)) * other.reshape(between([1] * rank, right))
    return product.reshape([n * m for n, m in zip(left, right)])


@register(aten.linalg_multi_dot, aten.chain_matmul)
def linalg_multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices, in the order that multiplies least; the ends may be vectors."""
    first, last = tensors[0], tensors[-1]
    chain = [first.unsqueeze(0) if first.dim() == 1 else first, *tensors[1:]]
    if len(tensors) > 1:
        chain[-1] = last.unsqueeze(1) if last.dim() == 1 else last
    sizes = [matrix.shape[0] for matrix in chain] + [chain[-1].shape[1]]
    product = multiplied(chain, cheapest_splits(sizes), 0, len(chain) - 1)
    product = product.squeeze(-1) if last.dim() == 1 else product
    return product.squeeze(0) if first.dim() == 1 else product


@register(aten.matrix_power, aten.linalg_matrix_power)
def matrix_power(x: Tensor, n: int) -> Tensor:
    """xⁿ by squaring, of the inverse where n < 0; as in the op, x³ is x² x."""
    if n < 0:
        return matrix_power(torch.linalg.inv_ex(x)[0], -n)
    if n == 0:
        return unaffected_by(torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape), x)
    if n == 3:
        return torch.matmul(torch.matmul(x, x), x)
    power, square = None, x
    while n:
        power = power if not n % 2 else square if power is None else torch.matmul(power, square)
        n //= 2
        square = torch.matmul(square, square) if n else square
    return power.clone() if power is x else power


@register(aten.linalg_vecdot)
def linalg_vecdot(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Σ conj(x) y along one dimension."""
    return torch.sum((torch.conj(x) if x.is_complex() else x) * y, [dim])


@register(aten.linalg_cross)
def linalg_cross(x: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """xᵢ₊₁ yᵢ₊₂ − xᵢ₊₂ yᵢ₊₁, the indices modulo 3."""
    return torch.roll(x, -1, dim) * torch.roll(other, -2, dim) - torch.roll(x, -2, dim) * torch.roll(other, -1, dim)


@register(aten.cross)
def cross(x: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The vector product along `dim`, or along the first dimension of size 3."""
    if dim is None:
        dim = next((d for d, size in enumerate(x.shape) if isinstance(size, int) and size == 3), -1)
    return torch.linalg.cross(x, other, dim=dim)


@register(aten.bilinear)
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x₁ᵀ Wₒ x₂ + bₒ for each output o: one matrix product with x₁, then one for each row with x₂."""
    outputs, left, right = weight.shape
    rows = torch.mm(folded(input1), weight.transpose(0, 1).reshape(left, outputs * right))
    out = torch.bmm(rows.view(-1, outputs, right), folded(input2).unsqueeze(2)).squeeze(2)
    out = out if bias is None else out + bias
    return out.view(*input1.shape[:-1], outputs)


@register(aten._trilinear)
def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Σ i₁ i₂ i₃ over `sumdim`, each operand unsqueezed at its `expand`."""
    first, second, third = unsqueezed(i1, expand1), unsqueezed(i2, expand2), unsqueezed(i3, expand3)
    product = first * second * third
    return cast(torch.sum(product, list(sumdim)), product.dtype) if len(sumdim) else product


def summed_product(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Σ x y along `dim`, in the dtype of x: rounded once where it is narrow, and wrapped where it is an integer."""
    return cast(torch.sum(wide(x) * wide(y), [dim]), x.dtype)


def accumulated(x: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """β x + α product in the dtype of x, without the factors that are 1; of integers the factors are whole numbers."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool):
        beta, alpha = int(beta), int(alpha)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return cast(product, x.dtype)
    start = wide(x) if beta == 1 else wide(x) * beta
    return cast(start + product, x.dtype)


def without_product(x: Tensor, shape: Sequence[int], beta: float) -> Tensor:
    """β x in a shape, where a kernel leaves out a product with the factor 0, so that infinities in it do not count."""
    if beta == 0:
        return torch.zeros(list(shape), dtype=x.dtype, device=x.device)
    return accumulated(x, torch.zeros(list(shape), dtype=x.dtype, device=x.device), beta, 1)


def narrow(x: Tensor) -> bool:
    """Whether kernels multiply by a factor of 0 like by any other, in torch 2.13: those of half types do."""
    return x.dtype in HALVES


def contracted(x: Tensor, y: Tensor, first: Sequence[int], second: Sequence[int]) -> Tensor:
    """Σ over the dimensions `first` of x paired with `second` of y; what is left of x, then of y."""
    left = [d for d in range(x.dim()) if d not in first]
    right = [d for d in range(y.dim()) if d not in second]
    inner_size = math.prod(x.shape[d] for d in first)
    rows = x.permute(*left, *first).reshape(math.prod(x.shape[d] for d in left), inner_size)
    columns = y.permute(*second, *right).reshape(inner_size, math.prod(y.shape[d] for d in right))
    return torch.mm(rows, columns).reshape([x.shape[d] for d in left] + [y.shape[d] for d in right])


def folded(x: Tensor) -> Tensor:
    """x as a matrix whose rows are its last dimension."""
    return x if x.dim() == 2 else x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)


def stacked(x: Tensor, batch: Sequence[int]) -> Tensor:
    """x, broadcast to the leading sizes `batch`, as one batch of matrices."""
    if not same_sizes(x.shape[:-2], batch):
        x = x.expand(*batch, x.shape[-2], x.shape[-1])
    return x if len(batch) == 1 else x.flatten(0, -3)


def broadcast(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """The shape that two shapes broadcast to. Symbolic sizes are assumed to be equal, without a guard."""
    rank = len(first) if len(first) > len(second) else len(second)
    left, right = [1] * (rank - len(first)) + list(first), [1] * (rank - len(second)) + list(second)
    return [m if isinstance(n, int) and n == 1 or isinstance(m, int) and m != 1 else n for n, m in zip(left, right)]


def same_sizes(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two shapes are known to be the same, without guards on symbolic sizes."""
    return len(first) == len(second) and all(
        n is m or (isinstance(n, int) and isinstance(m, int) and n == m) for n, m in zip(first, second)
    )


def unsqueezed(x: Tensor, dims: Sequence[int]) -> Tensor:
    """x with a dimension of size 1 at each of `dims` of the result."""
    for dim in sorted(dims):
        x = x.unsqueeze(dim)
    return x


def between(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """The sizes of two shapes in turn."""
    return [size for pair in zip(first, second) for size in pair]


def cheapest_splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where to split each run of matrices so that the product costs least; matrix i is sizes[i] × sizes[i + 1]. Of
    equal splits it is the first, but of three matrices the last, as in the op."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    splits = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            options = [(cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)]
            cost[i, j], splits[i, j] = min(options[:: -1 if count == 3 else 1], key=lambda option: option[0])
    return splits


def multiplied(chain: Sequence[Tensor], splits: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    """The product of matrices i to j in the order of `splits`."""
    if i == j:
        return chain[i]
    k = splits[i, j]
    return torch.mm(multiplied(chain, splits, i, k), multiplied(chain, splits, k + 1, j))
