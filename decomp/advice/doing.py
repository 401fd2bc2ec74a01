"""Runs jobs here or on an executor, and reads earlier answers from files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, as_completed
import os
from pathlib import Path
from typing import Any

from decomp.advice.jobs import AdviceJob, Answer, from_json, run_job, to_json
from decomp.errors import ArgumentError, first_line

Progress = Callable[[int, int, str], None]
"""Called with the number of programs done, the number in all, and the name of the last one."""


def run_jobs(
    jobs: Sequence[AdviceJob], executor: Executor | None, place: Path | None, setting: str, progress: Progress | None
) -> dict[str, Answer]:
    """The answers by name, in the order of the jobs. With `place`, answers are stored in this directory, under
    `setting` and name. Raises `ArgumentError` if the directory cannot be created."""
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
    # Submit first, so that other processes work while the remaining jobs run here.
    waiting = {executor.submit(run_job, job): job for job in away} if executor is not None else {}
    try:
        for job in left:
            if job not in away:
                report(job, kept.keep(job, job()))
        for future in _finished(waiting):
            report(waiting[future], kept.keep(waiting[future], _result(future)))
    except BaseException:  # above all an interrupt: do not start the jobs that are still queued
        for future in waiting:
            future.cancel()
        raise
    return {job.name: found[job.name] for job in jobs}


def _finished(waiting: Iterable[Any]) -> Iterable[Any]:
    # as_completed only takes concurrent.futures.Future, which other libraries (dask) do not subclass.
    futures = list(waiting)
    return as_completed(futures) if all(isinstance(each, Future) for each in futures) else futures


def _result(future: Any) -> Answer:
    try:
        found: Answer = future.result()
        return found
    except Exception as error:  # a broken pool loses the jobs submitted to it, not the rest
        return Answer(reason=f"the executor lost it: {type(error).__name__}: {first_line(error)}")


class _AnswerFiles:
    """Answers on disk, one file each."""

    def __init__(self, place: Path | None, setting: str) -> None:
        self.place, self.setting = place, setting
        if place is not None:
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ArgumentError(f"results= must be a directory: {place}: {error.strerror}") from error

    def find(self, job: AdviceJob) -> Answer | None:
        """An earlier answer to a job; None if there is no file, or an unreadable one."""
        if self.place is None:
            return None
        try:
            return from_json((self.place / job.key(self.setting)).read_text())
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep(self, job: AdviceJob, answer: Answer) -> Answer:
        """Store an answer and return it. Failures are not stored: they may not occur the next time."""
        if self.place is not None and (answer.calls is not None or answer.lacks is not None):
            path = self.place / job.key(self.setting)
            unfinished = path.with_suffix(f".{os.getpid()}")
            unfinished.write_text(to_json(answer))
            os.replace(unfinished, path)
        return answer
