"""What a backend of `torch.compile` lowered: a record for each graph, which keeps no tensors alive, a line of the log,
and the table of all records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
import itertools
import logging
import os
import sys
import textwrap
from typing import Any, TextIO
import warnings
import weakref

from torch import fx

from decomp.errors import count_noun
from decomp.ir.stages import final_stage, user_line
from decomp.lowering import Lowering
from decomp.report import Report

MOST = 256
"""How many records a backend keeps, the latest."""
_WIDTH = 80
"""Columns of the table."""
_LOG = logging.getLogger("decomp")


@dataclass(frozen=True)
class Compilation:
    """One compilation of Dynamo, in which a backend lowers a graph before autograd, forward and backward."""

    id: str
    """Dynamo's `frame/recompilation`, as in its logs; empty outside Dynamo."""
    line: str
    """The user's line of the first call."""
    reason: str
    """Why Dynamo compiled the frame again; empty the first time."""


@dataclass(eq=False)
class LoweredGraph:
    """A graph that was lowered under `torch.compile`."""

    compilation: str
    """Dynamo's number of the compilation, as in its logs: `0/1` is frame 0, compiled again once."""
    stage: str
    """`before autograd`, `forward` or `backward`. What autograd makes of a lowered graph is lowered again, for the ops
    that it added."""
    line: str
    """The user's line of the first call: `model.py:12 y = self.norm(x)`; empty if unknown."""
    recompiled: str
    """Dynamo's reason for compiling the frame again; empty the first time."""
    behind_autograd: str
    """Why it was not lowered before autograd, so that its gradients are those of PyTorch's ops; empty if it was."""
    report: Report = field(repr=False)
    program: str = field(repr=False)
    """The lowered program as text: calls, dtypes and shapes, and the rules and laws that made them."""
    seconds: dict[str, float]
    """What took how long: `trace` (Dynamo's graph to overloads), `lower` (by stage in `report.seconds`), `compile`."""
    called: int | None
    """How often the compiled graph was called; None before autograd, where it is not what runs."""
    _module: Callable[[], fx.GraphModule | None] = field(repr=False)

    @property
    def graph(self) -> fx.GraphModule | None:
        """The lowered graph while something runs it; None once nothing does, as with a compiler that does not keep
        it."""
        return self._module()

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled graph, which counts its calls."""
        from decomp.torch_internals.compiling import as_boxed, is_boxed

        self.called = 0

        def counted(*args: Any) -> Any:
            self.called = (self.called or 0) + 1
            return function(*args)

        return as_boxed(counted) if is_boxed(function) else counted

    def __str__(self) -> str:
        again = f"; recompiled: {self.recompiled}" if self.recompiled else ""
        where = f" at {self.line}" if self.line else ""
        return f"{self.compilation} {self.stage}{where}: {self.report.headline}; {self.report.timing}{again}"


def record_of(
    lowering: Lowering, of: Compilation, stage: str, *, behind_autograd: str = "", **seconds: float
) -> LoweredGraph:
    """The record of a lowering, not yet called. `seconds` by name, beside those of the lowering."""
    internals = lowering.internals
    return LoweredGraph(
        compilation=of.id,
        stage=stage,
        line=of.line,
        recompiled=of.reason,
        behind_autograd=behind_autograd,
        report=lowering.report(),
        program=str(final_stage(internals.pieces, internals.composites)),
        seconds={**seconds, "lower": sum(internals.times.values())},
        called=None,
        # A record must not keep parameters alive after the compiled function is gone.
        _module=weakref.ref(lowering.result),
    )


def first_user_line(module: fx.GraphModule) -> str:
    """The user's line of the first call of a graph of Dynamo."""
    calls = (node for node in module.graph.nodes if node.op.startswith("call"))
    return next(filter(None, map(user_line, calls)), "")


def log(record: LoweredGraph) -> None:
    """Log a record, in one line."""
    _LOG.info("%s", record)


# Tests and notebooks replace `sys.stderr` after this module was imported.
class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at that time."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        pass


def log_as_requested() -> None:
    """With `DECOMP_LOG=lowering` in the environment, have the log shown: by the handlers of the program, if it has
    some."""
    requested = set(filter(None, os.environ.get("DECOMP_LOG", "").split(",")))
    if requested - {"lowering"}:
        warnings.warn(f"DECOMP_LOG is {os.environ['DECOMP_LOG']}; there is only DECOMP_LOG=lowering", stacklevel=2)
    if "lowering" not in requested:
        return
    _LOG.setLevel(logging.INFO)
    if not _LOG.hasHandlers():
        handler = _ToStderr()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        _LOG.addHandler(handler)


def graphs_table(title: str, records: Iterable[LoweredGraph], dropped: int) -> str:
    """A table of at most 80 columns: for each compilation its graphs, with calls before and after, time, and how often
    each was called."""
    found = list(records)
    groups = [(key, list(group)) for key, group in itertools.groupby(found, lambda each: each.compilation)]
    again = sum(bool(group[0].recompiled) for _, group in groups)
    counted = f"{count_noun(len(found), 'graph')} lowered, {count_noun(again, 'recompilation')}"
    lines = [f"{title}: {counted}" + (f"; {count_noun(dropped, 'earlier graph')} not listed" if dropped else "")]
    if found:
        lines += ["", _row("graph", "before", "after", "lower ms", "compile ms", "called")]
    for _, group in groups:
        lines += _rows(group)
    return "\n".join(lines)


def _rows(group: list[LoweredGraph]) -> Iterator[str]:
    """The rows of one compilation."""
    first = group[0]
    yield from _wrapped(f"{first.compilation} {first.line}".strip(), "")
    if first.recompiled:
        yield from _wrapped(f"recompiled: {first.recompiled}", "  ")
    if first.behind_autograd:
        yield from _wrapped(f"lowered only after autograd: {first.behind_autograd}", "  ")
    for each in group:
        compiled, called = each.seconds.get("compile"), each.called
        yield _row(
            f"  {each.stage}",
            str(sum(each.report.before.values())),
            str(sum(each.report.after.values())),
            f"{1000 * each.seconds['lower']:.1f}",
            "" if compiled is None else f"{1000 * compiled:.1f}",
            "" if called is None else str(called),
        )


def _row(name: str, *numbers: str) -> str:
    return (f"{name:<20}" + "".join(f"{number:>11}" for number in numbers)).rstrip()


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
