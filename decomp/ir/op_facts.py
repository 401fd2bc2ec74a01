"""Facts about PyTorch's ops that are in no schema or tag (torch 2.13), by short op name: which results are views, what
is written, what promotes, where fake tensors have other strides than kernels. `tests/ir/test_op_facts.py` compares each
table with PyTorch, so that changes in a new version are detected."""

from __future__ import annotations

from collections.abc import Mapping
import enum
from typing import Any

import torch

from decomp.metadata import fake_stride_fixes
from decomp.metadata.fake_stride_fixes import Layout


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Views.

MAYBE_VIEW = _names(
    "reshape reshape_as flatten ravel contiguous to type_as cpu cuda type resolve_conj resolve_neg dropout "
    "alpha_dropout feature_dropout feature_alpha_dropout atleast_1d atleast_2d atleast_3d broadcast_tensors meshgrid "
    "sum_to_size einsum to_dense conj real pin_memory _autocast_to_full_precision _autocast_to_reduced_precision"
)
"""Ops whose result is a view, the argument itself, or a copy, depending on strides, dtypes and arguments. From their
documentation and composite kernels (aten/src/ATen/native)."""

UNDECLARED_VIEWS = _names(
    "type_as type dropout alpha_dropout feature_dropout feature_alpha_dropout atleast_1d atleast_2d atleast_3d "
    "broadcast_tensors meshgrid sum_to_size einsum to_dense requires_grad_ data _unsafe_view"
)
"""Ops whose result may share memory with an argument although their schema does not say so."""

LIST_VIEWS = _names("atleast_1d atleast_2d atleast_3d broadcast_tensors meshgrid")
"""Ops that take and return several tensors: each result is a view of the tensor at its position."""

SAME_TENSOR = _names(
    "requires_grad_ to contiguous type_as type cpu cuda dropout alpha_dropout feature_dropout feature_alpha_dropout "
    "conj real resolve_conj resolve_neg positive lift_fresh to_dense"
)
"""Ops that return either the argument itself or a new tensor."""

VIEW_ATTRIBUTES = _names("T mT H mH data real imag")
"""Attributes of a tensor that are views of it."""

READS_STRIDES = _names("as_strided as_strided_ as_strided_scatter stride is_contiguous storage_offset")
"""Ops whose results depend on the strides or storage of an argument."""
RETURNS_STRIDES = _names("stride")
"""Those whose results are the strides themselves, including those of dimensions of size one, which say nothing about
memory."""
READS_MEMORY = _names("as_strided as_strided_copy as_strided_scatter")
"""Ops that may access memory of the storage outside of their first argument."""


class ViewKind(enum.Enum):
    """The part of its base that a view shows, which decides how to write a new value of the view back."""

    WHOLE = "the base itself"
    RESHAPED = "all elements in their order, in another shape"
    EXPANDED = "elements repeated"
    TRANSPOSED = "two dimensions exchanged"
    MOVED = "dimensions moved"
    PERMUTED = "dimensions permuted"
    OWN_INVERSE = "what the same op undoes"
    DETACHED = "the base without its gradient"
    DIAGONAL = "a diagonal"
    PIECE = "one of several pieces"
    SELECTED = "one index of a dimension"
    SLICED = "every n-th index of a dimension"
    NARROWED = "a range of a dimension"
    STRIDED = "memory, by strides"
    BITS = "the bits in another dtype"
    AS_REAL = "complex numbers as pairs"
    AS_COMPLEX = "pairs as complex numbers"
    REAL_PART = "the real parts"
    IMAGINARY_PART = "the imaginary parts"
    INDEXED = "a basic index"


