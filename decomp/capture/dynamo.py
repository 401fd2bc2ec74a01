"""Dynamo's graphs re-traced into overloads above autograd, as `torch.export` writes programs: inside `torch.compile`
rules then see the same graphs, sizes and dtypes as everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import copy
import logging
from typing import Any

import torch
from torch import fx

from decomp.capture import autocast, norm_gradients
from decomp.errors import first_line
from decomp.graphs.tracing import SYMBOLIC, Recorder, Tape, UnknownSize, fake_like
from decomp.ir.aliases import method_name
from decomp.ir.arguments import substituted
from decomp.ir.op_facts import METADATA_WRITES
from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.metadata.fakes import new_mode, require_grad_like
from decomp.ops import aten
from decomp.torch_internals.fakes import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    TracingContext,
    UnsupportedOperatorException,
    detect_fake_mode,
)
from decomp.torch_internals.graphs import get_data_attr
from decomp.torch_internals.modes import (
    EnablePreDispatch,
    enable_python_dispatcher,
    exit_autocast,
    is_traceable_wrapper_subclass,
    process_state_kept,
    set_grad_enabled,
)
from decomp.torch_internals.pytree import tree_leaves, tree_map, tree_map_only
from decomp.torch_internals.sizes import (
    GuardOnDataDependentSymNode,
    SymT,
    compute_unbacked_bindings,
    rebind_unbacked,
    symbol_is_type,
)
from decomp.torch_internals.transforms import attention_formula, depth, handed_on, is_of_transform, unwrapped

_LOG = logging.getLogger(__name__)
_SWITCHES = ("_set_grad_enabled", "_enter_inference_mode", "_exit_inference_mode")
"""Functions that change global state of PyTorch, and that may remain in a graph as calls."""
_IN_TRANSFORMS = (
    "_autograd_grad",
    "_saved_tensors_hooks_disable",
    "_saved_tensors_hooks_enable",
    "_maybe_load_decompositions",
)
"""Functions that Dynamo calls between those that enter and leave a level of `torch.func`."""
_HOOK = "_register_hook_trampoline"
"""The function by which Dynamo calls `register_hook` on a value of a graph under compiled autograd (torch 2.13)."""
_LEVELS = ("torch._functorch", "torch._C._functorch", "torch.cuda", "torch.accelerator", "torch.autograd")
"""Modules whose functions affect later calls, and so cannot be written in a graph of overloads."""
_LIMITS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    NotImplementedError,  # a tensor subclass, or a layout, that fake tensors do not know
    UnknownSize,
    UnsupportedOperatorException,
)
"""Exceptions that mean: a program cannot be run on fake tensors."""
KEPT_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "custom")


class NotInOverloads(Exception):
    """A Dynamo graph cannot be written in overloads, so that it is lowered after autograd only. `foreseen`: whether the
    reason is a known limit."""

    def __init__(self, why: str, foreseen: bool) -> None:
        super().__init__(why)
        self.foreseen = foreseen


class UnknownBody(NotInOverloads):
    """A body of a custom function has inputs without metadata (Dynamo of torch 2.11)."""


def trace_to_overloads(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph that Dynamo passes to a backend, in overloads above autograd, with metadata; casts of autocast are
    calls. Raises `NotInOverloads` if it uses functorch levels, streams or other state, if an input is a tensor subclass
    that wraps several tensors, or if PyTorch cannot run it on fake tensors."""
    switch = _find_state_switch(module)
    if switch is not None:
        raise NotInOverloads(f"it changes state that a graph of overloads cannot express, by {switch}", foreseen=True)
    subclass = next((type(value) for value in inputs if is_traceable_wrapper_subclass(value)), None)
    # Overloads above autograd would see the subclass itself, not the tensors inside.
    if subclass is not None:
        raise NotInOverloads(f"an input is a {subclass.__name__}, which only autograd unwraps", foreseen=True)
    mode = _own_mode(inputs)
    try:
        nodes = module.graph.find_nodes(op="placeholder")
        return trace_with(module, mode, [_fake_input(mode, *pair) for pair in zip(inputs, nodes, strict=True)])
    except _LIMITS as error:
        raise NotInOverloads(first_line(error), foreseen=True) from error
    except NotInOverloads:
        raise
    except Exception as error:  # AOTAutograd traces the original graph, or reports the error better
        _LOG.debug("a Dynamo graph could not be written in overloads", exc_info=True)
        raise NotInOverloads(f"{type(error).__name__}: {first_line(error)}", foreseen=False) from error


