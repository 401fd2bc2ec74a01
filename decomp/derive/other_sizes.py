"""Checks that an expansion recorded at the sizes of an example also holds at others. While a rule runs, PyTorch's
kernels may query a symbolic size to choose between layouts, and get the answer for the example; a rule that fixes a
size through an op (`x.view(3, 4)`) would go unnoticed. So the expansion is run again, on fake tensors of other sizes
that the program allows, and compared with the op's own kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
import logging
import random
from typing import Any

import torch
from torch import fx

from decomp.errors import first_line
from decomp.ir.call import call_target, metadata, select_results
from decomp.metadata.fakes import Fakes, new_mode
from decomp.metadata.meta_kernels import MetaKernels
from decomp.metadata.symbolic_sizes import SYMBOLIC, quiet, symbols_in
from decomp.torch_internals.fakes import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from decomp.torch_internals.modes import enable_python_dispatcher
from decomp.torch_internals.pytree import tensors_in, tree_map

Sizes = Mapping[Any, Any]
"""A size for each symbol."""
# Conditions such as divisibility by 8 reject most assignments.
DRAWN = 100
# Each costs a run of the expansion. A rule that fixes a size differs at nearly any other one; a second assignment
# catches one that holds at multiples of the example.
TRIED = 2
UNKNOWN = 5
"""The assumed hint of a data-dependent size."""


class OtherSizes:
    """Sizes that a program allows, other than those of its example."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self._drawn: dict[frozenset[Any], list[Sizes]] = {}

    @functools.cached_property
    def mode(self) -> FakeTensorMode:
        return new_mode()

    @functools.cached_property
    def _fakes(self) -> Fakes:
        return Fakes(self.mode)

    def why_not(
        self, graph: fx.Graph, node: fx.Node, tensor_args: list[fx.Node], read: tuple[int, ...] | None = None
    ) -> str | None:
        """The sizes at which the expansion `graph` of the call `node` returns other shapes than the call, or fails;
        None if none of those tried qualifies. `read`: the indices of the results that are used."""
        # The example's own tensors are not run: at its sizes the rule was verified when it was recorded.
        inputs = [metadata(given) for given in tensor_args]
        for sizes in self._of(frozenset(symbols_in(inputs))):
            given = dict(zip(tensor_args, [at_sizes(value, sizes, self._fakes) for value in inputs]))
            promised = _shapes_at(select_results(read, metadata(node)), sizes)
            # With it, composite kernels are PyTorch's decompositions in Python, as when a program is captured.
            with self.mode, enable_python_dispatcher(), torch.no_grad(), quiet(_LOG):
                problem = _problem(graph, node, given, read, promised, self._fakes)
            # Only now, as running the real kernel is expensive and few expansions have a problem.
            if problem is not None and _is_accepted(node, tensor_args, inputs, sizes):
                said = ", ".join(f"{symbol}={sizes[symbol]}" for symbol in sorted(set(symbols_in(inputs)), key=str))
                return f"at {said} {problem}"
        return None

    def _of(self, symbols: frozenset[Any]) -> list[Sizes]:
        if symbols not in self._drawn:
            self._drawn[symbols] = _draw_sizes(self.env, sorted(symbols, key=str))
        return self._drawn[symbols]


def _problem(
    graph: fx.Graph,
    node: fx.Node,
    given: dict[fx.Node, Any],
    read: tuple[int, ...] | None,
    promised: list[list[int]] | None,
    fakes: Fakes,
) -> str | None:
    """Why the expansion `graph` does not return the shapes of the call `node` for these fake tensors, or None.
    `promised`: the shapes that the program has for the call at these sizes."""
    kernels = MetaKernels(fakes, for_shapes=True)
    try:
        found = _shapes(_run(graph, list(given.values()), fakes, kernels))
        # Nearly all expansions end here; the kernel of an op such as a convolution takes long.
        if found == promised:
            return None
        problem = f"it returns {found}"
    # Values decide the result, which fake tensors do not have: nothing can be said.
    except _UNKNOWN:
        return None
    except Exception as error:
        found, problem = None, f"it fails: {first_line(error)}"
    try:
        expected = _shapes(select_results(read, _run_call(node, given, kernels)))
    except Exception:  # the call itself does not accept these sizes, or its result is unknown
        return None
    if found is None:
        return problem
    return None if found == expected else f"{problem}, the op {expected}"


def _draw_sizes(env: Any, symbols: list[Any]) -> list[Sizes]:
    """Up to `TRIED` assignments that the program allows, preferably those that change every size."""
    hints = getattr(env, "backed_var_to_val", {})
    # All hints, as guards may relate these symbols to others of the program, which keep the example's sizes.
    around = {symbol: int(hints.get(symbol, UNKNOWN)) for symbol in {*hints, *symbols}}
    # A fixed seed: the decision must be the same in every run, and in every process that shares the cache.
    draw = random.Random(0)
    wholly: list[Sizes] = []
    partly: list[Sizes] = []
    for _ in range(DRAWN):
        # Multiples first: a program may require that a size is divisible, or that one is a multiple of another.
        factors = {s: draw.choice((1, 2, 3, 5, 7)) for s in symbols}
        # Two zeros of five, so that exact multiples are common among the few that are tried.
        sizes = {**around, **{s: around[s] * factors[s] + draw.choice((0, 0, 1, 2, 4)) for s in symbols}}
        different = [sizes[s] != around[s] for s in symbols]
        if any(different) and _allows(env, symbols, sizes):
            (wholly if all(different) else partly).append(sizes)
        if len(wholly) == TRIED:
            break
    return [*wholly, *partly][:TRIED]


