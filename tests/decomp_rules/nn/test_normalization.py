"""Norms and softmaxes agree with the ops and with their backward ops, also in bfloat16, at infinities and along rows
that are masked throughout."""

from collections.abc import Callable
import copy
import math

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from decomp_rules.nn import normalization, softmax
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees
from tests.forms import Holder

aten = torch.ops.aten
RULES = normalization.RULES | softmax.RULES
FLOATS = [torch.float32, torch.float64, torch.bfloat16]
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("with_weight", [True, False])
def test_layer_norm(dtype: torch.dtype, with_weight: bool) -> None:
    x = sample(3, 4, 5, dtype=dtype)
    for shape in ([5], [4, 5], [3, 4, 5]):
        weight = sample(*shape, dtype=dtype) if with_weight else None
        bias = sample(*shape, dtype=dtype, seed=1) if with_weight else None
        agrees(RULES, aten.layer_norm.default, x, shape, weight, bias)
        agrees(RULES, aten.native_layer_norm.default, x, shape, weight, bias, 1e-3)
        if with_weight:
            agrees(RULES, aten.layer_norm.default, x, shape, weight)
        _, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, 1e-5)
        for mask in ([True, with_weight, with_weight], [False, with_weight, False]):
            agrees(
                RULES,
                aten.native_layer_norm_backward.default,
                x.flip(0),
                x,
                shape,
                mean,
                rstd,
                weight,
                bias,
                mask,
                gradient=False,
                tolerance=4e-2 if dtype == torch.bfloat16 else None,
            )


def test_layer_norm_far_from_zero_and_without_spread() -> None:
    x = 1e4 + sample(2, 512)
    exact = torch.layer_norm(x.double(), [512])
    found = normalization.native_layer_norm(x, [512], None, None, 1e-5)[0]
    assert (found - exact).abs().max() <= 1.1 * (torch.layer_norm(x, [512]) - exact).abs().max()
    agrees(RULES, aten.layer_norm.default, torch.ones(2, 3), [3])


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = sample(3, 4, 5, dtype=dtype), sample(5, dtype=dtype, seed=1)
    agrees(RULES, aten.rms_norm.default, x, [5], weight, 1e-6)
    agrees(RULES, aten.rms_norm.default, x, [4, 5])
    agrees(RULES, aten.rms_norm.default, torch.zeros(2, 5, dtype=dtype), [5], weight)
    out, rstd = torch._fused_rms_norm(x, [5], weight, 1e-6)
    agrees(RULES, aten._fused_rms_norm.default, x, [5], weight, 1e-6)
    x, weight, grad = x.requires_grad_(), weight.requires_grad_(), sample(3, 4, 5, dtype=dtype, seed=2)
    expected = torch.autograd.grad(torch.rms_norm(x, [5], weight, 1e-6), [x, weight], grad)
    found = normalization._fused_rms_norm_backward(grad, x, [5], rstd, weight, [True, True])
    tolerance = {torch.bfloat16: 4e-2}.get(dtype, 1e-5)
    torch.testing.assert_close([g.detach() for g in found], list(expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (3, 6), (2, 6, 5)])
def test_group_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight, bias = sample(*shape, dtype=dtype), sample(6, dtype=dtype, seed=1), sample(6, dtype=dtype, seed=2)
    extent = math.prod(shape[2:])
    agrees(RULES, aten.group_norm.default, x, 3, weight, bias, tolerance=4e-2 if dtype == torch.bfloat16 else None)
    agrees(RULES, aten.group_norm.default, x, 2)
    agrees(RULES, aten.group_norm.default, x.transpose(0, 1).contiguous().transpose(0, 1), 2)
    agrees(
        RULES,
        aten.native_group_norm.default,
        x,
        weight,
        bias,
        shape[0],
        6,
        extent,
        3,
        1e-5,
        tolerance=4e-2 if dtype == torch.bfloat16 else None,
    )
    _, mean, rstd = torch.native_group_norm(x, weight, bias, shape[0], 6, extent, 3, 1e-5)
    for scale in (weight, None):
        mask = [True, scale is not None, scale is not None]
        agrees(
            RULES,
            aten.native_group_norm_backward.default,
            x.flip(0).contiguous(),
            x,
            mean,
            rstd,
            scale,
            shape[0],
            6,
            extent,
            3,
            mask,
            gradient=False,
            tolerance=5e-2 if dtype == torch.bfloat16 else None,
        )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (6, 3), (2, 3, 5)])
