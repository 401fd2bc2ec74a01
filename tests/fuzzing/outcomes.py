"""The effects of running a program, and whether two runs agree. How far two may be apart is measured where they
differ: the program is run again with each of its operations perturbed in the last places."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import dataclass, replace
import itertools
import math
from typing import Any
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
    torch.complex64: 4e-5,
    torch.complex128: 1e-9,
}
"""The difference of values, relative to the largest of the tensor, beyond which their conditioning is measured."""
RUNS = 12
SPREAD = 16.0
"""A value may lie so many times the spread of perturbed runs away."""


@dataclass
class Outcome:
    """Everything that can be seen of one run."""

    structure: str
    outputs: list[Any]
    inputs: list[torch.Tensor]
    """Inputs after the run."""
    buffers: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    aliases: dict[int, tuple[int, Any]]
    """Which output shares the memory of which input, from where and with which strides."""
    whole: frozenset[int] = frozenset()
    """Those of them that are all of an input."""
    shared: frozenset[tuple[int, int]] = frozenset()
    """Which outputs have an element in common."""
    overflowed: bool = False
    """Whether a gradient, or an operand of it, was infinite or NaN, where that was checked."""

    def values(self) -> dict[str, Any]:
        """All values by name."""
        named = {f"output {i}": value for i, value in enumerate(self.outputs)}
        named |= {f"input {i} afterwards": value for i, value in enumerate(self.inputs)}
        named |= {f"buffer {name} afterwards": value for name, value in self.buffers.items()}
        return named | {f"gradient of {name}": value for name, value in self.gradients.items()}


@contextlib.contextmanager
def restored(*modules: torch.nn.Module | None):
    """Buffers and parameters of the modules are put back afterwards, without the history of what was written into them.
    (Constants of a lowered program may be expanded; nothing can write to them.)"""
    inside = [part for module in modules if module is not None for part in module.modules()]
    tables = [table for part in inside for table in (part._buffers, part._parameters)]
    held = [dict(table) for table in tables]
    state = [value for table in held for value in table.values() if value is not None and not _is_expanded(value)]
    kept = [value.detach().clone() for value in state]
    leaves = [value.is_leaf and value.requires_grad for value in state]
    try:
        yield
    finally:
        for table, tensors in zip(tables, held):
            table.update(tensors)  # a trace that fails leaves its proxies there
        with torch.no_grad():
            for value, old, is_leaf in zip(state, kept, leaves):
                if (value.shape, value.stride()) != (old.shape, old.stride()):
                    value.data = old.clone()
                value.detach().copy_(old)
                value.grad = None
                if not value.is_leaf and not value._is_view():  # a view has the history of what it is a view of
                    value.detach_()
                if is_leaf:  # a parameter may be detached in place
                    value.requires_grad_()
        fresh = {id(value): _without_history(value) for value in state}
        for table in tables:
            table.update({name: fresh[id(value)] for name, value in table.items() if id(value) in fresh})


def _without_history(value: torch.Tensor) -> torch.Tensor:
    """The tensor, or a new view of the same memory if it is a view that was written and whose base was detached since:
    autograd lets nobody write to such a view again."""
    base = value._base
    stale = base is not None and not value.is_leaf and base.is_leaf and not base.requires_grad
    if not stale or value.dtype != base.dtype:
        return value
    return base.as_strided(value.shape, value.stride(), value.storage_offset())


def _is_expanded(value: torch.Tensor) -> bool:
    return any(size > 1 and not stride for size, stride in zip(value.shape, value.stride()))


def outcome(run: Callable[..., Any], state: torch.nn.Module, given: Any, arguments: tuple[Any, ...]) -> Outcome:
    """Run it, and its backward pass if it has one. `state`: the module whose buffers and parameters it uses."""
    out = run(*arguments)
    flat, structure = tree_flatten(out)
    before = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in flat]
    afterwards = [value.detach().clone() for value in arguments]
    buffers = {name: value.detach().clone() for name, value in state.named_buffers()}
    sources = {id(value) for value in (*given.leaves, *state.parameters())}
    tracked = [_reaches(value, sources) if isinstance(value, torch.Tensor) else False for value in flat]
    seen = [value for value in (*flat, *arguments) if isinstance(value, torch.Tensor) and _reaches(value, sources)]
    tracked += [_reaches(value, sources) for value in arguments]
    gradients = _gradients(seen, state, given) if given.tracked else {}
    for value, known in zip((*before, *afterwards), tracked):
        if isinstance(value, torch.Tensor):
            value.was_tracked = known
    aliases = _aliases(flat, arguments)
    whole = frozenset(i for i, (place, _) in aliases.items() if _is_whole(flat[i], arguments[place]))
    return Outcome(str(structure), before, afterwards, buffers, gradients, aliases, whole, _shared(flat))


def _reaches(value: torch.Tensor, sources: set[int]) -> bool:
    """Whether the tensor requires a gradient, and a leaf gets one from it. A view that was made without gradients, of
    what requires them, says that it requires one; it has no history, and gives none to anybody."""
    if not value.requires_grad or id(value) in sources:
        return value.requires_grad
    seen, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            if id(getattr(node, "variable", None)) in sources:
                return True
            seen.add(node)
            if not any(_is_differentiable(made.dtype) for made in node._input_metadata):
                continue
            waiting += [before for before, _ in node.next_functions]
    return False


def _is_differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _gradients(seen, state, given):
    sources = {f"input {i}": leaf for i, leaf in enumerate(given.leaves)}
    sources |= {name: value for name, value in state.named_parameters() if value.requires_grad}
    if not seen or not sources:
        return {name: None for name in sources}
    loss = sum(
        (value * _weights(value)).real.sum().double()
        if value.is_complex()
        else (value * _weights(value)).sum(dtype=torch.float64)
        for value in seen
    )
    found = torch.autograd.grad(loss, list(sources.values()), allow_unused=True, materialize_grads=True)
    return {name: value.detach() for name, value in zip(sources, found)}


def _weights(value):
    steps = torch.arange(1, value.numel() + 1, dtype=torch.float64)
    return (steps * 0.7).cos().reshape(value.shape).to(value.dtype)


def _aliases(flat, arguments):
    """Without the conjugate, or real and imaginary parts, of complex inputs: these views no target has."""
    places = {}
    for i, value in enumerate(arguments):
        if value.numel():
            places.setdefault(value.untyped_storage().data_ptr(), i)
    return {
        i: (places[value.untyped_storage().data_ptr()], (value.storage_offset(), _strides(value)))
        for i, value in enumerate(flat)
        if isinstance(value, torch.Tensor)
        and value.numel()
        and value.untyped_storage().data_ptr() in places
        and not value.is_conj()
        and value.is_complex() == arguments[places[value.untyped_storage().data_ptr()]].is_complex()
    }


def _shared(flat):
    bytes_of = {i: _bytes(value) for i, value in enumerate(flat) if isinstance(value, torch.Tensor)}
    return frozenset(
        pair for pair in itertools.combinations(bytes_of, 2) if not bytes_of[pair[0]].isdisjoint(bytes_of[pair[1]])
    )


def _bytes(value):
    """The addresses of all bytes of a tensor."""
    starts = torch.arange(value.untyped_storage().nbytes() // value.itemsize).as_strided(*_layout(value)).flatten()
    first = value.untyped_storage().data_ptr()
    return {first + start * value.itemsize + i for start in starts.tolist() for i in range(value.itemsize)}


def _layout(value):
    return value.shape, value.stride(), value.storage_offset()


def _strides(value):
    """Strides that tell of elements: those of a dimension of size one may be anything."""
    return tuple(stride if size > 1 else 0 for size, stride in zip(value.shape, value.stride()))


def difference(
    wanted: Outcome,
    found: Outcome,
    again: Callable[[], Outcome] | None = None,
    views: bool = True,
    shared: bool = False,
) -> str:
    """The first difference, in words; empty if there is none. `again`: runs the program as PyTorch runs it. `views`:
    whether an output that is a view of part of an input has to be one; a target may have no such views. `shared`:
    whether outputs that have an element in common have to have one."""
    if wanted.structure != found.structure:
        return f"structure of the outputs: {found.structure}, not {wanted.structure}"
    gained = {i: place for i, place in found.aliases.items() if wanted.aliases.get(i) != place}
    lost = {i: place for i, place in wanted.aliases.items() if i not in found.aliases and (views or i in wanted.whole)}
    if gained or lost:
        return f"memory shared with inputs is {'gained' if gained else 'lost'}: {found.aliases}, not {wanted.aliases}"
    if shared and found.shared != wanted.shared:
        return f"outputs that share memory are {sorted(found.shared)}, not {sorted(wanted.shared)}"
    theirs, known = found.values(), None
    for name, value in wanted.values().items():
        if name not in theirs:
            continue
        problem = _unlike(value, theirs[name], None)
        if name.startswith("gradient") and problem and _as_good(value, theirs[name]):
            continue
        if problem.startswith("values") and again is not None:
            known = known or _perturbed(again)
            other = theirs[name]
            if name.startswith("gradient") and known and all(run.overflowed for run in known):
                other = torch.where(other.isfinite(), other, value)
            problem = _unlike(value, other, [run.values().get(name) for run in known])
        if problem:
            return f"{name}: {problem}"
    return ""


def _is_whole(output: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether an output is an input, and not a part of it or another view. The stride of a dimension of size one tells
    these apart: every second of one element is that element, by a view that a target may not have."""
    if given.is_complex():  # which is put together of its parts where it is not handed on as it came
        return False
    place = (output.shape, output.storage_offset(), output.stride())
    return place == (given.shape, given.storage_offset(), given.stride())


