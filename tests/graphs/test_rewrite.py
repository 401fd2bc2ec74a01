"""A rewrite keeps names and metadata, and knows which node comes from which, also over several rewrites."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn

from decomp.graphs import node_builder
from decomp.graphs.rewrite import Rewrite, copy_graph


def program() -> fx.Graph:
    """Two chunks of an input, added."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    both = graph.call_function(torch.chunk, (x, 2))
    first, second = (graph.call_function(operator.getitem, (both, i)) for i in range(2))
    added = graph.call_function(torch.add, (first, second))
    added.meta["note"] = "kept"
    graph.output((added,))
    return graph


def named(graph: fx.Graph, name: str) -> fx.Node:
    return next(node for node in graph.nodes if node.name == name)


def test_a_copy_keeps_names_metadata_and_calling_convention():
    source = fx.symbolic_trace(nn.Linear(2, 2)).graph
    list(source.nodes)[-2].meta["note"] = "kept"
    rewrite = copy_graph(source)
    assert [node.name for node in rewrite.graph.nodes] == [node.name for node in source.nodes]
    assert rewrite.graph._tracer_cls is source._tracer_cls
    assert type(rewrite.graph._codegen) is type(source._codegen) and rewrite.graph._codegen is not source._codegen
    last = list(rewrite.graph.nodes)[-2]
    assert last.meta == {**list(source.nodes)[-2].meta} and last.meta is not list(source.nodes)[-2].meta
    rewrite.graph.lint()


def test_every_node_comes_from_the_one_it_copies():
    source = program()
    rewrite = copy_graph(source)
    assert list(rewrite.origin.values()) == list(source.nodes)
    assert list(rewrite.values.values()) == list(rewrite.graph.nodes)


def halved() -> tuple[fx.Graph, Rewrite]:
    """The program with two slices instead of the chunk."""
    source = program()
    rewrite = Rewrite.of(source)
    for node in source.nodes:
        if node.target is torch.chunk:
            x = rewrite.values[node.args[0]]
            rewrite.replace(
                node,
                tuple(
                    rewrite.add("call_function", operator.getitem, (x, slice(2 * i, 2 * i + 2)), {}, "getitem", at=node)
                    for i in range(2)
                ),
            )
        else:
            rewrite.copy(node)
    return source, rewrite


def test_a_container_that_replaces_a_node_is_flattened():
    source, rewrite = halved()
    names = [node.name for node in rewrite.graph.nodes]
    assert names == ["x", "getitem_2", "getitem_3", "add", "output"], "names of the source belong to its copies"
    chunk = named(source, "chunk")
    assert [rewrite.origin[node] for node in rewrite.values[chunk]] == [chunk, chunk]
    assert rewrite.values[named(source, "getitem_1")] is named(rewrite.graph, "getitem_3")
    x = torch.arange(4.0)
    assert torch.equal(fx.GraphModule({}, rewrite.graph)(x)[0], x[:2] + x[2:])


def test_what_arguments_are_may_be_said_for_one_copy():
    source = program()
    rewrite = copy_graph(source)
    added, first = named(source, "add"), named(rewrite.graph, "getitem")
    new = rewrite.copy(added, lambda node: first)
    assert new.args == (first, first) and rewrite.values[added] is new


def test_a_node_in_the_place_of_another_has_its_name():
    source = program()
    rewrite = Rewrite.of(source)
    x = rewrite.copy(named(source, "x"))
    new = rewrite.add("call_function", torch.relu, (x,), {}, at=named(source, "chunk"))
    assert new.name == "chunk" and rewrite.origin[new] is named(source, "chunk")


@pytest.mark.parametrize("direct", [True, False])
def test_free_names_are_not_those_of_nodes_to_come(direct, monkeypatch):
    monkeypatch.setattr(node_builder, "_internals_are_known", lambda: direct)
    source = program()
    rewrite = Rewrite.of(source, without=[named(source, "chunk")])
    x = rewrite.copy(named(source, "x"))
    made = [
        rewrite.add("call_function", torch.relu, (x,), {}, name, at=named(source, "add"))
        for name in ("add", "getitem", "chunk", "add", "new")
    ]
    assert [node.name for node in made] == ["add_1", "getitem_2", "chunk", "add_2", "new"]
    later = rewrite.graph.call_function(torch.add, (x, 1))
    assert len({node.name for node in rewrite.graph.nodes}) == len(rewrite.graph.nodes), later.name


def test_many_names_of_one_kind_are_found_at_once():
    rewrite = Rewrite(fx.Graph())
    assert [rewrite.free("x") for _ in range(4)] == ["x", "x_1", "x_2", "x_3"]
    rewrite.names.add("x_4")
    assert rewrite.free("x") == "x_5"


def test_another_graph_is_put_into_the_place_of_a_call():
    source, body = program(), program()
    rewrite = Rewrite.of(source)
    x = rewrite.copy(named(source, "x"))
    call = named(source, "chunk")

    def make(node: fx.Node, args, kwargs) -> fx.Node:
        return rewrite.add(node.op, node.target, args, kwargs, f"{call.name}_{node.name}", at=call)

    values = rewrite.inline(body, [x], make)
    assert values[named(body, "x")] is x
    names = [node.name for node in rewrite.graph.nodes]
    assert names == ["x", "chunk_chunk", "chunk_getitem", "chunk_getitem_1", "chunk_add"]
    assert [n.op for n in body.nodes if n not in values] == ["output"]
    parts = rewrite.inline(body, [x], lambda node, args, kwargs: ("one", "two") if node.target is torch.chunk else args)
    assert parts[named(body, "add")] == ("one", "two"), "parts of a container cost no node"


def test_what_is_erased_is_forgotten():
    source = program()
    rewrite = copy_graph(source)
    added = named(rewrite.graph, "add")
    named(rewrite.graph, "output").args = ((),)
    rewrite.erase(added)
    assert added not in rewrite.origin and named(source, "add") not in rewrite.values
    assert added.graph is rewrite.graph and added not in list(rewrite.graph.nodes)


def test_one_rewrite_and_then_another_are_one():
    source, first = halved()
    second = copy_graph(first.graph)
    both = first.then(second)
    assert both.graph is second.graph
    chunk = named(source, "chunk")
    assert both.origin[named(both.graph, "getitem_2")] is chunk
    assert both.values[chunk] == tuple(named(both.graph, name) for name in ("getitem_2", "getitem_3"))
    assert set(both.origin) == set(both.graph.nodes) and set(both.origin.values()) <= set(source.nodes)


def test_nodes_dropped_by_the_second_rewrite_have_no_image():
    source = program()
    first = copy_graph(source)
    second = Rewrite.of(first.graph)
    x = second.copy(named(first.graph, "x"))
    new = second.add("call_function", torch.relu, (x,), {}, "new", at=named(first.graph, "add"))
    both = first.then(second)
    assert both.values == {named(source, "x"): x} and both.origin[new] is named(source, "add")


def test_a_node_from_elsewhere_maps_to_itself():
    rewrite, foreign = copy_graph(program()), fx.Graph().placeholder("y")
    assert rewrite.source_of(foreign) is foreign
    new = rewrite.add("call_function", torch.relu, (named(rewrite.graph, "x"),), {}, "new", at=foreign)
    assert copy_graph(rewrite.graph).source_of(new) is new
    assert rewrite.source_of(new) is foreign
