"""Runs jobs here or on an executor, and reads earlier answers from files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from decomp.advice.jobs import AdviceJob, Answer, from_json, run_job, to_json
from decomp.errors import ArgumentError
from decomp.files import write_atomically
from decomp.jobs import Failed, Progress, answers, can_travel


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
    away = [job for job in left if executor is not None and can_travel(job)]
    # Lazily, so that jobs elsewhere begin before those here do.
    here = ((job, job()) for job in left if job not in away)
    for job, answer in answers(away, executor, run_job, here):
        report(job, kept.keep(job, Answer(reason=answer) if isinstance(answer, Failed) else answer))
    return {job.name: found[job.name] for job in jobs}


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
            with write_atomically(path) as unfinished:  # another process may read it meanwhile
                unfinished.write_text(to_json(answer))
        return answer
