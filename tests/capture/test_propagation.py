"""Metadata by running a graph on fake tensors."""

import pytest
import torch
from torch import fx, nn

import decomp
from decomp_rules import targets
from tests.forms import Holder


def test_dynamic_sizes_stay_dynamic_where_a_kernel_is_in_cpp() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.polar(x.abs(), x).real

    x, rows = torch.randn(3, 4), {0: torch.export.Dim.AUTO}
    source = torch.export.export(Holder(function), (x.clone().requires_grad_(),), dynamic_shapes=((rows,),)).module()
    lowered = decomp.lower(source, to=targets.luminal).result
    for given in (x, torch.randn(5, 4)):
        torch.testing.assert_close(lowered(given), function(given))


@pytest.mark.parametrize("capture", ["graph", "exported"])
def test_dtypes_that_pytorch_takes_on_fake_tensors_alone_are_refused(capture):
    """A symbolic trace does not record autocast, under which the product would be cast."""
    x, model = torch.randn(2, 3, 4).half(), nn.Linear(4, 4)
    source = torch.export.export(model, (x,)) if capture == "exported" else fx.symbolic_trace(model)
    with pytest.raises(decomp.CaptureError, match="PyTorch itself does not run .*linear.* the same dtype"):
        decomp.lower(source, to=targets.luminal, **({} if capture == "exported" else {"args": (x,)}))


def test_a_tensor_of_the_trace_that_became_a_constant_is_refused():
    class Data(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            y.data.add_(1)
            return y.sin()

    exported = torch.export.export(Data(), (torch.ones(3, 4),), strict=True)
    with pytest.raises(decomp.CaptureError, match=r"x\.detach\(\) instead of x\.data"):
        decomp.lower(exported, to=targets.core_aten)
