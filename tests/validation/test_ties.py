"""Which of several equal elements an op gives is open, and that it gives one of them is not."""

import pytest
import torch

import decomp
from decomp.validation.ties import TieBreak
from decomp_rules import RULES, targets
from tests.forms import Holder

aten = torch.ops.aten
FEW = torch.arange(4 * 40).remainder(7).remainder(3).view(4, 40)
"""Of each number many, and more than a kernel sorts by insertion, which keeps their order."""


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(-1),
        lambda x: x.argsort(0),
        lambda x: (x > 1).sort(descending=True).indices,
        lambda x: x.relu().topk(6, 1).indices,
        lambda x: x.float().masked_fill(x > 1, -torch.inf).topk(30).indices,
        lambda x: x.kthvalue(3),
        lambda x: x.mode(1),
        lambda x: x.median(1, keepdim=True),
    ],
)
@pytest.mark.parametrize("target", [targets.tinygrad, targets.stablehlo], ids=str)
def test_any_of_several_equal_elements_is_right(function, target):
    decomp.lower(Holder(function), to=target, args=(FEW,), verify="values")


def test_gradients_may_go_to_any_of_several_equal_elements():
    x = FEW.float().requires_grad_()
    decomp.lower(Holder(lambda x: x.relu().topk(30).values), to=targets.luminal, args=(x,), verify="values")


@pytest.mark.parametrize(
    "places",
    [lambda p: p * 0, lambda p: p.flip(-1), lambda p: p + 1, lambda p: p - 40, lambda p: p.index_select(-1, p[0] * 0)],
    ids=["all the first", "reversed", "the next", "negative", "one for all"],
)
def test_places_of_other_elements_or_of_one_twice_are_wrong(places):
    rules = decomp.Rules()

    @rules.register(aten.sort.default)
    def sort(x, dim=-1, descending=False):
        values, indices = aten.sort.stable(x, stable=True, dim=dim, descending=descending)
        return values, places(indices)

    chip = decomp.Target("chip", ["sort.stable", "mul", "add", "sub", "flip", "select", "index_select"])
    with pytest.raises(decomp.VerificationError, match="rule sort"):
        decomp.lower(Holder(lambda x: x.sort(-1)), to=chip, args=(FEW,), rules=rules | RULES, verify="values")


def test_the_other_choice_is_another_place_of_an_equal_element():
    x = torch.tensor([[2.0, 1.0, 2.0, torch.nan], [0.0, torch.nan, -0.0, 3.0]])
    choice = TieBreak(x, 1, torch.arange(4).expand(2, 4))
    assert choice.other().tolist() == [[2, 1, 0, 3], [2, 1, 0, 3]]
    assert choice.allows(choice.other()).all()
    assert TieBreak(x.t(), -2, torch.tensor([2, 0])).other().tolist() == [0, 2]


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.svd,
        lambda x: torch.linalg.svd(x)[0] @ x[0],
        lambda x: torch.linalg.svd(x, full_matrices=False).Vh,
        lambda x: torch.linalg.eigh(x @ x.mT),
        lambda x: torch.linalg.eigh(x @ x.mT).eigenvectors * 3,
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_vectors_of_either_sign_are_right(function, grad):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_(grad)
    decomp.lower(Holder(function), to=targets.tinygrad, args=(x,), verify="values")


@pytest.mark.parametrize("wrong", [lambda v: v * 2, lambda v: v.flip(-1), lambda v: v.mT, lambda v: v * v.sign()])
def test_vectors_that_are_wrong_but_for_their_signs_are_named(wrong):
    rules = decomp.Rules()

    @rules.register(torch.linalg.eigh)
    def eigh(x, UPLO="L"):
        values, vectors = aten._linalg_eigh(x, UPLO)
        return values, wrong(vectors)

    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(decomp.VerificationError, match="rule eigh"):
        decomp.lower(
            Holder(lambda x: torch.linalg.eigh(x @ x.mT)),
            to=targets.tinygrad,
            args=(x,),
            rules=rules | RULES,
            verify="values",
        )


def test_what_the_kernel_leaves_undefined_may_be_anything():
    x, w, r, b = (torch.randn(size) for size in ((4, 2, 3), (20, 3), (20, 5), (20,)))
    state = torch.randn(1, 2, 5)

    def layer(x, w, r, b, h, c):
        return aten.mkldnn_rnn_layer(x, w, r, b, b, h, c, False, [], 2, 5, 1, True, False, False, False)[:3]

    decomp.lower(Holder(lambda x: layer(x, w, r, b, state, state)), to=targets.tinygrad, args=(x,), verify="values")


def test_statistics_of_half_types_may_have_the_dtype_of_their_metadata():
    x, weight = torch.randn(4, 3, 5).bfloat16(), torch.ones(3).bfloat16()

    def normed(x):
        return aten._batch_norm_with_update_functional(x, weight, weight, weight, weight, 0.1, 1e-5)[0]

    decomp.lower(Holder(normed), to=targets.tinygrad, args=(x,), verify="values")


def test_what_a_kernel_saves_of_half_types_may_have_the_shape_of_its_metadata():
    table = torch.randn(7, 4).bfloat16()

    def bag(places):
        return aten._embedding_bag(table, places, torch.tensor([0, 2]))[0]

    places = torch.tensor([1, 3, 3, 0, 6])
    decomp.lower(Holder(bag), to=targets.tinygrad, args=(places,), verify="values", training=False)


STEPS = torch.tensor([0.1, 1e-6])
FAR = torch.tensor([[1e30, -1e30, torch.inf, -torch.inf, 1.0], [1e13, -1e13, 1.0, 0.0, torch.nan]])
"""Numbers that fit int64 after division by their steps, and others, whose conversion C++ leaves undefined."""
LEARNT = aten._fake_quantize_learnable_per_channel_affine


@pytest.mark.parametrize("accuracy", ["exact", "standard"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.fake_quantize_per_channel_affine(x, STEPS, torch.tensor([3, 0], dtype=torch.int32), 0, -9, 9),
        lambda x: torch.fake_quantize_per_channel_affine(x.T, STEPS, torch.tensor([0.5, 0.0]), 1, -9, 9),
        lambda x: LEARNT(x, STEPS, torch.tensor([3.0, 0.0]), 0, -9, 9),
    ],
    ids=["whole zeros", "float zeros", "learnt"],
)
def test_either_end_of_the_range_is_right_for_numbers_that_fit_no_integer(function, accuracy):
    decomp.lower(Holder(function), to=targets.tinygrad, args=(FAR,), accuracy=accuracy, verify="values")


@pytest.mark.parametrize("far", [1e15, 1.0])
def test_another_value_is_wrong_for_numbers_that_fit(far):
    rules, x = decomp.Rules(), torch.tensor([[1e30, far]])

    @rules.register(aten.fake_quantize_per_channel_affine)
    def at_low_end(x, scale, zero_point, axis, quant_min, quant_max):
        return torch.clamp(x * 0, max=0).nan_to_num(0.0) + quant_min * scale[0]

    zero = torch.tensor([0], dtype=torch.int32)
    model = Holder(lambda x: torch.fake_quantize_per_channel_affine(x, STEPS[:1], zero, 0, -9, 9))
    with pytest.raises(decomp.VerificationError, match=r"at_low_end.* at \[0, 1\]"):
        decomp.lower(model, to=targets.tinygrad, args=(x,), rules=rules | RULES, verify="values")
