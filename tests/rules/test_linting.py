"""The linter: parameters of rules, and of entries of decomposition tables, against the schema of the op."""

import pytest
import torch
from torch._decomp import decomposition_table
from torch.nn import functional as F

import decomp
from decomp import Rules, lint
import decomp_rules

aten = torch.ops.aten


def problems(rules):
    return [finding.problem for finding in lint(rules)]


def test_the_library_is_clean():
    assert [str(finding) for finding in lint(decomp_rules.RULES)] == []


def test_a_parameter_that_the_op_does_not_have_is_found():
    def softplus(x, beta=1, treshold=20):
        return x

    (found,) = lint(Rules({F.softplus: softplus}))
    assert str(found) == (
        f"aten.softplus: softplus (test_linting.py:{softplus.__code__.co_firstlineno}) takes treshold, which the op"
        " does not have (self, beta, threshold)"
    )


def test_another_default_than_the_op_s_is_found():
    rules = Rules({F.softplus: lambda x, beta=2, threshold=20: x})
    assert problems(rules) == ["has beta=2 by default, where the op has 1"]


def test_leading_tensors_may_have_any_name_and_python_s_keywords_an_underscore():
    rules = Rules({"sub": lambda a, b, alpha=1: a, "uniform": lambda x, from_=0, to=1: x})
    assert problems(rules) == []


def test_a_function_that_serves_several_ops_may_take_what_one_of_them_has():
    def pool(x, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        return x

    assert problems(Rules({"avg_pool1d": pool, "avg_pool2d": pool})) == []
    assert problems(Rules({"avg_pool1d": pool})) == [
        "takes divisor_override, which the op does not have (self, kernel_size, stride, padding, ceil_mode,"
        " count_include_pad)"
    ]


def test_what_the_linter_asks_for_is_what_the_binder_does():
    rules = Rules({"uniform": lambda x, from_=0, to=1: x * (to - from_) + from_})
    gm = torch.fx.symbolic_trace(lambda x: torch.ops.aten.uniform.default(x, 2.0, 5.0))
    assert decomp.decompose(gm, rules, verify=False)(torch.ones(2)).tolist() == [5, 5]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda self, weight, target, reduction=1, ignore_index=-100: self, "takes weight where the op has target"),
        (lambda self, target, weight=None, reduction=1: self, "takes no ignore_index, which a call may give"),
        (
            lambda self, target, weight=None, reduction=0, ignore_index=-100: self,
            "has reduction=0 by default, where the op has 1",
        ),
        (
            lambda self, target, weight, reduction=1, ignore_index=-100: self,
            "requires weight, which a call may leave out",
        ),
        (
            lambda self, target, weight=None, reduction=1, ignore_index=-100, *, size: self,
            "requires size, which no call has",
        ),
    ],
)
def test_entries_of_a_table_are_called_by_position(function, problem):
    assert problem in problems({aten.nll_loss.default: function})
    assert problem in problems(Rules.from_torch({aten.nll_loss.default: function}))


def test_pytorch_s_own_table_has_entries_that_cannot_be_right():
    wrong = {finding.op: finding.problem for finding in lint(decomposition_table)}
    assert wrong["aten.nll_loss.default"] == "takes size_average where the op has reduction"
    assert wrong["aten.var.default"] == "takes dim where the op has unbiased"
    assert wrong["aten.add.Scalar"] == "takes no alpha, which a call may give"
    assert "aten.softplus.default" not in wrong


def test_a_key_that_is_no_op_is_an_error():
    with pytest.raises(decomp.errors.UnknownOp):
        lint({"nll_loss": F.nll_loss})
