"""Graphs of Dynamo spelled in overloads above autograd, as `torch.export` spells a program: inside `torch.compile`
rules then meet the same graphs, sizes and dtypes as everywhere else."""

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
from decomp.ir.op_facts import METADATA_WRITES
from decomp.metadata.ambient_modes import neutral
from decomp.metadata.fakes import new_mode
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
"""Functions that change the state of PyTorch, and that a graph holds."""
_IN_TRANSFORMS = (
    "_autograd_grad",
    "_saved_tensors_hooks_disable",
    "_saved_tensors_hooks_enable",
    "_maybe_load_decompositions",
)
"""Functions that Dynamo calls between those that enter and leave a level of `torch.func`."""
_LEVELS = ("torch._functorch", "torch._C._functorch", "torch.cuda", "torch.accelerator", "torch.autograd")
"""Where the functions live whose effect is on calls other than themselves, and that no graph of overloads can hold."""
_LIMITS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    NotImplementedError,  # a tensor subclass, or a layout, that fake tensors do not know
    UnknownSize,
    UnsupportedOperatorException,
)
"""What is raised where fake tensors cannot tell what a program does."""
_KEPT_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "custom")


class NotSpelled(Exception):
    """Why a graph of Dynamo is lowered behind autograd only. `foreseen`: whether it is a limit that is known."""

    def __init__(self, why: str, foreseen: bool) -> None:
        super().__init__(why)
        self.foreseen = foreseen


