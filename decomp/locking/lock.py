"""The lock of a lowering: its versions, options, target, rules, the derivation of every call, and the program that came
of it, as plain values in a JSON file with one row a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
import hashlib
from importlib import metadata as distributions
from pathlib import Path
import platform
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from decomp import costs
from decomp.costs.plans import spell_error
from decomp.derive.decisions import Blocked, Derived
from decomp.errors import CostError, spell_target
from decomp.files import write_atomically
from decomp.ir.call import call_if_bound, metadata
from decomp.ir.stages import StageNode, final_stage, type_of
from decomp.lowering import Lowering
from decomp.records import one_row_a_line, read_record
from decomp.report import price_of_program
from decomp.rules.rules import Rule
from decomp.rules.sources import content_hash
from decomp.torch_internals.pytree import tensors_in
from decomp.validation.plan_prices import certified_error

KIND, FORMAT = "decomp lock", 1
COSTS = {"operations": costs.flops, "bytes": costs.bytes, "bytes at the peak": costs.peak_memory}
"""By unit, the cost models by which lowered programs are compared, whatever they were planned for."""
_TABLES = ("target", "versions", "options", "conditions", "before", "after", "modules", "tensors")


@dataclass(frozen=True, slots=True)
class LockedRule:
    """A rule that was used."""

    used: int
    """How many calls of the program it expanded, and how many others in those expansions."""
    code: str
    """A digest of its code, and of the functions and constants of its package that it uses; empty for PyTorch's own."""


@dataclass(frozen=True, slots=True)
class LockedCall:
    """How calls of one op on operands of the same types were decided."""

    times: int
    decided: str
    """`legal`, `blocked`, or the rules that derive it."""
    calls: int
    """The calls that one of them became, before simplification."""
    error: str = ""
    """The largest error in ULP in the certificate of the outermost rule, for this target and dtype, if it has one."""


