"""Recurrent networks, unrolled over time: cells, layers, both directions, stacks of layers.

The input side of all steps is one matrix product; each step then adds the recurrent side. Parameters come in PyTorch's
order: for each layer and direction w_ih, w_hh, then b_ih, b_hh if there are biases, then w_hr if states are projected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.floating import LOG2_E
from decomp_rules.support.operands import cast, constant, wide

RULES = Rules(level="exact")
register = RULES.register

LSTM = 2
"""oneDNN's code for the kind of network."""
REAL = "only of floats: the largest of two complex numbers is not defined"
State = tuple[Tensor, ...]
"""The state of a cell: (h,), or (h, c)."""
Step = Callable[[Tensor, State, Sequence[Tensor | None]], State]
"""A cell's next state, from the input side (N, gates), its state and its parameters."""
Function = Callable[[Tensor], Tensor]


def _lstm_step(gates: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    """c' = σ(f)·c + σ(i)·tanh(g); h' = σ(o)·tanh(c'), projected by w_hr if there is one."""
    h, c = state
    _, w_hh, _, b_hh, w_hr = weights
    first, last = (gates + F.linear(h, w_hh, b_hh)).chunk(2, -1)
    (i, f), (g, o) = torch.sigmoid(first).chunk(2, -1), last.chunk(2, -1)
    c = f * c + i * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h if w_hr is None else F.linear(h, w_hr)), c


def _gru_step(
    gates: Tensor,
    state: State,
    weights: Sequence[Tensor | None],
    sigmoid: Function = torch.sigmoid,
    tanh: Function = torch.tanh,
) -> State:
    """n = tanh(n_x + σ(r)·n_h); h' = n + σ(z)·(h − n)."""
    h = state[0]
    _, w_hh, _, b_hh, _ = weights
    (rz_x, n_x), (rz_h, n_h) = (x.split([2 * h.shape[-1], h.shape[-1]], -1) for x in (gates, F.linear(h, w_hh, b_hh)))
    r, z = sigmoid(rz_x + rz_h).chunk(2, -1)
    n = tanh(n_x + r * n_h)
    return (n + z * (h - n),)


# From here on down e⁻ˣ is infinite, and its root is not; those of other dtypes as of float32.
_OFF = {torch.float16: -22.0, torch.float64: -1000.0}


def _logistic(x: Tensor) -> Tensor:
    """1 / (1 + 2^(−x·log₂e)), the power as a square, so that its gradient is finite where it is not. Off by 10⁻⁷, or
    |x| ULP: no more than the error of the sum x itself."""
    root = torch.exp2(torch.maximum(x, constant(x, _OFF.get(x.dtype, -170.0))) * (-0.5 * LOG2_E))
    return torch.reciprocal(root * root + 1)


def _logistic_untrained(x: Tensor) -> Tensor:
    """The same in fewer calls: where the power is infinite, its gradient is NaN."""
    return torch.reciprocal(torch.exp2(x * -LOG2_E) + 1)


def _hyperbolic(x: Tensor) -> Tensor:
    """tanh x as (1 − e) / (1 + e) with e = e⁻²ˣ, off by 5·10⁻⁸; of what is narrower than 32 bits in float32."""
    bounded = torch.maximum(wide(x), constant(wide(x), -20.0 if x.dtype == torch.float64 else -9.5))
    power = torch.exp2(bounded * (-2 * LOG2_E))
    return cast((1 - power) * torch.reciprocal(power + 1), x.dtype)


