"""The ops that a target lacks for a program: the smallest sets, with which it is then lowered."""

import itertools
import json
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.forms import Holder

X = torch.randn(4, 8)


def suggestion(function, ops, *args, name="chip", **how):
    chip = ops if isinstance(ops, decomp.Target) else decomp.Target(name, ops)
    return decomp.plan(Holder(function), to=chip, args=args or (X,), **how).suggest()


def test_the_ops_of_the_only_rule_are_what_is_missing():
    rules = decomp.Rules({"relu": lambda x: torch.where(x > 0, x, torch.zeros_like(x))})
    found = suggestion(torch.relu, ["gt.Scalar", "where.self"], rules=rules)
    assert found.ops in (("zeros_like",), ("relu",)) and found.smallest and found.at_least == 1
    assert set(found.requirements[0].needs) == {("relu",), ("zeros_like",)} and len(found.requirements[0].needs) == 2
    with pytest.warns(DeprecationWarning, match="Suggestion.ways is Suggestion.requirements now"):
        assert found.ways is found.requirements
    assert found.calls == (1 if found.ops == ("relu",) else 3)


def test_with_the_suggestion_the_program_is_lowered_to_as_many_calls_as_were_promised():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Softmax(-1))
    chip = decomp.Target("chip", ["mm", "add", "mul", "view", "permute", "sum.dim_IntList", "reciprocal", "sqrt"])
    found = decomp.plan(model, to=chip, args=(X,)).suggest()
    lowered = decomp.lower(model, to=found.target, args=(X,))
    assert len(decomp.calls(lowered.result)) == found.calls
    torch.testing.assert_close(lowered.result(X), model(X))
    assert sum(len(stage.add) for stage in found.stages) == len(found.additions)
    assert found.stages[-1].reached == len(found.requirements)


def test_no_smaller_set_of_ops_would_do():
    chip = ["add", "mul", "sub", "where", "view", "expand"]
    found = suggestion(lambda x: F.silu(x) + torch.sigmoid(x).tanh(), chip)
    assert found.smallest
    candidates = sorted({op for each in found.requirements for needs in each.needs for op in needs} | set(found.ops))
    for fewer in itertools.combinations(candidates, len(found.ops) - 1):
        target = decomp.Target("chip", [*chip, *fewer])
        assert not decomp.plan(Holder(lambda x: F.silu(x) + torch.sigmoid(x).tanh()), to=target, args=(X,)).complete


def test_ops_that_are_internal_or_of_another_kind_of_target_are_no_advice():
    program = nn.Sequential(nn.Embedding(8, 8), nn.MultiheadAttention(8, 2, batch_first=True).eval())
    tokens = torch.arange(4)[None]
    chip = decomp.Target("chip", ["add", "mul", "mm", "view", "permute", "expand", "exp2", "amax"])
    embed = decomp.plan(program[0], to=chip, args=(tokens,)).suggest()
    attend = suggestion(lambda x: program[1](x, x, x)[0], chip, torch.randn(1, 4, 8))
    shown = [op for found in (embed, attend) for each in found.requirements for needs in each.needs for op in needs]
    assert shown and not any(op.startswith(("prims.", "higher_order.")) for op in shown)
    shipped = map(targets.get, targets.names())
    known = {spelling.removeprefix("aten.").partition(".")[0] for target in shipped for spelling in target}
    assert all(op.partition(".")[0] in known for op in shown if op.startswith("_"))


def test_an_op_that_is_known_under_a_condition_is_advised_without_it():
    chip = decomp.Target("chip", ["add", "sum.dim_IntList"]).legal_if("mul", lambda call: False, "never on Sundays")
    rules = decomp.Rules({"square": lambda x: x * x})
    found = suggestion(torch.square, chip, rules=rules)
    assert {("mul on more calls",), ("square",)} == set(found.requirements[0].needs)
    assert found.calls == 1
    chip = chip.legal_if("square", lambda call: False, "never in May").legal_if("sub", lambda call: True, "always")
    found = suggestion(torch.square, chip, rules=decomp.Rules({"square": lambda x: x * x * 0.5}))
    assert ("square on more calls",) in found.requirements[0].needs
    assert "refused now: never " in str(found).split("\n\n")[0]


