"""Rules from decomposition tables as PyTorch and its vendors write them: functions by overload, traced once a
signature."""

import pytest
import torch
from torch import nn
from torch._decomp import core_aten_decompositions
from torch.nn import functional as F

import decomp
from decomp import Rules, Target
import decomp_rules
from decomp_rules import targets

aten = torch.ops.aten
X = torch.linspace(-4, 4, 12).reshape(3, 4)
THEIRS = Rules.from_torch(core_aten_decompositions())


def lowered(module, to, rules, *args):
    return decomp.lower(module, to=to, rules=rules, args=args)


@pytest.mark.parametrize("module", [nn.Hardswish(), nn.HuberLoss(), nn.CrossEntropyLoss(), nn.Upsample(scale_factor=2)])
def test_pytorch_s_table_serves_as_rules(module):
    args = {nn.HuberLoss: (X, X * 2), nn.CrossEntropyLoss: (X, torch.tensor([0, 1, 2])), nn.Upsample: (X[None, None],)}
    given = args.get(type(module), (X,))
    low = lowered(module, targets.core_aten, THEIRS, *given)
    torch.testing.assert_close(low.result(*given), module(*given))


def test_it_mixes_with_the_library_whichever_comes_first():
    for rules in (THEIRS | decomp_rules.RULES, decomp_rules.RULES | THEIRS):
        low = lowered(nn.Hardswish(), targets.tinygrad, rules, X)
        torch.testing.assert_close(low.result(X), F.hardswish(X), rtol=3e-7, atol=0)


def test_an_entry_may_mutate_what_it_has_made():
    def silu(x):
        out = torch.zeros_like(x)
        out.add_(x).mul_(torch.sigmoid(x))
        return out

    rules = Rules.from_torch({aten.silu.default: silu})
    low = lowered(nn.SiLU(), Target("chip", ["zeros_like", "full_like", "add", "mul", "sigmoid"]), rules, X)
    torch.testing.assert_close(low.result(X), F.silu(X))


def test_an_entry_may_ask_whether_its_arguments_are_tensors():
    def relu(x):
        assert isinstance(x, torch.Tensor) and torch.is_tensor(x)
        return x.clamp(min=0) if x.is_floating_point() else NotImplemented

    assert torch.equal(
        lowered(nn.ReLU(), Target("chip", ["clamp"]), Rules.from_torch({aten.relu: relu}), X).result(X), F.relu(X)
    )


def test_an_entry_serves_its_own_overload_alone():
    table = {aten.add.Scalar: lambda x, other, alpha=1: torch.sub(x, -other * alpha)}
    add = torch.fx.symbolic_trace(lambda x: x + x)
    with pytest.raises(decomp.NotLowered, match="is for aten.add.Scalar"):
        lowered(add, Target("chip", ["sub"]), Rules.from_torch(table), X)


def test_what_goes_wrong_in_an_entry_is_a_reason_to_ask_the_next():
    def broken(x):
        raise AttributeError("no such thing")

    def refusing(x):
        return NotImplemented

    for function, said in ((broken, "AttributeError: no such thing"), (refusing, "NotImplementedError")):
        rules = Rules.from_torch({aten.relu.default: function})
        with pytest.raises(decomp.NotLowered, match=said):
            lowered(nn.ReLU(), Target("chip", ["maximum"]), rules, X)
        result = lowered(nn.ReLU(), targets.tinygrad, rules | decomp_rules.RULES, X).result
        assert torch.equal(result(X), F.relu(X))


def test_each_entry_is_traced_once_a_signature():
    runs = []

    def relu(x):
        runs.append(x.shape)
        return x.clamp(min=0)

    module = nn.Sequential(*(nn.ReLU() for _ in range(5)))
    lowered(module, Target("chip", ["clamp"]), Rules.from_torch({aten.relu.default: relu}), X)
    assert len(runs) == 1


def test_entries_that_write_into_their_arguments_are_left_out():
    assert not Rules.from_torch({aten.relu_.default: F.relu, aten.relu.out: F.relu})


def test_a_key_that_is_no_op_is_an_error():
    with pytest.raises(decomp.errors.UnknownOp, match="relu"):
        Rules.from_torch({"relu": F.relu})


def test_a_table_passed_as_a_dict_is_refused_with_the_way_to_make_rules_of_it():
    with pytest.raises(
        decomp.errors.RuleError, match=r"decomp\.Rules\.from_torch\(table\), or use the op's parameter names"
    ):
        decomp.lower(nn.Hardswish(), to=targets.core_aten, args=(X,), rules=core_aten_decompositions())
