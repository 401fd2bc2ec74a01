"""The functional variant of an in-place call, which returns the value that the call writes. It keeps the name of the
node that it replaces, and the dtype of the tensor that is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import operator
from typing import Any

import torch
from torch import fx

from decomp.functionalize.views import put_index, split_at_ellipsis
from decomp.functionalize.writes import can_require_grad
from decomp.graphs.graph_builder import Emitter
from decomp.ir.aliases import inplace_position, is_basic_index, method_name, refusal, short_name, spelling_of
from decomp.ir.arguments import nodes_in
from decomp.ir.call import metadata
from decomp.ir.op_facts import PREDICATES, PROMOTING_IN_PLACE, RANDOM_IN_PLACE, STORAGE_CHANGES
from decomp.metadata.strides import inverse, is_surely_contiguous
from decomp.metadata.symbolic_sizes import NUMBERS, PRIME, size_hint
from decomp.ops import aten

NO_VARIANT = "it has no functional form"

ValueOf = Callable[[fx.Node], fx.Node]


def functional_variant(emit: Emitter, node: fx.Node, value_of: ValueOf, tracked: bool) -> fx.Node:
    """The value that the in-place call `node` writes; `tracked`: whether the tensor may require a gradient."""
    name = method_name(node)
    tensor = value_of(node.args[0] if node.args else next(iter(node.kwargs.values())))
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
    if name == "setitem" or name == "__setitem__":
        return setitem_value(emit, node, tensor, args[1], args[2])
    if name == "copy_":
        return copy_value(emit, node, tensor, args[1] if len(args) > 1 else kwargs["src"])
    if name == "zero_" or name == "fill_":
        value = 0 if name == "zero_" else args[1] if len(args) > 1 else kwargs["value"]
        return _filled(emit, node, tensor, value)
    if name == "fill_diagonal_":
        return _filled_diagonal(emit, node, tensor, args, kwargs)
    if name in RANDOM_IN_PLACE:
        # `normal_functional` and `bernoulli` have no derivative (torch 2.13); that of the in-place ops is zero.
        tensor = emit.call("detach", (tensor,), at=node) if tracked else tensor
        return _random(emit, node, tensor, name, args, kwargs)
    if name in STORAGE_CHANGES:
        raise refusal(node, f"{name} writes its argument, and {NO_VARIANT}", "write a new tensor in the model instead")
    op, target, args, kwargs = functional_call(node, args, kwargs)
    return call_keeping_dtype(emit, node, tensor, op, target, args, kwargs)


def functional_call(node: fx.Node, args: Any, kwargs: Any) -> tuple[str, Any, Any, Any]:
    """`op`, `target`, `args` and `kwargs` of the functional call that returns what `node` writes."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return "call_function", _functional_overload(node, target), args, kwargs
    if node.op == "call_method":
        return "call_method", _functional_method(node, str(target)), args, kwargs
    if getattr(operator, getattr(target, "__name__", ""), None) is target:
        # `iadd` becomes `add`, and `iand` becomes `and_`, as `and` is a keyword.
        name = str(getattr(target, "__name__", ""))[1:]
        return "call_function", getattr(operator, name, None) or getattr(operator, f"{name}_"), args, kwargs
    if _is_true(args, kwargs, target):
        return "call_function", target, *_without_inplace(args, kwargs, target)
    return "call_function", _functional_function(node, target), args, kwargs


def _functional_overload(node: fx.Node, overload: torch._ops.OpOverload) -> torch._ops.OpOverload:
    if (found := next(functional_overloads(overload), None)) is not None:
        return found
    namespace, _, name = overload._schema.name.partition("::")
    plain = _plain(name)
    raise refusal(
        node,
        f"{name} writes its argument, and {NO_VARIANT}",
        f"register {namespace}::{plain} with the same arguments, or write y = {plain}(x) in the model",
    )


