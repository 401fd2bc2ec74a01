"""tinygrad as a backend: primitives are one UOp and give what PyTorch gives; models, and some steps of training."""

import functools
import itertools
import math
import os
import shutil
import sys

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import decomp
from decomp.errors import LoadError
from decomp_rules import backends, targets
from decomp_rules.backends import c_compilers
from tests.forms import Calls
from tests.models import error_over_its_own

pytest.importorskip("tinygrad", reason="needs tinygrad: pip install decomp[tinygrad]")

from tinygrad.uop.ops import GroupOp, Ops

from decomp_rules.backends import tinygrad_uops

if c_compilers.compiler() is None:
    pytest.skip(c_compilers.NO_COMPILER, allow_module_level=True)

chip = backends.get("tinygrad")
SPECIAL = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, math.nan, math.inf, -math.inf, 1e-40, 3e38])
INTS = torch.tensor([-9, -4, -1, 0, 1, 2, 3, 7, 40, 63, 64, 100])
DIVISORS = torch.where(INTS == 0, 5, INTS)
SHORT, BYTES = INTS.to(torch.int8), INTS.abs().to(torch.uint8)
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64, *HALVES)
EMPTY = torch.ones(2, 0, 3)
HALF = [(SPECIAL[2:7].to(d).expand(400, 5), [0]) for d in HALVES]
UNARY = {"exp2": Ops.EXP2, "log2": Ops.LOG2, "sin": Ops.SIN, "sqrt": Ops.SQRT, "reciprocal": Ops.RECIPROCAL}
ARITHMETIC = {"add": Ops.ADD, "mul": Ops.MUL, "maximum": Ops.MAX, "lt": Ops.CMPLT, "ne": Ops.CMPNE}
BITWISE = {"bitwise_and": Ops.AND, "bitwise_or": Ops.OR, "bitwise_xor": Ops.XOR}
REDUCED = [(torch.ones(2, 3, 4), [0, -1]), (torch.ones(2, 3), [1], True), (torch.ones(()), [0])]
CALLS = {
    **{name: (op, [(SPECIAL,)]) for name, op in UNARY.items()},
    "sqrt": (Ops.SQRT, [*((SPECIAL.to(d),) for d in FLOATS), (DIVISORS,), (EMPTY,)]),
    "sin": (Ops.SIN, [(SPECIAL[:10],)]),
    "trunc": (Ops.TRUNC, [(SPECIAL,), (SPECIAL.double(),)]),
    **{
        name: (
            op,
            [
                *((SPECIAL.to(d)[:, None], SPECIAL.to(d)) for d in (FLOATS if name == "maximum" else FLOATS[:1])),
                *((x[:, None], x) for x in (INTS, BYTES, INTS > 0)),
                *([] if name == "maximum" else [(SPECIAL.double(), 2), (INTS, 2.5)]),
                (INTS, SPECIAL.half()),
            ],
        )
        for name, op in ARITHMETIC.items()
    },
    **{name: (op, [(INTS[:, None], DIVISORS), (INTS > 0, INTS < 5), (BYTES, 7)]) for name, op in BITWISE.items()},
    "bitwise_left_shift": (Ops.SHL, [(INTS, 3), (SHORT, 7)]),
    "bitwise_right_shift": (Ops.SHR, [(INTS, 3), (SHORT, 1), (BYTES, 2)]),
    "fmod": (Ops.CMOD, [(INTS[:, None], DIVISORS), (INTS, 3), (SHORT, -3)]),
    "remainder": (Ops.FLOORMOD, [(INTS[:, None], DIVISORS), (INTS, -3), (SHORT, 5)]),
    "where": (Ops.WHERE, [(SPECIAL > 0, SPECIAL, INTS), (INTS > 0, INTS, torch.tensor(2.5))]),
    "sum": (Ops.REDUCE, [*HALF, (SPECIAL[:6], [0]), (INTS > 0, [0], True), (EMPTY, [2]), (EMPTY, [0]), *REDUCED]),
    "prod": (Ops.REDUCE, [(INTS[:4], 0), (SPECIAL[2:7].half(), 0), (INTS > 0, 0), (HALF[0][0], -1, True), (EMPTY, 0)]),
    "amax": (Ops.REDUCE, [(SPECIAL.view(3, 4), [-1]), (INTS, [0], True), (INTS > 0, [0]), *REDUCED]),
    "flip": (Ops.FLIP, [(INTS.view(3, 4), [0, -1])]),
    "stack": (Ops.STACK, [([INTS, DIVISORS], -1), ([INTS > 0, INTS < 0], 0), ([torch.eye(3), torch.ones(3, 3)], 1)]),
    "permute": (Ops.PERMUTE, [(INTS.view(3, 2, 2), [2, 0, -2])]),
    "expand": (Ops.EXPAND, [(torch.ones(3, 1), [2, -1, 4]), (torch.tensor(3), [2])]),
    "view": (Ops.RESHAPE, [(INTS, [-1, 6]), (INTS.view(3, 4), [2, 6])]),
    "constant_pad_nd": (Ops.PAD, [(INTS.view(3, 4), [1, 2]), (INTS.view(3, 4), [1, 0, 0, 2], 0)]),
    "slice": (Ops.SHRINK, [(INTS.view(3, 4), 1, 1, -1), (INTS, -1, -3, 99), (INTS, 0, 5)]),
    "full": (Ops.CONST, [([2, 3], 1.5), ([], 7), ([2], 7, {"dtype": torch.float16}), ([2], True)]),
    "_to_copy": (
        Ops.CAST,
        [
            *((INTS, {"dtype": d}) for d in (torch.bfloat16, torch.bool, torch.int8)),
            *((SPECIAL[:7].to(d), {"dtype": e}) for d, e in itertools.pairwise((*FLOATS, torch.float32))),
            (SPECIAL, {"dtype": torch.bool}),
            (SPECIAL[:7], {"dtype": torch.int64}),
        ],
    ),
    "div": (Ops.CDIV, [(x, y, {"rounding_mode": "trunc"}) for x, y in ((INTS[:, None], DIVISORS), (BYTES, -3))]),
    "div ": (Ops.FLOORDIV, [(x, y, {"rounding_mode": "floor"}) for x, y in ((INTS[:, None], DIVISORS), (SHORT, 7))]),
    "clone": (Ops.CONTIGUOUS, [(INTS.view(3, 4),), (torch.tensor(2.5),)]),
    "detach": (Ops.DETACH, [(SPECIAL,)]),
}
"""By op: its UOp, and calls; `div` has one UOp for each rounding."""
BITCASTS = [(INTS, torch.float64), (SPECIAL, torch.int32), (SPECIAL, torch.int16), (torch.tensor(2.0), torch.int32)]
SEVERAL = {
    "pow": [(SPECIAL.abs()[2:7, None], SPECIAL), (torch.tensor(1.0), SPECIAL)],
    "bitwise_left_shift": [(DIVISORS, INTS.abs()), (SHORT, SHORT), (INTS, 64)],
    "bitwise_right_shift": [(DIVISORS, INTS.abs()), (SHORT, SHORT), (BYTES, BYTES), (SHORT, 8)],
}
"""Ops that are more than one UOp, or none."""


