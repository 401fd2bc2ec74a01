"""Which arguments a call mutates, and which its result is a view of: by schema, by name, and, where shapes and strides
decide, by metadata; without metadata the answer is None."""

from __future__ import annotations

from collections.abc import Iterator
import functools
import inspect
import operator
from typing import Any

import torch
from torch import fx, nn

from decomp.errors import MutationError, describe, source_line
from decomp.ir.arguments import nodes_in, substituted
from decomp.ir.call import call_if_bound, call_target, kind_of, metadata
from decomp.ir.op_facts import (
    BATCH_NORMS,
    LIST_VIEWS,
    MAYBE_VIEW,
    METADATA_WRITES,
    NOT_WRITES,
    SAME_TENSOR,
    STORAGE_CHANGES,
    UNDECLARED_VIEWS,
    VIEW_ATTRIBUTES,
)
from decomp.ir.ops import Spelling, of_function, of_method
from decomp.metadata.symbolic_sizes import PRIME, size_hint
from decomp.torch_internals.graphs import DropoutNd

higher_order = torch.ops.higher_order

_ALIASING_MODULES = (nn.Identity, nn.Flatten, nn.Unflatten, DropoutNd, nn.Sequential)


def refusal(node: fx.Node, why: str, remedy: str) -> MutationError:
    """The error for a mutation at `node` of the source, or a use after it, that cannot be followed."""
    lines = [f"cannot make the program functional: {why}", f"  at {describe(node)}"]
    line = source_line(node)
    if line:
        lines.append(f"  {line}")
    return MutationError("\n".join([*lines, f"  to do: {remedy}"]))


def mutated_args(node: fx.Node, root: nn.Module | None = None) -> tuple[fx.Node, ...]:
    """The nodes whose tensors the call `node` mutates, data or metadata, in argument order; not those that the body of
    a higher-order op mutates."""
    if node.op == "call_function":
        return _mutated_by_function(node)
    if node.op == "call_method":
        return _mutated_by_method(node)
    if node.op == "call_module" and root is not None:
        return _tensors(node.args[:1]) if getattr(root.get_submodule(str(node.target)), "inplace", False) else ()
    return ()


def _mutated_by_function(node: fx.Node) -> tuple[fx.Node, ...]:
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload) and _is_batch_norm(target):
        return statistics(node)
    overload = target if isinstance(target, torch._ops.OpOverload) else overload_on_lists(target)
    if overload is not None:
        return _tensors([argument(node, position, name) for position, name in mutable_arguments(overload)])
    if isinstance(target, torch._ops.HigherOrderOperator):
        return ()
    if target is operator.setitem or _writes_first(target):
        return _tensors(node.args[:1] or tuple(node.kwargs.values())[:1])
    if node.kwargs.get("out") is not None:
        return _tensors(node.kwargs["out"])
    # Positional arguments count: `F.relu(x, True)` writes.
    position = inplace_position(target)
    if position is not None and argument(node, position, "inplace") is True:
        return _tensors(node.args[:1] or (node.kwargs.get("input"),))
    return statistics(node) if _is_batch_norm(target) else ()


def _mutated_by_method(node: fx.Node) -> tuple[fx.Node, ...]:
    name = str(node.target)
    if name == "__setitem__" or is_inplace_name(name):
        return _tensors(node.args[:1])
    return _tensors(node.kwargs.get("out"))


def is_inplace_name(name: str) -> bool:
    """Whether a method or function of this name writes to its first argument."""
    if name in NOT_WRITES:
        return False
    # `__invert__`, `__int__` and `__index__` begin like this, too.
    if name.startswith("__i") and name.endswith("__"):
        return of_method(name).inplace
    return name.endswith("_") and not name.endswith("__")


@functools.cache
def _writes_first(function: Any) -> bool:
    if getattr(operator, getattr(function, "__name__", ""), None) is function:
        return of_function(function).inplace
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or "torch"
    return isinstance(name, str) and is_inplace_name(name) and module.split(".")[0] in ("torch", "builtins")


