"""What changed between two snapshots, word for word: which lines there are, of which kind, and in which order."""

from dataclasses import replace

import pytest
import torch

from decomp.errors import ArgumentError
from decomp.tools.upgrading.comparing import compare
from decomp.tools.upgrading.numbers import MOST, read, written
from decomp.tools.upgrading.records import Behaviour, CallRecord, ModelRecord, VersionRecord

TIES = (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 1.0, float("nan")]))
CALL = CallRecord("aten.maximum.default(float32[4], float32[4])", "legal", calls=1)
MODEL = ModelRecord({"aten.relu.default": 2}, {"aten.maximum.default": 2}, {"relu": 2})


def texts(*tensors):
    return tuple(written(torch.as_tensor(each), MOST) for each in tensors)


def snapshot(version, calls=(CALL,), op="aten.maximum", **others):
    given = {"absent": (), "lost": {}, "models": {}, "points": {"here": texts(*TIES)}, "primitives": {"aten.relu": ""}}
    return VersionRecord({"torch": version}, "chip", ops={op: tuple(calls)}, **{**given, **others})


def lines(old, new):
    return [(line.kind, line.text) for line in compare(old, new).changes]


def kernels(old, new, label="float32, points", **call):
    """The lines for one call, whose kernel did one thing and does another."""
    pair = [replace(CALL, behaviours={label: each}, **call) for each in (old, new)]
    return lines(snapshot("2.13.0", pair[:1]), snapshot("2.14.1", pair[1:]))


def points(values=((1.0, 2.0, float("nan")),), gradients=()):
    return Behaviour(texts(*values), texts(*gradients), at="here")


def test_equal_snapshots_have_no_changes_whatever_the_header_says():
    found = compare(snapshot("2.13.0"), snapshot("2.14.1"))
    assert not found.changes and found.headline == "torch 2.13.0 to 2.14.1, for chip: nothing changed"


def test_a_gradient_at_ties_is_another_meaning():
    old, new = ([[0.5, 1.0, 0.0]], [[1.0, 1.0, 0.0]])
    text = f"`maximum`: gradient at ties was 0.5, is 1: {CALL.call}, float32, points (1, 1)"
    assert kernels(points(gradients=old), points(gradients=new)) == [("meaning", text)]


def test_an_argument_that_equals_a_number_of_the_call_is_a_tie():
    ((_, text),) = kernels(points(((1.0, 2.0, 3.0),)), points(((1.0, 5.0, 3.0),)), numbers=(2.0,))
    assert text.startswith("`maximum`: value at ties was 2, is 5: ")


def test_values_beside_nan_are_told_from_ordinary_ones():
    ((_, text),) = kernels(points(((1.0, 2.0, float("nan")),)), points(((1.0, 2.0, 3.0),)))
    assert text.startswith("`maximum`: value at NaN was nan, is 3: ") and text.endswith(" (3, nan)")


def test_several_places_are_one_line():
    old, new = points(((1.0, 2.0, 3.0),)), points(((1.0, 7.0, 8.0),))
    found = kernels(old, replace(new, at=""))
    assert found[0][1].endswith(
        ", is 7: aten.maximum.default(float32[4], float32[4]), float32, points, and 1 place more"
    )


def test_last_digits_are_counted_in_ulp():
    old = points(((1.0, 2.0, 3.0),))
    new = points(((1.0, 2.0 + 2**-21, 3.0),))
    ((kind, text),) = kernels(old, new)
    assert kind == "digits" and text.startswith("`maximum`: value by at most 2 ULP: ")


def test_what_is_not_kept_of_a_large_result_counts_as_digits():
    large = torch.arange(1000.0)
    other = torch.where(large == 1, 1.5, large)
    ((kind, text),) = kernels(*(Behaviour((written(t),)) for t in (large, other)), label="float32, as sampled")
    assert kind == "digits" and text.startswith("`maximum`: value by at most 0 ULP: ")


