"""`drop_draws=True`: random draws that nothing reads are left out, and all others stay in their order."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
DRAWS = {torch.ops.aten.rand.default, torch.ops.aten.randn.default}


class Drawing(nn.Module):
    """Two draws that are returned, and four that are not: one in memory of its own, one through a view of it."""

    def forward(self, x):
        torch.empty(3, 4).detach().uniform_(-1, 1)
        first = torch.randn(4)
        torch.rand(()).lt(0.5)
        torch.native_dropout(x.cos(), 0.5, True)
        return x.relu() + first, torch.rand(2)


def lowered(model, **options):
    return decomp.lower(model, to=targets.core_aten, args=(X,), training=False, verify="full", **options).result


def calls(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def test_unread_draws_are_left_out_with_what_only_they_read():
    aten = torch.ops.aten
    assert calls(lowered(Drawing(), drop_draws=True)) == [
        aten.randn.default,
        aten.relu.default,
        aten.add.Tensor,
        aten.rand.default,
    ]


def test_draws_stay_by_default_so_that_a_seed_gives_the_same_numbers():
    program = lowered(Drawing())
    assert sum(target in DRAWS for target in calls(program)) == 4
    torch.manual_seed(0)
    expected = Drawing()(X)
    torch.manual_seed(0)
    torch.testing.assert_close(program(X), expected)


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("noise", torch.zeros(4))

    def forward(self, x):
        self.noise.copy_(torch.rand(4))
        return x + 1


def test_a_draw_that_is_written_to_a_buffer_stays():
    model = Writing()
    program = lowered(model, drop_draws=True)
    program(X)
    assert torch.ops.aten.rand.default in calls(program) and program.noise.ne(0).any()


class Mutating(nn.Module):
    """The draw is read through another view of the memory that it is written to."""

    def forward(self, x):
        memory = torch.zeros(4)
        memory[:2].uniform_(1, 2)
        return x + memory


def test_a_draw_that_is_read_through_other_memory_stays():
    program = lowered(Mutating(), drop_draws=True)
    assert torch.ops.aten.rand.default in calls(program) and (program(X) - X)[:, :2].ge(1).all()


class Chosen(nn.Module):
    def forward(self, x):
        def drawing(x):
            torch.rand(2)
            return x + torch.randn(4)

        return torch.cond(x.sum() > 0, drawing, torch.cos, (x,))


def test_draws_in_the_body_of_a_higher_order_op_are_left_out_too():
    program = lowered(Chosen(), drop_draws=True)
    bodies = [body for _, body in program.named_children()]
    assert sorted(target in DRAWS for body in bodies for target in calls(body)) == [False, False, True]


def test_a_plan_without_unread_draws_does_not_ask_the_target_for_them():
    target = targets.core_aten - {"rand", "native_dropout"}
    with pytest.raises(decomp.NotLowered, match="native_dropout"):
        decomp.lower(Drawing(), to=target, args=(X,))
    blocked = decomp.plan(Drawing(), to=target, args=(X,), drop_draws=True).blockers
    assert [(each.op, each.nodes) for each in blocked] == [("aten.rand", ("rand_1",))]
