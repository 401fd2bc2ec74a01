"""Expands one complex call over pairs. Either an operation on pairs computes it, or the expansion of a rule, whose
complex calls are expanded in the same way. The resulting calls on real tensors are recorded once per signature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
import inspect
from typing import Any, Protocol

import torch
from torch import fx

from decomp.graphs.template import ExpansionTemplate, compile_template
from decomp.graphs.tracing import Leaked, Tape, UnknownSize, recording
from decomp.ir.arguments import substituted
from decomp.ir.call import Call, call_if_bound, call_target, is_projection, metadata, projected
from decomp.ir.dtypes import is_complex
from decomp.ir.op_facts import COMPLEX_INSIDE
from decomp.ir.signature import described
from decomp.metadata.fakes import Fakes
from decomp.metadata.meta_values import convert_constant, known_value
from decomp.metadata.shape_env import NewGuard, refusing_guards
from decomp.metadata.symbolic_sizes import same_shape
from decomp.ops import aten
from decomp.torch_internals.fakes import FakeTensorMode
from decomp.torch_internals.modes import disable_current_modes
from decomp.torch_internals.pytree import tree_leaves
from decomp.type_conversion.pair import (
    LINEAR,
    OPERATIONS,
    NotAsPairs,
    Pair,
    as_pair,
    real_dtype,
    take_imaginary_part,
    take_real_part,
    view_of_dtype,
)

MAX_DEPTH = 24
"""The maximum nesting of rules."""


class RecordedPairs(Protocol):
    """A rule's expansion of a call: a graph whose placeholders are the distinct operands of the call."""

    @property
    def rule(self) -> Any:
        """The rule."""

    @property
    def graph(self) -> fx.Graph:
        """The expansion."""

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        """The tensors that the graph names."""


class ComplexAlternatives(Protocol):
    """The rules' expansions that are available for a complex call."""

    def key(self, node: fx.Node) -> tuple[Any, bool]:
        """The signature of a call, and whether it has symbolic sizes, which are only valid in this program."""

    def of(self, node: fx.Node) -> Iterator[RecordedPairs]:
        """The expansions that rules record for a call, in order of preference."""

    def recorded_in(self, symbolic: bool) -> tuple[FakeTensorMode, Fakes | None]:
        """The fake mode in which the rules were recorded."""


@dataclass(frozen=True, slots=True)
class PairOperation:
    """An operation on pairs; takes the place of a rule in the provenance of nodes."""

    name: str

    @property
    def location(self) -> str:
        """Shown instead of a rule's file and line."""
        return "on pairs of real numbers"

    def __str__(self) -> str:
        return f"{self.name} ({self.location})"


@dataclass(frozen=True, slots=True)
class _Inlined:
    """A call computed by a rule's expansion, and how the complex calls in the expansion are computed."""

    recorded: RecordedPairs
    steps: dict[fx.Node, Any]


@dataclass
class PairRecorder:
    """Records expansions of complex calls on pairs, once per signature."""

    alternatives: ComplexAlternatives
    templates: dict[Any, ExpansionTemplate | str] = field(default_factory=dict)

    def template_of(self, node: fx.Node, operands: list[Any]) -> ExpansionTemplate | str:
        """The expansion of a call on pairs, or the reason why it has none. `operands` are the images of the distinct
        nodes among the arguments, a pair of nodes for each complex tensor; these are the inputs of the expansion. It
        returns the results of the call, with a pair for each complex one."""
        key, symbolic = self.alternatives.key(node)
        # Strides of the parts are not part of the complex call's signature, and decide whether a view is one.
        layouts = tuple(map(_layout, operands))
        if (key, layouts) not in self.templates:
            self.templates[key, layouts] = self._record_template(node, operands, symbolic)
        return self.templates[key, layouts]

    def _record_template(self, node: fx.Node, operands: list[Any], symbolic: bool) -> ExpansionTemplate | str:
        mode, fakes = self.alternatives.recorded_in(symbolic)
        tape = Tape(fx.Graph(), mode, fakes)
        try:
            # Before the tape is on: rules run on tapes of their own.
            recipe = self._recipe(node, ())
            inputs = zip(node.all_input_nodes, operands)
            values = {given: _input(tape, each, metadata(given)) for given, each in inputs}
            # Operations on pairs are PyTorch calls; what they dispatch is recorded like the calls of a rule.
            with refusing_guards(mode) as asked, torch.no_grad(), recording(tape, _refuse):
                result = _agreeing(_PairRun(tape).call(node, recipe, values), metadata(node))
            if asked:
                return f"asks for a size that is known when the program runs: {asked[0]}"
            tape.graph.output(_nodes_of(tape, result))
        except (NotAsPairs, NewGuard, UnknownSize, Leaked) as error:
            return str(error) or "uses a value of another run"
        tape.graph.eliminate_dead_code()
        chain = (recipe.recorded.rule,) if isinstance(recipe, _Inlined) else (PairOperation(recipe),)
        for made in tape.graph.nodes:
            made.meta.setdefault("chain", chain)
        used = {str(each.target) for each in tape.graph.find_nodes(op="get_attr")}
        return compile_template(tape.graph, {name: value for name, value in tape.constants.items() if name in used})

    # How a call is computed. This is decided before recording begins, because looking up rules records them on other
    # tapes.

    def _recipe(self, node: fx.Node, outer: tuple[Any, ...]) -> Any:
        """The name of an operation on pairs, or a rule's expansion. Raises `NotAsPairs`."""
        call = call_if_bound(node)
        if call is None:
            raise NotAsPairs("its arguments match no overload")
        name = call.op.short
        if name in OPERATIONS or name in LINEAR:
            return name
        key, _ = self.alternatives.key(node)
        if key in outer or len(outer) > MAX_DEPTH:
            raise NotAsPairs(f"{call.op} recurses on itself")
        reason = f"{call.op} has no rule that computes it from real numbers"
        # The first that works. Prices are compared later, by the planner, of what the real calls become.
        for recorded in self.alternatives.of(node):
            try:
                return _Inlined(recorded, self._steps(recorded, (*outer, key)))
            except NotAsPairs as why:
                reason = str(why)
        raise NotAsPairs(reason)

    def _steps(self, recorded: RecordedPairs, outer: tuple[Any, ...]) -> dict[fx.Node, Any]:
        """How each complex call of an expansion is computed."""
        nodes = [node for node in recorded.graph.nodes if is_complex_call(node) and not reads_sizes(node)]
        return {node: self._recipe(node, outer) for node in nodes}


