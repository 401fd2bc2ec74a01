"""The kinds of faults that programs are drawn for: each kind is drawn, and a planted fault of it is seen."""

from dataclasses import replace
import types

import pytest
import torch

import decomp
from decomp_rules import targets
from tests import fuzz
from tests.fuzzing import checking
from tests.fuzzing.checking import Loaded, check
from tests.fuzzing.narrowed import DTYPES, computes_beyond, fault_near_limits, is_narrowed
from tests.fuzzing.on_meta import fault_on_meta
from tests.fuzzing.outcomes import difference
from tests.fuzzing.programs import SIZES, Program, program
from tests.fuzzing.reducing import smallest
from tests.fuzzing.statements import FAMILIES, REGIONS, WEIGHTS

X34, INTEGERS = "x0 = given.tensor(3, 4, dtype=torch.float32)", "x0 = given.tensor(3, 4, dtype=torch.int64)"
CASE = (1, 3, True)
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # export looks at it, of any input


def made(*body, returned=("v1",), inputs=(X34,), **others):
    return Program(0, (), inputs, body, returned, **others)


def compared(one, other):
    """How a run of `other` differs from a run of `one`."""
    return difference(*(Loaded(each).eager(*CASE) for each in (one, other)))


def only(found):
    (verdict,) = found
    return verdict


def lowering(result):
    """Replaces `decomp.lower`: returns a given module for any arguments."""
    return lambda *_, **__: types.SimpleNamespace(result=result)


def exported(loaded):
    """A program exported by torch.export, without its assumptions."""
    return checking._exportable(loaded).module(check_guards=False)


def test_new_kinds_are_drawn_and_old_ones_as_often_by_three_quarters():
    drawn = [program(seed) for seed in range(60)]
    kinds = {"mode", "function", "transform", "guard"}
    assert frozenset().union(*(one.features for one in drawn)) >= kinds
    assert sum(weight for name, weight in WEIGHTS.items() if name not in kinds) >= 0.75 * sum(WEIGHTS.values())
    assert all(one.dynamic for one in drawn if "guard" in one.features)
    assert any(is_narrowed(one) for one in drawn)
    assert {*WEIGHTS} == {*FAMILIES}


def test_regions_are_drawn_with_gradients_and_without():
    text = "\n".join(program(seed).source for seed in range(400))
    assert all(f"with {region}:" in text for region in REGIONS)


@pytest.mark.parametrize(
    "one, other, text",
    [
        (
            ("v1 = x0 * 2", "with torch.no_grad():\n    v1.mul_(3)", "v1 = v1 * x0"),
            ("v1 = x0 * 2 * 3", "v1 = v1 * x0"),
            "gradient of input 0: values",
        ),
        (("v1 = x0 * 2", "v1.detach_()"), ("v1 = x0 * 2",), "output 0: requires_grad True, not False"),
        (("v1 = 1", "x0.detach_()"), ("v1 = 1",), "input 0 afterwards: requires_grad True, not False"),
        (("v1 = x0.clone().eq_(0)",), ("v1 = x0.eq(0).float()",), "output 0: requires_grad False, not True"),
        (("v1 = Rounded.apply(x0)",), ("v1 = x0.round()",), "gradient of input 0: values"),
        (("v1 = Scaled.apply(x0, 2)",), ("v1 = x0 * 1",), "gradient of input 0: values"),
        (("v1 = Reversed.apply(x0)",), ("v1 = x0.view_as(x0)",), "gradient of input 0: values"),
        (("v1, v1i = Clipped.apply(x0)",), ("v1 = x0.clamp(min=0)",), "gradient of input 0: values"),
        (("v1 = torch.vmap(scored)(x0)",), ("v1 = scored(x0)",), "output 0: values"),
        (("v1 = torch.func.grad(energy)(x0)",), ("v1 = x0.cos()",), "output 0: values"),
    ],
)
def test_a_planted_fault_is_seen(one, other, text):
    assert compared(made(*one), made(*one)) == ""
    assert compared(made(*one), made(*other)).startswith(text)


@pytest.mark.parametrize("after", ["", " * 2.0"])
def test_bools_that_say_that_they_require_a_gradient_give_none(after):
    one, other = made(f"v1 = torch.isinf(x0).eq_(x0){after}"), made(f"v1 = (torch.isinf(x0) == x0){after}")
    assert Loaded(one).module(*Loaded(one).example())[0].requires_grad
    assert compared(one, other) == ""


def test_a_complex_number_is_nan_by_either_part():
    one = made("v1 = torch.complex(x0 * float('nan'), x0)")
    assert compared(one, made("v1 = torch.complex(x0, x0 * float('nan'))")) == ""
    assert compared(one, made("v1 = torch.complex(x0, x0)")).startswith("output 0: values")


def test_a_backward_that_torch_export_loses_is_not_excused_where_the_library_captures(monkeypatch):
    source = made("v1 = Rounded.apply(x0)")
    assert only(check(source, [("module", "core_aten")])).status == "right"
    monkeypatch.setattr(checking.decomp, "lower", lowering(exported(Loaded(source))))
    monkeypatch.setattr(checking, "fault_on_meta", lambda *_: "")
    found = only(check(source, [("module", "core_aten")]))
    assert found.status == "fault" and found.text.startswith("gradient of input 0: values differ")


def test_a_level_of_functorch_that_is_left_behind_is_a_fault(monkeypatch):
    def refuse(*_, **__):
        torch._C._functorch._vmap_increment_nesting(2, "error")
        raise decomp.CaptureError("no")

    monkeypatch.setattr(checking.decomp, "lower", refuse)
    try:
        found = only(check(made("v1 = torch.vmap(scored)(x0)"), [("exported", "core_aten")]))
    finally:
        torch._C._functorch._vmap_decrement_nesting()
    assert (found.status, found.text) == ("fault", "raises StateChanged: levels of functorch: 0 before, 1 now")


