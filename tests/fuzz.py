"""Random programs, captured in every form, lowered to every target, compared with PyTorch:

    python -m tests.fuzz --minutes 60 [--seed 0] [--programs 10000] [--workers 2]
    python -m tests.fuzz --all | --only FORM | --target NAME     each program in all forms, or those, on all targets
    python -m tests.fuzz --replay SEED        print one program, what came of it, and the shortest with the same fault

A program is its seed: the same number is the same program. A worker that hangs or dies is a fault of its program,
but where PyTorch alone dies of it.

A program gets one of the forms that are slow to capture (torch.export, torch.compile, metadata of example inputs) and
one of those that are not (a symbolic trace), each on one target; a program of integers is narrowed, too. The seed says
which: forms and targets take turns, so that 99 programs in a row have every form on every target. One program in 198
is compiled by Inductor, too, and with another one rules of a user's are edited between two processes that share a disk
cache (--only edited). All forms of one program are what --replay shows, and what --all, --only and --target ask for,
which costs eight times as much.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
import json
import logging
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import torch

from tests.fuzzing.checking import FORMS, TARGETS, Pair, Verdict, check, pairs, run_by_pytorch_alone
from tests.fuzzing.edited import edited, faults_of_edited
from tests.fuzzing.narrowed import is_narrowed
from tests.fuzzing.programs import Program, program
from tests.fuzzing.reducing import reduced

SECONDS, IDLE, LARGEST = 60, 30, 2_300_000
"""A program may take so long on the processor, and so many times as long by the clock, as other work may have it; a
process may hold so many KiB."""
EVERY = 198
"""One program in so many is compiled by Inductor, and with one in so many rules are edited."""
EDITED = "edited"
"""The form of rules that are edited between two processes, which have no part in the program of the same seed."""
UNUSABLE = 70
"""The status of a process in which PyTorch computes nothing any more, or is left in inference mode. Dynamo and
AOTAutograd do that with views of parameters that are written in inference mode (torch 2.13)."""
SLOW = (
    "exported",
    "graph with args",
    "module",
    "compiled",
    "graph with args",
    "exported graph",
    "module",
    "exported",
    "graph with args",
    "decomposed",
    "graph with args",
)
"""Their number is odd, and no multiple of 3: a seed's remainders by it, by 3 (targets) and by 4 are independent."""
FAST = ("graph", "module without args", "decomposed graph")


class Hangs(BaseException):
    """A program takes too long. Nobody is to catch it."""


def verdicts(seed: int, wanted: list[Pair] | None = None) -> dict[str, Any]:
    """One program, and what came of it: seed, features, seconds of the processor, verdicts."""
    began = time.process_time()
    made = program(seed)
    found: list[Verdict] = []
    try:
        for verdict in checked(made, wanted or share(seed) + narrow(made)):
            found.append(verdict)
    except Hangs:
        found.append(Verdict("", "", "fault", f"takes more than {SECONDS} seconds"))
    lines = [(v.form, v.target, v.status, v.text) for v in found]
    return dict(seed=seed, features=sorted(made.features), seconds=time.process_time() - began, verdicts=lines)


def checked(made: Program, wanted: list[Pair]) -> Iterator[Verdict]:
    """Verdicts of a program, and of the rules of its seed if they are wanted."""
    yield from check(made, [pair for pair in wanted if pair[0] != EDITED])
    for form, target in wanted:
        if form == EDITED:
            (text,) = faults_of_edited({"edited": edited(made.seed)}, target).values()
            yield Verdict(form, target, "fault" if text else "right", text)


