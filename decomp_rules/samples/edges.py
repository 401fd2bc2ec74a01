"""Calls at the edges of what an op defines, where versions of PyTorch differ: quantiles that fall on an element, rows
of attention that see nothing, numbers that no integer holds, shifts by more bits than there are. Certificates do not
measure them; snapshots record what the installed PyTorch does with them."""

from __future__ import annotations

import torch

from decomp_rules.samples.making import Calls, f, t

_INF, _NAN = float("inf"), float("nan")


def _unmasked_rows() -> torch.Tensor:
    """A mask of 4 rows by 6, the second and the last of which see nothing."""
    mask = torch.ones(4, 6, dtype=torch.bool).tril(2)
    mask[1] = mask[3] = False
    return mask


def _blind() -> tuple[torch.Tensor, ...]:
    return f(2, 2, 4, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), _unmasked_rows()


def _tenths() -> torch.Tensor:
    return torch.arange(11, dtype=torch.float32) / 10


def _beyond() -> torch.Tensor:
    return t(2.0**31, -(2.0**31) - 512, 3e9, 2.0**63, 1e20, -1e20, _INF, -_INF, _NAN, 255.0, 256.0, -1.0, 300.0)


_NARROW = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_SHIFTS = ((1, 1, -8, -1, 5, 2**40), (63, 64, 64, 70, -1, 31))

EDGES: Calls = {
    "quantile": lambda: ((torch.arange(11.0), _tenths()), (f(11), _tenths()), (f(3, 21), _tenths(), 1)),
    "nanquantile": lambda: ((torch.arange(11.0), _tenths()), (f(3, 21), _tenths(), 1)),
    "scaled_dot_product_attention": lambda: (
        _blind(),
        (*_blind()[:3], torch.where(_unmasked_rows(), 0.0, -_INF)),
    ),
    "_scaled_dot_product_attention_math": lambda: (_blind(),),
    "_scaled_dot_product_flash_attention_for_cpu": lambda: (
        (*_blind()[:3], {"attn_mask": torch.where(_unmasked_rows(), 0.0, -_INF)}),
    ),
    "_to_copy": lambda: tuple((_beyond(), {"dtype": dtype}) for dtype in _NARROW),
    "to": lambda: tuple((_beyond(), dtype) for dtype in _NARROW),
    **{
        name: (lambda: tuple((t(*_SHIFTS[0]).to(dtype), t(*_SHIFTS[1]).to(dtype)) for dtype in _NARROW[:2]))
        for name in ("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
    },
    "softmax": lambda: ((t([-_INF, -_INF], [0.0, -_INF], [_NAN, 0.0]), -1),),
    "_softmax": lambda: ((t([-_INF, -_INF], [0.0, -_INF], [_NAN, 0.0]), -1, False),),
    "logsumexp": lambda: ((t([-_INF, -_INF], [_INF, _INF], [0.0, _NAN]), [1]),),
    "amax": lambda: ((t([1.0, 1.0, 0.0], [2.0, 2.0, 2.0]), [1]),),
    "amin": lambda: ((t([1.0, 1.0, 0.0], [2.0, 2.0, 2.0]), [1]),),
    "max": lambda: ((t([1.0, 1.0, 0.0], [2.0, 2.0, 2.0]), 1), (t([1.0, 1.0, 0.0], [2.0, 2.0, 2.0]),)),
    "min": lambda: ((t([1.0, 1.0, 0.0], [2.0, 2.0, 2.0]), 1), (t([1.0, 1.0, 0.0], [2.0, 2.0, 2.0]),)),
}
"""By the name of an ATen op, the positional arguments of each call, and its keyword arguments as a dict at the end."""
