"""Programs whose sizes, or whose numbers, are known only when they run: lowered and right, or refused with the reason;
never an error of torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp_rules import targets

ROWS = torch.arange(24.0).reshape(8, 3) / 10 - 1
MASK = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0], dtype=torch.bool)
EDGES = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 1]])


class Program(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def views_written(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = x[mask].t()
    rows[0] = 1.0
    rows[:,] = rows * 2
    total = torch.cumsum(rows, -1)
    total[..., -1:] = rows[..., :1]
    return total.sum(1)


def attended(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = x[mask][None]
    torch._check(rows.shape[1] != 0)  # the export of attention asks it from torch 2.14 on
    return F.scaled_dot_product_attention(rows, rows, rows)


def written_where(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[mask] = y[mask] * 2
    return F.softmax(y[mask], 0)


def durations(x: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
    """VITS's expansion of phonemes to frames."""
    total = frames.sum().item()
    torch._check(total >= 1)
    torch._check(total <= 64)
    ends = torch.cumsum(frames, 0)
    path = (torch.arange(total)[:, None] < ends[None]).float()
    path = path - F.pad(path, (1, 0))[:, :-1]
    return torch.tanh(F.conv1d((path @ x).t()[None], torch.ones(2, 3, 3), padding=1))


def messages(x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
    edges = torch.nonzero(adjacency)
    scores = F.leaky_relu((x[edges[:, 0]] * x[edges[:, 1]]).sum(-1)).exp()
    total = torch.zeros(3).index_add(0, edges[:, 1], scores) + 1e-6
    weights = (scores / total[edges[:, 1]])[:, None]
    return torch.zeros_like(x).scatter_add_(0, edges[:, 1:].expand(-1, 3), weights * x[edges[:, 0]])


def first_rows_doubled(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    n = count.item()
    torch._check(n >= 0)
    torch._check(n < 8)
    y = x.clone()
    y.narrow(0, 0, n).mul_(2.0)
    return y


WHOLE = {
    views_written: (ROWS, MASK),
    attended: (ROWS, MASK),
    written_where: (ROWS, MASK),
    durations: (ROWS, torch.tensor([1, 2, 0, 3, 1, 0, 2, 1])),
    messages: (ROWS[:3], EDGES),
    first_rows_doubled: (ROWS, torch.tensor(3)),
}
LOOKS_UP = targets.tinygrad | ["index.Tensor", "nonzero", "slice_scatter"]
"""A target that finds rows, takes them and puts them back, and has primitives for all else."""


@pytest.fixture
def sizes_captured():
    config = torch._dynamo.config
    with config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        torch.compiler.reset()
        yield
        torch.compiler.reset()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", [targets.core_aten, LOOKS_UP], ids=["core_aten", "tinygrad that looks up"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_sizes_that_data_decide_are_lowered(function: Any, target: decomp.Target) -> None:
    args, model = WHOLE[function], Program(function)
    source = torch.export.export(model, args, strict=False)
    low = decomp.lower(source, to=target)
    torch.testing.assert_close(low.result.module()(*args), model(*args))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [views_written, attended, written_where, messages], ids=lambda f: f.__name__)
def test_they_are_inside_torch_compile(function: Any, sizes_captured: None) -> None:
    args, model = WHOLE[function], Program(function)
    compiled = torch.compile(model, backend=decomp.backend(to=targets.core_aten), fullgraph=True)
    torch.testing.assert_close(compiled(*args), model(*args))


def test_what_a_target_cannot_do_with_them_is_refused_with_the_reason() -> None:
    source = torch.export.export(Program(attended), (ROWS, MASK), strict=False)
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(source, to=targets.tinygrad)
    (blocker,) = caught.value.blockers
    assert blocker.op == "aten.index" and blocker.limitation == "the shape of the result depends on data"


def by_a_number_that_is_data(x: torch.Tensor) -> torch.Tensor:
    count = torch.div(x.size(0), 2, rounding_mode="trunc")
    y = (x + 0).view(count, 2, 3)
    y[0] = 0.0
    return torch.flatten(y, count - 4, count - 3)


@pytest.mark.parametrize("target", ["core_aten", "tinygrad", "luminal"])
def test_a_tensor_in_place_of_a_number_is_understood(target: str) -> None:
    torch.compiler.reset()
    model = Program(by_a_number_that_is_data)
    compiled = torch.compile(model, backend=decomp.backend(to=getattr(targets, target)))
    torch.testing.assert_close(compiled(ROWS), model(ROWS))


def test_a_rule_is_not_asked_about_a_number_that_only_the_running_program_has() -> None:
    def flat(x: torch.Tensor) -> torch.Tensor:
        last = torch.div(x.size(0), 8, rounding_mode="trunc")
        return torch.flatten(x, last - 1, last)

    traced = fx.symbolic_trace(flat)
    low = decomp.lower(traced, to=targets.core_aten, args=(ROWS,), partial=True)
    (blocker,) = low.blockers
    reasons = dict(blocker.tried)
    assert "takes a number, and gets a tensor, whose value is only known at run time" in reasons.values()
    assert torch.equal(low.result(ROWS), ROWS.flatten())


OPEN = ", which is undecided: it depends on a size or value that is known only at run time"


def positive(call: Any) -> bool:
    return min(call.argument("pad")) >= 0


def filled(count: torch.Tensor) -> torch.Tensor:
    n = count.item()
    torch._check(n >= 2)
    return torch.full((n,), 1.0)


@pytest.mark.parametrize("least, met", [(2, True), (4, False)])
def test_a_condition_that_data_decide_is_not_met_and_says_so(least: int, met: bool) -> None:
    chip = decomp.Target("chip", ["full"]).legal_if("full", lambda c: c.argument("size")[0] >= least, "long enough")
    source = torch.export.export(Program(filled), (torch.tensor(3),), strict=False)
    blockers = decomp.plan(source, to=chip, rules={}).blockers
    assert [blocker.condition for blocker in blockers] == ([] if met else [f"long enough{OPEN}"])


@pytest.mark.parametrize("asked, met", [(1, True), (5, False)])
def test_a_condition_on_a_dynamic_size_is_met_only_at_every_size_and_adds_no_guard(asked: int, met: bool) -> None:
    chip = decomp.Target("chip", ["relu"]).legal_if("relu", lambda c: c.argument("self").shape[0] >= asked, "rows")
    rows = torch.export.Dim("rows", min=2, max=64)
    source = torch.export.export(Program(torch.relu), (ROWS,), dynamic_shapes=(({0: rows},),))
    env = next(n.meta["val"].shape[0].node.shape_env for n in source.graph.nodes if "val" in n.meta)
    before = len(env.guards)
    blockers = decomp.plan(source, to=chip, rules={}).blockers
    assert len(env.guards) == before
    assert [blocker.condition for blocker in blockers] == ([] if met else [f"rows{OPEN}"])


def test_a_condition_on_what_a_program_does_not_say_is_not_met() -> None:
    chip = decomp.Target("chip", ["constant_pad_nd"]).legal_if("constant_pad_nd", positive, "padding is positive")
    traced = fx.symbolic_trace(lambda x: torch.constant_pad_nd(x, (0, x.dim())))
    (blocker,) = decomp.plan(traced, to=chip, rules={}).blockers
    wanted = "padding is positive, which is undecided: the program has no metadata for an argument; pass args="
    assert blocker.condition == wanted


@pytest.mark.parametrize("function", [lambda x, m: x[m] * 2, lambda x, m: torch.unique(x), lambda x, m: x[m][1:]])
@pytest.mark.parametrize("target", [targets.core_aten, targets.onnx], ids=lambda target: target.name)
def test_a_saved_program_with_sizes_of_a_rule_is_read_again(function, target, tmp_path):
    program = torch.export.export(Program(function), (ROWS, MASK))
    lowered = decomp.lower(program, to=target).result
    torch.export.save(lowered, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    for mask in (MASK, ~MASK):
        assert torch.equal(loaded(ROWS, mask), function(ROWS, mask))


@pytest.mark.parametrize("kind", ["module", "graph"])
def test_a_call_that_torch_cannot_run_on_fake_tensors(kind: str) -> None:
    """PyTorch has no fake kernel for it: the program is exported with the expansion of its rule, and without the node
    that tracing made for the call before it failed."""

    def consecutive(x: torch.Tensor) -> Any:
        return torch.ops.aten.unique_dim_consecutive.default(x, 0, True, True)

    model = Program(consecutive) if kind == "module" else fx.symbolic_trace(consecutive)
    rows = ROWS[[0, 0, 1, 2, 2, 2]]
    lowering = decomp.lower(model, to=targets.core_aten, args=(rows,), verify="values")
    for given in (rows, ROWS[[3, 3, 3, 4, 3, 3]]):
        assert all(map(torch.equal, lowering.result(given), consecutive(given)))
