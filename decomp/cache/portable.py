"""Serialisation of expansions as text. The text is data: its ops are looked up among the registered ones, and nothing
in it is executed. Values that cannot be serialised are not cached."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
import json
import operator
from typing import Any

import torch
from torch import fx

from decomp.cache.symbols import NotSerialisable, Symbols
from decomp.graphs.template import ExpansionTemplate, TensorSpec, compile_template, make_value, spec_of
from decomp.ir.call import metadata
from decomp.ir.dtypes import name_of
from decomp.ir.host_functions import HOST_FUNCTIONS, HOST_NAMES
from decomp.ir.signature import Signature, described
from decomp.metadata.fakes import Fakes

# Tables of positions and of coefficients fit; weights that a rule holds do not belong into a cache.
LARGEST_CONSTANT = 1 << 14
"""The most bytes of a constant tensor of a rule; an expansion with a larger one is not cached."""


@dataclass(frozen=True, slots=True)
class Record:
    """A derivation: the replacement of a call."""

    rule: Any
    """The index of a rule, or the name of a composite kernel."""
    template: ExpansionTemplate
    passed_over: tuple[tuple[str, str], ...]
    results: Any
    """Metadata of the results, or None."""
    price: float


def key_of(signature: Signature, node: fx.Node, level: str, symbols: Symbols | None = None) -> str:
    """A signature as text; `symbols`: those of its open sizes. Raises `NotSerialisable`."""
    op, target, args, kwargs, _, read = signature.key
    specs = [_pattern(described(metadata(each)), symbols) for each in (*signature.tensor_args, node)]
    whole = [op, _target(target), _pattern(args), _pattern(kwargs), specs, _pattern(read), level]
    return json.dumps(whole if symbols is None else [*whole, symbols.known()])


def _pattern(value: Any, symbols: Symbols | None = None) -> Any:
    """A part of a signature: values with the same text are equal."""
    if isinstance(value, (tuple, list)):
        return [_pattern(item, symbols) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, type):
        return ["type", value.__name__]
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return [type(value).__name__, str(value)]
    if symbols is not None and hasattr(value, "free_symbols"):
        return ["open", symbols.renamed(value)]
    raise NotSerialisable(value)


def dump_record(
    record: Record,
    rule_of: Callable[[Any], Any],
    name_of: Callable[[torch.Tensor], str],
    symbols: Symbols | None = None,
) -> bytes:
    """A record as text; `rule_of` returns the index or the name of a rule, `name_of` the name of a constant, which is
    the same in all records; `symbols`: those of its open sizes. Raises `NotSerialisable`."""
    template, nodes = record.template, []
    index: dict[fx.Node, int] = {}
    storages: dict[int, int] = {}
    constants: list[Any] = []
    output: Any = None
    for node in template.graph.nodes:
        if node.op == "output":
            output = _written(node.args[0], index)
            continue
        i = index[node] = len(index)
        value = node.meta.get("val")
        # As in `compile_template`: a constant is shared by expansions, and must be no view of a value of this one.
        spec = _spec(spec_of(value, i, storages if node.op != "get_attr" else {}), symbols)
        if node.op == "placeholder":
            nodes.append([node.name, spec])
        elif node.op == "get_attr":
            tensor = template.constants[node.target]
            constants.append([node.target, [name_of(tensor), *_constant(tensor)]])
            nodes.append([node.name, spec, node.target])
        elif node.op == "call_function":
            args, kwargs = _written(tuple(node.args), index), _written(dict(node.kwargs), index)
            chain = [rule_of(rule) for rule in node.meta["chain"]]
            nodes.append([node.name, spec, _target(node.target), args, kwargs, chain])
        else:
            raise NotSerialisable(node.op)
    results = _spec(spec_of(record.results, -1, {}), symbols) if record.results is not None else None
    passed_over = [(what, why if symbols is None else symbols.unnamed(why)) for what, why in record.passed_over]
    whole = [nodes, output, constants, rule_of(record.rule), passed_over, results, record.price]
    return json.dumps(whole, separators=(",", ":")).encode()


def load_record(
    text: bytes,
    fakes: Fakes,
    rule_at: Callable[[Any], Any],
    constant_at: Callable[[Any], Any],
    symbols: Symbols | None = None,
) -> Record:
    """The record of a text. Raises `NotSerialisable` for malformed text."""
    try:
        nodes, output, constants, rule, passed_over, results, price = json.loads(text)
        tensors = {name: constant_at(constant) for name, constant in constants}
        graph, made = _read_graph(nodes, fakes, rule, rule_at, symbols)
        graph.output(_read(output, made))
        meta = make_value(_read_spec(results, symbols), fakes, []) if results is not None else None
        tried = tuple((str(what), str(why) if symbols is None else symbols.named(why)) for what, why in passed_over)
        return Record(rule_at(rule), compile_template(graph, tensors), tried, meta, float(price))
    # A damaged or malicious text can do no more than fail: the entry then counts as missing.
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, RecursionError) as error:
        raise NotSerialisable(error) from error


def dump_program(module: fx.GraphModule) -> list[Any]:
    """The calls of a program as plain data, without metadata: one row for each node, and one for its results. Raises
    `NotSerialisable`."""
    index: dict[fx.Node, int] = {}
    rows: list[Any] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            rows.append(["input", node.name])
        elif node.op == "get_attr":
            rows.append(["constant", *_constant(getattr(module, str(node.target), None))])
        elif node.op == "call_function":
            # The first item is the kind, which is the same in each row.
            args, kwargs = _written(tuple(node.args), index)[1:], _written(dict(node.kwargs), index)[1:]
            rows.append([_target(node.target), args, *([kwargs] if kwargs else [])])
        elif node.op == "output":
            rows.append(["output", _written(node.args[0], index)])
        else:
            raise NotSerialisable(node.op)
        index[node] = len(index)
    return rows


def load_program(rows: Any) -> fx.GraphModule:
    """The program of such rows. Raises `NotSerialisable` for malformed ones."""
    graph, root = fx.Graph(), torch.nn.Module()
    made: list[fx.Node] = []
    try:
        for kind, *rest in rows:
            if kind == "input":
                made.append(graph.placeholder(rest[0]))
            elif kind == "constant":
                name = f"constant_{len(made)}"
                root.register_buffer(name, constant(rest))
                made.append(graph.get_attr(name))
            elif kind == "output":
                graph.output(_read(rest[0], made))
            else:
                args, kwargs = _read(["tuple", *rest[0]], made), _read(["dict", *rest[1]] if rest[1:] else {}, made)
                made.append(graph.create_node("call_function", _op(kind), args, kwargs))
        return fx.GraphModule(root, graph)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, RecursionError) as error:
        raise NotSerialisable(error) from error


def comparable_text(text: bytes) -> Any:
    """The part of a record's text on its expansion, without rejected alternatives and the names of constants. PyTorch
    may write open sizes in several forms that are equal."""
    nodes, output, constants, rule, _, results, price = json.loads(text)
    nodes = [[name, None if _is_open(spec) else spec, *call] for name, spec, *call in nodes]
    results = None if _is_open(results) else results
    return [nodes, output, [[target, data] for target, (_, *data) in constants], rule, results, price]


def _is_open(spec: Any) -> bool:
    return isinstance(spec, list) and (spec[:1] == ["open"] or any(map(_is_open, spec)))


def _read_graph(
    nodes: Any, fakes: Fakes, rule: Any, rule_at: Callable[[Any], Any], symbols: Symbols | None
) -> tuple[fx.Graph, list[fx.Node]]:
    """A graph without its output, and its nodes."""
    graph = fx.Graph()
    made: list[fx.Node] = []
    values: list[Any] = []
    for name, spec, *call in nodes:
        value = make_value(_read_spec(spec, symbols), fakes, values)
        if not call:
            node = graph.create_node("placeholder", name, name=name)
        elif len(call) == 1:
            node = graph.create_node("get_attr", call[0], name=name)
        else:
            target, args, kwargs, chain = call
            given = _read(args, made), _read(kwargs, made)
            node = graph.create_node("call_function", _op(target), *given, name=name)
        if call:
            chain = call[3] if len(call) > 1 else [rule]
            node.meta["chain"] = tuple(rule_at(each) for each in chain)
        if value is not None:
            node.meta["val"] = value
        made.append(node)
        values.append(value)
    return graph, made


def _target(target: Any) -> str:
    if target is operator.getitem:
        return "getitem"
    if not isinstance(target, torch._ops.OpOverload) and target in HOST_NAMES:
        return HOST_NAMES[target]
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._opname}.{target._overloadname}"
    raise NotSerialisable(target)


def _op(name: str) -> Any:
    if name == "getitem":
        return operator.getitem
    if name in HOST_FUNCTIONS:
        return HOST_FUNCTIONS[name]
    # Only `torch.ops` is searched, where a name can give nothing but an op.
    namespace, op, overload = name.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), op), overload)
    if not isinstance(found, torch._ops.OpOverload):
        raise NotSerialisable(name)
    return found


def _spec(spec: Any, symbols: Symbols | None) -> Any:
    if type(spec) is TensorSpec:
        size, stride, [offset] = (_sizes(part, symbols) for part in (spec.size, spec.stride, [spec.offset]))
        return ["tensor", size, stride, offset, name_of(spec.dtype), str(spec.device), spec.base]
    if isinstance(spec, tuple):
        return ["many", *[_spec(part, symbols) for part in spec]]
    if isinstance(spec, torch.Tensor):
        raise NotSerialisable(spec.layout)
    if symbols is not None and isinstance(spec, torch.SymInt):
        return symbols.written(spec)
    return ["value", _written(spec, {})]


def _sizes(sizes: Sequence[Any], symbols: Symbols | None) -> list[Any]:
    if symbols is not None:
        return list(map(symbols.written, sizes))
    if not all(type(size) is int for size in sizes):
        raise NotSerialisable(sizes)
    return list(sizes)


def _read_spec(spec: Any, symbols: Symbols | None) -> Any:
    kind, *rest = spec
    if kind == "tensor":
        size, stride, offset, dtype, device, base = rest
        if symbols is not None:
            size, stride, [offset] = (list(map(symbols.read, part)) for part in (size, stride, [offset]))
        return TensorSpec(tuple(size), tuple(stride), offset, _dtype(dtype), torch.device(device), base)
    if kind == "many":
        return tuple(_read_spec(part, symbols) for part in rest)
    if kind == "open" and symbols is not None:
        return symbols.read(spec)
    return _read(rest[0], [])


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise NotSerialisable(name)
    return found


_NAMED: dict[str, type] = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def _written(value: Any, index: dict[fx.Node, int]) -> Any:
    """An argument as JSON: numbers, strings and None unchanged, everything else a list that begins with its kind."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is fx.Node:
        return ["node", index[value]]
    if kind is float:
        # In hexadecimal, which is exact, and because JSON has no infinities and no NaN.
        return ["float", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, tuple):
        return ["tuple", *[_written(item, index) for item in value]]
    if isinstance(value, list):
        return ["list", *[_written(item, index) for item in value]]
    if isinstance(value, dict):
        return ["dict", *[[key, _written(item, index)] for key, item in value.items()]]
    if kind is slice:
        return ["slice", *[_written(item, index) for item in (value.start, value.stop, value.step)]]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    for name, known in _NAMED.items():
        if kind is known:
            return [name, str(value).removeprefix("torch.")]
    raise NotSerialisable(value)


