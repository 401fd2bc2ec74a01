"""The most memory that a program holds at once. It is no sum over calls: it is found by a walk over a graph, from the
first call to the last, of what is alive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import fx

from decomp.costs.model import CostModel
from decomp.costs.sizes import gives_view, nbytes, results, sure_view_bases, tensors_of
from decomp.ir.aliases import bodies, mutated_args
from decomp.ir.call import Call, is_host, is_projection, metadata


@dataclass(frozen=True)
class PeakMemory(CostModel):
    """Bytes alive at the widest point of an expansion, beyond its arguments and the constants: results and what is
    computed on the way, each from the call that makes it to the last that uses it; a view lives in its base.

    Each op takes the derivation of the least peak, and so does each call within a derivation. That is the least peak
    of the program, if no argument of a call dies before the call's expansion ends (the caller holds it) and the results
    of all alternatives are alike in what they share memory with. Where an argument dies within an expansion, the peak
    of the flat program is no more than that, and other choices may come still lower. Calls run in the order of the
    graph; results that one call gives together are freed together.
    """

    unit = "bytes"
    additive = False

    def __call__(self, call: Call) -> float:
        """What the results of one call take."""
        return 0.0 if gives_view(call) else float(sum(map(nbytes, results(call))))

    def of_graph(self, graph: fx.Graph) -> float:
        return float(peak(graph))

    def __repr__(self) -> str:
        return "decomp.costs.peak_memory"


PEAK_MEMORY = PeakMemory()


def peak(graph: fx.Graph) -> int:
    """Bytes alive at the widest point of a graph, beyond its inputs and attributes; with the peaks of bodies of
    higher-order ops while those run. Raises `CostError`."""
    homes = homes_in(graph)
    dies = last_uses(graph, homes)
    sizes: dict[fx.Node, int] = {}
    alive = widest = 0
    for node in graph.nodes:
        if node in sizes or node.op in ("placeholder", "get_attr", "output"):
            continue
        checks = not node.users and metadata(node) is None
        if homes[node] == (node,) and not is_host(node) and not checks:
            sizes[node] = sum(map(nbytes, tensors_of(node)))
            alive += sizes[node]
        inner = max((peak(body.graph) for _, body in bodies(node, graph.owning_module)), default=0)
        widest = max(widest, alive + inner)
        alive -= sum(sizes.pop(home) for home in dies.get(node, ()) if home in sizes)
    return widest


def shared_with(node: fx.Node) -> list[fx.Node]:
    """The nodes whose memory a node surely shares: of which it is a view or a part, or which it writes and returns."""
    return node.all_input_nodes[:1] if is_projection(node) else [*sure_view_bases(node), *mutated_args(node)]


def homes_in(
    graph: fx.Graph, shared: Callable[[fx.Node], Iterable[fx.Node]] = shared_with
) -> dict[fx.Node, tuple[fx.Node, ...]]:
    """By node, the nodes in whose memory its value is; its own, unless it is a view or one of several results. `shared`
    says with which other nodes one shares memory; with itself among them, it may have memory of its own as well."""
    homes: dict[fx.Node, tuple[fx.Node, ...]] = {}
    for node in graph.nodes:
        of = (homes[base] if base is not node else (node,) for base in shared(node))
        homes[node] = tuple(dict.fromkeys(home for each in of for home in each)) or (node,)
    return homes


def last_uses(graph: fx.Graph, homes: dict[fx.Node, tuple[fx.Node, ...]]) -> dict[fx.Node, list[fx.Node]]:
    """By node, whose memory is used there for the last time. What is returned does not die."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        used: Iterable[fx.Node] = (node, *node.all_input_nodes)
        last.update({home: node for each in used for home in homes[each]})
    found: dict[fx.Node, list[fx.Node]] = {}
    for home, node in last.items():
        found.setdefault(node, []).append(home)
    return found
