"""Graphs of `make_fx` on real tensors, where PyTorch gives each node metadata of a fake mode of its own."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import decomp
from decomp_rules import targets


def test_statistics_that_a_traced_batch_norm_writes_are_written():
    def normalized(x, mean, var):
        return F.batch_norm(x, mean, var, training=True)

    x = torch.arange(12.0).view(4, 3) ** 2
    traced = make_fx(normalized)(x, torch.zeros(3), torch.ones(3))
    own, found = (torch.zeros(3), torch.ones(3)), (torch.zeros(3), torch.ones(3))
    lowered = decomp.lower(traced, to=targets.tinygrad, args=(x, *own)).result
    torch.testing.assert_close(lowered(x, *found), normalized(x, *own))
    torch.testing.assert_close(found, own)
