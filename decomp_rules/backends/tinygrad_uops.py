"""tinygrad: each primitive of the target `tinygrad` is one UOp of the installed tinygrad, run by its own scheduler and
compiler on the CPU, and captured by its `TinyJit`.

Conversions that tinygrad's own frontend applies to operands (broadcasting, casts for type promotion and accumulation,
constants) do not count as ops, nor do the permutations around STACK, REDUCE and EXPAND, which work on leading axes.
Three primitives are more than one UOp: `pow.Tensor_Tensor` selects 1 where the base is 1 (tinygrad's power of 1 and NaN
is NaN), shifts by a tensor select the result when all bits are shifted out, and `rand.default` is tinygrad's Threefry
generator.

The accuracy of POW and SIN is stated in `deviations`. Sums and products of half precision accumulate
in float32. An integer that is divided by 0 ends the process, as in C.

tinygrad lowers MAX to `a < b ? b : a`, which loses a NaN in `b`. The backend has a device of its own, `CPU:1`, whose
renderer has a MAX that keeps NaN: other tinygrad programs in the process are not affected. A loaded program is captured
once for each set of sizes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import ctypes
import functools
import os
from pathlib import Path
import shutil
import tempfile
from typing import Any

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.device import Buffer
from tinygrad.dtype import DType
from tinygrad.helpers import Context
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.uop.ops import GroupOp, Ops, UOp
import torch

from decomp import Backend
from decomp_rules import targets
from decomp_rules.backends import deviations
from decomp_rules.backends.c_compilers import NO_COMPILER, compiler, zig_of_package

DEVICE = "CPU:1"
DTYPES: dict[torch.dtype, DType] = {
    torch.bool: dtypes.bool,
    torch.uint8: dtypes.uint8,
    torch.int8: dtypes.int8,
    torch.int16: dtypes.int16,
    torch.int32: dtypes.int32,
    torch.int64: dtypes.int64,
    torch.uint16: dtypes.uint16,
    torch.uint32: dtypes.uint32,
    torch.uint64: dtypes.uint64,
    torch.float16: dtypes.float16,
    torch.bfloat16: dtypes.bfloat16,
    torch.float32: dtypes.float32,
    torch.float64: dtypes.float64,
}
_VIEWS = GroupOp.Movement | {Ops.DETACH, Ops.CONTIGUOUS, Ops.BITCAST}
"""UOps of which tinygrad may make no more than a view of a buffer."""
_TORCH_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}
_HALVES = (dtypes.float16, dtypes.bfloat16)


def make() -> Backend:
    """The backend. Raises `RuntimeError` if there is no compiler for tinygrad's CPU device."""
    _open_device()
    chip = Backend(
        "tinygrad", target=targets.tinygrad, from_torch=from_torch, to_torch=to_torch, dtypes=DTYPES, jit=Captured
    )
    for name, function in PRIMITIVES.items():
        chip.implements(name)(function)
    deviations.state(chip, deviations.TINYGRAD)
    return chip


# The device, and the way there and back.


def _maximum(a: str, b: str, dtype: DType) -> str:
    """The C of MAX: of floats, NaN where one is. Each operand is written once, as it may be a long expression."""
    takes_second = "max_a < max_b" + (" || max_b != max_b" if dtypes.is_float(dtype) else "")
    return f"({{ __auto_type max_a = {a}; __auto_type max_b = {b}; ({takes_second}) ? max_b : max_a; }})"


class KeepsNan(ClangRenderer):
    """tinygrad's renderer of C, with a MAX."""

    code_for_op = {**ClangRenderer.code_for_op, Ops.MAX: _maximum}


@functools.cache
def _open_device() -> None:
    """Open `DEVICE` with its renderer. Raises `RuntimeError` if there is no compiler."""
    if compiler() is None:
        raise RuntimeError(NO_COMPILER)
    if "CC" not in os.environ and shutil.which("clang") is None:
        _provide_clang()
    Device["CPU"].synchronize()  # copies of CPU:1 use it, and tinygrad fails at exit if they are the first to
    Device[DEVICE].renderers = [KeepsNan]


