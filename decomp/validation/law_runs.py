"""Runs laws of simplification: the calls that a law replaced and their replacement run on the same operands, random
ones and special values. Each distinct application is run once, and results must be bitwise equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import math
from typing import Any

import torch
from torch import fx

from decomp.errors import first_line
from decomp.ir.agreement import same_bits
from decomp.ir.arguments import substituted
from decomp.ir.call import call_target
from decomp.ir.signature import described
from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.metadata.meta_values import on_host
from decomp.metadata.symbolic_sizes import size_hint
from decomp.ops import aten
from decomp.proof.correspondence import ValuesDiffer
from decomp.simplification.laws import constant_of
from decomp.simplification.replayed_rewrites import ReplayedRewrites
from decomp.simplification.simplifier import Simplified
from decomp.simplification.terms import Term
from decomp.torch_internals.fakes import unset_fake_temporarily
from decomp.validation.operands import NoOperands, unusual_operand
from decomp.validation.running_programs import call_node

LIMIT = 64
"""The most calls between the result of a law and its operands."""
NEAR = 256
"""How many calls between the operands of an image are searched for those that are computed from another."""
ELEMENTS = 1024
"""The number of elements of each operand to run an application on, in 3 to 64 turns."""


@dataclass(frozen=True)
class Application:
    """One application of laws: a node, the calls that computed it, and its image, the value that replaces it."""

    node: fx.Node
    laws: tuple[str, ...]
    calls: tuple[fx.Node, ...]
    """The calls that compute the node from the operands of its image, in order."""
    image: Term
    images: Mapping[fx.Node, Term]
    lowered: Collection[fx.Node]
    """The nodes below which views were moved: their value is a view of a value computed above them."""
    is_call: bool
    """Whether the image is a new call, and not an existing value."""
    above: Sequence[Term]
    """The calls that laws inserted above the image, the uppermost first."""
    root: Any
    derived: Sequence[Term] = ()
    """Operands of the image that are computed from other operands, such as views, and the calls between."""

    # A program of a hundred layers applies the same law a hundred times. Names by first occurrence make those
    # applications equal without comparing graphs up to isomorphism.
    def key(self) -> Any:
        """A key that is equal for applications that compute the same by the same laws."""
        names: dict[Term, str] = {}
        leaves = self._leaves()

        def named(operand: Term) -> str:
            known = operand in names
            name = names.setdefault(operand, f"%{len(names)}")
            number = constant_of(operand)
            # A constant belongs to the key, since a law may hold for some numbers only, as x · 1 = x.
            return name if known else f"{name}: {described(operand.value)}{'' if number is None else f' of {number!r}'}"

        made = [*self.above, self.image]
        calls_made = [(str(each.target), substituted((each.args, each.kwargs), named, Term)) for each in made]
        image = str(calls_made) if self.is_call else named(self.image)

        derived = [
            (named(each), str(each.target), substituted((each.args, each.kwargs), named, Term)) for each in self.derived
        ]

        def operand(node: fx.Node) -> _Name:
            path = _views_from(leaves, self.images[node], self.lowered)
            views = "".join(f"{view.target}{view.args[1:]}" for view in path)
            return _Name(views + named(path[0].args[0] if path else self.images[node]))

        calls = [
            (
                str(n.target),
                str(fx.map_arg((n.args, n.kwargs), operand)),
                names.setdefault(self.images[n], f"%{len(names)}"),
            )
            for n in self.calls
        ]
        return self.laws, str(self.image.target), image, str(derived), str(calls)

    @property
    def turns(self) -> int:
        """The number of turns: small operands hold few special values at a time."""
        shapes = [getattr(term.value, "shape", ()) for term in self._leaves()]
        smallest = min((math.prod(size_hint(size) or 1 for size in shape) for shape in shapes), default=ELEMENTS)
        # At least 3 turns, since special values meet each other
        # only by chance; at most 64, to limit the time for scalars.
        return max(3, min(64, ELEMENTS // max(smallest, 1)))

    def outcome(self, turn: int) -> tuple[Any, Any]:
        """The results of the node's calls, and of its image. Raises `NoOperands`, and what kernels raise."""
        values = self._operands(turn)
        found = dict(values)
        for node in self.calls:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda o: self._value(o, found))
            mine = call_node(node, self.root, args, kwargs)
            # The value that is already known stays: an operand of the
            # image is given, even if a call on the way computes it too.
            found.setdefault(self.images[node], mine)
        if not self.is_call:
            return mine, values[self.image]
        for term in (*self.above, self.image):
            args, kwargs = substituted((term.args, term.kwargs), values.__getitem__, Term)
            values[term] = call_target(term.target, *on_host(args, kwargs))
        return mine, values[self.image]

    def _operands(self, turn: int) -> dict[Term, Any]:
        """Values of the operands of the image: random, except those that are computed from others."""
        values: dict[Term, Any] = {}
        inner = [operand for each in self.derived for operand in each.operands]
        for i, term in enumerate(dict.fromkeys([*self._leaves(), *inner])):
            if term not in self.derived:
                # Operands of one turn have different seeds: with equal ones, x − y would be 0 everywhere.
                values[term] = _operand(term, 1 + i + 7 * turn)
        for term in self.derived:
            args, kwargs = substituted((term.args, term.kwargs), values.__getitem__, Term)
            values[term] = call_target(term.target, *on_host(args, kwargs))
        return values

    def _leaves(self) -> Sequence[Term]:
        return _leaves(self.image, self.is_call, self.above)

    def _value(self, operand: fx.Node, found: dict[Term, Any]) -> Any:
        """The value of an operand; arbitrary if the image does not depend on it."""
        term = self.images[operand]
        if term not in found:
            for view in _views_from(found, term, self.lowered):
                found[view] = view.target(found[view.args[0]], *view.args[1:])
        if term not in found:
            found[term] = _operand(term, 1 + len(found))
        return found[term]


