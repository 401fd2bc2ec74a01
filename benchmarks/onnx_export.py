"""ONNX models of lowered programs compared with those of `torch.onnx.export(dynamo=True)`, over the models of
`exported_models`: whether the model exports, the number of operators, time in ONNX Runtime, and whether results are
right. The two sessions run in turn, each first in every second turn, so that neither gains by its place; of a model
that takes less than `LEAST` several runs are one turn. Times are those of the processor, which other programs that it
works on at the same time change little.

    pip install onnxscript && python -m benchmarks.onnx_export [--out docs/results/onnx.md] [NAME ...]
"""

from __future__ import annotations

from collections.abc import Callable
import copy
from dataclasses import dataclass
import logging
import math
from pathlib import Path
import statistics
import sys
import time
from typing import Any
import warnings

import onnx
import onnxruntime
import torch

from benchmarks.exported_models import MODELS, Exported
import decomp
from decomp_rules import targets
from decomp_rules.backends import onnx_models

RUNS = 101
LEAST = 4e-3
"""Seconds of a turn."""
RIGHT = 4.0
"""The allowed error, in multiples of that of PyTorch in float32."""
Exporter = Callable[[torch.export.ExportedProgram], onnx.ModelProto]


@dataclass
class Made:
    """A model of one exporter: its operators, its session, and its error in multiples of PyTorch's."""

    operators: int
    run: Callable[[], Any]
    error: float

    def __str__(self) -> str:
        return f"{self.operators} | {self.error:.1f}{'' if self.error <= RIGHT else ' (wrong)'}"


def of_decomp(program: torch.export.ExportedProgram) -> onnx.ModelProto:
    """The model lowered to `onnxruntime`, without verification."""
    lowering = decomp.lower(program, to=targets.onnxruntime, freeze=True, training=False, verify=False)
    return onnx_models.model_of(lowering)


def of_torch(program: torch.export.ExportedProgram) -> onnx.ModelProto:
    """The model exported by PyTorch, with its default optimizations."""
    found = torch.onnx.export(program, dynamo=True, verbose=False)
    assert found is not None
    model: onnx.ModelProto = found.model_proto
    return model


def measured(name: str, build: Callable[[], Exported]) -> tuple[str, float | None]:
    """A row of the table, and the ratio of times."""
    torch.manual_seed(0)
    made = build()
    made.model.eval()
    with torch.no_grad():
        own = made.model(*made.args)
        exact = _exact(made, own)
    program = torch.export.export(made.model, made.args, dynamic_shapes=made.dynamic, strict=False)
    found = [_attempt(export, program, made.args, exact, _error(own, exact)) for export in (of_decomp, of_torch)]
    ours, theirs = found
    ratio = _ratio(ours.run, theirs.run) if isinstance(ours, Made) and isinstance(theirs, Made) else None
    cells = [str(each) if isinstance(each, Made) else f"{each} | " for each in found]
    return f"| {name} | {' | '.join(cells)} | {'' if ratio is None else f'{ratio:.2f}'} |", ratio


def _exact(made: Exported, own: torch.Tensor) -> torch.Tensor:
    """The result in float64; PyTorch's own where the model makes float32 tensors itself."""
    args = [x.double() if x.is_floating_point() else x for x in made.args]
    try:
        return copy.deepcopy(made.model).double()(*args)
    except RuntimeError:
        return own.double()


def _attempt(export: Exporter, program: Any, args: Any, exact: torch.Tensor, unit: float) -> Made | str:
    try:
        model = export(program)
        session = _session(model)
        fed = {given.name: x.numpy() for given, x in zip(session.get_inputs(), args)}

        def run() -> Any:
            return session.run(None, fed)

        return Made(len(model.graph.node), run, _error(torch.from_numpy(run()[0]), exact) / unit)
    except Exception as error:  # the row says so if a model cannot be exported
        return type(error).__name__


def _session(model: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, at least a rounding of the largest number."""
    least = float(exact.abs().max()) * torch.finfo(torch.float32).eps
    return max(float((found.detach().double() - exact.detach()).abs().max()), float(least))


def _ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """The median ratio of the times of two functions, run in turn."""
    ratios, times = [], math.ceil(LEAST / min(min(_seconds(run) for _ in range(3)) for run in (one, other)))
    for turn in range(RUNS):
        seconds = {run: _seconds(run, times) for run in ((one, other) if turn % 2 else (other, one))}
        ratios.append(seconds[one] / seconds[other])
    return statistics.median(ratios)


def _seconds(run: Callable[[], Any], times: int = 1) -> float:
    start = time.thread_time()  # a session of one thread runs in that of its caller
    for _ in range(times):
        run()
    return time.thread_time() - start


def _summary(ratios: list[float]) -> str:
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    return (
        f"{len(ratios)} models of both: time / PyTorch's: geometric mean {mean:.2f}, median "
        f"{statistics.median(ratios):.2f}, most {max(ratios):.2f}; above 1.1: {sum(r > 1.1 for r in ratios)}"
    )


HEAD = """# ONNX, beside PyTorch's exporter

Written by `python -m benchmarks.onnx_export --out docs/results/onnx.md`: models of `benchmarks/exported_models.py`,
lowered to `onnxruntime` and exported by `torch.onnx.export(dynamo=True)`, one thread, time of the processor. Errors are
multiples of PyTorch's own in float32, measured against float64."""


COLUMNS = "| model | operators | error | PyTorch: operators | error | time / PyTorch's |"


def main(arguments: list[str]) -> None:
    """Print the table of these models, or of all, and write it."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    out = Path(arguments.pop(arguments.index("--out") + 1)) if "--out" in arguments else None
    names = [each for each in arguments if each != "--out"]
    lines = [COLUMNS, "|---|--:|--:|--:|--:|--:|"]
    ratios = []
    for name, build in MODELS.items():
        if not names or name in names:
            row, ratio = measured(name, build)
            lines.append(row)
            ratios += [] if ratio is None else [ratio]
            print(row, flush=True)
    versions = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}"
    summary = _summary(ratios) if ratios else ""
    print(summary)
    if out is not None:
        out.write_text("\n".join([HEAD, "", f"{versions}. {summary}.", "", *lines, ""]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