def test_batch_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tolerance = 4e-2 if dtype == torch.bfloat16 else None
    x, weight, bias = sample(*shape, dtype=dtype), sample(3, dtype=dtype, seed=1), sample(3, dtype=dtype, seed=2)
    mean, var = sample(3, dtype=dtype, seed=3).detach(), sample(3, dtype=dtype, seed=4).abs() + 0.5
    for scale, shift in ((weight, bias), (None, None)):
        agrees(RULES, aten._native_batch_norm_legit.no_stats, x, scale, shift, True, 0.1, 1e-5, tolerance=tolerance)
        agrees(RULES, aten.batch_norm.default, x, scale, shift, None, None, True, 0.1, 1e-5, False, tolerance=tolerance)
    with torch.no_grad():
        for training in (True, False) if dtype != torch.bfloat16 else ():  # the kernel gives what its fake does not
            agrees(
                RULES,
                aten._native_batch_norm_legit_functional.default,
                x,
                weight,
                bias,
                mean,
                var,
                training,
                0.1,
                1e-5,
                gradient=False,
                tolerance=tolerance,
            )
        agrees(
            RULES,
            aten._native_batch_norm_legit_no_training.default,
            x,
            weight,
            bias,
            mean,
            var,
            0.1,
            1e-5,
            gradient=False,
            tolerance=tolerance,
        )
        agrees(
            RULES,
            aten.native_batch_norm.default,
            x,
            weight,
            bias,
            mean,
            var,
            False,
            0.1,
            1e-5,
            gradient=False,
            tolerance=tolerance,
        )


def test_batch_norm_trains_its_input_and_parameters() -> None:
    x, weight, bias, mean, var = sample(4, 3, 5), sample(3), sample(3), sample(3), sample(3).abs() + 0.5
    for training in (True, False):
        leaves = [leaf.clone().requires_grad_() for leaf in (x, weight, bias)]
        expected = torch.batch_norm(*leaves, mean.clone(), var.clone(), training, 0.1, 1e-5, False)
        found = normalization._native_batch_norm_legit_functional(*leaves, mean, var, training, 0.1, 1e-5)
        torch.testing.assert_close(found[0], expected)
        grad = sample(4, 3, 5, seed=7)
        torch.testing.assert_close(
            torch.autograd.grad(found[0], leaves, grad),
            torch.autograd.grad(expected, leaves, grad),
            rtol=1e-4,
            atol=1e-5,
        )
        assert not found[3].requires_grad and not found[4].requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_have_the_dtype_that_pytorch_says(training: bool) -> None:
    halves = [sample(*shape, dtype=torch.bfloat16) for shape in ((4, 3, 5), (3,), (3,), (3,), (3,))]
    found = normalization._native_batch_norm_legit_functional(*halves, training, 0.1, 1e-5)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in halves]
        expected = aten._native_batch_norm_legit_functional.default(*fakes, training, 0.1, 1e-5)
    assert [(x.dtype, x.shape) for x in found] == [(x.dtype, x.shape) for x in expected]


def test_a_mean_of_a_hundred_thousand_costs_no_digits() -> None:
    x = sample(8, 3, 20) * 0.5 + 1e5
    exact = torch.native_layer_norm(x.double(), [20], None, None, 1e-5)
    for found, wanted in zip(normalization.native_layer_norm(x, [20], None, None, 1e-5), exact):
        torch.testing.assert_close(found.double(), wanted, rtol=5e-7, atol=5e-7)


@pytest.mark.parametrize(
    "by", [normalization._native_batch_norm_legit, normalization._native_batch_norm_legit_of_two_sums]
)
def test_an_infinite_mean_is_infinite(by) -> None:
    x = sample(4, 3, 5)
    x[1, 2, 3] = float("inf")
    wanted = aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)
    for found, known in zip(by(x, None, None, True, 0.1, 1e-5), wanted):
        torch.testing.assert_close(found, known, equal_nan=True)


def test_a_sum_that_overflows_leaves_the_mean_of_a_row_finite() -> None:
    huge = torch.finfo(torch.float32).max / 2
    out, mean, _ = normalization.native_layer_norm(torch.full((2, 8), huge), [8], None, None, 1e-5)
    assert torch.equal(out, torch.zeros(2, 8)) and torch.equal(mean, torch.full((2, 1), huge))


def test_instance_norm_takes_statistics_of_another_dtype() -> None:
    mean, var = sample(3).double(), sample(3).abs().double() + 1
    agrees(RULES, aten.instance_norm, sample(2, 3, 4), None, None, mean, var, False, 0.1, 1e-5, False, gradient=False)


