"""Attributes the error of a program to its calls. The program runs in its own dtypes, and the error of each call on its
actual operands is recorded; then it runs in float64 with the errors of some calls added to their results. The error at
the outputs is then due to these calls alone, and the errors of all calls add up to that of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import functools
from typing import Any

import torch
from torch import fx

from decomp.derive.decisions import CallPlace
from decomp.graphs.template import ExpansionTemplate
from decomp.ir.aliases import attribute
from decomp.ir.arguments import zipped
from decomp.ir.call import call_if_bound, is_host, is_projection
from decomp.ir.effects import EffectTable
from decomp.ir.module import Module, ProgramGraph
from decomp.torch_internals import pytree
from decomp.validation.closeness import widened
from decomp.validation.running_programs import call_node, forked_random_state, run_graph

ChosenTemplate = ExpansionTemplate | None
"""How a call is computed: by an expansion, or by PyTorch's own kernel (None)."""
_OF_BITS = frozenset(("view_dtype", "nextafter", "frexp"))
"""Ops that depend on a dtype's representation: in float64 they are other functions."""


Errors = Sequence[torch.Tensor | None]
"""The errors of the results of one call, flat; None for integers and bools."""


@dataclass(frozen=True)
class Traced:
    """A run of a program in its own dtypes."""

    outputs: list[torch.Tensor]
    errors: Mapping[CallPlace, Sequence[Errors]]
    """The errors of each call on its operands in this run, for each time that it ran: the difference to the same call
    in float64."""


