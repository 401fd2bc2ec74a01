"""The results of a call as a flat list of tensors, and whether two such lists match except for values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
from typing import Any

import torch

from decomp.ir.agreement import described
from decomp.metadata.strides import dense_order
from decomp.rules.declining import Declined
from decomp.torch_internals import pytree


class MismatchedResults(Exception):
    """The number, shape or dtype of results differs from the op's."""


class Refused(Exception):
    """The rule declined; the message says why."""


def flat(result: Any) -> list[torch.Tensor]:
    """The tensors among the results of a call. Raises `Refused` if the rule declined."""
    if isinstance(result, Declined):
        raise Refused(result.reason)
    return pytree.tensors_in(result)


def require_same_metadata(found: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> None:
    """Raise `MismatchedResults` unless both are the same except for values and strides."""
    if len(found) != len(own):
        raise MismatchedResults(f"{len(found)} results where the op has {len(own)}")
    for mine, theirs in zip(found, own):
        if mine.shape != theirs.shape or mine.dtype is not theirs.dtype:
            raise MismatchedResults(f"{described(mine)} where the op gives {described(theirs)}")


def match_kernel_metadata(
    found: Sequence[torch.Tensor], own: Sequence[torch.Tensor], predicted: Callable[[], Sequence[torch.Tensor]]
) -> list[torch.Tensor]:
    """The results, made to match those of PyTorch's kernel: where the kernel does not have the dtypes and shapes that
    PyTorch's meta kernel predicts and the results do, they are cast, or replaced by the kernel's if the shape differs.
    Raises `MismatchedResults` for other differences."""
    try:
        require_same_metadata(found, own)
        return list(found)
    except MismatchedResults:
        said = predicted()
        if len(said) != len(own):
            raise
        with contextlib.suppress(MismatchedResults):
            require_same_metadata(found, said)
            return [a.to(b.dtype) if a.shape == b.shape else b for a, b in zip(found, own)]
        raise


def same_strides(found: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> bool:
    """Whether both have the same strides, except in dimensions of size 0 or 1, and those that only a view can have."""
    return len(found) == len(own) and all(
        _strides(mine) == _strides(theirs) or dense_order(theirs) is None for mine, theirs in zip(found, own)
    )


def _strides(t: torch.Tensor) -> list[int] | None:
    return [stride for stride, size in zip(t.stride(), t.shape) if size > 1] if t.numel() > 1 else None
