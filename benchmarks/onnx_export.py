"""ONNX models of lowered programs compared with those of `torch.onnx.export(dynamo=True)`: whether the model exports,
the number of operators, bytes, time in ONNX Runtime as a ratio of interleaved runs, and error against float64.

    python -m benchmarks.onnx_export [NAME ...]
"""

from __future__ import annotations

from collections.abc import Callable
import copy
import io
import statistics
import sys
import time
from typing import Any
import warnings

import onnx
import onnxruntime
import torch
from torch import nn

import decomp
from decomp_rules import samples, targets
from decomp_rules.backends import onnx_models
from decomp_rules.samples import architectures

RUNS = 31
Built = tuple[nn.Module, tuple[Any, ...]]


def builders() -> dict[str, Callable[[], Built]]:
    """The small sample models, and common architectures."""
    small = {f"sample {name}": (lambda name=name: samples.model(name)) for name in samples.MODELS}
    return {**small, **architectures.MODELS}


def of_decomp(model: nn.Module, args: tuple[Any, ...], target: decomp.Target = targets.onnx) -> onnx.ModelProto:
    """The model lowered to the target, without verification."""
    program = torch.export.export(model, args, strict=False)
    how = dict(freeze=True, training=False, verify=False)
    return onnx_models.model_of(decomp.lower(program, to=target, **how))


def with_functions(model: nn.Module, args: tuple[Any, ...]) -> onnx.ModelProto:
    """The same, with the ONNX functions for which ONNX Runtime has kernels."""
    return of_decomp(model, args, targets.onnxruntime)


def of_torch(model: nn.Module, args: tuple[Any, ...]) -> onnx.ModelProto:
    """The model exported by PyTorch, with its default optimizations."""
    found = torch.onnx.export(model, args, dynamo=True, verbose=False)
    assert found is not None
    return found.model_proto


def measured(name: str, build: Callable[[], Built]) -> str:
    """A row of the table."""
    torch.manual_seed(0)
    model, args = build()
    model.eval()
    exact = copy.deepcopy(model).double()(*(x.double() if x.is_floating_point() else x for x in args))
    own = _error(model(*args), exact)
    cells, runs = [], []
    for export in (of_decomp, with_functions, of_torch):
        try:
            made = export(model, args)
            session = _session(made)
            run = _running(session, args)
            size, count = len(made.SerializeToString()), len(made.graph.node)
            cells.append(f"{count} | {size / 1e6:.2f} | {_error(torch.from_numpy(run()[0]), exact) / own:.2f}")
            runs.append(run)
        except Exception as error:  # the row says so if a model cannot be exported
            cells.append(f"{type(error).__name__} | | ")
    ratios = [f"{_ratio(run, runs[-1]):.2f}" for run in runs[:2]] if len(runs) == 3 else ["", ""]
    return f"| {name} | {' | '.join(cells)} | {' | '.join(ratios)} |"


def _session(model: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    file = io.BytesIO()
    onnx.save_model(model, file)
    return onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])


def _running(session: Any, args: tuple[Any, ...]) -> Callable[[], Any]:
    fed = {given.name: x.numpy() for given, x in zip(session.get_inputs(), args)}
    return lambda: session.run(None, fed)


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.detach().double() - exact.detach()).abs().max())


def _ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """The median ratio of the times of two functions, run in turn."""
    ratios = []
    for _ in range(RUNS):
        seconds = []
        for run in (one, other):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios)


def main(names: list[str]) -> None:
    """Print the table of these models, or of all."""
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}; error / PyTorch's own error in float32")
    columns = ("operators | MB | error", "with functions: operators | MB | error", "torch: operators | MB | error")
    print(f"| model | {' | '.join(columns)} | time / torch's | with functions |")
    print("|---" * 12 + "|")
    for name, build in builders().items():
        if not names or name in names:
            print(measured(name, build), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
