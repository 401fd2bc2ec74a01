"""A file of the cache: texts by key, each with a digest. It is an SQLite database, so that several processes can read
and write it concurrently, and only requested keys are read. Damaged files are not errors: unreadable entries count as
missing, and a file that is not a cache is replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import contextlib
import hashlib
import os
from pathlib import Path
import sqlite3
from typing import Literal

_WAIT = 5.0
"""Seconds to wait for another process to finish writing."""
_TABLE = "CREATE TABLE IF NOT EXISTS expansions (key TEXT PRIMARY KEY, digest BLOB NOT NULL, text BLOB NOT NULL)"


class Store:
    """One file of the cache."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reading: sqlite3.Connection | Literal[False] | None = None
        """False if the file cannot be read, None if it has not been opened yet."""

    def find(self, key: str) -> bytes | None:
        """The text of a key, if it matches its digest."""
        try:
            if self._reading is None:
                self._reading = self._opened("ro") if self.path.is_file() else False
                self._mark_as_used()
            if self._reading is False:
                return None
            row = self._reading.execute("SELECT digest, text FROM expansions WHERE key = ?", (key,)).fetchone()
        except (sqlite3.Error, OSError, UnicodeError):
            self.close()
            self._reading = False
            return None
        intact = row is not None and isinstance(row[1], bytes) and row[0] == _digest(key, row[1])
        return row[1] if intact else None

    def close(self) -> None:
        """Close the file until it is read again."""
        if self._reading:
            self._reading.close()
        self._reading = None

    def add(self, entries: Mapping[str, bytes], gone: Iterable[str] = ()) -> None:
        """Write texts by key, and delete other keys, in one transaction."""
        rows, dropped = [(key, _digest(key, text), text) for key, text in entries.items()], [(key,) for key in gone]
        try:
            self._written(rows, dropped)
        # Before `DatabaseError`, of which it is a subclass: a lock or a full disk is no reason to delete the file.
        except sqlite3.OperationalError:
            pass  # another process holds the lock, or the disk is full or read-only
        except sqlite3.DatabaseError:
            with contextlib.suppress(OSError, sqlite3.Error):
                self.path.unlink(missing_ok=True)
                self._written(rows, [])
        except OSError:
            pass

    def _mark_as_used(self) -> None:
        """Mark the file as used: the least recently used are deleted first."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def _written(self, rows: list[tuple[str, bytes, bytes]], dropped: list[tuple[str]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(self._opened("rwc")) as file, file:
            file.execute(_TABLE)
            file.executemany("DELETE FROM expansions WHERE key = ?", dropped)
            file.executemany("INSERT OR REPLACE INTO expansions VALUES (?, ?, ?)", rows)

    def _opened(self, mode: str) -> sqlite3.Connection:
        # By a URI, as only there a mode can forbid that reading creates the file.
        return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode={mode}", timeout=_WAIT, uri=True)


def _digest(key: str, text: bytes) -> bytes:
    # With the key, so that a text under a wrong key is not accepted.
    return hashlib.blake2b(key.encode() + b"\0" + text, digest_size=16).digest()
