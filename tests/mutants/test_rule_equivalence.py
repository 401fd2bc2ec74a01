"""Proofs that two functions are equal, up to elements that a mask hides; and functions for which there is none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.mutants.rule_equivalence import same

X = [torch.linspace(-2, 2, 12).reshape(3, 4)]
COUNTS = [torch.arange(12)]


def _logarithm(inside: float, shown: float = 0.0, bound: float = 0.0):
    def function(tensors: Sequence[Tensor]) -> Tensor:
        (x,) = tensors
        positive = x > bound
        return torch.where(positive, torch.log(torch.where(x > 0, x, inside)), shown)

    return function


def test_what_a_mask_leaves_out_may_be_any_number():
    assert same(_logarithm(1.0), _logarithm(7.0), X)


def test_what_a_mask_shows_may_not():
    assert not same(_logarithm(1.0, 0.0), _logarithm(1.0, 0.25), X)


def test_a_mask_that_holds_less_often_is_another():
    assert not same(_logarithm(1.0), _logarithm(1.0, bound=0.01), X)


def test_a_mask_that_implies_another_decides_it():
    assert same(_logarithm(1.0, bound=0.5), _logarithm(7.0, bound=0.5), X)


def test_a_comparison_matters_only_where_another_mask_lets_it():
    def signed(zero: float):
        return lambda tensors: torch.where(tensors[0].abs() < 1, 0.0, torch.where(tensors[0] < zero, -1.0, 1.0))

    assert same(signed(0.0), signed(0.5), X)
    assert not same(signed(0.0), signed(1.5), X)


def test_whole_numbers_at_a_bound_may_go_either_way():
    def bounded(bound: int):
        return lambda tensors: torch.where(tensors[0] >= bound, 8, tensors[0])

    assert same(bounded(8), bounded(9), COUNTS)
    assert not same(bounded(8), bounded(10), COUNTS)


def test_whole_numbers_as_large_as_there_are_are_compared():
    def bounded(inside: int):
        return lambda tensors: torch.where(tensors[0].abs() > 3, torch.where(tensors[0].abs() > 2, 8, inside), 9)

    assert same(bounded(0), bounded(1), COUNTS)


def test_a_placeholder_that_is_multiplied_by_zero_is_left_out():
    def weighted(placeholder: float):
        def function(tensors: Sequence[Tensor]) -> Tensor:
            (x,) = tensors
            return torch.where(x > 0, torch.sin(x), placeholder) * torch.where(x > 0, torch.exp(x), 0.0)

        return function

    assert same(weighted(0.0), weighted(3.0), X)
    assert not same(weighted(0.0), weighted(-3.0), X)  # −0


def test_a_triangle_that_is_overwritten_is_left_out():
    def with_unit_diagonal(offset: int):
        def function(tensors: Sequence[Tensor]) -> Tensor:
            row, column = torch.arange(3).view(3, 1), torch.arange(4)
            below = torch.where(row < column - offset, 0.0, tensors[0])
            return torch.where(row == column, 1.0, below)

        return function

    assert same(with_unit_diagonal(-1), with_unit_diagonal(0), X)
    assert not same(with_unit_diagonal(-1), with_unit_diagonal(1), X)


def test_masks_of_whole_rows_reach_through_softmax_and_of_elements_do_not():
    def masked(placeholder: float, by_rows: bool):
        def function(tensors: Sequence[Tensor]) -> Tensor:
            (x,) = tensors
            hidden = torch.amax(x, [1], keepdim=True) < 0 if by_rows else x < 0
            return torch.where(hidden, 0.0, torch.softmax(torch.where(hidden, placeholder, x), 1))

        return function

    assert same(masked(0.0, True), masked(1.0, True), X)
    assert not same(masked(0.0, False), masked(1.0, False), X)


def test_nothing_is_proved_of_what_depends_on_chance():
    def noisy(tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0] + torch.rand(3, 4)

    assert not same(noisy, noisy, X)


def test_a_sum_of_all_elements_is_taken_as_it_is():
    def total(inside: float):
        def function(tensors: Sequence[Tensor]) -> Tensor:
            (x,) = tensors
            return torch.sum(torch.where(x > 0, torch.log(torch.where(x > 0, x, inside)), 0.0))

        return function

    assert same(total(1.0), total(7.0), X)


def test_what_a_predicate_excludes_may_go_either_way_in_the_other():
    def signs(bound: int):
        def function(tensors: Sequence[Tensor]) -> Tensor:
            x, y = tensors
            return x.to(torch.bool) & ((x < bound) ^ (y < 0))

        return function

    inputs = [torch.arange(-3, 4), torch.tensor([-1, 1, -1, 1, -1, 1, -1])]
    assert same(signs(0), signs(1), inputs)
    assert not same(signs(0), signs(2), inputs)


def test_the_second_of_two_predicates_counts_where_the_first_does_not_decide():
    def either(bound: float):
        def function(tensors: Sequence[Tensor]) -> Tensor:
            (x,) = tensors
            return torch.logical_or(x > 0, torch.sin(torch.where(x > bound, 0.0, x)) > 0.5)

        return function

    assert same(either(0.0), either(1.0), X)
    assert not same(either(0.0), either(-1.0), X)
