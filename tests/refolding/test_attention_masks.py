"""Attention whose mask is made of places alone is found with what the mask says at every size."""

import pytest
import torch
from torch import nn
import torch.nn.functional as F

import decomp
from decomp_rules import targets

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
