"""Two programs run on the same inputs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.proof.correspondence import CaptureDiffers, GradientsDiffer, ValuesDiffer
from decomp.validation.whole_programs import whole_programs
from decomp_rules import targets
from tests.forms import Holder


def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Faint(nn.Module):
    """Its ReLU is given subnormal numbers."""

    def __init__(self, slope=1.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1e-40))
        self.slope = slope

    def forward(self, x):
        return F.relu(x * self.scale) * 1e30 * self.slope + x


@pytest.mark.parametrize("accuracy", ["exact", "standard", "fast"])
def test_gradients_at_subnormal_numbers_are_judged_by_what_the_level_promises(accuracy):
    given = x().requires_grad_()
    lowering = decomp.lower(Faint(), to=targets.tinygrad, args=(given,), accuracy=accuracy, verify="values")
    told = "which differ where subnormal numbers are flushed to 0: no more is promised there"
    assert lowering.proof.checks[-1].endswith(told) is (accuracy != "exact")


def test_another_program_is_seen_at_subnormal_numbers_too():
    given = (x().requires_grad_(),)
    assert "2 gradients within" in whole_programs(Faint(), Faint(), given, {}, subnormals=False)
    with pytest.raises(GradientsDiffer):
        whole_programs(Faint(), Faint(1000.0), given, {}, subnormals=False)


class Tied(nn.Module):
    def __init__(self, order=("first", "second"), weight=None):
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(4, 4, bias=False))
        self.first.weight = self.second.weight = nn.Parameter(torch.ones(4, 4)) if weight is None else weight

    def forward(self, x):
        return self.second(self.first(x))


def test_a_parameter_of_several_names_is_the_same_whichever_comes_first():
    source = Tied()
    other = Tied(("second", "first"), source.first.weight)
    assert next(iter(dict(source.named_parameters()))) != next(iter(dict(other.named_parameters())))
    assert "1 gradient within" in whole_programs(source, other, (x(),), {})
    other.first.weight = nn.Parameter(torch.ones(4, 4))  # half of the gradient is another parameter's now
    with pytest.raises(GradientsDiffer, match="parameter first.weight of the lowered program differs"):
        whole_programs(source, other, (x(),), {})


def both(x):
    """A result that requires a gradient, which is zero everywhere, and one that requires none."""
    return x.sign(), x.detach() * 2, x.argmax()


def without(x):
    return x.detach().sign(), x.detach() * 2, x.argmax()


def more(x):
    return x.sign(), x.detach() * 2 + x.sign() * 0, x.argmax()


@pytest.mark.parametrize(
    ("lowered", "problem"),
    [
        (without, "result[0] requires no gradient in the lowered program, and one in the source"),
        (more, "result[1] requires a gradient in the lowered program, and none in the source"),
    ],
)
def test_which_results_require_a_gradient_is_compared(lowered, problem):
    given = (x().requires_grad_(),)
    assert "1 gradient within 0" in whole_programs(Holder(both), Holder(both), given, {})
    with pytest.raises(GradientsDiffer) as error:
        whole_programs(Holder(both), Holder(lowered), given, {})
    assert str(error.value).startswith(problem)
    whole_programs(Holder(both), Holder(lowered), given, {}, gradients=False)


def test_a_rule_that_loses_the_requirement_is_found():
    """A target that has no op by which it could be restored."""
    rules, given = decomp.Rules(), (x().requires_grad_(),)

    @rules.register(torch.sign)
    def sign(x):
        x = x.detach()
        return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)

    target = decomp.Target("chip", ["gt", "lt", "sub", "to", "where", "detach"])
    how = {"to": target, "args": given, "rules": rules}
    decomp.lower(Holder(torch.sign), **how)
    with pytest.raises(GradientsDiffer, match="^result requires no gradient in the lowered program"):
        decomp.lower(Holder(torch.sign), **how, verify="values")


@pytest.mark.each_row
@pytest.mark.parametrize(
    "call",
    [
        lambda a: torch.ops.aten._linalg_det(a),
        lambda a: torch.ops.aten._linalg_slogdet(a),
        lambda a: torch.ops.aten._linalg_solve_ex(a, a),
        lambda a: torch.ops.aten._weight_norm_interface(a, a.sum(1, keepdim=True)),
        lambda a: torch.ops.aten.rrelu_with_noise_functional(a, a * 2),
    ],
)
def test_results_that_an_op_only_saves_for_its_backward_require_no_gradient(call):
    given = x()[:, :3].clone(memory_format=torch.contiguous_format).requires_grad_()
    lowered = decomp.lower(Holder(call), to=targets.tinygrad, args=(given,), verify="values").result
    assert [each.requires_grad for each in lowered(given)] == [each.requires_grad for each in call(given)]


class Moved(nn.Module):
    """It moves numbers in floats of a byte, and returns such."""

    def forward(self, x, pairs):
        pairs = pairs.view(torch.float4_e2m1fn_x2)
        return *(torch.cat((x, x)).to(dtype) for dtype in FLOAT8), torch.stack((pairs, pairs))


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)


def test_results_in_floats_of_a_byte_are_compared():
    given = (x().abs() + 1, torch.randint(256, (2, 4), dtype=torch.uint8))
    lowering = decomp.lower(Moved(), to=targets.tinygrad, args=given, verify="values")
    assert "4 results within 0 (the source: 0" in lowering.proof.checks[-1]


@pytest.mark.parametrize("dtype", [*FLOAT8, torch.float4_e2m1fn_x2])
def test_another_number_in_floats_of_a_byte_is_seen(dtype):
    class Number(nn.Module):
        def __init__(self, byte):
            super().__init__()
            self.byte = byte

        def forward(self, x):
            return (x * 0 + self.byte).to(torch.uint8).view(dtype)

    message = "result" if dtype != torch.float4_e2m1fn_x2 else "gives 85 instead of 17"
    with pytest.raises(ValuesDiffer, match=message):
        whole_programs(Number(17), Number(85), (torch.ones(3),), {}, promise=1.0, gradients=False)
    whole_programs(Number(17), Number(17), (torch.ones(3),), {}, promise=1.0, gradients=False)


class Diverging(nn.Module):
    """A model that computes something else while it is exported, before an activation."""

    def __init__(self, activation):
        super().__init__()
        self.activation = activation

    def forward(self, x):
        return self.activation(-x if torch.compiler.is_exporting() else x)


ACTIVATIONS = (nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Mish(), nn.Softplus(), nn.LogSoftmax(-1), nn.LayerNorm(4))


@pytest.mark.parametrize("target", ["tinygrad", "luminal", "core_aten"])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_an_error_in_the_tail_of_an_op_allows_none_elsewhere(activation, target):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    model = Diverging(activation)
    with pytest.raises(CaptureDiffers):
        decomp.lower(model, to=getattr(targets, target), args=(x,), verify="values")


class UsedTwice(nn.Module):
    """One layer by two paths, and weights that two more layers share."""

    def __init__(self):
        super().__init__()
        layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.layers, self.tied = nn.Sequential(layer, nn.ReLU(), layer), Tied()

    def forward(self, x):
        return self.tied(self.layers(x))


class UsedOnce(nn.Module):
    """A batch normalization, whose buffers are written in training."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


VERBS = {
    "lower": lambda model: decomp.lower(model, to=targets.core_aten, args=(x(),), verify="values"),
    "decompose": lambda model: decomp.decompose(model, {F.relu: lambda x: x * (x > 0)}, args=(x(),), verify="values"),
    "refold": lambda model: decomp.refold(model, args=(x(),), verify="values"),
    "simplify": lambda model: decomp.simplify(model, args=(x(),)),
    "budget": lambda model: decomp.budget(model, to=targets.tinygrad, args=(x(),)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", [UsedTwice, UsedOnce])
@pytest.mark.parametrize("verb", VERBS)
def test_the_model_keeps_its_state(verb, model, training):
    model = model().train(training)
    tensors = {name: (each, each.clone()) for name, each in (*model.named_parameters(), *model.named_buffers())}
    VERBS[verb](model)
    for name, each in (*model.named_parameters(), *model.named_buffers()):
        own, value = tensors[name]
        assert each is own and torch.equal(each, value), name