VIEW_KINDS: Mapping[str, ViewKind] = {
    **dict.fromkeys(
        _names(
            "alias positive lift_fresh contiguous to type_as cpu cuda type resolve_conj resolve_neg dropout "
            "alpha_dropout feature_dropout feature_alpha_dropout sum_to_size requires_grad_ pin_memory to_dense"
        ),
        ViewKind.WHOLE,
    ),
    **dict.fromkeys(
        _names(
            "view reshape view_as reshape_as flatten unflatten ravel squeeze unsqueeze _unsafe_view _reshape_alias "
            "atleast_1d atleast_2d atleast_3d"
        ),
        ViewKind.RESHAPED,
    ),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to", "broadcast_tensors"), ViewKind.EXPANDED),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), ViewKind.TRANSPOSED),
    **dict.fromkeys(("movedim", "moveaxis"), ViewKind.MOVED),
    **dict.fromkeys(_names("t T numpy_T mT mH H matrix_H adjoint conj _conj _neg_view"), ViewKind.OWN_INVERSE),
    **dict.fromkeys(("detach", "data"), ViewKind.DETACHED),
    **dict.fromkeys(("diagonal", "linalg_diagonal"), ViewKind.DIAGONAL),
    **dict.fromkeys(_names("split split_with_sizes chunk unbind tensor_split hsplit vsplit dsplit"), ViewKind.PIECE),
    "permute": ViewKind.PERMUTED,
    "select": ViewKind.SELECTED,
    "slice": ViewKind.SLICED,
    "narrow": ViewKind.NARROWED,
    "as_strided": ViewKind.STRIDED,
    "view_dtype": ViewKind.BITS,
    "view_as_real": ViewKind.AS_REAL,
    "view_as_complex": ViewKind.AS_COMPLEX,
    "real": ViewKind.REAL_PART,
    "imag": ViewKind.IMAGINARY_PART,
    "getitem": ViewKind.INDEXED,
}
"""The kind of view by op. `view_dtype` is `view` with a dtype, `getitem` is Python's. Writing through other views is
not supported."""

# Writes.

BATCH_NORMS = _names(
    "batch_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm miopen_batch_norm _batch_norm_impl_index "
    "_batch_norm_with_update instance_norm"
)
"""Ops that update running statistics in training, most without declaring it in their schema."""

METADATA_WRITES = _names("squeeze_ unsqueeze_ transpose_ t_ swapaxes_ swapdims_ detach_ as_strided_")
"""In-place ops that change a tensor's sizes and strides, not its memory: those with the tag `inplace_view`."""

STORAGE_CHANGES = _names("resize_ resize_as_ set_ apply_ map_ map2_ _resize_output_")
"""Ops that replace a tensor's memory, or run Python on it. Functional ops of these names mean something else."""

NOT_WRITES = _names("requires_grad_ retain_grad share_memory_")
"""Methods that write no data although their name says so."""

PROMOTING_IN_PLACE = _names("float_power_ cumsum_ cumprod_")
"""In-place ops whose functional forms promote their operands: to float64, and integers to int64."""

COMPARISONS = _names("eq ne lt le gt ge")
"""Ops that have no gradient, and whose in-place forms have one of zero for both operands."""

PREDICATES = COMPARISONS | _names("logical_and logical_or logical_xor logical_not")
"""Ops whose functional form returns booleans, but whose in-place form does not."""

COMPLEX_INSIDE = _names("fft_irfft fft_irfft2 fft_irfftn fft_hfft fft_hfft2 fft_hfftn")
"""Ops that treat their input as complex, and return real numbers."""

RANDOM_IN_PLACE = _names("uniform_ normal_ exponential_ geometric_ cauchy_ log_normal_ random_ bernoulli_")
"""In-place random ops. Their functional variants are ATen ops without Tensor methods."""

# Memory.

COPIES = _names("clone _to_copy")
"""Ops that copy the elements of their first operand to new memory, as `copy_` does to existing memory."""

NOT_INTO_MEMORY = _names(
    "_fft_c2c _fft_c2r _fft_r2c _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_lanczos2d_aa "
    "_upsample_nearest_exact2d binary_cross_entropy cholesky cholesky_solve index_reduce linalg_ldl_solve "
    "masked_select mse_loss mvlgamma scatter_reduce smooth_l1_loss special_ndtr upsample_bicubic2d "
    "upsample_bilinear2d upsample_linear1d upsample_nearest2d"
)
"""Ops whose `out=` overload allocates a temporary result, or computes other bits than without it."""

EXACTLY_ROUNDED = _names(
    "abs add bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min clone _to_copy div eq floor "
    "ge gt le logical_and logical_not logical_or logical_xor lt maximum minimum mul ne neg reciprocal round rsub sgn "
    "sign sqrt sub trunc where"
)
"""Pointwise ops defined bitwise by IEEE 754, so that every kernel returns the same."""

ROW_REDUCTIONS = _names("sum mean amax amin any all prod")
"""Reductions whose kernels compute each result independently of the number of results."""

ROW_VIEWS = _names("detach alias view reshape _unsafe_view expand unsqueeze squeeze transpose permute slice select")
"""Views that may leave the leading dimensions unchanged."""

# Gradients.

SAVES_NOTHING = _names(
    "add sub rsub neg cat stack clone expand expand_as sum mean detach to _to_copy type_as copy view reshape permute "
    "transpose t select slice squeeze unsqueeze select_scatter slice_scatter diagonal_scatter zeros_like full_like "
    "uniform bernoulli normal_functional getitem alias view_as reshape_as flatten index_put masked_fill fill"
)
"""Ops whose derivative needs none of their floating-point operands (tools/autograd/derivatives.yaml), but possibly
masks and indices."""

