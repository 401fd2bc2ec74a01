"""A program that a chip cannot run as a whole runs in parts: with the same results, gradients, random numbers and
buffers, in PyTorch and on a NumPy backend with the host."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import fx, nn
from torch.export import Dim
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.nn import functional as F

import decomp
from decomp.errors import CostError, spell_target
from decomp.partitioning import partitioning
from decomp_rules import RULES
from decomp_rules.backends import numpy as chip, numpy_arrays
from tests import models

NO_SORT = RULES - {"sort"}


class Sorts(nn.Module):
    """A convolutional network that sorts its features in the middle."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4)

    def forward(self, x):
        pooled = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return {"logits": self.out(torch.sort(pooled, -1).values).softmax(-1)}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Sorts().eval()


@pytest.fixture(scope="module")
def partitioned(network):
    return decomp.partition(network, (torch.randn(2, 3, 8, 8),), to=chip.target, rules=NO_SORT)


def test_what_cannot_be_lowered_runs_on_the_host_between_two_parts_on_the_chip(partitioned):
    assert [(part.name, part.side) for part in partitioned.parts] == [
        ("fused_0", "chip"),
        ("host_0", "host"),
        ("fused_1", "chip"),
    ]
    assert partitioned.parts[1].ops == {"aten.sort": 1}
    assert (partitioned.parts[1].bytes_in, partitioned.parts[1].bytes_out) == (32, 32)
    assert [(each.op, each.why) for each in partitioned.on_host] == [("aten.sort", "no rule for aten.sort")]


def test_the_parts_on_the_chip_are_lowered_and_verified(partitioned):
    lowerings = [part.lowering for part in partitioned.parts if part.side == "chip"]
    assert all(not lowering.blockers and lowering.proof is not None for lowering in lowerings)


def test_the_program_runs_in_pytorch_and_on_the_backend_with_the_host(network, partitioned):
    x = torch.randn(2, 3, 8, 8)
    loaded = chip.load(partitioned)
    for program in (partitioned, loaded, fx.Interpreter(partitioned.module).run):
        torch.testing.assert_close(program(x), network(x))
    assert not loaded(x)["logits"].requires_grad


def test_it_is_shown_as_a_table_of_eighty_columns(partitioned):
    assert (
        str(partitioned)
        == """\
partition to tinygrad: 6 of 7 calls on the chip, in 2 parts
  part     calls  lowered to  bytes in  bytes out  ops
  fused_0      4          35     1,536         32  conv2d, batch_norm, relu, mean
  host_0       1           1        32         32  sort
  fused_1      2          22        32         32  linear, softmax
  price in bytes: 117,728 (chip 103,296, host 12,800, transfers 1,632)
  no assignment is cheaper; all that can run on the chip does
on the host (cpu):
  aten.sort (1 call): no rule for aten.sort
  .advice says which more ops would leave fewer parts"""
    )


def test_gradients_are_those_of_the_source_in_pytorch_and_refused_by_name_on_the_backend(network, partitioned):
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    expected = torch.autograd.grad(network(x)["logits"][:, 0].sum(), [x, *network.parameters()])
    found = torch.autograd.grad(partitioned(x)["logits"][:, 0].sum(), [x, *network.parameters()])
    torch.testing.assert_close(found, expected)
    with pytest.raises(decomp.errors.InputMismatch, match="^input 'x' requires a gradient, but"):
        chip.load(partitioned)(x)


def test_a_dynamic_batch_stays_dynamic(network):
    batch = ({0: Dim.DYNAMIC},)
    found = decomp.partition(network, (torch.randn(2, 3, 8, 8),), to=chip.target, rules=NO_SORT, dynamic_shapes=batch)
    loaded = chip.load(found)
    for size in (2, 5):
        x = torch.randn(size, 3, 8, 8)
        torch.testing.assert_close(found(x), network(x))
        torch.testing.assert_close(loaded(x), network(x))


def test_buffers_that_the_program_updates_are_updated():
    torch.manual_seed(1)
    model, x = Sorts().train(), torch.randn(4, 3, 8, 8)
    for run in (lambda found: found, chip.load):
        own = copy.deepcopy(model)
        expected = copy.deepcopy(model)
        program = run(decomp.partition(own, (x,), to=chip.target, rules=NO_SORT))
        for _ in range(2):
            torch.testing.assert_close(program(x), expected(x))
        torch.testing.assert_close(own.norm.running_var, expected.norm.running_var)
        assert own.norm.num_batches_tracked == 2


