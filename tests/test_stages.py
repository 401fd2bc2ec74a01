"""The stages of a lowering as text: what each has, where each node comes from, and why."""

import itertools

import torch
from torch import nn
from typer.testing import CliRunner

import decomp
from decomp.ir.stages import stage_of
from decomp.tools.cli.app import app
from decomp_rules import targets

CHIP = decomp.Target("chip", ["gt", "where", "mul", "add"])
RULES = decomp.Rules({"relu": lambda x: torch.where(x > 0, x, 0)})


class Model(nn.Module):
    def forward(self, x):
        y = x * 2
        y.relu_()
        return y + y * 1


def lowered(**how):
    return decomp.lower(Model(), to=CHIP, args=(torch.randn(3),), rules=RULES, **how)


def test_each_stage_is_text_with_types_sources_and_justifications():
    stages = lowered().stages
    assert list(stages) == ["capture", "functionalize", "expand", "simplify"]
    assert "%mul: f32[3] = aten.mul.Tensor(%x, 2)  # test_stages.py:20 y = x * 2" in str(stages["capture"])
    assert "%relu_: f32[3] = aten.relu.default(%mul)  # relu_: made functional" in str(stages["functionalize"])
    expanded = str(stages["expand"])
    assert "expand: 5 calls" in expanded and "return (%add,)" in expanded
    assert "%relu__gt: b8[3] = aten.gt.Scalar(%mul, 0)  # relu_: <lambda> (test_stages.py:15)" in expanded
    assert "%mul: f32[3] = aten.mul.Tensor(%x, 2)\n" in expanded


def test_nodes_name_where_they_come_from():
    stages = lowered().stages
    assert stages["expand"]["relu__gt"].source == "relu_"
    assert stages["functionalize"]["relu_"].why == "made functional"
    assert stages["expand"]["mul"].why == "copied"
    assert stages["capture"]["x"].call == "" and stages["capture"]["x"].type == "f32[3]"


def test_there_are_as_many_stages_as_there_were():
    assert list(lowered(simplify=False).stages) == ["capture", "functionalize", "expand"]


def test_every_source_is_a_node_of_the_stage_before():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.BatchNorm1d(8))
    lowering = decomp.lower(model, to=targets.tinygrad, args=(torch.randn(3, 4),))
    stages = [*lowering.stages.values()]
    for before, after in itertools.pairwise(stages):
        known = {node.name for graph in before.graphs for node in graph.nodes}
        assert {node.source for graph in after.graphs for node in graph.nodes} - {""} <= known
    assert stages[-1].calls == len(decomp.calls(lowering.result))


def test_laws_and_merged_calls_are_named():
    def function(x):
        return (x + x).view(3, 2).view(2, 3) * (x + x)

    class Twice(nn.Module):
        def forward(self, x):
            return function(x)

    chip = decomp.Target("chip", ["mul", "add", "view"])
    lowering = decomp.lower(Twice(), to=chip, args=(torch.randn(2, 3),), training=False)
    why = lowering.stages["simplify"]["add"].why
    assert "replaces add_1, the same call; view_1 (view of a view, view to the same shape)" in why


def test_bodies_of_higher_order_ops_have_graphs_of_their_own():
    class Branches(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    stages = decomp.lower(Branches(), to=targets.tinygrad, args=(torch.ones(3),)).stages
    assert [graph.name for graph in stages["capture"].graphs] == ["", "true_graph_0", "false_graph_0"]
    assert "\ntrue_graph_0:\n" in str(stages["expand"])


def test_symbolic_sizes_are_shown_by_name():
    rows = {0: torch.export.Dim("rows")}
    lowering = decomp.lower(Model(), to=CHIP, rules=RULES, args=(torch.randn(3, 4),), dynamic_shapes=(rows,))
    assert lowering.stages["expand"]["mul"].type.startswith("f32[s")


def test_the_command_prints_stages_and_knows_their_names():
    words = ["lower", "mlp", "--to", "tinygrad", "--no-verify", "--stage", "expand", "--stage", "simplify"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0 and "\nexpand: 11 calls\n" in found.output
    assert "\nsimplify: changed nothing\n" in found.output
    assert "'fuse' is not one of 'capture'" in CliRunner().invoke(app, [*words[:5], "--stage", "fuse"]).output


def test_a_stage_counts_calls_as_the_report_does():
    class Split(nn.Module):
        def forward(self, x):
            left, right = x.split(2, -1)
            return torch.nn.functional.gelu(left) * right + torch.arange(2) + x.shape[0]

    source = torch.export.export(Split(), (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    lowering = decomp.lower(source, to=targets.tinygrad)
    *_, last = lowering.stages.values()
    assert last.calls == sum(lowering.report().after.values()) < sum(bool(node.call) for node in last.graphs[0].nodes)


def passes_of(graph):
    """A graph and those that it was made from, the last first."""
    while graph is not None:
        yield graph
        graph = graph.before


def test_a_program_is_text_after_every_pass():
    class Rotating(nn.Module):
        def forward(self, x, z):
            y = x.double() * 2
            y.relu_()
            return (y + y + (y + y)).float(), torch.view_as_real(z * z)

    chip = targets.tinygrad.with_dtypes(["float32", "float64", "int32", "bool"])
    args = torch.randn(3), torch.randn(3, dtype=torch.complex64)
    lowering = decomp.lower(Rotating(), to=chip, args=args, training=False)
    graphs = list(passes_of(lowering.internals.pieces[0]))
    assert [graph.by for graph in graphs] == ["simplify", "expand", "split complex", "functionalize", "capture"]
    for graph in graphs:
        assert str(stage_of([graph])).startswith(f"{graph.by}: ")
    assert "# z: split complex" in str(stage_of([graphs[2]]))
    assert "%mul_1_sub: f32[3] = aten.sub.Tensor(%mul_1_mul, %mul_1_mul_1)  # mul_1: mul (" in str(
        stage_of([graphs[2]])
    )
    assert "# relu_: functionalize" in str(stage_of([graphs[3]]))
    assert str(lowering.internals.program).startswith("capture: ")
    known = [{node.name for node in graph.graph.nodes} for graph in graphs]
    for graph, names in zip(graphs, known[1:]):
        assert {node.source for node in stage_of([graph]).graphs[0].nodes} - {""} <= names
