"""Runs programs without side effects, on copies of inputs and state, and collects all that a caller can observe:
results, inputs and buffers that were written to, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
import contextlib
import copy
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from decomp.capture.subclasses import unwrap_program, unwrap_subclasses
from decomp.errors import ArgumentError
from decomp.functionalize.writes import can_require_grad
from decomp.graphs.stateless import call_with_state
from decomp.ir.aliases import attribute
from decomp.ir.call import call_target, graphs_of
from decomp.ir.effects import EffectTable
from decomp.metadata.meta_values import is_abstract, known_value, on_host
from decomp.torch_internals import pytree
from decomp.torch_internals.modes import TorchDispatchMode
from decomp.validation.closeness import in_float64, widened

AFTERWARDS = " afterwards"
"""How the name of the value of an input or buffer that a run has changed ends."""


@dataclass(frozen=True)
class ObservedRun:
    """Everything that a caller can observe of one run: tensors by name."""

    values: dict[str, torch.Tensor]
    """Results, then inputs and state that were written to."""
    gradients: dict[str, torch.Tensor]
    """Gradients of a randomly weighted sum of the results, for each parameter and input that requires one."""
    tracked: frozenset[str] = frozenset()
    """The names of the values that require a gradient, if the run is one with gradients."""


@contextlib.contextmanager
def forked_random_state(seed: int = 0) -> Iterator[None]:
    """Context manager: seeds the random generator, and restores its state at the end."""
    # `devices=[]`: by default PyTorch also saves the state of
    # every CUDA device, which initialises CUDA in this process.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def callable_of(program: Any) -> nn.Module:
    """A program as a module that takes plain tensors. Raises `ArgumentError` if it cannot be run."""
    if isinstance(program, ExportedProgram):
        return unwrap_program(program).module(check_guards=False)
    if isinstance(program, nn.Module):
        return unwrap_subclasses(program)
    raise ArgumentError(f"{type(program).__name__} cannot be run; pass a module or an ExportedProgram")


def without_numbers(program: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Which of a program's tensors have no values, as a phrase; None if all have."""
    module = callable_of(program)
    state = dict((*module.named_parameters(), *module.named_buffers()))
    inputs = {f"input{path}": leaf for path, leaf in _named((tuple(args), dict(kwargs)))}
    tensors = {name: leaf for name, leaf in {**state, **inputs}.items() if isinstance(leaf, torch.Tensor)}
    missing = [name for name, tensor in tensors.items() if is_abstract(tensor)]
    if not missing:
        return None
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"there are no values for {missing[0]}{others} (meta or fake tensors)"


def run(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    *,
    gradients: bool,
    wide: bool = False,
    plain: bool = False,
    moved: Callable[[Any], Any] | None = None,
    mode: TorchDispatchMode | None = None,
    drawn: Container[str] = (),
) -> ObservedRun:
    """Run a module on copies. `wide`: in float64, including calls with an explicit dtype. `moved` changes inputs and
    state first. `mode`: a mode to run under. `plain`: without a mode. `drawn`: the results that depend on random
    numbers, which the gradients are then not of."""
    given = copies_of((tuple(args), dict(kwargs or {})))
    state = copies_of(dict((*module.named_parameters(), *module.named_buffers())))
    if moved is not None:
        given, state = moved(given), moved(state)
    if wide:
        given, state = widened(given), widened(state)
    before = {name: t for name, t in _named((given, state)) if isinstance(t, torch.Tensor)}
    # Compared by value: a version counter misses writes through
    # `.data` and NumPy, and counts those that change nothing.
    kept = {name: t.clone() for name, t in before.items()}
    wanted = _requiring_gradients(given, state) if gradients else {}
    with contextlib.ExitStack() as stack:
        if wide and not plain:
            stack.enter_context(_Wide())
        if mode is not None and not plain:
            stack.enter_context(mode)
        # The same seed for each run, so that programs that draw the same numbers can be compared.
        stack.enter_context(forked_random_state())
        # Without wanted gradients they are off, as a program may write in place to leaves, which autograd refuses.
        stack.enter_context(torch.set_grad_enabled(bool(wanted)))
        # Parameters are exchanged and not copied into: the module
        # belongs to the user, and stays as it is if the run fails.
        results = call_with_state(module, state, given[0], given[1])
    named = {f"result{name}": t for name, t in _named(results) if isinstance(t, torch.Tensor)}
    changed = {f"{name}{AFTERWARDS}": t for name, t in before.items() if not _equal(t, kept[name])}
    tracked = frozenset(name for name, value in {**named, **changed}.items() if _is_tracked(value))
    same = {name: value for name, value in named.items() if name not in drawn}
    return ObservedRun({**_detached(named), **_detached(changed)}, _gradients(same, wanted), tracked)


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        yield pytree.keystr(path), leaf


