"""Targets that have some convolutions get the others by these."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets

REST = targets.core_aten - ["convolution"]
CONDITIONS = {
    "one group": lambda call: call.argument("groups") == 1,
    "images": lambda call: call.tensors[0].dim() == 4,
    "not transposed": lambda call: not call.argument("transposed"),
    "no padding": lambda call: not any(call.argument("padding")),
}
LAYERS = {
    "grouped": (nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 5, 6)),
    "of a line": (nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (2, 4, 5, 4)),
    "widely padded": (nn.ConvTranspose2d(2, 3, 2, padding=3, dilation=2), (2, 2, 6, 5)),
    "complex": (nn.Conv2d(2, 4, 2, padding=1, groups=2, dtype=torch.complex64), (1, 2, 4, 4)),
}


def lowered(layer, chip, **how):
    module, shape = LAYERS[layer]
    x = torch.randn(shape, dtype=module.weight.dtype)
    return decomp.lower(module, to=chip, args=(x,), verify="values", **how).result


def convolutions(program):
    return [call for call in decomp.calls(program) if call.op.short == "convolution"]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("condition", [*CONDITIONS, "all"])
def test_what_a_target_has_not_is_had_by_what_it_has(layer, condition):
    chip, conditions = REST, CONDITIONS if condition == "all" else {condition: CONDITIONS[condition]}
    for reason, holds in conditions.items():
        chip = chip.legal_if("convolution", holds, reason)
    count = len(convolutions(lowered(layer, chip)))
    assert 1 <= count <= 2 or layer == "complex"  # which is several real ones, or none


def test_groups_are_a_few_calls_each():
    chip = REST.legal_if("convolution", CONDITIONS["one group"], "one group")
    assert len(decomp.calls(lowered("grouped", chip))) == 9  # two of each operand, two convolutions, and cat
    many = nn.Conv2d(128, 128, 3, groups=128)
    found = decomp.lower(many, to=chip, args=(torch.randn(1, 128, 5, 5),)).result
    assert not convolutions(found) and len(decomp.calls(found)) < 80


def test_a_target_without_any_does_not_hear_of_them():
    with pytest.raises(decomp.NotLowered) as error:
        decomp.lower(LAYERS["grouped"][0], to=decomp.Target("none", ["add"]), args=(torch.randn(LAYERS["grouped"][1]),))
    assert "by_groups" not in str(error.value)