def _unlike(wanted: Any, found: Any, others: list[Any] | None) -> str:
    if not isinstance(wanted, torch.Tensor) or not isinstance(found, torch.Tensor):
        same = type(wanted) is type(found) and wanted == found
        return "" if same else f"{found!r}, not {wanted!r}"
    for what in ("dtype", "shape", "was_tracked"):
        one, two = getattr(wanted, what, None), getattr(found, what, None)
        if one != two:
            return f"{what.replace('was_tracked', 'requires_grad')} {two}, not {one}"
    wrong = _apart(wanted, found)
    if others is not None and wrong.any():
        wrong &= ~_uncertain(wanted, found, others)
    if not wrong.any():
        return ""
    where = tuple(wrong.nonzero()[0].tolist())
    return (
        f"values differ in {int(wrong.sum())} of {wrong.numel()} places; "
        f"at {where}: {found[where].item()!r}, not {wanted[where].item()!r}"
    )


def _is_finite(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or bool(value.isfinite().all())


def _wide(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value.resolve_conj()).double() if value.is_complex() else value.double()


def _as_good(wanted: Any, found: Any) -> bool:
    """Whether a gradient is as good as PyTorch's: off by roundings of weights of about one where all of it cancels, or
    not finite where PyTorch's is not (infinity times zero, by another way)."""
    if not isinstance(wanted, torch.Tensor) or not isinstance(found, torch.Tensor):
        return False
    if wanted.shape != found.shape or wanted.dtype not in TOLERANCE:
        return False
    a, b = _wide(wanted), _wide(found)
    near = (a - b).abs() <= 4 * torch.finfo(wanted.dtype).eps
    beyond = ~a.isfinite() & ~b.isfinite()
    return bool((near | (a == b) | beyond | ~_wrong(wanted, found)).all())


def _wrong(wanted: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    wrong = _apart(wanted, found)
    return wrong[..., None] if wanted.is_complex() else wrong


def _apart(wanted, found, spread=0.0):
    """Where values differ by more than is usual for their dtype."""
    a, b = _wide(wanted), _wide(found)
    finite = a[a.isfinite()].abs()
    limit = TOLERANCE.get(wanted.dtype, 0.0) * (float(finite.max()) if finite.numel() else 0.0) + spread
    wrong = ~(((a - b).abs() <= limit) | (a == b) | (a.isnan() & b.isnan()))
    if not wanted.is_complex():
        return wrong
    # PyTorch's sums multiply by alpha as a complex number, so that a part beside infinity or NaN becomes NaN.
    return wrong.any(-1) & ~(wanted.isnan() & ~found.isfinite())


def _uncertain(wanted, found, others):
    """Where the perturbed runs do not know the value either."""
    others = [value for value in others if isinstance(value, torch.Tensor) and value.shape == wanted.shape]
    if len(others) < RUNS:
        return torch.ones(wanted.shape, dtype=torch.bool)
    wide = torch.stack([_wide(value) for value in (wanted, *others)])
    spread = (wide - wide[0]).abs().amax(0)
    kinds = torch.where(wide.isnan(), 3.0, torch.where(wide.isinf(), wide.sign(), 0.5))
    unknown = (kinds != kinds[0]).any(0)
    discrete = not (wanted.is_floating_point() or wanted.is_complex())
    near = (wide[0] - _wide(found)).abs() <= SPREAD * spread
    unknown |= (spread > 0) if discrete else near
    return unknown.any(-1) if wanted.is_complex() else unknown


def _perturbed(again: Callable[[], Outcome]) -> list[Outcome]:
    runs = []
    for seed in range(RUNS):
        with contextlib.suppress(RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Perturbing(seed) as perturbing, _other_kernels(seed):
                run = again()
            runs.append(replace(run, overflowed=perturbing.overflowed))
    return runs


@contextlib.contextmanager
def _other_kernels(seed: int):
    """In one of the runs attention and GELU are PyTorch's other kernels: of rows with a NaN, and of infinity, the two
    say different things."""
    if seed == 0:
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield
    else:
        yield


class Perturbing(TorchDispatchMode):
    """Every fresh float result is off by a few units in the last place, and a zero is of either sign."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)
        self.overflowed = False
        """Whether a gradient, or what it was made of, was infinite or NaN: what comes of that by another way is
        promised at no level but exact."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(name in function._schema.name for name in (*CANCELLING, *TIED)):
            shaken = tree_map_only(torch.Tensor, lambda value: self._shaken(function, value), args[0])
            args = (shaken, *args[1:])  # statistics, which are others, are written to, whatever the schema says
            if any(name in function._schema.name for name in SORTING):
                args = (self._told_apart(args[0]), *args[1:])
        if function in ONE_MORE and float(torch.rand((), generator=self.random)) < 0.5:
            args = (args[0].contiguous(), *args[1:])  # of what lies apart and is infinite its kernels say other things
        result = function(*args, **(kwargs or {}))
        # Every other one only, so that what is equal by chance is equal in some runs.
        if not function.is_view and function not in EXACT and float(torch.rand((), generator=self.random)) < 0.5:
            with torch.no_grad():
                tree_map_only(torch.Tensor, self._shake, result)
        if function in ONE_MORE:
            with torch.no_grad():
                self._shake_by(result, args[0])
        if "norm_backward" in function._schema.name:
            with torch.no_grad():
                self._shake_by_scale(result[0], dict(zip((each.name for each in function._schema.arguments), args)))
        if torch._C._current_graph_task_id() != -1:  # which is there while a backward pass runs
            self.overflowed |= not all(map(_is_finite, tree_leaves((result, args))))
        return result

    def _shaken(self, function, value):
        """A copy that is off, of what a kernel subtracts from its own mean: nothing else shows what is lost by that.
        And of what it sorts, zeros too: the order of equal numbers is anybody's."""
        if function._schema.arguments[0].is_write or value.dtype not in TOLERANCE:
            return value
        with torch.no_grad():
            copied = value.clone()
            self._shake(copied)
            if any(name in function._schema.name for name in TIED):
                largest = float(copied.nan_to_num(posinf=0, neginf=0).abs().sum()) or 1.0
                copied += torch.finfo(copied.dtype).eps * largest * torch.rand(copied.shape, generator=self.random)
        return copied

    def _told_apart(self, value):
        """Of several NaN, too, the order is anybody's."""
        unknown = value.isnan()
        if value.is_complex() or unknown.sum() < 2:
            return value
        largest = value.nan_to_num(posinf=0, neginf=0).abs().max() + 1
        return torch.where(unknown, largest * (1 + torch.rand(value.shape, generator=self.random)), value)

    def _shake_by(self, value, operand):
        """Where 1 + tanh(x) or 1 + erf(x) is close to 0 it is known as well as the 1 is."""
        noise = torch.rand(value.shape, generator=self.random, dtype=torch.float64) - 0.5
        error = torch.finfo(value.dtype).eps * noise * operand.double().nan_to_num(posinf=0, neginf=0)
        value.copy_((value.double() + error).to(value.dtype))

    def _shake_by_scale(self, gradient, named):
        """A gradient through a normalisation is known as well as what is subtracted in it: the gradient of its result,
        times the scale and the reciprocal of the deviation."""
        factors = [named.get(name) for name in ("grad_out", "weight", "rstd", "save_invstd")]
        if gradient is not None:
            given = [factor for factor in factors if factor is not None and factor.numel()]
            largest = math.prod(float(factor.abs().amax()) for factor in given)
            noise = torch.rand(gradient.shape, generator=self.random, dtype=torch.float64) - 0.5
            gradient += (8 * torch.finfo(gradient.dtype).eps * largest * noise).to(gradient.dtype)

    def _shake(self, value):
        if value.dtype in TOLERANCE and value.numel() and 0 not in value.stride():
            width = value.real.dtype if value.is_complex() else value.dtype
            noise = torch.rand(value.shape, generator=self.random, dtype=torch.float64) - 0.5
            factor = 1 + 8 * torch.finfo(width).eps * noise
            shaken = _scaled(value, factor).to(value.dtype)
            value.copy_(torch.where((value == 0) & (noise < 0), -shaken, shaken))


def _scaled(value, factor):
    """In double precision; of a complex value each part, as infinity times a complex number is NaN."""
    if not value.is_complex():
        return value.double() * factor
    return torch.view_as_complex(torch.view_as_real(value.resolve_conj().to(torch.complex128)) * factor[..., None])


aten = torch.ops.aten
EXACT = {
    aten.detach.default,
    aten.clone.default,
    aten.copy_.default,
    aten.zeros_like.default,
    aten.fill_.Scalar,
    aten.ones.default,
    aten.zeros.default,
    aten.full.default,
    aten.neg.default,
    aten.relu.default,
}
ONE_MORE = {aten.gelu.default}
"""Kernels that add 1 to what may be close to -1, and multiply by their first operand."""
CANCELLING = ("norm", "aten::var", "aten::std")
"""Kernels by their names."""
TIED = ("topk", "sort", "median", "aten::max", "aten::min")
"""Kernels that put equal numbers in an order of their own, or give the gradient of equal ones to some of them."""
SORTING = ("topk", "sort")
"""Those of them that put NaN in order, too."""
