"""The column "flushed": what a rule gives where subnormal numbers are flushed."""

from dataclasses import replace
import math

import torch

import decomp
from decomp.rules.certificate import Certificate, Figures, Implementation
from decomp.rules.certificates import identity
from decomp.tools.certification import compiled_columns
from decomp.tools.measurement.flushing import flushing
from decomp_rules import RULES


def verdicts(op: str, function: object) -> set[str]:
    rule = decomp.Rules({op: function})[op][0]
    found = decomp.certify(rule, dtypes=[torch.float32])
    return {said for way in found.ways for said in way.flushed.values()}


def test_a_quotient_by_an_inverse_that_is_flushed_has_lost_its_digits() -> None:
    def divide(x, other):
        small = other.abs() < 2.0**-100
        scale = torch.where(small, 2.0**100, 1.0)
        return torch.where(small, x * scale, x) * torch.reciprocal(other * scale)

    assert any("without their digits, 0 instead of" in said for said in verdicts("div", divide))


def test_what_is_finite_has_to_stay_so() -> None:
    (said,) = verdicts("cos", lambda x: torch.sin(x + x) * torch.reciprocal(torch.sin(x)) * 0.5)
    assert "not finite" in said
    assert verdicts("cos", lambda x: torch.sin(x + math.pi / 2)) == {"finite"}
    assert verdicts("square", lambda x: x * x + 0.0 * torch.where(x.isinf(), math.nan, 0.0)) == {"finite"}


def test_a_sum_may_overflow_on_the_way_where_the_order_of_its_terms_decides_it_and_nothing_else_may() -> None:
    def by_sign(x, dim=None, keepdim=False, dtype=None):
        parts = torch.clamp(x, min=0), torch.clamp(x, max=0)
        return sum(part.sum(dim, keepdim=keepdim, dtype=dtype) for part in parts)

    def of_large_terms(x, dim, half_to_float):
        return torch.exp(x) / torch.exp(x).sum(dim, keepdim=True)

    assert verdicts("sum.dim_IntList", by_sign) == {"finite"}
    (said,) = verdicts("_softmax", of_large_terms)
    assert "not finite, nan instead of" in said


def test_a_fault_of_the_column_is_one_of_the_certificate() -> None:
    way = Implementation(
        "tinygrad", "measured", values={"float32": Figures(1, 0.0, 0.0)}, flushed={"float32": "finite"}
    )
    good = Certificate("m:f for aten.cos", ways=(way,))
    bad = replace(good, ways=(replace(way, flushed={"float32": "1 not finite, inf instead of 1 at 1e-40"}),))
    assert good.ok and bad.faults == ("tinygrad: flushed, float32: 1 not finite, inf instead of 1 at 1e-40",)
    assert bad.worse_than(good) == bad.faults and not good.worse_than(bad)
    assert "flushed, float32: finite" in str(good)
    assert Certificate.from_json(bad.to_json()) == bad


def test_the_column_is_found_where_it_is_missing() -> None:
    rule = next(rule for rule in RULES.of(decomp.op("cos")) if rule.name == "cos_of_quarter_turn")
    places = (("as written", "fast"), ("tinygrad", "fast"))
    found = compiled_columns.FlushedJob(identity(rule), places).run()
    assert found == dict.fromkeys(places, {"float32": "finite"})
    values = {"float32": Figures(1, 0.0, 0.0)}
    ways = (Implementation(name, "measured", values=values, level="fast") for name, _ in places)
    bare = Certificate(identity(rule), ways=tuple(ways))
    assert compiled_columns.unflushed(bare) and not compiled_columns.unflushed(bare.with_flushed(found))


def test_flushing_is_left_as_it_was() -> None:
    with flushing():
        assert float(torch.tensor([1e-40]) * 1.0) == 0
        with flushing():
            pass
        assert float(torch.tensor([1e-40]) * 1.0) == 0
    assert float(torch.tensor([1e-40]) * 1.0) > 0
