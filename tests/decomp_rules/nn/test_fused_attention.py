"""The attention kernels of GPUs, which do not run here, give what attention gives, gradients included."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from decomp_rules.nn import fused_attention
from tests.decomp_rules.draws import sample

CAUSAL = pytest.mark.parametrize("causal", [False, True])


def heads() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = (sample(2, 3, 5, 8, seed=i).requires_grad_() for i in range(3))
    return q, k, v


def expected(bias: torch.Tensor | None, causal: bool) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]:
    q, k, v = heads()
    out = F.scaled_dot_product_attention(q, k, v, bias, is_causal=causal)
    grad = sample(*out.shape, seed=4)
    return out.detach(), torch.autograd.grad(out, (q, k, v), grad), grad


@CAUSAL
def test_flash(causal: bool) -> None:
    q, k, v = (x.detach() for x in heads())
    out, grads, grad = expected(None, causal)
    found = fused_attention._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    torch.testing.assert_close(found[0], out)
    assert [found[1].shape, found[4], found[5]] == [(2, 3, 5), 5, 5]
    back = fused_attention._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, found[0], found[1], None, None, 5, 5, 0.0, causal, found[6], found[7]
    )
    torch.testing.assert_close(back, grads, rtol=1e-4, atol=1e-5)


def test_efficient_with_a_bias() -> None:
    q, k, v = (x.detach() for x in heads())
    bias = sample(2, 1, 5, 5, seed=7)
    out, grads, grad = expected(bias, False)
    found = fused_attention._scaled_dot_product_efficient_attention(q, k, v, bias, True)
    torch.testing.assert_close(found[0], out)
    assert found[1].shape == (2, 3, 32)
    *back, for_bias = fused_attention._scaled_dot_product_efficient_attention_backward(
        grad, q, k, v, bias, found[0], found[1], found[2], found[3], 0.0, [True, True, True, True]
    )
    torch.testing.assert_close(tuple(back), grads, rtol=1e-4, atol=1e-5)
    bias.requires_grad_()
    (wanted,) = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, bias), bias, grad)
    torch.testing.assert_close(for_bias, wanted, rtol=1e-4, atol=1e-5)


@CAUSAL
def test_cudnn_and_any_other(causal: bool) -> None:
    q, k, v = (x.detach() for x in heads())
    out, grads, grad = expected(None, causal)
    found = fused_attention._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
    assert found[1].shape == (2, 3, 5, 1)
    torch.testing.assert_close(found[0], out)
    back = fused_attention._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, found[0], found[1], found[6], found[7], None, None, None, 5, 5, 0.0, causal
    )
    torch.testing.assert_close(back, grads, rtol=1e-4, atol=1e-5)
    other = fused_attention._scaled_dot_product_fused_attention_overrideable(q, k, v, None, 0.0, causal)
    torch.testing.assert_close(other[0], out)


def test_length_before_heads() -> None:
    q, k, v = (x.detach() for x in heads())
    out, _, _ = expected(None, False)
    swapped = (x.transpose(1, 2) for x in (q, k, v))
    found = fused_attention._flash_attention_forward(*swapped, None, None, 5, 5, 0.0, False, False)
    torch.testing.assert_close(found[0].transpose(1, 2), out)


def test_random_numbers_of_a_kernel_cannot_be_drawn() -> None:
    q, k, v = (x.detach() for x in heads())
    found = fused_attention._scaled_dot_product_flash_attention(q, k, v, 0.1)
    assert found.reason == "the kernel's random numbers cannot be drawn outside of it"


@pytest.mark.parametrize("kind, biased", [(0, False), (0, True), (1, False), (2, False), (2, True)])
def test_efficient_with_the_heads_behind_the_lengths(kind: int, biased: bool) -> None:
    q, k, v = sample(2, 5, 3, 8), sample(2, 7, 3, 8, seed=1), sample(2, 7, 3, 8, seed=2)
    bias = sample(2, 3, 5, 7, seed=3) if biased else None
    shown = [torch.ones(5, 7), torch.ones(5, 7).tril(), torch.ones(5, 7).tril(2)][kind].bool()
    added = torch.where(shown, 0.0 if bias is None else bias, float("-inf"))
    expected = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), added).transpose(1, 2)
    found = fused_attention._efficient_attention_forward(q, k, v, bias, None, None, None, None, 0.0, kind, True)
    torch.testing.assert_close(found[0], expected)
    assert [found[1].shape, *found[4:]] == [(2, 3, 32), 5, 7]


def test_efficient_as_a_program() -> None:
    class Attends(torch.nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            call = torch.ops.aten._efficient_attention_forward.default
            return call(q, q, q, None, None, None, None, None, 0.0, 1)[0]

    q = sample(2, 5, 3, 8)
    lowered = decomp.lower(Attends(), to=targets.tinygrad, args=(q,)).result
    expected = F.scaled_dot_product_attention(*(q.transpose(1, 2),) * 3, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(lowered(q), expected)
