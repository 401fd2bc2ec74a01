"""What ExecuTorch is given: contiguous tensors, as its kernels refuse operands that are laid out in several ways, and
programs that return their results alone."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from tests.installed import converter

LAST = torch.channels_last


class Both(nn.Module):
    """The sum of a contiguous tensor, and of one that some code makes channels-last."""

    def __init__(self, other):
        super().__init__()
        self.other, self.conv = other, nn.Conv2d(3, 8, 2, 2)
        self.register_buffer("table", torch.randn(1, 4, 4, 8).permute(0, 3, 1, 2))

    def forward(self, x):
        return self.conv(x) + self.other(self, x)


OTHERS = {
    "a decomposition of PyTorch's": lambda m, x: F.interpolate(m.table, size=(4, 4), mode="bicubic"),
    "a copy": lambda m, x: m.conv(x.contiguous(memory_format=LAST)),
    "a cast": lambda m, x: m.conv(x).to(torch.float64, memory_format=LAST),
    "a buffer": lambda m, x: m.table,
    "a factory": lambda m, x: torch.ones(1, 8, 4, 4).contiguous(memory_format=LAST),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_channels_last_inside_is_converted(other):
    decomp.convert(Both(OTHERS[other]), to=converter("executorch"), args=(torch.randn(1, 3, 8, 8),))


def test_channels_last_weights_and_inputs_are_converted_and_the_program_stays_as_it_is():
    executorch, x = converter("executorch"), torch.randn(1, 3, 8, 8).contiguous(memory_format=LAST)
    model = Both(lambda m, x: 1).to(memory_format=LAST)
    program = torch.export.export(model, (x,))
    inputs, weights = program.graph.find_nodes(op="placeholder"), dict(program.state_dict)
    before = [node.meta["val"] for node in inputs]
    assert not weights["conv.weight"].is_contiguous() and not before[-1].is_contiguous()
    (found,) = executorch.run(executorch.convert(program), [x])
    torch.testing.assert_close(found, model(x).detach())
    assert all(program.state_dict[name] is weight for name, weight in weights.items())
    assert all(node.meta["val"] is value for node, value in zip(inputs, before))


class Rescaled(nn.Module):
    """Writes to a parameter, as RWKV does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        self.linear.weight.div_(2)
        return self.linear(x)


def test_parameters_that_a_program_writes_to_are_no_results():
    executorch, x = converter("executorch"), torch.randn(2, 4)
    program = torch.export.export(Rescaled(), (x,))
    lowered = decomp.lower(program, to=executorch.target, training=False).result
    found = executorch.run(executorch.convert(lowered), [x])
    assert len(found) == 1 and len(lowered.graph.output_node().args[0]) == 2
    torch.testing.assert_close(found[0], program.module()(x))