def trace_with(
    module: fx.GraphModule, mode: FakeTensorMode, inputs: Sequence[Any], kind: type[OverloadTracer] | None = None
) -> fx.GraphModule:
    """A Dynamo graph in overloads, traced by a tracer of class `kind`. `inputs`: their metadata, of `mode` or of
    another mode."""
    fakes = [_fake_in_mode(mode, value) if kind is not None else value for value in inputs]
    tape = ProgramTape(fx.Graph(), mode)
    tracer = (kind or OverloadTracer)(module, tape)
    # Switches in the graph change the gradient mode of this thread, which is put back.
    with torch.set_grad_enabled(torch.is_grad_enabled()), tracer.balanced():
        # Backends get flat inputs, in the order of the placeholders.
        tracer.run(*fakes, enable_io_processing=False)
    # Dynamo's calling convention must be kept: its guards and bytecode pass the inputs in this order.
    tape.graph._codegen = copy.copy(module.graph._codegen)
    state = tracer.state()
    result = fx.GraphModule({**state, **tracer.bodies, **tape.constants}, tape.graph)
    result.meta.update(module.meta)
    result.train(module.training)
    if any("autocast" in node.meta for node in tape.graph.nodes):
        with without_ambient_modes():
            return autocast.make_casts_explicit(result, lambda node: node.meta.get("autocast"))
    return result


def _find_state_switch(module: fx.GraphModule) -> str | None:
    """The name of the first function in a graph that changes state which a graph of overloads cannot express."""
    graphs = [inner.graph for inner in module.modules() if isinstance(inner, fx.GraphModule)]
    found = next((node for graph in graphs for node in graph.nodes if _switches_state(node)), None)
    if found is None:
        return None
    name: str = getattr(found.target, "__name__", str(found.target))
    return "register_hook" if name == _HOOK else name


def _switches_state(node: fx.Node) -> bool:
    # Dynamo inlines modules; a remaining one has code that Dynamo does not trace.
    if node.op == "call_module":
        return True
    if node.op == "call_method":
        return bool(node.target == "requires_grad_")
    if node.op != "call_function" or isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return False
    name = getattr(node.target, "__name__", "")
    if name == _HOOK:
        return True
    if is_of_transform(node.target) or name in _IN_TRANSFORMS:
        return False
    return name not in _SWITCHES and str(getattr(node.target, "__module__", "")).startswith(_LEVELS)


def is_fused_product(target: Any) -> bool:
    """Whether a call is Inductor's prim a · b + c, to which Dynamo rewrites `addcmul_`, `addcdiv_` and others with a
    number (torch 2.13). The prim exists only once Inductor has been imported; other compilers see two calls."""
    # By name, since importing the prim imports Inductor (torch/_dynamo/variables/tensor.py has the rewrite, torch
    # 2.13).
    return str(target) in ("prims.fma", "prims.fma.default")


def multiply_add(a: torch.Tensor, b: Any, c: torch.Tensor) -> torch.Tensor:
    """a · b + c, as the prim's own kernel computes it."""
    return a * b + c


def _own_mode(inputs: Sequence[Any]) -> FakeTensorMode:
    """A new fake mode with the shape environment of the program, so that running here leaves the fake tensors of Dynamo
    and AOTAutograd alone."""
    context = TracingContext.try_get()
    theirs = context.fake_mode if context is not None else detect_fake_mode(inputs)
    return new_mode(theirs.shape_env if theirs is not None else None)


def _fake_input(mode: FakeTensorMode, value: Any, node: fx.Node) -> Any:
    """The fake tensor for the input of placeholder `node`, with the symbols that Dynamo assigned to it, as AOTAutograd
    does."""
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(value, FakeTensor):
        return _fake_in_mode(mode, value)
    context = TracingContext.try_get()
    symbolic = context.tensor_to_context.get(value) if context is not None else None
    if symbolic is None:
        return mode.from_tensor(value, static_shapes=True)
    source = getattr(symbolic, "tensor_source", None)
    as_base = getattr(source, "member", "") == "_base" and source != getattr(node, "_dynamo_source", source)
    if as_base and isinstance(node.meta.get("example_value"), FakeTensor):
        # torch 2.13 keeps one set of symbols per tensor. If the input is also the base of another one, these are the
        # symbols that it has as that base, not those of this input.
        return _fake_in_mode(mode, node.meta["example_value"])
    return mode.from_tensor(value, symbolic_context=symbolic, source=source)


