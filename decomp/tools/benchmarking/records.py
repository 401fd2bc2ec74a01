"""The nouns of a benchmark: spreads, rows, attributions, and the results that hold them; to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
import json
from pathlib import Path
import statistics
from typing import Any

from decomp.tools.writing import one_row_a_line, whole

FORMAT = 1
"""Of the JSON; another is refused."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of what was measured, between its quartiles."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values, at least one."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One workload in one mode on one device."""

    name: str
    family: str
    """"op" or "model", or the kind of program whose lowering is timed."""
    size: str
    mode: str
    """"forward", "forward + backward", or "lowering"."""
    device: str

    def __str__(self) -> str:
        return f"{self.name}, {self.size}, {self.mode}, {self.device}"


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One variant of one case. What was not measured is None."""

    case: BenchmarkCase
    variant: str
    seconds: Spread | None = None
    to_baseline: Spread | None = None
    """Time over that of the first variant: the ratios within each round."""
    to_compiled: Spread | None = None
    """Time over that of the first variant that is compiled."""
    nodes: int | None = None
    """Calls in the graph."""
    memory: int | None = None
    """Bytes: the peak of what the allocator holds during a call, inputs and parameters not counted."""
    kernels: int | None = None
    """Launched in a call."""
    needed: int | None = None
    """Bytes that any program must move: inputs and parameters in, outputs out, once each."""
    moved: int | None = None
    """Bytes that this one moves: what each kernel reads and writes."""
    operations: int | None = None
    """Floating-point operations of the case's matrix products and convolutions."""
    of_limit: float | None = None
    """The time that the machine's measured limits allow for `needed` and `operations`, over the time taken."""
    ulp: float | None = None
    """The largest error in ULP of the exact result, which is the source's in float64."""
    mean_ulp: float | None = None
    error: str | None = None
    """Why it did not run."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one source op of one kind of module costs in a lowered program."""

    label: str
    """Module and op, with the numbers of layers left out: `blocks.*.attention · softmax`."""
    seconds: float
    source_seconds: float | None
    """The same calls in the source program; None where it has none of its own."""
    calls: int
    """In the source."""
    nodes: int
    """In the lowered program."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Where the time of a lowered program goes. The shares add up to `seconds`."""

    case: BenchmarkCase
    variant: str
    seconds: float
    source_seconds: float
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class BenchmarkResults:
    """What one run measured."""

    command: str
    machine: Mapping[str, Any]
    """Processor, device, versions, threads, and `copy` (bytes/s) and `matmul` (operations/s), its measured limits."""
    seed: int
    rows: tuple[BenchmarkRow, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    running: BenchmarkCase | None = None
    """What was begun and not ended: where the process died, if it did."""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def cases(self) -> list[BenchmarkCase]:
        """The cases, in order."""
        return list(dict.fromkeys(row.case for row in self.rows))

    def of(self, case: BenchmarkCase) -> list[BenchmarkRow]:
        """The rows of a case."""
        return [row for row in self.rows if row.case == case]

    def with_case(self, rows: Sequence[BenchmarkRow], attributions: Sequence[Attribution] = ()) -> BenchmarkResults:
        """With the rows of one more case, instead of those that it had."""
        case = rows[0].case
        kept = tuple(row for row in self.rows if row.case != case)
        others = tuple(one for one in self.attributions if one.case != case)
        return replace(self, rows=(*kept, *rows), attributions=(*others, *attributions), running=None)

    def save(self, path: Path) -> None:
        """Write as JSON: whole, or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as unfinished:
            unfinished.write_text(one_row_a_line({"format": FORMAT, **asdict(self)}), "utf-8")

    @classmethod
    def load(cls, path: Path) -> BenchmarkResults:
        """Read what `save` wrote. Raises `ValueError` naming the file."""
        try:
            data = json.loads(path.read_text("utf-8"))
            if data.pop("format", None) != FORMAT:
                raise ValueError(f"of another format than {FORMAT}")
            data["rows"] = tuple(_row(row) for row in data["rows"])
            data["attributions"] = tuple(_attribution(one) for one in data["attributions"])
            data["running"] = BenchmarkCase(**data["running"]) if data["running"] else None
            return cls(**data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} holds no benchmark results: {error}") from error


SPREADS = tuple(f.name for f in fields(BenchmarkRow) if "Spread" in str(f.type))


def _row(data: dict[str, Any]) -> BenchmarkRow:
    spreads = {name: Spread(**data[name]) for name in SPREADS if data[name] is not None}
    return BenchmarkRow(**{**data, **spreads, "case": BenchmarkCase(**data["case"])})


def _attribution(data: dict[str, Any]) -> Attribution:
    shares = tuple(Share(**share) for share in data["shares"])
    return Attribution(**{**data, "case": BenchmarkCase(**data["case"]), "shares": shares})
