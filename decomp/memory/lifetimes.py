"""Lifetimes of the storages of a program: from the call that allocates each to the last that uses it or a view of it. A
step is a node's index in the graph; a storage is freed after the step that uses it last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from decomp.costs.memory import homes_in, last_uses, peak, shared_with
from decomp.costs.sizes import nbytes, tensors_of
from decomp.ir.aliases import bodies, is_view, method_name, spelling_of, view_bases
from decomp.ir.call import CALLS, is_host, is_projection, kind_of, metadata
from decomp.ir.op_facts import MAYBE_VIEW, METADATA_WRITES, READS_STRIDES, STORAGE_CHANGES
from decomp.memory.forms import is_dense, is_static
from decomp.memory.running import in_blocks, result_memory

INPUT, CONSTANT, RESULT = "input", "constant", "result"
_KNOWN = torch._ops.OpOverload
_OWN = (in_blocks, result_memory)
_ELSEWHERE = READS_STRIDES | METADATA_WRITES | STORAGE_CHANGES


@dataclass(slots=True)
class LiveStorage:
    """The memory of one result, input or constant."""

    node: fx.Node
    """The node whose value it holds."""
    nbytes: int
    birth: int
    death: int
    """The last step that uses it."""
    kind: str = ""
    """`INPUT` or `CONSTANT` if the caller owns it; `RESULT` if it is returned."""
    movable: bool = True
    """Whether it can be placed anywhere: no call reads its strides, its storage offset, or its base."""

    @property
    def owned(self) -> bool:
        """Whether the program may overwrite it."""
        return self.kind not in (INPUT, CONSTANT)

    @property
    def value(self) -> Any:
        """The metadata of the node's value."""
        return metadata(self.node)


@dataclass(slots=True)
class Lifetimes:
    """The storages of a program."""

    graph: fx.Graph
    nodes: list[fx.Node]
    """By step."""
    steps: dict[fx.Node, int]
    homes: dict[fx.Node, tuple[fx.Node, ...]]
    """By node: the nodes that allocated the storages that its value may be in."""
    storages: dict[fx.Node, LiveStorage]
    """By the node that allocates it, inputs and constants included."""
    inner: dict[int, int]
    """Bytes that a step needs while it runs, in addition to its result: by bodies of higher-order ops."""

    def of(self, node: fx.Node) -> list[LiveStorage]:
        """The storages in which the value of a node may be."""
        return [self.storages[home] for home in self.homes[node] if home in self.storages]

    def peak(self) -> int:
        """Bytes alive at the widest step, without inputs and constants, if no memory is reused."""
        return max(self.profile(), default=0)

    def profile(self) -> list[int]:
        """The same, step by step."""
        return memory_profile(((s.birth, s.death, s.nbytes) for s in self.storages.values() if s.owned), self)


def memory_profile(spans: Iterator[tuple[int, int, int]], lifetimes: Lifetimes) -> list[int]:
    """Bytes held at each step, given spans (birth, death, bytes), plus the bytes that steps need while they run."""
    change = [0] * (len(lifetimes.nodes) + 1)
    for birth, death, size in spans:
        # Differences and one running sum: linear in the number of steps, however long storages live.
        change[birth] += size
        change[death + 1] -= size
    held, found = 0, []
    for step in range(len(lifetimes.nodes)):
        held += change[step]
        found.append(held + lifetimes.inner.get(step, 0))
    return found


def compute_lifetimes(graph: fx.Graph, root: nn.Module | None) -> Lifetimes:
    """The storages of a program, from its metadata. Raises `CostError` if metadata is missing."""
    nodes = list(graph.nodes)
    steps = {node: step for step, node in enumerate(nodes)}
    homes = homes_in(graph, lambda node: find_shared_memory(node, root))
    death = {home: steps[node] for node, dying in last_uses(graph, homes).items() for home in dying}
    storages: dict[fx.Node, LiveStorage] = {}
    inner: dict[int, int] = {}
    for step, node in enumerate(nodes):
        if node in homes[node] and _holds_memory(node):
            size = sum(map(nbytes, tensors_of(node)))
            storages[node] = LiveStorage(node, size, step, death[node], _kind(node), _is_plain(node))
        held = [peak(body.graph) for _, body in bodies(node, root)]
        if held:
            inner[step] = max(held)
    found = Lifetimes(graph, nodes, steps, homes, storages, inner)
    _note_uses(found)
    return found


def _kind(node: fx.Node) -> str:
    return {"placeholder": INPUT, "get_attr": CONSTANT}.get(node.op, "")


def _holds_memory(node: fx.Node) -> bool:
    if node.op == "output" or node.target is in_blocks or kind_of(node) == "host":
        return False
    if node.op in ("placeholder", "get_attr"):
        return isinstance(metadata(node), torch.Tensor)
    # A call without result, such as an assertion.
    return not is_host(node) and not (not node.users and metadata(node) is None)


def _is_plain(node: fx.Node) -> bool:
    value = metadata(node)
    return isinstance(value, torch.Tensor) and is_static(value) and is_dense(value) and not is_opaque(node)


def _note_uses(found: Lifetimes) -> None:
    """Mark storages that are returned, and those that cannot be moved."""
    for node in found.nodes:
        stays = is_opaque(node) or method_name(node) in _ELSEWHERE
        if not stays and node.op != "output":
            continue
        for used in (node, *node.all_input_nodes):
            for storage in found.of(used):
                storage.movable = storage.movable and not stays
                if node.op == "output" and storage.owned:
                    storage.kind = RESULT


def is_opaque(node: fx.Node) -> bool:
    """Whether it is unknown how a call uses the memory of its operands: higher-order ops, modules, user functions."""
    if node.op == "call_module":
        return True
    if node.op != "call_function" or isinstance(node.target, _KNOWN) or node.target in _OWN:
        return False
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    known = is_host(node) or is_projection(node) or spelling_of(node).op.packet is not None
    return not known and not view_bases(node)


def find_shared_memory(node: fx.Node, root: nn.Module | None) -> list[fx.Node]:
    """The nodes whose memory a node shares, or may share; includes the node itself if it may have its own memory."""
    if node.op not in CALLS:
        return []
    if is_projection(node) and _projected(node).target is in_blocks:
        outs: Any = _projected(node).args[3]
        return [outs[node.args[1]]]
    if node.target in _OWN:
        return []
    # It may return its operands, or memory of its own.
    if is_opaque(node):
        return [*node.all_input_nodes, node]
    shared = shared_with(node)
    if is_projection(node):
        return shared
    # A reshape of unknown strides is a view or a copy: it keeps its operand alive and takes memory, to be safe.
    unsure = [base for base in view_bases(node, root) if is_view(node, base) is None or _varies(node)]
    return [*shared, *unsure, node] if unsure else shared


def _projected(node: fx.Node) -> fx.Node:
    return node.args[0]


def _varies(node: fx.Node) -> bool:
    """Whether a node may be a view or a copy depending on sizes that vary."""
    value = metadata(node)
    known = isinstance(value, torch.Tensor) and value.layout is torch.strided and is_static(value)
    return not known and spelling_of(node).op.short in MAYBE_VIEW
