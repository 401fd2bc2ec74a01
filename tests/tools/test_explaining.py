"""Explaining an op: the route of each sample call to a target, as a tree of rules."""

import torch
from torch.nn import functional as F

import decomp
from decomp.tools.explaining import routes
from decomp_rules import targets
from decomp_rules.samples import Sample

aten = torch.ops.aten
rules = decomp.Rules()


@rules.register(F.softplus)
def refuse(x):
    return decomp.decline("never")


@rules.register(F.softplus)
def softplus(x):
    return torch.log1p(torch.exp(x))


@rules.register("log1p")
def log1p(x):
    return torch.log(x + 1)


X = torch.ones(2, 3)


def route(sample, *ops):
    (found,) = routes([sample], decomp.Target("chip", ops), decomp.Options(rules=rules))
    return found


def test_a_legal_call_needs_no_rule():
    found = route(Sample(aten.softplus.default, (X,)), "softplus")
    assert (found.call, found.verdict, found.reasons) == ("aten.softplus.default(float32[2, 3])", "legal", ())
    assert not found.derivation.rules


def test_a_derivation_is_a_tree_with_the_calls_that_each_rule_emits():
    found = route(Sample(aten.softplus.default, (X,)), "exp", "log", "add")
    ((name, outer),) = found.derivation.rules.items()
    assert name.startswith("softplus (test_explaining.py:") and outer.calls == {"aten.exp.default": 1}
    ((name, inner),) = outer.rules.items()
    assert name.startswith("log1p (test_explaining.py:")
    assert inner.calls == {"aten.add.Tensor": 1, "aten.log.default": 1} and not inner.rules


def test_alternatives_that_were_passed_over_keep_their_reasons():
    (reason,) = route(Sample(aten.softplus.default, (X,)), "exp", "log1p").reasons
    assert reason.startswith("skipped refuse (test_explaining.py:") and reason.endswith(": never")


def test_a_blocked_call_says_what_was_tried():
    found = route(Sample(aten.softplus.default, (X,)), "exp", "log")
    assert found.verdict == "blocked"
    assert found.reasons[-1].endswith("needs aten.add, for which there is no rule")


def test_a_call_without_a_rule_says_so():
    assert route(Sample(aten.tan.default, (X,)), "exp").reasons == ("no rule is registered for it",)


def test_nested_and_keyword_arguments_are_shown():
    found = route(Sample(aten.cat.default, ([X, X],), {"dim": 1}), "cat")
    assert found.call == "aten.cat.default([float32[2, 3], float32[2, 3]], dim=1)"


def test_a_condition_of_the_target_is_a_reason():
    chip = decomp.Target("chip", ["cat"]).legal_if("cat", lambda call: call.argument("dim") == 0, "dim must be 0")
    (found,) = routes([Sample(aten.cat.default, ([X, X], 1))], chip, decomp.Options(rules=rules))
    assert found.reasons[0] == "the target accepts it under a condition: dim must be 0"


class Total(torch.nn.Module):
    def forward(self, x):
        return x.sum()


def test_a_blocked_call_gives_the_reason_of_a_way_that_is_meant_for_it():
    ways = decomp.Rules()
    ways.register("sum")(lambda x, dtype=None: decomp.decline("more than 32 numbers"))
    ways.register("sum")(lambda x, dim, keepdim=False, dtype=None: torch.amax(x, dim))
    ways.register("sum", needs=[("sin", "cos")])(lambda x, dtype=None: torch.sin(x))
    (blocked,) = decomp.plan(Total(), to=decomp.Target("chip", ("mul",)), rules=ways, args=(X,)).blocked.values()
    assert blocked.why() == "aten.sum: more than 32 numbers"
    assert [reason for _, reason in blocked.tried] == [
        "more than 32 numbers",
        "needs the argument dim, which the call lacks",
        "is for targets that know aten.sin or aten.cos",
    ]


def test_a_call_whose_place_is_taken_by_pairs_of_real_numbers_has_a_route():
    x = torch.randn(2, dtype=torch.complex64)
    (found,) = routes([Sample(aten.real.default, (x,))], targets.tinygrad, decomp.Options())
    assert found.verdict in ("legal", "derived")
