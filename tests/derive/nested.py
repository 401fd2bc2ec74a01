"""A model and a rule for composites within composites: attention whose decomposition calls softmax and matmul."""

import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules import RULES

rules = decomp.Rules()


@rules.register(F.scaled_dot_product_attention)
def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if is_causal:
        scores = torch.where(torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), scores, -torch.inf)
    return torch.softmax(scores, -1) @ value


NESTED_RULES = rules | RULES
NESTED = {F.scaled_dot_product_attention: 1, torch.softmax: 2}


class Nested(nn.Module):
    """A softmax of its own, and one in each attention."""

    def forward(self, x):
        y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return torch.softmax(F.scaled_dot_product_attention(y, x, y, is_causal=True), -1)


def queries(rows=4):
    return torch.randn(1, 2, rows, 4, generator=torch.Generator().manual_seed(0))
