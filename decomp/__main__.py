"""`python -m decomp`, and the entry point of the installed command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exits with 2 if what it is built on is not installed."""
    try:
        from decomp.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f'the command line needs {error.name}: pip install "decomp[cli]"', file=sys.stderr)
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