def share(seed: int) -> list[Pair]:
    """The forms that a program gets, and the target of each."""
    slow, fast = SLOW[seed % len(SLOW)], FAST[seed % len(FAST)]
    found = pairs([slow], [TARGETS[seed // len(SLOW) % 3]]) + pairs([fast], [TARGETS[seed // len(FAST) % 3]])
    rare = {0: "inductor", EVERY // 2: EDITED}.get(seed % EVERY)
    return found + ([] if rare is None else [(rare, TARGETS[seed // EVERY % 3])])


def narrow(made: Program) -> list[Pair]:
    """A program of integers is computed in int32, too."""
    return [("narrow", TARGETS[made.seed % 3])] if is_narrowed(made) else []


def quiet() -> None:
    """One thread, and no word from PyTorch's compilers."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)


# A worker: programs in turn, a line of JSON each


def work(first: int, step: int, wanted: list[Pair] | None) -> None:
    quiet()
    signal.signal(signal.SIGPROF, _alarm)  # time of the processor: on a busy machine no program is slow
    seed = first
    while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < LARGEST:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            result = verdicts(seed, wanted)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        end_if_unusable()
        print(json.dumps(result), flush=True)
        seed += step


def end_if_unusable() -> None:
    """A process in which PyTorch computes nothing any more, or only in the inference mode of a program, ends, and says
    nothing of its last program."""
    if torch.is_inference_mode_enabled():
        os._exit(UNUSABLE)
    try:
        torch.ones(1).add(1)
    except RuntimeError:
        os._exit(UNUSABLE)


def _alarm(*_: Any) -> None:
    raise Hangs


# The whole


class Worker:
    """A process, and the seed that it is at."""

    def __init__(self, first: int, step: int, options: list[str], lines: queue.Queue[Any]) -> None:
        self.seed, self.step, self.options, self.lines = first, step, options, lines
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  it is read when a process ends
        self.start()

    def start(self) -> None:
        self.errors.seek(0)
        self.errors.truncate()
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", "--worker", f"{self.seed}:{self.step}"]
        self.process = subprocess.Popen(
            command + self.options,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        self.since = time.monotonic()
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process) -> None:
        for line in process.stdout:
            if line.startswith("{"):
                self.lines.put((self, json.loads(line)))
        self.lines.put((self, process.wait()))

    def take(self, result: dict[str, Any]) -> None:
        self.seed, self.since = result["seed"] + self.step, time.monotonic()

    def again(self, status: int) -> dict[str, Any] | None:
        """Start anew after the end of the process; what its last program did, if it died of it."""
        died = None
        if status:
            whose = "torch" if _pytorch_dies_of(self.seed) else "fault"
            self.errors.seek(0)
            text = f"the process ended with status {status}: {''.join(self.errors.readlines()[-1:]).strip()}"
            died = dict(seed=self.seed, features=[], seconds=0.0, verdicts=[("", "", whose, text)])
            self.seed += self.step
        self.start()
        return died


def _pytorch_dies_of(seed: int) -> bool:
    """Whether a program ends a process in which PyTorch alone captures and runs it."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", "--alone", str(seed)]
    try:
        ended = subprocess.run(
            command, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=2 * SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode < 0 or ended.returncode == UNUSABLE


class Tally:
    """The outcome of all programs."""

    def __init__(self) -> None:
        self.programs, self.seconds = 0, 0.0
        self.features: Counter[str] = Counter()
        self.by_form: dict[tuple[str, str], Counter[str]] = {}
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.faults: dict[str, list[tuple[int, Verdict]]] = {}

    def add(self, result: dict[str, Any]) -> None:
        self.programs += 1
        self.seconds += result["seconds"]
        self.features.update(result["features"])
        for line in result["verdicts"]:
            verdict = Verdict(*line)
            self.by_form.setdefault((verdict.form, verdict.target), Counter())[verdict.status] += 1
            if verdict.status in ("refused", "torch"):
                self.reasons[verdict.status, verdict.text[:110]] += 1
            if verdict.status == "fault":
                kind = self.faults.setdefault(verdict.kind, [])
                kind.append((result["seed"], verdict))
                if len(kind) == 1:
                    where = f"{result['seed']}: {verdict.form}, {verdict.target}"
                    print(f"fault at {where}: {verdict.text[:400]}", flush=True)

    def lines(self) -> list[str]:
        """The summary."""
        faulty = {seed for found in self.faults.values() for seed, _ in found}
        out = [
            f"{self.programs} programs, {len(faulty)} with a fault, "
            f"{self.seconds / max(1, self.programs):.2f} s of the processor each",
            "",
        ]
        statuses = ("right", "copied", "refused", "torch", "fault")
        out += [f"{'form':22}{'target':12}" + "".join(f"{status:>9}" for status in statuses)]
        for (form, target), counts in self.by_form.items():
            out.append(f"{form:22}{target:12}" + "".join(f"{counts[status]:9}" for status in statuses))
        out += ["", "features: " + ", ".join(f"{name} {count}" for name, count in self.features.most_common())]
        for status, title in (("refused", "refused by decomp"), ("torch", "PyTorch does not capture it, or wrongly")):
            out += ["", f"{title}:"]
            found = [(count, text) for (kind, text), count in self.reasons.most_common() if kind == status]
            out += [f"{count:7} {text}" for count, text in found[:60]]
        out += ["", "faults:"] + [
            f"{len(found):7} {kind}; seeds {sorted({seed for seed, _ in found})[:8]}"
            for kind, found in sorted(self.faults.items(), key=lambda item: -len(item[1]))
        ]
        return out


def run(first: int, minutes: float, most: int, workers: int, options: list[str]) -> Tally:
    """Check programs from seed `first` on, until the time or the number is up."""
    lines: queue.Queue[Any] = queue.Queue()
    crew = [Worker(first + i, workers, options, lines) for i in range(workers)]
    tally, end, shown = Tally(), time.monotonic() + 60 * minutes, time.monotonic()
    try:
        while time.monotonic() < end and tally.programs < most:
            try:
                worker, result = lines.get(timeout=5)
                _take(worker, result, tally)
            except queue.Empty:
                pass
            for worker in crew:
                if time.monotonic() - worker.since > IDLE * SECONDS:
                    worker.process.kill()
                    worker.since = time.monotonic()
            if time.monotonic() - shown > 60:
                shown = time.monotonic()
                print(f"{tally.programs} programs, {sum(map(len, tally.faults.values()))} faults", flush=True)
    finally:
        for worker in crew:
            worker.process.kill()
    return tally


def _take(worker: Worker, result: Any, tally: Tally) -> None:
    if isinstance(result, dict):
        worker.take(result)
        tally.add(result)
        return
    died = worker.again(result)
    if died is not None:
        tally.add(died)


def replay(seed: int, wanted: list[Pair], shrink: bool) -> int:
    """Print a program and its verdicts, and the shortest with each fault."""
    quiet()
    made = program(seed)
    print(made.source)
    kinds: dict[str, Verdict] = {}
    for verdict in checked(made, wanted):
        print(f"{verdict.status:8}{verdict.form:22}{verdict.target:12}{verdict.text}")
        if verdict.status == "fault":
            kinds.setdefault(verdict.kind, verdict)
    for verdict in (one for one in kinds.values() if shrink and one.form != EDITED):
        print(f"\n{verdict.form}, {verdict.target}: {verdict.text}\n\n{reduced(made, verdict).source}")
    return 1 if kinds else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--programs", type=int, default=10**9, help="at most so many")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="every program in every form on every target")
    parser.add_argument("--only", choices=(*FORMS, EDITED), action="append", help="only this form; may be repeated")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this target; may be repeated")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print a program, its verdicts, its shortest faults")
    parser.add_argument("--whole", action="store_true", help="with --replay: do not look for the shortest program")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    wanted = pairs(chosen.only or FORMS, chosen.target or TARGETS)
    sampled = not (chosen.all or chosen.only or chosen.target)
    if chosen.replay is not None:
        return replay(chosen.replay, wanted, not chosen.whole)
    if chosen.alone is not None:
        quiet()
        run_by_pytorch_alone(program(chosen.alone))
        end_if_unusable()
        return 0
    if chosen.worker:
        work(*map(int, chosen.worker.split(":")), None if sampled else wanted)
        return 0
    options = ["--all"] if chosen.all else []
    options += [word for form in chosen.only or () for word in ("--only", form)]
    options += [word for target in chosen.target or () for word in ("--target", target)]
    tally = run(chosen.seed, chosen.minutes, chosen.programs, chosen.workers, options)
    print("\n".join(tally.lines()))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