def in_overloads(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph that Dynamo hands to a backend, in overloads above autograd, with metadata. The casts of autocast are
    calls of it. Raises `NotSpelled` where there is none: it holds levels of functorch, streams, or other state, an
    input is made of several tensors, or PyTorch cannot run it on fake tensors."""
    switch = _switch_of_state(module)
    if switch is not None:
        raise NotSpelled(f"it changes state that no graph of overloads holds, by {switch}", foreseen=True)
    subclass = next((type(value) for value in inputs if is_traceable_wrapper_subclass(value)), None)
    if subclass is not None:
        raise NotSpelled(f"an input is a {subclass.__name__}, which autograd has to take apart", foreseen=True)
    mode = _own_mode(inputs)
    try:
        nodes = module.graph.find_nodes(op="placeholder")
        return spelled(module, mode, [_fake_input(mode, *pair) for pair in zip(inputs, nodes, strict=True)])
    except _LIMITS as error:
        raise NotSpelled(first_line(error), foreseen=True) from error
    except NotSpelled:
        raise
    except Exception as error:  # AOTAutograd traces it as it is, or has the better word for what is wrong with it
        _LOG.info("a graph of Dynamo could not be spelled in overloads", exc_info=True)
        raise NotSpelled(f"{type(error).__name__}: {first_line(error)}", foreseen=False) from error


def spelled(
    module: fx.GraphModule, mode: FakeTensorMode, inputs: Sequence[Any], kind: type[Speller] | None = None
) -> fx.GraphModule:
    """A graph of Dynamo in overloads, by what `kind` of speller; `inputs`: their metadata, in `mode` or another."""
    fakes = [_like(mode, value) if kind is not None else value for value in inputs]
    tape = ProgramTape(fx.Graph(), mode)
    speller = (kind or Speller)(module, tape)
    with torch.set_grad_enabled(torch.is_grad_enabled()), speller.balanced():
        speller.run(*fakes, enable_io_processing=False)
    tape.graph._codegen = copy.copy(module.graph._codegen)
    state = speller.state()
    result = fx.GraphModule({**state, **speller.bodies, **tape.constants}, tape.graph)
    result.meta.update(module.meta)
    result.train(module.training)
    if any("autocast" in node.meta for node in tape.graph.nodes):
        with neutral():
            return autocast.explicit(result, lambda node: node.meta.get("autocast"))
    return result


def _switch_of_state(module: fx.GraphModule) -> str | None:
    """The name of a function in a graph that changes state which no graph of overloads holds."""
    graphs = [inner.graph for inner in module.modules() if isinstance(inner, fx.GraphModule)]
    found = next((node for graph in graphs for node in graph.nodes if _switches_state(node)), None)
    return getattr(found.target, "__name__", str(found.target)) if found is not None else None


def _switches_state(node: fx.Node) -> bool:
    if node.op == "call_module":
        return True
    if node.op == "call_method":
        return bool(node.target == "requires_grad_")
    if node.op != "call_function" or isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return False
    name = getattr(node.target, "__name__", "")
    if is_of_transform(node.target) or name in _IN_TRANSFORMS:
        return False
    return name not in _SWITCHES and str(getattr(node.target, "__module__", "")).startswith(_LEVELS)


def is_fused_product(target: Any) -> bool:
    """Whether a call is Inductor's prim a · b + c, which Dynamo makes of `addcmul_`, `addcdiv_` and others with a
    number (torch 2.13). It is there only once Inductor has been imported; other compilers have two calls for it."""
    return str(target) in ("prims.fma", "prims.fma.default")


def multiplied_and_added(a: torch.Tensor, b: Any, c: torch.Tensor) -> torch.Tensor:
    """a · b + c, as the prim's own kernel computes it."""
    return a * b + c


def _own_mode(inputs: Sequence[Any]) -> FakeTensorMode:
    """A mode of one's own on the program's sizes: what runs here leaves the fakes of Dynamo and AOTAutograd alone."""
    context = TracingContext.try_get()
    theirs = context.fake_mode if context is not None else detect_fake_mode(inputs)
    return new_mode(theirs.shape_env if theirs is not None else None)


def _fake_input(mode: FakeTensorMode, value: Any, node: fx.Node) -> Any:
    """An input, which is that of `node`, as AOTAutograd makes it fake, by the symbols that Dynamo gave it."""
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(value, FakeTensor):
        return _like(mode, value)
    context = TracingContext.try_get()
    symbolic = context.tensor_to_context.get(value) if context is not None else None
    if symbolic is None:
        return mode.from_tensor(value, static_shapes=True)
    source = getattr(symbolic, "tensor_source", None)
    as_base = getattr(source, "member", "") == "_base" and source != getattr(node, "_dynamo_source", source)
    if as_base and isinstance(node.meta.get("example_value"), FakeTensor):
        # torch 2.13 keeps one set of symbols a tensor: for the base of another input those that it has as the base.
        return _like(mode, node.meta["example_value"])
    return mode.from_tensor(value, symbolic_context=symbolic, source=source)


def _like(mode: FakeTensorMode, value: Any) -> Any:
    """A fake tensor of this mode with the metadata of one of another."""
    if isinstance(value, (list, tuple)):
        return type(value)(_like(mode, item) for item in value)
    made = fake_like(mode, value)
    if isinstance(made, torch.Tensor) and value.requires_grad:
        made.requires_grad_()
    return made


class ProgramTape(Tape):
    """A tape that holds a whole program, sizes that are data among its values."""

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
        """Whether a tensor is a result on this tape, or is in the memory of one that was recorded behind `after`. (A
        factory hands its caller another tensor than the one that was dispatched.)"""
        if id(value) in self._nodes:
            return True
        node = self.node_of(value)
        return node is not None and (after is None or node > after)

    def keep_metadata(self, fake: torch.Tensor) -> None:
        """Nodes that have this fake tensor in their metadata get a view of it: its own shape is about to change."""
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
    """Records what a program does: unlike a rule it may mutate, and may read data. Of calls within levels of
    `torch.func` it records what comes out below them."""

    tape: ProgramTape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if depth():
            with self:
                return handed_on(func, args, kwargs or {})
        args, kwargs = tree_map_only(torch.Tensor, unwrapped, (args, kwargs or {}))
        if func is aten._efficientzerotensor.default:
            func = aten.zeros.default
        if func is aten._new_zeros_with_same_feature_meta.default:  # of forward-mode AD
            batch = args[0].shape[: kwargs.get("self_num_batch_dims", 0)]
            func, args, kwargs = aten.new_zeros.default, (args[1], [*batch, *args[1].shape]), {}
        if func is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            func = aten.clone.default  # made anew at each run: the program may write it
        args, kwargs = tree_map(self._fake, (args, kwargs))
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
    """Records what comes out below the levels of a transform. Where gradients are off there, what a call is given is
    detached: what switched them off is not recorded."""

    def __init__(self, tape: ProgramTape, refuse: Callable[[Any], None]) -> None:
        super().__init__(tape, refuse)
        self.is_paused = False
        self.detaches = True
        """Whether what switches gradients off is not recorded."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within, nothing is recorded."""
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
    """Whether a call gave what it was given, or a size that the sizes of inputs tell."""
    if isinstance(out, SYMBOLIC):
        return not any(symbol_is_type(symbol, _DATA) for symbol in out.node.expr.free_symbols)
    return isinstance(out, torch.Tensor) and any(out is leaf for leaf in given)


_DATA = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT, SymT.FLOAT)
"""Symbols of numbers that are data of tensors. (The numbers that Python passes in are tensors, to Dynamo.)"""


