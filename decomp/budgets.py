"""`budget`: the error of a lowered program against float64, by op, next to that of the source program in PyTorch; and
which ops to make cheaper or more accurate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
import math
from typing import Any

from typing_extensions import Unpack

from decomp.derive.pipeline import CaptureRequest
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.session import capture_session
from decomp.ir.ops import Op, op as op_of
from decomp.rules.accuracy import Accuracy
from decomp.rules.keywords import BudgetOptions
from decomp.rules.options import OF_CERTIFY, Options, verb
from decomp.rules.target import Target
from decomp.tables import Table
from decomp.validation.error_budget import Error, LevelChoice, Levels, levels_of

GAIN, LOSS = 0.9, 1.05
"""Another level is advised if it multiplies the error by less than `GAIN`, or if it is cheaper and multiplies the error
by at most `LOSS`."""


@dataclass(frozen=True)
class Option:
    """Another level for the calls of an op."""

    level: str
    calls: int
    cost: float
    error: float


@dataclass(frozen=True)
class Loss:
    """The error due to the calls of one op."""

    op: str
    """`aten.gelu`"""
    level: str
    rules: tuple[str, ...]
    """The rules that expand them; none for an op of the target."""
    calls: int
    """How many calls of the target they expand to."""
    cost: float
    error: float
    """The error at the outputs if only these calls err: relative, root mean square."""
    own: float
    """The same with PyTorch's own kernels."""
    share: float
    """The share of the squared error of the lowered program. The shares of all ops and the interaction add up to 1. An
    error that cancels others has a negative share."""
    others: tuple[Option, ...] = ()
    """The other levels that lead to other calls."""


@dataclass(frozen=True)
class BudgetAdvice:
    """A level of accuracy that would serve the program better."""

    op: str
    level: str
    calls: int
    """How many calls of the target it adds; negative if it saves some."""
    cost: float
    error: float
    """The program's error at this level, assuming that squared errors add up."""
    before: float

    def __str__(self) -> str:
        better = "more accurate" if self.error < self.before else "cheaper"
        short = self.op.rpartition(".")[2]
        return (
            f'{short} {better}: accuracy={{"{short}": "{self.level}"}} takes {self.calls:+d} calls, '
            f"and the error from {self.before:.2g} to {self.error:.2g}"
        )


@dataclass(frozen=True)
class Budget:
    """The error of a lowered program, by op. Errors are those of its float outputs against float64: relative to the
    root mean square of each output, and the root mean square over all. `str(budget)` is a table.

    The lowered program runs once in its own dtypes, and the errors of each source op's expansion are recorded. Then the
    source runs in float64, once for each op, with the errors of its calls added to their results: the change at the
    outputs is the error vector of this op. The error E of the lowered program is the sum of these vectors and a
    remainder, the interaction of errors. The share of a vector e is ⟨E, e⟩ / ⟨E, E⟩.
    """

    target: str
    accuracy: str
    error: float
    """The error of the lowered program."""
    original: float
    """The error of the source program in PyTorch."""
    losses: tuple[Loss, ...]
    """By op, the largest share first."""
    interaction: float
    """The share that is due to no op alone."""
    random: tuple[str, ...] = ()
    """Ops that draw random numbers. All runs draw the same numbers, so these count as exact."""
    unknown: tuple[str, ...] = ()
    """Ops that do not run in float64; they count as exact."""
    advice: tuple[BudgetAdvice, ...] = ()
    """Changes of level, the most useful first."""

    def __getitem__(self, spelling: Any) -> Loss:
        """The error due to an op, by any spelling. Raises `KeyError` if the program has no call of it."""
        name = str(op_of(spelling))
        for loss in self.losses:
            if loss.op == name:
                return loss
        raise KeyError(f"the program has no calls of {name}; it has {', '.join(loss.op for loss in self.losses)}")

    @property
    def growth(self) -> float:
        """The ratio of the error to that of the source program."""
        return self.error / self.original if self.original else 1.0 if not self.error else math.inf

    @property
    def calls(self) -> int:
        """The number of calls of the lowered program that can have an error."""
        return sum(loss.calls for loss in self.losses)

    @property
    def headline(self) -> str:
        """`error 1.2e-07 on tinygrad at standard, 0.8 times the 1.6e-07 of PyTorch`."""
        own = f"{self.growth:.2g} times the {self.original:.2g} of PyTorch"
        return f"error {self.error:.2g} on {self.target} at {self.accuracy}, {own}"

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __repr__(self) -> str:
        return f"<{self.headline}; print(budget) shows the ops>"


@verb("budget", BudgetOptions, {"seed": OF_CERTIFY["seed"]})
def budget(model: Any, *, to: Target, seed: int = 0, **given: Unpack[BudgetOptions]) -> Budget:
    """Return the `Budget` of a lowered program: its error against float64 on example inputs, by source op, next to the
    error of PyTorch, and which levels of accuracy would be better. The arguments are those of `lower`; `seed` is for
    ops that draw random numbers. Raises `NotLowered`, `CaptureError`, and `AccuracyError` where nothing can be
    measured: without example inputs, without float outputs, in float64."""
    source, options = CaptureRequest.of(model, given), Options.of(given)
    matching, policy = RuleSelection.of(to, options), options.policy
    with capture_session(source, matching) as program:
        levels = levels_of(program, matching, source, policy, seed)
        levels.require(policy.accuracy, matching.target.name)
        return _budget(levels, policy.accuracy, matching.target.name)


