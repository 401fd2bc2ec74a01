"""What the page of a lowering holds, as plain values: it is written into the page as one JSON object with these names,
and `page.js` reads nothing else. Graphs are columns, with one entry for each node, so that a program of ten thousand
nodes stays small; texts that repeat are indices into `Contents.texts`, and -1 means none."""

from __future__ import annotations

from dataclasses import dataclass, field

INPUT, CONSTANT, HOST, CALL = range(4)
"""Kinds of nodes: an input; a constant; what no target is asked for (a projection, a size, an assertion, a write-back);
a call that the target must support."""


@dataclass(frozen=True, slots=True)
class StageTitle:
    """One stage in the head of the page."""

    name: str
    """`capture`, `functionalize`, `expand` or `simplify`."""
    title: str
    explanation: str
    calls: int
    """How many calls the target must support, over all graphs."""


@dataclass(frozen=True, slots=True)
class CheckText:
    """One part of verification."""

    part: str
    checked: bool
    text: str


@dataclass(frozen=True, slots=True)
class CertificateText:
    """The committed certificate of a rule, as far as it concerns the target."""

    verdict: str
    good: bool
    measured_on: str
    columns: tuple[str, ...]
    implementations: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
    """Title (`tinygrad, fast`) and rows of each measurement."""


@dataclass(frozen=True, slots=True)
class RuleText:
    """One rule."""

    name: str
    op: str
    """The op that it computes."""
    location: str
    """`gelu.py:75`."""
    file: str
    """The path of that file, from the folder of its package."""
    line: int
    level: str
    """The level of accuracy that it is registered for; empty if its accuracy is its author's responsibility."""
    text: str
    """Its source; empty for rules without one."""
    certificate: CertificateText | None


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """A rule for a call that is not used, or what the call costs at another level of accuracy."""

    rule: str
    """`gelu_of_sigmoid (gelu.py:59)`."""
    why: str
    """Why it is not used; empty for another level."""
    level: str = ""
    """The level at which it is used; empty for a rule that was passed over."""
    calls: int = -1
    cost: float = -1.0
    error: str = ""
    """`0.97 ULP`, from the certificate; empty if unknown."""


@dataclass(frozen=True, slots=True)
class MeasuredExpansion:
    """What running an expansion found out (`verify="values"`)."""

    values: float | None
    """ULP."""
    gradients: float | None
    allowed: float
    reason: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DecisionText:
    """What became of a call, shared by all calls that were decided alike."""

    kind: str
    """`legal`, `derived`, `blocked` or `proved`."""
    op: str = ""
    """`aten.gelu`."""
    rule: int = -1
    level: str = ""
    used: RuleOutcome | None = None
    """The rule that is used, with its price."""
    alternatives: tuple[RuleOutcome, ...] = ()
    """First those at other levels, then those that were passed over."""
    certified: float | None = None
    """The largest error in ULP in the certificate, for colours."""
    measured: MeasuredExpansion | None = None
    reasons: tuple[str, ...] = ()
    """Of a blocked call: what is missing."""


@dataclass(slots=True)
class GraphColumns:
    """One graph at one stage; every list has one entry for each node, in the order of the graph."""

    names: list[str] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    """Texts: `aten.mul.Tensor`."""
    arguments: list[str] = field(default_factory=list)
    """`(%x, 2)`."""
    types: list[int] = field(default_factory=list)
    """Texts: `f32[2, 16]`."""
    operands: list[list[int]] = field(default_factory=list)
    """The nodes that a node reads."""
    origins: list[int] = field(default_factory=list)
    """The node of the stage before that it comes from."""
    why: list[int] = field(default_factory=list)
    """Texts: what justifies that. At the first stage: the user's line."""
    results: list[int] = field(default_factory=list)
    """The nodes that the graph returns; not a column."""
    modules: list[int] = field(default_factory=list)
    """Texts: qualified names of modules. Only at the first stage."""
    decisions: list[int] = field(default_factory=list)
    """Indices into `Contents.decisions`. Only of the functional graph."""
    fused: dict[int, list[int]] = field(default_factory=dict)
    """By call of a pattern in the functional graph: all captured nodes that it replaces. Not a column."""
    chains: list[int] = field(default_factory=list)
    """Indices into `Contents.chains`. Only of the expanded graph."""
    gone: list[int] = field(default_factory=list)
    """Texts: why simplification left nothing of a node. Only of the expanded graph, if it was simplified."""


@dataclass(frozen=True, slots=True)
class GraphStages:
    """One graph of the program at every stage: its own, or the body of a higher-order op."""

    name: str
    """The attribute that holds a body; empty for the program's own graph."""
    stages: tuple[GraphColumns, ...]


@dataclass(frozen=True, slots=True)
class PageContents:
    """The whole page."""

    title: str
    target: str
    headline: str
    facts: tuple[tuple[str, str], ...]
    checks: tuple[CheckText, ...]
    invariants: tuple[str, ...]
    """Every invariant that was checked."""
    cost: str
    """The name of the cost model."""
    stages: tuple[StageTitle, ...]
    texts: tuple[str, ...]
    rules: tuple[RuleText, ...]
    chains: tuple[tuple[int, ...], ...]
    """Rules that created a node, the outermost first, as indices into `rules`."""
    decisions: tuple[DecisionText, ...]
    graphs: tuple[GraphStages, ...]
