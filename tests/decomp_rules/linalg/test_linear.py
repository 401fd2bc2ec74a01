"""Products of matrices agree with the ops for every rank, dtype and factor, and einsum for every kind of equation."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import backends, targets
from decomp_rules.linalg import linear
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees
from tests.forms import Holder

aten = torch.ops.aten
RULES = linear.RULES
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64]
NAN = float("nan")


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, dtype=torch.float64, generator=generator) * 3).to(dtype)


def tolerance(dtype: torch.dtype) -> float | None:
    return {torch.bfloat16: 3e-2, torch.float32: 1e-4}.get(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 1, 3, 5), (0, 5), (2, 0, 5)])
def test_linear(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight, bias = sample(*shape, dtype=dtype), sample(4, 5, dtype=dtype, seed=1), sample(4, dtype=dtype, seed=2)
    agrees(RULES, aten.linear.default, x, weight, bias, tolerance=tolerance(dtype))
    agrees(RULES, aten.linear.default, x, weight, tolerance=tolerance(dtype))
    agrees(RULES, aten.linear.default, x, sample(5, dtype=dtype), tolerance=tolerance(dtype))


def test_linear_without_features() -> None:
    agrees(RULES, aten.linear.default, sample(2, 3, 0), sample(4, 0), sample(4))
    agrees(RULES, aten.linear.default, sample(2, 3, 5), sample(0, 5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes",
    [
        ((5,), (5,)),
        ((3, 5), (5,)),
        ((5,), (5, 4)),
        ((3, 5), (5, 4)),
        ((2, 3, 5), (5,)),
        ((2, 3, 5), (5, 4)),
        ((5,), (2, 5, 4)),
        ((3, 5), (2, 5, 4)),
        ((2, 3, 5), (2, 5, 4)),
        ((6, 2, 3, 5), (2, 5, 4)),
        ((6, 1, 3, 5), (1, 2, 5, 4)),
        ((1, 3, 5), (7, 5, 4)),
        ((2, 2, 3, 5), (5, 4)),
        ((2, 3, 0), (2, 0, 4)),
    ],
)
def test_matmul(dtype: torch.dtype, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = sample(*shapes[0], dtype=dtype), sample(*shapes[1], dtype=dtype, seed=1)
    agrees(RULES, aten.matmul.default, x, y, tolerance=tolerance(dtype))


def test_matmul_of_views() -> None:
    x = sample(2, 7, 3, 5).transpose(1, 2)
    agrees(RULES, aten.matmul.default, x, x.transpose(-2, -1), tolerance=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_kernels(dtype: torch.dtype) -> None:
    near = tolerance(dtype)
    a, b, v, w = sample(3, 5, dtype=dtype), sample(5, 4, dtype=dtype), sample(5, dtype=dtype), sample(3, dtype=dtype)
    agrees(RULES, aten.mm.default, a, b, tolerance=near)
    agrees(RULES, aten.bmm.default, a.expand(2, 3, 5), b.expand(2, 5, 4), tolerance=near)
    agrees(RULES, aten.mv.default, a, v, tolerance=near)
    agrees(RULES, aten.dot.default, v, v + 1, tolerance=near)
    agrees(RULES, aten.vdot.default, v, v + 1, tolerance=near)
    agrees(RULES, aten.outer.default, v, w)
    agrees(RULES, aten.ger.default, v, w)
    for beta, alpha in ((1, 1), (2, 3), (0, 1), (0, 2)):
        agrees(RULES, aten.addmm.default, sample(4, dtype=dtype), a, b, beta=beta, alpha=alpha, tolerance=near)
        agrees(RULES, aten.addmm.default, sample(3, 1, dtype=dtype), a, b, beta=beta, alpha=alpha, tolerance=near)
        agrees(RULES, aten.addmv.default, w, a, v, beta=beta, alpha=alpha, tolerance=near)
        agrees(RULES, aten.addr.default, sample(5, 3, dtype=dtype), v, w, beta=beta, alpha=alpha, tolerance=near)
        for op in (aten.baddbmm, aten.addbmm):
            start = sample(3, 4, dtype=dtype)
            agrees(
                RULES,
                op.default,
                start,
                a.expand(2, 3, 5),
                b.expand(2, 5, 4),
                beta=beta,
                alpha=alpha,
                tolerance=4e-2 if dtype == torch.bfloat16 else near,
            )


def test_a_factor_of_zero_forgets_nan() -> None:
    agrees(RULES, aten.addmm.default, torch.full((4,), NAN), sample(3, 5), sample(5, 4), beta=0, tolerance=1e-4)


@pytest.mark.parametrize("beta", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.complex64])
def test_a_factor_of_zero_forgets_the_product_where_the_kernel_does(dtype: torch.dtype, beta: int) -> None:
    product, ones = torch.full((3, 5), NAN, dtype=dtype), torch.ones(5, 4, dtype=dtype)
    alone = {"beta": beta, "alpha": 0, "gradient": False}
    agrees(RULES, aten.addmm.default, sample(4, dtype=dtype), product, ones, **alone)
    agrees(RULES, aten.addmv.default, sample(3, dtype=dtype), product, ones[:, 0], **alone)
    agrees(RULES, aten.addr.default, sample(3, 4, dtype=dtype), product[:, 0], ones[0], **alone)
    for op in (aten.addbmm, aten.baddbmm):
        agrees(RULES, op.default, sample(3, 4, dtype=dtype), product.expand(2, 3, 5), ones.expand(2, 5, 4), **alone)
    large = torch.full((2, 20, 30), NAN, dtype=dtype), torch.ones(2, 30, 20, dtype=dtype)
    x = sample(20, dtype=dtype)
    # On processors with arithmetic of float16 (AVX512-FP16) oneDNN forgets this product, too, and with β = 0 returns
    # what was in the memory (torch 2.13).
    if dtype is not torch.float16 or torch.baddbmm(x, *large, alpha=0).isnan().any():
        agrees(RULES, aten.baddbmm.default, x, *large, **alone)


def test_an_onnx_model_forgets_the_product_too() -> None:
    args = sample(4), torch.full((3, 5), NAN), sample(5, 4)
    lowering = decomp.lower(Holder(lambda x, a, b: torch.addmm(x, a, b, alpha=0)), to=targets.onnxruntime, args=args)
    torch.testing.assert_close(backends.onnx.load(lowering)(*args), args[0].expand(3, 4))


def test_a_narrow_product_is_rounded_once() -> None:
    x = torch.ones(1, 4096, dtype=torch.bfloat16)
    assert linear.mm(x, x.t() * 0.00390625 + 1).item() == torch.mm(x, x.t() * 0.00390625 + 1).item()


def test_contractions() -> None:
    x, y = sample(2, 3, 4), sample(5, 4, seed=1)
    agrees(RULES, aten.inner.default, x, y, tolerance=1e-4)
    agrees(RULES, aten.inner.default, x, torch.tensor(2.0))
    agrees(RULES, aten.inner.default, y[0], y[1], tolerance=1e-4)
    agrees(RULES, aten.tensordot.default, x, sample(4, 5, 3), [1, -1], [2, 0], tolerance=1e-4)
    agrees(RULES, aten.tensordot.default, x, sample(4, 5, 3), [], [], tolerance=1e-4)
    agrees(RULES, aten.kron.default, sample(2, 3), sample(4))
    agrees(RULES, aten.kron.default, sample(2), sample(3, 2, 2))
    agrees(
        RULES, aten.linalg_multi_dot.default, [sample(9, 2), sample(2, 8), sample(8, 3), sample(3, 4)], tolerance=1e-3
    )
    agrees(RULES, aten.linalg_multi_dot.default, [sample(2), sample(2, 8), sample(8)], tolerance=1e-3)
    agrees(RULES, aten.chain_matmul.default, [sample(2, 3), sample(3, 4)], tolerance=1e-3)
    for n in (0, 1, 2, 5, 6):
        agrees(RULES, aten.linalg_matrix_power.default, sample(2, 3, 3) / 3, n, tolerance=1e-3)
    agrees(RULES, aten.linalg_vecdot.default, x, x + 1, dim=1, tolerance=1e-4)
    agrees(RULES, aten.linalg_cross.default, x, x.flip(0) + 1, dim=1)
    agrees(RULES, aten.cross.default, x, x.flip(0) + 1, 1)


def test_bilinear() -> None:
    weight, bias = sample(4, 5, 6), sample(4)
    for rows in ((), (3,), (2, 3)):
        agrees(RULES, aten.bilinear.default, sample(*rows, 5), sample(*rows, 6), weight, bias, tolerance=1e-3)
    agrees(RULES, aten.bilinear.default, sample(2, 5), sample(2, 6), weight, tolerance=1e-3)
    agrees(
        RULES, aten._trilinear.default, sample(2, 5), weight, sample(2, 6), [1, 3], [0], [1, 2], [2, 3], tolerance=1e-3
    )


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
        ("i,j->ij", [(2,), (3,)]),
        ("i,i->", [(3,), (3,)]),
        ("i,i->i", [(3,), (3,)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iij->ji", [(3, 3, 2)]),
        ("ij->ji", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("ba", [(2, 3)]),
        ("...ij,...jk->...ik", [(7, 2, 3), (3, 4)]),
        ("...ij,...jk", [(7, 1, 2, 3), (6, 3, 4)]),
        ("b...,b...->...", [(2, 3, 4), (2, 3, 4)]),
        ("i...->...", [(2, 3, 4)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,j,i->", [(2, 3), (3,), (2,)]),
        ("bi,oij,bj->bo", [(2, 3), (4, 3, 5), (2, 5)]),
        ("ijk,jil->kl", [(2, 3, 4), (3, 2, 5)]),
        ("ij,ij->i", [(1, 3), (2, 3)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("ii,i->i", [(3, 3), (3,)]),
        ("abc,cd->abd", [(2, 3, 4), (4, 5)]),
        ("bchw,bcxw->bhx", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        (" i j , j k -> i k ", [(2, 3), (3, 4)]),
        ("aB,Bc->ca", [(2, 3), (3, 4)]),
        ("Ab,bC", [(2, 3), (3, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [sample(*shape, seed=i) for i, shape in enumerate(shapes)]
    agrees(RULES, aten.einsum.default, equation, operands, tolerance=1e-3)


def test_einsum_of_one_product_each_promotes_dtypes() -> None:
    operands = [sample(3, 1).bfloat16(), sample(2, 1, seed=1).double()]
    agrees(RULES, aten.einsum.default, "ij,kj->ik", operands, tolerance=1e-3)


def test_einsum_along_a_path() -> None:
    operands = [sample(2, 3), sample(3, 4, seed=1), sample(4, 5, seed=2)]
    agrees(RULES, aten.einsum.default, "ij,jk,kl->il", operands, path=[1, 2, 0, 1], tolerance=1e-3)


@pytest.mark.parametrize(
    "function, shapes",
    [
        (F.linear, [(2, 3, 5), (4, 5), (4,)]),
        (F.linear, [(3, 5), (4, 5), (4,)]),
        (F.linear, [(2, 3, 5), (4, 5)]),
        (torch.matmul, [(2, 3, 4, 5), (2, 3, 5, 6)]),
        (torch.matmul, [(2, 3, 4, 5), (5, 6)]),
        (torch.matmul, [(2, 3, 4, 5), (5,)]),
        (torch.matmul, [(5,), (2, 5, 3)]),
        (torch.mm, [(2, 3), (3, 4)]),
        (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
        (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
        (torch.addmm, [(5,), (3, 4), (4, 5)]),
        (torch.dot, [(4,), (4,)]),
        (torch.outer, [(3,), (4,)]),
        (torch.kron, [(2, 3), (4,)]),
        (F.bilinear, [(3, 5), (3, 6), (4, 5, 6), (4,)]),
        (lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), [(2, 3, 4, 5), (2, 3, 6, 5)]),
        (lambda x, y: torch.einsum("...ij,jk", x, y), [(2, 3, 4), (4, 5)]),
    ],
)
def test_lowered_to_the_end(function: Callable[..., object], shapes: list[tuple[int, ...]]) -> None:
    lowered_agrees(function, *(sample(*shape, seed=i) for i, shape in enumerate(shapes)), tolerance=2e-4)


def test_an_outer_product_promotes_what_it_is_added_to() -> None:
    agrees(RULES, aten.addr.default, torch.randn(2, 3), torch.randn(2).double(), torch.randn(3), gradient=False)


def test_a_cube_is_the_square_times_the_matrix() -> None:
    x = torch.tensor([[1.0, float("inf"), 0.0], [2.0, -1.0, 3.0], [float("-inf"), 1.0, 2.0]])
    agrees(RULES, aten.matrix_power.default, x, 3, gradient=False)


def test_trilinear_keeps_integers() -> None:
    operands = [torch.randint(-3, 4, shape, dtype=torch.int32) for shape in ((3, 4), (2, 4, 5), (3, 5))]
    agrees(RULES, aten._trilinear.default, *operands, [1, 3], [0], [1, 2], [2, 3], gradient=False)
