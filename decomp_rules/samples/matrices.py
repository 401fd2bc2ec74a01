"""Calls of linear algebra: products, factorisations, solutions, Fourier transforms."""

from __future__ import annotations

import torch

from decomp_rules.samples.making import Calls, f, p, regular, spd, t, triangle, z


def _lu() -> tuple[torch.Tensor, torch.Tensor]:
    lu, pivots = torch.linalg.lu_factor(regular(4))
    return lu, pivots


def _reflectors() -> tuple[torch.Tensor, torch.Tensor]:
    a, tau = torch.geqrf(f(4, 3))
    return a, tau


def _indefinite() -> tuple[tuple[torch.Tensor], ...]:
    """Symmetric matrices whose rows must be exchanged, with pivots of one and two rows."""
    x = f(2, 5, 5)
    bordered = torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 2]])
    return (x + x.mT,), (bordered,), (torch.tensor([[1.0, 5, 2], [5, 3, 4], [2, 4, 9]]),)


def _exponents() -> tuple[tuple[torch.Tensor], ...]:
    """Matrices of small and large norms, and the unit matrix."""
    return (regular(4) / 4,), (f(2, 3, 3),), (regular(4) * 5,), (-regular(4) * 99,), (torch.eye(3),)


CALLS: Calls = {
    # products
    **{name: (lambda: ((f(3, 4), f(4, 5)), (f(3, 70), f(70, 5)))) for name in ("mm",)},
    **{
        name: (lambda: ((f(3, 4), f(4, 5)), (f(4), f(4)), (f(2, 3, 4), f(4)), (f(2, 1, 3, 4), f(5, 4, 2))))
        for name in ("matmul", "linalg_matmul")
    },
    "bmm": lambda: ((f(2, 3, 4), f(2, 4, 5)),),
    "_grouped_mm": lambda: (
        (f(8, 16), f(3, 16, 8), torch.tensor([2, 2, 8], dtype=torch.int32)),
        (f(3, 4, 16), f(16, 8), torch.tensor([2, 2, 8], dtype=torch.int32)),
        (f(8, 16), f(16, 8), torch.tensor([4, 4, 16], dtype=torch.int32)),
        (f(3, 4, 16), f(3, 16, 8)),
    ),
    "mv": lambda: ((f(3, 4), f(4)),),
    **{name: (lambda: ((f(30), f(30)),)) for name in ("dot", "vdot", "inner")},
    "linalg_vecdot": lambda: ((f(3, 8), f(3, 8)), (f(3, 8), f(3, 8), {"dim": 0})),
    **{name: (lambda: ((f(3), f(4)),)) for name in ("outer", "ger")},
    "addmm": lambda: ((f(5), f(3, 4), f(4, 5)), (f(3, 5), f(3, 4), f(4, 5), {"beta": 0.5, "alpha": 2})),
    "_addmm_activation": lambda: ((f(5), f(3, 4), f(4, 5)), (f(5), f(3, 4), f(4, 5), {"use_gelu": True})),
    "addmv": lambda: ((f(3), f(3, 4), f(4)), (f(3), f(3, 4), f(4), {"beta": 0.5, "alpha": 2})),
    "addr": lambda: ((f(3, 4), f(3), f(4)), (f(3, 4), f(3), f(4), {"beta": 0.5, "alpha": 2})),
    "addbmm": lambda: ((f(3, 5), f(2, 3, 4), f(2, 4, 5)), (f(3, 5), f(2, 3, 4), f(2, 4, 5), {"beta": 0.5, "alpha": 2})),
    "baddbmm": lambda: (
        (f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)),
        (f(3, 5), f(2, 3, 4), f(2, 4, 5), {"beta": 0.5, "alpha": 2}),
    ),
    "linear": lambda: ((f(3, 4), f(5, 4), f(5)), (f(2, 3, 4), f(5, 4))),
    "bilinear": lambda: ((f(3, 4), f(3, 5), f(2, 4, 5), f(2)),),
    "_trilinear": lambda: ((f(3, 4), f(2, 4, 5), f(3, 5), [1, 3], [0], [1, 2], [2, 3]),),
    "einsum": lambda: (
        ("ij,jk->ik", [f(3, 4), f(4, 5)]),
        ("bij,bjk->bik", [f(2, 3, 4), f(2, 4, 5)]),
        ("ii->i", [f(4, 4)]),
        ("i,j->ij", [f(3), f(4)]),
        ("...ij->...ji", [f(2, 3, 4)]),
        ("ij,ij,jk->k", [f(3, 4), f(3, 4), f(4, 2)]),
    ),
    "tensordot": lambda: ((f(3, 4, 5), f(4, 5, 2), [1, 2], [0, 1]),),
    "kron": lambda: ((f(2, 3), f(3, 2)),),
    **{
        name: (lambda: (([f(8, 9), f(9, 7), f(7, 6)],), ([f(8, 9), f(9, 7), f(7, 12), f(12, 6)],)))
        for name in ("chain_matmul", "linalg_multi_dot")
    },
    **{name: (lambda: ((f(2, 3), f(2, 3), {"dim": 1}),)) for name in ("cross", "linalg_cross")},
    **{
        name: (lambda: ((regular(4), 3), (regular(4), -2), (regular(4), 0)))
        for name in ("matrix_power", "linalg_matrix_power")
    },
    **{name: _exponents for name in ("matrix_exp", "linalg_matrix_exp")},
    # factorisations and solutions
    **{
        name: (lambda: ((spd(4),), (spd(3, 2),)))
        for name in ("cholesky", "linalg_cholesky", "linalg_cholesky_ex", "_linalg_eigvals", "logdet")
    },
    "cholesky_solve": lambda: ((f(4, 2), triangle(4)), (f(4, 2), triangle(4).mT.contiguous(), True)),
    "_cholesky_solve_helper": lambda: ((f(4, 2), triangle(4), False),),
    "cholesky_inverse": lambda: ((triangle(4),),),
    **{
        name: (lambda: ((regular(4),), (regular(3, 2),)))
        for name in (
            "inverse",
            "linalg_inv",
            "linalg_inv_ex",
            "det",
            "linalg_det",
            "_linalg_det",
            "slogdet",
            "linalg_slogdet",
            "_linalg_slogdet",
            "linalg_lu",
            "linalg_lu_factor",
            "linalg_lu_factor_ex",
            "_lu_with_info",
            "linalg_cond",
        )
    },
    "lu_unpack": lambda: (
        _lu(),
        torch.linalg.lu_factor(f(4, 4)),
        torch.linalg.lu_factor(f(2, 5, 3)),
        (*torch.linalg.lu_factor(f(3, 5)), False),
    ),
    "linalg_lu_solve": lambda: ((*_lu(), f(4, 2)),),
    "lu_solve": lambda: ((f(4, 2), *_lu()),),
    **{
        name: (lambda: ((regular(4), f(4, 2)), (regular(3, 2), f(2, 3, 2))))
        for name in ("linalg_solve", "_linalg_solve_ex", "linalg_solve_ex")
    },
    "linalg_solve_triangular": lambda: (
        (triangle(4), f(4, 2), {"upper": False}),
        (triangle(4).mT, f(4, 2), {"upper": True, "unitriangular": True}),
        (triangle(4), f(2, 4), {"upper": False, "left": False}),
    ),
    "triangular_solve": lambda: ((f(4, 2), triangle(4), False), (f(4, 2), triangle(4).mT.contiguous())),
    **{name: (lambda: ((f(4, 3),), (f(3, 4),))) for name in ("qr", "linalg_qr", "geqrf", "pinverse")},
    **{name: (lambda: (_reflectors(),)) for name in ("orgqr", "linalg_householder_product")},
    "ormqr": lambda: ((*_reflectors(), f(4, 2)), (*_reflectors(), f(4, 2), True, True)),
    **{name: (lambda: ((spd(4),),)) for name in ("linalg_eigh", "_linalg_eigh", "linalg_eigvalsh")},
    **{name: (lambda: ((spd(4),), *_indefinite())) for name in ("linalg_ldl_factor", "linalg_ldl_factor_ex")},
    **{name: (lambda: ((f(4, 3),),)) for name in ("linalg_svd", "_linalg_svd", "svd", "linalg_svdvals")},
    "linalg_pinv": lambda: (
        (f(4, 3),),
        (f(3, 4), 1e-5),
        (regular(3), 1e-5),
        (f(4, 3), {"rtol": 1e-5}),
        (torch.eye(3), 1e-5),
        (torch.tensor([[2.0, 0, 0], [0, 0, 1], [0, 0, 0]]),),
    ),
    "linalg_matrix_rank": lambda: ((f(4, 3),), (f(4, 3), 0.1)),
    "linalg_eig": lambda: ((regular(3),),),
    "linalg_eigvals": lambda: ((regular(3),),),
    "linalg_lstsq": lambda: ((f(5, 3), f(5, 2)),),
    "linalg_ldl_solve": lambda: (
        (*torch.linalg.ldl_factor(spd(4)), f(4, 2)),
        *((*torch.linalg.ldl_factor(a), f(a.shape[-1], 2)) for (a,) in _indefinite()),
    ),
    "linalg_tensorinv": lambda: ((regular(4).reshape(4, 2, 2), 1),),
    "linalg_tensorsolve": lambda: ((regular(4).reshape(2, 2, 4), f(2, 2)),),
    # Fourier
    **{
        name: (lambda: ((z(3, 8),), (z(3, 7), None, 0), (z(3, 8), 5, 1, "ortho")))
        for name in ("fft_fft", "fft_ifft", "fft_hfft")
    },
    **{
        name: (lambda: ((f(3, 8),), (f(3, 7), None, 0), (f(3, 8), 5, 1, "ortho"))) for name in ("fft_rfft", "fft_ihfft")
    },
    "fft_irfft": lambda: ((z(3, 5),), (z(3, 5), 7, 1, "ortho")),
    **{
        name: (lambda: ((z(2, 4, 6),), (z(2, 4, 6), None, [0, 1], "ortho")))
        for name in (
            "fft_fft2",
            "fft_ifft2",
            "fft_fftn",
            "fft_ifftn",
            "fft_irfft2",
            "fft_irfftn",
            "fft_hfft2",
            "fft_hfftn",
        )
    },
    **{
        name: (lambda: ((f(2, 4, 6),), (f(2, 4, 6), None, [0, 1], "ortho")))
        for name in ("fft_rfft2", "fft_rfftn", "fft_ihfft2", "fft_ihfftn")
    },
    **{name: (lambda: ((f(3, 5),), (f(3, 5), [1]))) for name in ("fft_fftshift", "fft_ifftshift")},
    **{name: (lambda: ((8,), (7, 0.5))) for name in ("fft_fftfreq", "fft_rfftfreq")},
    "_fft_c2c": lambda: ((z(3, 8), [1], 0, True), (z(4, 6), [0, 1], 1, False)),
    "_fft_r2c": lambda: ((f(3, 8), [1], 0, True), (f(4, 6), [0, 1], 2, False)),
    "_fft_c2r": lambda: ((z(3, 5), [1], 0, 8), (z(3, 5), [1], 2, 9)),
    "stft": lambda: ((f(2, 40), 16, 4, 16, p(16), False, True, True),),
    "istft": lambda: (
        (torch.stft(f(2, 40), 16, window=torch.ones(16), return_complex=True), 16, 4, 16, t(*[1.0] * 16)),
    ),
}
