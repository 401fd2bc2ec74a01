"""Things that a rule must not do: each raises an error that names the rule, the node, the user's line, and a remedy."""

import functools
import linecache
import operator

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp.errors import locate_function
from tests.forms import ATEN, EXAMPLES, FORMS, KNOWING, TORCH, decomposed, outcome, program

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
    """The error when `rule` is used for `relu` in `Model`."""
    with pytest.raises(decomp.errors.RuleError) as caught:
        decomposed(Model(), {F.relu: rule}, (torch.zeros(2, 3),), form)
    assert caught.value.rule.function is rule and caught.value.node.name == "relu"
    assert caught.value.line is None or _line_in(rule, caught.value.line)
    return str(caught.value)


def expected(rule, problem, remedy, form, within=True):
    """The message; `within` says whether it is about a line of the rule, and not about what it returns."""
    line = f"  at {_line_at_fault(rule)}\n" if within else ""
    rule_and_line = f"rule {rule.__name__} ({locate_function(rule)})"
    return f"{rule_and_line}: {problem}\n{line}{NODES.get(form, NODES[TORCH])}  to do: {remedy}"


def _lines(rule):
    code = rule.__code__
    return {n: linecache.getline(code.co_filename, n).strip() for _, _, n in code.co_lines() if n}


def _said(rule, number):
    return f"{rule.__code__.co_filename.rsplit('/', 1)[-1]}:{number}: {_lines(rule)[number]}"


def _line_in(rule, line):
    return line in {_said(rule, number) for number in _lines(rule)}


def _line_at_fault(rule):
    """The line of a rule that is marked as the one at fault, else its first."""
    marked = [number for number, text in _lines(rule).items() if text.endswith("# here")]
    return _said(rule, marked[0] if marked else rule.__code__.co_firstlineno)


def writes_an_item(x):
    x[0] = 1.0  # here
    return x


def uses_no_grad(x):
    with torch.no_grad():  # here
        return x * 1


ONCE = "a rule is recorded once for all data: compute with tensors"
NEW = "return a new tensor instead"


async def coroutine(x):
    return x


ALWAYS = [
    (lambda x: x.add_(1), "mutates a tensor (add_)", "call add and use its result"),
    (lambda x: torch.relu_(x), "mutates a tensor (relu_)", "call relu and use its result"),
    (lambda x: F.silu(x, inplace=True), "writes to a tensor (silu)", NEW),
    (lambda x: torch.add(x, 1, out=REMEMBERED), "writes to a tensor (add)", NEW),
    (writes_an_item, "writes to a tensor (x[...] = ...)", "use torch.where, slice_scatter or index_put"),
    (lambda x: x if x.sum() > 0 else -x, "branches on data", "use torch.where, or branch on shapes and dtypes"),
    (lambda x: x * x.sum().item(), "reads data (item)", ONCE),
    (lambda x: x.tolist(), "reads data (tolist)", ONCE),
    (lambda x: x * float(x.sum()), "reads data as a Python number", ONCE),
    (lambda x: x[int(x.sum())], "reads data as a Python number", ONCE),
    (lambda x: x.colour, "uses the unknown attribute 'colour'", "tensors have no such attribute or method"),
    (lambda x: x.paint(3), "uses the unknown attribute 'paint'", "tensors have no such attribute or method"),
    (lambda x: x.data * 1, "uses .data", "use .detach(); rules do not see gradients"),
    (
        lambda x: x if x.requires_grad else -x,
        "reads requires_grad",
        "a rule is recorded once for values with and without gradients",
    ),
    (
        lambda x: None,
        "returned None, the op returns a tensor",
        'return the tensor; for calls that the rule does not take, return decomp.decline("why")',
    ),
    (lambda x: 3.0, "returned 3.0, the op returns a tensor", "return torch.full(shape, value, ...)"),
    (lambda x: (x, x), "returned (arg0, arg0), the op returns a tensor", "return the tensor alone"),
    (lambda x: [x], "returned (arg0,), the op returns a tensor", "return the tensor alone"),
    (lambda x: (yield x), "returned a generator, the op returns a tensor", "return the tensor, without yield"),
    (coroutine, "returned a coroutine, the op returns a tensor", "write the rule with def, not async def"),
    (lambda x: "x", "returned 'x', the op returns a tensor", "return a tensor"),
    (
        lambda x: [1, 2][5],
        "failed with IndexError: list index out of range",
        "run the rule on tensors of these shapes to see where",
    ),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule, problem, remedy", ALWAYS, ids=range(len(ALWAYS)))
def test_what_a_rule_may_not_do(rule, problem, remedy, form):
    assert message(rule, form) == expected(rule, problem, remedy, form, not problem.startswith("returned"))


class Extremes(torch.nn.Module):
    def forward(self, x):
        return torch.max(x, 1)[0], torch.median(x, 1)[1]


def sorted_max(x, dim, keepdim=False):
    found = torch.sort(x, dim, descending=True)
    return found[0].select(dim, 0), found[1].select(dim, 0)


def sorted_median(x, dim, keepdim=False):
    found, middle = torch.sort(x, dim), 1  # of three elements
    return found[0].select(dim, middle), found[1].select(dim, middle)


@pytest.mark.parametrize("form", FORMS)
def test_a_rule_may_return_two_tensors_if_only_some_overloads_return_one(form):
    x = torch.tensor([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]])
    rules = {torch.max: sorted_max, torch.median: sorted_median}
    found = decomposed(Extremes(), rules, (x,), form)
    assert "sort" in str(found.graph) and "median" not in str([node.target for node in found.graph.nodes])


