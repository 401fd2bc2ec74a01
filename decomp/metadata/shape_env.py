"""The `ShapeEnv` of a program belongs to the source, so a lowering must leave nothing behind in it. PyTorch 2.13 has no
public way to copy one, or to query its assumptions; its private attributes are accessed only here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
from dataclasses import dataclass
import sys
from typing import Any

import torch
from torch import fx

from decomp.errors import first_line
from decomp.metadata.symbolic_sizes import SYMBOLIC, guards_not_suppressed, quiet, uncached
from decomp.torch_internals.fakes import FakeTensor, FakeTensorMode
from decomp.torch_internals.pytree import tree_leaves


def shape_env_of(model: Any) -> Any:
    """The shape environment of a program with metadata, or None."""
    graph = getattr(model, "graph", None)
    if not isinstance(graph, fx.Graph):
        return None
    for node in graph.nodes:
        for leaf in tree_leaves(node.meta.get("val", node.meta.get("example_value"))):
            if isinstance(leaf, FakeTensor):
                return leaf.fake_mode.shape_env
            if isinstance(leaf, SYMBOLIC):
                return leaf.node.shape_env
    return None


class NewGuard(Exception):
    """A rule queried a dynamic size in a way that requires a guard on the program."""


@contextlib.contextmanager
def refusing_guards(mode: FakeTensorMode | None) -> Iterator[list[str]]:
    """Inside this context a new guard raises `NewGuard`; the list collects the queries, even if the exception was
    caught. Queries of PyTorch itself, under a nested `without_guards`, are answered."""
    env = mode.shape_env if mode is not None else None
    asked: list[str] = []
    if env is None:
        yield asked
        return

    from decomp.torch_internals.sizes import errors_on_new_guards

    # torch 2.13 calls this method before it adds a guard; `error_on_new_guards` keeps no record of refused ones.
    def refuse(expr: Any, value: Any) -> None:
        if env._error_on_new_guards:
            asked.append(f"{expr} == {value}")
            raise NewGuard(asked[-1])

    # An attribute of the object hides the method of the class; a nested context must leave that of the outer one in
    # place.
    outer = env.__dict__.get("_check_frozen")
    env._check_frozen = refuse
    try:
        with errors_on_new_guards(env), guards_not_suppressed(), quiet(env.log):
            yield asked
    except Exception as error:
        # By name, as importing the class takes 0.25 s.
        if any(type(each).__name__ == "GuardOnDataDependentSymNode" for each in _causes(error)):
            raise NewGuard(first_line(error)) from error
        # PyTorch wraps exceptions that are raised while it evaluates a size in others of its own.
        if asked and not isinstance(error, NewGuard) and any(isinstance(each, NewGuard) for each in _causes(error)):
            raise NewGuard(asked[-1]) from error
        raise
    finally:
        del env._check_frozen
        if outer is not None:
            env._check_frozen = outer


@contextlib.contextmanager
def sizes_never_one(mode: FakeTensorMode) -> Iterator[None]:
    """Inside this context a dynamic size is not specialised to 1, and broadcast, because the example's is; nor are
    results used that the mode cached when it was."""
    from decomp.torch_internals.sizes import sizes_config  # takes 0.25 s, unless sizes are dynamic

    with uncached(mode), sizes_config.patch(backed_size_oblivious=True):
        yield


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class Snapshot:
    """The state of a shape environment, to be restored."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.saved = {name: _copied(value) for name, value in vars(env).items()} if env is not None else {}

        self.kept: dict[str, dict[Any, Any]] = {}
        """Entries to be kept: those of new symbols that the result has."""

    def keep(self, result: Any) -> None:
        """Keep the entries of new symbols of data-dependent sizes that occur in the metadata of `result`."""
        if self.env is None or self.env.var_to_range.keys() <= self.saved["var_to_range"].keys():
            return
        # Every symbol has a range, so that new symbols are those that have none in the saved state.
        new = self.env.var_to_range.keys() - self.saved["var_to_range"].keys()
        used = new & _symbols_of(result)
        for name, value in vars(self.env).items():
            if isinstance(value, dict) and used & value.keys():
                self.kept[name] = {symbol: value[symbol] for symbol in used & value.keys()}

    def restore(self) -> None:
        """Undo all changes since. Containers keep their identity."""
        if self.env is None:
            return
        now = vars(self.env)
        for name, entries in self.kept.items():
            self.saved[name].update(entries)
        changed = {name: old for name, old in self.saved.items() if not _same(now.get(name), old)}
        for name in now.keys() - self.saved.keys():
            del now[name]
        for name, old in changed.items():
            # A version that came twice would make an entry of a cache valid for another state.
            if name in _VERSIONS:
                continue
            # Other objects hold references to these containers, so they are refilled rather than replaced.
            if not _refilled(now.get(name), old):
                now[name] = old
        if any(name not in _NEUTRAL for name in changed):
            self._forget_answers()

    def _forget_answers(self) -> None:
        """Clear results derived from a state that is gone: they are cached by the version of the state, and by
        query."""
        for name in _VERSIONS:
            setattr(self.env, name, getattr(self.env, name, 0) + 1)
        # Its methods are cached on the class, for all environments; the others compute their answers again.
        for value in vars(type(self.env)).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def _symbols_of(program: Any) -> set[Any]:
    """The symbols in the sizes that the nodes of a program have."""
    module = getattr(program, "graph_module", program)
    graphs = [inner.graph for inner in module.modules() if isinstance(inner, fx.GraphModule)]
    values = [leaf for graph in graphs for node in graph.nodes for leaf in tree_leaves(node.meta.get("val"))]
    sizes = [size for value in values for size in (value.shape if isinstance(value, torch.Tensor) else (value,))]
    return {symbol for size in sizes if isinstance(size, SYMBOLIC) for symbol in size.node.expr.free_symbols}


