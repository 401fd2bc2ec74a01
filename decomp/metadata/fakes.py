"""Fake modes and fake tensors: the only module that creates them, and knows what the constructor of `FakeTensor` does.
The first one of a mode and device is created by the constructor; later ones copy its attributes, if that is known to be
equivalent."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from decomp.torch_internals.fakes import (
    FakeTensor,
    FakeTensorConfig,
    FakeTensorMode,
    dispatch_keys,
    fake_with_attributes,
)
from decomp.torch_internals.pytree import tree_leaves

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

    def make(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor on `device` with the shape, strides and storage of `meta`, a tensor on the meta device."""
        attributes = self._attributes.get(device)
        if attributes is not None:
            return fake_with_attributes(meta, device, attributes)
        made = FakeTensor(self.mode, meta, device)
        if self._plain:
            self._attributes[device] = dict(vars(made))
        return made


def _is_plain(mode: FakeTensorMode) -> bool:
    """Whether the constructor does no more for this mode than `fake_with_attributes`."""
    return (
        type(mode) is FakeTensorMode
        and FakeTensor.__new__ is _NEW
        and FakeTensor.__init__ is _INIT
        and not FakeTensorConfig.debug
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
