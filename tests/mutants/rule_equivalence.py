"""Whether a mutant of a rule computes the same as the rule, by proof: both are traced, and their graphs brought to one
form. Under `where`, what the mask has decided is known; comparisons of one value with numbers are decided by the
numbers and their neighbours, between which no such comparison changes. What a mask leaves out is not part of the form.
Values are proved so; gradients of what is left out are 0 times a slope, and are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
import math
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

Facts = frozenset[tuple[int, bool]]
"""Predicates, by number, and what they are known to be for the element that is looked at."""

BUDGET = 200_000
"""So many steps at most: beyond, nothing is proved."""


class Unproved(Exception):
    """There are too many forms, or something cannot be traced."""


def reached(one: Callable[..., Any], other: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether what differs between two functions is used for their results."""
    forms = _Forms()
    try:
        first, second = (forms.read(make_fx(lambda *args: function(args))(*tensors)) for function in (one, other))
    except Exception:
        return True
    return first != second


def same(one: Callable[..., Any], other: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether two functions of a list of tensors, of these shapes and dtypes, are proved to have the same values."""
    forms = _Forms()
    try:
        first, second = (forms.read(make_fx(lambda *args: function(args))(*tensors)) for function in (one, other))
        forms.look_around()
        return bool(first) and [forms.of(number) for number in first] == [forms.of(number) for number in second]
    except Exception:  # whatever tracing a mutant raises proves nothing
        return False


@dataclass(frozen=True)
class _Node:
    """One operation of either graph."""

    op: str
    args: tuple[Any, ...]
    """Numbers of nodes as `_Ref`, everything else as it is."""
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class _Ref:
    number: int


_PASSED = {"clone", "detach", "alias", "lift_fresh_copy", "lift_fresh", "expand_as"}
_COMPARED = {"lt": "__lt__", "le": "__le__", "gt": "__gt__", "ge": "__ge__", "eq": "__eq__", "ne": "__ne__"}
_JOINED = {"logical_and": all, "bitwise_and": all, "logical_or": any, "bitwise_or": any}
_ALONG = {"_softmax", "_log_softmax", "sum", "amax", "amin"}
"""Operations each of whose results depends on one line alone."""
_VIEWS = {"slice", "select", "view", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand"}
"""Operations that say where elements are, and do nothing to them."""
_FOLDED = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "neg": torch.neg, "abs": torch.abs}


class _Forms:
    """Operations and their forms, numbered, so that equal ones have one number."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self.numbers: dict[Any, int] = {}
        self.pointwise: dict[str, bool] = {}
        self.known: dict[tuple[int, Facts], int] = {}
        self.steps = 0
        self.targets: dict[str, Any] = {}
        self.around: set[float] = set()
        self.held: dict[int, torch.Tensor] = {}
        """What depends on no input. Masks among it count as what they are; numbers as how they are computed, for others
        would follow from other sizes and factors."""

    def read(self, module: fx.GraphModule) -> list[int]:
        """The numbers of the outputs of a traced graph."""
        numbers: dict[fx.Node, Any] = {}
        for node in module.graph.nodes:
            if node.op == "output":
                leaves = torch.utils._pytree.tree_leaves(node.args[0])
                return [self._numbered(numbers, leaf).number for leaf in leaves if isinstance(leaf, fx.Node)]
            numbers[node] = self._read(module, node, numbers)
        raise Unproved

    def _numbered(self, numbers: dict[fx.Node, Any], leaf: Any) -> Any:
        return numbers[leaf] if isinstance(leaf, fx.Node) else leaf

    def _read(self, module: fx.GraphModule, node: fx.Node, numbers: dict[fx.Node, Any]) -> Any:
        value = node.meta.get("val")
        shape, dtype = (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else ((), None)
        if node.op == "placeholder":
            return self._add(_Node("input", (node.name,), shape, dtype))
        if node.op == "get_attr":
            held = getattr(module, node.target)
            return self._hold(held)
        args = fx.map_arg(node.args, lambda leaf: numbers[leaf])
        kwargs = fx.map_arg(dict(node.kwargs), lambda leaf: numbers[leaf])
        name = getattr(node.target, "_opname", getattr(node.target, "__name__", str(node.target)))
        if name in _PASSED:
            return args[0]
        if name in ("full", "scalar_tensor", "zeros", "ones", "full_like", "zeros_like", "ones_like"):
            fill = {"z": 0, "o": 1}.get(name[0], args[0] if name == "scalar_tensor" else args[1] if args[1:] else None)
            if isinstance(fill, (int, float, bool)):
                found = self._add(_Node("constant", (self._exactly(fill, dtype),), shape, dtype))
                self.held[found.number] = torch.full(shape, fill, dtype=dtype)
                return found
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise Unproved
        refs = [leaf for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(leaf, _Ref)]
        known = None
        if dtype is not None and all(ref.number in self.held for ref in refs) and math.prod(shape) <= 4096:
            known = node.target(*self._concrete(args), **self._concrete(kwargs))
        if dtype is torch.bool and known is not None:
            return self._hold(known)
        tags = getattr(node.target, "tags", ())
        self.targets[name] = node.target
        self.pointwise[name] = torch.Tag.pointwise in tags or name in ("where", "_to_copy", "polar")
        rest = tuple((key, _frozen(kwargs[key])) for key in sorted(kwargs) if key not in ("device", "pin_memory"))
        found = self._add(_Node(name, (*(_frozen(arg) for arg in args), *rest), shape, dtype))
        if known is not None:
            self.held[found.number] = known
        return found

    def _hold(self, value: torch.Tensor) -> _Ref:
        found = self._add(_Node("held", (repr(value.tolist()),), tuple(value.shape), value.dtype))
        self.held[found.number] = value
        return found

    def _concrete(self, value: Any) -> Any:
        return fx.node.map_aggregate(value, lambda leaf: self.held[leaf.number] if isinstance(leaf, _Ref) else leaf)

    def _exactly(self, value: Any, dtype: Any) -> str:
        return repr(torch.tensor(value, dtype=dtype).item())

    def _add(self, node: _Node) -> _Ref:
        number = self.numbers.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return _Ref(number)

    # Forms

    def of(self, number: int, facts: Facts = frozenset()) -> int:
        """The form of an operation where these facts hold."""
        if (number, facts) not in self.known:
            self._step()
            self.known[number, facts] = self._formed(number, facts)
        return self.known[number, facts]

    def _formed(self, number: int, facts: Facts) -> int:
        node = self.nodes[number]
        if node.op in ("input", "held", "constant", "selection"):
            return number
        selected = self._selected(number, facts)
        if selected is not None:
            return selected
        if node.op == "where":
            return self._where(node, facts)
        if node.op in _JOINED and node.dtype is torch.bool:
            return self._joined(node, facts)
        if node.op == "_to_copy" and self._dtype(node.args[0]) is torch.bool and node.dtype.is_floating_point:
            one, none = (self._add(_Node("constant", (repr(v),), (), node.dtype)).number for v in (1.0, 0.0))
            mask = node.args[0].number
            return self._choice(node, self.of(mask, facts), one, none)
        viewed = self._viewed(node, facts) if node.op in _VIEWS else None
        if viewed is not None:
            return viewed
        kept = facts if self.pointwise[node.op] else self._along(node, facts)
        args = _mapped(node.args, lambda ref: _Ref(self.of(ref.number, kept)))
        return self._hoisted(_Node(node.op, args, node.shape, node.dtype))

    def _joined(self, node: _Node, facts: Facts) -> int:
        """Two predicates together: the second counts where the first does not decide alone."""
        first, second = (arg.number for arg in node.args)
        later = facts | self._implied(first, _JOINED[node.op] is all)
        args = (_Ref(self.of(first, facts)), _Ref(self.of(second, later)))
        return self._add(_Node(node.op, args, node.shape, node.dtype)).number

    def _where(self, node: _Node, facts: Facts) -> int:
        mask = node.args[0].number
        if mask in self.held:
            return self._among(node, *self._sides(node), facts)
        decided = self._decided(mask, facts)
        if decided is not None:
            return self._branch(node, node.args[1 if decided else 2], facts)
        yes = self._branch(node, node.args[1], facts | self._implied(mask, True))
        no = self._branch(node, node.args[2], facts | self._implied(mask, False))
        return self._choice(node, self.of(mask, facts), yes, no)

    def _sides(self, node: _Node) -> tuple[torch.Tensor, Callable[[Facts], int], Callable[[Facts], int]]:
        yes, no = (lambda facts, arg=arg: self._branch(node, arg, facts) for arg in node.args[1:3])
        return self.held[node.args[0].number], yes, no

    def _among(
        self, node: _Node, mask: torch.Tensor, yes: Callable[[Facts], int], no: Callable[[Facts], int], facts: Facts
    ) -> int:
        """A choice by a mask that is known, of which only what the facts allow counts."""
        region = torch.ones((), dtype=torch.bool)
        for number, holds in facts:
            if number in self.held:
                region = region & (self.held[number] == holds)
        if not (mask & region).any():
            return no(facts)
        if not (~mask & region).any():
            return yes(facts)
        here = self._hold((mask & region).contiguous()).number
        chosen = self._hold(mask.contiguous()).number
        return self._choice(node, here, yes(facts | {(chosen, True)}), no(facts | {(chosen, False)}))

    def _viewed(self, node: _Node, facts: Facts) -> int | None:
        """A view of a choice by a mask that is known, as a choice of views."""
        inner = self.nodes[self.of(node.args[0].number)]
        if inner.op != "where" or inner.args[0].number not in self.held:
            return None
        sides = [self.nodes[arg.number] for arg in inner.args[1:]]
        if any(side.op != "constant" and side.shape != inner.shape for side in sides):
            return None

        def seen(arg: _Ref, facts: Facts) -> int:
            if self.nodes[arg.number].op == "constant":
                return arg.number
            return self.of(self._add(_Node(node.op, (arg, *node.args[1:]), node.shape, node.dtype)).number, facts)

        mask = self.targets[node.op](self.held[inner.args[0].number].expand(inner.shape), *node.args[1:])
        yes, no = ((lambda facts, arg=arg: seen(arg, facts)) for arg in inner.args[1:])
        return self._among(node, mask, yes, no, facts)

    def _branch(self, node: _Node, arg: Any, facts: Facts) -> int:
        if isinstance(arg, _Ref):
            return self.of(arg.number, facts)
        return self._add(_Node("constant", (self._exactly(arg, node.dtype),), (), node.dtype)).number

    def _choice(self, node: _Node, mask: int, yes: int, no: int) -> int:
        if self._bare(yes) == self._bare(no):
            return yes
        return self._add(_Node("where", (_Ref(mask), _Ref(yes), _Ref(no)), node.shape, node.dtype)).number

    def _bare(self, number: int) -> Any:
        node = self.nodes[number]
        return (node.args, node.dtype) if node.op == "constant" else number

    def _hoisted(self, node: _Node) -> int:
        """An operation on choices by one mask as a choice of its results, where that leaves a number."""
        given = [arg.number for arg in node.args if isinstance(arg, _Ref)]
        choices = {self.nodes[n].args[0] for n in given if self.nodes[n].op == "where"}
        simple = all(self.nodes[n].op in ("where", "constant") for n in given)
        if node.op not in _FOLDED or not simple or len(choices) > 1:
            return self._add(node).number
        if not choices:
            return self._folded(node)
        sides = []
        for place in (1, 2):
            picked = (self.nodes[n].args[place].number if self.nodes[n].op == "where" else n for n in given)
            rest = iter([_Ref(n) for n in picked])
            args = tuple(next(rest) if isinstance(arg, _Ref) else arg for arg in node.args)
            sides.append(self._hoisted(_Node(node.op, args, node.shape, node.dtype)))
        if not any(self.nodes[side].op == "constant" for side in sides):
            return self._add(node).number
        return self._choice(node, choices.pop().number, *sides)

    def _folded(self, node: _Node) -> int:
        if any(isinstance(arg, tuple) for arg in node.args):
            return self._add(node).number
        values = [self._value(arg.number) if isinstance(arg, _Ref) else torch.tensor(arg) for arg in node.args]
        result = _FOLDED[node.op](*values)
        return self._add(_Node("constant", (self._exactly(result.item(), node.dtype),), (), node.dtype)).number

    def _value(self, number: int) -> torch.Tensor:
        node = self.nodes[number]
        return torch.tensor(eval(node.args[0], {"nan": math.nan, "inf": math.inf}), dtype=node.dtype)

    def _dtype(self, arg: Any) -> Any:
        return self.nodes[arg.number].dtype if isinstance(arg, _Ref) else None

    def _along(self, node: _Node, facts: Facts) -> Facts:
        """The facts that hold for a whole line."""
        if node.op not in _ALONG or not isinstance(node.args[0], _Ref) or not node.args[1:]:
            return frozenset()
        if len(self.nodes[node.args[0].number].shape) != len(node.shape):
            return frozenset()  # dimensions are gone, and with them which element is which
        dims = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        rank = len(node.shape)
        return frozenset((n, v) for n, v in facts if self._constant_along(self.nodes[n].shape, dims, rank))

    def _constant_along(self, shape: tuple[int, ...], dims: Iterable[int], rank: int) -> bool:
        padded = (*[1] * (rank - len(shape)), *shape)
        return len(padded) == rank and all(padded[d] == 1 for d in dims)

    def _step(self) -> None:
        self.steps += 1
        if self.steps > BUDGET:
            raise Unproved

    # Predicates

    def _implied(self, number: int, holds: bool) -> Facts:
        """The consequences of a predicate that holds, or does not."""
        node, found = self.nodes[number], {(number, holds)}
        parts = [arg.number for arg in node.args if isinstance(arg, _Ref)]
        if node.op in ("logical_not", "bitwise_not") and node.dtype is torch.bool:
            found |= self._implied(parts[0], not holds)
        elif node.op in _JOINED and node.dtype is torch.bool and holds is (_JOINED[node.op] is all):
            for part in parts:
                found |= self._implied(part, holds)
        return frozenset(found)

    def _decided(self, number: int, facts: Facts) -> bool | None:
        """Whether a predicate holds, if the facts tell."""
        for holds in (True, False):
            if any((n, holds) in facts for n in (number, self.of(number))):
                return holds
        node = self.nodes[number]
        if node.op in ("logical_not", "bitwise_not") and node.dtype is torch.bool:
            inner = self._decided(node.args[0].number, facts)
            return None if inner is None else not inner
        if node.op in _JOINED and node.dtype is torch.bool:
            parts = [self._decided(arg.number, facts) for arg in node.args]
            every = _JOINED[node.op] is all
            if (not every) in parts:
                return not every
            return every if parts == [every] * len(parts) else None
        form = self.nodes[self.of(number, facts)]
        if form.op == "constant":
            return form.args[0] == "True"
        outcomes = set(form.args[1]) if form.op == "selection" and node.dtype is torch.bool else set()
        return outcomes.pop() == "True" if len(outcomes) == 1 else None

    def look_around(self) -> None:
        """Note with what numbers each value is compared, and which others stand beside it."""
        numbers = {0.0, 1.0}
        for node in self.nodes:
            if node.op in _COMPARED or node.op in ("constant", "where"):
                numbers |= {v for v in map(self._number, node.args) if v is not None}
                if node.op == "constant":
                    numbers |= {
                        float(v) for v in [self._value(self.numbers[node]).item()] if not isinstance(v, complex)
                    }
        self.around = {n for n in numbers if n == n} | {-n for n in numbers if n == n}

    def _number(self, arg: Any) -> float | None:
        return float(arg) if isinstance(arg, (int, float)) and not isinstance(arg, bool) else None

    def _selected(self, number: int, facts: Facts) -> int | None:
        """The form of what is chosen by comparisons of one value with numbers, from that value and numbers: a list of
        what it is at each number and its next two neighbours, as far as the facts allow it."""
        node = self.nodes[number]
        if node.op != "where" and node.dtype is not torch.bool:
            return None
        bases = self._bases(number)
        if bases == set():
            return self._add(_Node("constant", (repr(self._at(number, -1, None)),), node.shape, node.dtype)).number
        if bases is None or len(bases) != 1:
            return None
        base = bases.pop()
        if self.nodes[base].dtype.is_complex or self.nodes[base].dtype is torch.bool:
            return None
        held = [(n, v) for n, v in facts if self._bases(n) == {base}]
        points = [p for p in self._points(self.nodes[base].dtype) if all(self._at(n, base, p) == v for n, v in held)]
        outcomes = tuple(repr(self._at(number, base, p)) for p in points)
        return self._add(_Node("selection", (_Ref(self.of(base, facts)), outcomes), node.shape, node.dtype)).number

    def _bases(self, number: int) -> set[int] | None:
        """The values that a selection looks at; None if it is none."""
        node = self.nodes[number]
        if node.op == "constant":
            return set()
        if node.op == "abs":
            return self._bases(node.args[0].number)
        is_choice = node.op == "where" or node.dtype is torch.bool and node.op in (*_COMPARED, *_JOINED, "_to_copy")
        if is_choice or node.op in ("logical_not", "bitwise_not") and node.dtype is torch.bool:
            found: set[int] = set()
            for arg in node.args:
                part = self._bases(arg.number) if isinstance(arg, _Ref) else set()
                if part is None or isinstance(arg, tuple) and node.op != "_to_copy":
                    return None
                found |= part
            return found
        return None if node.dtype is torch.bool else {number}

    def _points(self, dtype: torch.dtype) -> list[Any]:
        if not dtype.is_floating_point:
            limits = torch.iinfo(dtype)
            wholes = {int(n) + step for n in self.around if abs(n) < 2**62 for step in range(-2, 3)}
            return sorted({n for n in wholes if limits.min <= n <= limits.max} | {limits.min, limits.max})
        marks = torch.tensor(sorted(self.around), dtype=torch.float64).to(dtype)
        found = [marks, torch.tensor([math.inf, -math.inf, math.nan, -0.0], dtype=dtype)]
        for end in (math.inf, -math.inf):
            step = torch.nextafter(marks, torch.tensor(end, dtype=dtype))
            found += [step, torch.nextafter(step, torch.tensor(end, dtype=dtype))]
        return list(torch.cat(found).tolist())

    def _at(self, number: int, base: int, point: Any) -> Any:
        """What a selection is where its value is this point."""
        self._step()
        node = self.nodes[number]
        if number == base:
            return point
        if node.op == "constant":
            return self._value(number).item()
        parts = [self._at(a.number, base, point) if isinstance(a, _Ref) else a for a in node.args]
        if node.op == "abs":
            return torch.tensor(parts[0], dtype=node.dtype).abs().item()  # of the least integer that integer
        if node.op == "where":
            return parts[1 if parts[0] else 2]
        if node.op == "_to_copy":
            return bool(parts[0])
        if node.op in _COMPARED:
            return getattr(_in(parts[0], self, node), _COMPARED[node.op])(_in(parts[1], self, node)).item()
        return _JOINED[node.op](parts) if node.op in _JOINED else not parts[0]


def _in(value: Any, forms: _Forms, node: _Node) -> torch.Tensor:
    """A number in the dtype in which a comparison is made."""
    dtypes = [forms.nodes[arg.number].dtype for arg in node.args if isinstance(arg, _Ref)]
    return torch.tensor(value, dtype=dtypes[0] if not isinstance(value, bool) else None)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, (list, tuple)) else value


def _mapped(value: Any, change: Callable[[_Ref], Any]) -> Any:
    if isinstance(value, _Ref):
        return change(value)
    return tuple(_mapped(each, change) for each in value) if isinstance(value, tuple) else value
