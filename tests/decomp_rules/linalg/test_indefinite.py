"""L D Lᵀ factorizations are LAPACK's, pivots and blocks included, and solve what LAPACK's solve."""

import pytest
import torch

from decomp_rules.linalg import indefinite
from tests.decomp_rules.rule_agreement import agrees

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.complex64]


def symmetric(*shape: int, dtype: torch.dtype, hermitian: bool, hollow: bool, seed: int) -> torch.Tensor:
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    x = x + (x.mH if hermitian else x.mT)
    return x - torch.diag_embed(x.diagonal(0, -2, -1)) if hollow else x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("hollow", [False, True])
def test_factors_pivots_and_solutions(dtype: torch.dtype, hermitian: bool, hollow: bool) -> None:
    near = 1e-9 if dtype == torch.float64 else 1e-3
    for n in (2, 3, 4, 6):
        x = symmetric(5, n, n, dtype=dtype, hermitian=hermitian, hollow=hollow, seed=n)
        agrees(
            indefinite.RULES, aten.linalg_ldl_factor_ex.default, x, hermitian=hermitian, gradient=False, tolerance=near
        )
        factors, pivots, _ = torch.linalg.ldl_factor_ex(x, hermitian=hermitian)
        right = torch.randn(n, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))
        agrees(
            indefinite.RULES,
            aten.linalg_ldl_solve.default,
            factors,
            pivots,
            right,
            hermitian=hermitian,
            gradient=False,
            tolerance=near * 10,
        )


def test_equal_candidates_and_columns_of_zeros() -> None:
    for x in (
        torch.ones(4, 4),
        torch.zeros(3, 3),
        torch.eye(3).flip(0),
        torch.tensor([[0.0, 1, 1], [1, 0, 1], [1, 1, 0]]),
    ):
        agrees(indefinite.RULES, aten.linalg_ldl_factor_ex.default, x, gradient=False)
    for shape in ((1, 1), (0, 0), (2, 0, 0), (0, 3, 3)):
        agrees(indefinite.RULES, aten.linalg_ldl_factor_ex.default, torch.ones(shape), gradient=False)


def test_only_the_lower_triangle_is_read() -> None:
    x = symmetric(4, 4, dtype=torch.float32, hermitian=False, hollow=False, seed=0)
    spoilt = torch.where(torch.ones(4, 4, dtype=torch.bool).triu(1), float("nan"), x)
    assert torch.equal(indefinite.linalg_ldl_factor_ex(spoilt)[0], indefinite.linalg_ldl_factor_ex(x)[0])


def test_a_pivot_that_is_nan_is_reported_and_tiny_blocks_of_two_stay() -> None:
    lost = torch.eye(4).index_put((torch.tensor(2), torch.tensor(2)), torch.tensor(float("nan")))
    assert torch.equal(indefinite.linalg_ldl_factor_ex(lost)[2], torch.linalg.ldl_factor_ex(lost)[2])
    tiny = torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 2]]) * 2.0**-128
    for found, own in zip(indefinite.linalg_ldl_factor_ex(tiny), torch.linalg.ldl_factor_ex(tiny)):
        assert torch.equal(found.nan_to_num(7), own.nan_to_num(7))
