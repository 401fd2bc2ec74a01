"""The library of rules: `decomp_rules.RULES`, all families joined, and `decomp_rules.targets`. The rules are registered
when `RULES` is first asked for; importing this package costs next to nothing."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

from decomp import Rules
from decomp_rules import targets as targets

if TYPE_CHECKING:
    RULES: Rules

FAMILIES = (
    "primitives complex_numbers complex_functions complex_trigonometry complex_reductions complex_convolution"
    " activation activation_backward gelu exponential logarithm power quotient rounding trigonometry error_function"
    " special orthogonal_polynomials incomplete_gamma normal gamma zeta bessel modified_bessel order_statistics"
    " differences histograms copies index_reduction data_dependent number_theory representation hashing strided"
    " uniqueness arithmetic comparison selection numbering bits casts creation shape slicing diagonals indexing"
    " scattering sorting reduction softmax normalization batch_norms linear triangular lu cholesky orthogonal"
    " eigen singular grouped_products matrix_functions covariance indefinite attention fused_attention quantization"
    " loss loss_backward ctc linear_cross_entropy embedding convolution convolution_kernels pooling"
    " fractional_pooling adaptive_pooling padding resampling grid recurrent random spectral short_time"
    " window_functions"
).split()
"""Modules of this package that hold rules, each in a `RULES` of its own. Earlier ones are asked first."""


@functools.cache
def rules() -> Rules:
    """The rules of all families; with PyTorch's own composite kernels behind them for ops that have no rule."""
    return Rules([entry for family in FAMILIES for entry in _family(family).entries], composites=True)


def _family(name: str) -> Rules:
    found: Rules = importlib.import_module(f"{__name__}.{name}").RULES
    return found


def __getattr__(name: str) -> Rules:
    if name == "RULES":
        return rules()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
