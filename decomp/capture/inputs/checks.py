"""The check of a lowered program's inputs. Shapes, dtypes, kinds and numbers of the inputs were known to the rules;
with others the results would be silently wrong, so the program compares its inputs with those it was lowered for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import copy
from dataclasses import dataclass, replace
import functools
import math
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.inputs.assumptions import Assumption
from decomp.capture.inputs.layouts import Reads, lay_out_in_order, order_condition, order_of
from decomp.capture.inputs.trees import checked_inputs, refuse_others
from decomp.errors import AssumptionBroken, GradientLost, InputMismatch, InputMissing
from decomp.ir.aliases import spelling_of
from decomp.ir.call import metadata
from decomp.ir.op_facts import MAYBE_VIEW, READS_STRIDES, RETURNS_STRIDES
from decomp.metadata.strides import has_strides
from decomp.metadata.symbolic_sizes import SYMBOLIC, has_fixed_sizes
from decomp.torch_internals.graphs import LazyGraphModule, PyTreeCodeGen
from decomp.torch_internals.pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class TensorInput:
    """What is required of a tensor input; fields that are None are not checked."""

    dtype: torch.dtype
    shape: tuple[int | None, ...] | None
    """Its sizes, None for one that varies."""
    device: torch.device | None = None
    strides: tuple[int, ...] | None = None
    every_stride: bool = False
    """Whether strides of dimensions that have one element, or none, count too: they say nothing about memory, but the
    program computes with them as numbers."""
    order: tuple[int, ...] | None = None
    """Its dimensions from the outermost to the innermost, if the program only runs on tensors laid out in this
    order."""
    resolved: bool = False
    """Whether the program reinterprets its bits, so that conjugate and negative bits must be resolved."""
    shared: bool = False
    """Whether the program writes or returns it, so that it cannot be replaced by a copy."""
    home: tuple[torch.device, torch.layout] | None = None
    """The device and layout that the program was lowered for. It may run on others; if that fails, the error says
    so."""

    def condition(self, name: str) -> str:
        """Python code that is true of a plain tensor `name` that meets the requirements; a quick test that may also be
        false for one that does."""
        # A parameter or a subclass fails this, and is compared by `prepared`, which accepts it.
        found = [f"type({name}) is torch.Tensor", f"{name}.dtype is {self.dtype}"]
        if self.shape is not None and None not in self.shape:
            found.append(f"{name}.shape == {tuple(self.shape)}")
        elif self.shape is not None:
            found.append(f"{name}.dim() == {len(self.shape)}")
            found += [f"{name}.shape[{i}] == {size}" for i, size in enumerate(self.shape) if size is not None]
        if self.device is not None:
            found.append(f"{name}.device == torch.{self.device!r}")
        if self.strides is not None:
            found.append(f"{name}.stride() == {self.strides}")
        if self.order is not None:
            found.append(order_condition(self.order, name))
        if self.resolved:
            found.append(f"not {name}.{'is_conj' if self.dtype.is_complex else 'is_neg'}()")
        return " and ".join(found)

    def prepared(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy that the program can run on. Raises `InputMismatch` where it cannot be copied."""
        found = tensor.resolve_conj().resolve_neg() if self.resolved else tensor
        if self.shared and found is not tensor:
            raise InputMismatch(name, "a tensor whose bits are its values", "a conjugate or negative view", "value")
        if self.order is None or (moved := lay_out_in_order(found, self.order)).stride() == found.stride():
            return found
        if self.shared:
            raise InputMismatch(name, moved.stride(), found.stride(), "strides")
        return moved


@dataclass(frozen=True, slots=True)
class NumberInput:
    """A number of a fixed type and any value."""

    kind: type

    def condition(self, name: str) -> str:
        """Python code that is true of a plain number `name` of this type."""
        return f"type({name}) is {self.kind.__name__}"


class _Unchecked:
    """An input that is not checked."""

    def __reduce__(self) -> str:
        return "ANYTHING"  # a singleton, also after copying and unpickling


ANYTHING = _Unchecked()


