"""The flags that commands share: one for each option of the verbs, by the same name, and those of every command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import decomp
from decomp import costs
from decomp.tools.cli.arguments import (
    import_modules,
    load_accuracy,
    load_cost,
    load_limits,
    load_methods,
    load_model,
    load_rules,
    load_target,
)
from decomp.tools.cli.outputs import load_lock
from decomp.tools.cli.terminal import Unusable, report_errors, working

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from decomp.advice.jobs import Setting
    from decomp.rules.target import Target


class Flag(NamedTuple):
    """How an option is written on the command line."""

    kind: Any
    help: str
    metavar: str | None = None
    name: str | tuple[str, ...] = ()
    """If it is not that of the option."""
    default: Any = None
    load: Callable[[Any], Any] = lambda written: written
    """From what was written to the value of the option."""
    callback: Callable[[Any], Any] | None = None

    def parameter(self, name: str) -> inspect.Parameter:
        """The parameter of a command, as typer reads it."""
        written = (self.name,) if isinstance(self.name, str) else self.name
        option = typer.Option(
            *(written or [f"--{name.replace('_', '-')}"]),
            metavar=self.metavar,
            help=self.help,
            show_default=False,
            callback=self.callback,
        )
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=Annotated[self.kind, option]
        )


RULES = "package.module:name or file.py:name of rules, which are tried before those of the library (may be repeated)."
ULP = "Instead of a level, the largest error of a rule in ULP; OP=ULP for a single op (may be repeated)."
FLAGS = {
    "keep": Flag(list[str], "Do not expand this op (may be repeated).", "OP", default=[]),
    "rules": Flag(list[str], RULES, "RULES", default=[], load=load_rules),
    "accuracy": Flag(
        list[str],
        "exact, standard or fast; OP=LEVEL for a single op (may be repeated).",
        "LEVEL",
        default=[],
        load=load_accuracy,
    ),
    "cost": Flag(
        str | None, f"The cost model: {', '.join(costs.NAMED)}, or a .toml file with [costs].", "COST", load=load_cost
    ),
    "max_error": Flag(
        float | None,
        "Pick the cheapest levels such that the error of the model grows by at most this factor.",
        "FACTOR",
    ),
    "max_ulp": Flag(list[str], ULP, "ULP", default=[], load=load_limits),
    "partial": Flag(bool, "Lower what can be lowered and list the rest.", default=False),
    "simplify": Flag(bool, "Simplify the lowered program.", name="--simplify/--no-simplify", default=True),
    "training": Flag(bool | None, "Keep or remove the ops that only gradients need.", name="--training/--inference"),
    "freeze": Flag(bool, "Compute what depends only on weights once.", default=False),
    "narrow": Flag(
        bool, "Compute in int32 and float32 instead of int64 and float64 where the target lacks these.", default=False
    ),
    "drop_draws": Flag(bool, "Leave out random calls whose numbers nothing reads.", default=False),
    "lock": Flag(Path | None, "Write a lock, or hold the lowering to the one there.", "FILE", load=load_lock),
    "composites": Flag(
        list[str], "Keep the calls of this op, each with its decomposition inside (may be repeated).", "OP", default=[]
    ),
}
"""By option, in the order of the help."""
DYNAMIC = "A dimension of an input with a dynamic size, as x:0 (may be repeated; not for .pt2 files)."
TRUST = "Read the .pt2 file even if this executes code from it (pickled objects, compiled libraries)."
IMPORT = "Import a module before a .pt2 file is read, to register ops that it calls (may be repeated)."
SHARED = {
    "dynamic": Flag(list[str], DYNAMIC, "INPUT:DIM", default=[]),
    "trust": Flag(bool, TRUST, default=False),
    "imports": Flag(list[str], IMPORT, "MODULE", "--import", default=[], callback=import_modules),
    "as_json": Flag(bool, "Print only JSON.", name="--json", default=False),
}
"""Those of several commands."""
ALL = {
    "quiet": Flag(bool, "Show only results and errors.", name=("-q", "--quiet"), default=False),
    "verbose": Flag(bool, "Show what was checked, and log what is done.", name=("-v", "--verbose"), default=False),
    "debug": Flag(bool, "Show the traceback of an error, and what PyTorch logs.", default=False),
}
"""Those of every command."""


@dataclass(frozen=True)
class Words:
    """What was written for the flags of a command. It can be pickled, so that other processes load the same: neither
    rules nor targets with conditions can."""

    written: Mapping[str, Any]

    @property
    def as_json(self) -> bool:
        """Whether only JSON is printed."""
        return bool(self.written.get("as_json"))

    @property
    def verbose(self) -> bool:
        """Whether details are shown."""
        return bool(self.written["verbose"])

    def options(self, **more: Any) -> decomp.Options:
        """The options; `more` are those without a flag. Raises `Unusable`, `TargetError`, `UnknownOp`."""
        given = {name: FLAGS[name].load(value) for name, value in self.written.items() if name in FLAGS}
        return decomp.Options(**given, **more)

    def setting(self, to: str) -> Setting:
        """The options for a target by its name."""
        from decomp.advice.jobs import Setting

        return Setting.of(load_target(to), self.options())

    def asked(self, to: str) -> tuple[Target, decomp.Options]:
        """A target by its name, and the options."""
        return load_target(to), self.options()

    def program(self, model: str) -> ExportedProgram:
        """The model of a name, loaded. Raises `Unusable`, `CaptureError`."""
        with working(f"loading {model}"):
            return self.load(model)

    def methods(self, model: str, names: Sequence[str]) -> dict[str, ExportedProgram]:
        """Some methods of the model of a name. Raises `Unusable`, `CaptureError`."""
        if self.written.get("dynamic"):
            raise Unusable("--dynamic is not for --methods, whose inputs have names of their own")
        with working(f"loading {', '.join(names)} of {model}"):
            return load_methods(model, names)

    def load(self, model: str) -> ExportedProgram:
        """The same without progress, also in another process, which has not imported the modules of `--import`."""
        import_modules(self.written["imports"])
        return load_model(model, self.written["trust"], self.written.get("dynamic", ()))


def command(keywords: type = object, shared: str = " ".join(SHARED)) -> Callable[[Callable[..., None]], Any]:
    """Decorator of a command with the parameter `words`: on the command line it has a flag for each option among the
    keywords of a verb, the named ones of `SHARED`, and those of `ALL`. Errors are reported."""
    listed = keywords.__annotations__ if keywords is not object else {}
    options = {name: flag for name, flag in FLAGS.items() if name in listed}
    flags = options | {name: SHARED[name] for name in shared.split()} | ALL

    def decorated(function: Callable[..., None]) -> Any:
        signature = inspect.signature(function, eval_str=True)
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
        at = next((i for i, each in enumerate(own) if each.name == "words"), None)
        before = [options[name].parameter(name) for name in options]
        after = [flags[name].parameter(name) for name in flags if name not in options]

        @functools.wraps(function)
        def called(**given: Any) -> None:
            words = Words({name: given.pop(name) for name in flags})
            if words.written["quiet"] and words.verbose:
                raise typer.BadParameter("--quiet and --verbose exclude one another")
            loudness = {name: words.written[name] for name in ALL}
            with report_errors(**loudness, as_json=words.as_json):
                function(**given, **({} if at is None else {"words": words}))

        parameters = [*own, *after] if at is None else [*own[:at], *before, *own[at + 1 :], *after]
        vars(called)["__signature__"] = signature.replace(parameters=parameters)
        return called

    return decorated
