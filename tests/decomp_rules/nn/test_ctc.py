import pytest
import torch

import decomp
from decomp_rules import targets
from decomp_rules.nn import ctc
from decomp_rules.nn.ctc import RULES
from tests.decomp_rules.rule_agreement import agrees, compare, evaluated

aten = torch.ops.aten
TARGETS = torch.tensor([[1, 1, 2, 4], [3, 2, 1, 0], [4, 4, 4, 4]])


def log_probs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).log_softmax(-1)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("lengths", [([7, 6, 5], [4, 3, 2]), ([7, 3, 5], [2, 1, 0])])
def test_ctc_loss_and_its_gradient(lengths: tuple[list[int], list[int]], reduction: int) -> None:
    steps, sizes = lengths
    joined = torch.cat([row[:n] for row, n in zip(TARGETS, sizes)])
    for labels in (TARGETS, joined):
        agrees(RULES, aten.ctc_loss.IntList, log_probs(7, 3, 5), labels, steps, sizes, 0, reduction, False, fixed=(1,))
        agrees(
            RULES,
            aten.ctc_loss.Tensor,
            log_probs(7, 3, 5),
            labels,
            torch.tensor(steps),
            torch.tensor(sizes),
            0,
            reduction,
            False,
            fixed=(1, 2, 3),
        )


def test_a_target_that_cannot_be_reached_costs_infinity_or_nothing() -> None:
    args = log_probs(7, 3, 5), TARGETS, [7, 3, 5], [4, 4, 4], 0, 0
    agrees(RULES, aten.ctc_loss.IntList, *args, False, gradient=False)
    agrees(RULES, aten.ctc_loss.IntList, *args, True, fixed=(1,))


def test_one_sequence_without_a_batch_and_another_blank() -> None:
    agrees(RULES, aten.ctc_loss.IntList, log_probs(7, 5), TARGETS[0, :3], [7], [3], 0, 0, False, fixed=(1,))
    agrees(RULES, aten.ctc_loss.IntList, log_probs(7, 3, 5), TARGETS % 4, [7, 6, 5], [4, 3, 2], 4, 1, False, fixed=(1,))


def test_a_class_of_probability_zero_has_no_nan_in_its_gradient() -> None:
    logs = log_probs(7, 3, 5)
    logs[2, 1, 4] = -torch.inf
    logs.requires_grad_()
    loss = ctc.ctc_loss(logs, TARGETS, [7, 6, 5], [4, 3, 2])
    (grad,) = torch.autograd.grad(loss, logs)
    assert grad.isfinite().all()


def test_the_kernel_and_its_backward() -> None:
    logs, lengths = log_probs(7, 3, 5), ([7, 6, 5], [4, 3, 2])
    loss, _ = aten._ctc_loss(logs, TARGETS, *lengths)
    found, alpha = ctc._ctc_loss(logs, TARGETS, *lengths)
    torch.testing.assert_close(found, loss)
    grad = torch.tensor([0.5, 1.0, 2.0])
    expected = aten._ctc_loss_backward(grad, logs, TARGETS, *lengths, loss, alpha, 0)
    torch.testing.assert_close(ctc._ctc_loss_backward(grad, logs, TARGETS, *lengths, loss, alpha, 0), expected)


def test_lengths_that_are_tensors_are_data() -> None:
    module, logs = torch.nn.CTCLoss(reduction="none"), log_probs(7, 3, 5)
    first = torch.tensor([7, 6, 5]), torch.tensor([4, 3, 2])
    second = torch.tensor([5, 7, 4]), torch.tensor([1, 2, 2])
    lowered = decomp.lower(module, to=targets.tinygrad, args=(logs, TARGETS, *first)).result
    for lengths in (first, second):
        expected, grads = evaluated(module, (logs, TARGETS, *lengths), {}, [True, False, False, False])
        found, found_grads = evaluated(lowered, (logs, TARGETS, *lengths), {}, [True, False, False, False])
        compare(found, expected, 1e-5, "value")
        compare(found_grads, grads, 1e-5, "gradient")


def test_the_gradient_of_an_unknown_loss_is_unknown() -> None:
    logs = torch.randn(4, 2, 3).log_softmax(2)
    logs[0, 1] = float("nan")
    call = (logs, torch.tensor([[1, 2], [2, 1]]), [4, 4], [2, 2])
    loss, alpha = aten._ctc_loss(*call)
    agrees(RULES, aten._ctc_loss_backward.default, torch.ones(2), *call, loss, alpha, 0, gradient=False)
