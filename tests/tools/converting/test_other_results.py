"""`decomp.convert` of models whose results are not the same each time, or not the same when they are captured."""

import dataclasses
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.proof.correspondence import CaptureDiffers
from decomp.tools.converting.conversion import conversion
from tests.installed import converter
from tests.tools.converting import fakes

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class Drawing(nn.Module):
    """Results that depend on random numbers, one beside one that does not."""

    def forward(self, x):
        return F.dropout(torch.relu(x), 0.5, training=True), torch.relu(x)


def redrawn(model, inputs):
    """The results of `fakes.FAKE` from a generator of another seed."""
    torch.manual_seed(7)
    return fakes.run(model, inputs)


def redrawn_wrong(model, inputs):
    return [result + 1 for result in redrawn(model, inputs)]


def test_results_that_depend_on_random_numbers_are_not_compared_with_a_warning_and_the_others_are():
    target = fakes.TARGET | {"native_dropout", "rand", "ge.Scalar", "lt.Scalar", "mul", "dropout"}
    redraws = dataclasses.replace(fakes.FAKE, run=redrawn, target=target)
    said = (
        r"fake \S+: the whole program run on the example inputs, against itself in float64: 1 result within \S+ "
        r"\(.*\); 1 result not compared, as it depends on random numbers"
    )
    with pytest.warns(UserWarning) as warned:
        decomp.convert(Drawing(), to=redraws, args=(X,))
    assert len(warned) == 1 and re.fullmatch(said, str(warned[0].message))
    with pytest.raises(decomp.errors.ConversionError, match=r"result\[1\] of the lowered program differs"):
        decomp.convert(Drawing(), to=dataclasses.replace(redraws, run=redrawn_wrong), args=(X,))
    with pytest.warns(UserWarning, match=r": the whole program not compared, as it is random$"):
        decomp.convert(nn.Dropout(), to=redraws, args=(X,))


@pytest.mark.parametrize("name", ["openvino", "executorch", "iree", "torch_onnx"])
def test_converters_draw_their_own_random_numbers(name):
    found = converter(name)

    class Masked(nn.Module):
        def forward(self, x):
            order = torch.argsort(torch.rand(2, 4), dim=1)
            return torch.gather(x, 1, order), x.exp()

    with pytest.warns(UserWarning, match="; 1 result not compared, as it depends on random numbers"):
        decomp.convert(Masked(), to=found, args=(X,))


class Asks(nn.Module):
    """Computes something else while it is exported."""

    def forward(self, x):
        return torch.relu(x) + (1 if torch.compiler.is_exporting() else 0)


def test_a_model_that_computes_something_else_while_it_is_captured_is_reported_as_such():
    with pytest.raises(CaptureDiffers) as raised:
        decomp.convert(Asks(), to=fakes.FAKE, args=(X,))
    assert re.fullmatch(
        r"what was captured is not what the model computes: result of the captured program differs: it gives \S+ "
        r"instead of \S+ at \[\d, \d\], off by \S+ ULP where 32 are promised\n"
        r"  to do: the model must compute the same where torch\.compiler\.is_exporting\(\) is True; if what was "
        r"captured will do, pass torch\.export\.export\(model, args\) in its place",
        str(raised.value),
    )
    with pytest.raises(CaptureDiffers):
        decomp.lower(Asks(), to=fakes.TARGET, args=(X,), verify="values")
    program = torch.export.export(Asks(), (X,))
    assert conversion(program, fakes.FAKE, (X,), None, None, None, True, {}).verified.startswith(
        "the whole program run"
    )
    with pytest.raises(decomp.errors.ConversionError, match="the fault is in wrong"):
        decomp.convert(program, to=fakes.WRONG, args=(X,))
