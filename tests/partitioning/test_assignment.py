"""Assignments of calls to chip and host are the cheapest, as exhaustive search finds them, and their parts are convex
and few."""

import math

from hypothesis import given, settings, strategies as st
import networkx as nx
import pytest
import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from decomp.partitioning.assignment import (
    AssignmentProblem,
    CrossingValue,
    PricedCall,
    cheapest,
    levels_of,
    supported_on_chip,
)
from tests.partitioning.problems import assignments, count_parts, exhaustive, problems

quick = settings(max_examples=60, deadline=None, database=None)


@quick
@given(problems())
def test_the_cheapest_assignment_is_that_of_exhaustive_search(problem):
    found = cheapest(problem)
    assert found.price == problem.price(found.chip) == pytest.approx(exhaustive(problem))
    assert found.exact


@quick
@given(problems(most=5, prices=st.integers(0, 9)))
def test_of_equally_cheap_assignments_the_one_with_most_calls_on_the_chip_is_taken(problem):
    found = cheapest(problem)
    equal = [chip for chip in assignments(problem) if problem.price(chip) == found.price]
    assert all(len(chip) <= len(found.chip) for chip in equal)


@quick
@given(problems(), st.data())
def test_parts_are_convex_and_as_few_as_any_split_into_convex_parts(problem, data):
    chip = data.draw(st.sets(st.integers(0, len(problem.calls) - 1)))
    levels = levels_of(problem, chip)
    graph = nx.DiGraph(list(problem.edges()))
    graph.add_nodes_from(range(len(problem.calls)))
    for level in {levels[i] for i in chip}:
        part = {i for i in chip if levels[i] == level}
        between = {i for a in part for b in part for path in nx.all_simple_paths(graph, a, b) for i in path}
        assert between <= part
    # A path that enters the chip n times needs n parts.
    assert count_parts(problem, chip) == max(_entries(path, chip) for path in _paths(graph))


def _paths(graph):
    for start in graph:
        yield [start]
        for end in graph:
            yield from nx.all_simple_paths(graph, start, end) if start != end else ()


def _entries(path, chip):
    """How many times a path enters the chip."""
    return sum(own in chip and before not in chip for before, own in zip([None, *path], path))


@quick
@given(problems(), st.data())
def test_levels_are_an_order_in_which_the_parts_can_run(problem, data):
    chip = data.draw(st.sets(st.integers(0, len(problem.calls) - 1)))
    levels = levels_of(problem, chip)
    place = [(level, i not in chip) for i, level in enumerate(levels)]
    assert all(place[first] <= place[second] for first, second in problem.edges())


def test_a_value_that_several_calls_read_is_transferred_once():
    reads = AssignmentProblem(
        (PricedCall(1, 100), PricedCall(None, 1), PricedCall(None, 1)),
        (CrossingValue(None, (0,), 10), CrossingValue(0, (1, 2), 10)),
    )
    assert cheapest(reads).chip == {0}
    assert cheapest(reads).price == 1 + 1 + 1 + 10 + 10


def test_a_call_between_two_host_calls_stays_with_them_if_the_transfers_cost_more_than_it_saves():
    def chain(transfer):
        calls = (PricedCall(None, 1), PricedCall(1, 8), PricedCall(None, 1))
        return AssignmentProblem(calls, (CrossingValue(0, (1,), transfer), CrossingValue(1, (2,), transfer)))

    assert cheapest(chain(3)).chip == {1}
    assert cheapest(chain(4)).chip == frozenset()


def test_calls_that_belong_together_run_on_one_side():
    calls = (PricedCall(1, 5), PricedCall(None, 1))
    assert cheapest(AssignmentProblem(calls, ())).chip == {0}
    assert cheapest(AssignmentProblem(calls, (), together=((0, 1),))).chip == frozenset()
    assert AssignmentProblem(calls, (), together=((0, 1),)).price({0}) == math.inf


class _Supports(OperatorSupportBase):
    def __init__(self, names):
        self.names = names

    def is_node_supported(self, submodules, node):
        return node.name in self.names


@quick
@given(problems())
def test_no_assignment_is_dearer_than_that_of_the_partitioner_of_torch(problem):
    chip = _partitioned_by_torch(problem)
    if not problem.together:  # which it does not know
        assert chip == supported_on_chip(problem).chip
    assert cheapest(problem).price <= min(problem.price(chip), supported_on_chip(problem).price) * (1 + 1e-9)


def _partitioned_by_torch(problem):
    """The calls in the partitions of `CapabilityBasedPartitioner`."""
    graph = fx.Graph()
    inputs = {id(value): graph.placeholder(f"x{id(value)}") for value in problem.values if value.producer is None}
    nodes = []
    for i in range(len(problem.calls)):
        reads = [
            inputs[id(value)] if value.producer is None else nodes[value.producer]
            for value in problem.values
            if i in value.users
        ]
        nodes.append(graph.call_function(torch.cat, (reads,)))
    graph.output([nodes[v.producer] for v in problem.values if v.returned and v.producer is not None])
    names = {node.name: i for i, node in enumerate(nodes)}
    supported = {node.name for node, call in zip(nodes, problem.calls) if call.chip is not None}
    module = fx.GraphModule(torch.nn.Module(), graph)
    partitioner = CapabilityBasedPartitioner(module, _Supports(supported), allows_single_node_partition=True)
    return {names[node.name] for part in partitioner.propose_partitions() for node in part.nodes}