def test_random_numbers_are_those_of_the_source():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True).train()
    x = torch.randn(2, 5, 8)
    found = decomp.partition(layer, (x,), to=chip.target)
    assert {each.op: each.why for each in found.on_host}["aten.dropout"] == "draws random numbers"
    for program in (found, chip.load(found)):
        torch.manual_seed(7)
        expected = layer(x)
        torch.manual_seed(7)
        torch.testing.assert_close(program(x), expected)


def test_a_branch_with_a_call_that_cannot_be_lowered_runs_on_the_host():
    class Branches(nn.Module):
        def forward(self, x):
            y = torch.cond(x.sum() > 0, lambda x: torch.sort(x).values, lambda x: x - 1, (x * 2,))
            return y.exp2()

    x = torch.rand(3, 4)
    found = decomp.partition(Branches(), (x,), to=chip.target, rules=NO_SORT)
    assert [each.op for each in found.on_host] == ["higher_order.cond"]
    for each in (x, -x):
        torch.testing.assert_close(chip.load(found)(each), Branches()(each))


def test_inputs_that_the_source_writes_are_written():
    class Writes(nn.Module):
        def forward(self, x):
            y = torch.sort(x.mul_(2)).values
            x[0].add_(1)
            return y + x

    given, expected = torch.randn(3, 4), None
    found = decomp.partition(Writes(), (given.clone(),), to=chip.target, rules=NO_SORT)
    for program in (found, chip.load(found)):
        one, other = given.clone(), given.clone()
        expected = Writes()(one)
        torch.testing.assert_close(program(other), expected)
        torch.testing.assert_close(other, one)


def test_a_program_that_the_chip_can_run_is_one_part():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(3, 4)
    found = decomp.partition(model, (x,), to=chip.target)
    assert [part.name for part in found.parts] == ["fused_0"] and found.on_host == ()
    torch.testing.assert_close(chip.load(found)(x), model(x))


def test_a_program_with_nothing_for_the_chip_is_one_part_on_the_host():
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    found = decomp.partition(model, (x,), to=decomp.Target("nothing", []))
    assert [part.name for part in found.parts] == ["host_0"]
    torch.testing.assert_close(found(x), model(x))


def test_a_value_that_crosses_twice_keeps_the_layout_that_the_host_was_traced_with():
    class Transposes(nn.Module):
        def forward(self, x):
            y = (x * 2).mT
            return torch.sort(y, 0).values.mT.reshape(-1) + y.mT.reshape(-1)

    x = torch.randn(3, 4)
    found = decomp.partition(Transposes(), (x,), to=chip.target, rules=NO_SORT)
    for program in (found, chip.load(found)):
        torch.testing.assert_close(program(x), Transposes()(x))


def test_a_value_whose_strides_differ_in_a_dimension_of_size_one_alone_is_not_copied():
    rules = decomp.Rules(level="exact")

    @rules.register(F.softplus)
    def softplus(x):
        return x.reshape(4, 1).exp().permute(1, 0)

    class Sorted(nn.Module):
        def forward(self, x):
            return torch.sort(F.softplus(x), -1).values

    found = decomp.partition(
        Sorted(), (torch.ones(1, 4),), to=chip.target, rules=NO_SORT - {"softplus"} | rules, transfer=0.0
    )
    assert [node.op for node in found.module.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]


def test_prices_decide_between_a_derivation_and_the_host():
    class Gelu(nn.Module):
        def forward(self, x):
            return F.gelu(x)

    x = torch.randn(16)
    far = decomp.partition(Gelu(), (x,), to=chip.target, transfer=lambda size: 10_000 + size, host_cost=10)
    assert [(part.side, part.bytes_in) for part in far.parts] == [("host", 0)]
    near = decomp.partition(Gelu(), (x,), to=chip.target, transfer=0.1)
    assert [(part.side, part.bytes_in, part.bytes_out) for part in near.parts] == [("chip", 64, 64)]
    assert near.price == pytest.approx(sum(near.prices.values())) and near.unit == "bytes"


def test_a_limit_leaves_one_part_on_the_chip_and_is_said(network, partitioned):
    x = torch.randn(2, 3, 8, 8)
    found = decomp.partition(network, (x,), to=chip.target, rules=NO_SORT, parts=1)
    assert [part.name for part in found.parts] == ["fused_0", "host_0"]
    assert found.exact and "  no assignment with at most 1 part on the chip is cheaper" in str(found).splitlines()
    assert found.price > partitioned.price
    torch.testing.assert_close(chip.load(found)(x), network(x))
    bounded = replace(found, at_least=partitioned.price)
    assert "  at most " in str(bounded) and "% above the cheapest assignment with at most 1 part" in str(bounded)


