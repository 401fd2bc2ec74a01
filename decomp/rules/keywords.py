"""The keywords of each verb and their types, from which signatures and the flags of the command line are made. The
types stay texts, so that the command line shows its help without PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from torch import fx

    from decomp.costs.model import Cost
    from decomp.rules.accuracy import Limits, Spec
    from decomp.rules.options import Options
    from decomp.rules.rules import Rules


class CaptureOptions(TypedDict, total=False):
    """How a module is captured."""

    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    tracer_class: type[fx.Tracer]
    dynamic_shapes: Any


class LevelOptions(TypedDict, total=False):
    """How calls are planned at levels of accuracy."""

    options: Options | None
    rules: Rules | Mapping[Any, Any] | None
    keep: Iterable[Any]
    accuracy: Spec
    cost: Cost | str | None
    training: bool | None
    freeze: bool
    narrow: bool


class BringUpOptions(TypedDict, total=False):
    """How `bring_up` lowers models."""

    rules: Rules | Mapping[Any, Any] | None
    training: bool | None
    narrow: bool


class BudgetOptions(CaptureOptions, LevelOptions, total=False):
    """The keywords of `budget`."""


class AdviseOptions(LevelOptions, total=False):
    """The keywords of `advise`."""

    max_ulp: Limits | None


class ConvertOptions(AdviseOptions, total=False):
    """The flags of `decomp convert`."""

    composites: Iterable[Any] | Mapping[Any, int]


class PlanOptions(CaptureOptions, AdviseOptions, total=False):
    """The keywords of `plan`."""

    drop_draws: bool


class LowerOptions(PlanOptions, total=False):
    """The keywords of `lower`."""

    max_error: float | None
    partial: bool
    simplify: bool
    verify: bool | str
    lock: str | Path | None
    composites: Iterable[Any] | Mapping[Any, int]


class PartitionOptions(LevelOptions, total=False):
    """The keywords of `partition`."""

    tracer_class: type[fx.Tracer]
    dynamic_shapes: Any
    max_ulp: Limits | None
    simplify: bool
    verify: bool | str
    composites: Iterable[Any] | Mapping[Any, int]


class BackendOptions(TypedDict, total=False):
    """The keywords of `backend`."""

    options: Options | None
    rules: Rules | Mapping[Any, Any] | None
    keep: Iterable[Any]
    accuracy: Spec
    cost: Cost | str | None
    max_ulp: Limits | None
    partial: bool
    simplify: bool
    narrow: bool
    verify: bool | str
    composites: Iterable[Any] | Mapping[Any, int]


class DecomposeOptions(CaptureOptions, total=False):
    """The keywords of `decompose`."""

    options: Options | None
    accuracy: Spec
    max_ulp: Limits | None
    verify: bool | str
