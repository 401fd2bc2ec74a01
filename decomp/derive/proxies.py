"""Proxies that know the metadata of their values, so that a rule is ordinary PyTorch: it reads shapes and dtypes, loops
over dimensions, and calls any function. What rules must not do raises an error that says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from typing import Any, NoReturn

import torch
from torch import fx

from decomp.errors import MetadataMissing, RuleError, spell_target
from decomp.graphs.shortcuts import CallKey, Shortcuts
from decomp.graphs.tracing import SYMBOLIC, Tape, recording
from decomp.ir.arguments import substituted
from decomp.ir.call import call_target
from decomp.ir.effects import Effect, EffectTable
from decomp.ir.op_facts import BATCH_NORMS, FACTORIES
from decomp.ir.ops import of_function
from decomp.ir.signature import is_symbolic
from decomp.metadata.meta_values import MADE_OF_NUMBERS, computed_on_meta, made_on_meta
from decomp.metadata.strides import is_surely_contiguous
from decomp.rules.restrictions import (
    AUGMENTED,
    LEAKED,
    SWITCHED,
    context_state,
    has_proxies,
    has_tensors,
    proxies_in,
    refusal_of_call,
    refuse_augmented_assignment,
    watch_writes,
)
from decomp.torch_internals.fakes import FakeTensor
from decomp.torch_internals.modes import set_grad_enabled
from decomp.torch_internals.pytree import tensors_in, tree_leaves, tree_map

# What a call may return without being a value of the graph: `x.dtype`, `x.is_floating_point()`, `x.size(0)`.
_UNRECORDED = (torch.dtype, torch.device, torch.layout, torch.memory_format, bool, int, float, complex, str, type(None))


class RuleTracer(fx.proxy.GraphAppendingTracer):
    """Appends the calls of a rule to a graph. In the aten dialect calls run on fake tensors, and the ops that PyTorch
    dispatches are recorded; in the torch dialect calls are recorded as written, and run on fakes only for their
    metadata."""

    def __init__(self, tape: Tape, rule: object, dialect: str) -> None:
        super().__init__(tape.graph)
        self.tape, self.rule, self.dialect = tape, rule, dialect
        self.numbers: set[fx.Node] = set()
        """Inputs that are sizes or other numbers, unknown in a program without metadata."""
        self.busy = False
        """Whether a call is running on fake tensors: its nested calls are not the rule's."""
        self.closed = False
        """Whether the run of the rule is over: a proxy used afterwards has leaked into another run."""
        self._switches = context_state()
        # Recipes are for the dispatcher of ATen. A call with a number that is open has none, as its value may decide.
        self._shortcuts = Shortcuts(tape) if dialect == "aten" and tape.kernels is not None else None
        self._modes: contextlib.ExitStack | None = None
        """The stack on which to enter the recording modes, while they are not entered yet."""

    @property
    def knows(self) -> bool:
        """Whether the program has metadata."""
        return self.tape.mode is not None

    def proxy(self, node: fx.Node) -> ValueProxy:
        return ValueProxy(node, self)

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Any = None,
    ) -> Any:
        if target == "new_tensor" and self.knows and args[0].device.type == "meta":
            return self._new_tensor(*args, **kwargs)
        asked = self.asked(target, args, kwargs)
        # Rules make the same kinds of calls again and again; a recipe skips the dispatcher.
        shortcut = self.taken(asked)
        if shortcut is not None:
            return self.wrap(shortcut)
        self.check(target, args, kwargs)
        if not self.knows:
            return self._as_written(kind, target, args, kwargs)
        if self.dialect == "torch":
            return self._as_written_with_metadata(kind, target, args, kwargs)
        self.record()
        with self._running():
            # On fakes and not on proxies: PyTorch then decides overload, dtype
            # and broadcasting, and what it dispatches is recorded by the mode.
            result = call_target(target, *fakes_of((args, kwargs)))
        self.learn(asked, result)
        return self.wrap(result)

    @staticmethod
    def _new_tensor(like: ValueProxy, data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        """`new_tensor` by `torch.tensor`, whose numbers are kept on the meta device."""
        return torch.tensor(data, dtype=dtype or like.dtype, device=device or like.device)

    def asked(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallKey | None:
        """The key of a call, if it may be recorded without PyTorch's dispatcher."""
        # Each of these is a case for `check`, which a recipe would skip.
        if self._shortcuts is None or self.busy or self.closed or context_state() != self._switches:
            return None
        return self._shortcuts.asked(target, args, kwargs)

    def taken(self, asked: CallKey | None) -> Any:
        """The result of a call recorded by a known dispatch recipe, or None. Recipes exist only for calls
        that a rule may make."""
        return None if asked is None or self._shortcuts is None else self._shortcuts.recorded(asked)

    def learn(self, asked: CallKey | None, result: Any) -> None:
        """Store the recipe by which a call went through the dispatcher."""
        if asked is not None and self._shortcuts is not None:
            self._shortcuts.learn(asked, result)

    def records_on(self, modes: contextlib.ExitStack) -> None:
        """Enter the modes that record dispatched calls: lazily, at the first such call, as entering takes time."""
        self._modes = modes
        # Without recipes the first call needs the modes at once.
        if self._shortcuts is None:
            self.record()

    def record(self) -> None:
        """From here on, dispatched calls are recorded."""
        if self._modes is not None:
            modes, self._modes = self._modes, None
            modes.enter_context(recording(self.tape, self.refuse))

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Inside this context a call runs on fake tensors; its nested calls are not the rule's."""
        outer, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = outer

    def check(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a call that a rule must not make."""
        if self.closed or any(proxy.tracer is not self for proxy in proxies_in((args, kwargs))):
            self.fail(*LEAKED)
        if not self.busy and context_state() != self._switches:
            self.fail(*SWITCHED)
        refusal = refusal_of_call(target, kwargs)
        if refusal is not None:
            self.fail(*refusal)

    def _as_written(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        node_args, node_kwargs = self.create_arg(args), self.create_arg(kwargs)
        node = self.graph.create_node(kind, target, node_args, node_kwargs)
        # Batch norm declares that it writes running statistics: the op itself does, so its rule may hand them on.
        if Effect.MUTATION in EffectTable().of(node).kinds and not _updates_statistics(target):
            self.refuse(target)
        # Without metadata a size is known by what it is computed from; a tensor by a size is a tensor.
        if node.all_input_nodes and self.numbers.issuperset(node.all_input_nodes):
            self.numbers.add(node)
        return self.proxy(node)

    def _as_written_with_metadata(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        assert self.tape.mode is not None
        with self._running(), self.tape.mode:
            faked = fakes_of(tree_map(self._faked, (args, kwargs)))
            # Calls are recorded as written here, and functions have no
            # schema that says what they write: version counters do.
            written = watch_writes(faked)
            out = call_target(target, *faked)
        if written() and not _updates_statistics(target):
            self.refuse(target)
        # A number or a dtype is handed to the rule as it is: it computes on in Python.
        if not tensors_in(out) and all(isinstance(leaf, (*_UNRECORDED, *SYMBOLIC)) for leaf in tree_leaves(out)):
            return out
        node_args, node_kwargs = self.tape.arguments(args), self.tape.arguments(kwargs)
        node = self.graph.create_node(kind, target, node_args, node_kwargs)
        node.meta["val"] = out
        self.tape.track(out, node)
        return self.proxy(node)

    def _faked(self, value: Any) -> Any:
        """A concrete tensor captured from outside, as a constant of the graph."""
        if isinstance(value, fx.Proxy) or not isinstance(value, torch.Tensor):
            return value
        return value if self.tape.node_of(value) is not None else self.tape.constant(value)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor) and not isinstance(a, fx.Proxy):
            self.tape.constant(a)
            return self.tape.node_of(a)
        # A proxy kept in a global or a cache from an earlier run.
        if isinstance(a, fx.Node) and a.graph is not self.graph:
            self.fail(*LEAKED)
        return super().create_arg(a)

    def wrap(self, value: Any) -> Any:
        """Fake tensors as proxies of their nodes; other values unchanged."""
        return self._wrapped(value) if isinstance(value, torch.Tensor) else tree_map(self._wrapped, value)

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not isinstance(value, fx.Proxy):
            node = self.tape.node_of(value)
            return self.proxy(node) if node is not None else value
        return value

    def refuse(self, func: Any) -> NoReturn:
        """A recorded op mutates its arguments."""
        name = func if isinstance(func, str) else spell_target(func)
        self.fail(f"mutates a tensor ({name})", "use the functional op and return its result")

    def fail(self, problem: str, remedy: str) -> NoReturn:
        raise RuleError(self.rule, problem, remedy)

    def missing(self, what: str) -> NoReturn:
        raise MetadataMissing(
            self.rule, f"needs {what}, and the program has no metadata", "pass example inputs: args=(...)"
        )


class ValueProxy(fx.Proxy):
    """A value inside a rule."""

    tracer: RuleTracer

    def _value(self, what: str) -> Any:
        if "val" not in self.node.meta:
            self.tracer.missing(what)
        return self.node.meta["val"]

    def _layout(self, what: str) -> Any:
        """An object with the shape, dtype and device of the value."""
        value, kernels = self._value(what), self.tracer.tape.kernels
        # Asked of the tensor itself, its shape would go through the function mode that is on while a rule runs.
        known = kernels.layout(value) if kernels is not None and type(value) is FakeTensor else None
        return value if known is None else known

    @property
    def shape(self) -> torch.Size:
        return self._layout("shape").shape

    @property
    def dtype(self) -> torch.dtype:
        return self._layout("dtype").dtype

    @property
    def device(self) -> torch.device:
        return self._layout("device").device

    @property
    def layout(self) -> torch.layout:
        return self._value("layout").layout

    @property
    def ndim(self) -> int:
        return len(self._layout("ndim").shape)

    @property
    def requires_grad(self) -> bool:
        # It is not part of a signature: the branch taken first would be used for all later calls.
        self.tracer.fail("reads requires_grad", "a rule is recorded once for values with and without gradients")

    @property
    def is_cuda(self) -> bool:
        return bool(self.device.type == "cuda")

    # `fx.Proxy` has neither of these: `copy.copy` recursed without end, and `deepcopy` gave a proxy of no tape.
    def __copy__(self) -> Any:
        return self.detach()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    # Otherwise Python would index from the end, and return an iterator.
    def __reversed__(self) -> Any:
        return self.flip(0) if self.ndim else self

    def size(self, dim: int | None = None) -> Any:
        shape = self._layout("size()").shape
        return shape if dim is None else shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        stride = self._value("stride()").stride()
        return stride if dim is None else stride[dim]

    def dim(self) -> int:
        return self.ndim

    def ndimension(self) -> int:
        return self.ndim

    def numel(self) -> Any:
        return self._layout("numel()").numel()

    nelement = numel

    def element_size(self) -> int:
        return int(self._value("element_size()").element_size())

    def is_floating_point(self) -> bool:
        return bool(self.dtype.is_floating_point)

    def is_complex(self) -> bool:
        return bool(self.dtype.is_complex)

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        value = self._value("is_contiguous()")
        # Most operands are contiguous in their order of dimensions, which the kernels know without asking PyTorch.
        if memory_format is torch.contiguous_format and getattr(self._layout("is_contiguous()"), "in_order", False):
            return True
        # `FakeTensor.is_contiguous` compares symbolic sizes, and adds a guard.
        if memory_format is torch.contiguous_format and is_symbolic(value):
            return is_surely_contiguous(value)
        return bool(value.is_contiguous(memory_format=memory_format))

    def is_signed(self) -> bool:
        return bool(self.dtype.is_signed)

    def get_device(self) -> int:
        return int(self._value("get_device()").get_device())

    def __len__(self) -> int:
        value = self._value("len()")
        return len(value) if isinstance(value, (tuple, list)) else int(value.shape[0])

    # fx reads bytecode to find how many items are unpacked; here the number is known.
    def __iter__(self) -> Iterator[Any]:
        value = self._value("the number of items")
        return iter([self[i] for i in range(len(value) if isinstance(value, (tuple, list)) else value.shape[0])])

    # fx also fails, with advice about tracers; this names the rule and what to write.
    def __bool__(self) -> bool:
        self.tracer.fail("branches on data", "use torch.where, or branch on shapes and dtypes")

    def _no_number(self) -> NoReturn:
        if self.node in self.tracer.numbers:
            self.tracer.missing("a size as a number")
        self.tracer.fail("reads data as a Python number", "a rule is recorded once for all data: compute with tensors")

    # Python tries all four of them: `range(x)` by `__index__`, `math.sqrt(x)` by `__float__`.
    __int__ = __float__ = __index__ = __complex__ = _no_number

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.fail("writes to a tensor (x[...] = ...)", "use torch.where, slice_scatter or index_put")

    def __delitem__(self, index: Any) -> None:
        self.tracer.fail("deletes items of a tensor (del x[...])", "use slices, torch.cat or index_select")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("node", "tracer"):
            self.tracer.fail(f"assigns to an attribute of a tensor (x.{name} = ...)", "compute a new tensor instead")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self.tracer.fail(f"deletes an attribute of a tensor (del x.{name})", "compute a new tensor instead")

    @classmethod
    # fx raises an error of its own for proxies of two tracers, and uses a tracer whose run is over; both are leaks.
    def __torch_function__(cls, orig_method: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        used = list(proxies_in((args, kwargs or {})))
        current = next((proxy.tracer for proxy in used if not getattr(proxy.tracer, "closed", False)), None)
        if isinstance(current, RuleTracer):
            current.check(orig_method, args, kwargs or {})
        return super().__torch_function__(orig_method, types, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        value = self.node.meta.get("val")
        # https://github.com/pytorch/pytorch/pull/93263 would have added them; torch 2.13 has none.
        # Fields of torch.return_types: struct sequences have no `_fields`.
        fields = type(value).__match_args__ if isinstance(value, tuple) and hasattr(value, "__match_args__") else ()
        if name in fields:
            return self[fields.index(name)]
        if name in _OF_MEMORY:
            self.tracer.fail(f"reads where a tensor is stored ({name})", "a rule is recorded once for all tensors")
        # fx makes a node of any attribute, and a misspelt method would fail in a lowered program.
        if not hasattr(torch.Tensor, name):
            self.tracer.fail(f"uses the unknown attribute {name!r}", "tensors have no such attribute or method")
        if callable(getattr(torch.Tensor, name)):
            return _Method(self, name)
        return self._attribute(name)

    def _attribute(self, name: str) -> Any:
        if name in ("data", "grad", "grad_fn", "is_leaf"):
            self.tracer.fail(f"uses .{name}", "use .detach(); rules do not see gradients")
        # These are views, recorded as such; what else there is to read has no value without metadata.
        if not self.tracer.knows and name not in ("T", "mT", "H", "mH", "real", "imag"):
            self.tracer.missing(name)
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})


_OF_MEMORY = frozenset({"data_ptr", "is_set_to", "storage_type"})
"""Attributes that differ between the tensors for which a rule is recorded."""


def _in_place(sign: str) -> Callable[[ValueProxy, Any], NoReturn]:
    def refused(self: ValueProxy, other: Any) -> NoReturn:
        self.tracer.fail(*refuse_augmented_assignment(sign))

    return refused


# Without these Python falls back to `__add__`, which rebinds one name and does not change its aliases.
for _name, _sign in AUGMENTED.items():
    setattr(ValueProxy, _name, _in_place(_sign))


class _Method:
    """A bound method of a proxy."""

    def __init__(self, owner: ValueProxy, name: str) -> None:
        self.owner, self.name = owner, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.owner.tracer.create_proxy("call_method", self.name, (self.owner, *args), kwargs)


class FactoryRecorder(torch.overrides.TorchFunctionMode):
    """Refuses switches of modes in a rule; in the torch dialect it also records calls without proxies among the
    arguments: factory functions."""

    def __init__(self, tracer: RuleTracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, tracer = kwargs or {}, self.tracer
        # What runs inside of a call on fakes is PyTorch's; functions of dtypes are not asked for tensors.
        if tracer.busy or func in _OF_DTYPES:
            return func(*args, **kwargs)
        asked = tracer.asked(func, args, kwargs)
        shortcut = tracer.taken(asked)
        on_proxies = asked is not None and has_proxies((args, kwargs))
        if shortcut is not None:
            return tracer.wrap(shortcut) if on_proxies else shortcut
        self._refuse(func, args, kwargs)
        # Before the recording mode sees it: there the numbers of `torch.tensor` would be gone.
        made = made_on_meta(func, args, kwargs)
        if made is not None:
            return tracer.tape.constant(made) if tracer.dialect == "aten" and tracer.knows else made
        if tracer.dialect == "aten" and tracer.knows:
            tracer.record()
            result = func(*args, **kwargs)
            tracer.learn(asked if not on_proxies else None, result)
            return result
        # Calls on concrete tensors are computed at once, and become constants when a proxy uses them.
        if func in MADE_OF_NUMBERS or not _is_factory(func) or has_tensors((args, kwargs)):
            run = _called if has_proxies((args, kwargs)) else computed_on_meta
            return run(func, args, kwargs)
        return tracer.create_proxy("call_function", func, args, kwargs)

    def _refuse(self, func: Any, args: Any, kwargs: Any) -> None:
        if func is set_grad_enabled:
            self.tracer.fail("switches gradients on or off", "use .detach() on values without gradients")
        if func in MADE_OF_NUMBERS and has_proxies((args, kwargs)):
            self.tracer.fail(f"makes a concrete tensor of values ({func.__name__})", "use torch.stack, or the values")
        if has_tensors((args, kwargs)):
            self.tracer.check(func, args, kwargs)


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


_OF_DTYPES = frozenset({torch.promote_types, torch.can_cast})
"""Functions of dtypes, which neither take nor return tensors."""


def _is_factory(func: Any) -> bool:
    if isinstance(func, torch._ops.OpOverload):
        return func._overloadpacket.__name__ in FACTORIES
    return getattr(func, "__name__", "") in FACTORIES


def _updates_statistics(target: Any) -> bool:
    """Whether a call updates running statistics: a rule may pass on those of the op that it is for."""
    return not isinstance(target, str) and of_function(target).op.short in BATCH_NORMS


def fakes_of(value: Any) -> Any:
    """`value` with proxies replaced by their fake tensors."""
    return substituted(value, lambda proxy: proxy.node.meta["val"], fx.Proxy)


def run_on_proxies(function: Callable[..., Any], tracer: RuleTracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run a rule on proxies and return its results, with tensors as nodes of the tape."""
    # As a signature does not say which operands require a gradient, expansions are recorded without.
    with torch.no_grad(), contextlib.ExitStack() as stack, FactoryRecorder(tracer):
        if tracer.knows and tracer.dialect == "aten":
            tracer.records_on(stack)
        result = function(*args, **kwargs)
    return _as_nodes(tracer, result)


def _as_nodes(tracer: RuleTracer, value: Any) -> Any:
    if isinstance(value, fx.Proxy):
        tracer.check(None, (value,), {})
        return value.node
    if isinstance(value, (list, tuple)):
        return tuple(_as_nodes(tracer, item) for item in value)
    # A rule may return a concrete tensor that it made of numbers: it becomes a constant.
    if isinstance(value, torch.Tensor):
        return tracer.tape.node_of(value) or tracer.tape.node_of(tracer.tape.constant(value))
    return value
