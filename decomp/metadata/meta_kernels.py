"""Running calls on meta tensors: where sizes are static and all operands are on one device, the kernel for the meta
device gives the shape, dtype and strides that fake tensors come to after many more steps. Fake tensors that share the
storage of the meta tensors carry the device. Where a meta kernel is not enough, the call is left to the fake mode."""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import torch

from decomp.metadata.fakes import Fakes
from decomp.metadata.strides import strides_in_order
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


class Layout(NamedTuple):
    """What a strided tensor is, apart from its data and its place in memory."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    in_order: bool
    """Whether it has the strides that a tensor of its shape is made with."""

    def numel(self) -> int:
        """The number of elements."""
        return int(self.shape.numel())


class MetaKernels:
    """Fake tensors of one run of a rule, and the meta tensors that stand behind them."""

    def __init__(self, fakes: Fakes) -> None:
        self._made = fakes
        self._metas: dict[int, torch.Tensor] = {}
        self._fakes: dict[int, FakeTensor] = {}
        self._layouts: dict[int, Layout] = {}
        self._alive: list[torch.Tensor] = []

    def empty_like(self, value: torch.Tensor) -> FakeTensor:
        """A fake tensor of its own storage with the shape, strides, dtype and device of a strided tensor."""
        return self._empty(value.shape, value.stride(), value.dtype, value.device)

    def like_operands(self, operands: list[FakeTensor], dtype: torch.dtype) -> Any:
        """What an op gives that computes element by element, where its layout is plain: the operands lie in order, and
        so does then what they broadcast to. `NotImplemented` where the kernel is to be asked."""
        layouts = [self._layouts[id(operand)] for operand in operands]
        device, shape = layouts[0].device, layouts[0].shape
        if not all([layout.in_order and layout.device == device for layout in layouts]):
            return NotImplemented
        for layout in layouts[1:]:
            if layout.shape != shape:
                shape = _broadcast(shape, layout.shape)
        if 0 in shape:
            return NotImplemented
        with DisableTorchFunction(), DisableTorchDispatch():
            return self._empty(shape, strides_in_order(shape), dtype, device)

    def layout(self, fake: FakeTensor) -> Layout | None:
        """The layout of a fake tensor; None for one that is not run on meta tensors."""
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
        """What a call on fake tensors gives; `NotImplemented` where the fake mode is to be asked."""
        kind = _kind(func)
        if kind == _ASK:
            return NotImplemented
        operands: list[FakeTensor] = []
        try:
            with DisablePythonDispatcher(), DisableTorchFunction(), DisableTorchDispatch():
                args, kwargs = self._on_meta(args, operands), self._on_meta(kwargs, operands)
                device = _placed(kind, kwargs, operands)
                if kind == _RUN and any(map(self._is_odd, operands)) or func in _OF_CPU and device != _CPU:
                    return NotImplemented
                return self._on_device(_OWN.get(func, func)(*args, **kwargs), device)
        except (_NotOnMeta, RuntimeError, ValueError, TypeError, IndexError):
            return NotImplemented  # the fake mode has the words for what went wrong

    def _is_odd(self, operand: FakeTensor) -> bool:
        """Whether the fake mode and kernels may draw different conclusions from the strides of a tensor, each free to
        choose those of dimensions of one element."""
        layout = self._layouts[id(operand)]
        return not layout.in_order and 1 in layout.shape

    def _on_meta(self, value: Any, operands: list[FakeTensor]) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            operands.append(value)
            meta = self._metas.get(id(value))
            return self._behind(value) if meta is None else meta
        if kind is tuple or kind is list:
            return kind([self._on_meta(item, operands) for item in value])
        if kind is dict:
            return {key: self._on_meta(item, operands) for key, item in value.items()}
        if isinstance(value, torch.Tensor):
            raise _NotOnMeta
        return value

    def _on_device(self, value: Any, device: torch.device | None) -> Any:
        if value is None:
            raise _NotOnMeta
        if isinstance(value, torch.Tensor):
            known = self._fakes.get(id(value))
            if known is not None:
                return known
            if device is None or not _is_plain(value):
                raise _NotOnMeta
            return self._fake(value, device)
        if isinstance(value, (tuple, list)):
            return type(value)([self._on_device(item, device) for item in value])
        return value

    def _behind(self, fake: FakeTensor) -> torch.Tensor:
        """The meta tensor behind a fake one that was made elsewhere."""
        if not _is_plain(fake) or fake.requires_grad or fake.constant is not None:
            raise _NotOnMeta
        empty = torch.empty((0,), dtype=fake.dtype, device=_META)
        meta = empty.set_(fake.untyped_storage(), fake.storage_offset(), fake.shape, fake.stride())
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
        self._alive += (meta, fake)
        shape = meta.shape
        self._layouts[id(fake)] = Layout(shape, meta.dtype, device, meta.stride() == strides_in_order(shape))


def _broadcast(one: Sequence[int], other: Sequence[int]) -> torch.Size:
    """The shape to which two shapes broadcast; one with a size of 0 where they do not."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    filled = (*[1] * (len(longer) - len(shorter)), *shorter)
    return torch.Size([a if b == 1 else b if a in (1, b) else 0 for a, b in zip(longer, filled)])


