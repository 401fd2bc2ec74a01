"""ONNX as a backend: lowered programs become ONNX models, which ONNX Runtime runs and `save` writes.

A model has the names of the program: its inputs, its parameters (initializers) and its results. State that the program
writes, such as the running statistics of a batch norm in training, is an input with a default and an output named
`NAME/updated`. Sizes that are only known at run time stay dynamic. The metadata of each node has the op of the source
program, its module, and the rules that emitted it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
import ctypes
from dataclasses import dataclass, replace
import functools
from pathlib import Path
import tempfile
from typing import Any

import numpy as np
import onnx
from onnx import helper
import onnxruntime
import torch
from torch import fx

import decomp
from decomp_rules import targets
from decomp_rules.backends import (
    deviations,
    onnx_composites,
    onnx_functions,
    onnx_metadata,
    onnx_ops,
    onnx_opsets,
    onnx_recurrent,
    onnx_shapes,
    onnx_tidying,
    onnx_weights,
)
from decomp_rules.backends.onnx_folding import Folding
from decomp_rules.backends.onnx_graph import (
    DTYPES,
    OPSET,
    Graph,
    Size,
    Value,
    cast,
    graph,
    metadata,
    node,
    tensor_proto,
    value_info,
)
from decomp_rules.backends.onnx_metadata import axis_names
from decomp_rules.backends.onnx_weights import absent_proto
from decomp_rules.targets.onnx_functions import CONDITIONS, holds

EXTERNAL = 1 << 31
"""Bytes of parameters from which on a model keeps them in a file of their own: protobuf has no larger messages."""


class OnnxBackend(decomp.Backend):
    """The table of `onnx_ops`, whose functions append to a graph; loaded programs run in ONNX Runtime."""

    def load(self, program: Any) -> decomp.results.Loaded:
        loaded = super().load(program)
        loaded.function = Session(loaded, program)
        return loaded


def make() -> OnnxBackend:
    """The backend, with all of its functions."""
    backend = OnnxBackend(
        "onnx", targets.onnx, from_torch=lambda x: x, to_torch=lambda x: x, dtypes={dtype: dtype for dtype in DTYPES}
    )
    for op, function in {**onnx_ops.OPS, **onnx_shapes.OPS, **onnx_composites.OPS}.items():
        backend.implements(op)(_emitting(backend, function))
    for op, function in {**onnx_functions.OPS, **onnx_recurrent.OPS}.items():
        when = functools.partial(_serves, op)
        backend.implements(op, when=when, reason=" and ".join(CONDITIONS[op]))(_emitting(backend, function))
    deviations.state(backend, deviations.ONNX)
    return backend


def _serves(op: str, call: decomp.Call) -> bool:
    """Whether ONNX's own function serves a call. A composite is a function of the model: its target lacks the other."""
    return holds(op, call) and not call.composite


def model_of(program: Any, opset: int = OPSET) -> onnx.ModelProto:
    """The ONNX model of a program that is lowered to `targets.onnx` or `targets.onnxruntime`: a `Lowering`, an
    ExportedProgram or a GraphModule, or a loaded program. Raises `LoadError`, which lists everything unsupported, in
    particular by another `opset`, and `CaptureError` for a program without metadata."""
    loaded = program if isinstance(program, decomp.results.Loaded) else make().load(program)
    model: onnx.ModelProto = loaded.function.emitted.model
    return model if opset == OPSET else onnx_opsets.at_opset(model, opset)


def save(program: Any, path: str | Path, external: int = EXTERNAL, opset: int = OPSET) -> onnx.ModelProto:
    """Write the model of a lowered program, checked by ONNX, and return it. Parameters of so many bytes and more
    together (`external`) are written into a file beside it, `model.onnx.data`. Weights without numbers, on the meta
    device or fake, are to be in `model.onnx.weights`, which `save_weights` writes. Raises as `model_of` does."""
    path, model = Path(path), model_of(program, opset)
    onnx_weights.write(model, path, external)
    onnx_weights.check(model, path)
    return model


