"""NumPy as a backend: each primitive against PyTorch, promotion, models, and a few steps of training."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import decomp
from decomp_rules import backends, samples, targets
from decomp_rules.backends import numpy_arrays
from tests import models
from tests.forms import Calls

chip = backends.get("numpy")
aten = torch.ops.aten
SPECIAL = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, float("nan"), float("inf"), -float("inf"), 1e-40, 3e38])
INTS = torch.tensor([-9, -4, -1, 0, 1, 2, 3, 7, 40, 63, 64, 100])
DIVISORS = torch.where(INTS == 0, 5, INTS)
FLOATS = (torch.float16, torch.float32, torch.float64)
CALLS = {
    **{name: [(SPECIAL.to(dtype),) for dtype in FLOATS] for name in ("exp2", "log2", "sin", "sqrt", "reciprocal")},
    "trunc": [(SPECIAL,), (INTS,)],
    **{
        name: [(SPECIAL, SPECIAL.flip(0)), (INTS, SPECIAL), (INTS.to(torch.int8), INTS), (SPECIAL, 2), (INTS, 2)]
        for name in ("add", "mul", "lt", "ne")
    },
    "maximum": [(SPECIAL, SPECIAL.roll(3)), (INTS > 0, INTS < 2)],
    "bitwise_and": [(INTS, DIVISORS), (INTS > 0, INTS < 5)],
    "bitwise_or": [(INTS, 5)],
    "bitwise_xor": [(INTS.int(), DIVISORS.int())],
    "bitwise_left_shift": [(DIVISORS, INTS), (INTS, 3)],
    "bitwise_right_shift": [(DIVISORS, INTS), (INTS, 3)],
    "pow": [(SPECIAL.abs()[:, None], SPECIAL), (INTS[:, None], INTS)],
    "fmod": [(INTS[:, None], DIVISORS), (INTS, 3)],
    "remainder": [(INTS[:, None], DIVISORS), (INTS, -3)],
    "where": [(SPECIAL > 0, SPECIAL, INTS), (INTS > 0, INTS, torch.tensor(2.5))],
    "sum": [(SPECIAL[:6], [0]), (INTS > 0, [0], True), (torch.ones(2, 3, 4), [0, -1]), (torch.ones(0, 3), [0])],
    "prod": [(INTS[:4], 0), (torch.full((2, 3), 1.5), -1, True)],
    "amax": [(SPECIAL.view(3, 4), [-1]), (INTS, [0], True)],
    "flip": [(INTS.view(3, 4), [0, -1])],
    "stack": [([INTS, INTS], -1), ([INTS > 0], 0)],
    "permute": [(INTS.view(3, 2, 2), [2, 0, -2])],
    "expand": [(torch.ones(3, 1), [2, -1, 4])],
    "view": [(torch.ones(0, 3), [-1, 3]), (INTS, [-1, 6]), (SPECIAL, torch.int32), (torch.tensor(2.0), torch.int32)],
    "constant_pad_nd": [(INTS.view(3, 4), [1, 2]), (INTS.view(3, 4), [1, 0, 0, 2], 0)],
    "slice": [(INTS.view(3, 4), 1, 1, -1), (INTS, -1, -3, 99), (INTS, 0, 5)],
    "full": [([2, 3], 1.5), ([], 7), ([2], 7, {"dtype": torch.float16}), ([2], True)],
    "_to_copy": [(INTS, {"dtype": d}) for d in (torch.float16, torch.bool, torch.int8, torch.complex64)],
    "div": [
        *((INTS[:, None], DIVISORS, {"rounding_mode": mode}) for mode in ("trunc", "floor")),
        (INTS.int(), 7, {"rounding_mode": "floor"}),
    ],
}


def _call(name, args):
    args, kwargs = (args[:-1], args[-1]) if isinstance(args[-1], dict) else (args, {})
    return decomp.Sample.of(name, args, kwargs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CALLS)
def test_a_primitive_gives_what_pytorch_gives(name):
    calls = [_call(name, args) for args in CALLS[name]]
    tensors = tuple(itertools.chain.from_iterable(call.tensors for call in calls))
    program = torch.export.export(Calls(calls), tensors)
    found, expected = chip.load(program)(*tensors), program.module()(*tensors)
    for ours, theirs in zip(found, expected, strict=True):
        bound = dict(atol=1e-45, rtol=4 * torch.finfo(theirs.dtype).eps) if theirs.is_floating_point() else {}
        torch.testing.assert_close(ours, theirs, equal_nan=True, **bound)
        if theirs.is_floating_point():
            zeros = theirs == 0
            assert torch.equal(ours[zeros].signbit(), theirs[zeros].signbit())


def test_every_primitive_has_a_function_and_is_tried():
    assert chip.missing() == ()
    ops = {name.removeprefix("aten.").partition(".")[0] for name in targets.tinygrad}
    assert ops - CALLS.keys() == {"rand", "clone", "detach"}


def test_dtypes_of_results_are_pytorchs():
    values = [torch.ones(2, dtype=dtype) for dtype in numpy_arrays.DTYPES if not str(dtype).startswith("torch.uint")]
    values += [value[0] for value in values] + [torch.ones(2, dtype=torch.uint8), True, 3, 2.5, 1j]
    for a, b in itertools.product(values, values):
        if not (isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)):
            continue
        ours = numpy_arrays.common(*(chip.from_torch(x) if isinstance(x, torch.Tensor) else x for x in (a, b)))
        theirs = torch.result_type(a, b)
        assert theirs == torch.complex32 or ours == numpy_arrays.DTYPES[theirs], (a, b)  # NumPy has no complex32


def test_results_share_no_memory_with_parameters():
    model = nn.Linear(2, 2)
    loaded = chip.load(decomp.lower(_Weight(model), to=targets.tinygrad, args=(torch.ones(2),)))
    loaded(torch.ones(2)).zero_()
    assert loaded(torch.ones(2)).abs().sum() > 0


class _Weight(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner.weight.T


def test_random_numbers_are_between_0_and_1_and_others_each_time():
    loaded = chip.load(decomp.lower(_Drop(), to=targets.tinygrad, args=(torch.ones(1000),)))
    one, two = loaded(torch.ones(1000)), loaded(torch.ones(1000))
    assert not torch.equal(one, two) and 0 <= one.min() and one.max() < 1


class _Drop(nn.Module):
    def forward(self, x):
        return torch.rand_like(x) * x


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt", "lstm", "llama"])
def test_a_model_is_as_near_to_float64_as_it_is_itself(name):
    torch.manual_seed(0)
    model, args = samples.model(name) if name in samples.MODELS else models.build(name)
    model.eval()
    loaded = chip.load(decomp.lower(model, to=targets.tinygrad, args=args))
    assert models.error_over_its_own(model, loaded, args) <= 2


def test_a_package_that_is_not_there_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(backends, "_made", {})
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    monkeypatch.delitem(__import__("sys").modules, "decomp_rules.backends.numpy_arrays")
    with pytest.raises(ImportError, match=r"pip install decomp\[numpy\]"):
        backends.get("numpy")
    with pytest.raises(LookupError, match="there are numpy, onnx, stablehlo, tinygrad"):
        backends.get("metal")


def test_arrays_are_numpys():
    assert isinstance(chip.from_torch(torch.ones(2)), np.ndarray)
