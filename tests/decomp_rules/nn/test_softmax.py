"""Softmax over what a mask leaves, backwards."""

import pytest
import torch

from decomp_rules.nn import softmax


@pytest.mark.parametrize("dim", [None, 3, 1])
def test_the_gradient_of_a_masked_softmax_is_the_kernels(dim):
    generator = torch.Generator().manual_seed(0)
    grad, x = (torch.randn(2, 3, 4, 5, generator=generator) for _ in range(2))
    mask = torch.rand(2, 3, 4, 5, generator=generator) > 0.6
    mask[0, :, :, 0] = mask[0, 0] = True
    output = torch._masked_softmax(x, mask, dim)
    expected = torch.ops.aten._masked_softmax_backward(grad, output, mask, dim)
    found = softmax._masked_softmax_backward(grad, output, mask, dim)
    torch.testing.assert_close(found, expected, equal_nan=True)
