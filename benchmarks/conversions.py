"""What a converter makes of ops that its users report as refused, and of whole models: as exported, after PyTorch's own
`run_decompositions()`, and lowered by `decomp` to the target of that converter. Each program is converted in a process
of its own, run there, and compared with the source in float64 by the measure of `verify="values"`.

    python -m benchmarks.conversions openvino [NAME ...]
    python -m benchmarks.conversions --table

The first converts what has no row yet in `benchmarks/results/conversions.json`, and writes each row as it is found, so
that it goes on where it was stopped; with names, it converts these again. The second prints the tables of
`docs/results/converters.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import importlib
from pathlib import Path
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.conversion_trials import CONVERTED, RIGHT, WAYS, Built, Row, counts, record, recorded, tried
from decomp_rules import converters, samples
from decomp_rules.samples import architectures

RESULTS = Path(__file__).parent / "results" / "conversions.json"


class Calls(nn.Module):
    """A module that calls one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def f(*size: int) -> torch.Tensor:
    """Normally distributed numbers."""
    return torch.randn(size)


def whole(high: int, *size: int) -> torch.Tensor:
    """Indices below `high`."""
    return torch.randint(0, high, size)


def positive(n: int) -> torch.Tensor:
    """A positive definite matrix."""
    x = torch.randn(n, n)
    return x @ x.T + n * torch.eye(n)


