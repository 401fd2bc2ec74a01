"""The proof of a lowering: each invariant holds for a sound one, and each broken one is named, word for word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import operator
import sys
from typing import Any

import pytest
import torch
from torch import fx, nn

from decomp.proof.checks import check
from decomp.proof.correspondence import (
    CodegenChanged,
    Correspondence,
    Dangling,
    DeadCodeAdded,
    IllegalCall,
    InventedDependency,
    MalformedExpansion,
    MetadataChanged,
    NameClash,
    OutOfOrder,
    OutputsChanged,
    PlaceholdersChanged,
    ValueLost,
    VerificationError,
    WithoutOrigin,
)
from decomp.proof.reachability import reached_among
from tests.proof.paired_graphs import Pair, broken, fake, lowering, node_of, with_metadata

aten = torch.ops.aten


def test_a_sound_lowering_is_proved() -> None:
    proof = check(lowering())
    assert (proof.nodes, proof.expansions) == (6, 0)
    assert proof.checks == (
        "no reference dangles, users and inputs agree",
        "every node comes after its inputs, so there is no cycle",
        "names are distinct",
        "the same 2 placeholders",
        "the same outputs in the same structure",
        "the same codegen",
        "0 expansions are acyclic and without dead code",
        "each of 5 values has a lowered value",
        "contracted to its 5 source nodes, it has no new dependency",
        "shape, dtype and device of 0 values unchanged",
        "the same 0 effects in the same order",
        "no regions to keep",
        "no dead code added",
        "all 3 calls are legal",
    )


def test_full_adds_networkx_and_lint_over_every_node() -> None:
    added = check(lowering(), full=True).checks[len(check(lowering()).checks) :]
    assert added == ("networkx finds no cycle in 6 nodes", "the graph lints")


def test_a_node_may_not_stand_before_its_input() -> None:
    bad = lowering()
    node_of(bad.lowered, "gelu").append(node_of(bad.lowered, "gelu_square"))
    assert broken(bad, OutOfOrder) == (
        "'gelu' comes before its input 'gelu_square'\n"
        "  lowered node 'gelu' (call_function aten.mul.Tensor)\n"
        "  source node 'gelu' (call_function aten.gelu.default)"
    )


def test_a_cycle_is_out_of_order() -> None:
    bad = lowering()
    node_of(bad.lowered, "gelu_square").update_arg(1, node_of(bad.lowered, "gelu"))
    assert broken(bad, OutOfOrder).startswith("'gelu_square' comes before its input 'gelu'\n")


def test_an_erased_node_dangles() -> None:
    bad = lowering()
    ghost = bad.lowered.create_node("call_function", aten.neg.default, (node_of(bad.lowered, "x"),), name="ghost")
    bad.lowered.erase_node(ghost)
    node_of(bad.lowered, "add").update_arg(1, ghost)
    assert broken(bad, Dangling) == (
        "'add' reads 'ghost', which was erased\n"
        "  lowered node 'add' (call_function aten.add.Tensor)\n"
        "  source node 'add' (call_function aten.add.Tensor)"
    )


def test_a_node_of_the_source_dangles() -> None:
    bad = lowering()
    node_of(bad.lowered, "add").update_arg(1, node_of(bad.source, "y"))
    assert broken(bad, Dangling).startswith("'add' reads 'y', which belongs to another graph\n")


def test_users_must_list_who_reads() -> None:
    bad = lowering()
    node_of(bad.lowered, "y").users.clear()
    assert broken(bad, Dangling).startswith("'add' reads 'y', which does not list it as a user\n")


def test_users_must_not_list_who_does_not_read() -> None:
    bad = lowering()
    node_of(bad.lowered, "y").users[node_of(bad.lowered, "gelu")] = None
    assert broken(bad, Dangling) == (
        "'y' lists the user 'gelu', which does not read it\n  lowered node 'y' (placeholder y)"
    )


def test_names_are_distinct() -> None:
    bad = lowering()
    object.__setattr__(node_of(bad.lowered, "gelu_square"), "name", "gelu")
    assert broken(bad, NameClash) == (
        "two nodes are named 'gelu'\n"
        "  lowered node 'gelu' (call_function aten.mul.Tensor)\n"
        "  source node 'gelu' (call_function aten.gelu.default)"
    )


def test_placeholders_keep_their_order() -> None:
    bad = lowering()
    node_of(bad.lowered, "y").append(node_of(bad.lowered, "x"))
    assert broken(bad, PlaceholdersChanged) == "the placeholders changed\n  expected: x, y\n  found: y, x"


def test_a_new_placeholder_must_be_declared() -> None:
    bad = lowering()
    with bad.lowered.inserting_before(node_of(bad.lowered, "x")):
        bad.lowered.placeholder("table")
    assert broken(bad, PlaceholdersChanged) == "the placeholders changed\n  expected: x, y\n  found: table, x, y"
    check(replace(bad, added=frozenset({"table"})))


def test_the_output_is_the_image_of_the_output() -> None:
    bad = lowering()
    bad.lowered.output_node().args = ((node_of(bad.lowered, "gelu"),),)
    assert broken(bad, OutputsChanged) == (
        "the outputs changed\n"
        "  lowered node 'output' (output output)\n"
        "  source node 'output' (output output)\n"
        "  expected: (add,)\n"
        "  found: (gelu,)"
    )


def test_the_container_of_the_outputs_is_kept() -> None:
    bad = lowering()
    bad.lowered.output_node().args = ([node_of(bad.lowered, "add")],)
    assert broken(bad, OutputsChanged).endswith("  expected: (add,)\n  found: [add]")


def test_written_back_values_come_before_the_outputs() -> None:
    pair = Pair()
    x, _ = pair.both("placeholder", "x")
    pair.both("call_function", aten.neg.default, x, name="written")
    y, _ = pair.both("call_function", aten.sin.default, x, name="y")
    good = pair.returning(y)
    written, result = node_of(good.lowered, "written"), node_of(good.lowered, "y")
    good.lowered.output_node().args = ((written, result),)
    broken(good, OutputsChanged)
    check(replace(good, writes=(written,)))


def test_trailing_copies_write_back_what_was_declared() -> None:
    good = lowering()
    x, add = node_of(good.lowered, "x"), node_of(good.lowered, "add")
    with good.lowered.inserting_before(good.lowered.output_node()):
        good.lowered.call_function(aten.copy_.default, (x, add))
    assert broken(good, WithoutOrigin) == (
        "'copy__default' comes from no node of the source\n"
        "  lowered node 'copy__default' (call_function aten.copy_.default)"
    )
    check(replace(good, writes=(add,)))


def test_the_codegen_is_kept() -> None:
    bad = lowering()
    bad.lowered.set_codegen(type("Other", (fx.graph.CodeGen,), {})())
    assert broken(bad, CodegenChanged) == "the codegen changed\n  expected: CodeGen\n  found: Other"


def test_the_pytree_of_inputs_is_kept() -> None:
    bad = lowering()
    for graph, names in ((bad.source, ["x", "y"]), (bad.lowered, ["x"])):
        graph.set_codegen(fx.graph._PyTreeCodeGen(fx.graph._PyTreeInfo(names, None, None)))
    assert broken(bad, CodegenChanged) == (
        "the pytree of inputs or outputs changed\n"
        "  expected: _PyTreeInfo(orig_args=['x', 'y'], in_spec=None, out_spec=None)\n"
        "  found: _PyTreeInfo(orig_args=['x'], in_spec=None, out_spec=None)"
    )


def test_every_call_is_legal() -> None:
    bad = replace(lowering(), illegal=lambda node: "no addition here" if node.target is aten.add.Tensor else None)
    assert broken(bad, IllegalCall) == (
        "'add' is not legal: no addition here\n"
        "  lowered node 'add' (call_function aten.add.Tensor)\n"
        "  source node 'add' (call_function aten.add.Tensor)"
    )


def test_every_node_has_an_origin() -> None:
    bad = lowering()
    del bad.origin[node_of(bad.lowered, "gelu_square")]
    assert broken(bad, WithoutOrigin) == (
        "'gelu_square' comes from no node of the source\n  lowered node 'gelu_square' (call_function aten.mul.Tensor)"
    )


def test_the_origin_is_in_the_source() -> None:
    bad = lowering()
    bad.origin[node_of(bad.lowered, "gelu_square")] = fx.Graph().placeholder("z")
    assert broken(bad, WithoutOrigin).startswith("'gelu_square' comes from 'z', which is not in the source\n")


def test_every_used_value_has_an_image() -> None:
    bad = lowering()
    del bad.values[node_of(bad.source, "gelu")]
    assert broken(bad, ValueLost) == (
        "'gelu' is used but has no lowered value\n  source node 'gelu' (call_function aten.gelu.default)"
    )


def test_the_image_of_a_value_is_in_the_graph() -> None:
    bad = lowering()
    bad.values[node_of(bad.source, "gelu")] = node_of(bad.source, "gelu")
    assert broken(bad, ValueLost).startswith("'gelu', the value of 'gelu', is not in the graph\n")


def test_an_expansion_may_not_read_what_its_source_does_not() -> None:
    bad = lowering()
    node_of(bad.lowered, "gelu_square").update_arg(1, node_of(bad.lowered, "y"))
    assert broken(bad, InventedDependency) == (
        "'gelu_square' reads 'y', but 'gelu' does not depend on 'y'\n"
        "  lowered node 'gelu_square' (call_function aten.mul.Tensor)\n"
        "  source node 'gelu' (call_function aten.gelu.default)"
    )


def test_contracted_nodes_may_not_form_a_circle() -> None:
    pair = Pair()
    x, lx = pair.both("placeholder", "x")
    a, b = pair.call(aten.sin.default, x, name="a"), pair.call(aten.cos.default, x, name="b")
    first = pair.expand(a, aten.sin.default, lx, name="a_1")
    second = pair.expand(b, aten.cos.default, first, name="b")
    pair.expand(a, aten.sin.default, second, name="a")
    bad = pair.returning(a, b)
    assert broken(bad, InventedDependency) == "source nodes depend on each other in a cycle: a -> b"


def test_an_expansion_may_read_along_a_path_and_drop_the_nodes_between() -> None:
    good = lowering()
    node_of(good.lowered, "add").update_arg(0, node_of(good.lowered, "x"))
    check(good)


def test_a_rule_may_return_its_input() -> None:
    pair = Pair()
    x, lx = pair.both("placeholder", "x")
    y = pair.call(aten.clone.default, x, name="y")
    pair.values[y] = lx
    z, _ = pair.both("call_function", aten.neg.default, y, name="z")
    check(pair.returning(z, y))


def test_one_constant_may_serve_several_nodes() -> None:
    pair = Pair()
    x, lx = pair.both("placeholder", "x")
    a, b = pair.call(aten.sin.default, x, name="a"), pair.call(aten.cos.default, x, name="b")
    constant = pair.lowered.create_node("get_attr", "_constant0")
    pair.origin[constant] = a
    pair.expand(a, aten.mul.Tensor, lx, constant, name="a")
    pair.expand(b, aten.mul.Tensor, lx, constant, name="b")
    check(pair.returning(a, b))


def test_the_shape_of_any_tensor_may_be_read() -> None:
    pair = Pair()
    x, lx = pair.both("placeholder", "x")
    y, ly = pair.both("placeholder", "y")
    a = pair.call(aten.sin.default, x, name="a")
    size = pair.lowered.create_node("call_function", aten.sym_size.int, (ly, 0))
    twice = pair.lowered.create_node("call_function", operator.mul, (size, 2))
    pair.expand(a, aten.view.default, lx, [twice], name="a")
    check(pair.returning(a))


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (fake(2, 3, dtype=torch.float64), "float64[2, 3] on meta"),
        (fake(3, 2), "float32[3, 2] on meta"),
        (torch.empty(2, 3), "float32[2, 3] on cpu"),
        (None, "no metadata"),
        (2, "2"),
        ([fake(2, 3)], "(float32[2, 3] on meta)"),
    ],
)
def test_shape_dtype_and_device_are_kept(after: Any, found: str) -> None:
    bad = with_metadata(lowering(), "gelu", fake(2, 3), after)
    assert broken(bad, MetadataChanged) == (
        "the lowered value of 'gelu' has other metadata\n"
        "  lowered node 'gelu' (call_function aten.mul.Tensor)\n"
        "  source node 'gelu' (call_function aten.gelu.default)\n"
        "  expected: float32[2, 3] on meta\n"
        f"  found: {found}"
    )


def test_each_of_several_results_keeps_its_metadata() -> None:
    good = with_metadata(lowering(), "gelu", fake(2), fake(2))
    gelu, cube = node_of(good.source, "gelu"), node_of(good.lowered, "gelu")
    gelu.meta["val"] = (fake(2), None, 3)
    good.values[gelu] = (cube, None, 3)
    check(good)
    good.values[gelu] = (cube, None, 4)
    assert broken(good, MetadataChanged).endswith(
        "  expected: (float32[2] on meta, no metadata, 3)\n  found: (float32[2] on meta, no metadata, 4)"
    )


def test_symbolic_sizes_are_compared_without_a_guard() -> None:
    class Grow(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return torch.cat([x, x]), torch.cat([x, x]), torch.cat([y, y])

    sizes = {"x": {0: torch.export.Dim("n", min=2)}, "y": {0: torch.export.Dim("m", min=2)}}
    exported = torch.export.export(Grow(), (torch.ones(3), torch.ones(4)), dynamic_shapes=sizes)
    one, same, other = (node.meta["val"] for node in exported.graph.nodes if node.op == "call_function")
    guards = len(one.fake_mode.shape_env.guards)
    check(with_metadata(lowering(), "gelu", one, same))
    assert "[2*s" in broken(with_metadata(lowering(), "gelu", one, other), MetadataChanged)
    assert len(one.fake_mode.shape_env.guards) == guards


def test_no_dead_code_is_added() -> None:
    bad = lowering()
    gelu = node_of(bad.source, "gelu")
    with bad.lowered.inserting_before(node_of(bad.lowered, "add")):
        dead = bad.lowered.create_node("call_function", aten.neg.default, (node_of(bad.lowered, "x"),), name="dead")
    bad.origin[dead] = gelu
    assert broken(bad, DeadCodeAdded) == (
        "'dead' is not used\n"
        "  lowered node 'dead' (call_function aten.neg.default)\n"
        "  source node 'gelu' (call_function aten.gelu.default)"
    )


def test_dead_code_of_the_source_may_stay() -> None:
    pair = Pair()
    x, _ = pair.both("placeholder", "x")
    pair.both("call_function", aten.sin.default, x, name="unused")
    check(pair.returning(x))


def expansion(change: Callable[[fx.Graph, fx.Node], Any]) -> Correspondence:
    graph = fx.Graph()
    x = graph.placeholder("x")
    result = graph.create_node("call_function", aten.neg.default, (x,), name="neg")
    change(graph, result)
    return replace(lowering(), expansions=(graph,))


def test_expansions_are_sound() -> None:
    good = expansion(lambda graph, neg: graph.output(neg))
    assert "1 expansions are acyclic and without dead code" in check(good).checks
    dead = expansion(lambda graph, neg: graph.output(neg.args[0]))
    assert broken(dead, MalformedExpansion) == (
        "an expansion computes 'neg', which its output does not need\n"
        "  lowered node 'neg' (call_function aten.neg.default)"
    )
    assert broken(expansion(lambda graph, neg: None), MalformedExpansion) == (
        "an expansion must have one output node, this one has 0"
    )
    circle = expansion(lambda graph, neg: (graph.output(neg), neg.update_arg(0, neg)))
    assert broken(circle, MalformedExpansion) == "an expansion has a cycle\n  lowered node 'output' (output output)"
    foreign = expansion(lambda graph, neg: (graph.output(neg), neg.update_arg(0, fx.Graph().placeholder("far"))))
    assert broken(foreign, MalformedExpansion) == (
        "an expansion reads 'far' of another graph\n  lowered node 'far' (placeholder far)"
    )


def test_the_users_line_is_shown() -> None:
    bad = replace(lowering(), illegal=lambda node: "no")
    node_of(bad.source, "gelu").meta["stack_trace"] = '  File "model.py", line 3, in forward\n    return gelu(x) + y'
    assert '\n  File "model.py", line 3, in forward: return gelu(x) + y' in broken(bad, IllegalCall)


def test_remedies() -> None:
    assert VerificationError.remedy == (
        "report this with the program: decomp is at fault; verify=False skips verification"
    )
    assert InventedDependency.remedy == ("fix the rule for the source node; verify=False skips verification")
    assert IllegalCall.remedy == (
        "write a rule for it, add it to the target, or keep it: keep={...}; partial=True lowers what can be"
    )


def chain(length: int) -> Correspondence:
    pair = Pair()
    x, value = pair.both("placeholder", "x")
    for i in range(length):
        call = pair.call(aten.gelu.default, x, name=f"gelu_{i}")
        for j in range(4):
            value = pair.expand(call, aten.mul.Tensor, value, pair.values[x], name=f"gelu_{i}_{j}")
        x = call
    return pair.returning(x)


def test_the_cost_is_linear() -> None:
    def cost(length: int) -> float:
        pair, calls = chain(length), 0

        def count(frame: Any, event: str, arg: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            check(pair)
        finally:
            sys.setprofile(None)
        return calls / length

    assert cost(4000) < 1.1 * cost(400)


def counted_walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes how many starts each walk for reachability answers."""
    walks: list[int] = []

    def counting(starts: Any, ends: Any, place: Any) -> Any:
        walks.append(len(starts))
        return reached_among(starts, ends, place)

    monkeypatch.setattr("decomp.proof.invariants.reached_among", counting)
    return walks


def test_many_indirect_edges_cost_one_walk_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node reads the first one, over a path that only the source's reachability explains."""
    pair = chain(3000)
    first = node_of(pair.lowered, "gelu_0_3")
    for i in range(1, 3000):
        node_of(pair.lowered, f"gelu_{i}_3").update_arg(1, first)
    visited = counted_walks(monkeypatch)
    check(pair)
    assert 1 <= len(visited) <= 6


def test_an_unused_result_may_be_none() -> None:
    pair = Pair()
    x, lx = pair.both("placeholder", "x")
    both = pair.call(aten.native_batch_norm_backward.default, x, name="both")
    both.meta["val"] = (fake(2), fake(3))
    second = pair.call(operator.getitem, both, 1, name="second")
    second.meta["val"] = fake(3)
    expanded = pair.expand(both, aten.sum.default, lx, name="both_sum")
    expanded.meta["val"] = fake(3)
    pair.values[both], pair.values[second] = (None, expanded), expanded
    correspondence = pair.returning(second)
    assert "shape, dtype and device of 2 values unchanged" in check(correspondence).checks
    pair.values[both] = (expanded, None)
    assert "other metadata" in broken(correspondence, MetadataChanged)
