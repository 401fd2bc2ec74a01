"""`decomp cache`: show or clear the disk cache of expansions."""

from __future__ import annotations

from typing import Annotated

from rich.text import Text
import typer

from decomp import cache_directory
from decomp.cache import places
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.terminal import Unusable, print_json, show


@command(shared="as_json")
def cache(
    action: Annotated[str, typer.Argument(metavar="[clear]", help="Delete the cached files.", show_default=False)] = "",
    *,
    words: Words,
) -> None:
    """Show the directory and the size of the disk cache of expansions, or clear it."""
    if action not in ("", "clear"):
        raise Unusable(f"decomp cache has no action {action!r}; available: clear")
    place = cache_directory.directory()
    if place is None:
        if words.as_json:
            print_json({"directory": None, "files": 0, "bytes": 0})
        else:
            show(Text(f"the cache is off ({cache_directory.VARIABLE})"))
        return
    found = places.clear(place) if action else places.contents(place)
    if words.as_json:
        print_json({"directory": str(place), "files": found.files, "bytes": found.size})
    else:
        said = f"{found.files} {'files' if found.files != 1 else 'file'}, {found.size:,} bytes"
        most = f"at most {places.CAPACITY:,} are kept, the least recently used are deleted first"
        show(Text(f"deleted {said} from {place}" if action else f"{place}: {said}; {most}"))
