"""One program in every form and on every target: captured, lowered, run on fresh inputs, compared with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
from dataclasses import dataclass
import re
from typing import Any
import warnings

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import decomp
from decomp.errors import InputMismatch, InputsOverlap, InternalError, RuleError
from decomp.ir.aliases import attribute
from decomp.proof.correspondence import VerificationError
from decomp.torch_internals.modes import process_state_kept
from decomp_rules import targets
from tests.fuzzing.narrowed import DTYPES, computes_beyond, fault_near_limits, is_narrowed
from tests.fuzzing.on_meta import fault_on_meta
from tests.fuzzing.outcomes import Outcome, difference, outcome, restored
from tests.fuzzing.prelude import Given
from tests.fuzzing.programs import SIZES, Program
from tests.torch_state import changed, state as torch_state

TARGETS = ("core_aten", "tinygrad", "luminal")
FORMS = (
    "exported",
    "module",
    "module without args",
    "exported graph",
    "graph",
    "graph with args",
    "decomposed",
    "decomposed graph",
    "compiled",
    "inductor",
    "narrow",
)
SIGNED = ("copysign", "signbit", "atan2", "arctan2")
ROUNDING = ("floor", "ceil", "round", "trunc", "frac")
GUARDED_SIZES = (*SIZES, 4, 8)
"""Inside and outside of what torch.export assumes."""
LOST_BY_EXPORT = (".apply(", "inference_mode")
"""The parts of a program that torch.export drops and Dynamo keeps."""
WITHOUT_METADATA = ("graph", "module without args", "decomposed graph")
INTERNAL = (InternalError, RuleError, VerificationError)
"""Refusals that a program has no part in: the library's own rules, or the proof, failed."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one form on one target."""

    form: str
    target: str
    status: str
    """"right", "refused", "fault", "copied": an output is a view of a written input no more, or "torch": PyTorch itself
    cannot capture the program so."""
    text: str = ""

    @property
    def kind(self) -> str:
        """A key shared by faults of the same cause."""
        first = re.sub(r"\[seed.*|(?<=lost): .*|(?<=gained): .*| in \d+ of .*", "", (self.text.splitlines() or [""])[0])
        return re.sub(r"\d+", "N", f"{self.form}: {first}")[:130]


class Loaded:
    """A program, its module and what PyTorch makes of it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        namespace = program.loaded()
        self.new_module, self.inputs_of = namespace["Program"], namespace["inputs"]
        self.module = self.new_module()
        self.guarded = program.dynamic and "guard" in program.features
        self.sizes = GUARDED_SIZES if self.guarded else SIZES if program.dynamic else SIZES[:1]
        self.wanted: dict[Any, Outcome] = {}

    def given(self, seed: int, size: int, tracked: bool, near: int = 0) -> tuple[Given, tuple[torch.Tensor, ...]]:
        given = Given(seed, tracked, near=near)
        return given, self.inputs_of(given, size)

    def run(
        self, callable_: Callable[..., Any], state: Any, seed: int, size: int, tracked: bool, near: int = 0
    ) -> Outcome:
        given, arguments = self.given(seed, size, tracked, near)
        with restored(self.module, state):
            torch.manual_seed(seed)
            return outcome(callable_, state, given, arguments)

    def eager(self, seed: int, size: int, tracked: bool) -> Outcome:
        key = (seed, size, tracked)
        if key not in self.wanted:
            self.wanted[key] = self.run(self.module, self.module, seed, size, tracked)
        return self.wanted[key]

    def as_saved(self, seed: int, size: int, tracked: bool, call: Any = None, state: Any = None) -> Outcome:
        """What it gives if each tensor is kept as it was when it was saved for the backward pass. A write that autograd
        does not count, through `.data`, changes it in PyTorch, and the gradient is wrong."""
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.detach().clone(), lambda saved: saved):
            return self.run(call or self.module, state or self.module, seed, size, tracked)

    def example(self) -> tuple[torch.Tensor, ...]:
        """The inputs for capture. Those of most programs require gradients."""
        return self.given(0, SIZES[0], self.tracked)[1]

    @property
    def tracked(self) -> bool:
        return self.program.seed % 4 != 1

    def dynamic_shapes(self) -> Any:
        if not self.program.dynamic:
            return None
        pairs = zip(self.example(), self.given(0, SIZES[1], False)[1])
        auto = torch.export.Dim.AUTO
        return tuple({dim: auto for dim in range(a.dim()) if a.shape[dim] != b.shape[dim]} for a, b in pairs)


Pair = tuple[str, str]
"""A form, and the target that a program is lowered to in it."""


def pairs(forms: Iterable[str] = FORMS, on: Iterable[str] = TARGETS) -> list[Pair]:
    """Every form with every target. Where rules are applied wherever they match there are no targets."""
    on = tuple(on)
    return [(form, target) for form in forms for target in (("rules",) if form.startswith("decomposed") else on)]


def check(program: Program, wanted: Iterable[Pair]) -> Iterator[Verdict]:
    """Verdicts of a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = Loaded(program)
        cases = _cases(loaded)
        for form, target in wanted:
            yield _verdict(loaded, form, target, cases)


