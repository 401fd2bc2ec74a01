"""The Fourier transform of short pieces of a signal, each under a window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.complex.fourier import BY_ROOT, UNSCALED
from decomp_rules.spatial.windows import fit
from decomp_rules.support.operands import cast

RULES = Rules(level="exact")
register = RULES.register


@register(aten.stft)
def stft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = False,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """X[k, t] = Σⱼ w[j]·x[j + t·hop]·e^(−2πi·jk/n)."""
    if align_to_window:
        return decline("the pieces are aligned to the window")
    lines = x.unsqueeze(0) if x.dim() == 1 else x
    if center:
        # Only three dimensions are padded in other ways than with zeros.
        lines = F.pad(lines.unsqueeze(0), [n_fft // 2, n_fft // 2], pad_mode).squeeze(0)
    # The pieces of a non-contiguous signal overlap in memory as no copy does, which shows in the transform's strides.
    pieces = lines.contiguous().unfold(-1, n_fft, n_fft // 4 if hop_length is None else hop_length)
    window = _padded_window(lines, window, n_fft, win_length)
    out = _transformed(pieces if window is None else pieces * window, normalized, onesided).transpose(1, 2)
    out = out.squeeze(0) if x.dim() == 1 else out
    return torch.view_as_real(out) if return_complex is False else out


def _padded_window(x: Tensor, window: Tensor | None, n_fft: int, win_length: int | None) -> Tensor | None:
    """The window, padded with zeros on both sides to the size of a piece; None if it changes nothing."""
    length = n_fft if win_length is None else win_length
    if window is None:
        if length == n_fft:
            return None
        window = torch.ones(length, dtype=x.dtype, device=x.device)
    before = (n_fft - length) // 2
    return fit(window, 0, before, n_fft - length - before) if length != n_fft else window


def _transformed(pieces: Tensor, normalized: bool, onesided: bool | None) -> Tensor:
    scaling, last = BY_ROOT if normalized else UNSCALED, [pieces.dim() - 1]
    if pieces.is_complex():
        return aten._fft_c2c(pieces, last, scaling, True)
    return aten._fft_r2c(
        cast(pieces, torch.promote_types(pieces.dtype, torch.float32)), last, scaling, onesided is not False
    )
