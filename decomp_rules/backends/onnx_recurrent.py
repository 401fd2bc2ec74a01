"""Recurrent layers as the operators LSTM, GRU and RNN of ONNX, one for each layer, both directions in one. The gates of
weights come in another order there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from decomp_rules.backends.onnx_graph import Table, Value, constant, entering, node

OPS: Table = {}
emits = entering(OPS)

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Where the gates of ONNX (iofc, zrh) are among those of PyTorch (ifgo, rzn)."""


@emits("lstm.input")
def lstm(
    input: Value,
    hx: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    return _layers("LSTM", input, hx, params, has_biases, bidirectional, batch_first)


def _of_one_state(op_type: str, **attributes: Any) -> Callable[..., list[Value]]:
    def emitted(
        input: Value,
        hx: Value,
        params: Sequence[Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> list[Value]:
        names = {"activations": [attributes["of"]] * (1 + bidirectional)} if "of" in attributes else {}
        how = {**{key: value for key, value in attributes.items() if key != "of"}, **names}
        return _layers(op_type, input, [hx], params, has_biases, bidirectional, batch_first, **how)

    return emitted


OPS.update(
    {
        "gru.input": _of_one_state("GRU", linear_before_reset=1),
        "rnn_tanh.input": _of_one_state("RNN", of="Tanh"),
        "rnn_relu.input": _of_one_state("RNN", of="Relu"),
    }
)


def _layers(
    op_type: str,
    x: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    **attributes: Any,
) -> list[Value]:
    """The output and the last states. `states` are of all layers, (layers · directions, batch, hidden)."""
    directions, dtype = 1 + bidirectional, x.dtype
    each = 4 if has_biases else 2
    hidden = int(params[1].meta.shape[1])
    layers = [params[i : i + each * directions] for i in range(0, len(params), each * directions)]
    how = {"hidden_size": hidden, "direction": "bidirectional" if bidirectional else "forward", **attributes}
    last: list[list[Value]] = [[] for _ in states]
    x = _moved(x, [1, 0, 2]) if batch_first else x
    for i, weights in enumerate(layers):
        place = [i * directions], [(i + 1) * directions], [0]
        first = states if len(layers) == 1 else [node("Slice", s, *place, dtype=dtype) for s in states]
        packed = [_packed(op_type, weights[k::each], hidden, dtype) for k in range(each)]
        bias = _joined(packed[2:], dtype) if has_biases else None
        y, *ends = node(op_type, x, *packed[:2], bias, None, *first, dtype=dtype, outputs=1 + len(states), **how)
        y = node("Transpose", y, dtype=dtype, perm=[0, 2, 1, 3])  # (time, batch, directions, hidden)
        x = node("Reshape", y, [0, 0, directions * hidden], dtype=dtype)
        for ends_so_far, end in zip(last, ends):
            ends_so_far.append(end)
    whole = [each[0] if len(each) == 1 else node("Concat", *each, dtype=dtype, axis=0) for each in last]
    return [_moved(x, [1, 0, 2]) if batch_first else x, *whole]


def _moved(x: Value, perm: list[int]) -> Value:
    found: Value = node("Transpose", x, dtype=x.dtype, perm=perm)
    return found


def _joined(biases: Sequence[Value], dtype: torch.dtype) -> Value:
    """The biases of inputs and of states, one behind the other: a constant if they are."""
    known = [each.data for each in biases if each.data is not None]
    if len(known) == len(biases):
        return constant(torch.cat(known, 1))
    found: Value = node("Concat", *biases, dtype=dtype, axis=1)
    return found


def _packed(op_type: str, weights: Sequence[Value], hidden: int, dtype: torch.dtype) -> Value:
    """The weights of all directions, one behind the other, with their gates in ONNX's order: a constant if they are."""
    places = [(g * hidden, (g + 1) * hidden) for g in _GATES[op_type]]
    known = [each.data for each in weights if each.data is not None]
    if len(known) == len(weights):
        return constant(torch.stack([torch.cat([each.detach()[a:b] for a, b in places]) for each in known]))
    ordered = []
    for each in weights:
        parts = [node("Slice", each, [a], [b], [0], dtype=dtype) for a, b in places]
        ordered.append(node("Unsqueeze", node("Concat", *parts, dtype=dtype, axis=0), [0], dtype=dtype))
    found: Value = node("Concat", *ordered, dtype=dtype, axis=0)
    return found