class _NotOnMeta(Exception):
    """A call that is not run on meta tensors."""


def _placed(kind: str, kwargs: dict[str, Any], operands: list[FakeTensor]) -> torch.device | None:
    """The device of the result of a call, whose own argument for it is set to the meta device."""
    devices = {operand.fake_device for operand in operands}
    if len(devices) > 1:
        raise _NotOnMeta  # PyTorch has rules of its own for operands on several
    device = next(iter(devices), None)
    if kind == _FACTORY:
        device = _CPU if kwargs.get("device") is None else kwargs["device"]
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


def _is_plain(value: torch.Tensor) -> bool:
    """Whether shape, strides and storage are all that there is to a tensor."""
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
    special = name not in _VIEWS | _LIKE and fakes_compute_it_otherwise(func)
    composite = name not in _COMPOSITE and func.has_kernel_for_dispatch_key(COMPOSITE_IMPLICIT)
    if special or composite:
        return _ASK
    return _SURE if name in _VIEWS | _STRIDED else _RUN


def _normalized(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """A batch that is normalized by running statistics, and two empty tensors in the place of its own."""
    statistics = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if x.dim() < 2 or any([given.shape != x.shape[1:2] or given.dtype != x.dtype for given in statistics]):
        raise _NotOnMeta
    if x.dtype not in (torch.float32, torch.float64):
        raise _NotOnMeta
    return torch.empty(x.shape, dtype=x.dtype, device=_META), x.new_empty(0), x.new_empty(0)


_OWN = {
    aten.view.default: view_in_shape,
    aten._unsafe_view.default: view_in_shape,
    aten.reshape.default: reshaped,
    aten.flatten.using_ints: flattened,
    aten.expand.default: expanded,
    aten._native_batch_norm_legit_no_training.default: _normalized,
}
"""Views whose strides fake tensors have otherwise than kernels, and what PyTorch computes on fake tensors step by step.
"""
_OF_CPU = frozenset({aten._native_batch_norm_legit_no_training.default})
"""Those of them that give what a CPU does: other devices save more."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FACTORIES = _names("full zeros ones empty arange eye scalar_tensor linspace")
_STRIDED = _names(
    "add sub mul maximum minimum lt le gt ge eq ne neg abs reciprocal sqrt rsqrt exp exp2 log log2 sin cos trunc floor "
    "ceil where bitwise_and bitwise_or bitwise_xor bitwise_not sigmoid tanh constant_pad_nd sum mean amax amin"
)
"""What fake tensors and kernels give the same strides, those of dimensions of one element, too."""
_LIKE = _names("empty_like full_like zeros_like ones_like new_empty new_full new_zeros new_ones")
_VIEWS = _names(
    "view _unsafe_view select slice narrow permute transpose t unsqueeze squeeze expand alias detach diagonal split "
    "split_with_sizes unbind unfold as_strided"
)
_COMPOSITE = _names(
    "flatten reshape narrow chunk where to movedim unflatten expand_as view_as type_as movedim moveaxis swapaxes "
    "broadcast_to tile square contiguous __and__ __or__ __xor__"
)
"""Composite kernels that ask for no device."""
_OTHERS = _names(
    "_to_copy clone cat stack flip roll repeat constant_pad_nd mm bmm addmm baddbmm sum mean prod amax amin any all "
    "argmax argmin cumsum cumprod gather scatter scatter_add index_select take tril triu"
)
"""What is neither computed element by element nor a view, and whose layout is the same on all devices."""
