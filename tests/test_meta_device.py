"""Programs on the meta device, or of fake tensors, are lowered as those on the CPU are."""

import pytest
import torch
from torch import nn

import decomp
from decomp.errors import AccuracyError
from decomp.metadata.meta_values import known_value
from decomp.samples import program_of
from decomp.torch_internals.fakes import FakeTensorMode
from decomp_rules import targets
from decomp_rules.samples.in_models import call_of, ops_in_models
from tests.forms import ATEN, EXAMPLES, Holder, program
from tests.pytorch_differences import CONTIGUOUS_ON_META

TARGETS = (targets.core_aten, targets.tinygrad, targets.luminal, targets.stablehlo)
OPS = [counted.op for counted in ops_in_models() if call_of(counted.op) is not None]


class Encoder(nn.Module):
    """Rules of the library make tables and ramps for it; it makes a constant itself."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.BatchNorm1d(5)
        self.register_buffer("mask", torch.ones(5, 5).tril().bool())

    def forward(self, x):
        x = x + torch.arange(5, device=x.device)[:, None] * torch.tensor([0.5, 0.25] * 4, device=x.device)
        x = nn.functional.pad(self.norm(self.layer(x)), (1, 1)).masked_fill(~self.mask[:, :1], 0)
        return x.cumsum(1).sort(-1)[0]


def made(kind):
    """The encoder with an input, on the CPU, on the meta device, or of fake tensors."""
    if kind == "fake":
        with FakeTensorMode():
            return Encoder().eval(), (torch.zeros(2, 5, 8),)
    with torch.device(kind):
        return Encoder().eval(), (torch.zeros(2, 5, 8),)


def calls(lowering):
    return sum(node.op == "call_function" for node in lowering.result.graph.nodes)


def tables(lowered):
    """The tensors that a lowered program holds beside its parameters and buffers."""
    if isinstance(lowered, torch.export.ExportedProgram):
        return list(lowered.constants.values())
    return [getattr(lowered, node.target) for node in lowered.graph.find_nodes(op="get_attr") if "." not in node.target]


def on_meta(leaf):
    return leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf


@pytest.mark.sampled(40)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("op", OPS)
def test_a_call_on_the_meta_device_becomes_as_many_calls_as_on_the_cpu(op, target):
    sample, found = call_of(op), []
    for each in (sample, sample.replaced(on_meta)):
        source, inputs = program_of(each)
        found.append(calls(decomp.lower(source, to=target, args=inputs, partial=True)))
    assert found[0] == found[1]


def test_folding_without_values_says_what_was_not_run():
    model, args = made("meta")
    found = decomp.refold(decomp.lower(model, to=targets.core_aten, args=args), verify="values")
    assert found.proof.checks[-1].startswith("the whole program not run, as there are no values for ")


@pytest.mark.parametrize("verify", ["values", "full"])
@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_every_level_of_verification_takes_programs_without_numbers(kind, verify):
    model, args = made(kind)
    lowering = decomp.lower(model, to=targets.tinygrad, args=args, verify=verify)
    assert calls(lowering) == calls(decomp.lower(made("cpu")[0], to=targets.tinygrad, args=made("cpu")[1]))
    if verify == "values":
        values, program = lowering.proof.checks[-2:]
        assert "distinct expansions computed and compared with the op's own kernel" in values
        assert program.startswith("the whole program not run, as there are no values for ")
        assert program.endswith(" more (meta or fake tensors)")


@pytest.mark.parametrize("form", [ATEN, EXAMPLES])
def test_what_a_rule_makes_of_numbers_is_on_the_meta_device_and_has_its_numbers(form):
    args = (torch.randn(3, 4, device="meta"),)
    source = program(lambda x: x + torch.arange(4, device=x.device), args, form)
    lowering = decomp.lower(source, to=targets.tinygrad, args=None if form == ATEN else args)
    (table,) = tables(lowering.result)
    assert table.is_meta and known_value(table).tolist() == [0, 1, 2, 3]


def test_constants_are_folded_to_their_numbers():
    source = program(lambda x: x + torch.arange(4, device="meta") * 2, (torch.randn(3, 4, device="meta"),), ATEN)
    simplified = decomp.simplify(source)
    (constant,) = simplified.constants.values()
    assert constant.is_meta and known_value(constant).tolist() == [0, 2, 4, 6]


def test_a_constant_that_the_model_makes_keeps_its_numbers():
    model, args = made("meta")
    lowered = decomp.lower(model, to=targets.core_aten, args=args).result
    assert [0.5, 0.25] * 4 in [known_value(each).tolist() for each in tables(lowered) if known_value(each) is not None]


@pytest.mark.parametrize(
    "rule",
    [
        lambda x: torch.maximum(x, torch.tensor([0.0] * 4, device=x.device)),
        lambda x: torch.maximum(x, torch.as_tensor([0.0] * 4, device=x.device)),
        lambda x: torch.maximum(x, x.new_tensor([0.0] * 4)),
    ],
)
@pytest.mark.parametrize("form", [ATEN, EXAMPLES])
def test_a_rule_of_a_user_makes_tensors_of_numbers_there(form, rule):
    x = torch.randn(3, 4, device="meta")
    found = decomp.decompose(program(torch.relu, (x,), form), {torch.relu: rule}, args=None if form == ATEN else (x,))
    assert not decomp.calls(found, torch.relu) and len(decomp.calls(found)) == 1
    assert [known_value(each).tolist() for each in tables(found)] == [[0.0] * 4]


def test_the_lowered_module_runs_on_the_meta_device():
    model, (x,) = made("meta")
    lowered = decomp.lower(model, to=targets.tinygrad, args=(x,)).result
    assert lowered(x).is_meta and lowered(x).shape == (2, 5, 10)


def test_an_op_without_a_kernel_for_the_meta_device_is_known_by_its_rules():
    x = torch.randn(3, 40, device="meta")
    lowering = decomp.lower(Holder(lambda x: torch.ops.aten._aminmax(x)), to=targets.core_aten, args=(x,))
    assert [value.shape for value in lowering.result(x)] == [(), ()]


MIXED = {
    "an index": lambda self, x: x[:, self.rows] * 2,
    "a place to write": lambda self, x: torch.index_put(x, (self.rows,), x[0, 0]),
    "a number": lambda self, x: torch.where(x > 0, x, self.number),
}


@pytest.mark.each_row
@pytest.mark.parametrize("target", ["tinygrad", "luminal"])
@pytest.mark.parametrize("name", MIXED)
def test_tensors_on_the_cpu_beside_others_are_moved_where_a_rule_needs_them_on_one_device(name, target):
    """PyTorch takes an index or a 0-d tensor on the CPU beside tensors on another device."""
    made = Holder(MIXED[name], rows=torch.tensor([2, 1]), number=torch.tensor(0.5))
    x = torch.randn(3, 4)
    lowered = [decomp.lower(made, to=getattr(targets, target), args=(each,)).result for each in (x, x.to("meta"))]
    assert torch.equal(lowered[0](x), made(x))
    assert lowered[1](x.to("meta")).shape == made(x).shape


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_what_is_measured_by_running_the_program_says_that_there_are_no_values(kind):
    model, args = made(kind)
    reason = (
        "the error of a program is measured by running it, and there are no values for layer.self_attn.in_proj_weight "
        "and 18 more (meta or fake tensors): give the model its weights and pass inputs with values, or choose levels "
        "by accuracy="
    )
    for measured in (
        lambda: decomp.budget(model, to=targets.tinygrad, args=args),
        lambda: decomp.lower(model, to=targets.tinygrad, args=args, max_error=2.0),
    ):
        with pytest.raises(AccuracyError) as error:
            measured()
        assert str(error.value) == reason


def test_what_reads_no_values_works_without_them():
    """The same calls fold, match, share memory and are advised as on the CPU."""

    def linear(x, weight, bias):
        return nn.functional.linear(x, weight, bias)

    outcomes = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model, args = nn.TransformerEncoderLayer(8, 2, 16).eval(), (torch.zeros(2, 5, 8),)
        lowering = decomp.lower(model, to=targets.tinygrad, args=args)
        program = torch.export.export(model, args)
        plan = decomp.memory_plan(lowering)
        outcomes.append(
            (
                [str(folded.op) for folded in decomp.refold(lowering).folded],
                len(decomp.match(program, linear)),
                (plan.peak, plan.apply()(*args).shape),
                str(decomp.advise({"encoder": program}, to=targets.tinygrad - {"exp2"})).splitlines()[0],
            )
        )
    (on_cpu, *rest), (on_meta, *rest_on_meta) = outcomes
    assert sorted(on_meta) == sorted(on_cpu + CONTIGUOUS_ON_META) and rest_on_meta == rest


def test_a_buffer_that_is_written_is_copied_there_as_on_the_cpu():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            self.seen.relu_()
            return x * self.weight, torch.nn.functional.mse_loss(self.seen, self.weight)

    found = []
    for device in ("cpu", "meta"):
        x = torch.ones(4, device=device)
        found.append(decomp.lower(Counting().to(device), to=targets.core_aten, args=(x,), verify=False).result)
    assert [node.target for node in found[0].graph.nodes] == [node.target for node in found[1].graph.nodes]
