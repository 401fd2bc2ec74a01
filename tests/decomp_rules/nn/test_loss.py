"""Losses and their backward ops agree with the ops for every reduction, at kinks, edges and ignored targets."""

from collections.abc import Callable
import math

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from decomp_rules.nn import loss, loss_backward
from decomp_rules.reduce import norms
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees
from tests.forms import Holder
from tests.pytorch_differences import MIXED_DISTANCES_TRAIN

aten = torch.ops.aten
RULES = loss.RULES | loss_backward.RULES | norms.RULES
FLOATS = [torch.float32, torch.float64, torch.bfloat16]
REDUCTIONS = [0, 1, 2]
NAN = math.nan
CLASSES = torch.tensor([0, 2, 1, -100])


def near(dtype: torch.dtype) -> float | None:
    return {torch.bfloat16: 3e-2}.get(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_distances(dtype: torch.dtype, reduction: int) -> None:
    x, t = sample(4, 5, dtype=dtype), sample(4, 5, dtype=dtype, seed=1)
    agrees(RULES, aten.mse_loss.default, x, t, reduction, tolerance=near(dtype))
    agrees(RULES, aten.l1_loss.default, x, t, reduction, tolerance=near(dtype))
    for edge in (0.5, 1.0, 2.0):
        agrees(RULES, aten.smooth_l1_loss.default, x, t, reduction, edge, tolerance=near(dtype))
        agrees(RULES, aten.huber_loss.default, x, t, reduction, edge, tolerance=near(dtype))
    agrees(RULES, aten.soft_margin_loss.default, x, t.sign(), reduction, tolerance=near(dtype), fixed=(1,))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_backwards_of_distances(reduction: int) -> None:
    x, t = sample(4, 5), sample(4, 5, seed=1)
    grad = sample(4, 5, seed=2) if reduction == 0 else torch.tensor(1.5)
    agrees(RULES, aten.mse_loss_backward.default, grad, x, t, reduction, gradient=False)
    agrees(RULES, aten.smooth_l1_loss_backward.default, grad, x, t, reduction, 0.5, gradient=False)
    agrees(RULES, aten.huber_loss_backward.default, grad, x, t, reduction, 0.5, gradient=False)
    agrees(RULES, aten.soft_margin_loss_backward.default, grad, x, t.sign(), reduction, gradient=False)
    p = torch.rand(4, 5, generator=torch.Generator().manual_seed(0))
    agrees(RULES, aten.binary_cross_entropy_backward.default, grad, p, t, sample(5), reduction, gradient=False)


def test_distances_at_kinks_and_of_mixed_dtypes() -> None:
    x, t = torch.tensor([0.0, 1.0, -1.0, 2.0]), torch.zeros(4)
    for op in (aten.smooth_l1_loss.default, aten.huber_loss.default, aten.l1_loss.default, aten.mse_loss.default):
        agrees(RULES, op, x, t, 0)
    agrees(RULES, aten.mse_loss.default, x, t.double(), gradient=MIXED_DISTANCES_TRAIN)
    agrees(RULES, aten.huber_loss.default, x, t.double(), gradient=False)
    agrees(RULES, aten.soft_margin_loss.default, x, t.double(), gradient=False)
    agrees(RULES, aten.l1_loss.default, torch.complex(x, x), torch.complex(x, t), gradient=False)
    agrees(RULES, aten.smooth_l1_loss_backward.default, torch.ones(4), x, t, 0, 1.0, gradient=False)


def test_distances_to_infinity_have_finite_gradients() -> None:
    x, t = torch.tensor([0.0, math.inf, -math.inf, NAN, 1.0]), torch.tensor([math.inf, 1.0, 2.0, 0.0, 1.0])
    for edge in (0.5, 2.0):
        agrees(RULES, aten.smooth_l1_loss.default, x, t, 0, edge)
        agrees(RULES, aten.huber_loss.default, x, t, 0, edge)
    agrees(RULES, aten.smooth_l1_loss_backward.default, torch.ones(5), x, t, 0, 0.5, gradient=False)
    huge = torch.full((2,), 3e38)
    agrees(RULES, aten.mse_loss_backward.default, torch.ones(2), huge, torch.zeros(2), 1, gradient=False)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(4, 3), (3,), (2, 3, 4, 5), (2, 3, 4)])
