"""Verification detects changes to a lowered module: hooks, another forward, other parameters."""

import pytest
import torch
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import decomp
from decomp.proof.correspondence import HooksChanged, StaleCode, StateChanged
from decomp_rules import targets

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


def on_class(module):
    type(module).forward = lambda self, x: x


def on_instance(module):
    module.forward = lambda x: x


def parametrized(module):
    nn.utils.parametrize.register_parametrization(module.get_submodule("0"), "weight", Doubled())


def swapped(module):
    module.get_submodule("0").weight = nn.Parameter(torch.zeros(4, 4))


CHANGES = {
    "forward hook": (lambda r: r.register_forward_hook(lambda m, i, o: o * 2), HooksChanged),
    "forward pre-hook": (lambda r: r.register_forward_pre_hook(lambda m, i: (i[0] * 2,)), HooksChanged),
    "backward hook": (lambda r: r.register_full_backward_hook(lambda m, i, o: (i[0] * 2,)), HooksChanged),
    "of all modules": (lambda r: register_module_forward_hook(lambda m, i, o: o * 2), HooksChanged),
    "before all modules": (lambda r: register_module_forward_pre_hook(lambda m, i: (i[0] * 2,)), HooksChanged),
    "of its class": (on_class, StaleCode),
    "of its own": (on_instance, StaleCode),
    "parametrization": (parametrized, StateChanged),
    "parameter": (swapped, StateChanged),
}


@pytest.mark.parametrize("kind", ["module", "traced"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_the_values_of_a_lowered_module_is_refused(name, kind):
    change, error = CHANGES[name]
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    source = model if kind == "module" else fx.symbolic_trace(model)
    lowering = decomp.lower(source, to=targets.tinygrad, args=(X,))
    decomp.verify(source, lowering)
    handle = change(lowering.result)
    try:
        with pytest.raises(error):
            decomp.verify(source, lowering)
        with pytest.raises(decomp.VerificationError):
            decomp.verify(source, lowering.result, level="values", args=(X,))
    finally:
        if handle is not None:
            handle.remove()


class Branches(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda a: a.exp(), lambda a: a.sin(), (x,))


def test_a_hook_of_a_body_is_refused_by_name():
    model = Branches()
    lowering = decomp.lower(model, to=targets.tinygrad, args=(X,))
    lowering.result.true_graph_0.register_forward_hook(twice)
    with pytest.raises(HooksChanged) as refused:
        decomp.verify(model, lowering)
    assert str(refused.value).startswith("'true_graph_0' has a forward hook twice (")
    assert str(refused.value).endswith(
        "which its source does not have: what it computes may change\n"
        "  to do: lower again, or remove the added hook: only hooks of the source and input checks are allowed"
    )


def twice(module, args, result):
    return (result[0] * 2,)


def test_hooks_of_the_source_are_no_reason_to_refuse_it():
    model = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    model.register_forward_hook(lambda m, i, o: o * 2)
    lowering = decomp.lower(model, to=targets.tinygrad, args=(X,))
    decomp.verify(model, lowering)
    decomp.verify(model, lowering.result)