def _allows(env: Any, symbols: list[Any], sizes: Sizes) -> bool:
    ranges = [env.var_to_range.get(symbol) for symbol in symbols]
    if any(known is not None and sizes[s] not in known for s, known in zip(symbols, ranges)):
        return False
    # Conditions on data-dependent sizes are asserted at run time, and are no guards.
    asserted = [each.expr for deferred in env.deferred_runtime_asserts.values() for each in deferred]
    conditions = [*(guard.expr for guard in env.guards), *asserted]
    # Neither true nor false is left open by symbols without a size, and then counts as allowed.
    return all(condition.xreplace(_numbers(sizes)) != False for condition in conditions)  # noqa: E712  of sympy


def _numbers(sizes: Sizes) -> dict[Any, Any]:
    import sympy  # with symbolic sizes it has been imported already

    return {symbol: sympy.Integer(size) for symbol, size in sizes.items()}


def at_sizes(value: Any, sizes: Sizes, fakes: Fakes | None = None) -> Any:
    """Metadata at these sizes: tensors by `fakes`, without it real ones; and numbers."""
    numbers = _numbers(sizes)
    empty = torch.empty_strided if fakes is None else fakes.empty
    return tree_map(lambda leaf: _leaf_at(leaf, numbers, empty), value)


def _leaf_at(leaf: Any, sizes: Sizes, empty: Callable[..., torch.Tensor]) -> Any:
    # Others keep the example's sizes: there are no strides to make them of.
    if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
        shape, stride = ([_number_at(part, sizes) for part in parts] for parts in (leaf.shape, leaf.stride()))
        return empty(shape, stride, dtype=leaf.dtype, device=leaf.device)
    return _number_at(leaf, sizes)


def _number_at(value: Any, sizes: Sizes) -> Any:
    """A symbolic number at these sizes, others unchanged. Raises `TypeError` for one that these do not determine."""
    return value.node.pytype(value.node.expr.xreplace(sizes)) if isinstance(value, SYMBOLIC) else value


def _run(graph: fx.Graph, inputs: list[Any], fakes: Fakes, kernels: MetaKernels) -> Any:
    """The result of an expansion for `inputs`."""
    values: dict[fx.Node, Any] = {}
    supply = iter(inputs)
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(supply)
        elif node.op == "get_attr":
            values[node] = at_sizes(node.meta["val"], {}, fakes)
        elif node.op == "output":
            return fx.node.map_arg(node.args[0], values.__getitem__)
        else:
            values[node] = _run_call(node, values, kernels)
    raise AssertionError("an expansion has an output")


def _run_call(node: fx.Node, values: Mapping[fx.Node, Any], kernels: MetaKernels | None = None) -> Any:
    """The result of a call, by its kernel for meta tensors if that is sufficient."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    found = NotImplemented if kernels is None else kernels.run(node.target, args, kwargs)
    return call_target(node.target, args, kwargs) if found is NotImplemented else found


def _is_accepted(node: fx.Node, tensor_args: list[fx.Node], inputs: list[Any], sizes: Sizes) -> bool:
    """Whether the kernel of the call itself runs at these sizes: fake tensors do not check all constraints, such as a
    gradient having the shape of its tensor. Assumed where it cannot be tried."""
    known = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten"
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    # No real memory is allocated on a device to check a rule.
    if not known or any(value.device.type != "cpu" for value in tensors):
        return True
    given = [at_sizes(value, sizes) for value in inputs]
    if sum(tensor.numel() for tensor in tensors_in(given)) > _LARGE:
        return True
    try:
        with torch.no_grad():
            _run_call(node, dict(zip(tensor_args, tree_map(_zeros, given))))
    except Exception:
        return False
    return True


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value


# Elements: 40 MB in float32, some milliseconds to fill.
_LARGE = 10**7
_LOG = logging.getLogger("torch._subclasses.fake_tensor")
"""The logger to which fake kernels report every failure."""


def _shapes_at(value: Any, sizes: Sizes) -> list[list[int]] | None:
    """The shapes of metadata at these sizes; None if one of them is not determined by these."""
    numbers = _numbers(sizes)
    try:
        return [[_number_at(size, numbers) for size in tensor.shape] for tensor in tensors_in(value)]
    except TypeError:
        return None


def _shapes(value: Any) -> list[list[int]]:
    return [list(tensor.shape) for tensor in tensors_in(value)]


_UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
