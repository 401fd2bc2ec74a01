"""Folding a lowering back by its provenance."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp.graphs.snapshot import snapshot
from decomp.ir.call import calls
from decomp.ir.module import ProgramGraph
from decomp.proof.correspondence import EffectsChanged
from decomp.refolding.programs import fold_graph
from decomp.refolding.proving import verify_refolding
from decomp.refolding.records import MERGED
from decomp.refolding.refolding import refold
from decomp_rules import targets
from decomp_rules.samples.models import MODELS, model
from tests.regions import move_out, sine_with_and_without_gradients

aten = torch.ops.aten


class Small(nn.Module):
    """Layer norm, GELU and softmax, one after the other."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return F.softmax(F.gelu(self.norm(x)), -1)


X = torch.randn(3, 8)


def lowered(module=None, to=targets.tinygrad, args=(X,), **options):
    return decomp.lower(module or Small(), to=to, args=args, **options)


def exported(module=None, args=(X,), **options):
    return torch.export.export(module or Small(), args, **options)


def ops(program):
    return Counter(str(call.op).removeprefix("aten.") for call in calls(program))


def missed(refolding):
    return {each.op: each.reason for each in refolding.missed}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("to", [targets.tinygrad, targets.stablehlo], ids=lambda to: to.name)
def test_every_op_of_a_sample_model_comes_back(name, to):
    module, args = model(name)
    source = exported(module, args)
    lowering = decomp.lower(source, to=to)
    refolding = refold(lowering, verify="values")
    same = Counter(each.op.split(".")[1] for each in refolding.missed if each.reason == MERGED)
    assert [each for each in refolding.missed if each.reason != MERGED] == []
    expected = sum((ops(piece.planned.graph) for piece in lowering.internals.pieces), Counter())
    assert ops(refolding.result) == expected - same
    assert set(same) <= {"dropout"}


def test_what_folds_back_whole_is_the_source_node_for_node():
    source = exported()
    result = refold(decomp.lower(source, to=targets.tinygrad)).result
    assert isinstance(result, torch.export.ExportedProgram)
    assert [(n.name, n.target) for n in result.graph.nodes] == [(n.name, n.target) for n in source.graph.nodes]
    assert [n.meta.get("val") for n in result.graph.nodes] == [n.meta.get("val") for n in source.graph.nodes]
    assert result.graph_signature == source.graph_signature
    torch.testing.assert_close(result.module()(X), source.module()(X), rtol=0, atol=0)


def test_a_module_comes_back_as_a_module():
    for lowering in (lowered(), decomp.lower(fx.symbolic_trace(Small()), to=targets.tinygrad, args=(X,))):
        result = refold(lowering).result
        assert isinstance(result, fx.GraphModule)
        assert ops(result) == {"layer_norm": 1, "gelu": 1, "softmax": 1}
        torch.testing.assert_close(result(X), lowering.internals.model(X), rtol=0, atol=0)


def test_the_lowered_program_stays_as_it_is():
    lowering = decomp.lower(exported(), to=targets.tinygrad)
    before, state = snapshot(lowering.result.graph), dict(lowering.result.constants)
    refold(lowering)
    assert snapshot(lowering.result.graph) == before and lowering.result.constants == state
    decomp.verify(lowering.internals.model, lowering)


def test_tensors_of_rules_go_with_the_nodes_that_used_them():
    table = torch.arange(8.0)
    rules = decomp.Rules()

    @rules.register(F.relu)
    def relu(x):
        return torch.where(x > 0, x, 0) + 0 * table

    class Model(nn.Module):
        def forward(self, x):
            return F.relu(x)

    lowering = decomp.lower(exported(Model()), to=decomp.Target("t", ["where", "gt", "add", "mul"]), rules=rules)
    assert len(lowering.result.graph_signature.input_specs) == 2
    result = refold(lowering).result
    assert [spec.arg.name for spec in result.graph_signature.input_specs] == ["x"] and not result.constants
    torch.testing.assert_close(result.module()(X), F.relu(X))


def test_only_ops_of_the_target_come_back():
    refolding = refold(lowered(), to=decomp.Target("chip", ["gelu", "softmax"]))
    assert [each.op for each in refolding.folded] == ["aten.gelu.default", "aten.softmax.int"]
    assert missed(refolding) == {"aten.layer_norm.default": "not in chip"}
    assert "layer_norm" not in ops(refolding.result)
    few = decomp.Target("few", ["gelu"]).legal_if("gelu", lambda call: call.argument("approximate") == "tanh", "tanh")
    assert missed(refold(lowered(), to=few))["aten.gelu.default"] == "not in few: tanh"


def test_ops_may_be_listed():
    assert set(ops(refold(lowered(), to=[F.gelu]).result)) > {"gelu"}
    with pytest.raises(decomp.errors.ArgumentError, match="to= must be a decomp.Target or a list of ops, not int"):
        refold(lowered(), to=3)


