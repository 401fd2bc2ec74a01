"""LiteRT, which was TensorFlow Lite: `litert_torch.convert` of an ExportedProgram, the interpreter of `ai_edge_litert`
on the CPU as the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from decomp import Converter
from decomp_rules import targets
from decomp_rules.converters import Quiet, refuse_dynamic_sizes, refuse_numbers

aten = torch.ops.aten


def convert(program: ExportedProgram) -> Any:
    """The `litert_torch.model.LiteRTModel` of a program, whose inputs and results keep the dtypes that they have.
    Composite calls become StableHLO composites, between tensors that are marked as LiteRT's own builder marks them.
    Dimensions of 1 are repeated by an index, as LiteRT (0.10) gives wrong numbers for the transpose of a broadcast.
    Raises `NotImplementedError` for dynamic sizes and for inputs that are numbers, and whatever LiteRT raises."""
    refuse_dynamic_sizes(program, "LiteRT")
    refuse_numbers(program, "LiteRT")
    args, kwargs = program.example_inputs
    with Quiet(), _WithoutProgress():
        import litert_torch

        module = program.module()
        _mark_composites(module)
        _spell_out_broadcasts(module.graph)
        module.recompile()
        model = litert_torch.convert(module, args, kwargs, enable_x64=True)
        model.model_content()  # it is written late, and what cannot be written is refused there
    return model


def _mark_composites(module: fx.GraphModule) -> None:
    """Replace each composite call by its body, between marks on operands and results, from which LiteRT makes a
    composite with the body as its decomposition; then those in the bodies."""
    wrap = torch.ops.higher_order.wrap
    while calls := [
        node
        for node in module.graph.find_nodes(op="call_function", target=wrap)
        if "composite" in node.meta.get("custom", {})
    ]:
        for node in calls:
            _inline_marked(module, node, node.meta["custom"]["composite"])


def _inline_marked(module: fx.GraphModule, node: fx.Node, made: Mapping[str, Any]) -> None:
    attribute: Any = node.args[0]
    graph, body = module.graph, module.get_submodule(attribute.target)
    mark = functools.partial(_marked, graph, _composite_name(made), node.name)
    with graph.inserting_before(node):
        values = dict(zip(body.graph.find_nodes(op="placeholder"), mark(node.args[1:], None)))
        results = mark(graph.graph_copy(body.graph, values), _attributes(made))
    for own, copied in values.items():
        if own.op == "get_attr":  # the body of a composite inside
            copied.target = f"{node.name}_{copied.name}"
            module.add_submodule(copied.target, body.get_submodule(own.target))
    for user in [*node.users]:
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _marked(graph: fx.Graph, name: str, key: str, values: Sequence[Any], attributes: Any) -> list[Any]:
    """Operands marked as those of a composite, without attributes, or its results, with attributes. Numbers are part
    of the decomposition."""
    place, marked = 0, []
    for each in values:
        if isinstance(each, fx.Node) and isinstance(each.meta.get("val"), torch.Tensor):
            args = (each, name, place, key, attributes is None, attributes)
            mark = graph.call_function(torch.ops.litert_torch.mark_tensor.default, args)
            mark.meta["val"] = each.meta["val"]
            each, place = mark, place + 1
        marked.append(each)
    return marked


def _composite_name(made: Mapping[str, Any]) -> str:
    """The name in LiteRT's own form, `aten.gelu.default`; ops of other libraries have theirs, `odml.rms_norm`."""
    return f"{made['name']}.{made['overload']}" if made["name"].startswith("aten.") else str(made["name"])


