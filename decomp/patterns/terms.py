"""Terms: normalised readings of nodes. A node has a term for the op that it calls, and more where it is equivalent to
another op: `addmm(b, x, t(w))` is also `linear(x, w, b)`. Patterns and programs are compared by their terms, so that a
pattern written with `torch.nn.functional` is found in a program that was exported or decomposed."""

from __future__ import annotations

from collections.abc import Iterator
import operator
from typing import Any, NamedTuple

import torch
from torch import fx

from decomp.ir import spellings
from decomp.ir.binding import BindingError, Bound, all_bindings
from decomp.ir.call import Call, bound_call, kind_of, metadata
from decomp.ir.ops import of_function, of_method
from decomp.ir.schema import overloads
from decomp.metadata.symbolic_sizes import expression


class NodeReading(NamedTuple):
    """One reading of a node."""

    op: str
    """`aten.linear`, `mylib.op`, `module.function`."""
    arguments: dict[str, Any]
    """By the schema's names, with defaults, and single numbers expanded to lists where the schema has a list."""
    through: tuple[fx.Node, ...] = ()
    """Other nodes that are part of this reading: the `t` of `addmm(b, x, t(w))`."""
    inplace: bool = False


class Terms:
    """The terms of the nodes of one graph, cached."""

    def __init__(self, of_pattern: bool = False) -> None:
        """`of_pattern`: inputs can be anything, so a call is read as every overload that accepts its arguments."""
        self._of_pattern = of_pattern
        self._raw: dict[fx.Node, NodeReading | None] = {}
        self._all: dict[fx.Node, tuple[NodeReading, ...]] = {}

    def raw(self, node: fx.Node) -> NodeReading | None:
        """The term of the op that a node calls; None if it calls none, or its arguments match no overload."""
        if node not in self._raw:
            raw = _raw(node)
            self._raw[node] = next(_other_overloads(node, raw), None) if raw is None and self._of_pattern else raw
        return self._raw[node]

    def of(self, node: fx.Node) -> tuple[NodeReading, ...]:
        """All terms of a node, beginning with that of the op that it calls."""
        found = self._all.get(node)
        if found is None:
            found = self._all[node] = tuple(self._readings(node))
        return found

    def _readings(self, node: fx.Node) -> Iterator[NodeReading]:
        raw = self.raw(node)
        if raw is None:
            return
        yield raw
        if self._of_pattern:
            yield from _other_overloads(node, raw)
        for read in _ALTERNATIVES.get(raw.op, ()):
            other = read(raw, node, self)
            if other is not None:
                yield other

    def passed_on(self, node: fx.Node) -> fx.Node | None:
        """The operand of a node that returns it unchanged, such as dropout at inference; None for other nodes."""
        term = self.raw(node) if op_name(node) in PASSES_OPERAND else None
        given = next(iter(term.arguments.values()), None) if term is not None else None
        if term is None or not isinstance(given, fx.Node):
            return None
        if term.op == "aten.dropout" and not (term.arguments.get("train") is False or term.arguments.get("p") == 0):
            return None
        return given


PASSES_OPERAND = frozenset(f"aten.{name}" for name in "dropout alias clone lift_fresh lift_fresh_copy".split())
"""Ops that return their operand's value unchanged; `dropout` only at inference."""


def op_name(node: fx.Node) -> str:
    """The name of the op that a node calls; empty if it calls none. Cheap: arguments are not bound."""
    if node.op == "call_function":
        return of_function(node.target).op.name
    return of_method(str(node.target)).op.name if node.op == "call_method" else ""


def list_readings(name: str) -> frozenset[str]:
    """The ops that a call of the op `name` can be read as."""
    found = _READINGS.get(name)
    return frozenset((name,)) if found is None else found


def _raw(node: fx.Node) -> NodeReading | None:
    if node.op not in ("call_function", "call_method"):
        return None
    try:
        call = bound_call(node)
    except BindingError:
        return None
    if call is None:
        return None
    return _term(call)


