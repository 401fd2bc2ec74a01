"""`Lowering.save` and `PortableProgram.read`: what is written, that it says what the schema says, and that it runs."""

import copy
from importlib import resources
import json
import operator

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch.nn import functional as F

import decomp
from decomp.errors import NotPortable
from decomp.ir.composites import CompositeCall, composites_in
from decomp.portable import expressions, weights
from decomp.results import PortableProgram
from decomp_rules import backends, samples, targets
from tests.derive.nested import NESTED, NESTED_RULES, Nested, queries

NUMPY = backends.get("numpy")
SCHEMA = json.loads(resources.files("decomp.portable").joinpath("program.schema.json").read_text("utf-8"))


def saved(lowering, folder, **options):
    """The program in a folder, checked against the schema."""
    path = lowering.save(folder / "program.json", **options)
    document = json.loads(path.read_text("utf-8"), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    pytest.importorskip("jsonschema").Draft202012Validator(SCHEMA).validate(document)
    return document


def lowered(model, args, to=NUMPY.target, **options):
    return decomp.lower(model, to=to, args=args, verify=False, **options)


def assert_same(lowering, folder, *calls):
    """The program runs on NumPy, and in PyTorch, as the lowered one does: results, and what is written to inputs."""
    document = saved(lowering, folder)
    result = lowering.result.module() if isinstance(lowering.result, torch.export.ExportedProgram) else lowering.result
    read = PortableProgram.read(folder / "program.json")
    for args in calls:
        runs = []
        for run in (copy.deepcopy(result), NUMPY.load(read.module), copy.deepcopy(read.module)):
            own = copy.deepcopy(args)
            with torch.no_grad():
                runs.append((run(*own), own))
        for found in runs[1:]:
            torch.testing.assert_close(found, runs[0], equal_nan=True)
    return document


@pytest.mark.parametrize("name", ["mlp", "lstm", "encoder"])
def test_a_model_gives_the_same_numbers_after_it_was_written_and_read(name, tmp_path):
    model, args = samples.models.model(name)
    assert_same(lowered(model.eval(), args), tmp_path, args)


class Stateful(nn.Module):
    """Open sizes, state, control flow, nested containers, and results that are not tensors."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.linear = nn.Linear(4, 3)

    def forward(self, x, more):
        self.count.add_(self.linear(x).sum(0))
        x.mul_(2)
        chosen = torch.cond(x.sum() > 0, lambda x: x * 3, lambda x: x - 1, (x,))
        return {"chosen": chosen, "n": x.shape[0] * 2, "view": more["a"].view(x.shape[0], 8), "none": None, "x": x}


def test_open_sizes_state_and_control_flow_are_written_and_read(tmp_path):
    length = torch.export.Dim("length", min=3, max=64)
    shapes = {"x": {0: length}, "more": {"a": {0: 2 * length}}}
    args = (torch.randn(5, 4), {"a": torch.randn(10, 4)})
    program = torch.export.export(Stateful(), args, dynamic_shapes=shapes)
    longer = (-torch.rand(7, 4), {"a": torch.randn(14, 4)})
    document = assert_same(decomp.lower(program, to=NUMPY.target, verify=False), tmp_path, args, longer)

    (symbol,) = document["symbols"]
    assert (symbol["min"], symbol["max"], symbol["example"]) == (3, 64, 5)
    main = document["graphs"][0]
    shape = {each["name"]: main["values"][each["value"]]["shape"] for each in main["inputs"]}
    assert shape == {"x": [symbol["name"], 4], "more_a": [["mul", 2, symbol["name"]], 4]}
    assert [each["name"] for each in document["graphs"][1:]] == ["true_graph_0", "false_graph_0"]
    (branches,) = [each["arguments"] for each in main["calls"] if each["op"] == "higher_order.cond"]
    assert [branches["true_fn"], branches["false_fn"]] == [{"graph": 1}, {"graph": 2}]
    names = {each["value"]: each["tensor"] for each in main["tensors"]}
    inputs = {each["value"]: each["name"] for each in main["inputs"]}
    to = [document["tensors"][names[w["to"]]]["name"] if w["to"] in names else inputs[w["to"]] for w in main["writes"]]
    assert to == ["count", "x"]
    assert main["output_tree"]["names"] == ["chosen", "n", "view", "none", "x"] and main["outputs"][3] is None

    read = NUMPY.load(PortableProgram.read(tmp_path / "program.json").module)
    with pytest.raises(decomp.errors.InputMismatch, match=r"lowered for x.shape\[0\] >= 3"):
        read(torch.randn(2, 4), {"a": torch.randn(4, 4)})
    with pytest.raises(decomp.errors.InputMismatch, match=r"a dict of 'b', the program was lowered for a dict of 'a'"):
        read(torch.randn(5, 4), {"b": torch.randn(10, 4)})


class Loops(nn.Module):
    def forward(self, x):
        last, all_of_them = scan(lambda carry, row: (carry + row, carry * 2), x[0], x, dim=0)
        start = torch.zeros((), dtype=torch.int64)
        _, grown = while_loop(lambda n, z: n < 3, lambda n, z: (n + 1, z * 1.5), (start, x))
        with torch.no_grad():
            inside = x * 3
        return last, all_of_them, grown, inside, x.t(), x


def test_loops_are_bodies_and_regions_are_written_in_their_place(tmp_path):
    args = (torch.randn(5, 4),)
    document = assert_same(lowered(Loops(), args), tmp_path, args)
    ops = [each["op"] for each in document["graphs"][0]["calls"]]
    assert [op for op in ops if op.startswith("higher_order")] == ["higher_order.scan", "higher_order.while_loop"]
    assert {each["output"] for each in document["graphs"][0]["shared"]} == {4, 5}


class Memory(nn.Module):
    """Tensors that share memory, an empty one, one of no dimensions, and one that is expanded."""

    def __init__(self):
        super().__init__()
        whole = torch.randn(6, 4)
        self.rows = nn.Parameter(whole[:3])
        self.tied = self.rows
        self.register_buffer("others", whole[2:])
        self.register_buffer("turned", whole.t())
        self.register_buffer("empty", torch.zeros(0, 4))
        self.register_buffer("number", torch.tensor(3.5))
        self.register_buffer("x", torch.randn(3, 1).expand(3, 4))  # the name of the input

    def forward(self, x):
        infinite = torch.where(x > 0, x, float("-inf"))
        shared = self.rows + self.others[:3] + self.turned.t()[:3] + self.tied
        return shared, torch.cat([self.empty, x]) * self.number, infinite, torch.full((2,), float("nan")), [self.x, x]


def test_memory_is_written_once_whatever_its_strides(tmp_path):
    args = (torch.randn(2, 4),)
    document = assert_same(lowered(Memory(), args), tmp_path, args)
    tensors = {each["name"]: each for each in document["tensors"]}
    first = tensors["turned"]["offset"]
    assert tensors["turned"]["strides"] == [1, 4] and first % weights.ALIGNMENT == 0
    assert [tensors[name]["offset"] - first for name in ("tied", "others") if name in tensors] == [0, 2 * 4 * 4]
    assert (tmp_path / "program.weights").stat().st_size == document["weights"]["bytes"] <= 3 * weights.ALIGNMENT + 16
    assert '{"float":"-inf"}' in (tmp_path / "program.json").read_text() and "NaN" not in str(document)


def test_the_files_are_the_same_every_time(tmp_path):
    model, args = samples.models.model("mlp")
    found = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        path = lowered(copy.deepcopy(model), args).save(tmp_path / name / "program.json")
        found.append((path.read_bytes(), path.with_suffix(".weights").read_bytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "complex64", "uint4", "bool", "int64"])
def test_weights_of_every_dtype_are_written_and_read(dtype, tmp_path):
    dtype = getattr(torch, dtype)
    tensor = torch.arange(64, dtype=torch.uint8).remainder(2).view(dtype)
    odd = torch.arange(9, dtype=torch.uint8)[1:]
    placed = weights.place([odd, tensor, None])
    weights.write(placed, tmp_path / "w")
    file = weights.WeightsFile(tmp_path / "w", placed.size)
    described = {"name": "w", "shape": list(tensor.shape), "offset": placed.offsets[1]}
    assert torch.equal(file.tensor(described, dtype).view(torch.uint8), tensor.view(torch.uint8))
    assert placed.offsets[2] is None
    with pytest.raises(ValueError, match="is not within the weights"):
        file.tensor({**described, "shape": [4096]}, dtype)


def test_complex_numbers_and_conjugates_are_written(tmp_path):
    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.by = nn.Parameter(torch.randn(3, dtype=torch.complex64))
            self.other = torch.randn(3, dtype=torch.complex64).conj()

        def forward(self, x):
            return x * self.by * (1 + 2j) * self.other

    lowering = lowered(Turns(), args := (torch.randn(3, dtype=torch.complex64),), to=targets.core_aten)
    calls = saved(lowering, tmp_path)["graphs"][0]["calls"]
    assert {"complex": [1.0, 2.0]} in [value for call in calls for value in call["arguments"].values()]
    module = PortableProgram.read(tmp_path / "program.json").module
    torch.testing.assert_close(module(*args), lowering.result(*args))


def test_sizes_that_depend_on_data_are_symbols_without_an_example(tmp_path):
    class Positive(nn.Module):
        def forward(self, x):
            found = torch.nonzero(x > 0)
            return found * 2, x.new_zeros(found.shape[0] + 3)

    args = (torch.rand(4, 2) + 0.1,)
    lowering = lowered(Positive(), args, to=targets.core_aten)
    assert [each["example"] for each in saved(lowering, tmp_path)["symbols"]] == [None]
    module = PortableProgram.read(tmp_path / "program.json").module
    torch.testing.assert_close(module(*args), lowering.result(*args))


def test_a_program_lowered_to_train_is_written_without_its_gradients(tmp_path):
    model, args = samples.models.model("mlp")
    module = torch.fx.symbolic_trace(model)
    lowering = lowered(module, args, training=True)
    assert all(each["trains"] for each in saved(lowering, tmp_path)["tensors"])
    read = PortableProgram.read(tmp_path / "program.json").module
    read(*args).sum().backward()
    lowering.result(*args).sum().backward()
    torch.testing.assert_close(read.get_parameter("0.weight").grad, lowering.result.get_parameter("0.weight").grad)


class Named(nn.Module):
    """Composites with a constant, within each other, with a size as an operand, and with several results."""

    def forward(self, x):
        y = Nested()(x)
        half = F.softmax(y, -1, dtype=torch.float64).repeat(1, 1, x.shape[2], 1)
        return half, torch.nan_to_num(y, posinf=float("inf")), y.max(1)[1]


def test_composites_are_functions_of_the_program(tmp_path):
    ops = {**NESTED, "repeat": 1, "nan_to_num": 1, "max": 3}
    sizes = {"dynamic_shapes": ({2: torch.export.Dim("rows", min=2, max=64)},), "rules": NESTED_RULES}
    lowering = lowered(Named(), (queries(),), composites=ops, **sizes)
    document = assert_same(lowering, tmp_path, (queries(),), (queries(7),))

    calls = [[call for call in graph["calls"] if "composite" in call] for graph in document["graphs"]]
    named = {call["composite"]["name"]: call["composite"] for call in calls[0]}
    assert [*named] == [f"aten.{op}" for op in "scaled_dot_product_attention softmax repeat nan_to_num max".split()]
    assert named["aten.softmax"]["version"] == 2 and named["aten.softmax"]["attributes"]["dtype"] == {
        "dtype": "float64"
    }
    assert named["aten.nan_to_num"]["attributes"]["posinf"] == {"float": "inf"}
    assert {"operand": 1} in named["aten.repeat"]["operands"]["repeats"] and named["aten.max"]["results"] == [1]
    inside = calls[calls[0][0]["arguments"]["body"]["graph"]]
    assert [call["composite"]["name"] for call in inside] == ["aten.softmax"]

    read = PortableProgram.read(tmp_path / "program.json").module
    assert flat_calls(read) == flat_calls(lowering.result)
    said = [[*composites_in(program.graph).values()] for program in (read, lowering.result)]
    assert said[0] == said[1]


def flat_calls(module):
    """The calls of a program, those of the bodies of its composites in their place."""
    found = []
    for node in module.graph.nodes:
        if CompositeCall.of(node) is not None:
            found += flat_calls(module.get_submodule(node.args[0].target))
        elif node.op == "call_function" and node.target is not operator.getitem:
            found.append((str(node.target), len(node.all_input_nodes)))
    return found


def test_a_backend_runs_the_composites_of_a_program_that_it_knows(tmp_path):
    lowered(nn.GELU(approximate="tanh"), (torch.randn(3),), composites={"gelu"}).save(tmp_path / "program.json")
    chip, seen = backends.numpy_arrays.make(), []
    chip.implements("gelu")(lambda x, approximate="none": seen.append(approximate) or x)
    chip.load(PortableProgram.read(tmp_path / "program.json").module)(torch.randn(3))
    assert seen == ["tanh"]


def test_numbers_that_were_narrowed_are_marked(tmp_path):
    model, args = samples.models.model("gpt")
    narrow = targets.tinygrad.with_dtypes(["float32", "int32", "bool"])
    lowering = lowered(model.eval(), args, to=narrow, narrow=True)
    document = saved(lowering, tmp_path)
    read = PortableProgram.read(tmp_path / "program.json").module
    assert read.meta["custom"]["narrower"] == document["narrower"] == lowering.result.meta["custom"]["narrower"]


def test_a_model_without_weights_is_refused_or_written_without_them(tmp_path):
    with torch.device("meta"):
        model, args = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), (torch.randn(2, 4),)
    lowering = lowered(model, args, training=False)
    with pytest.raises(NotPortable) as error:
        lowering.save(tmp_path / "program.json")
    assert str(error.value) == (
        "the parameter '0.weight' and 1 more has no values (the meta device or fake tensors)\n"
        "  to do: lower the model with its weights, or write the program without them: save(path, weights=False), "
        "decomp lower --no-weights"
    )
    assert [each["offset"] for each in saved(lowering, tmp_path, weights=False)["tensors"]] == [None, None]
    loaded = NUMPY.load(PortableProgram.read(tmp_path / "program.json").module)
    real, x = nn.Linear(4, 3), torch.randn(2, 4)
    loaded.load_state_dict({"0.weight": real.weight.detach(), "0.bias": real.bias.detach()})
    torch.testing.assert_close(loaded(x), real(x).relu().detach())


def test_a_program_without_shapes_is_refused(tmp_path):
    with pytest.raises(NotPortable) as error:
        decomp.lower(torch.fx.symbolic_trace(nn.ReLU()), to=decomp.Target("chip", ["relu"])).save(tmp_path / "p.json")
    assert str(error.value) == (
        "node 'input_1' (placeholder input) has no dtype and no shape, which the file has of every value\n"
        "  to do: lower the model with example inputs, decomp.lower(model, to=..., args=...)"
    )


def test_a_weight_that_is_no_array_is_refused():
    class Own(torch.Tensor):
        pass

    with pytest.raises(NotPortable) as error:
        weights.values_of(torch.zeros(2).as_subclass(Own), "the buffer 'w'")
    assert str(error.value) == (
        "the buffer 'w' is a Own, a subclass of Tensor, whose memory only its own code can read\n"
        "  to do: replace it by a plain tensor before the model is lowered"
    )
    with pytest.raises(NotPortable, match="the buffer 'w' is a coo sparse tensor, which is not one array"):
        weights.values_of(torch.zeros(2).to_sparse(), "the buffer 'w'")


def test_files_that_cannot_be_written_or_read_are_named(tmp_path):
    model, args = samples.models.model("mlp")
    lowering = lowered(model, args)
    with pytest.raises(
        decomp.errors.ArgumentError, match=r"p.bin must end in .json; the weights go beside it, into p.weights"
    ):
        lowering.save(tmp_path / "p.bin")
    with pytest.raises(decomp.errors.ArgumentError, match="unexpected keyword argument 'weight'"):
        lowering.save(tmp_path / "p.json", weight=False)
    with pytest.raises(decomp.errors.ArgumentError, match="save: cannot write .*: No such file or directory"):
        lowering.save(tmp_path / "no" / "p.json")
    with pytest.raises(decomp.errors.ArgumentError, match="cannot read .*: No such file or directory"):
        PortableProgram.read(tmp_path / "p.json")
    path = lowering.save(tmp_path / "p.json")
    text = path.read_text()
    damaged = {
        "is not a program, or is damaged": "{",
        "is of format 9, and this decomp reads format 2": text.replace('"format": 2', '"format": 9'),
        "is not an op of this PyTorch, or of a library that is imported": text.replace("aten.", "aten_."),
        "the name '__class__.x'": text.replace('"0.weight"', '"__class__.x"'),
        "has no argument other2": text.replace('"other":', '"other2":'),
        "its weights are in '../p.weights'": text.replace('"p.weights"', '"../p.weights"'),
        "has .* bytes, not 99999": text.replace('"bytes":', '"bytes":99999,"was":'),
    }
    for said, content in damaged.items():
        path.write_text(content)
        with pytest.raises(decomp.errors.ArgumentError, match=said):
            PortableProgram.read(path)


DAMAGED = {
    "no graphs": (lambda found: found.update(graphs=[]), "list index out of range"),
    "a graph too few": (lambda found: found["graphs"][0]["tensors"][0].update(tensor=99), "list index out of range"),
    "a negative size": (
        lambda found: found["graphs"][0]["values"][0].update(shape=[-3, 4]),
        r"Trying to create tensor with negative dimension -3: \[-3, 4\]",
    ),
    "no arguments": (
        lambda found: found["graphs"][0]["calls"][1].update(arguments={}),
        "a call of aten.mul.Tensor lacks self, other",
    ),
    "no list": (lambda found: found["graphs"][0].update(outputs="x"), "the outputs 'x' are not a list"),
    "a bound": (
        lambda found: found.update(symbols=[{"name": "s0", "min": "a", "max": 3, "example": 2}]),
        "not simple sympy type",
    ),
}


@pytest.mark.parametrize("damage, text", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_refused_when_the_program_is_read(tmp_path, damage, text):
    path = lowered(nn.Linear(4, 4), (torch.randn(3, 4),)).save(tmp_path / "p.json")
    found = json.loads(path.read_text())
    damage(found)
    path.write_text(json.dumps(found))
    with pytest.raises(decomp.errors.ArgumentError, match=rf"p.json is a damaged program: ValueError: .*({text})"):
        PortableProgram.read(path)


def test_a_damaged_composite_is_named(tmp_path):
    path = lowered(nn.GELU(), (torch.randn(3),), composites={"gelu"}).save(tmp_path / "p.json")
    path.write_text(path.read_text().replace('"name":"aten.gelu"', '"name":7'))
    with pytest.raises(decomp.errors.ArgumentError, match="is a damaged program: .* the composite {'name': 7,"):
        PortableProgram.read(path)


def test_every_function_of_sizes_is_in_the_schema():
    (listed,) = SCHEMA["$defs"]["size"]["oneOf"][2]["prefixItems"]
    assert tuple(listed["enum"]) == expressions.FUNCTIONS
    assert expressions.read(["max", 2, ["floordiv", ["add", "s0", 1], 2]], {"s0": 6}) == 3
