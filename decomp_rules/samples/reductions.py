"""Calls of reductions, scans, sorts, softmax and norms: over one dimension, over several, over all."""

from __future__ import annotations

import torch

from decomp_rules.samples.making import Calls, b, f, i, p, t, z

INF = float("inf")


def _gaps(x: torch.Tensor) -> torch.Tensor:
    """Rows with NaN here and there, the last one throughout."""
    x[0, ::3] = x[-1] = float("nan")
    return x


def _over_dims() -> tuple[tuple[object, ...], ...]:
    """Over all dimensions, one, two, and one that stays."""
    return ((f(3, 40),), (f(3, 4, 5), [1]), (f(3, 4, 5), [0, -1], True))


def _over_dim() -> tuple[tuple[object, ...], ...]:
    return ((f(3, 40),), (f(3, 4, 5), 1), (f(3, 4, 5), -1, True))


CALLS: Calls = {
    "sum": lambda: (*_over_dims(), (f(3, 40), {"dtype": torch.float64}), (i(9, 3, 4), [1])),
    "nansum": lambda: _over_dims(),
    "mean": lambda: _over_dims(),
    "nanmean": lambda: _over_dims(),
    "prod": lambda: ((p(3, 8),), (p(3, 8), 1), (p(3, 8), 0, True), (i(4, 3, 4) + 1, 1)),
    "amax": lambda: ((f(3, 40),), (f(3, 4, 5), [1]), (f(3, 4, 5), [0, 2], True), (i(9, 3, 4), [1]), (b(3, 4), [0, 1])),
    "amin": lambda: ((f(3, 40),), (f(3, 4, 5), [1]), (f(3, 4, 5), [0, 2], True), (i(9, 3, 4), [1]), (b(3, 4), [0, 1])),
    "max": lambda: ((f(3, 40),), (f(3, 40), 1), (f(3, 40), 0, True), (f(3, 4), f(3, 4)), (i(9, 3, 4), 1)),
    "min": lambda: ((f(3, 40),), (f(3, 40), 1), (f(3, 40), 0, True), (f(3, 4), f(3, 4)), (i(9, 3, 4), 1)),
    "aminmax": lambda: ((f(3, 40),), (f(3, 40), {"dim": 1}), (f(3, 40), {"dim": 0, "keepdim": True})),
    "_aminmax": lambda: ((f(3, 40),), (f(3, 40), 1)),
    "argmax": lambda: _over_dim(),
    "argmin": lambda: _over_dim(),
    "any": lambda: ((b(3, 4),), (b(3, 4), 1), (f(3, 4), 0, True)),
    "all": lambda: ((b(3, 4),), (b(3, 4), 1), (f(3, 4), 0, True)),
    "_is_all_true": lambda: ((b(3, 4),),),
    "_is_any_true": lambda: ((b(3, 4),),),
    "count_nonzero": lambda: ((f(3, 4).round(),), (f(3, 4).round(), 1), (f(3, 4).round(), [0, 1])),
    "var": lambda: (
        (f(3, 40),),
        (f(3, 40), [1]),
        (f(3, 40), [1], {"correction": 0, "keepdim": True}),
        (f(3, 40), False),
        (f(3, 40) + 1e5,),
    ),
    "std": lambda: ((f(3, 40),), (f(3, 40), [1]), (f(3, 40), [1], {"correction": 0, "keepdim": True})),
    "var_mean": lambda: ((f(3, 40),), (f(3, 40), [1]), (f(3, 40), [1], {"correction": 0, "keepdim": True})),
    "std_mean": lambda: ((f(3, 40),), (f(3, 40), [1]), (f(3, 40), [1], {"correction": 0, "keepdim": True})),
    "norm": lambda: ((f(3, 8),), (f(3, 8), 1), (f(3, 8), 2, [1]), (f(3, 8), INF, [1], True), (f(3, 8), 0, [1])),
    "frobenius_norm": lambda: ((f(3, 8), [1]), (f(3, 8), [0, 1], True)),
    "nuclear_norm": lambda: ((f(3, 4),),),
    "linalg_norm": lambda: ((f(3, 4),), (f(3, 4), 1, [1]), (f(3, 4), "fro", [0, 1])),
    "linalg_vector_norm": lambda: (
        (f(3, 8),),
        (f(3, 8), 1),
        (f(3, 8), 3, [1]),
        (f(3, 8), INF, [1]),
        (f(3, 8), -INF, [1]),
        (f(3, 8), 0.5, [0], True),
        (f(3, 8), 0, [1]),
        (z(3, 8), 2, [1]),
    ),
    "linalg_matrix_norm": lambda: ((f(3, 4), "fro"), (f(3, 4), 1, [0, 1]), (f(3, 4), INF, [0, 1], True)),
    "norm_except_dim": lambda: ((f(3, 4, 5), 2, 0), (f(3, 4, 5), 2, 2)),
    "logsumexp": lambda: ((f(3, 8), [1]), (f(3, 8), [0, 1]), (f(3, 8), [0], True)),
    "trace": lambda: ((f(4, 5),),),
    "median": lambda: ((f(3, 7),), (f(3, 7), 1), (f(3, 8), 0, True), (_gaps(f(3, 7)), 1)),
    "nanmedian": lambda: ((f(3, 7),), (f(3, 7), 1), (_gaps(f(3, 7)), 1), (_gaps(f(1, 5)),)),
    "mode": lambda: ((i(4, 3, 7),), (f(3, 7).round(), 0, True)),
    "kthvalue": lambda: ((f(3, 7), 2), (f(3, 7), 3, 0, True)),
    "quantile": lambda: (
        (f(3, 7), 0.3),
        (f(3, 7), t(0.1, 0.6), 1),
        (f(3, 7), 0.4, 0, True, {"interpolation": "lower"}),
    ),
    "nanquantile": lambda: ((f(3, 7), 0.3), (f(3, 7), t(0.1, 0.6), 1), (_gaps(f(3, 7)), t(0.0, 0.4, 1.0), 1)),
    "histc": lambda: ((f(30), 5, -2, 2), (f(30), 4)),
    "histogram": lambda: (
        (f(30), 5),
        (f(30), t(-2.0, -1.0, 0.0, 2.0)),
        (f(30), 4, {"range": [-2.0, 2.0], "density": True}),
    ),
    "histogramdd": lambda: ((f(30, 2), [3, 4]),),
    "_histogramdd_bin_edges": lambda: ((f(30, 2), [3, 4]),),
    "_histogramdd_from_bin_cts": lambda: ((f(30, 2), [3, 4]),),
    "bincount": lambda: ((i(6, 20),), (i(6, 20), f(20), 8)),
    "cumsum": lambda: ((f(3, 8), 1), (f(3, 8), 0), (i(9, 3, 4), 1), (f(40), 0)),
    "cumprod": lambda: ((p(3, 8), 1), (p(3, 8), 0), (i(4, 3, 4), 1)),
    "cummax": lambda: ((f(3, 8), 1), (f(3, 8), 0)),
    "cummin": lambda: ((f(3, 8), 1), (f(3, 8), 0)),
    "logcumsumexp": lambda: ((f(3, 8), 1), (f(3, 8), 0)),
    "cumulative_trapezoid": lambda: ((f(3, 8),), (f(3, 8), {"dx": 0.3, "dim": 0}), (f(3, 8), f(8).sort().values)),
    "trapezoid": lambda: ((f(3, 8),), (f(3, 8), {"dx": 0.3, "dim": 0}), (f(3, 8), f(8).sort().values)),
    "trapz": lambda: ((f(3, 8), {"dx": 0.3}), (f(3, 8), f(8).sort().values)),
    "diff": lambda: ((f(3, 8),), (f(3, 8), 2, 0), (f(3, 8), 1, 1, f(3, 2), f(3, 1))),
    "gradient": lambda: ((f(3, 8),), (f(3, 8), {"spacing": 0.5, "dim": 1, "edge_order": 2})),
    "sort": lambda: ((f(3, 8),), (f(3, 8), 0, True), (i(9, 3, 7), 1), (f(3, 8), {"stable": True, "dim": 1})),
    "argsort": lambda: ((f(3, 8),), (f(3, 8), 0, True), (f(3, 8), {"stable": True, "dim": 1})),
    "msort": lambda: ((f(5, 3),),),
    "topk": lambda: (
        (f(3, 8), 3),
        (f(3, 8), 2, 0, False),
        (f(3, 8), 4, 1, True, True),
        (t(2e-30, -1e-30, 0.0, 1e-30, -2e-30), 3),
    ),
    "unique_consecutive": lambda: ((i(3, 12),),),
    "_unique2": lambda: ((i(3, 12),),),
    "softmax": lambda: ((f(3, 8), 1), (f(3, 8), 0), (f(3, 8), 1, torch.float64)),
    "log_softmax": lambda: ((f(3, 8), 1), (f(3, 8), 0), (f(3, 8), 1, torch.float64)),
    "_softmax": lambda: ((f(3, 8), 1, False), (f(3, 8), 0, False)),
    "_log_softmax": lambda: ((f(3, 8), 1, False), (f(3, 8), 0, False)),
    "_safe_softmax": lambda: ((f(3, 8), 1),),
    "_softmax_backward_data": lambda: ((f(3, 8), f(3, 8).softmax(1), 1, torch.float32),),
    "_log_softmax_backward_data": lambda: ((f(3, 8), f(3, 8).log_softmax(1), 1, torch.float32),),
    "_masked_softmax_backward": lambda: ((f(2, 2, 4, 4), f(2, 2, 4, 4).softmax(-1), b(2, 2, 4, 4), -1),),
    "_masked_softmax": lambda: ((f(2, 2, 4, 4), b(2, 4), None, 1), (f(2, 2, 4, 4), b(4, 4), None, 0)),
    "isin": lambda: ((i(9, 8), i(9, 3)), (f(8).round(), f(3).round(), {"invert": True}), (i(9, 8), 3), (3, i(9, 8))),
    "cosine_similarity": lambda: ((f(3, 8), f(3, 8)), (f(3, 8), f(3, 8), 0)),
    "pairwise_distance": lambda: ((f(3, 8), f(3, 8)), (f(3, 8), f(3, 8), 1.0, 1e-6, True)),
    "cdist": lambda: ((f(4, 3), f(5, 3)), (f(2, 4, 3), f(2, 5, 3), 1.0), (f(4, 3), f(5, 3), INF)),
    "_cdist_forward": lambda: (
        (f(4, 3), f(5, 3), 2.0, None),
        (f(4, 3), f(5, 3), 1.0, None),
        (f(4, 3), f(5, 3), INF, None),
    ),
    "_cdist_backward": lambda: ((f(4, 5), x := f(4, 3), y := f(5, 3), 2.0, torch.cdist(x, y)),),
    "_euclidean_dist": lambda: ((f(4, 3), f(5, 3)),),
    "pdist": lambda: ((f(5, 3),), (f(5, 3), 1.0)),
    "_pdist_forward": lambda: ((f(5, 3),), (f(5, 3), 1.0), (f(5, 3), INF)),
    "_pdist_backward": lambda: (
        (f(10), x := f(5, 3), 2.0, torch.pdist(x)),
        (f(10), x := f(5, 3), 1.0, torch.pdist(x, 1.0)),
    ),
    "dist": lambda: ((f(3, 4), f(3, 4)), (f(3, 4), f(4), 1.0)),
    "renorm": lambda: ((f(3, 8), 2, 0, 1.5), (f(3, 8), 1, 1, 2.0)),
    "sum_to_size": lambda: ((f(3, 4), [1, 4]), (f(2, 3, 4), [3, 1])),
    "embedding_renorm": lambda: ((f(6, 4), i(6, 3), 1.0, 2.0),),
    "segment_reduce": lambda: tuple(
        (f(9, 2), kind, {"lengths": t(2, 3, 4)}) for kind in ("sum", "mean", "max", "min", "prod")
    ),
    "_segment_reduce_backward": lambda: ((f(3, 2), f(3, 2), f(9, 2), "sum", {"lengths": t(2, 3, 4)}),),
    "logspace": lambda: ((0.0, 2.0, 7), (0.5 - 1j, 1 + 2j, 7)),
    "linspace": lambda: ((0.0, 2.0, 7), (-1.0, 0.3, 5), (3, 9, 4), (0.5 - 1j, 2 + 3j, 7), (1j, 2 + 3j, 1)),
    "corrcoef": lambda: ((f(3, 8),),),
    "cov": lambda: ((f(3, 8),), (f(3, 8), {"correction": 0})),
    "special_softmax": lambda: ((f(3, 8), 1),),
    "special_log_softmax": lambda: ((f(3, 8), 1),),
    "special_logsumexp": lambda: ((f(3, 8), [1]),),
}
