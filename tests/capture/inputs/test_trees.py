"""A lowered program only accepts inputs of the structure, kinds and values that it was lowered for."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import decomp
from decomp_rules import backends, targets


class Model(nn.Module):
    def forward(self, x, count=2, flag=True, none=None, parts=None, *, more=None):
        return torch.softmax(x, -1) * count + parts["a"][0] + parts["b"] + more


def ones(*shape):
    return torch.ones(shape)


ARGS = ones(4, 3), 2, True, None, {"a": [ones(4, 3)], "b": ones(4, 3)}
MORE = {"more": ones(4, 3)}
OPEN = {
    "x": {0: Dim.AUTO},
    "count": Dim.AUTO,
    "flag": None,
    "none": None,
    "parts": {"a": [{0: Dim.AUTO}], "b": {0: Dim.AUTO}},
    "more": {0: Dim.AUTO},
}
LOWERED = {
    "module": lambda **how: decomp.lower(Model(), to=targets.tinygrad, args=ARGS, kwargs=MORE, **how).result,
    "exported": lambda **how: decomp.lower(export(Model(), ARGS, MORE, **how), to=targets.core_aten).result.module(),
    "loaded": lambda **how: backends.numpy.load(
        decomp.lower(Model(), to=backends.numpy.target, args=ARGS, kwargs=MORE, **how)
    ),
}


def instead(place, value):
    return (*ARGS[:place], value, *ARGS[place + 1 :]), MORE


REFUSED = {
    "input 'count' has value True": instead(1, True),
    "input 'count' has value 2.0": instead(1, 2.0),
    "input 'flag' has value 1, the program was lowered for True": instead(2, 1),
    "input 'none' has value a tensor, the program was lowered for None": instead(3, ones(3)),
    "input 'parts' has structure a dict of 'a', 'c', the program was lowered for a dict of 'a', 'b'": instead(
        4, {"a": [ones(4, 3)], "c": ones(4, 3)}
    ),
    "input \"parts['a']\" has structure a list of 2, the program was lowered for a list of 1": instead(
        4, {"a": [ones(4, 3)] * 2, "b": ones(4, 3)}
    ),
    "input \"parts['a']\" has structure a tuple of 1": instead(4, {"a": (ones(4, 3),), "b": ones(4, 3)}),
    "input 'parts' has structure a tensor": instead(4, ones(4, 3)),
    "the call lacks 'more'; the program takes x, count, flag, none, parts, more": (ARGS, {}),
    "input 'more' has value None, the program was lowered for a tensor": (ARGS, {"more": None}),
    "the call gives 'other' by name; the program takes": (ARGS, {**MORE, "other": 1}),
    "the call gives 'x' twice": (ARGS, {**MORE, "x": ones(4, 3)}),
    "the call has 8 inputs": ((*ARGS, 1, 2, 3), {}),
    "input 'x' has value a ndarray": instead(0, ones(4, 3).numpy()),
    "input 'x' has dtype torch.float64": instead(0, ones(4, 3).double()),
    "input 'x' has shape (4, 4)": instead(0, ones(4, 4)),
    "input 'x' has shape (3,)": instead(0, ones(3)),
    "input 'x' has shape (1, j": instead(0, torch.nested.nested_tensor([ones(2, 3)], layout=torch.jagged)),
    "input 'x' has device meta, the program was lowered for cpu": instead(0, ones(4, 3).to("meta")),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("sizes", ["fixed", "open"])
@pytest.mark.parametrize("how", LOWERED)
def test_other_inputs_are_refused_by_name(how, sizes):
    run = LOWERED[how](**({"dynamic_shapes": OPEN} if sizes == "open" else {}))
    torch.testing.assert_close(run(*ARGS, **MORE), Model()(*ARGS, **MORE))
    torch.testing.assert_close(
        run(**dict(zip(("x", "count", "flag", "none", "parts"), ARGS)), **MORE), Model()(*ARGS, **MORE)
    )
    for said, (args, kwargs) in REFUSED.items():
        if how == "loaded" and "device" in said:
            continue
        with pytest.raises(decomp.errors.InputMismatch) as refused:
            run(*args, **kwargs)
        assert said in str(refused.value)
    if sizes == "open":
        assert run(*instead(1, 5)[0], **MORE).shape == (4, 3)
    else:
        with pytest.raises(
            decomp.errors.InputMismatch, match="input 'count' has value 3, the program was lowered for 2"
        ):
            run(*instead(1, 3)[0], **MORE)


class Writes(nn.Module):
    def forward(self, x, y):
        x.add_(y)
        return x.exp() + y


@pytest.mark.parametrize("kind", ["module", "exported"])
def test_an_input_that_cannot_be_written_is_refused_by_name(kind):
    args = ones(4, 3), ones(4, 3)
    given = export(Writes(), args) if kind == "exported" else Writes()
    result = decomp.lower(given, to=targets.core_aten, **({} if kind == "exported" else {"args": args})).result
    run = result.module() if kind == "exported" else result
    for x, said in (
        (
            ones(1, 3).expand(4, 3),
            "input 'x' has elements that share memory, and the program writes to it\n"
            "  to do: call it with a clone of it",
        ),
        (
            nn.Parameter(ones(4, 3)),
            "input 'x' is a leaf that requires a gradient, and the program writes to it\n"
            "  to do: call it with a clone of it, or under torch.no_grad()",
        ),
    ):
        with pytest.raises(decomp.errors.InputMismatch) as refused:
            run(x, ones(4, 3))
        assert str(refused.value) == said
    with pytest.raises(decomp.errors.InputMismatch, match="input 'x' and input 'y' share memory"):
        run(*args[:1] * 2)


@pytest.mark.parametrize("option", [{"training": False}, {"freeze": True}])
@pytest.mark.parametrize("kind", ["module", "exported"])
def test_a_program_for_inference_has_no_gradients_and_refuses_inputs_that_want_one(kind, option):
    model, x = nn.Sequential(nn.Linear(3, 3), nn.GELU()), ones(2, 3)
    given, how = (export(model, (x,)), {}) if kind == "exported" else (model, {"args": (x,)})
    result = decomp.lower(given, to=targets.core_aten, **how, **option).result
    run = result.module() if kind == "exported" else result
    assert not run(x).requires_grad
    with pytest.raises(decomp.errors.InputMismatch) as refused:
        run(ones(2, 3).requires_grad_())
    assert str(refused.value) == (
        "input 'input' requires a gradient, but the program was lowered for inference (training=False or "
        "freeze=True), without the ops that gradients need\n"
        "  to do: call it under torch.no_grad(), pass the input's detach(), or lower it without these options"
    )
    with torch.no_grad():
        torch.testing.assert_close(run(ones(2, 3).requires_grad_()), model(x))
