"""Numbers in place of open sizes. A call whose sizes are products of those of its operands is run at two assignments
of primes to the symbols; what comes out of both is a size again if one product of open sizes and a number has both
values."""

from __future__ import annotations

import functools
from typing import Any

import torch

Pair = tuple[int, int]
"""The values of one size at the two assignments."""

# The first assignment takes primes from the lower end upwards, the second from the upper end downwards: the difference
# between two sizes then has another sign at each, so that no size and a number added to it are another size at both.
# Small enough that the elements of a tensor with five open dimensions are counted in 64 bits. That one of them divides
# a number of the program does no harm, as the other assignment has another.
_FROM, _TO = 1_009, 3_000


class NotOpen(Exception):
    """A number at the two assignments that is not known as a size, or a size that has no two such numbers."""


class StandIns:
    """The pairs of numbers for the sizes of one program, and the sizes for pairs of numbers."""

    def __init__(self) -> None:
        self._primes = iter(_primes()), reversed(_primes())
        self._symbols: tuple[dict[Any, Any], dict[Any, Any]] = {}, {}
        self._pairs: dict[Any, Pair | None] = {}
        self._sizes: dict[Pair, Any] = {}

    def pair(self, size: Any) -> Pair:
        """The two numbers for a size. Raises `NotOpen` for a symbolic number that is no size, and for a size that the
        two do not tell from another one, such as `Min(s0, 512)`, or `(s0 + 1)//2`, which is exact at odd numbers."""
        if type(size) is int:
            return size, size
        if not isinstance(size, torch.SymInt):
            raise NotOpen
        expr = size.node.expr
        if expr not in self._pairs:
            self._pairs[expr] = self._determining(size, expr)
        found = self._pairs[expr]
        if found is None:
            raise NotOpen
        return found

    def _determining(self, size: Any, expr: Any) -> Pair | None:
        """The two numbers of a size, None if they do not determine it among the sizes of the program."""
        if not expr.is_polynomial(*expr.free_symbols):
            return None
        pair = self._evaluated(expr)
        if expr.is_number or pair[0] != pair[1] and self._sizes.setdefault(pair, size).node.expr == expr:
            return pair
        return None

    def size(self, pair: Pair) -> Any:
        """The size with these two values: a number if they are equal, else an open size or a product of some. Raises
        `NotOpen` if no product of sizes has them."""
        if pair[0] == pair[1]:
            return pair[0]
        found = self._sizes.get(pair)
        if found is None:
            found = self._sizes[pair] = self._product(pair)
        return found

    def _evaluated(self, expr: Any) -> Pair:
        for symbol in expr.free_symbols:
            for numbers, primes in zip(self._symbols, self._primes):
                if symbol not in numbers:
                    numbers[symbol] = _sympy_integer(next(primes, 0))
        values = [expr.xreplace(numbers) for numbers in self._symbols]
        if not all([value.is_Integer for value in values]):
            raise NotOpen
        return int(values[0]), int(values[1])

    def _product(self, pair: Pair) -> Any:
        for known, size in list(self._sizes.items()):
            # A factor of one would be taken out without end.
            if min(map(abs, known)) < 2 or pair[0] % known[0] or pair[1] % known[1]:
                continue
            first, second = pair[0] // known[0], pair[1] // known[1]
            try:
                return size * self.size((first, second))
            except NotOpen:
                continue
        raise NotOpen


@functools.cache
def _primes() -> tuple[int, ...]:
    # Not at import, which programs of fixed sizes pay for, too.
    return tuple(n for n in range(_FROM, _TO) if all(n % d for d in range(2, int(n**0.5) + 1)))


def _sympy_integer(number: int) -> Any:
    import sympy  # with symbolic sizes it has been imported already

    if not number:
        raise NotOpen  # no prime is left
    return sympy.Integer(number)
