"""Jobs: picklable values with a method `run`. They are run in processes of their own, so that one that hangs or crashes
loses only its own answer, or over any executor. Each thread that waits for answers keeps one such process and starts
another when that one is lost. `multiprocessing` is not used, as it runs the main script again in each process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
import contextlib
import functools
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from types import TracebackType
from typing import IO, Any, TypeVar
import weakref

from decomp.errors import first_line

TIMEOUT = 180.0
"""The default time limit of a job in seconds."""

Progress = Callable[[int, int, str], None]
"""Called with the number of finished items, the total, and the name of the last item."""
NO_PROGRESS: Progress = lambda done, total, name: None  # noqa: E731  so that mypy checks it as one
Job = TypeVar("Job")


class Failed(str):
    """Why a job has no answer: the exception that it raised, that it hangs or crashes, or that its executor lost it."""

    __slots__ = ()


def can_travel(value: Any) -> bool:
    """Whether a value can be sent to another process."""
    try:
        return bool(pickle.dumps(value))
    except Exception:  # objects of any library may be inside, and raise anything when pickled
        return False


def answers(
    jobs: Iterable[Job],
    executor: Executor | int | None = None,
    run: Callable[[Job], Any] | None = None,
    here: Iterable[tuple[Job, Any]] = (),
) -> Iterator[tuple[Job, Any]]:
    """Each job with its answer, in the order in which they end: `run(job)`, by default `run_in_process`, over an
    executor, or over so many threads. `here`: further jobs and answers, found in this process while others work. An
    exception, or a caller that stops early, stops the jobs."""
    jobs = list(jobs)
    if not jobs:
        yield from here
    elif executor is None or isinstance(executor, int):
        with Threads(min(len(jobs), executor or os.cpu_count() or 1)) as threads:
            yield from answers(jobs, threads, run, here)
    else:
        waiting: dict[Any, Job] = {}
        try:
            waiting.update((executor.submit(run or run_in_process, job), job) for job in jobs)
            # After submitting, so that this process works while the others do.
            yield from here
            for future in _finished(waiting):
                yield waiting[future], _answer(future)
        except BaseException:  # above all an interrupt
            stop(waiting)
            raise


def _finished(futures: Iterable[Any]) -> Iterable[Any]:
    # as_completed only takes concurrent.futures.Future, which other libraries (dask) do not subclass.
    return as_completed(futures) if all(isinstance(each, Future) for each in futures) else futures


def _answer(future: Any) -> Any:
    try:
        return future.result()
    except Exception as error:  # a broken pool loses the jobs submitted to it, not the rest
        return Failed(f"the executor lost it: {type(error).__name__}: {first_line(error)}")


class Threads(ThreadPoolExecutor):
    """Threads, each of which keeps a process for its jobs. An exception in the `with` block stops them at once."""

    def __init__(self, count: int | None = None) -> None:
        super().__init__(count)
        self._begun: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self._begun.append(future)
        return future

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # `ThreadPoolExecutor.__exit__` alone would wait for every pending job.
        if kind is not None:
            self.shutdown(wait=False, cancel_futures=True)
            stop(self._begun)
        super().__exit__(kind, error, trace)


def stop(waiting: Iterable[Future[Any]]) -> None:
    """Cancel all jobs at once: pending ones are not started, and processes are killed until no thread waits for one."""
    futures = list(waiting)
    for future in futures:
        future.cancel()
    # Again and again: a thread may just be starting its process, which is not listed yet. A second is enough for all.
    until = time.monotonic() + 1.0
    while time.monotonic() < until and not all(future.done() for future in futures):
        for process in list(_STARTED):
            process.process.kill()
        time.sleep(0.02)


def run_in_process(job: Any, timeout: float | None = None) -> Any:
    """The result of `job.run()` in another process; `Failed` if it raised, hung or crashed there."""
    process = getattr(_OWN, "process", None)
    if process is None or process.process.poll() is not None:
        process = _OWN.process = _Process(type(job))
    return process.ask(pickle.dumps(job), timeout or TIMEOUT)


def within(timeout: float | None) -> Callable[[Any], Any]:
    """`run_in_process` with this time limit, in a form that can be sent to another process."""
    return functools.partial(run_in_process, timeout=timeout)


_OWN = threading.local()
"""The process of each thread. It outlives a job, as starting one takes seconds."""


class _Process:
    """A process for jobs. It is started with the search path of this one, and ends with it. It unpickles the class of
    the jobs at once, so that the first job is not charged for the imports."""

    def __init__(self, kind: type) -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # A file and no pipe: nobody reads while the job runs, and a full pipe would block it.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from decomp.jobs import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            # One thread each: there are as many processes as cores.
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # an interrupt goes to the parent, which stops this one
        )
        _STARTED.add(self)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.jobs, self.answers = self.process.stdin, self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            _send(self.jobs, pickle.dumps(kind))
        if _receive(self.answers) != b"ready":
            self.errors.seek(0)
            said = self.errors.read()[-500:].decode(errors="replace").strip().rpartition("\n")[2]
            raise RuntimeError(f"the measuring process does not start: {said}")

    def ask(self, message: bytes, timeout: float) -> Any:
        """The answer to a job; `Failed` if the process hangs or dies."""
        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            self.process.kill()

        # A read from a pipe has no time limit (`select` takes no pipes on Windows), so a timer kills the process.
        timer = threading.Timer(timeout, give_up)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                _send(self.jobs, message)
            answer = _receive(self.answers)
        finally:
            timer.cancel()
        if answer is not None:
            return pickle.loads(answer)
        code = self.process.wait()
        end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Failed(f"hangs: no answer in {timeout:g} s" if hung.is_set() else f"crashes: {end}")

    # A thread that ends drops its process with its thread-local state; without this it would live on.
    def __del__(self) -> None:
        process = getattr(self, "process", None)
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, self.errors):
                with contextlib.suppress(OSError):
                    stream.close()


_STARTED: weakref.WeakSet[_Process] = weakref.WeakSet()
"""The processes of all threads."""


def serve() -> None:
    """In such a process: read jobs from standard input, and write their answers to standard output."""
    # The stream of answers is moved to another file descriptor, and
    # descriptor 1 then leads to stderr, also for C++ code that prints.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of rules must not mix with answers
    jobs: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, jobs), daemon=True).start()

    import torch

    torch.set_num_threads(1)
    with contextlib.suppress(Exception):  # the first job says so
        pickle.loads(jobs.get())
    _send(out, b"ready")
    while True:
        _send(out, _run(jobs.get()))


def _run(message: bytes) -> bytes:
    try:
        return pickle.dumps(pickle.loads(message).run())
    except Exception as error:  # any failure is the answer
        return pickle.dumps(Failed(f"{type(error).__name__}: {str(error).strip()}"))


def _listen(jobs: IO[bytes], received: queue.Queue[bytes]) -> None:
    """Read jobs while another is run, so that the end of the parent is noticed even if a job hangs."""
    while (message := _receive(jobs)) is not None:
        received.put(message)
    # `sys.exit` would end this thread alone.
    os._exit(0)


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(struct.pack("<Q", len(message)) + message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """Read one message; None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    message = stream.read(size)
    return message if len(message) == size else None
