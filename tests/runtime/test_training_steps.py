"""Ten training steps, each one program, on the backends that train."""

import pytest
import torch

from benchmarks import backend_training
from tests import installed

CASES = [*((name, model) for name in ("numpy", "stablehlo") for model in ("gpt", "resnet")), ("tinygrad", "mlp")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, model", CASES)
def test_ten_steps_are_those_of_pytorch(name, model):
    mine, own, before = backend_training.trained(installed.backend(name), model)
    torch.testing.assert_close(mine.losses, own.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close((mine.weights, mine.buffers), (own.weights, own.buffers), rtol=1e-4, atol=1e-5)
    assert backend_training.difference(mine, before) > 1e-3
