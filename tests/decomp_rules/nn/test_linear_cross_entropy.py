"""The loss of a linear layer's outputs in chunks is the loss, and the gradients that come with it are its own."""

import pytest
import torch
from torch.nn import functional as F

from decomp_rules.nn.linear_cross_entropy import RULES
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

pytestmark = pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="it came with torch 2.13")
TARGET = torch.tensor([0, 3, 2, 1, -100, 3])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_and_its_gradients(reduction: str, weighted: bool) -> None:
    x, matrix, bias = sample(6, 5), sample(4, 5, seed=1), sample(4, seed=2)
    weight = torch.tensor([0.5, 1.0, 2.0, 1.5]) if weighted else None
    op = torch.ops.torch_nn._linear_cross_entropy_batch_chunked.default
    agrees(
        RULES,
        op,
        x,
        matrix,
        TARGET,
        bias,
        weight,
        reduction,
        -100,
        0.0,
        2,
        "compact",
        torch.float32,
        True,
        True,
        True,
        True,
        fixed=(2, 4),
        gradient=False,
    )


def test_losses_of_each_sample() -> None:
    lowered_agrees(lambda x, w: F.cross_entropy(F.linear(x, w), TARGET, reduction="none"), sample(6, 5), sample(4, 5))
    op = torch.ops.torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default
    agrees(RULES, op, sample(6, 5), sample(4, 5), TARGET, None, None, -100, 2, "compact", torch.float32, gradient=False)
