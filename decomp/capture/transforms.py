"""Removal of `torch.func` transforms from an exported program. `torch.export` keeps vmap and jvp as calls that enter a
level, wrap tensors for it and leave it: no target knows these, and the calls between them mean something other than
they say. Such a region is run on fake tensors, inside its levels, by a recorder that passes each call to the innermost
level and records the calls that come out below all levels, above autograd: plain calls on plain tensors, with the
gradients of the region. All other nodes are copied.

For grad and similar `torch.export` (2.13) records no level, only the calls that autograd makes inside it, and treats
the wrapped tensors with which these begin as constants. Each shares the storage of the value that was wrapped, by which
that value is found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
import contextlib
import copy
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature

from decomp.capture.dynamo import KEPT_META, LevelRecorder, ProgramTape
from decomp.errors import CaptureError, first_line, spell_target
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.tracing import fake_like, without_guards
from decomp.ir.aliases import attribute
from decomp.ir.call import metadata
from decomp.ir.op_facts import RUN_ONCE
from decomp.metadata.fakes import mode_of
from decomp.metadata.symbolic_sizes import expression
from decomp.ops import aten
from decomp.torch_internals import transforms as levels
from decomp.torch_internals.fakes import FakeTensor, FakeTensorMode
from decomp.torch_internals.modes import EnablePreDispatch, enable_python_dispatcher, process_state_kept
from decomp.torch_internals.pytree import tree_leaves, tree_map, tree_map_only


def remove_transforms(program: ExportedProgram) -> ExportedProgram:
    """The program without its transforms. Raises `CaptureError` for a region that cannot be traced."""
    lost = {name: value for name, value in program.constants.items() if levels.is_wrapped(value)}
    specs = program.graph_signature.input_specs
    gone = {spec.arg.name: lost[spec.target] for spec in specs if spec.target in lost}
    mode = mode_of(program.graph)
    assert mode is not None
    with process_state_kept():
        module = _remove_from_module(program.graph_module, mode, gone)
    results = module.graph.output_node().args[0]
    outputs = [_named(spec, result) for spec, result in zip(program.graph_signature.output_specs, results)]
    found = copy.copy(program)
    vars(found).update(
        _graph_module=module,
        _graph_signature=ExportGraphSignature([spec for spec in specs if spec.target not in lost], outputs),
        _constants={name: value for name, value in program.constants.items() if name not in lost},
    )
    return found


def remove_transforms_of_graph(module: fx.GraphModule) -> fx.GraphModule:
    """The same for a graph module with metadata, such as `program.module()`."""
    mode = mode_of(module.graph)
    if mode is None:
        raise CaptureError(
            "the GraphModule has calls of torch.func, which are removed where nodes have metadata\n"
            "  to do: pass an ExportedProgram, or its module()"
        )
    read = module.graph.find_nodes(op="get_attr")
    constants = {node.name: attribute(module, str(node.target)) for node in read}
    # A constant that shares memory with a computed value is a tensor that was wrapped or unwrapped during the trace.
    computed = _places(node for node in module.graph.nodes if node.op != "get_attr")
    lost = {name: value for name, value in constants.items() if _is_of_trace(value, computed)}
    with process_state_kept():
        return _remove_from_module(module, mode, lost)


def _is_of_trace(value: Any, computed: Mapping[Any, Any]) -> bool:
    """Whether a constant of a module that torch.export made is a tensor of its trace, by the memory of those: wrapped,
    or unwrapped when the level was left."""
    if not isinstance(value, torch.Tensor):
        return False
    return levels.is_wrapped(value) or isinstance(value, FakeTensor) and _place(value) in computed


def _named(spec: Any, result: Any) -> Any:
    """The signature's entry for an output, with its new name."""
    if not isinstance(result, fx.Node) or getattr(spec.arg, "name", result.name) == result.name:
        return spec
    found = copy.copy(spec)
    found.arg = copy.copy(spec.arg)
    found.arg.name = result.name
    return found


def _remove_from_module(module: fx.GraphModule, mode: FakeTensorMode, lost: Mapping[str, Any]) -> fx.GraphModule:
    """A module whose graph, and those of its bodies, have no transforms."""
    removal = _TransformRemoval(module, mode, lost)
    with removal.entered:
        for node in module.graph.nodes:
            removal.visit(node)
    found = fx.GraphModule(module, removal.rewrite.graph)
    found.meta.update(module.meta)
    # Bodies of higher-order ops outside of regions may contain transforms of their own.
    for name, body in found.named_children():
        if isinstance(body, fx.GraphModule) and levels.has_transforms(body):
            setattr(found, name, _remove_from_module(body, mode, {}))
    return found


