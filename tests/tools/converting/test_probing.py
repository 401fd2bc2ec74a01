"""The target that a converter's answers make: what is in it, under which conditions, and what is left out and why."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import decomp
from decomp.tools.converting.asking import AskedCall, AskJob, DescribedTensor, calls_to_ask
from decomp.tools.converting.conditions import FileCondition, conditions_of
from decomp.tools.converting.probing import probe
from tests.tools.converting import fakes

OVERLOADS = (
    "aten.topk.default",
    "aten.cumsum.default",
    "aten.erfinv.default",
    "aten.neg.default",
    "aten.view_as_real_copy.default",
)


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    found = probe(fakes.PARTLY, OVERLOADS)
    path = tmp_path_factory.mktemp("probed") / "partly.toml"
    path.write_text(found.as_toml(), encoding="utf-8")
    return found, path.read_text(encoding="utf-8"), decomp.Target.load(path)


def test_a_target_has_the_calls_that_are_converted_and_right(probed):
    found, _, target = probed
    assert {op.name for op in found.ops if op.legal} == {"topk.default", "cumsum.default", "neg.default"}
    assert all(name in target for name in ("cumsum", "neg", "topk")) and "erfinv" not in target
    version = torch.__version__.partition("+")[0]
    assert target.description == (
        f"partly {pytest.__version__} on torch {version} converts 3 of 4 overloads and computes them right, "
        "2 of them under conditions"
    )


def test_what_is_refused_for_an_argument_is_legal_under_a_condition(probed):
    _, _, target = probed

    class Top(nn.Module):
        def forward(self, x):
            return torch.topk(x, 2, 1, False).values

    x = torch.randn(3, 5)
    plan = decomp.plan(Top(), to=target, args=(x,))
    assert "the target accepts it under a condition: largest is True" in str(plan)


def test_what_is_wrong_for_a_dtype_is_legal_for_the_others(probed):
    _, text, target = probed
    assert decomp.plan(Sum(), to=target, args=(torch.randn(3, 5),)).complete
    assert not decomp.plan(Sum(), to=target, args=(torch.ones(3, 5, dtype=torch.int64),)).complete
    assert 'op = "cumsum.default"\ndtype = ["bfloat16", "float16", "float32", "float64"]\n' in text


class Sum(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 1)


def test_what_is_left_out_is_listed_with_the_reason(probed):
    _, text, _ = probed
    left_out = text.partition("# Left out")[2]
    assert "# erfinv.default: crashes: crashes: SIGSEGV" in left_out


def test_an_approximation_is_wrong_that_the_comparison_of_a_whole_model_would_refuse():
    exp, tanh = probe(fakes.APPROXIMATE, ["aten.exp.default", "aten.tanh.default"], dtypes=["float32"]).ops
    assert tanh.legal and not tanh.conditions
    assert not exp.legal and exp.problem.startswith("wrong: off by ")


def test_a_target_has_no_complex_dtypes_as_few_ops_are_asked_in_them(probed):
    found, _, target = probed
    assert "float32" in found.dtypes and not any(dtype.startswith("complex") for dtype in found.dtypes)
    assert "view_as_real_copy" not in target


def test_calls_behind_several_that_are_refused_are_asked_too():
    """Those in integers come between those in floats: that these are refused says nothing of the rest."""
    answers = AskJob(fakes.FLOATS, ("aten.cumsum.default",)).run()
    kinds = {("float" in str(each.dtypes), each.verdict) for each in answers}
    assert kinds == {(True, "right"), (False, "refused")}


def test_weights_are_inputs_unless_the_converter_is_asked_with_constants():
    job = AskJob(fakes.WEIGHTS, ("aten.convolution.default", "aten.neg.default"), dtypes=("float32",))
    answers = {(each.overload.split(".")[1], each.verdict) for each in job.run()}
    assert answers == {("convolution", "refused"), ("neg", "right")}
    constant = replace(fakes.WEIGHTS, constants={"convolution": ("weight", "bias")})
    assert {each.verdict for each in replace(job, converter=constant).run()} == {"right"}


def test_a_converter_may_be_asked_in_some_dtypes_alone():
    found = probe(fakes.PARTLY, ["aten.cumsum.default"], dtypes=["float32", "bool"])
    assert found.dtypes == ("float32",) and not found.ops[0].conditions
    assert found.headline.endswith(
        "1 of 1 overload and computes them right, 0 of them under conditions; asked in float32, bool"
    )
    with pytest.raises(decomp.errors.ArgumentError) as raised:
        probe(fakes.PARTLY, ["aten.cumsum.default"], dtypes=["flaot32"])
    assert str(raised.value) == (
        "unknown dtype 'flaot32'; known are float, complex, integer, bool, and names as float32"
    )


def test_calls_of_floats_of_eight_bits_which_have_no_arithmetic_are_asked_too():
    calls = calls_to_ask(torch.ops.aten._scaled_mm.default)
    assert calls and all(torch.float8_e4m3fn in {t.dtype for t in call.tensors} for call in calls)


def test_calls_are_asked_at_values_where_a_converter_may_fail_that_is_right_elsewhere():
    (matrix,) = calls_to_ask(torch.ops.aten.linalg_det.default, ["float32"])[-1].tensors
    assert (matrix[0, 0], torch.linalg.det(matrix)) == (0, 1)
    values = [call.tensors[0] for call in calls_to_ask(torch.ops.aten.reciprocal.default, ["float32"])]
    assert any((each == 0).any() and each.isnan().any() for each in values)


def call(verdict, dtype="float32", rank=2, **arguments):
    return AskedCall(
        "aten.topk.default", verdict, arguments={"x": DescribedTensor(dtype, rank), **arguments}, dtypes=(dtype,)
    )


def masked(verdict, dtype):
    """A call of which another tensor is a mask."""
    return replace(call(verdict, dtype, mask=DescribedTensor("bool", 2)), dtypes=(dtype, "bool"))


@pytest.mark.parametrize(
    ("calls", "conditions"),
    [
        ([call("right"), call("right", "int64")], []),
        ([call("right"), call("refused", "int64")], [FileCondition("dtype", ["float32"])]),
        ([masked("right", "int64"), masked("refused", "bool")], [FileCondition("dtype", ["int64"], "x")]),
        ([call("right", k=1), call("wrong", k=2)], [FileCondition("equals", 1, "k")]),
        ([call("right", k=2), call("wrong", k=-1)], [FileCondition("at_least", 0, "k")]),
        ([call("right", dim=[1]), call("wrong", dim=[0, 1])], [FileCondition("length", 1, "dim")]),
        ([call("right", dim=None), call("refused", dim=1)], [FileCondition("given", False, "dim")]),
        ([call("right", rank=4), call("refused", rank=0)], [FileCondition("rank", [1, 2, 3, 4, 5, 6, 7, 8], "x")]),
        ([call("right"), call("wrong")], None),
    ],
)
def test_conditions_tell_right_calls_from_others(calls, conditions):
    assert conditions_of(calls) == conditions


def test_the_target_that_ships_is_as_it_was_made_and_names_the_version():
    from decomp_rules import targets

    assert "openvino 2026" in targets.openvino.description
    assert "kthvalue" not in targets.openvino and "convolution" in targets.openvino
    assert "executorch 1.5" in targets.executorch.description
    assert "sort" not in targets.executorch and "topk" in targets.executorch


def test_executorch_takes_convolutions_of_images_and_not_of_volumes():
    from decomp_rules import targets

    image, volume = torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 4, 4)
    for module, x, taken in ((nn.Conv2d(2, 3, 2), image, True), (Volume(), volume, False)):
        plan = decomp.plan(module, to=targets.executorch, args=(x,), rules=decomp.Rules())
        assert plan.complete is taken


class Volume(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 2, 2, 2))

    def forward(self, x):
        return torch.convolution(x, self.weight, None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)
