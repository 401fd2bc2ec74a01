"""Simplification of one graph: the needed terms of its normal form are emitted into a new graph, once each and in
order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
import itertools
import operator
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from decomp.capture.rebuild_exported import lifted_state, written_inputs
from decomp.functionalize.gradients import gradient_inputs
from decomp.graphs.graph_builder import own_memory
from decomp.graphs.rewrite import Rewrite
from decomp.ir.aliases import view_bases
from decomp.ir.arguments import substituted
from decomp.ir.module import BODY, Module, ProgramGraph
from decomp.ir.signature import is_symbolic
from decomp.metadata.fakes import is_apart, mode_of
from decomp.ops import aten
from decomp.rules.target import Target
from decomp.simplification.chains import CHAINS
from decomp.simplification.constants import CONSTANTS
from decomp.simplification.elementwise import ELEMENTWISE
from decomp.simplification.freezing import LARGEST, Constants, bodies_retraced, constants_of, find_constants
from decomp.simplification.laws import Law, Laws
from decomp.simplification.new_calls import NEW_VIEWS, NewCalls, same_value
from decomp.simplification.no_ops import NO_OPS
from decomp.simplification.normal_form import Conditions, Inner, NormalForm, Normalizer
from decomp.simplification.rewrite_constraints import PlainCalls, RewriteConstraints
from decomp.simplification.sinking import SINKING
from decomp.simplification.sinking_regions import Regions
from decomp.simplification.terms import Term, ViewSinking
from decomp.torch_internals.fakes import FakeTensor

LAWS: tuple[Law, ...] = (*NO_OPS, *CHAINS, *ELEMENTWISE, *CONSTANTS, SINKING)
"""All laws; the result does not depend on their order."""
SHARING, DEAD, FREEZING = "common_subexpressions", "dead_code", "constants"
PASSES: tuple[str, ...] = (DEAD, SHARING, *dict.fromkeys(each.family for each in LAWS))
"""The names of all passes: they run as one, to a fixed point."""


@dataclass(frozen=True)
class Settings:
    """Options of a simplification."""

    passes: frozenset[str] = frozenset(PASSES)
    exact: bool = True
    """Whether results and gradients must be bitwise the same."""
    training: bool | None = None
    """Whether to keep what only gradients need; None: if the program has an input that may require one."""
    freeze: bool = False
    """Whether parameters and buffers are constants."""

    @property
    def without_constants(self) -> Settings:
        """The same for a graph that cannot have constants."""
        # A body with constants cannot be traced again (`is_retraced`), but freezing also says that nothing is trained.
        training = False if self.freeze else self.training
        return replace(self, passes=self.passes - {FREEZING}, training=training, freeze=False)

    @property
    def laws(self) -> Laws:
        """The laws of the passes."""
        return Laws(each for each in LAWS if each.family in self.passes and (each.exact or not self.exact))


@dataclass(frozen=True)
class Subject:
    """A graph to be simplified, with its context."""

    graph: fx.Graph
    root: nn.Module | None
    """The owner of its attributes."""
    target: Target
    """Decides which calls are legal."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The tensors of inputs that are parameters, buffers or constants, by input name."""
    written: tuple[fx.Node, ...] = ()
    """Inputs that are written after the program has run."""
    results: tuple[fx.Node, ...] = ()
    """Values that are written back, which become results."""
    sources: Mapping[fx.Node, fx.Node] = field(default_factory=dict)
    """For a lowered graph, the source node of each node: results are named after it."""
    taken: Collection[str] = ()
    """Names that attributes which it adds must not have."""

    @classmethod
    def of(cls, own: ProgramGraph, target: Target, exported: Any = None) -> Subject:
        """A graph, whose inputs are those of an exported program, if given."""
        state, every = dict[str, Any](own.constants), {write.source for write in own.writes}
        if exported is not None:
            state.update(lifted_state(exported))
            names = written_inputs(exported)
            every.update(node for node in own.graph.find_nodes(op="placeholder") if node.name in names)
        results = tuple(write.value for write in own.writes if write.signed)
        lowered = own.edges is not None and own.by in ("expand", "composites", BODY)
        sources = own.since_planned.origin if lowered else {}
        return cls(own.graph, own.owner, target, state, tuple(every), results, sources, own.attribute_names)

    def constants(self, around: RewriteConstraints, settings: Settings) -> Constants:
        """The values that are the same in every run: those computed from factories, and if frozen from parameters."""
        if settings.freeze:
            return Constants(self.root, self.state, around)
        # Without an owner and state no attribute is a constant: values from factories alone.
        return Constants(None, {}, around, LARGEST)

    def frozen_nodes(self) -> set[fx.Node]:
        """The nodes that freezing turns into constants."""
        return constants_of(self.graph, self.root, self.state, self.written)

    def around(self, settings: Settings) -> RewriteConstraints:
        """The facts that restrict its simplification."""
        # Constants have no gradient.
        training = settings.training is not False and not settings.freeze
        tracks: Collection[fx.Node] = gradient_inputs(self.graph, self.root, self.state) if training else ()
        found = RewriteConstraints.of(self.graph, self.root, tracks, self.written, self.results)
        return found


