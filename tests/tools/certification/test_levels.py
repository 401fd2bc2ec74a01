"""Certificates by level of accuracy: what is judged at each, which level a rule reaches, and what a way costs."""

from dataclasses import replace
import json

import pytest
import torch

import decomp
from decomp import Rules
from decomp.results import Certificate
from decomp.rules.accuracy import LIMITS_BY_LEVEL
from decomp.rules.certificate import Figures, Implementation
from decomp.rules.certificates import identity
from decomp.tools.certification import certificates
from decomp.validation.promises import promise_of
from decomp_rules import RULES
from decomp_rules.support.ranges import range_of

FLOAT32 = (torch.float32,)
LOG2_E = 1.4426950408889634
CHIP = decomp.Target("chip", ["exp2", "mul", "add", "reciprocal", "full"])


def exp_of_product(x):
    return torch.exp2(x * LOG2_E)


def exp_as_square(x):
    root = torch.exp2(x * (LOG2_E / 2))
    return root * root


def at(level, op, function, **options):
    """The certificate of a function as the rule of an op, registered for a level."""
    rules = Rules(level=level)
    rules.register(op)(function)
    return decomp.certify(rules[op][0], **{"dtypes": FLOAT32, **options})


# what is judged


def test_a_rule_that_claims_a_level_it_does_not_reach_is_seen():
    found = at("standard", "sqrt", lambda x: torch.exp2(torch.log2(x) * 0.5))
    assert not found.ok and "ULP at" in found.faults[0]
    assert found.reaches("as written") == "fast"
    assert at("fast", "exp", exp_of_product).reaches("as written") == "fast"
    assert at("exact", "rsqrt", lambda x: 1 / torch.sqrt(x)).reaches("as written") == "exact"
    assert at("fast", "log1p", lambda x: torch.log(1 + x)).reaches("as written") is None


def test_subnormal_numbers_and_signs_of_zero_are_not_judged_at_standard():
    def flushing(x):
        subnormal = (x != 0) & (x > -(2.0**-126)) & (x < 2.0**-126)
        return torch.sin(torch.where(subnormal, 0.0, x) + 0.0)

    assert "0 instead of -0" in "\n".join(at("exact", "sin", flushing).faults)
    assert at("standard", "sin", flushing).ok


def test_nan_infinities_overflow_and_underflow_are_judged_at_standard():
    def faults(function):
        return "\n".join(at("standard", "exp", function).faults)

    assert "instead of inf" in faults(lambda x: torch.exp(torch.clamp(x, max=88.0)))
    assert "instead of nan" in faults(lambda x: torch.where(x.isnan(), 0.0, torch.exp(x)))
    assert "instead of 0 at -inf" in faults(lambda x: torch.where(x == -float("inf"), 1.0, torch.exp(x)))


def test_gradients_are_judged_at_kinks_and_not_at_infinity():
    assert "gradient in float32" in at("standard", "relu", lambda x: torch.where(x < 0, 0.0, x)).faults[0]

    def squared(x):
        root = torch.exp2(x * (LOG2_E / 2))
        return torch.where(x.abs() < 80, root * root, torch.exp(x))

    assert not at("fast", "exp", squared).way("as written").gradients["float32"].mismatches


def test_digits_are_judged_in_the_stated_range_alone():
    assert range_of("sin", "standard") == (-(2.0**13), 2.0**13) and range_of("sin", "exact")[1] == float("inf")

    def rough(x):
        return torch.where(torch.abs(x) > range_of("sin", "standard")[1], 0.5, torch.sin(x))

    found = "\n".join(at("standard", "sin", rough).faults)
    assert "0.5 instead of nan at inf" in found and found.count("instead of") == 1
    assert not at("exact", "sin", rough).ok


def test_a_nan_from_an_ordinary_number_is_wrong_at_fast_too():
    found = at("fast", "exp", lambda x: torch.where(x > 1000, float("nan"), torch.exp2(x * LOG2_E)))
    assert "nan instead of inf at" in found.faults[0]
    assert at("fast", "exp", lambda x: torch.where(x > 1e4, float("nan"), torch.exp2(x * LOG2_E))).ok


