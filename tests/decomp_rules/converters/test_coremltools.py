"""Core ML: calls that its target leaves to rules, and results that its programs may not have."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp.tools.converting.conversion import conversion
from decomp_rules import targets
from tests.forms import Holder
from tests.installed import converter

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""coremltools (9.0) leaves its temporary folders to be cleaned up, of which Python warns."""

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def integers(x):
    """By the ops whose integers Core ML makes floats."""
    count = (x > 0).sum(1)
    zeros = torch.zeros(3, dtype=torch.int64) + torch.zeros_like(x[:, 0], dtype=torch.int64)
    return F.pad(count, (1, 2), value=3), torch.full_like(count, 2), count.new_full((2,), 5), zeros, count // 2


def lowered(function, x=X):
    return decomp.lower(Holder(function), to=targets.coremltools, args=(x,), training=False, verify="values").result


def test_integers_of_which_core_ml_makes_floats_are_computed_by_other_calls():
    calls = [node for node in lowered(integers).graph.nodes if node.op == "call_function"]
    called = {str(node.target) for node in calls}
    assert not called & {f"aten.{name}" for name in FLOATS}
    assert all(node.kwargs.get("dtype") for node in calls if node.target is torch.ops.aten.full.default)


PADDED = ("constant_pad_nd.default", "pad.default")
FLOATS = (*PADDED, "div.Tensor_mode", "floor_divide.default", "full_like.default", "new_full.default", "zeros.default")


def test_floats_keep_these_calls():
    called = [str(node.target) for node in lowered(lambda x: F.pad(x, (1, 2)) + 1).graph.nodes]
    assert {"aten.constant_pad_nd.default", "aten.pad.default"} & {*called}


def test_the_integers_of_a_converted_program_are_integers():
    coremltools = converter("coremltools")
    found = conversion(Holder(integers), coremltools, (X,), None, None, None, True, {})
    assert "5 results within" in found.verified
    as_exported = coremltools.convert(torch.export.export(Holder(lambda x: (x > 0).sum(1)), (X,)))
    with pytest.raises(NotImplementedError, match=r"Core ML returns torch\.float32 where the program has torch\.int64"):
        coremltools.run(as_exported, [X])


def test_indices_computed_from_counts_are_taken():
    found = conversion(Holder(lambda x: x.median(1)), converter("coremltools"), (X,), None, None, None, True, {})
    assert "2 results within" in found.verified


def test_integers_clamped_on_one_side_index_other_tensors():
    def clamped(x):
        count = (x > 0).to(torch.int64).sum(1)
        return x[count.clamp(None, 2)], x[count.clamp(1)]

    found = conversion(Holder(clamped), converter("coremltools"), (X,), None, None, None, True, {})
    assert "2 results within" in found.verified


SIX = (1, 2, 1, 3, 1, 2)
REARRANGED = {
    "swapped": lambda x: x.view(SIX).transpose(1, 3).contiguous().view(4, 3),
    "in no groups": lambda x: x.view(SIX).permute(5, 3, 1, 0, 2, 4).reshape(3, 4),
    "swapped twice": lambda x: x.view(SIX).transpose(1, 3).transpose(0, 5).flatten(),
    "not at all": lambda x: x.view(SIX).reshape(4, 3),
}
REFUSED = {
    "computed with": lambda x: x.view(SIX) * 2,
    "permuted and computed with": lambda x: (x.view(SIX) * 2).transpose(1, 3).reshape(4, 3),
    "used twice": lambda x: (lambda y: (y.reshape(4, 3), y.flatten()))(x.view(SIX).transpose(1, 3)),
    "returned": lambda x: x.view(SIX).transpose(1, 3),
}


@pytest.mark.parametrize("form", REARRANGED)
def test_six_dimensions_between_two_reshapes_are_converted(form):
    found = conversion(Holder(REARRANGED[form]), converter("coremltools"), (X,), None, None, None, True, {})
    assert "1 result within" in found.verified


@pytest.mark.parametrize("form", REFUSED)
def test_other_tensors_of_six_dimensions_are_refused_before_core_ml_refuses_them(form):
    with pytest.raises(decomp.NotLowered, match="the target accepts it under a condition: tensors have at most 5 dim"):
        lowered(REFUSED[form])


@pytest.mark.parametrize("sizes", [(2, 18, 16), (18, 16)])
def test_images_are_folded_within_five_dimensions(sizes):
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    program = lowered(lambda x: F.fold(x, (6, 6), 3), x)
    assert max(node.meta["val"].dim() for node in program.graph.nodes if "val" in node.meta) == 5
    torch.testing.assert_close(program(x), F.fold(x, (6, 6), 3))


class HalfBuffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.5, dtype=torch.bfloat16), persistent=False)

    def forward(self, x):
        return x * self.scale.to(x.dtype)


COMPLETED = {
    "sums along a dimension counted from the end": Holder(lambda x: x.view(2, 3, 2).cumsum(-2)),
    "a tensor of a number": Holder(lambda x: torch.maximum(x, torch.full((), -1.0))),
    "a buffer of bfloat16": HalfBuffer(),
}


@pytest.mark.parametrize("form", COMPLETED)
def test_what_core_ml_requires_is_completed(form):
    found = conversion(COMPLETED[form], converter("coremltools"), (X,), None, None, None, True, {})
    assert "1 result within" in found.verified
