"""The records of a benchmark: spreads, rows, attributions, and the results with all of them; to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
import json
from pathlib import Path
import statistics
from typing import Any

from decomp.files import write_atomically
from decomp.records import one_row_a_line

FORMAT = 1
"""The version of the JSON format; others are refused."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and its quartiles."""

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
    """One variant of one case. Values that were not measured are None."""

    case: BenchmarkCase
    variant: str
    seconds: Spread | None = None
    to_baseline: Spread | None = None
    """The ratio of its time to that of the first variant, within each round."""
    to_compiled: Spread | None = None
    """The ratio of its time to that of the first compiled variant."""
    nodes: int | None = None
    """Calls in the graph."""
    memory: int | None = None
    """The peak of allocated bytes during a call, without inputs and parameters."""
    kernels: int | None = None
    """Kernel launches of a call."""
    needed: int | None = None
    """The bytes that any program must move: inputs, parameters and outputs, once each."""
    moved: int | None = None
    """The bytes that this program moves: those that each kernel reads and writes."""
    operations: int | None = None
    """Floating-point operations of the case's matrix products and convolutions."""
    of_limit: float | None = None
    """The least time for `needed` and `operations` by the machine's measured limits, divided by the actual time."""
    ulp: float | None = None
    """The largest error in ULP against the source in float64."""
    mean_ulp: float | None = None
    error: str | None = None
    """Why it did not run."""


@dataclass(frozen=True, slots=True)
class Share:
    """The time of one source op of one kind of module in a lowered program."""

    label: str
    """Module and op, without the numbers of layers: `blocks.*.attention · softmax`."""
    seconds: float
    source_seconds: float | None
    """The time of the same calls in the source program; None if it has none of its own."""
    calls: int
    """The number of calls in the source."""
    nodes: int
    """The number of nodes in the lowered program."""


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
    """The results of one run."""

    command: str
    machine: Mapping[str, Any]
    """Processor, device, versions, threads, and `copy` (bytes/s) and `matmul` (operations/s), its measured limits."""
    seed: int
    rows: tuple[BenchmarkRow, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    running: BenchmarkCase | None = None
    """The case that was running: where the process died, if it did."""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def cases(self) -> list[BenchmarkCase]:
        """The cases, in order."""
        return list(dict.fromkeys(row.case for row in self.rows))

    def of(self, case: BenchmarkCase) -> list[BenchmarkRow]:
        """The rows of a case."""
        return [row for row in self.rows if row.case == case]

    def with_case(self, rows: Sequence[BenchmarkRow], attributions: Sequence[Attribution] = ()) -> BenchmarkResults:
        """The results with new rows for one case."""
        case = rows[0].case
        kept = tuple(row for row in self.rows if row.case != case)
        others = tuple(one for one in self.attributions if one.case != case)
        return replace(self, rows=(*kept, *rows), attributions=(*others, *attributions), running=None)

    def save(self, path: Path) -> None:
        """Write as JSON, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as unfinished:
            unfinished.write_text(one_row_a_line({"format": FORMAT, **asdict(self)}), "utf-8")

    @classmethod
    def load(cls, path: Path) -> BenchmarkResults:
        """Read a file written by `save`. Raises `ValueError`, which names the file."""
        try:
            return cls.from_data(json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} holds no benchmark results: {error}") from error

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> BenchmarkResults:
        """The results of what `save` wrote, read as JSON. Raises `ValueError`, `TypeError`, `KeyError` for others."""
        read = dict(data)
        if read.pop("format", None) != FORMAT:
            raise ValueError(f"of another format than {FORMAT}")
        read["rows"] = tuple(_row(row) for row in read["rows"])
        read["attributions"] = tuple(_attribution(one) for one in read["attributions"])
        read["running"] = BenchmarkCase(**read["running"]) if read["running"] else None
        return cls(**read)


SPREADS = tuple(f.name for f in fields(BenchmarkRow) if "Spread" in str(f.type))


def _row(data: dict[str, Any]) -> BenchmarkRow:
    spreads = {name: Spread(**data[name]) for name in SPREADS if data[name] is not None}
    return BenchmarkRow(**{**data, **spreads, "case": BenchmarkCase(**data["case"])})


def _attribution(data: dict[str, Any]) -> Attribution:
    shares = tuple(Share(**share) for share in data["shares"])
    return Attribution(**{**data, "case": BenchmarkCase(**data["case"]), "shares": shares})
