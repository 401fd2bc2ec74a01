"""Binding of arguments: for any spelling, the arguments that PyTorch itself passes to the op."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import decomp
from decomp.ir.binding import BindingError, bind_function, bind_method
from decomp.ir.call import kind_of
from decomp.ir.ops import Op, of_function
from decomp.ir.schema import overloads
from decomp.ir.spellings import IGNORED
from decomp_rules import targets

x = torch.rand(3, 4) + 0.5
y = torch.rand(3, 4) + 0.5
v = torch.rand(4)
i = torch.arange(12).view(3, 4)
image = torch.rand(1, 2, 6, 6)
kernel = torch.rand(4, 2, 3, 3)
classes = torch.tensor([0, 3, 1])

FUNCTIONS = [
    (operator.add, (x, y), {}),
    (operator.add, (x, 2), {}),
    (operator.add, (2, x), {}),
    (operator.sub, (2, x), {}),
    (operator.mul, (2.5, x), {}),
    (operator.lt, (2, x), {}),
    (operator.ge, (2, x), {}),
    (operator.eq, (x, 2), {}),
    (operator.pow, (x, 2), {}),
    (operator.pow, (2, x), {}),
    (operator.pow, (x, y), {}),
    (operator.mod, (i, 3), {}),
    (operator.floordiv, (i, 3), {}),
    (operator.truediv, (x, 2), {}),
    (operator.matmul, (x, v), {}),
    (operator.neg, (x,), {}),
    (operator.and_, (i, 3), {}),
    (operator.lshift, (i, 2), {}),
    (operator.invert, (i,), {}),
    (torch.add, (x, y), {"alpha": 2}),
    (torch.sub, (x, 1), {}),
    (torch.div, (x, y), {"rounding_mode": "floor"}),
    (torch.sum, (x,), {}),
    (torch.sum, (x, 1), {}),
    (torch.sum, (x,), {"dim": (0, 1), "keepdim": True}),
    (torch.sum, (x,), {"axis": 1, "keepdims": True}),
    (torch.mean, (x, [0, 1]), {}),
    (torch.amax, (x, 1), {}),
    (torch.max, (x,), {}),
    (torch.max, (x, 1), {}),
    (torch.max, (x, y), {}),
    (torch.argmax, (x,), {"dim": 1}),
    (torch.var, (x,), {}),
    (torch.var, (x, 1), {}),
    (torch.var, (x,), {"unbiased": False}),
    (torch.var, (x,), {"dim": 1, "correction": 0}),
    (torch.std, (x, 1, True), {}),
    (torch.var_mean, (x,), {}),
    (torch.cat, ([x, y],), {}),
    (torch.cat, ((x, y), 1), {}),
    (torch.stack, ([x, y],), {"dim": 1}),
    (torch.where, (x > 1, x, y), {}),
    (torch.where, (x > 1, x, 0.0), {}),
    (torch.clamp, (x, 0.6), {}),
    (torch.clamp, (x,), {"max": 0.6}),
    (torch.clamp, (x, y), {}),
    (torch.reshape, (x, (4, 3)), {}),
    (torch.transpose, (x, 0, 1), {}),
    (torch.permute, (x, (1, 0)), {}),
    (torch.flip, (x, (0,)), {}),
    (torch.roll, (x, 1), {"dims": 0}),
    (torch.split, (x, 2), {}),
    (torch.split, (x, [1, 2]), {}),
    (torch.split, (x,), {"split_size_or_sections": [1, 3], "dim": 1}),
    (torch.chunk, (x, 2), {"dim": 1}),
    (torch.unflatten, (x, 1, (2, 2)), {}),
    (torch.full, ((2, 3), 1.5), {}),
    (torch.arange, (5,), {}),
    (torch.arange, (1, 5, 2), {}),
    (torch.linspace, (0, 1, 5), {}),
    (torch.zeros, (2, 3), {}),
    (torch.zeros, ((2, 3),), {"dtype": torch.int64}),
    (torch.full_like, (x, 2.0), {}),
    (torch.tril, (x,), {}),
    (torch.einsum, ("ij,kj->ik", x, y), {}),
    (torch.einsum, ("ij,kj->ik", [x, y]), {}),
    (torch.tensordot, (x, y), {"dims": ([1], [1])}),
    (torch.tensordot, (x, x.t(), 1), {}),
    (torch.cdist, (x, y), {}),
    (torch.cdist, (x, y), {"compute_mode": "use_mm_for_euclid_dist"}),
    (torch.atleast_2d, (v,), {}),
    (torch.atleast_2d, (v, x), {}),
    (torch.broadcast_tensors, (x, v), {}),
    (torch.gather, (x, 1, i.clamp(max=3)), {}),
    (torch.linalg.vector_norm, (x,), {"dim": 1}),
    (torch.nn.functional.linear, (x, y), {}),
    (F.gelu, (x,), {"approximate": "tanh"}),
    (F.leaky_relu, (x, 0.2), {}),
    (F.softmax, (x,), {"dim": -1}),
    (F.softmax, (x, 1), {"dtype": torch.float64}),
    (F.log_softmax, (x, 0), {}),
    (F.layer_norm, (x, (4,), v, v), {"eps": 1e-6}),
    (F.layer_norm, (x, [4]), {}),
    (F.softplus, (x, 2), {}),
    (F.batch_norm, (x, v, v), {"weight": v, "bias": v, "training": False, "momentum": 0.2}),
    (F.glu, (x,), {}),
    (F.group_norm, (image, 2), {}),
    (F.rms_norm, (x, (4,), v), {}),
    (F.embedding, (classes, x.t()), {}),
    (F.embedding, (classes.clamp(max=2), x, 1), {}),
    (F.embedding, (classes.clamp(max=2), x, -1), {}),
    (F.conv2d, (image, kernel), {}),
    (F.conv2d, (image, kernel, None, 2, 1), {}),
    (F.conv2d, (image, kernel), {"padding": "same"}),
    (F.conv_transpose2d, (image, kernel.transpose(0, 1)), {}),
    (F.max_pool2d, (image, 2), {}),
    (F.max_pool2d, (image, 3, 2), {"padding": 1}),
    (F.avg_pool2d, (image, 2), {}),
    (F.max_pool2d, (image, 2), {"return_indices": True}),
    (F.adaptive_avg_pool2d, (image, 1), {}),
    (F.pad, (x, (1, 2)), {}),
    (F.pad, (image, (1, 1, 1, 1), "reflect"), {}),
    (F.unfold, (image, 3), {}),
    (F.mse_loss, (x, y), {}),
    (F.mse_loss, (x, y), {"reduction": "sum"}),
    (F.l1_loss, (x, y, None, None, "none"), {}),
    (F.smooth_l1_loss, (x, y), {"beta": 0.5}),
    (F.cross_entropy, (x, classes), {"label_smoothing": 0.1}),
    (F.cross_entropy, (x, classes), {"weight": v, "ignore_index": 1, "reduction": "none"}),
    (F.nll_loss, (x, classes), {}),
    (F.binary_cross_entropy_with_logits, (x, y), {"pos_weight": v}),
    (F.scaled_dot_product_attention, (image, image, image), {"is_causal": True}),
    (F.one_hot, (classes,), {}),
    (F.dropout, (x,), {"p": 0.3, "training": False}),
    (F.hardtanh, (x, -2.0), {}),
    (F.elu, (x,), {"alpha": 2.0}),
    (F.cosine_similarity, (x, y), {}),
    (F.threshold, (x, 0.7, 0.0), {}),
    (F.pixel_shuffle, (kernel.view(2, 4, 3, 3), 2), {}),
]

METHODS = [
    ("view", (2, 6), {}),
    ("view", ((2, 6),), {}),
    ("view", (-1,), {}),
    ("view", (torch.int32,), {}),
    ("reshape", (2, 6), {}),
    ("permute", (1, 0), {}),
    ("expand", (2, 3, 4), {}),
    ("expand", (2, -1, -1), {}),
    ("repeat", (2, 1), {}),
    ("flatten", (), {}),
    ("transpose", (-2, -1), {}),
    ("unsqueeze", (0,), {}),
    ("squeeze", (), {}),
    ("split", (2,), {}),
    ("split", ([1, 2],), {}),
    ("sum", (), {}),
    ("sum", (-1,), {}),
    ("sum", ((0, 1), True), {}),
    ("mean", (), {"dim": 1, "keepdim": True}),
    ("max", (1,), {}),
    ("var", (1, False), {}),
    ("to", (torch.float64,), {}),
    ("float", (), {}),
    ("double", (), {}),
    ("type_as", (i,), {}),
    ("new_zeros", (2, 3), {}),
    ("new_full", ((2,), 1.0), {}),
    ("masked_fill", (x > 1, 0.0), {}),
    ("pow", (2,), {}),
    ("where", (x > 1, y), {}),
    ("clamp", (0, 1), {}),
    ("__rsub__", (2,), {}),
    ("__rpow__", (2.0,), {}),
    ("add_", (y,), {"alpha": 2}),
    ("mul_", (2,), {}),
    ("unflatten", (1, (2, 2)), {}),
    ("narrow", (1, 1, 2), {}),
    ("unfold", (1, 2, 1), {}),
    ("softmax", (-1,), {}),
]


def traced(call, tensors, op):
    """What PyTorch dispatches as `op` for `call`, bound by its own schema, with tensors for placeholders."""
    graph = make_fx(lambda *given: call(given), pre_dispatch=True)(*tensors).graph
    inputs = dict(zip([node for node in graph.nodes if node.op == "placeholder"], tensors))
    overloads = [node for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    node = next((node for node in overloads if of_function(node.target).op == op), overloads[0])
    bound = bind_function(node.target, node.args, node.kwargs, kind_of)
    return bound, {name: fx.node.map_arg(value, lambda n: inputs.get(n, n)) for name, value in bound.arguments.items()}


def exchanged(value, wanted, given):
    """`value` with its tensors exchanged for those of `given`."""
    leaves, spec = torch.utils._pytree.tree_flatten(value)
    places = {id(old): new for old, new in zip(wanted, given)}
    return torch.utils._pytree.tree_unflatten([places.get(id(leaf), leaf) for leaf in leaves], spec)


def assert_bound_as_dispatched(bound, call, args):
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    tensors = list({id(t): t for t in tensors}.values())
    real, arguments = traced(lambda given: call(*exchanged(args, tensors, given)), tensors, bound.op)
    assert (bound.op, bound.overload) == (real.op, real.overload)
    computed = {name for name, value in arguments.items() if isinstance(value, fx.Node)}
    for name in arguments.keys() - IGNORED - computed - {"device", "layout"}:
        assert plain(bound.arguments[name], name) == plain(arguments[name], name), name
    assert bound.arguments.keys() - arguments.keys() <= IGNORED


def plain(value, name):
    """Tensors by identity, and a lone number and a list of it alike."""
    if isinstance(value, (list, tuple)):
        items = [plain(item, name) for item in value]
        return items[0] if len(set(map(str, items))) == 1 else items
    return id(value) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("function, args, kwargs", FUNCTIONS, ids=lambda p: getattr(p, "__name__", ""))
def test_a_function_is_bound_as_pytorch_dispatches_it(function, args, kwargs):
    bound = bind_function(function, args, kwargs, kind_of)
    assert_bound_as_dispatched(bound, lambda a, k: function(*a, **k), (args, kwargs))


@pytest.mark.parametrize("name, args, kwargs", METHODS, ids=lambda p: p if isinstance(p, str) else "")
def test_a_method_is_bound_as_pytorch_dispatches_it(name, args, kwargs):
    tensor = x.clone()
    args = (tensor, *args)
    bound = bind_method(name, args, kwargs, kind_of)
    assert_bound_as_dispatched(bound, lambda a, k: getattr(a[0], name)(*a[1:], **k), (args, kwargs))


def test_in_place_is_said_by_name_and_by_argument():
    assert bind_method("add_", (x, y), {}, kind_of).inplace
    assert bind_function(F.relu, (x,), {"inplace": True}, kind_of).inplace
    assert not bind_function(F.relu, (x,), {}, kind_of).inplace


@pytest.mark.parametrize(
    "old, new", [({"reduce": False}, 0), ({"size_average": False}, 2), ({"size_average": True}, 1), ({}, 1)]
)
def test_the_older_spelling_of_reduction_is_understood(old, new):
    bound = bind_function(F.mse_loss, (x, y), old, kind_of)
    assert bound.arguments == {"self": x, "target": y, "reduction": new} or bound.arguments["reduction"] == new


def test_what_was_written_is_remembered():
    assert bind_function(torch.sum, (x, 1), {}, kind_of).given == {"self", "dim"}
    assert {"dims_self", "dims_other"} <= bind_function(torch.tensordot, (x, y), {"dims": 1}, kind_of).given


def test_softmax_without_a_dimension_takes_the_one_it_always_took():
    assert bind_function(F.softmax, (x,), {}, kind_of).arguments["dim"] == 1
    assert bind_function(F.softmax, (image[0],), {}, kind_of).arguments["dim"] == 0


@pytest.mark.parametrize(
    "function, args, kwargs, message",
    [
        (torch.relu, (x, y), {}, "the arguments fit no overload of aten.relu"),
        (torch.sum, ("text",), {}, "the arguments fit no overload of aten.sum"),
        (torch.ops.aten.relu.default, (), {}, "missing argument self"),
        (torch.ops.aten.relu.default, (x, 1), {}, "too many positional arguments"),
        (torch.ops.aten.relu.default, (x,), {"self": x}, "self is given twice"),
        (torch.ops.aten.relu.default, (x,), {"speed": 2}, "unexpected argument speed"),
        (F.relu, (x,), {"speed": 2}, "got an unexpected keyword argument 'speed'"),
        (torch.einsum, (x, [0, 1]), {}, "einsum is only supported with an equation, not with sublists of subscripts"),
    ],
)
def test_arguments_that_fit_nothing_are_refused(function, args, kwargs, message):
    with pytest.raises(BindingError) as caught:
        bind_function(function, args, kwargs, kind_of)
    assert str(caught.value) == message


def test_polygamma_as_a_method_has_its_number_first():
    bound = bind_method("polygamma", (x, 1), {}, kind_of)
    assert bound.arguments == {"n": 1, "self": x}


def test_an_alias_is_bound_by_the_names_of_the_op_itself():
    bound = bind_function(torch.ops.aten.swapaxes.default, (x, 0, 1), {}, kind_of)
    assert (bound.op.name, bound.overload) == ("aten.transpose", "int")
    assert bound.arguments == {"self": x, "dim0": 0, "dim1": 1}


def test_overloads_of_scripts_are_left_out():
    assert "str" not in dict(overloads(Op("aten.add")))
    assert {"Tensor", "Scalar"} <= dict(overloads(Op("aten.add"))).keys()
    assert "default" in dict(overloads(Op("aten.linspace")))


def test_what_cannot_be_bound_is_an_error_of_the_project_and_of_python():
    assert issubclass(BindingError, decomp.DecompError) and issubclass(BindingError, TypeError)


@pytest.mark.sampled
@pytest.mark.parametrize("function", [torch.add, torch.sub, torch.mul, torch.div, torch.floor_divide])
@pytest.mark.parametrize("target", ["tinygrad", "luminal"])
def test_an_op_of_two_numbers_gives_the_tensor_that_it_always_gave(function, target):
    traced = fx.symbolic_trace(lambda x: x * function(x.size(0) + 4, 2))
    low = decomp.lower(traced, to=getattr(targets, target), args=(x,))
    torch.testing.assert_close(low.result(x), x * function(7, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.new_zeros(y.shape) + y,
        lambda x, y: torch.broadcast_to(x, y.shape),
        lambda x, y: x.expand(y.size()),
        lambda x, y: y.new_full(y.shape, 3.0),
        lambda x, y: torch.full(y.shape, 2.0) + x,
        lambda x, y: y.view(y.shape) * 2,
        lambda x, y: x.expand_as(y).reshape(y.shape[1:] + y.shape[:1]),
    ],
)
def test_a_shape_as_a_whole_is_a_list_of_sizes(function):
    args = torch.arange(4.0), torch.arange(12.0).reshape(3, 4)
    for target in (targets.core_aten, targets.tinygrad):
        lowered = decomp.lower(fx.symbolic_trace(function), to=target, args=args).result
        torch.testing.assert_close(lowered(*args), function(*args))
