"""Running calls on open sizes. PyTorch computes the shape of a result from symbolic sizes in 0.5 to 3 ms, most of which
is arithmetic on expressions. Here a call runs twice on meta tensors, at two assignments of primes to the symbols, and
the sizes and strides of its result are read off the two (`decomp/metadata/stand_ins.py`). That holds for ops that only
pass sizes on, multiply them, and compare them for equality; all others, and whatever cannot be read, are left to
PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from decomp.metadata.fakes import Fakes, OpenFakes
from decomp.metadata.meta_kernels import KnownLayout, MetaKernels, is_plain
from decomp.metadata.stand_ins import NotOpen
from decomp.metadata.symbolic_sizes import SYMBOLIC, settled
from decomp.torch_internals.fakes import FakeTensor
from decomp.torch_internals.modes import DisablePythonDispatcher, DisableTorchDispatch, DisableTorchFunction
from decomp.torch_internals.pytree import tree_leaves


def kernels_of(fakes: Fakes) -> Kernels:
    """Runs the calls of one run of a rule, whose fake tensors `fakes` creates."""
    return OpenKernels(fakes) if isinstance(fakes, OpenFakes) else MetaKernels(fakes)


class OpenKernels:
    """The fake tensors of one run of a rule, and two fake tensors of fixed sizes in place of each."""

    def __init__(self, fakes: OpenFakes) -> None:
        self._made, self._stand_ins = fakes, fakes.stand_ins
        self._at = MetaKernels(fakes.fixed), MetaKernels(fakes.fixed)
        self._pairs: dict[int, tuple[FakeTensor, FakeTensor]] = {}
        self._fakes: dict[tuple[int, int], FakeTensor] = {}
        self._layouts: dict[int, KnownLayout] = {}
        self._bases: dict[int, FakeTensor] = {}
        """By the storage of a stand-in, the fake tensor that it is in place of."""
        self._alive: list[FakeTensor] = []
        """The tables are keyed by id, so their tensors must stay alive."""

    def empty_like(self, value: torch.Tensor) -> FakeTensor:
        """A fake tensor on its own storage with the shape, strides, dtype and device of a strided tensor."""
        return self._made.empty(settled(value.shape), settled(value.stride()), value.dtype, value.device)

    def layout(self, fake: FakeTensor) -> KnownLayout | None:
        """The layout of a fake tensor; None for one that cannot be run at other sizes."""
        found = self._layouts.get(id(fake))
        if found is None:
            try:
                self._pair(fake)
            except NotOpen:
                return None
            found = self._layouts[id(fake)]
        return found

    def like_operands(self, operands: list[FakeTensor], dtype: torch.dtype) -> Any:
        """The result of an elementwise op, if its layout is trivial: contiguous operands broadcast to a contiguous
        result. `NotImplemented` if the kernel must decide."""
        return self._read(lambda kernels, which: kernels.like_operands([self._pair(x)[which] for x in operands], dtype))

    def run(self, func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a call on fake tensors; `NotImplemented` if the fake mode must run it."""
        if not self._holds_at_any_size(func, args, kwargs):
            return NotImplemented
        return self._read(lambda kernels, which: kernels.run(func, *self._put((args, kwargs), which)))

    def _holds_at_any_size(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call compares no open size with a number or with another one, except for equality."""
        name = func._overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else ""
        if name not in _COMPARE and name not in _COMPARE_ONE:
            return True
        leaves = tree_leaves((args, kwargs))
        if any([isinstance(leaf, SYMBOLIC) for leaf in leaves]):
            return False
        layouts = [self.layout(leaf) for leaf in leaves if isinstance(leaf, FakeTensor)]
        shapes = [layout.shape for layout in layouts if layout is not None]
        if len(shapes) < len(layouts):
            return False
        if name in _COMPARE:
            return all(map(_is_fixed, shapes))
        names = [argument.name for argument in func._schema.arguments]
        dim = {**dict(zip(names, args)), **kwargs}.get("dim", 0)
        return _is_fixed(shapes[0]) or -len(shapes[0]) <= dim < len(shapes[0]) and type(shapes[0][dim]) is int

    def _read(self, run: Callable[[MetaKernels, int], Any]) -> Any:
        """The result of `run` at any size, given its results at two; `NotImplemented` if that is unknown."""
        try:
            first = run(self._at[0], 0)
            second = run(self._at[1], 1) if first is not NotImplemented else NotImplemented
            return NotImplemented if second is NotImplemented else self._at_any_size(first, second)
        # PyTorch's of a tensor with more elements than 64 bits count, or with a stride beyond them.
        except (NotOpen, RuntimeError, TypeError):
            return NotImplemented

    def _at_any_size(self, first: Any, second: Any) -> Any:
        if isinstance(first, FakeTensor):
            # An op that returns its operand must give the same object back, as nodes are found by the identity of their
            # tensor.
            known = self._fakes.get((id(first), id(second)))
            return self._made_like(first, second) if known is None else known
        if isinstance(first, (tuple, list)) and len(first) == len(second):
            return type(first)([self._at_any_size(*pair) for pair in zip(first, second)])
        if isinstance(first, (torch.dtype, bool)) and first == second:
            return first
        raise NotOpen

    def _made_like(self, first: FakeTensor, second: FakeTensor) -> FakeTensor:
        one, other = (self._at[which].layout(fake) for which, fake in enumerate((first, second)))
        if one is None or other is None or len(one.shape) != len(other.shape):
            raise NotOpen
        size = self._stand_ins.size
        with DisablePythonDispatcher(), DisableTorchFunction(), DisableTorchDispatch():
            shape = tuple(map(size, zip(one.shape, other.shape)))
            strides = tuple(map(size, zip(first.stride(), second.stride())))
            base = self._bases.get(first.untyped_storage()._cdata)
            if base is not None:
                offset = size((first.storage_offset(), second.storage_offset()))
                made = self._made.view(base, shape, strides, offset, one.dtype, one.device)
            elif one.in_order and other.in_order:
                made = self._made.dense(size((one.numel(), other.numel())), shape, strides, one.dtype, one.device)
            else:
                made = self._made.empty(shape, strides, one.dtype, one.device)
            self._remember(made, shape, first, second)
        return made

    def _put(self, value: Any, which: int) -> Any:
        """A value with numbers in place of open sizes, in tensors as well."""
        if isinstance(value, torch.Tensor):
            return self._pair(value)[which]
        if isinstance(value, (tuple, list)):
            items = [self._put(item, which) for item in value]
            return tuple(items) if type(value) is not list else items
        if isinstance(value, dict):
            return {key: self._put(item, which) for key, item in value.items()}
        return self._stand_ins.pair(value)[which] if isinstance(value, SYMBOLIC) else value

    def _pair(self, fake: torch.Tensor) -> tuple[FakeTensor, FakeTensor]:
        """The fake tensors of fixed sizes in place of one that was created elsewhere."""
        found = self._pairs.get(id(fake))
        if found is not None:
            return found
        if type(fake) is not FakeTensor:
            raise NotOpen
        with DisablePythonDispatcher(), DisableTorchFunction(), DisableTorchDispatch():
            # A fake tensor with a constant answers `item()`; PyTorch's kernels may branch on gradients.
            if not is_plain(fake) or fake.requires_grad or fake.constant is not None:
                raise NotOpen
            shape = settled(fake.shape)
            sizes, strides = (list(map(self._stand_ins.pair, given)) for given in (shape, settled(fake.stride())))
            try:
                first, second = (
                    self._made.fixed.empty(
                        [pair[which] for pair in sizes], [pair[which] for pair in strides], fake.dtype, fake.fake_device
                    )
                    for which in (0, 1)
                )
            except (RuntimeError, TypeError) as error:  # of more bytes than 64 bits count, or a larger stride
                raise NotOpen from error
            self._remember(fake, shape, first, second)
            self._bases[first.untyped_storage()._cdata] = fake
        return first, second

    def _remember(self, fake: FakeTensor, shape: tuple[Any, ...], first: FakeTensor, second: FakeTensor) -> None:
        self._pairs[id(fake)], self._fakes[id(first), id(second)] = (first, second), fake
        self._alive += (fake, first, second)
        layouts = [kernels.layout(stand_in) for kernels, stand_in in zip(self._at, (first, second))]
        in_order = all([layout is not None and layout.in_order for layout in layouts])
        self._layouts[id(fake)] = KnownLayout(torch.Size(shape), fake.dtype, fake.fake_device, in_order)


def _is_fixed(shape: Sequence[Any]) -> bool:
    return all([type(size) is int for size in shape])


_COMPARE = frozenset("gather scatter scatter_add take arange eye linspace as_strided unfold diagonal".split())
"""Ops that compare sizes, or take numbers that do not follow them."""
_COMPARE_ONE = frozenset("slice select narrow chunk split split_with_sizes unbind".split())
"""Ops that compare numbers with the size of one dimension."""

Kernels = MetaKernels | OpenKernels
