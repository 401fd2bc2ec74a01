"""Finding ops in programs without provenance: by what their nodes compute."""

from __future__ import annotations

from collections import Counter
import math

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp.refolding.found import WantedCalls
from decomp.refolding.searching import search
from decomp_rules import targets
from decomp_rules.samples.models import model
from tests.forms import Holder
from tests.models import build

X = torch.randn(2, 3, 8)


def exported(function, *args, **options):
    """The program of a function, decomposed as PyTorch does."""
    return torch.export.export(Holder(function), args, **options).run_decompositions()


def found(program, **options):
    """How many calls of each op are found."""
    refolding = decomp.refold(program, **options)
    return Counter(each.op.split(".")[1] for each in refolding.folded)


def whys(program, **options):
    return {each.op: each.reason for each in decomp.refold(program, **options).missed}


def erf_gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_with(cubic):
    def gelu(x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + cubic * torch.pow(x, 3.0))))

    return gelu


def quick_silu(x):
    return x / (1 + torch.exp(-x))


def textbook_softmax(x):
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)


def shifted_softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e * (1 / e.sum(-1, keepdim=True))


def first_softmax(x):
    return torch.exp(x - torch.logsumexp(x, 1, keepdim=True))


def log_softmax(x):
    return x - x.exp().sum(-1, keepdim=True).log()


def layer_norm(x):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-5)


def layer_norm_by_var(x):
    var, mean = torch.var_mean(x, (-2, -1), unbiased=False, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-3)


