"""Laws of simplification are run where values are verified: what they make has the same bits as what was there."""

import pytest
import torch

import decomp
from decomp.ir.agreement import same_bits
from decomp.simplification import simplifier
from decomp.simplification.laws import law
from decomp_rules import targets
from tests.forms import Holder
from tests.models import build

aten = torch.ops.aten
X = torch.randn(3, 4)


def plant(monkeypatch, *laws):
    monkeypatch.setattr(simplifier, "LAWS", (*simplifier.LAWS, *laws))


def lowered(function, *args, **options):
    program = torch.export.export(Holder(function), args)
    return decomp.lower(program, to=targets.core_aten, **options)


def said(lowering):
    return [check for check in lowering.proof.checks if "laws run" in check]


@law("no_ops", aten.add.Tensor, copies=True)
def sum_with_zero(call):
    """Not so: −0 + 0 is 0."""
    return call.operand(0) if call.args[1] == 0 else None


@law("chains", aten.mul.Tensor)
def two_products_as_one(call):
    inner = call.operand(0, aten.mul.Tensor)
    if inner is None or type(call.args[1]) is not float or type(inner.args[1]) is not float:
        return None
    return call.made(aten.mul.Tensor, inner.args[0], inner.args[1] * call.args[1])


@law("no_ops", aten.maximum.default, copies=True)
def larger_than_a_smaller(call):
    """x where max(x, min(x, y)) is: not for NaN in y."""
    inner = call.operand(1, aten.minimum.default)
    return call.args[0] if inner is not None and inner.args[0] is call.args[0] else None


WRONG = {
    "sum with zero": (sum_with_zero, lambda x: (x + 0) * 3, (X,)),
    "two products as one": (two_products_as_one, lambda x: x * 0.1 * 0.3, (X,)),
    "larger than a smaller": (
        larger_than_a_smaller,
        lambda x, y: torch.maximum(x, torch.minimum(x, y)) * 3,
        (X, X.flip(0)),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_law_that_changes_a_bit_is_found(name, monkeypatch):
    """On the example inputs the program may have the same values: laws are run on others."""
    wrong, function, args = WRONG[name]
    plant(monkeypatch, wrong)
    plain = lowered(function, *args, simplify=False)
    simplified = lowered(function, *args)  # whose proof trusts the law
    assert len(decomp.calls(simplified.result)) < len(decomp.calls(plain.result))
    with pytest.raises(decomp.VerificationError, match=f"the law '{name}' changes bits of '"):
        lowered(function, *args, verify="values")


def test_a_constant_that_a_law_read_has_its_own_value():
    """x · (x² + 0.75) of x = 0.5 is x · 1, which is not so of another x."""

    def factor(x):
        half = torch.full((3, 4), 0.5)
        return x * (half * (half * half + 0.75))

    (check,) = said(lowered(factor, X, verify="values"))
    assert "the same to the last bit" in check and "not run" not in check


def test_what_is_allowed_to_differ_is_not_held_to_its_bits(monkeypatch):
    @law("no_ops", aten.add.Tensor, copies=True, exact=False)
    def sum_with_zero(call):
        return call.operand(0) if call.args[1] == 0 else None

    plant(monkeypatch, sum_with_zero)
    assert said(lowered(lambda x: (x + 0) * 3, X, verify="values")) == []


def test_each_distinct_application_is_run_once():
    def chains(x):
        for _ in range(5):
            x = torch.relu(x.view(2, 6).view(12).view(3, 4))
        return x

    (phrase,) = said(lowered(chains, X, verify="values"))
    done, of = phrase.split(" distinct")[0].split(" of ")
    assert 1 <= int(done) == int(of) <= 3


def test_laws_on_sizes_that_are_not_fixed_run_at_those_of_the_example():
    program = torch.export.export(
        Holder(lambda x: x.clone().contiguous().permute(1, 0).permute(1, 0) * 2),
        (X,),
        dynamic_shapes=(({0: torch.export.Dim("n")},),),
    )
    (phrase,) = said(decomp.lower(program, to=targets.core_aten, verify="values"))
    done, of = phrase.split(" distinct")[0].split(" of ")
    assert int(done) == int(of) > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=str)
@pytest.mark.parametrize("to", [targets.tinygrad, targets.stablehlo], ids=lambda to: to.name)
@pytest.mark.parametrize("name", ["gpt2", "t5", "encoder", "unet", "lstm"])
def test_the_laws_that_models_are_simplified_by_are_all_run(name, to, options):
    module, args = build(name)
    lowering = decomp.lower(torch.export.export(module.eval(), args), to=to, verify="values", **options)
    for phrase in said(lowering):
        assert phrase.endswith("distinct applications of laws run, the same to the last bit")
    assert said(lowering) or not any(
        record and record.applied for record in (piece.record("simplify") for piece in lowering.internals.pieces)
    )


def test_bits_are_those_of_zeros_nans_and_strides():
    nan = torch.tensor([float("nan"), 1.0])
    assert same_bits(nan, nan.clone()) and not same_bits(nan, torch.tensor([0.0, 1.0]))
    assert not same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert not same_bits(X, X.double()) and not same_bits(X, X.t().contiguous().t())
    assert same_bits(X[:1], X[:1].as_strided((1, X.shape[1]), (7, X.stride(1))))
    # One of the two is in the format of channels last, by the stride of a dimension of size one alone.
    image = torch.randn(1, 4, 4, 2).permute(0, 3, 1, 2)
    assert same_bits(image, image.as_strided(image.shape, (2, *image.stride()[1:])))
    assert same_bits(torch.tensor(1j), torch.tensor(1j))
    assert not same_bits(torch.tensor(1j), torch.tensor(complex(-0.0, 1)))


@law("chains", aten.add.Tensor)
def operand_without_its_view(call):
    """a + view(a) for view(a) + view(a), where it broadcasts alike: only if both are the same memory."""
    inner = call.operand(0, aten.view.default)
    return call.made(aten.add.Tensor, inner.args[0], call.args[1]) if inner is not None else None


def test_operands_that_are_views_of_each_other_are_given_values_that_agree(monkeypatch):
    plant(monkeypatch, operand_without_its_view)
    low = lowered(lambda x: (y := x.exp().view(1, 3, 4)) + y, X, verify="values")
    add = low.result.graph.find_nodes(op="call_function", target=aten.add.Tensor)[0]
    assert add.args[0].name == "exp" and add.args[1].name == "view" and "the same to the last bit" in said(low)[0]


@pytest.mark.parametrize("op", [torch.cummin, torch.cummax])
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
def test_comparisons_with_views_of_themselves_are_verified(op, target):
    low = decomp.lower(Holder(lambda x: op(x, 0)[0]), to=target, args=(X,), verify="values")
    assert "the same to the last bit" in said(low)[0]


def test_an_operand_far_below_another_is_computed_from_it():
    """A quotient by an expanded norm: the scale of the divisor is computed from it in many calls."""
    x = torch.randn(2, 4, 12, 32)
    program = torch.export.export(Holder(lambda x: torch.nn.functional.normalize(x, dim=-1)), (x,))
    lowering = decomp.lower(program, to=targets.tinygrad, args=(x,), training=False, verify="values")
    applied = [record.applied for piece in lowering.internals.pieces if (record := piece.record("simplify"))]
    assert any("operand that was expanded" in names for each in applied for names in each.values())
    assert said(lowering)