def _short_lstm_step(sigmoid: Function) -> Step:
    """The same with σ of all gates at once."""

    def step(gates: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
        h, c = state
        _, w_hh, _, b_hh, w_hr = weights
        z = gates + F.linear(h, w_hh, b_hh)
        i, f, _, o = sigmoid(z).chunk(4, -1)
        c = f * c + i * _hyperbolic(z.chunk(4, -1)[2])
        h = o * _hyperbolic(c)
        return (h if w_hr is None else F.linear(h, w_hr)), c

    return step


def _short_gru_step(sigmoid: Function) -> Step:
    """n = tanh(n_x + σ(r)·n_h); h' = n + σ(z)·(h − n), of the cheap functions."""

    def step(gates: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
        return _gru_step(gates, state, weights, sigmoid, _hyperbolic)

    return step


def _simple_step(activation: Function) -> Step:
    """h' = activation(x-side + w_hh·h + b_hh)."""

    def step(gates: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
        _, w_hh, _, b_hh, _ = weights
        return (activation(gates + F.linear(state[0], w_hh, b_hh)),)

    return step


_tanh_step, _relu_step = _simple_step(torch.tanh), _simple_step(torch.relu)
_short_tanh_step = _simple_step(_hyperbolic)


def _cell(
    step: Step, x: Tensor, state: State, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> State:
    return step(F.linear(x, w_ih, b_ih), state, (w_ih, w_hh, b_ih, b_hh, None))


@register(aten.lstm_cell)
def lstm_cell(
    x: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> State:
    """c' = σ(f)·c + σ(i)·tanh(g); h' = σ(o)·tanh(c')."""
    return _cell(_lstm_step, x, (hx[0], hx[1]), w_ih, w_hh, b_ih, b_hh)


@register(aten.gru_cell)
def gru_cell(
    x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """n = tanh(n_x + σ(r)·n_h); h' = n + σ(z)·(h − n)."""
    return _cell(_gru_step, x, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


@register(aten.rnn_tanh_cell)
def rnn_tanh_cell(
    x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """h' = tanh(w_ih·x + b_ih + w_hh·h + b_hh)."""
    return _cell(_tanh_step, x, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


@register(aten.rnn_relu_cell)
def rnn_relu_cell(
    x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """h' = relu(w_ih·x + b_ih + w_hh·h + b_hh)."""
    return _cell(_relu_step, x, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


@register(aten.lstm)
def lstm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs of the last layer at all steps, and the last h and c of every layer and direction."""
    out, (h, c) = _stack(
        _lstm_step,
        input,
        tuple(hx),
        params,
        has_biases,
        num_layers,
        dropout if train else 0.0,
        bidirectional,
        batch_first,
    )
    return out, h, c


@register(aten.lstm)
def lstm_packed(
    data: Tensor,
    batch_sizes: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for sequences of several lengths in one, as `pack_padded_sequence` lays them out."""
    out, (h, c) = _packed(
        _lstm_step,
        data,
        batch_sizes,
        tuple(hx),
        params,
        has_biases,
        num_layers,
        dropout if train else 0.0,
        bidirectional,
    )
    return out, h, c


@register(aten.mkldnn_rnn_layer)
def mkldnn_rnn_layer(
    x: Tensor,
    weight0: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    weight3: Tensor,
    hx_: Tensor,
    cx_: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One layer of an LSTM in one direction: its outputs, the last h and c, and no workspace."""
    if mode != LSTM or batch_sizes:
        return decline("only an LSTM whose sequences are all of one length")
    if not isinstance(x.shape[1 if batch_first else 0], int):
        return decline("the number of steps is not known")
    h, c = (state.reshape(state.shape[-2:]) for state in (hx_, cx_))
    weights = (weight0, weight1, *((weight2, weight3) if has_biases else (None, None)), None)
    out, ends = _run(_lstm_step, x.transpose(0, 1) if batch_first else x, (h, c), weights, reverse, None)
    last, cell = (end.reshape(hx_.shape) for end in ends)
    workspace = torch.full((0,), 0, dtype=torch.uint8, device=x.device)
    return out.transpose(0, 1) if batch_first else out, last, cell, workspace


def _named(rule: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The rule, with a name that tells it from others made by the same function."""
    rule.__name__, rule.__qualname__ = name, f"{rule.__qualname__.rpartition('.')[0]}.{name}"
    return rule


def _stateful(step: Step, name: str, real: bool = False) -> Callable[..., tuple[Tensor, Tensor]]:
    """The rule of a network whose state is one tensor; `real`: whether the step takes floats alone."""

    def rule(
        input: Tensor,
        hx: Tensor,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, Tensor]:
        """The outputs of the last layer at all steps, and the last h of every layer and direction."""
        if real and not input.is_floating_point():
            return decline(REAL)
        out, (h,) = _stack(
            step, input, (hx,), params, has_biases, num_layers, dropout if train else 0.0, bidirectional, batch_first
        )
        return out, h

    return _named(rule, name)


def _stateful_packed(step: Step, name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The rule of a network whose state is one tensor, for packed sequences."""

    def rule(
        data: Tensor,
        batch_sizes: Tensor,
        hx: Tensor,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[Tensor, Tensor]:
        """The outputs of the last layer at all steps, packed, and the last h of every layer and direction."""
        out, (h,) = _packed(
            step, data, batch_sizes, (hx,), params, has_biases, num_layers, dropout if train else 0.0, bidirectional
        )
        return out, h

    return _named(rule, f"{name}_packed")


for _op, _step in ((aten.gru, _gru_step), (aten.rnn_tanh, _tanh_step), (aten.rnn_relu, _relu_step)):
    register(_op)(_stateful(_step, _op.__name__))
    register(_op)(_stateful_packed(_step, _op.__name__))


def _short_lstm(step: Step, name: str) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """The rule of an LSTM at the level standard."""

    def rule(
        input: Tensor,
        hx: Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same with σ of all gates by one exponential a step, and tanh by another; the error is the kernel's."""
        if not input.is_floating_point():
            return decline(REAL)
        out, (h, c) = _stack(
            step,
            input,
            tuple(hx),
            params,
            has_biases,
            num_layers,
            dropout if train else 0.0,
            bidirectional,
            batch_first,
        )
        return out, h, c

    return _named(rule, name)


def _short_cell(step: Step, name: str, states: int = 1) -> Callable[..., Any]:
    """The rule of a cell at the level standard."""

    def rule(
        x: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Any:
        """The same with σ by one exponential, and tanh by another; the error is the kernel's."""
        if not x.is_floating_point():
            return decline(REAL)
        state = _cell(step, x, (hx,) if states == 1 else tuple(hx), w_ih, w_hh, b_ih, b_hh)
        return state[0] if states == 1 else state

    return _named(rule, name)


_SHORT = (
    (aten.lstm, _short_lstm, _short_lstm_step),
    (aten.gru, functools.partial(_stateful, real=True), _short_gru_step),
    (aten.lstm_cell, functools.partial(_short_cell, states=2), _short_lstm_step),
    (aten.gru_cell, _short_cell, _short_gru_step),
)
for _op, _made, _short in _SHORT:
    _name = f"{_op.__name__}_of_one_exponential"
    register(_op, level="standard")(_made(_short(_logistic), _name))
    register(_op, level="standard", forward_only=True)(_made(_short(_logistic_untrained), f"{_name}_untrained"))
register(aten.rnn_tanh, level="standard")(_stateful(_short_tanh_step, "rnn_tanh_of_one_exponential", True))
register(aten.rnn_tanh_cell, level="standard")(_short_cell(_short_tanh_step, "rnn_tanh_cell_of_one_exponential"))


def _packed(
    step: Step,
    data: Tensor,
    batch_sizes: Tensor,
    states: State,
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    bidirectional: bool,
) -> tuple[Tensor, State]:
    """`_stack` for packed sequences: row r of `data` is at the last step whose rows begin at or before it. How many
    sequences run at a step is data; one that does not run there keeps its state."""
    steps, batch = batch_sizes.shape[0], states[0].shape[1]
    sizes = batch_sizes.to(data.device).unsqueeze(1)
    starts = torch.cumsum(sizes, 0) - sizes
    place = torch.arange(batch, device=data.device)
    rows = torch.clamp(starts + place, max=data.shape[0] - 1)
    padded = data.index_select(0, rows.flatten()).view(steps, batch, data.shape[1])
    out, ends = _stack(
        step, padded, states, params, has_biases, layers, dropout, bidirectional, False, (place < sizes).unsqueeze(-1)
    )
    row = torch.arange(data.shape[0], device=data.device)
    at = torch.sum((starts <= row).to(torch.int64), [0]) - 1
    offset = row - starts.squeeze(1).index_select(0, at)
    return out.flatten(0, 1).index_select(0, at * batch + offset), ends


def _stack(
    step: Step,
    x: Tensor,
    states: State,
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
    running: Tensor | None = None,
) -> tuple[Tensor, State]:
    """`layers` layers on top of each other, dropout between them; states are (layers · directions, N, H). `running`
    says which sequences have each step (T, N, 1); None if all have all steps."""
    sequence = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    cells = _weights(params, has_biases, layers * directions)
    ends: list[State] = []
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            at = layer * directions + direction
            start = tuple(state.select(0, at) for state in states)
            out, end = _run(step, sequence, start, cells[at], direction == 1, running)
            outs.append(out)
            ends.append(end)
        sequence = torch.cat(outs, -1) if bidirectional else outs[0]
        if dropout and layer < layers - 1:
            sequence = torch.dropout(sequence, dropout, True)
    out = sequence.transpose(0, 1) if batch_first else sequence
    return out, tuple(torch.stack(list(last)) for last in zip(*ends))


def _weights(params: Sequence[Tensor], has_biases: bool, cells: int) -> list[tuple[Tensor | None, ...]]:
    """(w_ih, w_hh, b_ih, b_hh, w_hr) of each cell, None for what it lacks."""
    each = len(params) // cells
    result: list[tuple[Tensor | None, ...]] = []
    for start in range(0, cells * each, each):
        own: list[Tensor | None] = list(params[start : start + each])
        biases = own[2:4] if has_biases else [None, None]
        projection = own[-1] if each > (4 if has_biases else 2) else None
        result.append((own[0], own[1], *biases, projection))
    return result


def _run(
    step: Step, x: Tensor, state: State, weights: Sequence[Tensor | None], reverse: bool, running: Tensor | None
) -> tuple[Tensor, State]:
    """One layer in one direction over x (T, N, I); returns the outputs (T, N, H), and the last state."""
    gates = F.linear(x, weights[0], weights[2])
    outs: list[Any] = [None] * x.shape[0]
    for t in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
        moved = step(gates.select(0, t), state, weights)
        if running is not None:
            moved = tuple(torch.where(running.select(0, t), new, old) for new, old in zip(moved, state))
        state = moved
        outs[t] = state[0]
    return torch.stack(outs), state
