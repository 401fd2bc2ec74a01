"""Sizes, which may be symbolic: what is known of them, and whether two are equal by evaluation. An expression that
divides by one of its factors has many equal forms, not all of which PyTorch's simplification unifies. No guards are
added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import itertools
import random
import sys
from typing import Any

import torch

from decomp.torch_internals.fakes import FakeTensorMode
from decomp.torch_internals.pytree import tree_leaves

TRIED = 24
"""The number of assignments of sizes that are compared."""
ENOUGH = 3
"""The minimum number of allowed assignments that must be found."""
DRAWN = 400
"""The number of assignments drawn to find them."""
MULTIPLES = (1, 2, 3, 5, 6, 7, 11, 60)
OFFSETS = (0, 0, 1, 2, 3, 5, 7)
"""Sizes next to multiples are tried as well, unless guards forbid them, to detect floor division."""


SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
NUMBERS = (int, float, complex, *SYMBOLIC)
"""The types of values that are no tensors; `bool` is an `int`."""

PRIME = 11
"""A stand-in for data-dependent sizes, which divides no other by chance."""


class Undecided(Exception):
    """A query of sizes or values has no answer that is valid for all runs of the program."""


@contextlib.contextmanager
def decided_at_every_size(env: Any) -> Iterator[None]:
    """Inside this context a query of a symbolic size of `env` whose answer is not the same for all its values raises
    `Undecided`, as does reading the data of a fake tensor. No guards are added."""
    try:
        if env is None:
            yield
        else:
            from decomp.torch_internals.sizes import errors_on_new_guards

            with errors_on_new_guards(env), guards_not_suppressed(), quiet(env.log):
                yield
    except Exception as error:
        if not _is_open(error):
            raise
        raise Undecided(str(error).strip().partition("\n")[0]) from error


@contextlib.contextmanager
def of_two_or_more(env: Any) -> Iterator[None]:
    """Inside this context dynamic sizes of `env` are at least 2, as PyTorch assumes during capture: sizes 0 and 1 are
    separate programs. (The ranges, and the counter that invalidates caches, are private to torch 2.13.)"""
    if env is None:
        yield
        return
    from decomp.torch_internals.sizes import ValueRanges

    before = dict(env.var_to_range)
    sizes = getattr(env, "backed_var_to_val", {})
    # Sizes that depend on data are left out: nothing was assumed of them at capture, and they may be 0 or 1.
    narrowed = {s: r & ValueRanges(2, r.upper) for s, r in before.items() if s in sizes and r.lower < 2 <= r.upper}
    try:
        env.var_to_range.update(narrowed)
        # Answers are cached by this counter, so it moves on entry and on exit.
        env._update_version_counter()
        yield
    finally:
        env.var_to_range.update(before)
        env._update_version_counter()


@contextlib.contextmanager
def quiet(log: Any) -> Iterator[None]:
    """Suppress a log, as PyTorch logs warnings about errors that it then raises."""
    disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = disabled


@contextlib.contextmanager
def guards_not_suppressed() -> Iterator[None]:
    """Inside this context queries of sizes are not answered by the example, as they are under `suppress_guards`, which
    planning uses. (The import takes 0.25 s; without it nothing is suppressed.)"""
    if "torch.fx.experimental.symbolic_shapes" not in sys.modules:
        yield
        return
    from decomp.torch_internals.sizes import TLS

    before = getattr(TLS, "suppress_guards", False)
    TLS.suppress_guards = False
    try:
        yield
    finally:
        TLS.suppress_guards = before


@contextlib.contextmanager
def planning_sizes(mode: FakeTensorMode | None) -> Iterator[None]:
    """Inside this context new data-dependent sizes of temporary values are not recorded in the program's environment:
    `torch.compile` would look for each among the program's own values. Nor does the mode cache results of calls on
    symbolic sizes: few are repeated, and caching takes as long as computing them."""
    env = mode.shape_env if mode is not None else None
    if mode is None or env is None:
        yield
        return
    with env.ignore_fresh_unbacked_symbols(), uncached(mode) if env.var_to_range else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def uncached(mode: FakeTensorMode) -> Iterator[None]:
    """Inside this context the mode neither caches results of calls nor uses cached ones."""
    before, mode.cache_enabled = mode.cache_enabled, False
    try:
        yield
    finally:
        mode.cache_enabled = before


def known_symbols(mode: FakeTensorMode | None) -> frozenset[Any]:
    """The symbols of the sizes of a program."""
    env = mode.shape_env if mode is not None else None
    return frozenset(env.var_to_range) if env is not None else frozenset()


def _is_open(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is one that torch 2.13 raises for an undecidable query; the first is private."""
    while error is not None:
        names = ("_ShapeEnvGuardError", "GuardOnDataDependentSymNode", "DataDependentOutputException")
        # By name: torch 2.11 has no class for the first, and importing the second takes 0.25 s.
        if type(error).__name__ in names:
            return True
        error = error.__cause__ or error.__context__
    return False


