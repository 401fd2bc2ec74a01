"""A backend as a table: which function serves a call, what is missing, and the target that a table makes."""

import pytest
import torch

import decomp
from decomp_rules import targets
from tests.forms import exported


def made(target=None, **options):
    """A backend on which torch tensors are the arrays."""
    return decomp.Backend("chip", target, from_torch=lambda x: x, to_torch=lambda x: x, **options)


def test_a_function_serves_all_overloads_and_one_of_an_overload_goes_before():
    chip = made()
    chip.implements("sum")(lambda x, dim=None, keepdim=False: ("any", dim, keepdim))
    chip.implements("sum.dim_IntList")(lambda x, dim, keepdim=False: x[:1] * 0 + 7)
    chip.implements("mul", "add")(lambda a, b: a * 0 + 3)
    loaded = chip.load(exported(lambda x: (x + 1).sum([0], True), torch.ones(2)))
    assert loaded(torch.ones(2)).tolist() == [7]
    assert [step.kwargs for step in loaded.steps] == [{}, {"keepdim": True}]


def test_a_condition_chooses_among_functions_the_last_first():
    chip = made()
    chip.implements("mul")(lambda a, b: a * b)
    wide = chip.implements("mul", when=lambda call: call.tensors[0].numel() > 2, reason="more than two elements")
    wide(lambda a, b: a * 0)
    assert chip.load(exported(lambda x: x * 3, torch.ones(2)))(torch.ones(2)).tolist() == [3, 3]
    assert chip.load(exported(lambda x: x * 3, torch.ones(3)))(torch.ones(3)).tolist() == [0, 0, 0]


def test_a_condition_needs_words():
    with pytest.raises(decomp.errors.TargetError, match="reason="):
        made().implements("mul", when=lambda call: True)


def test_an_unknown_op_is_refused_where_it_is_written():
    with pytest.raises(decomp.errors.UnknownOp, match="did you mean"):
        made().implements("softmaxx")


def test_a_table_is_copied_by_its_keys():
    one, other = made(), made()
    one.implements("add", "sum.dim_IntList", "cond")(max)
    for each in one:
        other.implements(each.key)(each.function)
    assert [each.key for each in other] == [each.key for each in one] and other.target.conditions()


def test_what_of_the_target_has_no_function_is_missing():
    chip = made(decomp.Target("chip", ["add", "mul", "sum.dim_IntList", "amax"]))
    chip.implements("add", "sum")(lambda *args: args)
    assert chip.missing() == ("aten.amax", "aten.mul")
    chip.implements("amax", "mul.Tensor")(lambda *args: args)
    assert chip.missing() == ("aten.mul",)  # mul.Scalar is legal too


def test_the_target_of_a_table_is_what_it_implements():
    chip = made()
    chip.implements("add", "exp2", "cond")(lambda *args: args)
    chip.implements("mul", when=lambda call: call.tensors[0].dtype == torch.float32, reason="float32 only")(max)
    assert chip.target.name == "chip"
    assert chip.target.conditions() == [("aten.add", ""), ("aten.exp2", ""), ("aten.mul", "float32 only")]
    wider = chip.target | ["reciprocal", "where", "lt", "eq"]
    lowered = decomp.lower(torch.nn.Sigmoid(), to=wider, args=(torch.ones(2),), accuracy="fast")
    assert {call.op.short for call in decomp.calls(lowered.result)} <= {"add", "exp2", "mul", "reciprocal"}


def test_every_op_that_is_missing_is_named_before_anything_runs():
    chip = made(targets.tinygrad, dtypes={torch.float32: "f32"})
    ran = []
    chip.implements("add")(lambda a, b: ran.append(1))
    program = exported(lambda x: torch.erf(x + 1).double().sin() + torch.exp(x), torch.ones(2))
    with pytest.raises(decomp.errors.LoadError) as refused:
        chip.load(program)
    assert not ran
    assert str(refused.value).splitlines()[:2] == [
        "chip cannot run this program; nothing has run",
        "  aten.erf (erf): not implemented",
    ]
    assert any("not a dtype of this backend" in problem for problem in refused.value.problems)
    assert "model.float()" in str(refused.value)
    assert 'implements("erf")' in str(refused.value)


def test_a_function_that_cannot_take_what_a_call_gives_is_refused_by_name():
    chip = made()

    @chip.implements("add")
    def plus(a, b):
        return a + b

    with pytest.raises(decomp.errors.LoadError, match="aten.add: plus: got an unexpected keyword argument 'alpha'"):
        chip.load(exported(lambda x: torch.add(x, x, alpha=2), torch.ones(2)))


def test_arguments_come_by_the_schema_and_dtypes_by_the_table():
    chip, seen = made(dtypes={torch.float32: "f32", torch.int64: "i64"}), []

    @chip.implements("_to_copy", "full", "clone", "slice")
    def noted(*args, **kwargs):
        seen.append(([a for a in args if not isinstance(a, torch.Tensor)], kwargs))
        return torch.zeros(2)

    aten = torch.ops.aten

    def function(x):
        made = aten.full.default([2], 1.5, dtype=torch.int64, device="cpu", pin_memory=False)
        kept = aten.clone.default(aten._to_copy.default(x, dtype=torch.float32), memory_format=torch.contiguous_format)
        return made, kept, aten.slice.Tensor(x, 0, 1, 2)

    chip.load(exported(function, torch.ones(3))).unchecked(torch.ones(3))
    expected = [([[2], 1.5], {"dtype": "i64"}), ([], {"dtype": "f32"}), ([], {}), ([], {"start": 1, "end": 2})]
    assert sorted(seen, key=str) == sorted(expected, key=str)


def test_a_custom_op_is_an_op_like_any_other():
    with torch.library._scoped_library("chip_test", "DEF") as library:
        library.define("twice(Tensor x, int times=2) -> Tensor")
        library.impl("twice", lambda x, times=2: x * times, "CompositeExplicitAutograd")
        chip = made()
        chip.implements("chip_test::twice")(lambda x, times=2: x * times + 100)
        loaded = chip.load(exported(lambda x: torch.ops.chip_test.twice(x, 3), torch.ones(1)))
        assert loaded(torch.ones(1)).item() == 103


@pytest.mark.parametrize(
    "options, said",
    [
        ({"target": "tinygrad"}, "target= takes a decomp.Target such as decomp_rules.targets.tinygrad, not 'tinygrad'"),
        ({"from_torch": 3}, "from_torch= takes a function, not 3"),
        ({"jit": "fast"}, "jit= takes a function, not 'fast'"),
        ({"dtypes": {"float32": 1}}, r"dtypes= takes a dict by torch dtypes, .* not by 'float32'"),
    ],
)
def test_invalid_arguments_of_a_backend_are_refused(options, said):
    with pytest.raises(decomp.errors.ArgumentError, match=said):
        decomp.Backend("chip", **{"from_torch": abs, "to_torch": abs, **options})


def test_implements_needs_an_op_and_a_function():
    with pytest.raises(decomp.errors.ArgumentError, match="needs the op that the function computes"):
        made().implements()(abs)
    with pytest.raises(decomp.errors.ArgumentError, match="implements.'add'. takes a function, not 3"):
        made().implements("add")(3)
