"""Terminals that lack the characters of tables and formulas."""

from __future__ import annotations

import codecs
import io
import sys


def fall_back_to_ascii() -> None:
    """Write a plain character or an escape for characters that the terminal's encoding lacks."""
    codecs.register_error("decomp.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="decomp.plain")


_PLAIN = dict(
    zip(
        "✓✗×→…≤≥·–—─│└├┬┴┼┌┐┘┤━╸╺┃┏┓┗┛┡┩╇↳∞±Σβ√",
        [
            "+",
            "x",
            "x",
            "->",
            "...",
            "<=",
            ">=",
            "*",
            "-",
            "-",
            "-",
            "|",
            "`",
            "|",
            "-",
            "-",
            "+",
            "+",
            "+",
            "+",
            "|",
            "-",
            "-",
            "-",
            "|",
            "+",
            "+",
            "+",
            "+",
            "+",
            "+",
            "+",
            "->",
            "inf",
            "+-",
            "sum",
            "beta",
            "sqrt",
        ],
    )
)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in missing), error.end