def rms_norm(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def group_norm(x):
    parts = x.reshape(2, 2, -1)
    parts = (parts - parts.mean(-1, keepdim=True)) / (parts.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return parts.reshape(2, 4, 5)


SPELLINGS = {
    "gelu": (erf_gelu, X),
    "gelu by tanh": (gelu_with(0.044715), X),
    "silu": (quick_silu, X),
    "softmax": (textbook_softmax, X),
    "softmax, shifted": (shifted_softmax, X),
    "softmax of dim 1": (first_softmax, X),
    "log_softmax": (log_softmax, X),
    "layer_norm": (layer_norm, X),
    "layer_norm of two": (layer_norm_by_var, X),
    "rms_norm": (rms_norm, X),
    "group_norm": (group_norm, torch.randn(2, 4, 5)),
    "mish": (lambda x: x * torch.tanh(torch.log1p(torch.exp(x))), X),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_hand_written_op_is_found(name):
    function, x = SPELLINGS[name]
    program = exported(function, x)
    refolding = decomp.refold(program, verify="values")
    assert [each.op.split(".")[1] for each in refolding.folded] == [name.partition(",")[0].split()[0]]
    assert sum(node.op == "call_function" for node in refolding.result.graph.nodes) == 1
    torch.testing.assert_close(refolding.result.module()(x), function(x))


def test_operands_may_come_in_any_order():
    assert found(exported(lambda x: (torch.erf(x * 0.5**0.5) + 1) * (0.5 * x), X)) == {"gelu": 1}
    assert found(exported(lambda x: torch.sigmoid(x) * x, X)) == {"silu": 1}


@pytest.mark.parametrize("cubic", [0.0447, 0.05])
def test_another_constant_is_another_function(cubic):
    program = exported(gelu_with(cubic), X)
    assert found(program) == {}
    assert whys(program)["gelu (tanh)"].startswith("it differs by ")


def test_a_value_that_is_used_elsewhere_keeps_an_op_from_being_found():
    def twice(x):
        e = torch.erf(x / math.sqrt(2.0))
        return x * 0.5 * (1.0 + e), e * 2

    def returned(x):
        s = torch.sigmoid(x)
        return x * s, s

    assert whys(exported(twice, X))["gelu"] == "'erf' is used elsewhere, by 'mul_2'"
    assert whys(exported(returned, X))["silu"] == "'sigmoid' is returned, too"
    assert found(exported(twice, X)) == {}


def test_a_missing_cast_keeps_an_op_from_being_found():
    half = X.to(torch.bfloat16)

    def without(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def cast(x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    assert found(exported(cast, half)) == {"rms_norm": 1}
    assert found(exported(without, half)) == {}
    reason = "'pow_1' rounds to bfloat16: the op has a cast before it"
    assert whys(exported(without, half))["rms_norm"] == reason


def test_a_softmax_that_gives_zeros_for_hidden_rows_is_none():
    def safe(x):
        hidden = torch.isneginf(x).all(-1, keepdim=True)
        return torch.where(hidden, 0.0, torch.softmax(x, -1))

    refolding = decomp.refold(exported(safe, X))
    assert [each.nodes for each in refolding.folded] == [1]
    assert {each.reason for each in refolding.missed} == {"it returns other values where rows are hidden by −∞"}


def test_detached_parts_have_other_gradients():
    def frozen(x):
        return x * torch.sigmoid(x.detach() * 1.0)

    assert whys(torch.export.export(Holder(frozen), (X,)))["silu"].startswith("its gradients differ by ")


@pytest.mark.parametrize(("op", "spelled"), {"gelu": erf_gelu, "softmax": lambda x: textbook_softmax(x)}.items())
def test_detached_regions_stay_detached(op, spelled):
    def frozen(x):
        return spelled(x.detach()) * x

    program = torch.export.export(Holder(frozen), (X,))
    assert found(program) == {op: 1}
    slopes = []
    for module in (program.module(), decomp.refold(program).result.module()):
        x = X.clone().requires_grad_()
        slopes.append(*torch.autograd.grad(module(x).square().sum(), x))
    torch.testing.assert_close(*slopes)


def deviation(x, dims, eps=1e-5):
    return (x.pow(2).mean(dims, keepdim=True) + eps).rsqrt()


def layer_norm_by_weights(x, w, b):
    x = x - x.mean(-1, keepdim=True)
    return x * (deviation(x, -1) * w) + b


def group_norm_by_weights(x, w, b):
    parts = x.view(2, 2, 4, 3)
    parts = parts - parts.mean((2, 3), keepdim=True)
    scaled = parts * (deviation(parts, (2, 3)) * w.view(1, 2, 4, 1))
    return scaled.view(2, 8, 3) + b.view(1, 8, 1)


WEIGHTS_FIRST = {
    "layer_norm": (layer_norm_by_weights, (2, 3, 8)),
    "group_norm": (group_norm_by_weights, (2, 8, 3)),
}


@pytest.mark.parametrize("op", WEIGHTS_FIRST)
def test_norms_whose_weights_are_multiplied_first_are_found(op):
    function, shape = WEIGHTS_FIRST[op]
    program = exported(function, torch.randn(shape), torch.randn(8), torch.randn(8))
    assert found(program, verify="values") == {op: 1}


def test_a_root_mean_square_may_be_multiplied_by_the_weight_first():
    program = exported(lambda x, w: x * (w * deviation(x, -1)), X, torch.randn(8))
    assert found(program, verify="values") == {"rms_norm": 1}


def rms(x):
    return x.pow(2).mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize("eps", [1e-6, 1e-7, 1e-8, 1e-12])
@pytest.mark.parametrize("centred", [False, True])
def test_an_epsilon_beside_the_root_is_not_one_under_it(eps, centred):
    def beside(x):
        x = x - x.mean(-1, keepdim=True) if centred else x
        return x / (rms(x) + eps)

    def under(x):
        x = x - x.mean(-1, keepdim=True) if centred else x
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()

    assert not found(exported(beside, X)).keys() & {"rms_norm", "layer_norm"}
    assert found(exported(under, X)) == {"layer_norm" if centred else "rms_norm": 1}


class Normed(nn.Module):
    """A normalization with weights, as models of `transformers` write it."""

    def __init__(self, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.bias = nn.Parameter(torch.randn(8)) if bias else None

    def forward(self, x):
        wide = x.to(torch.float32)
        if self.bias is None:
            return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return layer_norm(wide) * self.weight + self.bias


@pytest.mark.parametrize("bias", [False, True])
def test_weights_of_a_normalization_are_part_of_it(bias):
    refolding = decomp.refold(torch.export.export(Normed(bias), (X,)), verify="values")
    [each] = refolding.folded
    assert each.op == ("aten.layer_norm.default" if bias else "aten.rms_norm.default") and each.nodes > 5
    [call] = [node for node in refolding.result.graph.nodes if "norm" in str(node.target) and node.op != "placeholder"]
    assert [given.name for given in call.all_input_nodes][1:] == (["p_weight", "p_bias"] if bias else ["p_weight"])


class Normalized(nn.Module):
    """Batch norm of inference in words, on statistics of its own."""

    def __init__(self, affine=True, learned=False):
        super().__init__()
        kind = nn.Parameter if learned else nn.Buffer
        self.mean, self.variance = kind(torch.randn(4)), kind(torch.rand(4))
        self.weight, self.bias = (nn.Parameter(torch.randn(4)) if affine else None for _ in range(2))

    def forward(self, x):
        mean, variance = (t.view(1, 4, 1) for t in (self.mean, self.variance))
        x = (x - mean) / (variance + 1e-3).sqrt()
        return x * self.weight[:, None] + self.bias[:, None] if self.weight is not None else x


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_found_with_its_parameters(affine):
    program = torch.export.export(Normalized(affine), (torch.randn(2, 4, 5),)).run_decompositions()
    refolding = decomp.refold(program, verify="values")
    [call] = [node for node in refolding.result.graph.nodes if node.op == "call_function"]
    assert str(call.target) == "aten.batch_norm.default" and call.args[7] == 1e-3
    names = [given.name for given in call.all_input_nodes]
    assert names == ["x", *(["p_weight", "p_bias"] if affine else []), "b_mean", "b_variance"]


def test_batch_norm_whose_results_were_several_is_found():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    program = torch.export.export(module, (torch.randn(2, 3, 5, 5),)).run_decompositions()
    assert found(program, verify="values")["batch_norm"] == 1


def test_statistics_that_have_gradients_are_those_of_no_batch_norm():
    program = torch.export.export(Normalized(learned=True), (torch.randn(2, 4, 5),)).run_decompositions()
    assert not found(program)["batch_norm"]


# Products.


def test_a_linear_layer_is_found_in_any_spelling():
    w, b = torch.randn(4, 8), torch.randn(4)

    def summed(x, w, b):
        return (x[..., None, :] * w).sum(-1) + b

    def viewed(x, w, b):
        return torch.addmm(b, x.view(6, 8), w.t()).view(2, 3, 4)

    for function in (summed, viewed, F.linear):
        result = decomp.refold(exported(function, X, w, b), verify="values").result
        assert [str(n.target) for n in result.graph.nodes if n.op == "call_function"] == ["aten.linear.default"]


# Whole programs.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("to", [targets.tinygrad, targets.stablehlo, targets.core_aten], ids=lambda to: to.name)
@pytest.mark.parametrize("name", ["gpt", "encoder", "unet"])
def test_ops_of_lowered_sample_models_are_found(name, to):
    module, args = model(name)
    lowering = decomp.lower(torch.export.export(module.eval(), args), to=to, simplify=False)
    derived = Counter(node.target._schema.name.split("::")[1] for node in lowering.plan.derived)
    refolding = decomp.refold(lowering.result, verify="values")
    back = Counter(each.op.split(".")[1] for each in refolding.folded)
    for op in ("gelu", "silu", "layer_norm", "group_norm", "linear", "scaled_dot_product_attention"):
        assert back[op] >= derived[op], op


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, to", [("gpt", targets.tinygrad), ("encoder", targets.stablehlo)], ids=str)
def test_what_simplification_leaves_is_found_too(name, to):
    module, args = model(name)
    lowering = decomp.lower(torch.export.export(module.eval(), args), to=to, simplify=True)
    assert any(piece.at("simplify") is not None for piece in lowering.internals.pieces)
    derived = Counter(node.target._schema.name.split("::")[1] for node in lowering.plan.derived)
    refolding = decomp.refold(lowering.result, verify="values")
    back = Counter(each.op.split(".")[1] for each in refolding.folded)
    for op in ("gelu", "layer_norm", "linear", "scaled_dot_product_attention"):
        assert back[op] >= derived[op], op


EXPECTED = {
    "gpt2": {"gelu": 2, "scaled_dot_product_attention": 2, "layer_norm": 5},
    "bert": {"scaled_dot_product_attention": 2, "layer_norm": 5, "linear": 12},
    "llama": {"rms_norm": 5, "silu": 2, "scaled_dot_product_attention": 2, "linear": 15},
    "t5": {"rms_norm": 12, "scaled_dot_product_attention": 6},
}


def pretrained(name):
    """A model of `transformers` in small, exported and decomposed. (With GPT-2's fused attention torch 2.13 cannot
    decompose it.)"""
    module, args = build(name)
    if name != "t5":
        module.model.set_attn_implementation("eager")
    return torch.export.export(module.eval(), args).run_decompositions()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", EXPECTED)
def test_ops_of_pretrained_models_are_found(name):
    counts = found(pretrained(name), verify="values")
    assert {op: counts[op] for op in EXPECTED[name]} == EXPECTED[name]


# Programs of every kind.


def test_a_module_is_captured_and_comes_back_as_a_module():
    result = decomp.refold(Holder(erf_gelu), args=(X,), verify="values").result
    assert isinstance(result, fx.GraphModule)
    torch.testing.assert_close(result(X), F.gelu(X))


def test_a_program_without_metadata_needs_example_inputs():
    traced = fx.symbolic_trace(erf_gelu)
    with pytest.raises(decomp.CaptureError, match=r"to do: pass example inputs, args=\(...\)"):
        decomp.refold(traced)


def test_dynamic_sizes_stay_dynamic():
    program = exported(shifted_softmax, X, dynamic_shapes=(({0: torch.export.Dim("n")},),))
    refolding = decomp.refold(program)
    assert [each.op for each in refolding.folded] == ["aten.softmax.int"]
    wide = torch.randn(7, 3, 8)
    torch.testing.assert_close(refolding.result.module()(wide), torch.softmax(wide, -1))


def test_a_size_that_is_equal_by_chance_is_not_taken_for_another():
    def by_other(x, y):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / y.shape[0] + 1e-6)

    shapes = ({0: torch.export.Dim("n")}, {0: torch.export.Dim("m")})
    program = exported(by_other, torch.randn(3, 8), torch.randn(8, 2), dynamic_shapes=(shapes,))
    assert found(program) == {}


def test_only_ops_that_are_wanted_are_folded():
    def both(x):
        return textbook_softmax(erf_gelu(x))

    assert found(exported(both, X), to=[F.gelu]) == {"gelu": 1}
    refolding = decomp.refold(exported(both, X), to=targets.core_aten)
    assert sorted(each.op for each in refolding.folded) == ["aten._softmax.default", "aten.gelu.default"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("to", [targets.tinygrad, targets.core_aten], ids=lambda to: to.name)
def test_what_is_wanted_says_what_stays_and_not_what_is_found(to):
    module, args = model("encoder")
    program = decomp.lower(torch.export.export(module.eval(), args), to=to).result
    everything = decomp.refold(program).folded
    for op in dict.fromkeys(each.op for each in everything):
        alone = decomp.refold(program, to=[op.split(".")[1]], verify="values").folded
        assert {each.op.split(".")[1] for each in alone} == {op.split(".")[1]}
        assert {each.node for each in alone} >= {each.node for each in everything if each.op == op}


def test_each_node_that_an_op_replaces_is_counted_once():
    """A call of several results is a step on the way to one with a weight, and so is taking the first result."""
    program = decomp.lower(torch.export.export(nn.LayerNorm(8).eval(), (X,)), to=targets.tinygrad).result
    (norm,) = decomp.refold(program, to=targets.core_aten).folded
    assert norm.op == "aten.native_layer_norm.default"
    assert norm.nodes == sum(node.op == "call_function" for node in program.graph.nodes)


def test_a_wanted_op_inside_of_another_is_found():
    """Silu is what would be found of it all."""
    written = exported(lambda x: x * (1 / (1 + torch.exp(-x))), X)
    assert found(written, to=["sigmoid"], verify="values") == {"sigmoid": 1}


def test_near_misses_of_wanted_ops_are_reported():
    def safe(x):
        hidden = torch.isneginf(x).all(-1, keepdim=True)
        return torch.where(hidden, 0.0, textbook_softmax(x))

    program = exported(safe, X)
    assert set(whys(program, to=["softmax"])) == {"softmax"}
    assert not whys(program, to=["gelu"])


def test_bodies_of_control_flow_are_searched_too():
    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: erf_gelu(x), lambda x: quick_silu(x), (x,))

    program = torch.export.export(Holder(branches), (X,))
    assert found(program, verify="values") == {"gelu": 1, "silu": 1}
    assert "the same 1 placeholders" in decomp.refold(program).proof.checks


def test_a_region_that_begins_inside_keeps_an_op_from_being_found():
    def partly(x):
        with torch.no_grad():
            s = torch.sigmoid(x)
        return x * s

    traced = torch.export.export(Holder(partly), (X,))
    assert found(traced)["silu"] == 0


def test_the_program_stays_as_it_is():
    program = exported(erf_gelu, X)
    before = [(node.name, node.target, node.args) for node in program.graph.nodes]
    decomp.refold(program)
    assert [(node.name, node.target, node.args) for node in program.graph.nodes] == before


def test_a_rule_is_read_backwards():
    rules = decomp.Rules()

    @rules.register("addcmul")
    def addcmul(self, tensor1, tensor2):
        return self + tensor1 * tensor2

    def function(x, y):
        return torch.relu(y * x + x)

    refolding = decomp.refold(exported(function, X, X + 1), rules=rules, verify="values")
    assert [(each.op, each.by) for each in refolding.folded] == [("aten.addcmul.default", "rule addcmul")]


def test_a_rule_does_not_find_its_own_op():
    rules = decomp.Rules()

    @rules.register("silu")
    def silu(self):
        return self * torch.sigmoid(self)

    function = Holder(lambda x: F.silu(x) + x * torch.sigmoid(x))
    assert found(torch.export.export(function, (X,)), rules=rules) == {"silu": 1}


def test_a_rule_that_does_not_hold_is_not_believed():
    rules = decomp.Rules()

    @rules.register("logaddexp")
    def logaddexp(self, other):
        return torch.exp(self) * torch.exp(other)

    program = exported(lambda x, y: x.exp() * y.exp(), X, X + 1)
    assert found(program, rules=rules)["logaddexp"] == 0
    assert whys(program, rules=rules)["aten.logaddexp"] == "the op returns other values than its rule here"


def test_searching_finds_what_refold_finds():
    program = exported(erf_gelu, X)
    assert [each.op for each in search(program.graph, program.graph_module, WantedCalls()).folded] == [
        "aten.gelu.default"
    ]


class AttentionByLayout(nn.Module):
    """Attention whose result is put in order by hand, as a kernel does."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(4, 9, 9))

    def forward(self, q, k, v):
        heads = torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5 + self.bias, -1) @ v
        ordered = heads.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
        return ordered.permute(0, 2, 1, 3).view(2, 9, 32)


@pytest.mark.parametrize("records", [True, False])
def test_attention_is_followed_by_views_that_hold_for_each_kernel(records):
    model, operands = AttentionByLayout(), [torch.randn(2, 4, 9, 8) for _ in range(3)]
    refolding = decomp.refold(torch.export.export(model, tuple(operands)).run_decompositions())
    assert [each.op for each in refolding.folded] == ["aten.scaled_dot_product_attention.default"]
    with torch.set_grad_enabled(records):  # which kernel runs depends on it
        torch.testing.assert_close(refolding.result.module()(*operands), model(*operands))
