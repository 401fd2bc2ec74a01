"""The score of a target, from its proof, and of a backend, from its bring-up, too."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata as distributions
from typing import Any

from decomp.tools.bringup.report import BringUp
from decomp.tools.proving.proving import Asked
from decomp.tools.proving.records import TargetProof
from decomp.tools.scoring.numeric import numeric
from decomp.tools.scoring.records import TargetScore
from decomp.tools.scoring.structural import structural


def score(
    proof: TargetProof, asked: Callable[[], Asked], *, report: BringUp | None = None, **options: Any
) -> TargetScore:
    """The score of a target: its structural half, from its proof and by lowering models (`options` are the keywords of
    `structural`), and where there is a report of a bring-up, its numeric half."""
    half = structural(proof, asked, **options)
    # What follows a "+" is the build, for a CPU or for a version of CUDA.
    versions = {name: str(proof.header.get(name, "?")).partition("+")[0] for name in ("torch", "decomp")}
    if half.figure("families").total:
        versions["transformers"] = distributions.version("transformers")
    return TargetScore(proof.target, versions, half, numeric(report) if report is not None else None)
