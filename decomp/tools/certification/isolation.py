"""Measures in a separate process, so that a rule that hangs or crashes loses only its own certificate. Each measuring
thread keeps one such process and starts another when that one is lost, so any executor can be used."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any
import weakref

import torch

from decomp.tools.certification.certificate import Certificate
from decomp.tools.certification.jobs import CertificationJob
from decomp.tools.certification.worker import receive, send

TIMEOUT = 180.0
"""The default time limit of a rule in seconds."""


def measure_in_process(job: CertificationJob, timeout: float | None = None) -> Certificate:
    """The certificate of a job, measured in another process; one with an `error` if the rule hangs or crashes."""
    answer = run_in_process(job, timeout)
    return Certificate.from_json(answer) if isinstance(answer, dict) else failed_certificate(job, answer)


def run_in_process(job: Any, timeout: float | None = None) -> dict[str, Any] | str:
    """The result of `job.run().to_json()` in another process; or, as text, the exception raised there, or that it hangs
    or crashes."""
    process = getattr(_OWN, "process", None)
    if process is None or not process.alive:
        process = _OWN.process = _Process()
    try:
        answer: dict[str, Any] | str = process.ask(pickle.dumps(job), timeout or TIMEOUT)
    except _Lost as lost:
        return str(lost)
    return answer


def failed_certificate(job: CertificationJob, error: str) -> Certificate:
    """The certificate of a rule that could not be measured."""
    version = torch.__version__.partition("+")[0]
    return Certificate(job.rule, job.hash, version, job.seed, error=error, level=job.level)


_OWN = threading.local()
"""The process of each thread. It outlives a job, as starting one takes seconds."""


_STARTED: weakref.WeakSet[_Process] = weakref.WeakSet()
"""The measuring processes of all threads."""


def stop(waiting: Iterable[Future[Any]]) -> None:
    """Cancel all measurements at once: pending jobs are not started, and processes are killed until no thread waits for
    one."""
    futures = list(waiting)
    for future in futures:
        future.cancel()
    until = time.monotonic() + 1.0
    while time.monotonic() < until and not all(future.done() for future in futures):
        for process in list(_STARTED):
            process.process.kill()
        time.sleep(0.02)


class _Lost(Exception):
    """The process did not answer; the message says why."""


class _Process:
    """A measuring process. It is started with the search path of this one, and ends with it."""

    def __init__(self) -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "decomp.tools.certification.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # an interrupt goes to the parent, which stops this one
        )
        _STARTED.add(self)
        if self._read() != b"ready":
            raise RuntimeError(f"the measuring process does not start: {self._said()}")

    @property
    def alive(self) -> bool:
        """Whether it is alive."""
        return self.process.poll() is None

    def ask(self, message: bytes, timeout: float) -> Any:
        """The answer to a job. Raises `_Lost` if the process hangs or dies."""
        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            self.process.kill()

        timer = threading.Timer(timeout, give_up)
        timer.daemon = True
        timer.start()
        try:
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                send(self.process.stdin, message)
            answer = self._read()
        finally:
            timer.cancel()
        if answer is not None:
            return pickle.loads(answer)
        self.process.wait()
        raise _Lost(f"hangs: no answer in {timeout:g} s" if hung.is_set() else f"crashes: {self._end()}")

    def _read(self) -> bytes | None:
        assert self.process.stdout is not None
        return receive(self.process.stdout)

    def _end(self) -> str:
        code = self.process.returncode
        return signal.Signals(-code).name if code and code < 0 else f"exit code {code}"

    def _said(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-500:].decode(errors="replace").strip().rpartition("\n")[2]

    def __del__(self) -> None:
        process = getattr(self, "process", None)
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, self.errors):
                with contextlib.suppress(OSError):
                    stream.close()
