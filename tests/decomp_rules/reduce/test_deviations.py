"""Standard deviations, variances, norms and normalisations of numbers whose squares overflow or vanish."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from decomp_rules.reduce.deviations import RULES
from tests.forms import Holder

ROWS = torch.tensor([[1.5, -0.25, 1.0, 0.5, -1.0], [1.0, 2.0, 4.0, 0.0, -3.0]])
SIZES = (1e-37, 1e-30, 1e-20, 1.0, 1e12, 1e15, 1e20, 1e30, 8e37)


def lowered(
    function: Callable[..., object],
    x: Tensor,
    level: str,
    target: decomp.Target = targets.tinygrad,
    training: bool = False,
) -> Callable[..., Tensor]:
    result: Callable[..., Tensor]
    result = decomp.lower(Holder(function), to=target, args=(x,), accuracy=level, training=training).result
    return result


@pytest.mark.parametrize("level", ["fast", "standard", "exact"])
@pytest.mark.parametrize("name", ["std", "std_mean"])
def test_deviations_of_any_size_have_their_digits_and_gradients(name: str, level: str) -> None:
    function = {"std": lambda x: x.std(1), "std_mean": lambda x: torch.std_mean(x, 1, correction=0)[0]}[name]
    found = lowered(function, ROWS, level, training=True)
    for size in SIZES:
        x, exact = (ROWS * size).requires_grad_(), (ROWS * size).double().requires_grad_()
        result, wanted = found(x), function(exact)
        torch.testing.assert_close(result, wanted.float(), rtol=1e-6, atol=0)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        (slope,) = torch.autograd.grad(wanted.sum(), exact)
        torch.testing.assert_close(gradient, slope.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", [targets.core_aten, targets.luminal, targets.onnx], ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_deviations_of_other_dtypes_and_targets(dtype: torch.dtype, target: decomp.Target) -> None:
    info = torch.finfo(dtype)
    large, small = (1e150, 1e-150) if dtype == torch.float64 else (info.max / 8, info.smallest_normal * 8)  # as the op
    x = torch.cat([ROWS.double() * size for size in (large, 1.0, small)]).to(dtype)
    found = lowered(lambda x: x.std(1, keepdim=True), x, "standard", target)
    torch.testing.assert_close(found(x), x.std(1, keepdim=True), rtol=8 * info.eps, atol=0)


def test_deviations_without_elements_are_of_nothing() -> None:
    x = torch.empty(2, 0)
    assert decomp.decompose(Holder(lambda x: x.std(1)), RULES, args=(x,))(x).isnan().all()


@pytest.mark.parametrize("level", ["fast", "standard"])
def test_the_variance_of_large_numbers_is_infinite_as_the_op_has_it(level: str) -> None:
    x = torch.stack([ROWS[0] * 1e30, ROWS[0] * 8e37, ROWS[0] * 1e19])
    torch.testing.assert_close(lowered(lambda x: x.var(1), x, level)(x), x.var(1))


@pytest.mark.parametrize("value", [0.7, 1e-11, 3e11, 3e20])
def test_the_variance_of_equal_numbers_has_a_root(value: float) -> None:
    x = torch.full((2, 12), value)
    assert lowered(lambda x: x.var(1, correction=0).sqrt(), x, "standard")(x).max() <= 1e-6 * value


NORMS = {
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "instance_norm": lambda x: F.instance_norm(x[None]),
    "batch_norm": lambda x: F.batch_norm(x.t(), None, None, training=True),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0), dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "norm of inverses": lambda x: torch.linalg.vector_norm(x.abs() + 1e30, -2, -1),
}


@pytest.mark.parametrize("level", ["fast", "standard", "exact"])
@pytest.mark.parametrize("name", NORMS)
def test_what_is_normalised_stays_finite(name: str, level: str) -> None:
    found = lowered(NORMS[name], ROWS, level)
    for size in (1e19, 1e30, 8e37):
        wanted = NORMS[name](ROWS * size)
        if wanted.isfinite().all():
            torch.testing.assert_close(found(ROWS * size), wanted, rtol=1e-4, atol=1e-5)
