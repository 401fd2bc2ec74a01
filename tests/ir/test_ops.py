"""Identity of ops: every spelling of one computation is one op."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.ir import spellings
from decomp.ir.ops import Op, known_names, resolve

aten = torch.ops.aten

SPELLINGS = {
    "relu": [
        F.relu,
        torch.relu,
        torch.relu_,
        F.relu_,
        torch.Tensor.relu,
        torch.Tensor.relu_,
        "relu",
        "relu_",
        nn.ReLU,
        aten.relu,
        aten.relu.default,
        aten.relu_,
        aten.relu_.default,
        "aten.relu",
        "aten.relu.default",
        "F.relu",
        "torch.relu",
        "nn.ReLU",
    ],
    "add": [
        operator.add,
        operator.iadd,
        torch.add,
        "add",
        "torch.add",
        aten.add.Tensor,
        aten.add_.Tensor,
        torch.Tensor.add,
        torch.Tensor.__add__,
        torch.Tensor.__radd__,
        torch.Tensor.__iadd__,
        "operator.add",
    ],
    "matmul": [operator.matmul, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, "matmul", aten.matmul],
    "neg": [operator.neg, torch.neg, torch.negative, torch.Tensor.__neg__, aten.neg.default, aten.neg_],
    "mul": [operator.mul, torch.multiply, torch.mul, aten.multiply.Tensor],
    "div": [operator.truediv, torch.true_divide, torch.div, torch.divide, aten.div_.Tensor],
    "gt": [operator.gt, torch.gt, torch.greater, "__gt__"],
    "bitwise_or": [operator.or_, operator.ior, torch.bitwise_or, aten.__or__, aten.__ior__, torch.Tensor.__or__],
    "clamp": [torch.clamp, torch.clip, torch.Tensor.clip, aten.clip],
    "transpose": [torch.transpose, torch.swapaxes, torch.Tensor.swapdims, torch.Tensor.transpose_],
    "cat": [torch.cat, torch.concat, torch.concatenate, "cat"],
    "sigmoid": [torch.sigmoid, F.sigmoid, torch.special.expit, nn.Sigmoid, torch.Tensor.sigmoid_],
    "softmax": [F.softmax, torch.softmax, nn.Softmax, torch.special.softmax, torch.Tensor.softmax],
    "conv2d": [F.conv2d, torch.conv2d, nn.Conv2d, aten.conv2d.padding],
    "layer_norm": [F.layer_norm, torch.layer_norm, nn.LayerNorm],
    "batch_norm": [F.batch_norm, torch.batch_norm, nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm],
    "cross_entropy_loss": [F.cross_entropy, nn.CrossEntropyLoss, aten.cross_entropy_loss],
    "nll_loss_nd": [F.nll_loss, nn.NLLLoss],
    "log_sigmoid": [F.logsigmoid, nn.LogSigmoid],
    "im2col": [F.unfold, nn.Unfold],
    "max_pool2d": [F.max_pool2d, nn.MaxPool2d, torch.max_pool2d],
    "threshold": [F.threshold, torch.threshold, nn.Threshold],
    "linalg_norm": [torch.linalg.norm, aten.linalg_norm],
    "fft_rfft": [torch.fft.rfft, aten.fft_rfft],
    "to": ["float", "half", "bool", torch.Tensor.float, torch.Tensor.to],
    "scaled_dot_product_attention": [F.scaled_dot_product_attention, aten.scaled_dot_product_attention.default],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_the_same_op(name):
    found = {str(spelling): decomp.op(spelling).name for spelling in SPELLINGS[name]}
    assert found == dict.fromkeys(found, f"aten.{name}")


def test_a_tensors_own_unfold_is_not_that_of_images():
    assert decomp.op("unfold").name == decomp.op(torch.Tensor.unfold).name == "aten.unfold"


@pytest.mark.parametrize("function", [torch.masked.sum, torch.signal.windows.exponential, F.max_unpool2d])
def test_a_function_that_only_shares_an_atens_name_is_an_op_of_its_own(function):
    assert not decomp.op(function).name.startswith("aten.")


def test_functions_of_the_user_and_custom_ops_are_ops():
    def mine(x):
        return x

    assert decomp.op(mine).name.endswith("mine")
    assert decomp.op(mine).packet is None
    assert decomp.op("prims.add").packet is torch.ops.prims.add


@pytest.mark.parametrize("spelling", [aten.relu_, torch.relu_, operator.iadd, "relu_", aten.__ior__, operator.setitem])
def test_in_place_spellings_say_so(spelling):
    assert resolve(spelling).inplace


@pytest.mark.parametrize("spelling", [aten.relu, torch.relu, operator.add, "relu", operator.getitem, operator.imatmul])
def test_functional_spellings_say_so(spelling):
    assert not resolve(spelling).inplace


def test_an_overload_is_remembered():
    assert resolve(aten.sum.dim_IntList).overload == resolve("sum.dim_IntList").overload == "dim_IntList"
    assert resolve(torch.sum).overload is None


def test_casts_imply_their_dtype():
    assert resolve("half").implied == (("dtype", torch.float16),)


def test_reflected_operators_exchange_their_operands_unless_they_commute():
    assert resolve(torch.Tensor.__rsub__).swapped
    assert not resolve(torch.Tensor.__radd__).swapped


@pytest.mark.parametrize(
    "spelling, message",
    [
        ("rleu", "unknown op 'rleu'; did you mean 'relu'?"),
        ("aten.sum.dim_IntLst", "unknown op 'aten.sum.dim_IntLst'; did you mean 'aten.sum.dim_IntList'?"),
        ("torch.nosuchthing", "unknown op 'torch.nosuchthing'"),
        (3, "unknown op 3"),
        (nn.Sequential, "unknown op 'torch.nn.modules.container.Sequential'"),
    ],
)
def test_an_unknown_spelling_names_the_nearest(spelling, message):
    with pytest.raises(decomp.errors.UnknownOp) as caught:
        decomp.op(spelling)
    assert str(caught.value).split(" or ")[0].removesuffix("?") == message.removesuffix("?")


def test_a_module_instance_is_no_spelling():
    with pytest.raises(decomp.errors.UnknownOp, match=r"unknown op ReLU\(\)"):
        decomp.op(nn.ReLU())


def test_names_are_public_and_sorted():
    assert "relu" in known_names()
    assert list(known_names()) == sorted(known_names())


def test_a_rule_may_be_there_before_the_library_that_has_its_op():
    rules = decomp.Rules()
    rules.register(Op("late.scaled"))(lambda x, factor=2.0: x * factor)
    assert Op("late.scaled").packet is None

    @torch.library.custom_op("late::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return x * factor

    class Late(nn.Module):
        def forward(self, x):
            return scaled(x, factor=3.0)

    scaled.register_fake(lambda x, factor=2.0: torch.empty_like(x))
    x = torch.ones(2)
    lowered = decomp.lower(Late(), to=decomp.Target("chip", ("mul",)), rules=rules, args=(x,)).result
    assert torch.equal(lowered(x), 3 * x)


def test_an_op_has_one_name_for_any_namespace_separator():
    assert Op("mylib::foo") == Op("mylib.foo") and str(Op("aten::relu")) == "aten.relu"
    assert hash(Op("aten::relu")) == hash(decomp.op("relu"))


def test_tables_of_exceptions_have_no_op_that_its_name_gives():
    functions = [name for function, name in spellings.FUNCTIONS.items() if spellings.prefixed(function) == name]
    classes = [name for name, op in spellings.MODULES.items() if name.lower() == op.replace("_", "")]
    assert not functions and not classes


@pytest.mark.parametrize("name", ["max_pool1d", "max_pool3d", "adaptive_max_pool2d", "feature_alpha_dropout"])
def test_functions_behind_boolean_dispatch_are_ops_by_their_name(name):
    assert resolve(getattr(F, name)).op == Op(f"aten.{name}")


@pytest.mark.parametrize("cls", [nn.CrossEntropyLoss, nn.LogSigmoid, nn.MultiLabelMarginLoss, nn.Threshold])
def test_classes_are_ops_by_their_name(cls):
    assert resolve(cls).op.short.replace("_", "") == cls.__name__.lower()
