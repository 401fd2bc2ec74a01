"""The classes that the verbs of `decomp` return, for annotations and `isinstance`. Each is imported on first access, as
most programs need none."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decomp.advising import Advice as Advice
    from decomp.backends import TorchCompileBackend as TorchCompileBackend
    from decomp.breakdown.layers import Layer as Layer, Layers as Layers
    from decomp.breakdown.model_methods import MethodCost as MethodCost, Methods as Methods
    from decomp.budgets import Budget as Budget
    from decomp.finding import Matches as Matches
    from decomp.memory.planning import MemoryPlan as MemoryPlan
    from decomp.partitioning.outcome import Part as Part, Partition as Partition
    from decomp.patterns.found import Match as Match
    from decomp.portable.reading import PortableProgram as PortableProgram
    from decomp.proof.correspondence import Proof as Proof
    from decomp.provenance import Provenance as Provenance
    from decomp.refolding.outcome import RefoldReport as RefoldReport
    from decomp.refolding.refolding import Refolding as Refolding
    from decomp.report import Report as Report
    from decomp.rules.certificate import Certificate as Certificate, Certificates as Certificates
    from decomp.rules.declining import Declined as Declined
    from decomp.rules.linting import Finding as Finding
    from decomp.runtime.loaded import Loaded as Loaded
    from decomp.runtime.lowered_graphs import LoweredGraph as LoweredGraph
    from decomp.samples import UnspecifiedBehaviour as UnspecifiedBehaviour
    from decomp.tools.benchmarking.workload import Workload as Workload
    from decomp.tools.bringup.report import BringUp as BringUp
    from decomp.tools.comparing.comparison import ComparedCall as ComparedCall, Comparison as Comparison

_DEFINED_IN = {
    "Advice": "decomp.advising",
    "BringUp": "decomp.tools.bringup.report",
    "Budget": "decomp.budgets",
    "Certificate": "decomp.rules.certificate",
    "Certificates": "decomp.rules.certificate",
    "ComparedCall": "decomp.tools.comparing.comparison",
    "Comparison": "decomp.tools.comparing.comparison",
    "Declined": "decomp.rules.declining",
    "Finding": "decomp.rules.linting",
    "UnspecifiedBehaviour": "decomp.samples",
    "Layer": "decomp.breakdown.layers",
    "Layers": "decomp.breakdown.layers",
    "Loaded": "decomp.runtime.loaded",
    "LoweredGraph": "decomp.runtime.lowered_graphs",
    "Match": "decomp.patterns.found",
    "Matches": "decomp.finding",
    "MemoryPlan": "decomp.memory.planning",
    "MethodCost": "decomp.breakdown.model_methods",
    "Methods": "decomp.breakdown.model_methods",
    "Part": "decomp.partitioning.outcome",
    "Partition": "decomp.partitioning.outcome",
    "PortableProgram": "decomp.portable.reading",
    "Proof": "decomp.proof.correspondence",
    "Provenance": "decomp.provenance",
    "RefoldReport": "decomp.refolding.outcome",
    "Report": "decomp.report",
    "Refolding": "decomp.refolding.refolding",
    "TorchCompileBackend": "decomp.backends",
    "Workload": "decomp.tools.benchmarking.workload",
}

__all__ = sorted(_DEFINED_IN)


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'decomp.results' has no attribute {name!r}")
    return getattr(importlib.import_module(_DEFINED_IN[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
