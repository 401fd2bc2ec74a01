"""ONNX graphs under construction. A `Value` is the name of a tensor in the graph, a `Size` is a number that is known
when the model runs and does arithmetic by ONNX operators. `node` appends one operator; `compute` also casts where ONNX
Runtime has no kernel for a narrow dtype, which changes no result: products and sums of narrow numbers are exact in the
wider dtype or rounded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
import re
from types import MappingProxyType
from typing import Any

import onnx
from onnx import helper, numpy_helper
import torch
from torch import fx

import decomp
from decomp_rules.backends.onnx_tidying import tidy

OPSET = 21
DTYPES: Mapping[torch.dtype, int] = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float64: onnx.TensorProto.DOUBLE,
    torch.float16: onnx.TensorProto.FLOAT16,
    torch.bfloat16: onnx.TensorProto.BFLOAT16,
    torch.int64: onnx.TensorProto.INT64,
    torch.int32: onnx.TensorProto.INT32,
    torch.int16: onnx.TensorProto.INT16,
    torch.int8: onnx.TensorProto.INT8,
    torch.uint8: onnx.TensorProto.UINT8,
    torch.uint16: onnx.TensorProto.UINT16,
    torch.uint32: onnx.TensorProto.UINT32,
    torch.uint64: onnx.TensorProto.UINT64,
    torch.bool: onnx.TensorProto.BOOL,
}
"""ONNX's names for dtypes."""