@functools.cache
def mutable_arguments(overload: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that an overload writes."""
    if short_name(overload) in NOT_WRITES:
        return ()
    arguments = enumerate(overload._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write)


@functools.cache
def overload_on_lists(target: Any) -> torch._ops.OpOverload | None:
    """The overload of a call that writes lists of tensors; for a function (`torch._foreach_add_`) any of its overloads,
    which agree on what is written. None for other calls."""
    if isinstance(target, torch._ops.OpOverload):
        overloads = [target]
    elif callable(target) and of_function(target).inplace:
        packet = getattr(torch.ops.aten, getattr(target, "__name__", ""), None)
        overloads = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    else:
        overloads = []
    return next((each for each in overloads if any(is_list_at(each, i) for i, _ in mutable_arguments(each))), None)


def is_list_at(overload: torch._ops.OpOverload, position: int) -> bool:
    """Whether an argument of an overload is a list of tensors."""
    return str(overload._schema.arguments[position].type) == "List[Tensor]"


@functools.cache
def inplace_position(function: Any) -> int | None:
    """The position of the parameter `inplace` of a Python function, if it has one."""
    if not inspect.isfunction(inspect.unwrap(function)):
        return None
    try:
        return list(inspect.signature(function).parameters).index("inplace")
    except (TypeError, ValueError):
        return None


def updates_statistics(node: fx.Node) -> bool:
    """Whether a call writes running statistics, of which its result is not a view."""
    return node.op == "call_function" and _is_batch_norm(node.target)


@functools.cache
def _is_batch_norm(function: Any) -> bool:
    return of_function(function).op.short in BATCH_NORMS


def statistics(node: fx.Node) -> tuple[fx.Node, ...]:
    """The running statistics that a normalization in training updates."""
    call = call_if_bound(node)
    arguments = call.arguments if call is not None else {}
    training = arguments.get("training", arguments.get("use_input_stats", True))
    if training is False:
        return ()
    return _tensors([arguments.get("running_mean"), arguments.get("running_var")])


def argument(node: fx.Node, position: int, name: str) -> Any:
    """The argument of a call at this position, or of this name."""
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def _tensors(value: Any) -> tuple[fx.Node, ...]:
    return tuple(dict.fromkeys(n for n in nodes_in(value) if kind_of(n) != "host"))


def view_bases(node: fx.Node, root: nn.Module | None = None) -> tuple[fx.Node, ...]:
    """The nodes of whose tensors the result of `node` may be a view, or identical to, judged by op alone; `is_view` is
    more precise. User-defined functions and modules are assumed to return new tensors."""
    if node.op == "call_module":
        aliasing = root is not None and isinstance(root.get_submodule(str(node.target)), _ALIASING_MODULES)
        return _tensors(node.args[:1]) if aliasing else ()
    if node.op not in ("call_function", "call_method"):
        return ()
    if node.target is getattr:
        return _tensors(node.args[:1]) if node.args[1] in VIEW_ATTRIBUTES else ()
    if node.target is operator.getitem or node.target == "__getitem__":
        return _tensors(node.args[:1])
    if listed := list_operands(node):
        return tuple(dict.fromkeys(listed))
    names = view_arguments(node.op, node.target)
    if names and _is_product(node):
        return ()
    return _tensors([argument(node, position, name) for position, name in names])


def _is_product(node: fx.Node) -> bool:
    """Whether a call is an `einsum` of several operands, which computes a new tensor; with one operand it may be a
    view."""
    operands = node.args[1] if len(node.args) == 2 else node.args[1:]
    return isinstance(operands, (list, tuple)) and len(operands) > 1 and spelling_of(node).op.short == "einsum"


def list_operands(node: fx.Node) -> tuple[fx.Node, ...]:
    """The tensors of which a call returns one view each (`broadcast_tensors`), or which it writes and returns
    (`torch._foreach_add_`), in order; empty for other calls."""
    if node.op != "call_function":
        return ()
    written = overload_on_lists(node.target) is not None
    if (short := spelling_of(node).op.short) not in LIST_VIEWS and not written:
        return ()
    given = node.args or (node.kwargs.get("self" if written else "tensors"),)
    if isinstance(given[0], (list, tuple)):
        (given,) = given[:1]
    elif len(given) == 1 and short.startswith("atleast"):  # `atleast_2d(x)` gives a tensor
        return ()
    return tuple(item for item in given if isinstance(item, fx.Node))


def view_chain(node: fx.Node) -> list[fx.Node]:
    """A node, the node of which its tensor may be a view, by op alone, and so on to the origin of the memory. A view
    taken out of a list of views (`broadcast_tensors`) leads to its own operand."""
    chain = [node]
    for current in chain:
        chain += [base for base in _viewed(current) if base not in chain]
    return chain


def _viewed(node: fx.Node) -> tuple[fx.Node, ...]:
    """The `view_bases` of a node; for an item of a list of views, the operand of which it is a view."""
    bases = view_bases(node)
    if node.target is operator.getitem and type(node.args[1]) is int:
        listed = [operand for base in bases for operand in list_operands(base)]
        return (listed[node.args[1]],) if listed else bases
    return bases


@functools.cache
def view_arguments(kind: str, target: Any) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments of a function or method of which its result may be a view."""
    # Whether its result shares memory is decided by its bodies (`AliasSets`).
    if isinstance(target, torch._ops.HigherOrderOperator):
        return ()
    if isinstance(target, torch._ops.OpOverload):
        if short_name(target) in UNDECLARED_VIEWS:
            # The operands of `einsum` come after its equation.
            place = 1 if short_name(target) == "einsum" else 0
            return ((place, target._schema.arguments[place].name),)
        return tuple(_aliased(target))
    spelling = of_method(target) if kind == "call_method" else of_function(target)
    if spelling.op.short in UNDECLARED_VIEWS:
        return ((1 if spelling.op.short == "einsum" else 0, "input"),)
    packet = spelling.op.packet
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    # Which overload a function runs is not known here, so that one which may be a view is enough.
    return ((0, "input"),) if any(True for o in overloads for _ in _aliased(o)) else ()


def _aliased(overload: torch._ops.OpOverload) -> Iterator[tuple[int, str]]:
    """The arguments of which a return of `overload` is a view, or to which it is identical."""
    returned = {
        name
        for r in overload._schema.returns
        if r.alias_info is not None and not r.alias_info.is_write
        for name in r.alias_info.before_set
    }
    for i, argument in enumerate(overload._schema.arguments):
        info = argument.alias_info
        # `Tensor(a -> *) self` in a schema means that there are several results, all of them views of self.
        if info is not None and not info.is_write and (info.before_set & returned or info.after_set != info.before_set):
            yield i, argument.name


def short_name(target: Any) -> str:
    """`transpose` of `aten.transpose.int`."""
    return str(target._schema.name.partition("::")[2])


def spelling_of(node: fx.Node) -> Spelling:
    """The spelling used by a call node."""
    return of_method(str(node.target)) if node.op == "call_method" else of_function(node.target)


def is_view(node: fx.Node, base: fx.Node) -> bool | None:
    """Whether the result of `node` shares memory with `base`, one of its `view_bases`; None if that depends on unknown
    shapes."""
    if node.op == "call_module":
        return None
    if node.target is getattr:  # `real` of a real tensor is that tensor
        return None if node.args[1] == "real" and metadata(base) is None else True
    if node.target is operator.getitem or node.target == "__getitem__":
        return is_basic_index(node.args[1])
    name = spelling_of(node).op.short
    if name not in MAYBE_VIEW:
        return True
    if name.endswith("dropout"):
        return _dropout_is_identity(node)
    return is_view_on_meta(node, base)


def is_basic_index(index: Any) -> bool | None:
    """Whether an index takes a view: numbers, slices, None and Ellipsis do; tensors, lists and masks copy. None if it
    contains nodes of unknown kind."""
    answers = [_is_basic(item) for item in (index if isinstance(index, tuple) else (index,))]
    return False if False in answers else None if None in answers else True


def _is_basic(item: Any) -> bool | None:
    if isinstance(item, fx.Node):
        kind = kind_of(item)
        # Only an input without metadata may turn out to be a number: of a call it is known whether it returns one.
        return True if kind == "host" else False if kind == "tensor" or item.op != "placeholder" else None
    # True and False are masks without dimensions, and copy like other masks.
    return not isinstance(item, (list, tuple, bool, torch.Tensor))


def _dropout_is_identity(node: fx.Node) -> bool | None:
    call = call_if_bound(node)
    p, train = (call.arguments.get(name) for name in ("p", "train")) if call is not None else (None, None)
    return True if train is False or p == 0 else False if train is True and isinstance(p, (int, float)) else None


def is_same_tensor(node: fx.Node, base: fx.Node) -> bool:
    """Whether the result of `node`, which shares memory with `base`, is that tensor itself, not a view of it."""
    if node.op == "call_function" and overload_on_lists(node.target) is not None:
        return True
    name = str(node.args[1]) if node.target is getattr else spelling_of(node).op.short
    if name in SAME_TENSOR:
        return not _changes_numbers(name, base)
    return name in MAYBE_VIEW and any(result is made for made, result in _on_meta(node, base))


def _changes_numbers(name: str, base: fx.Node) -> bool:
    """Whether `conj` or `real` of this tensor differs from the tensor itself."""
    value = metadata(base)
    real = isinstance(value, torch.Tensor) and not value.is_complex()
    return not real and name in ("conj", "real", "resolve_conj", "resolve_neg")


def is_view_on_meta(node: fx.Node, base: fx.Node) -> bool | None:
    """Whether the result of `node` shares memory with `base`, found by running the op on meta tensors with the captured
    sizes and strides; None without metadata, or if it fails."""
    if not isinstance(metadata(base), torch.Tensor):
        return None
    device = metadata(base).device
    # On meta tensors a copy to another device would be no copy.
    moved = [a for a in (*node.args, *node.kwargs.values()) if _is_device(a) and torch.device(a) != device]
    result = metadata(node)
    if moved or isinstance(result, torch.Tensor) and result.device != device:
        return False
    results = _on_meta(node, base)
    return any(r.untyped_storage() is made.untyped_storage() for made, r in results) if results else None


def _on_meta(node: fx.Node, base: fx.Node) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The tensors that the call returns on meta tensors, each with the stand-in for `base`; empty if it fails."""
    stand_ins: dict[fx.Node, Any] = {}
    results = _run_on_meta(node, stand_ins)
    return [(stand_ins[base], result) for result in results if isinstance(result, torch.Tensor)]


def requires_on_meta(node: fx.Node, operand: fx.Node) -> list[bool]:
    """For each result of a call, whether it requires a gradient if `operand` does, found by running it on meta tensors;
    empty if that fails."""
    made = metadata(operand)
    if not isinstance(made, torch.Tensor):
        return []
    stand_ins: dict[fx.Node, Any] = {operand: _meta_like(made).requires_grad_()}
    results = _run_on_meta(node, stand_ins)
    return [isinstance(result, torch.Tensor) and result.requires_grad for result in results]


def _run_on_meta(node: fx.Node, stand_ins: dict[fx.Node, Any]) -> list[Any]:
    """The results of a call on meta tensors, which are added to `stand_ins` for missing operands; empty if it fails."""
    args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), lambda a: _stand_in(a, stand_ins))
    try:
        out = call_target(node.target, args, kwargs)
    except Exception:  # a kernel may reject the stand-in shapes: the answer is unknown
        return []
    return list(out) if isinstance(out, (list, tuple)) else [out]


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda", "meta")


def _stand_in(value: Any, made: dict[fx.Node, Any]) -> Any:
    if _is_device(value):
        return torch.device("meta")
    if not isinstance(value, fx.Node):
        return value
    if value not in made:
        made[value] = _meta_like(metadata(value))
    return made[value]


def _meta_like(value: Any) -> Any:
    return substituted(value, _leaf_on_meta, object)


def _leaf_on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return size_hint(value, PRIME)
    # Hints keep relations between sizes, on which views depend; a prime for data-dependent ones divides nothing by
    # chance.
    sizes, strides = ([size_hint(s, PRIME) for s in given] for given in (value.shape, value.stride()))
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")


def bodies(node: fx.Node, root: nn.Module | None) -> list[tuple[fx.Node, fx.GraphModule]]:
    """The sub-graphs passed to a higher-order op, with the `get_attr` nodes that refer to them."""
    if root is None or not isinstance(node.target, torch._ops.HigherOrderOperator):
        return []
    named = [n for n in nodes_in((node.args, node.kwargs)) if n.op == "get_attr"]
    found = [(n, attribute(root, str(n.target))) for n in dict.fromkeys(named)]
    return [(n, body) for n, body in found if isinstance(body, fx.GraphModule)]


def attribute(root: nn.Module, path: str) -> Any:
    """The value of a `get_attr` with this path, or None."""
    value: Any = root
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def method_name(node: fx.Node) -> str:
    """`add_` for every spelling of an in-place call."""
    if isinstance(node.target, torch._ops.OpOverload):
        return short_name(node.target)
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))


def changes_metadata(node: fx.Node) -> bool:
    """Whether a call may change the shape of an existing tensor: `out=` is resized if it does not fit."""
    return method_name(node) in METADATA_WRITES | STORAGE_CHANGES or "out" in node.kwargs