@dataclass(frozen=True, slots=True)
class InputScope:
    """The properties of inputs on which a program depends, besides dtype and shape."""

    devices: bool
    """Whether a call names a device."""
    strides: bool
    """Whether a call of the source reads memory by strides, or returns a view or a copy depending on them."""
    every_stride: bool
    """Whether a call of the source returns strides as numbers."""
    reads: Reads
    """The inputs of which the lowered graph reads more than the values."""


def scope_of(lowered: fx.Graph, source: fx.Graph) -> InputScope:
    """The properties on which the lowered program depends; `source` is the graph it was lowered from."""
    devices = any(isinstance(a, torch.device) for n in lowered.nodes for a in (*n.args, *n.kwargs.values()))
    return InputScope(devices, reads_strides(source), _calls(source, RETURNS_STRIDES), Reads.of(lowered))


def reads_strides(source: fx.Graph) -> bool:
    """Whether a call of a graph reads memory by strides."""
    return _calls(source, READS_STRIDES)


def _calls(graph: fx.Graph, names: Collection[str]) -> bool:
    """Whether a graph calls an op of one of these names."""
    targets = {(node.op, node.target): node for node in graph.nodes if node.op in ("call_function", "call_method")}
    return any(spelling_of(node).op.short in names for node in targets.values())


def expected_inputs(lowered: fx.Graph, source: fx.Graph, derived: Collection[fx.Node] | None) -> list[Any]:
    """What is required of the inputs that reach one of the calls `derived` of the source, or of all with None."""
    inputs = source.find_nodes(op="placeholder")
    scope = scope_of(lowered, source)
    if derived is None:
        scope = replace(scope, strides=scope.strides or _calls(source, MAYBE_VIEW))
    checked = [node for node in inputs if derived is None or _reaches(node, derived)]
    return [expected_input(str(node.target), metadata(node), scope) if node in checked else ANYTHING for node in inputs]


def expected_input(name: str, value: Any, scope: InputScope) -> Any:
    """What is required of an input with this metadata."""
    if isinstance(value, torch.Tensor):
        return tensor_input(name, value, scope)
    if type(value) in (list, tuple) and not _is_plain(value):
        return type(value)(expected_input(name, item, scope) for item in value)
    if type(value) is dict:
        return {key: expected_input(name, item, scope) for key, item in value.items()}
    if isinstance(value, SYMBOLIC):
        return NumberInput(_SYMBOLIC_KINDS[type(value)])
    return value if _is_plain(value) else ANYTHING


_SYMBOLIC_KINDS: dict[Any, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_SYMBOLIC_OF: dict[type, tuple[type, ...]] = {int: (torch.SymInt,), float: (torch.SymFloat,), bool: (torch.SymBool,)}
_PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device)


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) in (list, tuple) else type(value) in _PLAIN


def tensor_input(name: str, value: torch.Tensor, scope: InputScope) -> TensorInput:
    """What is required of a tensor like `value`; dynamic sizes are not checked."""
    fixed, reads = has_fixed_sizes(value), scope.reads
    by_strides = scope.strides and fixed and value.layout is torch.strided
    return TensorInput(
        value.dtype,
        tuple(size if type(size) is int else None for size in value.shape),
        value.device if scope.devices else None,
        value.stride() if by_strides else None,
        by_strides and scope.every_stride,
        order_of(value) if name in reads.strides and not by_strides else None,
        name in reads.bits,
        name in reads.shared,
        (value.device, value.layout),
    )


def _reaches(start: fx.Node, derived: Collection[fx.Node]) -> bool:
    """Whether a derived call depends on the input: on a tensor through any calls, on a number only as long as results
    are numbers. An input of None always counts, as it leaves no trace in the graph."""
    value = metadata(start)
    if value is None:
        return True
    number = _is_plain(value)
    seen, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        if node in derived:
            return True
        if number and isinstance(metadata(node), torch.Tensor):
            continue
        waiting += [user for user in node.users if user not in seen]
        seen.update(node.users)
    return False


Look = Callable[[nn.Module, Mapping[str, Any]], None]
"""Inspects the inputs of a module, by name."""


