"""The sweep by hand: `python -m tests.opinfo_sweep --target tinygrad --op 'nn.functional.*' --dtype float32`. It prints
what is not clean and why, then a table by target; `--json FILE` keeps every verdict."""

from __future__ import annotations

import argparse
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
import json
import logging
import re
import sys
from typing import Any

import torch

from decomp_rules import targets
from tests.opinfo_cases import DTYPES, Case, cases
from tests.opinfo_verdict import BLOCKED, CLEAN, DECLARED, FAILED, WRONG, Verdict, judge

WORST = (CLEAN, DECLARED, BLOCKED, WRONG, FAILED)


def main(argv: list[str] | None = None) -> None:
    """Run what the arguments choose."""
    options = _options(argv)
    chosen = [case for case in cases() if _wanted(case, options)][:: options.stride]
    jobs = [(case, name) for case in chosen for name in options.target]
    rows = _judged(jobs, options)
    _summary(rows, options.target)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", help="a built-in target; may be repeated (default: three)")
    parser.add_argument("--op", default="", help="regular expression that the entry's name must match from its start")
    parser.add_argument("--dtype", action="append", help="float32, bfloat16, int64, complex64 (default: all)")
    parser.add_argument("--capture", default="", help="regular expression over the capture (exported, function, ...)")
    parser.add_argument("--samples", type=int, default=3, help="samples a case")
    parser.add_argument("--stride", type=int, default=1, help="only every n-th case")
    parser.add_argument("--workers", type=int, default=0, help="processes (default: none, in this process)")
    parser.add_argument("--json", help="file for all verdicts, one a line")
    options = parser.parse_args(argv)
    options.target = options.target or ["core_aten", "tinygrad", "luminal"]
    options.dtype = options.dtype or [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    return options


def _wanted(case: Case, options: Any) -> bool:
    return (
        re.match(options.op, case.entry) is not None
        and re.match(options.capture, case.capture) is not None
        and str(case.dtype).removeprefix("torch.") in options.dtype
    )


def _judged(jobs: list[tuple[Case, str]], options: Any) -> list[dict[str, str]]:
    rows = []
    log = open(options.json, "w") if options.json else None
    for (case, target), verdict in zip(jobs, _verdicts(jobs, options)):
        row = {"entry": case.entry, "dtype": str(case.dtype).removeprefix("torch."), "capture": case.capture,
               "target": target, "status": verdict.status, "why": verdict.why}
        rows.append(row)
        if log:
            print(json.dumps(row), file=log, flush=True)
        if verdict.status != CLEAN:
            print(f"{verdict.status:8} {target:9} {case}: {verdict.why}", flush=True)
    return rows


def _verdicts(jobs: list[tuple[Case, str]], options: Any) -> Any:
    arguments = [(str(case), target, options.samples) for case, target in jobs]
    if not options.workers:
        yield from map(_verdict, arguments)
        return
    with ProcessPoolExecutor(options.workers) as pool:
        yield from pool.map(_verdict, arguments, chunksize=8)


_KNOWN: dict[str, Case] = {}


def _verdict(job: tuple[str, str, int]) -> Verdict:
    name, target, count = job
    if not _KNOWN:
        torch.set_num_threads(1)
        logging.disable(logging.ERROR)
        _KNOWN.update({str(case): case for case in cases()})
    return judge(_KNOWN[name], getattr(targets, target), count)


def _summary(rows: list[dict[str, str]], names: list[str]) -> None:
    """How many entries are clean in every dtype and capture, by target, operators and modules apart."""
    for name in names:
        for kind, is_module in (("operators", False), ("modules", True)):
            worst: dict[str, str] = {}
            for row in rows:
                entry = row["entry"]
                if row["target"] == name and (re.match(r"nn\.[A-Z]", entry) is not None) == is_module:
                    worst[entry] = max(worst.get(entry, CLEAN), row["status"], key=WORST.index)
            if worst:
                counts = Counter(worst.values())
                shares = ", ".join(f"{counts[status]} {status}" for status in WORST if counts[status])
                print(f"{name}: {counts[CLEAN]}/{len(worst)} {kind} clean ({counts[CLEAN] / len(worst):.1%}): {shares}")


if __name__ == "__main__":
    main(sys.argv[1:])
