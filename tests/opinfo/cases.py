"""Cases from PyTorch's own operator and module tests: each entry in each dtype and each capture that it has, with
seeded samples and samples of special values. What they are judged by is in `opinfo_verdict`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import itertools
import random
from typing import Any
import warnings

import torch
from torch import fx, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64)
SEED = 0
FLOATS = (
    float("nan"),
    float("inf"),
    float("-inf"),
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    3.0,
    -3.0,
    1e-40,
    -1e-40,
    3e38,
    -3e38,
    1e-30,
    90.0,
    -90.0,
    1e4,
    2.5,
)
INTS = (0, 1, -1, 2, 7, -7, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))


@dataclass(frozen=True)
class Program:
    """A module to lower, the tensors to call it with, and what to do with its outputs before they are compared."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    arguments: Callable[[tuple[torch.Tensor, ...]], tuple[Any, Any]] = lambda tensors: (tensors, {})
    """The positional and named arguments of a call, made of such tensors."""
    exported: bool = False
    """Whether it is exported first; otherwise it is lowered as it is."""
    settle: Callable[[Any], Any] = lambda out: out
    special: bool = False
    """Whether the inputs hold special values: then gradients are not compared."""
    random: bool = False
    """Whether the result is random, so that only its shape and dtype can be compared."""


@dataclass(frozen=True)
class Case:
    """One entry in one dtype and one capture."""

    entry: str
    dtype: torch.dtype
    capture: str
    info: Any

    def __str__(self) -> str:
        return f"{self.entry}-{self.dtype_name}-{self.capture}"

    @property
    def dtype_name(self) -> str:
        """`float32`."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def is_module(self) -> bool:
        """Whether this is one of the module tests."""
        return not isinstance(self.info, OpInfo)

    def programs(self, count: int, seed: int | None = None) -> Iterator[Program]:
        """Up to `count` ordinary samples spread over all, or one of these that a seed draws; and one of special values
        where that makes sense."""
        made = _op_programs if isinstance(self.info, OpInfo) else _module_programs
        yield from made(self, count, None if seed is None else random.Random(f"{seed} {self}"))

    @property
    def random(self) -> bool:
        """Whether results are random (or uninitialised), so that only shape and dtype can be compared."""
        return self.entry in RANDOM or "dropout" in self.entry and self.capture != "evaluated"

    def draws(self, kwargs: dict[str, Any]) -> bool:
        """Whether a sample draws although the entry need not."""
        return self.random or any(kwargs.get(name, 0) not in (0, 0.0) for name in ("dropout_p", "dropout"))

    @property
    def differentiable(self) -> bool:
        """Whether gradients are compared."""
        floats = self.dtype in (torch.float32, torch.complex64)
        return floats and not self.random and getattr(self.info, "supports_autograd", True)


RANDOM = frozenset(
    "bernoulli cauchy empty empty_like empty_permuted empty_strided exponential geometric log_normal multinomial"
    " new_empty new_empty_strided normal normal.in_place normal.number_mean rand_like randint randint_like randn"
    " randn_like uniform nn.functional.alpha_dropout nn.functional.dropout nn.functional.dropout2d"
    " nn.functional.dropout3d nn.functional.feature_alpha_dropout.with_train nn.functional.rrelu nn.RReLU"
    " nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.FractionalMaxPool2d"
    " nn.FractionalMaxPool3d nn.functional.multi_head_attention_forward svd_lowrank pca_lowrank"
    " randperm nn.functional.gumbel_softmax".split()
)


def entry_name(info: Any) -> str:
    """`max.reduction_with_dim` for an operator test, `nn.Linear` for a module test."""
    if isinstance(info, OpInfo):
        return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
    return f"nn.{info.module_cls.__name__}"


def cases(dtypes: tuple[torch.dtype, ...] = DTYPES) -> list[Case]:
    """All cases, entries in the order of PyTorch's tables."""
    found = []
    for info in op_db:
        supported = info.supported_dtypes("cpu")
        for dtype in dtypes:
            if dtype in supported:
                found += [Case(entry_name(info), dtype, capture, info) for capture in _captures(info, dtype)]
    for info in module_db:
        for dtype in dtypes:
            if dtype in info.dtypes:
                found += [Case(entry_name(info), dtype, mode, info) for mode in ("training", "evaluated")]
    return found


def _captures(info: OpInfo, dtype: torch.dtype) -> list[str]:
    if dtype is not torch.float32:
        return ["exported"]
    variants = {
        "function": _is_torch_function(info.op) and info.op,
        "method": info.method_variant,
        "operator": info.operator_variant,
        "inplace": info.inplace_variant,
    }
    return ["exported", *(name for name, variant in variants.items() if variant)]


def _is_torch_function(function: Any) -> bool:
    return getattr(function, "__name__", "<lambda>") not in ("<lambda>", "wrapper", "op")


class Called(nn.Module):
    """A module that calls a function with tensors in their places among constants."""

    def __init__(self, function: Callable[..., Any], spec: pytree.TreeSpec, leaves: list[Any]) -> None:
        super().__init__()
        self.function, self.spec, self.leaves = function, spec, leaves

    def forward(self, *tensors: torch.Tensor) -> Any:
        args, kwargs = self.spec.unflatten(_filled(self.leaves, tensors))
        return self.function(*args, **kwargs)


class _Place:
    """Where a tensor goes; a class, of which a copied module has no other."""


_PLACE = _Place


def _filled(leaves: list[Any], values: Any) -> list[Any]:
    supply = iter(values)
    return [next(supply) if leaf is _PLACE else leaf for leaf in leaves]