@dataclass(frozen=True)
class AlternativeProgram:
    """An alternative program for inputs of other strides, run on the state of the main one."""

    program: fx.GraphModule
    strides: Mapping[str, tuple[int, ...]]
    """The strides for which the main program was lowered, of the inputs with fixed sizes."""
    orders: Mapping[str, tuple[int, ...]]
    """The order of dimensions in memory, of the other inputs."""

    def is_for(self, given: Mapping[str, Any]) -> bool:
        """Whether an input is laid out differently from what the main program expects."""
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        # Strides of dimensions of size one count as well: by these BLAS chooses a kernel, and the last bits follow it.
        fixed = (tensors[name].stride() == strides for name, strides in self.strides.items() if name in tensors)
        orders = ((tensors[name], order) for name, order in self.orders.items() if name in tensors)
        return not all(fixed) or not all(x.dim() == len(o) and x.permute(o).is_contiguous() for x, o in orders)

    def run(self, state: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run it, without gradients, on the parameters and buffers of `state`."""
        with torch.no_grad():
            if isinstance(self.program, LazyGraphModule):
                self.program.real_recompile()
            # The code of one module on another: the alternative has no state of its own to go stale.
            return type(self.program).forward(state, *args, **kwargs)


class InputCheck:
    """Compares the inputs of each call with those that the program was lowered for. `codegen`: of a program that takes
    pytrees, whose leaves are compared; `defaults`: of inputs that a call may omit; `assumptions`: conditions across
    inputs."""

    def __init__(
        self,
        names: Sequence[str],
        expected: Sequence[Any],
        codegen: PyTreeCodeGen | None = None,
        defaults: Mapping[str, Any] | None = None,
        assumptions: Sequence[Assumption] = (),
    ) -> None:
        self.names, self.expected, self.codegen, self.defaults = names, expected, codegen, defaults or {}
        self.assumptions = tuple(assumptions)
        self.looks: list[Look] = []
        """Further checks of the inputs, by name: of memory overlap, if the program writes to some; of values."""
        self.inference = False
        """Whether the program was lowered without gradients."""
        self.otherwise: AlternativeProgram | None = None
        """The program to run instead on inputs that are laid out differently."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.refuse_wrong_count(args, kwargs)
        given = self._by_name(args, kwargs)
        self.compare([given.get(name, ANYTHING) for name in self.names])
        for look in self.looks:
            look(module, given)

    def showing(self, *looks: Look) -> InputCheck:
        """A copy of this check that also calls `looks`. (A copy, as it may be shared with the program that was
        lowered.)"""
        found = copy.copy(self)
        found.looks = [*self.looks, *looks]
        return found

    def for_inference(self) -> InputCheck:
        """A copy of this check for a program without gradients."""
        found = copy.copy(self)
        found.inference = True
        return found

    def after(self, before: InputCheck) -> InputCheck:
        """This check combined with what `before` checks in addition."""
        known = dict(zip(before.names, before.expected))
        expected = [known.get(n, ANYTHING) if e is ANYTHING else e for n, e in zip(self.names, self.expected)]
        assumptions = dict.fromkeys((*before.assumptions, *self.assumptions))
        found = InputCheck(self.names, expected, self.codegen, self.defaults, tuple(assumptions))
        found.inference = self.inference or before.inference
        return found.showing(*before.looks, *self.looks)

    def compare(self, inputs: Sequence[Any], held: Callable[[], Sequence[bool]] | None = None) -> None:
        """Raise `InputMismatch` where an input is not as expected. `held` returns which assumptions hold, computed by
        generated code if there is any: Dynamo does not trace functions compiled from text."""
        for name, expected, found in zip(self.names, self.expected, inputs):
            if found is not ANYTHING:
                _compare(name.lstrip("*"), expected, found)
        if not self.assumptions or any(isinstance(each, fx.Proxy) for each in inputs):
            return  # proxies of a symbolic trace have no sizes
        given = dict(zip(self.names, inputs))
        answers = held() if held is not None else [each.holds(given) for each in self.assumptions]
        for assumption, holds in zip(self.assumptions, answers):
            if not holds:
                raise AssumptionBroken(
                    assumption.code, {name: _describe_measured(given[name]) for name in assumption.inputs}
                )

    def prepared(self, inputs: Sequence[Any], held: Callable[[], Sequence[bool]] | None = None) -> list[Any]:
        """The inputs, with those of another layout copied to the layout that the program was lowered for. Raises
        `InputMismatch`."""
        self.compare(inputs, held)
        return list(map(_prepared, self.names, self.expected, inputs))

    def line(self) -> str | None:
        """A line of code that calls `prepared` unless a quick test accepts the inputs; None if their names are no
        identifiers. Testing inputs by name costs less than a small kernel, and compilers can trace it."""
        conditions = [_condition(name, each) for name, each in zip(self.names, self.expected) if each is not ANYTHING]
        inline = all(each.inline for each in self.assumptions)
        # Conditions that cannot be inlined make the quick test fail, so that `prepared` checks them every time.
        conditions += [each.line for each in self.assumptions] if inline else ["False"]
        if not conditions or not all(map(str.isidentifier, self.names)):
            return None
        tests = " and ".join(f"({each})" for each in conditions)
        codes = "".join(f"{each.line}, " for each in self.assumptions)
        held = f", lambda: ({codes})" if inline and codes else ""
        inputs = f"({', '.join(self.names)},)"
        return f"if not ({tests}): {inputs} = self._input_check.prepared({inputs}{held})\n"

    @property
    def is_said_by_line(self) -> bool:
        """Whether the line performs the whole check, or there is nothing to check: inputs are no pytrees, and no
        further checks are registered."""
        open_to_all = all(each is ANYTHING for each in self.expected) and not self.assumptions
        return self.codegen is None and not self.looks and (open_to_all or self.line() is not None)

    def is_laid_out_otherwise(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether `otherwise` is to run on these inputs. (Inputs that require gradients go to the program, which
        refuses them.)"""
        # Dynamo would have to trace both programs.
        if self.otherwise is None or torch.compiler.is_compiling():
            return False
        wants = torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tree_leaves((args, kwargs)))
        # The alternative program has no gradients, so inputs that need them must not reach it.
        return not wants and self.otherwise.is_for(self._by_name(args, kwargs))

    def refuse_gradients(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise `GradientLost` where an input requires a gradient, for a program lowered without gradients."""
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                given = self._by_name(args, kwargs)
                named = (name for name, value in given.items() if any(leaf is each for each in tree_leaves(value)))
                raise GradientLost(next(named, "?").lstrip("*"))

    def explain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], cause: Exception) -> None:
        """Raise `InputMismatch` if a call failed because its inputs differ, including in properties that are not
        checked beforehand."""
        self.refuse_wrong_count(args, kwargs)
        given = self._by_name(args, kwargs)
        inputs = [given.get(name, ANYTHING) for name in self.names]
        for name, expected, found in zip(self.names, self.expected, inputs):
            if isinstance(expected, TensorInput) and isinstance(found, torch.Tensor) and expected.home is not None:
                _compare_home(name, *expected.home, found, cause)
        self.compare(inputs)

    def refuse_wrong_count(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise `InputMissing` if a call has too few inputs, or too many."""
        if self.codegen is not None:
            return
        plain = [name for name in self.names if not name.startswith("*")]
        missing = [name for name in plain[len(args) :] if name not in kwargs and name not in self.defaults]
        if missing:
            raise InputMissing(missing, plain)
        if len(plain) == len(self.names):
            refuse_others(plain, args, kwargs)

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self.codegen is not None:
            return dict(zip(self.names, checked_inputs(self.codegen, args, kwargs)))
        given = {**self.defaults, **dict(zip(self.names, args)), **kwargs}
        for i, name in enumerate(self.names):
            if name.startswith("**"):
                given[name] = {key: value for key, value in kwargs.items() if key not in self.names}
            elif name.startswith("*"):
                given[name] = args[i:]
        return given


def _prepared(name: str, expected: Any, found: Any) -> Any:
    if isinstance(expected, TensorInput) and isinstance(found, torch.Tensor):
        return expected.prepared(name, found)
    if isinstance(expected, (list, tuple)) and not _is_plain(expected):
        return type(found)(map(functools.partial(_prepared, name), expected, found))
    if isinstance(expected, dict):
        return {key: _prepared(name, value, found[key]) for key, value in expected.items()}
    return found


def _condition(name: str, expected: Any) -> str:
    """Python code that is true of an expected input. "False" where an expression is not enough: such inputs are
    compared at each call."""
    if isinstance(expected, (TensorInput, NumberInput)):
        return expected.condition(name)
    if expected is None:
        return f"{name} is None"
    if type(expected) in (bool, int, str) or type(expected) is float and math.isfinite(expected):
        return f"type({name}) is {type(expected).__name__} and {name} == {expected!r}"
    return "False"


def _describe_measured(value: Any) -> str:
    """The shape or value of an input, for the error about an assumption."""
    if not isinstance(value, torch.Tensor):
        return f"value {value}"
    return f"shape {tuple(value.shape)}"


def _compare(name: str, expected: Any, found: Any) -> None:
    if expected is ANYTHING:
        return
    if isinstance(expected, TensorInput):
        _compare_tensor(name, expected, found)
    elif isinstance(expected, NumberInput):
        if type(found) not in (expected.kind, *_SYMBOLIC_OF[expected.kind]) and not isinstance(found, fx.Proxy):
            raise InputMismatch(name, f"an {expected.kind.__name__}", _describe_input(found), "value")
    elif isinstance(expected, (list, tuple, dict)) and not _is_plain(expected):
        if type(found) is not type(expected) or len(found) != len(expected):
            raise InputMismatch(name, _describe_input(expected), _describe_input(found), "value")
        for key, one, other in _paired(expected, found):
            _compare(f"{name}[{key!r}]", one, other)
    # By type, as True equals 1; the last part lets NaN pass where NaN is expected.
    elif type(found) is not type(expected) or found != expected and (found == found or expected == expected):
        raise InputMismatch(name, expected, _describe_input(found), "value")


def _paired(expected: Any, found: Any) -> Iterable[tuple[Any, Any, Any]]:
    if not isinstance(expected, dict):
        return ((i, *pair) for i, pair in enumerate(zip(expected, found)))
    return ((key, value, found.get(key)) for key, value in expected.items())


def _compare_tensor(name: str, expected: TensorInput, found: Any) -> None:
    if isinstance(found, fx.Proxy):
        return  # the program is being traced
    if not isinstance(found, torch.Tensor):
        raise InputMismatch(name, "a tensor", _describe_input(found), "value")
    if expected.shape is not None and not _fits(expected.shape, found.shape):
        wanted = tuple("any" if size is None else size for size in expected.shape)
        raise InputMismatch(name, wanted, tuple(found.shape))
    if found.dtype != expected.dtype:
        raise InputMismatch(name, expected.dtype, found.dtype, "dtype")
    if expected.device is not None and found.device != expected.device:
        raise InputMismatch(name, expected.device, found.device, "device")
    if expected.strides is not None and not _is_laid_out(expected.strides, found, expected.every_stride):
        raise InputMismatch(name, expected.strides, found.stride(), "strides")


def _is_laid_out(strides: tuple[int, ...], found: torch.Tensor, every_stride: bool) -> bool:
    return found.stride() == strides or not every_stride and has_strides(found, strides)


def _compare_home(name: str, device: torch.device, layout: torch.layout, found: torch.Tensor, cause: Exception) -> None:
    if found.layout != layout or found.is_nested:
        raise InputMismatch(name, layout, "nested" if found.is_nested else found.layout, "layout") from cause
    if found.device != device:
        raise InputMismatch(name, device, found.device, "device") from cause


def _fits(expected: Sequence[int | None], found: Sequence[int]) -> bool:
    if len(expected) != len(found):
        return False
    return all(one is None or one == other for one, other in zip(expected, found))


def _describe_input(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, TensorInput)):
        return "a tensor"
    if value is ANYTHING:
        return "anything"
    if type(value) in (list, tuple):
        return type(value)(_describe_input(item) for item in value)
    if _is_plain(value):
        return value
    return f"a {type(value).__name__}"
