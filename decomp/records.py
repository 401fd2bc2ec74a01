"""Records on disk: JSON with one row a line, so that a diff between two versions shows the rows that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import io
import json
from pathlib import Path
from typing import Any, TypeVar

from decomp.errors import ArgumentError

T = TypeVar("T")


def read_record(path: Path, kind: str, version: int, name: str, remedy: str, read: Callable[[Any], T]) -> T:
    """What `read` makes of a JSON file that says its kind and format. Raises `ArgumentError`, which names the file, and
    `OSError`."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        data = json.loads(text)
        if data["kind"] != kind:
            raise KeyError("kind")
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{path} is not a {name}, or is damaged\n  to do: {remedy}") from error
    if data.get("format") != version:
        said = f"{path} is of format {data.get('format')}, and this decomp reads format {version}"
        raise ArgumentError(f"{said}\n  to do: {remedy} once more")
    with naming_damage(path, name, remedy):
        return read(data)


@contextlib.contextmanager
def naming_damage(path: Path, name: str, remedy: str) -> Iterator[None]:
    """Inside this context an error that damaged data causes is an `ArgumentError`, which names the file."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"{path} is a damaged {name}: {type(error).__name__}: {error}"
        raise ArgumentError(f"{said}\n  to do: {remedy}") from error


def one_row_a_line(records: Any) -> str:
    """JSON with one line for each item of a list, and for each entry of a dict that holds lists."""
    return f"{_written(records)}\n"


def _written(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value:
        return "[\n" + ",\n".join(map(_compact, value)) + "\n]"
    if isinstance(value, dict) and _holds_list(value):
        return "{\n" + ",\n".join(f"{_compact(str(key))}: {_written(item)}" for key, item in value.items()) + "\n}"
    return _compact(value)


def _holds_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or isinstance(value, dict) and any(map(_holds_list, value.values()))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Unfailing(io.FileIO):
    """A new file for writers that must not see an error: PyTorch's (2.13) ends the process if the disk is full. The
    first failed write is recorded, to be raised at the end."""

    # A change for PyTorch, which 2.15 does not have: https://github.com/pytorch/pytorch/pull/175248.
    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while len(rest) and self.failure is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.failure = error
        return size

    def tell_failure(self) -> None:
        """Raise the `OSError` of the first failed write."""
        if self.failure is not None:
            raise self.failure
