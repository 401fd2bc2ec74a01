"""Fake modes and fake tensors: the only module that creates them, and knows what the constructor of `FakeTensor` does.
The first one of a mode and device is created by the constructor; later ones copy its attributes, if that is known to be
equivalent."""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

import torch
from torch import fx

from decomp.metadata.stand_ins import StandIns
from decomp.metadata.symbolic_sizes import expression
from decomp.torch_internals.fakes import (
    FakeTensor,
    FakeTensorConfig,
    FakeTensorMode,
    dispatch_keys,
    fake_with_attributes,
    on_new_storage,
)
from decomp.torch_internals.pytree import tree_leaves

Sizes = Sequence[Any]
"""Sizes or strides: numbers, or symbolic."""
_META = torch.device("meta")
_NEW, _INIT = FakeTensor.__new__, FakeTensor.__init__


def new_mode(shape_env: Any = None) -> FakeTensorMode:
    """A fake mode under which a program may use its real constants; sizes are those of `shape_env`, if given."""
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=shape_env)


def mode_of(graph: fx.Graph) -> FakeTensorMode | None:
    """The fake mode of a graph's metadata, None if it has none."""
    return captured_metadata(graph)[1]


def captured_metadata(graph: fx.Graph) -> tuple[str | None, FakeTensorMode | None]:
    """The key of `meta` under which the nodes of a graph have their metadata, and its fake mode."""
    for node in graph.nodes:
        # `val` is what torch.export and make_fx record, `example_value` what Dynamo does.
        for key in ("val", "example_value"):
            for leaf in tree_leaves(node.meta.get(key)):
                if isinstance(leaf, FakeTensor):
                    return key, leaf.fake_mode
    return None, None


class Fakes:
    """Creates fake tensors of one mode."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._attributes: dict[torch.device, dict[str, Any]] = {}
        self._plain = _is_plain(mode)
        self._blank: dict[Any, torch.Tensor] = {}
        """Tensors on the meta device by symbolic sizes, strides and dtype."""

    def make(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor on `device` with the shape, strides and storage of `meta`, a tensor on the meta device."""
        attributes = self._attributes.get(device)
        if attributes is not None:
            return fake_with_attributes(meta, device, attributes)
        # The constructor normalises the device, and sets whatever the installed version sets: later ones copy it from
        # here.
        made = FakeTensor(self.mode, meta, device)
        if self._plain:
            self._attributes[device] = dict(vars(made))
        return made

    def empty(self, size: Sizes, stride: Sizes, dtype: torch.dtype, device: torch.device) -> FakeTensor:
        """A fake tensor on storage of its own."""
        if _are_numbers(size, stride):
            return self.make(torch.empty_strided(size, stride, dtype=dtype, device=_META), device)
        key = (tuple(map(expression, size)), tuple(map(expression, stride)), dtype)
        if key not in self._blank:
            self._blank[key] = torch.empty_strided(size, stride, dtype=dtype, device=_META)
        return self.make(on_new_storage(self._blank[key]), device)

    def view(
        self, base: torch.Tensor, size: Sizes, stride: Sizes, offset: Any, dtype: torch.dtype, device: torch.device
    ) -> FakeTensor:
        """A fake tensor on the storage of `base`, `offset` elements after its first."""
        return self.make(on_storage(base, dtype, size, stride, offset + base.storage_offset()), device)


class OpenFakes(Fakes):
    """Creates fake tensors of a program with open sizes, and those of fixed sizes that are run in their place."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__(mode)
        self.stand_ins = StandIns()

    @functools.cached_property
    def fixed(self) -> Fakes:
        """Creates those of fixed sizes, in a mode of their own."""
        return Fakes(new_mode())

    def dense(self, numel: Any, size: Sizes, stride: Sizes, dtype: torch.dtype, device: torch.device) -> FakeTensor:
        """A fake tensor on storage of its own, of as many elements as it has places. PyTorch computes the bytes of
        symbolic sizes in 0.3 ms; here it does so once for each number of elements."""
        flat = super().empty((numel,), (1,), dtype, device)
        return self.make(on_storage(flat, dtype, size, stride, 0), device)


def fakes_in(mode: FakeTensorMode) -> Fakes:
    """Creates fake tensors of the mode of a program, whose sizes may be open."""
    return OpenFakes(mode) if mode.shape_env is not None and mode.shape_env.var_to_range else Fakes(mode)


def on_storage(base: torch.Tensor, dtype: torch.dtype, size: Sizes, stride: Sizes, offset: Any) -> torch.Tensor:
    """A tensor on the meta device and the storage of `base`, which must be large enough."""
    empty = torch.empty((0,), dtype=dtype, device=_META)
    if _are_numbers(size, stride, (offset,)):
        return empty.set_(base.untyped_storage(), offset, size, stride)
    # `set_` computes the bytes that symbolic sizes need, in 0.4 ms.
    return empty.set_(base.untyped_storage(), 0, (0,), (1,)).as_strided(size, stride, offset)


def require_grad_like(fake: torch.Tensor, like: torch.Tensor) -> None:
    """Let `fake` require a gradient if `like` does. (A tensor of integers does after a comparison with a parameter was
    written to it, but `requires_grad_()` refuses it; no gradient flows through it.)"""
    if like.requires_grad and not fake.requires_grad and (fake.is_floating_point() or fake.is_complex()):
        fake.requires_grad_()


def is_apart(value: Any, base: Any) -> bool:
    """Whether the metadata of a view, or of the first of several, is on memory other than that of its base."""
    view = value[0] if isinstance(value, (tuple, list)) and value else value
    if not all(isinstance(each, torch.Tensor) and each.layout is torch.strided for each in (view, base)):
        return False
    # Fake tensors have no addresses; the identity of their storage is what views share.
    return bool(view.untyped_storage()._cdata != base.untyped_storage()._cdata)


def _are_numbers(*sizes: Sizes) -> bool:
    # A list: for a few items it is faster than a generator, and this runs for each fake tensor.
    return all([type(size) is int for part in sizes for size in part])


def _is_plain(mode: FakeTensorMode) -> bool:
    """Whether the constructor does no more for this mode than `fake_with_attributes`."""
    return (
        type(mode) is FakeTensorMode
        and FakeTensor.__new__ is _NEW
        and FakeTensor.__init__ is _INIT
        # In debug mode the constructor also keeps a stack trace for each tensor.
        and not FakeTensorConfig.debug
        # Such a mode keeps a real tensor beside each fake one.
        and not getattr(mode, "propagate_real_tensors", True)
        and _internals_are_known()
    )


@functools.cache
def _internals_are_known() -> bool:
    """Whether `fake_with_attributes` creates exactly the same tensor as the constructor."""
    mode, device = new_mode(), torch.device("cpu")
    try:
        metas = [torch.empty_strided((2, 3), (1, 2), dtype=torch.float16, device="meta") for _ in range(3)]
        first, stock = (FakeTensor(mode, meta, device) for meta in metas[:2])
        return bool(_state(fake_with_attributes(metas[2], device, dict(vars(first)))) == _state(stock))
    except (AttributeError, TypeError, KeyError, RuntimeError):
        return False


def _state(fake: FakeTensor) -> Any:
    return (
        vars(fake),
        dispatch_keys(fake),
        type(fake),
        fake.shape,
        fake.stride(),
        fake.storage_offset(),
        fake.dtype,
        fake.device,
        fake.requires_grad,
        fake.is_leaf,
        fake._version,
    )
