"""Copies of views, splits by direction, blocks, combinations and changed sizes agree with the ops."""

import pytest
import torch

from decomp_rules import RULES
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
X = torch.arange(24.0).reshape(2, 3, 4)


def test_copying_views():
    agrees(RULES, aten.detach_copy.default, X, gradient=False)
    agrees(RULES, aten.unfold_copy.default, X, 2, 2, 1)
    agrees(RULES, aten.as_strided_copy.default, X, [2, 2], [4, 1], 3)


@pytest.mark.parametrize("op, size", [(aten.hsplit, 3), (aten.vsplit, 2), (aten.dsplit, 4)])
def test_splits_by_direction(op, size):
    agrees(RULES, op.int, X, size)
    agrees(RULES, op.array, X, [1, 2])


def test_a_line_splits_horizontally_along_itself():
    agrees(RULES, aten.hsplit.int, X.reshape(-1), 4)


def test_blocks_on_a_diagonal():
    agrees(RULES, aten.block_diag.default, [X[0], torch.tensor(5.0), torch.ones(2), torch.empty(0, 3)], fixed=())
    agrees(RULES, aten.block_diag.default, [torch.ones(2, 1, dtype=torch.int64), torch.ones(1, 2)])


def test_products_and_combinations_of_lines():
    lines = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])]
    agrees(RULES, aten.cartesian_prod.default, lines)
    agrees(RULES, aten.cartesian_prod.default, lines[:1])
    for r in (0, 1, 2, 3, 4):
        agrees(RULES, aten.combinations.default, lines[1], r)
        agrees(RULES, aten.combinations.default, lines[1], r, True)


@pytest.mark.parametrize("dim, chunks", [(0, 2), (1, 2), (1, 3), (2, 3)])
def test_chunks_side_by_side(dim, chunks):
    agrees(RULES, aten._chunk_cat.default, [X, X + 1], dim, chunks, gradient=False)


def test_resizing_keeps_what_fits():
    agrees(RULES, aten.resize.default, X, [5, 2], gradient=False)
    agrees(RULES, aten.resize_as.default, X, torch.empty(4), gradient=False)


def test_lowered_to_the_end():
    lowered_agrees(lambda x: torch.unfold_copy(x, 1, 2, 1), X)
    lowered_agrees(lambda x: torch.hsplit(x, [1, 2]), X)
    lowered_agrees(lambda x: torch.block_diag(x[0], x[1, :1]), X)
    lowered_agrees(lambda x: torch.cartesian_prod(x[0, 0], x[0, 1]), X)
