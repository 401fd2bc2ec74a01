"""The backend for `torch.compile`: dynamic sizes, numbers that vary, autocast, Inductor, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
import copy
import logging
from typing import Any
import unittest
import warnings

import pytest
import torch
from torch import fx, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor import metrics
from torch.nn import functional as F

import decomp
from decomp.capture import dynamo
from decomp_rules import RULES, targets
from tests.installed import NEEDS_COMPILER
from tests.models import KERNEL_CALLS
from tests.pytorch_differences import MASKS_ARE_KEPT

TARGETS = [targets.core_aten, targets.tinygrad]
pytestmark = pytest.mark.usefixtures("fresh_compiler", "seeded")


def of_sizes(x: torch.Tensor) -> torch.Tensor:
    """Uses its own sizes in every way that Dynamo spells."""
    rows = torch.arange(x.shape[0])[:, None] * x
    made = torch.zeros(x.shape) + torch.full(x.size(), 2.0) + x.new_zeros(x.shape) + torch.ones(x.size())
    again = (rows * 2).reshape(x.shape) + (rows * 3).view(x.size()) + torch.broadcast_to(x[:1], x.shape)
    padded = F.pad(x, (0, x.shape[0]))[:, : x.shape[1]]
    return made + again * x.shape[0] ** -0.5 + padded * len(x) + x.sum() / x.numel()


def of_pictures(x: torch.Tensor) -> torch.Tensor:
    pooled = F.adaptive_avg_pool2d(x[None], (2, 2)).sum()
    return F.interpolate(x[None, None], size=x.shape)[0, 0] * pooled


def of_rows(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x).softmax(-1) * x.cumsum(0)


def value_and_gradient(function: Callable[..., Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    out = function(x)
    out.backward(torch.linspace(0.5, 1.5, out.numel()).view(out.shape))
    assert x.grad is not None
    return out.detach(), x.grad


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("function", [of_sizes, of_pictures, of_rows])
def test_sizes_may_vary_from_the_second_call_on(function: Callable[..., Any], target: decomp.Target) -> None:
    compiled = torch.compile(function, backend=decomp.backend(to=target))
    for rows in (8, 6, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(
            value_and_gradient(compiled, x), value_and_gradient(function, x), rtol=1e-5, atol=1e-5
        )


def test_sizes_may_be_quotients_beside_numbers_that_are_guarded() -> None:
    model = nn.Sequential(nn.Conv1d(3, 5, 4, stride=4), nn.Flatten(1), nn.LayerNorm(20))
    compiled = torch.compile(model, backend=decomp.backend(to=targets.tinygrad), dynamic=True)
    x = torch.randn(2, 3, 16)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_slice_needs_no_pad_of_a_width_that_is_a_difference_of_sizes() -> None:
    def means(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool1d(x, 3, 2, 1)

    compiled = torch.compile(means, backend=decomp.backend(to=targets.tinygrad), dynamic=True)
    with unittest.TestCase().assertNoLogs("torch.fx.experimental.symbolic_shapes", logging.WARNING):
        for columns in (7, 8, 4):
            x = torch.randn(3, columns)
            torch.testing.assert_close(value_and_gradient(compiled, x), value_and_gradient(means, x))


def test_nothing_is_recompiled_for_a_third_size() -> None:
    seen = []

    def counting(module: Any, inputs: Any) -> Any:
        seen.append(module)
        return module.forward

    compiled = torch.compile(of_sizes, backend=decomp.backend(to=targets.core_aten, compiler=counting))
    for rows in (8, 6, 5, 7):
        compiled(torch.randn(rows, 4))
    assert len(seen) == 2


def test_a_python_number_may_vary() -> None:
    compiled = torch.compile(lambda x, s: x * s + s, backend=decomp.backend(to=targets.core_aten))
    x = torch.randn(3)
    for number in (2.0, 3.0, 4.5):
        torch.testing.assert_close(compiled(x, number), x * number + number)


def clamped(x: torch.Tensor) -> torch.Tensor:
    """relu, with twice its gradient."""
    return torch.clamp(x, min=0) + x - x.detach()


def with_doubled_gradients() -> Callable[..., Any]:
    return decomp.backend(to=(targets.core_aten | {torch.detach}) - {F.relu}, rules={F.relu: clamped} | RULES)


def test_gradients_are_those_of_the_lowered_ops() -> None:
    x = torch.ones(3)
    wanted, gradient = value_and_gradient(F.relu, x)
    compiled = torch.compile(F.relu, backend=with_doubled_gradients())
    torch.testing.assert_close(value_and_gradient(compiled, x), (wanted, gradient * 2))


def with_a_gradient_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return F.relu(x) * 2


@pytest.mark.parametrize("trained", [False, True])
def test_what_only_gradients_need_is_left_out_where_there_are_none(trained: bool) -> None:
    found: list[fx.GraphModule] = []
    kept = lambda module, inputs: found.append(module) or module.forward
    backend = decomp.backend(to=targets.tinygrad, compiler=kept)
    x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=trained)
    assert torch.compile(F.relu, backend=backend)(x).tolist() == [0.0, 0.0, 2.0]
    assert bool(decomp.calls(found[0], "maximum")) is not trained
    with torch.no_grad():
        y = torch.compile(with_a_gradient_inside, backend=backend)(x)
        assert y.tolist() == [0.0, 0.0, 4.0] and y.requires_grad is trained
    if trained:
        y.sum().backward()
        assert x.grad is not None and x.grad.tolist() == [0.0, 0.0, 2.0]


def of_selected(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x[x.detach() > 0]).sum() * x.shape[0]


def of_number(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x) * (x.detach().sum().item() * 2)


def of_count(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).sum() * (x.detach() > 0).nonzero().shape[0]


@pytest.mark.parametrize("function", [of_selected, of_number, of_count])
def test_gradients_are_those_of_the_lowered_ops_where_sizes_are_data(function: Callable[..., Any]) -> None:
    x = torch.rand(3, 4)
    wanted, gradient = value_and_gradient(function, x)
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, backend=with_doubled_gradients(), fullgraph=True)
        torch.testing.assert_close(value_and_gradient(compiled, x), (wanted, gradient * 2))


def test_running_statistics_share_nothing_with_what_is_normalized() -> None:
    norm = nn.BatchNorm1d(4)
    x, other = torch.randn(3, 4), copy.deepcopy(norm)
    wanted, gradient = value_and_gradient(lambda x: norm(F.relu(x) * torch.arange(3.0)[:, None]), x.abs())
    compiled = torch.compile(lambda x: other(F.relu(x) * torch.arange(3.0)[:, None]), backend=with_doubled_gradients())
    torch.testing.assert_close(value_and_gradient(compiled, x.abs()), (wanted, gradient * 2))
    torch.testing.assert_close(other.state_dict(), norm.state_dict())


def test_a_graph_that_is_lowered_behind_autograd_only_warns_where_gradients_are_wanted() -> None:
    ragged = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    compiled = torch.compile(lambda x: F.gelu(x), backend=decomp.backend(to=targets.core_aten))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compiled(ragged)
    assert not [w for w in seen if "autograd" in str(w.message)]
    with pytest.warns(UserWarning, match="those of PyTorch's ops.*which only autograd unwraps"):
        compiled(ragged.detach().requires_grad_())


def test_an_input_of_several_tensors_is_taken_apart_by_autograd() -> None:
    ragged = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    compiled = torch.compile(lambda x: F.gelu(x), backend=decomp.backend(to=targets.core_aten))
    torch.testing.assert_close(compiled(ragged).values(), F.gelu(ragged.values()))


def test_a_fault_while_a_graph_is_spelled_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "trace_with", lambda *given: {}["fault"])
    compiled, x = torch.compile(F.gelu, backend=decomp.backend(to=targets.core_aten)), torch.randn(3)
    with pytest.warns(UserWarning, match="gradients are lowered from those of PyTorch's ops.*KeyError: 'fault'"):
        torch.testing.assert_close(compiled(x), F.gelu(x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_autocast_around_the_call_casts_as_in_eager(target: decomp.Target) -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Softmax(-1)), torch.randn(3, 4)
    compiled = torch.compile(model, backend=decomp.backend(to=target))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, wanted = compiled(x), model(x)
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02)
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode,
        lambda: torch.device("meta"),
        lambda: torch.overrides.BaseTorchFunctionMode(),
    ],
    ids=["autocast", "inference_mode", "device", "function_mode"],
)
def test_a_lowering_does_not_depend_on_the_modes_around_it(around: Callable[[], Any]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Softmax(-1)), torch.randn(3, 4)
    expected = decomp.lower(model, to=targets.tinygrad, args=(x,)).result
    with around():
        found = decomp.lower(model, to=targets.tinygrad, args=(x,)).result
    assert str(found.graph) == str(expected.graph)
    torch.testing.assert_close(found(x), expected(x))


@pytest.mark.sampled(1)
@NEEDS_COMPILER
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_compiles_what_a_target_keeps(dynamic: bool) -> None:
    model = nn.Sequential(
        nn.Linear(4, 8),
        nn.GELU(),
        nn.LayerNorm(8),
        nn.LeakyReLU(),
        nn.ELU(),
        nn.Hardtanh(),
        nn.ReLU6(),
        nn.GroupNorm(2, 8),
        nn.Softmax(-1),
    )
    compiled = torch.compile(model, backend=decomp.backend(to=targets.core_aten, compiler="inductor"), dynamic=dynamic)
    x = torch.randn(3, 4)
    torch.testing.assert_close(value_and_gradient(compiled, x), value_and_gradient(model, x), rtol=1e-4, atol=1e-5)


def test_bodies_have_constants_of_their_own() -> None:
    def program(x: torch.Tensor) -> Any:
        start = (torch.tensor(0), x.detach())
        return x + torch.while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, a.tanh()), start)[1]

    compiled = torch.compile(program, backend=decomp.backend(to=targets.luminal))
    x = torch.ones(3, 4)
    wanted = x + x.tanh().tanh(), torch.linspace(0.5, 1.5, 12).view(3, 4)
    torch.testing.assert_close(value_and_gradient(compiled, x), wanted)


def test_operands_that_rules_made_one_are_two_to_a_branch() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, torch.add, torch.sub, (F.hardtanh(x, 0.0, 2.0), x))

    rules = decomp.Rules({F.hardtanh: lambda x, min_val, max_val: x}) | RULES
    compiled = torch.compile(program, backend=decomp.backend(to=targets.core_aten - ["hardtanh"], rules=rules))
    x = torch.ones(3)
    torch.testing.assert_close(value_and_gradient(compiled, x), (x + x, torch.linspace(1.0, 3.0, 3)))


@torch.compiler.nested_compile_region
def of_a_region(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return F.gelu(x), (x * 2).sum(), x.detach().exp()


def of_regions(x: torch.Tensor) -> torch.Tensor:
    (one, _, _), (_, total, constant) = of_a_region(x), of_a_region(x * 2)
    return one + total * constant


@pytest.mark.parametrize("compiler", ["eager", pytest.param("inductor", marks=NEEDS_COMPILER)])
def test_a_compile_region_that_is_called_twice_is_trained(compiler: str) -> None:
    compiled = torch.compile(of_regions, backend=decomp.backend(to=targets.core_aten, compiler=compiler))
    x = torch.linspace(-1, 1, 12).view(3, 4)
    torch.testing.assert_close(value_and_gradient(compiled, x), value_and_gradient(of_regions, x))


@NEEDS_COMPILER
def test_inductor_compiles_what_a_target_keeps_in_a_branch() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, F.leaky_relu, torch.sin, (x,))

    compiled = torch.compile(program, backend=decomp.backend(to=targets.core_aten, compiler="inductor"))
    x = torch.ones(3)
    torch.testing.assert_close((compiled(x), compiled(-x)), (x, -x.sin()))


@pytest.mark.sampled(1)
@NEEDS_COMPILER
@pytest.mark.parametrize("function", [F.leaky_relu, torch.sin], ids=["with decompositions", "without"])
def test_inductor_takes_the_constants_of_graphs_that_are_lowered_behind_autograd(function: Callable[..., Any]) -> None:
    def program(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        x.add_(1)  # an input that shares its memory: what Dynamo hands over goes to autograd as it is
        return F.relu(x) * torch.tensor([1.0, -1.0, 2.0]) + function(row)

    rules = decomp.Rules({F.relu: lambda x: x.sigmoid() * torch.tensor([1.0, 2.0, 3.0, 4.0]).view(2, 2)[0, 1]})
    to_inductor = decomp.backend(to=targets.core_aten - {F.relu}, rules=rules | RULES, compiler="inductor")
    x = torch.randn(2, 3)
    after = x + 1
    wanted = after.sigmoid() * 2 * torch.tensor([1.0, -1.0, 2.0]) + function(after[0])
    torch.testing.assert_close(torch.compile(program, backend=to_inductor)(x, x[0]), wanted)


@NEEDS_COMPILER
def test_inductor_writes_into_no_saved_tensor_that_shares_its_memory() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), Means())  # 1 / sqrt is saved twice, once as a view
    compiled = torch.compile(model, backend=decomp.backend(to=targets.tinygrad, compiler="inductor"))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(value_and_gradient(compiled, x), value_and_gradient(model, x), rtol=1e-4, atol=1e-5)


class Means(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(-1, keepdim=True)


def test_inductor_takes_the_mode_and_the_options_of_torch_compile() -> None:
    """By either it is told to call PyTorch's kernels."""
    x = torch.randn(3, 4)
    to_inductor = decomp.backend(to=targets.core_aten, compiler="inductor")
    for given in ({"mode": "lite"}, {"options": KERNEL_CALLS}):
        torch.compiler.reset()
        metrics.reset()
        torch.testing.assert_close(torch.compile(F.gelu, backend=to_inductor, **given)(x), F.gelu(x))
        assert metrics.ir_nodes_pre_fusion > 0 and metrics.generated_kernel_count == 0
    with pytest.raises(BackendCompilerFailed, match="Inductor has no option 'no_such_option'"):
        torch.compile(F.gelu, backend=to_inductor, options={"no_such_option": 1})(torch.randn(2))