def strides_of(value: torch.Tensor) -> tuple[Any, ...]:
    """The strides of a tensor; none if its layout has no strides."""
    return value.stride() if value.layout is torch.strided else ()


def surely(condition: Any) -> bool:
    """Whether a comparison of sizes holds for all sizes. No guards are added. (The import takes 0.25 s, and is only
    needed for programs with dynamic sizes.)"""
    if isinstance(condition, bool):
        return condition
    from decomp.torch_internals.sizes import statically_known_true

    return bool(statically_known_true(condition))


def is_at_least(size: Any, least: Any) -> bool:
    """Whether a number is at least `least`; asked of PyTorch, unless it follows from remainders by positive numbers,
    whose bounds sympy does not use (`n - k % n` is at least 1), or from a guard and the ranges, which PyTorch does not
    add up. A complex number, which has no order, never is."""
    if isinstance(size, complex):
        return False
    if isinstance(size, torch.SymInt):
        difference, env = size.node.expr - expression(least), size.node.shape_env
        if _follows_from_remainders(difference, env.var_to_range) or _follows_from_guards(difference, env):
            return True
    return bool(size >= least)


def _follows_from_remainders(difference: Any, ranges: Mapping[Any, Any]) -> bool:
    """Whether an expression is not negative at either bound of each remainder in it, in all of which it is linear, by
    the ranges of the symbols."""
    from decomp.torch_internals.sizes import bound_sympy, sympy_functions

    remainders = difference.atoms(sympy_functions.Mod, sympy_functions.PythonMod)
    if not remainders or not all(bound_sympy(each.args[1], ranges).lower > 0 for each in remainders):
        return False
    import sympy  # with symbolic sizes it has been imported already

    free = {each: sympy.Dummy(integer=True) for each in remainders}
    linear = difference.xreplace(free)
    if any(linear.diff(one, other) != 0 for one in free.values() for other in free.values()):
        return False
    bounds = [[(free[each], sympy.Integer(0)), (free[each], each.args[1] - 1)] for each in remainders]
    return all(bound_sympy(linear.xreplace(dict(ends)), ranges).lower >= 0 for ends in itertools.product(*bounds))


def _follows_from_guards(difference: Any, env: Any) -> bool:
    """Whether an expression is not negative, because it is at least what some guard says is not negative."""
    from decomp.torch_internals.sizes import bound_sympy

    for guard in env.guards:
        known = _not_negative_by(guard.expr)
        if known is None or not known.free_symbols & difference.free_symbols:
            continue
        if bound_sympy(difference - known, env.var_to_range).lower >= 0:
            return True
    return False


def _not_negative_by(guard: Any) -> Any:
    """What a comparison of whole numbers says is not negative; None for other guards."""
    kind = type(guard).__name__  # as sympy, which takes long to import, has been imported only with symbolic sizes
    if kind in ("GreaterThan", "StrictGreaterThan"):
        return guard.lhs - guard.rhs - int(kind == "StrictGreaterThan")
    if kind in ("LessThan", "StrictLessThan"):
        return guard.rhs - guard.lhs - int(kind == "StrictLessThan")
    return None


def is_data(size: Any) -> bool:
    """Whether a size is data-dependent, so that it cannot be compared before run time."""
    if not isinstance(size, torch.SymInt):
        return False
    from decomp.torch_internals.sizes import free_unbacked_symbols

    return bool(free_unbacked_symbols(size))


def size_hint(value: Any, of_data: int | None = None) -> Any:
    """The value of a symbolic number at capture; other numbers unchanged. For a data-dependent one None, or its value
    if all data-dependent symbols are `of_data`."""
    if not isinstance(value, SYMBOLIC):
        return value
    if of_data is None or value.node.has_hint():
        return value.node.hint
    expr, known = value.node.expr, getattr(value.node.shape_env, "backed_var_to_val", {})
    return value.node.pytype(expr.xreplace({symbol: known.get(symbol, of_data) for symbol in expr.free_symbols}))


def same_shape(expected: Sequence[Any], found: Sequence[Any]) -> bool:
    """Whether two shapes of one program are the same, size by size."""
    return len(expected) == len(found) and all(map(same_size, expected, found))


