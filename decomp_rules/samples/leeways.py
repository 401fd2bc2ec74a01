"""Unspecified behaviour of ops: maps equally valid results to a common form. For indices that may point at any of equal
values, it is the values at them, and that no two are the same; for factors whose columns have a free sign or phase,
products in which it cancels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Sample
from decomp.results import UnspecifiedBehaviour
from decomp_rules.samples.complex_leeways import (
    from_either_end,
    products,
    quotients_and_powers,
    resolved_powers,
    signs,
    unsigned_beside_nan,
    without_sign_of_zero,
)

Results = Sequence[Tensor]


def leeway_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> UnspecifiedBehaviour | None:
    """The unspecified behaviour of a call of an ATen op; None if everything is specified."""
    if name in ("sort", "argsort") and kwargs.get("stable"):
        return None
    if name in ("median", "nanmedian") and len(args) < 2:
        return UnspecifiedBehaviour(lambda call, found: [*map(without_sign_of_zero, found)])
    return LEEWAYS.get(name)


# Indices of equal values


def _pointing(
    dim: Callable[[Sample], int], ordered: Callable[[Sample], bool] = lambda call: True
) -> UnspecifiedBehaviour:
    """Values, if any, and the indices at which they are. `ordered`: whether their order along the dimension counts."""

    def results(call: Sample, found: Results) -> Results:
        x, index = call.tensors[0], found[-1]
        if x.dim() == 0:
            return found
        d = dim(call)
        lost = index.dim() < x.dim()
        places = index.unsqueeze(d) if lost else index
        right = (places >= 0) & (places < x.shape[d])
        there = without_sign_of_zero(x.gather(d, torch.where(right, places, 0)))
        right = right & _distinct(places, d)
        if len(found) > 1:
            values = without_sign_of_zero(found[0].unsqueeze(d) if lost else found[0])
            right, there = right & _equal(values.detach(), there.detach()), values
        return [there if ordered(call) else there.sort(d).values, right]

    return UnspecifiedBehaviour(
        results, lambda call, grads: [_shared(call.tensors[0], grads[0], dim(call)), *grads[1:]]
    )


def _unless_nan(dim: Callable[[Sample], int]) -> UnspecifiedBehaviour:
    """The same, but that lines with NaN are open: the order that the kernel brings them into is not documented."""
    pointing = _pointing(dim)

    def results(call: Sample, found: Results) -> Results:
        x, form = call.tensors[0], pointing.results(call, found)
        if x.dim() == 0:
            return form
        unordered = x.isnan().any(dim(call), keepdim=True)
        return [torch.where(unordered, torch.zeros_like(part), part) for part in form]

    return UnspecifiedBehaviour(results, pointing.gradients)


def _between_ascending_edges(call: Sample, found: Results) -> Results:
    """Nothing where the edges do not ascend."""
    edges = call.args[1]
    if isinstance(edges, Tensor) and not bool((edges[1:] > edges[:-1]).all()):
        return [torch.zeros_like(part) for part in found]
    return found


def _within_range(call: Sample, found: Results) -> Results:
    """0 where a float is beyond the integers that it is converted to: C leaves it open, and so does PyTorch."""
    x, y = call.tensors[0], found[0]
    x = x.real if x.is_complex() else x
    if not x.is_floating_point() or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        return found
    info, wide = torch.iinfo(y.dtype), x.double()
    return [torch.where((wide > info.min - 1.0) & (wide < info.max + 1.0) | (wide == info.min), y, 0)]


def _distinct(places: Tensor, dim: int) -> Tensor:
    """Whether no other index along the dimension is the same."""
    line = places.movedim(dim, -1)
    same = (line.unsqueeze(-1) == line.unsqueeze(-2)).sum(-1)
    return (same == 1).movedim(-1, dim)


def _shared(x: Tensor, grad: Tensor, dim: int) -> Tensor:
    """The gradients of equal values along a dimension, NaN among them, added up."""
    if x.dim() == 0:
        return grad
    line, slope = x.detach().movedim(dim, -1), grad.movedim(dim, -1)
    equal = _equal(line.unsqueeze(-1), line.unsqueeze(-2))
    return torch.where(equal, slope.unsqueeze(-2), 0).sum(-1).movedim(-1, dim)


def _equal(x: Tensor, y: Tensor) -> Tensor:
    """Where two are the same number, or both none."""
    return (x == y) | (x.isnan() & y.isnan())


def _argument(position: int, name: str) -> Callable[[Sample], int]:
    return lambda call: int(_given(call, position, name, -1))


def _given(call: Sample, position: int, name: str, default: Any) -> Any:
    return call.args[position] if len(call.args) > position else call.kwargs.get(name, default)


# Factors with free signs


def _adjoint(x: Tensor) -> Tensor:
    return x.mH


def _columns(x: Tensor) -> Tensor:
    """The common form of the columns of an orthonormal matrix: their Gram matrix, the identity."""
    return _adjoint(x) @ x


def _singular(u: Tensor, s: Tensor, vh: Tensor) -> list[Tensor]:
    k = s.shape[-1]
    if not u.numel() or not vh.numel():
        return [s]
    product = (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :]
    return [s, product, _columns(u), _columns(_adjoint(vh))]


def _svd(call: Sample, found: Results) -> Results:
    return _singular(*found)


def _old_svd(call: Sample, found: Results) -> Results:
    u, s, v = found
    return _singular(u, s, _adjoint(v))


def _eigh(call: Sample, found: Results) -> Results:
    values, vectors = found
    if not vectors.numel():
        return [values]
    return [values, (vectors * values.unsqueeze(-2)) @ _adjoint(vectors), _columns(vectors)]


def _eig(call: Sample, found: Results) -> Results:
    values, vectors = found
    product = (vectors * values.unsqueeze(-2)) @ torch.linalg.inv(vectors)
    return [*_eigvals(call, [values]), product, torch.linalg.vector_norm(vectors, dim=-2)]


def _eigvals(call: Sample, found: Results) -> Results:
    """The values in the order of their real and then of their imaginary parts, to a few digits."""
    (values,) = found
    parts = torch.view_as_real(values.detach())
    rough = (parts / parts.abs().amax().clamp(min=1e-30) * 4096).round()
    return [values.gather(-1, (rough[..., 0] * 16384 + rough[..., 1]).argsort(-1))]


def _of_distinct_values(call: Sample, grads: Results) -> Results:
    """No gradient of matrices with equal eigenvalues, whose vectors have none."""
    x = call.tensors[0].detach().double() if not call.tensors[0].is_complex() else call.tensors[0].detach()
    values = torch.linalg.eigvalsh(x)
    near = values.diff().abs() <= 1e-3 * values.abs().amax(-1, keepdim=True)
    equal = near.any(-1)[..., None, None]
    return [torch.where(equal, torch.zeros_like(grad), grad) for grad in grads]


def _of_full_rank(call: Sample, grads: Results) -> Results:
    """No gradient of matrices that lack rank, where the pseudoinverse is not continuous."""
    x = call.tensors[0].detach()
    lacking = (torch.linalg.matrix_rank(x, rtol=1e-5) < min(x.shape[-2:]))[..., None, None]
    return [torch.where(lacking, torch.zeros_like(g), g) if g.shape == x.shape else g for g in grads]


# Invalid inputs


def _whole_or_nothing(call: Sample, found: Results) -> Results:
    """Nothing where x / s is so large that its conversion to an integer is undefined in C++ (`static_cast`)."""
    x, scale, _, axis = call.args[:4]
    kept = _is_convertible(x, scale, axis)
    return [torch.where(kept, t, 0) if t.shape == x.shape else t for t in found]


def _whole_channels(call: Sample, found: Results) -> Results:
    """The same for the gradients of the scale and the zero of a channel that holds such a number."""
    x, scale, _, axis = call.args[1:5]
    lost = (~_is_convertible(x, scale, axis)).movedim(axis, 0).flatten(1).any(1)
    return [torch.where(lost, 0.0, t) if t.shape == lost.shape else t for t in found]


def _is_convertible(x: Tensor, scale: Tensor, axis: int) -> Tensor:
    """Where x / s surely fits int64."""
    step = scale.detach().view([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])
    return (x.detach() / step).abs() < 2.0**62


def _counted(call: Sample, found: Results) -> Results:
    """Nothing for targets that are ignored."""
    (losses,) = found
    return [torch.where(call.args[2] == call.args[5], 0, losses)]


def _of_numbers(call: Sample, found: Results) -> Results:
    """Nothing for rows that hold NaN, which have no order (torch 2.13 finds one or another number there)."""
    x, d = call.tensors[0], _given(call, 1, "dim", -1)
    missing = x.isnan().any(d, keepdim=found[0].dim() == x.dim()) if x.dim() else x.isnan()
    return [torch.where(missing, torch.zeros_like(t), t) for t in _MODES.results(call, found)]


def _while_running(call: Sample, found: Results) -> Results:
    """The loss, and log α of the steps and places that a sequence has: the rest is uninitialised memory."""
    loss, alpha = found
    steps, sizes = (torch.as_tensor(call.args[i]) for i in (2, 3))
    step, place = torch.arange(alpha.shape[1]), torch.arange(alpha.shape[2])
    inside = (step < steps[:, None])[:, :, None] & (place <= 2 * sizes[:, None])[:, None]
    return [loss, torch.where(inside, alpha, 0.0)]


# Non-finite values


def _of_finite_matrices(call: Sample, found: Results) -> Results:
    """Nothing of matrices with NaN or infinities: the rows that LAPACK exchanges, and the singular values that are NaN,
    depend on comparisons with NaN."""
    lost = ~call.tensors[0].detach().isfinite().flatten(-2).all(-1)
    over = [lost.reshape([*lost.shape, *[1] * (t.dim() - lost.dim())]) for t in found]
    return [without_sign_of_zero(torch.where(mask, torch.zeros_like(t), t)) for mask, t in zip(over, found)]


def _beside_lost_columns(call: Sample, found: Results) -> Results:
    """Nothing of what depends on a column with NaN or infinities, whose length LAPACK finds of some of its elements."""
    missing = (~call.tensors[0].detach().isfinite()).any(-2)
    since = missing.cumsum(-1) > 0
    size = max(call.tensors[0].shape[-2:])
    after = torch.cat([since, since[..., -1:].expand(*since.shape[:-1], size - since.shape[-1])], -1)
    results = []
    for k, part in enumerate(found):
        if part.dim() == missing.dim():  # τ
            lost = after[..., : part.shape[-1]]
        elif k == 0 and len(found) == 2 and found[1].dim() == part.dim():  # Q
            lost = after[..., None, : part.shape[-1]]
        else:
            later = after[..., : part.shape[-2], None] & after[..., None, : part.shape[-1]]
            lost = later | missing[..., None, :]
        results.append(torch.where(lost, torch.zeros_like(part), part))
    return results


def _whole_numbers_or_none(call: Sample, found: Results) -> Results:
    """Complex numbers that are lost as a whole where a part is not finite: x cos + i x sin is NaN, or infinite, whether
    or not a kernel leaves out the products with 0. Nothing where sums overflow in one order and not in another."""
    finite = all(bool(t.isfinite().all()) for t in call.tensors)
    if finite and sum(float(t.detach().double().abs().sum()) for t in call.tensors) > torch.finfo(torch.float32).max:
        return [torch.zeros_like(z) for z in found]
    if finite:
        return found
    none = complex(float("nan"), float("nan"))
    return [torch.where(z.isfinite(), z, none) if z.is_complex() else z for z in found]


# What failed, and what is infinite


def _unless_failed(call: Sample, found: Results) -> Results:
    """Only the number of the place where the factorisation failed, if it did: the rest is not a factor."""
    info = found[-1]

    def kept(t: Tensor) -> Tensor:
        return torch.where(info.reshape([*info.shape, *[1] * (t.dim() - info.dim())]) == 0, t, 0)

    return [*map(kept, found[:-1]), info]


def _beside_poles(call: Sample, grads: Results) -> Results:
    """Gradients of powers, by the base without their sign where it is 0 or −∞, and where it is negative and the
    exponent y so large that y − 1 is rounded: it is that of the side on which the pole is left, and of odd powers, of
    which the kernel makes even ones."""
    base, exponent = call.args[:2]
    if not isinstance(base, Tensor) or base.is_complex() or grads[0].shape != base.shape:
        return grads
    y = torch.as_tensor(exponent).detach().to(torch.complex128).real
    open_ = (base == 0) | (base == float("-inf")) | ((base < 0) & ((y - 1) - y != -1) & (y == y))
    return [torch.where(open_, grads[0].abs(), grads[0]), *grads[1:]]


def _without_lost_nan(call: Sample, found: Results) -> Results:
    """Distances of rows; the largest difference of two forgets those that are NaN, which that of pdist does not."""
    if call.args[2:3] != (float("inf"),):
        return found
    x, y = (t.detach() for t in call.tensors[:2])
    return [torch.where((x.unsqueeze(-2) - y.unsqueeze(-3)).isnan().any(-1), 0.0, found[0])]


def _of_known_scores(call: Sample, found: Results) -> Results:
    """Attention, and log Σ exp of its scores, but in rows with a score that is NaN, where the kernel for the CPU may
    give 0 (torch 2.13: its maximum passes over them), or so large that its rounding decides."""
    q, k, *masks = (t.detach().float() for i, t in enumerate(call.tensors) if i != 2)
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT
    lost = ~(scores.abs() < 2**20).all(-1)
    for mask in masks:
        lost = lost | mask.isnan().any(-1)
    return [torch.where(lost.unsqueeze(-1) if t.dim() > lost.dim() else lost, 0.0, t) for t in found]


def _of_finite_rows(call: Sample, found: Results) -> Results:
    """Distances of rows, but of infinite ones, where the op takes one infinity from another."""
    x, y = (t.detach().isinf().any(-1) for t in call.tensors[:2])
    return [torch.where(x.unsqueeze(-1) | y.unsqueeze(-2), 0.0, found[0])]


# What depends on the order of operations: PyTorch documents that intermediate results may overflow ("Numerical
# accuracy", extremal values)


def _unless_overflowing(call: Sample, found: Results) -> Results:
    """x + value · y · z, but where the product of finite numbers overflows: one rounding of all may bring it back."""
    y, z = (t.detach() for t in call.tensors[1:3])
    product = y * _given(call, 3, "value", 1) * z
    over = y.isfinite() & z.isfinite() & ~product.isfinite()
    return products(call, [torch.where(over, 0, t) for t in found])


def _far_from_overflow(call: Sample, found: Results) -> Results:
    """Infinity for all results of finite numbers that overflow, or nearly do: on the way there, terms may."""
    if not all(bool(t.isfinite().all()) for t in call.tensors):
        return found
    return [torch.where(_almost_infinite(t), float("inf"), t) for t in found]


def _almost_infinite(x: Tensor) -> Tensor:
    """Where a number has overflowed, or is so large that a term of it may have."""
    return ~(x.abs() < torch.finfo(x.dtype).max / 16)


def _of_normal_factors(call: Sample, found: Results) -> Results:
    """Nothing of factors that are next to subnormal: LAPACK divides by products of them, which underflow."""
    factors = call.tensors[0].detach()
    normal = (factors.abs() >= 16 * torch.finfo(factors.dtype).tiny).flatten(-2).any(-1)
    return [torch.where(normal[..., None, None], t, 0.0) for t in found]


def _unless_lost(call: Sample, found: Results) -> Results:
    """g · gelu'(x), but where g is infinite and the slope is next to 0, or the cube of x overflows."""
    grad, x = (t.detach() for t in call.tensors)
    lost = (grad.isinf() & (x < -3)) | (x.abs() > (2.0**341 if x.dtype is torch.float64 else 2.0**42))
    return [torch.where(lost, 0.0, t) for t in found]