def test_the_other_overload_of_a_known_op_is_named_in_full():
    rules = decomp.Rules({"square": lambda x: x * x, "neg": lambda x: x * -1})
    found = suggestion(lambda x: torch.square(x) + x, ["add", "mul.Scalar"], rules=rules)
    assert {("mul.Tensor",), ("square",)} == set(found.requirements[0].needs)


def test_what_nothing_helps_is_said_with_its_reason_and_the_rest_is_advised():
    def transformed(x):
        return torch.ops.prims.fft_r2c(x, dim=[1], onesided=True).real

    lone = suggestion(transformed, ["view_as_real", "select", "real"])
    (each,) = lone.requirements
    assert not each.needs and each.reason and lone.additions == () and lone.calls is None
    assert str(lone).splitlines()[:2] == [
        "no op added to chip would help but prims.fft_r2c itself",
        '  if your backend runs prims.fft_r2c: keep={"prims.fft_r2c"}, or target | {"prims.fft_r2c"}',
    ]
    both = suggestion(lambda x: (transformed(x), torch.exp(x)), ["view_as_real", "select", "real"])
    assert both.ops == ("exp",) and both.out_of_reach == (each,) and both.calls is None
    assert str(both).startswith("1 more op is enough for 1 of 2 blocked ops on chip")


def test_products_of_packed_numbers_are_to_be_kept_or_added():
    """No rule computes them: what they return depends on how a processor packs its weights."""

    def product(x, packed, scales):
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, 32, scales)

    places = torch.arange(32 * 32, dtype=torch.int32).view(32, 32) % 16
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(places, 1)
    model, args = Holder(product), (torch.eye(4, 32), packed, torch.ones(1, 32, 2))
    with pytest.raises(decomp.NotLowered) as error:
        decomp.lower(model, to=targets.tinygrad, args=args)
    name = "_weight_int4pack_mm_for_cpu"
    lines = str(error.value).splitlines()
    assert lines[2:4] == [
        f"  no op added to tinygrad would help but aten.{name} itself",
        f'    if your backend runs aten.{name}: keep={{"{name}"}}, or target | {{"{name}"}}',
    ]
    assert "how 4-bit weights are packed depends on the processor that packed them" in lines[5]
    for how in ({"to": targets.tinygrad, "keep": {name}}, {"to": targets.tinygrad | {name}}):
        assert torch.equal(decomp.lower(model, args=args, **how).result(*args), model(*args))


def test_a_plan_without_blockers_has_nothing_to_suggest():
    found = suggestion(torch.exp, ["exp"])
    assert found.ops == () and str(found) == "chip has all that the program needs"


def test_the_text():
    rules = decomp.Rules({"square": lambda x: x * x, "neg": lambda x: x * -1, "exp": lambda x: torch.exp2(x * 1.5)})
    found = suggestion(lambda x: torch.square(x).neg().exp(), ["add"], rules=rules)
    assert str(found) == "\n".join(
        [
            "2 more ops are enough for all 3 blocked ops on chip; no smaller set is",
            "  add mul: 2 of 3 blocked ops lower",
            "  add exp: all lower, to 3 calls",
            "  instead of exp: exp2",
            "",
            "without mul:",
            "  aten.square needs mul; or square",
            "  aten.neg needs mul; or neg",
            "without exp:",
            "  aten.exp needs exp; or exp2 and mul",
        ]
    )


def test_the_error_opens_with_it_and_is_searched_for_only_when_it_is_read():
    rules = decomp.Rules({"square": lambda x: x * x})
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(Holder(torch.square), to=decomp.Target("chip", ["add"]), rules=rules, args=(X,))
    assert not caught.value.args
    assert caught.value.suggestion().ops in (("mul",), ("square",))
    first, _, second, *rest = str(caught.value).splitlines()
    assert first == "1 op cannot be lowered to chip; the program is unchanged"
    assert second == "  1 more op is enough for the blocked op on chip; no smaller set is"
    assert "  aten.square at square" in rest and any("partial=True" in line for line in rest)


