"""`python -m decomp`, and the entry point of the installed command."""

from __future__ import annotations

import contextlib
import os
import sys


def main() -> None:
    """Run the command line. Exits with 2 if typer or rich are not installed, with 130 if it is interrupted."""
    try:
        from decomp.tools.cli.app import app
        from decomp.tools.cli.plain_characters import fall_back_to_ascii

        fall_back_to_ascii()
        app()
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f'the command line needs {error.name}: pip install "decomp[cli]"', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # while modules are imported, or at the very end
        print("interrupted", file=sys.stderr)
        _leave(130)
    # The command line turns an interrupt into this exit by itself, so that it comes here as SystemExit.
    except SystemExit as ended:
        if ended.code == 130:
            _leave(130)
        raise


def _leave(code: int) -> None:
    """Exit at once: unloading PyTorch takes seconds, and the user who interrupts does not want to wait."""
    # `os._exit` flushes nothing.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
