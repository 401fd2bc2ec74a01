"""The calls of a program as a backend makes them, each with its own operands and its result: read while the program
runs call by call, or as results of the program's prefixes, where a runtime only takes whole programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import functools
from typing import Any

import torch
from torch import fx

from decomp.ir.arguments import nodes_in, substituted
from decomp.ir.call import is_projection, metadata
from decomp.runtime.loaded import Loaded
from decomp.runtime.tables import Backend
from decomp.samples import Sample
from decomp.tools.comparing.judging import call_of
from decomp.tools.comparing.references import ReferenceRun

MOST_BYTES = 1 << 30
"""Intermediate results that one run of a prefix returns, at most."""

Run = Callable[..., Sequence[torch.Tensor]]
"""The protocol of a runtime whose intermediate values cannot be read: `run(prefix, *inputs)` runs a part of a program
and returns tensors. `prefix` is a GraphModule with metadata; it takes the inputs of the program, tensors or numbers,
and returns a tuple of intermediate results. The nodes that it returns have the names that they have in the program, for
a runtime that returns chosen results by name."""


class Unreadable(Exception):
    """Intermediate values of a backend cannot be read."""


@dataclass(frozen=True)
class Observed:
    """A call that a backend made."""

    node: fx.Node
    result: Any
    """Its result: a tensor, or a list of tensors."""
    sample: Sample | None
    """The call on its operands, as tensors; None if PyTorch has no such call."""
    again: Sample | None = None
    """The same on operands as they were afterwards, if they changed since they were computed."""


@dataclass(frozen=True)
class Overwritten:
    """A value that changed after it was computed, and the call that changed it."""

    value: fx.Node
    by: fx.Node
    read_by: fx.Node | None
    """The call at which the change was seen; None if that was after the run."""


Look = Callable[[Observed], None]


def prefix_of(root: fx.GraphModule, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """The program that takes the same inputs and returns the values of these nodes as a tuple."""
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    wanted, waiting = set(nodes), list(nodes)
    while waiting:
        new = set(waiting.pop().all_input_nodes) - wanted
        wanted |= new
        waiting += new
    for node in root.graph.nodes:
        if node in wanted or node.op == "placeholder":
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[node] for node in nodes))
    found = fx.GraphModule(root, graph)
    found.meta.update(root.meta)
    return found


def runs_prefixes(backend: Backend) -> Run:
    """The protocol on a backend: each prefix is loaded and run as a whole."""

    def run(prefix: fx.GraphModule, *inputs: Any) -> Sequence[torch.Tensor]:
        found: Sequence[torch.Tensor] = backend.load(prefix).unchecked(*inputs)
        return found

    return run


def call_on(node: fx.Node, value_of: Callable[[fx.Node], Any]) -> Sample | None:
    """The call of a node on values of its operands; None if PyTorch has no such call, or a value is not known."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    try:
        return call_of(node.target, substituted(node.args, value_of), substituted(node.kwargs, value_of))
    except LookupError:
        return None  # an operand that is not passed to the function


def is_tensors(node: fx.Node) -> bool:
    """Whether a node computes tensors, and not a size or another number."""
    return isinstance(metadata(node), (torch.Tensor, list, tuple))


# Call by call.


def walk(loaded: Loaded, args: Sequence[Any], kwargs: Mapping[str, Any], look: Look) -> list[Overwritten]:
    """Run a program call by call, on copies of its state, and call `look` for each call. Returns which values were
    overwritten while they were needed. Raises `Unreadable`, and what a function of the backend raises."""
    copies = functools.partial(own_copies, loaded, args, kwargs)
    reader = _WalkReader(loaded, copies(), look)
    reader.run()
    found = (_writer(loaded, copies(), value, *seen) for value, seen in reader.changed.items())
    return [each for each in found if each is not None]


