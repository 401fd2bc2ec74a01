"""Measuring a lowering: expansions against the op's own kernel, whole programs against themselves in float64."""

import copy

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp.errors import ArgumentError
from decomp.proof.correspondence import GradientsDiffer, ValuesDiffer
from decomp.validation import values as validation
from decomp.validation.closeness import Allowance, CallReference, compare_with_reference, in_float64
from decomp.validation.operands import off_kinks
from decomp_rules import RULES, targets
from tests.forms import Holder

CHIP = decomp.Target("chip", ["where", "gt", "mul", "neg", "full", "detach", "add", "exp", "sub", "div", "clone"])


def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def lowered(rule, op=F.relu, model=None):
    model = model if model is not None else nn.ReLU()
    return decomp.lower(model, to=CHIP, args=(x(),), rules={op: rule}, verify="values")


def test_measurements_are_reported():
    expansions, program = lowered(lambda x: torch.where(x > 0, x, 0)).proof.checks[-2:]
    assert expansions.startswith(
        "1 of 1 distinct expansions computed and compared with the op's own kernel and float64"
    )
    assert expansions.endswith(
        "gradients of 1 of these, on operands of the program (1), random operands (1), large operands (1), "
        "limits of the dtype (1), operands where branches meet (1)"
    )
    assert program.startswith("the whole program run on the example inputs, against itself in float64: 1 result")


@pytest.mark.parametrize(
    "rule, found",
    [
        (lambda x: -x, "instead of"),
        (lambda x: x * 1.001, "ULP where 256 are promised"),
        (lambda x: torch.where(x > 0, x, 0) + 0.001, "instead of"),
        (lambda x: torch.where(x > 0, x, float("nan")), "gives nan instead of 0"),
    ],
)
def test_a_wrong_rule_is_named(rule, found):
    with pytest.raises(ValuesDiffer, match=found) as caught:
        lowered(rule)
    assert "rule <lambda> (test_values.py:" in str(caught.value) and "for 'relu'" in str(caught.value)


class OverlappingWindows(nn.Module):
    """Windows of a padded image as a view whose elements share memory, merged to one dimension."""

    def forward(self, x):
        windows = F.pad(x, [1, 1, 1, 1]).unfold(2, 6, 4).unfold(3, 6, 4)
        return windows.reshape(2, 4, 4, -1).permute(0, 2, 3, 1) * 2


def test_operands_of_a_run_have_the_strides_that_rules_were_recorded_for():
    given = (torch.randn(1, 8, 8, 8, generator=torch.Generator().manual_seed(0)),)
    program = torch.export.export(OverlappingWindows(), given)
    checks = decomp.lower(program, to=targets.tinygrad, args=given, training=False, verify="values").proof.checks
    assert any("on operands of the program" in check for check in checks)


def test_a_rule_that_is_right_at_the_example_inputs_alone_is_named():
    with pytest.raises(ValuesDiffer, match="on random operands"):
        decomp.lower(nn.ReLU(), to=CHIP, args=(x().abs(),), rules={F.relu: lambda x: x.clone()}, verify="values")


def test_a_rule_that_is_right_for_small_operands_alone_is_named():
    rules = {F.relu: lambda x: x.clamp(0, 6)}
    with pytest.raises(ValuesDiffer, match="gives 6 instead of .* on large operands"):
        decomp.lower(nn.ReLU(), to=CHIP | ["clamp"], args=(x(),), rules=rules, verify="values")


def test_a_lost_gradient_is_named():
    with pytest.raises(GradientsDiffer, match="has other gradients: none where the op has some"):
        lowered(lambda x: torch.where(x > 0, x, 0).detach())