def test_batch_norm_with_statistics_to_update_is_declined() -> None:
    stats = torch.zeros(3), torch.ones(3)
    found = normalization.batch_norm(sample(4, 3), None, None, *stats, True, 0.1, 1e-5)
    assert found.reason == "running statistics are updated in place"


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_backward(train: bool) -> None:
    x, weight, mean, var = sample(2, 3, 4, 5), sample(3, seed=1), sample(3, seed=2), sample(3, seed=3).abs() + 0.5
    _, saved_mean, saved_rstd = torch._native_batch_norm_legit(x, weight, None, True, 0.1, 1e-5)
    for scale, mask in ((weight, [True, True, True]), (weight, [True, False, False])):
        agrees(
            RULES,
            aten.native_batch_norm_backward.default,
            x.flip(0),
            x,
            scale,
            mean,
            var,
            saved_mean,
            saved_rstd,
            train,
            1e-5,
            mask,
            gradient=False,
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_instance_norm(dtype: torch.dtype) -> None:
    x, weight, bias = sample(2, 3, 4, 5, dtype=dtype), sample(3, dtype=dtype, seed=1), sample(3, dtype=dtype, seed=2)
    mean, var = sample(3, dtype=dtype, seed=3), sample(3, dtype=dtype, seed=4).abs() + 0.5
    tolerance = 4e-2 if dtype == torch.bfloat16 else None
    agrees(RULES, aten.instance_norm.default, x, weight, bias, None, None, True, 0.1, 1e-5, False, tolerance=tolerance)
    agrees(RULES, aten.instance_norm.default, x, None, None, None, None, True, 0.1, 1e-5, False, tolerance=tolerance)
    agrees(
        RULES,
        aten.instance_norm.default,
        x,
        weight,
        bias,
        mean,
        var,
        False,
        0.1,
        1e-5,
        False,
        gradient=False,
        tolerance=tolerance,
    )
    declined = normalization.instance_norm(x, weight, bias, mean, var, True, 0.1, 1e-5)
    assert declined.reason == "running statistics are updated in place"


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(dtype: torch.dtype) -> None:
    x = sample(3, 4, 5, dtype=dtype) * 20
    for dim in (-1, 0, 1):
        for op in (aten.softmax.int, aten.log_softmax.int):
            agrees(RULES, op, x, dim)
            agrees(RULES, op, x, dim, dtype=torch.float32)
        for op in (aten._softmax.default, aten._log_softmax.default):
            agrees(RULES, op, x, dim, False)
        agrees(RULES, aten._safe_softmax.default, x, dim)
    for op in (aten._softmax, aten._log_softmax):
        agrees(RULES, op.default, sample(dtype=dtype), 0, False)
        agrees(RULES, op.default, torch.empty(2, 0, dtype=dtype), 1, False)
    y = torch.softmax(x, 1)
    agrees(RULES, aten._softmax_backward_data.default, x, y, 1, dtype, gradient=False)
    agrees(
        RULES,
        aten._log_softmax_backward_data.default,
        x / 20,
        torch.log_softmax(x, 1),
        1,
        dtype,
        gradient=False,
        tolerance=5e-2 if dtype == torch.bfloat16 else None,
    )


def test_softmax_at_infinities() -> None:
    x = torch.tensor([[-INF, -INF], [-INF, 1.0], [INF, 1.0], [NAN, 1.0], [1e38, -1e38], [88.0, 89.0]])
    for op in (aten._softmax, aten._log_softmax):
        agrees(RULES, op.default, x, 1, False, gradient=False)
        agrees(RULES, op.default, x[[1, 5]], 1, False)
    agrees(RULES, aten._safe_softmax.default, x, 1, gradient=False)
    agrees(RULES, aten._safe_softmax.default, x[[0, 1, 5]], 1)


def test_masked_softmax() -> None:
    x, mask = sample(2, 3, 4, 4), sample(4, 4) > 0.5
    agrees(RULES, aten._masked_softmax.default, x, mask, -1, 0, gradient=False)
    agrees(RULES, aten._masked_softmax.default, x, sample(2, 4) > 0.5, 3, 1, gradient=False)
    agrees(RULES, aten._masked_softmax.default, x, sample(2, 3, 4, 4) > 0.5, -1, 2, gradient=False)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.layer_norm(x, [6], w, b),
        lambda x, w, b: F.rms_norm(x, [6], w),
        lambda x, w, b: F.group_norm(x, 3, w, b),
        lambda x, w, b: F.group_norm(x.transpose(2, 3), 3, w, b),
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        lambda x, w, b: F.batch_norm(x, b.detach(), w.detach().abs(), w, b),
        lambda x, w, b: F.softmax(x, -1),
        lambda x, w, b: F.log_softmax(x, 1),
        lambda x, w, b: F.softmax(x, -1, dtype=torch.float32),
        lambda x, w, b: F.softmin(x, 0),
    ],
)
def test_lowered_to_the_end(dtype: torch.dtype, function: Callable[..., object]) -> None:
    x = sample(2, 6, 3, 6, dtype=dtype)
    weight, bias = sample(6, dtype=dtype, seed=1) + 2, sample(6, dtype=dtype, seed=2)
    # The layer norm kernel's own gradient is off by 0.09 here in bfloat16, the rule's by 0.004.
    lowered_agrees(function, x, weight, bias, tolerance=0.12 if dtype == torch.bfloat16 else 2e-5)


def test_local_response_norm_is_lowered_to_the_end() -> None:
    lowered_agrees(lambda x: F.local_response_norm(x, 3), sample(2, 5, 3, 4))


def test_batch_norm_in_training_is_lowered_with_its_statistics() -> None:
    x, module = sample(4, 3, 5), Holder(torch.nn.BatchNorm1d(3)).train()
    for target in (targets.core_aten, targets.tinygrad):
        lowered, original = decomp.lower(module, to=target, args=(x,)).result, copy.deepcopy(module)
        leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = lowered(leaf), original(other)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(dict(lowered.named_buffers()), dict(original.named_buffers()))
        grad = sample(4, 3, 5, seed=3)
        torch.testing.assert_close(torch.autograd.grad(found, leaf, grad), torch.autograd.grad(expected, other, grad))