def is_complex_call(node: fx.Node) -> bool:
    """Whether a call takes, returns or computes with complex tensors. Projections of tuples do not count."""
    if not node.op.startswith("call") or is_projection(node):
        return False
    values = (metadata(node), *map(metadata, node.all_input_nodes))
    return any(map(is_complex, values)) or is_complex_inside(node)


def reads_sizes(node: fx.Node) -> bool:
    """Whether a call only reads the sizes of a tensor, so that either part of a pair can replace it."""
    return node.op == "call_function" and node.target in _SIZES


_SIZES = frozenset({aten.sym_size.int, aten.sym_size.default, aten.sym_numel.default})


def is_complex_inside(node: fx.Node) -> bool:
    """Whether a call computes with complex numbers even if it takes and returns real ones."""
    call = call_if_bound(node) if node.op.startswith("call") else None
    return call is not None and call.op.short in COMPLEX_INSIDE


def _layout(operand: Any) -> Any:
    if isinstance(operand, tuple):
        return tuple(map(_layout, operand))
    return described(metadata(operand)) if isinstance(operand, fx.Node) else (type(operand), operand)


def _input(tape: Tape, operand: Any, stands_for: Any) -> Any:
    """The value of an argument during recording: a fake tensor or number, a `Pair`, or a tuple of these."""
    if isinstance(operand, tuple):
        if isinstance(stands_for, torch.Tensor):
            return Pair(*(_input(tape, part, metadata(part)) for part in operand))
        return tuple(_input(tape, part, each) for part, each in zip(operand, stands_for, strict=True))
    if not isinstance(operand, fx.Node):  # a known size
        # Placeholders count the operands, so that a number needs one although no node reads it.
        tape.placeholder("number", operand)
        return operand
    value = metadata(operand)
    if is_complex(value):
        raise NotAsPairs(f"uses a result of {operand.name}, which stays complex")
    fake = tape.fake_like(value) if isinstance(value, (torch.Tensor, list, tuple)) else value
    tape.placeholder(operand.name, fake)
    return fake


def _refuse(overload: Any) -> None:
    raise NotAsPairs(f"calls {overload}, which mutates a tensor")


