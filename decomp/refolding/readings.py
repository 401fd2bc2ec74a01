"""The functions of one tensor that are searched for, each with the calls that can spell it and the arguments to try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from decomp.ir.arguments import leaves
from decomp.ir.call import metadata
from decomp.ops import aten


@dataclass(frozen=True)
class CallReading:
    """A call of an op, without its leading arguments."""

    target: Any
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    result: tuple[int, ...] = ()
    """The index of the result, if there are several."""

    @property
    def small_numbers(self) -> list[float]:
        """Its constants that could be an epsilon."""
        return [leaf for leaf in leaves((self.args, dict(self.kwargs))) if _small(leaf)]

    def __call__(self, *leading: Any) -> torch.Tensor:
        found = self.target(*leading, *self.args, **dict(self.kwargs))
        for place in self.result:
            found = found[place]
        return found


@dataclass(frozen=True)
class Reading:
    """A function of one tensor, and the calls that can spell it, in order of preference."""

    name: str
    spellings: tuple[CallReading, ...]

    @property
    def function(self) -> CallReading:
        """A call that computes it."""
        return self.spellings[0]


POINTWISE: tuple[Reading, ...] = (
    Reading("gelu", (CallReading(aten.gelu.default),)),
    Reading("gelu (tanh)", (CallReading(aten.gelu.default, (), (("approximate", "tanh"),)),)),
    *(
        Reading(name, (CallReading(getattr(aten, name).default),))
        for name in (
            "silu",
            "mish",
            "softplus",
            "log_sigmoid",
            "sigmoid",
            "tanh",
            "erf",
            "exp",
            "log",
            "log1p",
            "expm1",
            "elu",
            "selu",
            "hardswish",
            "sin",
            "cos",
        )
    ),
)
"""Elementwise functions."""
FUNCTIONS = (
    *(spelling.target for reading in POINTWISE for spelling in reading.spellings),
    aten.softmax.int,
    aten._softmax.default,
    aten.log_softmax.int,
    aten._log_softmax.default,
    aten.layer_norm.default,
    aten.native_layer_norm.default,
    aten.rms_norm.default,
    aten.group_norm.default,
    aten.native_group_norm.default,
)
"""The overloads of all calls that can be found for these and for functions that reduce."""

SEED_OPS = frozenset(
    f"aten::{name}"
    for name in "exp exp2 tanh erf sigmoid rsqrt sqrt log log2 log1p expm1 reciprocal sin cos pow _softmax "
    "_log_softmax softmax log_softmax native_layer_norm native_group_norm".split()
)
"""Every spelling of such a function contains one of these ops, so searches begin there."""
REDUCTIONS = frozenset(
    f"aten::{name}"
    for name in "sum mean amax max logsumexp var var_mean _softmax softmax _log_softmax log_softmax "
    "native_layer_norm native_group_norm linalg_vector_norm cumsum".split()
)


def along_dimensions(x: fx.Node, region: list[fx.Node]) -> Iterator[Reading]:
    """The functions that reduce, to be tried on `x`: softmax along each dimension, and normalizations with each epsilon
    that occurs in the region."""
    rank = metadata(x).dim()
    # The last dimension first, as in nearly every model.
    for dim in range(rank - 1, -1, -1):
        for name in ("softmax", "log_softmax"):
            packet = getattr(aten, name)
            core = getattr(aten, f"_{name}").default
            yield Reading(
                f"{name}",
                (
                    # -1 for the last one, as people write it.
                    CallReading(packet.int, (dim - rank if dim == rank - 1 else dim,)),
                    CallReading(core, (dim - rank if dim == rank - 1 else dim, False)),
                ),
            )
    shape = metadata(x).shape
    for eps in find_epsilons(region):
        for first in range(rank - 1, 0, -1):
            sizes = list(shape[first:])
            if all(type(size) is int for size in sizes):
                yield from _norms(sizes, eps)
        yield from _group_norms(x, region, eps)


def _norms(sizes: list[int], eps: float) -> Iterator[Reading]:
    native = CallReading(aten.native_layer_norm.default, (sizes, None, None, eps), (), (0,))
    yield Reading("layer_norm", (CallReading(aten.layer_norm.default, (sizes, None, None, eps)), native))
    yield Reading("rms_norm", (CallReading(aten.rms_norm.default, (sizes, None, eps)),))


def _group_norms(x: fx.Node, region: list[fx.Node], eps: float) -> Iterator[Reading]:
    shape = metadata(x).shape
    if len(shape) < 3 or type(shape[1]) is not int:
        return
    for groups in groups_in(region, shape):
        spellings = [CallReading(aten.group_norm.default, (groups, None, None, eps))]
        if all(type(size) is int for size in shape):
            pixels = metadata(x).numel() // max(shape[0] * shape[1], 1)
            native = (None, None, shape[0], shape[1], pixels, groups, eps)
            spellings.append(CallReading(aten.native_group_norm.default, native, (), (0,)))
        yield Reading("group_norm", tuple(spellings))


def groups_in(region: Iterable[fx.Node], shape: Sequence[Any]) -> list[int]:
    """The numbers of groups into which a region may part the channels of a value of this shape."""
    # It is a size of some reshaped value, if the spelling computes them by a reshape.
    seen = [metadata(n).shape[1] for n in region if getattr(metadata(n), "ndim", 0) > 1]
    return sorted({size for size in seen if type(size) is int and size and shape[1] % size == 0})


def find_epsilons(region: Iterable[fx.Node]) -> list[float]:
    """The constants of a region that could be an epsilon added to a variance."""
    found: dict[float, None] = {}
    for node in region:
        if node.op == "call_function":
            fx.node.map_aggregate((node.args, node.kwargs), lambda leaf: found.setdefault(leaf) if _small(leaf) else 0)
    return list(found)


def _small(value: Any) -> bool:
    # Models use 1e-3 and less; larger numbers are factors.
    return type(value) is float and 0 < value < 0.1
