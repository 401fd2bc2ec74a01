"""What a rule may not do: each is an error that names the rule, the node, the user's line, and what to do."""

from forms import ATEN, FORMS, KNOWING, TORCH, decomposed, program
import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp.errors import located

torch.set_num_threads(1)

REMEMBERED = torch.zeros(2, 3)


class Model(torch.nn.Module):
    def forward(self, x):
        return F.relu(x)


CODE = Model.forward.__code__
LINE = f'File "{CODE.co_filename}", line {CODE.co_firstlineno + 1}, in forward: return F.relu(x)'
NODES = {
    ATEN: f"  while lowering node 'relu' (call_function aten.relu.default)\n  {LINE}\n",
    TORCH: "  while lowering node 'relu' (call_function torch.nn.functional.relu)\n",
}


def message(rule, form):
    """What is said when `rule` serves `relu` in `Model`."""
    with pytest.raises(decomp.RuleError) as caught:
        decomposed(Model(), {F.relu: rule}, (torch.zeros(2, 3),), form)
    assert caught.value.rule.function is rule and caught.value.node.name == "relu"
    return str(caught.value)


def expected(rule, problem, remedy, form):
    return f"rule {rule.__name__} ({located(rule)}): {problem}\n{NODES.get(form, NODES[TORCH])}  to do: {remedy}"


def writes_an_item(x):
    x[0] = 1.0
    return x


def uses_no_grad(x):
    with torch.no_grad():
        return x * 1


ONCE = "a rule is recorded once for all data: compute with tensors"
NEW = "return a new tensor instead"
ALWAYS = [
    (lambda x: x.add_(1), "mutates a tensor (add_)", "call add and use what it returns"),
    (lambda x: torch.relu_(x), "mutates a tensor (relu_)", "call relu and use what it returns"),
    (lambda x: F.silu(x, inplace=True), "writes into a tensor (silu)", NEW),
    (lambda x: torch.add(x, 1, out=REMEMBERED), "writes into a tensor (add)", NEW),
    (writes_an_item, "writes into a tensor (x[...] = ...)", "use torch.where, slice_scatter or index_put"),
    (lambda x: x if x.sum() > 0 else -x, "branches on data", "use torch.where, or branch on shapes and dtypes"),
    (lambda x: x * x.sum().item(), "reads data (item)", ONCE),
    (lambda x: x.tolist(), "reads data (tolist)", ONCE),
    (lambda x: x * float(x.sum()), "reads data as a Python number", ONCE),
    (lambda x: x[int(x.sum())], "reads data as a Python number", ONCE),
    (lambda x: x.colour, "uses the unknown attribute 'colour'", "tensors have no such attribute or method"),
    (lambda x: x.paint(3), "uses the unknown attribute 'paint'", "tensors have no such attribute or method"),
    (lambda x: x.data * 1, "uses .data", "use .detach(); gradients are not seen by rules"),
    (lambda x: x if x.requires_grad else -x, "asks for requires_grad",
     "a rule serves values with and without gradient alike"),
    (lambda x: None, "returned None, the op returns a tensor", "return torch.full(shape, value, ...)"),
    (lambda x: 3.0, "returned 3.0, the op returns a tensor", "return torch.full(shape, value, ...)"),
    (lambda x: (x, x), "returned (arg0, arg0), the op returns a tensor", "return torch.full(shape, value, ...)"),
    (lambda x: [1, 2][5], "failed with IndexError: list index out of range",
     "run the rule on tensors of these shapes to see where"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule, problem, remedy", ALWAYS, ids=range(len(ALWAYS)))
def test_what_a_rule_may_not_do(rule, problem, remedy, form):
    assert message(rule, form) == expected(rule, problem, remedy, form)


WITH_METADATA = [
    (lambda x: x.sum(0), "returned shape [3], the op gives [2, 3]", "return the op's own shape"),
    (lambda x: x.double(), "returned dtype torch.float64, the op gives torch.float32", "return the op's own dtype"),
    (lambda x: x.to("meta"), "returned device meta, the op gives cpu", "return the op's own device"),
]


@pytest.mark.parametrize("form", KNOWING)
@pytest.mark.parametrize("rule, problem, remedy", WITH_METADATA, ids=["shape", "dtype", "device"])
def test_a_result_of_another_kind_than_the_op_s(rule, problem, remedy, form):
    assert message(rule, form) == expected(rule, problem, remedy, form)


@pytest.mark.parametrize("form", KNOWING)
def test_one_result_where_the_op_has_two(form):
    def largest(x, dim, keepdim=False):
        return x.sum(dim)

    with pytest.raises(decomp.RuleError) as caught:
        decomposed(lambda x: torch.max(x, 1)[0], {torch.max: largest}, (torch.zeros(2, 3),), form)
    assert caught.value.problem == "returned one value, the op returns 2 values"
    assert caught.value.remedy == "return a tuple in the op's order"


@pytest.mark.parametrize("form", [ATEN, TORCH, KNOWING[1]])
def test_switching_gradients_off(form):
    text = message(uses_no_grad, form)
    assert text == expected(uses_no_grad, "switches gradients on or off", "use .detach() on what has no gradient", form)


@pytest.mark.parametrize("form", FORMS)
def test_a_circle_of_rules_is_shown(form):
    rules = {F.relu: lambda x: F.gelu(x), F.gelu: lambda x: F.silu(x), F.silu: lambda x: F.relu(x)}
    with pytest.raises(decomp.RuleCycle) as caught:
        decomposed(Model(), rules, (torch.zeros(2, 3),), form)
    assert caught.value.problem == "is part of a circle: aten.relu → aten.gelu → aten.silu → aten.relu"
    assert caught.value.remedy == "drop one of these rules, or let it emit other ops"


@pytest.mark.parametrize("form", FORMS)
def test_a_rule_that_no_call_can_match_is_refused_at_once(form):
    def relu(x, slope, other):
        return x

    with pytest.raises(decomp.RuleError) as caught:
        decomp.Rules({F.relu: relu})
    assert str(caught.value) == (
        f"rule relu ({located(relu)}): takes (x, slope, other), which matches no call of aten.relu (self)\n"
        "  to do: name the parameters as the op does, and give defaults to those that not every call has"
    )


@pytest.mark.parametrize("form", FORMS)
def test_an_error_in_a_rule_leaves_the_source_as_it_was(form):
    source = program(Model(), (torch.zeros(2, 3),), form)
    before = str(source.graph), [dict(node.meta) for node in source.graph.nodes]
    with pytest.raises(decomp.RuleError):
        decomp.decompose(source, {F.relu: lambda x: x.colour})
    assert (str(source.graph), [dict(node.meta) for node in source.graph.nodes]) == before
