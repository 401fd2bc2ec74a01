"""Recurrent networks agree with the ops in every arrangement of layers, directions, biases and projections."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import decomp
from decomp_rules import targets
from decomp_rules.nn import recurrent
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees
from tests.models import error_over_its_own

aten = torch.ops.aten
RULES = recurrent.RULES
NETWORKS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN, "rnn_relu": nn.RNN}


def network(name: str, dtype: torch.dtype = torch.float64, **kwargs: Any) -> tuple[nn.RNNBase, tuple]:
    """The module, and its state (zero would hide mistakes)."""
    torch.manual_seed(0)
    module = NETWORKS[name](4, 5, **kwargs).to(dtype)
    cells = module.num_layers * (2 if module.bidirectional else 1)
    h = torch.randn(cells, 3, getattr(module, "proj_size", 0) or 5, dtype=dtype)
    return module, ((h, torch.randn(cells, 3, 5, dtype=dtype)) if name == "lstm" else (h,))


def check(name: str, x: torch.Tensor, dropout: float = 0.0, **kwargs: Any) -> None:
    module, state = network(name, x.dtype, **kwargs)
    params = [p.detach() for p in module._flat_weights]
    agrees(
        RULES,
        getattr(aten, name).input,
        x,
        list(state) if name == "lstm" else state[0],
        params,
        module.bias,
        module.num_layers,
        dropout,
        False,
        module.bidirectional,
        module.batch_first,
        tolerance=5e-2 if x.dtype == torch.bfloat16 else None,
    )


@pytest.mark.sampled
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, layers: int, bidirectional: bool, bias: bool) -> None:
    x = torch.linspace(-1, 1, 36, dtype=torch.float64).reshape(3, 3, 4)
    for batch_first in (True, False):
        check(name, x, num_layers=layers, bidirectional=bidirectional, bias=bias, batch_first=batch_first)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("bias", [True, False])
def test_projections(bias: bool) -> None:
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(2, 3, 4)
    check("lstm", x, num_layers=2, bidirectional=True, bias=bias, proj_size=3)


@pytest.mark.parametrize("name", NETWORKS)
def test_dropout_between_layers_is_for_training_only(name: str) -> None:
    check(name, torch.linspace(-1, 1, 24).reshape(2, 3, 4), dropout=0.5, num_layers=2)


@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16(name: str) -> None:
    check(name, torch.linspace(-1, 1, 24).reshape(2, 3, 4).bfloat16())


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh"])
def test_at_standard_small_numbers_keep_their_digits_in_half_types(name: str) -> None:
    torch.manual_seed(0)
    module = NETWORKS[name](4, 5, bias=False).bfloat16()
    x = torch.randn(3, 2, 4) / 1024
    lowered = decomp.lower(module, to=targets.tinygrad, args=(x.bfloat16(),), accuracy="standard").result
    exact = copy.deepcopy(module).float()(x.bfloat16().float())[0]
    assert (lowered(x.bfloat16())[0] - exact).abs().max() < 0.02 * exact.abs().max()


def test_at_standard_complex_numbers_are_served_by_the_exact_rule() -> None:
    torch.manual_seed(0)
    module = nn.RNN(4, 5, dtype=torch.complex64)
    x = torch.randn(3, 2, 4, dtype=torch.complex64)
    chip = targets.tinygrad | {"tanh", "sigmoid", "addmm", "mm"}
    lowered = decomp.lower(module, to=chip, args=(x,), accuracy="standard").result
    torch.testing.assert_close(lowered(x), module(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "name, gates",
    [("lstm_cell.default", 4), ("gru_cell.default", 3), ("rnn_tanh_cell.default", 1), ("rnn_relu_cell.default", 1)],
)
def test_cells(name: str, gates: int) -> None:
    torch.manual_seed(0)
    packet, overload = name.split(".")
    x, h, c = torch.randn(2, 4), torch.randn(2, 5), torch.randn(2, 5)
    weights = [torch.randn(gates * 5, n) for n in (4, 5)]
    biases = [torch.randn(gates * 5) for _ in range(2)]
    state = [h, c] if gates == 4 else h
    op = getattr(getattr(aten, packet), overload if gates != 4 else "default")
    agrees(RULES, op, x, state, *weights, *biases, tolerance=5e-5)
    agrees(RULES, op, x, state, *weights, tolerance=5e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_at_standard_are_as_near_to_float64_as_pytorch(cell: type[nn.Module], training: bool) -> None:
    ratios = []
    for seed in range(5):
        torch.manual_seed(seed)
        module, x = cell(24, 32), torch.randn(64, 24)
        lowered = decomp.lower(module, to=targets.tinygrad, args=(x,), training=training).result
        ratios.append(error_over_its_own(module, lowered, (x,)))
    assert sorted(ratios)[2] <= 1.6


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell])
def test_a_gate_that_is_shut_is_nothing_times_an_infinite_state(cell: type[nn.Module], training: bool) -> None:
    torch.manual_seed(0)
    module, x = cell(4, 5), torch.full((1, 4), -torch.inf)
    h = torch.tensor([[torch.inf, -torch.inf, 1.0, -2.0, 0.0]])
    state = (torch.zeros(1, 5), h) if cell is nn.LSTMCell else h
    with torch.no_grad():
        module.weight_ih.fill_(1.0)
    lowered = decomp.lower(module, to=targets.tinygrad, args=(x, state), training=training).result
    for found, expected in zip(pytree.tree_leaves(lowered(x, state)), pytree.tree_leaves(module(x, state))):
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_trained_gate_that_is_all_but_shut_has_a_finite_gradient() -> None:
    torch.manual_seed(0)
    module, x = nn.LSTMCell(4, 5), torch.full((2, 4), -300.0)
    lowered = decomp.lower(module, to=targets.tinygrad, args=(x,), training=True).result
    weights = [*module.parameters()]
    expected, found = (torch.autograd.grad(sum(y.sum() for y in f(x)), weights) for f in (module, lowered))
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)  # 300 times what 1 − tanh² is off


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_reach_the_targets(name: str) -> None:
    module, state = network(name, torch.float32)
    params = [p.detach() for p in module._flat_weights]

    def run(x: torch.Tensor, *state: torch.Tensor) -> torch.Tensor:
        weights = [p.clone() for p in params]
        start = state if name == "lstm" else state[0]
        return getattr(torch, name)(x, start, weights, True, 1, 0.0, True, False, True)[0]

    lowered_agrees(run, torch.randn(3, 2, 4), *state)


@pytest.mark.sampled
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_packed_sequences(name: str, bidirectional: bool) -> None:
    kwargs = {"nonlinearity": name.removeprefix("rnn_")} if name.startswith("rnn") else {}
    module, state = network(name, torch.float64, num_layers=2, bidirectional=bidirectional, **kwargs)
    x = torch.randn(4, 3, 4, dtype=torch.float64)
    packed = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 1])
    params = [p.detach() for p in module._flat_weights]
    hx = list(state) if name == "lstm" else state[0]
    agrees(
        RULES,
        getattr(aten, name).data,
        packed.data,
        packed.batch_sizes,
        hx,
        params,
        True,
        2,
        0.0,
        False,
        bidirectional,
        fixed=(1,),
    )


def test_how_many_sequences_run_is_data() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = network("lstm", torch.float32)[0]

        def forward(self, data: torch.Tensor, sizes: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
            return torch.lstm(data, sizes, (h, c), self.lstm._flat_weights, True, 1, 0.0, False, False)

    module, data, state = Packed(), torch.randn(8, 4), torch.randn(1, 3, 5)
    traced = torch.fx.symbolic_trace(module)
    lowered = decomp.lower(traced, to=targets.tinygrad, args=(data, torch.tensor([3, 3, 1, 1]), state, state)).result
    for sizes in ([3, 3, 1, 1], [3, 2, 2, 1]):
        args = data, torch.tensor(sizes), state, state
        torch.testing.assert_close(lowered(*args), module(*args))


@pytest.mark.parametrize("reverse", [False, True])
def test_the_layer_of_onednn(reverse: bool) -> None:
    module, (h, c) = network("lstm", torch.float32)
    params, x = [p.detach() for p in module._flat_weights], torch.randn(4, 3, 4)
    for state in ((h, c), (h[0], c[0])):
        args = x, *params, *state, reverse, [], recurrent.LSTM, 5, 1, True, False, False, False
        found, expected = recurrent.mkldnn_rnn_layer(*args), aten.mkldnn_rnn_layer(*args)
        torch.testing.assert_close(found[:3], expected[:3])