AUGMENTED = "+= -= *= /= //= %= **= @= &= |= ^= <<= >>=".split()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sign", AUGMENTED)
def test_an_augmented_assignment_writes_into_every_alias(sign, form):
    scope = {}
    exec(compile(f"def rule(x):\n    t = x * 1\n    u = t\n    u {sign} 1\n    return t", "rule.py", "exec"), scope)
    with pytest.raises(decomp.errors.RuleError) as caught:
        decomposed(Model(), {F.relu: scope["rule"]}, (torch.zeros(2, 3),), form)
    assert caught.value.problem == f"mutates a tensor (x {sign} y)"
    assert caught.value.remedy == f"write `x = x {sign[:-1]} y`, which creates a new tensor"
    assert caught.value.line == "rule.py:4"


def deletes_an_item(x):
    del x[0]


def assigns_data(x):
    x.data = x * 2
    return x


def deletes_data(x):
    del x.data


def initializes(x):
    y = x * 1
    return torch.nn.init.zeros_(y)


def writes_into_a_factory_s(x):
    y = torch.ones(3)
    y += 1
    return x * y


def writes_into_a_table(x):
    REMEMBERED.add_(1)
    return x + REMEMBERED


WRITES = [
    deletes_an_item,
    assigns_data,
    deletes_data,
    initializes,
    writes_into_a_factory_s,
    writes_into_a_table,
    lambda x: operator.iadd(x, 1),
    lambda x: operator.ipow(x, 2),
    lambda x: operator.setitem(x, 0, 1.0),
    lambda x: torch.Tensor.add_(x, 1),
    lambda x: torch.Tensor.__iadd__(x, 1),
    lambda x: x.__iadd__(1),
    lambda x: setattr(x, "grad", None),
    lambda x: setattr(x, "requires_grad", True),
    lambda x: x.requires_grad_(),
    lambda x: torch._foreach_add_([x], 1),
    lambda x: torch._foreach_mul_((x, x), [1.0, 2.0]),
    lambda x: F.dropout(x, 0.5, True, True),
    lambda x: F.hardtanh(x, inplace=True),
    lambda x: F.threshold_(x, 0, 1),
    lambda x: torch.dropout_(x, 0.5, True),
    lambda x: x.uniform_(),
    lambda x: x.bernoulli_(0.5),
    lambda x: x.zero_(),
    lambda x: torch.normal(0.0, 1.0, (2, 3), out=x),
    lambda x: torch.nn.init.uniform_(x),
    lambda x: torch.ops.aten.add_.Tensor(x, x),
    lambda x: torch.ops.aten.relu_(x),
    lambda x: x.resize_(6),
    lambda x: torch.ops.aten.add.out(x, x, out=x),
    lambda x: x.t_(),
    lambda x: x.index_fill_(0, x.long(), 1),
    lambda x: torch.nn.ReLU(inplace=True)(x),
    lambda x: x[0].fill_(1),
    lambda x: x.view(-1).copy_(REMEMBERED.view(-1)),
    lambda x: REMEMBERED.__setitem__(0, 1.0),
    lambda x: torch.relu_(REMEMBERED),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", WRITES, ids=range(len(WRITES)))
def test_any_write_in_a_rule_is_refused_with_its_line(rule, form):
    before = REMEMBERED.clone()
    with pytest.raises(decomp.errors.RuleError) as caught:
        decomposed(Model(), {F.relu: rule}, (torch.zeros(2, 3),), form)
    assert caught.value.rule.function is rule and _line_in(rule, caught.value.line) and caught.value.node.name == "relu"
    assert caught.value.problem.startswith(("mutates", "writes", "assigns", "deletes", "switches"))
    assert torch.equal(REMEMBERED, before)


def cached_factory():
    table = functools.lru_cache(lambda n: torch.arange(n) * 0.0)
    return lambda x: torch.maximum(x, table(3))


def cached_value():
    seen = []

    def rule(x):
        seen.append(x * 2)
        return seen[0] + x

    return rule


def cached_alone():
    seen = []

    def rule(x):
        seen.append(x)
        return torch.relu(torch.sin(seen[0]) * 1)

    return rule


def returned_again():
    seen = []

    def rule(x):
        seen.append(x * 2)
        return seen[0]

    return rule


def cached_node():
    seen = []

    def rule(x):
        seen.append(x.node)
        return seen[0]

    return rule


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("made", [cached_factory, cached_value, cached_alone, returned_again, cached_node])
def test_a_value_that_leaks_from_one_run_into_the_next_is_refused(made, form):
    rules = decomp.Rules({F.relu: made()})
    decomposed(Model(), rules, (torch.zeros(2, 3),), form)
    rules.memory.clear()
    with pytest.raises(decomp.errors.RuleError) as caught:
        decomposed(Model(), rules, (torch.zeros(2, 3),), form)
    assert caught.value.problem == "uses a value of another run (a tensor that is cached in a rule?)"
    assert caught.value.remedy == "make it outside the rule as a concrete tensor, or again in each run"
    assert caught.value.node.name == "relu"


@pytest.mark.parametrize("first, second", [(ATEN, EXAMPLES), (EXAMPLES, ATEN), (ATEN, TORCH), (TORCH, ATEN)])
def test_a_value_that_leaks_into_another_dialect_is_refused(first, second):
    rules = decomp.Rules({F.relu: cached_factory()})
    decomposed(Model(), rules, (torch.zeros(2, 3),), first)
    with pytest.raises(decomp.errors.RuleError, match="uses a value of another run"):
        decomposed(Model(), rules, (torch.zeros(2, 3),), second)


@pytest.mark.parametrize("form", FORMS)
def test_a_concrete_tensor_from_outside_may_be_used_in_every_run(form):
    rules = decomp.Rules({F.relu: lambda x: torch.maximum(x, REMEMBERED)})
    for _ in range(2):
        result = decomposed(Model(), rules, (torch.zeros(2, 3),), form)
        rules.memory.clear()
    assert torch.equal(outcome(result, torch.full((2, 3), -1.0)), torch.zeros(2, 3))


def in_inference_mode(x):
    with torch.inference_mode():
        return x * 1


@torch.inference_mode()
def decorated(x):
    return x * 1


def under_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x * 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", [in_inference_mode, decorated, under_autocast])
def test_a_rule_may_not_switch_inference_mode_or_autocast(rule, form):
    with pytest.raises(decomp.errors.RuleError) as caught:
        decomposed(Model(), {F.relu: rule}, (torch.zeros(2, 3),), form)
    assert caught.value.problem == "switches inference mode or autocast"
    assert not torch.is_inference_mode_enabled() and not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reason", [None, "", "  ", 3, ["why"]])
def test_declining_without_a_reason(reason, form):
    def rule(x):
        return decomp.decline(reason)

    with pytest.raises(decomp.errors.RuleError) as caught:
        decomposed(Model(), {F.relu: rule}, (torch.zeros(2, 3),), form)
    assert caught.value.problem == "declines without a reason" and _line_in(rule, caught.value.line)
    assert caught.value.remedy == 'say why in one clause: return decomp.decline("only float inputs")'


def test_declining_without_a_reason_outside_a_rule():
    with pytest.raises(TypeError, match="decline.None. gives no reason"):
        decomp.decline(None)


WITH_METADATA = [
    (lambda x: x.sum(0), "returned shape [3], the op returns [2, 3]", "return the op's own shape"),
    (lambda x: x.double(), "returned dtype torch.float64, the op returns torch.float32", "return the op's own dtype"),
    (lambda x: x.to("meta"), "returned device meta, the op returns cpu", "return the op's own device"),
]


@pytest.mark.parametrize("form", KNOWING)
@pytest.mark.parametrize("rule, problem, remedy", WITH_METADATA, ids=["shape", "dtype", "device"])
def test_a_result_of_another_kind_than_the_op_s(rule, problem, remedy, form):
    assert message(rule, form) == expected(rule, problem, remedy, form, within=False)


@pytest.mark.parametrize("form", KNOWING)
def test_one_result_where_the_op_has_two(form):
    def largest(x, dim, keepdim=False):
        return x.sum(dim)

    with pytest.raises(decomp.errors.RuleError) as caught:
        decomposed(lambda x: torch.max(x, 1)[0], {torch.max: largest}, (torch.zeros(2, 3),), form)
    assert caught.value.problem == "returned one value, the op returns 2 values"
    assert caught.value.remedy == "return a tuple in the op's order"


@pytest.mark.parametrize("form", [ATEN, TORCH, KNOWING[1]])
def test_switching_gradients_off(form):
    text = message(uses_no_grad, form)
    assert text == expected(
        uses_no_grad, "switches gradients on or off", "use .detach() on values without gradients", form
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_circle_of_rules_is_shown(form):
    rules = {F.relu: lambda x: F.gelu(x), F.gelu: lambda x: F.silu(x), F.silu: lambda x: F.relu(x)}
    with pytest.raises(decomp.errors.RuleCycle) as caught:
        decomposed(Model(), rules, (torch.zeros(2, 3),), form)
    assert caught.value.problem == "is part of a cycle: aten.relu → aten.gelu → aten.silu → aten.relu"
    assert caught.value.remedy == "drop one of these rules, or let it emit other ops"


@pytest.mark.parametrize("form", FORMS)
def test_a_rule_that_no_call_can_match_is_refused_at_once(form):
    def relu(x, slope, other):
        return x

    with pytest.raises(decomp.errors.RuleError) as caught:
        decomp.Rules({F.relu: relu})
    assert str(caught.value) == (
        f"rule relu ({locate_function(relu)}): takes (x, slope, other), which matches no call of aten.relu (self)\n"
        "  to do: use the op's parameter names, and give defaults to parameters that not every call has"
    )


@pytest.mark.parametrize("form", FORMS)
def test_an_error_in_a_rule_leaves_the_source_as_it_was(form):
    source = program(Model(), (torch.zeros(2, 3),), form)
    before = str(source.graph), [dict(node.meta) for node in source.graph.nodes]
    with pytest.raises(decomp.errors.RuleError):
        decomp.decompose(source, {F.relu: lambda x: x.colour})
    assert (str(source.graph), [dict(node.meta) for node in source.graph.nodes]) == before


@pytest.mark.parametrize("form", FORMS)
def test_a_rule_may_not_end_the_process(form):
    def rule(x):
        raise SystemExit(3)  # at fault

    assert "failed with SystemExit: 3" in message(rule, form)
