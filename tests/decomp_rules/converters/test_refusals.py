"""Programs that no version of a converter takes are refused by name, before it is asked."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from decomp_rules.converters import executorch, refuse_data_parts, tvm


class Parts(nn.Module):
    def forward(self, x, rows):
        first, second = rows.tolist()
        return [part.sum(0) for part in x.split([first, second])]


ARGS = (torch.arange(12.0).view(4, 3), torch.tensor([1, 3]))


@pytest.mark.parametrize("module, name", [(executorch, "ExecuTorch"), (tvm, "TVM")])
def test_parts_whose_sizes_are_data(module, name):
    program, target = torch.export.export(Parts(), ARGS), targets.get(module.CONVERTER.name)
    with pytest.raises(NotImplementedError) as raised:
        module.convert(decomp.lower(program, to=target, training=False).result)
    assert str(raised.value) == (
        f"{name} takes parts whose sizes are known beforehand, and those of aten.split_with_sizes.default "
        "(split_with_sizes) are data: write the model with parts of fixed sizes, such as all experts on all tokens"
    )


def test_parts_of_fixed_sizes_are_not_refused():
    refuse_data_parts(torch.export.export(Fixed(), ARGS), "ExecuTorch")


class Fixed(nn.Module):
    def forward(self, x, rows):
        return x.split([1, 3])