def _of_finite_inverses(call: Sample, grads: Results) -> Results:
    """Gradients of x + value · y / z, but of y where 1 / z overflows, as value / z need not."""
    over = torch.reciprocal(call.tensors[2].detach()).isinf()
    return [torch.where(over, 0.0, g) if i == 1 and g.shape == over.shape else g for i, g in enumerate(grads)]


def _of_finite_steps(call: Sample, grads: Results) -> Results:
    """No gradient where x is infinite: from there, the next number is not one step away."""
    x = call.tensors[0].detach()
    return [torch.where(x.isinf(), 0.0, g) if g.shape == x.shape else g for g in grads]


def _unless_infinite(call: Sample, found: Results) -> Results:
    """One number for all that are not finite: whether an infinite gradient meets another, or a zero that is only
    padding, depends on which sums are taken first."""
    return [torch.where(t.isfinite(), t, float("inf")) for t in found]


# The sign of NaN


def _of_ordered(call: Sample, found: Results) -> Results:
    """Nothing of NaN, whose sign is that of the processor which made it."""
    missing = call.tensors[-1].detach().isnan() if call.tensors[1:] else call.tensors[0].isnan()
    return [torch.where(missing, False if t.dtype is torch.bool else torch.abs(t), t) for t in found]


_MODES = _pointing(_argument(1, "dim"))


