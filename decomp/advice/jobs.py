"""The two questions that `advise` asks of each program: what does it lack on a target, and how does it lower to an
extended target? Each is a job. Its answer is plain data, so a job can run in another process and its answer be stored
in a file."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
import hashlib
import json
import pickle
from typing import Any, NamedTuple

from torch import fx, nn
from torch.export import ExportedProgram

from decomp.advice.clauses import DerivationClauses, Exploration
from decomp.advice.missing import MissingCapability, MissingOp, extend_target, is_advisable
from decomp.advice.suggestions import count_planned_calls, iterate_blocked
from decomp.cache.fingerprints import fingerprint
from decomp.derive.decisions import Derived, PlannedProgram
from decomp.derive.pipeline import CaptureRequest, plan_program
from decomp.derive.planner import Planner
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.session import capture_session, resumed_session
from decomp.errors import CaptureError, DecompError, first_line
from decomp.forks import ForkSafeLock
from decomp.ir.module import Module
from decomp.ir.ops import Op
from decomp.rules.accuracy import Policy
from decomp.rules.options import Options
from decomp.rules.rules import Rule
from decomp.rules.target import Target

_MAX_CAPTURED = 8
"""How many captured programs each process keeps for their second job."""


class Setting(NamedTuple):
    """The rules, target and policy shared by all programs."""

    matching: RuleSelection
    policy: Policy

    @classmethod
    def of(cls, to: Target, options: Options) -> Setting:
        """The setting of a target with these options. Raises `TargetError`."""
        return cls(RuleSelection.of(to, options), options.policy)

    @property
    def digest(self) -> str | None:
        """A hash that differs whenever answers may differ; None if something in the setting has no fingerprint."""
        rules, target = self.matching.rules, self.matching.target
        asked = f"{self.policy.accuracy}, {self.matching.training}, {self.policy.freeze}"
        known = fingerprint(rules, target, asked, self.policy.cost or target.costs)
        return None if known is None else known[:16]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a job."""

    calls: int | None = None
    """The number of calls of the lowered program; None if something is blocked."""
    reason: str = ""
    """The first obstacle, if there is one."""
    lacks: Mapping[str, Any] | None = None
    """What would lower the blocked calls, as returned by `DerivationClauses.as_dict`; None if nothing is blocked."""
    goals: tuple[int, ...] = ()
    """The numbers in `lacks` that must all be derived."""
    saved: Mapping[str, int] | None = None
    """By op: how many calls fewer the program would have if the target knew the op."""


@dataclass(frozen=True)
class AdviceJob:
    """A question about one program."""

    name: str
    make: Callable[[], Any]
    """Returns the program: an `ExportedProgram`, a `GraphModule`, or a module and its example inputs."""
    setting: Callable[[], Setting]
    capabilities: tuple[MissingCapability, ...] | None = None
    """Additions to the target. None: find out what the program lacks."""
    savings: int = 0
    """For how many ops to compute the calls they would save, those first from which most calls are derived."""
    run: str = ""
    """Identifies the search that the job belongs to."""
    version: str = ""
    """Version of the program, where the name alone does not identify it."""

    def __call__(self) -> Answer:
        """Run the job. If the program cannot be captured or planned, the answer has the reason."""
        # A program that fails is one answer of many: the others go on.
        try:
            program, setting = _held.program(self)
            return _lacking(program, setting) if self.capabilities is None else self._outcome(program, setting)
        except DecompError as error:
            return Answer(reason=first_line(error))

    def _outcome(self, program: Module, setting: Setting) -> Answer:
        target = extend_target(setting.matching.target, self.capabilities or ())
        with resumed_session(program, setting.matching.rules):
            planned = _planned(program, setting, target)
            if planned.plan.blocked:
                return Answer(reason=_reason(planned))
            calls = count_planned_calls(planned)
            tried = [op for op in _emitters(planned) if is_advisable(op, target) and not target.knows(op)]
            # Each op alone, as savings of several do not add up.
            others = {op: _planned(program, setting, target | Target("", [op])) for op in tried[: self.savings]}
        saved = {
            str(MissingOp(op)): calls - count_planned_calls(each)
            for op, each in others.items()
            if not each.plan.blocked
        }
        return Answer(calls, saved={op: n for op, n in saved.items() if n > 0})

    def key(self, setting: str) -> str:
        """The file name of the answer, given the digest of the setting."""
        words = [capability.explained for capability in self.capabilities] if self.capabilities is not None else None
        found = hashlib.sha256(json.dumps([self.name, self.version, setting, words, self.savings]).encode()).hexdigest()
        return f"{found[:24]}.json"


def to_json(answer: Answer) -> str:
    """An answer as JSON text."""
    return json.dumps(asdict(answer))