def _budget(levels: Levels, accuracy: Accuracy, target: str) -> Budget:
    at = {op: str(accuracy.level(op)) for op in levels.nodes}
    run = levels.run(at)
    whole, due = levels.error(run), {op: levels.due(op, run) for op in at}
    shares = _shares(whole, due)
    losses = [_loss(levels, op, levels.choice(op, level), due[op], shares[op]) for op, level in at.items()]
    losses.sort(key=lambda loss: -loss.share)
    return Budget(
        target,
        str(accuracy),
        whole.size,
        levels.original.size,
        tuple(losses),
        1.0 - sum(shares.values()) if whole.size else 0.0,
        levels.random,
        levels.unknown,
        tuple(_advice(whole.size, losses)),
    )


def _shares(whole: Error, errors: Mapping[Op, Error]) -> dict[Op, float]:
    """The share of each op. If outputs are broken (NaN, infinities), the ops that break them have equal shares."""
    if whole.broken:
        broken = [op for op, error in errors.items() if error.broken]
        return {op: 1 / len(broken) if op in broken else 0.0 for op in errors}
    square = whole.dot(whole)
    return {op: whole.dot(error) / square if square and not error.broken else 0.0 for op, error in errors.items()}


def _loss(levels: Levels, op: Op, choice: LevelChoice, due: Error, share: float) -> Loss:
    others = [levels.choice(op, level) for level in levels.levels(op) if level != choice.level]
    # Levels with the same expansions share one measured error, by identity, and are shown once.
    apart = {(other.calls, other.cost, other.error): other for other in others if other.error is not choice.error}
    options = tuple(Option(str(other.level), other.calls, other.cost, other.error.size) for other in apart.values())
    own = levels.own(op).size
    return Loss(str(op), str(choice.level), choice.rules, choice.calls, choice.cost, due.size, own, share, options)


def _advice(error: float, losses: Sequence[Loss]) -> Iterator[BudgetAdvice]:
    """The best other level of each op, if there is one; those that make the program more accurate come first."""
    found = [advice for loss in losses for option in loss.others if (advice := _advise_option(error, loss, option))]
    # `False` sorts first: advice that makes the program clearly more
    # accurate, the most accurate of it first; then what is cheaper.
    found.sort(key=lambda a: (a.error >= GAIN * error, a.error if a.error < error else a.cost))
    named: set[str] = set()
    for advice in found:
        if advice.op not in named:
            named.add(advice.op)
            yield advice


def _advise_option(error: float, loss: Loss, option: Option) -> BudgetAdvice | None:
    if not math.isfinite(error) or not math.isfinite(option.error):
        return None
    # Errors of ops are taken to be independent, so their squares add up. The difference may be negative by
    # cancellation, hence the maximum.
    then = math.sqrt(max(error**2 - loss.error**2, 0.0) + option.error**2)
    helps = then < GAIN * error or option.cost < loss.cost and then <= LOSS * error
    if not helps:
        return None
    return BudgetAdvice(loss.op, option.level, option.calls - loss.calls, option.cost - loss.cost, then, error)


# As a table.

HEADINGS = ("op", ">error", ">calls", ">of all", ">alone", ">PyTorch's", "at other levels")
"""The columns: the share of the squared error; calls of the target, and their share; the error of these calls alone,
and that of PyTorch's own kernels; the same at other levels."""


def table_of(found: Budget) -> Table:
    """A row for each op that has an error, or could have, and one for the interaction."""
    rows = [_row(found, loss) for loss in found.losses if _matters(loss)]
    return Table(HEADINGS, [*rows, ("interaction", f"{found.interaction:.0%}", "", "", "", "", "")])


def notes_of(found: Budget) -> Iterator[str]:
    """The ops that have no row, by reason."""
    exact = [loss.op for loss in found.losses if not _matters(loss)]
    for what, ops in (
        ("without error", exact),
        ("random, the same in all runs", found.random),
        ("not in float64, taken as exact", found.unknown),
    ):
        if ops:
            yield f"{what}: {', '.join(op.rpartition('.')[2] for op in ops)}"


def _matters(loss: Loss) -> bool:
    return bool(loss.error or loss.own or loss.others)


def _lines(found: Budget) -> Iterator[str]:
    yield found.headline
    yield ""
    yield from table_of(found).lines("  ")
    yield from (f"  {line}" for line in (*notes_of(found), *map(str, found.advice)))


def _row(found: Budget, loss: Loss) -> tuple[str, ...]:
    others = "; ".join(f"{o.level}: {o.calls} calls, {o.error:.2g}" for o in loss.others)
    of_calls = f"{loss.calls / found.calls:.0%}" if found.calls else ""
    return (
        loss.op.rpartition(".")[2],
        f"{loss.share:.0%}",
        str(loss.calls),
        of_calls,
        f"{loss.error:.2g}",
        f"{loss.own:.2g}",
        others,
    )
