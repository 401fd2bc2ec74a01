"""Running calls on meta tensors. If sizes are static and all operands are on one device, the kernel for the meta device
returns the shape, dtype and strides that fake tensors compute in many more steps. Fake tensors on the storage of the
meta tensors carry the device. Where a meta kernel is not sufficient, the call is left to the fake mode."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math
from typing import Any, NamedTuple

import torch

from decomp.metadata.fakes import Fakes, on_storage
from decomp.metadata.strides import strides_in_order
from decomp.metadata.symbolic_sizes import settled
from decomp.metadata.views_of_fakes import expanded, flattened, reshaped, view_in_shape
from decomp.ops import aten
from decomp.torch_internals.fakes import FakeTensor, fakes_compute_it_otherwise
from decomp.torch_internals.modes import (
    COMPOSITE_IMPLICIT,
    DisablePythonDispatcher,
    DisableTorchDispatch,
    DisableTorchFunction,
)

_META, _CPU = torch.device("meta"), torch.device("cpu")


class KnownLayout(NamedTuple):
    """The properties of a strided tensor except data and memory."""

    shape: torch.Size
    """Its sizes may be open."""
    dtype: torch.dtype
    device: torch.device
    in_order: bool
    """Whether it has the default strides of its shape."""

    def numel(self) -> Any:
        """The number of elements."""
        return math.prod(self.shape)


class MetaKernels:
    """The fake tensors of one run of a rule, and the meta tensors behind them. `for_shapes`: strides do not matter."""

    def __init__(self, fakes: Fakes, for_shapes: bool = False) -> None:
        self._made, self._for_shapes = fakes, for_shapes
        self._metas: dict[int, torch.Tensor] = {}
        self._fakes: dict[int, FakeTensor] = {}
        self._layouts: dict[int, KnownLayout] = {}
        self._alive: list[torch.Tensor] = []

    def empty_like(self, value: torch.Tensor) -> FakeTensor:
        """A fake tensor on its own storage with the shape, strides, dtype and device of a strided tensor."""
        return self._empty(settled(value.shape), settled(value.stride()), value.dtype, value.device)

    def like_operands(self, operands: list[FakeTensor], dtype: torch.dtype) -> Any:
        """The result of an elementwise op, if its layout is trivial: contiguous operands broadcast to a contiguous
        result. `NotImplemented` if the kernel must decide."""
        layouts = [self._layouts[id(operand)] for operand in operands]
        device, shape = layouts[0].device, layouts[0].shape
        if not all([layout.in_order and layout.device == device for layout in layouts]):
            return NotImplemented
        for layout in layouts[1:]:
            if layout.shape != shape:
                shape = _broadcast(shape, layout.shape)
        # 0 marks shapes that do not broadcast, so the kernel must report the error; real empty shapes take this path
        # too.
        if 0 in shape:
            return NotImplemented
        with DisableTorchFunction(), DisableTorchDispatch():
            return self._empty(shape, strides_in_order(shape), dtype, device)

    def layout(self, fake: FakeTensor) -> KnownLayout | None:
        """The layout of a fake tensor; None for one that cannot be run on meta tensors."""
        found = self._layouts.get(id(fake))
        if found is None:
            try:
                with DisableTorchFunction(), DisableTorchDispatch():
                    self._behind(fake)
            except _NotOnMeta:
                return None
            found = self._layouts[id(fake)]
        return found

    def run(self, func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a call on fake tensors; `NotImplemented` if the fake mode must run it."""
        kind = _kind(func)
        if kind == _ASK:
            return NotImplemented
        operands: list[FakeTensor] = []
        try:
            # The caller may be recording: any of the three would bring the call back to it.
            with DisablePythonDispatcher(), DisableTorchFunction(), DisableTorchDispatch():
                args, kwargs = self._on_meta(args, operands), self._on_meta(kwargs, operands)
                device = _device_of_result(kind, kwargs, operands)
                # Views keep strides by rule, and elementwise ops of the list below have been compared; other kernels
                # may choose.
                odd = kind == _RUN and not self._for_shapes and any(map(self._is_odd, operands))
                if odd or func in _OF_CPU and device != _CPU:
                    return NotImplemented
                return self._on_device(_OWN.get(func, func)(*args, **kwargs), device)
        except (_NotOnMeta, RuntimeError, ValueError, TypeError, IndexError):
            return NotImplemented  # the fake mode raises a better error

    def _is_odd(self, operand: FakeTensor) -> bool:
        """Whether the fake mode and kernels may derive different strides from those of a tensor, as both choose freely
        for dimensions of size one."""
        layout = self._layouts[id(operand)]
        return not layout.in_order and 1 in layout.shape

    def _on_meta(self, value: Any, operands: list[FakeTensor]) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            operands.append(value)
            meta = self._metas.get(id(value))
            return self._behind(value) if meta is None else meta
        if isinstance(value, (tuple, list)):
            items = [self._on_meta(item, operands) for item in value]
            return tuple(items) if kind is tuple else items
        if isinstance(value, dict):
            return {key: self._on_meta(item, operands) for key, item in value.items()}
        if isinstance(value, torch.Tensor):
            raise _NotOnMeta
        return value

    def _on_device(self, value: Any, device: torch.device | None) -> Any:
        if value is None:
            raise _NotOnMeta
        if isinstance(value, torch.Tensor):
            # An op that returns its operand must give the same object back, as nodes are found by the identity of their
            # tensor.
            known = self._fakes.get(id(value))
            if known is not None:
                return known
            if device is None or not is_plain(value):
                raise _NotOnMeta
            return self._fake(value, device)
        if isinstance(value, (tuple, list)):
            return type(value)([self._on_device(item, device) for item in value])
        return value

    def _behind(self, fake: FakeTensor) -> torch.Tensor:
        """The meta tensor behind a fake tensor created elsewhere."""
        # A fake tensor with a constant answers `item()`; gradients would be recorded on the meta tensor, where nobody
        # sees them.
        if not is_plain(fake) or fake.requires_grad or fake.constant is not None:
            raise _NotOnMeta
        meta = on_storage(fake, fake.dtype, fake.shape, fake.stride(), fake.storage_offset())
        self._remember(meta, fake, fake.fake_device)
        return meta

    def _empty(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> FakeTensor:
        return self._fake(torch.empty_strided(shape, stride, dtype=dtype, device=_META), device)

    def _fake(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        fake = self._made.make(meta, device)
        self._remember(meta, fake, device)
        return fake

    def _remember(self, meta: torch.Tensor, fake: FakeTensor, device: torch.device) -> None:
        self._metas[id(fake)], self._fakes[id(meta)] = meta, fake
        # Both tables are keyed by id, so their tensors must stay alive.
        self._alive += (meta, fake)
        shape = meta.shape
        self._layouts[id(fake)] = KnownLayout(shape, meta.dtype, device, meta.stride() == strides_in_order(shape))


def _broadcast(one: Sequence[int], other: Sequence[int]) -> torch.Size:
    """The shape to which two shapes broadcast; one with a size of 0 if they do not."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    filled = (*[1] * (len(longer) - len(shorter)), *shorter)
    return torch.Size([a if b == 1 else b if a in (1, b) else 0 for a, b in zip(longer, filled)])


class _NotOnMeta(Exception):
    """A call that cannot be run on meta tensors."""


def _device_of_result(kind: str, kwargs: dict[str, Any], operands: list[FakeTensor]) -> torch.device | None:
    """The device of the result of a call, whose `device` argument is replaced by the meta device."""
    devices = {operand.fake_device for operand in operands}
    if len(devices) > 1:
        raise _NotOnMeta  # PyTorch has special rules for operands on several devices
    device = next(iter(devices), None)
    if kind == _FACTORY:
        device = _CPU if kwargs.get("device") is None else kwargs["device"]
        # Another device may be absent here, or lack its index, which the fake mode checks and completes.
        if device.type != "cpu" or kwargs.get("pin_memory"):
            raise _NotOnMeta
        kwargs["device"] = _META
    elif device is None and kind != _HOST:
        raise _NotOnMeta
    elif kwargs.get("device") is not None:
        if kwargs["device"] != device:
            raise _NotOnMeta
        kwargs["device"] = _META
    return device


def is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor is defined by shape, strides and storage alone."""
    return value.layout is torch.strided and not value.is_quantized and not value.is_conj() and not value.is_neg()


_ASK, _RUN, _SURE, _FACTORY, _HOST = "ask the fake mode", "run", "run on any strides", "factory", "no tensors"


@functools.cache
def _kind(func: Any) -> str:
    """How a call of an overload is run."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or func._schema.is_mutable:
        return _ASK
    if func is aten.promote_types.default:
        return _HOST
    if func in _OWN:
        return _SURE
    name = func._overloadpacket.__name__
    if name in _FACTORIES:
        return _FACTORY
    if torch.Tag.pointwise not in func.tags and name not in _VIEWS | _LIKE | _COMPOSITE | _OTHERS:
        return _ASK
    # Fake tensors have functions of their own for some of these as well (`select`, `_unsafe_view`, `empty_like`), which
    # handle devices, and sizes that depend on data.
    special = name not in _VIEWS | _LIKE and fakes_compute_it_otherwise(func)
    composite = name not in _COMPOSITE and func.has_kernel_for_dispatch_key(COMPOSITE_IMPLICIT)
    if special or composite:
        return _ASK
    return _SURE if name in _VIEWS | _STRIDED | _IN_ORDER else _RUN


def _normalized(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """A batch normalized with running statistics, and two empty tensors in place of batch statistics."""
    statistics = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if x.dim() < 2 or any([given.shape != x.shape[1:2] or given.dtype != x.dtype for given in statistics]):
        raise _NotOnMeta
    # The kernel for half types accepts statistics in float32, too, and chooses dtypes by them.
    if x.dtype not in (torch.float32, torch.float64):
        raise _NotOnMeta
    return torch.empty(x.shape, dtype=x.dtype, device=_META), x.new_empty(0), x.new_empty(0)


def _normalized_layers(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, ...]:
    """Rows normalized, with the mean and the reciprocal deviation of each."""
    outer = x.dim() - len(shape)
    if list(x.shape[outer:]) != list(shape):
        raise _NotOnMeta
    return _standardized(x, (weight, bias), (*x.shape[:outer], *[1] * len(shape)))


def _normalized_groups(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, batch: int, channels: int, *rest: Any
) -> tuple[torch.Tensor, ...]:
    """Groups of channels normalized, with the mean and the reciprocal deviation of each."""
    _extent, groups, _eps = rest
    if x.shape[:2] != (batch, channels) or channels % groups:
        raise _NotOnMeta
    return _standardized(x, (weight, bias), (batch, groups))


def _standardized(
    x: torch.Tensor, affine: tuple[torch.Tensor | None, ...], statistics: tuple[int, ...]
) -> tuple[torch.Tensor, ...]:
    # Of operands in another order the kernel chooses the strides; of half types it computes in float32.
    plain = x.dtype in (torch.float32, torch.float64) and x.stride() == strides_in_order(x.shape) and x.numel()
    if not plain or any(given is not None and given.dtype != x.dtype for given in affine):
        raise _NotOnMeta
    return tuple(torch.empty(shape, dtype=x.dtype, device=_META) for shape in (x.shape, statistics, statistics))


def _cloned(x: torch.Tensor, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """A copy: of odd strides only in the default order, as what is kept of others is chosen freely."""
    if memory_format is not torch.contiguous_format and 1 in x.shape and x.stride() != strides_in_order(x.shape):
        raise _NotOnMeta
    return x.clone(memory_format=memory_format)


_OWN = {
    aten.view.default: view_in_shape,
    aten._unsafe_view.default: view_in_shape,
    aten.reshape.default: reshaped,
    aten.flatten.using_ints: flattened,
    aten.expand.default: expanded,
    aten.clone.default: _cloned,
    aten._native_batch_norm_legit_no_training.default: _normalized,
    aten.native_layer_norm.default: _normalized_layers,
    aten.native_group_norm.default: _normalized_groups,
}
"""Views with strides that differ between fake tensors and kernels, copies in a given order or not, and ops that PyTorch
runs on fake tensors step by step."""
_OF_CPU = frozenset(
    {
        aten._native_batch_norm_legit_no_training.default,
        aten.native_layer_norm.default,
        aten.native_group_norm.default,
    }
)
"""Those of them whose results are those of a CPU: other devices save more."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FACTORIES = _names("full zeros ones empty arange eye scalar_tensor linspace")
_STRIDED = _names(
    "add sub mul maximum minimum lt le gt ge eq ne neg abs reciprocal sqrt rsqrt exp exp2 log log2 sin cos trunc floor "
    "ceil where bitwise_and bitwise_or bitwise_xor bitwise_not sigmoid tanh constant_pad_nd sum mean amax amin"
)
"""Ops with the same strides of fake tensors and kernels, including those of dimensions of size one."""
_IN_ORDER = _names("mm bmm cat")
"""Ops with the same strides of fake tensors and kernels, whatever the strides of their operands."""
_LIKE = _names("empty_like full_like zeros_like ones_like new_empty new_full new_zeros new_ones")
_VIEWS = _names(
    "view _unsafe_view select slice narrow permute transpose t unsqueeze squeeze expand alias detach diagonal split "
    "split_with_sizes unbind unfold as_strided"
)
_COMPOSITE = _names(
    "flatten reshape narrow chunk where to movedim unflatten expand_as view_as type_as moveaxis swapaxes "
    "broadcast_to tile square contiguous matmul __and__ __or__ __xor__"
)
"""Composite kernels that do not depend on the device."""
_OTHERS = _names(
    "_to_copy clone cat stack flip roll repeat constant_pad_nd mm bmm addmm baddbmm sum mean prod amax amin any all "
    "argmax argmin cumsum cumprod gather scatter scatter_add index_select take tril triu"
)
"""Ops that are neither elementwise nor views, with the same layout on all devices."""
