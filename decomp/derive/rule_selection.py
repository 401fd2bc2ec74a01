"""Questions about a program that depend on rules and target: which calls rules match, which leaf modules are replaced
by the graph of their forward, and which graphs must be made functional."""

from __future__ import annotations

from dataclasses import dataclass, replace
import functools
from typing import Any

from torch import fx, nn

from decomp.capture.inlining import InlinedBody, Leaves, body_of_graph_module, inline_modules, trace_forward
from decomp.capture.module_hooks import has_own_forward, hooks_of, is_customised, is_guards
from decomp.capture.rebuild_exported import lifted_state
from decomp.errors import Blocker, NotLowered
from decomp.functionalize.alias_sets import regions, touching_writes
from decomp.functionalize.gradients import gradient_inputs
from decomp.functionalize.walk import mutates
from decomp.ir.call import call_if_bound, is_host, is_projection, metadata
from decomp.ir.module import Module
from decomp.ir.ops import of_function, of_module_class
from decomp.rules.declining import Declined
from decomp.rules.options import Options
from decomp.rules.requirements import missing_ops
from decomp.rules.rules import Rules
from decomp.rules.target import MatchAllTarget, Target


@dataclass(frozen=True)
class RuleSelection:
    """Rules and a target, queried about a program before it is planned."""

    rules: Rules
    target: Target
    training: bool | None = None
    """Whether to keep what only gradients need; None: if an input or a parameter may require a gradient."""
    drop_draws: bool = False
    """Whether random draws that nothing reads are left out."""

    @classmethod
    def of(cls, to: Target, options: Options) -> RuleSelection:
        """The selection for a target with these options. Raises `TargetError`."""
        return cls(options.chosen_rules, options.target(to), options.trains, options.drop_draws)

    def specialise_for_program(self, program: Module) -> RuleSelection:
        """A copy with the rules for inference, if `program` does not train."""
        training = self.training
        # `decompose` runs the rules that were passed, whatever the program does.
        if self.everywhere or not self.rules.trains:
            return self
        # Asked last, as it walks all inputs and the state.
        if training is None:
            state = lifted_state(program.exported) if program.exported is not None else {}
            training = bool(gradient_inputs(program.graph, program.root, state))
        return self if training is not False else replace(self, rules=self.rules.forward_only)

    @property
    def everywhere(self) -> bool:
        """Whether rules apply wherever one matches, not only to calls that are illegal on the target."""
        return isinstance(self.target, MatchAllTarget)

    @property
    def leaves(self) -> Leaves:
        """How leaf modules are treated during capture."""
        return Leaves(self._body_of_module, self._wants, self._serves)

    def keeps_module(self, module: nn.Module, call: fx.Node) -> bool:
        """Whether a leaf module left by capture may stay a call."""
        # The module of guards that torch.export adds: its calls are assertions on inputs, no ops.
        if is_guards(module) or not self.everywhere and self._is_legal(module):
            return True
        return self.everywhere and not self._hides_match(module, call)

    def must_be_functional(self, graph: fx.Graph, root: nn.Module) -> bool:
        """Whether a graph that mutates must be functionalized before it is lowered."""
        if not mutates(graph, root):
            return False
        # Targets have functional ops. In `decompose` a program that no rule touches is to stay as its author wrote it.
        if not self.everywhere or self.target.narrower or self.rules.patterns:
            return True
        if any(self._rule_for_inplace(node) for node in graph.nodes):
            return True
        # The result of a rule may share memory where that of the op does not, or vice versa.
        if any(node.op != "call_module" and self._matches(root, node) for node in touching_writes(graph, root)):
            return True
        return any(self.must_be_functional(body.graph, body) for n in graph.nodes for _, body in regions(n, root))

    def infer(self, node: fx.Node) -> Any:
        """The result of a call by the first rule that accepts it, run on the metadata of its arguments. Raises
        `NotLowered` if no rule does and a limitation is declared."""
        call = call_if_bound(node)
        if call is None:
            return None
        bound: Any = call
        # Rules run directly on fake tensors here, not on proxies: only the metadata of the result is needed.
        # In order of registration, as without a level or a cost. Any other would give the same shape.
        for rule in self.rules.of(call.op):
            accepted = rule.accept(bound)
            if isinstance(accepted, Declined) or missing_ops(rule.needs, self.target) is not None:
                continue
            args, kwargs = fx.node.map_arg(accepted, metadata)
            result = rule.function(*args, **kwargs)
            if not isinstance(result, Declined):
                return result
        limitation = self.rules.limitation(call, self.target)
        # Raised here, as capture would fail a moment later for the missing metadata, and say less.
        if limitation is not None:
            raise NotLowered(self.target.name, [Blocker(str(call.op), (node.name,), None, (), None, limitation)])
        return None

    def _body_of_module(self, module: nn.Module, call: fx.Node) -> InlinedBody | None:
        """The graph of a leaf module's forward, if it must be lowered. The effect of hooks cannot be put into a
        graph."""
        # A hook is Python that runs around the call; it would be lost.
        if hooks_of(module) or is_guards(module) or not self.everywhere and self._is_legal(module):
            return None
        # Its graph is its forward, unless a subclass has one of its own: no trace is needed.
        if isinstance(module, fx.GraphModule) and not has_own_forward(module):
            return self._inlined_within(module, body_of_graph_module(module, call))
        body = trace_forward(module, call)
        if body is None or self.everywhere and not self._serves(body.graph, module):
            return None
        return self._inlined_within(module, body)

    def _inlined_within(self, module: nn.Module, body: InlinedBody) -> InlinedBody:
        """A forward with the modules that it calls inlined in turn."""
        if any(node.op == "call_module" for node in body.graph.nodes):
            return replace(body, graph=inline_modules(body.graph, module, self._body_of_module).graph)
        return body

    def _is_legal(self, module: nn.Module) -> bool:
        """Whether a leaf module is a legal call of the target. One that writes its input does more than its op."""
        # A subclass may have another forward, and the name of its class then says nothing.
        if is_customised(module) or getattr(module, "inplace", False) or isinstance(module, fx.GraphModule):
            return False
        op = of_module_class(type(module))
        return op.name not in self._in_patterns and self.target.surely_legal(op, None)

    @functools.cached_property
    def _in_patterns(self) -> frozenset[str]:
        """Ops in patterns: a module that applies one must be inlined to be part of a match."""
        rules = self.rules.patterns
        return frozenset(op for rule in rules for node in rule.pattern.calls for op in rule.pattern.ops_of(node))

    def _wants(self, module: nn.Module, call: fx.Node) -> bool:
        """Whether a leaf module that could not be traced is to be captured by torch.export."""
        # A target refuses what it does not know, so that all else must be captured; `decompose` only looks for matches.
        if is_guards(module) or not self.everywhere:
            return not is_guards(module) and not self._is_legal(module)
        return self._hides_match(module, call) or trace_forward(module, call) is None

    def _serves(self, body: fx.Graph, module: nn.Module) -> bool:
        """Whether a leaf module's forward contains anything for which it should be inlined."""
        return not self.everywhere or any(self._matches(module, node) for node in body.nodes)

    def _hides_match(self, module: nn.Module, call: fx.Node) -> bool:
        """Whether hooks keep a module from being inlined although a rule matches inside."""
        body = trace_forward(module, call) if hooks_of(module) else None
        return body is not None and self._serves(body.graph, module)

    def _matches(self, module: nn.Module, node: fx.Node) -> bool:
        if node.op == "call_module":
            inner = module.get_submodule(str(node.target))
            return self._body_of_module(inner, node) is not None or self._hides_match(inner, node)
        if node.op not in ("call_function", "call_method") or is_host(node) or is_projection(node):
            return False
        call = call_if_bound(node)
        return call is not None and (bool(self.rules.of(call.op)) or call.op.name in self._in_patterns)

    def _rule_for_inplace(self, node: fx.Node) -> bool:
        if node.op not in ("call_function", "call_method"):
            return False
        # A call with `out=` binds to no functional schema, and is looked up by its name.
        if node.op == "call_function" and node.kwargs.get("out") is not None:
            return bool(self.rules.of(of_function(node.target).op))
        call = call_if_bound(node)
        if call is None or not self.rules.of(call.op):
            return False
        # It writes running statistics without being spelled in place.
        return call.inplace or call.op.short == "batch_norm"
