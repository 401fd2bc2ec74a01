"""Capture by torch.export, with workarounds for its gaps: modules that read the data of a mask only as a hint get the
answer beforehand, lazy modules are refused with a remedy, and calls that PyTorch cannot run on fake tensors are
expanded by rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import inspect
from typing import Any
import warnings

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.nn.modules.lazy import LazyModuleMixin
from torch.overrides import TorchFunctionMode

from decomp.capture.inlining import InlinedBody, parts_of
from decomp.capture.inputs.trees import flat_inputs
from decomp.capture.model_lines import refused_line
from decomp.capture.module_hooks import refuse_what_export_loses
from decomp.capture.partly_meta import OnOneDevice, device_of_the_rest
from decomp.capture.source_state import source_unchanged
from decomp.capture.traced_regions import has_custom_functions, holds_custom_functions, record_modes
from decomp.capture.violated_sizes import misdeclared_sizes, refuse_dimensions_beyond_rank, violated_sizes
from decomp.errors import CaptureError, MutationError, NotLowered, first_line, is_own_fault
from decomp.ir.aliases import attribute
from decomp.ir.arguments import substituted
from decomp.ir.call import metadata
from decomp.ir.effects import switches
from decomp.metadata.meta_values import made_on_meta
from decomp.torch_internals.fakes import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
    lstm_states_right,
)
from decomp.torch_internals.graphs import export_below_autograd
from decomp.torch_internals.modes import process_state_kept
from decomp.torch_internals.pytree import tree_leaves, tree_map, tree_map_only
from decomp.torch_internals.transforms import is_wrapped
from decomp.torch_internals.versions import CHANGES

Infer = Callable[[fx.Node], Any]
"""Returns the result of a call on the metadata of its arguments; None if it is unknown."""


def export(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any = None,
    infer: Infer | None = None,
    lost: dict[str, bool] | None = None,
    below_autograd: bool = False,
) -> ExportedProgram:
    """The exported program of a module; if non-strict tracing fails on Python that it cannot trace, by Dynamo
    (`strict=True`). With `infer`, calls that PyTorch cannot run on fake tensors are replaced by what `infer` returns
    for them. `lost` collects what affects gradients and is not in the program (see `record_modes`). `below_autograd`:
    whether it is traced where tensor subclasses compute, which Dynamo does not do. Raises `CaptureError`,
    `MutationError`, `NotLowered`."""
    lost = {} if lost is None else lost
    if dynamic_shapes is not None:
        refuse_dimensions_beyond_rank(dynamic_shapes, _inputs_by_name(model, args, kwargs))
    try:
        found = _export_expanding(infer, model, args, kwargs, dynamic_shapes, lost, below_autograd)
        if any(map(is_wrapped, found.constants.values())):
            # torch.export (2.13) does not follow grad transforms, and takes their wrapped tensors for constants.
            # Where Dynamo refuses, the transforms are removed from the program itself.
            return _unless_refused(model, args, kwargs, dynamic_shapes, lost)[0] or found
        return found
    except (MutationError, NotLowered):
        raise
    except Exception as error:
        violated = violated_sizes(error) or misdeclared_sizes(error, _inputs_by_name(model, args, kwargs))
        if violated is not None:
            # Other ways to capture find the same, and log pages of it.
            raise CaptureError(f"torch.export could not capture {type(model).__name__}: {violated}") from error
        refused = error
    device = device_of_the_rest(model, args, kwargs)
    if device is not None:
        whole = OnOneDevice(model, device)
        with whole.placed():
            args, kwargs = whole.inputs((tuple(args), dict(kwargs or {})))
            return whole.with_own_state(export(model, args, kwargs, dynamic_shapes, infer, lost, below_autograd))
    reasons, line = first_line(refused), refused_line(refused)
    reasons += f"\n  at {line}" if line is not None else ""
    # Dynamo cannot run such ops on fake tensors either, so a second attempt would only cost time.
    if not lacks_data(refused) and not below_autograd:
        program, reasons = _captured_by_dynamo(model, args, kwargs, dynamic_shapes, lost, reasons)
        if program is not None:
            return program
    raise CaptureError(
        f"torch.export could not capture {type(model).__name__}: {reasons}\n"
        "  to do: call torch.compile(model, backend=decomp.backend(to=...)), which lowers what Dynamo can trace and "
        f"runs the rest in Python, or rewrite {'what cannot be captured' if line is None else 'the line that is named'}"
    ) from refused


def _inputs_by_name(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The inputs by the names that `dynamic_shapes` has for them."""
    try:
        return dict(inspect.signature(model.forward).bind(*args, **(kwargs or {})).arguments)
    except TypeError:  # they do not fit the model
        return {}


