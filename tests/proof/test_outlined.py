"""Composites ruined after they were lowered: their bodies, and what their calls say, are verified as the rest is."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.ir.composites import KEY, composites_in
from decomp.proof.correspondence import VerificationError
from decomp_rules import targets

aten = torch.ops.aten


class Model(nn.Module):
    """A composite with operands that could be mixed up, and one that is used twice."""

    def forward(self, x, y):
        return torch.atan2(F.gelu(x), F.gelu(y)) * 2


def body_of(result):
    module = result.graph_module if hasattr(result, "graph_module") else result
    return module.atan2_composite_0


def node_of(module, target):
    node = next(node for node in module.graph.nodes if node.target == target and len(node.all_input_nodes) == 2)
    return node


def swapped_operands(result):
    node = node_of(body_of(result), aten.mul.Tensor)
    node.args = node.args[::-1]
    body_of(result).recompile()


def dropped_node(result):
    body = body_of(result)
    node = node_of(body, aten.mul.Tensor)
    node.replace_all_uses_with(node.args[0])
    body.graph.erase_node(node)
    body.recompile()


def another_op(result):
    node = node_of(body_of(result), aten.mul.Tensor)
    node.target = aten.add.Tensor
    body_of(result).recompile()


def added_node(result):
    body = body_of(result)
    node = node_of(body, aten.mul.Tensor)
    with body.graph.inserting_after(node):
        more = body.graph.call_function(aten.mul.Tensor, (node, node))
    more.meta = dict(node.meta)
    node.replace_all_uses_with(more, lambda user: user is not more)
    body.recompile()


def another_result(result):
    body = body_of(result)
    body.graph.output_node().args = ((body.graph.find_nodes(op="placeholder")[0],),)
    body.recompile()


def swapped_operands_of_the_call(result):
    node = next(node for node in result.graph.nodes if node.name == "atan2_composite")
    node.args = (node.args[0], *node.args[:0:-1])


def another_body(result):
    calls = {node.name: node for node in composites_in(result.graph)}
    calls["gelu_composite"].args = (calls["atan2_composite"].args[0], *calls["gelu_composite"].args[1:])


def wrong_attribute(result):
    node = next(iter(composites_in(result.graph)))
    node.meta["custom"][KEY]["attributes"]["approximate"] = "tanh"


def wrong_name(result):
    next(iter(composites_in(result.graph))).meta["custom"][KEY]["name"] = "aten.relu"


def unmarked(result):
    del next(iter(composites_in(result.graph))).meta["custom"]


SABOTAGES = (
    swapped_operands,
    dropped_node,
    another_op,
    added_node,
    another_result,
    swapped_operands_of_the_call,
    another_body,
    wrong_attribute,
    wrong_name,
    unmarked,
)


@pytest.mark.each_row
@pytest.mark.parametrize("kind", ["module", "program", "program, not simplified"])
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_a_ruined_composite_is_seen(sabotage, kind):
    args = torch.randn(3, 4), torch.randn(3, 4)
    source, given = (Model(), args) if kind == "module" else (torch.export.export(Model(), args), None)
    simplify = "not simplified" not in kind
    lowering = decomp.lower(source, to=targets.tinygrad, args=given, composites={"atan2", "gelu"}, simplify=simplify)
    decomp.verify(source, lowering, full=True)
    sabotage(lowering.result)
    with pytest.raises(VerificationError):
        decomp.verify(source, lowering)
