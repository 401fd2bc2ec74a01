"""What a CUDA device makes of the library, in one command of at most eight minutes, from a checkout that needs nothing
but torch, networkx and numpy:

    python -m benchmarks.on_gpu --device cuda --minutes 8 -o results.json

Three parts share the time: the certificates of the rules that models use most, measured on the device (values,
gradients and special values, against float64 there); the sample models, lowered and verified there; and families of ops
as they are and lowered, both compiled by Inductor. The results are written after every item, as JSON and as a page of
tables beside it. Run again with the same file, it goes on with what is missing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import importlib.util
import os
from pathlib import Path
import sys

NEEDED = ("torch", "networkx", "numpy")
"""Without these nothing runs."""
WANTED = {"triton": "Inductor cannot compile for CUDA, and nothing is timed"}
"""What is missing on CUDA without these."""
TF32 = {"NVIDIA_TF32_OVERRIDE": "0"}
"""Products and convolutions in float32, by cuBLAS and cuDNN too: with TF32 the kernels' own errors are a thousand times
as large, and say nothing of a rule. CUDA's libraries read it when they are loaded."""


def main(given: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for. Returns 0, also where the time was up before all was done, and 2 where nothing
    can run."""
    asked = _arguments().parse_args(given)
    lacking = _missing(NEEDED)
    if lacking:
        print(f"missing: {', '.join(lacking)}\n  to do: pip install {' '.join(lacking)}", file=sys.stderr)
        return 2
    for name in _missing(WANTED) if asked.device != "cpu" else ():
        print(f"{name} is not installed: {WANTED[name]}", file=sys.stderr)
    os.environ.update(TF32)

    import torch  # what is missing is named before

    from benchmarks import gpu_parts
    from benchmarks.gpu_results import GpuResults

    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} finds no CUDA device\n  to do: --device cpu tries the script", file=sys.stderr
        )
        return 2
    try:
        results = GpuResults.at(asked.output, device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    gpu_parts.run(results, gpu_parts.Plan(device, 60 * asked.minutes, asked.rules, asked.models, asked.families))
    print(f"{asked.output}, {results.page_path}: written")
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpu", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the script (default: cuda)")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which it ends, with what it has (default: 8)")
    parser.add_argument("-o", "--output", type=Path, default=Path("results.json"), help="the file of results")
    parser.add_argument("--rules", type=int, default=100, help="how many rules are certified (default: 100)")
    parser.add_argument("--models", nargs="*", help="which sample models are lowered (default: all)")
    parser.add_argument("--families", nargs="*", help="which families of ops are timed (default: all)")
    return parser


def _missing(names: Sequence[str] | dict[str, str]) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


if __name__ == "__main__":
    sys.exit(main())
