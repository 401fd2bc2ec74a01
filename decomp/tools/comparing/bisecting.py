"""Bisection of a program on a runtime whose intermediate values are expensive: each half is judged as a program of its
own, on the values that the runtime computed where it begins, so that errors before it do not count against it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from decomp.ir.arguments import nodes_in
from decomp.jobs import Progress
from decomp.tools.comparing.judging import PROGRAMS, judge_against
from decomp.tools.comparing.observing import Prefixes, calls_in, prefix_of, readable
from decomp.tools.comparing.references import expected_results, results_in_float64, results_in_pytorch


class Bisection:
    """Finds the shortest piece of a program that is wrong on its own operands."""

    def __init__(self, prefixes: Prefixes, progress: Progress) -> None:
        self.prefixes, self.progress = prefixes, progress
        self.calls = calls_in(prefixes.root.graph)
        self.values: dict[fx.Node, torch.Tensor] = {}
        self.runs = 0

    def find(self) -> list[fx.Node]:
        """The calls of this piece: one, or several if neither half of them is wrong."""
        start, end = 0, len(self.calls)
        self._fetch(end)
        while end - start > 1:
            middle = (start + end) // 2
            self._fetch(middle)
            self.progress(
                self.runs, len(self.calls).bit_length(), f"{self.calls[start].name} to {self.calls[end - 1].name}"
            )
            if self._is_wrong(start, middle):
                end = middle
            elif self._is_wrong(middle, end):
                start = middle
            else:
                break
        return self.calls[start:end]

    def _fetch(self, place: int) -> None:
        nodes = [node for node in self.border(place) if node not in self.values]
        self.values.update(self.prefixes.fetch(nodes))
        self.runs += 1

    def border(self, place: int) -> list[fx.Node]:
        """The values that the calls before a place compute and those after it read, or the program returns."""
        graph = self.prefixes.root.graph
        done = set(self.calls[:place])
        made = readable(self.calls[:place])
        if place == len(self.calls):
            returned = set(nodes_in(graph.output_node().args))
            return [node for node in made if node in returned]
        inside = {*done, *made}
        return [node for node in made if any(user not in inside for user in node.users)]

    def _is_wrong(self, start: int, end: int) -> bool:
        given, wanted = self.border(start), self.border(end)
        piece = piece_of(self.prefixes.root, given, wanted)
        operands = [*self.prefixes.inputs, *(self.values[node] for node in given)]
        own = results_in_pytorch(piece, operands)
        truth = expected_results(own, results_in_float64(piece, operands))
        return bool(judge_against(None, truth, [self.values[node] for node in wanted], times=PROGRAMS).problem)


def piece_of(root: fx.GraphModule, given: Sequence[fx.Node], wanted: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of a program that computes some values from its inputs and from other values, which become inputs."""
    prefix = prefix_of(root, [*given, *wanted])
    graph = prefix.graph
    outputs = list(nodes_in(graph.output_node().args))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node in outputs[: len(given)]:
        with graph.inserting_after(inputs[-1] if inputs else None):
            inputs.append(graph.placeholder(f"{node.name}_given"))
        node.replace_all_uses_with(inputs[-1])
    graph.output_node().args = (tuple(list(nodes_in(graph.output_node().args))[len(given) :]),)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    prefix.recompile()
    return prefix
