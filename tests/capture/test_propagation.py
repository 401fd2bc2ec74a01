"""Metadata by running a graph on fake tensors."""

import torch

import decomp
from decomp_rules import targets
from tests.forms import Holder


def test_dynamic_sizes_stay_dynamic_where_a_kernel_is_in_cpp() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.polar(x.abs(), x).real

    x, rows = torch.randn(3, 4), {0: torch.export.Dim.AUTO}
    source = torch.export.export(Holder(function), (x.clone().requires_grad_(),), dynamic_shapes=((rows,),)).module()
    lowered = decomp.lower(source, to=targets.luminal).result
    for x in (x, torch.randn(5, 4)):
        torch.testing.assert_close(lowered(x), function(x))
