"""The peak memory of a program. It is not a sum over calls, but found by a walk over the graph that tracks the values
alive at each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import fx

from decomp.costs.model import CostModel
from decomp.costs.sizes import nbytes, results, returns_view, sure_view_bases, tensors_of
from decomp.ir.aliases import bodies, mutated_args
from decomp.ir.call import Call, is_host, is_projection, metadata


@dataclass(frozen=True)
class PeakMemory(CostModel):
    """Peak bytes alive in an expansion, beyond its arguments and the constants: results and intermediate values, each
    from the call that computes it to its last use; a view lives in its base.

    Each op gets the derivation with the lowest peak, and so does each call within a derivation. This minimises the peak
    of the program if no argument of a call dies before the call's expansion ends (the caller holds it) and the results
    of all alternatives share memory with the same values. If an argument dies within an expansion, the peak of the flat
    program is at most this, and other choices may be lower still. Calls run in the order of the graph; several results
    of a call are freed together.
    """

    unit = "bytes"
    aim = "least peak memory"
    additive = False

    def __call__(self, call: Call) -> float:
        """The bytes of the results of one call."""
        return 0.0 if returns_view(call) else float(sum(map(nbytes, results(call))))

    def of_graph(self, graph: fx.Graph) -> float:
        return float(peak(graph))

    def __repr__(self) -> str:
        return "decomp.costs.peak_memory"


PEAK_MEMORY = PeakMemory()


def peak(graph: fx.Graph) -> int:
    """Peak bytes alive in a graph, beyond its inputs and attributes; includes the peaks of bodies of higher-order ops
    while those run. Raises `CostError`."""
    homes = homes_in(graph)
    dies = last_uses(graph, homes)
    sizes: dict[fx.Node, int] = {}
    alive = widest = 0
    for node in graph.nodes:
        if node in sizes or node.op in ("placeholder", "get_attr", "output"):
            continue
        checks = not node.users and metadata(node) is None
        # A view lives in its base, and costs nothing of its own.
        if homes[node] == (node,) and not is_host(node) and not checks:
            sizes[node] = sum(map(nbytes, tensors_of(node)))
            alive += sizes[node]
        # Bodies of `cond` run one at a time.
        inner = max((peak(body.graph) for _, body in bodies(node, graph.owning_module)), default=0)
        widest = max(widest, alive + inner)
        # After the call: its operands are alive while it runs.
        alive -= sum(sizes.pop(home) for home in dies.get(node, ()) if home in sizes)
    return widest


def shared_with(node: fx.Node) -> list[fx.Node]:
    """The nodes whose memory a node certainly shares: of which it is a view or a part, or which it writes and
    returns."""
    return node.all_input_nodes[:1] if is_projection(node) else [*sure_view_bases(node), *mutated_args(node)]


def homes_in(
    graph: fx.Graph, shared: Callable[[fx.Node], Iterable[fx.Node]] = shared_with
) -> dict[fx.Node, tuple[fx.Node, ...]]:
    """By node, the nodes that own the memory of its value: itself, unless it is a view or one of several results.
    `shared` returns the nodes that a node shares memory with; if it includes itself, it may own memory as well."""
    homes: dict[fx.Node, tuple[fx.Node, ...]] = {}
    for node in graph.nodes:
        of = (homes[base] if base is not node else (node,) for base in shared(node))
        homes[node] = tuple(dict.fromkeys(home for each in of for home in each)) or (node,)
    return homes


def last_uses(graph: fx.Graph, homes: dict[fx.Node, tuple[fx.Node, ...]]) -> dict[fx.Node, list[fx.Node]]:
    """By node, the values whose memory is used there for the last time. Returned values are never freed."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        # The node itself: a result that nobody reads dies at once.
        used: Iterable[fx.Node] = (node, *node.all_input_nodes)
        last.update({home: node for each in used for home in homes[each]})
    found: dict[fx.Node, list[fx.Node]] = {}
    for home, node in last.items():
        found.setdefault(node, []).append(home)
    return found
