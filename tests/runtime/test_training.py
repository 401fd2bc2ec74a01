"""Training on a backend, under `torch.compile`: forward and backward run on its arrays."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules import backends


def test_ten_steps_on_numpy_are_those_of_pytorch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    twin, x, y = copy.deepcopy(model), torch.randn(16, 6), torch.randint(0, 3, (16,))
    compiled = torch.compile(model, backend=decomp.backend(compiler=backends.get("numpy")))
    losses = []
    for net, trained in ((compiled, model), (twin, twin)):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
        for _ in range(10):
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for ours, theirs in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_an_object_that_is_not_a_backend_is_refused():
    with pytest.raises(decomp.errors.ArgumentError, match="a Backend or a function, not 3"):
        decomp.backend(compiler=3)
    with pytest.raises(decomp.errors.ArgumentError):
        decomp.backend()