def test_the_error_travels_with_its_text():
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(Holder(torch.exp), to=decomp.Target("chip", ["mul"]), args=(X,))
    there = pickle.loads(pickle.dumps(caught.value))
    assert str(there) == str(caught.value) and there.blockers == caught.value.blockers and there.suggestion() is None


def test_a_program_without_metadata_needs_example_inputs():
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(nn.GELU(), to=decomp.Target("chip", ["neg"]))
    assert caught.value.suggestion() is None and "1. pass example inputs" in str(caught.value)


def test_dynamic_sizes_and_bodies_of_control_flow_are_looked_into():
    def chosen(x):
        return torch.cond(x.sum() > 0, lambda x: torch.square(x), lambda x: x.neg(), (x,))

    rules = decomp.Rules({"square": lambda x: x * x, "neg": lambda x: x * -1})
    chip = decomp.Target("chip", ["sum", "gt.Scalar"])
    sizes = ({0: torch.export.Dim("n", min=2)},)
    exported = torch.export.export(Holder(chosen), (X,), dynamic_shapes={"args": sizes})
    assert decomp.plan(exported, to=chip, rules=rules).suggest().ops == ("mul",)


def test_it_can_be_kept_as_json():
    found = suggestion(torch.exp, ["mul"])
    assert json.loads(json.dumps(found.as_dict()))["additions"][0]["op"] == found.ops[0]


def test_a_plan_that_was_not_made_for_a_program_says_so():
    with pytest.raises(decomp.errors.TargetError, match="decomp.plan or decomp.lower"):
        decomp.Plan("chip", ()).suggest()


def test_the_shape_environment_of_the_program_is_as_it_was():
    from tests.derive.test_exclusive import sizes_of

    sizes = ({0: torch.export.Dim("n", min=2)},)
    program = torch.export.export(Holder(lambda x: F.gelu(x).sum(0)), (X,), dynamic_shapes={"args": sizes})
    before = sizes_of(program)
    rules = decomp.Rules({"gelu": lambda x, approximate="none": x * torch.erf(x), "erf": lambda x: torch.tanh(x)})
    chip = decomp.Target("chip", ["mul"])
    plan = decomp.plan(program, to=chip, rules=rules)
    assert plan.suggest().ops and plan.costs() is not None
    assert decomp.advise({"gelu": program}, to=chip, rules=rules, savings=1).ops
    assert sizes_of(program) == before


def test_where_dtypes_alone_block_the_dtype_is_advised_and_what_avoids_it():
    chip = decomp.Target("chip", ["add", "mul", "view", "relu", "_to_copy"], dtypes=["float32", "int32"])
    found = suggestion(lambda x: torch.relu(x * 2 + x).reshape(32), chip, torch.arange(32).reshape(4, 8))
    assert found.ops == () and found.dtypes == ("int64",) and found.smallest
    head, _ = str(found).split("\n\n")
    assert head.splitlines() == [
        "no op need be added: narrow=True computes in int32 instead of int64: all lower, to 6 calls",
        "1 more dtype is enough for all 4 blocked ops on chip; no smaller set is",
        "  add int64: all lower, to 4 calls",
    ]
    assert "refused now" not in str(found) and "on more calls" not in str(found)
    there = decomp.plan(Holder(torch.relu), to=found.target, args=(torch.arange(4),))
    assert there.complete and found.target.dtypes == ("float32", "int32", "int64")


def test_ops_and_dtypes_are_advised_together():
    chip = decomp.Target("chip", ["add", "mul", "_to_copy"], dtypes=["float32"])
    rules = decomp.Rules({"square": lambda x: x.neg().neg() * x})
    found = suggestion(lambda x: torch.square(x * 2) + x * 3, chip, X.double(), rules=rules)
    # An op that is added takes tensors of any dtype.
    assert found.dtypes == ("float64",) and found.ops in (("square",), ("neg",))
    assert str(found).startswith("1 more op and 1 more dtype are enough for all 3 blocked ops")
    assert "  narrow=True computes in float32 instead of float64: 1 op stays blocked" in str(found)
    assert "  model.float() and float32 inputs avoid float64; if only a rule uses it, accuracy='fast'" in str(found)


