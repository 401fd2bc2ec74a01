"""Capturing a model, whether it succeeds or fails, leaves the model as it was."""

import contextlib
import copy
import math
import random

import numpy as np
import pytest
import torch
from torch import fx, nn

import decomp
from decomp.capture.source_state import source_unchanged
from decomp_rules import targets

X = torch.randn(2, 3, 8, 8)


class Careless(nn.Module):
    """A forward that leaves something behind in every way that Python knows."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.register_buffer("calls", torch.zeros(()))
        self.plain, self.seen, self.last = torch.zeros(2), [], None

    def forward(self, x):
        self.calls.add_(1)
        self.calls.data.mul_(3)
        self.plain.add_(1)
        self.conv.weight.requires_grad_(False)
        self.norm.eval()
        self.seen.append(x)
        self.last = self.extra = torch.rand(3) * random.random()
        self.norm.register_forward_hook(lambda *_: None)
        return self.norm(self.conv(x))


class Failing(Careless):
    def forward(self, x):
        super().forward(x)
        raise ValueError("no")


class Average(nn.Sequential):
    """Its batch norm reads a buffer as a number, which export refuses."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None))


def snapshot(model):
    modules = {
        name: {k: copy.copy(value) if isinstance(value, (dict, list)) else value for k, value in vars(module).items()}
        for name, module in model.named_modules()
    }
    tensors = {
        name: (t.detach().clone(), t.requires_grad, t.grad)
        for name, t in [*model.named_parameters(), *model.named_buffers()]
    }
    return modules, tensors, torch.get_rng_state().tolist(), random.getstate()


def is_same(one, two):
    if type(one) is not type(two):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(is_same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(is_same, one, two))
    return one is two or one == two


def attempts(model):
    for program in (model, fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None)))):
        for options in ({}, {"args": (X,)}, {"args": (X[0],)}, {"args": (X,), "dynamic_shapes": {}}):
            yield program, options


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [Careless, Failing, Average])
def test_the_source_is_as_it_was(kind):
    for program, options in attempts(kind().train()):
        for parameter in program.parameters():
            parameter.grad = torch.ones_like(parameter)
        before = snapshot(program)
        with contextlib.suppress(decomp.DecompError):
            decomp.lower(program, to=targets.core_aten, **options)
        assert is_same(before, snapshot(program))


def test_a_source_that_fails_says_so():
    with pytest.raises(decomp.CaptureError, match="Failing itself fails on these inputs: .*: no\n"):
        decomp.lower(Failing(), to=targets.core_aten, args=(X,))


def test_what_only_dynamo_captures_is_captured():
    class Outside(nn.Module):
        def forward(self, x):
            return x + torch.from_numpy(np.square(x.numpy()))

    lowered = decomp.lower(Outside(), to=targets.core_aten, args=(X,)).result
    torch.testing.assert_close(lowered(X + 1), (X + 1) + (X + 1).square())


class Transposes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.arange(6.0).view(2, 3))

    def forward(self, x):
        self.b.t_()
        return x * 2


def test_a_buffer_that_is_transposed_in_place_keeps_its_shape():
    model = Transposes()
    with source_unchanged(model):
        model(torch.ones(1))
        assert model.b.shape == (3, 2)
    assert model.b.shape == (2, 3) and torch.equal(model.b, torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize("writes", [False, True])
def test_a_buffer_that_repeats_its_elements_is_put_back_and_nan_is_itself(writes):
    model = nn.Module()
    model.register_buffer("b", torch.tensor([1.0, math.nan]).expand(3, 1, 2))
    version = model.b._version
    with source_unchanged(model) as source:
        if writes:
            model.b[0].data.fill_(7)
        assert source.written() == (["b"] if writes else [])
    torch.testing.assert_close(model.b, torch.tensor([1.0, math.nan]).expand(3, 1, 2), equal_nan=True)
    assert model.b.stride()[0] == 0 and (writes or model.b._version == version)


def test_a_buffer_that_takes_other_memory_has_its_own_again():
    model = Transposes()
    before, memory = model.b.clone(), model.b.data_ptr()
    for other in (torch.zeros(2), torch.zeros(2, 3)):
        with source_unchanged(model), torch.no_grad():
            model.b.set_(other)
        assert torch.equal(model.b, before) and model.b.data_ptr() == memory


def test_a_buffer_of_one_number_may_have_any_stride():
    model = nn.Module()
    model.register_buffer("b", torch.zeros(3, 4)[0:1, 1])
    with source_unchanged(model) as source:
        model.b.data.fill_(7)
        assert source.written() == ["b"]
    assert model.b.tolist() == [0.0] and model.b.stride() == (4,)


def test_a_source_that_fails_on_its_inputs_is_not_blamed_on_the_capture():
    with pytest.raises(decomp.CaptureError) as refused:
        decomp.lower(nn.Linear(4, 4), to=targets.core_aten, args=(torch.ones(3, 3),))
    said = str(refused.value).replace("RuntimeError: addmm: ", "RuntimeError: ")  # torch 2.15
    assert said == (
        "Linear itself fails on these inputs: RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x3 and 4x4)\n"
        "  to do: pass inputs (args=, kwargs=) on which the model runs"
    )


def test_a_tensor_is_filled_between_two_bounds():
    class Filled(nn.Module):
        def forward(self, x):
            if x.shape[0] > 2:
                x = x + torch.empty_like(x).random_(3, 9)
            return x, torch.empty(50, dtype=torch.int64).random_(3, to=9)

    shifted, drawn = decomp.lower(Filled(), to=targets.core_aten, args=(torch.zeros(50),)).result(torch.zeros(50))
    assert set(shifted.tolist()) | set(drawn.tolist()) == {3, 4, 5, 6, 7, 8}


def test_tensors_of_inference_mode_are_taken():
    """One whose data was replaced reports that it is no inference tensor, and still has no version."""
    with torch.inference_mode():
        made = torch.randn(3, 4)
    model = nn.Linear(4, 4)
    model.kept, model.replaced = made[:, 1], made[:, 1]
    model.replaced.data = torch.ones(3)
    assert not model.replaced.is_inference()
    with pytest.raises(RuntimeError, match="version counter"):
        model.replaced._version
    with source_unchanged(model) as state:
        pass
    assert state.written() == []