def row_of_written(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x[0]


def itself_written(x: torch.Tensor) -> torch.Tensor:
    x[0].mul_(2)
    return x


def turned_written(x: torch.Tensor) -> torch.Tensor:
    x[1:].relu_()
    return x.view(-1).narrow(0, 2, 4)


@pytest.mark.sampled
@pytest.mark.parametrize("function", [row_of_written, itself_written, turned_written])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_output_that_views_a_written_input_stays_a_view(function: Callable[..., Any], dynamic: bool) -> None:
    compiled = torch.compile(function, backend=decomp.backend(to=targets.tinygrad), dynamic=dynamic)
    x = torch.randn(3, 4)
    expected = x.clone()
    function(expected).zero_()
    compiled(x).zero_()
    assert torch.equal(x, expected)


def test_mode_without_inductor_is_refused() -> None:
    compiled = torch.compile(F.gelu, backend=decomp.backend(to=targets.core_aten), mode="reduce-overhead")
    with pytest.raises(BackendCompilerFailed, match="torch.compile was given mode=, which are for Inductor"):
        compiled(torch.randn(3))


def test_a_target_by_name_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="not the name 'tinygrad': pass decomp_rules.targets.tinygrad"):
        decomp.backend(to="tinygrad")


def test_an_unknown_compiler_is_refused_at_once() -> None:
    with pytest.raises(
        decomp.errors.ArgumentError, match="must be 'eager', 'inductor', a Backend or a function, not 'cuda'"
    ):
        decomp.backend(to=targets.tinygrad, compiler="cuda")


