"""Eigenvalues and singular values agree with LAPACK's; their vectors satisfy the equations that define them, and give
the same gradients wherever those do not depend on their phases."""

import pytest
import torch

from decomp_rules.linalg import eigen, jacobi, singular
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.complex64]


def hermitian(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = sample(*shape, dtype=dtype)
    return x + x.mH


def near(found: torch.Tensor, expected: torch.Tensor, rounding: float = 30) -> None:
    """Assert that they differ by no more than some units of rounding of the largest entry."""
    bound = (
        rounding * torch.finfo(expected.dtype).eps * max(1e-30, float(expected.abs().max())) if expected.numel() else 0
    )
    assert found.shape == expected.shape and found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)


SPECIAL = [
    torch.eye(4),
    torch.zeros(3, 3),
    torch.ones(5, 5),
    torch.diag(torch.tensor([3.0, 3, 1, -2])),
    torch.tensor([[0.0, 1], [1, 0]]),
    torch.tensor([[2.0]]),
    torch.zeros(0, 0),
    torch.zeros(2, 0, 0),
    torch.zeros(0, 3, 3),
    torch.eye(6) + 1e-6,
    torch.eye(6).flip(0),
    torch.logspace(0, -8, 7).diag(),
    hermitian(4, 4) * 1e30,
    hermitian(4, 4) * 1e-30,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigenvectors(dtype: torch.dtype, n: int, uplo: str) -> None:
    x = hermitian(3, n, n, dtype=dtype)
    checked_eigenpairs(x, uplo)


@pytest.mark.parametrize("matrix", SPECIAL)
def test_eigenvectors_of_special_matrices(matrix: torch.Tensor) -> None:
    checked_eigenpairs(matrix, "L")


def checked_eigenpairs(x: torch.Tensor, uplo: str) -> None:
    triangle = x.tril() if uplo == "L" else x.triu()
    values, vectors = eigen._linalg_eigh(triangle, uplo)
    near(values, torch.linalg.eigvalsh(x))
    near(vectors @ (values.unsqueeze(-1) * vectors.mH), x)
    near(vectors.mH @ vectors, torch.eye(x.shape[-1], dtype=x.dtype).expand(x.shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sides", [(3, 3), (5, 3), (3, 5), (1, 4), (4, 1), (0, 3), (3, 0)])
@pytest.mark.parametrize("full", [True, False])
def test_singular_vectors(dtype: torch.dtype, sides: tuple[int, int], full: bool) -> None:
    checked_singular_vectors(sample(2, *sides, dtype=dtype), full)


@pytest.mark.parametrize("matrix", [*SPECIAL, torch.ones(4, 2), torch.zeros(2, 3), torch.arange(12.0).view(3, 4)])
def test_singular_vectors_of_special_matrices(matrix: torch.Tensor) -> None:
    checked_singular_vectors(matrix, False)
    checked_singular_vectors(matrix, True)


def checked_singular_vectors(x: torch.Tensor, full: bool) -> None:
    u, values, vh = singular._linalg_svd(x, full)
    expected = torch.linalg.svd(x, full)
    assert u.shape == expected[0].shape and vh.shape == expected[2].shape
    near(values, expected[1])
    k = values.shape[-1]
    near((u[..., :k] * values.unsqueeze(-2)) @ vh[..., :k, :], x)
    near(u.mH @ u, torch.eye(u.shape[-1], dtype=x.dtype).expand(*x.shape[:-2], u.shape[-1], u.shape[-1]))
    near(vh @ vh.mH, torch.eye(vh.shape[-2], dtype=x.dtype).expand(*x.shape[:-2], vh.shape[-2], vh.shape[-2]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_through_eigenvectors(dtype: torch.dtype) -> None:
    x, weight = hermitian(2, 4, 4, dtype=dtype), sample(4, 4, dtype=dtype, seed=1)

    def loss(values: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        projected = vectors @ (values.unsqueeze(-1) ** 3 * vectors.mH) + (vectors[..., :1] @ vectors[..., :1].mH)
        return (projected * weight).sum().abs() + values.square().sum()

    near(gradient(lambda a: loss(*eigen._linalg_eigh(a)), x), gradient(lambda a: loss(*torch.linalg.eigh(a)), x), 200)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sides", [(4, 4), (5, 3), (3, 5)])
def test_gradients_through_singular_vectors(dtype: torch.dtype, sides: tuple[int, int]) -> None:
    x, weight = sample(2, *sides, dtype=dtype), sample(*sides, dtype=dtype, seed=1)

    def loss(u: torch.Tensor, values: torch.Tensor, vh: torch.Tensor) -> torch.Tensor:
        return ((u[..., :2] * values[..., None, :2] ** 2) @ vh[..., :2, :] * weight).sum().abs() + values.sum()

    found = gradient(lambda a: loss(*singular._linalg_svd(a)), x)
    near(found, gradient(lambda a: loss(*torch.linalg.svd(a, full_matrices=False)), x), 300)


def gradient(function: object, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


def test_pseudo_inverses_and_ranks() -> None:
    rank_two = sample(4, 2) @ sample(2, 3, seed=1)
    lacking = torch.tensor([[2.0, 0, 0], [0, 0, 1], [0, 0, 0]])
    for x in (sample(2, 4, 3), sample(2, 3), torch.zeros(0, 3), torch.zeros(3, 3), lacking):
        agrees(singular.RULES, aten.linalg_pinv.atol_rtol_tensor, x, tolerance=1e-4)
    for x in (rank_two, torch.zeros(3, 2), sample(3, 3), torch.zeros(0, 3)):
        agrees(singular.RULES, aten.linalg_matrix_rank.default, x, 1e-5)
        agrees(singular.RULES, aten.linalg_matrix_rank.atol_rtol_float, x, atol=None, rtol=1e-5)
    square = hermitian(4, 4)
    agrees(singular.RULES, aten.linalg_pinv.atol_rtol_float, square, hermitian=True, tolerance=1e-4)
    agrees(singular.RULES, aten.linalg_pinv.atol_rtol_float, rank_two, atol=1e-3, tolerance=1e-3, gradient=False)
    agrees(singular.RULES, aten.linalg_matrix_rank.atol_rtol_float, square, hermitian=True)


def test_singular_values_of_what_is_not_finite_are_nan() -> None:
    for value in (float("inf"), float("nan")):
        x = sample(2, 4, 3)
        x[1, 2, 1] = value
        assert singular.linalg_svdvals(x).isnan().tolist() == [[False] * 3, [True] * 3]


@pytest.mark.parametrize("n", [2, 3, 6, 7])
def test_everyone_meets_everyone_once(n: int) -> None:
    games = jacobi.tournament(torch.zeros(1), n)
    meetings = sum((~apart).int() for apart in games.apart)
    assert torch.equal(meetings, 1 - torch.eye(n, dtype=torch.int32))
    assert all((~apart).sum(-1).max() <= 1 for apart in games.apart)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sweeps_are_enough_for_clusters_and_graded_matrices(dtype: torch.dtype) -> None:
    for n in (5, 12):
        q = torch.linalg.qr(sample(20, n, n, dtype=dtype))[0]
        for spectrum in (torch.logspace(0, -12, n), torch.arange(n) % 2 * 2 - 1.0, 1 + 1e-6 * torch.arange(n)):
            checked_eigenpairs(q @ (spectrum.to(dtype).unsqueeze(-1) * q.mH), "L")


def test_singular_values_of_graded_rows_are_as_good_as_lapacks() -> None:
    x = torch.logspace(0, -5, 12).unsqueeze(-1) * sample(30, 12, 12)
    exact = torch.linalg.svdvals(x.double())

    def error(values: torch.Tensor) -> float:
        return float(((values.double() - exact).norm(dim=-1) / exact.norm(dim=-1)).max())

    assert error(singular._linalg_svd(x)[1]) <= 2 * error(torch.linalg.svdvals(x))
