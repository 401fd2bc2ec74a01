"""Calls: one use of an op in a graph, in any spelling, with its arguments by name. Predicates of targets inspect them,
and `calls(program, op)` finds them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
import functools
import operator
from typing import Any, TypeVar

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from decomp.errors import CaptureError, NotPortable, UnknownNode, boundary, spell_target
from decomp.ir import spellings
from decomp.ir.arguments import leaves, nodes_in
from decomp.ir.binding import BindingError, Bound, bind_function, bind_method
from decomp.ir.ops import Op, Spelling, of_function, of_method, of_module_class, op as op_of

CALLS = frozenset({"call_function", "call_method", "call_module"})
"""The values of `node.op` for calls."""

NUMBER = "number"
"""The key in the meta of an expansion's input that is a size or another number, if there is no metadata."""

T = TypeVar("T")


def metadata(node: Any) -> Any:
    """The metadata of a node's value (a fake tensor, a number, a tuple of them), or None if the program has none."""
    meta = node.meta
    found = meta.get("val")
    return found if found is not None else meta.get("example_value")


def of_node(table: Mapping[str, T], node: Any, described: str) -> T:
    """The entry of a node, or of its name. Raises `UnknownNode`: `node` is not what was `described`."""
    name = getattr(node, "name", node)
    if not isinstance(name, str) or name not in table:
        raise UnknownNode(f"{node!r} is not {described}\n  to do: pass a node of its graph, or the name of one")
    return table[name]


def is_surely_legal(node: fx.Node, sure: bool | frozenset[torch.dtype]) -> bool:
    """Whether legality follows from target and dtypes alone: `sure` is the answer for all calls, or the dtypes on which
    they are legal."""
    return sure if isinstance(sure, bool) else bool(sure) and has_only(node, sure)


def has_only(node: fx.Node, dtypes: Container[torch.dtype]) -> bool:
    """Whether all tensors that a node takes and returns are known to have one of these dtypes."""
    for each in (node, *node.all_input_nodes):
        value = metadata(each)
        if isinstance(value, torch.Tensor):
            if value.dtype not in dtypes:
                return False
        elif (
            value is None
            or isinstance(value, (tuple, list))
            and any(isinstance(one, torch.Tensor) and one.dtype not in dtypes for one in value)
        ):
            return False
    return True


def inherited_meta(node: fx.Node) -> dict[str, Any]:
    """The metadata that a node inherits from its source node: all that does not describe the source's value."""
    return {key: item for key, item in node.meta.items() if key not in _OWN_META}


_OWN_META = frozenset(("val", "example_value", "tensor_meta", "unbacked_bindings", "chain", "is_wrapped"))


