"""Converts the dtypes of a program to those of a target: complex numbers become pairs of real ones, then wide dtypes
become narrow ones. (If a target has complex64, complex128 is narrowed like other wide dtypes, not split into pairs.)"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from decomp.ir.module import ProgramGraph
from decomp.rules.target import Target
from decomp.type_conversion.narrow_programs import describe_narrowing, narrow_program
from decomp.type_conversion.narrowing_checks import check_narrow
from decomp.type_conversion.pair_checks import verify_pairs
from decomp.type_conversion.pair_programs import border_conversions, describe_pairs, split_complex_program
from decomp.type_conversion.pair_recording import PairRecorder

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


def left_complex(own: ProgramGraph) -> dict[str, str]:
    """By the name of each call that stays complex: why it is not computed on pairs. Calls that stay on purpose are left
    out."""
    pairs = own.record(PAIRS)
    reasons = pairs.items() if pairs is not None else ()
    return {node.name: why for node, why in reasons if isinstance(why, str)}


def describe_conversions(own: ProgramGraph) -> tuple[str, ...]:
    """Sentences for plans and reports: the conversions, and what is converted at the border."""
    found = ((own.at(PAIRS), describe_pairs), (own.at(NARROW), describe_narrowing))
    return tuple(describe(converted) for converted, describe in found if converted is not None)


def check_conversions(own: ProgramGraph) -> list[str]:
    """Verify the conversions; returns sentences that say what was verified. Raises `VerificationError`."""
    found = ((own.at(PAIRS), verify_pairs), (own.at(NARROW), check_narrow))
    return [check(converted) for converted, check in found if converted is not None]
