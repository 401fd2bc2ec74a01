"""1-d constants computed in Python while a rule runs, rounded as the tensor would be, so that any computation on them
becomes one node."""

from __future__ import annotations

from collections.abc import Callable
import math
import struct

import torch
from torch import Tensor


class Line:
    """A 1-d tensor of float32 or float64 whose elements are known: each operation rounds as that of the tensor does,
    which for +, − and × of two float32 the sum or product in float64 rounded once more is (S. A. Figueroa, *When is
    double rounding innocuous?*, SIGNUM Newsletter 30, 1995)."""

    def __init__(self, values: list[float], dtype: torch.dtype):
        self.values, self.dtype = values, dtype

    def __add__(self, other: Line | float) -> Line:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Line | float) -> Line:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Line | float) -> Line:
        return self._with(other, lambda a, b: a * b)

    def __rsub__(self, other: float) -> Line:
        return self._with(other, lambda a, b: b - a)

    __radd__, __rmul__ = __add__, __mul__

    def floor(self) -> Line:
        """⌊a⌋."""
        return self._each(math.floor)

    def clamp(self, min: float = -math.inf, max: float = math.inf) -> Line:
        """a, clamped to bounds."""
        return self._each(lambda a: sorted((min, a, max))[1])

    def tensor(self, like: Tensor) -> Tensor:
        """The tensor, on the device of `like`."""
        return torch.tensor(self.values, dtype=self.dtype, device=like.device)

    def _with(self, other: Line | float, operation: Callable[[float, float], float]) -> Line:
        second = other.values if isinstance(other, Line) else [self._rounded(other)] * len(self.values)
        return Line([self._rounded(operation(a, b)) for a, b in zip(self.values, second)], self.dtype)

    def _each(self, function: Callable[[float], float]) -> Line:
        return Line([float(function(a)) for a in self.values], self.dtype)

    def _rounded(self, number: float) -> float:
        return number if self.dtype == torch.float64 else float(struct.unpack("f", struct.pack("f", number))[0])