def _other_overloads(node: fx.Node, raw: NodeReading | None) -> Iterator[NodeReading]:
    """The terms of the other overloads that a call of a pattern can be, because its free variables can be anything:
    `x.to(d)` takes a tensor or a dtype, under different argument names."""
    if node.op not in ("call_function", "call_method"):
        return
    # If the result is used whole, an overload that returns a tuple is not meant.
    known, single = [raw], not node.users or not all(user.target in (operator.getitem, getattr) for user in node.users)
    try:
        found = all_bindings(node.target, node.args, node.kwargs, _kind_or_any)
    except BindingError:
        return
    for bound in found:
        several = bound.overload is not None and len(getattr(bound.op.packet, bound.overload)._schema.returns) > 1
        term = _term(bound)
        if term not in known and not (several and single):
            known.append(term)
            yield term


def _kind_or_any(value: Any) -> str:
    return "any" if isinstance(value, fx.Node) and value.op == "placeholder" else kind_of(value)


def _term(call: Bound | Call) -> NodeReading:
    params = next((params for name, params in overloads(call.op) if name == call.overload), ())
    lists = {p.name: p.length or 1 for p in params if p.type in ("int[]", "SymInt[]")}
    arguments = {
        # PyTorch takes `stride=2` for `[2, 2]`; programs have either.
        name: [value] * lists[name] if name in lists and isinstance(value, (int, torch.SymInt)) else value
        for name, value in call.arguments.items()
        if name not in spellings.IGNORED
    }
    return NodeReading(call.op.name, arguments, (), call.inplace)


# Other readings.


def _rank(value: Any) -> int | None:
    found = metadata(value) if isinstance(value, fx.Node) else None
    return found.dim() if isinstance(found, torch.Tensor) else None


def _shape(value: Any) -> tuple[Any, ...] | None:
    found = metadata(value) if isinstance(value, fx.Node) else None
    return tuple(found.shape) if isinstance(found, torch.Tensor) else None


def _same_sizes(a: Any, b: Any) -> bool:
    """Whether two shapes are the same, without a guard on dynamic sizes."""
    return list(map(expression, a)) == list(map(expression, b))


def _transposed(value: Any, terms: Terms) -> tuple[Any, tuple[fx.Node, ...]] | None:
    """The matrix of which a value is the transpose, and the node that transposes it; None if it is not a transpose."""
    if isinstance(value, fx.Node):
        for term in terms.of(value):
            if term.op == "aten.t":
                return term.arguments["self"], (value,)
    return None


def _matrix_product(node: Any, terms: Terms) -> tuple[Any, Any, Any] | None:
    """The operands (x, y, bias) of an `addmm` or `mm`."""
    term = terms.raw(node) if isinstance(node, fx.Node) else None
    if term is None:
        return None
    given = term.arguments
    if term.op == "aten.mm":
        return given["self"], given["mat2"], None
    # `addmm` scales by alpha and beta; linear layers do not.
    plain = term.op == "aten.addmm" and given.get("alpha", 1) == 1 and given.get("beta", 1) == 1
    return (given["mat1"], given["mat2"], given["self"]) if plain else None