def test_ties_may_share_the_gradient_at_standard_and_not_at_exact():
    """Half of what `relu` gives is 0, so that windows of zeros alone are common."""
    tied = F.relu(torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)) - 1)
    found = decomp.lower(nn.MaxPool2d(2), to=targets.tinygrad, args=(tied,), verify="values")
    assert "gradients of 1 of these" in " ".join(found.proof.checks)
    for rule, accuracy in ((_shared, "exact"), (_to_the_first, "standard")):
        rules = decomp.Rules()
        rules.register(F.max_pool2d)(rule)
        with pytest.raises(GradientsDiffer, match="has other gradients"):
            decomp.lower(
                nn.MaxPool2d(2),
                to=targets.tinygrad,
                args=(tied,),
                rules=rules | RULES,
                accuracy=accuracy,
                verify="values",
            )


def _shared(x, *_):
    return x.reshape(2, 3, 4, 2, 4, 2).amax((3, 5))


def _to_the_first(x, *_):
    """Right values, and all of the gradient to the first element of a window."""
    windows = x.reshape(2, 3, 4, 2, 4, 2)
    first = windows[:, :, :, 0, :, 0]
    return first + (windows.amax((3, 5)) - first).detach()


def test_off_kinks_no_number_is_zero_or_next_to_it():
    (moved,) = off_kinks([torch.tensor([0.0, -0.0, 1e-42, -1e-42, float("inf")])])
    assert (moved.abs() >= torch.finfo(torch.float32).smallest_normal).all()


def test_another_gradient_is_named():
    with pytest.raises(GradientsDiffer, match="has other gradients: gives"):
        lowered(lambda x: torch.where(x > 0, x, 0) + (x - x.detach()) * 0.5)


def test_what_was_measured_once_is_not_measured_again(monkeypatch):
    model, rules = nn.GELU(), decomp.Rules() | RULES
    decomp.lower(model, to=targets.tinygrad, args=(x(),), rules=rules, verify="values")
    monkeypatch.setattr(validation, "_verdict", lambda *args: pytest.fail("measured again"))
    again = decomp.lower(model, to=targets.tinygrad, args=(x(),), rules=rules, verify="values")
    assert again.report().runs == 0 and "1 of 1 distinct expansions" in again.proof.checks[-2]


def test_integers_are_such_as_the_kernel_accepts():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, i):
            return self.table(i).sum(0)

    program = torch.export.export(Model(), (torch.tensor([0, 4, 2, 2, 2, 2, 1]),))
    program._example_inputs = None
    proof = decomp.lower(program, to=targets.tinygrad, verify="values").proof
    assert "1 of 1 distinct expansions computed" in proof.checks[-2]
    assert proof.checks[-1] == "the whole program not run, as there are no example inputs"


def test_random_programs_are_not_compared():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    proof = decomp.lower(model, to=targets.tinygrad, args=(x(),), verify="values").proof
    assert "not computed: random" in proof.checks[-2]
    assert proof.checks[-1] == "the whole program not compared, as it is random"


def test_measuring_touches_nothing_of_the_user():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    given, state, random = x(), copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    decomp.lower(model, to=targets.tinygrad, args=(given,), verify="values")
    assert torch.equal(given, x()) and torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_two_plain_programs_are_compared_by_running_them():
    first, second = nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.Sequential(nn.Linear(4, 4), nn.GELU())
    second.load_state_dict(first.state_dict())
    one, two = fx.symbolic_trace(first), fx.symbolic_trace(second)
    assert decomp.verify(one, two, level="values", args=(x(),)).checks[-1].startswith("the whole program run")
    with torch.no_grad():
        second[0].bias[0] += 0.01
    with pytest.raises(ValuesDiffer, match="result of the lowered program differs"):
        decomp.verify(one, two, level="values", args=(x(),))
    with pytest.raises(ArgumentError, match="pass args="):
        decomp.verify(one, two, level="values")


