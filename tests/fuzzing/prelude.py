"""What random programs are written with: inputs drawn from a seed, control flow that is ordinary Python in eager mode
and a higher-order op where it is captured, a submodule with state, hooks."""

from __future__ import annotations

import torch
from torch import nn
from torch._higher_order_ops import map as map_op, scan as scan_op, while_loop as while_op

SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0)


class Given:
    """Inputs of a program, drawn from a seed. `leaves` are those whose gradients are asked for; the program gets
    clones of them, so that it may write to its inputs."""

    def __init__(self, seed: int, tracked: bool = False, leaves_as_inputs: bool = False) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.tracked, self.leaves_as_inputs = tracked, leaves_as_inputs
        self.leaves: list[torch.Tensor] = []

    def tensor(self, *shape: int, dtype=torch.float32, special=False, order=None, step=1) -> torch.Tensor:
        """A tensor of `shape`; in memory its dimensions are in `order`, and it takes each `step`-th element."""
        order = range(len(shape)) if order is None else order
        wide = [shape[dim] * (step if dim == order[-1] else 1) for dim in order]
        values = self._values(wide, dtype)
        if special:
            self._put_special(values)
        if step > 1:
            values = values[..., ::step]
        values = values.permute([list(order).index(dim) for dim in range(len(shape))])
        return self._given(values)

    def _values(self, shape, dtype):
        if dtype.is_floating_point or dtype.is_complex:
            wide = torch.complex64 if dtype.is_complex else torch.float32
            return torch.randn(shape, generator=self.random, dtype=wide).to(dtype)
        low, high = (0, 2) if dtype == torch.bool else (0, 9) if dtype == torch.uint8 else (-4, 5)
        return torch.randint(low, high, shape, generator=self.random).to(dtype)

    def _put_special(self, values):
        flat = values.view(-1)
        for i in range(min(len(SPECIAL), flat.numel() // 2)):
            flat[2 * i] = SPECIAL[i]

    def _given(self, values):
        if not self.tracked or not (values.is_floating_point() or values.is_complex()):
            return values
        leaf = values.requires_grad_()
        self.leaves.append(leaf)
        return leaf if self.leaves_as_inputs else _laid_out_alike(leaf)


def _laid_out_alike(leaf):
    """A copy with the strides that the inputs have where nobody asks for gradients."""
    if leaf.is_contiguous():
        return leaf.clone()
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype).copy_(leaf)


def cond(predicate, yes, no, operands):
    """torch.cond; `if` in eager mode, where torch.cond would compile."""
    if torch.compiler.is_compiling():
        return torch.cond(predicate, yes, no, operands)
    return yes(*operands) if predicate else no(*operands)


def repeated(count, body, x):
    """`body` applied `count` times to a detached `x`, as a while_loop."""
    x = x.detach()
    if torch.compiler.is_compiling():
        return while_op(lambda i, a: i < count, lambda i, a: (i + 1, body(a)), (torch.tensor(0), x))[1]
    for _ in range(count):
        x = body(x)
    return x


def scanned(combine, start, rows):
    """The states of a scan over the first dimension, stacked."""
    if torch.compiler.is_compiling():
        return scan_op(lambda a, b: (combine(a, b), combine(a, b).clone()), start, rows)[1]
    states = []
    for row in rows:
        start = combine(start, row)
        states.append(start)
    return torch.stack(states)


def mapped(function, rows):
    """`function` of each row, stacked."""
    if torch.compiler.is_compiling():
        return map_op(function, rows)
    return torch.stack([function(row) for row in rows])


class Counting(nn.Module):
    """A submodule that writes to its own buffer each time it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x * 0.5 + self.calls


def doubled(module, args, output):
    """A forward hook."""
    return output * 2


def shifted(module, args):
    """A forward pre-hook."""
    return (args[0] + 1, *args[1:])
