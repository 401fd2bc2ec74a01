"""The results of `benchmarks.on_gpu`: a file of JSON, and the same as a page of Markdown tables, in which the figures
of the device stand beside those of the committed certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
import json
from pathlib import Path
from typing import Any

import torch

from decomp.costs.machine import describe_machine
from decomp.files import write_atomically
from decomp.records import one_row_a_line
from decomp.results import Certificate
from decomp.rules.certificate import AS_WRITTEN, Figures
from decomp.rules.certificates import read_committed
from decomp.tools.benchmarking.records import BenchmarkResults
from decomp.tools.benchmarking.table import summary, table

RULES = ("rule", "level", "ULP, CPU", "ULP here", "PyTorch here", "gradient here", "tinygrad here", "wrong here")
MODELS = ("model", "target", "calls", "ULP", "its own", "verified")


@dataclass
class GpuResults:
    """What was measured on one device, so far."""

    path: Path
    machine: Mapping[str, Any]
    """The device, the processor, the versions."""
    certificates: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By rule, those measured on the device."""
    models: list[dict[str, Any]] = field(default_factory=list)
    """A row for each model and target: `model`, `target`, and what was found, or an `error`."""
    timings: dict[str, Any] = field(default_factory=dict)
    """`BenchmarkResults` as JSON data."""

    @classmethod
    def at(cls, path: Path, device: torch.device) -> GpuResults:
        """The results in a file, to go on with, or none yet. Raises `ValueError` where they are of another machine or
        version, or are none."""
        here = describe_machine(device)
        if not path.exists():
            return cls(path, here)
        try:
            data = json.loads(path.read_text("utf-8"))
            differ = [name for name in here if data["machine"].get(name) != here[name]]
            found = cls(path, **data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} holds no results of this script: {error}\n  to do: another -o") from error
        if differ:
            raise ValueError(f"{path} is of another machine: other {', '.join(differ)}\n  to do: another -o")
        return found

    @property
    def page_path(self) -> Path:
        """The page of tables, beside the file."""
        return self.path.with_suffix(".md")

    def save(self) -> None:
        """Write both files."""
        data = {name: value for name, value in asdict(self).items() if name != "path"}
        for path, text in ((self.path, one_row_a_line(data)), (self.page_path, self.page())):
            with write_atomically(path) as unfinished:
                unfinished.write_text(text, "utf-8")

    def page(self) -> str:
        """The results as Markdown."""
        m = self.machine
        lines = [f"# Seen on {m['device']}, torch {m['torch']}", ""]
        lines += [
            f"`python -m benchmarks.on_gpu`; Python {m['python']}, {m['processor']}, {m['system']}; without TF32."
        ]
        lines += ["", *self._rules(), *self._models(), *self._timings()]
        return "\n".join(lines).rstrip() + "\n"

    def _rules(self) -> Iterator[str]:
        found = [Certificate.from_json(each) for each in self.certificates.values()]
        if not found:
            return
        good = sum(one.ok for one in found)
        yield from ("## Certificates", "", f"{len(found)} of the rules that models use most, {good} without a fault.")
        yield from ("Largest errors in float32; the CPU's are committed.", "", *_head(RULES, 2))
        committed = read_committed()
        for one in found:
            yield "| " + " | ".join(_rule_cells(one, committed.get(one.rule))) + " |"
        yield ""

    def _models(self) -> Iterator[str]:
        if not self.models:
            return
        yield from ("## Models", "", "Lowered and verified on the device; largest errors against float64.", "")
        yield from _head(MODELS, 2)
        for row in self.models:
            yield f"| {row['model']} | {row['target']} | " + " | ".join(_model_cells(row)) + " |"
        yield ""

    def _timings(self) -> Iterator[str]:
        if not self.timings:
            return
        found = BenchmarkResults.from_data(self.timings)
        yield from ("## Lowered against fused", "", *summary(found), "")
        for case in found.cases():
            yield from (f"### {case}", "", *table(found.of(case)), "")


def _head(columns: tuple[str, ...], left: int) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * left + "--:|" * (len(columns) - left)


def _rule_cells(here: Certificate, committed: Certificate | None) -> Iterator[str]:
    written = here.way(AS_WRITTEN)
    yield here.rule.partition(":")[2]
    yield here.level
    if here.error or written is None:
        yield from ("", here.error or "not measured", "", "", "", "")
        return
    before = committed.way(AS_WRITTEN) if committed is not None else None
    lowered = here.way("tinygrad")
    values = written.values.get("float32")
    yield _largest(before.values if before is not None else {})
    yield _largest(written.values)
    yield "" if values is None or values.own_max is None else f"{values.own_max:.3g}"
    yield _largest(written.gradients)
    yield _largest(lowered.values) if lowered is not None and lowered.verdict == "measured" else ""
    yield "; ".join(here.faults).replace("|", "/")


def _largest(figures: Mapping[str, Figures]) -> str:
    return f"{figures['float32'].max:.3g}" if "float32" in figures else ""


def _model_cells(row: Mapping[str, Any]) -> Iterator[str]:
    if "error" in row:
        yield from ("", "", "", row["error"].replace("|", "/"))
        return
    yield from (f"{row['calls']:,}", *(f"{row[name]:.3g}" for name in ("ulp", "own_ulp")), row["verified"])
