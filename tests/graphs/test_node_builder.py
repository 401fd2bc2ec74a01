"""Nodes appended directly leave a graph as `create_node` does, and only where nothing else listens."""

from __future__ import annotations

import torch
from torch import fx
from torch.nn import functional as F

from decomp.graphs import node_builder as appending
from decomp.graphs.node_builder import Appender


def source() -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x", type_expr=torch.Tensor)
    y = graph.call_function(torch.add, (x, [1, x][0]), {"alpha": 2})
    y.meta["note"] = "kept"
    graph.output((y, [graph.call_method("view", (y, (2, -1))), None]))
    return graph


def copy(appender: Appender, graph: fx.Graph) -> fx.Graph:
    values: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        values[node] = appender.copy(node, values)
    return appender.graph


def test_a_direct_copy_is_in_the_state_of_a_stock_copy():
    graph = source()
    direct = Appender(fx.Graph(), [])
    assert direct.direct
    stock = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        values[node] = stock.node_copy(node, values.__getitem__)
    assert appending._state(copy(direct, graph)) == appending._state(stock)
    direct.graph.lint()


def test_metadata_is_a_copy_of_its_own():
    graph = source()
    new = copy(Appender(fx.Graph(), []), graph)
    before, after = (list(g.nodes)[1] for g in (graph, new))
    assert after.meta == before.meta and after.meta is not before.meta


def test_names_given_later_never_clash():
    appender = Appender(fx.Graph(), ["add", "add_1"])
    x = appender.create("placeholder", "x", (), {}, "x")
    for _ in range(3):
        appender.create("call_function", torch.add, (x, 1), {}, appender.free("add"))
    later = [appender.graph.call_function(torch.add, (x, 1)) for _ in range(3)]
    names = [node.name for node in appender.graph.nodes]
    assert len(set(names)) == len(names) == 7
    assert names[1:4] == ["add_2", "add_3", "add_4"]
    assert {node.name for node in later}.isdisjoint(names[:4])


def test_a_graph_edits_as_any_other_afterwards():
    graph = copy(Appender(fx.Graph(), []), source())
    added = graph.find_nodes(op="call_function", target=torch.add)[0]
    with graph.inserting_after(added):
        new = graph.call_function(F.relu, (added,))
    added.replace_all_uses_with(new, lambda user: user is not new)
    graph.eliminate_dead_code()
    graph.lint()
    x = torch.ones(4)
    y, (z, nothing) = fx.GraphModule({}, graph)(x)
    assert torch.equal(y, 3 * x) and z.shape == (2, 2) and nothing is None


def test_a_graph_of_another_class_takes_the_public_way():
    class Counting(fx.Graph):
        made = 0

        def create_node(self, *args, **kwargs):
            self.made += 1
            return super().create_node(*args, **kwargs)

    graph = Counting()
    assert not Appender(graph, []).direct
    copy(Appender(graph, []), source())
    assert graph.made == 4


def test_a_graph_with_an_owner_takes_the_public_way_and_its_hooks_run():
    seen: list[str] = []
    module = fx.GraphModule({}, fx.Graph())
    module._register_create_node_hook(lambda node: seen.append(node.name))
    appender = Appender(module.graph, [])
    assert not appender.direct
    appender.create("placeholder", "x", (), {}, "x")
    assert seen == ["x"]


def test_a_patched_create_node_is_called(monkeypatch):
    graph, seen = source(), list[str]()
    stock = fx.Graph.create_node

    def patched(self, op, *args, **kwargs):
        seen.append(op)
        return stock(self, op, *args, **kwargs)

    monkeypatch.setattr(fx.Graph, "create_node", patched)
    copy(Appender(fx.Graph(), []), graph)
    assert seen == ["placeholder", "call_function", "call_method", "output"]


def test_unknown_internals_take_the_public_way(monkeypatch):
    monkeypatch.setattr(appending, "_internals_are_known", lambda: False)
    appender = Appender(fx.Graph(), [])
    assert not appender.direct
    assert appending._state(copy(appender, source()))[2] == 4


def test_the_internals_of_this_torch_are_known():
    assert appending._internals_are_known()


def test_a_name_that_create_node_would_not_give_is_kept_either_way(monkeypatch):
    graph = fx.Graph()
    node = graph.placeholder("input")
    graph._graph_namespace._rename_object(node, "input")
    node.name = "input"
    for known in (True, False):
        monkeypatch.setattr(appending, "_internals_are_known", lambda: known)
        assert next(iter(copy(Appender(fx.Graph(), ["input"]), graph).nodes)).name == "input"
