"""What a lowered graph was made for: shapes, dtypes and kinds of its inputs, and numbers among them, are part of what
rules saw. With others its results would be wrong without a word, so it looks at what it is given."""

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
from decomp.capture.inputs.layouts import Reads, in_order, is_in_order, order_of
from decomp.capture.inputs.trees import checked_inputs, refuse_others
from decomp.errors import AssumptionBroken, GradientLost, InputMismatch, InputMissing
from decomp.ir.aliases import spelling_of
from decomp.ir.call import metadata
from decomp.ir.op_facts import MAYBE_VIEW, READS_STRIDES
from decomp.metadata.symbolic_sizes import SYMBOLIC, has_fixed_sizes
from decomp.torch_internals.graphs import LazyGraphModule, PyTreeCodeGen
from decomp.torch_internals.pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class TensorInput:
    """What a tensor is to be; None is not looked at."""

    dtype: torch.dtype
    shape: tuple[int | None, ...] | None
    """Its sizes, None for one that varies."""
    device: torch.device | None = None
    strides: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    """Its dimensions from the outermost to the innermost, where the program runs on tensors of this layout alone."""
    resolved: bool = False
    """Whether the program reads its bits, in which a conjugate or a negative must have been resolved."""
    shared: bool = False
    """Whether the program writes it, or returns it, so that no copy may take its place."""
    home: tuple[torch.device, torch.layout] | None = None
    """Where the program was lowered for it to be. Programs may run elsewhere; what fails there says this."""

    def condition(self, name: str) -> str:
        """Python code that is true of a plain tensor `name` like this, and false of most other things."""
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
            found.append(is_in_order(self.order, name))
        if self.resolved:
            found.append(f"not {name}.{'is_conj' if self.dtype.is_complex else 'is_neg'}()")
        return " and ".join(found)

    def prepared(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy of it that the program can run on. Raises `InputMismatch` where none may be made."""
        found = tensor.resolve_conj().resolve_neg() if self.resolved else tensor
        if self.shared and found is not tensor:
            raise InputMismatch(name, "a tensor whose bits are its values", "a conjugate or negative view", "value")
        if self.order is None or (moved := in_order(found, self.order)).stride() == found.stride():
            return found
        if self.shared:
            raise InputMismatch(name, moved.stride(), found.stride(), "strides")
        return moved


@dataclass(frozen=True, slots=True)
class NumberInput:
    """A number that varies, of one type."""

    kind: type

    def condition(self, name: str) -> str:
        """Python code that is true of a plain number `name` of this type."""
        return f"type({name}) is {self.kind.__name__}"


class _Anything:
    """An input that nobody looks at."""

    def __reduce__(self) -> str:
        return "ANYTHING"  # there is one, in copies and what is read again, too


ANYTHING = _Anything()


@dataclass(frozen=True, slots=True)
class InputScope:
    """What of its inputs a program depends on, beside dtype and shape."""

    devices: bool
    """Some call names a device."""
    strides: bool
    """Some call of the source reads memory by strides, or is a view or a copy as they decide."""
    reads: Reads
    """What the lowered graph reads."""


def scope_of(lowered: fx.Graph, source: fx.Graph) -> InputScope:
    """What the lowered program depends on, of which `source` is what it computes."""
    devices = any(isinstance(a, torch.device) for n in lowered.nodes for a in (*n.args, *n.kwargs.values()))
    return InputScope(devices, reads_strides(source), Reads.of(lowered))


def reads_strides(source: fx.Graph) -> bool:
    """Whether some call of a graph reads memory by strides."""
    targets = {(node.op, node.target): node for node in source.nodes if node.op in ("call_function", "call_method")}
    return any(spelling_of(node).op.short in READS_STRIDES for node in targets.values())


def expected_inputs(lowered: fx.Graph, source: fx.Graph, derived: Collection[fx.Node] | None) -> list[Any]:
    """What the inputs are to be that reach one of the calls `derived` of the source, or all with None."""
    inputs = source.find_nodes(op="placeholder")
    scope = scope_of(lowered, source)
    if derived is None:
        scope = replace(scope, strides=scope.strides or any(_may_view(node) for node in source.nodes))
    checked = [node for node in inputs if derived is None or _reaches(node, derived)]
    return [expected_input(str(node.target), metadata(node), scope) if node in checked else ANYTHING for node in inputs]


def _may_view(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and spelling_of(node).op.short in MAYBE_VIEW


def expected_input(name: str, value: Any, scope: InputScope) -> Any:
    """What an input of this metadata is to be."""
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
    """What a tensor like `value` is to be; sizes that vary are not looked at."""
    fixed, reads = has_fixed_sizes(value), scope.reads
    by_strides = scope.strides and fixed and value.layout is torch.strided
    return TensorInput(
        value.dtype,
        tuple(size if type(size) is int else None for size in value.shape),
        value.device if scope.devices else None,
        value.stride() if by_strides else None,
        order_of(value) if name in reads.strides and not by_strides else None,
        name in reads.bits,
        name in reads.shared,
        (value.device, value.layout),
    )


def _reaches(start: fx.Node, derived: Collection[fx.Node]) -> bool:
    """Whether a derived call sees the input: a tensor through any calls, a number as far as it is one. Of None, nothing
    is left in the graph."""
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
"""Looks at the inputs of a module, by name."""


@dataclass(frozen=True)
class Otherwise:
    """A program that runs on inputs of other strides than these, by name, and on what another one has of state."""

    program: fx.GraphModule
    strides: Mapping[str, tuple[int, ...]]
    """Of the inputs whose sizes are numbers."""
    orders: Mapping[str, tuple[int, ...]]
    """The dimensions in memory, of the others."""

    def is_for(self, given: Mapping[str, Any]) -> bool:
        """Whether some input is laid out otherwise."""
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        fixed = (tensors[name].stride() == strides for name, strides in self.strides.items() if name in tensors)
        orders = ((tensors[name], order) for name, order in self.orders.items() if name in tensors)
        return not all(fixed) or not all(x.dim() == len(o) and x.permute(o).is_contiguous() for x, o in orders)

    def run(self, state: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run it, without gradients."""
        with torch.no_grad():
            if isinstance(self.program, LazyGraphModule):
                self.program.real_recompile()
            return type(self.program).forward(state, *args, **kwargs)  # type: ignore[arg-type]


class InputCheck:
    """Compares the inputs of each call with what the program was lowered for. `codegen`: of a program that takes trees,
    which come in flat; `defaults`: of inputs that a call may leave out; `assumptions`: conditions on several."""

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
        """What else looks at the inputs, by name: at their memory, where the program writes some; at their values."""
        self.inference = False
        """Whether the program has no gradients."""
        self.otherwise: Otherwise | None = None
        """What runs in the place of the program on inputs that are laid out otherwise."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.refuse_wrong_count(args, kwargs)
        given = self._by_name(args, kwargs)
        self.compare([given.get(name, ANYTHING) for name in self.names])
        for look in self.looks:
            look(module, given)

    def showing(self, *looks: Look) -> InputCheck:
        """This check, which shows its inputs to `looks`, too. (It may be that of the program that was lowered.)"""
        found = copy.copy(self)
        found.looks = [*self.looks, *looks]
        return found

    def for_inference(self) -> InputCheck:
        """This check, for a program without gradients."""
        found = copy.copy(self)
        found.inference = True
        return found

    def after(self, before: InputCheck) -> InputCheck:
        """This check, and what `before` looks at beside."""
        known = dict(zip(before.names, before.expected))
        expected = [known.get(n, ANYTHING) if e is ANYTHING else e for n, e in zip(self.names, self.expected)]
        assumptions = dict.fromkeys((*before.assumptions, *self.assumptions))
        found = InputCheck(self.names, expected, self.codegen, self.defaults, tuple(assumptions))
        found.inference = self.inference or before.inference
        return found.showing(*before.looks, *self.looks)

    def compare(self, inputs: Sequence[Any], held: Callable[[], Sequence[bool]] | None = None) -> None:
        """Raise `InputMismatch` where an input is not as expected. `held` says which assumptions hold, where code is
        there that does: Dynamo does not trace what makes a function of text."""
        for name, expected, found in zip(self.names, self.expected, inputs):
            if found is not ANYTHING:
                _compare(name.lstrip("*"), expected, found)
        if not self.assumptions or any(isinstance(each, fx.Proxy) for each in inputs):
            return  # what is traced symbolically has no sizes
        given = dict(zip(self.names, inputs))
        answers = held() if held is not None else [each.holds(given) for each in self.assumptions]
        for assumption, holds in zip(self.assumptions, answers):
            if not holds:
                raise AssumptionBroken(assumption.code, {name: _measured(given[name]) for name in assumption.inputs})

    def prepared(self, inputs: Sequence[Any], held: Callable[[], Sequence[bool]] | None = None) -> list[Any]:
        """The inputs, those of another layout copied into that which the program was lowered for. Raises
        `InputMismatch`."""
        self.compare(inputs, held)
        return list(map(_prepared, self.names, self.expected, inputs))

    def line(self) -> str | None:
        """A line of code that compares the inputs where they are not seen at once to be right; None if they have no
        names in it. A kernel takes no longer than to look at each input by name, and a compiler finds nothing in it
        that it does not know."""
        conditions = [_condition(name, each) for name, each in zip(self.names, self.expected) if each is not ANYTHING]
        inline = all(each.inline for each in self.assumptions)
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
        """Whether the line says all, or there is nothing to say: inputs are no trees, and nothing else is looked at."""
        open_to_all = all(each is ANYTHING for each in self.expected) and not self.assumptions
        return self.codegen is None and not self.looks and (open_to_all or self.line() is not None)

    def is_laid_out_otherwise(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether `otherwise` is to run on these inputs. (One that requires a gradient is refused by the program.)"""
        if self.otherwise is None or torch.compiler.is_compiling():
            return False
        wants = torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tree_leaves((args, kwargs)))
        return not wants and self.otherwise.is_for(self._by_name(args, kwargs))

    def refuse_gradients(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise `InputMismatch` where an input requires a gradient, of a program that has none."""
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                given = self._by_name(args, kwargs)
                named = (name for name, value in given.items() if any(leaf is each for each in tree_leaves(value)))
                raise GradientLost(next(named, "?").lstrip("*"))

    def explain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], cause: Exception) -> None:
        """Raise `InputMismatch` where what a call failed on is that its inputs are others, also in what is not looked
        at before."""
        self.refuse_wrong_count(args, kwargs)
        given = self._by_name(args, kwargs)
        inputs = [given.get(name, ANYTHING) for name in self.names]
        for name, expected, found in zip(self.names, self.expected, inputs):
            if isinstance(expected, TensorInput) and isinstance(found, torch.Tensor) and expected.home is not None:
                _compare_home(name, *expected.home, found, cause)
        self.compare(inputs)

    def refuse_wrong_count(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise `InputMissing` where a call has too few inputs, or too many."""
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
    """Python code that is true of an input as it is expected. What takes more than an expression is compared each
    time."""
    if isinstance(expected, (TensorInput, NumberInput)):
        return expected.condition(name)
    if expected is None:
        return f"{name} is None"
    if type(expected) in (bool, int, str) or type(expected) is float and math.isfinite(expected):
        return f"type({name}) is {type(expected).__name__} and {name} == {expected!r}"
    return "False"


def _measured(value: Any) -> str:
    """An input of which something is assumed, in words."""
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
            raise InputMismatch(name, f"an {expected.kind.__name__}", _shown(found), "value")
    elif isinstance(expected, (list, tuple, dict)) and not _is_plain(expected):
        if type(found) is not type(expected) or len(found) != len(expected):
            raise InputMismatch(name, _shown(expected), _shown(found), "value")
        for key, one, other in _paired(expected, found):
            _compare(f"{name}[{key!r}]", one, other)
    elif type(found) is not type(expected) or found != expected and (found == found or expected == expected):
        raise InputMismatch(name, expected, _shown(found), "value")


def _paired(expected: Any, found: Any) -> Iterable[tuple[Any, Any, Any]]:
    if not isinstance(expected, dict):
        return ((i, *pair) for i, pair in enumerate(zip(expected, found)))
    return ((key, value, found.get(key)) for key, value in expected.items())


def _compare_tensor(name: str, expected: TensorInput, found: Any) -> None:
    if isinstance(found, fx.Proxy):
        return  # the program is traced
    if not isinstance(found, torch.Tensor):
        raise InputMismatch(name, "a tensor", _shown(found), "value")
    if expected.shape is not None and not _fits(expected.shape, found.shape):
        wanted = tuple("any" if size is None else size for size in expected.shape)
        raise InputMismatch(name, wanted, tuple(found.shape))
    if found.dtype != expected.dtype:
        raise InputMismatch(name, expected.dtype, found.dtype, "dtype")
    if expected.device is not None and found.device != expected.device:
        raise InputMismatch(name, expected.device, found.device, "device")
    if expected.strides is not None and found.stride() != expected.strides:
        raise InputMismatch(name, expected.strides, found.stride(), "strides")


def _compare_home(name: str, device: torch.device, layout: torch.layout, found: torch.Tensor, cause: Exception) -> None:
    if found.layout != layout or found.is_nested:
        raise InputMismatch(name, layout, "nested" if found.is_nested else found.layout, "layout") from cause
    if found.device != device:
        raise InputMismatch(name, device, found.device, "device") from cause


def _fits(expected: Sequence[int | None], found: Sequence[int]) -> bool:
    if len(expected) != len(found):
        return False
    return all(one is None or one == other for one, other in zip(expected, found))


def _shown(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, TensorInput)):
        return "a tensor"
    if value is ANYTHING:
        return "anything"
    if type(value) in (list, tuple):
        return type(value)(_shown(item) for item in value)
    if _is_plain(value):
        return value
    return f"a {type(value).__name__}"