def test_a_lowering_to_another_target_folds_to_what_that_one_knows():
    refolding = refold(lowered(), to=targets.core_aten)
    assert missed(refolding) == {"aten.layer_norm.default": "not in core_aten", "aten.softmax.int": "not in core_aten"}
    assert ops(refolding.result)["gelu"] == 1


# What was changed since.


def edited(change, module=None):
    """The refolding of a lowering whose graph was changed in place."""
    lowering = decomp.lower(exported(module), to=targets.tinygrad)
    graph = lowering.result.graph
    change(graph, {node.name: node for node in graph.nodes})
    graph.lint()
    return refold(lowering)


def inside(lowering, op):
    """Nodes on the way to the value of an op."""
    [source] = [
        n for n in lowering.internals.pieces[0].planned.graph.nodes if n.op == "call_function" and op in str(n.target)
    ]
    origin = lowering.internals.pieces[0].expanded.edges.origin
    return [n for n in lowering.result.graph.nodes if origin.get(n) is source and n.name != source.name]


def test_an_op_stays_whose_nodes_were_changed():
    lowering = decomp.lower(exported(), to=targets.tinygrad)
    node = next(n for n in inside(lowering, "gelu") if n.target is aten.mul.Tensor)
    node.target = aten.add.Tensor
    refolding = refold(lowering)
    assert missed(refolding) == {"aten.gelu.default": f"{node.name!r} is another call now"}
    assert len(refolding.folded) == 2
    torch.testing.assert_close(refolding.result.module()(X), lowering.result.module()(X))


def test_an_op_stays_whose_constant_was_changed():
    lowering = decomp.lower(exported(), to=targets.tinygrad)
    node = next(n for n in inside(lowering, "gelu") if isinstance(n.args[-1], float))
    node.args = (*node.args[:-1], 3.0)
    refolding = refold(lowering)
    assert missed(refolding) == {"aten.gelu.default": f"{node.name!r} was changed"}
    torch.testing.assert_close(refolding.result.module()(X), lowering.result.module()(X))


def test_an_op_stays_of_which_a_value_on_the_way_is_used():
    lowering = decomp.lower(exported(), to=targets.tinygrad)
    graph, node = lowering.result.graph, inside(lowering, "gelu")[3]
    last = graph.output_node().args[0][0]
    with graph.inserting_before(graph.output_node()):
        twice = graph.call_function(aten.mul.Tensor, (node, 2.0))
        total = graph.call_function(aten.add.Tensor, (last, twice))
    for new in (twice, total):
        new.meta["val"] = node.meta["val"].clone()
    graph.output_node().args = ((total,),)
    lowering.result.graph_signature.output_specs[0].arg.name = total.name
    refolding = refold(lowering)
    reason = f"the intermediate value {node.name!r} is used by {twice.name!r} now"
    assert missed(refolding) == {"aten.gelu.default": reason}


def test_an_op_whose_operand_was_replaced_takes_the_new_one():
    def quantized(graph, nodes):
        norm = nodes["layer_norm"]
        with graph.inserting_after(norm):
            new = graph.call_function(aten.round.default, (norm,))
        new.meta["val"] = norm.meta["val"].clone()
        norm.replace_all_uses_with(new)
        new.args = (norm,)

    refolding = edited(quantized)
    assert missed(refolding) == {}
    gelu = next(n for n in refolding.result.graph.nodes if n.target is aten.gelu.default)
    assert gelu.args[0].target is aten.round.default
    expected = F.softmax(F.gelu(Small().norm(X).round()), -1)
    torch.testing.assert_close(refolding.result.module()(X), expected)


def test_an_op_stays_whose_operand_was_replaced_in_a_part_of_it():
    def partly(graph, nodes):
        norm = nodes["layer_norm"]
        with graph.inserting_after(norm):
            new = graph.call_function(aten.neg.default, (norm,))
        new.meta["val"] = norm.meta["val"].clone()
        first = next(iter(norm.users))
        first.replace_input_with(norm, new)
        new.args = (norm,)

    reasons = missed(edited(partly))
    assert list(reasons) == ["aten.gelu.default"]


def test_an_op_stays_whose_operand_has_another_dtype_now():
    def halved(graph, nodes):
        norm = nodes["layer_norm"]
        with graph.inserting_after(norm):
            new = graph.call_function(aten._to_copy.default, (norm,), {"dtype": torch.float64})
        new.meta["val"] = norm.meta["val"].double()
        norm.replace_all_uses_with(new)
        new.args = (norm,)

    lowering = decomp.lower(exported(), to=targets.tinygrad)
    halved(lowering.result.graph, {n.name: n for n in lowering.result.graph.nodes})
    reasons = missed(refold(lowering))
    reason = "its operand 'layer_norm' is now '_to_copy_default', of another shape or dtype"
    assert reasons["aten.gelu.default"] == reason


