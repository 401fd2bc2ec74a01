"""`decomp init`: the files of a new backend."""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Annotated

import typer

from decomp.files import write_atomically
from decomp.tools.cli.flags import command
from decomp.tools.cli.new_backend import Like, files_of
from decomp.tools.cli.terminal import Unusable, note, saved, show

NAME = "The name of the backend: a Python identifier, as mychip. Its files are written into a new folder of this name."


@command(shared="")
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NAME, show_default=False)],
    like: Annotated[Like, typer.Option("--like", help="The target that it starts from.")] = Like.tinygrad,
) -> None:
    """Start a backend of your own: a folder with a target, a function for each op, tests that pass, and what a server
    runs. Nothing that is there is overwritten."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise Unusable(f"{name!r} is not a Python identifier, as mychip is")
    folder = Path(name)
    if folder.exists():
        raise Unusable(f"{folder} is there already; nothing was written")
    files = files_of(name, like.value)
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(place) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    show(saved(*(folder / path for path in files)))
    note(f"Next: cd {name}; python -m pytest; README.md says how to go on")
