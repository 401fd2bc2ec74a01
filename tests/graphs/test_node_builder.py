"""Nodes appended directly leave a graph as `create_node` does, and only where nothing else listens."""

from __future__ import annotations

import torch
from torch import fx
from torch.nn import functional as F

from decomp.graphs import node_builder
from decomp.graphs.node_builder import is_plain, node_creator


def source() -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x", type_expr=torch.Tensor)
    y = graph.call_function(torch.add, (x, [1, x][0]), {"alpha": 2})
    y.meta["note"] = "kept"
    graph.output((y, [graph.call_method("view", (y, (2, -1))), None]))
    return graph


def filled(graph: fx.Graph) -> fx.Graph:
    """`graph` with a copy of the source made by its creator."""
    create, values = node_creator(graph), dict[fx.Node, fx.Node]()
    for node in source().nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = create(node.op, node.target, args, kwargs, node.name, node.type)
        values[node].meta.update(node.meta)
    return graph


def test_a_direct_copy_is_in_the_state_of_a_stock_copy():
    assert is_plain(fx.Graph())
    stock, values = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in source().nodes:
        values[node] = stock.node_copy(node, values.__getitem__)
    direct = filled(fx.Graph())
    assert node_builder._state(direct) == node_builder._state(stock)
    direct.lint()


def test_a_graph_edits_as_any_other_afterwards():
    graph = filled(fx.Graph())
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
    assert not is_plain(graph)
    assert filled(graph).made == 4


def test_a_graph_with_an_owner_takes_the_public_way_and_its_hooks_run():
    seen: list[str] = []
    module = fx.GraphModule({}, fx.Graph())
    module._register_create_node_hook(lambda node: seen.append(node.name))
    assert not is_plain(module.graph)
    node_creator(module.graph)("placeholder", "x", (), {}, "x")
    assert seen == ["x"]


def test_a_patched_create_node_is_called(monkeypatch):
    seen, stock = list[str](), fx.Graph.create_node

    def patched(self, op, *args, **kwargs):
        seen.append(op)
        return stock(self, op, *args, **kwargs)

    monkeypatch.setattr(fx.Graph, "create_node", patched)
    filled(fx.Graph())
    assert seen[-4:] == ["placeholder", "call_function", "call_method", "output"]


def test_unknown_internals_take_the_public_way(monkeypatch):
    monkeypatch.setattr(node_builder, "_internals_are_known", lambda: False)
    assert not is_plain(fx.Graph())
    assert node_builder._state(filled(fx.Graph()))[2] == 4


def test_the_internals_of_this_torch_are_known():
    assert node_builder._internals_are_known()


def test_a_name_that_create_node_would_not_give_is_kept_either_way(monkeypatch):
    assert fx.Graph().placeholder("input").name == "input_1"
    for known in (True, False):
        monkeypatch.setattr(node_builder, "_internals_are_known", lambda: known)
        assert node_creator(fx.Graph())("placeholder", "input", (), {}, "input").name == "input"