def test_classification(dtype: torch.dtype, reduction: int, shape: tuple[int, ...]) -> None:
    x, weight = sample(*shape, dtype=dtype), sample(3, dtype=dtype, seed=1).abs() + 0.1
    rest = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = torch.randint(0, 3, rest, generator=torch.Generator().manual_seed(0))
    target = torch.where(target == 1, -100, target)
    logs = torch.log_softmax(x, 0 if len(shape) == 1 else 1)
    for w in (None, weight.detach()):
        for smoothing in (0.0, 0.2):
            agrees(
                RULES,
                aten.cross_entropy_loss.default,
                x,
                target,
                w,
                reduction,
                -100,
                smoothing,
                tolerance=4e-2 if dtype == torch.bfloat16 else None,
                fixed=(2,),
            )
        agrees(RULES, aten.nll_loss_nd.default, logs, target, w, reduction, tolerance=near(dtype), fixed=(2,))
        if len(shape) == 3:
            continue
        forward = aten.nll_loss2d_forward if len(shape) == 4 else aten.nll_loss_forward
        backward = aten.nll_loss2d_backward if len(shape) == 4 else aten.nll_loss_backward
        agrees(RULES, forward.default, logs, target, w, reduction, -100, tolerance=near(dtype), fixed=(2,))
        out, total = forward(logs, target, w, reduction, -100)
        agrees(
            RULES,
            backward.default,
            torch.ones_like(out),
            logs,
            target,
            w,
            reduction,
            -100,
            total,
            gradient=False,
            tolerance=near(dtype),
        )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_classification_by_probabilities(reduction: int) -> None:
    for shape in ((4, 3), (2, 3, 5), (3,)):
        x, target = sample(*shape), torch.softmax(sample(*shape, seed=1), 0 if len(shape) == 1 else 1)
        for weight in (None, sample(3).abs()):
            agrees(RULES, aten.cross_entropy_loss.default, x, target, weight, reduction)
            agrees(RULES, aten.cross_entropy_loss.default, x, target, weight, reduction, -100, 0.3)


def test_classification_with_nothing_to_classify() -> None:
    target = torch.full((2,), -100)
    agrees(RULES, aten.nll_loss_forward.default, sample(2, 3), target, None, 1, -100)
    agrees(RULES, aten.nll_loss_forward.default, torch.tensor([[NAN, 1.0]]), torch.tensor([1]), None, 1, -100)
    agrees(RULES, aten.nll_loss_forward.default, torch.tensor([[NAN, 1.0]]), torch.tensor([-100]), None, 2, -100)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy(dtype: torch.dtype, reduction: int) -> None:
    x, t = torch.sigmoid(sample(4, 5, dtype=dtype)), torch.sigmoid(sample(4, 5, dtype=dtype, seed=1))
    agrees(RULES, aten.binary_cross_entropy.default, x, t, None, reduction, tolerance=near(dtype))
    agrees(
        RULES,
        aten.binary_cross_entropy.default,
        x,
        t,
        sample(5, dtype=dtype).abs(),
        reduction,
        tolerance=near(dtype),
        fixed=(2,),
    )
    z = sample(4, 5, dtype=dtype) * 5
    agrees(RULES, aten.binary_cross_entropy_with_logits.default, z, t, None, None, reduction, tolerance=near(dtype))
    agrees(
        RULES,
        aten.binary_cross_entropy_with_logits.default,
        z,
        t,
        sample(5, dtype=dtype),
        sample(5, dtype=dtype).abs(),
        reduction,
        tolerance=4e-2 if dtype == torch.bfloat16 else None,
        fixed=(2, 3),
    )


def test_the_gradient_of_logits_keeps_tiny_targets() -> None:
    z = torch.tensor([-200.0, -20.0, 0.0, 20.0])
    for target in (torch.tensor([1e-9, 0.0, 0.5, 1.0]), torch.tensor([0, 1, 0, 1], dtype=torch.float64)):
        agrees(RULES, aten.binary_cross_entropy_with_logits.default, z, target, None, None, 0)


def test_a_target_of_zero_has_the_gradient_of_the_op_in_divergence() -> None:
    agrees(RULES, aten.kl_div.default, torch.randn(3), torch.tensor([0.0, 0.5, 1.0]), 0)


def test_hinge_of_integers_wraps() -> None:
    x = torch.tensor([-3, 0, 5, 120], dtype=torch.int8)
    agrees(RULES, aten.hinge_embedding_loss.default, x, torch.tensor([1, -1, 1, -1]), 2.5, 0, gradient=False)


