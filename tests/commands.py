"""The command line within a test: run a command, and read what it said."""

from typer.testing import CliRunner

from decomp.tools.cli.app import app


def run(*words):
    """The result of `decomp WORDS`, on a terminal so wide that no line of a test's is broken."""
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def said(result):
    """The output of a failing command, and its exit code."""
    return result.exit_code, (result.stderr or result.output).strip()