def test_a_dtype_without_a_narrower_one_has_no_word_of_narrow():
    chip = decomp.Target("chip", ["add", "mul"], dtypes=["float32"])
    found = suggestion(lambda x: x * 2 + x, chip, X.bfloat16())
    assert found.dtypes == ("bfloat16",) and found.narrower is None and "narrow" not in str(found)
    assert "model.float() avoids bfloat16" in str(found)


def test_a_model_of_16_bits_is_best_computed_in_float32():
    chip = decomp.Target("chip", ["linear"], dtypes=["float32"])
    half, x = torch.nn.Linear(3, 2).half(), torch.ones(1, 3)
    with pytest.raises(decomp.NotLowered) as raised:
        decomp.lower(half, to=chip, args=(x.half(),))
    remedies = str(raised.value).partition("to do, the easiest first:\n")[2].splitlines()
    assert remedies[0] == "    1. compute in float32: model.float(), with float32 inputs"
    assert decomp.lower(half.float(), to=chip, args=(x,))


def test_of_calls_that_break_a_condition_beside_the_dtype_the_op_is_advised():
    chip = decomp.Target("chip", [], dtypes=["float32"]).legal_if("mul", lambda call: False, "never on Sundays")
    found = suggestion(lambda x: x * x, chip | ["relu"], X.double())
    assert found.dtypes == () and found.ops == ("mul on more calls",)


def test_a_reshape_that_copies_is_of_another_kind_than_one_that_is_a_view():
    # Its taps are taken apart by views, of which one needs a copy.
    chip = decomp.Target("chip", ["add", "mul", "bmm", "cat", "expand", "permute", "slice", "view", "constant_pad_nd"])
    chip = chip.legal_if("convolution", lambda call: call.argument("dilation") == [1, 1], "no dilation")
    dilated, image = nn.Conv2d(4, 4, 3, dilation=2), torch.randn(1, 4, 8, 8)
    found = decomp.plan(dilated, to=chip, args=(image,), accuracy="exact").suggest()
    assert found.ops == ("clone",)
    assert "convolution on more calls (refused now: no dilation)" in found.additions[0].instead
    lowered = decomp.lower(dilated, to=found.target, args=(image,), accuracy="exact", simplify=False)
    assert found.calls == len(decomp.calls(lowered.result))


def test_where_narrow_dtypes_are_enough_they_are_advised_before_any_op():
    chip = decomp.Target(
        "chip",
        [
            "add",
            "sub",
            "mul",
            "maximum",
            "minimum",
            "where",
            "lt",
            "view",
            "permute",
            "expand",
            "cat",
            "slice",
            "full",
            "to",
            "sum",
            "clone",
        ],
    )
    chip = chip.with_dtypes(["float32", "int32", "bool"])
    topk = Holder(lambda x: x.topk(3, -1).values)
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(topk, to=chip, args=(torch.randn(2, 8),), training=False)
    lines = str(caught.value).splitlines()
    enough = "narrow=True computes in int32 instead of int64: all lower, to 46 calls"
    assert lines[2] == f"  no op need be added: {enough}"
    assert "    1. compute in the dtypes of the target: narrow=True" in lines
    decomp.lower(topk, to=chip, args=(torch.randn(2, 8),), training=False, narrow=True)
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(topk, to=chip - ["lt"], args=(torch.randn(2, 8),), training=False)
    assert "narrow=True" not in str(caught.value)


def test_where_a_program_is_blocked_by_what_only_gradients_need_inference_is_advised():
    chip = decomp.Target(
        "chip", ["amax.default", "sub.Tensor", "exp", "sum.dim_IntList", "div.Tensor", "mul.Tensor", "full"]
    )
    model, x = nn.Softmax(-1), torch.randn(2, 3)
    with pytest.raises(decomp.NotLowered) as refused:
        decomp.lower(model, to=chip, args=(x,))
    found = refused.value.suggestion()
    assert found.untrained is not None and found.untrained.is_enough
    first = str(refused.value).splitlines()[2]
    assert first.startswith("  no op need be added: training=False, for a program that is not trained: all lower, to ")
    lowered = decomp.lower(model, to=chip, args=(x,), training=False).result
    torch.testing.assert_close(lowered(x), model(x))