@dataclass(frozen=True)
class Simplified:
    """A simplified graph, and its relation to the original."""

    subject: Subject
    settings: Settings
    rewrite: Rewrite
    applied: Mapping[fx.Node, tuple[str, ...]]
    """The names of the laws applied to each node that they changed, in order."""
    merged: Mapping[fx.Node, fx.Node]
    """By node that was merged with an earlier node making the same call, that node."""
    inner: Mapping[fx.Node, list[Inner]]
    """By node at which views sank, the calls moved above these views, the uppermost first."""
    above: Mapping[Term, fx.Node]
    """The new nodes of these calls."""
    frozen: Mapping[fx.Node, str]
    """The attribute of each node that was folded to a constant."""
    constants: Mapping[str, torch.Tensor]
    """The values of these attributes."""
    counts: Mapping[str, int]
    """The number of calls that each pass removed."""

    @property
    def graph(self) -> fx.Graph:
        """The simplified graph."""
        return self.rewrite.graph

    def carried(self, facts: Mapping[fx.Node, Any]) -> dict[fx.Node, Any]:
        """Facts about original nodes, transferred to the simplified nodes."""
        return {new: facts[old] for new, old in self.rewrite.origin.items() if old in facts}

    def used(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes among these that the simplified graph reads."""
        names = {str(node.target) for node in self.graph.find_nodes(op="get_attr")}
        return {name: value for name, value in attributes.items() if name in names}


def simplify_module(module: Module, target: Target, settings: Settings) -> Module:
    """The program with its graphs simplified; one that cannot be simplified is left as it is."""
    # Decided for the whole program, as a body may be nested in one that is traced.
    retraced = bodies_retraced(module)

    def simplified(own: ProgramGraph) -> ProgramGraph:
        exported = module.exported if own is module.main else None
        # Composites of one signature share a body, which is a function of its operands alone.
        is_body = own.owner in retraced or own.composite is not None
        chosen = settings.without_constants if is_body else settings
        found = simplify_graph(Subject.of(own, target, exported), chosen)
        if found is None:
            return own
        constants, chains = found.used({**own.constants, **found.constants}), found.carried(own.chains)
        return own.rewritten(found.rewrite, "simplify", why=found, constants=constants, chains=chains)

    return module.map(simplified)


def simplify_graph(subject: Subject, settings: Settings, laws: Laws | None = None) -> Simplified | None:
    """The simplified graph; None if nothing can be simplified. It has no more nodes than the original, and results are
    bitwise the same unless `settings` permit otherwise."""
    laws = settings.laws if laws is None else laws
    search = _FormSearch(subject, settings, laws)
    found = search.found()
    form, needed, fixed = found.form, found.needed, found.fixed
    # Nothing to do is the common case in a second run, and costs no new graph.
    if len(needed) == len(subject.graph.nodes) and not form.applied and not fixed:
        return None
    names = dict(zip(fixed, _attributes(subject)))
    emission = _Emission(subject, form, needed, names, search.new)
    return Simplified(
        subject,
        settings,
        emission.rewrite,
        form.applied,
        form.merged,
        form.inner,
        emission.above,
        {term.owner: name for term, name in names.items()},
        {names[term]: value for term, value in fixed.items()},
        _counted(subject.graph, form, needed, found.everything - needed | set(fixed), laws),
    )


class _FormWithNeeds(NamedTuple):
    """A normal form, and the part of it that is needed."""

    form: NormalForm
    everything: set[Term]
    """The terms needed if there were no constants."""
    needed: set[Term]
    order: list[Term]
    """The needed terms, in order of computation."""
    fixed: dict[Term, torch.Tensor]
    """The constants among these, with their values."""


class _FormSearch:
    """The search for the normal form with the fewest calls: views are sunk as long as that reduces their number."""

    def __init__(self, subject: Subject, settings: Settings, laws: Laws) -> None:
        self.subject, self.settings, self.laws = subject, settings, laws
        self.around = subject.around(settings)
        self.new = NewCalls(subject.target, mode_of(subject.graph))
        self._conditions = Conditions(self.around, self.new, settings.exact)
        self._constants: Constants | None = None
        if settings.freeze or FREEZING in settings.passes:
            self._constants = subject.constants(self.around, settings)

    def found(self) -> _FormWithNeeds:
        """The normal form, its needed terms, and the constants among these."""
        sinks: Counter[fx.Node] = Counter()
        best = self._normal_form(sinks)
        while SINKING.name in self.laws.by_name:
            more = self._where_views_sink(best)
            if not more:
                break
            sinks = sinks + more
            # Sinking changes which terms are equal further down, so the whole form is recomputed.
            other = self._normal_form(sinks)
            # The estimate of regions does not know which terms become equal; the number of calls decides.
            if len(other.needed) >= len(best.needed):
                break
            best = other
        return best

    def _where_views_sink(self, best: _FormWithNeeds) -> Counter[fx.Node]:
        form, order = best.form, best.order
        barred = form.exposed(order, self.around, self.subject.results)
        if self._constants is not None:
            # Constants are computed once, wherever their views are.
            barred.update(self._constants.among(order))
        regions = Regions(order)
        chosen = regions.paying(barred)
        # Refusing one term changes which regions pay, so choose again until all may sink.
        while refused := {term for term in chosen if not self._may_sink(term)}:
            barred |= refused
            chosen = regions.paying(barred)
        found: Counter[fx.Node] = Counter()
        for node, term in form.terms.items() if chosen else ():
            inner = form.inner.get(node, ())
            found[node] += term in chosen or any(each.term in chosen for each in inner)
        return +found

    def _may_sink(self, term: Term) -> bool:
        """Whether a view from which a term is computed may sink below it; True if its operand is not a view yet."""
        call = term.as_call()
        found = SINKING.rewrite(call)
        return type(found) is not ViewSinking or self._conditions.placed(SINKING, term.owner, call, found) is not None

    def _normal_form(self, sinks: Mapping[fx.Node, int]) -> _FormWithNeeds:
        """The normal form with views sunk at `sinks`."""
        graph, settings = self.subject.graph, self.settings
        normalizer = Normalizer(self.around, self.laws, self._conditions, SHARING in settings.passes, sinks)
        for node in graph.nodes:
            normalizer.visit(node)
        form, everything = normalizer.form, self._needed(normalizer.form, {})
        order = _ordered(graph, form, everything)
        fixed = self._fixed(form, order) if self._constants is not None else {}
        if not fixed:
            return _FormWithNeeds(form, everything, everything, order, fixed)
        needed = self._needed(form, fixed)
        return _FormWithNeeds(form, everything, needed, [term for term in order if term in needed], fixed)

    def _fixed(self, form: NormalForm, order: Sequence[Term]) -> dict[Term, torch.Tensor]:
        """The needed terms that are computed once, with their values."""
        assert self._constants is not None
        known = self._constants.among(order)
        if not known:
            return {}
        exposed = form.exposed(order, self.around, self.subject.results)
        return find_constants(order, known, self._constants, self.around, exposed)

    def _needed(self, form: NormalForm, fixed: Collection[Term]) -> set[Term]:
        """The terms from which effects and results are computed; `fixed` terms need no operands."""
        terms, around, keeps_dead = form.terms, self.around, DEAD not in self.settings.passes
        needed = {terms[node] for node in self.subject.results}
        for node in reversed(self.subject.graph.nodes):
            term = terms[node]
            # Without the pass for dead code, unused calls are results.
            if node in around.effectful or keeps_dead and not node.users:
                needed.add(term)
            if term in needed and term.owner is node and term not in fixed:
                needed.update(term.operands)
            for each in reversed(form.inner.get(node, ())):
                if each.term in needed and each.term.owner is node and each.term not in fixed:
                    needed.update(each.term.operands)
        return needed


def _ordered(graph: fx.Graph, form: NormalForm, needed: Collection[Term]) -> list[Term]:
    """The needed terms, in order of computation."""
    found: list[Term] = []
    for node in graph.nodes:
        terms = [form.terms[node]]
        if node in form.inner:
            # The same term may be both an inner call and the node's own, and is emitted once.
            terms = list(dict.fromkeys([*(each.term for each in form.inner[node]), *terms]))
        found += [term for term in terms if term.owner is node and term in needed]
    return found


def _attributes(subject: Subject) -> Iterator[str]:
    """Attribute names that neither the graph nor its owner uses."""
    yield from (name for i in itertools.count() if (name := f"_frozen{i}") not in subject.taken)


def _counted(
    graph: fx.Graph, form: NormalForm, needed: set[Term], fixed: Collection[Term], laws: Laws
) -> dict[str, int]:
    """The number of calls removed, by pass; `fixed`: the terms folded to constants."""
    counts: Counter[str] = Counter()
    chained: dict[fx.Node, str] = {}
    # A call that is dead only because a law bypassed it counts for the law that did so.
    for node, names in form.applied.items():
        for operand in node.all_input_nodes:
            chained.setdefault(operand, laws.by_name[names[0]].family)
    for node in graph.nodes:
        term = form.terms[node]
        if not node.op.startswith("call") or term in needed and term.owner is node and term not in fixed:
            continue
        applied = form.applied.get(node)
        if node in form.inner:
            counts[SINKING.family] += 1
        elif term.owner is not node:
            counts[laws.by_name[applied[-1]].family if applied else SHARING] += 1
        else:
            counts[FREEZING if term in fixed else chained.get(node, DEAD)] += 1
    for node, inner in form.inner.items():
        own = {each.term for each in inner if each.term.owner is node} - {form.terms[node]}
        counts[SINKING.family] -= len(own & needed)
    return {family: count for family, count in counts.most_common() if count}


class _Emission:
    """Emits the needed terms into a new graph, each at the position of its first node."""

    def __init__(
        self, subject: Subject, form: NormalForm, needed: set[Term], frozen: Mapping[Term, str], new: NewCalls
    ) -> None:
        self._terms, self._frozen, self._new = form.terms, frozen, new
        self._applied, self._plain = form.applied, PlainCalls()
        self.rewrite = Rewrite.of(subject.graph)
        self._nodes: dict[Term, fx.Node] = {}
        self.above: dict[Term, fx.Node] = {}
        names = _names(subject, form, needed)
        for node in subject.graph.nodes:
            term = self._terms[node]
            for each in form.inner.get(node, ()):
                if each.term in needed and each.term.owner is node and each.term is not term:
                    self.above[each.term] = self._put_above(each.term)
                elif each.term in needed and each.term is term and term.owner is node:
                    self.above[term] = self._nodes[term] = self._put(term, names.get(term, node.name))
            if term not in needed:
                continue
            if term.owner is node and term not in self._nodes:
                self._nodes[term] = self._put(term, names.get(term, node.name))
            self.rewrite.values[node] = self._nodes[term]

    def _put_above(self, term: Term) -> fx.Node:
        """Emit a call that was moved above that of a node, named after the node."""
        new = self._nodes[term] = self._put(term, self.rewrite.free(f"{term.owner.name}_inner"))
        new.meta.pop("tensor_meta", None)  # that of the node, which has another shape
        if term not in self._frozen:
            # Metadata of the search is shared by equal signatures, and so would be the memory of two values.
            new.meta["val"] = self._new.own_memory(term.value)
            self._share_memory(new)
        return new

    def _put(self, term: Term, name: str) -> fx.Node:
        old, nodes = term.owner, self._nodes
        if term in self._frozen:
            new = self.rewrite.create("get_attr", self._frozen[term], (), {}, name)
            new.meta.update({**old.meta, "val": own_memory(term.value)})
            self.rewrite.origin[new] = old
            return new
        if old in self._applied:
            args, kwargs = substituted((term.args, term.kwargs), nodes.__getitem__, Term)
            new = self.rewrite.create(term.op, term.target, tuple(args), kwargs, name, old.type)
        else:
            # Copied from the node and not from the term, which keeps the author's spelling of arguments.
            value_of = self.rewrite.values.__getitem__
            args, kwargs = fx.map_arg(old.args, value_of), fx.map_arg(old.kwargs, value_of) if old.kwargs else {}
            new = self.rewrite.create(old.op, old.target, args, kwargs, name, old.type)
        new.meta.update(old.meta)
        self.rewrite.origin[new] = old
        self._share_memory(new)
        return new

    def _share_memory(self, node: fx.Node) -> None:
        """Make the metadata of a view share the memory of its base."""
        call, value = self._plain.of(node), node.meta.get("val")
        if node.op != "call_function" or call is not None and not call.is_view:
            return
        if value is None or not node.all_input_nodes:
            return
        if node.target is operator.getitem:
            whole = node.args[0].meta.get("val") if isinstance(node.args[0], fx.Node) else None
            if isinstance(whole, (tuple, list)) and isinstance(node.args[1], int):
                node.meta["val"] = whole[node.args[1]]
            return
        bases: Sequence[Any] = node.args[:1] if call is not None else view_bases(node)
        # The memory is right already for most views: their base kept its metadata.
        if not any([is_apart(value, base.meta.get("val")) for base in bases]):
            return
        moved = self._moved(node, bases[0]) if len(bases) == 1 else None
        if moved is not None:
            node.meta["val"] = moved
            return
        args, kwargs = substituted((node.args, node.kwargs), lambda operand: operand.meta.get("val"))
        found = self._new.result(node.target, args, kwargs)
        # With symbolic sizes, strides may be different expressions: then the captured metadata stays.
        if same_value(found, value) or isinstance(value, (tuple, list)) and all(map(same_value, found or (), value)):
            node.meta["val"] = found

    def _moved(self, node: fx.Node, new: fx.Node) -> FakeTensor | None:
        """The metadata of a view on the memory of its new base, if its offset there is known: by its op at symbolic
        sizes, at which calls take a millisecond, or because it was on the memory of its old base."""
        old, value, base = self.rewrite.origin[node], node.meta["val"], new.meta.get("val")
        if not isinstance(value, FakeTensor) or not isinstance(base, FakeTensor):
            return None
        surely_view = node.target in NEW_VIEWS and (old in self._applied or node.target is not aten.reshape.default)
        if surely_view and is_symbolic(value):
            # These views begin where their base does, so that no offset is needed.
            return self._new.on_memory_of(base, value, 0)
        bases = view_bases(old) if old not in self._applied else ()
        was = bases[0].meta.get("val") if len(bases) == 1 else None
        if was is None or not same_value(base, was) or is_apart(value, was):
            return None
        return self._new.on_memory_of(base, value, value.storage_offset() - was.storage_offset())


def _names(subject: Subject, form: NormalForm, needed: Iterable[Term]) -> dict[Term, str]:
    """The names of terms that are the result of a source node: those of that node."""
    found: dict[Term, str] = {}
    sources = subject.sources
    for node in form.applied:
        term = form.terms[node]
        source = sources.get(node)
        if term.owner is node or source is None or node.name != source.name or term not in needed:
            continue
        if sources.get(term.owner) is source and term.op.startswith("call"):
            found[term] = node.name
    return found
