"""Factorizations, solutions, inverses and determinants agree with LAPACK's, pivots and signs included, and so do their
gradients; on ill-conditioned matrices their residuals are no larger."""

from collections.abc import Callable

import pytest
import torch

from decomp.rules.declining import Declined
from decomp_rules.linalg import cholesky, covariance, linear, lu, matrix_functions, orthogonal, triangular
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.complex64]
BATCHES = [(), (2,), (2, 1), (0,)]


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = sample(*shape, dtype=dtype)
    return x @ x.mH + torch.eye(shape[-1])


def tolerance(dtype: torch.dtype) -> float:
    return 1e-9 if dtype == torch.float64 else 2e-4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("sides", [(4, 4), (5, 3), (3, 5), (1, 1), (0, 0), (3, 0), (0, 2)])
def test_lu(dtype: torch.dtype, batch: tuple[int, ...], sides: tuple[int, int]) -> None:
    x = sample(*batch, *sides, dtype=dtype)
    agrees(lu.RULES, aten.linalg_lu_factor_ex.default, x, tolerance=tolerance(dtype))
    agrees(lu.RULES, aten.linalg_lu.default, x, tolerance=tolerance(dtype))
    factors, pivots, _ = torch.linalg.lu_factor_ex(x)
    agrees(lu.RULES, aten.lu_unpack.default, factors, pivots)


def test_the_first_of_equal_pivots_is_taken() -> None:
    x = torch.tensor([[1.0, 2, 3], [-1, 5, 6], [1, 8, -6]])
    assert torch.equal(lu.linalg_lu_factor_ex(x)[1], torch.linalg.lu_factor(x)[1])
    z = torch.tensor([[3 + 4j, 1], [7 + 0j, 2]])
    assert torch.equal(lu.linalg_lu_factor_ex(z)[1], torch.linalg.lu_factor(z)[1])


def test_info_names_the_first_pivot_that_is_zero() -> None:
    x = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 0, 1])), torch.zeros(3, 3)])
    assert lu.linalg_lu_factor_ex(x)[2].tolist() == [0, 2, 1]
    assert lu.linalg_inv_ex(x)[1].dtype == torch.int32
    assert cholesky.linalg_cholesky_ex(x - torch.diag(torch.tensor([0.0, 0, 2])))[1].tolist() == [3, 2, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
def test_determinants(dtype: torch.dtype, batch: tuple[int, ...]) -> None:
    for size in (0, 1, 2, 5):
        x = sample(*batch, size, size, dtype=dtype)
        agrees(lu.RULES, aten._linalg_det.default, x, tolerance=tolerance(dtype))
        agrees(lu.RULES, aten._linalg_slogdet.default, x, tolerance=tolerance(dtype))


def test_the_gradient_of_a_determinant_that_is_zero_is_the_adjugate() -> None:
    x = torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 0, 1]], requires_grad=True)
    (found,) = torch.autograd.grad(lu._linalg_det(x)[0], x)
    (expected,) = torch.autograd.grad(torch.linalg.det(x), x, create_graph=True)
    torch.testing.assert_close(found, expected.detach())


def test_nan_is_not_lost_to_the_pivots() -> None:
    x = sample(4, 4)
    x[2, 1] = float("nan")
    assert torch.isnan(lu._linalg_det(x)[0]) and torch.isnan(lu.linalg_inv_ex(x)[0]).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left", [True, False])
def test_solve(dtype: torch.dtype, left: bool) -> None:
    a, b = sample(2, 4, 4, dtype=dtype), sample(2, 4, 4, dtype=dtype, seed=1)
    agrees(lu.RULES, aten._linalg_solve_ex.default, a, b, left=left, tolerance=tolerance(dtype))
    agrees(lu.RULES, aten._linalg_solve_ex.default, a.mT, b, left=left, tolerance=tolerance(dtype))
    factors, pivots, _ = torch.linalg.lu_factor_ex(a)
    for adjoint in (False, True):
        agrees(
            lu.RULES,
            aten.linalg_lu_solve.default,
            factors,
            pivots,
            b,
            left=left,
            adjoint=adjoint,
            tolerance=tolerance(dtype),
        )