@functools.cache
def _provide_clang() -> tempfile.TemporaryDirectory[str]:
    """Put a `clang` on the PATH of this process that is Zig's. tinygrad's loader of objects knows few relocations: no
    debug sections, and none of the checks that Zig adds."""
    folder = tempfile.TemporaryDirectory(prefix="decomp-clang-")
    script = Path(folder.name, "clang")
    script.write_text(
        '#!/bin/sh\nfor a; do shift; case "$a" in --target=*) ;; *) set -- "$@" "$a";; esac; done\n'
        f'exec "{zig_of_package()}" cc -g0 -fno-sanitize=all -fno-stack-protector "$@"\n'
    )
    script.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([folder.name, os.environ.get("PATH", "")])
    return folder


def _settings() -> Context:
    """No worker processes, which would run the user's script again, and no search for other devices."""
    return Context(PARALLEL=0, DEV="CPU")


def from_torch(tensor: torch.Tensor) -> Tensor:
    """A copy of `tensor` in a buffer of tinygrad's."""
    tensor = tensor.detach().cpu().contiguous()
    array = Tensor.empty(*tensor.shape, device=DEVICE, dtype=DTYPES[tensor.dtype])
    if tensor.numel():
        array.uop.buffer.allocate().copy_from(_view_of(tensor))
    return array


def to_torch(array: Tensor) -> torch.Tensor:
    """A copy of `array`, computed first if it is not yet."""
    tensor = torch.empty(array.shape, dtype=_TORCH_DTYPES[array.dtype])
    if tensor.numel():
        stored = array.contiguous() if array.device is not None else array.clone(device=DEVICE)
        with _settings():
            _view_of(tensor).copy_from(stored.realize().uop.buffer.ensure_allocated())
    return tensor


