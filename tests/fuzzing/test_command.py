"""Random programs: decomposing and lowering keeps values, with any writes, and verification passes."""

import operator

from hypothesis import HealthCheck, given, settings, strategies as st
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
import decomp_rules
from tests.forms import module_of

few = settings(derandomize=True, deadline=None, max_examples=15, database=None, suppress_health_check=list(HealthCheck))

PURE = [
    lambda x, y: F.relu(x),
    lambda x, y: x.relu(),
    lambda x, y: x + y,
    lambda x, y: torch.sub(x, y),
    lambda x, y: 1.5 - x,
    lambda x, y: x * 0.5,
    lambda x, y: x.mul(y),
    lambda x, y: torch.tanh(x),
    lambda x, y: x.sigmoid(),
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: torch.maximum(x, y),
    lambda x, y: F.leaky_relu(x, negative_slope=0.25),
    lambda x, y: F.silu(x),
    lambda x, y: F.softmax(x, dim=-1),
    lambda x, y: x - x.mean(-1, keepdim=True),
    lambda x, y: torch.cat([x, y], 0)[:3],
    lambda x, y: torch.stack([x, y], 1)[:, 0],
    lambda x, y: x.transpose(0, 1).transpose(0, 1),
    lambda x, y: x.reshape(-1).reshape(3, 4),
    lambda x, y: torch.clamp(x, -1.0, 1.0),
    lambda x, y: x @ y.t() @ y,
]
SEVERAL = [
    lambda x, y: torch.cat(torch.split(x, 2, 1)[::-1], 1),
    lambda x, y: torch.max(x, 1)[0].unsqueeze(1) + y,
    lambda x, y: torch.cat([x.chunk(2, 1)[1], y.chunk(2, 1)[0]], 1),
    lambda x, y: torch.topk(x, 4, 1)[0],
]
WRITES = [
    lambda x, y: (x * 1.0).relu_(),
    lambda x, y: F.relu(x + 0.0, inplace=True),
    lambda x, y: (x + 0.0).add_(y),
    lambda x, y: operator.imul(x + 0.0, y),
]


def later(x, y):
    """A tensor that is written after it was read, and read again."""
    z = x * 1.0
    before = z + y
    z.mul_(0.5)
    return before - z


def through_a_view(x, y):
    z = x * 1.0
    z[0].copy_(y[1])
    return z + y


STEPS = PURE + SEVERAL + WRITES + [later]
PACKINGS = {
    "tuple": lambda values: tuple(values),
    "list": lambda values: [values[0], [values[-1]]],
    "dict": lambda values: {"last": values[-1], "all": (values[0], {"first": values[0]})},
    "one": lambda values: values[-1],
}


class Program(nn.Module):
    """Straight-line code: each step reads two earlier values; what no output reads is dead."""

    def __init__(self, steps, outputs, packing, writes_input):
        super().__init__()
        self.steps, self.outputs, self.packing, self.writes_input = steps, outputs, packing, writes_input

    def forward(self, x, y):
        values = [x, y]
        for function, one, two in self.steps:
            values.append(function(values[one % len(values)], values[two % len(values)]))
        if self.writes_input:
            y.add_(values[-1])
        return PACKINGS[self.packing]([values[i % len(values)] for i in self.outputs])


def programs(steps):
    index = st.integers(0, 20)
    step = st.tuples(st.sampled_from(steps), index, index)
    return st.builds(
        Program,
        st.lists(step, min_size=1, max_size=8),
        st.lists(index, min_size=1, max_size=3),
        st.sampled_from(sorted(PACKINGS)),
        st.booleans(),
    )


def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)


def check(program, lowered, tolerance):
    """Outputs and inputs afterwards are those of the original."""
    mine, theirs = inputs(), inputs()
    expected, found = program(*mine), module_of(lowered)(*theirs)
    torch.testing.assert_close((found, *theirs), (expected, *mine), rtol=tolerance, atol=tolerance, equal_nan=True)


RULES = decomp.Rules(
    {
        F.relu: lambda x: torch.where(x > 0, x, 0.0),
        F.leaky_relu: lambda x, negative_slope: torch.where(x > 0, x, x * negative_slope),
        F.silu: lambda x: x * torch.sigmoid(x),
        torch.sub: lambda x, other, alpha=1: x + other * -alpha,
        torch.tanh: lambda x: 2 * torch.sigmoid(2 * x) - 1,
        torch.add: lambda x, other, alpha=1: torch.add(x, other, alpha=alpha).clone(),
        torch.maximum: lambda x, other: torch.where(x > other, x, other),
    }
)


@few
@given(programs(STEPS))
def test_traced_programs_decompose(program):
    source = fx.symbolic_trace(program)
    text = str(source.graph)
    check(program, decomp.decompose(source, RULES, verify="full"), 1e-5)
    assert str(source.graph) == text


@few
@given(programs(STEPS))
def test_traced_programs_with_example_inputs_decompose(program):
    source = fx.symbolic_trace(program)
    check(program, decomp.decompose(source, RULES, args=inputs(), verify="full"), 1e-5)


@few
@given(programs(STEPS + [through_a_view]))
def test_exported_programs_decompose(program):
    source = torch.export.export(program, inputs(), strict=False)
    text = str(source.graph)
    check(program, decomp.decompose(source, RULES, verify="full"), 1e-5)
    assert str(source.graph) == text


@few
@given(programs(STEPS + [through_a_view]), st.sampled_from(["tinygrad", "core_aten"]))
def test_exported_programs_lower(program, target):
    source = torch.export.export(program, inputs(), strict=False)
    low = decomp.lower(source, to=getattr(decomp_rules.targets, target), verify="full")
    assert not low.blockers
    check(program, low.result, 1e-4)


@few
@given(programs(STEPS + [through_a_view]))
def test_traced_programs_with_example_inputs_lower(program):
    low = decomp.lower(fx.symbolic_trace(program), to=decomp_rules.targets.tinygrad, args=inputs(), verify="full")
    check(program, low.result, 1e-4)