def test_solve_for_vectors_and_empty_systems() -> None:
    agrees(lu.RULES, aten._linalg_solve_ex.default, sample(3, 3), sample(3), tolerance=1e-4)
    agrees(lu.RULES, aten._linalg_solve_ex.default, sample(2, 3, 3), sample(2, 3), tolerance=1e-4)
    agrees(lu.RULES, aten._linalg_solve_ex.default, sample(0, 0), sample(0, 2))
    agrees(lu.RULES, aten.linalg_inv_ex.default, sample(2, 3, 3), tolerance=1e-4)
    agrees(lu.RULES, aten.linalg_inv_ex.default, sample(0, 3, 3))


def hilbert(n: int) -> torch.Tensor:
    number = torch.arange(n, dtype=torch.float64)
    return (1 / (number.unsqueeze(1) + number + 1)).float()


@pytest.mark.parametrize("matrix", [hilbert(5), hilbert(8), sample(20, 20), torch.logspace(0, -6, 12).diag()])
def test_residuals_are_those_of_lapack(matrix: torch.Tensor) -> None:
    n, wide = matrix.shape[-1], matrix.double()
    b = torch.ones(n, 1)

    def residual(x: torch.Tensor) -> float:
        return float((wide @ x.double() - b.double()).abs().max() / (wide.abs() @ x.double().abs()).max())

    assert residual(lu._linalg_solve_ex(matrix, b)[0]) <= 4 * max(residual(torch.linalg.solve(matrix, b)), 2**-24)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [True, False])
def test_cholesky(dtype: torch.dtype, upper: bool) -> None:
    for shape in ((4, 4), (2, 3, 3), (1, 1), (0, 0), (0, 3, 3)):
        agrees(
            cholesky.RULES,
            aten.linalg_cholesky_ex.default,
            positive(*shape, dtype=dtype),
            upper=upper,
            gradient=not dtype.is_complex,
            tolerance=tolerance(dtype),
        )
    factor = torch.linalg.cholesky(positive(2, 4, 4, dtype=dtype), upper=upper)
    agrees(triangular.RULES, aten.cholesky_inverse.default, factor, upper, tolerance=tolerance(dtype))
    agrees(
        triangular.RULES,
        aten.cholesky_solve.default,
        sample(4, 2, dtype=dtype),
        factor,
        upper,
        tolerance=tolerance(dtype),
    )


def test_cholesky_reads_one_triangle() -> None:
    x = positive(3, 3)
    spoilt = torch.where(torch.ones(3, 3, dtype=torch.bool).triu(1), float("nan"), x)
    assert torch.equal(cholesky.linalg_cholesky_ex(spoilt)[0], cholesky.linalg_cholesky_ex(x)[0])
    assert torch.equal(cholesky.linalg_cholesky_ex(spoilt.mT, upper=True)[0].mT, cholesky.linalg_cholesky_ex(x)[0])


