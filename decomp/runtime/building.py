"""Translates a graph to calls of a backend's functions. All problems are collected, so that one error lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
import operator
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn

from decomp.errors import LoadError, spell_target
from decomp.graphs.graph_builder import checks_inputs
from decomp.ir.accounting import effects_in
from decomp.ir.aliases import attribute
from decomp.ir.arguments import substituted
from decomp.ir.call import Call, call_if_bound, is_host, is_projection, metadata, projected
from decomp.ir.composites import CompositeCall
from decomp.ir.dtypes import name_of
from decomp.ir.narrow_calls import NarrowCall, is_between
from decomp.ir.op_facts import runs_once
from decomp.ir.ops import Op, of_function
from decomp.metadata.meta_values import known_value
from decomp.runtime.arguments import UnknownDtype, arguments_of, why_not_callable
from decomp.runtime.border import ComplexBoundary
from decomp.runtime.code import GeneratedBody, GeneratedProgram, GeneratedStep
from decomp.runtime.tables import Backend
from decomp.torch_internals.pytree import tensors_in
from decomp.type_conversion.ranges import narrow_tensor


class Problems:
    """The reasons why a backend cannot run a program, each with the nodes concerned."""

    def __init__(self) -> None:
        self.missing: dict[str, list[fx.Node]] = {}
        self.listed: set[str] = set()
        """Missing ops that the target accepts nevertheless."""
        self.conditions: dict[str, str] = {}
        """By missing op: the conditions of its functions, which serve other calls."""
        self.dtypes: dict[str, list[fx.Node]] = {}
        self.modules: dict[str, list[fx.Node]] = {}
        """Calls of modules, which lowering would have expanded."""
        self.others: dict[str, list[fx.Node]] = {}

    def raise_any(self, backend: Backend) -> None:
        """Raises `LoadError` if there are any."""
        only = {op: f", only for other calls: {reason}" for op, reason in self.conditions.items()}
        only |= {op: f", although {backend.target.name} lists it" for op in self.listed - self.conditions.keys()}
        lines = [f"{op}{_where(nodes)}: not implemented{only.get(op, '')}" for op, nodes in self.missing.items()]
        lines += [f"{dtype}{_where(nodes)}: not a dtype of this backend" for dtype, nodes in self.dtypes.items()]
        named = {**self.modules, **self.others}
        lines += [f"{problem}{_where(nodes)}" for problem, nodes in named.items()]
        if not lines:
            return
        ops = [name for name in self.missing if not name.startswith("higher_order.")]
        remedies = []
        # Lowering helps for ops that the target would not have accepted; for the others only a function does.
        if self.modules or not self.listed.issuperset(ops):
            remedies.append("lower the program to backend.target: decomp.lower(model, to=backend.target, args=...)")
        if self.missing:
            name = (ops or [*self.missing])[0].removeprefix("aten.").removeprefix("higher_order.")
            remedies.append(f'implement the missing ops: @backend.implements("{name}"), for instance')
        if len(ops) < len(self.missing):
            remedies.append(
                "write branches as torch.where, and loops of a known length as Python loops, which are "
                "unrolled when captured"
            )
        if self.dtypes:
            remedies.append("convert the model before it is lowered (model.float()), or add the dtype to dtypes=")
        if self.others:
            remedies.append(
                "extend the backend's functions to these calls, or make the calls illegal in the target by a "
                "condition, so that they are lowered further"
            )
        nodes = [each[0] for table in (self.missing, self.dtypes, named) for each in table.values()]
        raise LoadError(backend.name, lines, remedies, nodes)


def _where(nodes: list[fx.Node]) -> str:
    return f" ({nodes[0].name})" if len(nodes) == 1 else f" ({len(nodes)} calls, the first is {nodes[0].name})"


class CodeBuilder:
    """Builds the code of one graph."""

    def __init__(
        self,
        backend: Backend,
        root: nn.Module,
        problems: Problems,
        narrower: Mapping[torch.dtype, torch.dtype] = MappingProxyType({}),
        bodies: dict[nn.Module, GeneratedBody] | None = None,
    ) -> None:
        """`narrower`: maps each dtype that the backend lacks to the dtype that it uses instead. `bodies`: those built
        so far, as several graphs may run one."""
        self.backend, self.root, self.problems, self.narrower = backend, root, problems, narrower
        self.bodies: dict[nn.Module, GeneratedBody] = {} if bodies is None else bodies
        known = backend.dtypes
        # None stays None: such a backend takes PyTorch's dtypes.
        self.dtypes = known and {**known, **{wide: known[narrow] for wide, narrow in narrower.items()}}
        self.now: dict[fx.Node, Any] = {}
        """The current value of a node if it is not the node itself: a body, or the value written to an input."""
        self.inputs: list[fx.Node] = []
        self.state: dict[fx.Node, torch.Tensor] = {}
        """The attributes of the graph that are tensors."""
        self.written: dict[fx.Node, fx.Node] = {}
        """By an input or a tensor of the module that is written to: its final value."""
        self.steps: list[GeneratedStep] = []
        self.done: set[fx.Node] = set()
        """Nodes that the step of another one computes, too."""
        self.results: Any = None
        self.border = ComplexBoundary()
        """The conversions of complex inputs and results, for a backend without complex dtypes."""

    def build(self, graph: fx.Graph) -> CodeBuilder:
        """Translate a graph."""
        effects = effects_in(graph)
        self.border = ComplexBoundary.of(graph, self.backend)
        for node in graph.nodes:
            self._check_dtypes(node)
            if node in self.done:
                continue
            if node.op == "placeholder":
                self.inputs.append(node)
            elif node.op == "get_attr":
                self._attribute(node)
            elif node.op == "output":
                self.results = substituted(node.args[0], lambda n: n if self._leaves(n) else self.now.get(n, n))
            elif checks_inputs(node):  # by the loaded program, before it is run
                continue
            elif node.op == "call_module":
                self.problems.modules.setdefault(f"the module {node.target}", []).append(node)
            # The backend has one array for both dtypes, so that a cast between them is nothing to it.
            elif node in self.border.apart or node in self.border.together or self._is_cast(node):
                self.now[node] = self._current(node.args[0])
            elif node in effects and effects[node] != "control flow" and not runs_once(node.target):
                self._effect(node, effects[node])
            else:
                self._call(node)
        return self

    def _leaves(self, node: fx.Node) -> bool:
        """Whether a result is not an array of the backend but PyTorch's conversion of one."""
        return node in self.border or self._is_cast(node)

    def _is_cast(self, node: fx.Node) -> bool:
        """Whether a call only casts between a dtype that the backend lacks and the dtype used instead."""
        call = call_if_bound(node) if self.narrower and node.op.startswith("call") else None
        return call is not None and is_between(call, self.narrower)

    def array_of(self, node: fx.Node) -> fx.Node:
        """The node whose array represents a result: for a complex one, its real pair."""
        found: fx.Node = self.now.get(node, node)
        return found

    def _current(self, value: Any) -> Any:
        return substituted(value, lambda node: self.now.get(node, node))

    def _problem(self, problem: str, node: fx.Node) -> None:
        self.problems.others.setdefault(problem, []).append(node)

    def _dtype(self, dtype: torch.dtype, node: fx.Node) -> None:
        found = self.problems.dtypes.setdefault(name_of(dtype), [])
        if node not in found[-1:]:
            found.append(node)

    def _check_dtypes(self, node: fx.Node) -> None:
        known = self.dtypes
        if known is None or node.op == "output" or node in self.border:
            return
        for dtype in dict.fromkeys(x.dtype for x in tensors_in(metadata(node)) if x.dtype not in known):
            self._dtype(dtype, node)

    def _attribute(self, node: fx.Node) -> None:
        value = attribute(self.root, str(node.target))
        if isinstance(value, torch.Tensor):
            self.state[node] = value
        elif isinstance(value, fx.GraphModule):
            if value not in self.bodies:
                self.bodies[value] = GeneratedBody(self._body(value), str(node.target))
            self.now[node] = self.bodies[value]
        else:
            self.now[node] = value

    def _body(self, module: fx.GraphModule) -> GeneratedProgram:
        # One collection for the whole program: an error lists what bodies lack, too.
        inner = CodeBuilder(self.backend, module, self.problems, self.narrower, self.bodies).build(module.graph)
        for node in inner.written:
            self._problem("a body of a higher-order op that writes to its inputs", node)
        held = {}
        for node, each in inner.state.items():
            value = known_value(each)
            if value is None:
                self._problem("a body of a higher-order op with a tensor without values (the meta device)", node)
            else:
                held[node] = narrow_tensor(str(node.target), value.detach(), self.narrower)
        constants = {node: self.backend.from_torch(tensor) for node, tensor in held.items()}
        results = substituted(inner.results, inner.array_of)
        return GeneratedProgram(tuple(inner.inputs), tuple(inner.steps), results, constants)

    def _effect(self, node: fx.Node, kind: str) -> None:
        """Nodes that the target need not support: write-backs, and assertions and markers, which compute nothing."""
        if kind != "write-back":
            return
        if "copy_" not in spell_target(node.target):  # the detach before it
            self.now[node] = self._current(node.args[0])
            return
        to, value = node.args[:2]
        while isinstance(to, fx.Node) and to.op not in ("placeholder", "get_attr"):
            to = to.args[0]
        assert isinstance(to, fx.Node)
        # Later reads get the new array: arrays of a backend are not written in place.
        self.written[to] = self.now[node] = self.now[to] = self._current(value)

    def _call(self, node: fx.Node) -> None:
        if runs_once(node.target):
            self._region(node)
        elif is_projection(node):
            self._host(node, _Projection(node), node.args[:1], {})
        elif is_host(node):
            self._size_or_number(node)
        else:
            self._primitive(node)

    def _host(self, node: fx.Node, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> None:
        self.steps.append(GeneratedStep(node, function, self._current(tuple(args)), self._current(dict(kwargs)), False))

    def _region(self, node: fx.Node) -> None:
        """A region whose body runs once: a call of the body."""
        args = self._current(node.args)
        made = CompositeCall.of(node)
        if made is not None and self._composite(node, made, args):
            return
        # The operands follow the body, whatever settings precede it (`wrap_with_autocast` has four).
        place = next(i for i, each in enumerate(args) if isinstance(each, GeneratedBody))
        self._host(node, args[place], args[place + 1 :], {})

    def _composite(self, node: fx.Node, made: CompositeCall, args: tuple[Any, ...]) -> bool:
        """A composite call by the backend's function for its op, or by that for `wrap`, which takes the composite, its
        body and its operands. Returns whether there is one."""
        call = made.source_call(node)
        # A function for the op itself comes before one that emits the composite with its body.
        found = self.backend.implementation(call) if call is not None else None
        if call is not None and found is not None and not call.op.name.startswith("higher_order."):
            return self._native(node, made, call, found.function)
        emits = self.backend.implementation(Call(_WRAP, None, {}, place=node))
        if emits is None:
            return False
        self._host(node, functools.partial(emits.function, made), args, {})
        return True

    def _native(self, node: fx.Node, made: CompositeCall, call: Call, function: Callable[..., Any]) -> bool:
        try:
            args, kwargs = arguments_of(call, self.dtypes)
        except UnknownDtype:
            return False
        # The decomposition is there, so that a function that does not take this call is no error.
        if why_not_callable(function, (args, kwargs)) is not None:
            return False
        single = made.single(node)
        if single is not None:
            self.done.add(single)
        native = function if single is not None else _ResultsOf(function, made.results)
        self.steps.append(GeneratedStep(single or node, native, self._current(args), self._current(kwargs), True))
        return True

    def _size_or_number(self, node: fx.Node) -> None:
        call = call_if_bound(node) if isinstance(node.target, torch._ops.OpOverload) else None  # not n * m of sizes
        if call is not None and self.backend.implementation(call) is not None:
            return self._primitive(node)
        found = host_function(node, self.backend)
        if found is None:
            return self._problem(
                f"{spell_target(node.target)}: reads a property that arrays of a backend do not have", node
            )
        self._host(node, found, node.args, node.kwargs)

    def _primitive(self, node: fx.Node) -> None:
        call = call_if_bound(node)
        if call is None:
            return self._problem(f"{spell_target(node.target)}: its arguments match no overload", node)
        found = self.backend.implementation(NarrowCall.of(call, self.narrower) if self.narrower else call)
        # A table is of functional ops. What is left in place here was kept by partial=True or by a target's own op.
        if found is None or call.inplace:
            name = f"{call.op}.{call.overload}" if call.overload not in (None, "default") else str(call.op)
            name += "_" if call.inplace else ""
            self.problems.missing.setdefault(name, []).append(node)
            if call.op.packet is not None and self.backend.target.why_illegal(call) is None:
                self.problems.listed.add(name)
            if reasons := self.backend.conditions(call):
                self.problems.conditions[name] = ", or ".join(reasons)
            return
        try:
            args, kwargs = arguments_of(call, self.dtypes)
        except UnknownDtype as error:
            return self._dtype(error.args[0], node)
        args, kwargs = self._current(args), self._current(kwargs)
        problem = why_not_callable(found.function, (args, kwargs))
        if problem is not None:
            return self._problem(f"{call.op}: {getattr(found.function, '__name__', found.function)}: {problem}", node)
        self.steps.append(GeneratedStep(node, found.function, args, kwargs, True))


_WRAP = Op("higher_order.wrap")


class _ResultsOf:
    """A backend's function whose results are always a tuple, as those of a body."""

    def __init__(self, function: Callable[..., Any], places: tuple[int, ...]) -> None:
        self.function, self.places = function, places
        self.__name__ = getattr(function, "__name__", "function")

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        found = self.function(*args, **kwargs)
        return tuple(found[place] for place in self.places) if self.places else (found,)


class _Projection:
    """Selects one of several results, or a slice of them."""

    def __init__(self, node: fx.Node) -> None:
        self.node, self.__name__ = node, "result"

    def __call__(self, results: Any) -> Any:
        return projected(self.node, tuple(results))


def host_function(node: fx.Node, backend: Backend) -> Callable[..., Any] | None:
    """The Python function for a node of host code, with sizes from `backend.shape`, or None."""
    target = node.target
    if target is getattr:
        return (lambda x, _: tuple(backend.shape(x))) if node.args[1] == "shape" else None
    if node.op == "call_method" or isinstance(target, torch._ops.OpOverload):
        return _SIZES[name](backend) if (name := function_or_method_name(node)) in _SIZES else None
    return target if callable(target) else None


def function_or_method_name(node: fx.Node) -> str:
    """`sym_size` of `aten.sym_size.int`, `size` of `x.size(0)`."""
    return node.target if isinstance(node.target, str) else of_function(node.target).op.short


def _size(backend: Backend) -> Callable[..., Any]:
    return lambda x, dim=None: tuple(backend.shape(x)) if dim is None else backend.shape(x)[dim]


def _numel(backend: Backend) -> Callable[..., Any]:
    return lambda x: functools.reduce(operator.mul, backend.shape(x), 1)


def _dim(backend: Backend) -> Callable[..., Any]:
    return lambda x: len(backend.shape(x))


def _item(backend: Backend) -> Callable[..., Any]:
    return lambda x: backend.to_torch(x).item()


_SIZES: dict[str, Callable[[Backend], Callable[..., Any]]] = {
    **dict.fromkeys(("sym_size", "size"), _size),
    **dict.fromkeys(("sym_numel", "numel"), _numel),
    **dict.fromkeys(("dim", "ndimension"), _dim),
    **dict.fromkeys(("_local_scalar_dense", "item"), _item),
    "sym_storage_offset": lambda _: lambda x: 0,
}
"""Host functions of a tensor that return sizes and numbers."""
