"""Hooks, and forwards of an instance's own: their effect is kept, or they are refused by name."""

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

import decomp
from decomp_rules import targets

pytestmark = pytest.mark.filterwarnings("ignore:.*hook")

X = torch.randn(3, 4)


def tripled(gradient):
    return None if gradient is None else gradient * 3


FORWARD = {
    "hook": lambda m: m.register_forward_hook(lambda module, args, out: out * 3),
    "hook with kwargs": lambda m: m.register_forward_hook(lambda module, args, kw, out: out * 3, with_kwargs=True),
    "hook always": lambda m: m.register_forward_hook(lambda module, args, out: out * 3, always_call=True),
    "pre-hook": lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] * 3,)),
    "pre-hook with kwargs": lambda m: m.register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0] * 3,), kwargs), with_kwargs=True
    ),
}
BACKWARD = {
    "full": lambda m: m.register_full_backward_hook(lambda module, inner, outer: tuple(g * 3 for g in inner)),
    "pre": lambda m: m.register_full_backward_pre_hook(lambda module, outer: tuple(g * 3 for g in outer)),
    "legacy": lambda m: m.register_backward_hook(lambda module, inner, outer: tuple(map(tripled, inner))),
}
GLOBAL = {
    "forward": lambda: torch_module.register_module_forward_hook(lambda module, args, out: out * 3),
    "pre": lambda: torch_module.register_module_forward_pre_hook(lambda module, args: (args[0] * 3,)),
    "backward": lambda: torch_module.register_module_full_backward_hook(lambda module, inner, outer: None),
}


def rule(x):
    return torch.clamp(x, min=0)


ways = {
    "decompose": lambda m: decomp.decompose(m, {F.relu: rule}),
    "lower": lambda m: decomp.lower(m, to=targets.core_aten).result,
    "lower in part": lambda m: decomp.lower(m, to=targets.tinygrad, partial=True).result,
    "lower a graph": lambda m: decomp.lower(with_hooks_of(m), to=targets.tinygrad, args=(X,)).result,
    "lower by export": lambda m: decomp.lower(m, to=targets.tinygrad, args=(X,)).result,
}


def with_hooks_of(module):
    graph = fx.symbolic_trace(module)
    for name in vars(module):
        if "hooks" in name:
            setattr(graph, name, getattr(module, name))
    graph._is_full_backward_hook = module._is_full_backward_hook
    return graph


def results(module):
    x = X.clone().requires_grad_()
    out = module(x)
    return out.detach(), *torch.autograd.grad(out.sum(), x)


def agree(module, way):
    """Whether the lowered module does what the module does."""
    return all(map(torch.allclose, results(ways[way](module)), results(module)))


def is_refused(module, way):
    """Whether the module is refused for its hooks, with a word on what to do."""
    with pytest.raises(decomp.DecompError) as refused:
        ways[way](module)
    return "hook" in str(refused.value) and "remove" in str(refused.value)


REFUSED = {
    ("forward", "leaf"): {"decompose", "lower"},
    ("forward", "inner"): set(),
    ("forward", "root"): set(),
    ("backward", "leaf"): {*ways} - {"lower in part"},
    ("backward", "inner"): {*ways},
    ("backward", "root"): {"lower by export"},
}
"""By kind and place of a hook, what refuses it: with args=, torch.export captures forward hooks and loses others, and a
rule inside a module loses those of that module. All else keeps the hook."""
OF_ALL_MODULES = {*ways} - {"lower in part"}
"""What refuses hooks of all modules."""


CASES = [
    (hook, place, way)
    for hook in ("hook with kwargs", "pre-hook", *BACKWARD)
    for place in ("leaf", "inner", "root")
    for way in ways
    if not (hook in BACKWARD and place == "inner" and way == "lower a graph")  # fx loops
]


@pytest.mark.parametrize("hook, place, way", CASES)
def test_hooks_are_kept_or_refused_by_name(hook, place, way):
    module = nn.Sequential(nn.Sequential(nn.ReLU()))
    {**FORWARD, **BACKWARD}[hook]({"leaf": module[0][0], "inner": module[0], "root": module}[place])
    refused = way in REFUSED["backward" if hook in BACKWARD else "forward", place]
    refused |= (hook, place, way) == ("pre-hook", "root", "lower a graph")  # what is traced lies behind it
    assert is_refused(module, way) if refused else agree(module, way)