def _without_lost(call: Sample, found: Results) -> Results:
    """Results without those that are no finite numbers, or almost none, though the arguments are: the recurrence goes
    on past overflow, and it depends on how the compiler fuses products whether ∞, −∞ or NaN comes of it."""
    finite = torch.stack(torch.broadcast_tensors(*(t.isfinite() for t in call.tensors))).all(0)
    return [torch.where(_almost_infinite(part) & finite, float("inf"), part) for part in found]


LEEWAYS: Mapping[str, UnspecifiedBehaviour] = {
    "sort": _pointing(_argument(1, "dim")),
    "argsort": _pointing(_argument(1, "dim")),
    "topk": _pointing(_argument(2, "dim"), lambda call: bool(_given(call, 4, "sorted", True))),
    "kthvalue": _pointing(_argument(2, "dim")),
    "median": _pointing(_argument(1, "dim")),
    "nanmedian": _pointing(_argument(1, "dim")),
    "mode": _unless_nan(_argument(1, "dim")),
    "special_hermite_polynomial_h": UnspecifiedBehaviour(_without_lost),
    "special_hermite_polynomial_he": UnspecifiedBehaviour(_without_lost),
    "special_laguerre_polynomial_l": UnspecifiedBehaviour(_without_lost),
    "histogram": UnspecifiedBehaviour(_between_ascending_edges),
    "_linalg_svd": UnspecifiedBehaviour(_svd),
    "linalg_svd": UnspecifiedBehaviour(_svd),
    "svd": UnspecifiedBehaviour(_old_svd),
    "_linalg_eigh": UnspecifiedBehaviour(_eigh, _of_distinct_values),
    "linalg_eigh": UnspecifiedBehaviour(_eigh, _of_distinct_values),
    "linalg_eigvalsh": UnspecifiedBehaviour(lambda call, found: found, _of_distinct_values),
    **{name: UnspecifiedBehaviour(_of_finite_matrices) for name in ("linalg_ldl_factor", "linalg_ldl_factor_ex")},
    "linalg_pinv": UnspecifiedBehaviour(_of_finite_matrices, _of_full_rank),
    **{
        name: UnspecifiedBehaviour(_far_from_overflow)
        for name in ("cholesky_solve", "_cholesky_solve_helper", "_grouped_mm")
    },
    "linalg_ldl_solve": UnspecifiedBehaviour(_of_normal_factors),
    **{name: UnspecifiedBehaviour(_beside_lost_columns) for name in ("geqrf", "qr", "linalg_qr")},
    **{
        name: UnspecifiedBehaviour(_whole_numbers_or_none)
        for name in "_fft_r2c fft_rfft fft_rfft2 fft_rfftn fft_ihfft fft_ihfft2 fft_ihfftn stft".split()
    },
    "_to_copy": UnspecifiedBehaviour(_within_range),
    "linalg_eig": UnspecifiedBehaviour(_eig),
    "linalg_eigvals": UnspecifiedBehaviour(_eigvals),
    "_linalg_eigvals": UnspecifiedBehaviour(_eigvals),
    **{
        name: UnspecifiedBehaviour(lambda call, found: [*map(without_sign_of_zero, found)])
        for name in (
            "clamp clamp_min clamp_max maximum minimum fmax fmin aminmax _aminmax"
            " _foreach_clamp_min _foreach_clamp_max _foreach_maximum _foreach_minimum"
        ).split()
    },
    "addcmul": UnspecifiedBehaviour(_unless_overflowing),
    "lerp": UnspecifiedBehaviour(from_either_end),
    "gelu_backward": UnspecifiedBehaviour(_unless_lost),
    "addcdiv": UnspecifiedBehaviour(products, _of_finite_inverses),
    "nextafter": UnspecifiedBehaviour(lambda call, found: found, _of_finite_steps),
    **{
        name: UnspecifiedBehaviour(_unless_infinite)
        for name in ("native_layer_norm_backward", "native_group_norm_backward", "conv_tbc_backward")
    },
    "_fake_quantize_learnable_per_channel_affine_backward": UnspecifiedBehaviour(_whole_channels),
    "signbit": UnspecifiedBehaviour(_of_ordered),
    "copysign": UnspecifiedBehaviour(_of_ordered),
    "_linear_cross_entropy_batch_chunked_no_reduction": UnspecifiedBehaviour(_counted),
    "_ctc_loss": UnspecifiedBehaviour(_while_running),
    "_cdist_forward": UnspecifiedBehaviour(_without_lost_nan),
    "cdist": UnspecifiedBehaviour(_without_lost_nan),
    "_euclidean_dist": UnspecifiedBehaviour(_of_finite_rows),
    **{
        name: UnspecifiedBehaviour(_of_known_scores)
        for name in ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu")
    },
    **{
        name: UnspecifiedBehaviour(_whole_or_nothing)
        for name in (
            "fake_quantize_per_channel_affine",
            "fake_quantize_per_channel_affine_cachemask",
            "_fake_quantize_learnable_per_channel_affine",
        )
    },
    **{name: UnspecifiedBehaviour(_unless_failed) for name in ("linalg_cholesky_ex", "linalg_inv_ex")},
    **{
        name: UnspecifiedBehaviour(products)
        for name in (
            "add sub rsub mul reciprocal rsqrt square sigmoid silu sinc prod logaddexp logaddexp2 logcumsumexp"
        ).split()
    },
    **{name: UnspecifiedBehaviour(quotients_and_powers) for name in ("div", "true_divide")},
    "pow": UnspecifiedBehaviour(quotients_and_powers, _beside_poles),
    "float_power": UnspecifiedBehaviour(resolved_powers, _beside_poles),
    **{name: UnspecifiedBehaviour(unsigned_beside_nan) for name in "acos asin atan acosh asinh atanh".split()},
    **{name: UnspecifiedBehaviour(signs) for name in ("neg", "_neg_view_copy", "sgn")},
}
"""The behaviour that each op's documentation leaves unspecified."""