def test_what_an_op_leaves_open_is_told_from_its_meaning():
    old, new = points(((1.0, 2.0, 3.0),)), points(((1.0, 2.0, 9.0),))
    form = texts([1.0, 2.0, 0.0])
    ((kind, _),) = kernels(replace(old, open_values=form), replace(new, open_values=form))
    assert kind == "open"
    ((kind, _),) = kernels(replace(old, open_values=form), replace(new, open_values=texts([1.0, 2.0, 1.0])))
    assert kind == "meaning"


def test_results_of_another_dtype_or_shape_are_another_meaning():
    old, new = (Behaviour(texts(torch.ones(2, dtype=dtype))) for dtype in (torch.float32, torch.float64))
    assert kernels(old, new, "float32, as sampled")[0] == (
        "meaning",
        "`maximum`: value was float32[2], is float64[2]: "
        "aten.maximum.default(float32[4], float32[4]), float32, as sampled",
    )


def test_other_strides_are_no_other_meaning():
    x = torch.arange(6.0).reshape(2, 3)
    ((kind, text),) = kernels(Behaviour(texts(x)), Behaviour(texts(x.mT.contiguous().mT)), "float32, as sampled")
    assert kind == "layout" and "was contiguous, is strides [1, 2]" in text


def test_a_dtype_that_a_kernel_no_longer_takes_is_named_and_other_words_are_not_grave():
    taken, refused = points(), Behaviour(error="RuntimeError: not for BFloat16")
    assert kernels(taken, refused)[0][0] == "taken"
    assert "call was taken, is RuntimeError: not for BFloat16" in kernels(taken, refused)[0][1]
    assert kernels(refused, Behaviour(error="NotImplementedError: never"))[0][0] == "words"
    assert kernels(refused, taken)[0][0] == "taken"


def test_a_gradient_that_there_was_not_is_another_meaning():
    old, new = points(), points(gradients=((1.0, 1.0, 0.0),))
    assert kernels(old, new)[0] == (
        "meaning",
        f"`maximum`: gradient was none, is 1 tensor: {CALL.call}, float32, points",
    )


def test_an_op_that_pytorch_lacks_is_gone_and_others_have_lost_their_rules():
    old, empty = snapshot("2.13.0", op="aten.qr"), replace(snapshot("2.14.1"), ops={})
    assert lines(old, replace(empty, absent=("aten.qr",))) == [("gone", "`qr` is gone")]
    assert lines(old, empty) == [("gone", "`qr` has no rule and is not an op of the target any more")]
    assert lines(replace(empty, absent=("aten.qr",)), old) == [("new", "`qr` is new")]


def test_derivations_say_by_what_and_to_how_many_calls():
    derived = replace(CALL, verdict="derived", rules=("by_where", "by_where > lt"), calls=3)
    blocked = replace(CALL, verdict="blocked", calls=0, reason="needs where")
    call = "aten.maximum.default(float32[4], float32[4])"
    for old, new, wanted in (
        (CALL, blocked, ("unreached", f"`maximum` is blocked (needs where): {call}")),
        (blocked, derived, ("reached", f"`maximum` is reached by by_where: {call}")),
        (CALL, derived, ("derived", f"`maximum` takes 3 calls, took 1 (by by_where, was as it is): {call}")),
        (derived, replace(derived, calls=2), ("derived", f"`maximum` takes 2 calls, took 3 (by by_where): {call}")),
        (
            derived,
            replace(derived, rules=("by_relu",)),
            ("derived", f"`maximum` is reached by by_relu, was by by_where: {call}"),
        ),
    ):
        assert lines(snapshot("2.13.0", [old]), snapshot("2.14.1", [new])) == [wanted]


def test_calls_that_changed_alike_are_one_line():
    other = replace(CALL, call="aten.maximum.default(float32[1], float32[1])")
    old = [CALL, other]
    new = [replace(each, verdict="derived", rules=("by_where",), calls=3) for each in old]
    ((_, text),) = lines(snapshot("2.13.0", old), snapshot("2.14.1", new))
    assert text.endswith(": aten.maximum.default(float32[4], float32[4]), and 1 more")


