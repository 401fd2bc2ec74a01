"""Differences between versions of PyTorch, in one place: the supported versions, and the ops that each of them has.

What an op means from a version on is a `Change`: rules are registered by it (`when=changes.ties_share_gradients`), and
`tests/test_versions.py` checks each against the installed PyTorch. `op_names.json` lists the ops of ATen and prims by
the versions that have them; `python -m tests.op_names` adds those of the installed version. A name in it that this
version lacks is known to be absent; a name that is not in it is misspelt."""

from __future__ import annotations

from dataclasses import dataclass
import functools
import json
from pathlib import Path
from typing import Any

import torch

from decomp.supported import NEWEST as NEWEST, OLDEST as OLDEST, in_words as in_words, version_of as version_of

OP_NAMES = Path(__file__).with_name("op_names.json")
"""Names of ops, such as `aten.relu`, by the versions that have them: {"2.11 2.12": [...]}."""


INSTALLED = version_of(torch.__version__)
"""The version of PyTorch in this process."""


@dataclass(frozen=True)
class Change:
    """Something that PyTorch does otherwise from a version on: true where the installed one does."""

    since: tuple[int, int]
    """The first version that does so: (2, 14)."""
    what: str
    """What it does, and what it did before, in one sentence."""
    source: str
    """PyTorch's pull request or issue; or what was measured, where neither was found."""
    until: tuple[int, int] | None = None
    """The first version that no longer does so."""

    def __bool__(self) -> bool:
        return self.since <= INSTALLED and (self.until is None or INSTALLED < self.until)


@dataclass(frozen=True)
class Changes:
    """What differs between the supported versions, by name. Rules follow the first ones; of the others they keep what
    most versions do."""

    ties_share_gradients: Change = Change(
        since=(2, 14),
        what="clamp, clamp_min and clamp_max with bounds that are tensors, fmax and fmin split the gradient between"
        " operands that are equal, and clamp at a number has none there; it went to the first operand whole",
        source="https://github.com/pytorch/pytorch/pull/191142",
    )
    quantile_places_in_float64: Change = Change(
        since=(2, 14),
        what="quantile and nanquantile compute q · (n − 1) in float64; it was rounded to the dtype of the input",
        source="https://github.com/pytorch/pytorch/pull/187574",
    )
    miopen_saves_in_dtype_of_weight: Change = Change(
        since=(2, 13),
        what="fakes of the statistics that miopen_batch_norm saves have the dtype of the weight; they had that of x",
        source="https://github.com/pytorch/pytorch/pull/179365",
    )
    # Of captures.
    lstm_states_are_exported_right: Change = Change(
        since=(2, 13),
        what="the states of an LSTM in an exported program have three dimensions; they had four",
        source="https://github.com/pytorch/pytorch/pull/185716",
    )
    rows_by_data_are_exported: Change = Change(
        since=(2, 13),
        what="torch.export records `table[i]`, for a tensor i of one integer, as a selection by its item; it failed",
        source="https://github.com/pytorch/pytorch/pull/186138",
    )
    # Not followed.
    nan_shares_gradients: Change = Change(
        since=(2, 14),
        until=(2, 15),
        what="fmax and fmin send the whole gradient to both operands where one is NaN; else the other operand has it",
        source="measured on 2.13.0, 2.14.1 and 2.15.0; its formulas: https://github.com/pytorch/pytorch/pull/191142",
    )


CHANGES = Changes()


class OpAbsent(Exception):
    """A rule calls an op that the installed PyTorch lacks, so the rule declines."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not in torch {in_words(INSTALLED)}")


@dataclass(frozen=True)
class AbsentOp:
    """An op, or an overload, that a supported PyTorch has and the installed one lacks. It equals no target of a graph,
    and registrations for it are ignored."""

    name: str
    """`aten.qr`, or `aten.qr.default`."""

    @property
    def __name__(self) -> str:
        return self.name.rsplit(".", 1)[-1]

    def __getattr__(self, overload: str) -> AbsentOp:
        # Else an absent op would seem to have every protocol: `copy`, `pickle` and `inspect` probe for such attributes.
        if overload.startswith("__"):
            raise AttributeError(overload)
        return AbsentOp(f"{self.name}.{overload}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise OpAbsent(self.name)

    def __str__(self) -> str:
        return self.name


class Namespace:
    """The ops of a namespace, as attributes: those of `torch.ops`, and an `AbsentOp` for those that this version
    lacks."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, op: str) -> Any:
        found: Any
        try:
            found = getattr(getattr(torch.ops, self._name), op)
        except AttributeError:
            # A name that no version has is misspelt, and must stay an error.
            if not versions_with(f"{self._name}.{op}"):
                raise
            found = AbsentOp(f"{self._name}.{op}")
        setattr(self, op, found)  # the next access finds it directly
        return found


@functools.cache
def names_by_version() -> dict[str, tuple[str, ...]]:
    """The supported versions that have each op of ATen and prims, by op name (`aten.relu`)."""
    table = json.loads(OP_NAMES.read_text(encoding="utf-8"))
    return {name: tuple(versions.split()) for versions, names in table.items() for name in names}


def versions_with(name: str) -> tuple[str, ...]:
    """The supported versions that have an op (`aten.relu`) or an overload of it: ("2.11", "2.12"). Empty: no
    version."""
    return names_by_version().get(name, ())
