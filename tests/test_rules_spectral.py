"""Fourier transforms agree with the ops in every scaling and size, for real and for complex inputs."""

from typing import Any

import pytest
from rule_agreement import agrees
import torch

import decomp
from decomp_rules import spectral, targets

aten = torch.ops.aten
RULES = spectral.RULES


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("size", [None, 5, 12])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_dimension(name: str, size: int | None, norm: str | None) -> None:
    for dtype in (torch.float64, torch.float32) + ((torch.complex128,) if name not in ("rfft", "ihfft") else ()):
        for dim in (-1, 0):
            x = sample(dtype, 4, 8)
            agrees(RULES, getattr(aten, f"fft_{name}").default, x, size, dim, norm, gradient=not x.is_complex(),
                   tolerance=1e-5)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("sizes", [{}, {"dim": [0, 2]}, {"s": [3, 6]}, {"s": [3, -1], "dim": [1, 2]}], ids=str)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_dimensions(name: str, sizes: dict[str, Any], norm: str | None) -> None:
    for dtype in (torch.float64,) + ((torch.complex128,) if name != "rfftn" else ()):
        x = sample(dtype, 4, 5, 8)
        agrees(RULES, getattr(aten, f"fft_{name}").default, x, norm=norm, **sizes, gradient=False,
               tolerance=1e-10)


@pytest.mark.parametrize("scaling", [0, 1, 2])
@pytest.mark.parametrize("forward", [True, False])
def test_complex_kernel(forward: bool, scaling: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        agrees(RULES, aten._fft_c2c.default, sample(dtype, 4, 9), [0, 1], scaling, forward, tolerance=1e-5)


class Spectrum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.ifft(torch.fft.fft(torch.fft.rfft(x), dim=0), dim=0))


def test_reaches_core_aten() -> None:
    x = torch.randn(2, 8)
    low = decomp.lower(Spectrum(), to=targets.core_aten, args=(x,))
    torch.testing.assert_close(low.result(x), Spectrum()(x))
