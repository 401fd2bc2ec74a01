"""Attention, recurrent networks and embeddings at the levels of accuracy: errors, masks, gradients and costs."""

import math

import pytest
import torch
from torch import nn
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import decomp
from decomp_rules import targets
from decomp_rules.nn.attention import attention_by_exponentials, attention_by_powers, unmasked_attention_by_softmax
from tests.decomp_rules.draws import sample
from tests.levels import at_level, calls, holds

ATTENTION = F.scaled_dot_product_attention
LEVELS = pytest.mark.parametrize("level", ["standard", "fast"])


def heads(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> tuple[torch.Tensor, ...]:
    return tuple(sample(2, 3, 5, 4, seed=seed, dtype=dtype) * scale for seed in range(3))


FORMS = {
    "plain": lambda q, k, v: ATTENTION(q, k, v),
    "causal": lambda q, k, v: ATTENTION(q, k, v, is_causal=True),
    "masked": lambda q, k, v: ATTENTION(q, k, v, torch.arange(5) < torch.tensor([[2], [1], [4], [5], [3]])),
    "biased": lambda q, k, v: ATTENTION(q, k, v, torch.arange(5).to(q.dtype) * 0.3, scale=0.7),
    "for the CPU": lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0],
}


@LEVELS
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_attention_has_the_error_of_the_kernel_and_right_gradients(name, scale, level):
    orders = 0 if name == "for the CPU" else 2
    with sdpa_kernel(SDPBackend.MATH):  # the only one with second gradients
        holds(FORMS[name], level, heads(scale=scale), row=-1, orders=orders, gradient_most=64.0 * scale**2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_of_halves_is_rounded_once(dtype):
    holds(ATTENTION, "standard", heads(dtype), row=-1, orders=0, most=1.0)


@pytest.mark.parametrize("rule", [attention_by_exponentials, attention_by_powers, unmasked_attention_by_softmax])
def test_scores_in_the_hundreds_do_not_overflow(rule):
    q, k, v = heads()
    torch.testing.assert_close(rule(q * 30, k * 30, v), ATTENTION(q * 30, k * 30, v), rtol=1e-5, atol=1e-5)


@LEVELS
@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad], ids=lambda t: t.name)
def test_the_smallest_number_in_a_mask_is_not_infinity(target, level):
    mask = torch.zeros(5, 5)
    mask[1], mask[2], mask[3, 2:] = -torch.inf, torch.finfo(torch.float32).min, torch.finfo(torch.float32).min
    found = at_level(ATTENTION, (*heads(), mask), level, target)(*heads(), mask)
    torch.testing.assert_close(found, ATTENTION(*heads(), mask), rtol=1e-5, atol=1e-6)
    assert (found[:, :, 1] == 0).all() and (found[:, :, 2] != 0).all()


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 5, 4), (5, 4)], ids=str)
@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad], ids=lambda t: t.name)
def test_attention_of_any_number_of_heads(target, shape):
    q, k, v = (sample(*shape, seed=seed) for seed in range(3))
    found = at_level(ATTENTION, (q, k, v), "standard", target)(q, k, v)
    torch.testing.assert_close(found, ATTENTION(q, k, v), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("one", range(3), ids=["query", "key", "value"])
@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad], ids=lambda t: t.name)
def test_one_head_may_serve_all(target, one):
    given = [x[:, :1] if i == one else x for i, x in enumerate(heads())]
    torch.testing.assert_close(at_level(ATTENTION, given, "standard", target)(*given), ATTENTION(*given))


def test_on_core_aten_inductor_knows_it_for_attention():
    q, k, v = (sample(2, 3, 16, 8, seed=seed) for seed in range(3))
    program = at_level(ATTENTION, (q, k, v), "standard", targets.core_aten)
    graph = make_fx(program, select_decomp_table(), tracing_mode="fake")(q, k, v)
    with torch.no_grad(), V.set_fake_mode(next(iter(graph.graph.nodes)).meta["val"].fake_mode):
        joint_graph_passes(graph)
    assert any("scaled_dot_product" in str(node.target) for node in graph.graph.nodes)
    assert sum(node.op == "call_function" for node in program.graph.nodes) == 9


@LEVELS
def test_a_row_that_sees_nothing_gives_zero_and_no_gradient(level):
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    program = at_level(lambda q, k, v: ATTENTION(q, k, v, mask), heads(), level)
    leaves = [x.requires_grad_() for x in heads()]
    out = program(*leaves)
    out.sum().backward()
    assert (out[:, :, 2] == 0).all() and (leaves[0].grad[:, :, 2] == 0).all()
    assert all(x.grad.isfinite().all() for x in leaves)


def test_the_logarithm_that_the_kernel_for_the_cpu_gives_beside():
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    holds(lambda q, k, v: kernel(q, k, v)[1], "standard", heads(), orders=0)


@LEVELS
def test_attention_costs_few_calls(level):
    assert calls(ATTENTION, heads(), level) <= 24


NETWORKS = {
    "lstm": (nn.LSTM, {}, 38),
    "lstm of two layers": (nn.LSTM, {"num_layers": 2, "bidirectional": True}, 160),
    "gru": (nn.GRU, {}, 34),
    "rnn": (nn.RNN, {}, 18),
}


@pytest.mark.sampled(1)
@LEVELS
@pytest.mark.parametrize("name", NETWORKS)
def test_recurrent_networks_have_the_error_of_the_kernel(name, level):
    kind, options, per_step = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = kind(6, 8, **options)
    x = sample(10, 3, 6) * 3
    with torch.no_grad():
        program = decomp.lower(network, to=targets.tinygrad, args=(x,), accuracy=level).result
        own, found = network(x)[0], program(x)[0]
        exact = network.double()(x.double())[0]
    assert (found - exact).abs().max() <= 4 * (own - exact).abs().max()
    assert sum(node.op == "call_function" for node in program.graph.nodes) <= 10 * per_step + 60


@pytest.mark.parametrize("size", [1.0, 40.0, 1e6, math.inf])
def test_gates_that_are_closed_for_good_have_no_gradient_that_is_not_a_number(size):
    cell = nn.LSTM(1, 1)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.fill_(1.0)
    x = torch.tensor([[-1.0], [1.0], [-1.0]]) * min(size, 1e30)
    program = decomp.lower(cell, to=targets.tinygrad, args=(x,), accuracy="standard").result
    out, _ = program(x)
    (gradient,) = torch.autograd.grad(out.sum(), list(program.parameters())[:1])
    assert out.isfinite().all() and gradient.isfinite().all()


@LEVELS
@pytest.mark.parametrize("padding", [None, 2])
def test_embeddings_are_rows_of_the_table_with_their_gradient(padding, level):
    indices, table = torch.tensor([[1, 2, 5], [0, 5, 2]]), torch.cat([sample(5, 4), torch.full((1, 4), math.inf)])

    def function(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return F.embedding(indices, table, padding_idx=padding)

    program = at_level(function, (indices, table), level)
    mine, theirs = (table.clone().requires_grad_() for _ in range(2))
    found, expected = program(indices, mine), function(indices, theirs)
    assert torch.equal(found, expected)
    found.sum().backward()
    expected.sum().backward()
    assert torch.equal(mine.grad, theirs.grad)
    assert calls(function, (indices, table), level) <= (7 if padding is None else 10)