class _TransformRemoval:
    """One pass over a graph that copies it, and runs and replaces its regions."""

    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode, lost: Mapping[str, Any]) -> None:
        self.module, self.mode = module, mode
        self.wrapped_in = {node: lost[node.name] for node in module.graph.nodes if node.name in lost}
        """The constant, by the input that torch.export made of it."""
        self.at = _places(node for node in module.graph.nodes if node not in self.wrapped_in)
        self.rewrite = Rewrite.of(module.graph)
        self.values = self.rewrite.values
        self.region: _LevelRegion | None = None
        self.entered = contextlib.ExitStack()
        """Leaves the modes of an unfinished region."""

    def visit(self, node: fx.Node) -> None:
        """Copy a node, or run it if it belongs to a region."""
        if node in self.wrapped_in or self.region is None and _is_leftover(node):
            return
        if self.region is None and not _begins(node):
            self._copied(node)
            return
        if self.region is None:
            self.region = self.entered.enter_context(_LevelRegion(self.module, self.mode, self.wrapped_in))
        self.region.run(node, self._given)
        if self.region.is_over():
            self.entered.pop_all().close()
            self._replaced(self.region)
            self.region = None

    def _copied(self, node: fx.Node) -> None:
        if node.target is levels.unwrap_for_grad:
            self.values[node] = self._value(node.args[0])
            return
        new = self.rewrite.copy(node, self._value)
        if isinstance(new, fx.Node) and "val" in new.meta:
            new.meta["val"] = tree_map(levels.unwrapped, new.meta["val"])

    def _value(self, node: Any) -> Any:
        """The new value of a node; for a constant that was a wrapped tensor, that of the value it wraps."""
        return self.values[self._found(node)]

    def _found(self, node: fx.Node) -> fx.Node:
        if node not in self.wrapped_in:
            return node
        for found in self.at.get(_place(self.wrapped_in[node]), ()):
            if found in self.values or self.region is not None and found in self.region.values:
                return found
        raise _not_removable(node, "torch.export turned a tensor of it into a constant")

    def _given(self, node: fx.Node) -> Any:
        """The node of the new graph that is an input of a region."""
        return self._value(node)

    def _replaced(self, region: _LevelRegion) -> None:
        """Inline the calls that a region recorded."""
        sought = {_place(constant) for constant in self.wrapped_in.values()}
        outputs = {node: region.result(node, sought) for node in region.values if node.op != "get_attr"}
        region.finish(outputs)

        def make(node: fx.Node, args: Any, kwargs: Any) -> fx.Node:
            source = region.origin.get(node, region.first)
            target = node.target
            if node.op == "get_attr":
                target, args, kwargs = _full(region.tape.constants[str(target)], source)
            new = self.rewrite.add("call_function", target, args, kwargs, node.name, at=source)
            kept = {key: source.meta[key] for key in _KEPT_META if key in source.meta}
            new.meta = {**kept, "val": node.meta["val"]}
            return new

        made = self.rewrite.inline(region.tape.graph, [self._value(node) for node in region.inputs], make)
        for node, value in outputs.items():
            self.values[node] = fx.map_arg(value, made.__getitem__)


_KEPT_META = (*KEPT_META, "torch_fn")


