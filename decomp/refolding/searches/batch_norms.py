"""Finds batch norm at inference: (x − mean) / √(variance + ε), scaled by a weight, plus a bias, each with one element
per channel. The search begins at the square root of a variance and goes down to the values that it scales. Which of the
other operands is the mean, the weight or the bias is found by trying."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import itertools
from typing import Any

import torch
from torch import fx

from decomp.ir.call import metadata
from decomp.ops import aten
from decomp.refolding.found import Findings, FoundCall, RegionSearch
from decomp.refolding.readings import CallReading, find_epsilons
from decomp.refolding.regions import is_float, op_schema_name

STEPS = 12
"""How many calls the search goes up and down."""

ROOTS = ("aten::sqrt", "aten::rsqrt", "aten::pow")
ARITHMETIC = ("aten::add", "aten::sub", "aten::mul", "aten::div", "aten::addcmul")
_NATIVE = aten._native_batch_norm_legit_no_training.default


class ParameterSearch(RegionSearch):
    """A search for calls with one-dimensional parameters."""

    def is_parameter(self, node: fx.Node) -> bool:
        """Whether a node is a one-dimensional float input or attribute."""
        return node.op in ("placeholder", "get_attr") and is_float(node) and metadata(node).dim() == 1

    def constants(self, nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
        """The constant operands of nodes."""
        for node in nodes:
            yield from (given for given in node.all_input_nodes if given in self.around.constant)

    def parameters(self, end: fx.Node, x: fx.Node) -> tuple[fx.Node, ...] | None:
        """The one-dimensional parameters from which, with `x`, a value is computed; None if it needs other values."""
        waiting, seen = [end], {end, x}
        for node in waiting:
            fresh = [each for each in self.around.data_inputs(node) if each not in seen]
            seen.update(fresh)
            waiting += [each for each in fresh if not self.is_parameter(each)]
            if self.around.is_leaf(node) or len(waiting) > 3 * STEPS:
                return None
        return tuple(sorted((each for each in seen if self.is_parameter(each)), key=self.around.place.__getitem__))


class BatchNorms(ParameterSearch):
    """The search in one graph."""

    finds = {aten.batch_norm.default: ()}

    def search(self) -> Findings:
        """Run the search; returns the findings."""
        for node in self.around.graph.nodes:
            best = None
            if node.target is _NATIVE:
                best = self._native(node)
            elif op_schema_name(node) in ROOTS and (variance := self._statistic_above(node)) is not None:
                best = self._spelled(node, variance)
            if best is not None:
                self.take(best)
        return self.findings

    def _native(self, node: fx.Node) -> FoundCall | None:
        """The call that replaces a `_native_batch_norm_legit_no_training` of which only the first result is used."""
        # Results that nobody uses were left by a decomposition.
        taken = [user for user in node.users if user.users]
        if len(taken) != 1 or taken[0].args[1:] != (0,):
            return None
        *args, _, eps = node.args
        return self._call(taken[0], args, eps)

    def _statistic_above(self, root: fx.Node) -> fx.Node | None:
        """The parameter of which a node is the square root; None if it is not one."""
        node = root
        for _ in range(STEPS):
            if self.is_parameter(node):
                # A variance is a statistic and never trained; a weight would be.
                return node if not metadata(node).requires_grad else None
            given = self.around.data_inputs(node)
            if len(given) != 1 or self.around.is_leaf(node):
                return None
            node = given[0]
        return None

    def _spelled(self, root: fx.Node, variance: fx.Node) -> FoundCall | None:
        """The largest call around the square root of a variance."""
        channels = metadata(variance).shape[0]
        for end in reversed(self._ends(root, channels)):
            for x, parameters in self._operands(end, channels):
                others = [node for node in parameters if node is not variance]
                region = self.around.between(end, (x, *parameters)) if variance in parameters else None
                if region is None or not 1 <= len(others) <= 3:
                    continue
                for eps in find_epsilons([*region.nodes, *self.constants(region.nodes)]):
                    for mean, weight, bias in _roles(others):
                        found = self._call(end, (x, weight, bias, mean, variance), eps)
                        if found is not None and self.around.why_open(found.region) is None:
                            return found
        return None

    def _ends(self, root: fx.Node, channels: Any) -> list[fx.Node]:
        """The nodes where the norm may end, nearest first."""
        waiting, seen = [root], {root}
        for node in waiting:
            if _is_wide(node, channels):
                return list(self._chain(node))
            fresh = [user for user in node.users if user not in seen and user.op == "call_function"]
            seen.update(fresh)
            # Graphs of training use statistics in many places.
            waiting += fresh if len(waiting) < STEPS else []
        return []

    def _chain(self, node: fx.Node) -> Iterator[fx.Node]:
        """A node and the arithmetic calls that follow it."""
        current: fx.Node | None = node
        # Subtract, divide, multiply, add.
        for _ in range(4):
            if current is None or op_schema_name(current) not in ARITHMETIC:
                return
            yield current
            current = self.around.only_user(current)

    def _operands(self, end: fx.Node, channels: Any) -> Iterator[tuple[fx.Node, tuple[fx.Node, ...]]]:
        """The candidates for the normalized value, farthest up first, with the parameters of the rest."""
        wide = [end]
        for node in wide:
            above = self.around.data_inputs(node) if op_schema_name(node) in ARITHMETIC else []
            wide += [each for each in above if _is_wide(each, channels) and each not in wide and len(wide) < STEPS]
        for x in reversed(wide[1:]):
            parameters = self.parameters(end, x)
            if parameters is not None:
                yield x, parameters

    def _call(self, root: fx.Node, args: Sequence[Any], eps: Any) -> FoundCall | None:
        x, weight, bias, mean, variance = args
        # The flag as PyTorch's own `F.batch_norm` passes it.
        spelling = CallReading(aten.batch_norm.default, (False, 0.1, eps, torch.backends.cudnn.enabled))
        statistics = tuple(each for each in (mean, variance) if isinstance(each, fx.Node))
        if len(statistics) < 2 or any(metadata(each).requires_grad for each in statistics):
            return None
        return self.agreeing_call(root, "batch_norm", spelling, (x, weight, bias, mean, variance), statistics)


def _is_wide(node: fx.Node, channels: Any) -> bool:
    """Whether a node's value has several elements per channel."""
    if not is_float(node):
        return False
    shape = metadata(node).shape
    return len(shape) > 1 and shape[1] == channels and any(size != 1 for i, size in enumerate(shape) if i != 1)


def _roles(others: Sequence[fx.Node]) -> Iterator[tuple[Any, Any, Any]]:
    """All assignments of one to three parameters to mean, weight and bias."""
    padded = (*others, *[None] * (3 - len(others)))
    yield from dict.fromkeys(each for each in itertools.permutations(padded) if each[0] is not None)
