"""Python in processes of their own that start at once: each is forked from one that has imported PyTorch and the
package, which costs a fresh interpreter seconds. What an interpreter reads when it starts (its encodings, `-X` and
`-W`) is that of the first."""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import os
from pathlib import Path
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from typing import Any

ROOT = Path(__file__).parents[1]
LARGEST = 1 << 20


class Python(subprocess.Popen):
    """`subprocess.Popen` for `[sys.executable, "-m" or "-c", ...]`."""

    def _execute_child(self, *given: Any) -> None:
        """Start it: the one method of `Popen` that does so (Python 3.11 to 3.13)."""
        asked = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments
        streams = [
            asked[name] if asked[name] != -1 else own for own, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        ]
        program, *words = map(os.fspath, asked["args"])
        assert program == sys.executable and words[0] in ("-m", "-c")
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        self.pid = _ask(("start", words, environment, asked["cwd"] or os.getcwd(), asked["start_new_session"]), streams)
        self._child_created = True
        for mine, its in (("p2cwrite", "p2cread"), ("c2pread", "c2pwrite"), ("errread", "errwrite")):
            if asked[mine] != -1:
                os.close(asked[its])

    def _try_wait(self, flags: int) -> tuple[int, int]:
        while True:
            pid, status = _ask(("wait", self.pid), [])
            if pid or flags & os.WNOHANG:
                return pid, status
            time.sleep(0.01)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


def ended(words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` to its end, as `subprocess.run` does; its output is text."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Python([sys.executable, *words], **{**streams, **options}) as process:
        out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


_ONE_AT_A_TIME = threading.Lock()


def _ask(request: tuple[Any, ...], streams: list[int]) -> Any:
    with _ONE_AT_A_TIME:
        requests, _ = _first()
        socket.send_fds(requests, [pickle.dumps(request)], streams)
        return pickle.loads(requests.recv(LARGEST))


@functools.cache
def _first() -> tuple[socket.socket, object]:
    """A connection to the process that the others are forked from, and that process. It ends with this one."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DECOMP_CACHE": "off"}
    first = subprocess.Popen(
        [sys.executable, "-m", "tests.processes", str(its.fileno())],
        env=environment,
        pass_fds=[its.fileno()],
        start_new_session=True,
    )
    its.close()
    atexit.register(_end, mine, first)
    return mine, first


def _end(requests: socket.socket, first: subprocess.Popen[bytes]) -> None:
    requests.close()
    first.terminate()  # what was forked from this process may hold the connection open
    first.wait()


def serve(requests: socket.socket) -> None:
    """Fork, and tell how what was forked has ended, until nobody asks any more."""
    import torch._dynamo
    import torch.export  # noqa: F401

    import decomp.tools.certification.jobs
    import decomp.tools.cli.app  # noqa: F401
    import decomp_rules

    assert decomp_rules.RULES
    gc.freeze()
    while True:
        message, streams, *_ = socket.recv_fds(requests, LARGEST, 3)
        if not message:
            return
        verb, *given = pickle.loads(message)
        if verb == "wait":
            answer = os.waitpid(given[0], os.WNOHANG)
        else:
            answer = os.fork()
            if not answer:
                requests.close()
                _become(streams, *given)
        for stream in streams:
            os.close(stream)
        requests.send(pickle.dumps(answer))


def _become(streams: list[int], words: list[str], environment: dict[str, str], folder: str, session: bool) -> None:
    """Be a process that was started with these streams, words, environment and folder; never returns."""
    if session:
        os.setsid()
    for its, stream in enumerate(streams):
        os.dup2(stream, its)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = ["", *environment.get("PYTHONPATH", "").split(os.pathsep)]
    try:
        code = _run(*words)
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    os._exit(code)


def _run(flag: str, what: str, *words: str) -> int:
    sys.argv = [what if flag == "-m" else flag, *words]
    try:
        if flag == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(what, "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
