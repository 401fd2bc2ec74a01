"""What transformers' exporters (5.24) patch, and why: each patch, fix and translation by the name of its function, with
small programs that need it. The programs are those of the docstrings of the patches: the call that the converter lacks
or gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import functools
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.conversions import f, whole

KINDS: Mapping[str, str] = {
    "op": "decomposes a call that the converter lacks or gets wrong",
    "capture": "rewrites Python of a model that `torch.export` does not trace, or not for open sizes",
    "sizes": "translates arithmetic on open sizes",
    "converter": "mends the converter's own code",
    "form": "writes a form that the runtime fuses, or weights in 16 bits",
    "random": "takes random numbers out, or makes them otherwise",
    "elsewhere": "for a delegate or a device that is not used here",
}


@dataclass(frozen=True)
class Patch:
    """One patch of an exporter."""

    kind: str
    """One of `KINDS`."""
    what: str
    cases: tuple[str, ...] = ()
    """Programs of `CASES` that need it."""


def _op(what: str, *cases: str) -> Patch:
    return Patch("op", what, cases)


_SIZES = Patch("sizes", "arithmetic on open sizes, as Python's functions")
_FFT = "Fourier transform by matrices or by others"
_CUDA = Patch("elsewhere", "the CUDA delegate lacks it")
_XNNPACK = Patch("elsewhere", "a pass or a check of the XNNPACK delegate")
_MENDED = Patch("converter", "a pass of ExecuTorch that fails on open or data-dependent sizes")
_RANDOM = Patch("random", "zeros, or the identity, for random numbers")
_INPUTS = Patch("capture", "computes inputs before the capture that the model computes by loops over values")
_ROTATED = "complex rotation by pairs of real numbers"

PATCHES: Mapping[str, Patch] = {
    # of several converters
    "_patch_byte_group_hash": _op("a hash in int64, in limbs of eight bits", "hash of bytes"),
    "_patch_histc": _op("histogram by scatter_add", "histc"),
    "_patch_searchsorted": _op("comparisons and a sum", "searchsorted"),
    "_patch_bucketize": _op("comparisons and a sum", "bucketize"),
    "_patch_broadcast_mask_expansion": _op("masks by broadcasting, not by vmap", "mask by vmap"),
    "_patch_reshape": _op("a copy in front of a reshape of strided operands", "reshape of a transposed operand"),
    "_patch_cummax": _op("maxima under a triangular mask", "cummax"),
    "_patch_cummin": _op("minima under a triangular mask", "cummin"),
    "_fix_scatter_reduce": _op("scatter_add and counts", "scatter_reduce, mean", "scatter_reduce, amax"),
    "_fix_assertion": _op("assertions go", "assertion"),
    "drop_runtime_asserts": _op("assertions go", "assertion"),
    "_patch_irfft": _op(_FFT, "irfft", "irfft, odd"),
    "_patch_randperm": _RANDOM,
    # the capture itself
    "_patch_sliding_window_layer": Patch("capture", "a cache with a window is traced as one without"),
    "_patch_classifier_cast": Patch("capture", "no cast of a router's weights in the forward", ("model: nllb-moe",)),
    "dynamo._patch_sdpa": Patch("capture", "attention without a kernel that asks for the size of the batch"),
    "_patch_is_kernels_available": Patch("capture", "no kernels of the hub", ("model: rwkv", "model: mra")),
    "_patch_chunked_vision_attention": Patch("capture", "attention within segments as one batch, not as a loop"),
    "_prepare_grid_thw_vision_inputs": _INPUTS,
    "_prepare_navit_vision_inputs": _INPUTS,
    "_prepare_image_sizes_as_ints": _INPUTS,
    "_prepare_omni_audio_inputs": _INPUTS,
    "_prepare_qwen3_asr_audio_inputs": _INPUTS,
    # OpenVINO
    "_patch_neg": Patch("form", "a product with -1, from which the plugin fuses rotary embeddings"),
    "_patch_linear_forward": Patch("form", "weights in 16 bits"),
    "_patch_embedding_forward": Patch("form", "weights in 16 bits"),
    "_patch_experts_interface": Patch("form", "each expert on each token, which the plugin fuses", ("model: mixtral",)),
    "_patch_layer_norm": _op("weights of one, biases of zero", "layer_norm without weights"),
    "_patch_interpolate": _op("antialiasing by two products of matrices", "interpolate, antialiased"),
    "openvino._patch_sdpa": _op(
        "heads repeated, finite masks, scale in the query", "sdpa, grouped", "sdpa, masked rows", "sdpa, scale"
    ),
    "_patch_qwen3vl_deepstack": _op("a sum at a mask by cumsum and gather", "add at a mask"),
    "_patch_feature_vector_attention_mask": _op("a comparison for an index_put", "mask of lengths"),
    "_patch_polar": _op("products with cosine and sine", "polar"),
    "_patch_deepseek_rotary_emb": _op(_ROTATED, "rotary, DeepSeek V2"),
    "_patch_llama4_rotary_emb": _op(_ROTATED, "rotary, Llama 4"),
    "_patch_llama4_vision_rotary_emb": _op(_ROTATED, "rotary, Llama 4 vision"),
    "_patch_longrope_rotary_emb": Patch("capture", "both sets of frequencies, selected at run time"),
    "openvino._patch_avg_pool2d": _op("kernels no larger than the input", "avg_pool2d, kernel above the input"),
    "_patch_unfold": _op("index_select", "unfold of a tensor"),
    "_patch_randn": _RANDOM,
    "_patch_randint": _RANDOM,
    "_patch_embedding_bag": _op("embedding and a reduction", "embedding_bag"),
    "_patch_cumsum": _op("bool and short integers as int64", "cumsum of bool"),
    "_patch_bincount": _op("scatter_add", "bincount"),
    "_patch_rfft": _op(_FFT, "rfft"),
    "_patch_fft": _op(_FFT, "fft"),
    "_patch_ifft": _op(_FFT, "ifft"),
    "_patch_fftn": _op(_FFT, "fftn"),
    "_patch_ifftn": _op(_FFT, "ifftn"),
    "_patch_rfftn": _op(_FFT, "rfftn"),
    "_patch_irfftn": _op(_FFT, "irfftn"),
    "_patch_scatter_reduce": _op("scatter_add", "scatter_reduce, sum"),
    "_fix_mm_dtype": Patch("elsewhere", "a product with another dtype, which PyTorch has on CUDA alone"),
    "_fix_gather_index_extent": _op("an index as large as the data", "gather, smaller index"),
    "_fix_narrow_int_item": Patch("sizes", "a size read from a tensor of short integers, as int64"),
    "_fix_empty_cat": _op("an empty operand goes", "cat with an empty operand"),
    "_fix_empty_expand": _op("zeros of the expanded size", "expand of an empty tensor"),
    "_fix_index_put_none_indices": _op("a mask and where", "index_put behind full slices"),
    "_fix_index_put_bool_mask": _op("where", "index_put at a mask"),
    "_fix_to_dtype_layout_in_subgraphs": _op("casts in regions as _to_copy", "cast in a no_grad region"),
    "_fix_sym_float": _SIZES,
    "_fix_sym_min_max": _SIZES,
    "_fix_symbolic_pad": _SIZES,
    "_fix_view_inferred_dim": _SIZES,
    "_convert_grouped_mm": _op("a product for each group", "grouped_mm"),
    "_convert_empty_permuted": _op("zeros", "empty_permuted"),
    "_convert_index_add": _op("ScatterElementsUpdate", "index_add"),
    "_convert_bmm": _op("a reshape that keeps a fusion away", "bmm of a softmax"),
    "_convert_complex": _op("pairs", "complex"),
    "_convert_view_as_real": _op("pairs", "complex"),
    "_convert_fft_c2c": _op("DFT of pairs", "fft", "fftn"),
    "_convert_conj": _op("pairs", "conj"),
    "_convert_to_copy": _op("casts to complex dtypes go", "fft of a real operand"),
    "_convert_layer_norm": _op("MVN", "layer_norm without weights"),
    "_convert_sdpa": _op("a mask of integers as bool", "sdpa, masked rows"),
    "_convert_bitwise_not": _op("LogicalNot", "bitwise_not"),
    "_convert_sym_binop": _SIZES,
    "_convert_sym_unop": _SIZES,
    "_convert_sym_floordiv": _SIZES,
    "_convert_sym_truediv": _SIZES,
    # ONNX
    "_patch_where": _op("both branches of one dtype, as tensors", "where with a number", "where of two dtypes"),
    "_patch_unsqueeze": _op("pairs", "unsqueeze of complex numbers"),
    "onnx._patch_sdpa": _op("zeros for rows that mask every key", "sdpa, masked rows"),
    "_patch_rms_norm_forward": _op("mean of squares and rsqrt", "RMSNorm without weights"),
    "onnx._patch_split": Patch("sizes", "slices for parts of an open size"),
    "_patch_opset13_constant": Patch("converter", "an empty list of integers has a dtype"),
    "_patch_optimize_ir": Patch("converter", "no folding of Resize, which takes minutes"),
    "onnx._patch_chunk": Patch("sizes", "slices for parts of an open size"),
    "_patch_exp": _op("cosine and sine", "exp of complex numbers"),
    "_patch_full": _op("int64 for integers", "full of an integer"),
    "_patch_masked_mean": _op("sums", "masked mean"),
    "_patch_masked_var": _op("sums", "masked variance"),
    "_patch_masked_scatter": _op("cumsum and gather", "masked_scatter"),
    "_patch_roll": _op("slices and cat", "roll"),
    "_patch_prepare_for_export": Patch("converter", "a private function of PyTorch, so that the fixes run inside it"),
    "_fix_dead_comparison": _SIZES,
    "_fix_bfloat16_convolution": _op("in float32", "convolution in bfloat16"),
    "_fix_alias": _op("goes", "constant that is written to"),
    "_fix_detach_inplace": _op("not in place", "constant that is written to"),
    "_fix_slice_implicit_start": _op("a start of 0", "slice to an end"),
    "_fix_index_put_last_dim_index": _op("a mask and where", "index_put at the last dimension"),
    "_fix_index_put_inplace": _op("not in place", "index_put at a mask"),
    "_fix_fill_diagonal_inplace": _op("not in place", "fill_diagonal_"),
    "_fix_triu_inplace": _op("not in place", "triu_"),
    "_fix_sort_stable": _op("sort that need not be stable", "stable sort"),
    "_fix_integral_tensor_float_scalar": _op("a cast in front", "integers and a float"),
    "_fix_mul_scalar_symbolic": _SIZES,
    "_fix_remainder_scalar": _SIZES,
    "_aten_bincount": _op("ScatterElements", "bincount"),
    "_aten_index_put": _op("where", "index_put at a mask"),
    "_aten_grouped_mm": _op("a product for each group", "grouped_mm"),
    "_aten_repeat_interleave_self_int": _op("expand and reshape", "repeat_interleave"),
    "_aten_masked_fill": _op("Where", "masked_fill"),
    "_aten_mm_dtype": Patch("elsewhere", "a product with another dtype, which PyTorch has on CUDA alone"),
    "_quantized_decomposed_dequantize_per_channel": _op("DequantizeLinear", "dequantize_per_channel"),
    "_operator_floordiv": _SIZES,
    "_fix_ir_topk_sorted": Patch("elsewhere", "the CUDA provider of ONNX Runtime"),
    "_fix_ir_constant_gather_nd": Patch("elsewhere", "the CUDA provider of ONNX Runtime"),
    # ExecuTorch
    "_patch_adaptive_avg_pool2d": _op("slices and means", "adaptive_avg_pool2d"),
    "_patch_bernoulli": _RANDOM,
    "_patch_scaled_dot_product_attention": _op(
        "the kernel of matrix products, and a copy", "sdpa, grouped", "sdpa, masked rows", "sdpa, then a view"
    ),
    "_patch_expand": _op("a copy", "expand that is returned"),
    "_patch_eval_upper_bound": _MENDED,
    "_patch_remove_empty_tensors_from_cat": _MENDED,
    "_patch_check_tensor_args_dtype": _op("complex dtypes pass a check", "rotary, DeepSeek V2"),
    "_patch_dim_order_from_stride": _MENDED,
    "_patch_update_placeholder_tensor_specs": _MENDED,
    "_patch_lift_constant_tensor_pass": _MENDED,
    "_patch_replace_view_copy_with_view_call": _MENDED,
    "_patch_replace_view_copy_with_view_ensures": _MENDED,
    "_patch_convert_guards_to_code": Patch("converter", "guards are not printed, which takes minutes"),
    "_extend_sym_ops_allowlist": Patch("converter", "more functions of sizes pass a check"),
    "_patch_is_non_identity_clone": _XNNPACK,
    "_patch_flatc_compile_nonfinite": _XNNPACK,
    "_patch_prelu_check_constraints": _XNNPACK,
    "_patch_squeeze_node_visitors": _XNNPACK,
    "executorch.xnnpack._patch_detach": _op("goes", "detach"),
    "executorch.cuda._patch_detach": _CUDA,
    "executorch.cuda._patch_split": _CUDA,
    "executorch.cuda._patch_chunk": _CUDA,
    "executorch.cuda._patch_topk": _CUDA,
    "executorch.cuda._patch_avg_pool2d": _CUDA,
    "_fix_range_constraints": Patch("sizes", "open sizes have a bound"),
    "_fix_missing_placeholder_vals": Patch("converter", "inputs have metadata"),
    "_fix_amax_dim": _XNNPACK,
    "_fix_python_sym_op": _SIZES,
    "_fix_clone_memory_format": _op("contiguous copies", "clone of a transposed operand"),
    "_fix_sym_pow_as_mul": _SIZES,
    "_fix_negative_slice_start": _SIZES,
}
"""By the function's name, behind the converter's where two converters have different ones of one name."""


def patch_of(converter: str, name: str) -> Patch | None:
    """What is known of a patch; None of one that is newer than this table."""
    return PATCHES.get(f"{converter}.{name}") or PATCHES.get(name)


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def _pairs(z: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.resolve_conj(z))


def _complex(*size: int) -> torch.Tensor:
    return torch.randn(*size, dtype=torch.complex64)


def _rotary(module: str, name: str, *shapes: tuple[int, ...]) -> Callable[[], Case]:
    """A rotary embedding of a model of transformers: queries and keys, and angles."""

    def build() -> Case:
        from importlib import import_module

        own = import_module(f"transformers.models.{module}")

        def rotate(q: torch.Tensor, k: torch.Tensor, angles: torch.Tensor) -> Any:
            return getattr(own, name)(q, k, torch.polar(torch.ones_like(angles), angles))

        return rotate, tuple(f(*shape) for shape in shapes)

    return build


def _hash() -> Case:
    from transformers.models.blt import modeling_blt

    return lambda x: modeling_blt.byte_group_hash_function(x, 3, 1000000007, 30002), (whole(256, 2, 9),)


def _scatter_reduce(how: str) -> Case:
    return (
        lambda x, i, y: x.scatter_reduce(1, i, y, reduce=how, include_self=False),
        (f(3, 5), whole(5, 3, 4), f(3, 4)),
    )


def _vmap() -> Case:
    from transformers import masking_utils

    def masked(x: torch.Tensor) -> torch.Tensor:
        sizes = (torch.arange(n) for n in (1, 1, 5, 5))
        return x.masked_fill(masking_utils._vmap_expansion_sdpa(masking_utils.causal_mask_function)(*sizes), 0.0)

    return masked, (f(2, 3, 5, 5),)


def _grouped() -> Case:
    import transformers.integrations.moe  # noqa: F401  # it registers the op

    call = torch.ops.transformers.grouped_mm_fallback
    return lambda x, w, ends: call(x, w, ends), (f(8, 4), f(3, 4, 5), torch.tensor([3, 5, 8], dtype=torch.int32))


def _lengths(mask: torch.Tensor) -> torch.Tensor:
    ends = torch.zeros_like(mask)
    ends[torch.arange(mask.shape[0]), mask.sum(-1) - 1] = 1
    return ends.flip([-1]).cumsum(-1).flip([-1]).bool()


def _written(x: torch.Tensor, at: Any, value: float) -> torch.Tensor:
    x = x.clone()
    x[at] = value
    return x


def _added_at(x: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[mask] += rows
    return x


def _masked_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask > 0)


def _without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.to(torch.float64).cumsum(0)
    return x + y.to(x.dtype)


def _constant(x: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([1.0, 2.0, 3.0])
    table[0] = 5.0
    return x * table


def _dequantized() -> Case:
    import torch.ao.quantization.fx._decomposed  # it registers the op

    call = torch.ops.quantized_decomposed.dequantize_per_channel
    whole_numbers = torch.randint(-9, 9, (3, 4), dtype=torch.int8)
    zeros = torch.zeros(3, dtype=torch.int64)
    return lambda x, s, z: call(x, s, z, 0, -128, 127, torch.int8), (whole_numbers, f(3).abs(), zeros)


CASES: Mapping[str, Callable[[], Case]] = {
    "hash of bytes": _hash,
    "histc": lambda: (lambda x: torch.histc(x, 8, -1, 1), (f(4, 9),)),
    "searchsorted": lambda: (torch.searchsorted, (f(3, 9).sort().values, f(3, 5))),
    "bucketize": lambda: (torch.bucketize, (f(3, 5), f(9).sort().values)),
    "mask by vmap": _vmap,
    "reshape of a transposed operand": lambda: (lambda x: x.transpose(1, 2).reshape(2, 12), (f(2, 3, 4),)),
    "cummax": lambda: (lambda x: tuple(torch.cummax(x, 1)), (f(4, 7),)),
    "cummin": lambda: (lambda x: tuple(torch.cummin(x, 1)), (f(4, 7),)),
    **{f"scatter_reduce, {how}": functools.partial(_scatter_reduce, how) for how in ("mean", "amax", "sum")},
    "assertion": lambda: (lambda x: (torch._assert_async((x > -1e9).all()), x + 1)[1], (f(3, 4),)),
    "irfft": lambda: (lambda x: torch.fft.irfft(torch.view_as_complex(x)), (f(3, 9, 2),)),
    "irfft, odd": lambda: (lambda x: torch.fft.irfft(torch.view_as_complex(x), n=15), (f(3, 8, 2),)),
    "rfft": lambda: (lambda x: _pairs(torch.fft.rfft(x, norm="ortho")), (f(3, 16),)),
    "fft": lambda: (lambda x: _pairs(torch.fft.fft(torch.view_as_complex(x), norm="ortho")), (f(3, 8, 2),)),
    "ifft": lambda: (lambda x: _pairs(torch.fft.ifft(torch.view_as_complex(x))), (f(3, 8, 2),)),
    "fftn": lambda: (lambda x: torch.fft.fftn(x, dim=(1, 2)).real, (f(2, 4, 8),)),
    "ifftn": lambda: (lambda x: _pairs(torch.fft.ifftn(torch.view_as_complex(x))), (f(4, 8, 2),)),
    "rfftn": lambda: (lambda x: _pairs(torch.fft.rfftn(x)), (f(4, 8),)),
    "irfftn": lambda: (lambda x: torch.fft.irfftn(torch.view_as_complex(x)), (f(4, 5, 2),)),
    "fft of a real operand": lambda: (lambda x: torch.fft.fft(x).real, (f(3, 8),)),
    "layer_norm without weights": lambda: (lambda x: F.layer_norm(x, (8,)), (f(3, 8),)),
    "interpolate, antialiased": lambda: (
        lambda x: F.interpolate(x, (5, 4), mode="bilinear", antialias=True),
        (f(1, 3, 12, 9),),
    ),
    "sdpa, grouped": lambda: (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (f(2, 4, 5, 8), f(2, 2, 5, 8), f(2, 2, 5, 8)),
    ),
    "sdpa, masked rows": lambda: (
        _masked_rows,
        (f(2, 2, 5, 8), f(2, 2, 5, 8), f(2, 2, 5, 8), torch.tril(torch.ones(5, 5), -1)),
    ),
    "sdpa, scale": lambda: (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.0),
        (f(2, 2, 5, 8), f(2, 2, 5, 8), f(2, 2, 5, 8)),
    ),
    "sdpa, then a view": lambda: (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 16).view(10, 16),
        (f(2, 2, 5, 8), f(2, 2, 5, 8), f(2, 2, 5, 8)),
    ),
    "add at a mask": lambda: (_added_at, (f(3, 4, 5), torch.tensor([[1, 0, 1, 0]] * 3).bool(), f(6, 5))),
    "mask of lengths": lambda: (_lengths, (torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]),)),
    "polar": lambda: (lambda r, a: _pairs(torch.polar(r, a)), (f(3, 4).abs(), f(3, 4))),
    "rotary, DeepSeek V2": _rotary(
        "deepseek_v2.modeling_deepseek_v2", "apply_rotary_emb", (2, 3, 5, 8), (2, 1, 5, 8), (1, 5, 4)
    ),
    "rotary, Llama 4": _rotary("llama4.modeling_llama4", "apply_rotary_emb", (2, 5, 3, 8), (2, 5, 1, 8), (2, 5, 4)),
    "rotary, Llama 4 vision": _rotary(
        "llama4.modeling_llama4", "vision_apply_rotary_emb", (2, 5, 3, 8), (2, 5, 3, 8), (5, 1, 4)
    ),
    "avg_pool2d, kernel above the input": lambda: (lambda x: F.avg_pool2d(x, 8, ceil_mode=True), (f(1, 3, 4, 4),)),
    "unfold of a tensor": lambda: (lambda x: x.unfold(1, 3, 2), (f(2, 9, 3),)),
    "embedding_bag": lambda: (lambda i, w: F.embedding_bag(i, w, mode="mean"), (whole(9, 3, 4), f(9, 5))),
    "cumsum of bool": lambda: (lambda x: x.cumsum(1), (whole(2, 3, 6).bool(),)),
    "bincount": lambda: (lambda x: torch.bincount(x, minlength=7), (whole(5, 12),)),
    "gather, smaller index": lambda: (lambda x, i: x.gather(1, i), (f(5, 6), whole(6, 3, 2))),
    "cat with an empty operand": lambda: (lambda x: torch.cat([torch.empty(0), x], -2), (f(2, 3, 4, 5),)),
    "expand of an empty tensor": lambda: (lambda x: torch.cat([x[:1, :0].expand(2, 0, 4), x], 1), (f(2, 3, 4),)),
    "index_put behind full slices": lambda: (
        lambda x, i: _written(x, (slice(None), slice(None), i), -9.0),
        (f(2, 3, 6), torch.tensor([1, 4])),
    ),
    "index_put at the last dimension": lambda: (
        lambda x, i: _written(x, (..., i), -9.0),
        (f(2, 6), torch.tensor([1, 4])),
    ),
    "index_put at a mask": lambda: (lambda x, m: _written(x, m, 0.5), (f(2, 3, 4), whole(2, 2, 3).bool())),
    "cast in a no_grad region": lambda: (_without_gradients, (f(3, 4),)),
    "grouped_mm": _grouped,
    "empty_permuted": lambda: (lambda x: torch.empty_permuted((3, 4), (1, 0)).fill_(2.0) * x, (f(3, 4),)),
    "index_add": lambda: (lambda x, i, y: x.index_add(0, i, y), (f(5, 3), whole(5, 4), f(4, 3))),
    "bmm of a softmax": lambda: (
        lambda q, k, v: torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v).view(2, 3, 5, 8),
        (f(6, 5, 8), f(6, 5, 8), f(6, 5, 8)),
    ),
    "complex": lambda: (lambda x, y: torch.view_as_real(torch.complex(x, y)), (f(3, 4), f(3, 4))),
    "conj": lambda: (lambda x: _pairs(torch.view_as_complex(x).conj()), (f(3, 4, 2),)),
    "bitwise_not": lambda: (lambda x, m: x.masked_fill(~m, 0.0), (f(3, 4), whole(2, 3, 4).bool())),
    "where with a number": lambda: (lambda x: torch.where(x > 0, x, -1.0), (f(3, 4),)),
    "where of two dtypes": lambda: (lambda x, y: torch.where(x > 0, x, y), (f(3, 4), whole(9, 3, 4))),
    "unsqueeze of complex numbers": lambda: (lambda x: _pairs(torch.view_as_complex(x).unsqueeze(0)), (f(3, 4, 2),)),
    "RMSNorm without weights": lambda: (torch.nn.RMSNorm(8, elementwise_affine=False), (f(3, 8),)),
    "exp of complex numbers": lambda: (lambda x: _pairs(torch.exp(torch.view_as_complex(x))), (f(3, 4, 2),)),
    "full of an integer": lambda: (lambda x: x + torch.full((3, 4), 7), (whole(9, 3, 4),)),
    "masked mean": lambda: (lambda x, m: torch.masked.mean(x, dim=1, mask=m), (f(3, 6), whole(2, 3, 6).bool())),
    "masked variance": lambda: (
        lambda x, m: torch.masked.var(x, dim=1, unbiased=False, mask=m),
        (f(3, 6), whole(2, 3, 6).bool()),
    ),
    "masked_scatter": lambda: (lambda x, m, y: x.masked_scatter(m, y), (f(3, 6), whole(2, 3, 6).bool(), f(18))),
    "roll": lambda: (lambda x: torch.roll(x, (1, 2), (0, 1)), (f(4, 7),)),
    "convolution in bfloat16": lambda: (
        lambda x, w: F.conv1d(x.bfloat16(), w.bfloat16()).float(),
        (f(1, 3, 9), f(4, 3, 3)),
    ),
    "constant that is written to": lambda: (_constant, (f(2, 3),)),
    "slice to an end": lambda: (lambda x: x[..., :3], (f(2, 5),)),
    "fill_diagonal_": lambda: (lambda x: x.clone().fill_diagonal_(3.0), (f(4, 4),)),
    "triu_": lambda: (lambda x: x.clone().triu_(1), (f(4, 4),)),
    "stable sort": lambda: (lambda x: tuple(torch.sort(x, dim=1, stable=True)), (whole(4, 3, 40),)),
    "integers and a float": lambda: (lambda m: (1.0 - m) + m * 2.5, (whole(2, 3, 4),)),
    "repeat_interleave": lambda: (lambda x: x.repeat_interleave(3, 1), (f(2, 4),)),
    "masked_fill": lambda: (lambda x, m: x.masked_fill(m, float("-inf")), (f(3, 4), whole(2, 3, 4).bool())),
    "dequantize_per_channel": _dequantized,
    "adaptive_avg_pool2d": lambda: (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), (f(1, 2, 7, 11),)),
    "expand that is returned": lambda: (lambda x: x.expand(3, 4), (f(1, 4),)),
    "detach": lambda: (lambda x: x.detach() * 2, (f(3, 4),)),
    "clone of a transposed operand": lambda: (lambda x: x.transpose(0, 1).clone() + 1, (f(2, 3, 4, 5),)),
}
"""Programs that need a patch, by name: a function, and its inputs."""