def test_binary_cross_entropy_at_its_edges() -> None:
    x = torch.tensor([0.0, 0.0, 1.0, 1.0, 1e-13, 1e-30, 0.5])
    t = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.5, 0.25])
    agrees(RULES, aten.binary_cross_entropy.default, x, t, None, 0, fixed=(1,))
    z = torch.tensor([0.0, 200.0, -200.0, 200.0, -200.0])
    agrees(
        RULES, aten.binary_cross_entropy_with_logits.default, z, torch.tensor([0.3, 0.0, 0.0, 1.0, 1.0]), None, None, 0
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_other_losses(dtype: torch.dtype, reduction: int) -> None:
    x, y, sign = sample(4, 5, dtype=dtype), sample(4, 5, dtype=dtype, seed=1), sample(4, 5, dtype=dtype, seed=2).sign()
    tolerance = 4e-2 if dtype == torch.bfloat16 else 1e-4 if dtype == torch.float32 else None
    agrees(RULES, aten.kl_div.default, x, torch.softmax(y, 1), reduction, tolerance=tolerance)
    agrees(RULES, aten.kl_div.default, x, torch.log_softmax(y, 1), reduction, log_target=True, tolerance=tolerance)
    agrees(RULES, aten.kl_div.default, x, torch.softmax(y, 1).round(), reduction, tolerance=tolerance, fixed=(1,))
    agrees(RULES, aten.hinge_embedding_loss.default, x, sign, 0.7, reduction, tolerance=tolerance, fixed=(1,))
    agrees(RULES, aten.margin_ranking_loss.default, x, y, sign, 0.3, reduction, tolerance=tolerance, fixed=(2,))
    if dtype == torch.bfloat16:
        return
    agrees(RULES, aten.cosine_embedding_loss.default, x, y, sign[:, 0], 0.1, reduction, tolerance=tolerance, fixed=(2,))
    for p, swap in ((2.0, False), (2.0, True), (1.0, False)):
        agrees(
            RULES, aten.triplet_margin_loss.default, x, y, y.flip(0), 1.0, p, 1e-6, swap, reduction, tolerance=tolerance
        )
    for log_input in (True, False):
        for full in (True, False):
            agrees(
                RULES,
                aten.poisson_nll_loss.default,
                x.abs(),
                y.abs() * 3,
                log_input,
                full,
                1e-8,
                reduction,
                tolerance=tolerance,
                fixed=(1,),
            )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin(reduction: int, p: int) -> None:
    for x, target in ((sample(4, 3), torch.tensor([0, 2, 1, 1])), (sample(3), torch.tensor(1))):
        for weight in (None, sample(3).abs()):
            agrees(RULES, aten.multi_margin_loss.default, x, target, p, 0.8, weight, reduction, fixed=(4,))
            out = torch.ones_like(aten.multi_margin_loss(x, target, p, 0.8, weight, reduction))
            agrees(
                RULES,
                aten.multi_margin_loss_backward.default,
                out,
                x,
                target,
                p,
                0.8,
                weight,
                reduction,
                gradient=False,
            )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin(reduction: int) -> None:
    for x, target in (
        (sample(2, 4), torch.tensor([[3, 0, -1, 1], [-1, 0, 0, 0]])),
        (sample(4), torch.tensor([1, 2, -1, 3])),
    ):
        agrees(RULES, aten.multilabel_margin_loss.default, x, target, reduction)
        out, is_target = aten.multilabel_margin_loss_forward(x, target, reduction)
        agrees(RULES, aten.multilabel_margin_loss_forward.default, x, target, reduction)
        agrees(
            RULES,
            aten.multilabel_margin_loss_backward.default,
            torch.ones_like(out),
            x,
            target,
            reduction,
            is_target,
            gradient=False,
        )


@pytest.mark.parametrize(
    "function",
    [
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.binary_cross_entropy_with_logits,
        F.cosine_similarity,
        lambda x, y: F.cross_entropy(x, CLASSES),
        lambda x, y: F.cross_entropy(x, CLASSES, label_smoothing=0.1),
        lambda x, y: F.nll_loss(x, CLASSES),
        lambda x, y: F.cross_entropy(x, torch.softmax(y, 1)),
        lambda x, y: F.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(y)),
        lambda x, y: F.kl_div(x, y.softmax(-1)),
        lambda x, y: F.triplet_margin_loss(x, y, y.flip(0)),
        lambda x, y: F.poisson_nll_loss(x, y.abs(), full=True),
        lambda x, y: F.multi_margin_loss(x, torch.tensor([0, 2, 1, 1])),
        lambda x, y: F.multilabel_margin_loss(x, torch.tensor([[1, -1, 0], [0, 2, -1], [-1, 0, 0], [0, 1, 2]])),
        lambda x, y: F.cosine_embedding_loss(x, y, torch.tensor([1, -1, 1, -1])),
        lambda x, y: F.margin_ranking_loss(x, y, torch.ones_like(x)),
        lambda x, y: F.soft_margin_loss(x, torch.ones_like(y)),
        lambda x, y: F.hinge_embedding_loss(x, torch.ones_like(y)),
    ],
)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_lowered_to_the_end(function: Callable[..., object]) -> None:
    lowered_agrees(function, sample(4, 3), sample(4, 3, seed=1))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margins_of_a_single_number(reduction: int) -> None:
    agrees(RULES, aten.multi_margin_loss.default, torch.tensor(2.0), torch.tensor(0), 1, 1, None, reduction, fixed=(1,))
    agrees(
        RULES, aten.multilabel_margin_loss_forward.default, torch.tensor(2.0), torch.tensor(0), reduction, fixed=(1,)
    )


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("log_input", [False, True])
def test_poisson_of_counts(log_input: bool, full: bool) -> None:
    x, counts = sample(4, 5).abs(), torch.arange(20.0).view(4, 5)
    agrees(RULES, aten.poisson_nll_loss.default, x, counts, log_input, full, 1e-8, 1)
    agrees(RULES, aten.poisson_nll_loss.default, counts.long(), counts.long(), log_input, full, 1e-8, 2, gradient=False)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gaussian_negative_log_likelihood(reduction: str, full: bool) -> None:
    x, t = sample(4, 5).requires_grad_(), sample(4, 5, seed=1).requires_grad_()
    for shape in ((4, 5), (4, 1), (4,)):
        var = (sample(*shape, seed=2).abs() * 0.01).requires_grad_()  # some below ε
        expected = F.gaussian_nll_loss(x, t, var, full, 5e-3, reduction)
        found = loss.gaussian_nll_loss(x, t, var, full, 5e-3, reduction)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), (x, t, var)), torch.autograd.grad(expected.sum(), (x, t, var))
        )