def test_an_op_stays_whose_value_was_removed():
    def removed(graph, nodes):
        nodes["softmax"].replace_all_uses_with(nodes["gelu"])
        graph.eliminate_dead_code()

    refolding = edited(removed)
    assert missed(refolding) == {"aten.softmax.int": "its value 'softmax' was removed"}
    assert set(ops(refolding.result)) == {"layer_norm", "gelu"}


def test_a_program_put_in_the_place_of_the_result_is_read_by_name():
    lowering = decomp.lower(fx.symbolic_trace(Small()), to=targets.tinygrad, args=(X,))
    copy = fx.GraphModule(lowering.result, fx.Graph())
    copy.graph = lowering.result.graph.__deepcopy__({})
    lowering.result = copy
    assert ops(refold(lowering).result) == {"layer_norm": 1, "gelu": 1, "softmax": 1}


# What programs have beside plain calls.


def test_bodies_of_control_flow_fold_too():
    class Branches(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: F.gelu(x), lambda x: F.softmax(x, -1), (x,))

    lowering = decomp.lower(exported(Branches()), to=targets.tinygrad)
    refolding = refold(lowering, verify="values")
    found = ops(refolding.result)
    assert found["gelu"] == 1 and found["softmax"] == 1 and not refolding.missed


def test_buffers_are_written_back_as_before():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x):
            self.seen.copy_(F.softplus(self.seen + x.sum(0)))
            return F.gelu(x) + self.seen

    for program in (Counting(), exported(Counting())):
        args = (X,) if isinstance(program, nn.Module) else None
        lowering = decomp.lower(program, to=targets.tinygrad, args=args)
        refolding = refold(lowering, verify="values")
        assert ops(refolding.result)["softplus"] == 1 and not refolding.missed


def test_several_results_are_taken_apart_again():
    class Top(nn.Module):
        def forward(self, x):
            values, places = torch.ops.aten.max.dim(x, 1)
            whole = torch.ops.aten.native_layer_norm(x, [8], None, None, 1e-5)
            return values + places, whole[0], whole[2]

    to = decomp.Target("t", targets.tinygrad) - ["max.dim"]
    source = exported(Top())
    refolding = refold(decomp.lower(source, to=to), verify="values")
    assert not refolding.missed
    found = {n.name for n in refolding.result.graph.nodes}
    assert found == {n.name for n in source.graph.nodes} - {"getitem_3"}


def test_random_draws_fold_too():
    class Drops(nn.Module):
        def forward(self, x):
            return F.dropout(F.gelu(x), 0.5, training=True)

    refolding = refold(decomp.lower(exported(Drops()), to=targets.tinygrad))
    assert ops(refolding.result) == {"gelu": 1, "dropout": 1}


def test_calls_stay_in_their_no_grad_regions():
    class Regions(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                y = F.softmax(x, -1)
            return F.gelu(x) * y

    x = X.clone().requires_grad_()
    lowering = decomp.lower(exported(Regions(), (x,)), to=targets.tinygrad)
    result = refold(lowering, verify="values").result
    one, other = (torch.autograd.grad(m(x).sum(), x)[0] for m in (Regions(), result.module()))
    torch.testing.assert_close(one, other)


def test_a_call_that_left_its_region_is_found_out():
    source = sine_with_and_without_gradients()
    refolded = fold_graph(ProgramGraph(source.graph, source), [])
    assert "every call is in its region of 3" in verify_refolding(source, source, [refolded], True, None).checks
    move_out(refolded.graph)
    with pytest.raises(EffectsChanged, match="'sin_default' moved out of its no_grad or autocast region"):
        verify_refolding(source, source, [refolded], True, None)


def test_dynamic_sizes_stay_dynamic():
    source = exported(dynamic_shapes=({0: torch.export.Dim("n")},))
    result = refold(decomp.lower(source, to=targets.tinygrad)).result
    assert result.range_constraints == source.range_constraints
    wide = torch.randn(7, 8)
    torch.testing.assert_close(result.module()(wide), source.module()(wide), rtol=0, atol=0)


def test_a_node_knows_where_it_comes_from():
    lowering = decomp.lower(exported(), to=targets.tinygrad)
    refolding = refold(lowering, to=[F.gelu])
    gelu = refolding.provenance("gelu")
    assert (gelu.source, gelu.op, gelu.chain) == ("gelu", "aten.gelu.default", ())
    kept = next(n for n in refolding.result.graph.nodes if n.target is aten.exp2.default)
    assert refolding.provenance(kept) == lowering.provenance(kept.name)


def test_what_has_no_graph_is_refused():
    with pytest.raises(decomp.CaptureError, match="cannot lower function; pass an nn.Module, a GraphModule or an"):
        refold(F.relu)


def test_the_report_counts_what_came_back():
    report = refold(lowered(), to=[F.gelu, F.softmax]).report()
    assert str(report).splitlines()[0].startswith("refolded to the ops given: ")
    assert "; 2 folded, 0 missed" in report.headline
    assert "  aten.gelu.default" in str(report) and "not in the ops given" in str(report)
    assert report.as_dict()["folded"][0]["by"] == "provenance"