EVEN = made(
    "v1 = x0 * (2 if x0.shape[0] % 2 else 3)",
    inputs=("x0 = given.tensor(n, 4, dtype=torch.float32)",),
    dynamic=True,
    features=frozenset({"guard"}),
)


@pytest.mark.parametrize("form", ["exported", "module"])
def test_inputs_outside_of_what_export_assumed_are_to_be_refused(form, monkeypatch):
    assert {size for _, size, _ in checking._cases(Loaded(EVEN))} == {3, 4, 5, 8}
    assert only(check(EVEN, [(form, "core_aten")])).status == "right"
    monkeypatch.setattr(checking.decomp, "lower", lowering(exported(Loaded(EVEN))))
    monkeypatch.setattr(checking, "fault_on_meta", lambda *_: "")
    found = only(check(EVEN, [(form, "core_aten")]))
    assert found.status == "fault" and found.text.startswith("takes inputs that export's own module refuses: Assert")


def test_other_ops_on_the_meta_device_and_refusals_there_are_faults():
    def lower(module, inputs):
        return decomp.lower(module, to=targets.core_aten, args=inputs)

    def refuse(module, inputs):
        raise decomp.CaptureError("no numbers")

    loaded = Loaded(made("v1 = x0.sin() + x0"))
    result = lower(loaded.module, loaded.example()).result
    assert fault_on_meta(loaded, result, lower) == ""
    another = Loaded(made("v1 = x0.cos() + x0"))
    assert fault_on_meta(another, result, lower) == (
        "on the meta device it has {'aten.cos.default': 1} in the place of {'aten.sin.default': 1}"
    )
    for line in ("v1 = x0[torch.tensor([1])]", "v1 = x0.clone(); v1[0] = 2"):  # which PyTorch itself captures otherwise
        moving = Loaded(made(line))
        assert fault_on_meta(moving, lower(moving.module, moving.example()).result, lower) == ""
    assert fault_on_meta(loaded, result, refuse) == "on the meta device it is refused: CaptureError: no numbers"
    assert fault_on_meta(Loaded(made("v1 = x0 if x0.sum() > 0 else -x0")), result, refuse) == ""


def test_numbers_that_int32_wraps_are_seen_and_what_overflows_later_is_not():
    def wraps(x):
        return (x.int().long() + 1,)

    def refuses(x):
        raise decomp.errors.OutOfRange("x has", 2, "int32")

    loaded = Loaded(made("v1 = x0 + 1", inputs=(INTEGERS,)))
    right = decomp.lower(loaded.module, to=targets.core_aten.with_dtypes(DTYPES), args=loaded.example(), narrow=True)
    assert fault_near_limits(loaded, right.result, right.result) == ""
    assert fault_near_limits(loaded, wraps, loaded.module).startswith("output 0: values differ")
    assert fault_near_limits(Loaded(made("v1 = x0 - x0 + 1", inputs=(INTEGERS,))), refuses, loaded.module).startswith(
        "refuses numbers that int32 holds, near"
    )


def test_programs_of_integers_are_narrowed():
    integers = replace(made("v1 = x0 + 1", inputs=(INTEGERS,)), seed=4)
    assert fuzz.narrow(integers) == [("narrow", checking.TARGETS[1])] and not fuzz.narrow(made("v1 = x0 + 1"))
    assert only(check(integers, [("narrow", "core_aten")])).status == "right"
    assert only(check(made("v1 = x0 + 1"), [("narrow", "core_aten")])).status == "torch"


def test_a_cast_of_a_float_that_int32_does_not_hold_is_no_fault_of_narrowing():
    inputs = ("x0 = given.tensor(3, 4, dtype=torch.float32, special=True)", INTEGERS.replace("x0", "x1"))
    cast = replace(made("v1 = x0.to(x1.dtype)", "v2 = v1[..., ::2]", inputs=inputs, returned=("v2",)), seed=4)
    assert any(computes_beyond(Loaded(cast), (seed, SIZES[0], False)) for seed in (1, 2))
    assert not computes_beyond(Loaded(made("v1 = x0 + 1", inputs=(INTEGERS,))), CASE)
    assert only(check(cast, [("narrow", "core_aten")])).status == "right"


def test_the_shortest_statement_keeps_the_regions_that_the_fault_needs():
    nested = "with torch.no_grad():\n    x0.mul_(2)\n    with torch.enable_grad():\n        v1 = x0 * 2\n    x0.add_(1)"
    shortest = smallest(made(nested), lambda one: "v1 = " in one.source and "no_grad" in one.source)
    assert shortest.body == ("with torch.no_grad():\n    v1 = x0 * 2",)


def test_a_parameter_that_a_program_detaches_in_place_requires_gradients_afterwards():
    loaded = Loaded(replace(made("self.w0.detach_()", "v1 = x0 * 1"), setup=("self.w0 = nn.Parameter(torch.ones(3))",)))
    loaded.eager(*CASE)
    assert loaded.module.w0.requires_grad


@pytest.mark.parametrize("status, torch_alone", [(fuzz.UNUSABLE, True), (-11, True), (0, False), (1, False)])
def test_a_process_that_pytorch_alone_leaves_unusable_is_not_the_librarys_fault(status, torch_alone, monkeypatch):
    ended = types.SimpleNamespace(returncode=status)
    monkeypatch.setattr(fuzz.subprocess, "run", lambda *_, **__: ended)
    assert fuzz._pytorch_dies_of(0) is torch_alone


def test_a_process_in_which_pytorch_computes_goes_on():
    fuzz.end_if_unusable()