def same_size(expected: Any, found: Any) -> bool:
    """Whether two sizes of one program are equal in all runs, as far as can be determined; an `expected` size that is
    data-dependent matches anything. No guards are added."""
    if type(expected) is int and type(found) is int:
        return expected == found
    if expression(expected) == expression(found):
        return True
    # Cheapest test first: evaluation at samples is only needed for expressions that PyTorch cannot simplify.
    return is_data(expected) or surely(expected == found) or _same_where_tried(expected, found)


def expression(number: Any) -> Any:
    """A number, or the expression of a symbolic one, which can be compared without a guard."""
    return number.node.expr if isinstance(number, SYMBOLIC) else number


def symbols_in(values: Any) -> Iterator[Any]:
    """The symbols of the sizes and strides in metadata."""
    for leaf in tree_leaves(values):
        parts = (*leaf.shape, *strides_of(leaf)) if isinstance(leaf, torch.Tensor) else (leaf,)
        for part in parts:
            if isinstance(part, SYMBOLIC):
                yield from part.node.expr.free_symbols


def is_open(size: Any) -> bool:
    """Whether a size is symbolic, and not one that PyTorch has fixed since the tensor was made."""
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def settled(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes or strides, with those that PyTorch has fixed as numbers."""
    # `int` of a size without free symbols adds no guard.
    return tuple([size if type(size) is int or is_open(size) else int(size) for size in sizes])


def has_fixed_sizes(value: Any) -> bool:
    """Whether a value is a tensor with static sizes."""
    return isinstance(value, torch.Tensor) and all([type(size) is int for size in value.shape])


def _same_where_tried(a: Any, b: Any) -> bool:
    """Whether two sizes, at least one of them symbolic, are equal for every tried assignment that guards allow:
    multiples of the sizes at capture, and sizes next to these."""
    symbolic = next((size for size in (a, b) if isinstance(size, torch.SymInt)), None)
    if symbolic is None:
        return bool(a == b)
    env = symbolic.node.shape_env
    exprs = [expression(size) for size in (a, b)]
    symbols = sorted(set().union(*(getattr(expr, "free_symbols", ()) for expr in exprs)), key=str)
    hints = getattr(env, "backed_var_to_val", {})
    if not symbols or any(symbol not in hints for symbol in symbols):
        return False
    tried = list(itertools.islice(_allowed(env, symbols, hints), TRIED))
    return len(tried) >= ENOUGH and all(_at(exprs[0], sizes) == _at(exprs[1], sizes) for sizes in tried)


def _allowed(env: Any, symbols: list[Any], hints: Mapping[Any, Any]) -> Iterator[dict[Any, Any]]:
    """Assignments of the symbols that violate no guard, with all other symbols at their captured values."""
    import sympy  # with symbolic sizes it has been imported already

    around = {symbol: sympy.sympify(value) for symbol, value in hints.items()}  # sizes, and numbers such as an eps
    # A fixed seed, so that the answer is reproducible.
    draw = random.Random(0)
    for _ in range(DRAWN):
        drawn = {s: around[s] * draw.choice(MULTIPLES) + draw.choice(OFFSETS) for s in symbols}
        sizes = {**around, **drawn}
        # With a symbol left the comparison is an expression, neither true nor false; such an assignment is passed over.
        if all(_at(guard.expr, sizes) == True for guard in env.guards):  # noqa: E712  a value of sympy
            yield sizes


def _at(expr: Any, sizes: Mapping[Any, Any]) -> Any:
    return expr.xreplace(sizes) if hasattr(expr, "xreplace") else expr


def combination(known: Sequence[Any], wanted: Any) -> list[int] | None:
    """Integer factors by which expressions add up to a wanted one, but for a constant; None if there are none that one
    elimination finds, or an expression is not linear."""
    import sympy  # with symbolic sizes it has been imported already

    known, wanted = [sympy.expand(each) for each in known], sympy.expand(wanted)
    symbols = sorted(set().union(wanted.free_symbols, *(each.free_symbols for each in known)), key=str)
    # Expressions that are not linear are left out, by a factor of 0.
    rows = [[each.coeff(symbol) for symbol in symbols] for each in (*known, wanted)]
    linear = [
        all(factor.is_Integer for factor in row) and (each - sum(map(sympy.Mul, row, symbols))).is_Integer
        for each, row in zip((*known, wanted), rows)
    ]
    if not known or not linear[-1]:
        return None
    columns = [row if is_linear else [0] * len(symbols) for row, is_linear in zip(rows[:-1], linear)]
    try:
        found, free = sympy.Matrix(columns).T.gauss_jordan_solve(sympy.Matrix(rows[-1]))
    except ValueError:  # there is no solution
        return None
    factors = found.subs(dict.fromkeys(free, 0))
    return [int(factor) for factor in factors] if all(factor.is_Integer for factor in factors) else None
