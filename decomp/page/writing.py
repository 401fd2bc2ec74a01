"""The page of a lowering as a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
import functools
from importlib import resources
import math
from pathlib import Path
from typing import Any

from decomp.errors import ArgumentError
from decomp.files import naming_file, place_of_user, write_atomically
from decomp.lowering import Lowering
from decomp.page.contents import PageContents
from decomp.page.differences import DifferenceContents, differences
from decomp.page.frame import document
from decomp.page.gathering import contents_of

SCRIPTS = ("elements.js", "model.js", "colours.js", "graph.js", "outline.js", "details.js", "page.js")
"""In the order in which they need each other."""
OF_DIFFERENCE = ("elements.js", "difference.js")


def write(lowering: Lowering, path: str | Path, title: str | None = None, before: Lowering | None = None) -> Path:
    """Write the page of a lowering, or of what differs from an earlier one. Raises `ArgumentError` if the file cannot
    be written."""
    if before is None:
        return save(path, lambda: html(contents_of(lowering, title)))
    if not isinstance(before, type(lowering)):
        raise ArgumentError(f"before= must be a Lowering, not {type(before).__name__}")
    names = (type(before.internals.model).__name__, title or type(lowering.internals.model).__name__)
    return save(path, lambda: html_of_difference(differences(before, lowering, names)))


def require_place(path: Any) -> Path:
    """The path of a page. Raises `ArgumentError` if no file can be there, before the page is made."""
    return place_of_user(path, "html", "page.html")


def save(path: str | Path, made: Callable[[], str]) -> Path:
    """Write a page. Raises `ArgumentError` if the file cannot be written."""
    path = require_place(path)
    text = made()
    with naming_file(path, "html: cannot write"), write_atomically(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return path


def html(contents: PageContents) -> str:
    """The page of a lowering as text."""
    dagre = f"/*\n{_shipped('dagre.LICENSE')}*/\n{_shipped('dagre.min.js').rpartition('//# sourceMappingURL')[0]}"
    scripts = (dagre, _script(SCRIPTS))
    title = f"{contents.title} → {contents.target}"
    return document(title, _shipped("page.css"), _shipped("page.html"), scripts, _finite(asdict(contents)))


def html_of_difference(contents: DifferenceContents) -> str:
    """The page of a difference as text."""
    style = _shipped("page.css") + _shipped("difference.css")
    scripts = (_script(OF_DIFFERENCE),)
    return document(contents.title, style, _shipped("difference.html"), scripts, _finite(asdict(contents)))


def _script(names: tuple[str, ...]) -> str:
    return '"use strict";\n' + "\n".join(map(_shipped, names))


@functools.cache
def _shipped(name: str) -> str:
    return resources.files("decomp.page").joinpath(name).read_text(encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: an error of infinitely many ULP is written as a large number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else 1e30
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