def _fake_in_mode(mode: FakeTensorMode, value: Any) -> Any:
    """A fake tensor of this mode with the metadata of a tensor of another mode; several for several."""

    def made(leaf: Any) -> Any:
        fake = fake_like(mode, leaf)
        if isinstance(fake, torch.Tensor):
            require_grad_like(fake, leaf)
        return fake

    return substituted(value, made, object)


class ProgramTape(Tape):
    """A tape that holds a whole program; data-dependent sizes are among its values."""

    def __init__(self, graph: fx.Graph, mode: FakeTensorMode) -> None:
        super().__init__(graph, mode)
        self.data_dependent: list[fx.Node] = []

    def append(self, target: Any, args: Any, kwargs: Any, out: Any) -> fx.Node:
        node = super().append(target, args, kwargs, out)
        env = self.mode.shape_env if self.mode is not None else None
        bindings = compute_unbacked_bindings(env, out) if env is not None else None
        if bindings:
            node.meta["unbacked_bindings"] = bindings
            self.data_dependent.append(node)
        if isinstance(out, SYMBOLIC):
            self._sizes.setdefault(out.node.expr, node)
        return node

    def has_made(self, value: torch.Tensor, after: fx.Node | None) -> bool:
        """Whether a tensor is a result on this tape, or shares memory with one recorded after `after`. (A factory
        function returns another tensor object than the one that was dispatched.)"""
        if id(value) in self._nodes:
            return True
        node = self.node_of(value)
        return node is not None and (after is None or node > after)

    def keep_metadata(self, fake: torch.Tensor) -> None:
        """Replace this fake tensor in the metadata of nodes by an alias of it, as its own shape is about to change."""
        # Autograd refuses to use an alias that was made without gradients once its base is written with them ("A view
        # was created in no_grad mode and its base or another view of its base has been modified inplace").
        with torch.enable_grad():
            as_it_is_now = aten.alias.default(fake)
        for node in self.graph.nodes:
            if any(value is fake for value in tree_leaves(node.meta.get("val"))):
                node.meta["val"] = tree_map(lambda value: as_it_is_now if value is fake else value, node.meta["val"])

    def _known_sizes(self) -> Iterator[tuple[fx.Node, int | None, Any]]:
        yield from super()._known_sizes()
        for whole in self.data_dependent:
            if isinstance(whole.meta["val"], SYMBOLIC):
                yield whole, None, whole.meta["val"]
                continue
            for value in tree_leaves(whole.meta["val"]):
                node = self.node_of(value)
                if node is not None:
                    yield from ((node, d, s) for d, s in enumerate(value.shape) if isinstance(s, torch.SymInt))


class ProgramRecorder(Recorder):
    """Records what a program does. Unlike a rule, a program may mutate and may read data. Calls inside levels of
    `torch.func` are recorded as the calls that reach the dispatcher below those levels."""

    tape: ProgramTape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if depth():
            # A mode is off while it handles a call; calls that the level makes below it are to come back.
            with self:
                return handed_on(func, args, kwargs or {})
        args, kwargs = tree_map_only(torch.Tensor, unwrapped, (args, kwargs or {}))
        # A zero tensor without storage is an optimisation of forward-mode AD that no target has.
        if func is aten._efficientzerotensor.default:
            func = aten.zeros.default
        if func is aten._new_zeros_with_same_feature_meta.default:  # of forward-mode AD
            batch = args[0].shape[: kwargs.get("self_num_batch_dims", 0)]
            func, args, kwargs = aten.new_zeros.default, (args[1], [*batch, *args[1].shape]), {}
        if func is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            func = aten.clone.default  # a new tensor at each run, as the program may write to it
        args, kwargs = tree_map(self._fake, (args, kwargs))
        # The call is about to change the sizes of this very fake tensor, which earlier nodes have as metadata.
        if torch.Tag.inplace_view in func.tags:
            self.tape.keep_metadata(args[0])
        out = self.executed(func, args, kwargs)
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, (torch.Tensor, *SYMBOLIC))]
        if not results:
            self._recorded_effect(func, args, kwargs, out)
        elif func._schema.is_mutable or not _is_known(out, tree_leaves((args, kwargs))):
            node = self.tape.append(func, args, kwargs, out)
            policy = autocast.ambient_policy(results[0])
            if policy is not None:
                node.meta["autocast"] = policy
        return out