def save_weights(path: str | Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """Write the weights of a model that `save` wrote without them, of these values by name, one at a time, and return
    the path of their file. Raises `ArgumentError` for a weight that is not given, or of another shape or dtype."""
    return onnx_weights.fill(Path(path), tensors)


def _emitting(backend: decomp.Backend, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the table as the backend calls it: its results have the dtypes, the shapes and the name of the call
    that it emits."""

    @functools.wraps(function)
    def emitted(*args: Any, **kwargs: Any) -> Any:
        call = backend.node
        meta = metadata(call)
        found = function(*args, **kwargs)
        if isinstance(meta, torch.Tensor):
            return _finished(found, meta, call.name)
        return [_finished(each, of, f"{call.name}/{i}") for i, (each, of) in enumerate(zip(found, meta))]

    return emitted


def _finished(value: Value, meta: torch.Tensor, name: str) -> Value:
    value = cast(value, meta.dtype)
    if value.meta is not None or value.made_by is None:  # not emitted by this call: an operand, a constant
        return replace(value, meta=meta)
    place = graph()
    if name not in place.names and place.nodes and place.nodes[-1] is value.made_by:
        outputs = value.made_by.output
        outputs[list(outputs).index(value.name)] = value.name = place.unique(name)
    value.meta = meta
    place.known.append(value)
    return value


# Models.


@dataclass(frozen=True)
class Emitted:
    """The model of a loaded program, and how it is run."""

    model: onnx.ModelProto
    inputs: tuple[tuple[int, str], ...]
    """For each input of the model: its index among the leaves of the program, and its name."""
    results: list[Any]
    """The structure that the program returns, with the `_Output`s of the model in it."""


@dataclass(frozen=True)
class _Output:
    name: str
    number: bool
    """Whether it is a size or another number, and no tensor."""


def _emitted(loaded: decomp.results.Loaded, program: Any = None) -> Emitted:
    place = Graph(functools.partial(_node_now, loaded.backend), onnx_metadata.annotating(program))
    with place.building():
        state: dict[int, Value] = {}
        leaves = [_leaf(leaf, place, state, leaf.name in loaded.writes) for leaf in loaded.leaves]
        outputs: list[Value] = []
        found = list(loaded.walk(*(_number(leaf, value) for leaf, value in zip(loaded.leaves, leaves))))
        names = [*(f"{name}/updated" for name in loaded.writes), *_result_names(loaded.source)]
        names += [f"result/{i}" for i in range(len(found) - len(names))]
        results = [_placed(each, name, place, outputs) for each, name in zip(found, names)]
    fed = [
        (i, value.name)
        for i, (leaf, value) in enumerate(zip(loaded.leaves, leaves))
        if isinstance(value, Value) and (leaf.kind == "input" or leaf.name in loaded.writes)
    ]
    body = _body(loaded, place, leaves, {name for _, name in fed}, outputs)
    return Emitted(_model(body, place, program), tuple(fed), results)


def _body(
    loaded: decomp.results.Loaded, place: Graph, leaves: Sequence[Any], inputs: Set[str], outputs: Sequence[Value]
) -> onnx.GraphProto:
    """The graph that was built, without what no result needs, and with the weights that it reads."""
    values, ends = [each for each in leaves if isinstance(each, Value)], {each.name for each in outputs}
    constants = [value for value, _ in place.constants.values()]
    folding = Folding(
        onnx_tidying.tidy(place.nodes, ends),
        {each.name: each.data for each in (*values, *constants) if each.data is not None},
        {each.name: each.meta.shape for each in (*values, *place.known)},
        ends,
        place.unique,
    )
    matrices = {each.name for each in values if each.data is not None and each.rank == 2}
    nodes, turned = onnx_tidying.without_transposes(folding.folded(), matrices, ends)
    wanted = {*onnx_tidying.names_read(nodes), *inputs}
    stored = {
        name: _stored(leaf, name, value.name in turned)
        for leaf, value in zip(loaded.leaves, leaves)
        if leaf.kind != "input" and (name := turned.get(value.name, value.name)) in wanted
    }
    carried = [*stored.values(), *(tensor_proto(each, name) for name, each in folding.new.items())]
    carried += [data for _, data in place.constants.values() if data.name in wanted]
    made = {name for each in nodes for name in each.output} - ends
    info = functools.partial(value_info, names=axis_names(leaf.meta for leaf in loaded.leaves))
    given = [info(each) for each in values if each.name in inputs]
    edges = [info(each) for each in place.known if each.name in made]
    return helper.make_graph(nodes, "program", given, [info(each) for each in outputs], carried, value_info=edges)


def _model(body: onnx.GraphProto, place: Graph, program: Any) -> onnx.ModelProto:
    """The model of a graph, with the functions that it calls, and where it comes from."""
    functions = onnx_composites.functions_in(place, body.node)
    domains = sorted({each.domain for each in functions})
    model = helper.make_model(
        body,
        functions=functions,
        opset_imports=[helper.make_opsetid("", OPSET), *(helper.make_opsetid(each, 1) for each in domains)],
        producer_name="decomp",
        producer_version=onnx_metadata.version(),
        ir_version=onnx_opsets.IR,
    )
    onnx_metadata.infer_edges(model)
    if isinstance(program, decomp.Lowering):
        helper.set_model_props(model, {"decomp.target": program.plan.target})
    return model


def _stored(leaf: Any, name: str, transposed: bool) -> onnx.TensorProto:
    """A parameter, buffer or constant as the model has it: a weight without numbers is in a file of its own."""
    if leaf.value is None:
        return absent_proto(leaf.meta, name)
    return tensor_proto(leaf.value.t() if transposed else leaf.value, name)


def _node_now(backend: decomp.Backend) -> fx.Node | None:
    try:
        return backend.node
    except LookupError:
        return None


def _leaf(leaf: Any, place: Graph, state: dict[int, Value], is_written: bool) -> Any:
    """The value, or known number, for a leaf that the program reads. A tensor with several names is stored under the
    first."""
    if leaf.kind != "input":
        held = leaf.meta if leaf.value is None else leaf.value
        if id(held) not in state:
            data = None if is_written else leaf.value
            state[id(held)] = Value(place.unique(leaf.name), held.dtype, held, data=data)
        return state[id(held)]
    if isinstance(leaf.meta, torch.SymInt):
        return Value(place.unique(leaf.name), torch.int64, torch.empty((), dtype=torch.int64, device="meta"))
    if isinstance(leaf.meta, torch.Tensor):
        return Value(place.unique(leaf.name), leaf.meta.dtype, leaf.meta)
    return leaf.meta


def _number(leaf: Any, value: Any) -> Any:
    """A leaf as functions take it: a number that is an input does arithmetic."""
    if not isinstance(leaf.meta, torch.SymInt):
        return value
    return Size(node("Unsqueeze", value, [0], dtype=torch.int64))


def _result_names(source: fx.Graph) -> list[str]:
    """The names of the nodes that a program returns."""
    found: dict[str, None] = {}
    fx.node.map_arg(source.output_node().args, lambda node: found.setdefault(node.name))
    return list(found)


def _placed(value: Any, name: str, place: Graph, outputs: list[Value]) -> Any:
    """A result of the program as an output of the model, which has a name of its own; None for numbers known when the
    program is lowered."""
    if isinstance(value, (list, tuple)):
        return [_placed(each, f"{name}/{i}", place, outputs) for i, each in enumerate(value)]
    if not isinstance(value, (Value, Size)):
        return value
    number = isinstance(value, Size)
    if isinstance(value, Size):
        value = replace(value.value, meta=torch.empty((1,), dtype=value.value.dtype, device="meta"), made_by=None)
    if value.made_by is None or value in outputs or value.name != name:
        value = place.named(value, name)
    outputs.append(value)
    return _Output(value.name, number)


# Running.


class Session:
    """The function of a loaded program, run by ONNX Runtime on the CPU."""

    def __init__(self, loaded: decomp.results.Loaded, program: Any) -> None:
        self._loaded, self._program = loaded, program
        self._prepare()

    def _prepare(self) -> None:
        self.emitted = _emitted(self._loaded, self._program)
        self._fed = {place for place, _ in self.emitted.inputs}
        self._state = [leaf.value for leaf in self._loaded.leaves]
        self._session: Any = None

    @property
    def session(self) -> Any:
        """The session of ONNX Runtime, created on first use."""
        if self._session is None:
            self._loaded.require_numbers()
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
            with tempfile.TemporaryDirectory() as folder:
                model = _for_runtime(self.emitted.model, Path(folder))
                self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return self._session

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        state = [(given, known) for i, (given, known) in enumerate(zip(values, self._state)) if i not in self._fed]
        if any(known is not None and given is not known for given, known in state):
            self._prepare()  # parameters were given other values
        session = self.session
        fed = {name: _to_runtime(values[place]) for place, name in self.emitted.inputs}
        known = {each.name for each in (*session.get_inputs(), *session.get_overridable_initializers())}
        names = [each.name for each in session.get_outputs()]
        found = session.run_with_ort_values(names, {name: fed[name] for name in fed if name in known})
        tensors = dict(zip(names, map(_from_runtime, found)))
        return tuple(_filled(each, tensors) for each in self.emitted.results)


def _filled(result: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(result, list):
        return [_filled(each, tensors) for each in result]
    if not isinstance(result, _Output):
        return result
    return tensors[result.name].item() if result.number else tensors[result.name]


def _for_runtime(model: onnx.ModelProto, folder: Path) -> Any:
    """A model as ONNX Runtime takes it: in memory, or a file where it is too large for that."""
    if onnx_weights.size(model) < EXTERNAL:
        return model.SerializeToString()
    path = folder / "model.onnx"
    onnx_weights.write(model, path, EXTERNAL)
    return str(path)


def _to_runtime(value: Any) -> Any:
    tensor = value.contiguous() if isinstance(value, torch.Tensor) else torch.tensor(value)
    make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
    if tensor.dtype == torch.bfloat16:
        return make(tensor.view(torch.int16).numpy(), DTYPES[torch.bfloat16])
    return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())


def _from_runtime(value: Any) -> torch.Tensor:
    if value.element_type() != DTYPES[torch.bfloat16]:
        array = value.numpy()
        return torch.from_numpy(array.view(np.dtype(array.dtype.str)))  # NumPy has several names for 64 bits
    data = bytearray(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()))  # NumPy has no bfloat16
    found = torch.frombuffer(data, dtype=torch.bfloat16) if data else torch.empty(0, dtype=torch.bfloat16)
    return found.reshape(value.shape())