@dataclass
class Call:
    """One use of an op: bound arguments, metadata, node."""

    op: Op
    overload: str | None
    arguments: dict[str, Any]
    """By the schema's names, with defaults filled in; tensors are nodes."""
    given: frozenset[str] = frozenset()
    inplace: bool = False
    reads_data: bool = False
    """Whether a tensor is passed where the op takes a number, as in `x.view(n, 2)`: its value is read at run time."""
    place: fx.Node | None = field(default=None, repr=False)
    looked_around: bool = field(default=False, repr=False)
    """Whether the context of the call in the program was inspected, not only what it computes."""
    composite: bool = False
    """Whether it is a composite call, which has a body."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPortable(
            "a Call cannot be pickled: it holds nodes of your program\n  to do: pickle str(call.op) and what you need "
            "of call.arguments"
        )

    def __copy__(self) -> Call:
        return replace(self)

    def __deepcopy__(self, memo: Any) -> Call:
        return replace(self)

    def argument(self, name: str) -> Any:
        """The value of an argument, or its default; a tensor is returned as its metadata (shape, dtype, device). Raises
        `KeyError` if the op has no such argument."""
        if name not in self.arguments:
            raise KeyError(f"{self.op} has no argument {name!r}; it has {', '.join(self.arguments)}")
        return fx.node.map_arg(self.arguments[name], _metadata_or_node)

    @property
    def node(self) -> fx.Node | None:
        """The node of the program. Legality that depends on it is decided for each node separately."""
        # What was decided by the surroundings of one call must not be remembered for another one with its signature.
        self.looked_around = True
        return self.place

    @property
    def module_path(self) -> str:
        """The qualified name of the module that makes this call, such as `layers.0.attention`; empty if unknown."""
        node = self.node
        stack = node.meta.get("nn_module_stack") if node is not None else None
        return module_path(stack)

    @property
    def users(self) -> tuple[fx.Node, ...]:
        """The nodes that use the result."""
        node = self.node
        return tuple(node.users) if node is not None else ()

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        """The nodes among the arguments, in order."""
        return tuple(nodes_in(tuple(self.arguments.values())))

    @property
    def tensors(self) -> list[Any]:
        """Metadata of the tensor arguments, in order."""
        found = (metadata(node) if isinstance(node, fx.Node) else node for node in self._leaves())
        return [value for value in found if isinstance(value, torch.Tensor)]

    def _leaves(self) -> Iterator[Any]:
        for value in self.arguments.values():
            yield from value if isinstance(value, (list, tuple)) else (value,)

    @property
    def meta(self) -> Any:
        """Metadata of the result."""
        return metadata(self.place) if self.place is not None else None


_OUTSIDE_MODULES = "_empty_nn_module_stack_from_metadata_hook"
"""What torch.export (2.13) records of a node that no module made."""


def modules_in(stack: Any) -> list[tuple[str, Any]]:
    """The modules of an `nn_module_stack`, the outermost first: paths without prefixes added by capture, and classes or
    their names."""
    return [(_own_path(str(path)), kind) for path, kind, *_ in (stack or {}).values()]


def module_path(stack: Any) -> str:
    """The path of the innermost module of an `nn_module_stack`."""
    modules = modules_in(stack)
    return modules[-1][0] if modules else ""


def _own_path(path: str) -> str:
    if path == _OUTSIDE_MODULES:
        return ""
    # torch.export, Dynamo and `fx.Tracer` write the path of the root in different ways.
    for prefix in ("L['self'].", "L['self']", "L__self___", "self."):
        path = path.removeprefix(prefix)
    return path


def _metadata_or_node(node: fx.Node) -> Any:
    found = metadata(node)
    return found if found is not None else node


def call_target(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a function, or of the method with this name of the first argument."""
    return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)


def kind_of(value: Any) -> str:
    """The kind of a graph value: "tensor", "host" (a size, a number, a tuple of sizes), "many" (several results) or
    "unknown"."""
    if not isinstance(value, fx.Node):
        return "tensor" if isinstance(value, torch.Tensor) else "host"
    found = metadata(value)
    if isinstance(found, torch.Tensor):
        return "tensor"
    if isinstance(found, (tuple, list, dict)) and any(isinstance(leaf, torch.Tensor) for leaf in leaves(found)):
        return "many"
    if found is not None:
        return "host"
    return _kind_without_metadata(value)


def _kind_without_metadata(node: fx.Node) -> str:
    if node.op == "call_method":
        return "host" if node.target in spellings.HOST_METHODS else _results(of_method(str(node.target)), node)
    if node.op != "call_function":
        return "host" if NUMBER in node.meta else "unknown"
    if node.target is getattr:
        return "host" if node.args[1] in spellings.HOST_ATTRIBUTES else "unknown"
    if node.target in (len, int, float, bool):
        return "host"
    if getattr(node.target, "single", None) is False:  # a pattern
        return "many"
    if isinstance(node.target, torch._ops.OpOverload):
        returns = node.target._schema.returns
        if returns and all("Tensor" not in str(r.type) for r in returns):
            return "host"
    if _is_arithmetic(node):
        return "host" if _works_on_host_values(node) else "unknown"
    return _results(of_function(node.target), node)


