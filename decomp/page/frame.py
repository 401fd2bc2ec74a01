"""The frame of every page: one self-contained HTML document, which loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
import json
from typing import Any

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The browser refuses whatever is not in the file."""


def document(title: str, style: str, body: str, scripts: Iterable[str] = (), data: Any = None) -> str:
    """A whole page. `body` is markup; `data` is written as JSON under the id `data`, for the scripts."""
    held = f'<script type="application/json" id="data">{as_json(data)}</script>\n' if data is not None else ""
    # Inside a script the two spellings are the same, in strings, patterns and comments; only one ends the element.
    run = "".join("<script>" + script.replace("</", "<\\/") + "</script>\n" for script in scripts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>\n'
        f"<body>\n{body}\n{held}{run}</body></html>\n"
    )


def as_json(data: Any) -> str:
    """JSON that may stand inside a `<script>`: no text in it can end the element."""
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return written.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