def _read(value: Any, made: list[fx.Node]) -> Any:
    if not isinstance(value, list):
        return value
    kind, *rest = value
    if kind == "node":
        return made[rest[0]]
    if kind == "float":
        return float.fromhex(rest[0])
    if kind == "complex":
        return complex(*map(float.fromhex, rest))
    if kind in ("tuple", "list"):
        items = [_read(item, made) for item in rest]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        if not all(isinstance(key, str) and key.isidentifier() for key, _ in rest):
            raise NotSerialisable(value)  # keyword names appear unquoted in generated code
        return {key: _read(item, made) for key, item in rest}
    if kind == "slice":
        return slice(*[_read(item, made) for item in rest])
    if kind == "device":
        return torch.device(rest[0])
    found = getattr(torch, rest[0])
    if not isinstance(found, _NAMED[kind]):
        raise NotSerialisable(value)
    return found


def _constant(tensor: Any) -> Any:
    """A small tensor as data."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    # The bytes alone are kept, so what is not in them must be at its default.
    if not plain or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or tensor.requires_grad:
        raise NotSerialisable(tensor)
    if tensor.numel() * tensor.element_size() > LARGEST_CONSTANT or tensor.is_quantized:
        raise NotSerialisable(tensor)
    data = bytes(tensor.reshape(-1).view(torch.uint8).tolist())
    return [list(tensor.shape), name_of(tensor.dtype), base64.b64encode(data).decode()]


def constant(given: Any) -> torch.Tensor:
    """The tensor of such data. Raises `ValueError` or `RuntimeError` for malformed data."""
    shape, dtype, data = given
    raw = base64.b64decode(data, validate=True)
    found = torch.tensor(list(raw), dtype=torch.uint8).view(_dtype(dtype))
    return found.reshape(shape)