def _linear(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    """`addmm(b, x, t(w))` and `mm(x, t(w))` as `linear(x, w, b)`, if the bias is a vector."""
    product = _matrix_product(node, terms)
    transposed = _transposed(product[1], terms) if product is not None else None
    # A matrix is added by `addmm` too, and is no bias.
    if product is None or transposed is None or product[2] is not None and _rank(product[2]) != 1:
        return None
    arguments = {"input": product[0], "weight": transposed[0], "bias": product[2]}
    return NodeReading("aten.linear", arguments, transposed[1])


def _linear_of_more(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    """`view(addmm(b, view(x, [-1, k]), t(w)), [*n, m])` as `linear(x, w, b)`: PyTorch's decomposition of `linear` for
    more than two dimensions."""
    inner = term.arguments.get("self")
    linear = next((t for t in terms.of(inner) if t.op == "aten.linear"), None) if isinstance(inner, fx.Node) else None
    flat = linear.arguments["input"] if linear is not None else None
    below = terms.raw(flat) if isinstance(flat, fx.Node) else None
    if linear is None or below is None or below.op not in _RESHAPES or not linear.through:
        return None
    given, shape, whole = below.arguments["self"], _shape(node), _shape(below.arguments["self"])
    # Two dimensions are the simple case above.
    if shape is None or whole is None or len(whole) < 3 or not _same_sizes(shape[:-1], whole[:-1]):
        return None
    flat_shape = _shape(flat)
    if flat_shape is None or not _same_sizes(flat_shape[-1:], whole[-1:]):
        return None
    return NodeReading("aten.linear", {**linear.arguments, "input": given}, (inner, flat, *linear.through))


def _matmul(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    """`mm` and `bmm` as `matmul`."""
    return NodeReading("aten.matmul", {"self": term.arguments["self"], "other": term.arguments["mat2"]})


def _matmul_of_more(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    """`view(bmm(view(expand(x)), view(expand(y))), shape)` as `matmul(x, y)`, where nothing is broadcast."""
    inner = term.arguments.get("self")
    product = terms.raw(inner) if isinstance(inner, fx.Node) else None
    if product is None or product.op != "aten.bmm":
        return None
    found = [_above_views(product.arguments[name], terms) for name in ("self", "mat2")]
    shapes = [_shape(operand) for operand, _ in found]
    out = _shape(node)
    if out is None or any(shape is None or len(shape) != len(out) for shape in shapes):
        return None
    x, y = shapes[0] or (), shapes[1] or ()
    if not (_same_sizes(x[:-2], y[:-2]) and _same_sizes(out, (*x[:-1], y[-1])) and _same_sizes(x[-1:], y[-2:-1])):
        return None
    through = (inner, *found[0][1], *found[1][1])
    return NodeReading("aten.matmul", {"self": found[0][0], "other": found[1][0]}, through)


def _above_views(node: fx.Node, terms: Terms) -> tuple[fx.Node, tuple[fx.Node, ...]]:
    """The x of `view(expand(x))`, if neither view broadcasts or changes the matrices, and the nodes of these views: the
    decomposition of `matmul` adds them."""
    through: list[fx.Node] = []
    # In the order in which PyTorch's `matmul` adds them: expand, clone, view, read backwards.
    for ops in (_RESHAPES, ("aten.clone",), ("aten.expand",)):
        term = terms.raw(node)
        if term is None or term.op not in ops:
            continue
        given = term.arguments["self"]
        before, after = _shape(given), _shape(node)
        if before is None or after is None:
            break
        if not (_same_sizes(before[-2:], after[-2:]) if ops is _RESHAPES else _same_sizes(before, after)):
            break
        through.append(node)
        node = given
    return node, tuple(through)


def _convolution(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    """`convolution` as `conv1d`, `conv2d` or `conv3d`, by the length of its stride."""
    given = term.arguments
    stride = given["stride"]
    # A transposed convolution is another op, with `output_padding`.
    if given["transposed"] is not False or not isinstance(stride, (list, tuple)) or len(stride) not in (1, 2, 3):
        return None
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    return NodeReading(f"aten.conv{len(stride)}d", {name: given[name] for name in names})


def _softmax(name: str) -> Any:
    def read(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
        """`_softmax(x, dim, False)` as `softmax(x, dim)`."""
        given = term.arguments
        # It casts as well, on CUDA.
        if given.get("half_to_float") is not False:
            return None
        return NodeReading(name, {"self": given["self"], "dim": given["dim"], "dtype": None})

    return read


def _first_of_several(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    """The first result of `native_layer_norm` and the like as the normalization that PyTorch decomposes to them."""
    whole, index = node.args[0], node.args[1]
    below = terms.raw(whole) if isinstance(whole, fx.Node) and index == 0 else None
    if below is None or not isinstance(whole, fx.Node):
        return None
    given, through = below.arguments, (whole,)
    if below.op == "aten.native_layer_norm":
        return NodeReading("aten.layer_norm", given, through)
    if below.op == "aten.native_group_norm":
        names = {"input": "input", "num_groups": "group", "weight": "weight", "bias": "bias", "eps": "eps"}
        return NodeReading("aten.group_norm", {name: given[own] for name, own in names.items()}, through)
    trains = given.get("training", False)
    # In training it computes statistics of the batch, which are further results.
    if below.op in _BATCH_NORMS and trains is False:
        names = {name: name for name in ("input", "weight", "bias", "running_mean", "running_var", "momentum", "eps")}
        return NodeReading("aten.batch_norm", {**{n: given[n] for n in names}, "training": False}, through)
    return None


_BATCH_NORMS = ("aten.native_batch_norm", "aten._native_batch_norm_legit_no_training")


def _transpose(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    """Any spelling of the transpose of a matrix as `t`."""
    given = term.arguments
    if _rank(given.get("self")) != 2:
        return None
    dims = given.get("dims", [given.get("dim0"), given.get("dim1")])
    swaps = term.op in ("aten.numpy_T", "aten.mT")
    if not swaps and all(type(dim) is int for dim in dims):
        swaps = [dim % 2 for dim in dims] in ([[1, 0]] if term.op == "aten.permute" else [[1, 0], [0, 1]])
    return NodeReading("aten.t", {"self": given["self"]}) if swaps else None


def _exchanged(term: NodeReading) -> tuple[int, int] | None:
    """The two dimensions that a call swaps, as non-negative numbers; None if it does something else."""
    given = term.arguments
    rank = _rank(given.get("self"))
    if term.op == "aten.mT":
        given = {"dim0": -2, "dim1": -1}
    if rank is None or rank < 2:
        return None
    if term.op == "aten.permute":
        moved = [i for i, dim in enumerate(given["dims"]) if type(dim) is not int or dim % rank != i]
        return (moved[0], moved[1]) if len(moved) == 2 else None
    pair = given["dim0"], given["dim1"]
    return (pair[0] % rank, pair[1] % rank) if all(type(dim) is int for dim in pair) else None


def _exchange(turned: bool) -> Any:
    def read(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
        """Any call that swaps two dimensions, as `transpose` with these in either order."""
        pair = _exchanged(term)
        if pair is None:
            return None
        # One reading for each order of the two, since a pattern may have written either.
        first, second = sorted(pair, reverse=turned)
        return NodeReading("aten.transpose", {"self": term.arguments["self"], "dim0": first, "dim1": second})

    return read


def _permutation(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    """Any call that swaps two dimensions, as `permute`."""
    pair, rank = _exchanged(term), _rank(term.arguments.get("self"))
    if pair is None or rank is None:
        return None
    dims = list(range(rank))
    dims[pair[0]], dims[pair[1]] = pair[1], pair[0]
    return NodeReading("aten.permute", {"self": term.arguments["self"], "dims": dims})


def _renamed(name: str, **arguments: str) -> Any:
    def read(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
        if any(own not in term.arguments for own in arguments.values()):
            return None
        rest = {key: value for key, value in term.arguments.items() if key not in arguments.values()}
        return NodeReading(name, {**{key: term.arguments[own] for key, own in arguments.items()}, **rest})

    return read


def _silu(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    """`x * sigmoid(x)` as `silu(x)`: PyTorch's decomposition of `silu`."""
    operands = [term.arguments.get("self"), term.arguments.get("other")]
    for x, gate in (operands, operands[::-1]):
        inner = terms.raw(gate) if isinstance(gate, fx.Node) else None
        if inner is not None and inner.op == "aten.sigmoid" and inner.arguments["self"] is x:
            return NodeReading("aten.silu", {"self": x}, (gate,))
    return None


def _square(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    return NodeReading("aten.pow", {"self": term.arguments["self"], "exponent": 2})


def _relu6(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    bounds = term.arguments.get("min_val"), term.arguments.get("max_val")
    return NodeReading("aten.relu6", {"self": term.arguments["self"]}) if bounds == (0, 6) else None


def _cast(term: NodeReading, node: fx.Node, terms: Terms) -> NodeReading | None:
    """`_to_copy(x, dtype=...)` as `x.to(...)`: the same values."""
    others = {key: value for key, value in term.arguments.items() if key not in ("self", "dtype")}
    # `device`, `layout` and `memory_format` would be lost.
    if term.arguments.get("dtype") is None or any(value not in (None, False) for value in others.values()):
        return None
    return NodeReading("aten.to", {"self": term.arguments["self"], "dtype": term.arguments["dtype"]})


_RESHAPES = ("aten.view", "aten.reshape", "aten._unsafe_view")
_NORMS = ("aten.layer_norm", "aten.group_norm", "aten.batch_norm")

# A row only undoes what PyTorch's own decompositions do (`torch/_decomp`, and kernels that are CompositeImplicit): both
# sides compute one function, if not with one rounding.
_TABLE: tuple[tuple[tuple[str, ...], Any, tuple[str, ...]], ...] = (
    (("aten.addmm", "aten.mm"), _linear, ("aten.linear",)),
    (("aten.mm", "aten.bmm"), _matmul, ("aten.matmul",)),
    (_RESHAPES, _linear_of_more, ("aten.linear",)),
    (_RESHAPES, _matmul_of_more, ("aten.matmul",)),
    (("aten.view", "aten._unsafe_view"), _renamed("aten.reshape", shape="size"), ("aten.reshape",)),
    (("aten.convolution",), _convolution, ("aten.conv1d", "aten.conv2d", "aten.conv3d")),
    (("aten._softmax",), _softmax("aten.softmax"), ("aten.softmax",)),
    (("aten._log_softmax",), _softmax("aten.log_softmax"), ("aten.log_softmax",)),
    (("operator.getitem",), _first_of_several, _NORMS),
    (("aten.transpose", "aten.permute", "aten.numpy_T", "aten.mT"), _transpose, ("aten.t",)),
    (("aten.transpose", "aten.permute", "aten.mT"), _exchange(False), ("aten.transpose",)),
    (("aten.transpose", "aten.permute", "aten.mT"), _exchange(True), ("aten.transpose",)),
    (("aten.transpose", "aten.mT"), _permutation, ("aten.permute",)),
    (("aten.rsub",), _renamed("aten.sub", self="other", other="self"), ("aten.sub",)),
    (("aten.gt",), _renamed("aten.lt", self="other", other="self"), ("aten.lt",)),
    (("aten.ge",), _renamed("aten.le", self="other", other="self"), ("aten.le",)),
    (("aten.mul",), _silu, ("aten.silu",)),
    (("aten.square",), _square, ("aten.pow",)),
    (("aten.hardtanh",), _relu6, ("aten.relu6",)),
    (("aten._to_copy",), _cast, ("aten.to",)),
)
"""Rows: the ops that are read differently, the function that reads a call, and the ops of the resulting terms."""
_ALTERNATIVES: dict[str, list[Any]] = {}
_READINGS: dict[str, frozenset[str]] = {}
for _ops, _read, _gives in _TABLE:
    for _op in _ops:
        _ALTERNATIVES.setdefault(_op, []).append(_read)
        _READINGS[_op] = _READINGS.get(_op, frozenset({_op})) | set(_gives)
EQUIVALENT_OPS = frozenset(_op for _, _, _gives in _TABLE for _op in _gives)
"""Ops that calls of other ops can be read as, with operands that differ from those of the call."""