def from_json(text: str) -> Answer:
    """Read an answer from JSON text. Raises `ValueError`, `TypeError` if it is malformed."""
    found = json.loads(text)
    return Answer(**{**found, "goals": tuple(found["goals"])})


def run_job(job: AdviceJob) -> Answer:
    """Run a job. A module-level function, because executors pickle what they run."""
    return job()


def _lacking(program: Module, setting: Setting) -> Answer:
    with resumed_session(program, setting.matching.rules):
        planned = _planned(program, setting, setting.matching.target)
        blocked = list(iterate_blocked(planned))
        if not blocked:
            return Answer(count_planned_calls(planned))
        matching, found = setting.matching.specialise_for_program(program), DerivationClauses()
        planner = Planner(matching, program, setting.policy)
        exploration = Exploration(planner, found)
        calls = [node for node, _ in blocked if node.op in ("call_function", "call_method")]
        goals = {exploration.goal(node): None for node in calls}
        if len(calls) < len(blocked):
            goals[found.number()] = None  # a module or region, which no op can replace: a goal without clauses
        exploration.follow()
        numbers = tuple(exploration.specialise_for_program(goals).values())
    return Answer(None, _reason(planned), found.as_dict(), numbers)


def _planned(program: Module, setting: Setting, target: Target) -> PlannedProgram:
    return plan_program(program, replace(setting.matching, target=target), setting.policy)


def _reason(planned: PlannedProgram) -> str:
    return next(decision.limitation or decision.why() for _, decision in iterate_blocked(planned))


def _emitters(planned: PlannedProgram) -> list[Op]:
    """The ops from which derived calls come, those with most calls first. If several ops produce the same calls, as
    `layer_norm` and the `native_layer_norm` in it, only the one in the program is listed."""
    calls: dict[Op, list[int]] = {}
    templates = (each.template for _, _, each in planned.decisions if isinstance(each, Derived))
    entries = (entry for template in templates for entry in template.entries if entry.op.startswith("call"))
    for number, entry in enumerate(entries):
        for op in dict.fromkeys(rule.op for rule in entry.chain if isinstance(rule, Rule)):
            calls.setdefault(op, []).append(number)
    # The last assignment wins: that of the outermost op, which was listed first.
    first = {tuple(numbers): op for op, numbers in reversed(calls.items())}
    return sorted(first.values(), key=lambda op: -len(calls[op]))


class _Held:
    """The programs last captured in this process, and the settings."""

    def __init__(self) -> None:
        self.lock = ForkSafeLock()
        self.found: OrderedDict[tuple[str, str], Module] = OrderedDict()
        self.settings: OrderedDict[str, Setting] = OrderedDict()

    def program(self, job: AdviceJob) -> tuple[Module, Setting]:
        """The captured program of a job, and its setting."""
        # Not while the program is made and captured, which may take minutes and has a lock of its own.
        with self.lock:
            setting = self.settings.get(job.run) or job.setting()
            self._keep(self.settings, job.run, setting)
            program = self.found.get((job.run, job.name))
        if program is None:
            with capture_session(_source(_made(job)), setting.matching) as program:
                pass
        with self.lock:
            self._keep(self.found, (job.run, job.name), program)
        return program, setting

    def _keep(self, among: OrderedDict[Any, Any], key: Any, value: Any) -> None:
        among[key] = value
        among.move_to_end(key)
        while len(among) > _MAX_CAPTURED:
            among.popitem(last=False)

    def forget(self, run: str) -> None:
        """Drop everything that belongs to a search."""
        with self.lock:
            self.settings.pop(run, None)
            for key in [key for key in self.found if key[0] == run]:
                del self.found[key]


_held = _Held()
forget = _held.forget


def _made(job: AdviceJob) -> Any:
    """Call the job's function. Raises `CaptureError` if it fails."""
    try:
        return job.make()
    except DecompError:
        raise
    except Exception as error:  # user code may raise anything
        raise CaptureError(f"the function that makes it fails: {type(error).__name__}: {first_line(error)}") from error


def _source(given: Any) -> CaptureRequest:
    model, args = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    kwargs = args if isinstance(args, Mapping) else None
    return CaptureRequest(model, () if kwargs is not None else args, kwargs)


@dataclass(frozen=True)
class Constant:
    """A function that returns a given value."""

    value: Any

    def __call__(self) -> Any:
        """Returns the value."""
        return self.value

    def __reduce__(self) -> tuple[Any, ...]:
        # torch 2.13 pickles these without an error, but unpickles another program, or fails.
        if isinstance(self.value, (ExportedProgram, fx.GraphModule)):
            raise pickle.PicklingError("give a function that makes the program")
        return Constant, (self.value,)


def is_program(value: Any) -> bool:
    """Whether a value is a program, not a callable that returns one."""
    return isinstance(value, (ExportedProgram, nn.Module, tuple)) or not callable(value)
