"""Converts the dtypes of a program to those of a target: complex numbers become pairs of real ones, then wide dtypes
become narrow ones. (If a target has complex64, complex128 is narrowed like other wide dtypes, not split into pairs.)"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from decomp.functionalize.writes import Functional
from decomp.narrowing.checking import check_narrow
from decomp.narrowing.functional import describe_narrowing, narrow_program
from decomp.narrowing.program import Narrowed
from decomp.pairs.checking import verify_pairs
from decomp.pairs.functional import border_conversions, describe_pairs, split_complex_program
from decomp.pairs.program import ComplexAsReal
from decomp.pairs.recording import PairRecorder
from decomp.rules.target import Target


@dataclass(frozen=True)
class TypeConversion:
    """The conversions applied to a graph, if any."""

    narrowed: Narrowed | None = None
    pairs: ComplexAsReal | None = None

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        """The constants that expansions on pairs added to the graph, by attribute."""
        return self.pairs.constants if self.pairs is not None else {}

    def border(self, graph: fx.Graph) -> Collection[fx.Node]:
        """The calls of a graph that split complex inputs and merge complex outputs."""
        return tuple(border_conversions(graph)) if self.pairs is not None else ()

    def chains_of(self, graph: fx.Graph) -> Mapping[fx.Node, tuple[Any, ...]]:
        """For each node of a graph that computes a complex call on pairs: the rules that emitted it."""
        made = self.pairs.chains.items() if self.pairs is not None else ()
        by_name = {node.name: chain for node, chain in made}
        return {node: by_name[node.name] for node in graph.nodes if node.name in by_name}

    def why_complex(self, node: fx.Node) -> str | None:
        """Why a call is not computed on pairs; None if it is, or stays complex on purpose."""
        return self.pairs.why_refused(node) if self.pairs is not None else None

    def notes(self) -> tuple[str, ...]:
        """Sentences for plans and reports: the conversions, and what is converted at the border."""
        pairs = (describe_pairs(self.pairs),) if self.pairs is not None else ()
        return pairs if self.narrowed is None else (*pairs, describe_narrowing(self.narrowed))

    def checks(self) -> list[str]:
        """Verify the conversions; returns sentences that say what was verified. Raises `VerificationError`."""
        found = [verify_pairs(self.pairs)] if self.pairs is not None else []
        return found if self.narrowed is None else [*found, check_narrow(self.narrowed)]


def convert_types(
    functional: Functional, recorder: PairRecorder, target: Target, owner: nn.Module, state: Mapping[str, Any]
) -> tuple[Functional, TypeConversion]:
    """A program converted to the dtypes of `target`. `owner` has the attributes that its graph names, `state` the
    tensors behind its inputs. Raises `OutOfRange`, and `CaptureError` if the graph has no metadata."""
    other = None if torch.complex128 in target.narrower else split_complex_program(functional, recorder, target, owner)
    functional, pairs = (functional, None) if other is None else other
    found = narrow_program(functional, target, owner, state)
    functional, narrowed = (functional, None) if found is None else found
    return functional, TypeConversion(narrowed, pairs)
