"""Runs of row-wise calls in blocks of rows: the same bits, in less memory, and only where that is sure."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.memory import blocks, placing
from decomp.memory.planning import memory_plan
from decomp_rules import targets
from decomp_rules.samples.workloads import OPS
from tests.forms import exported
from tests.held import held
from tests.memory.agreement import agrees


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8192 elements, for tensors of twice that."""
    monkeypatch.setattr(blocks, "MAX_BLOCK_ELEMENTS", 8192)
    monkeypatch.setattr(blocks, "MIN_BLOCKED_ELEMENTS", 16384)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


ROW_WISE = {
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "gelu": F.gelu,
    "layer_norm": lambda x: F.layer_norm(x, (64,)),
    "silu": F.silu,
    "rms_norm": lambda x: F.rms_norm(x, (64,), torch.arange(64.0)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("accuracy", ["exact", "standard"])
@pytest.mark.parametrize("name", ROW_WISE)
def test_row_wise_ops_have_the_same_bits_in_half_the_memory(name, accuracy, small_blocks):
    args = (torch.randn(8192, 64),)
    lowering = decomp.lower(exported(ROW_WISE[name], *args), to=targets.tinygrad, accuracy=accuracy)
    plan = memory_plan(lowering)
    assert plan.in_blocks > 2 and plan.peak <= 0.54 * plan.unplanned_peak
    assert agrees(plan, lowering.result.module(), args)
    assert held(plan.apply(), args) == plan.peak


def test_a_block_is_larger_where_what_is_one_number_a_row_needs_whole_vectors(small_blocks):
    x = torch.randn(4096, 256)
    lowering = decomp.lower(nn.LogSoftmax(-1), to=targets.tinygrad, args=(x,), training=False)
    plan = memory_plan(lowering)
    assert plan.in_blocks > 2 and plan.peak <= 0.4 * plan.unplanned_peak
    assert agrees(plan, lowering.result, (x,)) and held(plan.apply(), (x,)) == plan.peak


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "gelu"])
def test_large_ones_are_in_blocks_by_default(name):
    model, args = OPS[name]("large")
    with torch.no_grad():
        lowering = decomp.lower(model, to=targets.tinygrad, args=args)
        plan = memory_plan(lowering)
        assert plan.in_blocks > 10 and plan.ratio <= 0.51
        assert torch.equal(plan.apply()(*args), lowering.result(*args))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: ((x * 2).amax(-1, keepdim=True) - x).sum(-1), (256, 128)),  # a result without its last dimension
        (lambda x: (x * 2 + 1).abs().view(256, 4, 32).sum(-1).neg(), (256, 128)),
        (lambda x: (x * 2 + 1).abs().transpose(1, 2), (64, 8, 64)),  # a view of a result
        (lambda x: (lambda y: (y.abs(), y.sum(-1), y))(x * 2 + 1), (256, 128)),
        (lambda x: (x.mul(2).add(1).view(torch.int32) & 0x7FFFFFFF).view(torch.float32), (256, 128)),
        (lambda x: x.mul(2).masked_fill(x > 0, 1.0).sub(x.mean(-1, keepdim=True)), (256, 128)),
        (lambda x: (x * 2 + torch.ones(1, 1, 128, 128).triu()).amax(-1, True).neg(), (2, 3, 128, 128)),
        (lambda x: (x * 2 + torch.arange(2.0).view(2, 1, 1, 1)).neg().abs(), (2, 3, 128, 128)),
        (lambda x: (x * 2 + 1).neg().abs(), (3, 16384)),
        (lambda x: x.t().mul(2).neg().t().abs().add(x), (256, 128)),
        (lambda x: x.mul(2).unsqueeze(1).expand(256, 3, 128).add(1).neg(), (256, 128)),
        (lambda x: x.mul(2).flip(0).add(1).neg().abs(), (256, 128)),
    ],
)
def test_shapes_of_all_kinds(function, shape, small_blocks):
    program = exported(function, torch.randn(shape))
    plan = memory_plan(program)
    assert plan.peak <= plan.unplanned_peak and agrees(plan, program.module(), (torch.randn(shape),))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.mul(2).exp().add(x.mul(3)), (250, 99)),  # a vector ends elsewhere in a block
        (lambda x: x.mul(2).sum(0, keepdim=True).add(1), (256, 128)),  # over the rows
        (lambda x: x.mul(2).cumsum(0).add(1), (256, 128)),
        (lambda x: x.mul(2).add(x.mul(3)), (40009,)),  # a prime number of rows
        (lambda x: x.mul(2).add(1), (8, 8)),  # not worth it
        (lambda x: torch.mm(x, torch.ones(128, 128)).add(1), (256, 128)),  # products sum in an order of their own
    ],
)
def test_what_is_not_sure_to_be_the_same_runs_whole(function, shape, small_blocks):
    program = exported(function, torch.randn(shape))
    plan = memory_plan(program)
    assert plan.in_blocks == 0 and agrees(plan, program.module(), (torch.randn(shape),))


def test_threads_end_vectors_elsewhere(small_blocks):
    program = exported(lambda x: x.mul(2).exp().add(x.mul(3)), torch.randn(256, 128))
    assert memory_plan(program).in_blocks == 4
    torch.set_num_threads(3)
    assert memory_plan(program).in_blocks == 0


def test_blocks_can_be_refused(small_blocks):
    program = exported(lambda x: (x * 2) + (x * 3), torch.randn(256, 128))
    assert memory_plan(program).in_blocks == 3 and memory_plan(program, blocks=False).in_blocks == 0


def test_a_model_keeps_its_parameters_and_the_ops_around_a_run(small_blocks, monkeypatch):
    monkeypatch.setattr(placing, "MIN_ARENA_BYTES", 1)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.Softmax(-1))
    args = (torch.randn(2048, 64),)
    lowering = decomp.lower(model.eval(), to=targets.tinygrad | {"addmm", "linear"}, args=args)
    plan = memory_plan(lowering)
    assert plan.in_blocks > 20 and plan.peak < 0.6 * plan.unplanned_peak
    assert agrees(plan, lowering.result, args) and held(plan.apply(), args) == plan.peak


def test_a_view_of_one_run_is_used_by_the_next(small_blocks):
    def function(x):
        y = (x * 2 + x * 3).detach().view(128, 256)
        return (y.cumsum(0) * 2 + y * 3).neg() + y

    root = memory_plan(exported(function, torch.randn(256, 128))).program.root
    blocked, x = blocks.run_in_blocks(root.graph, root), torch.randn(256, 128)
    assert len(blocked.bodies) == 2 and torch.equal(blocked.root(x), function(x))
