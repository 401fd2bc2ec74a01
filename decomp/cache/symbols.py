"""The symbols of open sizes in one call, numbered, so that programs share what was recorded of it. Two calls are the
same if they are equal once symbols are numbered, and their programs know the same of these: the size in the example,
the range, and the conditions that guards set. Expressions are kept as trees of known operations."""

from __future__ import annotations

import re
from typing import Any

from decomp.metadata.symbolic_sizes import expression, symbols_in


class NotSerialisable(Exception):
    """A value that cannot be serialised, or malformed text."""


class Symbols:
    """The symbols in the metadata of one call of a program."""

    def __init__(self, values: Any, env: Any) -> None:
        """`values`: the metadata of the operands and of the result. Raises `NotSerialisable` if a size is
        data-dependent, and so has no example."""
        import sympy  # with symbolic sizes it has been imported already

        self._env, self._all = env, list(dict.fromkeys(symbols_in(values)))
        if not env.backed_var_to_val.keys() >= set(self._all):
            raise NotSerialisable(self._all)
        self._numbers = {each: i for i, each in enumerate(self._all)}
        # With their assumptions, by which sympy orders and simplifies terms.
        self._renamed = {each: sympy.Symbol(f"n{i}", **each.assumptions0) for each, i in self._numbers.items()}
        self._sizes: dict[str, Any] = {}

    def known(self) -> list[str]:
        """What the program knows of the symbols."""
        env, known = self._env, set(self._all)
        asserted = [each.expr for deferred in env.deferred_runtime_asserts.values() for each in deferred]
        conditions = [expr for expr in (*(guard.expr for guard in env.guards), *asserted) if known >= expr.free_symbols]
        found = [f"{env.backed_var_to_val[each]} in {env.var_to_range.get(each)}" for each in self._all]
        # Sorted, as guards come in the order in which a program met them.
        return [*found, *sorted({self.renamed(each) for each in conditions})]

    def renamed(self, expr: Any) -> str:
        """An expression as text in numbered symbols."""
        return str(expr.xreplace(self._renamed))

    def written(self, size: Any) -> Any:
        """A size as data: a number, or a tree. Raises `NotSerialisable`."""
        return size if type(size) is int else ["open", self._tree(expression(size))]

    def _tree(self, expr: Any) -> Any:
        if expr in self._numbers:
            return ["symbol", self._numbers[expr]]
        if expr.is_Integer:
            return int(expr)
        name = type(expr).__name__
        if name not in _OPERATIONS:
            raise NotSerialisable(expr)
        return [name, *map(self._tree, expr.args)]

    def read(self, size: Any) -> Any:
        """The size of such data, of this program. Raises `NotSerialisable` for malformed data."""
        if type(size) is int:
            return size
        kind, tree = size
        if kind != "open":
            raise NotSerialisable(size)
        key = repr(tree)
        if key not in self._sizes:
            self._sizes[key] = self._env.create_symintnode(self._expression(tree), hint=None)
        return self._sizes[key]

    def _expression(self, tree: Any) -> Any:
        import sympy

        if type(tree) is int:
            return sympy.Integer(tree)
        name, *args = tree
        if name == "symbol":
            return self._all[args[0]]
        if name not in _OPERATIONS:
            raise NotSerialisable(tree)
        from decomp.torch_internals.sizes import sympy_functions

        return getattr(sympy if name in _OF_SYMPY else sympy_functions, name)(*map(self._expression, args))

    def unnamed(self, text: str) -> str:
        """A text with numbers in the place of the names of symbols."""
        numbers = {str(symbol): i for symbol, i in self._numbers.items()}
        # A size that PyTorch has fixed since is an expression without symbols.
        return re.sub(r"\b\w+\b", lambda found: _marked(numbers.get(found[0]), found[0]), text)

    def named(self, text: str) -> str:
        """The text for this program."""
        return re.sub(rf"{_MARK}(\d+){_MARK}", lambda found: str(self._all[int(found[1])]), text)


def _marked(number: int | None, word: str) -> str:
    return word if number is None else f"{_MARK}{number}{_MARK}"


_OF_SYMPY = frozenset({"Add", "Mul", "Pow"})
_OPERATIONS = _OF_SYMPY | {"FloorDiv", "CleanDiv", "CeilDiv", "Mod", "PythonMod", "Max", "Min", "PowByNatural"}
"""Operations of sizes: those of sympy, and those that PyTorch adds, which round or compare."""
_MARK = "\N{SYMBOL FOR SUBSTITUTE}"
"""Around the number of a symbol in a text; no text of a rule has it."""
