"""The functions that random programs use: inputs drawn from a seed, control flow that is ordinary Python in eager mode
and a higher-order op where it is captured, a submodule with state, hooks."""

from __future__ import annotations

import torch
from torch import nn
from torch._higher_order_ops import map as map_op, scan as scan_op, while_loop as while_op

SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0)


class Given:
    """Inputs of a program, drawn from a seed. `leaves` are those whose gradients are asked for; the program gets
    clones of them, so that it may write to its inputs. `near` is added to about half the elements of int64; on the
    `device` "meta" there are no elements."""

    def __init__(
        self, seed: int, tracked: bool = False, leaves_as_inputs: bool = False, near: int = 0, device: str = "cpu"
    ) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.tracked, self.leaves_as_inputs, self.near, self.device = tracked, leaves_as_inputs, near, device
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
        values = torch.randint(low, high, shape, generator=self.random).to(dtype)
        if self.near and dtype == torch.int64:
            values += self.near * torch.randint(0, 2, shape, generator=self.random)
        return values

    def _put_special(self, values):
        flat = values.view(-1)
        for i in range(min(len(SPECIAL), flat.numel() // 2)):
            flat[2 * i] = SPECIAL[i]

    def _given(self, values):
        if self.device != "cpu":
            values = torch.empty_strided(values.shape, values.stride(), dtype=values.dtype, device=self.device)
        if not self.tracked or not (values.is_floating_point() or values.is_complex()):
            return _laid_out_alike(values)
        leaf = values.requires_grad_()
        self.leaves.append(leaf)
        return leaf if self.leaves_as_inputs else _laid_out_alike(leaf)


def _laid_out_alike(leaf):
    """A copy that is not a view, with the same strides, whether or not gradients are requested."""
    if leaf.is_contiguous():
        return leaf.clone()
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(leaf)


class Rounded(torch.autograd.Function):
    """Rounding, through which the gradient goes straight."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Scaled(torch.autograd.Function):
    """The operand; its gradient is scaled."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Reversed(torch.autograd.Function):
    """The operand; its gradient changes sign."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Clipped(torch.autograd.Function):
    """What is positive, and where that is. Elsewhere a tenth of the gradient goes through."""

    @staticmethod
    def forward(ctx, x):
        positive = x > 0
        ctx.save_for_backward(positive)
        ctx.mark_non_differentiable(positive)
        return x.clamp(min=0), positive

    @staticmethod
    def backward(ctx, gradient, _):
        (positive,) = ctx.saved_tensors
        return torch.where(positive, gradient, gradient * 0.1)


def scored(x):
    """For transforms: of one tensor, of the same shape."""
    return x.softmax(-1) * x.sum() if x.dim() else x.sin() * x


def energy(x):
    """For transforms: a number."""
    return (x.sin() * x).sum()


def mixed(x, y):
    """For transforms: of two tensors."""
    return x * y + x.cos()


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