def reshaped_in_place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    v = torch.tanh(x)
    w = F.layer_norm(v, (4,))
    v.unsqueeze_(0)
    return w, v


def test_what_a_tensor_was_before_its_shape_changed_in_place_is_known() -> None:
    x = torch.linspace(-1, 1, 12).view(3, 4)
    compiled = torch.compile(reshaped_in_place, backend=decomp.backend(to=targets.tinygrad), fullgraph=True)
    torch.testing.assert_close(compiled(x), reshaped_in_place(x))


@pytest.mark.parametrize("returned", [True, False])
def test_in_place_products_and_sums_which_dynamo_makes_a_prim_of_inductor(returned: bool) -> None:
    def step(weight: torch.Tensor, gradient: torch.Tensor, average: torch.Tensor) -> torch.Tensor | None:
        with torch.no_grad():
            average.mul_(0.9).addcmul_(gradient, gradient, value=0.1)
            weight.addcdiv_(gradient, average.sqrt() + 1e-8, value=-0.1)
        return weight if returned else None

    compiled = torch.compile(step, backend=decomp.backend(to=targets.tinygrad))
    given = [torch.rand(3, 4) for _ in range(3)]
    wanted = [x.clone() for x in given]
    compiled(*given), step(*wanted)
    torch.testing.assert_close(given, wanted)