def test_near_a_zero_errors_are_absolute_at_fast():
    def tanh(x):
        return 2 * torch.reciprocal(1 + torch.exp2(x * (-2 * LOG2_E))) - 1

    assert at("fast", "tanh", tanh).ok and not at("standard", "tanh", tanh).ok
    assert not at("fast", "tanh", lambda x: tanh(x) + 1e-5).ok


def test_what_is_not_pointwise_is_judged_within_the_range_too():
    def mean_of_range(x, dim=None, keepdim=False, dtype=None):
        found = torch.mean(x, dim, keepdim, dtype=dtype)
        return torch.where(found.abs() > 20, found * 2, found)

    assert not at("standard", "mean", mean_of_range).ok
    assert at("fast", "mean", mean_of_range).ok


def test_half_types_are_held_to_what_they_can_do_at_fast():
    rounded = at("fast", "exp", exp_of_product, dtypes=(torch.bfloat16,))
    assert rounded.ok and rounded.way("as written").values["bfloat16"].max > LIMITS_BY_LEVEL["exact"]["bfloat16"]
    assert not at("fast", "exp", lambda x: exp_of_product(x) * 1.5, dtypes=(torch.bfloat16,)).ok


# ways


@pytest.fixture(scope="module")
def sigmoid():
    rules = Rules()
    rules.register("exp", level="exact")(exp_as_square)
    rules.register("exp", level="fast")(exp_of_product)
    rules.register("sigmoid", level="exact")(lambda x: torch.reciprocal(1 + torch.exp(-1 * x)))
    return decomp.certify(rules, to=CHIP, dtypes=FLOAT32)


def certificate_of(found, op):
    return next(one for rule, one in found.items() if rule.endswith(f" for aten.{op}"))


def test_a_way_of_a_looser_level_is_measured_only_where_it_is_another(sigmoid):
    one = certificate_of(sigmoid, "sigmoid")
    assert [(way.name, way.level) for way in one.ways] == [("as written", "exact"), ("chip", "exact"), ("chip", "fast")]
    exact, fast = one.way("chip"), one.way("chip", "fast")
    assert one.way("chip", "standard") is exact and fast is not exact
    assert fast.title == "chip, fast" and "\n  chip, fast\n" in str(one)
    assert any("exp_of_product" in rule for rule in fast.rules)


def test_a_rule_is_forced_where_a_cheaper_one_would_be_taken(sigmoid):
    squares = next(one for rule, one in sigmoid.items() if "exp_as_square" in rule)
    assert [way.level for way in squares.ways] == ["exact", "exact"]
    assert squares.way("chip", "fast").rules == tuple(rule for rule in sigmoid if "exp_as_square" in rule)


def test_a_way_says_what_it_costs(sigmoid):
    one = certificate_of(sigmoid, "sigmoid")
    assert one.way("chip").cost["calls"] == one.way("chip", "fast").cost["calls"] + 1
    assert one.way("chip").cost.keys() == {"calls", "flops", "bytes"} and not one.way("as written").cost
    assert "cost: 6 calls, " in str(one)


def test_levels_are_chosen_and_join_what_was_measured_before(sigmoid):
    rules = Rules()
    rules.register("exp", level="exact")(exp_as_square)
    rules.register("exp", level="fast")(exp_of_product)
    squares = rules["exp"][:1]
    fast = decomp.certify(Rules(squares), to=CHIP, dtypes=FLOAT32, accuracy="fast")
    assert certificate_of(fast, "exp").ways == ()
    with pytest.raises(
        decomp.errors.ArgumentError, match="accuracy= must be one of 'exact', 'standard', 'fast', not 'fats'"
    ):
        decomp.certify(squares[0], accuracy="fats")
    one = certificate_of(sigmoid, "sigmoid")
    exact, looser = (
        replace(one, ways=tuple(way for way in one.ways if (way.level == "exact") is own)) for own in (True, False)
    )
    assert looser.merged_into(exact, ["fast"]) == one and exact.merged_into(one, ["exact"]) == one
    assert exact.merged_into(one, ["exact", "fast"]) == exact


def test_a_level_survives_json_and_is_left_out_where_it_is_the_rules_own(sigmoid):
    for one in sigmoid.values():
        assert Certificate.from_json(json.loads(json.dumps(one.to_json()))) == one
    levels = [way.get("level") for way in certificate_of(sigmoid, "sigmoid").to_json()["ways"]]
    assert levels == [None, None, "fast"]
    fast = at("fast", "exp", exp_of_product).to_json()
    assert fast["level"] == "fast" and "level" not in fast["ways"][0]
    old = Certificate.from_json({"rule": "old", "ways": [{"name": "chip", "verdict": "legal"}]})
    assert old.way("chip").level == "exact"