_VERSIONS = ("_version_counter", "_replacements_version_counter")
"""Version numbers of the state, which are never reused."""
_NEUTRAL = frozenset({"counter", "frozen", "_error_on_new_guards", "_expr_sym_node_id", "log"})
"""Attributes that do not affect any query."""


def _copied(value: Any) -> Any:
    """`value`, with containers copied recursively."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, set)):
        return type(value)(value)
    return value


def _same(now: Any, old: Any) -> bool:
    if isinstance(old, dict):
        return (
            isinstance(now, dict)
            and len(now) == len(old)
            and all(key in now and _same(now[key], item) for key, item in old.items())
        )
    if isinstance(old, list):
        return isinstance(now, list) and len(now) == len(old) and all(a is b for a, b in zip(now, old))
    if isinstance(old, set):
        return isinstance(now, set) and now == old
    if isinstance(old, (int, bool)):
        return bool(now == old)
    return now is old


def _refilled(now: Any, old: Any) -> bool:
    """Put the items of `old` into `now`, if it is a container."""
    if isinstance(now, dict) and isinstance(old, dict):
        inner = {key: now[key] for key in old if key in now}
        now.clear()
        now.update({key: inner[key] if _refilled(inner.get(key), item) else item for key, item in old.items()})
        return True
    if isinstance(now, list) and isinstance(old, list):
        now[:] = old
        return True
    if isinstance(now, set) and isinstance(old, set):
        now.clear()
        now.update(old)
        return True
    return False


@dataclass(frozen=True, slots=True)
class SymbolFacts:
    """What is known of the symbol of an open size."""

    minimum: int | None
    maximum: int | None
    example: int | None
    """Its value for the example inputs; None if it depends on data."""


def facts_of(env: Any, symbol: Any) -> SymbolFacts:
    """What an environment knows of a symbol."""
    known = env.var_to_range.get(symbol)
    # Both names exist on torch 2.13, where the older one warns.
    values = getattr(env, "backed_var_to_val", None)
    example = (env.var_to_val if values is None else values).get(symbol)
    lower, upper = (None, None) if known is None else (_finite(known.lower), _finite(known.upper))
    return SymbolFacts(lower, upper, None if example is None else int(example))


def _finite(bound: Any) -> int | None:
    """A bound of a range; None where there is no limit that a size could exceed."""
    # PyTorch writes "no limit" as `int_oo`, which is no Integer, or as sys.maxsize − 1.
    return int(bound) if bound.is_Integer and abs(int(bound)) < sys.maxsize - 1 else None


def new_sizes(env: Any, mode: FakeTensorMode, facts: Mapping[str, SymbolFacts]) -> dict[str, Any]:
    """A symbolic size of `env` for each symbol, with its range."""
    from decomp.torch_internals.sizes import ConstantSource, DimDynamic, StatelessSymbolicContext, ValueRanges

    made: dict[str, Any] = {}
    for name, each in facts.items():
        if each.example is None:
            size = env.create_unbacked_symint()
        else:
            context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
            # PyTorch makes a backed symbol only for a dimension of a tensor. This one costs a byte for each element.
            example = torch.empty(each.example, dtype=torch.bool)
            fake = mode.from_tensor(example, source=ConstantSource(name), symbolic_context=context)
            size = fake.shape[0]
        known = env.var_to_range[size.node.expr]
        lower = known.lower if each.minimum is None else each.minimum
        upper = known.upper if each.maximum is None else each.maximum
        env.var_to_range[size.node.expr] = ValueRanges(lower, upper)
        made[name] = size
    env._update_version_counter()
    return made
