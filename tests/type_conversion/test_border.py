"""Programs in pairs on backends: complex inputs, results and state are PyTorch's, arrays are real."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import backends
from tests.type_conversion.test_pairs import transformed, x, z


class Spectral(nn.Module):
    def forward(self, x):
        return transformed(x)


class Mixed(nn.Module):
    """Complex input, parameter, buffer, written buffer and results."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(z(4, seed=1))
        self.register_buffer("phase", z(4, seed=2))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.complex64))

    def forward(self, z, x):
        product = z * self.phase + self.weight * x
        self.seen.add_(product.detach().sum(0))
        return {"product": product, "size": product.abs(), "given": z}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["numpy", "onnx"])
def test_a_backend_without_complex_numbers_runs_complex_programs(name):
    backend, model, source = backends.get(name), Mixed(), Mixed()
    program = backend.load(decomp.lower(model, to=backend.target, args=(z(3, 4), x(4))))
    assert not any(isinstance(leaf.meta, torch.Tensor) and leaf.meta.is_complex() for leaf in program.leaves)
    for _ in range(2):
        torch.testing.assert_close(program(z(3, 4), x(4)), source(z(3, 4), x(4)))
    state = program.state_dict()
    torch.testing.assert_close(state["seen"], source.seen)
    assert {tensor.dtype for tensor in state.values()} == {torch.complex64}
    program.load_state_dict({"phase": source.phase * 2})
    doubled = copy.deepcopy(source)
    doubled.phase *= 2
    torch.testing.assert_close(program(z(3, 4), x(4)), doubled(z(3, 4), x(4)))


@pytest.mark.parametrize("name", ["numpy", "onnx"])
def test_the_error_of_a_spectral_program_is_that_of_the_model(name):
    backend, model, given = backends.get(name), Spectral(), x(8, 16)
    found = backend.load(decomp.lower(model, to=backend.target, args=(given,)))(given)
    exact = model(given.double())
    assert (found - exact).norm() <= 3 * (model(given) - exact).norm() + 1e-7 * exact.norm()


def test_complex_numbers_that_a_backend_has_are_left_to_it():
    chip = decomp.Backend("chip", from_torch=lambda x: x, to_torch=lambda x: x)
    seen = []
    for op in ("view_as_real", "mul"):
        chip.implements(op)(lambda *args, op=op: seen.append(op) or getattr(torch, op)(*args))

    class Model(nn.Module):
        def forward(self, z):
            return torch.view_as_real(z) * 2

    program = chip.load(torch.export.export(Model(), (z(3),)))
    torch.testing.assert_close(program(z(3)), Model()(z(3)))
    assert seen == ["view_as_real", "mul"]


def test_a_conjugate_that_is_not_computed_is_refused_with_what_to_pass():
    low = backends.numpy.target
    with pytest.raises(decomp.CaptureError, match="x has the conjugate bit set.*\n.*resolve_conj"):
        decomp.lower(torch.export.export(Twice(), (z(4).conj(),)), to=low)
    decomp.lower(torch.export.export(Twice(), (z(4).conj().resolve_conj(),)), to=low)


class Twice(nn.Module):
    def forward(self, x):
        return x * 2
