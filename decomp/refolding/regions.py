"""Regions of a graph: the nodes between a value and the inputs that it is computed from. A region can become one call
if no intermediate value is used outside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
import heapq

import torch
from torch import fx, nn

from decomp.ir.call import metadata
from decomp.ir.effects import Effect, EffectTable, looks_only
from decomp.metadata.symbolic_sizes import NUMBERS
from decomp.refolding.structures import StructureNumbers

# An erf by polynomials has several dozen nodes; searches are linear in this.
MAX_REGION_NODES = 96
"""The maximum number of nodes in a region."""


@dataclass(frozen=True, eq=False)
class Region:
    """The nodes that compute `root` from `inputs`, in order."""

    root: fx.Node
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    statistics: tuple[fx.Node, ...] = ()
    """The inputs that are a mean and a (non-negative) variance; they have no gradients."""
    rare: tuple[fx.Node, ...] = ()
    """The boolean inputs that are mostly false; others are mostly true."""

    def __len__(self) -> int:
        return len(self.nodes)


class GraphIndex:
    """A graph with lookup tables for the searches."""

    def __init__(
        self,
        graph: fx.Graph,
        owner: nn.Module,
        constants: Mapping[str, torch.Tensor] | None = None,
        structures: StructureNumbers | None = None,
    ) -> None:
        self.graph, self.owner, self._constants = graph, owner, constants
        self.structures = structures if structures is not None else StructureNumbers()
        leaves = (*graph.find_nodes(op="placeholder"), *graph.find_nodes(op="get_attr")) if constants else ()
        self.given = {node: constants[node.name] for node in leaves if constants and node.name in constants}
        """The values of constant indices and masks."""
        self.place = {node: i for i, node in enumerate(graph.nodes)}
        self.effects = EffectTable(owner)
        self._data: dict[fx.Node, list[fx.Node]] = {}
        self.constant: set[fx.Node] = set(self.given)
        """Constants, and calls that compute only from numbers and constants."""
        self.marks: list[int] = []
        self._leaves: set[fx.Node] = set()
        marks = 0
        for node in graph.nodes:
            found = self.effects.of(node)
            if found.kinds:
                marks += Effect.REGION in found.kinds or Effect.MUTATION in found.kinds
            self.marks.append(marks)
            if not node.op.startswith("call") or found or not found.known:
                self._leaves.add(node)
            elif node.op == "call_function" and not self.data_inputs(node):
                self.constant.add(node)

    def is_leaf(self, node: fx.Node) -> bool:
        """Whether a value is an input, or has effects, so that it cannot be inside a region."""
        return node in self._leaves

    def after(self, graph: fx.Graph) -> GraphIndex:
        """The same for a graph that was rewritten from this one."""
        return GraphIndex(graph, self.owner, self._constants, self.structures)

    def data_inputs(self, node: fx.Node) -> list[fx.Node]:
        """The operands of a node that are neither constants nor numbers."""
        found = self._data.get(node)
        if found is None:
            operands = node.all_input_nodes
            found = [given for given in operands if given not in self.constant and not is_number(given)]
            self._data[node] = found
        return found

    def between(self, root: fx.Node, inputs: Collection[fx.Node], limit: float = MAX_REGION_NODES) -> Region | None:
        """The region that computes `root` from `inputs`; None if it needs other values, or too many nodes."""
        found: set[fx.Node] = set()
        waiting = [root]
        for node in waiting:
            if node in found or node in inputs:
                continue
            if self.is_leaf(node) or len(found) >= limit:
                return None
            found.add(node)
            waiting += self.data_inputs(node)
        nodes = tuple(sorted(found, key=self.place.__getitem__))
        return Region(root, tuple(inputs), nodes)

    def why_open(self, region: Region) -> str | None:
        """Why a region cannot become one call, or None: an intermediate value is used elsewhere, or there is an effect
        in between."""
        inside = set(region.nodes)
        for node in region.nodes:
            if node is region.root:
                continue
            user = next((user for user in node.users if user not in inside and not looks_only(user)), None)
            if user is not None:
                what = "is returned, too" if user.op == "output" else f"is used elsewhere, by {user.name!r}"
                return f"{node.name!r} {what}"
        first = self.place[region.nodes[0]] if region.nodes else self.place[region.root]
        if self.marks[first] != self.marks[self.place[region.root]]:
            return "a region of no_grad or autocast, or a write, begins or ends in it"
        return None

    def watchers(self, region: Region) -> tuple[fx.Node, ...]:
        """The nodes that only inspect intermediate values of a region."""
        inside = [node for node in region.nodes if node is not region.root]
        return tuple(dict.fromkeys(user for node in inside for user in node.users if looks_only(user)))

    # Nodes leave the heap in reverse order of the graph, so that an empty heap means that every path went through the
    # current one: a dominator (Lengauer and Tarjan, 1979), found here in one walk since the order is topological.
    def above(self, node: fx.Node, steps: int) -> Iterator[fx.Node]:
        """The float values that dominate a node: it can be computed from each of them and constants. Nearest first."""
        heap = [(-self.place[node], node)]
        seen, leaves = {node}, 0
        for _ in range(steps):
            if not heap:
                return
            _, current = heapq.heappop(heap)
            if not heap and current is not node and is_float(current):
                yield current
            if self.is_leaf(current):
                return
            for given in self.data_inputs(current):
                if given not in seen:
                    seen.add(given)
                    heapq.heappush(heap, (-self.place[given], given))
                    leaves += given in self._leaves
            if leaves > 1:  # no value further up can be the only one that the node depends on
                return

    def below(self, start: fx.Node) -> list[fx.Node]:
        """The nodes computed only from one value and constants, in order, up to the limit."""
        found: dict[fx.Node, None] = {}
        heap = [(self.place[user], user) for user in start.users]
        heapq.heapify(heap)
        seen = {user for _, user in heap}
        while heap and len(found) < MAX_REGION_NODES:
            _, node = heapq.heappop(heap)
            if node.op == "output" or self.is_leaf(node):
                continue
            if all(given is start or given in found for given in self.data_inputs(node)):
                found[node] = None
                for user in node.users:
                    if user not in seen:
                        seen.add(user)
                        heapq.heappush(heap, (self.place[user], user))
        return list(found)

    def views_above(self, node: fx.Node) -> list[fx.Node]:
        """A node and the values of which it is a view or copy, nearest first."""
        found = [node]
        while op_schema_name(node) in VIEWS and len(self.data_inputs(node)) == 1 and len(found) < MAX_REGION_NODES:
            node = self.data_inputs(node)[0]
            found.append(node)
        return found

    def only_user(self, node: fx.Node) -> fx.Node | None:
        """The one node that uses a value, not counting those that only inspect it; None if there are several."""
        users = [user for user in node.users if not looks_only(user)]
        return users[0] if len(users) == 1 and users[0].op != "output" else None

    def views_below(self, node: fx.Node) -> list[fx.Node]:
        """A node and the chain of views and copies of it, nearest first."""
        found = [node]
        while (
            (user := self.only_user(found[-1])) is not None
            and op_schema_name(user) in VIEWS
            and len(found) < MAX_REGION_NODES
        ):
            found.append(user)
        return found


VIEWS = frozenset(
    f"aten::{name}"
    for name in "view _unsafe_view reshape expand clone permute transpose t unsqueeze squeeze alias contiguous detach "
    "_to_copy numpy_T mT flatten unflatten dropout".split()
)
"""Ops that rearrange or repeat the elements of one operand."""


def op_schema_name(node: fx.Node) -> str:
    """`aten::exp` for any overload; empty for a target that is not an ATen op."""
    target = node.target
    return target._schema.name if isinstance(target, torch._ops.OpOverload) else ""


def is_number(node: fx.Node) -> bool:
    """Whether a node's value is a size or another number."""
    return isinstance(metadata(node), NUMBERS)


def is_float(node: fx.Node) -> bool:
    """Whether a node's value is a floating-point tensor."""
    value = metadata(node)
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided
