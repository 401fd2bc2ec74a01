"""The library of rules: `decomp_rules.RULES`, all families joined; `decomp_rules.patterns`, named patterns for fused
ops; and `decomp_rules.targets`. The rules are registered at the first access to `RULES`, so that importing this package
is cheap."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decomp import Rules
    from decomp_rules import targets as targets

    RULES: Rules

CERTIFICATES = Path(__file__).parent / "certificates"
FAMILIES = (
    "support.primitives complex.numbers complex.functions complex.trigonometry complex.reductions"
    " complex.convolution pointwise.activation pointwise.activation_backward pointwise.gelu pointwise.exponential"
    " pointwise.logarithm pointwise.power pointwise.quotient pointwise.rounding pointwise.trigonometry"
    " special.powers special.error_function special.functions special.orthogonal_polynomials special.incomplete_gamma"
    " special.normal special.gamma special.zeta special.bessel special.modified_bessel reduce.order_statistics"
    " reduce.differences index.histograms shape.copies index.index_reduction index.data_dependent"
    " special.number_theory pointwise.representation index.hashing shape.strided index.uniqueness"
    " pointwise.arithmetic pointwise.shared_ties pointwise.comparison index.selection index.numbering pointwise.bits"
    " pointwise.casts index.byte_floats"
    " creation.factories shape.shapes shape.slicing shape.diagonals index.indexing index.scattering index.sorting"
    " index.untrained index.sorting_networks index.one_hot"
    " reduce.reduction reduce.deviations reduce.running reduce.extrema nn.softmax nn.normalization"
    " nn.batch_norms linalg.linear linalg.triangular linalg.lu"
    " linalg.cholesky linalg.orthogonal linalg.eigen linalg.singular linalg.grouped_products linalg.scaled_products"
    " linalg.matrix_functions linalg.covariance linalg.indefinite nn.kept_attention nn.attention"
    " nn.fused_attention nn.quantization nn.loss nn.loss_backward nn.ctc nn.linear_cross_entropy nn.embedding"
    " spatial.convolution_forms spatial.convolution"
    " spatial.convolution_kernels spatial.pooling spatial.trained_pooling"
    " spatial.untrained_pooling spatial.fractional_pooling spatial.adaptive_pooling spatial.padding"
    " spatial.resampling spatial.grid nn.recurrent creation.random complex.spectral complex.short_time"
    " creation.window_functions pointwise.bools pointwise.lists"
    " quantized.values quantized.parameters nn.inference pointwise.exponent_bits"
).split()
"""Modules of this package that hold rules, each in a `RULES` of its own. Earlier ones take precedence."""


@functools.cache
def rules() -> Rules:
    """The rules of all families; with PyTorch's own composite kernels as a fallback for ops without a rule."""
    from decomp import Rules  # deferred: the command line shows its help without PyTorch

    return Rules([entry for family in FAMILIES for entry in _family(family).entries], composites=True)


def _family(name: str) -> Rules:
    found: Rules = importlib.import_module(f"{__name__}.{name}").RULES
    return found


def range_of(op: str, level: str) -> tuple[float, float]:
    """The smallest and the largest argument of an ATen op, by its short name, for which a level of accuracy guarantees
    its error bound."""
    found: tuple[float, float] = importlib.import_module(f"{__name__}.support.ranges").range_of(op, level)
    return found


def has_wrong_gradients(op: str) -> bool:
    """Whether PyTorch's own gradients of an ATen op, by its short name, are known to be wrong."""
    return op in importlib.import_module(f"{__name__}.samples.derivatives").DIFFERENTIABLE


def __getattr__(name: str) -> Any:
    if name == "RULES":
        return rules()
    if name in ("patterns", "samples", "backends", "targets"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