@functools.cache
def _program():
    """All calls: their names, their UOps (None: several), a program of them, and its inputs."""
    rows = [(name, op, args) for name, (op, each) in CALLS.items() for args in each]
    rows += [("view", Ops.BITCAST, args) for args in BITCASTS]
    rows += [(name, None, args) for name, each in SEVERAL.items() for args in each]
    split = [(args[:-1], args[-1]) if isinstance(args[-1], dict) else (args, {}) for _, _, args in rows]
    calls = [decomp.Sample.of(name.strip(), *given) for (name, _, _), given in zip(rows, split)]
    tensors = tuple(itertools.chain.from_iterable(call.tensors for call in calls))
    program = torch.export.export(Calls(calls), tensors)
    return [(name, op) for name, op, _ in rows], program, chip.load(program), tensors


def test_primitives_give_what_pytorch_gives():
    rows, program, loaded, tensors = _program()
    found, expected = loaded(*tensors), program.module()(*tensors)
    for (name, _), ours, theirs in zip(rows, found, expected, strict=True):
        ulps = 64 if name == "pow" else 2
        rtol = ulps * torch.finfo(theirs.dtype).eps if theirs.is_floating_point() else 0
        where = functools.partial("{}: {}".format, name)
        atol = 1e-6 if name == "sin" else 0
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=rtol, atol=atol, msg=where)


