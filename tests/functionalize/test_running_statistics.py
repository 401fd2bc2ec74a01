"""Normalizations that update running statistics: the functional form gives the same result and the same statistics."""

import copy

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets


def instance_norm(**settings):
    return nn.InstanceNorm2d(3, track_running_stats=True, **settings)


def same(found, expected, tolerance=1e-6):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled
@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad], ids=lambda t: t.name)
@pytest.mark.parametrize("settings", [{}, {"affine": True}, {"momentum": 0.5}], ids=str)
def test_instance_norm_updates_its_running_statistics(settings, target):
    module, x = instance_norm(**settings), torch.randn(4, 3, 5, 6) + 2
    lowered = decomp.lower(copy.deepcopy(module), to=target, args=(x,)).result
    for _ in range(2):
        same(lowered(x), module(x))
    same(dict(lowered.named_buffers()), dict(module.named_buffers()))


def test_statistics_in_single_precision_follow_an_input_in_half():
    module, x = instance_norm().double(), torch.randn(4, 3, 5, 6).bfloat16()
    lowered = decomp.lower(copy.deepcopy(module).float(), to=targets.core_aten, args=(x,)).result
    same(lowered(x).double(), module(x.double()), 2e-2)
    assert lowered.running_mean.dtype is torch.float32
    same(lowered.running_mean.double(), module.running_mean)
    same(lowered.running_var.double(), module.running_var)


def test_evaluated_it_only_reads_them():
    module, x = instance_norm().eval(), torch.randn(4, 3, 5, 6)
    lowered = decomp.lower(copy.deepcopy(module), to=targets.core_aten, args=(x,)).result
    same(lowered(x), module(x))
    assert torch.equal(lowered.running_mean, torch.zeros(3))


def test_the_gradient_does_not_go_through_the_statistics():
    module, x = instance_norm(affine=True), torch.randn(4, 3, 5, 6, requires_grad=True)
    lowered = decomp.lower(copy.deepcopy(module), to=targets.tinygrad, args=(x,)).result
    (expected,) = torch.autograd.grad(module(x).square().sum(), x)
    (found,) = torch.autograd.grad(lowered(x).square().sum(), x)
    same(found, expected, 1e-5)
    assert not lowered.running_mean.requires_grad


def test_the_exported_program_returns_them_as_buffer_mutations():
    x = torch.randn(4, 3, 5, 6)
    module = instance_norm()
    lowered = decomp.lower(torch.export.export(copy.deepcopy(module), (x,)), to=targets.core_aten).result
    assert set(lowered.graph_signature.buffers_to_mutate.values()) >= {"running_mean", "running_var"}
    runs = lowered.module()
    same(runs(x), module(x))
    same(dict(runs.named_buffers()), dict(module.named_buffers()))


def test_a_kernel_at_inference_writes_nothing():
    class Norm(nn.Module):
        def forward(self, x, mean, var):
            return torch.ops.aten._native_batch_norm_legit(x, None, None, mean, var, False, 0.1, 1e-5)[0]

    x = torch.randn(2, 3, 4)
    args = (x, torch.zeros(3), torch.ones(3))
    lowered = decomp.lower(Norm(), to=targets.tinygrad, args=args).result
    same(lowered(*args), Norm()(*args))


@pytest.mark.parametrize("shape", [(0, 4), (2, 4, 0)])
@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
def test_a_batch_without_elements_leaves_the_statistics_as_they_are(shape, target):
    results = []
    for lowers in (False, True):
        model, x = nn.BatchNorm1d(4), torch.zeros(shape, requires_grad=True)
        model.running_mean.fill_(0.5)
        run = decomp.lower(model, to=getattr(targets, target), args=(x,)).result if lowers else model
        out = run(x)
        gradients = torch.autograd.grad(out.sum(), [x, *run.parameters()])
        results.append((out.detach(), dict(run.named_buffers()), gradients))
    torch.testing.assert_close(*results)