@dataclass
class _PairRun:
    """Runs calls on fake tensors and pairs of them while a tape records the resulting calls on real tensors."""

    tape: Tape
    _constants: dict[int, Any] = field(default_factory=dict)

    def call(self, node: fx.Node, recipe: Any, values: Mapping[fx.Node, Any]) -> Any:
        """The result of a call, given the `values` of its operands."""
        args, kwargs = substituted((node.args, dict(node.kwargs)), values.__getitem__)
        if reads_sizes(node):
            args, kwargs = take_real_part(args), take_real_part(kwargs)
        if recipe is None:
            return _real_call(node, args, kwargs)
        if isinstance(recipe, _Inlined):
            return self._inlined(recipe, [values[given] for given in node.all_input_nodes])
        call = call_if_bound(node)
        assert call is not None
        if recipe == "view" and call.overload == "dtype":
            return view_of_dtype(args[0], args[1])
        if recipe in OPERATIONS:
            result = _by_operation(OPERATIONS[recipe], call, values)
            real = isinstance(result, Pair) and not is_complex(metadata(node))  # full_like with a real dtype=
            return take_real_part(result) if real else result
        return _part_by_part(recipe, node, args, kwargs)

    def _inlined(self, recipe: _Inlined, given: list[Any]) -> Any:
        graph, waiting = recipe.recorded.graph, iter(given)
        values: dict[fx.Node, Any] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = next(waiting)
            elif node.op == "get_attr":
                values[node] = self._constant(recipe.recorded.constants[str(node.target)])
            elif node.op == "output":
                return substituted(node.args[0], values.__getitem__)
            elif is_projection(node):
                values[node] = projected(node, values[node.args[0]])
            else:
                values[node] = self.call(node, recipe.steps.get(node), values)
        raise AssertionError("a graph without an output")

    def _constant(self, tensor: torch.Tensor) -> Any:
        """The fake of a concrete tensor; a pair of fakes if it is complex."""
        if not tensor.is_complex():
            return self.tape.constant(tensor)
        if id(tensor) not in self._constants:
            with disable_current_modes():
                parts = [convert_constant(part, tensor) for part in (_real_part, _imaginary_part)]
                imaginary = known_value(parts[1])
                # A constant without imaginary part, such as one made by a rule for real weights, is a real tensor here.
                real = imaginary is not None and not bool(imaginary.ne(0).any())
            fakes = [self.tape.constant(part) for part in (parts[:1] if real else parts)]
            self._constants[id(tensor)] = Pair(*fakes)
        return self._constants[id(tensor)]


def _real_part(tensor: torch.Tensor) -> torch.Tensor:
    # A part of a view of the whole would keep the whole alive, and have its strides.
    return torch.view_as_real(tensor.resolve_conj())[..., 0].clone()


def _imaginary_part(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj())[..., 1].clone()


_VIEWS = ("view", "_unsafe_view")


def _real_call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Run a call on real tensors. Inside an expansion, strides can differ from those that it was recorded for, so a
    `view` may need a copy."""
    if node.op == "call_function" and getattr(node.target, "_overloadpacket", None) is aten.view:
        if node.target._overloadname == "default":
            return _reshaped(args, kwargs)
    return call_target(node.target, args, kwargs)


def _reshaped(args: Any, kwargs: Any) -> Any:
    """The result of `view`, whose sizes are one argument or several; a copy if the strides do not allow a view."""
    given = [*args, *kwargs.values()]
    return given[0].reshape(*given[1:])


def _by_operation(operation: Callable[..., Any], call: Call, values: Mapping[fx.Node, Any]) -> Any:
    """Run an operation on the arguments that it takes. The others only choose device and memory layout."""
    taken = inspect.signature(operation).parameters
    named = {name: substituted(value, values.__getitem__) for name, value in call.arguments.items()}
    if set(taken) == {"operands"}:
        return operation(*named.values())
    return operation(**{name: value for name, value in named.items() if name in taken})


def _part_by_part(name: str, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Apply a linear op to each part."""
    places = LINEAR[name]

    def of(part: Callable[[Any], Any]) -> Any:
        # Arguments that are no operands of the linear map, such as indices and dims, are the same for both parts.
        own = [part(arg) if i in places else take_real_part(arg) for i, arg in enumerate(args)]
        named = {key: part(arg) if key in places else take_real_part(arg) for key, arg in kwargs.items()}
        return _reshaped(own, named) if name in _VIEWS else call_target(node.target, own, named)

    values = [args[i] if isinstance(i, int) and i < len(args) else kwargs.get(i) for i in places]
    first = of(take_real_part)
    numbers = [each for each in tree_leaves(values) if isinstance(each, complex) and each.imag]
    if not numbers and all(each.im is None for each in tree_leaves(values) if isinstance(each, Pair)):
        return tuple(map(Pair, first)) if isinstance(first, (tuple, list)) else Pair(first)
    second = of(take_imaginary_part)
    return tuple(map(Pair, first, second)) if isinstance(first, (tuple, list)) else Pair(first, second)


def _agreeing(result: Any, expected: Any) -> Any:
    """Convert a result to the form of the op's: pairs for complex tensors, the same shapes and dtypes."""
    if isinstance(expected, (tuple, list)):
        return tuple(map(_agreeing, result, expected))
    if not isinstance(expected, torch.Tensor):
        return result
    if expected.is_complex():
        found = as_pair(result)
        return Pair(*(_fitting(part, expected) for part in (found.re, found.imag)))
    return _fitting(result, expected)


def _fitting(part: Any, expected: torch.Tensor) -> torch.Tensor:
    dtype = real_dtype(expected.dtype)
    if not isinstance(part, torch.Tensor) or not same_shape(expected.shape, part.shape):
        raise NotAsPairs(f"returns {part!r}, but the op returns {list(expected.shape)}")
    return part if part.dtype == dtype else part.to(dtype)


def _nodes_of(tape: Tape, result: Any) -> Any:
    """The nodes on the tape that computed a result."""
    parts = substituted(result, lambda pair: (pair.re, pair.im), Pair)
    return tape.arguments(parts)