class _LevelRegion:
    """The nodes between the first call that enters a level and the last that leaves one, run as they are visited."""

    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode, lost: Collection[fx.Node]) -> None:
        """`lost`: nodes of constants that are values of the program."""
        self.module, self.mode, self.lost = module, mode, lost
        self.tape = ProgramTape(fx.Graph(), mode)
        self.recorder = LevelRecorder(self.tape, lambda func: None)
        self.inputs: list[fx.Node] = []
        self.values: dict[fx.Node, Any] = {}
        """The result of each node of the region."""
        self.origin: dict[fx.Node, fx.Node] = {}
        """The node that was run, by the tape node it recorded."""
        self.given: dict[fx.Node, Any] = {}
        self.depth, self.duals = levels.depth(), 0
        self.unrecorded = False
        """Whether a level is open that the program did not record."""
        self.first: fx.Node
        self.modes = contextlib.ExitStack()

    def __enter__(self) -> _LevelRegion:
        """The recording modes stay on from the first call of the region to its last, as levels restore the modes with
        which they were entered."""
        for mode in (without_guards(self.mode), self.mode, enable_python_dispatcher(), EnablePreDispatch()):
            self.modes.enter_context(mode)
        self.modes.enter_context(self.recorder)
        return self

    def is_over(self) -> bool:
        """Whether all levels of the region have been left."""
        return levels.depth() <= self.depth and not self.duals

    def __exit__(self, *exc: Any) -> None:
        self.modes.__exit__(*exc)

    def run(self, node: fx.Node, outside: Callable[[fx.Node], Any]) -> None:
        """Run a node of the region; `outside` maps a node before the region to its node in the new graph."""
        if not self.values:
            self.first = node

        def value(arg: fx.Node) -> Any:
            return self.values[arg] if arg in self.values else self._input(arg, outside)

        last = next(iter(reversed(self.tape.graph.nodes)), None)
        try:
            self._enter_unrecorded(node, value)
            self.values[node] = self._evaluated(node, value)
            self._leave_unrecorded(node)
        except CaptureError:
            raise
        except Exception as error:
            raise _not_removable(node, f"{type(error).__name__}: {first_line(error)}") from error
        for new in reversed(self.tape.graph.nodes):
            if new is last:
                break
            self.origin[new] = node

    def _enter_unrecorded(self, node: fx.Node, value: Callable[[fx.Node], Any]) -> None:
        """In the body of a higher-order op torch.export (2.13) drops the calls that enter and leave vmap: its level
        begins where the first tensor is wrapped for it, and ends where the last is unwrapped."""
        if levels.depth() == self.depth and getattr(node.target, "__name__", "") == "_add_batch_dim":
            tensor, dim, _ = fx.map_arg(node.args, value)
            levels.enter_vmap(tensor.shape[dim], "error")
            self.unrecorded = True

    def _leave_unrecorded(self, node: fx.Node) -> None:
        name = "_remove_batch_dim"
        if self.unrecorded and getattr(node.target, "__name__", "") == name:
            if getattr(node.next.target, "__name__", "") != name:
                levels.leave_vmap()
                self.unrecorded = False

    def _input(self, node: fx.Node, outside: Callable[[fx.Node], Any]) -> Any:
        if node.op == "get_attr" and node not in self.lost:
            return attribute(self.module, str(node.target))
        new = outside(node)
        if not isinstance(new, fx.Node):
            return new
        if new not in self.given:
            # Created inside a level, the fake tensor would be wrapped for it, and its creation recorded.
            with levels.outside_of_all(), self.recorder.paused():
                self.given[new] = tree_map(lambda value: fake_like(self.mode, value), metadata(new))
            self.tape.placeholder(new.name, self.given[new])
            self.inputs.append(node)
        return self.given[new]

    def _evaluated(self, node: fx.Node, value: Callable[[fx.Node], Any]) -> Any:
        if node.op == "get_attr":
            return attribute(self.module, str(node.target))
        args, kwargs = fx.map_arg((node.args, node.kwargs), value)
        return self._call(node, args, kwargs)

    def _call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if levels.is_of_transform(target):
            # Dual levels are not on functorch's stack, whose depth says when other levels end.
            self.duals += _DUAL_LEVELS.get(target.__name__, 0)
            args = _at_this_level(target.__name__, args)
        elif isinstance(target, torch._ops.HigherOrderOperator):
            return self._higher_order(node, args, kwargs)
        return target(*args, **kwargs)

    def _higher_order(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        name = node.target.__name__
        if name == "flex_attention":
            args, kwargs = tree_map_only(fx.GraphModule, self._function, (args, kwargs))
            return levels.attention_formula(*args, **kwargs)
        if name == "flat_apply" and str(args[2]).endswith(".ModIndex"):  # x[i] for tensors i, as score_mod has it
            return aten.index(args[3], list(args[4:]))
        if name == "cond":
            return self._selected(*args)
        place = next((i for i, arg in enumerate(args) if isinstance(arg, fx.GraphModule)), None)
        if name not in RUN_ONCE or name == "wrap_with_autocast" or place is None:
            raise _not_removable(node, f"torch.{name} runs inside of it")
        with torch.set_grad_enabled(args[0] if name == "wrap_with_set_grad_enabled" else torch.is_grad_enabled()):
            return self._body(args[place], args[place + 1 :])

    def _function(self, body: fx.GraphModule) -> Callable[..., Any]:
        return lambda *args: self._body(body, args)

    def _selected(self, which: Any, if_true: fx.GraphModule, if_false: fx.GraphModule, operands: Sequence[Any]) -> Any:
        """The result of a `cond` whose predicate is batched: both branches are run, and elements selected."""
        # As vmap itself does for `cond` (torch/_higher_order_ops/cond.py).
        results = [self._body(branch, operands) for branch in (if_true, if_false)]
        return tree_map(lambda one, other: torch.where(which, one, other), *results)

    def _body(self, body: fx.GraphModule, args: Sequence[Any]) -> Any:
        values: dict[fx.Node, Any] = dict(zip(body.graph.find_nodes(op="placeholder"), args))
        for node in body.graph.nodes:
            if node.op == "output":
                return fx.map_arg(node.args[0], values.__getitem__)
            if node.op == "get_attr":
                values[node] = attribute(body, str(node.target))
            elif node.op != "placeholder":
                values[node] = self._call(node, *fx.map_arg((node.args, node.kwargs), values.__getitem__))

    def result(self, node: fx.Node, sought: Collection[Any]) -> Any:
        """The result of a node as nodes of the tape; None if nothing after the region needs it. `sought`: the memory of
        values that later wrapped constants refer to."""
        inside = tree_map(levels.unwrapped, self.values[node])
        known = metadata(node)
        is_sought = isinstance(known, torch.Tensor) and _place(known) in sought
        if not is_sought and all(user in self.values for user in node.users):
            return None
        found = tree_map_only(torch.Tensor, self.tape.node_of, inside)
        if any(isinstance(value, torch.Tensor) for value in tree_leaves(inside)) and None in tree_leaves(found):
            raise _not_removable(node, "its result was not recorded")
        return found

    def finish(self, outputs: Mapping[fx.Node, Any]) -> None:
        """Close the tape: of the recorded calls only those that the results need, or that have effects, are kept."""
        self.tape.graph.output(tuple(value for value in outputs.values() if value is not None))
        self.tape.graph.eliminate_dead_code()


def _begins(node: fx.Node) -> bool:
    """Whether a call outside of all levels begins a region."""
    name = getattr(node.target, "__name__", "")
    return name == "flex_attention" or levels.is_of_transform(node.target) and name in _ENTERING


_ENTERING = ("_add_batch_dim", "_vmap_increment_nesting", "_jvp_increment_nesting", "_enter_dual_level")
_DUAL_LEVELS = {"_enter_dual_level": 1, "_exit_dual_level": -1}
_LEVEL = {"_add_batch_dim": 2, "_remove_batch_dim": 1, "_unwrap_for_grad": 1}
"""The position of the level number among a function's arguments. The number differs here if outer levels were not
recorded."""


def _at_this_level(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    place = _LEVEL.get(name)
    return args if place is None else (*args[:place], levels.current_level(), *args[place + 1 :])


def _is_leftover(node: fx.Node) -> bool:
    """Whether a call belongs to transforms but has no effect outside of a region."""
    return getattr(node.target, "__name__", "") == "lazy_load_decompositions" or (
        node.op == "call_function" and not node.users and node.target is levels.unwrap_for_grad
    )


def _places(nodes: Any) -> dict[Any, list[fx.Node]]:
    """The nodes by the memory of their value."""
    found: dict[Any, list[fx.Node]] = {}
    for node in nodes:
        value = metadata(node)
        if isinstance(value, torch.Tensor):
            found.setdefault(_place(value), []).append(node)
    return found


def _place(value: torch.Tensor) -> Any:
    inner = levels.unwrapped(value)
    numbers = (inner.storage_offset(), *inner.shape, *inner.stride())
    return (inner.untyped_storage()._cdata, inner.dtype, *map(expression, numbers))


def _full(constant: torch.Tensor, source: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The call that creates a scalar constant of a region."""
    # A number is made by a call; a table would need an attribute, and a region has none.
    if constant.dim():
        raise _not_removable(source, f"it makes a tensor of shape {tuple(constant.shape)} from numbers")
    return aten.full.default, ([], constant.item()), {"dtype": constant.dtype, "device": constant.device}


def _not_removable(node: fx.Node, why: str) -> CaptureError:
    return CaptureError(
        f"a transform of torch.func cannot be traced through at {node.name} ({spell_target(node.target)}): {why}\n"
        "  to do: pass the module with args=, or use torch.compile with decomp.backend(to=...)"
    )
