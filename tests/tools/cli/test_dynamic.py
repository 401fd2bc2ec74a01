"""Dimensions of inputs that may have any size, named on the command line."""

import pytest
import torch

from tests.commands import run


def test_a_dimension_may_be_dynamic(tmp_path):
    result = run("lower", "mlp", "--to", "core_aten", "--dynamic", "input:0", "-o", tmp_path / "mlp.pt2", "--no-verify")
    assert result.exit_code == 0, result.output
    lowered = torch.export.load(tmp_path / "mlp.pt2")
    (given,) = [node for node in lowered.graph.nodes if node.name == "input_1" or node.name == "input"]
    size = given.meta["val"].shape
    assert isinstance(size[0], torch.SymInt) and isinstance(size[1], int)
    assert lowered.module()(torch.randn(7, size[1])).shape[0] == 7
    told = run("plan", tmp_path / "mlp.pt2", "--to", "core_aten", "--dynamic", "input:0")
    assert told.exit_code == 2 and "were fixed when it was exported" in told.output + (told.stderr or "")


@pytest.mark.parametrize(
    "word, said",
    [
        ("inputs:0", "no input 'inputs'. Did you mean 'input'? Available: input"),
        ("input", "must be the name of an input and a dimension, as x:0"),
    ],
)
def test_a_missing_dimension_is_reported(word, said):
    result = run("plan", "mlp", "--to", "core_aten", "--dynamic", word)
    assert result.exit_code == 2 and f"--dynamic {word}: {said}" in result.output + (result.stderr or "")