def _view_of(tensor: torch.Tensor) -> Buffer:
    """The memory of a contiguous tensor as a buffer of tinygrad's."""
    memory = memoryview((ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
    return Buffer("PYTHON", tensor.numel(), DTYPES[tensor.dtype], opaque=memory)


class Captured:
    """A function of arrays and numbers that `TinyJit` captures once for each set of shapes and numbers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.captured: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """The results, each in a buffer of its own; the next call with these shapes writes to the same ones."""
        stored = [_stored(value) if isinstance(value, Tensor) else value for value in values]
        arrays = {value.uop.base: value for value in stored if isinstance(value, Tensor)}
        places = {base: place for place, base in enumerate(arrays)}
        form = tuple((places[v.uop.base], v.shape, v.dtype) if isinstance(v, Tensor) else v for v in stored)
        if form not in self.captured:
            self.captured[form] = self._captured(form)
        with _settings():
            found: tuple[Any, ...] = self.captured[form](*arrays.values())
        return found

    def _captured(self, form: tuple[Any, ...]) -> Callable[..., Any]:
        """A function of the distinct arrays of a call, captured by `TinyJit` unless there would be nothing to
        capture."""
        numbers: list[Any] = []

        def run(*arrays: Tensor) -> tuple[Tensor, ...]:
            values = [arrays[each[0]] if isinstance(each, tuple) else each for each in form]
            found = self.function(*values)
            numbers[:] = [None if isinstance(value, Tensor) else value for value in found]
            return _realized([value for value in found if isinstance(value, Tensor)], arrays)

        static = any(isinstance(each, tuple) and 0 in each[1] for each in form)
        inner = run if static or not form else TinyJit(run)

        def call(*arrays: Tensor) -> tuple[Any, ...]:
            results = iter(inner(*arrays))
            return tuple(next(results) if number is None else number for number in numbers)

        return call


def _stored(array: Tensor) -> Tensor:
    """An array in a buffer, as `TinyJit` asks for."""
    return array if array.device is not None else array.clone(device=DEVICE).realize()


def _realized(results: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results, computed together, each in a buffer that no other and nothing `given` has."""
    taken = {array.uop.base for array in given}
    own: list[Tensor] = []
    for result in results:
        source = result.uop
        while source.op in _VIEWS:
            source = source.src[0]
        copied = result.numel() and (result.device is None or source.op is Ops.BUFFER or source in taken)
        own.append(result.clone(device=DEVICE) if copied else result.contiguous())
        taken.add(source)
    if own:
        Tensor.realize(*own)
    return tuple(_apart(result, given) for result in own)


def _apart(result: Tensor, given: Sequence[Tensor]) -> Tensor:
    """The result, copied if it is a view of an argument's memory: `TinyJit` would return the memory of the first call's
    argument each time."""
    if not result.numel() or _memory(result) not in {_memory(array) for array in given if array.numel()}:
        return result
    return result.clone(device=DEVICE).realize()


def _memory(array: Tensor) -> Any:
    buffer: Any = array.uop.base.buffer
    return buffer.base


# Operands.


@functools.cache
def _stand_in(dtype: DType, numbers: bool) -> torch.Tensor:
    """A tensor that PyTorch promotes as it would one of this dtype, 0-d or not."""
    return torch.empty(() if numbers else (1,), dtype=_TORCH_DTYPES[dtype])


def _promoted(*operands: Any) -> DType:
    """The dtype that PyTorch promotes two operands to: 0-d tensors and numbers count less."""
    first, second = (_stand_in(o.dtype, not o.shape) if isinstance(o, Tensor) else o for o in operands)
    return DTYPES[torch.result_type(first, second)]


def _operand(value: Any, dtype: DType) -> Tensor:
    """An operand in `dtype`. A number beyond the range of an integer wraps, as in PyTorch."""
    if isinstance(value, Tensor):
        return value.cast(dtype)
    if dtypes.is_int(dtype):
        value = (int(value) - dtype.min) % 2**dtype.bitsize + dtype.min
    return Tensor(UOp.const(value, dtype), device=DEVICE)


def _binary(op: Ops) -> Callable[[Any, Any], Tensor]:
    """A function that makes one UOp of two operands."""

    def function(a: Any, b: Any) -> Tensor:
        dtype = _promoted(a, b)
        return _operand(a, dtype).alu(op, _operand(b, dtype))

    return function


def _unary(op: Ops) -> Callable[[Tensor], Tensor]:
    """A function that makes one UOp of a float; an integer is cast first."""

    def function(a: Tensor) -> Tensor:
        return (a if dtypes.is_float(a.dtype) else a.cast(dtypes.float32)).alu(op)

    return function


def _axis(axis: int, ndim: int) -> int:
    return axis + ndim if axis < 0 else axis


# Primitives.


def divide(a: Any, b: Any, rounding_mode: str) -> Tensor:
    """CDIV or FLOORDIV of integers."""
    return _binary(Ops.CDIV if rounding_mode == "trunc" else Ops.FLOORDIV)(a, b)


def trunc(a: Tensor) -> Tensor:
    """TRUNC; an integer is unchanged."""
    return a.alu(Ops.TRUNC) if dtypes.is_float(a.dtype) else a


def power(a: Tensor, b: Tensor) -> Tensor:
    """POW; 1 where the base is 1, also to the power NaN."""
    dtype = _promoted(a, b)
    base, exponent = _operand(a, dtype), _operand(b, dtype)
    return base.ne(1.0).where(base.alu(Ops.POW, exponent), _operand(1.0, dtype))


def shift_left(a: Any, b: Any) -> Tensor:
    """SHL; 0 where all bits are shifted out."""
    return _shift(Ops.SHL, a, b, lambda x, dtype: _operand(0, dtype))


def shift_right(a: Any, b: Any) -> Tensor:
    """SHR; 0 or −1, the sign, where all bits are shifted out."""

    def sign(x: Tensor, dtype: DType) -> Tensor:
        return _operand(0, dtype) if dtypes.is_unsigned(dtype) else x.alu(Ops.SHR, _operand(dtype.bitsize - 1, dtype))

    return _shift(Ops.SHR, a, b, sign)


def _shift(op: Ops, a: Any, b: Any, beyond: Callable[[Tensor, DType], Tensor]) -> Tensor:
    dtype = _promoted(a, b)
    x, count = _operand(a, dtype), _operand(b, dtype)
    if not isinstance(b, Tensor):
        return x.alu(op, count) if 0 <= b < dtype.bitsize else beyond(x, dtype)._broadcast_to(x.shape)
    inside = (count < dtype.bitsize) & (count < 0).logical_not()
    return inside.where(x.alu(op, inside.where(count, _operand(0, dtype))), beyond(x, dtype))


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    """WHERE."""
    dtype = _promoted(a, b)
    return condition.cast(dtypes.bool).alu(Ops.WHERE, _operand(a, dtype), _operand(b, dtype))


def view(x: Tensor, size: Sequence[int]) -> Tensor:
    """RESHAPE."""
    known = functools.reduce(lambda a, b: a * b, (n for n in size if n != -1), 1)
    return x.reshape(tuple(x.numel() // known if n == -1 else n for n in size))


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    """PERMUTE."""
    return x.permute(tuple(_axis(dim, x.ndim) for dim in dims))


def expand(x: Tensor, size: Sequence[int]) -> Tensor:
    """EXPAND."""
    own = (1,) * (len(size) - x.ndim) + tuple(x.shape)
    return x.expand(tuple(old if new == -1 else new for old, new in zip(own, size)))


def pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """PAD, with zeros. The amounts are those of the last dimension first."""
    amounts = list(zip(pad[::2], pad[1::2]))
    return x.pad((None,) * (x.ndim - len(amounts)) + tuple(reversed(amounts)))


def shrink(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """SHRINK of one dimension."""
    dim = _axis(dim, x.ndim)
    first, last, _ = slice(start, end).indices(x.shape[dim])
    return x.shrink(tuple((first, max(first, last)) if axis == dim else None for axis in range(x.ndim)))


def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    """FLIP."""
    return x.flip(tuple(_axis(dim, x.ndim) for dim in dims)) if dims else x


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """STACK, and the new axis moved to its place."""
    dtype = functools.reduce(torch.promote_types, (_TORCH_DTYPES[tensor.dtype] for tensor in tensors))
    first, *others = (tensor.cast(DTYPES[dtype]) for tensor in tensors)
    return first.stack(*others, dim=_axis(dim, first.ndim + 1))


def _reduced(x: Tensor, op: Ops, dims: Sequence[int], keepdim: bool) -> Tensor:
    """REDUCE. The result over an empty axis, which REDUCE does not support, is the neutral element."""
    axes = tuple(sorted(_axis(dim, x.ndim) for dim in dims)) if x.ndim else ()
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape) if keepdim or axis not in axes)
    if 0 in (x.shape[axis] for axis in axes):
        return _operand(int(op is Ops.MUL), x.dtype)._broadcast_to(kept)
    return x._rop(op, axes).reshape(kept)


def _accumulated(x: Tensor, op: Ops, dims: Sequence[int], keepdim: bool, dtype: DType | None) -> Tensor:
    whole = dtypes.int64 if not dtypes.is_float(x.dtype) else x.dtype
    result = dtype if dtype is not None else whole
    inner = dtypes.float32 if result in _HALVES else result
    return _reduced(x.cast(result).cast(inner), op, dims, keepdim).cast(result)


def total(x: Tensor, dim: Sequence[int], keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    """REDUCE of ADD."""
    return _accumulated(x, Ops.ADD, dim, keepdim, dtype)


def product(x: Tensor, dim: int, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    """REDUCE of MUL."""
    return _accumulated(x, Ops.MUL, [dim], keepdim, dtype)


def maximum_of(x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    """REDUCE of MAX."""
    return _reduced(x, Ops.MAX, dim, keepdim)


def cast(x: Tensor, dtype: DType | None = None) -> Tensor:
    """CAST. A float that becomes an integer is stored before, as tinygrad (0.14) fails to fold the cast of an infinite
    or NaN constant, which sizes and ranges may turn out to be."""
    if dtype is None:
        return x
    if dtypes.is_float(x.dtype) and dtypes.is_int(dtype):
        x = x.contiguous() if x.device is not None else x.clone(device=DEVICE)
    return x.cast(dtype)


def full(size: Sequence[int], fill_value: Any, dtype: DType | None = None) -> Tensor:
    """CONST, in the dtype that PyTorch gives to a number if there is none."""
    natural = DTYPES[torch.result_type(torch.empty((), dtype=torch.bool), fill_value)]
    return _operand(fill_value, dtype or natural)._broadcast_to(tuple(size))


def clone(x: Tensor) -> Tensor:
    """CONTIGUOUS."""
    return x.alu(Ops.CONTIGUOUS) if x.device is not None and x.numel() else x


def rand(size: Sequence[int], dtype: DType | None = None) -> Tensor:
    """Uniform random numbers of tinygrad's own generator, seeded by `tinygrad.Tensor.manual_seed`."""
    return Tensor.rand(*size, device=DEVICE, dtype=dtype or dtypes.float32)


def scan(
    step: Callable[..., Any], carried: Sequence[Tensor], rows: Sequence[Tensor], more: Sequence[Any] = ()
) -> list[Tensor]:
    """The steps one after the other, in one program."""
    carried, found = list(carried), list[Any]()
    for i in range(rows[0].shape[0]):
        row = [shrink(x, 0, i, i + 1).reshape(x.shape[1:]) for x in rows]
        results = step(*carried, *row, *more)
        carried, found = list(results[: len(carried)]), [*found, results[len(carried) :]]
    return carried + [stack(each) for each in zip(*found)]


def map_rows(function: Callable[..., Any], rows: Sequence[Tensor], more: Sequence[Any] = ()) -> list[Tensor]:
    """As `scan`."""
    return scan(function, (), rows, more)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "add": _binary(Ops.ADD),
    "mul": _binary(Ops.MUL),
    "maximum": _binary(Ops.MAX),
    "lt": _binary(Ops.CMPLT),
    "ne": _binary(Ops.CMPNE),
    "bitwise_and": _binary(Ops.AND),
    "bitwise_or": _binary(Ops.OR),
    "bitwise_xor": _binary(Ops.XOR),
    "bitwise_left_shift": shift_left,
    "bitwise_right_shift": shift_right,
    "pow.Tensor_Tensor": power,
    "div.Tensor_mode": divide,
    "div.Scalar_mode": divide,
    "fmod": _binary(Ops.CMOD),
    "remainder": _binary(Ops.FLOORMOD),
    "exp2": _unary(Ops.EXP2),
    "log2": _unary(Ops.LOG2),
    "sin": _unary(Ops.SIN),
    "sqrt": _unary(Ops.SQRT),
    "reciprocal": _unary(Ops.RECIPROCAL),
    "trunc": trunc,
    "where.self": where,
    "view.default": view,
    "permute": permute,
    "expand": expand,
    "constant_pad_nd": pad,
    "slice.Tensor": shrink,
    "flip": flip,
    "stack": stack,
    "sum.dim_IntList": total,
    "prod.dim_int": product,
    "amax": maximum_of,
    "_to_copy": cast,
    "view.dtype": lambda x, dtype: x.bitcast(dtype),
    "full.default": full,
    "clone": clone,
    "detach": lambda x: x.alu(Ops.DETACH),
    "rand.default": rand,
    "scan": scan,
    "map_impl": map_rows,
}
"""By name in the target: a function on tinygrad's tensors."""
