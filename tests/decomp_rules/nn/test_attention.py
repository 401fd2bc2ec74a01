"""Attention agrees with the op for any mask, and its backward kernel with autograd."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from decomp_rules.nn import attention
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees
from tests.pytorch_differences import ATTENTION_OF_NO_ROWS_RUNS, QUERIES_MAY_BE_EMPTY

aten = torch.ops.aten
RULES = attention.RULES
FLOATS = [torch.float32, torch.float64, torch.bfloat16]
MASK = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])


def heads(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [
        sample(2, 6, 3, 8, dtype=dtype),
        sample(2, 6, 4, 8, dtype=dtype, seed=1),
        sample(2, 6, 4, 8, dtype=dtype, seed=2),
    ]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": MASK},
        {"attn_mask": MASK.float().log()},
        {"attn_mask": sample(2, 1, 3, 4)},
        {"attn_mask": MASK[:1]},
    ],
)
def test_attention(dtype: torch.dtype, options: dict[str, object]) -> None:
    mask = options.get("attn_mask")
    if isinstance(mask, torch.Tensor) and mask.dtype != torch.bool:
        options = {"attn_mask": mask.to(dtype)}
    agrees(
        RULES,
        aten.scaled_dot_product_attention.default,
        *heads(dtype),
        **options,
        tolerance={torch.bfloat16: 4e-2, torch.float32: 1e-5}.get(dtype),
    )


def test_attention_with_other_shapes() -> None:
    q, k, v = heads()
    op = aten.scaled_dot_product_attention.default
    agrees(RULES, op, q[0], k[0], v[0])
    agrees(RULES, op, q[0, 0], k[0, 0], v[0, 0])
    agrees(RULES, op, q, k, sample(2, 6, 4, 5))
    agrees(RULES, op, q, k[:1], v[:1])
    agrees(RULES, op, q, k[:, :2], v[:, :2], enable_gqa=True)
    agrees(RULES, op, q, k[:, :1], v[:, :3], is_causal=True, enable_gqa=True)
    agrees(RULES, op, q.transpose(1, 2).contiguous().transpose(1, 2), k, v)


@pytest.mark.parametrize("rule", [attention.attention_by_softmax, attention.scaled_dot_product_attention])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": MASK}])
def test_a_row_of_scores_that_are_all_minus_infinity_is_zero_and_has_no_gradient(rule, options) -> None:
    q, k, v = heads(torch.float64)
    q[0, 0, 0, 2], k[..., 2] = -math.inf, 1.0
    q.requires_grad_()
    own = F.scaled_dot_product_attention(q, k, v, **options)
    out = rule(q, k, v, **options)
    assert torch.allclose(out, own, rtol=1e-14, atol=1e-15) and not out[0, 0, 0].any()
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert torch.isfinite(grad).all() and not grad[0, 0, 0].any()
    v[0, 0, 1, 3] = math.inf  # 0 · ∞, as in PyTorch
    own = F.scaled_dot_product_attention(q, k, v, **options)
    assert torch.equal(torch.isnan(rule(q, k, v, **options)), torch.isnan(own)) and torch.isnan(own[0, 0, 0, 3])


@pytest.mark.skipif(not QUERIES_MAY_BE_EMPTY, reason="PyTorch's own kernel returns zeros")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [0, 4])
def test_queries_without_elements_attend_to_all_alike(width: int) -> None:
    q, v = torch.empty(1, 2, 3, 0), torch.arange(6.0 * width).reshape(1, 2, 3, width)
    lowered_agrees(F.scaled_dot_product_attention, q, q, v)


def test_a_row_masked_throughout_is_zero_and_has_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in heads())
    out = attention.scaled_dot_product_attention(q, k, v, MASK)
    assert torch.equal(out[:, :, 1], torch.zeros(2, 6, 8))
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(torch.isfinite(grad).all() for grad in grads) and not grads[0][:, :, 1].any()


def test_dropout_drops_and_scales() -> None:
    torch.manual_seed(0)
    q, k, v = heads()
    expected = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), -1)
    torch.manual_seed(0)
    kept = F.dropout(expected, 0.5)
    torch.manual_seed(0)
    torch.testing.assert_close(attention.scaled_dot_product_attention(q, k, v, dropout_p=0.5), kept @ v)


def test_the_reference_kernel() -> None:
    q, k, v = heads()
    op = aten._scaled_dot_product_attention_math.default
    agrees(RULES, op, q, k, v)
    agrees(RULES, op, q, k, v, sample(3, 4), scale=0.2)
    agrees(RULES, op, q, q, q, None, 0.0, True)
    agrees(RULES, op, q, k[:, :2], v[:, :2], enable_gqa=True)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": MASK}, {"scale": 0.3}])
def test_flash_attention_and_its_backward(dtype: torch.dtype, options: dict[str, object]) -> None:
    q, k, v = heads(dtype)
    if "attn_mask" in options:
        options = {"attn_mask": torch.where(MASK, 0.0, -math.inf).to(dtype)}
    near = {torch.bfloat16: 4e-2, torch.float32: 1e-5}.get(dtype)
    op = aten._scaled_dot_product_flash_attention_for_cpu
    agrees(RULES, op.default, q, k, v, **options, gradient=False, tolerance=near)
    out, lse = op(q, k, v, **options)
    causal = options.pop("is_causal", False) if "is_causal" in options else False
    agrees(
        RULES,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        sample(2, 6, 3, 8, dtype=dtype),
        q,
        k,
        v,
        out,
        lse,
        0.0,
        causal,
        **options,
        gradient=False,
        tolerance=near,
    )


@pytest.mark.parametrize("need_weights, average", [(True, True), (True, False), (False, True)])
def test_the_multi_head_kernel(need_weights: bool, average: bool) -> None:
    x, module = sample(2, 4, 6), nn.MultiheadAttention(6, 3, batch_first=True).eval()
    weights = (module.in_proj_weight, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias)
    padding = torch.tensor([[False, False, False, True], [False, False, True, True]])
    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    for mask, mask_type in ((None, None), (padding, 1), (causal, 0)):
        agrees(
            RULES,
            aten._native_multi_head_attention.default,
            x,
            x,
            x,
            6,
            3,
            *(w.detach() for w in weights),
            mask,
            need_weights,
            average,
            mask_type,
            gradient=False,
        )


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("use_gelu", [True, False])
def test_the_encoder_layer_kernel(norm_first: bool, use_gelu: bool) -> None:
    torch.manual_seed(0)
    x = sample(2, 4, 6)
    layer = nn.TransformerEncoderLayer(
        6, 3, 8, batch_first=True, activation="gelu" if use_gelu else "relu", norm_first=norm_first
    ).eval()
    attend = layer.self_attn
    parameters = [
        p.detach()
        for p in (
            layer.norm1.weight,
            layer.norm1.bias,
            layer.norm2.weight,
            layer.norm2.bias,
            layer.linear1.weight,
            layer.linear1.bias,
            layer.linear2.weight,
            layer.linear2.bias,
        )
    ]
    weights = [
        p.detach() for p in (attend.in_proj_weight, attend.in_proj_bias, attend.out_proj.weight, attend.out_proj.bias)
    ]
    agrees(
        RULES,
        aten._transformer_encoder_layer_fwd.default,
        x,
        6,
        3,
        *weights,
        use_gelu,
        norm_first,
        1e-5,
        *parameters,
        gradient=False,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": MASK},
        {"attn_mask": sample(2, 1, 3, 4)},
    ],
)
def test_lowered_to_the_end(options: dict[str, object]) -> None:
    lowered_agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), *heads())


def test_grouped_queries_are_lowered_to_the_end() -> None:
    q, k, v = heads()
    lowered_agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), q, k[:, :2], v[:, :2])


def test_multi_head_attention_is_lowered_to_the_end() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(6, 3, batch_first=True)
    lowered_agrees(lambda x: module(x, x, x), sample(2, 4, 6))


@pytest.mark.parametrize("kept", ["softmax", "_softmax"])
def test_attention_keeps_the_softmax_of_a_target(kept):
    args = tuple(heads())
    model = decomp.lower(_Attention(), to=targets.tinygrad | decomp.Target("chip", [kept]), args=args).result
    assert getattr(aten, kept) in {getattr(node.target, "overloadpacket", None) for node in model.graph.nodes}
    torch.testing.assert_close(model(*args), F.scaled_dot_product_attention(*args))


@pytest.mark.skipif(not ATTENTION_OF_NO_ROWS_RUNS, reason="PyTorch refuses these operands")
@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad], ids=lambda target: target.name)
def test_keys_without_values_leave_nothing_where_there_is_no_row(target):
    args = torch.zeros(0, 4, 1), torch.zeros(0, 4, 1), torch.zeros(0, 4)  # PyTorch takes them, as it computes no row
    found = decomp.lower(_Attention(), to=target, args=args).result(*args)
    assert found.shape == _Attention()(*args).shape == (0, 4, 4)


class _Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("op", [aten.scaled_dot_product_attention, aten._scaled_dot_product_flash_attention_for_cpu])
@pytest.mark.parametrize("accuracy", ["exact", "standard"])
def test_more_keys_than_values_are_refused_where_pytorch_reads_beside_the_values(op, accuracy):
    graph = torch.fx.Graph()
    query, key, value = map(graph.placeholder, ("query", "key", "value"))
    graph.output(graph.call_function(op.default, (query, key, value)))
    module = torch.fx.GraphModule(nn.Module(), graph)
    with pytest.raises(decomp.NotLowered, match="keys and values differ in number"):
        decomp.lower(module, to=targets.tinygrad, args=(*heads()[:2], heads()[2][..., :2, :]), accuracy=accuracy)
