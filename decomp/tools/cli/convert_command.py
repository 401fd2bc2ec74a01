"""`decomp convert`: a model lowered to what a converter takes, converted, verified and saved; and `decomp probe`: the
target of a converter, made by asking the version that is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Group, RenderableType
from rich.text import Text
import typer

from decomp.errors import count_noun, first_line
from decomp.files import write_atomically
from decomp.rules.keywords import ConvertOptions
from decomp.tools.cli.arguments import Model, attribute, load_target, near
from decomp.tools.cli.flags import Words, command
from decomp.tools.cli.outputs import require_output
from decomp.tools.cli.terminal import Unusable, print_json, progressing, saved, show, working
from decomp_rules import converters

if TYPE_CHECKING:
    from decomp.tools.converting.conversion import Conversion
    from decomp.tools.converting.converter import Converter
    from decomp.tools.converting.probing import Probe

CONVERTER = (
    f"A converter: {', '.join(converters.names())}, or package.module:name or file.py:name of a decomp.Converter."
)
TARGET = "A target instead of the converter's own, such as one that decomp probe made."
OUTPUT = "The file to write, with the suffix that the converter's models have."
TOML = "The target to write, .toml."
ONLY = "Only this overload, as aten.topk.default (may be repeated)."
IN_DTYPES = "Only calls of tensors in this dtype, as float32 (may be repeated)."


@command(ConvertOptions)
def convert(
    model: Model,
    to: Annotated[str, typer.Option("--to", metavar="CONVERTER", help=CONVERTER, show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help=OUTPUT)] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="TARGET", help=TARGET, show_default=False)] = None,
    *,
    words: Words,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Convert at once, in this process, and do not run the result.")
    ] = False,
) -> None:
    """Lower a model to what a converter takes, convert it, compare the converted model with the source, and save it."""
    from decomp.tools.converting.conversion import conversion

    converter = _converter(to)
    _require_writable(converter, output)
    converter.require()
    options = words.options()
    how = {"options": options, "training": bool(options.training)}
    chosen = load_target(target) if target is not None else None
    program = words.program(model)
    with working(f"converting {model} by {converter.name}"):
        found = conversion(program, converter, None, None, None, chosen, not no_verify, how)
    if output is not None and converter.save is not None:
        with working(f"saving {output}"):
            _save(converter, found, output)
    if words.as_json:
        print_json({**_as_dict(found), "output": str(output) if output is not None else None})
    else:
        show(conversion_table(found), saved(output) if output is not None else None)


@command(shared="as_json")
def probe(
    converter: Annotated[str, typer.Argument(metavar="CONVERTER", help=CONVERTER, show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help=TOML, show_default=False)],
    op: Annotated[list[str], typer.Option("--op", metavar="OVERLOAD", help=ONLY)] = [],
    dtype: Annotated[list[str], typer.Option("--dtype", metavar="DTYPE", help=IN_DTYPES)] = [],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")] = None,
    *,
    words: Words,
) -> None:
    """Ask the installed version of a converter which calls it converts and computes right, and write that as a target.
    Each op is converted and run in another process, on the library's sample calls."""
    from decomp.tools.converting.probing import probe as ask_converter

    found = _converter(converter)
    require_output("-o", output, ".toml")
    with progressing() as progress:
        report = ask_converter(found, op or None, workers or os.cpu_count() or 1, progress, dtype)
    try:
        with write_atomically(output) as unfinished:
            unfinished.write_text(report.as_toml(), encoding="utf-8")
    except OSError as error:
        raise Unusable(f"cannot save {output}: {error.strerror or first_line(error)}") from error
    if words.as_json:
        print_json({op.name: op.problem or [str(each) for each in op.conditions] for op in report.ops})
    else:
        show(probe_table(report), saved(output))


def conversion_table(found: Conversion) -> RenderableType:
    """What was converted, by what, and what was compared."""
    before = count_noun(_calls(found.lowering.internals.program.graph), "call")
    after = count_noun(_calls(found.lowering.result.graph), "call")
    who = f"{found.converter.name} {found.version}"
    parts = [Text(f"{who} converts the model: {before}, lowered to {after}", style="bold"), Text(found.verified)]
    parts += [Text(f"composite: {each}") for each in found.lowering.report().composites]
    return Group(*parts, *([Text(f"note: {found.converter.note}")] if found.converter.note else []))


def probe_table(report: Probe) -> RenderableType:
    """How many overloads the target has, and the first of those that the converter gets wrong."""
    wrong = [op for op in report.ops if op.problem.startswith(("wrong", "crashes"))]
    lines = [Text(f"  {op.name}: {op.problem}"[:150]) for op in wrong[:8]]
    rest = [Text(f"  and {len(wrong) - 8} more, in the file")] if len(wrong) > 8 else []
    headings = [Text("Converted, but not right, and so left out:")] if wrong else []
    return Group(Text(report.headline, style="bold"), *headings, *lines, *rest)


def _converter(name: str) -> Converter:
    """The converter of a name. Raises `Unusable`, `ArgumentError`."""
    from decomp.tools.converting.conversion import converter_named
    from decomp.tools.converting.converter import Converter

    if ":" in name:
        found = attribute(name)
        if not isinstance(found, Converter):
            raise Unusable(f"{name} is of type {type(found).__name__}, not a decomp.Converter")
        return found
    if name not in (*converters.names(), "onnx", "onnxruntime"):
        there_are = ", ".join(converters.names())
        known = f"{near(name, converters.names())} Available: {there_are}, and file.py:name"
        raise Unusable(f"no converter {name!r}.{known}")
    return converter_named(name)


def _require_writable(converter: Converter, path: Path | None) -> None:
    if path is None:
        return
    if converter.save is None:
        raise Unusable(f"-o {path}: the converter {converter.name} does not say how its models are saved")
    if not (path.is_dir() and path.suffix == converter.suffix in _DIRECTORIES):
        require_output("-o", path, converter.suffix)


_DIRECTORIES = frozenset({".mlpackage", ".aimodel"})
"""Suffixes of models that are directories, which their converters replace."""


def _save(converter: Converter, found: Conversion, path: Path) -> None:
    assert converter.save is not None
    try:
        converter.save(found.result, path)
    except (OSError, RuntimeError) as error:
        raise Unusable(f"cannot save {path}: {first_line(error)}") from error


def _calls(graph: Any) -> int:
    return sum(node.op == "call_function" for node in graph.nodes)


def _as_dict(found: Conversion) -> dict[str, object]:
    return {
        "converter": found.converter.name,
        "version": found.version,
        "calls": _calls(found.lowering.internals.program.graph),
        "lowered_calls": _calls(found.lowering.result.graph),
        "composites": found.lowering.report().composites,
        "verified": found.verified,
    }
