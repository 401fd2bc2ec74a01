"""Targets: what is legal, under which condition, and what their files may say."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp import Target
from decomp_rules import targets
from tests.forms import Holder

aten = torch.ops.aten


def calls(*args, f):
    """The calls of an exported function."""

    class Model(nn.Module):
        def forward(self, *args):
            return f(*args)

    return decomp.calls(torch.export.export(Model(), args))


def call(*args, f):
    (found,) = calls(*args, f=f)
    return found


def test_any_spelling_names_an_op():
    chip = Target("chip", ["add", "mul", torch.exp, F.conv2d, aten.sum.dim_IntList])
    assert list(chip) == ["aten.add", "aten.conv2d", "aten.exp", "aten.mul", "aten.sum.dim_IntList"]
    assert "exp" in chip and torch.Tensor.exp in chip and nn.Conv2d in chip and "sub" not in chip
    assert repr(chip) == "Target('chip', 5 ops)" and len(chip) == 5


def test_an_overload_means_itself():
    chip = Target("chip", ["sum.dim_IntList"])
    x = torch.ones(2, 2)
    assert chip.why_illegal(call(x, f=lambda x: x.sum(1))) is None
    assert chip.why_illegal(call(x, f=lambda x: x.sum())) == ""
    assert "sum" in chip and "sum.default" not in chip


def test_a_condition_is_asked_of_the_call():
    chip = Target("chip").legal_if("conv2d", lambda call: call.argument("groups") == 1, "groups must be 1")
    x = torch.ones(1, 2, 5, 5)
    assert chip.why_illegal(call(x, torch.ones(2, 2, 3, 3), f=F.conv2d)) is None
    grouped = call(x, torch.ones(2, 1, 3, 3), f=lambda x, w: F.conv2d(x, w, groups=2))
    assert chip.why_illegal(grouped) == "groups must be 1"
    assert chip.conditions() == [("aten.conv2d", "groups must be 1")]


def test_conditions_of_one_op_add_up():
    chip = Target("chip", ["amax"])
    chip = chip.legal_if("amax", lambda call: call.argument("keepdim"), "keepdim")
    chip = chip.legal_if("amax", lambda call: call.tensors[0].dim() == 2, "2 dimensions")

    def ask(x, **options):
        return chip.why_illegal(call(x, f=lambda x: x.amax(0, **options)))

    assert ask(torch.ones(2, 2), keepdim=True) is None
    assert ask(torch.ones(2, 2)) == "keepdim"
    assert ask(torch.ones(2), keepdim=True) == "2 dimensions"
    assert chip.conditions() == [("aten.amax", "keepdim and 2 dimensions")]


def test_a_condition_reaches_overloads_that_were_named_one_by_one():
    chip = targets.core_aten.legal_if("sum", lambda call: False, "never")
    assert chip.why_illegal(call(torch.ones(2), f=lambda x: x.sum(0))) == "never"


def test_targets_compose():
    a, b = Target("a", ["add", "mul"]), Target("b", ["mul", "sub"])
    assert list(a | b) == ["aten.add", "aten.mul", "aten.sub"]
    assert list(a & b) == ["aten.mul"] and list(a - b) == ["aten.add"]
    assert list(a | {F.relu}) == ["aten.add", "aten.mul", "aten.relu"] and (a | {F.relu}).name == "a"
    assert ((a | b).name, (a & b).name, (a - b).name) == ("a | b", "a & b", "a - b")


def test_what_one_side_knows_unconditionally_stays_so():
    everything, one = Target("a", ["sum"]), Target("b").legal_if("sum.dim_IntList", lambda call: False, "never")
    summed = call(torch.ones(2), f=lambda x: x.sum(0))
    assert (everything | one).why_illegal(summed) is None
    assert (everything & one).why_illegal(summed) == "never"
    assert (everything - ["sum.dim_IntList"]).why_illegal(summed) == ""


def test_a_condition_that_fails_says_which():
    chip = Target("chip").legal_if("relu", lambda call: call.argument("speed") > 1, "speed is high")
    with pytest.raises(decomp.errors.TargetError) as caught:
        chip.why_illegal(call(torch.ones(2), f=F.relu))
    assert str(caught.value) == (
        "the condition 'speed is high' failed on aten.relu: \"aten.relu has no argument 'speed'; it has self\""
    )


def test_a_misspelt_op_is_refused():
    with pytest.raises(decomp.errors.UnknownOp, match="unknown op 'rleu'; did you mean 'relu'"):
        Target("chip", ["add", "rleu"])


def test_targets_of_the_library():
    assert targets.names() == (
        "core_aten",
        "coreai",
        "coremltools",
        "executorch",
        "iree",
        "litert",
        "luminal",
        "onnx",
        "onnxruntime",
        "openvino",
        "prims",
        "stablehlo",
        "tensorrt",
        "tinygrad",
        "torch_mlir",
        "torch_onnx",
        "tosa",
        "ttnn",
        "tvm",
    )
    assert set(targets.names()) < set(dir(targets))
    assert targets.tinygrad is targets.get("tinygrad") and targets.tinygrad.description
    assert "convolution" in targets.core_aten and "linear" not in targets.core_aten
    assert "prims.add" in targets.prims and "bmm" in targets.prims
    with pytest.raises(AttributeError, match="no target 'tpu'; there are core_aten, "):
        targets.tpu
    with pytest.raises(LookupError, match="no target 'tpu'; there are core_aten, "):
        targets.get("tpu")


def test_core_aten_is_what_pytorch_tags():
    named = [
        getattr(getattr(aten, key.split(".")[1]), (key.split(".") + ["default"])[2])
        for key in targets.core_aten
        if key != "aten.detach"
    ]
    assert all(torch.Tag.core in overload.tags for overload in named)


x, i = torch.rand(4, 4), torch.arange(4)


@pytest.mark.parametrize(
    "f, args",
    [
        (lambda x: x + 1, (x,)),
        (lambda x: x * x, (x,)),
        (lambda x: torch.where(x < 1, x, x), (x,)),
        (lambda i: torch.div(i, 2, rounding_mode="floor"), (i,)),
        (lambda i: i % 3, (i,)),
        (lambda x: x.sum(1), (x,)),
        (lambda x: x.amax((0, 1)), (x,)),
        (lambda x: x[1:3], (x,)),
        (lambda x: aten.constant_pad_nd(x, [1, 0]), (x,)),
        (lambda x: x.exp2().log2(), (x,)),
        (lambda x: x.view(2, 8).permute(1, 0).expand(3, 8, 2), (x,)),
        (lambda x: torch.pow(x, x), (x,)),
        (lambda x: torch.stack([x, x.flip(0)]), (x,)),
        (lambda x: aten._to_copy(x, dtype=torch.int64), (x,)),
        (lambda x: x.view(torch.int32), (x,)),
        (lambda x: torch.full((2,), 1.0), (x,)),
        (lambda i: i << 2, (i,)),
    ],
)
def test_what_tinygrad_knows(f, args):
    found = [call for call in calls(*args, f=f) if call.op.short != "lift_fresh_copy"]
    refused = {call.op.name: targets.tinygrad.why_illegal(call) for call in found}
    assert refused and set(refused.values()) == {None}, refused


@pytest.mark.parametrize(
    "f, args, reason",
    [
        (lambda x: torch.add(x, x, alpha=2), (x,), "alpha is 1"),
        (lambda x: x[::2], (x,), "step is 1"),
        (lambda x: aten.constant_pad_nd(x, [1, -1]), (x,), "pad is at least 0"),
        (lambda x: x.amax(), (x,), "dim is given"),
        (lambda x: aten.constant_pad_nd(x, [1, 1], 2.0), (x,), "value is 0"),
        (lambda x: x.fmod(2), (x,), "its result is integer"),
        (lambda x: torch.div(x, 2, rounding_mode="floor"), (x,), "its result is integer"),
        (lambda x: x.exp(), (x,), ""),
        (lambda x: x.sum(), (x,), ""),
        (lambda x: x.pow(2), (x,), ""),
        (lambda x: x @ x, (x,), ""),
    ],
)
def test_what_tinygrad_does_not_know(f, args, reason):
    refusals = [targets.tinygrad.why_illegal(call) for call in calls(*args, f=f)]
    assert reason in refusals


FILE = """
name = "chip"
description = "a small one"
ops = ["add", "sum.dim_IntList", "fmod", "amax"]
[[when]]
op = "add"
argument = "alpha"
equals = 1
[[when]]
op = "fmod"
dtype = ["integer", "bool"]
[[when]]
op = "amax"
argument = "dim"
length = 1
reason = "one dimension at a time"
"""


def written(path, text):
    path.write_text(text)
    return path


def test_a_file_says_the_same_as_code(tmp_path):
    chip = Target.load(written(tmp_path / "chip.toml", FILE))
    assert (chip.name, chip.description) == ("chip", "a small one")
    assert chip.conditions() == [
        ("aten.add", "alpha is 1"),
        ("aten.amax", "one dimension at a time"),
        ("aten.fmod", "its tensors are integer or bool"),
        ("aten.sum.dim_IntList", ""),
    ]
    assert chip.why_illegal(call(x, f=lambda x: torch.add(x, x, alpha=2))) == "alpha is 1"
    assert chip.why_illegal(call(x, f=lambda x: x.fmod(2))) == "its tensors are integer or bool"
    assert chip.why_illegal(call(i, f=lambda i: i.fmod(2))) is None
    assert chip.why_illegal(call(x, f=lambda x: x.amax((0, 1)))) == "one dimension at a time"


def test_the_tensors_of_a_call_that_takes_none_are_its_results(tmp_path):
    text = 'ops = ["rand", "arange"]\n[[when]]\nop = ["rand", "arange"]\ndtype = ["float32"]\n'
    chip = Target.load(written(tmp_path / "chip.toml", text))
    assert chip.why_illegal(call(x, f=lambda x: torch.rand(3))) is None
    assert chip.why_illegal(call(x, f=lambda x: torch.rand(3, dtype=torch.float64))) == "its tensors are float32"
    assert chip.why_illegal(call(x, f=lambda x: torch.arange(3))) == "its tensors are float32"


NARROW = """
ops = ["abs", "add", "index", "where.self", "max_pool2d", "detach"]
dtypes = ["float32", "integer", "bool"]
[[when]]
op = ["abs", "add"]
dtype = ["float32", "int64"]
[[when]]
op = "index"
argument = "indices"
tensors = 1
[[when]]
op = "where.self"
argument = "condition"
dtype = "bool"
[[when]]
op = "max_pool2d"
argument = "self"
rank = [4]
"""


AND_ONE = ", and one is float64"


def test_a_file_says_which_dtypes_ranks_and_tensors_a_call_may_have(tmp_path):
    chip = Target.load(written(tmp_path / "chip.toml", NARROW))

    def ask(f, *args):
        return chip.why_illegal(call(*args, f=f))

    everywhere, own = "its tensors are float32 or integer or bool", "its tensors are float32 or int64"
    assert ask(torch.abs, x) is None and ask(torch.abs, i) is None
    assert ask(torch.abs, i.short()) == ask(lambda i: i + i, i.int()) == ask(torch.abs, x.double()) == own
    assert ask(lambda x: torch.where(x, x, x), x > 0) is None
    assert ask(lambda x, y: torch.where(x, y, y), x > 0, x.double()) == everywhere + AND_ONE
    assert ask(lambda x, i: aten.index(x, [None, i]), x, i) is None
    assert ask(lambda x, i: aten.index(x, [i, i]), x, i) == "indices has tensors: 1"
    assert ask(lambda x: aten.max_pool2d(x, [1, 1]), x[None, None]) is None
    assert ask(lambda x: aten.max_pool2d(x, [1, 1]), x[None]) == "self has rank [4]"
    assert ask(lambda x: x.detach(), x.double()) is None and chip.surely_legal(decomp.op("detach"), None)


def test_a_target_in_python_says_which_dtypes_tensors_may_have(tmp_path):
    chip = Target("chip", ["abs", "add", "detach"], dtypes=[torch.float32, "integer"])
    text = 'ops = ["abs", "add", "detach"]\ndtypes = ["float32", "integer"]'
    file = Target.load(written(tmp_path / "chip.toml", text))
    assert chip.conditions() == file.conditions() == Target("c", chip).with_dtypes(["float32", "integer"]).conditions()
    assert repr(chip) == "Target('chip', 3 ops on float32, integer)" and repr(file) == repr(chip)
    assert chip.why_illegal(call(i, f=torch.abs)) is None and not chip.surely_legal(decomp.op("abs"), None)
    in_pairs = " (complex numbers become pairs of real ones where rules know how; see its reasons)"
    remarks = {torch.float64: "", torch.bool: "", torch.bfloat16: "", torch.complex64: in_pairs}
    for dtype, remark in remarks.items():
        said = f"its tensors are float32 or integer, and one is {str(dtype)[6:]}{remark}"
        assert chip.why_illegal(call(x.to(dtype), f=lambda x: x + x)) == said
    assert chip.surely_legal(decomp.op("detach"), None)
    with pytest.raises(
        decomp.errors.TargetError, match="unknown dtype 'flaot32'; known are float, complex, integer, bool"
    ):
        Target("chip", ["abs"], dtypes=["flaot32"])


def test_more_dtypes_are_legal_wherever_no_other_condition_is_against_it():
    chip = Target("chip", ["abs"], dtypes=["float32"]).legal_if("abs", lambda c: c.tensors[0].ndim == 2, "rank is 2")
    wider = chip.with_more_dtypes([torch.int64])
    assert wider.dtypes == ("float32", "int64") and wider.why_illegal(call(i, f=torch.abs)) == "rank is 2"
    assert wider.why_illegal(call(i[None], f=torch.abs)) is None
    refused = "its tensors are float32 or int64, and one is float16"
    assert wider.why_illegal(call(x[None].half(), f=torch.abs)) == refused
    assert chip.unknown_dtypes(call(i, f=torch.abs)) == {torch.int64} and not wider.unknown_dtypes(call(i, f=torch.abs))
    narrow = Target("chip", ["abs"], dtypes=["float32", "int32"]).narrowed()
    assert not narrow.unknown_dtypes(call(i, f=torch.abs))
    assert set(narrow.with_more_dtypes([torch.int64]).narrower) == {torch.float64}
    assert Target("chip", ["abs"]).with_more_dtypes([torch.int64]).dtypes is None


def test_of_dtypes_that_are_limited_twice_it_is_sure_which_are_legal():
    chip = Target("chip", ["abs"], dtypes=["float", "integer"]).with_dtypes(["float32", "int32", "bool"])
    assert chip.surely_legal_on(decomp.op("abs"), None) == {torch.float32, torch.int32}
    limited = chip.legal_if("abs", lambda c: True, "always")
    assert limited.surely_legal_on(decomp.op("abs"), None) == frozenset()


def test_dtypes_compose_as_ops_do():
    floats, ints = Target("a", ["abs"], dtypes=["float"]), Target("b", ["abs"], dtypes=["int64"])
    assert (floats | ints).dtypes == ("float", "int64") and (floats & ints).dtypes == ()
    assert (floats | ["add"]).dtypes == ("float",) and (floats | Target("c", ["add"])).dtypes is None
    assert (floats - ["add"]).dtypes == floats.named("d").dtypes == ("float",)
    assert floats.with_dtypes(["float32", "int64"]).dtypes == ("float32",)
    narrow = Target("d", ["add"], dtypes=["float32", "int32"]).narrowed()
    assert set((narrow | ints).narrower) == {torch.float64} and not (narrow | Target("e", ["add"])).narrower
    assert set((narrow & ints).narrower) == {torch.float64, torch.int64}
    assert (floats | ints).why_illegal(call(i, f=torch.abs)) is None
    assert pickle.loads(pickle.dumps(floats)).dtypes == ("float",)


CASTS = """
ops = ["_to_copy"]
[[when]]
op = "_to_copy"
any_of = [{dtype = "float", result = "float"}, {dtype = ["integer", "bool"], result = "integer"}]
"""


def test_a_file_may_say_that_one_of_several_tables_of_checks_must_hold(tmp_path):
    chip = Target.load(written(tmp_path / "chip.toml", CASTS))
    text = "its tensors are float and its result is float, or its tensors are integer or bool and its result is integer"
    assert chip.conditions() == [("aten._to_copy", text)]

    def ask(value, dtype):
        return chip.why_illegal(call(value, f=lambda value: torch.ops.aten._to_copy(value, dtype=dtype)))

    assert ask(x, torch.float16) is None and ask(i, torch.int16) is None
    assert ask(x, torch.int32) == ask(i, torch.float32) == text
    assert pickle.loads(pickle.dumps(chip)).conditions() == chip.conditions()


@pytest.mark.parametrize(
    "text, message",
    [
        ("nmae = 'chip'", "unknown key 'nmae'; known keys are name, description, ops, tags, namespaces, when"),
        ("ops = ['add'", "not valid TOML: Unclosed array (at end of document)"),
        ("ops = " + "[" * 5000 + "]" * 5000, "not valid TOML for a target: nested too deeply"),
        ("ops = 'add'", "'ops' must be a list of names"),
        ("name = 3", "'name' must be a string"),
        ("ops = ['rleu']", "unknown op 'rleu'; did you mean 'relu'"),
        ("tags = ['cor']", "unknown tag 'cor'; known tags are "),
        ("namespaces = ['nowhere']", "no op is registered in the namespace 'nowhere'"),
        ("when = 3", "'when' must be a list of tables: [[when]]"),
        ("[[when]]\nequals = 1", "each [[when]] needs an 'op'"),
        (
            "[[when]]\nop = 'add'",
            "[[when]] of add: needs exactly one check; checks are at_least, at_most, differs, "
            "dtype, equals, given, length, one_of, rank, result, tensors",
        ),
        ("[[when]]\nop = 'add'\nis = 1", "[[when]] of add: unknown key 'is'; checks are "),
        ("[[when]]\nop = 'add'\nequals = 1", "[[when]] of add: the check 'equals' needs an 'argument'"),
        (
            "[[when]]\nop = 'add'\nargument = 'alhpa'\nequals = 1",
            "[[when]] of add: no argument 'alhpa'; it has self, other, alpha",
        ),
        ("[[when]]\nop = 'amax'\nargument = 'dim'\nlength = 'one'", "[[when]] of amax: 'length' cannot be 'one'"),
        (
            "[[when]]\nop = 'add'\ndtype = 'flaot'",
            "[[when]] of add: unknown dtype 'flaot'; known are float, complex, integer, bool, and names as float32",
        ),
        (
            "[[when]]\nop = 'add'\nargument = 'it'\ndtype = 'float'",
            "[[when]] of add: no argument 'it'; it has self, other, alpha",
        ),
        ("dtypes = ['float33']", "'dtypes': unknown dtype 'float33'; known are float, "),
        ("[[when]]\nop = 'add'\nany_of = []", "[[when]] of add: 'any_of' must be a list of tables of checks"),
        (
            "[[when]]\nop = 'add'\nresult = 'float'\nany_of = [{dtype = 'float'}]",
            "[[when]] of add: 'result' beside any_of: move it into its tables",
        ),
        (
            "[[when]]\nop = 'add'\nany_of = [{argument = 'alpha'}]",
            "[[when]] of add: needs a check in each table of any_of; checks are at_least, at_most, differs, ",
        ),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, text, message):
    path = written(tmp_path / "chip.toml", text)
    with pytest.raises(decomp.errors.TargetError) as caught:
        Target.load(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_misspelt_op_in_a_file_is_an_unknown_op_too(tmp_path):
    with pytest.raises(decomp.errors.UnknownOp, match="chip.toml: unknown op 'rleu'"):
        Target.load(written(tmp_path / "chip.toml", "ops = ['rleu']"))


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(decomp.errors.TargetError) as caught:
        Target.load(tmp_path / "none.toml")
    assert str(caught.value) == f"{tmp_path / 'none.toml'}: cannot be read: No such file or directory"


@pytest.mark.parametrize("path", [None, 3, b"chip.toml", []])
def test_what_is_no_path_is_no_target_file(path):
    with pytest.raises(
        decomp.errors.TargetError, match=f"the path of a target must be a string or Path, not {type(path).__name__}"
    ):
        decomp.Target.load(path)


def test_an_op_is_surely_legal_on_the_dtypes_of_a_target():
    conditional = Target("chip", ["add", "mul", "detach"]).legal_if("mul", lambda call: True, "on some days")
    chip = conditional.with_dtypes(["float32", "bool"])
    add, mul, exp, detach = map(decomp.op, ["add", "mul", "exp", "detach"])
    assert chip.surely_legal_on(add, "Tensor") == {torch.float32, torch.bool} and not chip.surely_legal(add, "Tensor")
    assert not chip.surely_legal_on(mul, "Tensor") and not chip.surely_legal_on(exp, "default")
    assert chip.surely_legal(detach, "default") and not conditional.surely_legal_on(add, "Tensor")


def test_tensorrt_has_the_conditions_of_its_sources():
    tensorrt = targets.tensorrt

    class Pools(nn.Module):
        def forward(self, x, ceil_mode):
            return nn.functional.max_pool2d(x, 2, ceil_mode=ceil_mode)

    for ceil_mode in (False, True):
        lowering = decomp.lower(Pools(), to=tensorrt, args=(torch.randn(1, 2, 5, 5), ceil_mode), training=False)
        assert bool(decomp.calls(lowering.result, F.max_pool2d)) is not ceil_mode
    assert "batch_norm" in tensorrt and "sort" not in tensorrt and "float64" not in tensorrt.dtypes


def test_complex_numbers_are_neither_at_least_nor_at_most_another():
    ends = torch.export.export(Holder(lambda x: torch.linspace(0.0, 2 + 3j, 4) + x), (torch.ones(4),))
    lowered = decomp.lower(ends, to=targets.openvino, training=False).result
    assert all(call.op.short != "linspace" for call in decomp.calls(lowered))
