"""Attention in words: what masks say holds at every size, several are one operand, and those that hide are told from
those that show."""

from collections import Counter
import functools
import math

import pytest
import torch
from torch import fx, nn
import torch.nn.functional as F

import decomp
from decomp.refolding.programs import capture_module, constants_of
from decomp_rules import targets
from tests.forms import Holder
from tests.models import TEXT, Head, build

ATTENTION = "scaled_dot_product_attention"


class Attend(nn.Module):
    def __init__(self, shown):
        super().__init__()
        self.shown = shown

    def forward(self, q, k, v):
        place = torch.arange(q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.shown(place[:, None], place[None]))


MASKS = {
    "all": (lambda i, j: i + j >= 0, None),
    "window": (lambda i, j: (i - j < 4) & (j <= i), "mask"),
}


def operands(length):
    return tuple(torch.randn(1, 2, length, 8) for _ in range(3))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_places_is_what_it_is_at_every_size(name):
    """At the three places of the example, the window is causal."""
    shown, found_as = MASKS[name]
    sizes = ({2: torch.export.Dim("n", min=2, max=64)},) * 3
    program = torch.export.export(Attend(shown), operands(3), dynamic_shapes=sizes).run_decompositions()
    found = decomp.refold(program, to=targets.core_aten | [ATTENTION])
    (call,) = (node for node in found.result.graph.nodes if ATTENTION in str(node.target))
    if found_as == "mask":
        assert isinstance(call.args[3], torch.fx.Node)
    else:
        assert call.args[3:] == ()
    longer = operands(9)
    torch.testing.assert_close(found.result.module()(*longer), Attend(shown)(*longer))


def calls(program, **options):
    """The attention that is found, by its arguments after queries, keys and values."""
    refolding = decomp.refold(program, verify="values", **options)
    nodes = refolding.result.graph.nodes
    return [(*node.args[3:], *node.kwargs.items()) for node in nodes if ATTENTION in str(node.target)]


class Written(nn.Module):
    """Self-attention as it is written in tutorials, with a mask in a buffer."""

    def __init__(self, masked):
        super().__init__()
        self.project, self.masked = nn.Linear(16, 48), masked
        self.shown = nn.Buffer(torch.tril(torch.ones(1, 1, 8, 8)))
        self.slopes = nn.Buffer(torch.rand(2, 2, 1, 6))

    def forward(self, x):
        q, k, v = (t.view(2, 6, 2, 8).transpose(1, 2) for t in self.project(x).split(16, 2))
        scores = self.masked(self, q @ k.transpose(-2, -1) * (1 / math.sqrt(8)))
        return (F.softmax(scores, -1) @ v).transpose(1, 2).contiguous().view(2, 6, 16)

    def hidden(self):
        return self.shown[:, :, :6, :6] == 0