@dataclass(frozen=True)
class Lock:
    """What a lowering depended on, and what it became."""

    target: str
    versions: Mapping[str, str]
    options: Mapping[str, str]
    conditions: Mapping[str, str]
    """The ops of the target, each with its condition."""
    before: Mapping[str, int]
    """Calls by op in the source."""
    after: Mapping[str, int]
    modules: Mapping[str, int]
    """Calls by module after."""
    rules: Mapping[str, LockedRule]
    calls: Mapping[str, LockedCall]
    """By op and types of operands, of the source after it was made functional."""
    program: Mapping[str, tuple[str, ...]]
    """The lines of each graph of the lowered program; the program's own graph is named by an empty text."""
    tensors: Mapping[str, str]
    """Digests of the constants that the lowering made; parameters and buffers of the model are not locked."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """What the lowered program costs by each model of `COSTS` that can price it."""
    interface: Mapping[str, str] = field(default_factory=dict)
    """The types of inputs and outputs, of a program whose own graph does not have them."""

    @classmethod
    def of(cls, lowering: Lowering) -> Lock:
        """The lock of a lowering."""
        internals = lowering.internals
        report = lowering.report()
        stage = final_stage(internals.pieces, internals.composites)
        return cls(
            lowering.target.name,
            _versions(),
            _options(lowering),
            dict(lowering.target.conditions()),
            dict(sorted(report.before.items())),
            dict(sorted(report.after.items())),
            {name: after for name, (_, after) in report.modules.items()},
            dict(sorted(_rules(lowering).items())),
            dict(sorted(_calls(lowering).items())),
            {graph.name: (*map(_line, graph.nodes), f"return {graph.results}") for graph in stage.graphs},
            dict(sorted(_made_tensors(lowering))),
            dict(_costs(lowering)),
        )

    def save(self, path: Path) -> None:
        """Write it. Raises `OSError`."""
        data = {"kind": KIND, "format": FORMAT, **asdict(self)}
        with write_atomically(path) as unfinished:
            unfinished.write_text(one_row_a_line(data), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Lock:
        """Read what `save` wrote. Raises `ArgumentError`, which names the file, and `OSError`."""
        return read_record(path, KIND, FORMAT, "lock", "make it by decomp.lower(..., lock=path)", cls._read)

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Lock:
        return cls(
            **{name: data[name] for name in _TABLES},
            rules={name: LockedRule(**each) for name, each in data["rules"].items()},
            calls={name: LockedCall(**each) for name, each in data["calls"].items()},
            program={name: tuple(lines) for name, lines in data["program"].items()},
            costs=data.get("costs", {}),
        )


def _versions() -> dict[str, str]:
    try:
        own = distributions.version("decomp")
    except distributions.PackageNotFoundError:
        own = "?"
    return {"torch": torch.__version__, "decomp": own, "python": platform.python_version()}


def _options(lowering: Lowering) -> dict[str, str]:
    request = lowering.internals.request
    cost, versions = request.policy.cost or lowering.target.costs, request.versions
    return {
        "accuracy": str(request.accuracy),
        "cost": getattr(cost, "name", None) or getattr(cost, "__name__", None) or type(cost).__name__
        if cost
        else "calls",
        "training": str(request.matching.training),
        "freeze": str(request.policy.freeze),
        "narrow": ", ".join(f"{wide} as {dtype}" for wide, dtype in request.narrower.items()) or "False",
        **({"drop_draws": "True"} if request.matching.drop_draws else {}),
        **({"composites": ", ".join(f"{op} {version}" for op, version in versions.items())} if versions else {}),
    }


def _costs(lowering: Lowering) -> Iterator[tuple[str, float]]:
    for unit, cost in COSTS.items():
        try:
            yield unit, price_of_program(cost, lowering)
        except CostError:  # a call without metadata
            continue


def _calls(lowering: Lowering) -> dict[str, LockedCall]:
    """Calls of the functional graphs, by op and types of operands."""
    found: dict[str, LockedCall] = {}
    times: Counter[str] = Counter()
    for piece in lowering.internals.pieces:
        for node, decision in (piece.planned.decisions or {}).items():
            call = call_if_bound(node)
            if call is None and not isinstance(decision, (Derived, Blocked)):
                continue
            text = _signature(node)
            decided, count, error = "legal", 1, ""
            if isinstance(decision, Derived):
                rules = (decision.rule, *(rule for entry in decision.template.entries for rule in entry.chain))
                decided = ", ".join(dict.fromkeys(rule.name for rule in rules))
                count = sum(entry.op.startswith("call") for entry in decision.template.entries)
                certified = certified_error(decision, lowering.target.name, node)
                error = spell_error(*certified) if certified is not None else ""
            elif isinstance(decision, Blocked):
                decided = "blocked"
            times[text] += 1
            found[text] = LockedCall(times[text], decided, count, error)
    return found


def _signature(node: fx.Node) -> str:
    """`aten.gelu.default(f32[2, 16])`: the types of tensors, and the values of other arguments."""
    shown = {operand: type_of(metadata(operand)) for operand in node.all_input_nodes}
    args = fx.node.map_arg(node.args, lambda operand: _Shown(shown[operand]))
    kwargs = fx.node.map_arg(dict(node.kwargs), lambda operand: _Shown(shown[operand]))
    given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"{spell_target(node.target)}({', '.join(given)})"


class _Shown(str):
    """A text without quotation marks in tuples and lists."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _rules(lowering: Lowering) -> dict[str, LockedRule]:
    """The rules of the program's expansions, those that were used within them included."""
    used: Counter[Any] = Counter()
    for piece in lowering.internals.pieces:
        for decision in (piece.planned.decisions or {}).values():
            if isinstance(decision, Derived):
                used[decision.rule] += 1
                inner = {rule for entry in decision.template.entries for rule in entry.chain}
                used.update(inner - {decision.rule})
    found: dict[str, LockedRule] = {}
    for rule, count in used.items():
        code = content_hash([rule]) if isinstance(rule, Rule) else ""
        before = found.get(rule.name)
        if before is not None:  # two rules of one name
            count, code = count + before.used, hashlib.sha256(f"{before.code}{code}".encode()).hexdigest()[:16]
        found[rule.name] = LockedRule(count, code)
    return found


def _line(node: StageNode) -> str:
    head = f"%{node.name}: {node.type}" if node.type else f"%{node.name}"
    return f"{head} = {node.call}" if node.call else head


def _made_tensors(lowering: Lowering) -> Iterator[tuple[str, str]]:
    """The tensors of the result that its source does not have."""
    own = {id(tensor) for tensor in _tensors_of(lowering.internals.model).values()}
    for name, tensor in _tensors_of(lowering.result).items():
        if id(tensor) not in own:
            yield name, _digest(tensor)


def _tensors_of(program: Any) -> dict[str, torch.Tensor]:
    if isinstance(program, ExportedProgram):
        held = {**program.state_dict, **program.constants}
        return {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
    found: dict[str, torch.Tensor] = {}
    for path, module in program.named_modules() if isinstance(program, nn.Module) else ():
        for name, value in {**module._parameters, **module._buffers, **vars(module)}.items():
            for tensor in tensors_in(value) if isinstance(value, (torch.Tensor, list, tuple)) else ():
                found[f"{path}.{name}" if path else name] = tensor
    return found


def _digest(tensor: torch.Tensor) -> str:
    """The type, and a digest of all bits; without values, as on the meta device, the type alone."""
    kind = type_of(tensor)
    if tensor.device.type == "meta" or type(tensor) not in (torch.Tensor, nn.Parameter):
        return kind
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return f"{kind} {hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]}"
