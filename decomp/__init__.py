"""Lower any PyTorch model to the ops that a backend knows, and prove it. The public names, and nothing else."""

from typing import TYPE_CHECKING, Any

from decomp import costs as costs
from decomp._library import TOOLS, tool
from decomp.backends import backend as backend
from decomp.derive.decisions import Plan as Plan
from decomp.errors import (
    AccuracyError as AccuracyError,
    ArgumentError as ArgumentError,
    CaptureError as CaptureError,
    CostError as CostError,
    DecompError as DecompError,
    InputMismatch as InputMismatch,
    InputMissing as InputMissing,
    InputsOverlap as InputsOverlap,
    InternalError as InternalError,
    MutationError as MutationError,
    NotLowered as NotLowered,
    NotPortable as NotPortable,
    OutOfRange as OutOfRange,
    RuleCycle as RuleCycle,
    RuleError as RuleError,
    TargetError as TargetError,
    UnknownOp as UnknownOp,
)
from decomp.finding import match as match
from decomp.ir.call import Call as Call, calls as calls
from decomp.ir.ops import Op as Op, op as op
from decomp.lowering import Lowering as Lowering, decompose as decompose, lower as lower, plan as plan
from decomp.patterns.found import Match as Match
from decomp.patterns.pattern import Pattern as Pattern
from decomp.proof.correspondence import VerificationError as VerificationError
from decomp.provenance import Provenance as Provenance
from decomp.report import Report as Report
from decomp.rules.declining import Declined as Declined, decline as decline
from decomp.rules.limitation import Limitation as Limitation
from decomp.rules.linting import Finding as Finding, lint as lint
from decomp.rules.rules import Rule as Rule, Rules as Rules
from decomp.rules.target import Target as Target
from decomp.samples import Leeway as Leeway, Sample as Sample
from decomp.simplifying import simplify as simplify
from decomp.verification import verify as verify

if TYPE_CHECKING:
    from decomp.advising import Advice as Advice, advise as advise
    from decomp.budgets import Budget as Budget, budget as budget
    from decomp.memory.planning import MemoryPlan as MemoryPlan, memory_plan as memory_plan
    from decomp.refolding.outcome import RefoldReport as RefoldReport
    from decomp.refolding.refolding import Refolding as Refolding, refold as refold
    from decomp.runtime.failures import (
        BackendError as BackendError,
        LoadError as LoadError,
        PrimitiveError as PrimitiveError,
    )
    from decomp.runtime.loaded import Loaded as Loaded
    from decomp.runtime.tables import Backend as Backend
    from decomp.tools.benchmarking.workload import Workload as Workload
    from decomp.tools.bringup.bringing_up import bring_up as bring_up
    from decomp.tools.bringup.report import BringUp as BringUp
    from decomp.tools.certification.certificate import Certificate as Certificate, Certificates as Certificates
    from decomp.tools.certification.certifying import certify as certify


def __getattr__(name: str) -> Any:
    """What stands on the library is imported when it is asked for."""
    return tool(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *TOOLS})