def test_infinities_in_cholesky_factors_and_right_sides_spread_as_in_lapack() -> None:
    factor, right = torch.linalg.cholesky(positive(4, 4)), sample(4, 4)
    spoilt, wrong = factor.clone(), right.clone()
    spoilt[0, 0], spoilt[2, 2], wrong[0, 0], wrong[2, 2] = (float(value) for value in ("nan", "inf", "nan", "-inf"))
    agrees(triangular.RULES, aten.cholesky_inverse.default, spoilt, gradient=False, tolerance=1e-4)
    agrees(triangular.RULES, aten.cholesky_solve.default, wrong, factor, gradient=False, tolerance=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular_systems(dtype: torch.dtype, upper: bool, unit: bool) -> None:
    a = sample(2, 4, 4, dtype=dtype) * 0.3 + torch.eye(4) * 2
    a = a.triu() if upper else a.tril()
    for left in (True, False):
        agrees(
            triangular.RULES,
            aten.linalg_solve_triangular.default,
            a,
            sample(4, 4, dtype=dtype),
            upper=upper,
            left=left,
            unitriangular=unit,
            tolerance=tolerance(dtype),
        )
    agrees(
        triangular.RULES,
        aten.triangular_solve.default,
        sample(4, 2, dtype=dtype),
        a,
        upper,
        True,
        unit,
        tolerance=tolerance(dtype),
    )


def test_infinite_right_sides_stay_where_they_are() -> None:
    a, b = torch.ones(3, 3).tril(), torch.tensor([[1.0], [float("inf")], [2.0]])
    found = triangular.linalg_solve_triangular(a, b, upper=False)
    assert found[0].item() == 1 and found[1].item() == float("inf")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sides", [(4, 4), (5, 3), (3, 5), (1, 1), (0, 3), (3, 0)])
def test_qr(dtype: torch.dtype, sides: tuple[int, int]) -> None:
    x = sample(2, *sides, dtype=dtype)
    trained = not dtype.is_complex and sides[0] >= sides[1]
    agrees(orthogonal.RULES, aten.linalg_qr.default, x, gradient=trained, tolerance=tolerance(dtype))
    for mode in ("complete", "r"):
        agrees(orthogonal.RULES, aten.linalg_qr.default, x, mode, gradient=False, tolerance=tolerance(dtype))
    agrees(orthogonal.RULES, aten.geqrf.default, x, gradient=False, tolerance=tolerance(dtype))


def test_qr_of_what_is_triangular_or_huge_or_tiny() -> None:
    x = sample(4, 4)
    for matrix in (torch.eye(3), torch.zeros(3, 2), x.triu(), x * 1e30, x * 1e-30):
        agrees(orthogonal.RULES, aten.linalg_qr.default, matrix, gradient=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_reflections(dtype: torch.dtype) -> None:
    vectors, factors = torch.geqrf(sample(2, 5, 3, dtype=dtype))
    near = tolerance(dtype)
    agrees(orthogonal.RULES, aten.linalg_householder_product.default, vectors, factors, tolerance=near)
    for transpose in (False, True):
        right, left = sample(2, 5, 2, dtype=dtype), sample(2, 2, 5, dtype=dtype)
        agrees(orthogonal.RULES, aten.ormqr.default, vectors, factors, right, True, transpose, tolerance=near)
        agrees(orthogonal.RULES, aten.ormqr.default, vectors, factors, left, False, transpose, tolerance=near)


@pytest.mark.parametrize("size", [1e-6, 0.1, 1.0, 5.0, 20.0])
def test_matrix_exponentials_are_nearer_than_the_kernel(size: float) -> None:
    x = sample(20, 6, 6) * size
    exact = torch.matrix_exp(x.double())

    def error(y: torch.Tensor) -> float:
        return float(((y - exact).abs().amax((-1, -2)) / exact.abs().amax((-1, -2))).max())

    assert error(matrix_functions.linalg_matrix_exp(x)) <= 2 * error(torch.matrix_exp(x))


def test_matrix_functions() -> None:
    for x in (sample(2, 3, 3), torch.zeros(0, 0), torch.zeros(2, 0, 0), torch.tensor([[0.0, 1e10], [0, 0]])):
        agrees(matrix_functions.RULES, aten.linalg_matrix_exp.default, x, tolerance=1e-4)
    agrees(linear.RULES, aten.linalg_matrix_power.default, positive(3, 3), -2, tolerance=1e-3)
    agrees(lu.RULES, aten.linalg_tensorinv.default, sample(4, 2, 2), 1, tolerance=1e-3)


def test_covariances() -> None:
    x, counts, weights = sample(3, 4), torch.tensor([1, 2, 3, 1]), torch.tensor([0.5, 1, 0.25, 2])
    agrees(covariance.RULES, aten.corrcoef.default, x)
    for correction in (0, 1):
        for fweights in (None, counts):
            for aweights in (None, weights):
                agrees(
                    covariance.RULES,
                    aten.cov.default,
                    x,
                    correction=correction,
                    fweights=fweights,
                    aweights=aweights,
                    gradient=False,
                )


def test_sizes_that_are_too_large_are_refused_with_the_limit() -> None:
    refused = lu.linalg_inv_ex(torch.zeros(500, 500))
    assert isinstance(refused, Declined)
    assert refused.reason == "a straight-line program for a side of 500 is too long; sides up to 128 are unrolled"


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.det,
        torch.linalg.inv,
        torch.linalg.cholesky,
        torch.logdet,
        lambda x: torch.linalg.solve(x, x + 1),
        lambda x: torch.linalg.qr(x)[1],
        torch.matrix_exp,
    ],
)
def test_lowered(function: Callable[..., torch.Tensor]) -> None:
    lowered_agrees(function, positive(3, 3), tolerance=2e-3)
