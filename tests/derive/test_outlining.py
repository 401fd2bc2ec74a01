"""Composites: calls of the source that stay calls, each with its verified decomposition inside."""

import io
import json

import pytest
import torch
from torch import fx, nn
from torch.export import Dim, export
from torch.nn import functional as F

import decomp
from decomp.ir.composites import composites_in
from decomp_rules import targets
from tests.forms import Holder

TARGET = targets.tinygrad
ATTENTION = {F.scaled_dot_product_attention, F.layer_norm, F.gelu}


class Block(nn.Module):
    """Calls whose decompositions share views and constants with what is around them."""

    def __init__(self):
        super().__init__()
        self.norm, self.heads, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = (each.view(2, 3, 2, 4).transpose(1, 2) for each in self.heads(self.norm(x)).split(8, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 3, 8)
        return x + F.gelu(self.out(y)) + F.gelu(self.out(self.norm(y)))


def lowered(function, args, ops, **options):
    model = function if isinstance(function, nn.Module) else Holder(function)
    return decomp.lower(model, to=TARGET, args=args, composites=ops, **options)


def names(lowering):
    return [made.name for made in composites_in(lowering.result.graph).values()]


def calls(program):
    return [(node.op, str(node.target), len(node.all_input_nodes)) for node in program.graph.nodes if "call" in node.op]


def x(*shape):
    return torch.randn(*(shape or (4, 6)), generator=torch.Generator().manual_seed(0))


def saved(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


@pytest.mark.parametrize("simplify", [True, False])
@pytest.mark.parametrize("kind", ["module", "program"])
def test_inlined_is_the_program_without_composites(kind, simplify):
    model, given = Block(), x(2, 3, 8)
    source, args = (model, (given,)) if kind == "module" else (export(model, (given,)), None)
    found = decomp.lower(source, to=TARGET, args=args, composites=ATTENTION, simplify=simplify, verify="values")
    plain = decomp.lower(source, to=TARGET, args=args, simplify=simplify)
    assert sorted(names(found)) == sorted([*["aten.gelu", "aten.layer_norm"] * 2, "aten.scaled_dot_product_attention"])
    assert calls(found.inlined()) == calls(plain.result) and not composites_in(found.inlined().graph)
    assert calls(found.result) != calls(plain.result)


def test_calls_of_one_signature_share_a_body():
    found = lowered(lambda x: F.gelu(x) * F.gelu(x + 1) + F.gelu(x, approximate="tanh"), (x(),), {F.gelu})
    bodies = [node.args[0].target for node in composites_in(found.result.graph)]
    assert bodies == ["gelu_composite_0", "gelu_composite_0", "gelu_composite_1"]
    assert len(found.internals.composites) == 2


def test_a_composite_runs_trains_and_compiles():
    model, given = Block(), x(2, 3, 8).requires_grad_()
    found = lowered(model, (given,), ATTENTION).result
    (expected,) = torch.autograd.grad(model(given).sum(), given)
    for run in (found, torch.compile(found, backend="aot_eager")):
        torch.testing.assert_close(torch.autograd.grad(run(given).sum(), given)[0], expected)


def test_what_a_composite_says_is_saved_with_the_program():
    def function(x):
        return F.layer_norm(x, (6,), eps=1e-3), x.max(1)[1]

    found = decomp.lower(export(Holder(function), (x(),)), to=TARGET, composites={F.layer_norm: 2, "max": 1}).result
    loaded = saved(found)
    norm, largest = composites_in(loaded.graph).values()
    assert (norm.name, norm.version, norm.attributes["eps"]) == ("aten.layer_norm", 2, 1e-3)
    assert norm.operands == {"input": {"operand": 0}} and norm.attributes["normalized_shape"] == [6]
    assert (largest.overload, largest.attributes, largest.results) == ("dim", {"dim": 1, "keepdim": False}, (1,))
    assert json.loads(json.dumps(norm.meta)) == norm.meta
    for program in (loaded, found.run_decompositions(), loaded.run_decompositions({})):
        torch.testing.assert_close(program.module()(x()), function(x()))


def in_place(x):
    y = x.clone()
    F.silu(y, inplace=True)
    return y


def branches(x):
    return torch.cond(x.sum() > 0, lambda x: F.gelu(x) * 2, lambda x: F.softmax(x, -1), (x,))


CASES = {
    # name: (function, ops, names of the composites in all graphs)
    "one of several results": (lambda x: x.max(1)[0] * 2, {"max"}, ["aten.max"]),
    "a list of results": (lambda x: x.split(2, 1)[1] + 1, {"split"}, ["aten.split"]),
    "in place": (in_place, {"silu"}, ["aten.silu"]),
    "the same operand twice": (lambda x: torch.atan2(x, x), {"atan2"}, ["aten.atan2"]),
    "a constant inside": (
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        {F.scaled_dot_product_attention, "softmax"},
        ["aten.scaled_dot_product_attention"],
    ),
    "a view": (lambda x: x.flatten().clone(), {"flatten"}, ["aten.flatten"]),
    "branches": (branches, {"gelu", "softmax"}, ["aten.gelu", "aten.softmax"]),
    "a legal call": (lambda x: x.exp2(), {"exp2"}, []),
    "an op that is never called": (lambda x: x + 1, {"gelu"}, []),
    "a call that does nothing": (lambda x: F.dropout(x, 0.5, False) + 1, {F.dropout}, []),
}


@pytest.mark.each_row
@pytest.mark.parametrize("case", CASES)
def test_calls_of_every_kind(case):
    function, ops, expected = CASES[case]
    found = lowered(function, (x(),), ops, verify="values")
    assert sorted(body.composite.name for body in found.internals.composites) == expected
    torch.testing.assert_close(found.result(x()), function(x()))
    assert calls(found.inlined()) == calls(lowered(function, (x(),), ()).result)


def test_random_calls_draw_as_without_composites():
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    found, plain = (lowered(model, (x(),), ops).result for ops in ({F.dropout}, ()))
    with torch.random.fork_rng():
        drawn = [torch.manual_seed(0) and program(x()) for program in (found, plain)]
    assert torch.equal(*drawn) and len(composites_in(found.graph)) == 2


def test_open_sizes_are_operands_or_stay_inside():
    size = Dim("size", min=2, max=64)
    function, ops = lambda x: F.softmax(x, -1).repeat(x.shape[0], 1), {"softmax", "repeat"}
    found = lowered(function, (x(),), ops, dynamic_shapes=(({0: size},),), verify="values")
    repeat = next(made for made in composites_in(found.result.graph).values() if made.name == "aten.repeat")
    assert repeat.operands == {"self": {"operand": 0}, "repeats": [{"operand": 1}, 1]}
    for rows in (4, 7):
        torch.testing.assert_close(found.result(x(rows, 6)), function(x(rows, 6)))


def test_a_match_of_a_pattern_is_a_composite():
    swish = decomp.Pattern.of(lambda x: x * torch.sigmoid(x), "swish")
    rules = decomp.Rules()

    @rules.pattern(swish)
    def shorter(x):
        return F.silu(x)

    def function(x):
        return torch.sqrt(x * torch.sigmoid(x) + 1)

    chip = decomp.Target("chip", ["silu", "sigmoid", "mul", "sqrt", "add"])
    found = decomp.lower(Holder(function), to=chip, args=(x(),), composites={swish: 4}, rules=rules)
    (made,) = composites_in(found.result.graph).values()
    assert (made.name, made.version, made.operands) == ("pattern.swish", 4, {"x": {"operand": 0}})
    torch.testing.assert_close(found.result(x()), function(x()))


def test_a_program_without_metadata_has_composites():
    rules = decomp.Rules()

    @rules.register(F.silu)
    def silu(x):
        return x * torch.sigmoid(x)

    model = nn.Sequential(nn.SiLU(), nn.Linear(6, 6), nn.SiLU())
    chip = decomp.Target("chip", ["linear", "sigmoid", "mul"])
    found = decomp.lower(fx.symbolic_trace(model), to=chip, rules=rules, composites="silu")
    assert names(found) == ["aten.silu"] * 2 and len(found.internals.composites) == 1
    torch.testing.assert_close(found.result(x()), model(x()))


def test_a_program_with_composites_is_lowered_further():
    first = decomp.lower(
        export(nn.Sequential(nn.GELU(), nn.Softmax(-1)), (x(),)), to=targets.core_aten - {"gelu"}, composites={"gelu"}
    )
    second = decomp.lower(first.result, to=TARGET, composites={"_softmax"}, verify="values")
    assert names(second) == ["aten.gelu", "aten._softmax"]
    torch.testing.assert_close(second.result.module()(x()), first.internals.model.module()(x()))


def test_a_report_and_the_stages_show_composites(tmp_path):
    found = lowered(lambda x: F.gelu(x) + F.gelu(x * 2), (x(),), {"gelu", "silu", "mul"})
    inside = found.internals.composites[0].calls
    assert found.report().composites == (
        f"aten.gelu (composite, {inside} calls inside), 2 times",
        "aten.mul: no composite, its calls are legal on tinygrad",
        "aten.silu: no composite, neither the program nor a rule that was used calls it",
    )
    assert sum(found.report().after.values()) == 2 * inside + 2
    assert f"# aten.gelu (composite, {inside} calls inside)" in str([*found.stages.values()][-1])
    assert found.provenance("gelu_composite").op == "aten.gelu.default"
    assert f"aten.gelu (composite, {inside} calls inside)" in found.html(tmp_path / "page.html").read_text()


def test_refolding_restores_the_calls_of_the_source():
    found = lowered(nn.Sequential(nn.Linear(6, 6), nn.GELU()), (x(),), {"gelu"})
    restored = decomp.refold(found).result
    assert [str(node.target) for node in restored.graph.nodes if "call" in node.op] == [
        "aten.linear.default",
        "aten.gelu.default",
    ]


def test_a_lock_holds_composites(tmp_path):
    lock = tmp_path / "gelu.lock"
    lowered(nn.GELU(), (x(),), {"gelu"}, lock=lock)
    lowered(nn.GELU(), (x(),), {"gelu"}, lock=lock)
    with pytest.raises(decomp.errors.LockMismatch, match="composites"):
        lowered(nn.GELU(), (x(),), (), lock=lock)


WRONG = {
    3: 'composites= must be a set of ops, not int; as composites={"softmax", F.gelu}',
    ("geluu",): "unknown op 'geluu'; did you mean 'gelu' or 'gelu_' or 'glu'?",
}


@pytest.mark.parametrize("given", WRONG)
def test_wrong_composites_are_refused(given):
    with pytest.raises(decomp.DecompError) as raised:
        lowered(nn.GELU(), (x(),), given)
    assert str(raised.value) == WRONG[given]


def test_wrong_versions_are_refused():
    with pytest.raises(decomp.errors.ArgumentError) as raised:
        lowered(nn.GELU(), (x(),), {"gelu": "2.0"})
    assert str(raised.value) == "composites= must have versions as values, integers from 0 on, not '2.0'"
