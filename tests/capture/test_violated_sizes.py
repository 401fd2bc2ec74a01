"""What is said of sizes that a program does not take, though they were declared dynamic."""

import pytest
import torch
from torch.export import Dim

import decomp
from decomp.capture.violated_sizes import _is_declaration
from decomp_rules import targets

X = torch.randn(6, 5)
A = Dim("a", min=2)
FITS = "could not capture Summed: the program does not take all sizes that dynamic_shapes declares"


class Summed(torch.nn.Module):
    """The first rows, with a row of a fixed width added."""

    def forward(self, x, y):
        return x.narrow(0, 0, 4) + y


@pytest.mark.parametrize(
    "shapes, texts",
    [
        (
            ({0: A}, {}),
            [FITS, "satisfy the generated guard 4 <= x.shape[0]\n", "  to do: declare a = Dim('a', min=4)"],
        ),
        (
            ({1: A}, {0: Dim("b", min=2)}),
            [FITS, "The values of b = y.shape[0] and a = x.shape[1] must always be equal\n", "  to do: declare b = a"],
        ),
        (
            ({1: A}, {}),
            [FITS, "but your code specialized it to be a constant (5)\n", "  to do: leave a out, which is always 5"],
        ),
        (
            ({1: Dim.DYNAMIC}, {}),
            [FITS, "specialized it to be a constant (5)\n", "leave such sizes out of dynamic_shapes, or declare them"],
        ),
        (
            ({0: Dim("a", min=2, max=5)}, {}),
            ["an example input has the size 6 not in range [2, 5], which dynamic_shapes declares\n  to do: pass "],
        ),
    ],
)
def test_what_to_declare_is_said_and_nothing_is_logged(shapes, texts, capfd):
    with pytest.raises(decomp.CaptureError) as refused:
        decomp.lower(Summed(), to=targets.core_aten, args=(X, torch.randn(5)), dynamic_shapes=shapes)
    assert all(text in str(refused.value) for text in texts)
    assert "L['" not in str(refused.value) and "IntInfinity" not in str(refused.value)
    assert capfd.readouterr().err == ""


MISDECLARED = {
    "another name": (
        {"z": {0: A}},
        "its top-level keys must be the arg names ['x', 'y'] of `inputs`, but here they are",
    ),
    "a name too few": (
        {"x": {0: A}},
        "its top-level keys must be the arg names ['x', 'y'] of `inputs`, but here they are",
    ),
    "too many": (({0: A}, None, None), "`inputs` has 2 elements, but `dynamic_shapes` has 3 elements"),
    "a number": ({"x": 3, "y": None}, "Unexpected input tensor shape 3 specified at `dynamic_shapes['x']`"),
    "a word": ({"x": {0: "a"}, "y": None}, "Unexpected dimension mapped to index 0 in input tensor shape {0: 'a'}"),
}


@pytest.mark.parametrize("shapes, text", MISDECLARED.values(), ids=MISDECLARED)
def test_sizes_that_do_not_fit_the_inputs_are_said_once(shapes, text, capfd):
    with pytest.raises(decomp.CaptureError) as refused:
        decomp.lower(Summed(), to=targets.core_aten, args=(X, torch.randn(5)), dynamic_shapes=shapes)
    first, remedy = str(refused.value).splitlines()
    assert first.startswith("torch.export could not capture Summed: dynamic_shapes= does not fit its inputs: ")
    assert text in first and "https:" not in first and "Alternatively" not in first
    assert remedy == "  to do: give dynamic_shapes= for these inputs: x, y"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "shapes, text",
    [
        (({5: A}, {}), "declares dimension 5 of x, which has 2\n  to do: declare dimensions from 0 to 1 of it"),
        (
            {"x": None, "y": {-2: A}},
            "declares dimension -2 of y, which has 1\n  to do: declare dimensions from 0 to 0 of",
        ),
    ],
)
def test_a_dimension_that_an_input_lacks_is_refused(shapes, text):
    with pytest.raises(decomp.CaptureError) as refused:
        decomp.lower(Summed(), to=targets.core_aten, args=(X, torch.randn(5)), dynamic_shapes=shapes)
    assert text in str(refused.value)


class Halves(torch.nn.Module):
    def forward(self, x):
        return x.view(2, x.shape[0] // 2, 5)


def test_remedies_are_valid_python_that_works_once_followed():
    with pytest.raises(decomp.CaptureError) as refused:
        decomp.lower(Halves(), to=targets.core_aten, args=(X,), dynamic_shapes=({0: A},))
    remedies = str(refused.value).split("to do: ")[1].split("; ")
    names = {"Dim": Dim}
    for remedy in remedies:
        exec(remedy.removeprefix("declare "), names)
    lowered = decomp.lower(Halves(), to=targets.core_aten, args=(X,), dynamic_shapes=({0: names["a"]},)).result
    assert lowered(torch.randn(8, 5)).shape == (2, 4, 5)


@pytest.mark.parametrize("text", ["Mod(a, 2)", "12/b", "a*b", "2*a if", "a//2", "floor(a)"])
def test_relations_that_a_dim_cannot_express_are_no_declarations(text):
    assert not _is_declaration(text)