OPS: Mapping[str, Callable[[], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]] = {
    "fft.rfft, abs": lambda: (lambda x: torch.fft.rfft(x).abs(), (f(3, 16),)),
    "fft.fft2, ifft2": lambda: (lambda x: torch.fft.ifft2(torch.fft.fft2(x) * 2).real, (f(8, 8),)),
    "stft": lambda: (
        lambda x, w: torch.view_as_real(torch.stft(x, 16, 4, window=w, return_complex=True)),
        (f(2, 64), torch.hann_window(16)),
    ),
    "view_as_complex, mul": lambda: (
        lambda x, y: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y)),
        (f(3, 4, 2), f(3, 4, 2)),
    ),
    "kthvalue": lambda: (lambda x: torch.kthvalue(x, 3, dim=1), (f(4, 7),)),
    "median": lambda: (lambda x: torch.median(x, dim=1), (f(4, 7),)),
    "quantile": lambda: (lambda x: torch.quantile(x, 0.3, dim=1), (f(4, 7),)),
    "cummax": lambda: (lambda x: torch.cummax(x, 1), (f(4, 7),)),
    "cumprod": lambda: (lambda x: torch.cumprod(x, 1), (f(4, 7),)),
    "logcumsumexp": lambda: (lambda x: torch.logcumsumexp(x, 1), (f(4, 7),)),
    "linalg.inv": lambda: (torch.linalg.inv, (positive(4),)),
    "linalg.det": lambda: (torch.linalg.det, (positive(4),)),
    "linalg.slogdet": lambda: (torch.linalg.slogdet, (positive(4),)),
    "linalg.solve": lambda: (torch.linalg.solve, (positive(4), f(4, 2))),
    "linalg.cholesky": lambda: (torch.linalg.cholesky, (positive(4),)),
    "linalg.qr": lambda: (lambda x: torch.linalg.qr(x).R.abs(), (f(5, 3),)),
    "linalg.eigvalsh": lambda: (torch.linalg.eigvalsh, (positive(4),)),
    "linalg.svdvals": lambda: (torch.linalg.svdvals, (f(5, 3),)),
    "linalg.vector_norm, p=3": lambda: (lambda x: torch.linalg.vector_norm(x, 3, dim=1), (f(4, 7),)),
    "linalg.cross": lambda: (torch.linalg.cross, (f(4, 3), f(4, 3))),
    "matrix_exp": lambda: (torch.matrix_exp, (f(4, 4),)),
    "cdist": lambda: (torch.cdist, (f(5, 3), f(4, 3))),
    "cdist, p=1": lambda: (lambda x, y: torch.cdist(x, y, p=1.0), (f(5, 3), f(4, 3))),
    "histc": lambda: (lambda x: torch.histc(x, 8, -2.0, 2.0), (f(50),)),
    "bincount": lambda: (lambda x: torch.bincount(x, minlength=6), (whole(6, 30),)),
    "bucketize": lambda: (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), (f(4, 7),)),
    "searchsorted": lambda: (torch.searchsorted, (torch.arange(8.0), 4 + 2 * f(5))),
    "grid_sample": lambda: (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        (f(2, 3, 5, 6), f(2, 4, 4, 2).tanh()),
    ),
    "grid_sample, 3-d": lambda: (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        (f(1, 2, 4, 5, 6), f(1, 3, 3, 3, 3).tanh()),
    ),
    "adaptive_avg_pool2d to 3×5": lambda: (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), (f(2, 3, 7, 11),)),
    "adaptive_max_pool2d to 3×5": lambda: (lambda x: F.adaptive_max_pool2d(x, (3, 5)), (f(2, 3, 7, 11),)),
    "lp_pool2d": lambda: (lambda x: F.lp_pool2d(x, 2.0, 2), (f(2, 3, 8, 8),)),
    "fold": lambda: (lambda x: F.fold(x, (6, 6), 3), (f(2, 18, 16),)),
    "renorm": lambda: (lambda x: torch.renorm(x, 2, 0, 1.0), (f(4, 7),)),
    "special.i0e": lambda: (torch.special.i0e, (f(4, 7),)),
    "lgamma": lambda: (torch.lgamma, (f(4, 7).abs() + 0.1,)),
    "digamma": lambda: (torch.digamma, (f(4, 7).abs() + 0.1,)),
    "erfinv": lambda: (torch.erfinv, (f(4, 7).tanh(),)),
    "special.ndtri": lambda: (torch.special.ndtri, (f(4, 7).sigmoid(),)),
    "igamma": lambda: (torch.special.gammainc, (f(4).abs() + 0.5, f(4).abs() + 0.5)),
    "polygamma": lambda: (lambda x: torch.polygamma(1, x), (f(4, 7).abs() + 0.5,)),
    "xlogy": lambda: (torch.xlogy, (f(4, 7).abs(), f(4, 7).abs())),
    "index_put, accumulate": lambda: (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (f(5, 3), whole(5, 8), f(8, 3)),
    ),
    "scatter_reduce, amax": lambda: (
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
        (f(5, 3), whole(5, 6, 3), f(6, 3)),
    ),
    "scatter_reduce, mean": lambda: (
        lambda x, i, v: x.scatter_reduce(0, i, v, "mean"),
        (f(5, 3), whole(5, 6, 3), f(6, 3)),
    ),
    "index_reduce": lambda: (lambda x, i, v: x.index_reduce(0, i, v, "prod"), (f(5, 3), whole(5, 6), f(6, 3))),
    "tril_indices": lambda: (lambda x: x[tuple(torch.tril_indices(4, 4))], (f(4, 4),)),
    "roll": lambda: (lambda x: torch.roll(x, (1, 2), (0, 1)), (f(4, 7),)),
    "embedding_bag": lambda: (lambda i, w: F.embedding_bag(i, w, mode="mean"), (whole(9, 3, 4), f(9, 5))),
    "pixel_unshuffle": lambda: (lambda x: F.pixel_unshuffle(x, 2), (f(2, 3, 4, 6),)),
    "nan_to_num": lambda: (torch.nan_to_num, (torch.tensor([1.0, float("nan"), float("inf"), -float("inf")]),)),
    "frexp": lambda: (torch.frexp, (f(4, 7),)),
    "nextafter": lambda: (torch.nextafter, (f(4), f(4))),
    "logaddexp2": lambda: (torch.logaddexp2, (f(4, 7), f(4, 7))),
    "heaviside": lambda: (torch.heaviside, (f(4, 7), f(4, 7))),
    "unfold (tensor)": lambda: (lambda x: x.unfold(1, 3, 2), (f(4, 9),)),
    "ctc_loss": lambda: (
        lambda x, t: F.ctc_loss(x.log_softmax(2), t, (9, 9), (3, 3)),
        (f(9, 2, 5), torch.randint(1, 5, (2, 3))),
    ),
}
"""Ops that users report as refused by converters: a function, and its inputs."""


def _transformer() -> Built:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), (f(2, 7, 32),)


class Spectral(nn.Module):
    """Mixing by Fourier transforms, as FNet and AFNO do it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = torch.fft.fft2(x).real
        return F.gelu(self.linear(self.norm(x + mixed)))


class Warp(nn.Module):
    """A spatial transformer: it samples its input at places that it predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        theta = self.places(x).view(-1, 2, 3)
        return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


