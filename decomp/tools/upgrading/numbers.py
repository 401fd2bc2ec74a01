"""Tensors as texts: what they are like, a digest of all their elements, and as many of them as are kept, with all their
digits: `float32[2, 3] 1f0c32ab 0.5 nan -0`. Texts are equal where tensors are, and else say by how much they differ."""

from __future__ import annotations

from dataclasses import dataclass
import hashlib
import math

import torch

from decomp.ir.dtypes import name_of

MOST = 192
"""So many elements are kept of a result that is computed element by element, and of another at most `FEW`."""
FEW = 24
UNKNOWN = "-"
"""The digest of values that are undefined."""
DIGITS = {torch.float64: 17, torch.float32: 9, torch.bfloat16: 4, torch.float16: 5}


@dataclass(frozen=True, slots=True)
class Kept:
    """What a text says."""

    form: str
    """`float32[2, 3]`, followed by the strides unless the tensor is contiguous."""
    digest: str
    numbers: torch.Tensor
    """In float64, or int64; complex numbers as two."""

    @property
    def dtype(self) -> torch.dtype:
        """That of the tensor; of its parts where it is complex."""
        found: torch.dtype = getattr(torch, self.form.partition("[")[0], torch.float32)
        return found.to_real() if found.is_complex else found


def written(t: torch.Tensor, most: int = FEW, defined: bool = True) -> str:
    """A tensor as text. `defined`: whether its values are defined."""
    if t.layout is not torch.strided or t.is_quantized or str(t.dtype).startswith("torch.bits"):
        return f"{name_of(t.dtype)}{list(t.shape)} {UNKNOWN}"
    t = t.detach().resolve_conj().resolve_neg()
    form = f"{name_of(t.dtype)}{list(t.shape)}"
    if t.numel() > 1 and not t.is_contiguous():
        form += f" strides {list(t.stride())}"
    if not defined:
        return f"{form} {UNKNOWN}"
    flat = (torch.view_as_real(t) if t.is_complex() else t).contiguous().reshape(-1)
    if flat.is_floating_point():
        flat = torch.where(flat.isnan(), torch.full_like(flat, math.nan), flat)  # of NaN there are many
    digest = hashlib.sha256(bytes(flat.view(torch.uint8).tolist()) if len(flat) else b"").hexdigest()[:8]
    kept = flat[:: math.ceil(len(flat) / most)] if len(flat) > most else flat
    digits = DIGITS.get(flat.dtype, 9)
    texts = (f"{value:.{digits}g}" if isinstance(value, float) else str(int(value)) for value in kept.tolist())
    return " ".join([form, digest, *texts])


def read(text: str) -> Kept:
    """Parse the text of a value. Raises `ValueError` if it is malformed."""
    end = text.rindex("]") + 1
    digest, *numbers = text[end:].split()
    if text.startswith(("float", "bfloat", "complex")):
        return Kept(text[:end], digest, torch.tensor([float(each) for each in numbers], dtype=torch.float64))
    return Kept(text[:end], digest, torch.tensor([int(each) for each in numbers], dtype=torch.int64))
