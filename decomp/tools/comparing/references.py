"""What PyTorch computes for a lowered program: its results, and each value on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import copy
from types import MappingProxyType
from typing import Any
import warnings

import torch
from torch import fx, nn

from decomp.ir.call import metadata
from decomp.tools.certification.results import flat
from decomp.tools.comparing.judging import ExpectedResults
from decomp.tools.measurement.trials import FAILURES, widened
from decomp.torch_internals import pytree


def copied_tensors(value: Any) -> Any:
    """Nested arguments with a copy of each tensor."""
    return pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, value)


def copied_module(model: Any) -> Any:
    """A copy of a module, which a run may write to; a function as it is."""
    if not isinstance(model, nn.Module):
        return model
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*treespec, LeafSpec.*")  # torch 2.13's own, whenever one is copied
        return copy.deepcopy(model)


def widened_leaves(args: Any) -> Any:
    """Float tensors in float64."""
    return pytree.tree_map(lambda t: widened((t,))[0] if isinstance(t, torch.Tensor) else t, args)


def is_random(graph: fx.Graph) -> bool:
    """Whether a program draws random numbers."""
    nodes = (node for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    return any(torch.Tag.nondeterministic_seeded in node.target.tags for node in nodes)


def results_in_pytorch(
    root: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any] = MappingProxyType({})
) -> list[torch.Tensor]:
    """The results of a lowered program; neither it nor the arguments are changed."""
    with torch.no_grad():
        return flat(copied_module(root)(*copied_tensors(tuple(args)), **copied_tensors(dict(kwargs))))


def results_in_float64(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] = MappingProxyType({})
) -> list[torch.Tensor] | None:
    """The results of a program in float64, of float64 inputs; None if it does not run there."""
    try:
        copied = copied_module(model)
        wide = copied.double() if isinstance(copied, nn.Module) else copied
        with torch.no_grad():
            given = widened_leaves(copied_tensors((tuple(args), dict(kwargs))))
            return list(widened(flat(wide(*given[0], **given[1]))))
    except FAILURES:
        return None


def expected_results(own: Sequence[torch.Tensor], exact: Sequence[torch.Tensor] | None) -> ExpectedResults:
    """What a program should return: as its lowered form does in PyTorch, within a multiple of the distance of that from
    the source in float64. The error of lowering itself does not count against a backend."""
    if exact is None or [t.shape for t in exact] != [t.shape for t in own]:
        exact = widened(own)
    return ExpectedResults(own, exact, exact, False, False)


class ReferenceRun(fx.Interpreter):
    """Runs a lowered program in PyTorch, as far as is asked for. A value is dropped after its last use."""

    def __init__(self, root: fx.GraphModule, inputs: Sequence[Any]) -> None:
        super().__init__(root)
        self._inputs, self._rest = iter(copied_tensors(tuple(inputs))), iter(root.graph.nodes)
        self._host: dict[fx.Node, Any] = {}
        """Sizes and other numbers, which are kept."""
        self._to_drop: Sequence[fx.Node] = ()

    def value(self, node: fx.Node) -> Any:
        """The value of a node; nodes are asked for in the order of the graph. Raises `LookupError` for one that was
        dropped."""
        with torch.no_grad():
            while node not in self.env and node not in self._host:
                self._advance()
        return self._host[node] if node in self._host else self.env[node]

    def _advance(self) -> None:
        node = next(self._rest, None)
        if node is None or node.op == "output":
            raise LookupError("the value was dropped")
        for dropped in self._to_drop:
            self.env.pop(dropped, None)
        self._to_drop = self.user_to_last_uses.get(node, ())
        found = self.env[node] = next(self._inputs) if node.op == "placeholder" else self.run_node(node)
        if not isinstance(metadata(node), (torch.Tensor, list, tuple)):
            self._host[node] = found

    def run_node(self, n: fx.Node) -> Any:
        """Run a call, except for a write to an input or a buffer, which comes after all calls."""
        if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable:
            return self.fetch_args_kwargs_from_env(n)[0][0]
        return super().run_node(n)