class Graph(nn.Module):
    """A graph network: messages along edges, their maximum and mean at each node."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        sent = self.first(x)[edges[0]]
        index = edges[1].unsqueeze(1).expand(-1, 16)
        zero = torch.zeros(x.shape[0], 16)
        pooled = [zero.scatter_reduce(0, index, sent, how, include_self=False) for how in ("amax", "mean")]
        return self.second(torch.cat(pooled, 1))


def _sample(name: str) -> Callable[[], Built]:
    def build() -> Built:
        model, args = samples.model(name)
        return model.eval(), tuple(args)

    return build


MODELS: Mapping[str, Callable[[], Built]] = {
    **architectures.MODELS,
    "encoder of torch.nn": _transformer,
    "FNet block": lambda: (Spectral().eval(), (f(2, 8, 32),)),
    "spatial transformer": lambda: (Warp().eval(), (f(2, 3, 12, 12),)),
    "graph network": lambda: (Graph().eval(), (f(6, 8), whole(6, 2, 15))),
    "GRU": lambda: (nn.GRU(8, 16, 2, batch_first=True).eval(), (f(2, 5, 8),)),
}
"""A dozen architectures, small and with random weights."""


def built(kind: str, name: str) -> Built:
    """A program and its inputs, the same each time."""
    torch.manual_seed(0)
    if kind == "model":
        return MODELS[name]()
    function, args = OPS[name]()
    return Calls(function), args


def measure(converter: str, names: Sequence[str]) -> None:
    """Write the rows of these programs, or what is missing in those of all, with this version of the converter."""
    facts = {
        "version": converters.get(converter).require(),
        "torch": torch.__version__,
        "command": f"python -m benchmarks.conversions {converter}",
    }
    run, every = functools.partial(_tried, converter), [*OPS, *MODELS]
    record(RESULTS, converter, facts, every, names, [(name, way) for name in every for way in WAYS], run)


def _tried(converter: str, name: str, way: str) -> dict[str, Any]:
    return tried(converter, __name__, "op" if name in OPS else "model", name, ways=[way])


# The tables.


def tables(records: Mapping[str, Any]) -> str:
    """The tables of `docs/results/converters.md`: counts, what is not right behind `decomp`, and all programs."""
    rows = {name: [Row(**row) for row in record["rows"]] for name, record in records.items()}
    parts = [_versions(records), _totals(rows), _reasons(rows), _programs(rows)]
    return "\n\n".join("\n".join(part) for part in parts)


def _versions(records: Mapping[str, Any]) -> Iterator[str]:
    for name, made in records.items():
        torch_version = made["torch"].partition("+")[0]
        yield f"- {name} {made['version']} on torch {torch_version}, {made['date']}: `{made['command']}`"


def _totals(rows: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    yield "| | programs | as exported: right | wrong | refused | `run_decompositions()`: right | wrong | refused |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    yield from _counted(rows, ("exported", "decomposed"))
    yield ""
    yield "| | programs | behind `decomp`: right | wrong | refused |"
    yield "|---|--:|--:|--:|--:|"
    yield from _counted(rows, ("lowered",))


def _counted(rows: Mapping[str, Sequence[Row]], ways: Sequence[str]) -> Iterator[str]:
    for name, own in rows.items():
        for kind in ("op", "model"):
            some = [row for row in own if row.kind == kind]
            cells = [counts([getattr(row, way) for row in some]) for way in ways]
            yield f"| {name}, {kind}s | {len(some)} | {' | '.join(cells)} |"


def _reasons(rows: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    yield "Not right behind `decomp`:"
    yield ""
    for name, own in rows.items():
        for row in own:
            if row.lowered not in (RIGHT, CONVERTED):
                yield f"- {row.name} on {name}, {row.lowered}: {row.lowered_text.strip()}"


def _programs(rows: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    yield "Each program as exported → behind `decomp`, with the number of calls where it was converted; in brackets,"
    yield "after `run_decompositions()`, where that differs from the first."
    yield ""
    yield f"| program | {' | '.join(rows)} |"
    yield f"|---|{'---|' * len(rows)}"
    for own in zip(*rows.values()):
        yield f"| {own[0].name} | {' | '.join(map(_cell, own))} |"


def _cell(row: Row) -> str:
    """`refused (right) → right, 7`."""
    before = f"{row.exported}, {row.calls}" if row.calls else row.exported
    after = f"{row.lowered}, {row.lowered_calls}" if row.lowered_calls else row.lowered
    decomposed = f" ({row.decomposed})" if row.decomposed not in ("", row.exported) else ""
    return f"{before}{decomposed} → {after}"


def main(words: list[str]) -> None:
    """Measure a converter, or print the tables."""
    if words == ["--table"]:
        print(tables(recorded(RESULTS)))
        return
    converter, *names = words
    measure(converter, names)


if __name__ == "__main__":
    importlib.import_module("benchmarks.conversions").main(sys.argv[1:])  # where other processes find its classes
