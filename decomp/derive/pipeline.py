"""The stages of a lowering, and what passes between them: each graph of a program (its own, and the bodies of its
higher-order ops) is made functional, planned, retraced, verified and put together again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from decomp.capture import autocast, frontends, rebuild_exported
from decomp.capture.frontends import Parts, Program
from decomp.capture.inlining import Body, Leaves, body_of_graph_module, inlined, traced_forward
from decomp.capture.input_checks import check_inputs
from decomp.capture.module_hooks import has_own_forward, hooks_of, is_customised, is_guards, why_left
from decomp.derive import own_memory
from decomp.derive.clock import Clock
from decomp.derive.planner import KEEP, PROVED, Blocked, Cost, Decision, Derived, Plan, Planner
from decomp.derive.regions import without_regions
from decomp.derive.rewriter import Retraced, retrace
from decomp.derive.stride_propagation import StridePropagation
from decomp.derive.write_checks import check_writes
from decomp.errors import Blocker, CaptureError, NotLowered, spelled
from decomp.functionalize.alias_sets import regions, touching_writes
from decomp.functionalize.walk import Functional, Write, append_writes, functionalize, mutates
from decomp.graphs.rewrite import Rewrite
from decomp.ir.accounting import is_structure
from decomp.ir.aliases import attribute
from decomp.ir.binding import BindingError
from decomp.ir.call import bound_call, is_free, is_host, is_projection, metadata
from decomp.ir.effects import MARKS, of_callable
from decomp.ir.ops import of_function, of_method, of_module_class, op as op_of
from decomp.ir.respelling import respell
from decomp.metadata.symbolic_sizes import fresh_sizes_dropped
from decomp.proof.checks import check_program
from decomp.proof.correspondence import Correspondence, Proof
from decomp.proof.returned_program import ReturnedProgram
from decomp.rules.requirements import lacking
from decomp.rules.rules import Declined, Rules
from decomp.rules.target import Everything, Target


@dataclass
class Piece:
    """One graph of a program, lowered: the program itself, or the body of a higher-order op."""

    source: fx.Graph
    """The functional graph that was retraced."""
    retraced: Retraced
    decisions: dict[fx.Node, Decision]
    origin: Callable[[fx.Node], fx.Node]
    """From a node of `source` to the node of the program that came in."""
    writes: tuple[Write, ...] = ()
    """What is written back to inputs and buffers, in terms of the lowered graph."""
    signed: int = 0
    """How many of these, the first ones, are leading outputs of an exported program; the others are `copy_` calls."""


@dataclass
class _Unit:
    """One graph on its way: planned, not yet retraced."""

    name: str
    """Attribute of the root that holds it; empty for the program itself."""
    graph: fx.Graph
    root: nn.Module
    functional: Functional | None
    decisions: dict[fx.Node, Decision]
    policy: autocast.Policy | None = None
    """The autocast under which the program runs this graph."""
    explicit: dict[str, fx.GraphModule] = field(default_factory=dict)
    """Bodies whose casts were written out, by attribute name."""

    def take(self, rewrite: Rewrite) -> None:
        """Go on with a graph that was made from this one."""
        self.functional = Functional(rewrite) if self.functional is None else self.functional.rewritten(rewrite)
        self.decisions = {rewrite.values.get(node, node): decision for node, decision in self.decisions.items()}
        self.graph = rewrite.graph


class Pipeline:
    """The state of one lowering."""

    def __init__(self, rules: Rules, target: Target, cost: Cost | None = None) -> None:
        self.rules, self.target, self.cost = rules, target, cost
        self.everywhere = isinstance(target, Everything)
        self.clock = Clock()
        self.units: list[_Unit] = []
        self.bodies: dict[int, nn.Module] = {}
        """Lowered bodies of higher-order ops, by the identity of the source's."""
        self.done: list[tuple[Piece, _Unit]] = []
        self.program: Program | None = None
        self.planner: Planner | None = None
        self.runs = 0
        self.returned_program: ReturnedProgram | None = None
        """The lowered program, once it is put together."""

    @property
    def verdicts(self) -> dict[Any, Any]:
        """What measuring expansions has found out, which outlives the program as they do."""
        return self.planner.memory.verdicts if self.planner is not None else {}

    def captured(self, model: Any, args: Any, kwargs: Any, tracer_class: type[fx.Tracer], dynamic: Any) -> Program:
        return frontends.capture(
            model,
            args,
            kwargs,
            tracer_class=tracer_class,
            dynamic_shapes=dynamic,
            leaves=Leaves(self._body_of_module, self._wants, self._serves),
            infer=self._by_rule,
        )

    def _by_rule(self, node: fx.Node) -> Any:
        """What a call gives according to the first rule that serves it, run on the metadata of its arguments. Raises
        `NotLowered` if it is declared that none can."""
        try:
            call: Any = bound_call(node)
        except TypeError:
            return None
        if call is None:
            return None
        for rule in self.rules.of(call.op):
            accepted = rule.accept(call)
            if isinstance(accepted, Declined) or lacking(rule.needs, self.target) is not None:
                continue
            args, kwargs = fx.node.map_arg(accepted, metadata)
            result = rule.function(*args, **kwargs)
            if not isinstance(result, Declined):
                return result
        limitation = self.rules.limitation(call, self.target)
        if limitation is not None:
            raise NotLowered(self.target.name, [Blocker(str(call.op), (node.name,), None, (), None, limitation)])
        return None

    def _body_of_module(self, module: nn.Module, call: fx.Node) -> Body | None:
        """The forward of a leaf module, where what it computes has to be lowered. What hooks do beside it cannot be
        put into a graph."""
        if hooks_of(module) or is_guards(module) or not self.everywhere and self._is_legal(module):
            return None
        if isinstance(module, fx.GraphModule) and not has_own_forward(module):
            return self._inlined_within(module, body_of_graph_module(module, call))
        body = traced_forward(module, call)
        if body is None or self.everywhere and not self._serves(body.graph, module):
            return None
        return self._inlined_within(module, body)

    def _is_legal(self, module: nn.Module) -> bool:
        """Whether a leaf module is a call that the target knows. One that writes its input is more than that."""
        if is_customised(module) or getattr(module, "inplace", False) or isinstance(module, fx.GraphModule):
            return False
        return self.target.surely_legal(of_module_class(type(module)), None)

    def _inlined_within(self, module: nn.Module, body: Body) -> Body:
        """A forward with the modules that it calls inlined in turn."""
        if any(node.op == "call_module" for node in body.graph.nodes):
            return replace(body, graph=inlined(body.graph, module, self._body_of_module).graph)
        return body

    def _wants(self, module: nn.Module, call: fx.Node) -> bool:
        """Whether a leaf module that is left is to be captured by torch.export."""
        if is_guards(module) or not self.everywhere:
            return not is_guards(module) and not self._is_legal(module)
        return self._hides_match(module, call) or traced_forward(module, call) is None

    def _serves(self, body: fx.Graph, module: nn.Module) -> bool:
        """Whether there is something in the forward of a leaf module for which it should be inlined."""
        return not self.everywhere or any(self._matches(module, node) for node in body.nodes)

    def _hides_match(self, module: nn.Module, call: fx.Node) -> bool:
        """Whether hooks keep a module from being inlined although a rule matches inside."""
        body = traced_forward(module, call) if hooks_of(module) else None
        return body is not None and self._serves(body.graph, module)

    def _matches(self, module: nn.Module, node: fx.Node) -> bool:
        if node.op == "call_module":
            inner = module.get_submodule(str(node.target))
            return self._body_of_module(inner, node) is not None or self._hides_match(inner, node)
        if node.op not in ("call_function", "call_method") or is_host(node) or is_projection(node):
            return False
        try:
            call = bound_call(node)
        except TypeError:
            return False
        return call is not None and bool(self.rules.of(call.op))

    def planned(self, program: Program) -> Plan:
        self.program = program
        self.planner = Planner(self.rules, self.target, program.dialect, program.mode, self.cost)
        before = self.planner.runs
        with fresh_sizes_dropped(program.mode):
            self._plan_graph("", program.graph, program.root)
        self.runs = self.planner.runs - before
        self.planner.memory.signatures.forget_nodes()
        entries = [
            (self._source_of(unit, node), decision) for unit in self.units for node, decision in unit.decisions.items()
        ]
        return Plan(self.target.name, tuple(entries))

    def _plan_graph(self, name: str, graph: fx.Graph, root: nn.Module, policy: autocast.Policy | None = None) -> None:
        functional = functionalize(graph, root, self._state(name)) if self._must_be_functional(graph, root) else None
        graph = functional.graph if functional is not None else graph
        unit = _Unit(name, graph, root, functional, {}, policy)
        if not name and not self.everywhere:
            self._inline_regions(unit)
        graph, functional = unit.graph, unit.functional
        self.units.append(unit)
        assert self.planner is not None
        propagation = StridePropagation(graph, functional.captured_meta if functional is not None else None)
        depth = 0
        for node in propagation.nodes():
            depth += autocast.marker(node)
            if depth and node.op.startswith("call") and not autocast.marker(node):
                unit.decisions[node] = KEEP if self.everywhere else _UNDER_AUTOCAST
            elif node.op == "get_attr":
                self._plan_body(node, unit)
            elif node.op == "call_module":
                unit.decisions[node] = self._module(root, node)
            elif node in propagation.lost:
                unit.decisions[node] = Blocked(spelled(node.target), ((spelled(node.target), propagation.lost[node]),))
            elif node.op in ("call_function", "call_method"):
                unit.decisions[node] = self.planner.decide(node)
                self.planner.relay(propagation, node, unit.decisions[node])
        if propagation.emit is not None:
            unit.take(propagation.emit.rewrite)
        own_memory.separate_results(unit.graph, unit.decisions, self.planner)

    def _state(self, name: str) -> dict[str, Any]:
        """The tensors behind the inputs of the program itself, where it lifts them."""
        exported = self.program.exported if self.program is not None else None
        return {} if name or exported is None else rebuild_exported.lifted_state(exported)

    def _inline_regions(self, unit: _Unit) -> None:
        """Put regions without gradients, or under autocast, into the program itself, where the target can detach."""
        exported = self.program.exported if self.program is not None else None
        if exported is None or not self.target.surely_legal(op_of("detach"), "default"):
            return
        signature = exported.graph_signature
        frozen = {*signature.inputs_to_buffers, *signature.inputs_to_lifted_tensor_constants}
        rewrite = without_regions(unit.graph, lambda name: _body(unit, name), unit.root, frozen)
        if rewrite is not None:
            unit.take(rewrite)

    def _must_be_functional(self, graph: fx.Graph, root: nn.Module) -> bool:
        if not mutates(graph, root):
            return False
        if not self.everywhere or any(self._rule_for_inplace(node) for node in graph.nodes):
            return True
        # What a rule gives may share memory where what the op gives does not, or the reverse.
        if any(node.op != "call_module" and self._matches(root, node) for node in touching_writes(graph, root)):
            return True
        return any(self._must_be_functional(body.graph, body) for n in graph.nodes for _, body in regions(n, root))

    def _rule_for_inplace(self, node: fx.Node) -> bool:
        if node.op not in ("call_function", "call_method"):
            return False
        if node.op == "call_function" and node.kwargs.get("out") is not None:
            return bool(self.rules.of(of_function(node.target).op))
        try:
            call = bound_call(node)
        except TypeError:
            return False
        if call is None or not self.rules.of(call.op):
            return False
        return call.inplace or call.op.short == "batch_norm"

    def _plan_body(self, node: fx.Node, unit: _Unit) -> None:
        """A body of a higher-order op is lowered once, whoever calls it."""
        name = str(node.target)
        body = _body(unit, name)
        if body is None or any(found.root is body for found in self.units):
            return
        policy = _policy_of_body(node, unit)
        if policy is not None:
            body = unit.explicit[name] = autocast.explicit(body, lambda _: policy)
        self._plan_graph(name, body.graph, body, policy)

    def _module(self, root: nn.Module, node: fx.Node) -> Decision:
        module = root.get_submodule(str(node.target))
        if is_guards(module) or not self.everywhere and self._is_legal(module):
            return KEEP
        if self.everywhere and not self._hides_match(module, node):
            return KEEP
        assert self.program is not None
        reason = why_left(module, self.program.refused_leaves.get(str(node.target)) or self.program.refused)
        if self.everywhere:
            raise CaptureError(f"a rule matches inside module {str(node.target)!r}, but {reason}")
        return Blocked(f"module {type(module).__name__}", ((type(module).__name__, reason),))

    def retrace(self) -> None:
        program = self.program
        assert program is not None and self.planner is not None
        for unit in reversed(self.units):
            derived = {node: d for node, d in unit.decisions.items() if isinstance(d, Derived)}
            check_program = frozenset(node for node, d in unit.decisions.items() if d is PROVED)
            retraced = retrace(unit.graph, derived, program.mode, _attribute_names(unit), check_program)
            respell(retraced.graph, self.planner.memory.aliases)
            for node in retraced.graph.nodes:
                if unit.explicit and autocast.is_region(node):
                    autocast.switched_off(node)
            self.done.insert(0, (Piece(unit.graph, retraced, unit.decisions, partial(self._source_of, unit)), unit))

    def _source_of(self, unit: _Unit, node: fx.Node) -> fx.Node:
        """The node of the program that came in."""
        assert self.program is not None
        if unit.functional is not None:
            node = unit.functional.rewrite.source_of(node)
        return self.program.source_of(node)

    def verified(self, full: bool) -> Proof:
        """Proves the program that is handed over: each graph from its record, and the last step to it."""
        assert self.returned_program is not None
        correspondences = [correspondence(piece, self.target) for piece, _ in self.done]
        return check_program(correspondences, self.returned_program, full)

    def rebuilt(self, program: Program) -> Any:
        lowered: dict[int, fx.GraphModule] = {}
        for piece, unit in reversed(self.done):
            parts = self._parts(piece, unit, program, lowered)
            if unit.name:
                lowered[id(unit.root)] = frontends.graph_module(unit.root, parts)
            else:
                result, exported = frontends.rebuild(program, parts)
                self._check_inputs(result, program, unit)
                self.returned_program = ReturnedProgram(
                    result, piece.retraced.graph, exported, program.exported, program.root, parts.submodules,
                    parts.constants, tuple(place for place, _ in parts.writes), ReturnedProgram.hooks_of(result),
                )  # fmt: skip
                return result
        raise AssertionError("the program itself is the first unit")

    def _check_inputs(self, result: Any, program: Program, unit: _Unit) -> None:
        if program.by_example and (program.opened or mutates(program.graph, program.root)):
            check_inputs(result, program.graph, None)
        elif program.by_example:
            check_inputs(result, unit.graph, {n for n, d in unit.decisions.items() if isinstance(d, Derived)})
        if unit.functional is not None and isinstance(result, fx.GraphModule):
            check_writes(result, program.graph)

    def _parts(self, piece: Piece, unit: _Unit, program: Program, lowered: Mapping[int, nn.Module]) -> Parts:
        submodules: dict[str, nn.Module] = {}
        for node in unit.graph.nodes:
            body = _body(unit, str(node.target)) if node.op == "get_attr" else None
            if body is not None:
                submodules[str(node.target)] = lowered[id(body)]
        writes = _writes(unit, piece.retraced)
        has_signature = program.exported is not None and not unit.name
        signed: list[Write] = []
        kept: list[Write] = []
        for write in writes:
            # A signature has no word for a write that autograd is not to see: it stays in the graph.
            hidden = write.untracked and write.differentiable
            (signed if has_signature and not hidden else kept).append(write)
        piece.writes, piece.signed = (*signed, *kept), len(signed)
        if kept:
            append_writes(piece.retraced.graph, kept)
        return Parts(
            piece.retraced.graph,
            piece.retraced.constants,
            submodules,
            [(write.source, write.value) for write in signed],
        )