def copies_of(value: Any) -> Any:
    """Copies of all tensors, which share memory, or are the same, exactly where the originals do."""
    memo: dict[int, Any] = {}

    def copied_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in memo:
            memo[id(leaf)] = _copied(leaf, memo)
        return memo[id(leaf)]

    return pytree.tree_map(copied_leaf, value)


def _copied(leaf: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    # Sparse tensors and subclasses have no storage of their own to share.
    if leaf.layout is not torch.strided or type(leaf) not in (torch.Tensor, nn.Parameter, nn.Buffer):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    storage = leaf.untyped_storage()
    # Two storage objects can refer to the same memory (`from_blob`,
    # `share_memory_`); those without memory all have address 0.
    key = storage.data_ptr() or id(storage)
    if key not in memo:
        memo[key] = storage.clone()
    made = torch.empty((0,), dtype=leaf.dtype, device=leaf.device)
    made.set_(memo[key], leaf.storage_offset(), leaf.shape, leaf.stride())
    return made.requires_grad_(leaf.requires_grad)


def _requiring_gradients(given: Any, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters and inputs that require a gradient, by name."""
    found = {f"parameter {name}": t for name, t in state.items() if t.requires_grad}
    found.update({f"input {n}": t for n, t in _named(given) if isinstance(t, torch.Tensor) and t.requires_grad})
    return found


def _gradients(results: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tracked = list(filter(_is_tracked, results.values()))
    if not tracked or not wanted:
        return {}
    # A plain sum would hide errors: the gradient of the sum of a softmax is 0 for all inputs.
    draw = torch.Generator().manual_seed(0)
    weights = [weights_for(t, draw) for t in tracked]
    leaves = {name: t for name, t in wanted.items() if t.requires_grad}
    found = torch.autograd.grad(tracked, list(leaves.values()), weights, allow_unused=True)
    return {name: t.detach() for name, t in zip(leaves, found) if t is not None}


def _is_tracked(value: torch.Tensor) -> bool:
    """Whether a value requires a gradient. Integers and bools that were compared in place with what requires one say
    that they do, and autograd fails on them."""
    return value.requires_grad and can_require_grad(value)


def named_as(source: nn.Module, found: ObservedRun, module: nn.Module) -> ObservedRun:
    """A run of a module with gradients under the names of the source: which of several names of a parameter comes first
    depends on the order of modules."""
    theirs, own = _names(module), _names(source)
    names = {name: [n for one in theirs.get(name, (name,)) for n in own.get(one, (one,))] for name in found.gradients}
    gradients = {n: found.gradients[name] for name, every in names.items() for n in every}
    return replace(found, gradients=gradients)


def _names(module: nn.Module) -> dict[str, list[str]]:
    """By name of a parameter's gradient, all names of the same parameter's gradient."""
    groups: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(f"parameter {name}")
    return {name: group for group in groups.values() for name in group}


def weights_for(result: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """The weights of a result in the sum whose gradients are compared."""
    return torch.randn(result.shape, generator=draw, dtype=torch.float64).to(result)


def _detached(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t.detach() for name, t in values.items()}


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


class _Wide(TorchDispatchMode):
    """A mode in which calls with an explicit narrower float dtype, or that turn integers into floats, use float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # `in_float64` may run a call twice and converts integers,
        # neither of which a call that writes to its operands allows.
        if func._schema.is_mutable:
            return func(*widened(args), **widened(kwargs or {}))
        return in_float64(lambda given: func(*given[0], **given[1]), (args, kwargs or {}))[0]


class Flushing(TorchDispatchMode):
    """A mode that flushes subnormal results to zero."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        # A view that was flushed would be a copy, and later writes to it would be lost.
        shares_memory = any(result.alias_info is not None for result in func._schema.returns)
        return results if shares_memory else flushed(results)


def flushed(value: Any) -> Any:
    """The same tensor with subnormal numbers replaced by zeros."""

    def flush(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        subnormal = leaf.detach().abs() < torch.finfo(leaf.dtype).tiny
        return leaf.detach().masked_fill(subnormal, 0.0).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(flush, value)


Visit = Callable[[fx.Node, Mapping[fx.Node, Any]], None]
"""Called before each call, with the values so far."""


def call_node(node: fx.Node, root: Any, args: Any, kwargs: Any) -> Any:
    """The value of one node for these arguments. `root` owns attributes; modules are run as copies. Calls with the meta
    device as an argument run on the CPU, so that their values are known."""
    if node.op == "get_attr":
        name = str(node.target)
        found = root[name] if isinstance(root, Mapping) else attribute(root, name)
        value = known_value(found) if isinstance(found, torch.Tensor) else None
        return found if value is None else value
    if node.op == "call_module":
        # A module may count its calls or update statistics, and these runs must have no side effects.
        return copy.deepcopy(root.get_submodule(str(node.target)))(*args, **kwargs)
    return call_target(node.target, *on_host(args, kwargs))


def run_graph(
    graph: fx.Graph,
    root: Any,
    inputs: Sequence[Any],
    visit: Visit | None = None,
    call: Callable[[fx.Node, Any, Any, Any], Any] = call_node,
) -> Any:
    """Run a graph call by call, without generating code. `root` owns its attributes. `visit(node, values)` is called
    before each call; `call` computes the value of a node."""
    values: dict[fx.Node, Any] = {}
    given = iter(inputs)
    # Values are dropped after their last use, as code generated
    # by torch.fx does: the memory is that of the program's run.
    left = {node: len(node.users) for node in graph.nodes}
    for node in graph.nodes:
        if node.op == "output":
            return fx.node.map_arg(node.args[0], values.__getitem__)
        if node.op == "placeholder":
            values[node] = next(given)
            continue
        if visit is not None and node.op.startswith("call"):
            visit(node, values)
        values[node] = call(node, root, *fx.node.map_arg((node.args, node.kwargs), values.__getitem__))
        for used in node.all_input_nodes:
            left[used] -= 1
            if not left[used]:
                del values[used]
    return None


@dataclass(frozen=True)
class Narrow:
    """The reference for a program in narrow dtypes: the source in these dtypes, whose error is that of the dtypes."""

    source: Any
    narrower: Mapping[torch.dtype, torch.dtype]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """A float result in the dtype that it was computed in; integers are compared unchanged."""
        exact = not (tensor.is_floating_point() or tensor.is_complex())
        return tensor if exact else tensor.to(self.narrower.get(tensor.dtype, tensor.dtype))


def nudged(seed: int, narrower: Mapping[torch.dtype, torch.dtype] = MappingProxyType({})) -> Any:
    """A function that changes each float to the next one, up or down at random, in the narrow dtype if it is wide."""

    def change(value: Any) -> Any:
        draw = torch.Generator().manual_seed(seed)

        def nudge(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                return leaf
            up = torch.randint(0, 2, leaf.shape, generator=draw, dtype=torch.bool).to(leaf.device)
            dtype = narrower.get(leaf.dtype, leaf.dtype)
            far = torch.where(up, float("inf"), -float("inf")).to(dtype)
            moved = torch.nextafter(leaf.detach().to(dtype), far).to(leaf.dtype)
            return torch.where(leaf.detach().isfinite(), moved, leaf.detach()).requires_grad_(leaf.requires_grad)

        return pytree.tree_map(nudge, value)

    return change


def branches(program: Any) -> bool:
    """Whether a program has control flow. (Under a mode, `torch.cond` fails, also in all later runs in the process;
    torch 2.13.)"""
    # See https://github.com/pytorch/pytorch/issues/163013: PyTorch compiles no higher-order op under a mode of the
    # user's.
    higher = torch._ops.HigherOrderOperator
    return any(isinstance(node.target, higher) for _, graph in graphs_of(program) for node in graph.nodes)


def is_random(program: Any) -> bool:
    """Whether a graph of a program draws random numbers; False for modules without a graph."""
    tables = ((EffectTable(root), graph) for root, graph in graphs_of(program))
    return any(table.of(node).most for table, graph in tables for node in graph.nodes)