def _is_arithmetic(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__module__", None) in ("_operator", "math", "builtins")


_FAR = 64
_SCALARS = (getattr, len, int, float, bool)


def _works_on_host_values(node: fx.Node) -> bool:
    """Whether Python arithmetic starts from host values only. At most `_FAR` nodes are visited, the nearest first: in a
    long chain of operators on tensors, visiting all for each node would be quadratic."""
    seen, waiting = {node}, [node]
    for current in waiting:
        operands = current.all_input_nodes
        if current.target is operator.getitem:
            operands = [given for given in current.args[:1] if isinstance(given, fx.Node)]
        elif not operands:
            return False
        for given in operands:
            if given in seen:
                continue
            seen.add(given)
            if _is_arithmetic(given) and given.target not in _SCALARS and metadata(given) is None:
                waiting.append(given)
            elif kind_of(given) != "host":
                return False
        if len(seen) > _FAR:
            return False
    return True


def _results(spelling: Spelling, node: fx.Node) -> str:
    """Whether an op with a schema returns one tensor or several. For some, such as max, the overload decides."""
    packet = spelling.op.packet
    if packet is None:
        return "unknown"
    overload = spelling.overload
    if overload is None and _differ_in_results(spelling.op):
        try:
            overload = _bound(kind_of, node).overload
        except BindingError:
            return "unknown"
    return "many" if _has_several(getattr(packet, overload or packet.overloads()[0])) else "unknown"


@functools.cache
def _differ_in_results(op: Op) -> bool:
    names = [name for name in op.packet.overloads() if "out" not in name] if op.packet is not None else []
    return len({_has_several(getattr(op.packet, name)) for name in names}) > 1


def _has_several(overload: Any) -> bool:
    returns = [str(r.type) for r in overload._schema.returns]
    return len(returns) > 1 or returns == ["List[Tensor]"]


def is_projection(node: fx.Node) -> bool:
    """Whether `node` only takes some of several results, or of an input that is a container: `getitem(chunk, 0)`,
    `getattr(max, "indices")`, `getitem(batch, "mask")`."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.target is operator.getitem:
        key = node.args[1]
        return isinstance(key, str) or isinstance(key, (int, slice)) and kind_of(node.args[0]) == "many"
    return node.target is getattr and kind_of(node.args[0]) == "many"


def projected(node: fx.Node, results: tuple[Any, ...]) -> Any:
    """The part of `results` that a projection takes."""
    return results[_which(node)]


def _which(projection: fx.Node) -> Any:
    """The index of the result that a projection takes, or a slice."""
    if projection.target is operator.getitem:
        return projection.args[1]
    call = bound_call(projection.args[0])
    packet = call.op.packet if call is not None else None
    assert call is not None and packet is not None
    names = [r.name for r in getattr(packet, call.overload or "default")._schema.returns]
    return names.index(str(projection.args[1]))


def read_results(node: fx.Node, kept: Container[fx.Node] = ()) -> tuple[int, ...] | None:
    """The indices of the results of a call that are used, in order; None if it has one result, or is used as a whole.
    An unused projection, of which torch.export leaves many, does not count unless it is `kept`."""
    results = metadata(node)
    if type(results) not in (tuple, list) or not node.users or node in kept:
        return None
    if not all(is_projection(user) for user in node.users):
        return None
    places = [_which(user) for user in node.users if user.users or user in kept]
    if any(type(place) is not int for place in places):
        return None
    return tuple(sorted({place % len(results) for place in places}))


def select_results(places: tuple[int, ...] | None, results: Any) -> Any:
    """The results, with None for each that is not at one of these indices; all if `places` is None."""
    if places is None or not isinstance(results, (tuple, list)):
        return results
    return tuple(each if i in places else None for i, each in enumerate(results))


def bound_call(node: fx.Node) -> Call | None:
    """The call that `node` makes, or None if it makes none (inputs, outputs, sizes, modules, projections). Raises
    `BindingError` if its arguments match no overload."""
    if node.op not in ("call_method", "call_function"):
        return None
    reads_data = False
    try:
        bound = _bound(kind_of, node)
    # Only in a second attempt: otherwise the overloads for numbers would win wherever a tensor without dimensions is
    # passed.
    except BindingError:
        bound, reads_data = _bound(_kind_or_number, node), True
    return Call(bound.op, bound.overload, bound.arguments, bound.given, bound.inplace, reads_data, node)


def call_if_bound(node: fx.Node) -> Call | None:
    """Like `bound_call`, but None if the arguments match no overload."""
    try:
        return bound_call(node)
    except BindingError:
        return None


def _bound(kind: Callable[[Any], str], node: fx.Node) -> Bound:
    if node.op == "call_method":
        return bind_method(str(node.target), node.args, node.kwargs, kind)
    return bind_function(node.target, node.args, node.kwargs, kind)


def _kind_or_number(value: Any) -> str:
    """Like `kind_of`, but a zero-dimensional tensor may be a number: PyTorch reads it where an op takes no tensor."""
    found = metadata(value) if isinstance(value, fx.Node) else None
    return "unknown" if isinstance(found, torch.Tensor) and found.dim() == 0 else kind_of(value)


def is_host(node: fx.Node) -> bool:
    """Whether a call computes no tensor from data: sizes, numbers, assertions on them, attributes."""
    return node.op in ("call_function", "call_method") and kind_of(node) == "host"


def is_free(overload: torch._ops.OpOverload) -> bool:
    """Whether an overload is not a tensor op, so that any target has it: assertions and queries return no tensor and
    change none."""
    schema = overload._schema
    return not schema.is_mutable and all("Tensor" not in str(r.type) for r in schema.returns)


@boundary("calls")
def calls(program: Any, spelling: Any = None) -> list[Call]:
    """Every call of the op that `spelling` names in `program` (a GraphModule, Graph or ExportedProgram), in order,
    including sub-graphs of higher-order ops. Modules that apply the op count as calls of it, with the arguments of the
    module. Without `spelling`: every call of an op that a target must have, which excludes assertions, regions, control
    flow and the write-backs at the end of a module (`Lowering.report()` counts these)."""
    from decomp.ir.accounting import effects_in  # which imports this module

    wanted = op_of(spelling) if spelling is not None else None
    found: list[Call] = []
    graphs = list(graphs_of(program)) if isinstance(program, (fx.Graph, nn.Module, ExportedProgram)) else []
    if not graphs:
        raise CaptureError(f"{type(program).__name__} has no graph; pass a GraphModule, a Graph or an ExportedProgram")
    for root, graph in graphs:
        effects = effects_in(graph) if wanted is None else {}
        for node in graph.nodes:
            call = _found(root, node) if node not in effects else None
            if call is not None and (wanted is None or call.op == wanted):
                found.append(call)
    return found


def graphs_of(program: Any) -> Iterator[tuple[nn.Module | None, fx.Graph]]:
    """The graph of a program and, after it, those of its sub-programs, each with the module that owns it."""
    if isinstance(program, fx.Graph):
        yield program.owning_module, program
        return
    module = program if isinstance(program, nn.Module) else program.graph_module
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            yield inner, inner.graph


def _found(root: nn.Module | None, node: fx.Node) -> Call | None:
    if node.op == "call_module" and root is not None:
        op = of_module_class(type(root.get_submodule(str(node.target))))
        return Call(op, None, {f"arg{i}": a for i, a in enumerate(node.args)} | dict(node.kwargs), place=node)
    if node.op not in ("call_function", "call_method") or is_host(node) or is_projection(node):
        return None
    try:
        return bound_call(node)
    except BindingError:
        name = Op(spell_target(node.target))
        return Call(name, None, {f"arg{i}": a for i, a in enumerate(node.args)} | dict(node.kwargs), place=node)


Predicate = Callable[[Call], bool]
