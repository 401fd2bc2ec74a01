"""The measuring process, which runs one job after another for its parent (`isolation`), and ends with it."""

from __future__ import annotations

import os
import pickle
import queue
import struct
import sys
import threading
from typing import IO, Any


def main() -> None:
    """Read jobs from standard input, write certificates (as JSON data, or the text of an error) to standard output."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of rules must not mix with answers
    jobs: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, jobs), daemon=True).start()

    import torch

    import decomp.tools.certification.jobs  # noqa: F401  so that the first job is not charged for it

    torch.set_num_threads(1)
    send(answers, b"ready")
    while True:
        send(answers, pickle.dumps(_answer(jobs.get())))


def _answer(message: bytes) -> Any:
    try:
        return pickle.loads(message).run().to_json()
    except Exception as error:  # any failure is the answer
        return f"{type(error).__name__}: {str(error).strip()}"


def _listen(jobs: IO[bytes], received: queue.Queue[bytes]) -> None:
    """Read jobs while another is measured, so that the end of the parent is noticed even if a rule hangs."""
    while (message := receive(jobs)) is not None:
        received.put(message)
    os._exit(0)


def send(stream: IO[bytes], message: bytes) -> None:
    """Write one message."""
    stream.write(struct.pack("<Q", len(message)) + message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read one message; None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    message = stream.read(size)
    return message if len(message) == size else None


if __name__ == "__main__":
    main()
