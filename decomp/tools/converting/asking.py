"""Asks a converter, one op at a time and in a process of its own, which calls it converts: the library's sample calls
of an overload, in several dtypes, become one program, which is converted, run and compared with PyTorch. If that fails,
its halves are asked, down to the single call that is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
import itertools
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export import ExportedProgram, export

from decomp.errors import first_line
from decomp.ir.dtypes import is_of, name_of
from decomp.ir.ops import known_names, op as op_of
from decomp.jobs import Failed, run_in_process
from decomp.rules.library import samples as library_samples
from decomp.samples import Sample
from decomp.tools.bringup.cases import cases, samples_for
from decomp.tools.certification.results import flat
from decomp.tools.comparing.judging import ExpectedResults, judge_against, truth_of
from decomp.tools.converting.converter import Converter
from decomp.tools.measurement.trials import FAILURES, in_dtype, silenced, takes

SAMPLES = 5
"""How many sample calls of an overload are asked; the first of them in all dtypes."""
FLOATS = (torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
_EDGES = ("dimensions from the end", "without dimensions", "broadcast", "one without dimensions")
_LEAST = 2
"""How many calls are asked alone before all others of the overload count as refused, too."""
_TIMES = 2.0
"""The factor on what a sum may be off by, which makes 32 ULP in float32."""
TIMEOUT = 240.0


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call, and what the converter did with it; without tensors, as it comes from another process."""

    overload: str
    """As `aten.topk.default`."""
    verdict: str
    """"right", "refused", "wrong", "crashes", or "not exported", if `torch.export` makes other calls of it."""
    text: str = ""
    """The converter's message, or what is wrong."""
    call: str = ""
    """`aten.topk.default(float32[3, 8], 3)`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """By name, those that are left out at their defaults; tensors as `DescribedTensor`."""
    dtypes: tuple[str, ...] = ()
    """Of all tensors, each once."""


class DescribedTensor(NamedTuple):
    """What a condition may depend on."""

    dtype: str
    rank: int


def described(sample: Sample, verdict: str, text: str) -> AskedCall:
    """The answer to a sample call."""
    arguments: dict[str, Any] = {}
    for i, argument in enumerate(sample.overload._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        given = sample.args[i] if i < len(sample.args) else sample.kwargs.get(argument.name, default)
        arguments[argument.name] = _without_tensors(given)
    dtypes = tuple(dict.fromkeys(name_of(t.dtype) for t in sample.tensors))
    return AskedCall(str(sample.overload), verdict, text, str(sample), arguments, dtypes)


def _without_tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return DescribedTensor(name_of(value.dtype), value.dim())
    if isinstance(value, (list, tuple)):
        return [*map(_without_tensors, value)]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


@dataclass(frozen=True)
class AskJob:
    """Asks about the calls of some overloads, or about one of these calls by number."""

    converter: Converter
    overloads: tuple[str, ...]
    """As `aten.topk.default`."""
    only: int | None = None
    dtypes: tuple[str, ...] = ()
    """Only calls whose tensors have these; empty for all."""

    def run(self) -> list[AskedCall]:
        """Ask; in this process."""
        if self.converter.prepare is not None:
            self.converter.prepare()
        with silenced():
            samples = [call for name in self.overloads for call in calls_to_ask(overload_named(name), self.dtypes)]
            chosen = samples if self.only is None else samples[self.only : self.only + 1]
            asking = _Asking(self.converter, chosen)
            asking.settle(asking.run_by_pytorch())
            return [described(sample, *answer) for sample, answer in zip(chosen, asking.answers)]


def overload_named(name: str) -> torch._ops.OpOverload:
    """The overload of a name such as `aten.topk.default`."""
    namespace, packet, overload = name.split(".")
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    return found


def overloads_to_ask() -> list[torch._ops.OpOverload]:
    """The functional overloads that the library has sample calls of; no backward ops, which no exported model calls."""
    found: dict[torch._ops.OpOverload, None] = {}
    for name in known_names():
        packet = getattr(torch.ops.aten, name)
        if name.endswith("_backward") or not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        for sample in library_samples().calls_of(packet):
            overload = sample.overload
            if isinstance(overload, torch._ops.OpOverload) and not overload._schema.is_mutable:
                found[overload] = None
    return list(found)


_OTHERS: Mapping[str, Callable[[], Sequence[tuple[Any, ...]]]] = {
    "aten.convolution.default": lambda: [
        (torch.randn(1, 2, 4, 4, 4), torch.randn(3, 2, 2, 2, 2), None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)
    ],
    "aten.grid_sampler.default": lambda: [(torch.randn(1, 2, 3, 4, 5), torch.rand(1, 2, 2, 2, 3), 0, 0, False)],
    "aten.index_put.default": lambda: [
        (torch.randn(5, 4), [torch.tensor([0, 2]), torch.tensor([1, 3])], torch.randn(2)),
        (torch.randn(5, 4), [torch.tensor([0, 2])], torch.randn(2, 4), True),
        (torch.randn(4), [torch.tensor([True, False, True, False])], torch.randn(2)),
    ],
    "aten.linalg_det.default": lambda: [(_permutation(),)],
    "aten.linalg_slogdet.default": lambda: [(_permutation(),)],
    "aten.reciprocal.default": lambda: [(torch.tensor([2.0, 0.0, -0.0, torch.inf, torch.nan]),)],
    "aten.scaled_dot_product_attention.default": lambda: [(torch.randn(2, 3, 4),) * 3],
    "aten.unfold.default": lambda: [(torch.randn(3, 9), -1, 4, 2), (torch.randn(2, 3, 9), 2, 4, 2)],
}
"""Calls of another kind than the library's sample calls, where converters tell them apart."""


