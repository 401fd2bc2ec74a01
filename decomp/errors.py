"""The errors of this package. Their text is part of the interface: it names what failed, where (rule, node, the user's
own source line) and the remedies, the easiest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
import difflib
import functools
import inspect
from pathlib import Path
import pickle
import sys
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, cast
import warnings

if TYPE_CHECKING:
    from torch import fx

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[str, Any], None]  # of the name of an argument and its value; raises `ArgumentError`


class DecompError(Exception):
    """Base of every error that this package raises on purpose. It can be pickled, as process pools do, and deep-copied:
    attributes that cannot be (nodes of graphs, local functions) are replaced by their text."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default Python pickles an exception as its class and `args`, and calls `__init__` with the message. A pool
        # of processes breaks on an exception that cannot be unpickled.
        carried = {name: _to_carried(value) for name, value in self.__dict__.items()}
        return _error_from, (type(self), tuple(map(_to_carried, self.args)), carried)

    def __copy__(self) -> DecompError:
        return _error_of(type(self), self.args, self.__dict__)


class ArgumentError(DecompError, TypeError, ValueError):
    """A public function was given an argument of the wrong kind."""


class PackageMissing(DecompError, ImportError):
    """An optional package is not installed; the message says what to install."""


class LockMismatch(DecompError):
    """A lowering gave another program than its lock has. `changes` says what differs, a line for each kind."""

    def __init__(self, path: Any, changes: Sequence[str]) -> None:
        self.path, self.changes = str(path), tuple(changes)
        shown = [f"  {change}" for change in self.changes]
        remedy = "  to do: restore what differs; or, if it is meant, delete the file and lower again"
        super().__init__("\n".join([f"the lowered program is not that of {self.path}", *shown, remedy]))


class NotPortable(DecompError, TypeError):
    """This object cannot be pickled; the message says why, and what to pickle instead."""


class InternalError(DecompError):
    """An unexpected failure inside the package. `stage` is the public function, `__cause__` the original exception."""

    def __init__(self, stage: str, error: BaseException) -> None:
        self.stage = stage
        lines = [f"{stage} failed: {type(error).__name__}: {first_line(error)}", *_indent_line(_place_of(error))]
        super().__init__("\n".join([*lines, f"  to do: {_what_to_do(error)}"]))


