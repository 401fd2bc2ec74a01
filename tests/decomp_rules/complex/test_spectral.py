"""Fourier transforms agree with the ops in every scaling and size, for real and for complex inputs."""

from typing import Any

import pytest
import torch

import decomp
from decomp_rules import targets
from decomp_rules.complex import fourier, short_time, spectral
from tests.decomp_rules.rule_agreement import agrees

aten = torch.ops.aten
RULES = spectral.RULES


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    numbers = torch.randn(shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    return numbers.to(dtype) if dtype.is_complex else numbers.real.to(dtype)


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("size", [None, 5, 12])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_dimension(name: str, size: int | None, norm: str | None) -> None:
    for dtype in (torch.float64, torch.float32) + ((torch.complex128,) if name not in ("rfft", "ihfft") else ()):
        for dim in (-1, 0):
            x = sample(dtype, 4, 8)
            agrees(
                RULES,
                getattr(aten, f"fft_{name}").default,
                x,
                size,
                dim,
                norm,
                gradient=not x.is_complex(),
                tolerance=1e-5,
            )


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("sizes", [{}, {"dim": [0, 2]}, {"s": [3, 6]}, {"s": [3, -1], "dim": [1, 2]}], ids=str)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_dimensions(name: str, sizes: dict[str, Any], norm: str | None) -> None:
    for dtype in (torch.float64,) + ((torch.complex128,) if name != "rfftn" else ()):
        x = sample(dtype, 4, 5, 8)
        agrees(RULES, getattr(aten, f"fft_{name}").default, x, norm=norm, **sizes, gradient=False, tolerance=1e-10)


@pytest.mark.parametrize("scaling", [0, 1, 2])
@pytest.mark.parametrize("forward", [True, False])
def test_complex_kernel(forward: bool, scaling: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        agrees(RULES, aten._fft_c2c.default, sample(dtype, 4, 9), [0, 1], scaling, forward, tolerance=1e-5)


@pytest.mark.parametrize("length", [1, 2, 3, 16, 30, 37, 60, 131, 262, 400, 1009])
def test_lengths_of_every_kind_are_as_accurate_as_the_kernel(length: int) -> None:
    x = sample(torch.complex64, 20, length)
    exact = torch.fft.fft(x.to(torch.complex128))

    def error(found: torch.Tensor) -> float:
        return float(((found - exact).abs().square().mean() / exact.abs().square().mean()).sqrt())

    found = fourier.complex_to_complex(x, [1], 0, True)
    assert error(found) <= max(2 * error(torch.fft.fft(x)), 2**-24)
    torch.testing.assert_close(fourier.complex_to_complex(found, [1], 2, False), x, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("scaling", [0, 1, 2])
@pytest.mark.parametrize("size", [5, 8])
def test_kernels_of_real_signals(size: int, scaling: int) -> None:
    for dim in ([0, 1], [1, 0], [1]):
        x = sample(torch.float64, size, size)
        agrees(fourier.RULES, aten._fft_r2c.default, x, dim, scaling, True, gradient=False, tolerance=1e-12)
        agrees(fourier.RULES, aten._fft_r2c.default, x, dim, scaling, False, gradient=False, tolerance=1e-12)
        half = torch.fft.rfftn(x, dim=dim)
        agrees(fourier.RULES, aten._fft_c2r.default, half, dim, scaling, size, gradient=False, tolerance=1e-12)


def test_roots_of_unity_are_exact_where_they_can_be() -> None:
    assert [fourier._root(k, 4, True) for k in range(5)] == [1, -1j, -1, 1j, 1]
    assert fourier._root(1, 8, False) == complex(0.5**0.5, 0.5**0.5)


class Spectrum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.ifft(torch.fft.fft(torch.fft.rfft(x), dim=0), dim=0))


class Pieces(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(12)
        pieces = torch.stft(x, 16, 4, 12, window, return_complex=True, normalized=True)
        return torch.istft(pieces * 2, 16, 4, 12, window, normalized=True)


class Magnitudes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.fftshift(torch.fft.ihfftn(x))
        return spectrum.abs() + torch.fft.hfft2(spectrum, s=(x.shape[-2], 2 * spectrum.shape[-1] - 1))[..., :3]


@pytest.mark.sampled
@pytest.mark.parametrize("target", ["core_aten", "tinygrad", "luminal"])
@pytest.mark.parametrize("program", [Spectrum(), Pieces(), Magnitudes()], ids=lambda program: type(program).__name__)
def test_programs_reach_every_target_with_their_gradients(program: torch.nn.Module, target: str) -> None:
    x = sample(torch.float32, 5, 64 if isinstance(program, Pieces) else 4).requires_grad_()
    low = decomp.lower(program, to=getattr(targets, target), args=(x.detach(),), accuracy="exact").result
    expected, found = program(x), low(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(0.5, 1.5, expected.numel()).reshape(expected.shape)
    grads = [torch.autograd.grad(out, x, weights)[0] for out in (found, expected)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"hop_length": 3}, {"win_length": 8}, {"onesided": False}, {"normalized": True}], ids=str
)
def test_short_time_transforms(options: dict[str, Any]) -> None:
    x, window = sample(torch.float64, 2, 40), torch.hann_window(options.get("win_length", 12), dtype=torch.float64)
    for signal in (x, x[0]):
        agrees(short_time.RULES, aten.stft.default, signal, 12, window=window, return_complex=True, **options)
        agrees(short_time.RULES, aten.stft.center, signal, 12, window=window, return_complex=False, **options)


class Uncentred(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 16, 4, window=torch.ones(16), center=False, return_complex=True)


def test_short_time_transforms_of_adjacent_lines_have_the_strides_of_the_op() -> None:
    x = sample(torch.float32, 40, 2).t()
    found = decomp.lower(Uncentred(), to=targets.core_aten, args=(x,)).result(x)
    assert found.stride() == Uncentred()(x).stride()


def test_frequencies() -> None:
    for n in (1, 4, 5):
        agrees(RULES, aten.fft_fftfreq.default, n, 0.5, gradient=False, tolerance=1e-7)
        agrees(RULES, aten.fft_rfftfreq.default, n, 0.5, gradient=False, tolerance=1e-7)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ["rfft", "fft", "irfft", "hfft", "irfft2"])
def test_transforms_of_any_length_reach_targets_without_complex_numbers(name, norm):
    class Transformed(torch.nn.Module):
        def forward(self, x):
            given = x if name in ("rfft", "fft") else torch.complex(x, 2 * x)
            along = (0, 1) if name == "irfft2" else 0
            found = getattr(torch.fft, name)(given, dim=along, norm=norm)
            return torch.view_as_real(found) if found.is_complex() else found

    length = torch.export.Dim("length", min=8)
    lowered = decomp.lower(
        Transformed(), to=targets.tinygrad, args=(torch.randn(10, 4),), dynamic_shapes=({0: length},), training=False
    ).result
    for n in (8, 9, 101):
        x = torch.randn(n, 4)
        torch.testing.assert_close(lowered(x), Transformed()(x), rtol=1e-5, atol=2e-5)