def _captured_by_dynamo(
    model: nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any, lost: dict[str, bool], reasons: str
) -> tuple[ExportedProgram | None, str]:
    """The program that Dynamo captures, through `torch.export` or else from its graph; or None, and `reasons` with why
    it captures neither."""
    try:
        program = _export(model, args, kwargs, dynamic_shapes, None)
        _lost_by_dynamo(lost, model, args, kwargs)
        return program, reasons
    except Exception as error:
        reasons += f"\n  with strict=True: {first_line(error)}"
    found, refusal = _unless_refused(model, args, kwargs, dynamic_shapes, lost)
    return found, reasons if refusal in reasons else f"{reasons}\n  by Dynamo's graph: {refusal}"


def torch_graph(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> fx.GraphModule:
    """A module as the torch-level graph from which torch.export with `strict=True` makes overloads. It contains the
    forward and backward of custom functions on inputs that require gradients, so every floating-point input does."""
    from decomp.torch_internals.compiling import export_to_torch_ir  # seconds of imports

    given = tree_map_only(torch.Tensor, _tracked, _make_distinct((tuple(args), dict(kwargs or {}))))
    # Under `no_grad` Dynamo records no `autograd_function_apply`.
    with process_state_kept(), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # Dynamo looks at `.grad`, and makes a `Function`, which warns
        found: fx.GraphModule = export_to_torch_ir(model, *given)
    # A new graph module is in training mode, whatever the model's is.
    found.training = model.training
    return found


def overload_graph(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> fx.GraphModule:
    """The same graph in overloads, in which inference mode and autocast are no longer calls that begin and end them.
    Without such calls it is the graph itself where Dynamo records no metadata inside of a custom function."""
    from decomp.capture.dynamo import UnknownBody  # seconds of imports
    from decomp.capture.dynamo_export import in_overloads

    graph = torch_graph(model, args, kwargs)
    try:
        with process_state_kept(), torch.enable_grad():
            return in_overloads(graph, model)
    except UnknownBody:
        if any(map(switches, graph.graph.nodes)):
            raise
        return graph


def _tracked(value: torch.Tensor) -> torch.Tensor:
    """A value of the same strides that requires a gradient, and that a program may write, as it is no leaf."""
    if not value.is_floating_point() and not value.is_complex():
        return value
    leaf = value.detach().requires_grad_()
    copied = leaf.clone()
    if value.layout is not torch.strided or copied.stride() == value.stride() or 0 in value.stride():
        return copied
    return leaf.new_empty_strided(value.shape, value.stride()).copy_(leaf)


def _unless_refused(
    model: nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any, lost: dict[str, bool]
) -> tuple[ExportedProgram | None, str]:
    """The program from Dynamo's graph, or None and the reason why PyTorch or this package refuses it."""
    try:
        return _by_dynamo(model, args, kwargs, dynamic_shapes, lost), ""
    except Exception as error:
        if is_own_fault(error):
            raise
        return None, first_line(error)


def _by_dynamo(model: nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any, lost: dict[str, bool]) -> ExportedProgram:
    # Imported here, as few programs need it and Dynamo is slow to import.
    from decomp.capture.dynamo_export import export_by_dynamo
    from decomp.torch_internals.compiling import export_config

    args, named = _make_distinct((tuple(args), dict(kwargs) if kwargs else None))
    with process_state_kept(), warnings.catch_warnings(), _masks_not_inspected(model):
        found = export_by_dynamo(model, args, named, dynamic_shapes)
    with export_config.patch(use_legacy_dynamo_graph_capture=dynamic_shapes is not None):
        _lost_by_dynamo(lost, model, args, named)
    return found


def _lost_by_dynamo(lost: dict[str, bool], model: nn.Module, args: Any, kwargs: Any) -> None:
    """Set `lost` for a module that Dynamo has captured: exporting its graph keeps everything but the backward of custom
    functions."""
    # The first attempt noted what torch.export loses; Dynamo records more.
    lost.clear()
    if has_custom_functions() and holds_custom_functions(torch_graph(model, args, kwargs)):
        lost["the backward of a torch.autograd.Function"] = True


def exported_body(module: nn.Module, call: fx.Node) -> InlinedBody:
    """What a leaf module computes, exported for inputs with the metadata of the arguments of `call`. Raises
    `CaptureError`."""
    refuse_what_export_loses(module)
    args, kwargs = substituted((call.args, call.kwargs), metadata)
    lost: dict[str, bool] = {}
    program = export(module, args, kwargs, lost=lost).module(check_guards=False)
    if lost:
        raise lost_gradients(module, lost)
    attributes: dict[str, Any] = {}
    for node in program.graph.nodes:
        if node.op == "get_attr" and not isinstance(attribute(module, str(node.target)), torch.Tensor):
            attributes[str(node.target)] = attribute(program, str(node.target))
    if any(isinstance(value, nn.Module) for value in attributes.values()):
        raise CaptureError(f"{type(module).__name__} has regions (no_grad, autocast, cond) inside")
    args, kwargs = substituted((call.args, call.kwargs), lambda node: parts_of(node, metadata(node)))
    return InlinedBody(program.graph, tuple(flat_inputs(program.graph._codegen, args, kwargs)), attributes)


def lost_gradients(model: nn.Module, lost: Mapping[str, bool], why: str = "") -> CaptureError:
    """The error for a model whose capture drops something that affects its gradients."""
    return CaptureError(
        f"torch.export does not record {', '.join(lost)}: the gradients of {type(model).__name__} would differ{why}\n"
        "  to do: pass training=False, for inference alone; or lower inside torch.compile, by decomp.backend"
    )


def failure_on(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> CaptureError | None:
    """The error that a model which could not be captured raises itself on these inputs; None if it runs on them, or if
    they are fake. It runs on copies, and its state is restored."""
    tensors = [v for v in (*tree_leaves((args, kwargs)), *model.parameters()) if isinstance(v, torch.Tensor)]
    if any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in tensors):
        return None
    copied, named = tree_map_only(torch.Tensor, _copied, (tuple(args), dict(kwargs or {})))
    try:
        with source_unchanged(model, writes_parameters=True):
            model(*copied, **named)
    except Exception as error:
        refused = CaptureError(
            f"{type(model).__name__} itself fails on these inputs: {type(error).__name__}: {first_line(error)}\n"
            "  to do: pass inputs (args=, kwargs=) on which the model runs"
        )
        refused.__cause__ = error
        return refused
    return None


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    # A tensor that is not a leaf must stay so, as a model may write it in place.
    return tensor.detach().clone().requires_grad_(tensor.requires_grad) if tensor.is_leaf else tensor.clone()


def _export_with_random(
    model: nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any, lost: dict[str, bool], below_autograd: bool
) -> ExportedProgram:
    try:
        return _export(model, args, kwargs, dynamic_shapes, lost, below_autograd)
    # PyTorch's change, after 2.13: https://github.com/pytorch/pytorch/pull/185456.
    except SyntaxError:  # of `aten.random_.from`: torch 2.13 prints the keyword `from` as a Python name
        with _RandomAsRandintLike():
            return _export(model, args, kwargs, dynamic_shapes, lost, below_autograd)


def _export(
    model: nn.Module,
    args: Any,
    kwargs: Any,
    dynamic_shapes: Any,
    lost: dict[str, bool] | None,
    below_autograd: bool = False,
) -> ExportedProgram:
    """The program, exported by Dynamo (`strict=True`) if `lost` is None."""
    strict = lost is None
    args, named = _make_distinct((tuple(args), dict(kwargs) if kwargs else None))
    modes = contextlib.nullcontext() if lost is None else record_modes(model, lost, below_autograd)
    with process_state_kept(), warnings.catch_warnings(), _masks_not_inspected(model), modes:
        # Recurrent modules flatten their weights again, which PyTorch reports as an assignment by the model, though
        # it undoes it: https://github.com/pytorch/pytorch/pull/163809.
        warnings.filterwarnings("ignore", message="The tensor attributes? .* assigned during export")
        rows = contextlib.nullcontext() if strict or CHANGES.rows_by_data_are_exported else _SelectByItem()
        with contextlib.nullcontext() if strict else _KeepValuesOnMeta(), rows, lstm_states_right():
            if below_autograd:
                return export_below_autograd(model, args, named, dynamic_shapes)
            return torch.export.export(model, args, named, dynamic_shapes=dynamic_shapes, strict=strict)


def _make_distinct(inputs: Any) -> Any:
    """Example inputs, all of them distinct objects. If a tensor is passed twice, torch.export (2.13) merges the two
    inputs for good, and the program computes with the last one only; a view counts as an input of its own."""
    seen: set[int] = set()

    def distinct(value: torch.Tensor) -> torch.Tensor:
        # Reported as https://github.com/pytorch/pytorch/issues/144683.
        if id(value) not in seen:
            seen.add(id(value))
            return value
        # `view_as` would give dimensions of size one other strides, which a program may read as numbers.
        with torch.enable_grad():
            return torch.ops.aten.alias.default(value)

    return tree_map_only(torch.Tensor, distinct, inputs)


def lacks_data(error: BaseException | None) -> bool:
    """Whether PyTorch cannot run an op on fake tensors because it reads their data, or has no kernel for their device,
    such as the meta device (messages of torch 2.13)."""
    kinds = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
    if isinstance(error, NotImplementedError) and any(phrase in str(error) for phrase in _NO_KERNEL):
        return True
    return isinstance(error, kinds) or "its data is not allocated" in str(error)


_NO_KERNEL = ("no fake impl or Meta kernel", "could not find kernel")


def refuse_lazy(model: nn.Module) -> None:
    """Raise `CaptureError` if a module has parameters that are created by its first call."""
    lazy = [
        name or "the module itself"
        for name, module in model.named_modules()
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()
    ]
    if lazy:
        raise CaptureError(
            f"{type(model).__name__} has lazy modules without parameters: {', '.join(lazy)}\n"
            "  to do: run the module once on example inputs, which gives them their shapes, then lower it"
        )


def refuse_traced_state(model: nn.Module) -> None:
    """Raise `CaptureError` if a buffer is a proxy: torch 2.13 leaves it in the module when a symbolic trace runs a
    forward that assigns to the buffer (`self.b += x`)."""
    left = [
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name, value in (*module._buffers.items(), *vars(module).items())
        if isinstance(value, fx.Proxy)
    ]
    if left:
        raise CaptureError(
            f"{type(model).__name__} holds proxies of a symbolic trace instead of tensors: {', '.join(left)}\n"
            "  to do: lower the module itself with args=, or write to the buffer in place (self.b.add_(x))"
        )


@contextlib.contextmanager
def _masks_not_inspected(model: nn.Module) -> Iterator[None]:
    """Inside this context encoders and decoders do not inspect their masks. By default they read a mask's data to see
    whether it is causal: only a hint for fused kernels, which changes no value, but export cannot read it."""
    hooks = []
    for module in model.modules():
        name = _HINTS.get(next((kind for kind in _HINTS if isinstance(module, kind)), None))
        # `_detect_is_causal_mask` compares the mask with a causal one (https://github.com/pytorch/pytorch/pull/91171).
        # A subclass may have a forward without the parameter.
        if name is not None and name in inspect.signature(module.forward).parameters:
            hooks.append(module.register_forward_pre_hook(_SetCausalHint(name), with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


_HINTS: dict[Any, str] = {nn.TransformerEncoder: "is_causal", nn.TransformerDecoder: "tgt_is_causal"}
"""The parameter that says whether a mask is causal; None makes the module inspect the mask."""


class _SetCausalHint:
    """A pre-hook that sets a hint left open by the call to False, which is correct for any mask."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        place = list(inspect.signature(module.forward).parameters).index(self.name)
        if len(args) > place:
            # `bool(None)` is False: a mask that is given is applied as it is.
            return ((*args[:place], bool(args[place]), *args[place + 1 :]), kwargs)
        return args, {**kwargs, self.name: bool(kwargs.get(self.name))}


class _ExpandByRule(TorchFunctionMode):
    """Replaces calls that do not run on fake tensors by a rule, so that the expansion of the rule is traced."""

    def __init__(self, infer: Infer) -> None:
        super().__init__()
        self.infer = infer
        self.replaced = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            result = self.infer(_as_node(func, args, kwargs or {})) if lacks_data(error) else None
            if result is None:
                raise
            self.replaced = True
            return result


def _export_expanding(infer: Infer | None, *given: Any) -> ExportedProgram:
    """As `_export_with_random`, with the expansions of calls that do not run on fake tensors, if there is `infer`."""
    if infer is None:
        return _export_with_random(*given)
    with _ExpandByRule(infer) as expanding:
        found = _export_with_random(*given)
    if expanding.replaced:
        _erase_calls_without_result(found.graph)
    return found


def _erase_calls_without_result(graph: fx.Graph) -> None:
    """Erase the nodes of the calls that did not run on fake tensors: tracing makes the node before it runs the call."""
    for node in reversed(graph.nodes):
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.returns and metadata(node) is None:
            graph.erase_node(node)


class _KeepValuesOnMeta(TorchFunctionMode):
    """Keeps the values of tensors that a forward creates on the meta device from numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = made_on_meta(func, args, kwargs or {})
        return func(*args, **(kwargs or {})) if made is None else made


class _SelectByItem(TorchFunctionMode):
    """Takes `table[i]`, for a tensor i of one whole number, as a selection by its item, as torch.export records it from
    torch 2.13 on; before, it reads the number and fails (https://github.com/pytorch/pytorch/pull/186138)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.__getitem__:
            return func(*args, **(kwargs or {}))
        table, index = args
        places = index if isinstance(index, tuple) else (index,)
        if not any(map(_is_row, places)) or not all(_is_row(p) or isinstance(p, (int, slice)) for p in places):
            return func(*args)
        # From the last dimension, so that those that are left keep their numbers.
        for dim in reversed(range(len(places))):
            if _is_row(places[dim]):
                table = torch.select(table, dim, places[dim].item())
        rest = tuple(place for place in places if not _is_row(place))
        return table[rest] if rest else table


def _is_row(place: Any) -> bool:
    if not isinstance(place, torch.Tensor) or place.dim():
        return False
    return place.dtype is not torch.bool and not place.is_floating_point()


class _RandomAsRandintLike(TorchFunctionMode):
    """Replaces `random_(from, to)` by a copy of `randint_like`, which draws exactly the same numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        bounds = (*args[1:], *(kwargs[name] for name in ("from", "to") if name in kwargs))
        if func is not torch.Tensor.random_ or len(bounds) != 2 or bounds[1] is None or kwargs.get("generator"):
            return func(*args, **kwargs)
        return args[0].copy_(torch.randint_like(args[0], *bounds))


def _as_node(function: Any, args: Any, kwargs: Any) -> fx.Node:
    """A call as the node of a new graph, with its tensors as placeholders."""
    graph = fx.Graph()

    def place(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder("x")
        node.meta["val"] = value
        return node

    args, kwargs = tree_map(place, (args, kwargs))
    return graph.call_function(function, args, kwargs)