SAVES_ITS_RESULT = _names(
    "amax amin aminmax exp exp2 expm1 sqrt rsqrt reciprocal relu sigmoid tan tanh softmax log_softmax _softmax "
    "_log_softmax _safe_softmax logsumexp logcumsumexp cumprod prod std linalg_vector_norm hypot copysign sgn"
)
"""Ops whose derivative reads their result, in every overload, so that it must not be written
(tools/autograd/derivatives.yaml)."""

DIFFERENTIABLE_IN_FIRST = _names("expand_as view_as reshape_as type_as to sum_to_size")
"""Ops whose second operand only provides a shape or dtype, and gets no gradient."""

WITHOUT_GRADIENT = (
    PREDICATES
    | {name.removesuffix("_") for name in RANDOM_IN_PLACE}
    | _names(
        "zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full "
        "new_empty new_tensor new_empty_strided normal_functional detach data size shape sym_size argmax argmin "
        "isnan isinf"
    )
)
"""Ops whose results have no gradient, or only depend on the shape and dtype of their operands."""

# Dependence of results.

FACTORIES = _names(
    "arange empty empty_strided eye full linspace logspace ones rand randint randn randperm range scalar_tensor "
    "tril_indices triu_indices zeros hann_window hamming_window bartlett_window blackman_window kaiser_window"
)
"""Ops that create a tensor without tensor operands."""

UNINITIALISED = _names("empty empty_like empty_permuted empty_quantized empty_strided new_empty new_empty_strided")
"""Ops whose results have no defined values until they are written."""

SHAPE_OF_THE_FIRST = _names(
    "fill zero copy zeros_like ones_like full_like empty_like rand_like randn_like randint_like bernoulli"
)
"""Ops tagged as pointwise, or nearly, whose results do not depend on the values of their first operand."""

NEEDS_ALL_ELEMENTS = _names(
    "mm bmm addmm baddbmm matmul linear convolution sum mean cumsum view reshape permute transpose t expand unsqueeze "
    "squeeze flatten clone contiguous alias _to_copy to softmax _softmax log_softmax _log_softmax amax amin"
)
"""Non-pointwise ops in which each element of the operands affects some element of the result."""

CHECKS_RANGE = _names(
    "embedding embedding_dense_backward gather index index_add index_copy index_fill index_put index_reduce "
    "index_select nll_loss nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward one_hot scatter "
    "scatter_add scatter_reduce take take_along_dim cross_entropy_loss max_pool2d_with_indices_backward max_unpool2d "
    "max_unpool3d max_pool3d_with_indices_backward cumsum cumprod sum prod mean sort topk argmax argmin max min amax "
    "amin any all cat stack mm bmm addmm dot mv matmul"
)
"""Ops that accept integers in their whole range, or whose kernels refuse those out of range."""

SIZES = _names("sym_size sym_stride sym_numel sym_storage_offset")
"""Ops that return a size or stride of a tensor."""

SIZE_METHODS = _names("size stride numel dim storage_offset")
"""Tensor methods that return the same."""

# Algebra.

COMMUTATIVE = _names(
    "add mul maximum minimum fmax fmin eq ne logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor "
    "logaddexp logaddexp2 hypot gcd lcm"
)
"""Ops of two operands whose order does not matter (that of `add` where its alpha is 1)."""

SUMS = _names("add sub rsub")
"""Sums and differences, in which `alpha` may scale one operand. For a complex and a real operand the imaginary part of
the result is that of the complex one, or its negative."""

# Effects.

COLLECTIVES = _names("c10d _c10d_functional _c10d_functional_autograd c10d_functional _dtensor")
"""Namespaces of ops that communicate with other processes."""

ASSERTS = ("_assert", "_check", "sym_constrain_range")
"""Prefixes of the names of assertions."""

MODE_SWITCHES = _names("_set_grad_enabled _enter_autocast _exit_autocast _enter_inference_mode _exit_inference_mode")
"""Functions of torch that switch a mode on or off for the calls that follow."""

SWITCHED_REGIONS = _names("wrap_with_set_grad_enabled wrap_with_autocast")
"""Higher-order ops that run their body once, with gradients or autocast switched."""

RUN_ONCE = SWITCHED_REGIONS | {"wrap", "tag_activation_checkpoint"}
"""Higher-order ops that run one body, on the operands that follow it, exactly once."""