def _attributes(made: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Attributes as LiteRT has them: numbers, texts, and lists of one kind of number; others as text."""
    given = {**made["attributes"], "decomp.version": made["version"]}
    return tuple((name, _attribute(value)) for name, value in given.items())


def _attribute(value: Any) -> Any:
    if isinstance(value, list):
        return value if {type(each) for each in value} in ({int}, {float}, {bool}) else json.dumps(value)
    return "py_None" if value is None else value


def _spell_out_broadcasts(graph: fx.Graph) -> None:
    """Repeat dimensions of 1 by an index. LiteRT moves a broadcast behind a transpose and gives it the shape that
    it had before, which then does not fit, or holds other elements. An operand of an elementwise call stays as it is
    where another operand is as large, as the result is not a broadcast."""
    for node in [*graph.find_nodes(op="call_function", target=aten.expand.default)]:
        if not all(_has_other_operand_as_large(user, node) for user in node.users):
            _repeat_by_index(graph, node)
    for node in [*graph.find_nodes(op="call_function", target=aten.repeat.default)]:
        _repeat_by_index(graph, node)
    for node in [*graph.find_nodes(op="call_function", target=aten.repeat_interleave.self_int)]:
        dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim")
        if dim is not None and node.args[0].meta["val"].shape[dim] == 1:
            _repeat_by_index(graph, node)


def _has_other_operand_as_large(user: fx.Node, operand: fx.Node) -> bool:
    if torch.Tag.pointwise not in getattr(user.target, "tags", ()):
        return False
    others = [each for each in user.all_input_nodes if each.target not in (aten.expand.default, aten.repeat.default)]
    shape = operand.meta["val"].shape
    return any(getattr(each.meta.get("val"), "shape", None) == shape for each in others)


def _repeat_by_index(graph: fx.Graph, node: fx.Node) -> None:
    source: Any = node.args[0]
    shape, full = [*source.meta["val"].shape], [*node.meta["val"].shape]
    aligned = [1] * (len(full) - len(shape)) + shape
    repeated = [d for d, (size, whole) in enumerate(zip(aligned, full)) if size == 1 and whole > 1]
    if not repeated or 0 in full:
        return
    device = source.meta["val"].device
    with graph.inserting_before(node):
        found = source if aligned == shape else graph.call_function(aten.view.default, (source, aligned))
        for d in repeated:
            first = graph.call_function(aten.zeros.default, ([full[d]],), {"dtype": torch.int64, "device": device})
            found = graph.call_function(aten.index_select.default, (found, d, first))
        times = [whole // size if size > 1 else 1 for size, whole in zip(aligned, full)]
        if any(count > 1 for count in times):
            found = graph.call_function(aten.repeat.default, (found, times))
    found.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(found)
    graph.erase_node(node)


def run(model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results on the CPU."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=model.model_content())
    interpreter.allocate_tensors()
    for place, tensor in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(place["index"], _as_numpy(tensor.detach()))
    interpreter.invoke()
    results = [interpreter.get_tensor(place["index"]) for place in interpreter.get_output_details()]
    return [torch.tensor(result) for result in results]


def _as_numpy(tensor: torch.Tensor) -> Any:
    """NumPy has no bfloat16, and LiteRT takes such an input as float32."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor.contiguous()).numpy()


def save(model: Any, path: Path) -> None:
    """Write the `.tflite` that the runtime loads."""
    model.export(str(path))


def registry() -> list[str]:
    """The overloads that it has lowerings for, and those that it takes as a whole where Core ATen takes them apart."""
    with Quiet(), _WithoutProgress():
        from litert_torch import fx_infra
        from litert_torch.backend.lowerings.registry import global_registry

    kept = torch.export.default_decompositions().keys() - fx_infra.decomp.pre_convert_decomp().keys()
    return sorted({str(op) for op in (*global_registry.registered_ops, *kept)})


class _WithoutProgress:
    """LiteRT (0.10) prints its progress, unless this variable of the environment says that it is not to."""

    def __enter__(self) -> None:
        self.own = os.environ.get(_PROGRESS)
        os.environ[_PROGRESS] = "n"

    def __exit__(self, *error: Any) -> None:
        if self.own is None:
            del os.environ[_PROGRESS]
        else:
            os.environ[_PROGRESS] = self.own


_PROGRESS = "LITERT_TORCH_SHOW_PROGRESS"

CONVERTER = Converter(
    "litert",
    package="litert-torch",
    at_least="0.10",
    target=targets.get("litert"),
    convert=convert,
    run=run,
    save=save,
    suffix=".tflite",
    registry=registry,
    composites=True,
    note="int64 stays int64, which few accelerators have: narrow=True computes in int32",
)