def _policy_of_body(node: fx.Node, unit: _Unit) -> autocast.Policy | None:
    """The autocast under which the body that `node` names runs."""
    regions = [user for user in node.users if autocast.is_region(user) and user.args[4] is node]
    return autocast.region_policy(regions[0]) if regions else unit.policy


_SILENT_CASTS = (
    "the call stands between markers of an autocast region, which casts its inputs silently; pass args= or an "
    "ExportedProgram, whose regions are made explicit"
)
_UNDER_AUTOCAST = Blocked("autocast", (("autocast", _SILENT_CASTS),))


def _body(unit: _Unit, name: str) -> fx.GraphModule | None:
    if name in unit.explicit:
        return unit.explicit[name]
    if unit.functional is not None and name in unit.functional.submodules:
        return unit.functional.submodules[name]
    value = attribute(unit.root, name)
    return value if isinstance(value, fx.GraphModule) else None


def _attribute_names(unit: _Unit) -> list[str]:
    return [name for name in unit.root.__dict__.get("_buffers", {})] + list(unit.root.__dict__)


def _writes(unit: _Unit, retraced: Retraced) -> list[Write]:
    """The writes that a program owes, in terms of the lowered graph."""
    if unit.functional is None:
        return []
    return [write.through(retraced.rewrite) for write in unit.functional.writes]


