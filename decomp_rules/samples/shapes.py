"""Calls that move elements and compute nothing: shapes, slices, gathers and scatters, factories."""

from __future__ import annotations

from functools import partial

import torch

from decomp_rules.samples.making import Calls, b, f, i, p, t, z


def _padded(n: int, back: str) -> tuple[tuple[object, ...], ...]:
    """An input of `n` dimensions to be padded, behind the gradient of its padded form for the backward op."""
    size, pad = [4, 5, 6][:n], [2, 3, 2, 0, 1, 2][: 2 * n]
    padded = [s + pad[2 * k] + pad[2 * k + 1] for s, k in zip(size, reversed(range(n)))]
    return ((f(2, 2, *padded), f(2, 2, *size), pad),) if back else ((f(2, 2, *size), pad),)


def _narrowed_from_data() -> tuple[tuple[object, ...], ...]:
    """Starts that are tensors, from the end too."""
    return tuple((f(5, 4), 0, torch.tensor(start), 2) for start in (0, -2))


CALLS: Calls = {
    # shapes
    **{
        name: (lambda: ((f(3, 4), [2, 6]), (f(3, 4), [-1]), (f(2, 3, 4), [3, -1, 2])))
        for name in ("reshape", "_unsafe_view", "_reshape_copy")
    },
    "view": lambda: ((f(3, 4), [2, 6]), (f(3, 4), [-1]), (f(2, 3, 4), [3, -1, 2]), (i(9, 3, 4).char(), torch.uint8)),
    "_reshape_alias": lambda: ((f(3, 4), [2, 6], [6, 1]),),
    "view_copy": lambda: ((f(3, 4), [2, 6]), (f(3, 4), torch.int32)),
    "view_as": lambda: ((f(3, 4), f(2, 6)),),
    "reshape_as": lambda: ((f(3, 4), f(2, 6)),),
    "resize": lambda: ((f(3, 4), [2, 6]),),
    "resize_as": lambda: ((f(3, 4), f(2, 6)),),
    "ravel": lambda: ((f(3, 4),),),
    "flatten": lambda: ((f(2, 3, 4),), (f(2, 3, 4), 1, 2)),
    "unflatten": lambda: ((f(3, 8), 1, [2, 4]), (f(3, 8), 1, [-1, 2])),
    **{
        name: (lambda: ((f(3, 4, 5), 0, 2), (f(3, 4), -1, 0)))
        for name in ("transpose", "transpose_copy", "swapaxes", "swapdims")
    },
    **{name: (lambda: ((f(3, 4),), (f(4),))) for name in ("t", "t_copy", "numpy_T")},
    **{name: (lambda: ((f(3, 4),), (f(2, 3, 4),))) for name in ("mT", "mH", "adjoint")},
    "matrix_H": lambda: ((f(3, 4),), (z(3, 4),)),
    **{name: (lambda: ((f(2, 3, 4), [2, 0, 1]),)) for name in ("permute", "permute_copy")},
    **{name: (lambda: ((f(2, 3, 4), [0, 1], [2, 0]), (f(2, 3, 4), 0, -1))) for name in ("movedim", "moveaxis")},
    **{name: (lambda: ((f(3, 4), 1), (f(3, 4), -1))) for name in ("unsqueeze", "unsqueeze_copy")},
    **{name: (lambda: ((f(3, 1, 4),), (f(3, 1, 4), 1), (f(3, 1, 1), [1, 2]))) for name in ("squeeze", "squeeze_copy")},
    **{name: (lambda: ((f(3, 1), [3, 4]), (f(4), [2, -1]))) for name in ("expand", "expand_copy", "broadcast_to")},
    "expand_as": lambda: ((f(3, 1), f(3, 4)),),
    "broadcast_tensors": lambda: (([f(3, 1), f(1, 4)],),),
    "meshgrid": lambda: (([f(3), f(4)],), ([f(3), f(4)], {"indexing": "xy"})),
    **{name: (lambda: ((f(3, 4), 2), (f(3, 5), 3, 1))) for name in ("chunk", "unsafe_chunk")},
    **{name: (lambda: ((f(5, 4), 2), (f(3, 5), 3, 1))) for name in ("split", "unsafe_split", "split_copy")},
    **{
        name: (lambda: ((f(5, 4), [2, 3]), (f(3, 5), [1, 3, 1], 1)))
        for name in ("split_with_sizes", "unsafe_split_with_sizes", "split_with_sizes_copy")
    },
    "tensor_split": lambda: ((f(7, 4), 3), (f(7, 4), [2, 5]), (f(3, 7), 2, 1)),
    **{name: (lambda: ((f(4, 4, 4), 2), (f(4, 4, 4), [1, 3]))) for name in ("hsplit", "vsplit", "dsplit")},
    **{name: (lambda: ((f(3, 4),), (f(3, 4), 1))) for name in ("unbind", "unbind_copy")},
    **{
        name: (lambda: (([f(2, 3), f(2, 3)],), ([f(2, 3), f(2, 3)], 1)))
        for name in ("cat", "concat", "concatenate", "stack")
    },
    **{
        name: (lambda: (([f(2, 3), f(2, 3)],), ([f(3), f(3)],)))
        for name in ("hstack", "vstack", "dstack", "column_stack", "row_stack")
    },
    "block_diag": lambda: (([f(2, 3), f(1, 2), f(2)],),),
    "cartesian_prod": lambda: (([f(2), f(3)],), ([f(3)],)),
    "combinations": lambda: ((f(4),), (f(4), 2, True)),
    "_chunk_cat": lambda: (([f(4, 3), f(5, 2)], 0, 2),),
    **{name: (lambda: ((f(3),), (f(3, 4),))) for name in ("atleast_1d", "atleast_2d", "atleast_3d")},
    **{name: (lambda: ((f(3, 4), [0]), (f(3, 4), [0, 1]))) for name in ("flip",)},
    **{name: (lambda: ((f(3, 4),),)) for name in ("fliplr", "flipud")},
    "rot90": lambda: ((f(3, 4),), (f(3, 4), 3, [1, 0])),
    "roll": lambda: ((f(3, 4), [1]), (f(3, 4), [1, -2], [0, 1])),
    "repeat": lambda: ((f(3, 4), [2, 1]), (f(3), [2, 3])),
    "tile": lambda: ((f(3, 4), [2]), (f(3), [2, 3])),
    "repeat_interleave": lambda: (
        (f(3, 4), 2),
        (f(3, 4), 2, 1),
        (f(3, 4), t(1, 0, 2), 0, {"output_size": 3}),
        (t(1, 0, 2), {"output_size": 3}),
    ),
    "pixel_shuffle": lambda: ((f(2, 8, 3, 4), 2),),
    "pixel_unshuffle": lambda: ((f(2, 2, 4, 6), 2),),
    **{name: (lambda: ((f(2, 6, 3, 4), 3),)) for name in ("channel_shuffle", "native_channel_shuffle")},
    **{name: (lambda: ((f(3, 7), 1, 3, 2),)) for name in ("unfold", "unfold_copy")},
    "unfold_backward": lambda: ((f(3, 3, 3), [3, 7], 1, 3, 2),),
    "im2col": lambda: ((f(2, 3, 5, 6), [2, 3], [1, 1], [1, 0], [1, 2]),),
    "col2im": lambda: ((f(2, 12, 20), [5, 6], [2, 2], [1, 1], [0, 0], [1, 1]),),
    **{
        name: (lambda: ((f(3, 4), [2, 3], [1, 2]), (f(12), [3, 2], [4, 1], 2)))
        for name in ("as_strided", "as_strided_copy")
    },
    "as_strided_scatter": lambda: ((f(3, 4), f(2, 3), [2, 3], [4, 1], 1),),
    "clone": lambda: ((f(3, 4),), (b(3, 4),)),
    **{
        name: (lambda: ((f(3, 4),),))
        for name in (
            "contiguous",
            "alias",
            "alias_copy",
            "detach",
            "detach_copy",
            "lift",
            "lift_fresh",
            "lift_fresh_copy",
            "positive",
            "ravel",
            "is_contiguous",
        )
    },
    "copy": lambda: ((f(3, 4), f(3, 4)), (f(3, 4), i(9, 4))),
    # slices and diagonals
    **{name: (lambda: ((f(5, 4), 0, 2), (f(5, 4), -1, -1))) for name in ("select", "select_copy")},
    **{
        name: (lambda: ((f(5, 4), 0, 1, 4), (f(5, 4), 1, -3, None), (f(7, 4), 0, 1, 7, 3)))
        for name in ("slice", "slice_copy")
    },
    "narrow": lambda: ((f(5, 4), 0, 1, 3), (f(5, 4), 1, -3, 2), (f(5, 4), 0, t(1).view([]), 3), *_narrowed_from_data()),
    "narrow_copy": lambda: ((f(5, 4), 0, 1, 3), (f(5, 4), 1, -3, 2)),
    "select_backward": lambda: ((f(4), [5, 4], 0, 2),),
    "slice_backward": lambda: ((f(2, 4), [5, 4], 0, 1, 5, 2),),
    "select_scatter": lambda: ((f(5, 4), f(4), 0, 2),),
    "slice_scatter": lambda: ((f(5, 4), f(2, 4), 0, 1, 5, 2),),
    **{name: (lambda: ((f(3, 4),), (f(3, 4), 1), (f(2, 3, 4), -1, 2, 0))) for name in ("diagonal", "diagonal_copy")},
    "diagonal_backward": lambda: ((f(3), [3, 4], 1, 0, 1),),
    "diagonal_scatter": lambda: ((f(3, 4), f(3), 1),),
    "diag": lambda: ((f(4),), (f(3, 4), 1)),
    "diag_embed": lambda: ((f(2, 3),), (f(2, 3), -1)),
    "diagflat": lambda: ((f(4),), (f(2, 2), 1)),
    **{name: (lambda: ((f(4, 5),), (f(2, 4, 4), 1), (f(4, 5), -1))) for name in ("tril", "triu")},
    "trace_backward": lambda: ((t(0.5).squeeze(), [3, 4]),),
    # indexing
    "gather": lambda: ((f(3, 5), 1, t([0, 4], [1, 1], [2, 0])), (f(3, 5), 0, t([0, 2, 1, 0, 1]))),
    "index": lambda: (
        (f(5, 4), [t(0, 4, 2)]),
        (f(5, 4), [None, t(0, -1)]),
        (f(5, 4), [t([0], [3]), t(1, 2)]),
        (f(5, 4), [None, b(4)]),
    ),
    "_unsafe_index": lambda: ((f(5, 4), [t(0, 4, 2)]), (f(5, 4), [None, t(0, -1)])),
    "_unsafe_masked_index": lambda: ((f(5, 4), b(3), [t(0, 4, 2), t(1, 0, 3)], 0.5),),
    "_unsafe_masked_index_put_accumulate": lambda: ((f(5, 4), b(3), [t(0, 4, 0), t(1, 0, 1)], f(3)),),
    "index_select": lambda: ((f(5, 4), 0, t(0, 4, 2)), (f(5, 4), 1, t(3, 3))),
    "index_select_backward": lambda: ((f(3, 4), [5, 4], 0, t(0, 4, 0)),),
    "take": lambda: ((f(3, 4), t(0, 11, 5)), (f(3, 4), t([0, -1]))),
    "take_along_dim": lambda: ((f(3, 5), t([0, 4], [1, 1], [2, 0]), 1), (f(3, 5), t(3, 14))),
    "masked_scatter": lambda: ((f(3, 4), b(3, 4), f(3, 4)),),
    "masked_select": lambda: ((f(3, 4), b(3, 4)),),
    **{
        name: (
            lambda: (
                (f(5, 4), [t(0, 4, 2)], f(3, 4)),
                (f(5, 4), [t(0, 4, 0), t(1, 1, 1)], f(3), True),
                (f(3, 4), [b(3, 4)], t(0.5).squeeze()),
            )
        )
        for name in ("index_put", "_unsafe_index_put")
    },
    "put": lambda: ((f(3, 4), t(0, 11, 5), f(3)), (f(3, 4), t(0, 0, 5), f(3), True)),
    "index_add": lambda: ((f(5, 4), 0, t(0, 4, 0), f(3, 4)), (f(5, 4), 1, t(1, 2), f(5, 2), {"alpha": 0.5})),
    "index_copy": lambda: ((f(5, 4), 0, t(0, 4, 2), f(3, 4)), (f(5, 4), 1, t(1, 2), f(5, 2))),
    "index_fill": lambda: ((f(5, 4), 0, t(0, 4), 0.5), (f(5, 4), 1, t(1, 2), t(2.0).squeeze())),
    "index_reduce": lambda: tuple((p(5, 4), 0, t(0, 4, 0), p(3, 4), kind) for kind in ("prod", "mean", "amax", "amin")),
    "scatter": lambda: (
        (f(3, 5), 1, t([0, 4], [1, 2], [2, 0]), f(3, 2)),
        (f(3, 5), 0, t([0, 2, 1]), 0.5),
        (f(3, 5), 1, t([0, 4], [1, 1], [2, 0]), f(3, 2), {"reduce": "add"}),
        (i(9, 3, 5), 1, t([0, 4], [1, 1], [2, 0]), i(9, 3, 2)),
    ),
    "scatter_add": lambda: ((f(3, 5), 1, t([0, 4], [1, 1], [2, 0]), f(3, 2)),),
    "scatter_reduce": lambda: tuple(
        (p(3, 5), 1, t([0, 4, 0], [1, 1, 1], [2, 0, 3]), p(3, 3), kind, {"include_self": kind != "mean"})
        for kind in ("sum", "prod", "mean", "amax", "amin")
    ),
    "searchsorted": lambda: ((f(6).sort().values, f(4)), (f(2, 6).sort().values, f(2, 4), {"right": True})),
    "bucketize": lambda: ((f(4), f(6).sort().values), (f(4), f(6).sort().values, {"right": True, "out_int32": True})),
    "one_hot": lambda: ((t(0, 2, 1), 3), (t([0, 3]), 5)),
    "embedding": lambda: ((f(7, 4), t([1, 0, 6])), (f(7, 4), t(1, 1), 1)),
    "embedding_dense_backward": lambda: ((f(3, 4), t(1, 0, 1), 7, -1, False), (f(3, 4), t(1, 0, 1), 7, 0, True)),
    "embedding_backward": lambda: ((f(3, 4), t(1, 0, 1), 7, -1, False, False),),
    "nonzero_static": lambda: ((f(3, 4).round(), {"size": 5}),),
    "nonzero": lambda: ((f(3, 4).round(),),),
    "argwhere": lambda: ((f(3, 4).round(),),),
    # factories
    "arange": lambda: ((7,), (2, 9, 2), (0.5, 3.0, 0.25), (5, {"dtype": torch.float32})),
    "zeros": lambda: (([3, 4],), ([2], {"dtype": torch.int64})),
    "ones": lambda: (([3, 4],), ([2], {"dtype": torch.int64})),
    "full": lambda: (([3, 4], 0.5), ([2], 3), ([], True)),
    "eye": lambda: ((3,), (3, 4)),
    "scalar_tensor": lambda: ((0.5,), (3, {"dtype": torch.int64})),
    **{name: (lambda: ((f(3, 4),), (f(3, 4), {"dtype": torch.int64}))) for name in ("zeros_like", "ones_like")},
    "full_like": lambda: ((f(3, 4), 0.5), (i(9, 3), 2)),
    **{name: (lambda: ((f(3, 4), [2, 3]),)) for name in ("new_zeros", "new_ones", "new_empty")},
    "new_full": lambda: ((f(3, 4), [2, 3], 0.5),),
    "new_empty_strided": lambda: ((f(3, 4), [2, 3], [3, 1]),),
    "empty": lambda: (([3, 4],),),
    "empty_like": lambda: ((f(3, 4),),),
    "empty_strided": lambda: (([3, 4], [4, 1]),),
    "empty_permuted": lambda: (([3, 4], [1, 0]),),
    "fill": lambda: ((f(3, 4), 0.5), (f(3, 4), t(2.0).squeeze())),
    "zero": lambda: ((f(3, 4),),),
    "tril_indices": lambda: ((4, 5), (4, 4, -1)),
    "triu_indices": lambda: ((4, 5), (4, 4, 1)),
    **{
        name: (lambda: ((8,), (7, False)))
        for name in ("hann_window", "hamming_window", "bartlett_window", "blackman_window", "kaiser_window")
    },
    "vander": lambda: ((f(4),), (f(4), 3, True)),
    "linalg_vander": lambda: ((f(4),),),
    # padding
    "constant_pad_nd": lambda: (
        *((f(3, 4), [1, 2]), (f(3, 4), [1, -1, 0, 2], 0.5), (f(3, 4), [1, 2], 0.5)),
        (b(3, 4), [1, 2], True),
    ),
    "pad": lambda: (
        (f(3, 4), [1, 2]),
        (f(2, 3, 4), [1, 2], "reflect"),
        (f(2, 3, 4), [1, 2], "replicate"),
        (f(2, 3, 4), [1, 2], "circular"),
        (f(3, 4), [1, 2], "constant", 0.5),
    ),
    "_pad_enum": lambda: tuple((f(2, 3, 4), [1, 2], mode) for mode in (0, 1, 2, 3)),
    "_pad_circular": lambda: ((f(2, 3, 4), [1, 2]), (f(2, 3, 4, 5), [1, 2, 0, 1])),
    **{
        f"{kind}_pad{n}d{back}": partial(_padded, n, back)
        for kind in ("reflection", "replication")
        for n in (1, 2, 3)
        for back in ("", "_backward")
    },
}

SHAPE = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
"""Ops that leave values open: only shape, dtype and strides are compared with theirs."""
