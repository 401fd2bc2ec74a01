"""Which calls PyTorch runs in float8 and float4 is what the tables say; and no rule emits one that it does not run."""

import functools

import pytest
import torch

import decomp
from decomp.ir.agreement import same_elements
from decomp.ir.byte_floats import without_kernel
from decomp.ir.dtypes import BYTE_FLOATS
from decomp_rules import targets
from tests.forms import exported

aten, prims = torch.ops.aten, torch.ops.prims
INDEX = torch.tensor([1, 0])
MASK = torch.tensor([[True, False, True, False]] * 2)
CALLS = {
    aten._to_copy.default: lambda op, x: op(x, dtype=torch.float32),
    aten.cat.default: lambda op, x: op([x, x]),
    aten.stack.default: lambda op, x: op([x, x]),
    aten.where.self: lambda op, x: op(MASK, x, x),
    aten.index.Tensor: lambda op, x: op(x, [INDEX]),
    aten.index_select.default: lambda op, x: op(x, 0, INDEX),
    aten.embedding.default: lambda op, x: op(x, INDEX),
    aten.gather.default: lambda op, x: op(x, 0, INDEX[None]),
    aten.take.default: lambda op, x: op(x, INDEX),
    aten.roll.default: lambda op, x: op(x, [1], [0]),
    aten.flip.default: lambda op, x: op(x, [0, 1]),
    aten.repeat.default: lambda op, x: op(x, [2, 2]),
    aten.index_put.default: lambda op, x: op(x, [INDEX], x),
    aten.slice_scatter.default: lambda op, x: op(x, x[:1], 0, 0, 1),
    aten.full.default: lambda op, x: op([2], 1.0, dtype=x.dtype),
    aten.zeros.default: lambda op, x: op([2], dtype=x.dtype),
    aten.constant_pad_nd.default: lambda op, x: op(x, [1, 1], 1.0),
    aten.eq.Tensor: lambda op, x: op(x, x),
    aten.lt.Tensor: lambda op, x: op(x, x),
    aten.isnan.default: lambda op, x: op(x),
    aten.abs.default: lambda op, x: op(x),
    aten.neg.default: lambda op, x: op(x),
    aten.add.Tensor: lambda op, x: op(x, x),
    aten.mul.Tensor: lambda op, x: op(x, x),
    aten.sum.dim_IntList: lambda op, x: op(x, [0]),
    aten.mean.dim: lambda op, x: op(x, [0], dtype=torch.float32),
    aten.amax.default: lambda op, x: op(x, [0]),
    aten.sort.default: lambda op, x: op(x),
    aten.permute.default: lambda op, x: op(x, [1, 0]),
    aten.view.dtype: lambda op, x: op(x, torch.uint8),
    prims.reshape.default: lambda op, x: op(x, [4, 2]),
    prims.rev.default: lambda op, x: op(x, [0, 1]),
}


def numbers(dtype):
    return torch.arange(120, 128, dtype=torch.uint8).view(2, 4).view(dtype)


def runs(function, x):
    try:
        function(x)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(*(x.contiguous().view(torch.uint8) for x in (one, other)))


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="other versions have other kernels")
@pytest.mark.parametrize("op", CALLS, ids=str)
def test_calls_have_a_kernel_where_the_tables_say_so(op):
    for dtype in sorted(BYTE_FLOATS, key=str):
        call = functools.partial(CALLS[op], op)
        node = next(node for node in exported(call, numbers(dtype)).graph.nodes if node.target is op)
        assert (without_kernel(node) is None) == runs(call, numbers(dtype)), dtype


MOVES = {
    "index": lambda x: x[INDEX],
    "index of columns": lambda x: x[:, INDEX],
    "embedding": lambda x: torch.nn.functional.embedding(INDEX, x),
    "roll": lambda x: torch.roll(x, 1, 0),
    "cat": lambda x: torch.cat([x, x]),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "permute": lambda x: x.permute(1, 0).contiguous(),
    "zeros": lambda x: x.new_zeros(3),
    "full": lambda x: torch.full((2, 3), 1.0, dtype=x.dtype),
}


@pytest.mark.parametrize("to", ["tinygrad", "prims"])
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("dtype", [torch.float8_e8m0fnu, torch.float8_e4m3fn], ids=str)
def test_moves_of_float8_keep_every_bit(to, move, dtype):
    x = torch.arange(200, 208, dtype=torch.uint8).view(2, 4).view(dtype)  # with a NaN of e4m3, and negative numbers
    lowered = decomp.lower(exported(MOVES[move], x), to=getattr(targets, to), verify="full")
    assert same_bits(lowered.result.module()(x), MOVES[move](x))


def test_float8_is_gathered_where_pytorch_has_no_kernel_for_it():
    x = numbers(torch.float8_e8m0fnu)
    function = lambda x: torch.gather(x, 0, INDEX[None])
    lowered = decomp.lower(exported(function, x), to=targets.tinygrad).result.module()(x)
    assert torch.equal(lowered.view(torch.uint8), function(x.view(torch.uint8)))


def test_an_absolute_value_of_float8_is_that_of_every_number():
    x = torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2)
    lowered = decomp.lower(exported(torch.abs, x), to=targets.tinygrad).result.module()(x)
    assert lowered.dtype == x.dtype and torch.equal(lowered.float().nan_to_num(-1.0), x.abs().float().nan_to_num(-1.0))


def test_a_call_without_a_kernel_is_refused_by_name():
    x = numbers(torch.float8_e8m0fnu)
    with pytest.raises(decomp.errors.NotLowered) as error:
        decomp.lower(exported(torch.neg, x), to=targets.tinygrad)
    assert (
        "emits aten.mul.Tensor in float8_e8m0fnu, for which PyTorch has no kernel; a target that has one names the "
        'dtype: dtypes=["float8_e8m0fnu", ...]'
    ) in " ".join(str(error.value).split())


def test_a_target_that_names_the_dtype_computes_in_it():
    chip = decomp.Target("chip", ["mul"], dtypes=["float32", "float8_e8m0fnu"])
    lowered = decomp.lower(exported(torch.neg, numbers(torch.float8_e8m0fnu)), to=chip, verify="structure")
    assert [call.overload for call in decomp.calls(lowered.result)] == ["Tensor"]


def test_constants_of_float8_are_compared_by_their_bits():
    one, nan = (torch.full((3,), code, dtype=torch.uint8).view(torch.float8_e4m3fn) for code in (8, 127))
    other_nan = torch.full((3,), 255, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert same_elements(one, one.clone()) and same_elements(nan, other_nan) and not same_elements(one, nan)