def correspondence(piece: Piece, target: Target) -> Correspondence:
    """How a lowered graph relates to its source, as `verify` wants it."""
    retraced = piece.retraced
    return Correspondence(
        source=piece.source,
        lowered=retraced.graph,
        origin=retraced.rewrite.origin,
        values=retraced.rewrite.values,
        expansions=tuple(stamp.graph for stamp in retraced.stamps),
        illegal=_judge(target, {*_blocked(piece), *_write_backs(piece)}),
        added=frozenset(rebuild_exported.input_names(retraced.constants)),
        writes=tuple(write.value for write in piece.writes),
        stamps={node: d.stamp for node, d in piece.decisions.items() if isinstance(d, Derived)},
        constants={n: t for key, t in retraced.constants.items() for n in rebuild_exported.input_names([key])},
        signed=tuple(write.value for write in piece.writes[: piece.signed]),
        copied=tuple((write.source, write.value) for write in piece.writes[piece.signed :]),
    )


def _blocked(piece: Piece) -> Iterator[fx.Node]:
    return (piece.retraced.rewrite.values[node] for node, d in piece.decisions.items() if isinstance(d, Blocked))


def _write_backs(piece: Piece) -> Iterator[fx.Node]:
    """The `copy_` nodes at the end of a module, and what they write to: effects that any target must have."""
    for write in piece.writes:
        for user in write.value.users:
            if user not in piece.retraced.rewrite.origin and user.op.startswith("call"):
                yield user
                yield from user.all_input_nodes[:1]


