"""Faults planted in a plan are detected, each by its effect."""

import pytest

from decomp.memory.checking import UnsoundPlan
from decomp.memory.placing import ARENA
from decomp.memory.planning import memory_plan
from tests.forms import exported
from tests.memory.programs import ONE, X


def planned():
    """exp, sin and cos are alive together; so are `mul` and the view of it."""

    def function(x):
        a, b, c = x.exp(), x.sin(), x.cos()
        d = (a + b + c) * 2
        e = d.view(32, 32).t() + d.view(32, 32).exp()
        return e.reshape(1024).flip(0), d.sum()

    return memory_plan(exported(function, X), arena=True)


def named(plan, name):
    (node,) = [node for node in plan.program.graph.nodes if node.name == name]
    return node


def refused(plan):
    with pytest.raises(UnsoundPlan) as error:
        plan.check()
    return str(error.value).splitlines()[0].removeprefix("the memory plan is unsound: ")


def test_a_plan_as_it_is_made_is_sound():
    planned().check()


def test_two_live_results_at_one_place():
    plan = planned()
    buffers = plan.placement.of
    buffers[named(plan, "sin")].offset = buffers[named(plan, "exp")].offset
    assert refused(plan) == "add reads exp, which sin has overwritten"


def test_overlap_by_a_few_bytes():
    plan = planned()
    first, second = sorted((plan.placement.of[named(plan, name)] for name in ("exp", "sin")), key=lambda b: b.offset)
    second.offset = first.offset + ONE - 64
    assert "has overwritten" in refused(plan)


def test_memory_that_is_used_again_too_early():
    plan = planned()
    plan.placement.of[named(plan, "exp_1")].offset = plan.placement.of[named(plan, "mul")].offset
    plan.placement.of[named(plan, "exp_1")].memory = plan.placement.of[named(plan, "mul")].memory
    assert refused(plan) == "exp_1 is written over mul, which it reads, but not in place"


def written_over(plan, name, operand):
    """Put the result of a call over an operand, as a plan that considers it dead would."""
    node, there = named(plan, name), named(plan, operand)
    plan.placement.over[node] = there
    home = plan.placement.lifetimes.homes[there][0]
    buffer = plan.placement.of.get(home)
    if buffer is not None:
        plan.placement.of[node] = buffer


def test_in_place_of_what_is_read_later():
    plan = memory_plan(exported(lambda x: (lambda y: y.sin() * y)(x.exp()), X), arena=False)
    written_over(plan, "sin", "exp")
    assert refused(plan) == "mul reads exp, which sin has overwritten"


def test_in_place_under_a_view_that_lives():
    def function(x):
        y = x.exp()
        view = y.view(32, 32)
        return y.sin(), view.sum()

    plan = memory_plan(exported(function, X), arena=False)
    written_over(plan, "sin", "exp")
    assert refused(plan) == "sum_1 reads view, which sin has overwritten"


def test_in_place_of_an_operand_that_is_read_in_another_order():
    plan = memory_plan(exported(lambda x: (lambda y: y.add(y.t()))(x.exp()), X.view(32, 32)), arena=False)
    written_over(plan, "add", "exp")
    assert refused(plan) == "add is written over exp, but also reads it with other strides"


def test_in_place_by_an_op_that_reads_what_it_has_written():
    plan = memory_plan(exported(lambda x: x.exp().flip(0), X), arena=False)
    written_over(plan, "flip", "exp")
    assert refused(plan) == "flip is written over exp, but is not elementwise in operands of its layout"


def test_in_place_of_an_input():
    plan = memory_plan(exported(lambda x: x.exp(), X), arena=False)
    written_over(plan, "exp", "x" if any(n.name == "x" for n in plan.program.graph.nodes) else "args_0")
    assert "whose memory is elsewhere, or not owned by the plan" in refused(plan)


def test_a_result_that_leaves_in_the_arena():
    plan = memory_plan(exported(lambda x: (x.exp() + x.sin()).flip(0), X), arena=True)
    buffer = plan.placement.of[named(plan, "flip")]
    buffer.memory, buffer.offset = ARENA, plan.placement.of[named(plan, "exp")].offset ^ ONE
    assert refused(plan) == "output returns flip, which is in memory of the plan"


def test_results_beyond_the_arena_or_misaligned():
    plan = planned()
    buffer = plan.placement.of[named(plan, "exp")]
    buffer.memory, buffer.offset = ARENA, plan.arena
    assert refused(plan) == f"exp is at bytes {plan.arena} to {plan.arena + ONE} of {plan.arena}"
    buffer.offset = 4
    assert refused(plan) == "exp is at byte 4, not a multiple of 64"