def test_a_primitive_is_one_uop():
    rows, _, loaded, tensors = _program()
    arrays = [chip.from_torch(tensor) for tensor in tensors]
    results = loaded.walk(*arrays)
    given = {array.uop for array in arrays}
    for (name, expected), result in zip(rows, results, strict=True):
        made = _made(result.uop, given)
        free = {Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.CAST, Ops.CONST} - {expected}
        ops = [op for op in made if op not in free and (name, op) != ("_to_copy", Ops.CONTIGUOUS)]
        assert expected is None or ops == [expected] or ops == [] and set(made) <= {*free, Ops.CONTIGUOUS}, (name, made)


def _made(uop, given):
    """The ops of all UOps that were made of the given ones. What says how a movement moves is none of them."""
    if uop in given:
        return []
    sources = uop.src[:1] if uop.op in GroupOp.Movement else uop.src
    return [uop.op, *itertools.chain.from_iterable(_made(source, given) for source in sources)]


def test_every_primitive_has_a_function_and_is_tried():
    assert chip.missing() == ()
    ops = {name.removeprefix("aten.").partition(".")[0] for name in targets.tinygrad}
    assert ops - CALLS.keys() - SEVERAL.keys() == {"rand"}


def test_powers_of_integers_are_products():
    inputs = torch.tensor([[5, -3, 2], [5, 3, 14]], dtype=torch.int16).unbind()
    lowered = decomp.lower(Calls([decomp.Sample.of("pow", inputs, {})]), to=chip.target, args=inputs)
    assert not [call for call in decomp.calls(lowered.result) if call.op == decomp.op("pow")]
    assert lowered.result(*inputs)[0].tolist() == [3125, -27, 2**14]


def test_dtypes_that_tinygrad_has_not_are_refused_by_name():
    inputs = (SPECIAL + 1j, SPECIAL)
    program = torch.export.export(Calls([decomp.Sample.of("add", inputs, {})]), inputs)
    with pytest.raises(LoadError, match="complex64"):
        chip.load(program)


class _Drop(nn.Module):
    def forward(self, x):
        return torch.rand_like(x) * x


def test_random_numbers_are_between_0_and_1_and_others_each_time():
    loaded = chip.load(decomp.lower(_Drop(), to=targets.tinygrad, args=(torch.ones(1000),)))
    found = [loaded(torch.ones(1000)) for _ in range(4)]
    assert not any(torch.equal(one, two) for one, two in itertools.combinations(found, 2))
    assert all(0 <= each.min() and each.max() < 1 for each in found)


class _Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x, y):
        self.count.add_(x)
        self.last.copy_(y)
        y.zero_()
        return self.count.flip(0), x, self.last


def test_state_is_kept_and_inputs_are_written_back_also_when_captured():
    model = _Counter()
    loaded = chip.load(decomp.lower(model, to=targets.tinygrad, args=(torch.ones(3), torch.ones(3))))
    for step in range(5):
        x, ours = torch.arange(3.0) + step, torch.full((3,), float(step))
        theirs = ours.clone()
        for mine, wanted in zip(loaded(x, ours), model(x, theirs), strict=True):
            assert torch.equal(mine, wanted)
        assert torch.equal(ours, theirs)
    assert torch.equal(loaded.state_dict()["count"], model.count)