def test_under_torch_compile_a_backend_runs_what_it_can_forward_and_backward():
    torch.manual_seed(2)
    model, x = Sorts().train(), torch.randn(2, 3, 8, 8)
    expected = copy.deepcopy(model)
    backend = decomp.backend(compiler=chip, partial=True, rules=NO_SORT)
    found = torch.compile(model, backend=backend, dynamic=False)(x)["logits"]
    wanted = expected(x)["logits"]
    torch.testing.assert_close(found, wanted)
    found[:, 0].sum().backward()
    wanted[:, 0].sum().backward()
    for one, other in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(one.grad, other.grad)
    assert [record.stage for record in backend.graphs][-2:] == ["forward", "backward"]


def test_advice_names_the_op_that_removes_parts(partitioned):
    best, *_ = partitioned.advice
    assert (best.ops, best.parts, best.instead_of) == (("sort",), 1, 2)
    assert str(best).startswith("one more op, sort, removes 1 of 2 parts; the price is then ")
    assert best.price == partitioned.price - best.saves < partitioned.price
    assert best.as_dict()["saves"] == best.saves


class _OnChip(OperatorSupportBase):
    def __init__(self, names):
        self.names = names

    def is_node_supported(self, submodules, node):
        return node.name in self.names


@pytest.mark.parametrize("build", [models.gpt2, models.encoder, models.resnet], ids=lambda build: build.__name__)
def test_no_model_is_dearer_than_in_the_partitions_of_torch(build):
    model, args = build()
    few = decomp.Target("few", "addmm mm bmm add mul view permute expand clone convolution relu sub div".split())
    found = decomp.partition(model.eval(), args, to=few, verify=False)
    problem, program = found.choices.problem(float), found.choices.program
    partitioner = CapabilityBasedPartitioner(program, _OnChip(found.choices.chip), allows_single_node_partition=True)
    number = {node.name: i for node, i in found.choices.number.items()}
    chip = {number[node.name] for part in partitioner.propose_partitions() for node in part.nodes}
    assert found.price <= min(problem.price(chip), found.supported) and found.exact
    assert chip and any(part.side == "host" for part in found.parts)
    with torch.no_grad():
        torch.testing.assert_close(found(*args), model(*args))


def test_a_call_that_cannot_be_lowered_in_its_part_goes_to_the_host(monkeypatch):
    model, x = nn.Sequential(nn.Tanh(), nn.Sigmoid()), torch.randn(3)

    def refusing(part, **given):
        if any(spell_target(n.target) == "aten.tanh.default" for n in getattr(part, "graph", fx.Graph()).nodes):
            raise decomp.NotLowered("chip", [decomp.errors.Blocker("aten.tanh", ("tanh",), None, ())])
        return decomp.lower(part, **given)

    monkeypatch.setattr(partitioning, "lower", refusing)
    found = decomp.partition(model, (x,), to=chip.target, host_cost=1e6)
    assert [(part.name, *part.ops) for part in found.parts] == [("host_0", "aten.tanh"), ("fused_0", "aten.sigmoid")]
    assert found.on_host[0].why == "aten.tanh cannot be lowered among the calls of its part"
    torch.testing.assert_close(chip.load(found)(x), model(x))


def test_sizes_that_depend_on_data_are_computed_where_the_data_is():
    class Nonzero(nn.Module):
        def forward(self, x):
            return (x * 2).exp(), torch.nonzero(x > 0), x.sum().item() + 1

    x = torch.randn(3, 4)
    found = decomp.partition(Nonzero(), (x,), to=chip.target)
    assert [part.name for part in found.parts] == ["fused_0", "host_0"]
    for program in (found, chip.load(found)):
        torch.testing.assert_close(program(x - 1), Nonzero()(x - 1))


