"""Expansions: the graph that a rule records when run on proxies for one signature, verified against the metadata of the
op's result."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import dataclass, field, replace
import inspect
import re
from typing import Any, NoReturn

import torch
from torch import fx

from decomp.derive.proxies import RuleTracer, fakes_of, run_on_proxies
from decomp.errors import MetadataMissing, ReasonMissing, RuleError, first_line
from decomp.graphs.template import InnerCall
from decomp.graphs.tracing import Leaked, Tape, UnknownSize
from decomp.ir.arguments import substituted
from decomp.ir.binding import Bound
from decomp.ir.call import NUMBER, kind_of, metadata
from decomp.ir.effects import Effects, EffectTable
from decomp.ir.spellings import NUMBER_AS_TENSOR
from decomp.metadata.fakes import Fakes, require_grad_like
from decomp.metadata.open_kernels import OpenKernels
from decomp.metadata.shape_env import NewGuard, refusing_guards, sizes_never_one
from decomp.metadata.strides import dense_order, inverse, same_strides
from decomp.metadata.symbolic_sizes import NUMBERS, SYMBOLIC, same_shape
from decomp.rules.declining import Declined
from decomp.rules.restrictions import LEAKED, refusal_of_call
from decomp.rules.rule_lines import line_of
from decomp.rules.rules import Rule
from decomp.rules.torch_tables import trace_entry
from decomp.torch_internals.fakes import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from decomp.torch_internals.modes import COMPOSITE_IMPLICIT, DisableTorchFunction
from decomp.torch_internals.pytree import tensors_in, tree_map
from decomp.torch_internals.transforms import is_of_transform
from decomp.torch_internals.versions import OpAbsent

_ADDS_GUARD = "adds a guard on dynamic sizes"
_FIX_SIZES = "compute from x.shape instead of numbers, or call decomp.decline(...) first; or lower with fixed sizes"
COMPOSITE = "PyTorch's composite kernel"
NO_COMPOSITE = Declined("PyTorch has no composite kernel for it")


@dataclass(frozen=True, eq=False)
class Expansion:
    """A small graph that computes one op for one signature: a placeholder for each distinct node among the call's
    arguments, calls, and an output of the structure of the op's result. It has metadata if the program has."""

    rule: Rule | Composite
    graph: fx.Graph
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    calls: tuple[InnerCall, ...] = ()
    """For a flat expansion that is expanded further: the calls of which it consists."""
    at_other_sizes: bool = False
    """Whether all of its calls have run at sizes other than those of the example."""

    def copied(self, graph: fx.Graph, value_of: Callable[[fx.Node], Any]) -> Expansion:
        """The same with a copy of its graph; `value_of` maps its nodes to those of the copy."""
        return replace(self, graph=graph, calls=tuple(each.through(value_of) for each in self.calls))


@dataclass(frozen=True, eq=False)
class Composite:
    """PyTorch's own composite kernel, for an op without an applicable rule, recorded op by op."""

    name: str

    @property
    def location(self) -> str:
        return COMPOSITE

    def __str__(self) -> str:
        return f"{self.name} ({self.location})"


@dataclass(frozen=True, slots=True)
class Site:
    """The call for which an expansion is recorded, and the mode and dialect."""

    node: fx.Node
    tensor_args: list[fx.Node]
    """The distinct nodes among its arguments."""
    mode: FakeTensorMode | None
    """The fake mode to run in; None if metadata is missing."""
    dialect: str
    """"aten" or "torch"."""
    read: tuple[int, ...] | None = None
    """The indices of the results that are used; None if all may be."""
    fakes: Fakes | None = None
    """Creates fake tensors of this mode, if all sizes are static."""