def test_an_exported_program_is_compared_with_the_module_that_runs_in_an_arena():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    source = torch.export.export(model, (x(),))
    planned = decomp.memory_plan(decomp.lower(source, to=targets.tinygrad, training=False).result).apply()
    with pytest.raises(GradientsDiffer, match=r"of parameter 0.weight; none is required .* requires_grad_\(False\)"):
        decomp.verify(source, planned, level="values", args=(x(),))
    source = torch.export.export(model.requires_grad_(False), (x(),))
    assert "1 result" in decomp.verify(source, planned, level="values", args=(x(),)).checks[-1]
    last = max(i for i, node in enumerate(planned.graph.nodes) if node.target is torch.ops.aten.add.out)
    other = [*planned.graph.nodes][last]
    other.args = (other.args[0], 1.01)  # 1 + 2^t
    planned.recompile()
    with pytest.raises(ValuesDiffer):
        decomp.verify(source, planned, level="values", args=(x(),))


def test_control_flow_is_run_and_can_be_run_afterwards():
    class Model(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, F.gelu, torch.tanh, (x,))

    model = Model()
    proof = decomp.lower(model, to=targets.tinygrad, args=(x(),), verify="values").proof
    assert "1 result" in proof.checks[-1]
    assert model(x()).shape == (3, 4)


def test_a_program_that_cannot_be_trained_is_compared_in_value():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros((), dtype=torch.long))
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            self.n += 1
            return self.linear(x) * self.n

    program = torch.export.export(Counting(), (x(),))
    proof = decomp.lower(program, to=targets.tinygrad, verify="values").proof
    assert "1 result and 1 changed tensor within" in proof.checks[-1] and ", 0 gradients" in proof.checks[-1]


@pytest.mark.parametrize(("found", "wrong"), [("inf", False), ("nan", False), ("-inf", True)])
def test_at_infinity_the_answer_of_the_kernel_and_of_float64_are_both_right(found, wrong):
    truth = CallReference([torch.tensor([float("nan")])], [torch.tensor([float("inf")], dtype=torch.float64)], [])
    assert (
        compare_with_reference([torch.tensor([float(found)])], truth, 4.0, pointwise=True).fault is not None
    ) == wrong


def test_small_results_are_off_at_fast_by_what_a_larger_one_may_be():
    """As certificates count: a formula that cancels in a tail is off by as much as the terms that it adds."""
    args = (torch.linspace(-9, 3, 64),)
    for function in (F.gelu, torch.tanh):
        found = decomp.lower(Holder(function), to=targets.tinygrad, args=args, accuracy="fast", verify="values")
        assert "1 of 1 distinct expansions" in " ".join(found.proof.checks)
    rough = decomp.Rules()
    rough.register("square", level="fast")(lambda x: x * x + 1e-3)
    with pytest.raises(ValuesDiffer, match="ULP where 256 are promised"):
        decomp.lower(Holder(torch.square), to=CHIP, args=args, rules=rough, accuracy="fast", verify="values")
    truth = CallReference([torch.tensor([1e-6])], [torch.tensor([1e-6], dtype=torch.float64)], [])
    for allowed, wrong in ((Allowance(4.0), True), (Allowance(4.0, floor=0.25), False), (Allowance(4, slack=1), False)):
        assert (
            compare_with_reference([torch.tensor([1.05e-6])], truth, allowed, pointwise=True).fault is not None
        ) == wrong
        assert compare_with_reference([torch.tensor([1.05e-6])], truth, allowed, pointwise=False).fault is not None
        assert compare_with_reference([torch.tensor([1e-3])], truth, allowed, pointwise=True).fault is not None


def test_where_float64_cancels_to_zero_a_result_may_be_what_it_lost():
    gelu = Holder(lambda x: F.gelu(x, approximate="tanh"))
    decomp.lower(gelu, to=targets.tinygrad, args=(torch.linspace(-10, 3, 64),), verify="values")
    zero = [torch.zeros(2)], [torch.zeros(2, dtype=torch.float64)], []
    truth = CallReference(*zero, [torch.tensor([-9.0, 0.0])])
    for found, wrong in (([-1e-15, 0.0], False), ([-1e-14, 0.0], True), ([0.0, 1e-15], True)):
        assert (compare_with_reference([torch.tensor(found)], truth, 4.0, pointwise=True).fault is not None) == wrong
    assert (
        compare_with_reference([torch.tensor([-1e-15, 0.0])], CallReference(*zero), 4.0, pointwise=True).fault
        is not None
    )