@pytest.mark.parametrize("hook", FORWARD)
def test_forward_hooks_are_captured_where_export_captures(hook):
    module = nn.Sequential(nn.ReLU())
    FORWARD[hook](module[0])
    assert agree(module, "lower by export") and agree(module, "lower a graph")
    lowered = decomp.decompose(fx.symbolic_trace(module), {F.relu: rule}, args=(X,))
    assert all(map(torch.allclose, results(lowered), results(module)))


@pytest.mark.parametrize("hook", [*FORWARD, *BACKWARD])
def test_hooks_of_a_graph_are_those_of_its_result(hook):
    module = nn.Sequential(nn.ReLU())
    {**FORWARD, **BACKWARD}[hook](module)
    assert agree(with_hooks_of(module), "decompose")
    assert agree(module, "lower in part")


@pytest.mark.parametrize("way", ways)
@pytest.mark.parametrize("hook", GLOBAL)
def test_hooks_of_all_modules_are_kept_or_refused_by_name(hook, way):
    handle = GLOBAL[hook]()
    try:
        assert (is_refused if way in OF_ALL_MODULES else agree)(nn.Sequential(nn.ReLU()), way)
    finally:
        handle.remove()


def test_what_is_refused_is_named_with_what_to_do():
    module = nn.Sequential(nn.ReLU())
    handle = module[0].register_forward_hook(lambda module, args, out: out * 3)
    line = (lambda: 0).__code__.co_firstlineno - 1
    with pytest.raises(decomp.CaptureError) as refused:
        decomp.decompose(module, {F.relu: rule})
    assert str(refused.value) == (
        f"a rule matches inside module '0', but it has a forward hook <lambda> (test_module_hooks.py:{line}), which a "
        "graph of its forward would lose; remove the hooks, or pass args=, so that torch.export captures what forward "
        "hooks do"
    )
    assert decomp.decompose(module, {F.gelu: rule})(X).equal(module(X))
    with pytest.raises(decomp.NotLowered, match="a forward hook <lambda>"):
        decomp.lower(module, to=targets.tinygrad)
    handle.remove()
    module.register_full_backward_hook(lambda module, inner, outer: None)
    with pytest.raises(decomp.CaptureError, match="torch.export would lose a backward hook <lambda> .* module itself"):
        decomp.lower(module, to=targets.tinygrad, args=(X,))


@pytest.mark.parametrize("place", ["leaf", "root"])
@pytest.mark.parametrize("way", ways)
def test_a_forward_of_the_instance_is_lowered_or_refused(way, place):
    module = nn.Sequential(nn.ReLU())
    (module[0] if place == "leaf" else module).forward = lambda t: F.relu(t) * 5
    if place == "root" and way in ("decompose", "lower", "lower in part"):
        with pytest.raises(decomp.CaptureError, match="a forward of its own"):
            ways[way](module)
    else:
        of_its_class = place == "root" and way == "lower a graph"  # symbolic_trace itself does not see it
        torch.testing.assert_close(ways[way](module)(X), F.relu(X) if of_its_class else module(X))


def test_a_forward_that_was_put_on_a_graph_is_refused():
    graph = fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    graph.forward = lambda t: t * 5
    with pytest.raises(decomp.CaptureError, match="the GraphModule has a forward of its own"):
        decomp.lower(graph, to=targets.tinygrad, args=(X,))


@pytest.mark.parametrize(
    "norm",
    [
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.orthogonal,
        nn.utils.parametrizations.spectral_norm,
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_parametrised_modules(norm):
    module = nn.Sequential(norm(nn.Linear(4, 4)), nn.ReLU()).eval()
    before = set(vars(module[0]))
    lowered = decomp.lower(fx.symbolic_trace(module), to=targets.core_aten, args=(X,)).result
    torch.testing.assert_close(lowered(X), module(X))
    assert set(vars(module[0])) == before


def test_checks_of_a_lowered_graph_are_checks_of_what_is_lowered_from_it():
    once = decomp.lower(nn.Sequential(nn.GELU()), to=targets.core_aten, args=(X,)).result
    twice = decomp.lower(once, to=targets.tinygrad, args=(X,)).result
    torch.testing.assert_close(twice(X), F.gelu(X))
    with pytest.raises(decomp.DecompError, match="has shape"):
        twice(X[:2])


def test_a_hook_that_is_registered_on_the_result_runs_once_a_call():
    lowered = decomp.lower(fx.symbolic_trace(nn.Sequential(nn.ReLU())), to=targets.tinygrad, args=(X,)).result
    lowered.register_forward_hook(lambda module, args, out: out * 3)
    torch.testing.assert_close(lowered(X), F.relu(X) * 3)
    torch.testing.assert_close(lowered(X), F.relu(X) * 3)
