"""Jobs are done here or over an executor, and what was answered before is read from files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, as_completed
import os
from pathlib import Path
from typing import Any

from decomp.advice.jobs import AdviceJob, Answer, answered, from_json, to_json
from decomp.errors import ArgumentError, first_line

Progress = Callable[[int, int, str], None]
"""Called with how many programs have answered, of how many, and the last one."""


def done(
    jobs: Sequence[AdviceJob], executor: Executor | None, place: Path | None, setting: str, progress: Progress | None
) -> dict[str, Answer]:
    """The answers by name, in the order of the jobs. With `place`, they are kept in this directory, under `setting` and
    name. Raises `ArgumentError` where nothing can be kept there."""
    kept = _AnswerFiles(place, setting)
    found: dict[str, Answer] = {}

    def report(job: AdviceJob, answer: Answer) -> None:
        found[job.name] = answer
        if progress is not None:
            progress(len(found), len(jobs), job.name)

    for job in jobs:
        before = kept.find(job)
        if before is not None:
            report(job, before)
    left = [job for job in jobs if job.name not in found]
    away = [job for job in left if executor is not None and job.can_travel]
    # Those that travel are on their way while the others are done here.
    waiting = {executor.submit(answered, job): job for job in away} if executor is not None else {}
    try:
        for job in left:
            if job not in away:
                report(job, kept.keep(job, job()))
        for future in _finished(waiting):
            report(waiting[future], kept.keep(waiting[future], _result(future)))
    except BaseException:  # an interrupt, above all: what has not begun is not begun
        for future in waiting:
            future.cancel()
        raise
    return {job.name: found[job.name] for job in jobs}


def _finished(waiting: Iterable[Any]) -> Iterable[Any]:
    # Futures of other libraries (dask) need not be of the class that as_completed knows.
    futures = list(waiting)
    return as_completed(futures) if all(isinstance(each, Future) for each in futures) else futures


def _result(future: Any) -> Answer:
    try:
        found: Answer = future.result()
        return found
    except Exception as error:  # a broken pool costs what it had taken on
        return Answer(reason=f"the executor lost it: {type(error).__name__}: {first_line(error)}")


class _AnswerFiles:
    """Answers in files, one each."""

    def __init__(self, place: Path | None, setting: str) -> None:
        self.place, self.setting = place, setting
        if place is not None:
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ArgumentError(f"results= must be a directory: {place}: {error.strerror}") from error

    def find(self, job: AdviceJob) -> Answer | None:
        """What was answered before; a file that is not whole counts as none."""
        if self.place is None:
            return None
        try:
            return from_json((self.place / job.key(self.setting)).read_text())
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep(self, job: AdviceJob, answer: Answer) -> Answer:
        """Write an answer; those without a result may be another time's."""
        if self.place is not None and (answer.calls is not None or answer.lacks is not None):
            path = self.place / job.key(self.setting)
            unfinished = path.with_suffix(f".{os.getpid()}")
            unfinished.write_text(to_json(answer))
            os.replace(unfinished, path)
        return answer
