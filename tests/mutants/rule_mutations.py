"""The mutation check of the rules: `python -m tests.mutants.rule_mutations`. In what a rule computes a number is
perturbed, or a call is dropped; then the rule must measure worse than its certificate says. What survives is a rule
that could be wrong without a certificate that shows it, or a change that changes nothing, and is listed with what was
measured."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
import functools
import itertools
import logging
import random
import signal
import sys
import time
from typing import Any
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db

import decomp
from decomp import Rule, Sample
from decomp.records import one_row_a_line
from decomp.results import Certificate
from decomp.rules.certificates import identity
from decomp.tools.certification import certificates
from decomp.tools.certification.implementations import AsWritten, NotServed
from decomp.tools.measurement.measuring import DTYPES, measured_samples
from decomp.tools.measurement.trials import trial
from decomp_rules import RULES
from tests.mutants.rule_equivalence import reached, same
from tests.mutants.rule_mutants import Mutant, Site, mutated, sites
from tests.opinfo.table import RESULTS

SECONDS = 25
"""So long a rule is measured, in processor time; what is not decided then is not a mutant."""


class TooSlow(BaseException):
    """Measuring a rule took longer than it may. No `Exception`, for measuring catches those."""


def main(argv: list[str]) -> None:
    """Plant mutants until every family has had its share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=int, default=4, help="mutants of a family")
    parser.add_argument("--each", type=int, default=2, help="mutants of a rule")
    parser.add_argument("--family", action="append", help="only this one (may be repeated)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="keep the result beside the benchmark results")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    began = time.process_time()
    mutants, slow = collected(options)
    report = f"{table(mutants)}\n\n{survivors(mutants)}"
    print(report)
    print(f"{time.process_time() - began:.0f} s of processor time; too slow to measure: {', '.join(slow) or 'none'}")
    if options.write:
        head = f"# Mutants\n\n{ABOUT}\n\nMade by `python -m tests.mutants.rule_mutations {' '.join(argv)}`.\n\n"
        (RESULTS / "mutations.md").write_text(head + report + "\n")
        kept = {"seed": options.seed, "too slow": slow, "mutants": [asdict(mutant) for mutant in mutants]}
        (RESULTS / "mutations.json").write_text(one_row_a_line(kept))


ABOUT = """In what a rule computes, as it is written, one number is perturbed (x to 1.25 x + 0.01, an integer by 1) or
one call is dropped (its first argument takes the place of its result); of calls whose first argument has the shape and
dtype of their result, and not of casts, copies, views and neutral operands, whose loss changes no value. Where a rule
makes no such call, a result is negated. The sample calls are those of the library and some of PyTorch's own operator
tests. A mutant is killed if the rule then measures worse (`Certificate.worse_than`) than its committed certificate, or
than the rule as it is on the same sample calls. Equivalent is one whose graph is proved to have the values of the
rule's, on each sample call: what a mask leaves out may be any number (`tests/mutants/rule_equivalence.py`). It is no
mutant that could be killed."""


def collected(options: Any) -> tuple[list[Mutant], list[str]]:
    """Mutants of every family, rules in a seeded order, and the rules that took too long."""
    families: dict[str, list[Rule]] = defaultdict(list)
    for rule in RULES:
        families[certificates.family(rule)].append(rule)
    mutants: list[Mutant] = []
    slow: list[str] = []
    committed = certificates.read_committed()
    for name, rules in sorted(families.items()):
        if options.family and name not in options.family:
            continue
        chance = random.Random(f"{options.seed} {name}")
        chance.shuffle(rules)
        found: list[Mutant] = []
        for rule in rules:
            if len(found) < options.share:
                wanted = min(options.each, options.share - len(found))
                found += _within_the_time(name, rule, committed.get(identity(rule)), chance, wanted, slow)
        mutants += found
        for mutant in found:
            if not mutant.killed:
                print(f"    survived: {mutant}", file=sys.stderr, flush=True)
        print(f"... {name}: {sum(m.killed for m in found)} of {len(found)}", file=sys.stderr, flush=True)
    return mutants, slow


def _within_the_time(
    family: str, rule: Rule, kept: Certificate | None, chance: random.Random, count: int, slow: list[str]
) -> list[Mutant]:
    found: list[Mutant] = []
    previous = signal.signal(signal.SIGPROF, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        for mutant in _of_rule(family, rule, kept, chance, count):
            found.append(mutant)
    except TooSlow:
        slow.append(rule.name)
    except Exception as error:
        print(f"{rule.name} cannot be measured: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
    return found


def _too_slow(*_: Any) -> None:
    raise TooSlow


def _of_rule(family: str, rule: Rule, kept: Certificate | None, chance: random.Random, count: int) -> Iterator[Mutant]:
    try:
        samples = measured_samples(rule)
    except ValueError:
        return  # there are no sample calls
    found = set(_sites(rule, samples))
    planted = sorted({site for site in found if site.change != "negate"} or found, key=str)
    checked = _Check(rule, (*samples, *_of_pytorch(rule, samples[0])), kept)
    for site in chance.sample(planted, min(count, len(planted))):
        worse, why = checked.finds(site)
        yield Mutant(family, rule.name, str(rule.op), str(site), worse, why)


def _sites(rule: Rule, samples: tuple[Sample, ...]) -> Iterator[Site]:
    """Where the rule can be changed, on the first samples that it serves."""
    served = 0
    for sample in samples:
        if served < 3 and sample.exact != "shape":  # what is left open has no mutants
            here = _sites_of_call(rule, sample, torch.float32) or _sites_of_call(rule, sample, torch.complex64)
            served += bool(here)
            yield from here


def _sites_of_call(rule: Rule, sample: Sample, dtype: torch.dtype) -> list[Site]:
    found: list[Site] = []
    what = trial(sample, dtype)
    try:
        if what is not None:
            AsWritten(replace(rule, function=sites(rule.function, found))).bind(what)
    except TooSlow:
        raise
    except Exception:
        return []  # it declines, or does not run
    return found


MORE = 6
"""So many of the samples of PyTorch's own operator tests are measured behind those of the library, in each dtype."""


def _of_pytorch(rule: Rule, like: Sample) -> list[Sample]:
    """Calls from PyTorch's own tests of the op, with floats, integers, and complex numbers that are not real; asked
    where the sample of the library is, for some kernels take years elsewhere."""
    found: list[Sample] = []
    for info in _entries().get(rule.op, ()):
        for dtype in {torch.float32, torch.int64, torch.complex64} & info.supported_dtypes("cpu"):
            torch.manual_seed(0)
            inputs = list(itertools.islice(info.sample_inputs("cpu", dtype), 60))
            calls = [Sample(info.op, (one.input, *one.args), one.kwargs, domain=like.domain) for one in inputs]
            found += [call for call in calls[:: max(1, len(calls) // MORE)][:MORE] if call.tensors]
    return found


@functools.cache
def _entries() -> dict[Any, list[Any]]:
    """The entries of PyTorch's operator tests by op."""
    entries: dict[Any, list[Any]] = defaultdict(list)
    for info in op_db:
        try:
            entries[decomp.op(info.op)].append(info)
        except decomp.errors.UnknownOp:
            continue
    return entries


class _Check:
    """Holds mutants of one rule against its certificate: sample by sample and dtype by dtype, until one is worse."""

    def __init__(self, rule: Rule, samples: tuple[Sample, ...], kept: Certificate | None) -> None:
        self.rule, self.samples = rule, samples
        self.kept = kept if kept is not None and kept.ways and not certificates.why_stale(rule, kept) else None
        self.own = functools.cache(lambda i, dtype: self._measured(rule, i, dtype))

    def finds(self, site: Site) -> tuple[bool, str]:
        """Whether a mutant is worse, and what was seen."""
        mutant = replace(self.rule, function=mutated(self.rule.function, site))
        seen: Counter[str] = Counter()
        for dtype in DTYPES:
            for i in range(len(self.samples)):
                own = self.own(i, dtype)
                measured = self._measured(mutant, i, dtype)
                if own is None:
                    continue
                if measured is None:
                    return True, "cannot be measured"
                worse = self._worse(measured, own)
                if worse:
                    return True, worse
                seen[_in_words(measured, own)] += 1
        if not seen[DIFFERS] and self._same(mutant):
            return False, EQUIVALENT
        return False, "differs within the allowance" if seen[DIFFERS] else "measures the same"

    def _same(self, mutant: Rule) -> bool:
        """Whether the mutant is proved to give the same on all samples that the rule serves, and one reaches it."""
        served = 0
        for sample, dtype in itertools.product(self.samples, (torch.float32, torch.complex64)):
            what = trial(sample, dtype)
            try:
                one = None if what is None else AsWritten(self.rule).bind(what)
            except NotServed:
                continue
            if what is None or one is None:
                continue
            other = AsWritten(mutant).bind(what)
            if not same(one, other, what.sample.tensors):
                return False
            served += reached(one, other, what.sample.tensors)
        return bool(served)

    def _measured(self, rule: Rule, i: int, dtype: torch.dtype) -> Certificate | None:
        """The measurement of a rule on one sample in one dtype; None if measuring fails."""
        try:
            return decomp.certify(rule, samples=[self.samples[i]], dtypes=[dtype])
        except TooSlow:
            raise
        except Exception:  # of a result that no comparison understands
            return None

    def _worse(self, measured: Certificate, own: Certificate) -> str:
        """In what it is worse than the committed certificate, if that is still true of the rule; or than the rule."""
        if self.kept is not None and not own.worse_than(self.kept):
            for worse in measured.worse_than(self.kept):
                return worse
        return next(iter(measured.worse_than(own)), "")


DIFFERS = "differs"
EQUIVALENT = "proved to compute the same"


def _in_words(measured: Certificate, own: Certificate) -> str:
    same = [(way.values, way.gradients) for way in measured.ways] == [(way.values, way.gradients) for way in own.ways]
    return "measures the same" if same else DIFFERS


def table(mutants: list[Mutant]) -> str:
    """Killed of all by family, as Markdown."""
    families: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        families[mutant.family].append(mutant)
    lines = ["| family | mutants | killed | proved equivalent |", "|---|---|---|---|"]
    lines += [f"| {family} | {_counted(of)} |" for family, of in sorted(families.items())]
    return "\n".join([*lines, f"| **all** | {_counted(mutants)} |"])


def _counted(mutants: list[Mutant]) -> str:
    """How many there are, how many of those that are not equivalent were killed, and how many are."""
    equivalent = sum(mutant.why == EQUIVALENT for mutant in mutants)
    killed, others = sum(mutant.killed for mutant in mutants), len(mutants) - equivalent
    return f"{len(mutants)} | {killed} ({killed / max(others, 1):.0%}) | {equivalent or ''}"


def survivors(mutants: list[Mutant]) -> str:
    """The mutants that were not noticed, and those that cannot be, as lists in Markdown."""
    listed = [(m.why == EQUIVALENT, f"- {m.family}.{m.rule} ({m.op}), {m.change}") for m in mutants if not m.killed]
    why = [m.why for m in mutants if not m.killed]
    alive = [f"{line}: {reason}" for (equivalent, line), reason in zip(listed, why) if not equivalent]
    found = ["Survivors:", "", *alive] if alive else ["There are no survivors."]
    same_ = [line for equivalent, line in listed if equivalent]
    return "\n".join([*found, *(["", "Proved to compute the same:", "", *same_] if same_ else [])])


if __name__ == "__main__":
    main(sys.argv[1:])