def expand(rule: Rule, bound: Bound, site: Site) -> Expansion | Declined:
    """Run `rule` on proxies for the bound call of a node. Returns the expansion, or the reason why the rule declines.
    Raises `RuleError` if the rule does something that rules must not do."""
    accepted = rule.accept(bound)
    # Before the layout: whether the rule serves calls of this form at all is the more useful reason.
    if isinstance(accepted, Declined):
        return accepted
    layout = _other_layout(site)
    if layout is not None:
        return Declined(f"an operand or result has the layout {layout}, and rules compute with strided tensors")
    args, kwargs = accepted
    # `torch.div(7, 2)` returns a tensor, and a rule that calls methods of its operand would meet an int.
    function = _of_tensor(rule.function, site.node) if _is_of_numbers(bound) else rule.on_accepted
    try:
        return _record(rule, function, args, kwargs, site)
    except RuleError as error:
        first = error
    # PyTorch takes indices and 0-d tensors on the CPU beside tensors on another device, and a rule may reshape or stack
    # them, after which it does not.
    device = _other_device(site)
    if device is not None:
        # Only after a failure: moving is a copy on a real device, and most rules take such operands as PyTorch does. If
        # it fails too, the first error is the one about the rule.
        with contextlib.suppress(RuleError):
            return _record(rule, _on_device(function, device), args, kwargs, site)
    # A dynamic size that is 1 in the example may have been specialised, and the rule failed only for that. If it fails
    # again, the first error is the clearer one.
    # PyTorch specialises sizes 0 and 1 of examples while it traces, also where the program leaves them open:
    # https://github.com/pytorch/pytorch/pull/186485.
    if site.mode is not None and site.mode.shape_env is not None:
        with contextlib.suppress(RuleError), sizes_never_one(site.mode):
            return _record(rule, function, args, kwargs, site)
    raise first


def _other_layout(site: Site) -> torch.layout | None:
    """The layout of an operand or result that has no strides, such as a sparse one."""
    tensors = tensors_in([metadata(site.node), *map(metadata, site.tensor_args)])
    return next((value.layout for value in tensors if value.layout is not torch.strided), None)


def _other_device(site: Site) -> torch.device | None:
    """The device of the result, if an operand is on another one."""
    result = next(iter(tensors_in(metadata(site.node))), None)
    operands = [value.device for value in map(metadata, site.tensor_args) if isinstance(value, torch.Tensor)]
    elsewhere = result is not None and any(device != result.device for device in operands)
    return result.device if elsewhere and result is not None else None


