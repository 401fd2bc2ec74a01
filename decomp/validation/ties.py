"""Ties: PyTorch leaves unspecified which of several equal elements some ops select, the signs of some vectors, and what
some ops give for floats that fit no integer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from decomp.ops import aten
from decomp.torch_internals.modes import TorchDispatchMode

_OPEN = {aten.sort, aten.topk, aten.kthvalue, aten.mode, aten.median, aten.nanmedian}
"""Ops whose documentation does not specify which of several equal elements is returned; for `max`, `min`, `argmax` and
`argmin` it is the first."""


# An eigenvector times −1 is an eigenvector. In a singular value decomposition, u and v of one value change together.
_VECTORS = {aten._linalg_svd.default: (0, 2), aten._linalg_eigh.default: (1, None)}
"""Ops that return vectors with unspecified signs (or phases, if complex): the positions of the results that hold them
in columns, and in rows."""
SIGNS = 2
"""The number of other choices of signs to try: together they change all signs."""

_CONVERTING = {
    aten.fake_quantize_per_channel_affine_cachemask.default,
    aten._fake_quantize_learnable_per_channel_affine.default,
}
"""Ops whose kernels convert x / s to int64 (torch 2.13), which is undefined in C++ where it does not fit: on x86 any
such number gives the smallest integer, on ARM the nearest."""


@dataclass(frozen=True)
class TieBreak:
    """A call that returns indices of elements of `x` along a dimension, any of several equal ones."""

    x: torch.Tensor
    dim: int
    places: torch.Tensor

    def allows(self, places: torch.Tensor) -> torch.Tensor:
        """Where other indices point to elements equal to those at `self.places`, without duplicates."""
        inside = (0 <= places) & (places < self.x.shape[self.dim])
        found, own = (_taken(self.x, self.dim, each) for each in (torch.where(inside, places, 0), self.places))
        allowed = inside & _is_same(found, own)
        # One index for each row cannot repeat; several must not point to the same element.
        if places.dim() < self.x.dim():
            return allowed
        return allowed & places.sort(dim=self.dim).values.diff(dim=self.dim).all(self.dim, keepdim=True)

    def other(self) -> torch.Tensor:
        """The index of the next equal element instead; after the last, that of the first."""
        # Equal elements are neighbours after sorting. A stable sort makes the order of their indices known.
        ordered, order = self.x.detach().sort(dim=self.dim, stable=True)
        shape = [-1 if dim == self.dim % self.x.dim() else 1 for dim in range(self.x.dim())]
        ranks = torch.arange(self.x.shape[self.dim], device=self.x.device).view(shape).expand(self.x.shape)
        # `roll` puts the last element before the first, where nothing precedes.
        follows = _is_same(ordered, ordered.roll(1, self.dim)) & (ranks > 0)
        # The running maximum of the ranks at which a group of equal
        # elements begins is the beginning of each element's own group.
        first = torch.where(follows, 0, ranks).cummax(self.dim).values
        following = torch.where(follows.roll(-1, self.dim), ranks + 1, first)
        following = torch.zeros_like(order).scatter(self.dim, order, order.gather(self.dim, following))
        return _taken(following, self.dim, self.places)


class Ties(TorchDispatchMode):
    """A mode that records choices among equal elements, of signs, and of ends of a range, and makes other choices if
    `other` is set, which says which vectors change their sign: those at odd positions (1) or at even ones (2)."""

    def __init__(self, other: int = 0) -> None:
        super().__init__()
        self.other = other
        self.choices: list[TieBreak] = []
        self.signs = False
        """Whether some call chose signs."""
        self.overflows = False
        """Whether some call converted a float that fits no integer."""

    @property
    def alternatives(self) -> int:
        """The values of `other` to try."""
        return SIGNS if self.signs else int(bool(self.choices) or self.overflows)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if func in _VECTORS:
            self.signs = True
            return _turned(results, *_VECTORS[func], self.other) if self.other else results
        if func in _CONVERTING:
            beyond, nearest = _at_ends(*args[:6])
            self.overflows |= bool(beyond.any())
            return _replaced(results, beyond, nearest) if self.other else results
        dim = _dimension(func, args, kwargs or {}) if func.overloadpacket in _OPEN else None
        if dim is None:
            return results
        values, places = results
        self.choices.append(TieBreak(args[0], dim, places))
        return (values, self.choices[-1].other()) if self.other else results


def _turned(results: Sequence[torch.Tensor], columns: int | None, rows: int | None, other: int) -> list[torch.Tensor]:
    """Results with other signs of some vectors."""
    found = list(results)
    for place in (columns, rows):
        if place is not None and found[place].numel():
            vectors = found[place] if place == columns else found[place].mT
            turned = torch.arange(vectors.shape[-1], device=vectors.device) % 2 == other % 2
            vectors = torch.where(turned, -vectors, vectors)
            found[place] = vectors if place == columns else vectors.mT
    return found


def _at_ends(
    x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, axis: int, low: int, high: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where x / s may not fit int64, and there the value of the nearest end of the range."""
    step, start = (each.view([-1 if d == axis else 1 for d in range(x.dim())]) for each in (scale, zero))
    place = x / step
    return place.abs() >= 2.0**62, (torch.where(place > 0, high, low) - start) * step


def _replaced(results: Any, where: torch.Tensor, value: torch.Tensor) -> Any:
    """The result of a call, or the first of several, with other elements."""
    if isinstance(results, torch.Tensor):
        return torch.where(where, value.to(results.dtype), results)
    return (_replaced(results[0], where, value), *results[1:])


def _dimension(func: Any, args: Any, kwargs: Any) -> int | None:
    """The dimension along which a call selects; None if it returns no indices, or is stable."""
    arguments = func._schema.arguments
    given = {each.name: each.default_value for each in arguments if each.has_default_value()}
    given.update(zip((each.name for each in arguments), args), **kwargs)
    if given.get("stable") or "dim" not in given or len(func._schema.returns) != 2 or not args[0].numel():
        return None
    return int(given["dim"]) if args[0].dim() else None


def _taken(x: torch.Tensor, dim: int, places: torch.Tensor) -> torch.Tensor:
    """The elements at indices along a dimension, which the indices may lack."""
    kept = places.dim() == x.dim()
    found = x.gather(dim, places if kept else places.unsqueeze(dim))
    return found if kept else found.squeeze(dim)


def _is_same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan())