def test_an_input_and_a_view_of_it_have_sizes_that_can_be_guarded() -> None:
    def function(x: torch.Tensor, turned: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.unfold(0, 2, 2), turned.sum(0)

    to_inductor = decomp.backend(to=targets.core_aten, compiler="inductor")
    compiled = torch.compile(function, backend=to_inductor, options=KERNEL_CALLS)
    for rows in (3, 5, 6):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, x.t()), function(x, x.t()))


@NEEDS_COMPILER
@pytest.mark.filterwarnings("ignore:decomp.backend lowers a graph only after autograd")
def test_inductor_compares_masks_that_are_known() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.scale *= -1.25
            return x.cummax(0)[0]

    compiled = torch.compile(Table(), backend=decomp.backend(to=targets.tinygrad, compiler="inductor"))
    x = torch.randn(1, 2, 4)
    torch.testing.assert_close(value_and_gradient(compiled, x), value_and_gradient(Table(), x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "shape, dynamic", [((3, 4), None), ((3, 3), True), ((3, 3, 4), True), ((3, 4, 3), True)], ids=str
)
def test_branches_whose_gradients_have_different_strides_are_trained(
    shape: tuple[int, ...], dynamic: bool | None
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a.cumprod(0), lambda a: a.cumprod(1), (x,))

    compiled = torch.compile(function, backend=decomp.backend(to=targets.tinygrad), dynamic=dynamic)
    x = torch.rand(shape)
    torch.testing.assert_close(value_and_gradient(compiled, x), value_and_gradient(lambda x: x.cumprod(0), x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [torch.sigmoid, F.silu, F.softplus, lambda x: F.huber_loss(x, 2 * x)])
def test_values_that_inductor_recomputes_are_not_kept_for_the_backward(function: Callable[..., Any]) -> None:
    """Memory that is written and read again costs more than the arithmetic of these."""
    kept: list[int] = []

    def note(value: torch.Tensor) -> torch.Tensor:
        kept.append(value.nbytes)
        return value

    x = torch.randn(64, 64, requires_grad=True)
    to_inductor = decomp.backend(to=targets.tinygrad, compiler="inductor")
    compiled = torch.compile(function, backend=to_inductor, options=KERNEL_CALLS)
    compiled(x)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        compiled(x)
    masks = 2 * x.numel() if MASKS_ARE_KEPT else 0
    assert sum(kept) <= x.nbytes + masks
