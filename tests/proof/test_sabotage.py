"""Programs ruined after they were lowered, in every way that we could think of: each is seen, and the table says by
what."""

import copy
import functools

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp.ir.effects import EffectTable
from decomp.proof.correspondence import StaleCode, VerificationError
from decomp_rules import targets

aten = torch.ops.aten


class Model(nn.Module):
    """Buffers that are written, sizes that are equal, and calls whose operands could be mixed up."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", torch.zeros(4))

    def forward(self, x, y):
        self.a.add_(x.sum(0))
        self.b.sub_(y.sum(0))
        h = F.gelu(self.linear(x)) - torch.exp(y) * 0.5
        kept = torch.where(h > 0, h, y).double().float()
        return {"kept": kept, "sums": h.sum(1)}


class Drawing(nn.Module):
    """Two draws, each for a result of its own."""

    def forward(self, x, y):
        return F.dropout(x, 0.5, True), torch.rand_like(y) + y


def inputs():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(4, 4, generator=draw), torch.randn(4, 4, generator=draw)


def exported(model):
    return torch.export.export(model, inputs()).run_decompositions({})


KINDS = {
    "module": lambda model: (model, None),
    "module, exported": lambda model: (model, inputs()),
    "graph": lambda model: (fx.symbolic_trace(model), inputs()),
    "program": lambda model: (exported(model), None),
}


def named(node):
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target)).partition(".")[0]


def find(result, *names):
    return next(n for n in result.graph.nodes if n.op.startswith("call") and named(n) in names)


def swapped_operands(result):
    node = find(result, "sub")
    node.args = (node.args[1], node.args[0])


def another_constant(result):
    node = next(n for n in result.graph.nodes if named(n) == "mul" and 0.5 in n.args)
    node.args = (node.args[0], 0.501)


def another_type_of_constant(result):
    node = next(n for n in result.graph.nodes if named(n) == "gt")
    node.args = (node.args[0], False)


def another_op(result):
    node = find(result, "sub")
    node.target = {"sub": torch.add}.get(getattr(node.target, "__name__", ""), aten.add.Tensor)


def another_dtype(result):
    node = find(result, "_to_copy", "to", "double")
    if node.op == "call_method":
        node.target = "half"
    else:
        node.kwargs = {**node.kwargs, "dtype": torch.float16}


def another_axis(result):
    node = [n for n in result.graph.nodes if n.op.startswith("call") and named(n) == "sum"][-1]
    node.args = (node.args[0], [0]) if isinstance(node.args[1], list) else (node.args[0], 0)


def rewired_input(result):
    x, y = [n for n in result.graph.nodes if n.op == "placeholder"][-2:]
    find(result, "exp").replace_input_with(y, x)


def renamed_placeholder(result):
    [n for n in result.graph.nodes if n.op == "placeholder"][-1].target = "renamed"


def illegal_op(result):
    node = find(result, "exp")
    node.target = aten.special_bessel_j0.default
    if node.op == "call_method":
        node.op = "call_function"


def cycle(result):
    node = find(result, "exp")
    node.args = (node,)


def lost_hook(result):
    assert result._forward_pre_hooks or result._input_check is not None
    result._forward_pre_hooks.clear()
    result._input_check = None


def other_weights(result):
    if isinstance(result, nn.Module):
        parent = result.get_submodule("linear")
        parent.weight = nn.Parameter(torch.zeros(4, 4))
    else:
        result.state_dict["linear.weight"] = nn.Parameter(torch.zeros(4, 4))


def _writes(result):
    return [n for n in result.graph.nodes if n.op.startswith("call") and named(n).startswith("copy_")]


def dropped_write_back(result):
    if isinstance(result, nn.Module):
        result.graph.erase_node(_writes(result)[0])
        return
    output = result.graph.output_node()
    buffer = next(n for n in result.graph.nodes if n.name == "b_a")
    output.args = ((buffer, *output.args[0][1:]),)


def swapped_write_backs(result):
    if isinstance(result, nn.Module):
        first, second = _writes(result)
        first.args, second.args = (first.args[0], second.args[1]), (second.args[0], first.args[1])
        return
    output = result.graph.output_node()
    a, b, *rest = output.args[0]
    output.args = ((b, a, *rest),)


def doubled_mutation(result):
    graph = result.graph
    if isinstance(result, nn.Module):
        last = _writes(result)[0]
        with graph.inserting_after(last):
            graph.node_copy(last, lambda node: node)
        return
    new, output = graph.output_node().args[0][0], graph.output_node()
    with graph.inserting_before(output):
        again = graph.call_function(aten.add.Tensor, (new, new.args[1]))
    again.meta = dict(new.meta)
    output.args = ((again, *output.args[0][1:]),)


def reordered_draws(result):
    effects = EffectTable(result.graph.owning_module)
    first, second = (n for n in result.graph.nodes if effects.of(n).most)
    first.prepend(second)


def bypassed_draw(result):
    x = next(n for n in result.graph.nodes if n.op == "placeholder")
    output = result.graph.output_node()
    values = output.args[0]
    output.args = ((x, *values[1:]),)
    result.graph.eliminate_dead_code()


SABOTAGES = {
    # sabotage: (model, seen in a lowering by, seen in two plain exported programs by)
    swapped_operands: (Model, "structure", "values"),
    another_constant: (Model, "structure", "values"),
    another_type_of_constant: (Model, "structure", None),
    another_op: (Model, "structure", "values"),
    another_dtype: (Model, "structure", "values"),
    another_axis: (Model, "structure", "values"),
    rewired_input: (Model, "structure", "structure"),
    renamed_placeholder: (Model, "structure", "structure"),
    illegal_op: (Model, "structure", "values"),
    cycle: (Model, "structure", "structure"),
    lost_hook: (Model, "structure", None),
    other_weights: (Model, "structure", "values"),
    dropped_write_back: (Model, "structure", "structure"),
    swapped_write_backs: (Model, "structure", "structure"),
    doubled_mutation: (Model, "structure", "structure"),
    reordered_draws: (Drawing, "structure", "structure"),
    bypassed_draw: (Drawing, "structure", "structure"),
}


def lowered(kind, model, **options):
    program, args = KINDS[kind](model)
    keep = {"dropout"} if isinstance(model, Drawing) else set()
    return program, decomp.lower(program, to=targets.core_aten, args=args, keep=keep, partial=args is None, **options)


def seen_by(source, found, args):
    """The level at which verification refuses a program."""
    for level in ("structure", "values"):
        try:
            decomp.verify(source, found, level=level, args=args)
        except VerificationError:
            return level
    return None


@pytest.mark.sampled
@pytest.mark.each_row
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_a_ruined_lowering_is_seen(sabotage, kind):
    model, expected, _ = SABOTAGES[sabotage]
    if sabotage is lost_hook and kind in ("module", "program"):
        return  # these have no hooks
    source, lowering = lowered(kind, model())
    decomp.verify(source, lowering)
    sabotage(lowering.result)
    assert seen_by(source, lowering, None) == expected


@pytest.mark.each_row
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_a_ruined_program_is_seen_without_provenance(sabotage):
    model, _, expected = SABOTAGES[sabotage]
    source, whole = compared(model)
    ruined = copy.deepcopy(whole)
    if sabotage is not lost_hook:
        sabotage(ruined)
    assert seen_by(source, ruined, inputs()) == expected


@functools.cache
def compared(model):
    """A program, and what it was lowered to, in which nothing is wrong."""
    source, lowering = lowered("program", model())
    assert seen_by(source, lowering.result, inputs()) is None
    return source, lowering.result


IN_VALUES = (swapped_operands, another_constant, another_op, another_dtype, another_axis)


@pytest.mark.each_row
@pytest.mark.parametrize("sabotage", IN_VALUES, ids=lambda sabotage: sabotage.__name__)
def test_a_lowering_for_inference_is_seen_to_be_ruined(sabotage):
    source, lowering = lowered("program", Model(), training=False)
    decomp.verify(source, lowering)
    sabotage(lowering.result)
    assert seen_by(source, lowering, None) == "structure"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sabotage", IN_VALUES, ids=lambda sabotage: sabotage.__name__)
def test_a_graph_that_a_compiler_is_given_is_seen_to_be_ruined(sabotage):
    given = []
    compiler = decomp.backend(to=targets.core_aten, compiler=lambda graph, inputs: given.append(graph) or graph)
    with torch.no_grad():
        torch.compile(Model(), backend=compiler, fullgraph=True)(*inputs())
    (source,) = given
    args = tuple(torch.rand(node.meta["val"].shape) for node in source.graph.nodes if node.op == "placeholder")
    ruined = copy.deepcopy(source)
    assert seen_by(source, ruined, args) is None
    sabotage(ruined)
    with pytest.raises(StaleCode, match="runs code that is not that of its graph"):
        decomp.verify(source, ruined)
    ruined.recompile()
    assert seen_by(source, ruined, args) == "values"


def test_code_that_is_not_that_of_the_graph_is_seen():
    source, lowering = lowered("module", Model())
    node = find(lowering.result, "mul")
    args = node.args
    node.args = (args[0], 0.25)
    lowering.result.recompile()
    assert "0.25" in lowering.result.code
    node.args = args
    with pytest.raises(StaleCode, match="recompile"):
        decomp.verify(source, lowering)
    lowering.result.recompile()
    decomp.verify(source, lowering)
    lowering.result.forward = lambda x, y: x
    with pytest.raises(StaleCode, match="do not assign forward"):
        decomp.verify(source, lowering)