def _permutation() -> torch.Tensor:
    """A matrix whose first pivot is 0, so that elimination has to exchange rows: float32, (3, 3)."""
    return torch.eye(3).roll(1, 0)


def calls_to_ask(overload: torch._ops.OpOverload, dtypes: Sequence[str] = ()) -> list[Sample]:
    """Calls of an overload that PyTorch runs: sample calls as they are, then the first in other dtypes and shapes. With
    `dtypes`, those that have tensors of these alone and name no others."""
    samples = samples_for(op_of(overload), overload._overloadname)[:SAMPLES]
    others = _OTHERS.get(str(overload), tuple)()
    found = [*samples, *(Sample(overload, args) for args in others)]
    for sample in samples[:1]:
        found += [each for dtype in FLOATS for each in _in_float(sample, dtype)]
        found += [each for dtype in INTEGERS for each in _in_integers(sample, dtype)]
        found += [case.sample for case in cases([sample], quick=True) if case.label.partition(", ")[2] in _EDGES]
    asked = (each for each in found if not dtypes or all(is_of(dtype, dtypes) for dtype in _dtypes_in(each)))
    return [each for each in asked if takes(each)]


def _dtypes_in(sample: Sample) -> list[torch.dtype]:
    """The dtypes of a call's tensors, and those that it names."""
    named = [each for each in (*sample.args, *sample.kwargs.values()) if isinstance(each, torch.dtype)]
    return [*(tensor.dtype for tensor in sample.tensors), *named]


def _in_float(sample: Sample, dtype: torch.dtype) -> Iterator[Sample]:
    if any(t.is_floating_point() for t in sample.tensors):
        try:
            yield in_dtype(sample, dtype)
        except FAILURES:
            return


def _in_integers(sample: Sample, dtype: torch.dtype) -> Iterator[Sample]:
    """The call with integers in the place of floats; none is 0, as PyTorch ends the process if it divides by it."""
    floats = [t.is_floating_point() for t in sample.tensors]
    if any(floats) and not any(t.is_complex() for t in sample.tensors):
        numbers = (t.float() if t.itemsize == 1 else t for t in sample.tensors)  # those of 8 bits have no arithmetic
        integers = ((3 * t).abs().ceil().clamp(1, 100).to(dtype) for t in numbers)
        yield sample.with_tensors(new if is_float else t for t, new, is_float in zip(sample.tensors, integers, floats))