def test_cosine_similarity_of_shapes_that_broadcast_along_its_dimension() -> None:
    agrees(RULES, aten.cosine_similarity.default, sample(1, 2, 3), sample(2, 1, 3, seed=1), -2)


def test_the_distance_that_counts_differences_has_a_gradient_of_zeros() -> None:
    x = sample(5, 4).requires_grad_()
    (grad,) = torch.autograd.grad(norms.norm_over(x.abs(), 0.0, [1], False).sum(), x)
    assert torch.equal(grad, torch.zeros_like(x))


@pytest.mark.parametrize("kept", ["log_softmax", "_log_softmax"])
def test_cross_entropy_keeps_the_log_softmax_of_a_target(kept):
    x, target = sample(4, 5), torch.tensor([1, 4, 0, 2])
    model = decomp.lower(_CrossEntropy(), to=targets.tinygrad | decomp.Target("chip", [kept]), args=(x, target)).result
    assert getattr(aten, kept) in {getattr(node.target, "overloadpacket", None) for node in model.graph.nodes}
    torch.testing.assert_close(model(x, target), F.cross_entropy(x, target))


class _CrossEntropy(torch.nn.Module):
    def forward(self, x, target):
        return F.cross_entropy(x, target)


@pytest.mark.parametrize("function", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_distance_from_truth_values_is_one_from_zeros_and_ones(function, dtype):
    x, target = sample(6, dtype=dtype), sample(6, seed=1) > 0
    model = decomp.lower(Holder(function), to=targets.core_aten, args=(x, target)).result
    assert aten.sub.Tensor in {node.target for node in model.graph.nodes}
    torch.testing.assert_close(model(x, target), function(x, target))


def test_cross_entropy_of_logits_declines_complex_targets():
    x = sample(3)
    with pytest.raises(decomp.errors.NotLowered, match="only real targets"):
        decomp.lower(Holder(F.binary_cross_entropy_with_logits), to=targets.core_aten, args=(x, x + 1j))
