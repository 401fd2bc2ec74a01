"""Models on XLA compared with PyTorch: `python -m benchmarks.backends`. A model runs in eager mode, under
`torch.compile` (Inductor), and lowered to `stablehlo` and compiled by XLA, in turns, each on one thread. The figure is
the least processor time of a run, on which other load on the machine has little influence. With `--errors`, the
accuracy of small models on all backends, or some (`--on numpy onnx`); with `--training`, how far ten training steps are
from PyTorch's."""

from __future__ import annotations

import argparse
from collections.abc import Callable
import os
import time
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false " + os.environ.get("XLA_FLAGS", "")

import torch

from benchmarks import backend_errors, backend_training
from benchmarks.backend_models import FULL, SMALL, built
import decomp
from decomp_rules import backends


def measured(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least processor time of each in milliseconds, run in turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], (time.process_time() - start) * 1e3)
    return best


def compare(name: str, rounds: int) -> str:
    """A row of the table for one model. Runs without gradients."""
    model, drawn = built(FULL[name])
    args = drawn()
    backend = backends.get("stablehlo")
    loaded = backend.load(decomp.lower(model, to=backend.target, args=args, training=False, freeze=True))
    compiled = torch.compile(model)
    compiled(*args)
    contenders = {"eager": lambda: model(*args), "inductor": lambda: compiled(*args), "xla": lambda: loaded(*args)}
    times = measured(contenders, rounds)
    ratios = f"{times['xla'] / times['eager']:.2f} | {times['xla'] / times['inductor']:.2f}"
    cells = (f"{times[each]:.0f} ms" for each in contenders)
    return f"| {name} | {' | '.join(cells)} | {ratios} | {backend_errors.ratio(model, loaded, drawn)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = f"{', '.join(FULL)}; for errors {', '.join(SMALL)}; for training {', '.join(backend_training.MODELS)}"
    parser.add_argument("models", nargs="*", metavar="MODEL", help=known)
    parser.add_argument("--errors", action="store_true", help="errors of small models on the backends")
    parser.add_argument("--training", action="store_true", help="training of small models on the backends")
    names = backends.names()
    parser.add_argument("--on", nargs="+", default=names, metavar="BACKEND", help=", ".join(names))
    parser.add_argument("--accuracy", default="standard", help="level of the lowering, for --errors")
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    there = SMALL if chosen.errors else backend_training.MODELS if chosen.training else FULL
    if unknown := [name for name in chosen.models if name not in there]:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(there)}")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if chosen.errors:
        backend_errors.table(chosen.on, chosen.models, accuracy=chosen.accuracy)
        return
    if chosen.training:
        backend_training.table([name for name in chosen.on if name != "onnx"], chosen.models)
        return
    print("| model | eager | Inductor | XLA | XLA / eager | XLA / Inductor | error / own float32 error |")
    print("|---|---|---|---|---|---|---|")
    for name in chosen.models or FULL:
        print(compare(name, chosen.rounds), flush=True)


if __name__ == "__main__":
    main()
