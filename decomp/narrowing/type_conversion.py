"""Converts the dtypes of a program to those of a target: complex numbers become pairs of real ones, then wide dtypes
become narrow ones. (If a target has complex64, complex128 is narrowed like other wide dtypes, not split into pairs.)"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from decomp.ir.module import ProgramGraph
from decomp.narrowing.checking import check_narrow
from decomp.narrowing.functional import describe_narrowing, narrow_program
from decomp.pairs.checking import verify_pairs
from decomp.pairs.functional import border_conversions, describe_pairs, split_complex_program
from decomp.pairs.recording import PairRecorder
from decomp.rules.target import Target

PAIRS, NARROW = "split complex", "narrow"
"""The passes, as `ProgramGraph.by` names them."""


def convert_types(own: ProgramGraph, recorder: PairRecorder, target: Target, state: Mapping[str, Any]) -> ProgramGraph:
    """A graph converted to the dtypes of `target`. `state`: the tensors behind its inputs. Raises `OutOfRange`, and
    `CaptureError` if the graph has no metadata."""
    if torch.complex128 not in target.narrower:
        own = split_complex_program(own, recorder, target)
    return narrow_program(own, target, state)


def conversions_at_border(own: ProgramGraph) -> Collection[fx.Node]:
    """The calls of a graph that split complex inputs and merge complex outputs."""
    return tuple(border_conversions(own.graph)) if own.at(PAIRS) is not None else ()


def why_complex(own: ProgramGraph, node: fx.Node) -> str | None:
    """Why a call is not computed on pairs; None if it is, or stays complex on purpose."""
    pairs = own.record(PAIRS)
    return None if pairs is None else pairs.why_refused(node)


def describe_conversions(own: ProgramGraph) -> tuple[str, ...]:
    """Sentences for plans and reports: the conversions, and what is converted at the border."""
    found = ((own.record(PAIRS), describe_pairs), (own.record(NARROW), describe_narrowing))
    return tuple(describe(record) for record, describe in found if record is not None)


def check_conversions(own: ProgramGraph) -> list[str]:
    """Verify the conversions; returns sentences that say what was verified. Raises `VerificationError`."""
    found = ((own.record(PAIRS), verify_pairs), (own.record(NARROW), check_narrow))
    return [check(record) for record, check in found if record is not None]