class Experiment:
    """A program on its inputs. Random numbers are drawn once, by PyTorch's own kernels, and reused in each run."""

    def __init__(self, module: Module, inputs: Sequence[Any], seed: int = 0) -> None:
        """`module`: functional graphs; `inputs`: those of the program."""
        self.module, self.inputs, self.seed = module, list(inputs), seed
        self.graphs = tuple(module.graphs.values())
        self.random: dict[CallPlace, list[Any]] = {}
        """The results of each call that draws random numbers, for each time that it ran."""
        self.own_only: set[CallPlace] = set()
        """Calls without a float64 kernel, or with another meaning there: they count as exact."""
        self.given: dict[CallPlace, Any] = {}
        """The dtypes of each call's arguments, in containers like those of the arguments."""
        self.containers: dict[CallPlace, Any] = {}
        """The structure of each call's results."""
        self._number = {graph.owner: number for number, graph in enumerate(self.graphs)}
        self._effects = [EffectTable(graph.owner) for graph in self.graphs]
        # The first run records what later runs replay. It must use PyTorch's kernels in the program's own dtypes,
        # because random kernels draw other numbers in float64.
        self.drawn_before = False
        self._run(self._first, self.inputs)
        self.drawn_before = True
        self._wide_inputs = widened(self.inputs)
        self.exact = self._run(self._wide, self._wide_inputs)
        """The outputs of the program in float64."""

    def traced(self, chosen: Mapping[CallPlace, ChosenTemplate]) -> Traced:
        """A run in which some calls are replaced by expansions, all in their own dtypes."""
        errors: dict[CallPlace, list[Errors]] = {}

        def call(place: CallPlace, node: fx.Node, args: Any, kwargs: Any) -> Any:
            found = self._by(place, node, chosen.get(place), args, kwargs)
            if place not in self.own_only:
                errors.setdefault(place, []).append(_errors(found, self._wide(place, node, args, kwargs)))
            return found

        return Traced(self._run(call, self.inputs), errors)

    def with_errors(self, errors: Mapping[CallPlace, Sequence[Errors]]) -> list[torch.Tensor]:
        """The outputs in float64, with these errors added to the results of calls."""
        turns: dict[CallPlace, int] = {}

        def call(place: CallPlace, node: fx.Node, args: Any, kwargs: Any) -> Any:
            exact = self._wide(place, node, args, kwargs)
            turn = turns[place] = turns.get(place, -1) + 1
            return _plus(exact, errors[place][turn]) if turn < len(errors.get(place, ())) else exact

        return self._run(call, self._wide_inputs)

    def calls(self) -> Iterator[tuple[CallPlace, fx.Node]]:
        """The calls of tensor ops that ran and draw no random numbers."""
        for number, graph in enumerate(self.graphs):
            for node in graph.graph.nodes:
                place = number, node.name
                if place in self.given and place not in self.random and not _is_structure(node):
                    yield place, node

    # One run.

    def _run(self, call: _Compute, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors that the program returns, without those written to its state."""
        with torch.no_grad(), forked_random_state(self.seed):
            results = _ProgramRun(self, call, wide=inputs is not self.inputs).graph(0, inputs)
        return pytree.tensors_in(list(results)[self._written :] if self._written else results)

    @functools.cached_property
    def _written(self) -> int:
        """How many leading outputs of an exported program are new values of its state and of its inputs."""
        exported = self.module.exported
        specs = exported.graph_signature.output_specs if exported is not None else ()
        return sum(spec.kind.name not in ("USER_OUTPUT", "LOSS_OUTPUT") for spec in specs)

    # One call.

    def _first(self, place: CallPlace, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Run a call by its own kernel, and record its arguments and the random numbers it draws."""
        result = self._by(place, node, None, args, kwargs)
        if self._effects[place[0]].of(node).most:
            self.random.setdefault(place, []).append(result)
        # Recorded in the first run only: in float64 the dtype of
        # an argument no longer shows what the program computes in.
        self.given[place] = pytree.tree_map(lambda leaf: getattr(leaf, "dtype", None), (args, kwargs))
        self.containers[place] = pytree.tree_structure(result)
        return result

    def _by(self, place: CallPlace, node: fx.Node, template: ChosenTemplate, args: Any, kwargs: Any) -> Any:
        """Run a call by an expansion, or by its own kernel."""
        if template is None:
            return call_node(node, self.graphs[place[0]].owner, args, kwargs)
        # The inputs of an expansion are the distinct operands of the call, so a value is found by its operand.
        pairs = zipped((node.args, node.kwargs), (args, kwargs))
        made = {given: value for given, value in pairs if isinstance(given, fx.Node)}
        found = run_graph(template.graph, template.constants, [made[given] for given in node.all_input_nodes])
        tensors, like = pytree.tensors_in(found), self.containers[place]
        # A rule may return a tuple where the op returns a list;
        # whatever reads a result expects the containers of the op.
        return pytree.tree_unflatten(tensors, like) if like.num_leaves == len(tensors) else found

    def _wide(self, place: CallPlace, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Run a call in float64, or in its own dtype if it has no float64 kernel."""
        if place not in self.own_only and not _is_of_bits(node):
            try:
                return widened(self._by(place, node, None, *widened((args, kwargs))))
            # PyTorch raises one of these for a missing kernel, for mixed dtypes and in a failing `torch._check`.
            except (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError):
                pass
        self.own_only.add(place)
        return widened(self._by(place, node, None, *self._narrowed(place, (args, kwargs))))

    def _narrowed(self, place: CallPlace, arguments: Any) -> Any:
        """Arguments in their dtypes in the program; a dtype argument is unchanged."""
        leaves, spec = pytree.tree_flatten(arguments)
        dtypes = pytree.tree_leaves(self.given[place])
        return pytree.tree_unflatten([_in_dtype(leaf, dtype) for leaf, dtype in zip(leaves, dtypes)], spec)


_Compute = Callable[[CallPlace, fx.Node, Any, Any], Any]
"""Computes the results of one call."""


class _ProgramRun:
    """One run of a program, with the bodies of its higher-order ops."""

    def __init__(self, experiment: Experiment, compute: _Compute, wide: bool) -> None:
        self.experiment, self.compute, self.wide = experiment, compute, wide
        self.drawn: dict[CallPlace, int] = {}
        """How many times each call that draws random numbers has run."""

    def graph(self, number: int, inputs: Sequence[Any]) -> Any:
        """The results of one of the graphs."""
        planned = self.experiment.graphs[number]
        return run_graph(planned.graph, planned.owner, inputs, call=functools.partial(self._call, number))

    def _call(self, number: int, node: fx.Node, root: Any, args: Any, kwargs: Any) -> Any:
        place = number, node.name
        if node.op == "get_attr":
            return self._attribute(self.experiment.graphs[number], str(node.target))
        if _is_structure(node):
            return call_node(node, root, args, kwargs)
        draws = self.experiment.random.get(place)
        if draws is None or not self.experiment.drawn_before:
            return self.compute(place, node, args, kwargs)
        # The body of a loop may run more often in float64 than in the
        # first run, as its condition is computed. Numbers are then reused.
        turn = self.drawn[place] = self.drawn.get(place, -1) + 1
        return widened(draws[turn % len(draws)]) if self.wide else draws[turn % len(draws)]

    def _attribute(self, planned: ProgramGraph, name: str) -> Any:
        """A tensor; or a body, as a function."""
        body = planned.bodies.get(name)
        if body is not None:
            number = self.experiment._number[body]
            return lambda *inputs: self.graph(number, inputs)
        value = attribute(planned.owner, name)
        return widened(value) if self.wide else value


def _is_structure(node: fx.Node) -> bool:
    """Whether a node computes no numbers itself: sizes, projections, calls of bodies."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    return node.op == "get_attr" or is_host(node) or is_projection(node)


def _is_of_bits(node: fx.Node) -> bool:
    call = call_if_bound(node)
    if call is None:
        return False
    return call.op.short in _OF_BITS or call.op.short == "view" and isinstance(call.arguments.get("dtype"), torch.dtype)


def _in_dtype(leaf: Any, dtype: torch.dtype | None) -> Any:
    return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and dtype is not None else leaf


def _errors(found: Any, exact: Any) -> Errors:
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(exact))
    return [_error(mine, theirs) for mine, theirs in pairs]


def _error(found: Any, exact: Any) -> torch.Tensor | None:
    if not isinstance(found, torch.Tensor) or not isinstance(exact, torch.Tensor) or found.shape != exact.shape:
        return None
    if not (exact.is_floating_point() or exact.is_complex()):
        return None
    # NaN at the same places is no error, and the difference of equal infinities would be NaN.
    same = (found == exact) | ((found != found) & (exact != exact))
    return None if bool(same.all()) else torch.where(same, 0.0, found.to(exact.dtype) - exact)


def _plus(exact: Any, errors: Errors) -> Any:
    leaves, spec = pytree.tree_flatten(exact)
    pairs = zip(leaves, errors)
    added = [leaf if error is None or error.shape != leaf.shape else leaf + error for leaf, error in pairs]
    return pytree.tree_unflatten(added, spec)
