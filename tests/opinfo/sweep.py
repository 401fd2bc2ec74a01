"""The sweep by hand: `python -m tests.opinfo.sweep --target tinygrad --op 'nn.functional.*' --dtype float32`. It prints
what is not clean and why, then a table by target. `--write` keeps the table of a whole run for the README."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
import dataclasses
import json
import logging
import re
import resource
import sys

import torch

from decomp_rules import targets
from tests.opinfo.cases import DTYPES, Case, cases
from tests.opinfo.table import Row, markdown, summaries, write
from tests.opinfo.verdict import CLEAN, judge

TARGETS = ("core_aten", "tinygrad", "luminal")


def main(argv: list[str]) -> None:
    """Run what the arguments choose."""
    options = _options(argv)
    wanted = [case for case in cases() if _wanted(case, options)]
    modules = [case for case in wanted if case.is_module]
    chosen = [case for case in wanted if not case.is_module][:: options.stride] + modules
    jobs: list[Job] = [(str(case), name, options.samples, None) for name in options.target for case in chosen]
    rows = []
    with open(options.json or "/dev/null", "w") as log:
        for count, row in enumerate(_judged(jobs, options.workers), 1):
            rows.append(row)
            print(json.dumps(dataclasses.asdict(row)), file=log, flush=True)
            if row.status != CLEAN:
                print(f"{row.status:8} {row.target:9} {row.entry}-{row.dtype}-{row.capture}: {row.why}", flush=True)
            if count % 500 == 0:
                print(f"... {count} of {len(jobs)}", file=sys.stderr, flush=True)
    print(markdown(summaries(rows)))
    if options.write:
        write(rows, " ".join(["python -m tests.opinfo.sweep", *argv]))


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", help="a built-in target; may be repeated (default: three)")
    parser.add_argument("--op", default="", help="regular expression that the entry's name must match from its start")
    parser.add_argument("--dtype", action="append", help="float32, bfloat16, int64, complex64 (default: all)")
    parser.add_argument("--capture", default="", help="regular expression over the capture (exported, function, ...)")
    parser.add_argument("--samples", type=int, default=3, help="samples a case")
    parser.add_argument("--stride", type=int, default=1, help="only every n-th case of the operators")
    parser.add_argument("--workers", type=int, default=0, help="processes (default: none but this one)")
    parser.add_argument("--json", help="file for all verdicts, one a line")
    parser.add_argument("--write", action="store_true", help="keep the table beside the benchmark results")
    options = parser.parse_args(argv)
    options.target = options.target or list(TARGETS)
    options.dtype = options.dtype or [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    return options


def _wanted(case: Case, options: argparse.Namespace) -> bool:
    return (
        re.match(options.op, case.entry) is not None
        and re.match(options.capture, case.capture) is not None
        and case.dtype_name in options.dtype
    )


Job = tuple[str, str, int, int | None]
"""A case and a target by name, how many samples, and the seed that draws one of these, if one is enough."""
MEMORY = 12 << 30
"""Bytes of addresses that a worker may use; those of torch's libraries count."""


def _judged(jobs: list[Job], workers: int) -> Iterator[Row]:
    if not workers:
        yield from map(verdict, jobs)
        return
    with ProcessPoolExecutor(workers, initializer=_bounded) as pool:
        yield from pool.map(verdict, jobs, chunksize=8)


def _bounded() -> None:
    """Bound the memory of a worker, so that a case which wants more fails by itself and not the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


_KNOWN: dict[str, Case] = {}


def verdict(job: Job) -> Row:
    """Judge the case of a name, in the current process."""
    name, target, count, seed = job
    if not _KNOWN:
        torch.set_num_threads(1)
        _KNOWN.update({str(case): case for case in cases()})
    case = _KNOWN[name]
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)  # of the process, whose other tests may listen
    try:
        found = judge(case, getattr(targets, target), count, seed)
    finally:
        logging.disable(disabled)
    return Row(case.entry, case.dtype_name, case.capture, target, found.status, found.why)


if __name__ == "__main__":
    main(sys.argv[1:])