@pytest.mark.parametrize("args", [(), (1,), (torch.ones(3), torch.ones(3)), (None,)])
def test_inputs_on_which_the_source_does_not_run_are_the_callers(args):
    low = decomp.lower(torch.nn.GELU(), to=targets.core_aten, args=(torch.ones(3),))
    with pytest.raises(decomp.errors.ArgumentError, match="the source does not run on the inputs given"):
        decomp.verify(torch.nn.GELU(), low, level="values", args=args)


@pytest.mark.parametrize("function", [torch.special.i1, torch.special.i1e, torch.digamma, torch.exp, torch.sinc])
def test_functions_of_integers_are_compared_with_float64(function):
    found = decomp.lower(Holder(function), to=targets.tinygrad, args=(torch.arange(-8, 9),), verify="values")
    assert "1 of 1 distinct expansions" in " ".join(found.proof.checks)


def test_the_reference_of_integers_is_rounded_as_the_call_rounds_them():
    large = torch.tensor([2**24 + 1])
    reference, reals = in_float64(lambda operands: [operands[0] / 1], [large])
    assert reference[0].dtype is torch.float64 and reference[0].item() == 2**24 and reals[0].dtype is torch.float32
    weight = torch.randn(3, 2)
    assert in_float64(lambda operands: [weight[operands[0]]], [torch.tensor([1])])[0][0].dtype is torch.float32


def test_a_wrong_rule_for_integers_is_named():
    rules = {torch.exp: lambda x: torch.exp2(x.to(torch.float32) * 1.4427)}
    with pytest.raises(ValuesDiffer, match="ULP where 256 are promised"):
        decomp.lower(
            Holder(torch.exp),
            to=decomp.Target("exp2", ["exp2", "mul", "to"]),
            args=(torch.arange(-8, 9),),
            rules=rules,
            verify="values",
        )


def test_a_gradient_that_cancels_to_rounding_errors_is_none():
    for seed in range(3):
        x = torch.randn(1, 4, generator=torch.Generator().manual_seed(seed))
        model = Holder(lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]))
        for accuracy in ("exact", "standard"):
            decomp.lower(model, to=targets.onnx, args=(x,), accuracy=accuracy, verify="values")
    for size, exact, wrong in ((0.1, 1e-20, True), (2.0, 1e-20, False), (2.0, 1e-10, True)):
        truth = CallReference([torch.zeros(2)], [torch.full((2,), exact, dtype=torch.float64)], [], noise=[size])
        assert (
            compare_with_reference([torch.tensor([1e-6, 0.0])], truth, 4.0, pointwise=False).fault is not None
        ) == wrong


def test_a_gradient_of_one_element_that_is_zero_is_none():
    x = torch.randn(3, 1, generator=torch.Generator().manual_seed(0))
    for function in (F.log_softmax, F.softmax):
        model = Holder(lambda x: function(x, 1))
        for target in (targets.luminal, targets.tinygrad):
            decomp.lower(model, to=target, args=(x,), accuracy="exact", verify="values")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_memory_that_is_not_written_yet_is_not_compared(dtype):
    """A rule fills it with anything, here with ones."""
    rules = decomp.Rules()
    rules.register(torch.ops.aten.empty_like)(lambda x, **_: torch.ops.aten.full.default(x.shape, 1, dtype=x.dtype))
    target = decomp.Target("chip", ["full", "full_like", "fill", "add"])
    program = torch.export.export(
        Holder(lambda x: torch.empty_like(x).fill_(2) + x), (torch.full((64,), 3, dtype=dtype),)
    )
    proof = decomp.lower(program, to=target, rules=rules, verify="values").proof
    assert any("1 not computed: uninitialised memory" in check for check in proof.checks)
