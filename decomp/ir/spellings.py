"""The exceptions to the rule that an op is the ATen op of its name: plain tables, which are not repeated elsewhere."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.nn import functional as F

from decomp.torch_internals.graphs import get_data_attr

OPERATORS: dict[Any, str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.floordiv: "floor_divide",
    operator.mod: "remainder",
    operator.pow: "pow",
    operator.neg: "neg",
    operator.pos: "positive",
    operator.abs: "abs",
    operator.matmul: "matmul",
    operator.and_: "bitwise_and",
    operator.or_: "bitwise_or",
    operator.xor: "bitwise_xor",
    operator.inv: "bitwise_not",
    operator.invert: "bitwise_not",
    operator.lshift: "bitwise_left_shift",
    operator.rshift: "bitwise_right_shift",
    operator.eq: "eq",
    operator.ne: "ne",
    operator.lt: "lt",
    operator.le: "le",
    operator.gt: "gt",
    operator.ge: "ge",
    operator.iadd: "add_",
    operator.isub: "sub_",
    operator.imul: "mul_",
    operator.itruediv: "div_",
    operator.ifloordiv: "floor_divide_",
    operator.imod: "remainder_",
    operator.ipow: "pow_",
    operator.iand: "bitwise_and_",
    operator.ior: "bitwise_or_",
    operator.ixor: "bitwise_xor_",
    operator.ilshift: "bitwise_left_shift_",
    operator.irshift: "bitwise_right_shift_",
    # Python has no in-place matmul for tensors: `x @= y` rebinds x.
    operator.imatmul: "matmul",
}
"""The ATen op that a tensor runs for each Python operator."""

ALIASES: dict[str, str] = {
    "absolute": "abs",
    "negative": "neg",
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
    "true_divide": "div",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
    "concat": "cat",
    "concatenate": "cat",
    "clip": "clamp",
    "fix": "trunc",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "arccosh": "acosh",
    "arcsinh": "asinh",
    "arctanh": "atanh",
    "moveaxis": "movedim",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "special_exp2": "exp2",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_expit": "sigmoid",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_erfinv": "erfinv",
    "special_round": "round",
    "special_sinc": "sinc",
    "special_logit": "logit",
    "special_logsumexp": "logsumexp",
    "special_softmax": "softmax",
    "special_log_softmax": "log_softmax",
    "special_digamma": "digamma",
    "special_psi": "digamma",
    "special_gammaln": "lgamma",
    "special_polygamma": "polygamma",
    "special_i0": "i0",
    "special_xlogy": "xlogy",
    "special_multigammaln": "mvlgamma",
    "clip_": "clamp_",
    "absolute_": "abs_",
    "negative_": "neg_",
    "multiply_": "mul_",
    "subtract_": "sub_",
    "divide_": "div_",
    "true_divide_": "div_",
    "greater_": "gt_",
    "greater_equal_": "ge_",
    "less_": "lt_",
    "less_equal_": "le_",
    "not_equal_": "ne_",
    "fix_": "trunc_",
    "swapaxes_": "transpose_",
    "swapdims_": "transpose_",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "__lshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift",
}
"""ATen ops with two names and one meaning."""

INPLACE: dict[str, str] = {
    "__iand__": "bitwise_and",
    "__ior__": "bitwise_or",
    "__ixor__": "bitwise_xor",
    "__ilshift__": "bitwise_left_shift",
    "__irshift__": "bitwise_right_shift",
    # `aten.normal` draws around the tensor that it is given.
    "normal_": "normal_functional",
}
"""In-place ops whose functional form is not their name without the underscore."""

FUNCTIONS: dict[Any, str] = {
    F.unfold: "im2col",
    F.fold: "col2im",
    F.cross_entropy: "cross_entropy_loss",
    F.dropout2d: "feature_dropout",
    F.dropout3d: "feature_dropout",
    F.nll_loss: "nll_loss_nd",
    # Its own name is `_threshold`, as one of its parameters has the other one.
    F.threshold: "threshold",
    get_data_attr: "detach",
}
"""Functions whose ATen op has another name."""

MODULES: dict[str, str] = {
    "BatchNorm1d": "batch_norm",
    "BatchNorm2d": "batch_norm",
    "BatchNorm3d": "batch_norm",
    "SyncBatchNorm": "batch_norm",
    "InstanceNorm1d": "instance_norm",
    "InstanceNorm2d": "instance_norm",
    "InstanceNorm3d": "instance_norm",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "KLDivLoss": "kl_div",
    "NLLLoss": "nll_loss_nd",
    "NLLLoss2d": "nll_loss_nd",
    "Dropout2d": "feature_dropout",
    "Dropout3d": "feature_dropout",
    "Unfold": "im2col",
    "Fold": "col2im",
    "RNN": "rnn_tanh",
    "ConstantPad1d": "pad",
    "ConstantPad2d": "pad",
    "ConstantPad3d": "pad",
    "ZeroPad1d": "pad",
    "ZeroPad2d": "pad",
    "ZeroPad3d": "pad",
    "Softmax2d": "softmax",
}
"""Module classes whose op is not their lower-case name."""

_CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "long": torch.int64,
    "int": torch.int32,
    "short": torch.int16,
    "char": torch.int8,
    "byte": torch.uint8,
    "bool": torch.bool,
    "cfloat": torch.complex64,
    "cdouble": torch.complex128,
}

METHODS: dict[str, Any] = {
    **{name: ("to", (("dtype", dtype),)) for name, dtype in _CASTS.items()},
    "cpu": ("to", (("device", torch.device("cpu")),)),
    "__getitem__": "operator.getitem",
    "__setitem__": "operator.setitem",
    # `x.where(c, y)` has the condition second, and the op has it first.
    "where": "where",
    "polygamma": "polygamma",
    # An attribute, which graphs read by `getattr`; the op of the name `t` is another one.
    "T": "numpy_T",
}
"""Methods of Tensor that are not the ATen op of their name."""

REFLECTED: dict[str, str] = {
    "__radd__": "add",
    "__rmul__": "mul",
    "__rsub__": "sub",
    "__rtruediv__": "div",
    "__rdiv__": "div",
    "__rfloordiv__": "floor_divide",
    "__rmod__": "remainder",
    "__rpow__": "pow",
    "__rmatmul__": "matmul",
    "__rand__": "bitwise_and",
    "__ror__": "bitwise_or",
    "__rxor__": "bitwise_xor",
    "__rlshift__": "bitwise_left_shift",
    "__rrshift__": "bitwise_right_shift",
}
"""Reflected operators: `x.__rsub__(y)` is `y - x`."""

COMMUTATIVE: frozenset[str] = frozenset("add mul bitwise_and bitwise_or bitwise_xor".split())
"""Ops whose reflected operator does not swap operands: `x.__radd__(y)` is `x + y`."""

MIRRORED: dict[str, str] = {
    "add": "add",
    "mul": "mul",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "sub": "rsub",
    "lt": "gt",
    "gt": "lt",
    "le": "ge",
    "ge": "le",
    "eq": "eq",
    "ne": "ne",
}
"""From an op of a number and a tensor to the op of the tensor and the number."""

# The last line has methods of the containers that models pass around, too.
HOST_METHODS: frozenset[str] = frozenset(
    "size dim ndimension numel nelement stride storage_offset element_size is_contiguous is_floating_point is_complex"
    " is_signed get_device data_ptr untyped_storage storage __len__ is_conj is_neg is_inference"
    " requires_grad_ retain_grad register_hook keys values items get append extend".split()
)
"""Methods that query a tensor, and do not return one."""

HOST_ATTRIBUTES: frozenset[str] = frozenset(
    "shape dtype device ndim layout is_cuda is_cpu is_meta requires_grad is_leaf is_nested is_sparse is_quantized "
    "names itemsize nbytes".split()
)

IGNORED: frozenset[str] = frozenset(
    {"cudnn_enabled", "cudnn_enable", "non_blocking", "pin_memory", "generator", "benchmark", "deterministic"}
    | {"allow_tf32", "_stacklevel", "requires_grad", "inplace"}
)
"""Arguments that never affect values: binding drops them."""

RENAMED: dict[str, dict[str, str]] = {
    "embedding": {"input": "indices"},
    "dropout": {"training": "train"},
    "alpha_dropout": {"training": "train"},
    "feature_dropout": {"training": "train"},
    "feature_alpha_dropout": {"training": "train"},
    "split": {"split_size_or_sections": "split_size"},
    "einsum": {"operands": "tensors"},
}
"""From parameters of Python functions to the schema's names, where they differ, except `input` for `self`."""

