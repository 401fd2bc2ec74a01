"""The command line: the verbs of the package on models and targets given by name. A command loads its model and target,
calls the function of the same name, and prints the result; a failure ends with one of three exit codes. This module
imports neither PyTorch nor the library, and no module with a command does: their functions import what they need when
they run, so that help, completion and a wrong word answer at once."""

from __future__ import annotations

import importlib
from importlib.metadata import version
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from decomp.supported import torch_version

EXIT_CODES = (
    "Exit codes: 0 done; 1 not lowered: some ops are blocked, or a rule contradicts its op's schema or is worse than "
    "its certificate, or decomp does not work here, or two versions, lowered programs or proofs differ, or a backend "
    "or a proof is wrong; "
    "2 wrong usage: a model, target or op is unknown, cannot be read or raises, or a file cannot be written; "
    "3 the model could not be captured, or a rule or the verification failed; 130 interrupted; 141 broken pipe."
)


class Summary(NamedTuple):
    """A command as the help lists it."""

    section: str
    module: str
    """The module of `decomp.tools.cli` with its function, which has the name of the command."""
    text: str
    """How the docstring of the function begins."""


_MODELS, _TARGETS, _RULES, _HERE = "Models", "Targets and backends", "Rules", "Installation"
COMMANDS = {
    "demo": Summary(_MODELS, "demo_command", "Lower a small GPT to tinygrad's primitives"),
    "lower": Summary(_MODELS, "lower_command", "Lower a model to a target, show the report and save the result"),
    "plan": Summary(_MODELS, "lower_command", "Show what lowering would do and cost"),
    "diff": Summary(_MODELS, "diff_command", "Say how two lowerings differ"),
    "partition": Summary(_MODELS, "partition_command", "Split a model between a target and the host"),
    "convert": Summary(_MODELS, "convert_command", "Lower a model to what a converter takes, convert it"),
    "explain": Summary(_MODELS, "explain_command", "Show the rules of an op, and how sample calls of it are lowered"),
    "refold": Summary(_MODELS, "lower_command", "Find decomposed ops in a program, fold each into one call"),
    "budget": Summary(_MODELS, "budget_command", "Show the error of a lowered model against float64, by op"),
    "memory": Summary(_MODELS, "budget_command", "Show how much memory a model needs when it is interpreted"),
    "bench": Summary(_MODELS, "bench", "Time programs against their lowered versions"),
    "init": Summary(_TARGETS, "init_command", "Start a backend of your own"),
    "targets": Summary(_TARGETS, "rules_command", "List the targets, or the ops of one"),
    "probe": Summary(_TARGETS, "convert_command", "Ask the installed version of a converter which calls it converts"),
    "advise": Summary(_TARGETS, "advise_command", "Show which ops a target should implement next"),
    "prove": Summary(_TARGETS, "prove_command", "Show which ops reach a target, over the whole table of sample calls"),
    "score": Summary(_TARGETS, "score_command", "Show how much of PyTorch reaches a target"),
    "compare": Summary(_TARGETS, "compare_command", "Find the call that a backend gets wrong in a model"),
    "bringup": Summary(_TARGETS, "bringup_command", "Compare a backend with PyTorch: its primitives"),
    "rules": Summary(_RULES, "rules_command", "List the rules of the library or its declared limitations"),
    "lint": Summary(_RULES, "rules_command", "Compare the parameters of rules with the schemas of their ops"),
    "certify": Summary(_RULES, "certify_command", "Measure rules against exact results and PyTorch's own"),
    "doctor": Summary(_HERE, "doctor_command", "Show versions, extras, devices and compilers"),
    "cache": Summary(_HERE, "cache_command", "Show the directory and the size of the disk cache of expansions"),
    "snapshot": Summary(_HERE, "snapshot_command", "Record what the installed PyTorch does for a target"),
    "upgrade": Summary(_HERE, "snapshot_command", "Say what changed for a target and its models"),
}
"""In the order of the help."""


class _InSections(TyperGroup):
    """Its help lists the commands in sections."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, COMMANDS))
        for section in dict.fromkeys(each.section for each in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(f"{name:<{width}}", each.text) for name, each in COMMANDS.items() if each.section == section]
                )


class _Deferred(TyperCommand):
    """A command whose module is imported when the command is used."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            return imported(str(self.name)).make_context(info_name, args, parent, **extra)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None


def imported(name: str) -> Any:
    """The command of this name, with its options."""
    module = importlib.import_module(f"decomp.tools.cli.{COMMANDS[name].module}")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name)(getattr(module, name))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_InSections,
    help="Lower any PyTorch model to the ops that your backend has, and verify it.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"decomp {version('decomp')}, torch {torch_version()}")
        raise typer.Exit()


@app.callback()
def _decomp(
    _: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Lower any PyTorch model to the ops that your backend has, and verify it."""


def _nothing() -> None:
    """What a deferred command has in place of its function."""


for _name, _summary in COMMANDS.items():
    app.command(_name, cls=_Deferred, help=f"{_summary.text}.")(_nothing)