def test_a_certificate_for_another_level_is_stale():
    rule = RULES["mm"][0]
    found = certificates.read_committed()[identity(rule)]
    assert certificates.why_stale(rule, Certificate.from_json({**found.to_json(), "level": "fast"})).startswith(
        "it was measured for the level fast"
    )


# the library

OTHER_COLUMNS = (": compiled, ", ": flushed, ")
"""What a compiler makes of a rule, and a processor that flushes, is apart from the digits of a level."""


def test_every_rule_of_a_looser_level_reaches_it_wherever_it_was_measured():
    found = certificates.read_committed()
    faults = [
        f"{one.rule}: {line}"
        for rule in RULES
        if rule.level in ("standard", "fast") and (one := found.get(identity(rule))) is not None
        for line in one.faults
        if not any(column in line for column in OTHER_COLUMNS)
    ]
    assert not faults, "\n".join(faults)


def exact_rules():
    """Certificates of the rules that are exact, each with its faults. Quantised values are not among them: their
    reference, too, casts NaN to an integer; scales are as many as rows, which sizes that vary one by one are not; and
    scales in float64 have the digits of the float32 that they are computed in."""
    committed = certificates.read_committed()
    found = (committed.get(identity(rule)) for rule in RULES if rule.level == "exact")
    return [one for one in found if one is not None and not one.rule.startswith("decomp_rules.quantized.")]


def test_rules_that_fall_short_of_exact_are_those_of_infinite_parts():
    # On targets without complex numbers: parts that are infinite, subnormal or -0, and what many calls are computed by.
    # Random numbers that are NaN are an index of fractional pooling; sizes of a gradient follow from those of an input.
    others = (
        "acosh asin complex.functions:power isreal_by_sine gelu_of_sigmoid gru_cell rnn_tanh_cell isinf_by_root".split()
    )
    others += ["zero", "fractional_max_pool", "max_pool3d_with_indices_backward"]
    # Casts of what int64 does not hold, and the sign of a complex zero, which `zero` has on each tensor of a list, too.
    others += ["type_as", "fake_quantize_backward"]
    short = {}
    for one in exact_rules():
        others_of_it = (", standard:", ", fast:", *OTHER_COLUMNS)
        faults = [fault for fault in one.faults if not any(each in fault for each in others_of_it)]
        if faults and not any("not served" in fault for fault in faults):
            short[one.rule] = faults
    left = [rule for rule, faults in short.items() if not any("inf" in fault for fault in faults)]
    assert [rule for rule in left if not any(name in rule for name in others)] == [] and len(left) <= 14
    assert len(short) <= 30, list(short)


def test_rules_that_count_on_overflow_are_known():
    # At standard, an integer differs from a number where their difference is not 0; it is not, either, where it wraps.
    found = {one.rule.split(":")[1].split()[0] for one in exact_rules() if any("overflow" in f for f in one.faults)}
    assert found <= {"hinge_embedding_loss"}


def test_what_is_promised_is_what_was_measured_at_the_level_or_what_the_level_is_about():
    rule = next(rule for rule in RULES["exp"] if rule.function.__module__.endswith("exponential"))
    exact, standard, fast = (promise_of(rule, "tinygrad", level) for level in ("exact", "standard", "fast"))
    assert exact.figures["float32"] < 2 and exact.special_values
    assert standard.figures["float32"] >= exact.figures["float32"] and standard.special_values
    assert not fast.special_values and fast.reach == range_of("exp", "fast")


def test_allowed_is_by_level_dtype_and_pytorchs_own_error():
    way = Implementation("chip", "measured", values={"float32": Figures(9, 3.0, 0.1, own_max=0.5)})
    assert [way.allowed("float32", level) for level in ("exact", "standard", "fast")] == [2, 4, 64]
    assert way.reaches == "standard"
    special = Implementation(
        "chip", "measured", values={"float32": Figures(9, 300.0, 0.1, own_max=100.0)}, level="standard"
    )
    assert special.allowed("float32", "standard") == 400 and special.reaches == "standard"