class LevelRecorder(ProgramRecorder):
    """Records the calls below the levels of a transform. Where gradients are off there, the inputs of calls are
    detached instead, as what disabled gradients is not recorded."""

    def __init__(self, tape: ProgramTape, refuse: Callable[[Any], None]) -> None:
        super().__init__(tape, refuse)
        self.is_paused = False
        self.detaches = True
        """Whether inputs are detached where gradients are off, as the switch itself is not recorded."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is recorded inside this context."""
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.is_paused:
            return func(*args, **(kwargs or {}))
        if self.detaches and not depth() and func in norm_gradients.FORMULAS:
            with self:
                return norm_gradients.FORMULAS[func](*args, **(kwargs or {}))
        if depth() or torch.is_grad_enabled() or not self.detaches:
            return super().__torch_dispatch__(func, types, args, kwargs)
        args, kwargs = tree_map_only(torch.Tensor, self._detached, (args, kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _detached(self, value: torch.Tensor) -> torch.Tensor:
        node = self.tape.node_of(value)
        if node is None or not value.is_floating_point() or node.target is aten.detach.default:
            return value
        found = aten.detach.default(value)
        self.tape.append(aten.detach.default, (value,), {}, found)
        return found


def _is_known(out: Any, given: Sequence[Any]) -> bool:
    """Whether a call returned one of its inputs, or a size that follows from the sizes of the inputs."""
    if isinstance(out, SYMBOLIC):
        return not any(symbol_is_type(symbol, _DATA) for symbol in out.node.expr.free_symbols)
    return isinstance(out, torch.Tensor) and any(out is leaf for leaf in given)


_DATA = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT, SymT.FLOAT)
"""Symbols of data-dependent numbers. (To Dynamo, Python floats that are passed in are tensors.)"""


class OverloadTracer(fx.Interpreter):
    """Runs a graph on fake tensors and records the ops that PyTorch dispatches."""

    def __init__(self, module: fx.GraphModule, tape: ProgramTape) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.tape = tape
        assert tape.mode is not None
        self.mode = tape.mode
        self.bodies: dict[str, fx.GraphModule] = {}
        """Bodies of higher-order ops, in overloads, by attribute name."""
        self.body_nodes: dict[str, fx.Node] = {}
        self.recorder = LevelRecorder(tape, lambda func: None)
        self.recorder.detaches = False
        self.within_levels: contextlib.ExitStack | None = None
        """The recording modes that stay on while a level is open."""
        self.entered: list[tuple[Callable[[Any], Any], Any]] = []
        """Open regions: the function that leaves each, and its state."""
        self.inferring = 0
        """How many of them are inference mode, in which switches of the gradient mode have no effect."""

    def state(self) -> dict[str, Any]:
        """The attributes that the new graph keeps under their own names."""
        nodes = (node for node in self.tape.graph.find_nodes(op="get_attr") if node.target not in self.bodies)
        names = {str(node.target) for node in nodes} - self.tape.constants.keys()
        return {name: self.fetch_attr(name) for name in names}

    def run_node(self, n: fx.Node) -> Any:
        last = self._last
        if isinstance(n.target, torch._ops.HigherOrderOperator):
            result = self._higher_order(n)
        else:
            result = super().run_node(n)
            if self.mode.shape_env is not None and "unbacked_bindings" in n.meta:
                rebind_unbacked(self.mode.shape_env, n, result)
        # All nodes recorded while this node ran inherit its stack trace and module path.
        new = last.next if last is not None else next(iter(self.tape.graph.nodes))
        while new.op != "root":
            new.meta.update({key: n.meta[key] for key in KEPT_META if key in n.meta})
            new = new.next
        return result

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().placeholder(target, args, kwargs)
        self.tape.placeholder(str(target), value)
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return self.tape.constant(value) if isinstance(value, torch.Tensor) else value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(target, "__name__", "")
        if name in _ENTERING or name in _LEAVING:
            return self._region(name, target, args)
        if target is set_grad_enabled and self.within_levels is not None:
            return target(*args)
        if target is set_grad_enabled:
            return self._switched(*args) if not self.inferring else None
        if target is get_data_attr:
            return self._data(*args)
        target = multiply_add if is_fused_product(target) else target
        return self._recorded(target, lambda: super(OverloadTracer, self).call_function(target, args, kwargs))

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._recorded(target, lambda: super(OverloadTracer, self).call_method(target, args, kwargs))

    def _data(self, tensor: torch.Tensor) -> torch.Tensor:
        """`.data`, which PyTorch implements below the level at which calls are recorded: a `detach()` with a version
        counter of its own."""
        with self.mode:
            value: torch.Tensor = get_data_attr(tensor)
        self.tape.append(aten.detach.default, (tensor,), {}, value)
        return value

    def _recorded(self, target: Any, call: Callable[[], Any]) -> Any:
        last = self._last
        with self._recording():
            result = call()
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        # Within a level results are wrapped tensors, which the tape does not know.
        if self.within_levels is None and not all(self.tape.has_made(leaf, last) for leaf in made):
            raise NotInOverloads(f"{target} runs calls that are not seen above autograd", foreseen=False)
        return result

    @property
    def _last(self) -> fx.Node | None:
        return next(iter(reversed(self.tape.graph.nodes)), None)

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        self.tape.graph.output(self.tape.arguments(tree_map(unwrapped, args[0])))
        return args[0]

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """Calls inside this context are recorded. The recording modes stay on while a level of `torch.func` is open, as
        functorch restores the modes with which the level was entered."""
        if self.within_levels is None:
            with contextlib.ExitStack() as modes:
                for mode in (self.mode, enable_python_dispatcher(), EnablePreDispatch(), self.recorder):
                    modes.enter_context(mode)
                yield
                if depth():
                    self.within_levels, self.recorder.detaches = modes.pop_all(), True
        else:
            yield
            if not depth():
                self.within_levels.close()
                self.within_levels, self.recorder.detaches = None, False

    def _region(self, name: str, function: Callable[..., Any], args: Any) -> Any:
        """Enter or leave a region. Autocast regions leave nothing in the graph but their casts."""
        if "inference" in name:
            return self._inference_region(name, args)
        state = function(*args)
        if name in _LEAVING:
            self.entered.pop()
        else:
            self.entered.append((exit_autocast, state))
        return state

    def _inference_region(self, name: str, args: Any) -> Any:
        """Enter or leave inference mode as a region without gradients: in the functional graph a write is a new tensor,
        which would be an inference tensor and could not be used outside."""
        if name in _LEAVING:
            self.inferring -= 1
            return self._switched(self.entered.pop()[1])
        state = torch.is_grad_enabled()
        self._switched(not args[0])
        self.inferring += 1
        self.entered.append((set_grad_enabled, state))
        return state

    def _switched(self, gradients: bool) -> None:
        self.tape.graph.call_function(set_grad_enabled, (gradients,))
        set_grad_enabled(gradients)

    @contextlib.contextmanager
    def balanced(self) -> Iterator[None]:
        """On an exception, leave every region that is still open."""
        with process_state_kept():
            try:
                yield
            finally:
                if self.within_levels is not None:
                    self.within_levels.close()
                for leave, state in reversed(self.entered):
                    leave(state)

    def _higher_order(self, n: fx.Node) -> Any:
        """The same call with bodies in overloads. Results have the metadata that Dynamo recorded, which is stale if one
        of them was resized in place since; such graphs are refused."""
        if getattr(n.target, "__name__", "") == "flex_attention":
            args, kwargs = fx.node.map_arg((n.args, n.kwargs), self.env.__getitem__)
            return self._recorded(n.target, lambda: attention_formula(*args, **kwargs))
        # The result is not re-run here, so its metadata could not follow the in-place change.
        changing = [user for one in (n, *n.users) for user in one.users if method_name(user) in METADATA_WRITES]
        if changing:
            raise NotInOverloads(f"{changing[0].name} changes the shape of a result of {n.target}", foreseen=True)
        args, kwargs = fx.node.map_arg((n.args, n.kwargs), self._argument)
        node = self.tape.graph.call_function(n.target, args, kwargs)
        out = node.meta["val"] = _fake_in_mode(self.mode, n.meta.get("example_value"))
        self.tape.track(out, node)
        self.tape.items(node)
        return out

    def _argument(self, node: fx.Node) -> Any:
        value = self.env[node]
        if not isinstance(value, fx.GraphModule):
            return self.tape.arguments(value)
        name = str(node.target)
        if name not in self.body_nodes:
            placeholders = value.graph.find_nodes(op="placeholder")
            if not all("example_value" in inner.meta for inner in placeholders):
                raise UnknownBody(f"{name} has inputs without metadata", foreseen=True)
            inputs = [inner.meta["example_value"] for inner in placeholders]
            self.bodies[name] = trace_with(value, self.mode, [_fake_in_mode(self.mode, given) for given in inputs])
            self.body_nodes[name] = self.tape.graph.get_attr(name)
        return self.body_nodes[name]


_ENTERING = ("_enter_autocast", "_enter_inference_mode")
_LEAVING = ("_exit_autocast", "_exit_inference_mode")
