"""Programs without numbers, on the meta device or of fake tensors, on backends."""

import pytest
import torch
from torch import nn

import decomp
from decomp.torch_internals.fakes import FakeTensorMode
from decomp_rules import backends


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, ids):
        return self.head(self.embedding(ids) + torch.arange(ids.shape[1], device=ids.device)[:, None])


def loaded(kind, backend):
    if kind == "fake":
        with FakeTensorMode():
            model, ids = Tokens(), torch.zeros(2, 5, dtype=torch.int64)
    else:
        model, ids = Tokens().to("meta"), torch.zeros(2, 5, dtype=torch.int64, device="meta")
    return backend.load(decomp.lower(model, to=backend.target, args=(ids,)))


@pytest.mark.parametrize("kind", ["meta", "fake"])
@pytest.mark.parametrize("name", ["numpy", "stablehlo"])
def test_a_program_without_weights_is_loaded_and_runs_once_it_has_them(name, kind):
    program, real, ids = loaded(kind, getattr(backends, name)), Tokens(), torch.randint(0, 10, (2, 5))
    program.load_state_dict(real.state_dict())
    torch.testing.assert_close(program(ids), real(ids).detach())


def test_before_that_it_says_what_is_missing():
    program = loaded("meta", backends.numpy)
    for run in (lambda: program(torch.zeros(2, 5, dtype=torch.int64)), program.state_dict):
        with pytest.raises(decomp.errors.LoadError) as caught:
            run()
        assert str(caught.value) == (
            "numpy cannot run this program; nothing has run\n"
            "  no values for parameter 'embedding.weight' and 2 more (meta or fake tensors)\n"
            "  to do, the easiest first:\n"
            "    1. set them by load_state_dict({name: tensor})\n"
            "    2. lower the model with its weights"
        )


def test_other_sizes_are_refused_as_ever():
    program = loaded("meta", backends.numpy)
    program.load_state_dict(Tokens().state_dict())
    with pytest.raises(decomp.errors.InputMismatch):
        program(torch.zeros(2, 6, dtype=torch.int64))