def _on_device(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """A rule whose operands are moved to one device first."""

    def moved(value: Any) -> Any:
        # A rule may pass on its operand as it is: `to` on the same device would add a call for nothing.
        return value.to(device) if isinstance(value, fx.Proxy) and value.device != device else value

    return lambda *args, **kwargs: function(*tree_map(moved, args), **tree_map(moved, kwargs))


def _is_of_numbers(bound: Bound) -> bool:
    """Whether an op on tensors only gets numbers, as in `torch.div(7, 2)`, which returns a tensor nevertheless."""
    operands = [bound.arguments.get(name) for name in ("self", "other")]
    return bound.op.short in NUMBER_AS_TENSOR and all(map(_is_number, operands))


def _is_number(value: Any) -> bool:
    return isinstance(metadata(value) if isinstance(value, fx.Node) else value, NUMBERS)


def _of_tensor(function: Callable[..., Any], node: fx.Node) -> Callable[..., Any]:
    """A rule whose first operand is wrapped in a tensor, as PyTorch does with a number."""
    device = getattr(metadata(node), "device", None)
    return lambda number, *args, **kwargs: function(torch.full((), number, device=device), *args, **kwargs)


def expand_composite(site: Site) -> Expansion | Declined:
    """Record what PyTorch itself runs for a node: its composite kernel, or, for a Python function, ATen ops."""
    node, target = site.node, site.node.target
    if site.mode is None:
        reason = "PyTorch's own kernel cannot be recorded without metadata; pass args="
        return Declined(reason, needs_metadata=True)
    # Sparse kernels compute with indices and values, which no dense target has.
    if _other_layout(site) is not None:
        return NO_COMPOSITE
    function: Callable[..., Any]
    if isinstance(target, torch._ops.OpOverload):
        if not target.has_kernel_for_dispatch_key(COMPOSITE_IMPLICIT):
            return NO_COMPOSITE
        function = _on_fakes(target.decompose)
    elif node.op == "call_method":
        function = _method(str(target))
    elif is_of_transform(target):
        return NO_COMPOSITE  # running it would enter a level of torch.func and never leave it
    else:
        function = target
    composite = Composite(str(target) if isinstance(target, str) else getattr(target, "__name__", str(target)))
    try:
        # Kernels are recorded as ATen even for the torch dialect, and through the dispatcher: recipes only cover calls
        # that a rule may make.
        site = replace(site, dialect="aten", fakes=None)
        recorded = _record(composite, function, list(node.args), dict(node.kwargs), site)
    except RuleError as error:
        return Declined(error.problem)
    # A kernel that calls its own op decomposes nothing, and would recurse without end.
    if isinstance(recorded, Expansion) and any(call.target is target for call in recorded.graph.nodes):
        return NO_COMPOSITE
    return recorded


def _on_fakes(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel called on proxies would be recorded as a call of the op; on their fake tensors it runs."""

    def on_fakes(*args: Any, **kwargs: Any) -> Any:
        # Under a function mode, torch 2.13 dispatches the kernel to the mode again, as a call of the op.
        with DisableTorchFunction():
            return kernel(*fakes_of(args), **fakes_of(kwargs))

    return on_fakes


def _method(name: str) -> Callable[..., Any]:
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def _record(
    rule: Rule | Composite,
    function: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    site: Site,
) -> Expansion | Declined:
    tape = Tape(fx.Graph(), site.mode, site.fakes)
    tracer = RuleTracer(tape, rule, site.dialect)
    values = {given: _input(tracer, given, i) for i, given in enumerate(site.tensor_args)}
    args, kwargs = substituted((args, kwargs), values.__getitem__)
    # Whatever a rule raises becomes a reason or a `RuleError`: it is the user's code, run in the middle of ours.
    try:
        # A guard that a rule adds would hold for the whole program, and change what a later rule sees.
        with refusing_guards(site.mode) as asked:
            result = _run(rule, function, tracer, args, kwargs)
            if isinstance(result, Declined):
                # The guards that it asked for before it declined do not matter.
                return result
            result = _check_result(tracer, result, metadata(site.node), site.read)
            tape.graph.output(tape.arguments(result))
        if asked:
            return declined_for_sizes(rule, f"{_ADDS_GUARD}: {asked[0]}")
    except MetadataMissing as missing:
        # A new one, which does not keep frames of the rule alive.
        error = MetadataMissing(rule, missing.problem, missing.remedy)
        return Declined(f"{missing.problem}; pass args=", needs_metadata=True, error=error)
    except RuleError as error:
        raise error.at(line=line_of(function, error)) from error.__cause__
    except UnknownSize as unknown:
        return Declined(f"needs {unknown}")
    # Not applicable rather than wrong: a rule for a newer PyTorch may be registered beside one for this version.
    except OpAbsent as absent:
        return Declined(f"calls an op that this PyTorch lacks: {absent}", applicable=False)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        return Declined(f"reads the data of a tensor, which is only known at run time: {first_line(error)}")
    except NewGuard as guard:
        return declined_for_sizes(rule, f"{_ADDS_GUARD}: {guard}")
    # `exit()` in a rule is its error. KeyboardInterrupt is the user's, and passes.
    except (Exception, SystemExit) as error:
        raise RuleError(rule, *_what_failed(error), line=line_of(function, error)) from error
    finally:
        # A rule may keep a proxy in a global; used in a later run, it would append to this graph.
        tracer.closed = True
    drop_dead(tape.graph)
    # Constants that only dead calls read would become attributes of the lowered program.
    used = {str(n.target) for n in tape.graph.nodes if n.op == "get_attr"}
    constants = {k: v for k, v in tape.constants.items() if k in used}
    ran = site.dialect == "aten" and isinstance(tape.kernels, OpenKernels) and not tape.left_to_pytorch
    return Expansion(rule, tape.graph, constants, at_other_sizes=ran)


def _run(
    rule: Rule | Composite, function: Callable[..., Any], tracer: RuleTracer, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """The results of a rule, with tensors as nodes of the tape; an entry of a decomposition table is traced first."""
    if isinstance(rule, Rule) and rule.overload is not None:
        if tracer.tape.mode is None:
            raise MetadataMissing(
                rule, "an entry of a decomposition table is traced, which requires shapes", _PASS_ARGS
            )
        # Entries of decomposition tables write in place and call private API, which proxies refuse: PyTorch's own
        # tracer and `functionalize` make a graph of them first.
        found = trace_entry(rule.function, fakes_of(args), fakes_of(kwargs), tracer.tape.mode)
        if isinstance(found, Declined):
            return found
        function, args, kwargs = found
    return run_on_proxies(function, tracer, args, kwargs)


def declined_for_sizes(rule: Rule | Composite, reason: str) -> Declined:
    """A rule that would be applicable if the sizes were known."""
    return Declined(reason, error=RuleError(rule, reason, _FIX_SIZES))


def _what_failed(error: BaseException) -> tuple[str, str]:
    """The problem and remedy for an exception raised in a rule."""
    if isinstance(error, Leaked):
        return LEAKED
    if isinstance(error, ReasonMissing):
        return error.problem, error.remedy
    # C methods check the type of `self` before `__torch_function__` is asked, so that a proxy never sees the call;
    # CPython's message is the only trace of it.
    unbound = _UNBOUND.match(str(error)) if isinstance(error, TypeError) else None
    if unbound is not None:
        name = unbound[1]
        said = refusal_of_call(name, {})
        return said or (f"calls torch.Tensor.{name} unbound", f"call x.{name}(...)")
    text = str(error).strip().splitlines()
    return f"failed with {type(error).__name__}: {text[0] if text else ''}", _TRY


_PASS_ARGS = "pass example inputs: args=(...)"
_TRY = "run the rule on tensors of these shapes to see where"
_UNBOUND = re.compile(r"descriptor '(\w+)' for 'torch._C.TensorBase'")


def _input(tracer: RuleTracer, given: fx.Node, index: int) -> Any:
    """The value that a rule gets for a node among the arguments: a proxy, or the number itself if it is known."""
    value, mode = metadata(given), tracer.tape.mode
    if mode is None or value is None:
        node = tracer.tape.placeholder(f"arg{index}", None)
        if kind_of(given) == "host":
            node.meta[NUMBER] = True
            tracer.numbers.add(node)
        return tracer.proxy(node)
    fake = value if isinstance(value, SYMBOLIC) else tracer.tape.fake_like(value)
    if isinstance(tracer.rule, Composite) and isinstance(value, torch.Tensor):
        require_grad_like(fake, value)  # PyTorch's kernels branch on it
    # A placeholder for each distinct node: an operand that is given twice must be one value, as for `x - x`.
    node = tracer.tape.placeholder(f"arg{index}", fake)
    if isinstance(value, (tuple, list)):
        return tracer.wrap(type(value)(node.meta["val"]) if type(value) in (tuple, list) else tuple(node.meta["val"]))
    # A size that is known is handed on as a number: rules compute shapes with it in plain Python.
    return tracer.proxy(node) if isinstance(value, torch.Tensor) else value


def _check_result(tracer: RuleTracer, result: Any, expected: Any, read: tuple[int, ...] | None = None) -> Any:
    """The result of a rule, compared with the metadata of the op's result and copied to its strides if necessary. Of
    several results only those that are `read` are kept, so that the others are not computed; the metadata of unread
    ones may be wrong (`_embedding_bag`, torch 2.13)."""
    if expected is None or tracer.tape.mode is None:
        return _check_without_metadata(tracer, result)
    if isinstance(expected, (tuple, list)):
        result = tracer.tape.items(result) if isinstance(result, fx.Node) else result
        if not isinstance(result, (tuple, list)) or len(result) != len(expected):
            got = len(result) if isinstance(result, (tuple, list)) else "one value"
            tracer.fail(f"returned {got}, the op returns {len(expected)} values", "return a tuple in the op's order")
        matters = [read is None or i in read for i in range(len(expected))]
        # None in place of an unread result: dead-code elimination then drops what only it needs.
        return tuple(_check_result(tracer, r, e) if m else None for r, e, m in zip(result, expected, matters))
    if not isinstance(expected, torch.Tensor):
        # A number, or None for a gradient that was not asked for.
        return result
    if not isinstance(result, fx.Node):
        _refuse_result(tracer, result)
    value = result.meta.get("val")
    # Nothing is known of what the rule returned, as one of its calls had no metadata.
    if not isinstance(value, torch.Tensor):
        return result
    for what, got, wanted, same in (
        ("shape", value.shape, expected.shape, same_shape(expected.shape, value.shape)),
        ("dtype", value.dtype, expected.dtype, value.dtype == expected.dtype),
        ("device", value.device, expected.device, value.device == expected.device),
    ):
        if not same:
            tracer.fail(
                f"returned {what} {_describe_metadata(got)}, the op returns {_describe_metadata(wanted)}",
                f"return the op's own {what}",
            )
    return _with_strides(tracer, result, value, expected)


def _check_without_metadata(tracer: RuleTracer, result: Any) -> Any:
    """The check without metadata: for an op that returns one tensor the rule must return one."""
    packet = tracer.rule.op.packet if isinstance(tracer.rule, Rule) else None
    if packet is None or isinstance(result, fx.Node):
        return result
    # All of them, as `max(x)` returns one tensor and `max(x, dim)` two. Those without a tensor are TorchScript's own.
    schemas = [getattr(packet, name)._schema for name in packet.overloads()]
    on_tensors = [each for each in schemas if any(str(given.type) == "Tensor" for given in each.arguments)]
    if all([str(result.type) for result in each.returns] == ["Tensor"] for each in on_tensors or schemas):
        _refuse_result(tracer, result)
    return result


def _refuse_result(tracer: RuleTracer, result: Any) -> NoReturn:
    """Raise for a rule that returned something else than the tensor of its op."""
    shown, remedy = repr(result), "return a tensor"
    if isinstance(result, (bool, int, float, complex)):
        remedy = "return torch.full(shape, value, ...)"
    elif isinstance(result, (tuple, list)):
        remedy = "return the tensor alone"
    elif result is None:
        remedy = 'return the tensor; for calls that the rule does not take, return decomp.decline("why")'
    elif inspect.isgenerator(result) or inspect.isasyncgen(result):
        shown, remedy = "a generator", "return the tensor, without yield"
    elif inspect.iscoroutine(result):
        result.close()  # Python warns of one that nobody awaits
        shown, remedy = "a coroutine", "write the rule with def, not async def"
    tracer.fail(f"returned {shown}, the op returns a tensor", remedy)


def _describe_metadata(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _with_strides(tracer: RuleTracer, node: fx.Node, value: torch.Tensor, expected: torch.Tensor) -> fx.Node:
    """Views that follow were recorded for the strides of the op's result: copy to these if the rule's differ."""
    if same_strides(value, expected):
        return node
    # A result with gaps cannot be copied to its strides by ops: stride propagation re-traces its users instead.
    order = dense_order(expected)
    if order is None:
        return node
    result = run_on_proxies(_copy_in_order, tracer, [tracer.proxy(node), order], {})
    assert isinstance(result, fx.Node)
    return result


def _copy_in_order(x: torch.Tensor, order: list[int]) -> torch.Tensor:
    """A copy of `x` whose dimensions are laid out in `order`, the slowest first."""
    if order == sorted(order):
        return x.clone(memory_format=torch.contiguous_format)
    # `clone(memory_format=...)` only knows channels_last beside contiguous, and not every order.
    return x.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse(order))


def _matters(effects: Effects) -> bool:
    return bool(effects) or not effects.known


# Not `Graph.eliminate_dead_code`: `Node.is_impure` takes every
# call of a method for pure, also `x.add_(1)` (torch 2.13).
def drop_dead(graph: fx.Graph) -> None:
    """Erase unused nodes without effects. Inputs stay."""
    effects = EffectTable()
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output") and not _matters(effects.of(node)):
            graph.erase_node(node)
