"""Composites within composites: a call that a rule made stays a call in the body of the composite around it."""

import io

import pytest
import torch
from torch.export import Dim, export
from torch.nn import functional as F

import decomp
from decomp.ir.composites import composites_in
from decomp.proof.correspondence import VerificationError
from decomp_rules import targets
from tests.derive.nested import NESTED, NESTED_RULES, Nested, queries
from tests.forms import Holder

SDPA, SOFTMAX, MATMUL = "aten.scaled_dot_product_attention", "aten.softmax", "aten.matmul"


def lowered(source, args=None, ops=NESTED, rules=NESTED_RULES, **options):
    return decomp.lower(source, to=targets.tinygrad, args=args, rules=rules, composites=ops, **options)


def of_kind(kind):
    return (Nested(), (queries(),)) if kind == "module" else (export(Nested(), (queries(),)), None)


def nesting(module):
    """The composites that a program calls, each with those that its body calls."""
    calls = composites_in(module.graph).items()
    return [(made.name, nesting(getattr(module, node.args[0].target))) for node, made in calls]


def targets_of(program):
    return [(node.op, str(node.target)) for node in program.graph.nodes if "call" in node.op]


EXPECTED = [(SDPA, [(SOFTMAX, [])]), (SDPA, [(SOFTMAX, [])]), (SOFTMAX, [])]


@pytest.mark.parametrize("simplify", [True, False])
@pytest.mark.parametrize("kind", ["module", "program"])
def test_the_body_of_a_composite_calls_another(kind, simplify):
    source, args = of_kind(kind)
    found = lowered(source, args, simplify=simplify, verify="values")
    decomp.verify(source, found, full=True)
    module = found.result if kind == "module" else found.result.graph_module
    assert nesting(module) == EXPECTED
    assert targets_of(found.inlined()) == targets_of(lowered(source, args, (), simplify=simplify).result)
    inside = next(iter(composites_in(module.scaled_dot_product_attention_composite_0.graph).values()))
    assert (inside.version, inside.attributes) == (2, {"dim": -1, "dtype": None})
    assert inside.operands == {"self": {"operand": 0}}


def test_calls_of_one_signature_share_a_body_at_any_depth():
    found = lowered(Nested(), (queries(),))
    assert [body.name for body in found.internals.composites] == [
        "scaled_dot_product_attention_composite_0",
        "softmax_composite_0",
        "scaled_dot_product_attention_composite_1",
    ]
    sizes = [body.calls for body in found.internals.composites]
    assert found.report().composites[1] == f"aten.softmax (composite, {sizes[1]} calls inside), 3 times"
    nested, plain = (lowered(Nested(), (queries(),), ops, simplify=False) for ops in (NESTED, ()))
    assert sum(nested.report().after.values()) == sum(plain.report().after.values())


def test_nested_composites_train_and_compile():
    x = queries().requires_grad_()
    found = lowered(Nested(), (x,)).result
    (expected,) = torch.autograd.grad(Nested()(x).pow(2).sum(), x)
    for run in (found, torch.compile(found, backend="aot_eager")):
        torch.testing.assert_close(torch.autograd.grad(run(x).pow(2).sum(), x)[0], expected)