def ask(
    converter: Converter, overloads: Sequence[str], timeout: float = TIMEOUT, dtypes: Sequence[str] = ()
) -> list[AskedCall]:
    """The calls of some overloads with the converter's answers, in a process of its own; if that crashes, those of each
    half, down to the call that crashes it."""
    job = AskJob(converter, tuple(overloads), dtypes=tuple(dtypes))
    found = _answers(job, timeout)
    if isinstance(found, list):
        return found
    if len(overloads) > 1:
        half = len(overloads) // 2
        return [each for part in (overloads[:half], overloads[half:]) for each in ask(converter, part, timeout, dtypes)]
    calls: list[AskedCall] = []
    crashes = 0
    for i in itertools.count():
        alone = _answers(replace(job, only=i), timeout)
        crashes += isinstance(alone, str)
        if crashes == len(calls) + 1 == _LEAST:
            return [AskedCall(overloads[0], "crashes", f"{alone}, here or in PyTorch's own kernel", overloads[0])]
        if alone == []:
            return calls
        calls += alone if isinstance(alone, list) else [AskedCall(overloads[0], "crashes", alone, f"its call {i}")]
    return calls


def _answers(job: AskJob, timeout: float) -> list[AskedCall] | str:
    """The answers; how the process ended, if it crashed or hung."""
    found: list[AskedCall] | Failed = run_in_process(job, timeout)
    if not isinstance(found, Failed) or found.startswith(("crashes", "hangs")):
        return found
    raise RuntimeError(f"asking {job.converter.name} about {', '.join(job.overloads)} fails: {found}")