def run_by_pytorch_alone(program: Program) -> None:
    """Run a program as PyTorch itself captures it, in every form, whatever comes of it: where that ends the process,
    nobody else has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = Loaded(program)
        cases = _cases(loaded)
        for form in ("exported", "graph", "inductor"):
            for case in cases:
                _torch_too(loaded, form, [case])


def _cases(loaded: Loaded) -> list[tuple[int, int, bool]]:
    cases = [(seed, size, tracked) for size in loaded.sizes for seed, tracked in ((1, True), (2, False))]
    # Gradients beside NaN and infinity are what certificates measure.
    tracked = loaded.tracked and "special=True" not in loaded.program.source
    return [case for case in cases if (tracked or not case[2]) and _runs(loaded, case)]


def _runs(loaded: Loaded, case) -> bool:
    """Whether PyTorch itself runs the program, and its backward pass, on such inputs."""
    try:
        with _Reads() if "scaled_dot_product" in loaded.program.source else contextlib.nullcontext():
            loaded.run(loaded.module, loaded.module, *case)
        loaded.eager(*case)
    except Exception:  # whatever it says
        return False
    return True


def _verdict(loaded: Loaded, form: str, target: str, cases) -> Verdict:
    try:
        found = _captured(loaded, form, target)
    except TorchRefuses as error:
        return Verdict(form, target, "torch", _reason(error))
    except Exception as error:  # any that is not the project's own is a fault
        return _refusal(loaded, form, target, error)
    if isinstance(found, str):
        return Verdict(form, target, "fault", found)
    for case in cases if found.dynamic else [case for case in cases if case[1] == SIZES[0]]:
        # Programs with torch.func are captured by Dynamo, too, which assumes less.
        assumed = form in EXPORTED and case[1] != SIZES[0] and "torch.func" not in loaded.program.source
        refused = assumed and _export_refuses(loaded, case)
        try:
            text = difference(
                loaded.eager(*case),
                loaded.run(found.call, found.state, *case),
                lambda: loaded.run(loaded.module, loaded.module, *case),
                views=_has_views(loaded.program, form, target),
                shared=form in COMPILED,
            )
            if refused:
                return Verdict(form, target, "fault", f"takes inputs that export's own module refuses: {refused}")
        except Exception as error:
            own = _own(error)
            if refused and isinstance(own, InputMismatch):
                continue
            refusal = decomp.DecompError if form in COMPILED else InputsOverlap
            if isinstance(own, refusal):
                return _refusal(loaded, form, target, error)
            text = f"raises when run: {type(error).__name__}: {str(error)[:1500]}"
        if text.startswith("gradient") and ".data" in loaded.program.source:
            try:
                saved = loaded.as_saved(*case)
            except RuntimeError:  # gradients of torch.func are computed without such hooks
                return Verdict(form, target, "torch", "its gradient cannot be computed without the write")
            text = difference(saved, loaded.run(found.call, found.state, *case), lambda: loaded.as_saved(*case))
        if text:
            return _judged(loaded, form, target, text, cases[: cases.index(case) + 1])
    text = fault_near_limits(loaded, found.call, found.state) if form == "narrow" else ""
    return Verdict(form, target, "fault" if text else "right", text)


def _judged(loaded: Loaded, form: str, target: str, text: str, tried: list[tuple[int, int, bool]]) -> Verdict:
    """Whose a difference is that was found in the last of the cases `tried`: a fault, or what nobody promised."""
    case = tried[-1]
    try:
        written = _written(loaded, case)
    except Exception:  # buffers that are views of one another keep the history of what wrote them
        return Verdict(form, target, "torch", "does not run again in PyTorch itself")
    if text.startswith("gradient") and written.rounds:
        return Verdict(form, target, "right", "what is not finite was rounded: its gradient is open")
    if "values differ" in text and written.signs:
        return Verdict(form, target, "right", "the sign of zero or of no number was asked for")
    if form == "narrow" and computes_beyond(loaded, case):
        return Verdict(form, target, "right", "what a program computes may overflow")
    if written.twice:
        return Verdict(form, target, "torch", "writes elements that lie in the same memory")
    if text.startswith("gradient") and written.beside:
        return Verdict(form, target, "torch", "its gradient depends on what is written later")
    if form in WITHOUT_METADATA and written.wider:
        return Verdict(form, target, "refused", "operands of in-place ops are taken to have one dtype")
    if form in WITHOUT_METADATA and "view size is not compatible" in text:
        return Verdict(form, target, "refused", "strides are those of the primitives")
    if _torch_too(loaded, form, tried):
        return Verdict(form, target, "torch", "differs in PyTorch's own capture")
    if _is_of_memory(text) and _may_copy(loaded.program, form):
        return Verdict(form, target, "copied", text)
    return Verdict(form, target, "fault", f"{text} [seed {case[0]}, size {case[1]}, tracked {case[2]}]")


def _is_of_memory(text: str) -> bool:
    """Whether two outcomes differ in what shares memory."""
    return "is lost" in text or text.startswith("outputs that share memory")


def _may_copy(program: Program, form: str) -> bool:
    """Whether an output that is a view of an input may be a copy."""
    if form in COMPILED:
        return "Reversed.apply(" in program.source  # whose view of its operand has a backward of its own
    return program.writes_inputs or form == "narrow"


def _export_refuses(loaded: Loaded, case: tuple[int, int, bool]) -> str:
    """What export's own module says of the inputs, if it refuses them; nothing else that it raises is one."""
    try:
        with process_state_kept():  # a failure leaves the levels of torch.func entered
            loaded.run(*2 * [_exportable(loaded).module()], *case)
    except AssertionError as error:
        return _reason(error)
    except Exception:
        pass
    return ""