def test_nested_composites_are_saved_and_lowered_further():
    file = io.BytesIO()
    torch.export.save(lowered(export(Nested(), (queries(),))).result, file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert nesting(loaded.graph_module) == EXPECTED
    again = decomp.lower(loaded, to=targets.tinygrad - {"exp2"}, rules=NESTED_RULES, partial=True)
    for program in (loaded, loaded.run_decompositions({}), again.result):
        torch.testing.assert_close(program.module()(queries()), Nested()(queries()))


def test_open_sizes_go_through_both_borders():
    rows = Dim("rows", min=2, max=16)
    found = lowered(Nested(), (queries(),), dynamic_shapes=({2: rows},), verify="values")
    assert nesting(found.result) == EXPECTED
    for size in (4, 7):
        torch.testing.assert_close(found.result(queries(size)), Nested()(queries(size)))


def attention(x):
    return F.scaled_dot_product_attention(x, x, x)


thin = decomp.Rules()
"""Rules that read one of several results, and that are no more than another call."""
thin.register("logsumexp")(lambda x, dim, keepdim=False: x.max(dim[0], keepdim)[0] + torch.softmax(x, dim[0]).sum(dim))
thin.register(F.softmin)(lambda x, dim=None, _stacklevel=3, dtype=None: torch.softmax(x, dim))

CASES = {
    # name: (function, ops, names of the composites of the main graph and in bodies)
    "several inside one": (attention, {SDPA, SOFTMAX, "matmul"}, [(SDPA, [(MATMUL, []), (SOFTMAX, []), (MATMUL, [])])]),
    "the inner one alone": (attention, {SOFTMAX}, [(SOFTMAX, [])]),
    "two levels down": (attention, {"_softmax", SDPA}, [(SDPA, [("aten._softmax", [])])]),
    "a legal call of a rule": (attention, {"amax"}, []),
    "one of two results": (
        lambda x: torch.logsumexp(x, -1),
        {"logsumexp", "max", SOFTMAX},
        [("aten.logsumexp", [("aten.max", []), (SOFTMAX, [])])],
    ),
    "all of the outer one": (
        lambda x: x.softmax(-1),
        {SOFTMAX, "_softmax"},
        [(SOFTMAX, [("aten._softmax", [])])],
    ),
    "three levels": (attention, {SDPA, SOFTMAX, "_softmax"}, [(SDPA, [(SOFTMAX, [("aten._softmax", [])])])]),
}


@pytest.mark.each_row
@pytest.mark.parametrize("case", CASES)
def test_nested_calls_of_every_kind(case):
    function, ops, expected = CASES[case]
    found, plain = (lowered(Holder(function), (queries(),), each, thin | NESTED_RULES) for each in (ops, ()))
    assert nesting(found.result) == expected
    assert targets_of(found.inlined()) == targets_of(plain.result)
    torch.testing.assert_close(found.result(queries()), plain.result(queries()))


def test_the_bodies_of_branches_have_nested_composites():
    def function(x):
        return torch.cond(x.sum() > 0, attention, lambda x: x * 2, (x,))

    found = lowered(Holder(function), (queries(),), verify="values")
    assert nesting(found.result.true_graph_0) == [(SDPA, [(SOFTMAX, [])])]
    assert targets_of(found.inlined().true_graph_0) == targets_of(lowered(Holder(attention), (queries(),), ()).result)


def swapped(body):
    node = next(node for node in body.graph.nodes if len(node.all_input_nodes) == 2)
    node.args = node.args[::-1]


def another_attribute(body):
    node = next(iter(composites_in(body.graph)))
    node.meta["custom"]["composite"]["attributes"]["dim"] = 0


def unmarked(body):
    del next(iter(composites_in(body.graph))).meta["custom"]


def another_result(body):
    body.graph.output_node().args = ((body.graph.find_nodes(op="placeholder")[0],),)


SABOTAGES = {
    "an operand inside": ("softmax", swapped),
    "a result inside": ("softmax", another_result),
    "what the inner call says": ("scaled_dot_product_attention", another_attribute),
    "that the inner call is one": ("scaled_dot_product_attention", unmarked),
}


@pytest.mark.each_row
@pytest.mark.parametrize("kind", ["module", "program"])
@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_a_ruined_inner_composite_is_seen(sabotage, kind):
    (op, ruin), (source, args) = SABOTAGES[sabotage], of_kind(kind)
    found = lowered(source, args)
    decomp.verify(source, found)
    module = found.result if kind == "module" else found.result.graph_module
    outer = module.scaled_dot_product_attention_composite_1
    ruin(outer.softmax_composite_0 if op == "softmax" else outer)
    with pytest.raises(VerificationError):
        decomp.verify(source, found)