def functional_overloads(overload: torch._ops.OpOverload) -> Iterator[torch._ops.OpOverload]:
    """The overloads of the same arguments as `overload`, which writes, that write nothing."""
    namespace, _, name = overload._schema.name.partition("::")
    plain = _plain(name)
    # The second is for ops such as `rrelu_with_noise_`, the last for those that write although their name has no
    # underscore.
    for candidate in dict.fromkeys((plain, f"{plain}_functional", f"{name}_functional")):
        packet = getattr(getattr(torch.ops, namespace), candidate, None)
        found = _overload_with(packet, overload) if packet is not None and candidate != name else None
        if found is not None:
            yield found


def _plain(name: str) -> str:
    """The name of the functional form of an in-place op or method."""
    return f"__{name[3:]}" if name.startswith("__i") else name.removesuffix("_")


def _overload_with(packet: Any, overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload of `packet` with the arguments of `overload`, except its `out` arguments."""
    # The first argument, the tensor itself, may have another name in the functional form; its type must be the same.
    wanted = [a.name for a in overload._schema.arguments if not a.is_out][1:]
    names = sorted(packet.overloads(), key=lambda n: n != overload._overloadname)
    for name in names:
        schema = getattr(packet, name)._schema
        if not schema.is_mutable and [a.name for a in schema.arguments][1:] == wanted:
            types = [str(a.real_type) for a in schema.arguments]
            if types == [str(a.real_type) for a in overload._schema.arguments if not a.is_out]:
                return getattr(packet, name)
    return None


def _functional_method(node: fx.Node, name: str) -> str:
    plain = _plain(name)
    if not hasattr(torch.Tensor, plain):
        raise refusal(node, f"{name} writes its argument, and {NO_VARIANT}", "write a new tensor in the model instead")
    return plain


def _functional_function(node: fx.Node, function: Any) -> Any:
    name = str(getattr(function, "__name__", "")).removesuffix("_")
    module = getattr(function, "__module__", "") or ""
    # `init.normal_(x)` fills x, whereas `torch.normal(x)` draws around x.
    if not module.startswith("torch.nn.init"):
        for place in (torch.nn.functional, torch):
            found = getattr(place, name, None)
            if callable(found) and name:
                return found
    raise refusal(node, f"{name}_ writes its argument, and {NO_VARIANT}", "write a new tensor in the model instead")


def _is_true(args: Any, kwargs: Any, function: Any) -> bool:
    position = inplace_position(function)
    return position is not None and (args[position] if position < len(args) else kwargs.get("inplace")) is True


def _without_inplace(args: Any, kwargs: Any, function: Any) -> tuple[Any, Any]:
    position = inplace_position(function)
    assert position is not None
    if position == len(args) - 1:
        args = args[:position]
    # It must keep its place before the arguments that follow.
    elif position < len(args):
        args = (*args[:position], False, *args[position + 1 :])
    return args, {name: value for name, value in kwargs.items() if name != "inplace"}


def call_keeping_dtype(
    emit: Emitter, node: fx.Node, tensor: fx.Node, op: str, target: Any, args: Any, kwargs: Any
) -> fx.Node:
    """The call that replaces `node`, cast to the dtype of `tensor` if the functional op promotes."""
    if not _promotes(emit, node, tensor, op, target, args, kwargs):
        return emit.like(node, op, target, args, kwargs)
    wide = emit.node(op, target, tuple(args), dict(kwargs), at=node)
    return cast(emit, node, wide, tensor)


def written_op(node: fx.Node) -> str:
    """The name of the functional op of an in-place call, under its first spelling: `lt` of `x.less_(y)`."""
    return spelling_of(node).op.short.removesuffix("_") if node.op != "call_module" else ""


def _promotes(emit: Emitter, node: fx.Node, tensor: fx.Node, op: str, target: Any, args: Any, kwargs: Any) -> bool:
    """Whether the functional call returns a dtype other than that of `tensor`; without metadata, whether it may,
    regardless of the other operands."""
    always = written_op(node) in PREDICATES or method_name(node) in PROMOTING_IN_PLACE
    own = metadata(tensor)
    if emit.mode is None or not isinstance(own, torch.Tensor):
        return always
    # Most writes have operands of one dtype, and then nothing needs to be computed.
    found = {getattr(metadata(n), "dtype", own.dtype) for n in nodes_in((args, kwargs))}
    if found == {own.dtype} and not always:
        return False
    result = emit.computed(target, args, kwargs)
    return isinstance(result, torch.Tensor) and result.dtype != own.dtype


def cast(emit: Emitter, node: fx.Node, value: fx.Node, like: fx.Node, final: bool = True) -> fx.Node:
    """`value` in the dtype of `like`. If `final`, the cast replaces `node`."""
    own = metadata(like)
    if not isinstance(own, torch.Tensor):
        call: tuple[str, Any, Any, Any] = ("call_method", "type_as", (value, like), {})
    elif emit.is_aten:
        call = ("call_function", aten._to_copy.default, (value,), {"dtype": own.dtype})
    else:
        call = ("call_method", "to", (value, own.dtype), {})
    return emit.like(node, *call) if final else emit.node(*call, at=node)


def _like(emit: Emitter, node: fx.Node, name: str, args: Any, kwargs: Any) -> fx.Node:
    """A call of an ATen op that replaces `node`, in the dialect of the program."""
    if emit.is_aten:
        packet = getattr(aten, name)
        return emit.like(node, "call_function", getattr(packet, packet.overloads()[0]), args, kwargs)
    return emit.like(node, "call_function", getattr(torch, name), args, kwargs)


def _filled(emit: Emitter, node: fx.Node, tensor: fx.Node, value: Any) -> fx.Node:
    """`fill_`: if the tensor may require a gradient, the result depends on it with a gradient of zero."""
    if isinstance(value, fx.Node):
        return copy_value(emit, node, tensor, value)
    name = "fill" if can_require_grad(metadata(tensor)) else "full_like"
    return _like(emit, node, name, (tensor, value), {})


def _filled_diagonal(emit: Emitter, node: fx.Node, tensor: fx.Node, args: Any, kwargs: Any) -> fx.Node:
    value = args[1] if len(args) > 1 else kwargs["fill_value"]
    wrap = args[2] if len(args) > 2 else kwargs.get("wrap", False)
    found = metadata(tensor)
    if wrap or isinstance(found, torch.Tensor) and found.dim() != 2:
        raise refusal(
            node,
            "fill_diagonal_ with wrap=True, or of more than two dimensions, has no functional form",
            "write torch.where(mask, value, x) in the model instead",
        )
    diagonal = emit.call("diagonal", (tensor,), at=node)
    filled = emit.call("full_like", (diagonal, value), at=node)
    return _like(emit, node, "diagonal_scatter", (tensor, filled), {})


def _random(emit: Emitter, node: fx.Node, tensor: fx.Node, name: str, args: Any, kwargs: Any) -> fx.Node:
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        overload = target._overloadname
    else:
        # `x.random_()`, `x.random_(to)` and `x.random_(from, to)`.
        overload = ("default", "to", "from")[min(len(args), 3) - 1] if name == "random_" else "default"
    if name == "bernoulli_":
        p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        args, overload = (tensor, p), "Tensor" if isinstance(p, fx.Node) else "p"
        kwargs = {key: value for key, value in kwargs.items() if key != "p"}
    args = (tensor, *args[1:])
    plain = "normal_functional" if name == "normal_" else name.removesuffix("_")
    return emit.like(node, "call_function", getattr(getattr(aten, plain), overload), args, kwargs)


def copy_value(emit: Emitter, node: fx.Node, tensor: fx.Node, source: Any, as_item: bool = False) -> fx.Node:
    """The value of `tensor.copy_(source)`: `source`, a tensor or a number, in the shape and dtype of `tensor`. With
    `as_item`, of `tensor[...] = source`, where the source may have additional leading dimensions of size one."""
    if not isinstance(source, fx.Node):
        return _like(emit, node, "full_like", (tensor, source), {})
    to, what = metadata(tensor), metadata(source)
    if isinstance(what, NUMBERS):
        return _like(emit, node, "full_like", (tensor, source), {})
    if not isinstance(to, torch.Tensor) or not isinstance(what, torch.Tensor):
        wide = _of_unknown_shape(emit, node, tensor, source, as_item)
        # `to` returns its argument where nothing changes, and the source must not become the memory of the tensor.
        return _like(emit, node, "clone", (emit.node("call_method", "to", (wide, tensor), {}, at=node),), {})
    # `x[0] = y` accepts leading dimensions of size one that the part does not have.
    if what.dim() > to.dim():
        source = emit.reshape(source, tensor, node)
    elif what.shape != to.shape:
        source = emit.node(*_expansion(emit, source, tensor, node), at=node)
    return _in_layout(emit, node, source, to)


def _of_unknown_shape(emit: Emitter, node: fx.Node, tensor: fx.Node, source: fx.Node, as_item: bool) -> fx.Node:
    if not as_item:
        return emit.node("call_method", "expand_as", (source, tensor), {}, at=node)
    both = emit.node("call_function", torch.broadcast_tensors, (source, tensor), {}, at=node)
    wide = emit.node("call_function", operator.getitem, (both, 0), {}, at=node)
    return emit.node("call_method", "reshape_as", (wide, tensor), {}, at=node)


def _in_layout(emit: Emitter, node: fx.Node, source: fx.Node, to: torch.Tensor) -> fx.Node:
    """A copy of `source` in the dtype of `to`, with its dimensions in the stride order of `to`, so that `view` calls
    that follow still work."""
    if is_surely_contiguous(to):
        return emit.like(node, *_copy(emit, source, to))
    sizes, strides = ([size_hint(size, PRIME) for size in given] for given in (to.shape, to.stride()))
    # By size among equal strides, since the stride of a dimension of one says nothing.
    order = sorted(range(to.dim()), key=lambda dim: (strides[dim], sizes[dim]), reverse=True)
    turned = emit.call("permute", (source, order), at=node)
    return _like(emit, node, "permute", (emit.node(*_copy(emit, turned, to), at=node), inverse(order)), {})


def _expansion(emit: Emitter, source: fx.Node, like: fx.Node, node: fx.Node) -> tuple[str, Any, Any, Any]:
    sizes = emit.sizes(like, node)
    if emit.is_aten:
        return "call_function", aten.expand.default, (source, sizes), {}
    return "call_method", "expand", (source, *sizes), {}


def _copy(emit: Emitter, source: fx.Node, to: torch.Tensor) -> tuple[str, Any, Any, Any]:
    """The call that copies `source` into contiguous memory of the dtype and device of `to`."""
    what = metadata(source)
    kwargs: dict[str, Any] = {"memory_format": torch.contiguous_format}
    if what.dtype == to.dtype and what.device == to.device:
        return "call_function", aten.clone.default if emit.is_aten else torch.clone, (source,), kwargs
    if what.device != to.device:
        kwargs["device"] = to.device
    kwargs["dtype"] = to.dtype
    if emit.is_aten:
        return "call_function", aten._to_copy.default, (source,), kwargs
    return "call_method", "to", (source,), kwargs


def setitem_value(emit: Emitter, node: fx.Node, tensor: fx.Node, index: Any, value: Any) -> fx.Node:
    """`tensor` after `tensor[index] = value`."""
    source_index = node.args[1]
    basic = is_basic_index(source_index)
    if basic is None:
        raise refusal(node, "it is not known whether its index is a number or a tensor", "pass args=")
    items = index if isinstance(index, tuple) else (index,)
    if basic:
        return put_index(emit, tensor, items, lambda part: copy_value(emit, node, part, value, as_item=True), node)
    return _index_put(emit, node, tensor, items, value)


def _index_put(emit: Emitter, node: fx.Node, tensor: fx.Node, items: tuple[Any, ...], value: Any) -> fx.Node:
    left, right = split_at_ellipsis(items)
    source_items = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if any(is_basic_index(item) is False for item in source_items[len(left) + 1 :]) or any(
        isinstance(item, bool) for item in items
    ):
        raise refusal(
            node,
            "its index contains a tensor after an Ellipsis, or a bool",
            "write full slices instead of the Ellipsis, or index_put in the model",
        )
    basic = [slice(None) if is_basic_index(s) is False else item for s, item in zip(source_items, left)]
    tensors = [item if is_basic_index(s) is False else None for s, item in zip(source_items, left)]
    # Items that select an index are applied by put_index and remove their dimension, so their place is dropped here.
    kept = [t for t, item in zip(tensors, basic) if isinstance(item, slice) or item is None]
    while kept and kept[-1] is None:
        kept.pop()
    _refuse_wide_masks(node, kept, basic)
    indices = [_as_tensor(emit, node, item) for item in kept]
    whole = (*basic, Ellipsis, *right) if right else tuple(basic)

    def put(part: fx.Node) -> fx.Node:
        args = (part, indices, _element(emit, node, part, value))
        if None in indices:  # torch.index_put does not accept None, its overload does
            return emit.node("call_function", aten.index_put.default, args, {}, at=node)
        return emit.call("index_put", args, at=node)

    return put_index(emit, tensor, whole, put, node)


def _refuse_wide_masks(node: fx.Node, kept: list[Any], basic: list[Any]) -> None:
    """A mask of n dimensions indexes n of them, so the items after it would have to be renumbered."""
    masks = [i for i, item in enumerate(kept) if isinstance(item, fx.Node) and _may_be_wide(metadata(item))]
    if masks and any(item != slice(None) for item in basic):
        raise refusal(
            node,
            "its index mixes a mask of several dimensions with other items",
            "pass args=, or use index_put or torch.where in the model",
        )


def _may_be_wide(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.dtype in (torch.bool, torch.uint8) and value.dim() > 1


def _as_tensor(emit: Emitter, node: fx.Node, item: Any) -> Any:
    if item is None or isinstance(item, fx.Node):
        return item
    return emit.node("call_function", torch.tensor, (list(item),), {}, at=node)


def _element(emit: Emitter, node: fx.Node, part: fx.Node, value: Any) -> fx.Node:
    """The right-hand side of an assignment, as a tensor in the dtype of `part`, to which it is assigned."""
    found = metadata(value) if isinstance(value, fx.Node) else value
    if not isinstance(value, fx.Node) or isinstance(found, (int, float, torch.SymInt, torch.SymFloat)):
        # `index_put` takes no number.
        return emit.node("call_method", "new_full", (part, (), value), {}, at=node)
    if isinstance(found, torch.Tensor) and found.dtype == getattr(metadata(part), "dtype", None):
        return value
    return cast(emit, node, value, part, final=False)


def out_call(node: fx.Node, value_of: ValueOf) -> tuple[str, Any, Any, Any]:
    """The call `node` without its `out=`."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return node.op, target, args, {name: value for name, value in kwargs.items() if name != "out"}
    written = {a.name for a in target._schema.arguments if a.is_out}
    found = _overload_with(target._overloadpacket, target)
    if found is None:
        raise refusal(
            node, f"it writes {', '.join(sorted(written))}, and {NO_VARIANT}", "use the op without out= in the model"
        )
    return node.op, found, args, {name: value for name, value in kwargs.items() if name not in written}


def functional_view(emit: Emitter, node: fx.Node, args: Any, kwargs: Any) -> fx.Node:
    """The view to which `squeeze_` and similar ops change a tensor, as a new tensor."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return emit.like(node, *functional_call(node, args, kwargs))
    name = short_name(node.target).removesuffix("_")
    # The overload of `transpose_` is its default one, of the same arguments as `transpose.int`.
    default = {"transpose": "int"}.get(name, node.target._overloadname)
    return emit.like(node, "call_function", getattr(getattr(aten, name), default), args, kwargs)


def has_out(node: fx.Node) -> bool:
    """Whether a call is an overload with `out` arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and any(a.is_out for a in node.target._schema.arguments)
