"""How calls and models reach a target on the installed PyTorch: derivations, calls, costs, exported graphs, and what is
refused, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from decomp.advice.jobs import Setting
from decomp.errors import NotLowered, first_line
from decomp.ir.call import calls
from decomp.lowering import lower
from decomp.rules.options import Options
from decomp.samples import Sample
from decomp.tools.explaining import DerivationStep, routes
from decomp.tools.measurement.trials import silenced
from decomp.tools.upgrading.records import CallRecord, ModelRecord


def reached(sample: Sample, setting: Setting) -> CallRecord:
    """How a call reaches the target."""
    matching, policy = setting
    options = Options(rules=matching.rules, accuracy=policy.accuracy, cost=policy.cost)
    try:
        with silenced():
            (route,) = routes([sample], matching.target, options)
    except Exception as error:  # an export or a rule may raise anything on this version
        return CallRecord(str(sample), "refused", reason=_named(error))
    chains = tuple(_chains(route.derivation))
    count = _calls(route.derivation) if route.verdict == "derived" else 1
    reason = "; ".join(route.reasons) if route.verdict == "blocked" else ""
    return CallRecord(route.call, route.verdict, chains, count, route.cost, reason)


def _chains(step: DerivationStep, before: str = "") -> Iterator[str]:
    for rule, following in step.rules.items():
        chain = f"{before} > {_unplaced(rule)}" if before else _unplaced(rule)
        yield chain
        yield from _chains(following, chain)


def _unplaced(rule: str) -> str:
    """The name of a rule, without its place in a file."""
    return rule.partition(" (")[0]


def _calls(step: DerivationStep) -> int:
    return sum(step.calls.values()) + sum(map(_calls, step.rules.values()))


def model_record(make: Callable[[], Any], setting: Setting) -> ModelRecord:
    """How a model is exported, and what it is lowered to. `make` gives an `ExportedProgram`, the same each time."""
    matching, policy = setting
    try:
        with torch.random.fork_rng(devices=[]), silenced():
            torch.manual_seed(0)
            program = make()
    except Exception as error:  # an export may raise anything on this version
        return ModelRecord(error=_named(error))
    exported = dict(sorted(Counter(f"{call.op}.{call.overload or 'default'}" for call in calls(program)).items()))
    try:
        lowering = lower(
            program,
            to=matching.target,
            rules=matching.rules,
            accuracy=policy.accuracy,
            cost=policy.cost,
            training=matching.training,
            verify=False,
        )
    except NotLowered as error:
        blocked = tuple(sorted({blocker.op for blocker in error.blockers}))
        return ModelRecord(exported, error=_named(error), blocked=blocked)
    except Exception as error:  # by its name
        return ModelRecord(exported, error=_named(error))
    report = lowering.report()
    rules: Counter[str] = Counter()
    for rule, times in report.rules.items():
        rules[_unplaced(rule)] += times
    return ModelRecord(exported, dict(sorted(report.after.items())), dict(sorted(rules.items())))


def _named(error: Exception) -> str:
    if isinstance(error, NotLowered):
        return f"NotLowered: {', '.join(sorted({blocker.op for blocker in error.blockers}))}"
    return f"{type(error).__name__}: {first_line(error)}"[:300]