def _judge(target: Target, blocked: Collection[fx.Node]) -> Callable[[fx.Node], str | None]:
    """Whether a lowered node may stand in the target, decided anew from the node alone; those of `blocked` may."""
    if isinstance(target, Everything):
        return lambda node: None
    sure: dict[Any, bool] = {}

    def illegal(node: fx.Node) -> str | None:
        if node.op not in ("call_function", "call_method"):
            return None
        known = sure.get(node.target)
        if known is None:
            known = sure[node.target] = _sure(target, node)
        return None if known or node in blocked else _why_illegal(target, node)

    return illegal


def _sure(target: Target, node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return is_structure(node.target)
    if not isinstance(node.target, torch._ops.OpOverload):
        if node.op == "call_function" and not of_callable(node.target).kinds.isdisjoint(MARKS):
            return True
        spelling = of_function(node.target) if node.op == "call_function" else of_method(str(node.target))
        return target.surely_legal(spelling.op, spelling.overload)
    spelling = of_function(node.target)
    return is_free(node.target) or target.surely_legal(spelling.op, spelling.overload)


def _why_illegal(target: Target, node: fx.Node) -> str | None:
    if is_host(node) or is_projection(node):
        return None
    try:
        call = bound_call(node)
    except BindingError as error:
        return str(error)
    why = target.why_illegal(call) if call is not None else None
    return None if why is None else f"{call.op if call else node.target} is not legal" + (f": {why}" if why else "")