class _Name:
    """A name whose repr has no quotes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _operand(term: Term, seed: int) -> Any:
    """A value of a term: its own if all elements are one constant, since laws read constants; else an unusual one."""
    value, number = unusual_operand(term.value, seed), constant_of(term)
    return value if number is None else torch.full_like(value, number)


def _leaves(image: Term, is_call: bool, above: Sequence[Term]) -> Sequence[Term]:
    """The values from which an image is computed, through the calls `above` it."""
    if not is_call:
        return (image,)
    operands = (operand for each in (*above, image) for operand in each.operands)
    return tuple(dict.fromkeys(operand for operand in operands if operand not in above))


def _derived_from(leaves: Sequence[Term]) -> tuple[Term, ...]:
    """The terms that are computed from other terms, and the calls between, in order."""
    if len(leaves) < 2:
        return ()
    first = min(leaf.owner for leaf in leaves)
    near = dict.fromkeys(leaves)
    for term in (waiting := list(near)):
        # What precedes all leaves is computed from none of them.
        more = [each for each in _operands_of(term) if each not in near and not each.owner < first]
        more = more[: max(0, NEAR - len(waiting))]
        near.update(dict.fromkeys(more))
        waiting += more
    derived: dict[Term, bool] = {}

    def is_derived(term: Term) -> bool:
        """Whether a term is computed from one of the leaves. Its operands are recorded before it."""
        if term not in derived:
            below = [each for each in _operands_of(term) if each in near]
            # A list and no generator: `any` would stop at the first, and the others would not be recorded.
            derived[term] = any([is_derived(each) or each in leaves for each in below])
        return derived[term]

    for term in near:
        is_derived(term)
    return tuple(term for term, found in derived.items() if found)


def _operands_of(term: Term) -> Sequence[Term]:
    """The operands of a call that can be run again; none for inputs and calls with effects."""
    return term.operands if term.op == "call_function" and term.target is not None else ()


def run_laws_of_graphs(simplified: Iterable[Simplified | None]) -> list[str]:
    """Run the laws by which graphs were simplified. Returns a phrase, or none if no laws were applied. Raises
    `ValuesDiffer`."""
    known: dict[Any, str | None] = {}
    for found in simplified:
        if found is not None:
            _run_laws(found, known)
    return [_phrase(known)] if known else []


def _run_laws(found: Simplified, known: dict[Any, str | None]) -> None:
    """Run each application of laws in a graph that is not in `known`, and record there why it could not be run, or
    None. Raises `ValuesDiffer`."""
    images = ReplayedRewrites(found)
    laws = found.settings.laws.by_name
    for node in found.subject.graph.nodes:
        image = images.visit(node)
        names = found.applied.get(node, ())
        # Laws that are not exact change the last places by intent; verification compares those with the whole program.
        if names and all(laws[name].exact for name in names):
            is_call = image.owner is node or node in found.merged
            above = images.inner.get(node, ())
            leaves = _leaves(image, is_call, above)
            calls = tuple(_calls_between(node, set(leaves), images))
            application = Application(
                node,
                names,
                calls,
                image,
                images.of,
                found.inner,
                is_call,
                above,
                found.subject.root,
            )
            _settle(application, leaves, known)


def _settle(application: Application, leaves: Sequence[Term], known: dict[Any, str | None]) -> None:
    """Run an application that is not in `known`, and record it there. Raises `ValuesDiffer`."""
    key = application.key()
    if key in known:
        return
    problem = _problem(application)
    # Most laws hold for any operands. Where results differ, an operand may be computed from another, and the law may
    # hold because of it; that computation can be the whole of a network, so it is run only then.
    if problem is not None and (derived := _derived_from(leaves)):
        application = replace(application, derived=derived)
        key = application.key()
        problem = _problem(application) if key not in known else known[key]
    if isinstance(problem, ValuesDiffer):
        raise problem
    known[key] = problem


def _views_from(known: Collection[Term], term: Term, lowered: Collection[fx.Node]) -> list[Term]:
    """The views through which a term shows a known value computed above a node; none if it shows none."""
    found: list[Term] = []
    while term.owner in lowered and term.target in (aten.view.default, aten.permute.default):
        found.insert(0, term)
        term = term.args[0]
        if term in known:
            return found
    return []


def _calls_between(node: fx.Node, leaves: set[Term], images: ReplayedRewrites) -> Iterator[fx.Node]:
    """The calls that compute a node from the operands of its image and from calls with effects, in order."""
    seen, waiting = {node}, [node]
    for current in waiting:
        operands = current.all_input_nodes if len(seen) < LIMIT else ()
        for operand in operands:
            # A call with effects is not run again: it may draw other random numbers or write to its operands.
            opaque = operand in images.around.effectful or not operand.op.startswith("call")
            known = opaque or images.of[operand] in leaves or _views_from(leaves, images.of[operand], images.inner)
            if operand not in seen and not known:
                seen.add(operand)
                waiting.append(operand)
    return iter(sorted(seen))


def _problem(application: Application) -> str | ValuesDiffer | None:
    """Why an application could not be run, or that its results differ; None if they have the same bits."""
    # Applications come from a program with fake tensors, and a mode that is still active would make these operands
    # fake too.
    with without_ambient_modes(), unset_fake_temporarily(), torch.no_grad():
        for turn in range(application.turns):
            try:
                mine, other = application.outcome(turn)
            except NoOperands as reason:
                return str(reason)
            except Exception as error:  # a kernel rejects random operands
                return f"a kernel rejects random operands: {first_line(error)}"
            if not same_bits(mine, other):
                laws = " and ".join(map(repr, application.laws))
                return ValuesDiffer(f"the law {laws} changes bits of {application.node.name!r}", None, application.node)
    return None


def _phrase(known: Mapping[Any, str | None]) -> str:
    """A phrase on how many were run, and why others were not."""
    left = Counter(reason for reason in known.values() if reason is not None)
    parts = [f"{len(known) - left.total()} of {len(known)} distinct applications of laws run, the same to the last bit"]
    return ", ".join([*parts, *(f"{count} not run: {reason}" for reason, count in left.items())])
