"""A rule is ordinary PyTorch: what it may do, in both dialects, with and without metadata."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp.errors import locate_function
from tests.forms import ATEN, TORCH, anywhere, check, decomposed, ops, outcome, same, with_metadata, x
from tests.rewriting import becomes

# Metadata.


@with_metadata
def test_a_rule_reads_shapes_and_dtypes(form):
    def seen(x):
        assert x.shape == (2, 3) and isinstance(x.shape, torch.Size)
        assert x.size() == (2, 3) and x.size(1) == 3 and x.size(-2) == 2
        assert x.dtype is torch.float32 and x.device == torch.device("cpu") and x.layout is torch.strided
        assert x.dim() == x.ndim == x.ndimension() == 2 and x.numel() == x.nelement() == 6
        assert x.stride() == (3, 1) and x.stride(0) == 3 and x.is_contiguous()
        assert len(x) == 2 and x.is_floating_point() and not x.is_complex() and x.is_signed()
        assert x.element_size() == 4 and not x.is_cuda and x.itemsize == 4
        assert torch.finfo(x.dtype).eps < 1 and torch.is_floating_point(x) and torch.numel(x) == 6
        return x * x.shape[0]

    check(F.relu, {F.relu: seen}, form, expected=lambda x: x * 2)


@with_metadata
def test_metadata_of_what_a_rule_computes_is_known_too(form):
    def seen(x):
        y = (x.sum(1, keepdim=True) > 0).to(torch.float64)
        assert y.shape == (2, 1) and y.dtype is torch.float64
        return (y * x).to(x.dtype)

    check(F.relu, {F.relu: seen}, form, expected=lambda x: ((x.sum(1, keepdim=True) > 0).double() * x).float())


@with_metadata
def test_loops_over_dimensions_and_branches_on_metadata(form):
    def total(x):
        for dim in reversed(range(x.dim())):
            x = x.sum(dim) if x.shape[dim] != 1 else x.squeeze(dim)
        return x.float() if x.dtype in (torch.int64, torch.bool) else x

    becomes(lambda x: F.relu(x), lambda x: x + x.sum(1).sum(0), {F.relu: lambda x: x + total(x)}, form)


@with_metadata
def test_a_rule_iterates_over_a_tensor(form):
    def rows(x):
        return torch.stack([row * i for i, row in enumerate(x)])

    check(F.relu, {F.relu: rows}, form, expected=lambda x: torch.stack([x[0] * 0, x[1]]))


@with_metadata
def test_an_operator_between_a_size_and_a_tensor(form):
    check(F.relu, {F.relu: lambda x: x.shape[-1] * x + x.numel()}, form, expected=lambda x: 3 * x + 6)


def test_a_rule_that_needs_metadata_says_that_args_are_needed():
    def relu(x):
        return x * x.shape[0]

    with pytest.raises(decomp.errors.RuleError) as caught:
        decomposed(F.relu, {F.relu: relu}, (x(),), TORCH)
    assert str(caught.value) == (
        f"rule relu ({locate_function(relu)}): needs shape, and the program has no metadata\n"
        "  while lowering node 'relu' (call_function torch.nn.functional.relu)\n"
        "  to do: pass example inputs: args=(...)"
    )


# Results.


@anywhere
def test_several_results_in_the_order_of_the_op(form):
    def max_dim(x, dim, keepdim=False):
        return torch.min(x, dim, keepdim)

    def called(x):
        both = torch.max(x, 1)  # symbolic tracing cannot unpack a tuple
        return both[1], both[0]

    result = check(called, {torch.max: max_dim}, form, expected=lambda x: tuple(reversed(torch.min(x, 1))))
    assert [name for name in ops(result) if name != "getitem"] == ["min"]


@anywhere
def test_several_results_computed_apart(form):
    def split(x, split_size, dim=0):
        return [x[:, :2] + 1, x[:, 2:]]

    def called(x):
        return torch.split(x, 2, 1)[0] * 2

    result = check(called, {torch.split: split}, form, expected=lambda x: (x[:, :2] + 1) * 2)
    assert "split" not in ops(result)


@anywhere
def test_returning_an_input_bypasses_the_op(form):
    becomes(lambda x: F.relu(x) + 1, lambda x: x + 1, {F.relu: lambda x: x}, form)


@anywhere
def test_a_bypassed_op_as_the_output_itself(form):
    becomes(lambda x: F.relu(x), lambda x: x, {F.relu: lambda x: x}, form)


@anywhere
def test_a_chain_of_bypasses(form):
    rules = {F.relu: lambda x: x, torch.tanh: lambda x: x}
    becomes(lambda x: F.relu(torch.tanh(F.relu(x))), lambda x: x, rules, form)


@anywhere
def test_returning_a_constant(form):
    constant = torch.arange(6.0).reshape(2, 3)
    result = check(lambda x: F.relu(x) + 1, {F.relu: lambda x: constant}, form, expected=lambda x: constant + 1)
    assert ops(result) == ["add"]


@with_metadata
def test_factories(form):
    def relu(x):
        zero = torch.full((), 0.0, dtype=x.dtype, device=x.device)
        ramp = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
        return torch.maximum(x, zero) + ramp * 0 + torch.zeros(x.shape, dtype=x.dtype, device=x.device)

    result = check(F.relu, {F.relu: relu}, form)
    assert {"full", "arange", "zeros", "maximum"} <= set(ops(result))


def test_complex_numbers_that_are_not_finite_can_be_written_as_code():
    def nowhere(x):
        filled = torch.full(x.shape, complex(float("nan"), float("inf")), dtype=torch.complex64)
        return torch.real(filled) + torch.real(torch.abs(x) * complex(float("inf"), 1.0))

    check(torch.sinc, {torch.sinc: nowhere}, ATEN, expected=nowhere)


def test_factories_of_known_size_need_no_metadata():
    rules = {F.relu: lambda x: torch.maximum(x, torch.full((), 0.0)) + torch.zeros(3)}
    result = check(F.relu, rules, TORCH)
    assert ops(result) == ["full", "maximum", "zeros", "add"]


@anywhere
def test_tensors_captured_from_outside_become_shared_constants(form):
    weight = torch.tensor([1.0, 2.0, 3.0])
    becomes(lambda x: F.relu(F.relu(x) + 1), lambda x: (x - weight + 1) - weight, {F.relu: lambda x: x - weight}, form)


@anywhere
def test_a_parameter_captured_from_outside_gets_its_gradient(form):
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    result = decomposed(F.relu, {F.relu: lambda x: x * weight}, (x(),), form)
    outcome(result, x()).sum().backward()
    assert same(weight.grad, x().sum(0))


# Rules that call other rules, and alternatives.


@anywhere
def test_calls_of_ops_that_have_rules_are_lowered_in_turn(form):
    rules = decomp.Rules(
        {
            F.gelu: lambda x: F.silu(x) * 2,
            F.silu: lambda x: x * torch.sigmoid(x),
            torch.sigmoid: lambda x: 1 / (1 + torch.exp(-x)),
        }
    )
    result = check(lambda x: F.gelu(x), rules, form, expected=lambda x: x * (1 / (1 + torch.exp(-x))) * 2)
    assert ops(result) in (
        ["neg", "exp", "add", "div", "mul", "mul"],
        ["neg", "exp", "add", "reciprocal", "mul", "mul", "mul"],
    )


@anywhere
def test_a_python_helper_and_recursion_inside_a_rule(form):
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    becomes(lambda x: F.relu(x), lambda x: x * (x * (x * x)), {F.relu: lambda x: power(x, 4)}, form)


@anywhere
def test_after_a_decline_the_next_alternative_is_asked(form):
    def never(x):
        return decomp.decline("only on Sundays")

    becomes(lambda x: F.relu(x), lambda x: x.clamp(min=0), {F.relu: [never, lambda x: x.clamp(min=0)]}, form)


@anywhere
def test_if_every_alternative_declines_the_call_stays(form):
    becomes(lambda x: F.relu(x), lambda x: F.relu(x), {F.relu: lambda x: decomp.decline("only on Sundays")}, form)


@anywhere
def test_alternatives_are_asked_in_order_of_registration(form):
    asked = []

    def first(x):
        asked.append("first")
        return x.clamp(min=0)

    def second(x):
        asked.append("second")
        return torch.maximum(x, x * 0.0)

    rules = decomp.Rules()
    rules.register(F.relu)(first)
    rules.register("relu")(second)
    becomes(lambda x: F.relu(x), lambda x: x.clamp(min=0), rules, form)
    assert asked == ["first"]
    becomes(lambda x: F.relu(x), lambda x: torch.maximum(x, x * 0.0), rules - decomp.Rules({F.relu: first}), form)


# Wrapping, bypassing, substituting.


@anywhere
def test_wrap_inserting_after(form):
    becomes(lambda x: F.relu(x) + 1, lambda x: F.relu(x).clone() + 1, {F.relu: lambda x: F.relu(x).clone()}, form)


@anywhere
def test_wrap_inserting_before(form):
    becomes(lambda x: F.relu(x) + 1, lambda x: F.relu(x * 1) + 1, {F.relu: lambda x: F.relu(x * 1)}, form)


@anywhere
def test_wrap_twice_in_one_program(form):
    rules = {F.relu: lambda x: F.relu(x).clone()}
    becomes(lambda x: F.relu(F.relu(x) - 1), lambda x: F.relu(F.relu(x).clone() - 1).clone(), rules, form)


@anywhere
def test_wrap_in_another_spelling(form):
    rules = {F.relu: lambda x: torch.ops.aten.relu.default(x).clone()}
    becomes(lambda x: x.relu() + 1, lambda x: x.relu().clone() + 1, rules, form)


@anywhere
def test_wrap_checking_for_nan(form):
    def checked(x):
        y = torch.log(x)
        return torch.where(torch.isnan(y), torch.full_like(y, 7.0), y)

    result = decomposed(torch.log, {torch.log: checked}, (x(),), form)
    assert ops(result) == ["log", "isnan", "full_like", "where"]
    assert same(outcome(result, torch.ones(2, 3)), torch.zeros(2, 3))
    assert same(outcome(result, -torch.ones(2, 3)), torch.full((2, 3), 7.0))


LOGGED = []


@torch.library.custom_op("test_rule_features::log", mutates_args=())
def log(x: torch.Tensor, name: str) -> torch.Tensor:
    LOGGED.append((name, tuple(x.shape)))
    return x.clone()


@log.register_fake
def _(x, name):
    return torch.empty_like(x)


@anywhere
def test_wrap_logging_through_a_custom_op(form):
    rules = {F.relu: lambda x: torch.ops.test_rule_features.log(F.relu(x), "relu")}
    result = check(lambda x: F.relu(x) + 1, rules, form)
    assert ops(result) == ["relu", "log", "add"]
    LOGGED.clear()
    outcome(result, x())
    assert LOGGED == [("relu", (2, 3))]


@anywhere
def test_substitute_one_op_for_another(form):
    becomes(lambda x: F.relu(x) + 1, lambda x: F.gelu(x) + 1, {F.relu: F.gelu}, form)


@anywhere
def test_substitute_add_by_mul_as_the_fx_documentation_does(form):
    becomes(lambda x: (x + 3.0) + x, lambda x: (x * 3.0) * x, {torch.add: torch.mul}, form)


@anywhere
def test_swap_two_ops_is_a_cycle(form):
    with pytest.raises(decomp.errors.RuleCycle):
        decomposed(lambda x: F.relu(x), {F.relu: F.gelu, F.gelu: F.relu}, (x(),), form)


# Stamping.


@anywhere
def test_a_rule_runs_once_for_equal_calls(form):
    runs = []

    def relu(x):
        runs.append(1)
        return x.clamp(min=0)

    check(lambda x: F.relu(F.relu(F.relu(x) - 1) - 1), {F.relu: relu}, form)
    assert len(runs) == 1


@with_metadata
def test_a_rule_runs_again_for_another_shape_dtype_or_argument(form):
    seen = []

    def leaky(x, negative_slope=0.01):
        seen.append((tuple(x.shape), x.dtype, negative_slope))
        return torch.where(x > 0, x, x * negative_slope)

    def called(x):
        return F.leaky_relu(x), F.leaky_relu(x[0]), F.leaky_relu(x.double()), F.leaky_relu(x, 0.5), F.leaky_relu(x + 1)

    check(called, {F.leaky_relu: leaky}, form)
    assert len(seen) == len(set(seen)) == 4


@anywhere
def test_the_same_tensor_twice_is_another_signature_than_two_tensors(form):
    def called(x):
        y = x + 1
        return x * x, x * y

    result = decomposed(called, {torch.mul: lambda x, other: x - other * 2.0}, (x(),), form)
    assert same(outcome(result, x()), (x() - x() * 2, x() - (x() + 1) * 2))


@pytest.mark.parametrize(
    ("needs", "known", "expected"),
    [
        (("sin",), ("sin", "abs"), "sin"),
        (("sin",), ("abs",), "abs"),
        (("sin", "cos"), ("sin", "abs"), "abs"),
        ((("cos", "sin"),), ("sin", "abs"), "sin"),
        ((("cos", "sin"), "exp"), ("sin", "abs"), "abs"),
    ],
)
def test_a_rule_that_needs_ops_is_asked_only_for_targets_that_know_them(needs, known, expected):
    rules = decomp.Rules()
    rules.register(F.relu, needs=needs)(lambda x: torch.sin(x))
    rules.register(F.relu)(lambda x: torch.abs(x))
    lowered = decomp.lower(torch.nn.ReLU(), to=decomp.Target("chip", known), rules=rules, args=(x(),)).result
    assert expected in lowered.code


@pytest.mark.parametrize(("known", "expected"), [(("abs", "sin"), "abs"), (("abs", "sin", "cos"), "sin")])
def test_a_rule_is_not_used_on_targets_with_better_ops(known, expected):
    rules = decomp.Rules()
    rules.register(F.relu, unless=["cos", "exp"])(lambda x: torch.abs(x))
    rules.register(F.relu)(lambda x: torch.sin(x))
    lowered = decomp.lower(torch.nn.ReLU(), to=decomp.Target("chip", known), rules=rules, args=(x(),))
    assert expected in lowered.result.code
    alone = decomp.Rules()
    alone.register(F.relu, unless=["cos", "exp"])(lambda x: torch.abs(x))
    if expected == "sin":
        with pytest.raises(decomp.NotLowered, match="is for targets that know no aten.cos or aten.exp"):
            decomp.lower(torch.nn.ReLU(), to=decomp.Target("chip", known), rules=alone, args=(x(),))


@with_metadata
def test_a_rule_may_take_one_of_several_results_of_a_call(form):
    def median(x):
        values, _ = torch.sort(x.flatten())
        return values[(x.numel() - 1) // 2]

    check(lambda x: torch.median(x), {torch.median: median}, form)


def test_every_rule_of_the_library_has_a_telling_name():
    from decomp_rules import RULES

    assert [str(rule) for rule in RULES if rule.name in ("rule", "<lambda>")] == []
    (made,) = [rule for rule in RULES.of(decomp.op("acos")) if rule.location.startswith("primitives")]
    assert made.function.__name__ == "rule" and made.name == "acos"
    named = [rule.name for rule in RULES.of(decomp.op("conv1d"))]
    assert "conv1d_of_complex" in named and len(set(named)) == len(named)
