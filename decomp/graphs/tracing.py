"""Recording of PyTorch calls: every op that runs on fake tensors above autograd and above composite kernels, as
`torch.export` sees it, is appended to a graph. So overload resolution and type promotion are PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import math
import operator
from typing import Any

import torch
from torch import fx

from decomp.graphs.node_builder import call_appender
from decomp.ir.arguments import leaves, substituted
from decomp.ir.op_facts import KERNEL_STRIDES
from decomp.metadata.fake_stride_fixes import kernel_value
from decomp.metadata.fakes import Fakes
from decomp.metadata.nonfinite_constants import spelled
from decomp.metadata.open_kernels import kernels_of
from decomp.metadata.symbolic_sizes import SYMBOLIC as SYMBOLIC, combination, expression, settled
from decomp.ops import aten
from decomp.torch_internals.fakes import FakeTensor, FakeTensorMode, unset_fake_temporarily
from decomp.torch_internals.modes import (
    PRE_DISPATCH,
    DisableTorchFunction,
    EnablePreDispatch,
    ProxyTorchDispatchMode,
    TorchDispatchMode,
    enable_python_dispatcher,
)
from decomp.torch_internals.pytree import tree_leaves

_AS_THEY_ARE = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
_COPIES = (aten.to.dtype_layout, aten._to_copy.default)
_PLACING = {"device", "non_blocking"}
"""Copies to another device, and the arguments of one that changes nothing else."""


class Tape:
    """A graph under construction, with the node of each fake tensor."""

    def __init__(self, graph: fx.Graph, mode: FakeTensorMode | None, fakes: Fakes | None = None) -> None:
        """`fakes`: creates fake tensors of `mode`; if given, calls are run on meta tensors where that is equivalent."""
        self.graph, self.mode = graph, mode
        self.kernels = kernels_of(fakes) if fakes is not None else None
        self.left_to_pytorch = False
        """Whether the fake mode has computed the result of any call."""
        self._call = call_appender(graph)
        self.constants: dict[str, torch.Tensor] = {}
        """Concrete tensors used by the recorded code, by the name of their `get_attr`."""
        self._nodes: dict[int, fx.Node] = {}
        self._places: dict[Any, fx.Node] = {}
        self._unplaced: list[tuple[FakeTensor, fx.Node]] = []
        self._alive: list[Any] = []
        self._sizes: dict[Any, fx.Node] = {}
        self._constants: dict[int, FakeTensor] = {}
        self._steps: dict[Any, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        """The recorded arithmetic for sizes that no input has, by expression."""

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """Add an input with metadata `value` (None if unknown)."""
        node = self.graph.placeholder(name)
        if value is not None:
            node.meta["val"] = value
            self.track(value, node)
            if isinstance(value, (tuple, list)):
                self._items(node, value)
            if isinstance(value, SYMBOLIC):
                self._sizes.setdefault(value.node.expr, node)
        return node

    def fake_like(self, value: Any) -> Any:
        """A fake tensor on its own storage with the metadata of `value`; numbers are returned unchanged."""
        assert self.mode is not None
        if self.kernels is None or not isinstance(value, torch.Tensor) or not _has_strides(value):
            return fake_like(self.mode, value)
        return self.kernels.empty_like(value)

    def track(self, value: Any, node: fx.Node) -> None:
        """Record that `node` computes `value`."""
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = node
            # Nodes are found by the id of their tensor, so tensors must outlive the tape.
            self._alive.append(value)
            if isinstance(value, FakeTensor):
                self._unplaced.append((value, node))

    def node_of(self, value: Any) -> fx.Node | None:
        """The node of a fake tensor, if it is on this tape."""
        found = self._nodes.get(id(value))
        if found is None and isinstance(value, FakeTensor):
            # A factory function returns another tensor object, on the same storage, than the one that was dispatched.
            with DisableTorchFunction():
                found = self._node_at(value)
        return found

    def _node_at(self, value: FakeTensor) -> fx.Node | None:
        """The first node whose value has the same storage, offset and strides as a fake tensor."""
        # Only now, when one is asked for by its place: nearly all tensors are found by their identity.
        for other, node in self._unplaced:
            if other.layout is torch.strided:
                self._places.setdefault(_place(other), node)
        self._unplaced.clear()
        return self._places.get(_place(value)) if value.layout is torch.strided else None

    def append(self, target: Any, args: Any, kwargs: Any, out: Any) -> fx.Node:
        """Record that `target(*args, **kwargs)` returned `out` (fake tensors, numbers, or tuples of them)."""
        return self.append_call(target, self.arguments(tuple(args)), self.arguments(dict(kwargs)), out)

    def append_call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> fx.Node:
        """The same for arguments that are nodes already."""
        # PyTorch's change, after 2.13: https://github.com/pytorch/pytorch/pull/186281.
        if target is _PRODUCT and type(args[1]) is int and args[1] == 0:
            args = (args[0], _zero_in(out))
        node = self._call(target, args, kwargs)
        node.meta["val"] = out
        if isinstance(out, (tuple, list)):
            self._items(node, out)
        else:
            self.track(out, node)
        return node

    def items(self, node: fx.Node) -> Any:
        """The results of a call with several results, each as a node; otherwise the node itself."""
        values = node.meta.get("val")
        if not isinstance(values, (tuple, list)):
            return node
        self._items(node, values)
        return tuple(self.node_of(value) for value in values)

    def _items(self, node: fx.Node, values: Sequence[Any]) -> None:
        """Add a getitem node for each tensor among several results."""
        for i, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                item = self._call(operator.getitem, (node, i), {})
                item.meta["val"] = value
                self.track(value, item)

    def arguments(self, value: Any) -> Any:
        """Arguments in the form of a graph: proxies, tensors and symbolic sizes become nodes."""
        if type(value) in _AS_THEY_ARE:
            return value
        if isinstance(value, fx.Proxy):
            return self.arguments(value.node)
        if isinstance(value, fx.Node) and value.graph is not self.graph:
            raise Leaked()
        if isinstance(value, (list, tuple)):
            items = [self.arguments(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {key: self.arguments(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self.arguments(value.start), self.arguments(value.stop), self.arguments(value.step))
        if isinstance(value, torch.Tensor):
            return self.node_of(value) or self.node_of(self.constant(value))
        if isinstance(value, SYMBOLIC):
            return self.size(value)
        return spelled(value) if type(value) is complex else value

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Turn a concrete tensor into a named `get_attr`; returns its fake tensor (itself, without metadata)."""
        found = self._constants.get(id(tensor))
        if found is not None:
            return found
        if isinstance(tensor, FakeTensor):
            raise Leaked()
        name = f"_constant{len(self.constants)}"
        self.constants[name] = tensor
        # After the inputs, which must be first: an expansion binds them by position.
        first = next((node for node in self.graph.nodes if node.op != "placeholder"), None)
        with self.graph.inserting_before(first) if first is not None else contextlib.nullcontext():
            node = self.graph.create_node("get_attr", name)
        fake = tensor if self.mode is None else self.mode.from_tensor(tensor, static_shapes=True)
        node.meta["val"] = fake
        self._constants[id(tensor)] = fake
        self._alive.append(tensor)
        self.track(fake, node)
        return fake

    def is_constant(self, value: torch.Tensor) -> bool:
        """Whether a fake tensor represents a concrete one."""
        node = self.node_of(value)
        return node is not None and node.op == "get_attr"

    def is_new(self, value: torch.Tensor) -> bool:
        """Whether a fake tensor represents a concrete one, or a copy of it on another device."""
        node = self.node_of(value)
        if node is not None and node.target in _COPIES:
            node = node.all_input_nodes[0]
        return node is not None and node.op == "get_attr"

    def moved_constant(self, value: torch.Tensor, device: torch.device | None) -> torch.Tensor | None:
        """A constant on another device; None if it is there already, or this machine does not have that device."""
        node = self.node_of(value)
        if device is None or device.type == value.device.type or node is None or node.op != "get_attr":
            return None
        try:
            with unset_fake_temporarily():
                moved = self.constants[str(node.target)].to(device)
        except (RuntimeError, AssertionError):
            return None
        return self.constant(moved)

    def size(self, value: Any) -> Any:
        """The node (or number) that computes a symbolic size from the sizes of inputs."""
        if self.mode is None or value.node.shape_env is not self.mode.shape_env:
            raise Leaked()
        expr = value.node.expr
        if expr.is_number:
            # `int(value)` would do for the first alone, and a bool must not come back as an int.
            known = value.node.guard_int, value.node.guard_float, value.node.guard_bool
            return known[SYMBOLIC.index(type(value))]("", 0)  # a number needs no guard
        # One node per expression: every use of a size reads the same node.
        if expr not in self._sizes:
            self._sizes[expr] = self._node_of_size(value, expr)
        return self._sizes[expr]

    def _node_of_size(self, value: Any, expr: Any) -> Any:
        for way in (self._computed_size, self._size_on_the_way):
            with contextlib.suppress(UnknownSize):
                return way(value, expr)
        # Last, as it solves equations.
        return self._combined(value, expr)

    def note(self, size: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Record arithmetic on sizes lazily: it is appended when its result is used."""
        if isinstance(size, SYMBOLIC) and not size.node.expr.is_number:
            self._steps.setdefault(size.node.expr, (function, args))

    def _size_on_the_way(self, value: Any, expr: Any) -> fx.Node:
        """A size that PyTorch simplified to an expression with symbols that no input determines (half of `s0`, where an
        input has half of `s0 + 1` elements): read from a tensor on the tape, or computed by the arithmetic of the
        code."""
        for node in self.graph.nodes:
            found = node.meta.get("val")
            for dim, size in enumerate(found.shape if isinstance(found, torch.Tensor) else ()):
                if isinstance(size, torch.SymInt) and size.node.expr == expr:
                    return self.append(aten.sym_size.int, (found, dim), {}, size)
        function, args = self._steps.pop(expr, (None, ()))
        if function is None:
            raise UnknownSize(f"the size {expr}, which no input has")
        node = self.graph.call_function(function, self.arguments(args))
        node.meta["val"] = value
        return node

    def _computed_size(self, value: Any, expr: Any) -> fx.Node:
        for node, dim, size in self._known_sizes():
            if size.node.expr == expr:
                size_of = aten.sym_size.int
                return node if dim is None else self.append(size_of, (node.meta["val"], dim), {}, size)
        if expr.is_symbol or self._is_solvable(expr):
            return self._solved(value, expr)
        return self._interpreted(value, expr)

    def _known_sizes(self) -> Iterator[tuple[fx.Node, int | None, Any]]:
        """The symbolic sizes of inputs: an input that is a size itself, or a dimension of one."""
        for node in self.graph.nodes:
            given = node.meta.get("val") if node.op == "placeholder" else None
            if isinstance(given, SYMBOLIC):
                yield node, None, given
            elif isinstance(given, torch.Tensor):
                yield from ((node, d, size) for d, size in enumerate(given.shape) if isinstance(size, torch.SymInt))

    def _solved(self, value: Any, symbol: Any) -> fx.Node:
        """`s0`, or `s0//2`, from an input of size `a·s0 + b`."""
        for node, dim, size in self._known_sizes():
            factor, rest = _linear(size.node.expr, symbol)
            if factor:
                source = node if dim is None else self.size(size)
                return self._arithmetic(lambda p: (p - rest) // factor, [source], value)
        raise UnknownSize(f"the size {symbol}, which no input has")

    def _combined(self, value: Any, expr: Any) -> fx.Node:
        """A sum of several sizes of inputs: `s0` from `s0 + s1` and `s1`."""
        known = list(self._known_sizes())
        factors = combination([size.node.expr for _, _, size in known], expr)
        if factors is None:
            raise UnknownSize(f"the size {expr}, which no input has")
        terms = [(factor, given) for factor, given in zip(factors, known) if factor]
        rest = (expr - sum(factor * size.node.expr for factor, (_, _, size) in terms)).expand()
        sources = [node if dim is None else self.size(size) for _, (node, dim, size) in terms]

        def computed(*proxies: fx.Proxy) -> Any:
            scaled = [proxy if factor == 1 else proxy * factor for (factor, _), proxy in zip(terms, proxies)]
            total = sum(scaled[1:], scaled[0])
            return total + int(rest) if rest else total

        return self._arithmetic(computed, sources, value)

    def _is_solvable(self, expr: Any) -> bool:
        return any(_linear(size.node.expr, expr)[0] for _, _, size in self._known_sizes())

    def _leaves(self, expr: Any) -> set[Any]:
        """The parts from which a size is computed: symbols, or a quotient or product that only inputs of this size
        determine."""
        if expr.is_symbol or not expr.args:
            return {expr} if expr.is_symbol else set()
        if self._is_solvable(expr) and not all(map(self._is_solvable, expr.free_symbols)):
            return {expr}
        return set().union(*map(self._leaves, expr.args))

    def _interpreted(self, value: Any, expr: Any) -> fx.Node:
        """`s0*4` from the node of `s0`: the expression is evaluated on proxies."""
        from decomp.torch_internals.sizes import PythonReferenceAnalysis, sympy_interp

        class Arithmetic(PythonReferenceAnalysis):  # in torch 2.13 it lacks a quotient, and cannot round proxies
            int_truediv = staticmethod(operator.truediv)
            trunc_to_int, floor_to_int, ceil_to_int, round_to_int = map(_rounding, _ROUNDINGS)

        shape_env = value.node.shape_env
        leaves = sorted(self._leaves(expr), key=str)
        # The environment has the hints of its symbols.
        sources = [self.size(shape_env.create_symintnode(leaf, hint=None)) for leaf in leaves]
        symbols = [
            leaf if leaf.is_symbol else type(next(iter(leaf.free_symbols)))(f"part{i}", integer=True)
            for i, leaf in enumerate(leaves)
        ]
        simple = expr.xreplace(dict(zip(leaves, symbols)))

        def computed(*proxies: fx.Proxy) -> Any:
            return sympy_interp(Arithmetic, dict(zip(symbols, proxies)), simple)

        return self._arithmetic(computed, sources, value)

    def _arithmetic(self, function: Callable[..., Any], sources: list[fx.Node], value: Any) -> fx.Node:
        """Record arithmetic on sizes; every node gets its size as metadata."""
        tracer = fx.proxy.GraphAppendingTracer(self.graph)
        before = len(self.graph.nodes)
        node: fx.Node = function(*[fx.Proxy(source, tracer) for source in sources]).node
        for new in list(self.graph.nodes)[before:]:
            args = fx.node.map_arg(new.args, lambda n: n.meta["val"])
            new.meta["val"] = new.target(*args)
        node.meta["val"] = value
        return node


_ROUNDINGS: tuple[Callable[[Any], Any], ...] = (math.trunc, math.floor, math.ceil, round)


def _rounding(function: Callable[[Any], Any]) -> staticmethod[[Any, Any], Any]:
    """A function that rounds numbers to integers, recorded for a proxy."""

    def rounded(number: Any, dtype: Any) -> Any:
        if not isinstance(number, fx.Proxy):
            return function(number)
        return number.tracer.create_proxy("call_function", function, (number,), {})

    return staticmethod(rounded)


class UnknownSize(LookupError):
    """A rule uses a dynamic size that cannot be computed from its inputs."""


class Leaked(Exception):
    """A fake tensor, a node or a size comes from another run of a rule."""


def _linear(expr: Any, part: Any) -> tuple[int, int]:
    """a and b such that an expression is a·part + b, both integers; a is 0 if it is not, or if either is a boolean or a
    float."""
    if not all(getattr(given, "is_integer", False) for given in (expr, part)):
        return 0, 0
    sign, core = part.as_coeff_Mul()  # sympy knows no coefficient of −x·y in x·y
    factor = expr.coeff(core, 1) / sign
    rest = expr - factor * part
    if not (factor.is_number and factor.is_integer and rest.is_number and rest.is_integer):
        return 0, 0
    return int(factor), int(rest)


def _place(value: torch.Tensor) -> tuple[Any, ...]:
    """The memory of a tensor: as nothing is mutated, tensors in the same place are equal."""
    numbers = (value.storage_offset(), *value.shape, *value.stride())
    return (value.untyped_storage()._cdata, value.dtype, *map(expression, numbers))


# torch accepts modes of only three classes on the pre-dispatch key, of which this is the one that records
# (torch/_ops.py, _set_mode_pre_dispatch; seen on 2.13). There is no public API to record above autograd.
class Recorder(ProxyTorchDispatchMode):
    """Appends every op that is called under it to a tape."""

    def __init__(self, tape: Tape, refuse: Callable[[Any], None]) -> None:
        # That of the base class wants a tracer of `make_fx`, for which its `__enter__` and `__exit__` keep accounts.
        TorchDispatchMode.__init__(self, PRE_DISPATCH)
        self.pre_dispatch = True
        self.tape, self.refuse = tape, refuse

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled while rules are recorded; the guard against it costs as much as running a kernel.
        return False

    def __enter__(self) -> Any:
        return TorchDispatchMode.__enter__(self)

    def __exit__(self, *exc: Any) -> Any:
        return TorchDispatchMode.__exit__(self, *exc)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            return self.tape.constant(args[0])
        if func in _COPIES and kwargs.keys() <= _PLACING:
            # torch.tensor() makes its tensor on the CPU, and copies it where it belongs (seen on 2.11 to 2.15).
            moved = self.tape.moved_constant(args[0], kwargs.get("device"))
            if moved is not None:
                return moved
        if func is aten.detach_.default and self.tape.is_new(args[0]):
            return args[0]  # torch.tensor() detaches its new tensor
        args, kwargs = substituted((args, kwargs), self._fake, torch.Tensor)
        out = self.executed(func, args, kwargs)
        single = isinstance(out, torch.Tensor)
        if not single and not any(isinstance(leaf, (torch.Tensor, *SYMBOLIC)) for leaf in tree_leaves(out)):
            # Such as an assertion on data; a call that returns a number, like `item()`, is not recorded.
            self._recorded_effect(func, args, kwargs, out)
            return out
        if func._schema.is_mutable:
            self.refuse(func)
        # `contiguous()` of a contiguous tensor, for example: its node is the one that it has.
        if single and any(leaf is out for leaf in leaves((args, kwargs))):
            return out
        # A size is recorded where it is used (`Tape.size`), so that unused ones leave no calls.
        if not isinstance(out, SYMBOLIC):
            self.tape.append(func, args, kwargs, out)
        return out

    def executed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a call, with the strides of its kernel."""
        kernels, mode = self.tape.kernels, self.tape.mode
        out = NotImplemented if kernels is None else kernels.run(func, args, kwargs)
        if out is NotImplemented:
            self.tape.left_to_pytorch = True
            with without_guards(mode):
                out = func(*args, **kwargs)
        layout = KERNEL_STRIDES.get(func._overloadpacket.__name__)
        if layout is None:
            return out
        names = [argument.name for argument in func._schema.arguments]
        return kernel_value(layout, {**dict(zip(names, args)), **kwargs}, out)

    def __sym_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Arithmetic on sizes is recorded when a size is used, not when it is computed."""
        out = func(*args, **(kwargs or {}))
        self.tape.note(out, func, args)
        return out

    def _recorded_effect(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if out is None and not func._schema.returns:
            self.tape.append(func, args, kwargs, out)

    def _fake(self, value: Any) -> Any:
        known = not isinstance(value, torch.Tensor) or self.tape.node_of(value) is not None
        return value if known else self.tape.constant(value)


@contextlib.contextmanager
def without_guards(mode: FakeTensorMode | None) -> Iterator[None]:
    """Inside this context PyTorch may query symbolic sizes to choose between layouts; the example answers, and no
    guards are added. (Queries by a rule itself are refused.) (The two flags are those of
    `ShapeEnv.error_on_new_guards`, torch 2.13.)"""
    env = mode.shape_env if mode is not None else None
    if env is None:
        yield
        return
    before = env.frozen, getattr(env, "_error_on_new_guards", False)  # which torch 2.11 lacks
    env.frozen = env._error_on_new_guards = False
    try:
        with env.suppress_guards():
            yield
    finally:
        env.frozen, env._error_on_new_guards = before


@contextlib.contextmanager
def on_metadata(mode: FakeTensorMode) -> Iterator[None]:
    """Inside this context calls on fake tensors of `mode` compute the metadata of their results: no guards are added,
    and no gradients recorded."""
    # Without the Python dispatcher composite kernels in C++ run, some of which specialise symbolic sizes.
    with mode, enable_python_dispatcher(), torch.no_grad(), without_guards(mode):
        yield


@contextlib.contextmanager
def recording(tape: Tape, refuse: Callable[[Any], None]) -> Iterator[None]:
    """Inside this context every op on fake tensors is recorded on `tape`; `refuse(overload)` is called for one that
    mutates."""
    assert tape.mode is not None
    # The recorder is above autograd and sees each call first; the fake mode, below, computes the result.
    with tape.mode, enable_python_dispatcher(), EnablePreDispatch(), Recorder(tape, refuse):
        yield


_PRODUCT = aten.mul.Tensor


def _zero_in(product: torch.Tensor) -> int | float:
    """The number 0 as a factor of a product. Inductor folds x * 0 to 0, although x may be infinite or NaN; x * 0.0 it
    does not fold (torch 2.13, `UniformValueConstantFolder`)."""
    return 0.0 if product.is_floating_point() or product.is_complex() else 0


def fake_like(mode: FakeTensorMode, value: Any) -> Any:
    """A fake tensor on its own storage with the metadata of `value`, several for several; numbers are returned
    unchanged."""
    return substituted(value, lambda tensor: _fake_tensor_like(mode, tensor), torch.Tensor)


def _fake_tensor_like(mode: FakeTensorMode, value: torch.Tensor) -> torch.Tensor:
    if not _has_strides(value):
        return value
    with mode:
        shape, stride = settled(value.shape), settled(value.stride())
        return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)


def _has_strides(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and not value.is_quantized