class _Asking:
    """The calls of a job, and the answers so far."""

    def __init__(self, converter: Converter, samples: Sequence[Sample]) -> None:
        self.converter, self.samples = converter, samples
        self.answers = [("not exported", "PyTorch does not run it")] * len(samples)
        self.truths: list[ExpectedResults | None] = []

    def run_by_pytorch(self) -> list[int]:
        """The numbers of the calls with results to compare with."""
        for sample in self.samples:
            try:
                self.truths.append(truth_of(sample))
            except FAILURES:
                self.truths.append(None)
        return [i for i, truth in enumerate(self.truths) if truth is not None]

    def settle(self, calls: list[int]) -> None:
        """Answer these calls: as one program, or else in parts."""
        if not calls:
            return
        found = self._of_program(calls)
        if isinstance(found, list) or len(calls) == 1:
            for i, answer in zip(calls, found if isinstance(found, list) else [found]):
                self.answers[i] = (answer[0], _shortened(answer[1]))
        elif len({self.samples[i].overload for i in calls}) == 1:
            self._settle_one_overload(calls)
        else:
            for part in self._parts(calls, found[1]):
                self.settle(part)

    def _settle_one_overload(self, calls: list[int]) -> None:
        """If the first calls are each refused alone, and none was right before, the rest is not tried."""
        first, rest = calls[:_LEAST], calls[_LEAST:]
        for i in first:
            self.settle([i])
        overload = self.samples[first[0]].overload
        known = (answer for sample, (answer, _) in zip(self.samples, self.answers) if sample.overload is overload)
        if "right" not in known:
            for i in rest:
                self.answers[i] = self.answers[first[0]]
        else:
            half = len(rest) // 2
            self.settle(rest[:half])
            self.settle(rest[half:])

    def _parts(self, calls: list[int], message: str) -> list[list[int]]:
        """Calls of the ops that a message names, by an overload or a kernel, and the others; the halves, if it names
        none."""
        overloads = list(dict.fromkeys(self.samples[i].overload for i in calls))
        apart = {overload for overload in overloads if f"{overload.overloadpacket}." in message}
        if not apart or len(apart) == len(overloads):
            apart = set(overloads[: len(overloads) // 2])
        return [[i for i in calls if (self.samples[i].overload in apart) == chosen] for chosen in (False, True)]

    def _of_program(self, calls: list[int]) -> list[tuple[str, str]] | tuple[str, str]:
        """The answer to each call of one program that makes them all, or why the program as a whole fails."""
        samples = [self.samples[i] for i in calls]
        try:
            program = program_of_calls(samples, self.converter.constants)
        except Exception as error:  # torch.export may raise anything
            return "not exported", first_line(error)
        lost = _not_made(program, samples)
        if lost:
            others = [i for i in calls if self.samples[i].overload not in lost]
            self.settle(others)
            other = ("not exported", "torch.export makes other calls of it")
            return [self.answers[i] if i in others else other for i in calls]
        try:
            model = self.converter.convert(program)
            if self.converter.run is None:
                return [("right", "converted; there is no runtime to run it with")] * len(samples)
            results = list(self.converter.run(model, inputs_of(samples, self.converter.constants)))
        except Exception as error:  # a converter may raise anything
            return "refused", f"{type(error).__name__}: {error}"
        return list(_judged(samples, [self.truths[i] for i in calls], results))


def _not_made(program: ExportedProgram, samples: Sequence[Sample]) -> set[Any]:
    """The overloads that an exported program calls less often than the source does."""
    made = Counter(node.target for node in program.graph.nodes if node.op == "call_function")
    wanted = Counter(sample.overload for sample in samples)
    return {overload for overload, count in wanted.items() if made[overload] < count}


def program_of_calls(
    samples: Sequence[Sample], constants: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> ExportedProgram:
    """One program that makes all of these calls, each on inputs of its own but for the arguments of `constants`, by the
    name of an op, and returns all tensors among their results."""
    module, graph, outputs = nn.Module(), fx.Graph(), []
    inputs = inputs_of(samples, constants)
    names = iter([graph.placeholder(f"x{i}") for i in range(len(inputs))])
    for i, sample in enumerate(samples):
        fixed = _constants_of(sample, constants)
        for j, tensor in enumerate(fixed.values()):
            module.register_buffer(f"c{i}_{j}", tensor.detach().clone())
        nodes = {key: graph.get_attr(f"c{i}_{j}") for j, key in enumerate(fixed)}
        placed = sample.replaced(lambda leaf: _placed(leaf, nodes, names))
        args, kwargs = placed.args, dict(placed.kwargs)
        outputs.append(graph.call_function(sample.overload, args, kwargs))
    graph.output(outputs)
    return export(fx.GraphModule(module, graph), tuple(t.detach().clone() for t in inputs))


def _placed(leaf: Any, constants: Mapping[int, fx.Node], inputs: Iterator[fx.Node]) -> Any:
    """The node of a tensor, anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return constants.get(id(leaf)) or next(inputs)


def inputs_of(samples: Sequence[Sample], constants: Mapping[str, Sequence[str]]) -> list[torch.Tensor]:
    """The tensors of these calls that are no constants, in order."""
    return [t for each in samples for t in each.tensors if id(t) not in _constants_of(each, constants)]


def _constants_of(sample: Sample, constants: Mapping[str, Sequence[str]]) -> dict[int, torch.Tensor]:
    """The tensors of a call that are constants, by their identity."""
    names = constants.get(op_of(sample.overload).short, ())
    arguments = sample.overload._schema.arguments
    given = {**dict(zip((argument.name for argument in arguments), sample.args)), **sample.kwargs}
    return {id(value): value for name in names if isinstance(value := given.get(name), torch.Tensor)}


def _judged(
    samples: Sequence[Sample], truths: Sequence[ExpectedResults | None], results: list[torch.Tensor]
) -> Iterator[tuple[str, str]]:
    """The verdict on each call, given the results of all calls. Errors are in ULP of the largest element, as in the
    comparison of a whole model that is converted: what is right here is right there."""
    for sample, truth in zip(samples, truths):
        assert truth is not None
        count = len(flat(sample.with_tensors(t.clone() for t in sample.tensors).run()))
        mine, results = results[:count], results[count:]
        try:
            found = judge_against(sample, replace(truth, pointwise=False), mine, times=_TIMES)
        except Exception as error:  # results of other sizes
            yield "wrong", f"results that cannot be compared: {first_line(error)}"
            continue
        at = f" at {found.at}: {found.got} instead of {found.expected}" if found.at else ""
        yield ("wrong", f"{found.problem}{at}") if found.problem else ("right", "")


def _shortened(message: str) -> str:
    """The last line of a converter's message, which says most, after the name of the error."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return f"{lines[0].partition(': ')[0]}: {lines[-1][:160]}" if len(lines) > 1 else message[:200]