class _WalkReader:
    """Reads each value when it is computed, and again when it is used, since a later call may have overwritten it."""

    def __init__(self, loaded: Loaded, values: Sequence[Any], look: Look) -> None:
        self.loaded, self.look, self.values = loaded, look, values
        self.steps = {step.node: step for step in loaded.steps}
        self.kept: dict[fx.Node, Any] = {}
        self.changed: dict[fx.Node, tuple[fx.Node | None, bool]] = {}
        """By value: the call at which a change was seen, and whether no later one reads the value."""
        self.uses = Counter(node for step in loaded.steps for node in set(nodes_in((step.args, dict(step.kwargs)))))
        self.uses.update(loaded.returned)
        self.uses.update(leaf.node for leaf in loaded.leaves)  # by the next run

    def run(self) -> None:
        leaves = dict(zip((leaf.node for leaf in self.loaded.leaves), self.values))
        for node, value in leaves.items():
            self._keep(node, value)
        found = self.loaded.walk(*self.values, visit=self.visit)
        self._compare(dict(zip(self.loaded.returned, found[len(self.loaded.writes) :])), None)
        self._compare(leaves, None)

    def _keep(self, node: fx.Node, value: Any) -> None:
        if is_tensors(node):
            self.kept[node] = read(self.loaded.backend, value)
        elif isinstance(value, (bool, int, float)):
            self.kept[node] = value

    def _compare(self, now: Mapping[fx.Node, Any], reader: fx.Node | None) -> dict[fx.Node, Any]:
        """The values that changed since they were computed."""
        changed = {}
        for node, value in now.items():
            if node in self.kept and is_tensors(node):
                found = read(self.loaded.backend, value)
                if not is_same(found, self.kept[node]):
                    changed[node] = found
                    self.changed.setdefault(node, (reader, not self.uses[node]))
        return changed

    def visit(self, node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        step = self.steps.get(node)
        if step is None:
            return
        now: dict[fx.Node, Any] = {}
        _pair((step.args, dict(step.kwargs)), (args, dict(kwargs)), now)
        for operand, value in now.items():
            self.uses[operand] -= 1
            if operand not in self.kept:
                self._keep(operand, value)
        changed = self._compare(now, node)
        again = call_on(node, {**self.kept, **now, **changed}.__getitem__) if changed else None
        self._keep(node, result)
        self.look(Observed(node, self.kept[node], call_on(node, self.kept.__getitem__), again))
        for operand in (*now, node):
            if not self.uses[operand]:
                self.kept.pop(operand, None)


def own_copies(loaded: Loaded, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Arrays for a run that may overwrite them."""
    backend, values = loaded.backend, loaded.values(*args, **kwargs)
    return [
        backend.from_torch(read(backend, value)) if is_tensors(leaf.node) else value
        for leaf, value in zip(loaded.leaves, values)
    ]


def _writer(
    loaded: Loaded, values: Sequence[Any], value: fx.Node, read_by: fx.Node | None, is_last: bool
) -> Overwritten | None:
    """The call that overwrites a value, from another run; None if it is the last one that reads the value."""
    found = list[Overwritten]()
    held = dict(zip((leaf.node for leaf in loaded.leaves), values))
    before = read(loaded.backend, held[value]) if value in held else None

    def visit(node: fx.Node, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal before
        if before is not None and not found and not is_same(read(loaded.backend, held[value]), before):
            found.append(Overwritten(value, node, read_by))
        if node is value:
            held[value], before = result, read(loaded.backend, result)

    loaded.walk(*values, visit=visit)
    return found[0] if found and not (is_last and found[0].by is read_by) else None


def read(backend: Backend, value: Any) -> Any:
    """A copy of an array, or of several, as tensors. Raises `Unreadable`."""
    if isinstance(value, (list, tuple)):
        return [read(backend, each) for each in value]
    try:
        found = backend.to_torch(value)
    except Exception as error:
        raise Unreadable from error
    if not isinstance(found, torch.Tensor):
        raise Unreadable
    return found.detach().clone()


def is_same(a: Any, b: Any) -> bool:
    """Whether two values are the same bits."""
    if isinstance(a, list):
        return all(map(is_same, a, b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(*(t.contiguous().flatten().view(torch.uint8) for t in (a, b)))) if a.numel() else True


def _pair(pattern: Any, value: Any, found: dict[fx.Node, Any]) -> None:
    """Collects the value of each node."""
    if isinstance(pattern, fx.Node):
        found[pattern] = value
    elif isinstance(pattern, (list, tuple)):
        for each, item in zip(pattern, value):
            _pair(each, item, found)
    elif isinstance(pattern, dict):
        for key, each in pattern.items():
            _pair(each, value[key], found)


# By prefixes.


class Prefixes:
    """Intermediate values of a program on a runtime that runs prefixes of it."""

    def __init__(self, root: fx.GraphModule, run: Run, inputs: Sequence[Any]) -> None:
        self.root, self.run, self.inputs = root, run, list(inputs)
        given = [node for node in root.graph.nodes if node.op == "placeholder"]
        self.given = dict(zip(given, self.inputs))

    def fetch(self, nodes: Sequence[fx.Node]) -> dict[fx.Node, torch.Tensor]:
        """The values of nodes that compute tensors, from one run. Raises what the runtime raises, and `Unreadable` if
        it does not return them."""
        if not nodes:
            return {}
        inputs = [t.clone() if isinstance(t, torch.Tensor) else t for t in self.inputs]
        found = self.run(prefix_of(self.root, nodes), *inputs)
        found = [found] if isinstance(found, torch.Tensor) else list(found)
        if len(found) != len(nodes) or not all(isinstance(each, torch.Tensor) for each in found):
            raise Unreadable(f"{len(found)} results of a prefix that has {len(nodes)}")
        return {node: each.detach() for node, each in zip(nodes, found)}

    def observe(self, calls: Sequence[fx.Node], reference: ReferenceRun, look: Look) -> None:
        """Call `look` for each of these calls, a few at a time."""
        for some in _chunks(calls):
            found = self.fetch(_readable_of(some))
            for node in some:
                self.look_at(node, found, reference, look)

    def look_at(
        self, node: fx.Node, found: Mapping[fx.Node, torch.Tensor], reference: ReferenceRun, look: Look
    ) -> None:
        """Call `look` for one call, of which the values of operands and results are known."""
        expected = reference.value(node)

        def value_of(operand: fx.Node) -> Any:
            if operand in found or operand in self.given:
                return found[operand] if operand in found else self.given[operand]
            if operand.op == "get_attr":
                return reference.fetch_attr(operand.target)
            if is_tensors(operand) and not isinstance(metadata(operand), torch.Tensor):
                return _assembled(operand, found, None)
            return reference.value(operand)

        result = found[node] if node in found else _assembled(node, found, expected)
        look(Observed(node, result, call_on(node, value_of)))


def _assembled(node: fx.Node, found: Mapping[fx.Node, torch.Tensor], otherwise: Any) -> Any:
    """Several results from those that the program reads; the others as PyTorch has them."""
    results: Any = list(otherwise) if otherwise is not None else [None] * len(metadata(node))
    for user in node.users:
        if is_projection(user) and user in found:
            results[user.args[1]] = found[user]
    return results


def calls_in(graph: fx.Graph) -> list[fx.Node]:
    """The calls of a program that compute tensors."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_function" and is_tensors(node) and not is_projection(node) and not _writes(node)
    ]


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def readable(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes that a prefix returns for some: of a call with several results, those that the program reads."""
    found: dict[fx.Node, None] = {}
    for node in nodes:
        if node.op == "call_function" and is_tensors(node):
            several = not isinstance(metadata(node), torch.Tensor)
            found.update(dict.fromkeys([user for user in node.users if is_projection(user)] if several else [node]))
    return [node for node in found if isinstance(metadata(node), torch.Tensor)]


def _readable_of(calls: Sequence[fx.Node]) -> list[fx.Node]:
    return readable([node for call in calls for node in (*call.all_input_nodes, call)])


def _chunks(calls: Sequence[fx.Node]) -> Iterator[list[fx.Node]]:
    """Calls whose operands and results are below `MOST_BYTES`, or single ones."""
    some, size = list[fx.Node](), 0
    for node in calls:
        own = sum(t.numel() * t.element_size() for each in _readable_of([node]) if (t := metadata(each)) is not None)
        if some and size + own > MOST_BYTES:
            yield some
            some, size = [], 0
        some.append(node)
        size += own
    if some:
        yield some