class _Views(nn.Module):
    def forward(self, x):
        return x, x.detach(), x[1:], x[1:, :2], x.T, x.view(torch.int32), (x * 2)[1:], x * 2


def test_views_of_inputs_are_copied_also_when_captured():
    loaded = chip.load(decomp.lower(_Views(), to=targets.tinygrad, args=(torch.ones(3, 4),)))
    for step in range(4):
        x = torch.arange(12.0).view(3, 4) + step
        for mine, wanted in zip(loaded(x), _Views()(x), strict=True):
            assert torch.equal(mine, wanted)


class _Infinite(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, torch.log2(torch.zeros(3)).to(torch.int64))


def test_infinite_constants_are_cast_to_integers():
    x = torch.tensor([1, 2, 3])
    loaded = chip.load(decomp.lower(_Infinite(), to=targets.tinygrad, args=(x,)))
    assert torch.equal(loaded(x), x)


class _Sized(nn.Module):
    def forward(self, x):
        return (x * x.shape[0]).sum(0), x.shape[0]


def test_a_program_runs_for_each_size():
    sizes = {"x": {0: torch.export.Dim("n")}}
    program = torch.export.export(_Sized(), (torch.ones(3, 2),), dynamic_shapes=sizes)
    loaded = chip.load(decomp.lower(program, to=targets.tinygrad))
    for size in (3, 5, 3, 2, 3):
        total, count = loaded(torch.ones(size, 2))
        assert total.tolist() == [size**2] * 2 and count == size


class _Steps(nn.Module):
    def forward(self, x, h):
        def step(carried, row):
            new = torch.sin(carried[0] + row)
            return (new, carried[1] * 2), (new * 2, carried[1] + 1)

        carried, rows = scan(step, (h, torch.ones((), dtype=torch.int64)), x, dim=0)
        return *carried, *rows, map_rows(lambda row, h: (row + h).sum(-1), x, h)


def test_loops_over_rows_are_written_out_for_each_number_of_them():
    steps, h = torch.export.Dim("steps", min=2, max=9), torch.randn(4)
    program = torch.export.export(_Steps(), (torch.randn(3, 4), h), dynamic_shapes=({0: steps}, {}))
    loaded = chip.load(decomp.lower(program, to=targets.tinygrad))
    for count in (3, 5):
        x = torch.randn(count, 4)
        for mine, wanted in zip(loaded(x, h), _Steps()(x, h), strict=True):
            torch.testing.assert_close(mine, wanted)


class _Perceptron(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 5), nn.Softmax(-1))


class _Pixels(nn.Module):
    """A convolution, and attention between what it finds."""

    def __init__(self):
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        found = self.seen(x).flatten(2).mT
        return self.last(F.scaled_dot_product_attention(found, found, found))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind, shape", [(_Perceptron, (4, 8)), (_Pixels, (2, 3, 8, 8))])
def test_a_model_is_as_near_to_float64_as_it_is_itself(kind, shape):
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(shape)
    loaded = chip.load(decomp.lower(model, to=targets.tinygrad, args=(x,)))
    found = [loaded(x) for _ in range(3)]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert error_over_its_own(model, loaded, (x,)) <= 2


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delitem(os.environ, "CC", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    assert c_compilers.compiler() is None
    tinygrad_uops._open_device.cache_clear()
    with pytest.raises(RuntimeError, match="apt install clang.*pip install ziglang"):
        tinygrad_uops.make()


@pytest.mark.parametrize("function", [lambda x: torch.ops.aten.slice(x, 0, 1, 4), torch.ops.aten.detach.default])
def test_results_that_look_into_inputs_are_those_of_each_call(function):
    x = torch.randn(5, 4)
    module = make_fx(function)(x)
    program = chip.load(decomp.lower(module, to=chip.target, args=(x,), verify=False, simplify=False))
    for _ in range(4):
        x = torch.randn(5, 4)
        torch.testing.assert_close(program(x), function(x), rtol=0, atol=0)