CORRECT = "  to do: look at the exception above this one, and correct the function"
PRICED = decomp.Target("priced", ["mul"]).with_costs(decomp.costs.flops)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            dict(to=PRICED),
            decomp.errors.ArgumentError,
            "the costs of calls on priced are in operations, and transfer= and host_cost= must be in the same unit\n"
            "  to do: pass transfer= and host_cost=, each the price of a byte in operations or a function; or "
            "cost=decomp.costs.bytes, and all is in bytes",
        ),
        (
            dict(transfer=-1),
            decomp.errors.ArgumentError,
            "transfer= must be the price of a byte, a number of 0 or more, or a function, not -1",
        ),
        (
            dict(transfer=lambda size: None),
            CostError,
            "transfer= returned None for 12 bytes\n  to do: return a finite number that is not negative",
        ),
        (
            dict(transfer=lambda size: 1 / 0),
            CostError,
            f"transfer= failed on 12 bytes with ZeroDivisionError: division by zero\n{CORRECT}",
        ),
        (
            dict(host_cost=lambda call: call.foo),
            CostError,
            f"host_cost= failed on aten.tanh with AttributeError: 'Call' object has no attribute 'foo'\n{CORRECT}",
        ),
        (
            dict(host_cost=lambda call: None),
            CostError,
            "host_cost= returned None for a call of aten.tanh\n  to do: return a finite number that is not negative",
        ),
        (
            dict(cost=lambda call: 1 / 0, transfer=1, host_cost=1),
            CostError,
            f"cost= failed on aten.mul with ZeroDivisionError: division by zero\n{CORRECT}",
        ),
        (
            dict(parts=-1),
            decomp.errors.ArgumentError,
            "parts= must be the most parts on the chip, 0 or more, or None, not -1",
        ),
        (
            dict(host="nowhere"),
            decomp.errors.ArgumentError,
            "host= must be the device of the program, as host=\"cpu\", not 'nowhere'",
        ),
        (
            dict(host="cuda"),
            decomp.errors.ArgumentError,
            "the program is on cpu, and host= is 'cuda'\n  to do: pass host='cpu', or move the model and its inputs",
        ),
        (
            dict(args=None),
            decomp.CaptureError,
            "partition needs the shapes of the program, and every call of it as an op\n"
            "  to do: pass example inputs, args=(x,), or an ExportedProgram",
        ),
    ],
)
def test_a_wrong_argument_is_refused_by_name(given, error, message):
    with pytest.raises(error) as raised:
        decomp.partition(nn.Tanh(), **{"args": (torch.ones(3),), "to": chip.target, **given})
    assert str(raised.value) == message


class Returns(nn.Module):
    """Returns a value that nothing computes."""

    def __init__(self, value):
        super().__init__()
        self.value, self.weight = value, nn.Parameter(torch.ones(2))

    def forward(self, x):
        return {"nothing": None, "input": x, "weight": (self.weight, 3)}[self.value]


@pytest.mark.parametrize("value", ["nothing", "input", "weight"])
def test_a_program_without_calls_has_no_parts(value):
    model, x = Returns(value), torch.ones(3)
    found = decomp.partition(model, (x,), to=chip.target)
    assert found.parts == () and found.price == 0 and "0 of 0 calls on the chip, in 0 parts" in str(found)
    assert found.advice == () and decomp.partition(model, (x,), to=chip.target, parts=1).parts == ()
    torch.testing.assert_close(found(x), model(x))
    torch.testing.assert_close(chip.load(found)(x), model(x))


def test_a_program_that_computes_sizes_alone_is_on_the_host():
    class Counts(nn.Module):
        def forward(self, x, n):
            return x, n + 1

    x, sizes = torch.ones(3), {"x": None, "n": torch.export.Dim.DYNAMIC}
    found = decomp.partition(Counts(), (x, 4), to=chip.target, dynamic_shapes=sizes)
    assert [part.side for part in found.parts] == ["host"] and found(x, 5)[1] == 6


class Activated(nn.Module):
    """A gelu on each side of a sort."""

    def forward(self, x):
        return F.gelu(torch.sort(F.gelu(x + 1), -1).values * 2)


def test_composites_of_the_parts_run_by_the_chips_own_function():
    own, seen, x = numpy_arrays.make(), [], torch.randn(3, 4)
    found = decomp.partition(Activated(), (x,), to=own.target, rules=NO_SORT, composites={F.gelu})
    torch.testing.assert_close(found(x), Activated()(x))
    torch.testing.assert_close(own.load(found)(x), Activated()(x))

    @own.implements("gelu")
    def gelu(x, approximate="none"):
        seen.append(approximate)
        return F.gelu(torch.from_numpy(x)).numpy()

    torch.testing.assert_close(own.load(found)(x), Activated()(x))
    assert seen == ["none", "none"] and len(found.parts) == 3


class Shifted(nn.Module):
    def forward(self, x, y):
        return F.gelu(x + y) * torch.arange(x.shape[0])


def test_the_module_of_an_exported_program_keeps_its_guards():
    x, open_size = torch.randn(6), {0: Dim.AUTO}
    exported = torch.export.export(Shifted(), (x, x), dynamic_shapes={"x": open_size, "y": open_size}).module()
    assert exported.graph.find_nodes(op="call_module", target="_guards_fn")
    parts = decomp.partition(exported, (x, x), to=chip.target)
    loaded = chip.load(decomp.lower(exported, args=(x, x), to=chip.target))
    for program in (parts, parts.load(chip), loaded):
        torch.testing.assert_close(program(x[:4], x[:4]), exported(x[:4], x[:4]))
    # PyTorch would broadcast it: that the sizes are equal only the guards know.
    for program, error in (
        (parts, RuntimeError),
        (parts.load(chip), RuntimeError),
        (loaded, decomp.errors.WrongInputs),
    ):
        with pytest.raises(error):
            program(x, x[:1])