def _op_programs(case: Case, count: int, draw: random.Random | None) -> Iterator[Program]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _seeded()
        samples = list(itertools.islice(case.info.sample_inputs("cpu", case.dtype), 400))
    wanted = count if case.capture == "exported" else 1
    tied = case.entry in ORDERING and case.dtype is not torch.float32
    for sample in _spread(samples, wanted, draw):
        settle = _values if tied else sample.output_process_fn_grad
        yield _program(case, (sample.input, *sample.args), sample.kwargs, settle)
    if case.capture == "exported":
        yield from _special_programs(case, samples)


def _seeded() -> None:
    torch.manual_seed(SEED)
    random.seed(SEED)


ORDERING = ("topk", "sort", "kthvalue")
"""Entries whose second result says which of equal elements came first, which the kernels leave open."""


def _values(out: Any) -> Any:
    return out[0]


def _spread(samples: list[Any], count: int, draw: random.Random | None) -> list[Any]:
    """The first, the last, and evenly between; or one of these that is drawn."""
    if len(samples) > count:
        step = (len(samples) - 1) / max(count - 1, 1)
        samples = [samples[round(i * step)] for i in range(count)]
    return samples if draw is None or not samples else [draw.choice(samples)]


def _special_programs(case: Case, samples: list[Any]) -> Iterator[Program]:
    """Special values put into the first sample that has room for them."""
    if case.entry.startswith(("linalg", "fft", "nn.functional.embedding")) or case.dtype is torch.complex64:
        return
    ints = INTS[:-1] if case.entry == "lcm" else INTS  # of the least integer PyTorch's kernel divides by zero and dies
    values = torch.tensor(ints if case.dtype is torch.int64 else FLOATS, dtype=case.dtype)
    for sample in samples:
        args = (sample.input, *sample.args)
        tensors = [leaf for leaf in args if isinstance(leaf, torch.Tensor) and leaf.dtype == case.dtype]
        if isinstance(case.info, UnaryUfuncInfo):
            yield _program(case, (values, *sample.args), sample.kwargs, sample.output_process_fn_grad, True)
            return
        if isinstance(case.info, BinaryUfuncInfo) and len(tensors) == 2:
            yield _program(case, (values[:, None], values[None, :]), sample.kwargs, sample.output_process_fn_grad, True)
            return
        if case.dtype.is_floating_point and tensors and tensors[0].numel() >= 4 and sample.input is tensors[0]:
            planted = sample.input.clone()
            flat = planted.reshape(-1).clone()
            flat[0], flat[flat.numel() // 2], flat[-1] = float("nan"), float("inf"), float("-inf")
            planted = flat.reshape(planted.shape)
            yield _program(case, (planted, *sample.args), sample.kwargs, sample.output_process_fn_grad, True)
            return


def _program(case: Case, args: Any, kwargs: Any, settle: Any, special: bool = False) -> Program:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    places = [_PLACE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    module: nn.Module | None = None
    if case.capture == "exported":
        module = Called(case.info.op, spec, places)
    elif case.capture == "inplace" and not hasattr(torch.Tensor, getattr(case.info.inplace_variant, "__name__", "")):
        module = Called(_on_a_copy(case.info.inplace_variant), spec, places)
    graph = module or _graph(case, spec, places, len(tensors))
    return Program(
        graph, tensors, exported=module is not None, settle=settle, special=special, random=case.draws(kwargs)
    )


def _on_a_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *args, **kwargs: function(x.clone(), *args, **kwargs)


def _graph(case: Case, spec: pytree.TreeSpec, places: list[Any], count: int) -> fx.GraphModule:
    """A graph of a single call, as symbolic tracing would leave it."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(count)]
    args, kwargs = spec.unflatten(_filled(places, inputs))
    info = case.info
    if case.capture == "method":
        out = graph.call_method(info.method_variant.__name__, tuple(args), kwargs)
    elif case.capture == "inplace":
        own = graph.call_method("clone", (args[0],))
        function = info.inplace_variant
        if getattr(function, "__module__", "") == "_operator":
            out = graph.call_function(function, (own, *args[1:]), kwargs)
        else:
            out = graph.call_method(function.__name__, (own, *args[1:]), kwargs)
    else:
        function = info.op if case.capture == "function" else info.operator_variant
        out = graph.call_function(function, tuple(args), kwargs)
    graph.output(out)
    return fx.GraphModule(nn.Module(), graph)


def _module_programs(case: Case, count: int, draw: random.Random | None) -> Iterator[Program]:
    training = case.capture == "training"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _seeded()
        found = case.info.module_inputs_func(
            case.info, device="cpu", dtype=case.dtype, requires_grad=False, training=training
        )
        samples = [sample for sample in found if sample.forward_input is not None]
    for sample in _spread(samples, count, draw):
        made, given = sample.constructor_input, sample.forward_input
        torch.manual_seed(SEED)
        module = case.info.module_cls(*made.args, **made.kwargs).to(case.dtype).train(training)
        leaves, spec = pytree.tree_flatten((given.args, given.kwargs))
        # One tensor in two places of a sample would be one input of the exported program.
        tensors = tuple(leaf.clone() for leaf in leaves if isinstance(leaf, torch.Tensor))
        places = [_PLACE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        yield Program(module, tensors, _Arguments(spec, places), random=case.random)


@dataclass(frozen=True)
class _Arguments:
    """The arguments of a module's sample, with other tensors in the places of its own."""

    spec: pytree.TreeSpec
    leaves: list[Any]

    def __call__(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        return self.spec.unflatten(_filled(self.leaves, tensors))
