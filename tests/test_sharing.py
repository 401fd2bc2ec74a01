"""A result has no mutable object of its source but what is shared on purpose: parameters, buffers, constants, modules
that stay, and the fake mode with its sizes. And the source is what it was."""

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp_rules import targets

X = torch.randn(3, 4)
CHIP = targets.tinygrad


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        y = F.gelu(self.linear(x)) * torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"a": torch.softmax(y, -1), "b": [y.relu(), x]}


def exported():
    return torch.export.export(Net(), (X,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


SOURCES = {
    "nn.Module": Net,
    "GraphModule": lambda: exported().module(),
    "traced": lambda: fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Softmax(-1))),
    "ExportedProgram": exported,
}


def given(source):
    return None if isinstance(source, torch.export.ExportedProgram) else (X,)


VERBS = {
    "lower": lambda source: decomp.lower(source, to=CHIP, args=given(source)).result,
    "lower in part": lambda source: (
        decomp.lower(source, to=decomp.Target("few", ["mul", "add"]), args=given(source), partial=True).result
    ),
    "decompose": lambda source: decomp.decompose(source, {F.gelu: lambda x, approximate="none": x * 2}),
    "simplify": lambda source: decomp.simplify(source, args=given(source)),
    "refold": lambda source: decomp.refold(source, args=given(source)).result,
}


def graphs(program):
    modules = [program.graph_module] if isinstance(program, torch.export.ExportedProgram) else [program]
    found = [each for module in modules for each in module.modules() if isinstance(each, fx.GraphModule)]
    return [module for module in found if type(module).__name__ != "GuardsFn"]


def contained(value):
    """The dicts, lists and sets that a value is, or has in it."""
    if isinstance(value, (dict, list, set)):
        yield value
    items = value.values() if isinstance(value, dict) else value if type(value) in (list, tuple) else ()
    for item in items:
        yield from contained(item)


def mutable(program):
    """The mutable objects of a program, each with what it is."""
    found = []
    for module in graphs(program):
        found += [(module, "module"), (module.graph, "graph"), (module.graph._codegen, "codegen")]
        found += [(each, f"module's {key}") for key, value in module.meta.items() for each in contained(value)]
        for node in module.graph.nodes:
            found += [(node, "node"), (node.meta, "meta")]
            found += [(each, f"meta: {key}") for key, value in node.meta.items() for each in contained(value)]
        names = ("_forward_hooks", "_forward_pre_hooks", "_buffers", "_modules")
        found += [(vars(module)[name], name) for name in names]
    if isinstance(program, torch.export.ExportedProgram):
        signature = program.graph_signature
        specs = [*signature.input_specs, *signature.output_specs]
        parts = [
            signature,
            *specs,
            program.module_call_graph,
            *program.module_call_graph,
            program.state_dict,
            program.constants,
            program.range_constraints,
        ]
        found += [(part, type(part).__name__) for part in parts]
    return {id(each): (each, what) for each, what in found}


def described(program):
    """A program's description of itself."""

    def spec(node):
        return sorted((key, str(value)) for key, value in node.meta.items())

    module = program.graph_module if isinstance(program, torch.export.ExportedProgram) else program
    known = [(str(each.graph), [spec(node) for node in each.graph.nodes], str(each.meta)) for each in graphs(program)]
    modes = [getattr(node.meta.get("val"), "fake_mode", None) for each in graphs(program) for node in each.graph.nodes]
    guards = [
        str(guard.expr)
        for mode in modes
        if mode is not None and mode.shape_env is not None
        for guard in mode.shape_env.guards
    ]
    hooks = [(len(each._forward_hooks), len(each._forward_pre_hooks)) for each in module.modules()]
    state = [(name, value.tolist()) for name, value in module.state_dict().items()]
    rest = str(getattr(program, "graph_signature", "")), str(getattr(program, "range_constraints", ""))
    return known, guards, hooks, state, rest, module.training


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_a_result_shares_no_mutable_object_with_its_source_which_is_as_it_was(make, verb):
    source = make()
    before, known = mutable(source), described(source)
    result = verb(source)
    assert [what for key, (_, what) in mutable(result).items() if key in before and what != "meta: tensor_meta"] == []
    assert described(source) == known
