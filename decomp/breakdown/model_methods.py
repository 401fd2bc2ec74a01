"""Several methods of one model in one report: its prefill and its decode, or its vision tower. They share weights,
which are counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from decomp.breakdown.accounts import ProgramAccount
from decomp.costs.plans import spell_bytes
from decomp.costs.sizes import nbytes
from decomp.derive.decisions import Plan
from decomp.errors import ArgumentError, boundary, count_noun
from decomp.tables import Table, folded, titled

if TYPE_CHECKING:
    from decomp.lowering import Lowering


@dataclass(frozen=True, slots=True)
class MethodCost:
    """One method of a model: what it needs and what it costs."""

    name: str
    before: int
    """Calls of the source."""
    after: int
    """Calls that they became; those of a plan are not simplified yet."""
    ops: Mapping[str, int]
    """The ops of these, and how often each is called, the most frequent first."""
    operations: float
    """Of the lowered calls, as `decomp.costs.flops` counts them."""
    moved: float
    """Bytes that the lowered calls read and write, by `decomp.costs.bytes`: each call on its own."""
    weights: int
    """Bytes of its parameters and buffers."""
    inputs: int
    """Bytes of its inputs, a cache among them."""
    peak: int
    """Most bytes of results alive at once: of the lowered program, or of the source if it was only planned."""
    blocked: tuple[str, ...]
    """Ops that do not reach the target."""


@dataclass(frozen=True)
class Methods:
    """Several methods of a model on one target. `print(methods)` shows them."""

    target: str
    methods: tuple[MethodCost, ...]
    weights: int
    """Bytes of the parameters and buffers of all methods, each counted once."""

    @staticmethod
    @boundary("Methods.of")
    def of(lowered: Mapping[str, Plan | Lowering]) -> Methods:
        """What several programs that share their weights, such as prefill and decode, need and cost together.

        - `lowered`: by name, the plan or the lowering of each, all to one target. A weight that several have is counted
          once: one that is the same tensor, or, in programs that were loaded apart, has the same name, shape and dtype.

        Raises `ArgumentError`, and `CostError` for a program without metadata.
        """
        return _of(lowered)

    @property
    def ops(self) -> dict[str, dict[str, int]]:
        """By op, how often each method that needs it calls it; those that most methods need come first."""
        names = dict.fromkeys(op for method in self.methods for op in method.ops)
        found = {op: {each.name: each.ops[op] for each in self.methods if op in each.ops} for op in names}
        return dict(sorted(found.items(), key=lambda item: (-len(item[1]), -sum(item[1].values()))))

    @property
    def blocked(self) -> tuple[str, ...]:
        """Ops that do not reach the target, of any method."""
        return tuple(dict.fromkeys(op for method in self.methods for op in method.blocked))

    @property
    def complete(self) -> bool:
        """Whether every method can be lowered."""
        return not self.blocked

    def table(self) -> Table:
        """A row for each method, and one for all of them."""
        columns = (
            "method",
            ">calls",
            ">lowered",
            ">ops",
            ">operations",
            ">bytes moved",
            ">weights",
            ">inputs",
            ">peak",
        )
        rows = [_cells(each) for each in self.methods]
        widest = max((each.peak for each in self.methods), default=0)
        all_of = (
            "all, weights once",
            "",
            "",
            len(self.ops),
            "",
            "",
            spell_bytes(self.weights),
            "",
            spell_bytes(widest),
        )
        return Table((*columns, "blocked"), [*rows, (*all_of, "")])

    def table_of_ops(self) -> Table:
        """How often each method calls each op."""
        rows = [(op, *(counts.get(each.name, "") for each in self.methods)) for op, counts in self.ops.items()]
        return Table(("op", *(f">{each.name}" for each in self.methods)), rows)

    @property
    def headline(self) -> str:
        """`2 methods on tinygrad: 28 ops, weights of 138 GB`."""
        counted = f"{count_noun(len(self.ops), 'op')}, weights of {spell_bytes(self.weights)}"
        return f"{count_noun(len(self.methods), 'method')} on {self.target}: {counted}"

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {"target": self.target, "weights": self.weights, "methods": [asdict(each) for each in self.methods]}

    def __repr__(self) -> str:
        return f"<{self.headline}; print(methods) shows them>"

    def __str__(self) -> str:
        return "\n".join((self.headline, *self.table().lines("  "), "", *self.table_of_ops().lines("  ")))

    def _repr_html_(self) -> str:
        return titled(self.headline, self.table().html(), folded("ops of each", self.table_of_ops().html()))


def _of(lowered: Mapping[str, Plan | Lowering]) -> Methods:
    accounts = {name: _account(name, each) for name, each in _named(lowered).items()}
    targets = list(dict.fromkeys(account.target for account in accounts.values()))
    if len(targets) > 1:
        raise ArgumentError(
            f"the methods are lowered to several targets, {' and '.join(targets)}\n"
            "  to do: pass lowerings to one target, and compare targets by a report of each"
        )
    found = tuple(_method(name, account) for name, account in accounts.items())
    return Methods(targets[0], found, _bytes_once(account.weights for account in accounts.values()))


def _named(lowered: Any) -> Mapping[str, Any]:
    if not isinstance(lowered, Mapping) or not lowered:
        raise ArgumentError(f"Methods.of() takes plans or lowerings by name, not {lowered!r:.60}")
    return lowered


def _account(name: str, lowered: Any) -> ProgramAccount:
    accounted = getattr(lowered, "account", None)
    if accounted is None:
        raise ArgumentError(
            f"{name!r} is of type {type(lowered).__name__}, not a plan or a lowering\n"
            "  to do: pass what decomp.plan or decomp.lower returns"
        )
    found: ProgramAccount = accounted()
    return found


def _method(name: str, account: ProgramAccount) -> MethodCost:
    ops = Counter(call.op for call in account.after)
    return MethodCost(
        name,
        len(account.before),
        len(account.after),
        dict(ops.most_common()),
        sum(call.operations for call in account.after),
        sum(call.moved for call in account.after),
        _bytes_once([account.weights]),
        account.inputs,
        account.peak,
        tuple(dict.fromkeys(blocker.op for blocker in account.blockers)),
    )


def _bytes_once(programs: Iterable[Mapping[str, torch.Tensor]]) -> int:
    """The bytes of the weights of some programs. A weight counts once if it is the same tensor as one before, or has
    the name, shape and dtype of one of another program."""
    total, tensors, named = 0, set[int](), set[Any]()
    for weights in programs:
        new = [(name, tuple(each.shape), each.dtype, each) for name, each in weights.items()]
        for *key, tensor in new:
            if id(tensor) not in tensors and tuple(key) not in named:
                total += nbytes(tensor)
            tensors.add(id(tensor))
        named.update(tuple(key) for *key, _ in new)
    return total


def _cells(each: MethodCost) -> tuple[Any, ...]:
    counts = f"{each.before:,}", f"{each.after:,}", len(each.ops)
    sizes = map(spell_bytes, (each.moved, each.weights, each.inputs, each.peak))
    return (each.name, *counts, f"{each.operations:.3g}", *sizes, ", ".join(each.blocked))
