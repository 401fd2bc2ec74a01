import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8), nn.Linear(8, 10)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.arange(8.0))

    def forward(self, ids):
        x = self.embedding(ids) * self.scale + torch.arange(ids.shape[1], device=ids.device)[:, None]
        return self.head(x).cumsum(-1)


def parameters_on_meta(model):
    """As `accelerate.init_empty_weights` leaves a model: parameters on the meta device, buffers as they are."""
    moved = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            moved.setdefault(parameter, nn.Parameter(parameter.to("meta")))
            module._parameters[name] = moved[parameter]
    return model


def test_a_model_whose_weights_are_loaded_later_is_lowered_for_where_the_rest_of_it_is():
    real, empty, ids = Tokens(), parameters_on_meta(Tokens()), torch.randint(0, 10, (2, 5))
    own = dict(empty.named_parameters())
    lowered = decomp.lower(empty, to=targets.tinygrad, args=(ids,)).result
    assert dict(empty.named_parameters()) == own
    assert all(parameter.is_meta for parameter in lowered.parameters())
    lowered.load_state_dict(real.state_dict(), assign=True)
    torch.testing.assert_close(lowered(ids), real(ids))


@pytest.mark.parametrize("move", ["model", "input"])
def test_inputs_or_a_whole_model_on_the_meta_device_go_with_a_real_rest(move):
    model, ids = Tokens(), torch.randint(0, 10, (2, 5))
    model, ids = (model.to("meta"), ids) if move == "model" else (model, ids.to("meta"))
    real = decomp.lower(Tokens(), to=targets.tinygrad, args=(torch.zeros(2, 5, dtype=torch.int64),))
    assert decomp.lower(model, to=targets.tinygrad, args=(ids,)).report().after == real.report().after