IN_WORDS = {
    "hidden by -inf": lambda self, scores: scores.masked_fill(self.hidden(), float("-inf")),
    "hidden by -1e9": lambda self, scores: scores.masked_fill(self.hidden(), -1e9),
    "shown": lambda self, scores: torch.where(self.shown[:, :, :6, :6] > 0, scores, float("-inf")),
    "added": lambda self, scores: scores + self.slopes,
    "added, then hidden": lambda self, scores: (scores + self.slopes).masked_fill(self.hidden(), -1e9),
    "hidden, then added": lambda self, scores: scores.masked_fill(self.hidden(), -1e9) + self.slopes,
    "added twice": lambda self, scores: scores + self.slopes + self.hidden() * -100.0,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", IN_WORDS)
def test_a_mask_in_a_buffer_is_an_operand(name, decomposed):
    program = torch.export.export(Written(IN_WORDS[name]), (torch.randn(2, 6, 16),))
    [(mask,)] = calls(program.run_decompositions() if decomposed else program)
    assert isinstance(mask, torch.fx.Node) and list(mask.meta["val"].shape[-2:]) in ([6, 6], [1, 6])


NONE_OF_ATTENTION = {
    "scaled by a mask": lambda self, scores: scores * self.slopes,
    "hidden scores have weight": lambda self, scores: scores.masked_fill(self.hidden(), 0.5) * 2.0,
    "a mask that is scaled after": lambda self, scores: (scores + self.slopes) * 2.0,
}


@pytest.mark.parametrize("name", NONE_OF_ATTENTION)
def test_what_is_near_to_a_mask_is_none(name):
    """Any call found has the same values, with the scaling of scores left out or moved into operands."""
    model, x = Written(NONE_OF_ATTENTION[name]), torch.randn(2, 6, 16)
    refolding = decomp.refold(torch.export.export(model, (x,)).run_decompositions(), verify="values")
    torch.testing.assert_close(refolding.result.module()(x), model(x))
    assert not any(ATTENTION in each.op for each in refolding.folded)


@pytest.mark.parametrize("beta, alpha, found_as", [(1.0, 0.25, 1), (0.5, 0.25, 0), (1.0, 0.3, 1)])
def test_a_mask_that_a_product_adds_is_one(beta, alpha, found_as):
    def attend(mask, q, k, v):
        scores = torch.baddbmm(mask, q, k.transpose(-1, -2), beta=beta, alpha=alpha)
        return torch.softmax(scores, -1) @ v

    operands = torch.randn(4, 6, 5), torch.randn(4, 6, 16), torch.randn(4, 5, 16), torch.randn(4, 5, 16)

    class Module(nn.Module):
        forward = staticmethod(attend)

    found = calls(torch.export.export(Module(), operands))
    assert len(found) == found_as and (alpha == 0.25 or found[0][-1] == ("scale", alpha))


def bloom():
    from transformers import BloomConfig, BloomForCausalLM

    torch.manual_seed(0)
    config = BloomConfig(hidden_size=16, n_layer=2, n_head=2, use_cache=False, **TEXT)
    return Head(BloomForCausalLM(config), ("input_ids",), "logits"), (torch.randint(3, 50, (2, 6)),)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("decomposed", [False, True])
def test_attention_of_bloom_is_found(decomposed):
    """Its slopes are added by the product, for heads and batches in one dimension; then comes a causal mask."""
    module, args = bloom()
    program = torch.export.export(module.eval(), args)
    refolding = decomp.refold(program.run_decompositions() if decomposed else program, verify="values")
    found = Counter(each.op.split(".")[1] for each in refolding.folded)
    assert found["gelu"] == found[ATTENTION] == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("to, form", [(targets.tinygrad, "exported"), (targets.core_aten, "module")])
def test_keys_that_simplification_transposed_once_and_masks_that_it_computed_are_found(to, form):
    module, args = build("gpt2")
    if form == "exported":
        found = calls(decomp.lower(torch.export.export(module.eval(), args), to=to).result)
    else:
        found = calls(decomp.lower(module.eval(), to=to, args=args).result, args=args)
    assert found == [(None, 0.0, True)] * 2


class Tied(nn.Module):
    """Two layers of one weight, of which all elements are equal, as in a mask."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.first.weight = self.second.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return self.second(self.first(x))


def test_a_weight_of_two_names_is_no_constant():
    x = torch.randn(2, 4)
    graph = fx.symbolic_trace(Tied())
    traced = decomp.lower(graph, to=targets.core_aten, args=(x,), simplify=False).result
    read = {str(node.target) for node in traced.graph.find_nodes(op="get_attr")}
    assert len(read) == 2
    assert not constants_of(capture_module(traced, (x,), None))


# In words.


def exported(function, *args):
    return torch.export.export(Holder(function), args).run_decompositions()


def attention(scale=0.25, mask=None, groups=1):
    def attend(q, k, v, *given):
        k, v = (t[:, :, None].expand(-1, -1, groups, -1, -1).reshape(2, 4, 5, 16) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * scale
        if mask == "added":
            scores = scores + given[0]
        elif mask == "hidden":
            scores = scores.masked_fill(given[0], float("-inf"))
        elif mask == "causal":
            scores = torch.where(torch.ones(6, 5, dtype=torch.bool).tril(), scores, float("-inf"))
        return torch.softmax(scores, -1) @ v

    heads = 4 // groups
    args = torch.randn(2, 4, 6, 16), torch.randn(2, heads, 5, 16), torch.randn(2, heads, 5, 16)
    return attend, args + {"added": (torch.randn(2, 1, 6, 5),), "hidden": (torch.rand(6, 5) > 0.9,)}.get(mask, ())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 1.0},
        {"scale": 0.3},
        {"mask": "added"},
        {"mask": "causal"},
        {"groups": 2},
        {"groups": 4, "mask": "added", "scale": 0.5},
    ],
    ids=str,
)
def test_attention_is_found(options):
    function, args = attention(**options)
    refolding = decomp.refold(exported(function, *args), verify="values")
    assert [each.op for each in refolding.folded] == ["aten.scaled_dot_product_attention.default"]
    call = next(n for n in refolding.result.graph.nodes if "attention" in str(n.target))
    assert call.kwargs.get("scale") == (options["scale"] if options.get("scale", 0.25) != 0.25 else None)
    assert call.kwargs.get("enable_gqa", False) == (options.get("groups", 1) > 1)
    assert (call.args[3:] == (None, 0.0, True)) == (options.get("mask") == "causal")
    torch.testing.assert_close(refolding.result.module()(*args), function(*args))


@pytest.mark.parametrize("first", [0, 1])
def test_a_mask_among_the_constants_is_causal_or_it_is_not(first):
    """Attention to one place more takes its mask."""
    later = torch.arange(5)[None, :] > torch.arange(5)[:, None] + first

    def attend(q, k, v):
        scores = q @ k.transpose(-1, -2) * 0.25
        return torch.softmax(torch.where(later, float("-inf"), scores), -1) @ v

    program = exported(attend, *(torch.randn(2, 4, 5, 16) for _ in range(3)))
    assert program.graph_signature.inputs_to_lifted_tensor_constants
    calls = [n for n in decomp.refold(program, verify="values").result.graph.nodes if "attention" in str(n.target)]
    [call] = calls
    if first:
        assert call.args[3].target is torch.ops.aten.logical_not.default and call.args[4:] == ()
    else:
        assert call.args[3:] == (None, 0.0, True)


@functools.cache
def bert_on(target):
    module, args = build("bert")
    return decomp.lower(torch.export.export(module.eval(), args), to=target).result


@pytest.mark.sampled(1)
@pytest.mark.parametrize("to", [targets.core_aten, targets.tinygrad], ids=lambda to: to.name)
def test_only_attention_is_requested(to):
    program = bert_on(to)
    assert len(calls(program, to=[ATTENTION])) == 2
    without_views = decomp.Target("chip", [ATTENTION])  # which could not bring operands into shape
    assert calls(program, to=without_views) == []


def test_what_attention_was_found_on_is_taken_back():
    program = bert_on(targets.tinygrad)
    before = {node.name: str(node.target) for node in program.graph.nodes}
    refolding = decomp.refold(program, to=[ATTENTION], verify="values")
    assert {each.op for each in refolding.folded} == {f"aten.{ATTENTION}.default"}
    nodes = {node.name: node for node in refolding.result.graph.nodes}
    attention = {each.node for each in refolding.folded}
    shown = nodes.keys() - before.keys()  # operands in their shape
    assert {name for name in nodes.keys() & before.keys() if before[name] != str(nodes[name].target)} == attention
    assert {user.name for name in shown for user in nodes[name].users} <= shown | attention
