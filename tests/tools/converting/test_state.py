"""`decomp.convert` of models with constants that no call of the converter takes, and of models that write: what is
computed once before, what is left out, and what is refused."""

import dataclasses

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from tests.forms import Holder
from tests.tools.converting import fakes

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def test_what_no_input_reaches_is_computed_where_no_call_of_the_converter_does():
    target = decomp.Target("fake", ["mul.Tensor", "sqrt", "_to_copy"]).with_dtypes(["float32"])
    only_float32 = dataclasses.replace(fakes.FAKE, target=target)
    scale = torch.tensor([2.0, 0.5, 1.0, 3.0]).bfloat16()
    model = Holder(lambda own, x: x * own.scale.float().sqrt(), scale=scale)
    made = decomp.convert(model, to=only_float32, args=(X,))
    assert [str(node.target) for node in made.graph.nodes if node.op == "call_function"] == ["aten.mul.Tensor"]
    torch.testing.assert_close(made(X), model(X))
    assert "scale" not in dict(made.named_buffers())  # which nothing reads any more
    with pytest.raises(decomp.NotLowered, match="aten.to"):
        decomp.convert(Holder(lambda x: x.bfloat16().float()), to=only_float32, args=(X,))


def test_a_model_that_writes_to_its_state_is_refused():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x + self.count

    with pytest.raises(decomp.errors.ConversionError) as raised:
        decomp.convert(Counter(), to=fakes.FAKE, args=(X,))
    assert str(raised.value) == (
        "the model writes to count, and a model converted by fake only returns results\n"
        "  to do, the easiest first:\n"
        "    1. call model.eval(), if these are running statistics\n"
        "    2. call the model once before, if these are weights that its first call prepares\n"
        "    3. return what is written as a result, and pass it as an input"
    )


class Scaling(nn.Module):
    """Divides its weight before each product, as RWKV does by powers of two."""

    def __init__(self, scale):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4, 4)), scale

    def forward(self, input):
        with torch.no_grad():
            self.weight.div_(self.scale)
        return input @ self.weight


def test_a_write_of_what_is_there_is_left_out_and_others_are_refused():
    model = Scaling(1)
    made = decomp.convert(model, to=fakes.FAKE, args=(X,), target=targets.core_aten)
    torch.testing.assert_close(made(X), X @ model.weight)
    with pytest.raises(
        decomp.errors.ConversionError, match="^the model writes to weight, and a model converted by fake"
    ):
        decomp.convert(Scaling(2), to=fakes.FAKE, args=(X,), target=targets.core_aten)
