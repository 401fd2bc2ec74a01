"""Lower any PyTorch model to the ops that a backend knows, and prove it. The public names, and nothing else."""

from decomp.backends import backend as backend
from decomp.benchmarking.workload import Workload as Workload
from decomp.calls import Call as Call, calls as calls
from decomp.certification.certificate import Certificate as Certificate, Certificates as Certificates
from decomp.certification.certify import certify as certify
from decomp.errors import (
    ArgumentError as ArgumentError,
    CaptureError as CaptureError,
    DecompError as DecompError,
    InputMismatch as InputMismatch,
    InternalError as InternalError,
    MutationError as MutationError,
    NotLowered as NotLowered,
    NotPortable as NotPortable,
    RuleCycle as RuleCycle,
    RuleError as RuleError,
    TargetError as TargetError,
    UnknownOp as UnknownOp,
)
from decomp.limitation import Limitation as Limitation
from decomp.linting import Finding as Finding, lint as lint
from decomp.lowering import Lowering as Lowering, decompose as decompose, lower as lower, plan as plan
from decomp.ops import Op as Op, op as op
from decomp.plan import Plan as Plan
from decomp.provenance import Provenance as Provenance
from decomp.report import Report as Report
from decomp.rules import Declined as Declined, Rule as Rule, Rules as Rules, decline as decline
from decomp.samples import Leeway as Leeway, Sample as Sample
from decomp.target import Target as Target
from decomp.verify import VerificationError as VerificationError, verify as verify
