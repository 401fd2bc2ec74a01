"""Calls of a planned program: on other inputs, moved, copied, in threads, within itself."""

from concurrent.futures import ThreadPoolExecutor
import copy

import pytest
import torch
from torch import fx, nn

import decomp
from decomp.errors import InputMismatch
from decomp.memory.planning import memory_plan
from decomp.memory.running import PlanMismatch
from decomp_rules import targets
from tests.forms import exported
from tests.memory.agreement import agrees, run
from tests.memory.programs import X


def layers(arena=True):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Softmax(-1)).eval()
    args = (torch.randn(32, 64),)
    lowering = decomp.lower(model, to=targets.tinygrad, args=args)
    return lowering.result, memory_plan(lowering, arena=arena), args


def test_calls_in_threads_have_nothing_in_common():
    module, plan, _ = layers()
    planned, inputs = plan.apply(), [torch.randn(32, 64) for _ in range(16)]
    with torch.no_grad(), ThreadPoolExecutor(4) as threads:
        wanted = [module(x) for x in inputs]

        def called(x):
            with torch.no_grad():
                return planned(x)

        assert all(torch.equal(a, b) for a, b in zip(wanted, threads.map(called, inputs)))


def test_a_call_within_a_call_leaves_the_outer_one_alone():
    plan = memory_plan(exported(lambda x: (x.exp() + x.sin()).cos(), X), arena=True)
    planned, graph = plan.apply(), copy.deepcopy(plan.apply().graph)
    (middle,) = [node for node in graph.nodes if node.name == "add"]
    with graph.inserting_before(middle):
        graph.call_function(lambda: planned(torch.randn(1024)))
    x = torch.randn(1024)
    assert torch.equal(fx.GraphModule(planned, graph)(x), (x.exp() + x.sin()).cos())


def test_copies_run_as_the_program_does():
    module, plan, args = layers()
    planned = plan.apply()
    wanted = run(module, args)[0]
    assert run(copy.deepcopy(planned), args)[0] == wanted and run(planned, args)[0] == wanted


def test_a_program_on_another_device_has_its_arena_there():
    plan = memory_plan(exported(lambda x: (x.exp() + x.sin()).cos(), X), arena=True)
    assert plan.arena and plan.apply()(X.to("meta")).device.type == "meta"


def test_a_model_that_was_converted_is_refused():
    _, plan, args = layers()
    with pytest.raises(PlanMismatch, match="0.weight has dtype torch.float16, but the program was planned for"):
        plan.apply().half()(args[0])


@pytest.mark.parametrize(
    "x", [torch.randn(16, 64), torch.randn(32, 64).double(), torch.randn(64)], ids=["smaller", "double", "flat"]
)
def test_an_input_of_another_kind_is_refused(x):
    _, plan, _ = layers()
    with pytest.raises(InputMismatch):
        plan.apply()(x)


def test_an_input_that_requires_a_gradient_is_refused_in_grad_mode():
    module, plan, args = layers()
    x = args[0].clone().requires_grad_()
    with pytest.raises(PlanMismatch, match="requires a gradient") as error:
        plan.apply()(x)
    assert "to do: call it under torch.no_grad()" in str(error.value)
    with torch.no_grad():
        assert torch.equal(plan.apply()(x), module(x))


def test_parameters_that_require_gradients_need_no_mode():
    module, plan, args = layers()
    result = plan.apply()(*args)
    assert not result.requires_grad and torch.equal(result, module(*args))


def test_parameters_are_shared_with_the_program():
    module, plan, args = layers()
    planned = plan.apply()
    with torch.no_grad():
        dict(planned.named_parameters())["0.weight"].add_(1)
        assert torch.equal(planned(*args), module(*args))


W = torch.randn(8, 8)


def test_sizes_that_vary():
    rows = torch.export.Dim("rows", min=2, max=512)
    program = exported(
        lambda x, w: ((x * 2).exp() + 1).softmax(-1).sin() @ (w * 2).exp(),
        torch.randn(4, 8),
        W,
        dynamic_shapes=(({0: rows}, None),),
    )
    plan = memory_plan(program, arena=True)
    assert plan.dynamic and plan.in_place > 2 and plan.arena == 256
    assert all(agrees(plan, program.module(), (torch.randn(n, 8), W)) for n in (2, 4, 300))


def test_buffers_are_written_and_results_drawn_as_before():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(64)

        def forward(self, x):
            y = self.norm(x.exp()).add(1).mul(torch.rand(64))
            return y, torch.cond(y.sum() > 0, lambda y: y.sin() + 1, lambda y: y.cos(), (y,))

    with torch.no_grad():
        program = torch.export.export(Model(), (torch.randn(8, 64),))
    plan = memory_plan(program, arena=True)
    assert plan.in_place and agrees(plan, program.module(), (torch.randn(8, 64),))


def test_memory_that_is_read_by_strides_is_left_alone():
    program = exported(lambda x: torch.as_strided(x.exp() + 1, (4, 4), (1, 2), 3).sin() + (x * 2).sum(), X)
    plan = memory_plan(program, arena=True)
    assert plan.offset("mul") is not None and agrees(plan, program.module(), (torch.randn(1024),))


def test_zero_sizes_and_numbers():
    program = exported(lambda x, n: (x.exp().sin()[:, :0].exp().cos(), x.sum() * n), torch.randn(4, 64), 3)
    assert agrees(memory_plan(program, arena=True), program.module(), (torch.randn(4, 64), 3))
