"""Recording what PyTorch does: every op that runs on fake tensors above autograd and above composite kernels, as
`torch.export` sees it, is appended to a graph. Overload choice and type promotion are thus PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import math
import operator
from typing import Any

import torch
from torch import fx

from decomp.graphs.node_builder import call_appender
from decomp.ir.call import substituted
from decomp.ir.op_facts import KERNEL_STRIDES
from decomp.metadata.fake_stride_fixes import kernel_value
from decomp.metadata.fakes import Fakes
from decomp.metadata.meta_kernels import MetaKernels
from decomp.metadata.nonfinite_constants import spelled
from decomp.metadata.symbolic_sizes import SYMBOLIC as SYMBOLIC, expression
from decomp.ops import aten
from decomp.torch_internals.fakes import FakeTensor, FakeTensorMode
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


class Tape:
    """A graph under construction, and which node each fake tensor on it comes from."""

    def __init__(self, graph: fx.Graph, mode: FakeTensorMode | None, fakes: Fakes | None = None) -> None:
        """`fakes`: makes the fake tensors of `mode`; given, calls are run on meta tensors where that comes to the
        same."""
        self.graph, self.mode = graph, mode
        self.kernels = MetaKernels(fakes) if fakes is not None else None
        self._call = call_appender(graph)
        self.constants: dict[str, torch.Tensor] = {}
        """Concrete tensors that the recorded code uses, by the name of their `get_attr`."""
        self._nodes: dict[int, fx.Node] = {}
        self._places: dict[Any, fx.Node] = {}
        self._unplaced: list[tuple[FakeTensor, fx.Node]] = []
        self._alive: list[Any] = []
        self._sizes: dict[Any, fx.Node] = {}
        self._constants: dict[int, FakeTensor] = {}
        self._steps: dict[Any, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        """How the code computed a size that is not an input's, by its expression."""

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """Add an input whose metadata is `value` (None if unknown)."""
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
        """A fake tensor of its own storage with the metadata of `value`; numbers come back as they are."""
        assert self.mode is not None
        if self.kernels is None or not isinstance(value, torch.Tensor) or not _has_strides(value):
            return fake_like(self.mode, value)
        return self.kernels.empty_like(value)

    def track(self, value: Any, node: fx.Node) -> None:
        """`value` is what `node` computes."""
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = node
            self._alive.append(value)
            if isinstance(value, FakeTensor):
                self._unplaced.append((value, node))

    def node_of(self, value: Any) -> fx.Node | None:
        """The node that a fake tensor comes from, if it is on this tape."""
        found = self._nodes.get(id(value))
        if found is None and isinstance(value, FakeTensor):
            # A factory hands its caller another tensor of the same storage than the one that was dispatched.
            with DisableTorchFunction():
                found = self._node_at(value)
        return found

    def _node_at(self, value: FakeTensor) -> fx.Node | None:
        """The first node whose value lies in one place with a fake tensor."""
        for other, node in self._unplaced:
            if other.layout is torch.strided:
                self._places.setdefault(_place(other), node)
        self._unplaced.clear()
        return self._places.get(_place(value)) if value.layout is torch.strided else None

    def append(self, target: Any, args: Any, kwargs: Any, out: Any) -> fx.Node:
        """Record that `target(*args, **kwargs)` gave `out` (fake tensors, numbers, tuples of them)."""
        return self.append_call(target, self.arguments(tuple(args)), self.arguments(dict(kwargs)), out)

    def append_call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> fx.Node:
        """The same with arguments as a graph holds them."""
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
        """The several results of a call, each with a node of its own; the node itself if it has one result."""
        values = node.meta.get("val")
        if not isinstance(values, (tuple, list)):
            return node
        self._items(node, values)
        return tuple(self.node_of(value) for value in values)

    def _items(self, node: fx.Node, values: Sequence[Any]) -> None:
        """Each tensor among several results has a node of its own."""
        for i, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                item = self._call(operator.getitem, (node, i), {})
                item.meta["val"] = value
                self.track(value, item)

    def arguments(self, value: Any) -> Any:
        """Arguments as a graph holds them: proxies, tensors and symbolic sizes become nodes."""
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
        """A concrete tensor becomes a named `get_attr`; returns its fake (itself, where there is no metadata)."""
        found = self._constants.get(id(tensor))
        if found is not None:
            return found
        if isinstance(tensor, FakeTensor):
            raise Leaked()
        name = f"_constant{len(self.constants)}"
        self.constants[name] = tensor
        # Behind the inputs, which are first: an expansion is bound by their places.
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
        """Whether a fake tensor stands for a concrete one."""
        node = self.node_of(value)
        return node is not None and node.op == "get_attr"

    def size(self, value: Any) -> Any:
        """The node (or number) that computes a symbolic size from the sizes of the inputs."""
        if self.mode is None or value.node.shape_env is not self.mode.shape_env:
            raise Leaked()
        expr = value.node.expr
        if expr.is_number:
            known = value.node.guard_int, value.node.guard_float, value.node.guard_bool
            return known[SYMBOLIC.index(type(value))]("", 0)  # a number needs no guard
        if expr not in self._sizes:
            try:
                self._sizes[expr] = self._computed_size(value, expr)
            except UnknownSize:
                self._sizes[expr] = self._size_on_the_way(value, expr)
        return self._sizes[expr]

    def note(self, size: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Arithmetic on sizes: it is recorded when its result is used."""
        if isinstance(size, SYMBOLIC) and not size.node.expr.is_number:
            self._steps.setdefault(size.node.expr, (function, args))

    def _size_on_the_way(self, value: Any, expr: Any) -> fx.Node:
        """A size that PyTorch has simplified until it holds symbols that no input tells (half of `s0`, where an input
        is half of `s0 + 1` long): that of a tensor on the tape, or arithmetic done again as the code did it."""
        for node in self.graph.nodes:
            found = node.meta.get("val")
            for dim, size in enumerate(found.shape if isinstance(found, torch.Tensor) else ()):
                if isinstance(size, torch.SymInt) and size.node.expr == expr:
                    return self.append(aten.sym_size.int, (found, dim), {}, size)
        function, args = self._steps.pop(expr, (None, ()))
        if function is None:
            raise UnknownSize(f"the size {expr}, which none of the inputs has")
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
        """Symbolic sizes that inputs bring: an input that is one itself, or a dimension of one."""
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
        raise UnknownSize(f"the size {symbol}, which none of the inputs has")

    def _is_solvable(self, expr: Any) -> bool:
        return any(_linear(size.node.expr, expr)[0] for _, _, size in self._known_sizes())

    def _leaves(self, expr: Any) -> set[Any]:
        """What a size is computed from: symbols, or a quotient of one that only inputs of its size tell of."""
        if expr.is_symbol or not expr.args:
            return {expr} if expr.is_symbol else set()
        if expr.is_Function and self._is_solvable(expr) and not all(map(self._is_solvable, expr.free_symbols)):
            return {expr}
        return set().union(*map(self._leaves, expr.args))

    def _interpreted(self, value: Any, expr: Any) -> fx.Node:
        """`s0*4` from the node of `s0`: the expression is run on proxies."""
        from decomp.torch_internals.sizes import PythonReferenceAnalysis, sympy_interp

        class Arithmetic(PythonReferenceAnalysis):  # which in torch 2.13 lacks a quotient, and rounds no proxies
            int_truediv = staticmethod(operator.truediv)
            trunc_to_int, floor_to_int, ceil_to_int, round_to_int = map(_rounding, _ROUNDINGS)

        shape_env = value.node.shape_env
        leaves = sorted(self._leaves(expr), key=str)
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
        """Record arithmetic on sizes; every node gets the size that it computes."""
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
    """A function from numbers to whole ones, recorded of a proxy."""

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
    """a and b where an expression is a·part + b, both whole numbers; a is 0 where it is not, or where one of them is a
    condition or a float."""
    if not all(getattr(given, "is_integer", False) for given in (expr, part)):
        return 0, 0
    factor = expr.coeff(part, 1)
    rest = expr - factor * part
    if not (factor.is_number and factor.is_integer and rest.is_number and rest.is_integer):
        return 0, 0
    return int(factor), int(rest)


def _place(value: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor lies: nothing is mutated, so tensors in one place are equal."""
    numbers = (value.storage_offset(), *value.shape, *value.stride())
    return (value.untyped_storage()._cdata, value.dtype, *map(expression, numbers))


# torch pushes modes on the pre-dispatch key only if they are of three classes, of which this is the one that records
# (torch/_ops.py, _set_mode_pre_dispatch; seen on 2.13). A public way to record above autograd does not exist.
class Recorder(ProxyTorchDispatchMode):
    """Appends every op that is called under it to a tape."""

    def __init__(self, tape: Tape, refuse: Callable[[Any], None]) -> None:
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
        if func is aten.detach_.default and self.tape.is_constant(args[0]):
            return args[0]  # torch.tensor() detaches what it has just made
        args, kwargs = substituted((args, kwargs), self._fake, torch.Tensor)
        out = self.executed(func, args, kwargs)
        single = isinstance(out, torch.Tensor)
        if not single and not any(isinstance(leaf, (torch.Tensor, *SYMBOLIC)) for leaf in tree_leaves(out)):
            self._recorded_effect(func, args, kwargs, out)
            return out
        if func._schema.is_mutable:
            self.refuse(func)
        if single and (_holds(args, out) or _holds(kwargs, out)):
            return out
        if not isinstance(out, SYMBOLIC):
            self.tape.append(func, args, kwargs, out)
        return out

    def executed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a call gives, in the layout of its kernel."""
        kernels, mode = self.tape.kernels, self.tape.mode
        out = NotImplemented if kernels is None else kernels.run(func, args, kwargs)
        if out is NotImplemented:
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


def _holds(value: Any, tensor: Any) -> bool:
    """Whether nested arguments hold this very tensor."""
    if isinstance(value, (list, tuple)):
        return any([_holds(item, tensor) for item in value])
    return value is tensor or isinstance(value, dict) and _holds(list(value.values()), tensor)


@contextlib.contextmanager
def without_guards(mode: FakeTensorMode | None) -> Iterator[None]:
    """Within, PyTorch may ask which of two layouts a symbolic one is; the example answers, and nothing is guarded.
    (What a rule itself asks about sizes is refused.) (The two flags are those of `ShapeEnv.error_on_new_guards`, torch
    2.13.)"""
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
    """Within, calls on fake tensors of `mode` tell the metadata of their results: nothing is guarded, no gradient is
    recorded."""
    with mode, enable_python_dispatcher(), torch.no_grad(), without_guards(mode):
        yield


@contextlib.contextmanager
def recording(tape: Tape, refuse: Callable[[Any], None]) -> Iterator[None]:
    """Within, every op on fake tensors is recorded on `tape`; `refuse(overload)` is called for one that mutates."""
    assert tape.mode is not None
    with tape.mode, enable_python_dispatcher(), EnablePreDispatch(), Recorder(tape, refuse):
        yield


_PRODUCT = aten.mul.Tensor


def _zero_in(product: torch.Tensor) -> int | float:
    """The number 0 as it is a factor in a product: of x * 0 Inductor makes 0 without a look at x, which may be infinite
    or NaN; of x * 0.0 it does not (torch 2.13, `UniformValueConstantFolder`)."""
    return 0.0 if product.is_floating_point() or product.is_complex() else 0


def fake_like(mode: FakeTensorMode, value: Any) -> Any:
    """A fake tensor of its own storage with the metadata of `value`; numbers come back as they are."""
    if isinstance(value, (list, tuple)):
        return type(value)(fake_like(mode, item) for item in value)
    if not isinstance(value, torch.Tensor):
        return value
    if not _has_strides(value):
        return value
    with mode:
        return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device=value.device)


def _has_strides(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and not value.is_quantized