class Speller(fx.Interpreter):
    """Runs a graph on fake tensors, recording what PyTorch dispatches."""

    def __init__(self, module: fx.GraphModule, tape: ProgramTape) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.tape = tape
        assert tape.mode is not None
        self.mode = tape.mode
        self.bodies: dict[str, fx.GraphModule] = {}
        """Bodies of higher-order ops, spelled, by the name of their attribute."""
        self.body_nodes: dict[str, fx.Node] = {}
        self.recorder = LevelRecorder(tape, lambda func: None)
        self.recorder.detaches = False
        self.within_levels: contextlib.ExitStack | None = None
        """The modes of the recorder, while a level is entered."""
        self.entered: list[tuple[Callable[[Any], Any], Any]] = []
        """Regions that have been entered: how to leave each, and its state."""
        self.inferring = 0
        """How many of them are of inference mode, in which switches of the gradient mode have no effect."""

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
        new = last.next if last is not None else next(iter(self.tape.graph.nodes))
        while new.op != "root":
            new.meta.update({key: n.meta[key] for key in _KEPT_META if key in n.meta})
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
        target = multiplied_and_added if is_fused_product(target) else target
        return self._recorded(target, lambda: super(Speller, self).call_function(target, args, kwargs))

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._recorded(target, lambda: super(Speller, self).call_method(target, args, kwargs))

    def _data(self, tensor: torch.Tensor) -> torch.Tensor:
        """`.data`, which PyTorch answers below where calls are recorded: a `detach()` that counts its own writes."""
        with self.mode:
            value: torch.Tensor = get_data_attr(tensor)
        self.tape.append(aten.detach.default, (tensor,), {}, value)
        return value

    def _recorded(self, target: Any, call: Callable[[], Any]) -> Any:
        last = self._last
        with self._recording():
            result = call()
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if self.within_levels is None and not all(self.tape.has_made(leaf, last) for leaf in made):
            raise NotSpelled(f"what {target} does is not seen above autograd", foreseen=False)
        return result

    @property
    def _last(self) -> fx.Node | None:
        return next(iter(reversed(self.tape.graph.nodes)), None)

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        self.tape.graph.output(self.tape.arguments(tree_map(unwrapped, args[0])))
        return args[0]

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """Within, calls are recorded. The modes that do so stay on while a level of `torch.func` is entered, as it
        remembers those that it was entered under."""
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
        """Enter or leave a region. Of autocast nothing is left in the graph: its casts are calls."""
        if "inference" in name:
            return self._inference_region(name, args)
        state = function(*args)
        if name in _LEAVING:
            self.entered.pop()
        else:
            self.entered.append((exit_autocast, state))
        return state

    def _inference_region(self, name: str, args: Any) -> Any:
        """Enter or leave inference mode, as a region without gradients: a write in it is a new tensor in the functional
        graph, which could not be used outside of it."""
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
        """Within, a failure leaves every region that was entered."""
        with process_state_kept():
            try:
                yield
            finally:
                if self.within_levels is not None:
                    self.within_levels.close()
                for leave, state in reversed(self.entered):
                    leave(state)

    def _higher_order(self, n: fx.Node) -> Any:
        """The call as it is, on bodies that are spelled in turn; its results as Dynamo found them, which is wrong where
        one of them has got another shape in place since."""
        if getattr(n.target, "__name__", "") == "flex_attention":
            args, kwargs = fx.node.map_arg((n.args, n.kwargs), self.env.__getitem__)
            return self._recorded(n.target, lambda: attention_formula(*args, **kwargs))  # type: ignore[misc]
        changing = [user for one in (n, *n.users) for user in one.users if method_name(user) in METADATA_WRITES]
        if changing:
            raise NotSpelled(f"{changing[0].name} changes the shape of a result of {n.target}", foreseen=True)
        args, kwargs = fx.node.map_arg((n.args, n.kwargs), self._argument)
        node = self.tape.graph.call_function(n.target, args, kwargs)  # type: ignore[arg-type]
        out = node.meta["val"] = _like(self.mode, n.meta.get("example_value"))
        self.tape.track(out, node)
        self.tape.items(node)
        return out

    def _argument(self, node: fx.Node) -> Any:
        value = self.env[node]
        if not isinstance(value, fx.GraphModule):
            return self.tape.arguments(value)
        name = str(node.target)
        if name not in self.body_nodes:
            inputs = [inner.meta["example_value"] for inner in value.graph.nodes if inner.op == "placeholder"]
            self.bodies[name] = spelled(value, self.mode, [_like(self.mode, given) for given in inputs])
            self.body_nodes[name] = self.tape.graph.get_attr(name)
        return self.body_nodes[name]


_ENTERING = ("_enter_autocast", "_enter_inference_mode")
_LEAVING = ("_exit_autocast", "_exit_inference_mode")