def runs_once(target: Any) -> bool:
    """Whether what a node calls is one of `RUN_ONCE`."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.__name__ in RUN_ONCE


DISTINCT_OPERANDS = _names("cond while_loop scan map_impl associative_scan")
"""Higher-order ops that cannot be traced with the same tensor as two operands."""

CONTROL_FLOW = _names(
    "cond while_loop scan map_impl associative_scan invoke_subgraph wrap tag_activation_checkpoint "
    "wrap_activation_checkpoint hints_wrapper strict_mode autograd_function_apply"
)
"""Higher-order ops that only run their bodies, which are lowered."""

# Strides.

KERNEL_STRIDES: Mapping[str, Layout] = {
    **dict.fromkeys(
        _names(
            "copysign xlogy special_xlog1py floor_divide logical_and logical_or logical_xor heaviside logaddexp "
            "logaddexp2 native_dropout_backward"
        ),
        fake_stride_fixes.by_element,
    ),
    "div": fake_stride_fixes.rounded,
    # Reported as https://github.com/pytorch/pytorch/issues/139312, and avoided within Inductor by
    # https://github.com/pytorch/pytorch/pull/144736.
    **dict.fromkeys(("index", "_unsafe_index"), fake_stride_fixes.indexed),
    **dict.fromkeys(
        _names(
            # Reported as https://github.com/pytorch/pytorch/issues/192668.
            "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
            "_native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_with_update_functional "
            "max_unpool2d reflection_pad3d replication_pad3d"
        ),
        fake_stride_fixes.by_format,
    ),
    "log_sigmoid_forward": fake_stride_fixes.in_order,
    # Under the Python dispatcher the decomposition of `dropout` ends in a copy, also where nothing is dropped.
    "dropout": fake_stride_fixes.dropped_out,
}
"""By op, the strides that its CPU kernel gives the first result, and others of the same rank, if those of fake tensors
are wrong."""

_TARGET, _INDICES = ("target",), ("indices",)
TAKES_INT64: Mapping[str, tuple[str, ...]] = {
    "index_copy": ("index",),
    "index_fill": ("index",),
    "take": ("index",),
    "put": ("index",),
    "one_hot": ("self",),
    **dict.fromkeys(("linear_cross_entropy", "_linear_cross_entropy_batch_chunked_no_reduction"), _TARGET),
    "take_along_dim": _INDICES,
    "cross_entropy_loss": _TARGET,
    "nll_loss": _TARGET,
    "nll_loss_nd": _TARGET,
    **dict.fromkeys(("nll_loss_forward", "nll_loss_backward", "nll_loss2d", "nll_loss2d_forward"), _TARGET),
    **dict.fromkeys(("nll_loss2d_backward", "multi_margin_loss", "multi_margin_loss_backward"), _TARGET),
    **dict.fromkeys(("multilabel_margin_loss", "multilabel_margin_loss_forward"), _TARGET),
    "multilabel_margin_loss_backward": ("target", "is_target"),
    **dict.fromkeys(("max_unpool2d", "max_unpool3d", "max_pool2d_with_indices_backward"), _INDICES),
    **dict.fromkeys(("max_pool3d_with_indices_backward", "fractional_max_pool2d_backward"), _INDICES),
    **dict.fromkeys(("fractional_max_pool3d_backward", "adaptive_max_pool2d_backward"), _INDICES),
    "adaptive_max_pool3d_backward": _INDICES,
}
"""Arguments for which PyTorch's kernels (torch 2.13, CPU) only accept int64, by short op name: for some, fake tensors
would accept int32. Others, such as `gather` and `index_select`, accept both."""

# Floats of a byte: float8, and float4 in pairs.

BYTE_FLOATS_MOVED = _names(
    "clone copy reshape lift_fresh_copy cat stack where index_select embedding roll repeat select_scatter "
    "slice_scatter diagonal_scatter as_strided_scatter select_backward slice_backward diagonal_backward diag_embed "
    "block_diag zeros zeros_like new_zeros empty empty_like new_empty empty_strided new_empty_strided eq ne isnan "
    "alias_copy as_strided_copy detach_copy diagonal_copy expand_copy permute_copy select_copy slice_copy split_copy "
    "split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy view_copy"
)
"""Ops beside views that have kernels for all of them: those that move numbers, or compare tensors of them."""
BYTE_FLOATS_CAST = _names("_to_copy index _unsafe_index any all masked_select")
"""Ops that have kernels for float8."""
BYTE_FLOATS_FILLED = _names("full full_like new_full ones ones_like new_ones fill constant_pad_nd scalar_tensor")
"""Ops that have kernels for float8 where it has the number (float8_e8m0fnu has no zero)."""
BYTE_FLOATS_REDUCED = _names("sum mean")
"""Ops that have kernels for float8 where `dtype` says another one for the result."""
