"""Lower any PyTorch model to the ops that a backend has, and verify it. `__all__` has the public names, each imported
on first access, so that the command line shows its help without PyTorch. Rarer errors are in `decomp.errors`, and the
classes that the verbs return in `decomp.results`."""

import importlib
from typing import TYPE_CHECKING, Any
import warnings

from decomp import results
from decomp.supported import require_supported, torch_version

if TYPE_CHECKING:
    from decomp import costs, errors
    from decomp.advising import advise
    from decomp.backends import backend
    from decomp.budgets import budget
    from decomp.derive.decisions import Plan
    from decomp.errors import CaptureError, DecompError, NotLowered
    from decomp.finding import match
    from decomp.ir.call import Call, calls
    from decomp.ir.ops import Op, op
    from decomp.lowering import Lowering, decompose, lower, plan
    from decomp.memory.planning import memory_plan
    from decomp.partitioning.partitioning import partition
    from decomp.patterns.pattern import Pattern
    from decomp.proof.correspondence import VerificationError
    from decomp.refolding.refolding import refold
    from decomp.rules.declining import decline
    from decomp.rules.limitation import Limitation
    from decomp.rules.linting import lint
    from decomp.rules.options import Options
    from decomp.rules.rules import Rule, Rules
    from decomp.rules.target import Target
    from decomp.runtime.tables import Backend
    from decomp.samples import Sample
    from decomp.simplifying import simplify
    from decomp.tools.bringup.bringing_up import bring_up
    from decomp.tools.certification.certifying import certify
    from decomp.tools.comparing.comparing import compare
    from decomp.tools.converting.conversion import convert
    from decomp.tools.converting.converter import Converter
    from decomp.verification import verify

__all__ = [  # noqa: RUF022  in groups
    # verbs
    "advise",
    "backend",
    "bring_up",
    "budget",
    "certify",
    "compare",
    "convert",
    "decompose",
    "lint",
    "lower",
    "match",
    "memory_plan",
    "partition",
    "plan",
    "refold",
    "simplify",
    "verify",
    # rules, targets and backends
    "Backend",
    "Call",
    "Converter",
    "Limitation",
    "Op",
    "Options",
    "Pattern",
    "Rule",
    "Rules",
    "Sample",
    "Target",
    "calls",
    "costs",
    "decline",
    "op",
    # results and errors
    "CaptureError",
    "DecompError",
    "Lowering",
    "NotLowered",
    "Plan",
    "VerificationError",
    "errors",
    "results",
]

require_supported(torch_version())

_DEFINED_IN = {
    "Backend": "decomp.runtime.tables",
    "Call": "decomp.ir.call",
    "CaptureError": "decomp.errors",
    "Converter": "decomp.tools.converting.converter",
    "DecompError": "decomp.errors",
    "Limitation": "decomp.rules.limitation",
    "Lowering": "decomp.lowering",
    "NotLowered": "decomp.errors",
    "Op": "decomp.ir.ops",
    "Options": "decomp.rules.options",
    "Pattern": "decomp.patterns.pattern",
    "Plan": "decomp.derive.decisions",
    "Rule": "decomp.rules.rules",
    "Rules": "decomp.rules.rules",
    "Sample": "decomp.samples",
    "Target": "decomp.rules.target",
    "VerificationError": "decomp.proof.correspondence",
    "advise": "decomp.advising",
    "backend": "decomp.backends",
    "bring_up": "decomp.tools.bringup.bringing_up",
    "budget": "decomp.budgets",
    "calls": "decomp.ir.call",
    "certify": "decomp.tools.certification.certifying",
    "compare": "decomp.tools.comparing.comparing",
    "convert": "decomp.tools.converting.conversion",
    "decline": "decomp.rules.declining",
    "decompose": "decomp.lowering",
    "lint": "decomp.rules.linting",
    "lower": "decomp.lowering",
    "match": "decomp.finding",
    "memory_plan": "decomp.memory.planning",
    "op": "decomp.ir.ops",
    "partition": "decomp.partitioning.partitioning",
    "plan": "decomp.lowering",
    "refold": "decomp.refolding.refolding",
    "simplify": "decomp.simplifying",
    "verify": "decomp.verification",
}

_MOVED_TO_ERRORS = frozenset(
    "AccuracyError ArgumentError BackendError CostError InputMismatch InputMissing InputsOverlap InternalError "
    "LoadError MutationError NotPortable OutOfRange PrimitiveError RuleCycle RuleError TargetError UnknownOp".split()
)
_MOVED = {
    **{name: ("errors", name) for name in _MOVED_TO_ERRORS},
    **{name: ("results", name) for name in results.__all__ if name not in ("Matches", "PortableProgram", "Proof")},
    "Leeway": ("results", "UnspecifiedBehaviour"),
}
"""Names that were public, with the module and the name that they have now; they go in release 0.3."""


def __getattr__(name: str) -> Any:
    if name in _DEFINED_IN:
        found = globals()[name] = getattr(importlib.import_module(_DEFINED_IN[name]), name)
        return found
    if name in __all__:
        return importlib.import_module(f"decomp.{name}")
    if name in _MOVED:
        module, new = _MOVED[name]
        text = f"decomp.{name} is decomp.{module}.{new} now; the old name goes in release 0.3"
        warnings.warn(text, DeprecationWarning, stacklevel=2)  # at the line that asks for the name
        return getattr(importlib.import_module(f"decomp.{module}"), new)
    raise AttributeError(f"module 'decomp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
