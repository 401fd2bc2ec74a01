"""Running calls on meta tensors: where sizes are static and all operands are on one device, the kernel for the meta
device gives the shape, dtype and strides that fake tensors come to after many more steps. Fake tensors that share the
storage of the meta tensors carry the device. Where a meta kernel is not enough, the call is left to the fake mode."""

from __future__ import annotations

import functools
from typing import Any

import torch

from decomp.metadata.fakes import Fakes
from decomp.metadata.views_of_fakes import expanded, flattened, reshaped, viewed
from decomp.torch_internals.fakes import FakeTensor, fakes_compute_it_otherwise
from decomp.torch_internals.modes import (
    COMPOSITE_IMPLICIT,
    DisablePythonDispatcher,
    DisableTorchDispatch,
    DisableTorchFunction,
)

_META, _CPU = torch.device("meta"), torch.device("cpu")


class MetaKernels:
    """Fake tensors of one run of a rule, and the meta tensors that stand behind them."""

    def __init__(self, fakes: Fakes) -> None:
        self._made = fakes
        self._metas: dict[int, torch.Tensor] = {}
        self._fakes: dict[int, FakeTensor] = {}
        self._odd: set[int] = set()
        """Fake tensors from whose strides the fake mode and kernels may draw other conclusions, each free to choose
        those of dimensions of one element."""
        self._alive: list[torch.Tensor] = []

    def empty_like(self, value: torch.Tensor) -> FakeTensor:
        """A fake tensor of its own storage with the shape, strides, dtype and device of a strided tensor."""
        meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)
        return self._fake(meta, value.device)

    def run(self, func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """What a call on fake tensors gives; `NotImplemented` where the fake mode is to be asked."""
        kind = _kind(func)
        if kind == _ASK:
            return NotImplemented
        operands: list[FakeTensor] = []
        try:
            args, kwargs = self._on_meta(args, operands), self._on_meta(kwargs, operands)
            device = _placed(kind, kwargs, operands)
            if kind == _RUN and not self._odd.isdisjoint(map(id, operands)):
                return NotImplemented
            with DisablePythonDispatcher(), DisableTorchFunction(), DisableTorchDispatch():
                out = _OWN.get(func, func)(*args, **kwargs)
            return self._on_device(out, device)
        except (_Unfit, RuntimeError, ValueError, TypeError, IndexError):
            return NotImplemented  # the fake mode has the words for what went wrong

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
            raise _Unfit
        return value

    def _on_device(self, value: Any, device: torch.device | None) -> Any:
        if value is None:
            raise _Unfit
        if isinstance(value, torch.Tensor):
            known = self._fakes.get(id(value))
            if known is not None:
                return known
            if device is None or not _is_plain(value):
                raise _Unfit
            return self._fake(value, device)
        if isinstance(value, (tuple, list)):
            return type(value)([self._on_device(item, device) for item in value])
        return value

    def _behind(self, fake: FakeTensor) -> torch.Tensor:
        """The meta tensor behind a fake one that was made elsewhere."""
        if not _is_plain(fake) or fake.requires_grad or fake.constant is not None:
            raise _Unfit
        empty = torch.empty((0,), dtype=fake.dtype, device=_META)
        meta = empty.set_(fake.untyped_storage(), fake.storage_offset(), fake.shape, fake.stride())
        self._remember(meta, fake)
        return meta

    def _fake(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        fake = self._made.make(meta, device)
        self._remember(meta, fake)
        return fake

    def _remember(self, meta: torch.Tensor, fake: FakeTensor) -> None:
        self._metas[id(fake)], self._fakes[id(meta)] = meta, fake
        self._alive += (meta, fake)
        if 1 in meta.shape and not _is_in_order(meta):
            self._odd.add(id(fake))


class _Unfit(Exception):
    """A call that is not run on meta tensors."""


def _placed(kind: str, kwargs: dict[str, Any], operands: list[FakeTensor]) -> torch.device | None:
    """The device of the result of a call, whose own argument for it is set to the meta device."""
    devices = {operand.fake_device for operand in operands}
    if len(devices) > 1:
        raise _Unfit  # PyTorch has rules of its own for operands on several
    device = next(iter(devices), None)
    if kind == _FACTORY:
        device = _CPU if kwargs.get("device") is None else kwargs["device"]
        if device.type != "cpu" or kwargs.get("pin_memory"):
            raise _Unfit
        kwargs["device"] = _META
    elif device is None and kind != _HOST:
        raise _Unfit
    elif kwargs.get("device") is not None:
        if kwargs["device"] != device:
            raise _Unfit
        kwargs["device"] = _META
    return device


def _is_plain(value: torch.Tensor) -> bool:
    """Whether shape, strides and storage are all that there is to a tensor."""
    return value.layout is torch.strided and not value.is_quantized and not value.is_conj() and not value.is_neg()


def _is_in_order(value: torch.Tensor) -> bool:
    """Whether a tensor has the strides that one of its shape is made with."""
    expected = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride())):
        if stride != expected:
            return False
        expected *= max(size, 1)
    return True


_ASK, _RUN, _VIEW, _FACTORY, _HOST = "ask the fake mode", "run", "view", "factory", "no tensors"


@functools.lru_cache(maxsize=None)
def _kind(func: Any) -> str:
    """How a call of an overload is run."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or func._schema.is_mutable:
        return _ASK
    if func is torch.ops.aten.promote_types.default:
        return _HOST
    name = func._overloadpacket.__name__
    if name in _FACTORIES:
        return _FACTORY
    if torch.Tag.pointwise not in func.tags and name not in _VIEWS | _LIKE | _COMPOSITE | _OTHERS:
        return _ASK
    special = name not in _VIEWS | _LIKE and fakes_compute_it_otherwise(func)
    composite = name not in _COMPOSITE and func.has_kernel_for_dispatch_key(COMPOSITE_IMPLICIT)
    if special or composite:
        return _ASK
    return _VIEW if name in _VIEWS or func in _OWN else _RUN


aten = torch.ops.aten
_OWN = {
    aten.view.default: viewed,
    aten._unsafe_view.default: viewed,
    aten.reshape.default: reshaped,
    aten.flatten.using_ints: flattened,
    aten.expand.default: expanded,
}
"""Views whose strides fake tensors have otherwise than kernels."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FACTORIES = _names("full zeros ones empty arange eye scalar_tensor linspace")
_LIKE = _names("empty_like full_like zeros_like ones_like new_empty new_full new_zeros new_ones")
_VIEWS = _names(
    "view _unsafe_view select slice permute transpose t unsqueeze squeeze expand alias detach diagonal split "
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