def boundary(
    stage: str, checks: Mapping[str, Check] = {}, listed: Sequence[inspect.Parameter] = ()
) -> Callable[[F], F]:
    """Decorator of public functions. Checks the arguments named in `checks`, and turns every unexpected exception into
    an `InternalError`, so that callers need to catch only `DecompError`. Interrupts and out-of-memory errors pass
    unchanged. `listed`: the keywords that the `**given` of the function takes, for its signature and for calls."""

    def decorated(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if not listed or p.kind is not p.VAR_KEYWORD]
        names = [p.name for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
        signature = signature.replace(parameters=[*own, *listed])

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                for name, value in (*zip(names, args), *kwargs.items()):
                    if listed and name not in signature.parameters:
                        raise ArgumentError(f"{stage}() got an unexpected keyword argument {name!r}")
                    if name in checks:
                        checks[name](name, value)
                return function(*args, **kwargs)
            except (DecompError, MemoryError, sys.modules["torch"].OutOfMemoryError):  # it is imported when a verb runs
                raise
            except Exception as error:
                if isinstance(error, TypeError) and error.__traceback__ and error.__traceback__.tb_next is None:
                    raise ArgumentError(str(error)) from error  # the arguments do not fit the signature
                raise InternalError(stage, error) from error

        vars(guarded)["__signature__"] = signature
        return cast(F, guarded)

    return decorated


def warn(text: str) -> None:
    """Warn at the innermost line that is neither of this project nor of PyTorch: the user's."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    frame = next((each for each in frames if _module_of(each).partition(".")[0] not in _INTERNAL), frames[0])
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    # Without the globals of the frame: with them, it asks the loader of a module that is run by `python -m` for the
    # source of `__main__`, which raises ImportError.
    warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, _module_of(frame), registry)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


_INTERNAL = {"decomp", "decomp_rules", "torch", "contextlib", "functools", ""}
"""Packages that are not the user's; the last is code that PyTorch generates."""


class UnknownOp(DecompError, LookupError):
    """A name in a registration, a target or a query is not that of a known op."""

    def __init__(self, spelling: object, known: Iterable[str] = ()) -> None:
        near = difflib.get_close_matches(str(spelling), list(known), n=3, cutoff=0.6)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        super().__init__(f"unknown op {spelling!r}{hint}")


class UnknownNode(DecompError, KeyError):
    """A query is about a node that the program does not have, or that is not of the kind asked for."""

    __str__ = Exception.__str__  # that of KeyError quotes the message


class ReasonMissing(DecompError, TypeError):
    """`decline` was called without a reason."""

    problem = "declines without a reason"
    remedy = 'say why in one clause: return decomp.decline("only float inputs")'

    def __init__(self, reason: object) -> None:
        super().__init__(f"decline({reason!r}) gives no reason\n  to do: {self.remedy}")


class CostError(DecompError, ValueError):
    """`cost=` returned a value that is not a valid cost."""


class AccuracyError(DecompError, ValueError):
    """The error of a program cannot be measured, or exceeds the limit."""


class BindingError(DecompError, TypeError):
    """The arguments of a call match no overload of its op."""


class ShapeUnknown(BindingError):
    """The meaning of a call depends on a tensor's shape, and the program has no metadata."""


class TargetError(DecompError, ValueError):
    """A target, or the file that describes it, is malformed."""


class UnknownOpInFile(UnknownOp, TargetError):
    """A file names an op that does not exist."""

    def __init__(self, text: str) -> None:
        TargetError.__init__(self, text)


class CaptureError(DecompError):
    """The model could not be captured as a graph, or the given graph is malformed."""


class InputMismatch(DecompError, ValueError):
    """A lowered module was called with an input whose shape, dtype, device, type or (for numbers) value differs from
    what it was lowered for."""

    def __init__(self, name: str, expected: Any, found: Any, what: str = "shape") -> None:
        named = f"these {what}" if what == "strides" else f"this {what}"
        remedy = "this shape, or with dynamic_shapes= if the size varies" if what == "shape" else named
        remedy = f"lower it with inputs of {remedy}" if expected != "a tensor" else "call it with a tensor here"
        super().__init__(
            f"input {name!r} has {what} {found}, the program was lowered for {expected}\n  to do: {remedy}"
        )


class AssumptionBroken(InputMismatch):
    """A lowered module was called with inputs that violate an assumption torch.export made: which branch the model
    takes, that sizes are equal, or the value of a size that was specialised to a number."""

    def __init__(self, assumption: str, found: Mapping[str, str]) -> None:
        inputs = " and ".join(f"input {name!r} has {what}" for name, what in found.items())
        DecompError.__init__(
            self,
            f"{inputs}, the program was lowered for {assumption}\n"
            "  to do: lower it with inputs like these, or export it so that it does not assume this about its sizes",
        )


class InputMissing(InputMismatch, TypeError):
    """A lowered module was called with missing, surplus or unknown inputs."""

    def __init__(
        self,
        missing: Sequence[str],
        names: Sequence[str],
        given: int = 0,
        unknown: Sequence[str] = (),
        twice: bool = False,
    ) -> None:
        lacks = f"lacks {', '.join(map(repr, missing))}" if missing else f"has {given} inputs"
        if unknown:
            lacks = f"gives {', '.join(map(repr, unknown))} {'twice' if twice else 'by name'}"
        takes = ", ".join(names) or "none"
        DecompError.__init__(self, f"the call {lacks}; the program takes {takes}\n  to do: call it with these inputs")


class GradientLost(InputMismatch):
    """A module that was lowered for inference was called with an input that requires a gradient."""

    def __init__(self, name: str) -> None:
        DecompError.__init__(
            self,
            f"input {name!r} requires a gradient, but the program was lowered for inference (training=False or "
            "freeze=True), without the ops that gradients need\n"
            "  to do: call it under torch.no_grad(), pass the input's detach(), or lower it without these options",
        )


class NotWritable(InputMismatch):
    """A lowered module that writes to one of its inputs was called with a tensor that cannot be written to."""

    def __init__(self, name: str, why: str, remedy: str) -> None:
        DecompError.__init__(
            self, f"input {name!r} {why}, and the program writes to it\n  to do: call it with a clone of it{remedy}"
        )


class InputsOverlap(InputMismatch):
    """A lowered module that writes to one of its inputs, or to its state, was called with tensors that share that
    memory. It reads all inputs before it writes, so the other tensor would be read too early."""

    def __init__(self, written: str, other: str) -> None:
        DecompError.__init__(
            self,
            f"{written} and {other} share memory, and the program writes to {written}: it would not see that write in "
            f"{other}\n  to do: call it with a clone of one of them, or with tensors that do not overlap",
        )


class OutOfRange(DecompError, ValueError):
    """A number in a tensor or a call does not fit the narrow dtype in which the program computes."""

    def __init__(self, who: str, number: Any, dtype: str) -> None:
        self.number, self.dtype = number, dtype
        super().__init__(
            f"{who} {number}, which does not fit {dtype} (narrow=True computes in {dtype})\n"
            f"  to do: keep to numbers within {dtype}, or lower to a target with wider dtypes, without narrow=True"
        )


class MutationError(DecompError):
    """A mutation cannot be tracked, and so cannot be functionalized."""


class RuleError(DecompError):
    """A rule did something that rules must not do. `rule`, `node` and `line` say which and where."""

    def __init__(
        self, rule: object, problem: str, remedy: str = "", node: fx.Node | None = None, line: str | None = None
    ) -> None:
        self.rule, self.problem, self.remedy, self.node, self.line = rule, problem, remedy, node, line
        super().__init__(_rule_message(rule, problem, remedy, node, line))

    def at(self, node: fx.Node | None = None, line: str | None = None) -> RuleError:
        """The same error with the node of the source program that was being lowered, and the line of the rule
        (`mine.py:15: u += 1`), where these are not set yet."""
        node, line = self.node or node, self.line or line
        if (node, line) == (self.node, self.line):
            return self
        return type(self)(self.rule, self.problem, self.remedy, node, line)


class MetadataMissing(RuleError):
    """A rule asked for a shape, dtype or device in a program that has none."""


class RuleCycle(RuleError):
    """Rules expand into each other in a cycle."""


def _rule_message(rule: object, problem: str, remedy: str, node: fx.Node | None, line: str | None) -> str:
    lines = [f"rule {rule}: {problem}"]
    if line is not None:
        lines.append(f"  at {line}")
    if node is not None:
        lines += [f"  while lowering {describe(node)}", *_indent_line(source_line(node))]
    if remedy:
        lines.append(f"  to do: {remedy}")
    return "\n".join(lines)


_ONLY_FOR_PRIMS = "is for targets that know prims."
"""The prefix of reasons that do not concern targets of ATen ops."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """One op that cannot be lowered: where it occurs, and what was tried."""

    op: str
    """The op, as `aten.sort`."""
    nodes: tuple[str, ...]
    """Names of the nodes of the source program that need it."""
    source: str | None
    """The user's own source line, where the program recorded it."""
    tried: tuple[tuple[str, str], ...]
    """Each rule that was tried, with the reason why it did not apply."""
    condition: str | None = None
    """Why the target rejects the call, if it accepts the op only under a condition."""
    limitation: str | None = None
    """Why the op cannot be decomposed in principle, if known."""
    needs_metadata: bool = False
    """Whether shapes and dtypes would allow a better answer."""

    def lines(self, other_targets: bool = True) -> list[str]:
        """This blocker as text, one fact a line. `other_targets`: also list the rules that are only for targets with
        prims."""
        shown = ", ".join(self.nodes[:3]) + (f" and {len(self.nodes) - 3} more" if len(self.nodes) > 3 else "")
        out = [f"{self.op} at {shown}"]
        if self.source:
            out.append(f"    {self.source}")
        if self.condition:
            out.append(f"    the target accepts it under a condition: {self.condition}")
        if self.limitation:
            out.append(f"    cannot be decomposed: {self.limitation}")
        reasons = [(rule, why) for rule, why in self.tried if other_targets or not why.startswith(_ONLY_FOR_PRIMS)]
        out += [f"    tried {rule}: {reason}" for rule, reason in reasons]
        if not self.tried and not self.limitation:
            out.append("    no rule is registered for it")
        return out


class NotLowered(DecompError):
    """Some ops of the program cannot be lowered to the target. `blockers` holds all of them; `suggestion()` returns
    what to add to the target; the message begins with it. It is searched for when the message is read."""

    def __init__(self, target: str, blockers: Sequence[Blocker], suggest: Callable[[], Any] | None = None) -> None:
        self.target, self.blockers, self._suggest = target, tuple(blockers), suggest
        super().__init__(*(() if suggest is not None else ("\n".join(_not_lowered_lines(target, self.blockers)),)))

    def suggestion(self) -> Any:
        """The smallest sufficient additions to the target, a `Suggestion`; None if shapes are missing, or if the error
        was unpickled in another process."""
        return None if self._suggest is None else self._suggest()

    def __str__(self) -> str:
        if not self.args:
            advice = self._advice()
            lines, other_dtypes = ([], []) if advice is None else (advice.lines(), advice.in_other_dtypes())
            self.args = ("\n".join(_not_lowered_lines(self.target, self.blockers, lines, other_dtypes)),)
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        str(self)
        self._suggest = None
        return super().__reduce__()

    def _advice(self) -> Any:
        try:
            return self.suggestion()
        except Exception:  # printing an error must not raise another
            return None


def _not_lowered_lines(
    target: str, blockers: Sequence[Blocker], advice: Sequence[str] = (), other_dtypes: Sequence[str] = ()
) -> list[str]:
    ops = len({blocker.op for blocker in blockers})
    lines = [f"{count_noun(ops, 'op')} cannot be lowered to {target}; the program is unchanged", ""]
    if advice:
        lines += [f"  {line}".rstrip() for line in advice] + [""]
    for blocker in blockers:
        lines += [f"  {line}" for line in blocker.lines(other_targets=not advice)] + [""]
    return lines + remedies(blockers, other_dtypes)


def remedies(blockers: Sequence[Blocker], other_dtypes: Sequence[str] = ()) -> list[str]:
    """Remedies for `blockers`, the easiest first, which are those by other dtypes."""
    names = ", ".join(sorted({blocker.op for blocker in blockers}))
    lines = [*other_dtypes]
    if any(blocker.needs_metadata for blocker in blockers):
        lines.append("pass example inputs (args=...), so that rules know shapes and dtypes")
    lines += [
        f"keep the ops that your backend can run: keep={{...}} (of {names})",
        "write a rule: @rules.register(op), then rules=rules | decomp_rules.RULES",
        "add the op to the target: target | {op}",
        "lower the rest, with this list in the report: partial=True",
    ]
    return ["  to do, the easiest first:"] + [f"    {i}. {line}" for i, line in enumerate(lines, 1)]


def describe(node: fx.Node) -> str:
    """A node as error messages name it: `node 'relu' (call_function torch.relu)`."""
    target = node.target if isinstance(node.target, str) else spell_target(node.target)
    return f"node {node.name!r} ({node.op} {target})"


def spell_target(target: Any) -> str:
    """A callable's name as users write it: `aten.relu.default`, `torch.relu`, `operator.add`."""
    if isinstance(target, str):
        return target
    if hasattr(target, "_schema") or hasattr(target, "_qualified_op_name"):
        return str(target)
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
    module = {"_operator": "operator", "torch._C._nn": "torch.nn.functional", "torch._VF": "torch"}.get(module, module)
    name = name.removeprefix("_VariableFunctionsClass.")
    return f"{module}.{name}" if module and module != "builtins" else str(name)


def count_noun(count: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def source_line(node: fx.Node) -> str | None:
    """The innermost line of the user's code that created this node, if the capture recorded it."""
    trace = node.meta.get("stack_trace") or getattr(node, "stack_trace", None)
    lines = [line.strip() for line in trace.splitlines() if line.strip()] if trace else []
    starts = [i for i, line in enumerate(lines) if line.startswith("File ")]
    outside = [i for i in starts if "/torch/" not in lines[i]]
    if not starts:
        return None
    last = (outside or starts)[-1]
    code = lines[last + 1] if last + 1 < len(lines) and last + 1 not in starts else ""
    return f"{lines[last]}: {code}" if code else lines[last]


def locate_function(function: Any) -> str:
    """`file.py:12` of a Python callable, or where it comes from if it has no source."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None:
        return "built in"
    return f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class name if the message is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def is_own_fault(error: BaseException) -> bool:
    """Whether an exception arose in this package and is not one of its own classes: neither a refusal, nor raised by
    PyTorch or a model. Such an error must not be taken for the reason why another way to capture is tried."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or type(error).__module__.startswith(f"{__package__}."):
        return False
    # A kernel has no frame of its own: what it raises comes from a line that passes on the arguments of a call.
    runs_a_call = "(*" in (frames[-1].line or "")
    return Path(frames[-1].filename).is_relative_to(_PACKAGE) and not runs_a_call


_PACKAGE = Path(__file__).parent


def _place_of(error: BaseException) -> str | None:
    """The innermost frame outside torch in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if "/torch/" not in frame.filename] or frames
    return f"at {outside[-1].filename.rsplit('/', 1)[-1]}:{outside[-1].lineno}, {outside[-1].name}" if outside else None


def _what_to_do(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "the program is nested too deeply for Python's stack: sys.setrecursionlimit(100_000), or flatten it"
    return (
        "look at the exception above this one; if the fault is not in a function of yours, report it with the program. "
        "Until then keep={op} leaves an op unchanged, and partial=True lowers the rest"
    )


def _indent_line(line: str | None) -> list[str]:
    return [f"  {line}"] if line else []


def pickle_or_explain(value: Any, what: str, remedy: str) -> bytes:
    """Pickle `value`. Raises `NotPortable`, which says why `what` cannot be pickled."""
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise NotPortable(f"{what} cannot be pickled: {first_line(error)}\n  to do: {remedy}") from error


class _Carried:
    """A pickled value, replaced by its text if it cannot be unpickled in the other process."""

    def __init__(self, data: bytes | None, text: str) -> None:
        self.data, self.text = data, text

    def value(self) -> Any:
        try:
            return self.text if self.data is None else pickle.loads(self.data)
        except Exception:
            return self.text


def _to_carried(value: Any) -> _Carried:
    from torch import fx

    if isinstance(value, fx.Node):
        return _Carried(None, describe(value))
    try:
        data = pickle.dumps(value)
        # Loaded once here: some values can be pickled and not unpickled, and the other process could not say why.
        pickle.loads(data)
        return _Carried(data, _text(value))
    except Exception:
        return _Carried(None, _text(value))


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"a {type(value).__name__}"


def _error_from(kind: type[DecompError], args: tuple[_Carried, ...], attributes: dict[str, _Carried]) -> DecompError:
    return _error_of(kind, tuple(arg.value() for arg in args), {name: a.value() for name, a in attributes.items()})


def _error_of(kind: type[DecompError], args: tuple[Any, ...], attributes: dict[str, Any]) -> DecompError:
    """An error whose message is already composed: bypasses `__init__`."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConversionError(DecompError):
    """A converter is absent or too old, crashes, refuses a lowered program, or makes one with other results of it."""


class LoadError(DecompError):
    """A backend cannot run a program. `problems` has one line per problem, `nodes` the first node that has it; nothing
    has run."""

    def __init__(
        self, backend: str, problems: Sequence[str], remedies: Sequence[str], nodes: Sequence[fx.Node] = ()
    ) -> None:
        self.backend, self.problems, self.nodes = backend, tuple(problems), tuple(nodes)
        lines = [f"{backend} cannot run this program; nothing has run", *(f"  {line}" for line in self.problems)]
        lines += ["  to do, the easiest first:", *(f"    {i}. {line}" for i, line in enumerate(remedies, 1))]
        super().__init__("\n".join(lines))


class PrimitiveError(DecompError):
    """A function of a backend failed while a program ran; `__cause__` is what it raised, `node` the call. `before`
    describes the first earlier result that differs from the program's metadata."""

    def __init__(self, backend: str, function: Any, node: fx.Node, cause: BaseException, before: str = "") -> None:
        self.backend, self.function, self.node = backend, function, node
        lines = [f"{backend}: {name_with_place(function)} failed: {type(cause).__name__}: {first_line(cause)}"]
        lines.append(f"  at {describe(node)}")
        line = source_line(node)
        super().__init__("\n".join([*lines, *([f"  {line}"] if line else []), *([f"  {before}"] if before else [])]))


class BackendError(DecompError):
    """An option of a backend (`from_torch`, `to_torch`, `jit`) failed, and `__cause__` is what it raised; or a result
    does not have the shape and dtype that it has in the program."""

    def __init__(self, backend: str, problem: str, remedy: str, node: fx.Node | None = None, before: str = "") -> None:
        self.backend, self.node = backend, node
        places = [describe(node), source_line(node), before] if node is not None else []
        where = [f"  at {places[0]}", *(f"  {line}" for line in places[1:] if line)] if places else []
        super().__init__("\n".join([f"{backend}: {problem}", *where, f"  to do: {remedy}"]))


def name_with_place(function: Any) -> str:
    return f"{getattr(function, '__name__', repr(function))} ({locate_function(function)})"


class WrongInputs(InputMismatch):
    """A loaded program was called with the wrong inputs: too few, too many, wrong sizes, not tensors."""

    def __init__(self, inputs: Sequence[str], cause: BaseException) -> None:
        DecompError.__init__(
            self,
            f"wrong inputs for this program: {first_line(cause).rstrip(': ')}\n"
            f"  it takes: {'; '.join(inputs) or 'nothing'}\n"
            "  to do: call it like the model that was lowered; lower it with dynamic_shapes= if sizes vary",
        )
