import pytest
import torch

import decomp
from decomp_rules import targets
from decomp_rules.nn.embedding import RULES, _embedding_bag_backward
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
INDICES, OFFSETS = torch.tensor([1, 2, 2, 4, 5, 1]), torch.tensor([0, 2, 2, 4])
MODES = pytest.mark.parametrize("mode", [0, 1, 2])
PADDING = pytest.mark.parametrize("padding", [-1, 2])


def table(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).to(dtype)


@MODES
@PADDING
@pytest.mark.parametrize("last", [False, True])
def test_bags_and_their_gradient(mode: int, padding: int, last: bool) -> None:
    offsets = torch.cat([OFFSETS, torch.tensor([6])]) if last else OFFSETS
    agrees(
        RULES,
        aten._embedding_bag.default,
        table(),
        INDICES,
        offsets,
        False,
        mode,
        False,
        None,
        last,
        padding,
        fixed=(1, 2),
    )


@PADDING
def test_weights_of_samples(padding: int) -> None:
    weights = torch.rand(6, generator=torch.Generator().manual_seed(2))
    agrees(
        RULES,
        aten._embedding_bag.default,
        table(),
        INDICES,
        OFFSETS,
        False,
        0,
        False,
        weights,
        False,
        padding,
        fixed=(1, 2),
    )


def test_a_bag_of_nothing_is_zero() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    agrees(RULES, aten._embedding_bag.default, table(), none, torch.tensor([0, 0]), fixed=(1, 2))


@MODES
def test_infinities_stay_in_their_bags(mode: int) -> None:
    weight = table()
    weight[2, 1], weight[4, 0] = float("nan"), float("inf")
    agrees(RULES, aten._embedding_bag.default, weight, INDICES, OFFSETS, False, mode, gradient=False)


@MODES
@PADDING
def test_bag_backward(mode: int, padding: int) -> None:
    _, bag, size, largest = aten._embedding_bag(
        table(torch.float64), INDICES, OFFSETS, False, mode, False, None, False, padding
    )
    grad = torch.randn(4, 3, dtype=torch.float64)
    agrees(
        RULES,
        aten._embedding_bag_backward.default,
        grad,
        INDICES,
        OFFSETS,
        bag,
        size,
        largest,
        6,
        False,
        mode,
        False,
        None,
        padding,
        gradient=False,
    )
    found = _embedding_bag_backward(grad, INDICES, bag, size, largest, 6, True, mode, None, OFFSETS, False, padding)
    assert found.shape == (6, 3)


def test_a_gradient_scaled_by_counts() -> None:
    agrees(RULES, aten.embedding.default, table(), INDICES.view(2, 3), -1, True, False, fixed=(1,))


def test_renormed_rows() -> None:
    agrees(RULES, aten.embedding_renorm.default, table(), torch.tensor([[1, 3], [3, 0]]), 0.5, 2.0, gradient=False)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_lowered(mode: str) -> None:
    offsets = torch.tensor([0, 3, 3])
    lowered_agrees(lambda w: torch.nn.functional.embedding_bag(INDICES, w, offsets, mode=mode, padding_idx=-2), table())


def test_offsets_are_data() -> None:
    module = torch.nn.EmbeddingBag(6, 3, mode="mean")
    lowered = decomp.lower(module, to=targets.tinygrad, args=(INDICES, torch.tensor([0, 2, 2]))).result
    for offsets in ([0, 2, 2], [0, 0, 5]):
        torch.testing.assert_close(lowered(INDICES, torch.tensor(offsets)), module(INDICES, torch.tensor(offsets)))