KEYWORDS: dict[str, str] = {
    "input": "self",
    "axis": "dim",
    "axis0": "dim0",
    "axis1": "dim1",
    "keepdims": "keepdim",
    "x": "self",
    "x2": "other",
}
"""Alternative names that PyTorch's parser accepts for a schema's arguments (NumPy's, and `input`)."""

REDUCTIONS: dict[str, int] = {"none": 0, "mean": 1, "sum": 2}

# `should_allow_numbers_as_tensors` in torch/csrc/utils/python_arg_parser.cpp. The backward of `mul` calls `_conj`.
NUMBER_AS_TENSOR: frozenset[str] = frozenset("add sub mul div floor_divide _conj".split())
"""Ops for which PyTorch accepts a Python number as a tensor."""


OWN: frozenset[Any] = frozenset(
    {F.max_unpool1d, F.max_unpool2d, F.max_unpool3d, F.fractional_max_pool2d, F.fractional_max_pool3d, F.embedding_bag}
)
"""Python functions with the name of an ATen op, but other arguments."""

LIBRARIES: frozenset[str] = frozenset(
    "torch torch.functional torch.nn.functional torch.linalg torch.special torch.fft torch._VF torch._tensor"
    " torch._C torch._C._nn torch._C._linalg torch._C._special torch._C._fft torch._linalg_utils"
    " torch._jit_internal _VariableFunctions _VariableFunctionsClass".split()
)
"""Modules whose functions are the ATen ops of their names. Others reuse these names with other meanings:
`torch.masked.sum`, `torch.signal.windows.exponential`, `torch.distributed.gather`."""


def method(name: str) -> tuple[Any, ...]:
    """The fields of the `Spelling` of method `name` of `METHODS`."""
    from decomp.ir.ops import Op

    entry = METHODS[name]
    if isinstance(entry, tuple):
        return Op(f"aten.{entry[0]}"), None, False, entry[1]
    if entry.startswith("operator."):
        return Op(entry), None, entry == "operator.setitem"
    return Op(f"aten.{entry}"), None, False, (), name in ("where", "polygamma")


def prefixed(function: Any) -> str:
    """The ATen name of a function in its module: `torch.linalg.norm` is `linalg_norm`."""
    name = str(getattr(function, "__name__", ""))
    for prefix in ("linalg_", "special_", "fft_"):
        if name.startswith(prefix):
            return name
    module = str(getattr(function, "__module__", "") or "")
    for family in ("linalg", "special", "fft"):
        if module.endswith((f".{family}", f"._{family}")):
            return f"{family}_{name}"
    return name