def test_models_are_told_whether_they_changed_or_not():
    more = replace(MODEL, lowered={"aten.maximum.default": 2, "aten.neg.default": 1})
    old = snapshot("2.13.0", models={"gpt": MODEL, "mlp": MODEL, "vit": MODEL, "old": MODEL})
    refused = ModelRecord(error="CaptureError: no")
    new = snapshot("2.14.1", models={"gpt": MODEL, "mlp": more, "vit": refused})
    found = compare(old, new)
    assert found.models == ("gpt: 2 calls, were 2", "mlp: 3 calls, were 2", "vit: not lowered, were 2")
    assert [line.text for line in found.changes] == [
        "vit is no longer lowered: CaptureError: no",
        "mlp: 3 calls, were 2: neg.default 1 (none)",
    ]
    assert found.notes == ("note: only in the first: old",)


def test_another_exported_graph_is_a_change_though_it_comes_to_the_same_calls():
    new = replace(MODEL, exported={"aten.relu_.default": 2})
    old = snapshot("2.13.0", models={"gpt": MODEL})
    assert lines(old, snapshot("2.14.1", models={"gpt": new})) == [
        ("exported", "gpt is exported otherwise: relu.default none (2), relu_.default 2 (none)")
    ]


def test_a_target_that_takes_ops_of_a_tag_may_change():
    new = snapshot("2.14.1", primitives={"aten.gelu": "approximate is none"})
    assert lines(snapshot("2.13.0"), new) == [
        ("target", "chip has `gelu` in addition"),
        ("target", "chip no longer has `relu`"),
    ]


def test_an_overload_that_is_no_longer_the_only_one_is_no_change_of_the_target():
    old, new = (snapshot("2.13.0", primitives={name: ""}) for name in ("aten.full", "aten.full.default"))
    assert lines(old, new) == []


def test_other_random_numbers_are_no_other_meaning():
    ((kind, _),) = kernels(points(((1.0, 2.0, 3.0),)), points(((1.0, 5.0, 3.0),)), draws=True)
    assert kind == "draws"


def test_an_op_that_crashes_is_no_longer_reached():
    new = replace(snapshot("2.14.1"), ops={}, lost={"aten.maximum": "crashes: SIGSEGV"})
    assert lines(snapshot("2.13.0"), new) == [("unreached", "`maximum`: crashes: SIGSEGV")]


def test_the_gravest_changes_come_first():
    old = snapshot("2.13.0", models={"gpt": MODEL}, absent=("aten.new",))
    new = snapshot("2.14.1", [replace(CALL, verdict="blocked")], models={"gpt": ModelRecord(error="CaptureError: no")})
    assert [kind for kind, _ in lines(old, new)] == ["unreached", "unreached", "new"]


def test_snapshots_of_two_targets_are_not_compared():
    with pytest.raises(ArgumentError, match=r"^a is of the target chip, and b of npu: compare those of one$"):
        compare(snapshot("2.13.0"), replace(snapshot("2.14.1"), target="npu"), ("a", "b"))


def test_what_else_differs_between_two_snapshots_is_noted():
    new = replace(snapshot("2.14.1"), header={"torch": "2.14.1", "python": "3.12.1"})
    assert compare(snapshot("2.13.0"), new).notes == ("note: python differs too: None, and 3.12.1",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_a_text_has_all_digits_of_a_tensor(dtype):
    x = (torch.randn(5, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    assert torch.equal(read(written(x)).numbers.to(dtype), x)


def test_a_text_tells_signs_of_zero_and_not_the_bits_of_nan():
    zero, one, quiet = (torch.tensor([x]) for x in (0.0, -0.0, float("nan")))
    other = torch.tensor([0x7FC00123], dtype=torch.int32).view(torch.float32)
    assert written(zero) != written(one) and written(quiet) == written(other)
    assert read(written(torch.ones(2, 3).mT)).form == "float32[3, 2] strides [1, 3]"