def _written(loaded: Loaded, case) -> _Writes:
    with _Writes() as writes:
        loaded.run(loaded.module, loaded.module, *case)
    return writes


class _Writes(TorchDispatchMode):
    """The writes of a program, observed while it runs."""

    wider = False
    """An in-place op takes an operand of a dtype that would be that of the result out of place. Nobody sees that in a
    program without metadata."""
    twice = False
    """What is written has two elements in the same memory: which of them it will be is anybody's."""
    rounds = False
    """What is not finite is rounded to whole numbers. In PyTorch that has no gradient; at standard it is anybody's."""

    beside = False
    """A view reaches memory that its operand does not hold. Whether that has a gradient depends in PyTorch on whether
    anything that shares the memory is changed in place later on, as only then autograd derives the view once more."""
    signs = False
    """The sign of a zero, or of NaN, decides what is computed: at standard it is not promised."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            others = [leaf for leaf in tree_leaves(args[1:]) if isinstance(leaf, torch.Tensor)]
            self.wider |= any(torch.result_type(args[0], other) != args[0].dtype for other in others)
            self.twice |= _overlaps_itself(args[0])
        if function is torch.ops.aten.as_strided.default:
            self.beside |= not _places(function(*args, **(kwargs or {}))) <= _places(args[0])
        if function._overloadpacket.__name__.removesuffix("_") in ROUNDING and args[0].is_floating_point():
            self.rounds |= not bool(args[0].isfinite().all())
        if function._overloadpacket.__name__.removesuffix("_") in SIGNED:
            signed = [leaf for leaf in args if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
            self.signs |= any(bool(((leaf == 0) | leaf.isnan()).any()) for leaf in signed)
        return function(*args, **(kwargs or {}))


class _Reads(TorchDispatchMode):
    """Ends a program in which attention has more keys than values, beside which PyTorch's kernel reads (torch 2.13)."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "scaled_dot_product" in function._schema.name and args[1].shape[-2] != args[2].shape[-2]:
            raise ValueError("keys and values differ in number")
        return function(*args, **(kwargs or {}))


def _overlaps_itself(value: torch.Tensor) -> bool:
    return len(_places(value)) < value.numel()