_LETTERS = {
    "f": torch.float32,
    "d": torch.float64,
    "h": torch.float16,
    "l": torch.int64,
    "i": torch.int32,
    "s": torch.int16,
    "b": torch.int8,
    "u": torch.uint8,
    "S": torch.uint16,
    "I": torch.uint32,
    "L": torch.uint64,
    "?": torch.bool,
}
_WIDER = {
    torch.bool: torch.uint8,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.int32: torch.int64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
_KERNELS: Mapping[str, str] = {
    **dict.fromkeys("Acos Acosh Asin Asinh Atan Cosh Sinh Tan Erf Det Conv ConvTranspose".split(), "f"),
    **dict.fromkeys("AveragePool GlobalAveragePool Col2Im InstanceNormalization BatchNormalization Atanh".split(), "f"),
    **dict.fromkeys("Relu Softmax LogSoftmax LayerNormalization Clip DepthToSpace".split(), "fd"),
    **dict.fromkeys("Cos Sin Tanh Reciprocal Sqrt Exp Log Sigmoid Ceil Floor Gemm GridSample".split(), "fd"),
    **dict.fromkeys("Round RandomUniform RandomUniformLike RandomNormal".split(), "fd"),
    **dict.fromkeys("RandomNormalLike MaxPool".split(), "fd"),
    **dict.fromkeys("Add Sub Mul Div Abs Less Greater Mod".split(), "fdlisbuSIL"),
    **dict.fromkeys("BitwiseAnd BitwiseOr BitwiseXor BitwiseNot".split(), "lisbuSIL"),
    **dict.fromkeys("ReduceMax ReduceMin".split(), "fdlibu?"),
    **dict.fromkeys("MatMul Einsum Pow ReduceSum ReduceProd ReduceMean CumSum Range".split(), "fdli"),
    **dict.fromkeys("Max Min Pad ArgMax ArgMin Where".split(), "fdlibu"),
    "Neg": "fdlisb",
    "Sign": "fdlisbuSIL",
    "BitShift": "uSIL",
    "IsNaN": "fdh",
    "IsInf": "fdh",
    **dict.fromkeys("Gelu HardSwish HardSigmoid LeakyRelu PRelu Resize".split(), "f"),
    "Trilu": "fdli?",
    "ScatterElements": "fdlisbuSIL?",
    "ScatterND": "fdlisbuSIL?",
    "NonZero": "fliu?",
    "TopK": "fdlisbu",
    "EyeLike": "fdli",
}
"""The dtypes, as letters, for which ONNX Runtime 1.32 has kernels on the CPU, of operators that it has not for all."""

_building: ContextVar[Graph] = ContextVar("the ONNX graph that is being built")


Table = dict[str, Callable[..., Any]]
"""By op, named as in the list of a target: the function that emits it."""


def entering(table: Table) -> Callable[..., Callable[..., Any]]:
    """A decorator that enters a function into a table, under the ops that it is given."""

    def emits(*names: str) -> Callable[..., Any]:
        def enter(function: Callable[..., Any]) -> Callable[..., Any]:
            table.update(dict.fromkeys(names, function))
            return function

        return enter

    return emits


@dataclass(eq=False)
class Value:
    """A tensor of the graph that is being built: `meta` has its shape, once the call that makes it is done."""

    name: str
    dtype: torch.dtype
    meta: Any = None
    made_by: Any = field(default=None, repr=False)
    data: torch.Tensor | None = field(default=None, repr=False)
    """Its elements, where the program carries them and does not write them."""

    @property
    def rank(self) -> int:
        return int(self.meta.dim())

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its sizes: numbers, or `Size` where they are known when the model runs."""
        return tuple(each if type(each) is int else _size_of(self, i) for i, each in enumerate(self.meta.shape))


@dataclass
class Graph:
    """The nodes and constants of a graph so far."""

    now: Callable[[], fx.Node | None]
    """The call that is being emitted."""
    annotate: Callable[[fx.Node], Mapping[str, str]] = field(default=lambda node: {})
    """The provenance recorded in each node."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[Any, tuple[Value, onnx.TensorProto]] = field(default_factory=dict)
    sizes: dict[Any, Value] = field(default_factory=dict)
    """What is known of sizes, by their expressions, and by the operators that compute with them."""
    names: set[str] = field(default_factory=set)
    known: list[Value] = field(default_factory=list)
    """The results of calls, with their shapes."""
    functions: dict[Any, Any] = field(default_factory=dict)
    """The functions of composites, of this graph and of those inside it."""

    def unique(self, name: str) -> str:
        """This name, or a numbered one that is not in use."""
        found, count = name, 0
        while found in self.names:
            count += 1
            found = f"{name}/{count}"
        self.names.add(found)
        return found

    @contextlib.contextmanager
    def building(self) -> Iterator[Graph]:
        """Append to this graph, for the duration."""
        token = _building.set(self)
        try:
            yield self
        finally:
            _building.reset(token)

    def nested(self) -> contextlib.AbstractContextManager[Graph]:
        """Build the body of a node of this graph, which reads the values around it; constants are carried outside."""
        return replace(self, nodes=[], sizes=dict(self.sizes), known=[]).building()

    def input(self, name: str, dtype: torch.dtype, like: Any) -> Value:
        """An input of a body: like a tensor with metadata, or of a shape."""
        meta = like if isinstance(like, torch.Tensor) else torch.empty(like, dtype=dtype, device="meta")
        return Value(self.unique(name), dtype, meta)

    def named(self, value: Any, name: str = "result") -> Value:
        """A copy of a value under a name of its own."""
        value = operand(value)
        found = node("Identity", value, dtype=value.dtype)
        found.made_by.output[0] = found.name = self.unique(name)
        named: Value = replace(found, meta=value.meta)
        return named

    def proto(self, name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> onnx.GraphProto:
        """A body as ONNX has it. The shapes of what it carries may change as it runs."""
        ends = [helper.make_tensor_value_info(each.name, DTYPES[each.dtype], None) for each in outputs]
        nodes = tidy(self.nodes, {each.name for each in outputs})
        return helper.make_graph(nodes, name, [value_info(each, bool(each.meta.dim())) for each in inputs], ends)


def value_info(
    value: Value, unknown: bool = False, names: Mapping[str, str] = MappingProxyType({})
) -> onnx.ValueInfoProto:
    """Name, dtype and shape of a value; sizes that are known when the model runs by their expressions in `names`, which
    has the user's name for each symbol that has one."""
    shape = None if unknown else [each if type(each) is int else _spelled(each, names) for each in value.meta.shape]
    return helper.make_tensor_value_info(value.name, DTYPES[value.dtype], shape)


def _spelled(size: Any, names: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), str(size))


def graph() -> Graph:
    """The graph that is being built."""
    return _building.get()


def result() -> Any:
    """The metadata of the result of the call that is being emitted."""
    return metadata(graph().now())


def metadata(call: fx.Node | None) -> Any:
    """The metadata of a call's result. Raises `CaptureError` if the program has none."""
    found = None if call is None else call.meta.get("val", call.meta.get("example_value"))
    if found is None:
        raise decomp.CaptureError(
            "ONNX needs the shapes and dtypes of all values, which this program does not have\n"
            "  to do: decomp.lower(model, to=targets.onnx, args=(x, ...))"
        )
    return found


def kernel_dtype(op_type: str, dtype: torch.dtype) -> torch.dtype:
    """The nearest dtype that holds all numbers of `dtype` and has a kernel in ONNX Runtime."""
    letters = _KERNELS.get(op_type)
    known = {_LETTERS[each] for each in letters} if letters is not None else DTYPES.keys() - {torch.bfloat16}
    found = dtype
    while found not in known:
        if found not in _WIDER:
            return dtype
        found = _WIDER[found]
    return found


def node(op_type: str, *inputs: Any, dtype: torch.dtype, outputs: int = 1, **attributes: Any) -> Any:
    """Append one operator; its result, of `dtype`, or as many as it has `outputs`. Inputs are values, sizes, lists of
    them (made into one tensor of int64), or None."""
    place = graph()
    call = place.now()
    scope = call.name if call is not None else op_type
    names = ["" if each is None else operand(each).name for each in inputs]
    while names and not names[-1]:
        names.pop()
    made = helper.make_node(
        op_type,
        names,
        [place.unique(f"{scope}/{op_type}") for _ in range(outputs)],
        name=place.unique(f"{scope}:{op_type}"),
        **{key.rstrip("_"): value for key, value in attributes.items()},
    )
    if call is not None:
        helper.set_metadata_props(made, dict(place.annotate(call)))
    place.nodes.append(made)
    values = tuple(Value(name, dtype, made_by=made) for name in made.output)
    return values if outputs > 1 else values[0]


def several(op_type: str, inputs: Sequence[Any], like: Sequence[Value], **attributes: Any) -> tuple[Value, ...]:
    """A node with bodies, whose results have the dtypes of other values."""
    found = node(op_type, *inputs, dtype=torch.bool, outputs=len(like), **attributes)
    values = found if isinstance(found, tuple) else (found,)
    return tuple(replace(value, dtype=each.dtype) for value, each in zip(values, like))


def compute(op_type: str, *operands: Any, at: torch.dtype, extra: Sequence[Any] = (), **attributes: Any) -> Value:
    """One operator over operands (values, numbers) of one dtype, with a result of it; `extra` has its other inputs."""
    wide = kernel_dtype(op_type, at)
    inputs = [None if each is None else cast(each, wide) for each in operands]
    return cast(node(op_type, *inputs, *extra, dtype=wide, **attributes), at)


def moved(op_type: str, self: Value, *extra: Any, **attributes: Any) -> Value:
    """An operator that moves elements."""
    return compute(op_type, self, at=self.dtype, extra=extra, **attributes)


def rounded(number: Any, dtype: torch.dtype) -> Any:
    """A number as a tensor of this dtype has it, where PyTorch does not keep all of its digits."""
    return torch.tensor(number, dtype=dtype).item() if isinstance(number, (bool, int, float)) else number


def cast(value: Any, dtype: torch.dtype) -> Value:
    """A value, size or number as a tensor of `dtype`."""
    if isinstance(value, Size):
        value = node("Squeeze", value.value, [0], dtype=value.value.dtype)
    if not isinstance(value, Value):
        return constant(torch.tensor(value, dtype=dtype))
    return value if value.dtype == dtype else node("Cast", value, dtype=dtype, to=DTYPES[dtype])


def operand(value: Any) -> Value:
    """The input name for a value, a size, or a list of sizes and numbers."""
    if isinstance(value, Size):
        return value.value
    if isinstance(value, (list, tuple)):
        if all(type(each) is int for each in value):
            return constant(torch.tensor(value, dtype=torch.int64))
        parts = [each if isinstance(each, (Size, Value)) else [each] for each in value]
        return (
            _once("Concat", [operand(each) for each in parts], torch.int64, axis=0)
            if len(parts) > 1
            else operand(parts[0])
        )
    assert isinstance(value, Value), value
    return value


def constant(tensor: torch.Tensor) -> Value:
    """A tensor that the model carries; equal ones are carried once."""
    place, data = graph(), tensor_proto(tensor, "")
    key = (data.data_type, tuple(data.dims), data.raw_data)
    if key not in place.constants:
        data.name = place.unique(f"constant/{len(place.constants)}")
        place.constants[key] = Value(data.name, tensor.dtype, data=tensor), data
    return place.constants[key][0]


def tensor_proto(tensor: torch.Tensor, name: str) -> onnx.TensorProto:
    """A tensor as ONNX stores it."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        data = tensor.view(torch.int16).numpy().tobytes()
        return onnx.TensorProto(name=name, data_type=DTYPES[torch.bfloat16], dims=list(tensor.shape), raw_data=data)
    found: onnx.TensorProto = numpy_helper.from_array(tensor.numpy(), name)
    return found


class Size:
    """A number that is known when the model runs, in a tensor of one element, with Python's arithmetic."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def _with(self, op_type: str, one: Any, other: Any, dtype: torch.dtype | None = None) -> Any:
        kinds = {each.value.dtype if isinstance(each, Size) else _dtype_of(each) for each in (one, other)}
        at = torch.float64 if torch.float64 in kinds else torch.int64
        return Size(_once(op_type, [_as_number(each, at) for each in (one, other)], dtype or at))

    def __add__(self, other: Any) -> Any:
        return self._with("Add", self, other)

    def __sub__(self, other: Any) -> Any:
        return self._with("Sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("Sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._with("Mul", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return 0 - self

    def __mod__(self, other: Any) -> Any:
        return self._with("Mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._with("Mod", other, self)

    def __floordiv__(self, other: Any) -> Any:  # Div of integers truncates
        return self._with("Div", self - self % other, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with("Div", other - other % self, self)

    def __truediv__(self, other: Any) -> Any:
        return self._with("Div", Size(_as_number(self, torch.float64)), other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with("Div", other, Size(_as_number(self, torch.float64)))

    def __pow__(self, other: Any) -> Any:
        return self._with("Pow", self, other)

    def __floor__(self) -> Any:
        return self._rounded("Floor")

    def __ceil__(self) -> Any:
        return self._rounded("Ceil")

    def __trunc__(self) -> Any:
        return Size(_as_number(self, torch.int64))

    def _rounded(self, op_type: str) -> Any:
        if self.value.dtype == torch.int64:
            return self
        return Size(_as_number(Size(node(op_type, self.value, dtype=self.value.dtype)), torch.int64))

    def __lt__(self, other: Any) -> Any:
        return self._with("Less", self, other, torch.bool)

    def __gt__(self, other: Any) -> Any:
        return self._with("Greater", self, other, torch.bool)

    def __le__(self, other: Any) -> Any:
        return self._with("LessOrEqual", self, other, torch.bool)

    def __ge__(self, other: Any) -> Any:
        return self._with("GreaterOrEqual", self, other, torch.bool)

    def __eq__(self, other: Any) -> Any:
        return self._with("Equal", self, other, torch.bool)

    __hash__ = None

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The functions of torch on numbers that a graph may call."""
        if function in (torch.sym_max, torch.sym_min):
            one, other = args
            found = one if isinstance(one, Size) else other
            return found._with("Max" if function is torch.sym_max else "Min", one, other)
        if function is torch.sym_int:
            return Size(_as_number(args[0], torch.int64))
        if function is torch.sym_float:
            return Size(_as_number(args[0], torch.float64))
        return NotImplemented


def _as_number(value: Any, dtype: torch.dtype) -> Value:
    if isinstance(value, Size):
        found = value.value
        return found if found.dtype == dtype else node("Cast", found, dtype=dtype, to=DTYPES[dtype])
    return constant(torch.tensor([value], dtype=dtype))


def _dtype_of(number: Any) -> torch.dtype:
    return torch.float64 if isinstance(number, float) else torch.int64


def _size_of(value: Value, place: int) -> Size:
    """One size of a value. Sizes of the same expression are read once."""
    known, expression = graph().sizes, str(value.meta.shape[place])
    if expression not in known:
        known[expression] = node("Shape", value, dtype=torch.int64, start=place, end=place + 1)
    return Size(known[expression])


def _once(op_type: str, inputs: Sequence[Value], dtype: torch.dtype, **attributes: Any) -> Value:
    """An operator on sizes: the one of the same inputs, if there is one."""
    known, key = graph().sizes, (op_type, dtype, *(each.name for each in inputs))
    if key not in known:
        known[key] = node(op_type, *inputs, dtype=dtype, **attributes)
    return known[key]
