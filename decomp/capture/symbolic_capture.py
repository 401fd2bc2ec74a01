"""Capture without example inputs, by symbolic tracing: the graph has the operations on proxies, and none of those on
tensors that ran during the trace."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from decomp.capture.inlining import with_attributes
from decomp.capture.module_hooks import refuse_what_tracing_loses
from decomp.capture.source_state import source_unchanged
from decomp.capture.traced_regions import refuse_regions
from decomp.errors import CaptureError, first_line


def trace_symbolically(model: nn.Module, tracer_class: type[fx.Tracer]) -> tuple[fx.Graph, nn.Module]:
    """The graph of `model`, and a module that owns its attributes: `model`, or a copy that shares everything with it
    and has the constants created by tracing. Raises `CaptureError`.

    Tracers read buffers as plain tensors: a write to one happens during the trace and is not in the graph. Such a model
    is traced again, with proxies for its buffers."""
    tracer = _create_tracer(tracer_class, model)
    graph, root, written = _trace_once(model, tracer)
    if written and not tracer.proxy_buffer_attributes:
        tracer = _create_tracer(tracer_class, model)
        tracer.proxy_buffer_attributes = True
        graph, root, written = _trace_once(model, tracer)
    if written:
        raise CaptureError(
            f"{type(model).__name__} writes {', '.join(map(repr, written))} while it is traced, which its graph would "
            "not show\n  to do: pass example inputs (args=...), so that torch.export captures it; or register what is "
            "written as a buffer, and write it in place"
        )
    return graph, root


def _create_tracer(tracer_class: type[fx.Tracer], model: nn.Module) -> fx.Tracer:
    try:
        tracer = tracer_class()
        refuse_what_tracing_loses(model, tracer)
        return tracer
    except Exception as error:
        raise _refused(model, tracer_class, error) from error


def _trace_once(model: nn.Module, tracer: fx.Tracer) -> tuple[fx.Graph, nn.Module, list[str]]:
    """The graph, the module with its constants, and the names of the model's tensors that were written."""
    names = set(vars(model))
    with source_unchanged(model) as source:
        try:
            with refuse_regions(tracer):
                graph = tracer.trace(model)
        except Exception as error:
            raise _refused(model, type(tracer), error) from error
        # The tracer puts them on the model as `_tensor_constant0`, from which they are removed at the end of this
        # context.
        constants = {name: vars(model)[name] for name in _attributes(graph) if name in vars(model).keys() - names}
        written = source.written()
    root = tracer.root
    assert isinstance(root, nn.Module)
    return graph, with_attributes(root, constants), written


def _attributes(graph: fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "get_attr"]


def _refused(model: nn.Module, tracer_class: Any, error: Exception) -> CaptureError:
    if isinstance(error, CaptureError):
        return error
    return CaptureError(
        f"{tracer_class.__name__} could not trace {type(model).__name__}: {first_line(error)}\n"
        "  to do: pass example inputs (args=...), so that torch.export captures it"
    )