def _places(value: torch.Tensor) -> set[int]:
    """The elements of its memory that a tensor holds."""
    places = torch.arange(value.untyped_storage().nbytes() // max(1, value.element_size()))
    return set(places.as_strided(value.shape, value.stride(), value.storage_offset()).flatten().tolist())


def _has_views(program: Program, form: str, target: str) -> bool:
    """Whether an output that is a view of an input has to be one: the target has such views, or the caller sees what
    AOTAutograd makes. Windows, and what has strides that differ from size to size and is reshaped, may be copies on any
    target."""
    if form == "narrow":  # integers are cast where they come in and go out
        return False
    may_copy = ".unfold(" in program.source or program.dynamic and "reshape(" in program.source
    return form in COMPILED or target in ("core_aten", "rules") and not may_copy


def _refusal(loaded: Loaded, form: str, target: str, error: Exception) -> Verdict:
    own = _own(error)
    if isinstance(own, decomp.DecompError) and not isinstance(own, INTERNAL):
        return Verdict(form, target, "refused", _reason(own))
    if form in COMPILED and _torch_too(loaded, form, [(1, SIZES[0], True)]):
        return Verdict(form, target, "torch", _reason(error))
    return Verdict(form, target, "fault", f"raises {type(own).__name__}: {str(own)[:1500]}")


def _own(error: BaseException) -> BaseException:
    """The project's own error, where a compiler has wrapped it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, decomp.DecompError):
            return seen
        seen = getattr(seen, "inner_exception", None) or seen.__cause__
    return error


def _reason(error: BaseException) -> str:
    blockers = getattr(error, "blockers", ())
    if blockers:
        first = blockers[0]
        why = first.limitation or first.condition or (first.tried[-1][1] if first.tried else "no rule")
        return f"{type(error).__name__}: {first.op}: {why.splitlines()[0]}"
    return f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0]}"


# Forms


class TorchRefuses(Exception):
    """PyTorch's own capture fails."""


@dataclass
class Lowered:
    """What can be run, and the module with its state."""

    call: Callable[..., Any]
    state: torch.nn.Module
    dynamic: bool = False


class StateChanged(Exception):
    """PyTorch's state of the process is another after lowering."""


EXPORTED = ("exported", "module", "exported graph", "decomposed", "narrow")
COMPILED = ("compiled", "inductor")
DECOMPOSING = decomp.Rules(
    {
        torch.nn.functional.relu: lambda x: torch.where(x <= 0, 0, x),
        torch.nn.functional.gelu: lambda x, approximate="none": (
            torch.nn.functional.gelu(x, approximate=approximate) * 1
        ),
        torch.sigmoid: lambda x: 1 / (1 + torch.exp(-x)),
        torch.exp: lambda x: torch.exp2(x * 1.4426950408889634),
        torch.mul: lambda x, other: torch.mul(other, x) if isinstance(other, fx.Proxy) else torch.mul(x, other),
    }
)


def _captured(loaded: Loaded, form: str, target: str) -> Lowered | str:
    """The lowered program, or what is wrong with its source afterwards."""
    if form in COMPILED:
        return _compiled(loaded, form, target)
    example = loaded.example()
    options: dict[str, Any] = {}
    if form in ("module", "graph with args", "narrow"):
        options = dict(args=example)
    if form == "narrow":
        if not is_narrowed(loaded.program):
            raise TorchRefuses("there are no integers to narrow, or other dtypes too")
        options["narrow"] = True
    if form == "module":
        options["dynamic_shapes"] = loaded.dynamic_shapes()
        _exportable(loaded)
    source = _source(loaded, form)
    before, kept = _seen(source, loaded), [value.detach().clone() for value in example]
    with _state_kept():
        if form.startswith("decomposed"):
            result = decomp.decompose(source, DECOMPOSING)
        else:
            result = decomp.lower(source, to=_on(target, form), **options).result
    if not all(torch.equal(_bits(a), _bits(b.detach())) for a, b in zip(kept, example)):
        return "the example inputs were changed"
    after = _seen(source, loaded)
    for what, value in before.items():
        if value != after[what]:
            return f"the source was changed: {what}"
    if form == "module":
        how = dict(to=getattr(targets, target), dynamic_shapes=options["dynamic_shapes"])
        text = fault_on_meta(loaded, result, lambda module, inputs: decomp.lower(module, args=inputs, **how))
        if text:
            return text
    dynamic = form in EXPORTED and form != "narrow" and (loaded.guarded or _is_dynamic(loaded))
    return _runnable(result, dynamic or form in ("module without args", "graph", "decomposed graph"))


def _on(target: str, form: str) -> decomp.Target:
    found = getattr(targets, target)
    return found.with_dtypes(DTYPES).named(f"{target}32") if form == "narrow" else found


@contextlib.contextmanager
def _state_kept() -> Iterator[None]:
    """PyTorch's state is what it was, also after a refusal."""
    before = torch_state()
    try:
        yield
    finally:
        if changed(before):
            raise StateChanged(", ".join(changed(before)))


def _bits(value):
    return torch.nan_to_num(value, nan=7.5) if value.is_floating_point() else value


def _source(loaded: Loaded, form: str) -> Any:
    if form in ("exported", "decomposed"):
        return _exportable(loaded)
    if form == "exported graph":
        return _exportable(loaded).module()
    if form in ("graph", "graph with args", "decomposed graph"):
        try:
            return _traced(loaded)
        except Exception as error:
            raise TorchRefuses(_reason(error)) from error
    return loaded.module


def _traced(loaded: Loaded) -> fx.GraphModule:
    """The program by symbolic tracing, which runs what does not depend on the inputs: a write to a buffer, too."""
    sizes = [buffer.shape for buffer in loaded.module.buffers()]
    with restored(loaded.module):
        traced = fx.symbolic_trace(loaded.module)
        if sizes != [buffer.shape for buffer in loaded.module.buffers()]:
            raise TorchRefuses("the trace, and not the graph, changes the shape of a buffer")
    nodes = traced.graph.find_nodes(op="get_attr")
    if any(getattr(attribute(traced, node.target), "grad_fn", None) is not None for node in nodes):
        raise TorchRefuses("a constant of the graph was computed from parameters, and can be differentiated once")
    return traced


def _exportable(loaded: Loaded) -> torch.export.ExportedProgram:
    """The exported program, made once."""
    if not hasattr(loaded, "exported"):
        try:
            with restored(loaded.module):
                loaded.exported = torch.export.export(
                    loaded.module, loaded.example(), strict=False, dynamic_shapes=loaded.dynamic_shapes()
                )
        except Exception as error:
            loaded.exported = error
    if isinstance(loaded.exported, Exception):
        raise TorchRefuses(_reason(loaded.exported))
    return loaded.exported


def _is_dynamic(loaded: Loaded) -> bool:
    """Whether export kept a size that was asked to be dynamic."""
    return bool(loaded.program.dynamic and getattr(loaded.exported, "range_constraints", None))


def _seen(source: Any, loaded: Loaded) -> dict[str, Any]:
    """The behaviour that lowering must not change."""
    state = {name: str(value.tolist()) for name, value in loaded.module.state_dict().items()}
    seen = {"state": state, "training": loaded.module.training}
    graph = getattr(source, "graph", None)
    if graph is not None:
        seen["graph"] = str(graph)
        mode = detect_fake_mode([node.meta.get("val") for node in graph.nodes])
        if mode is not None and mode.shape_env is not None:
            seen["guards"] = [str(guard.expr) for guard in mode.shape_env.guards]
    return seen


def _runnable(result: Any, dynamic: bool) -> Lowered:
    module = result.module() if isinstance(result, torch.export.ExportedProgram) else result
    return Lowered(module, module, dynamic)


def _compiled(loaded: Loaded, form: str, target: str) -> Lowered:
    torch._dynamo.reset()
    compiler = "inductor" if form == "inductor" else "eager"
    backend = decomp.backend(to=getattr(targets, target), compiler=compiler)
    return Lowered(torch.compile(loaded.module, backend=backend, dynamic=_dynamic(loaded)), loaded.module, True)


def _dynamic(loaded: Loaded) -> bool | None:
    return True if loaded.program.dynamic and loaded.program.seed % 2 else None


def _torch_too(loaded: Loaded, form: str, cases) -> bool:
    """Whether PyTorch's own capture of the program differs, or raises, as well, in one of these runs in a row."""
    try:
        if form in COMPILED or form == "module" and any(name in loaded.program.source for name in LOST_BY_EXPORT):
            # Inductor has faults of its own, which AOTAutograd alone does not show.
            backends = ("aot_eager", "inductor") if form == "inductor" else ("aot_eager",)
            return any(_compiles_otherwise(loaded, cases, backend) for backend in backends)
        call = state = _exportable(loaded).module() if form in EXPORTED else _traced(loaded)
        # A symbolic trace holds what it computed of buffers as a constant, which keeps the history of writes to it.
        return _differs(loaded, call, state, cases[-1:] if form in EXPORTED else cases)
    except Exception:
        return True


def _compiles_otherwise(loaded: Loaded, cases, backend: str) -> bool:
    torch._dynamo.reset()
    call = torch.compile(loaded.module, backend=backend, dynamic=_dynamic(loaded))
    return _differs(loaded, call, loaded.module, cases, shared=True)


def _differs(loaded: Loaded, call: Callable[..., Any], state: torch.nn.Module, cases, shared: bool = False) -> bool:
    found = any(
        difference(
            loaded.eager(*case),
            loaded.run(call, state, *case),
            lambda: loaded.run(loaded.module, loaded.module, *case),
            shared=shared,
        )
        for case in cases
    )
    if found or ".data" not in loaded.program.source:
        return found
    return any(
        difference(
            loaded.as_saved(*case), loaded.as_saved(*case, call, state), lambda: loaded.as_saved(*case), shared=shared
        )
        for case in cases
    )
