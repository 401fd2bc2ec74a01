"""The forms that write into memory that is there, on the sample calls of all ops: they give the bits of the op, over an
operand too, and take no other memory for it."""

import functools
import warnings

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from decomp.ir.op_facts import NOT_INTO_MEMORY
from decomp.memory.forms import Form, _form
from decomp_rules import samples
from tests.memory.agreement import bits
from tests.pytorch_differences import present

aten = torch.ops.aten
warnings.simplefilter("ignore")


@functools.lru_cache(maxsize=1)
def calls():
    """Sample calls of each op with a form, and, of pointwise ones, calls on rows that vectors do not divide."""
    found = []
    for name in sorted(dir(aten)):
        packet = getattr(aten, name)
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        for sample in samples.calls_of(packet)[:4]:
            if isinstance(sample.overload, torch._ops.OpOverload) and _form(sample.overload).out is not None:
                wide = [sample.replaced(widened)] if _form(sample.overload).elementwise else []
                found += [each for each in (sample, *wide) if result_of(each) is not None]
    return found


def widened(value):
    return value.repeat_interleave(67, dim=-1) if isinstance(value, torch.Tensor) and value.dim() else value


def result_of(sample):
    """The result of the call; None if it fails, or is a view of conjugates."""
    try:
        made = sample.overload(*sample.args, **sample.kwargs)
    except (RuntimeError, TypeError, IndexError, ValueError):
        return None
    return None if made.is_conj() or made.is_neg() else made


def into(sample, memory):
    form: Form = _form(sample.overload)
    if form.copies:
        return aten.copy_.default(memory, sample.args[0])
    return form.out(*sample.args, **sample.kwargs, out=memory)


def test_results_in_memory_that_is_there_have_the_same_bits():
    assert len(calls()) > 400
    for sample in calls():
        wanted = result_of(sample)
        memory = torch.empty_strided(wanted.shape, wanted.stride(), dtype=wanted.dtype)
        assert bits(into(sample, memory)) == bits(wanted), sample


def test_results_over_an_operand_have_the_same_bits():
    seen = set()
    for sample in calls():
        wanted, form = result_of(sample), _form(sample.overload)
        for i, operand in enumerate(sample.args if form.elementwise and not form.copies else ()):
            if isinstance(operand, torch.Tensor) and (operand.dtype, operand.shape, operand.stride()) == (
                wanted.dtype,
                wanted.shape,
                wanted.stride(),
            ):
                args = list(sample.args)
                args[i] = operand.clone()
                assert bits(form.out(*args, **sample.kwargs, out=args[i])) == bits(wanted), (sample, i)
                seen.add(sample.overload)
    assert len(seen) > 100


def test_in_place_forms_without_an_out_form_have_the_same_bits():
    packets = [getattr(aten, name) for name in ("relu", "celu", "selu", "masked_fill", "add", "mul")]
    seen = set()
    for sample in (sample for packet in packets for sample in samples.calls_of(packet)):
        form, wanted = _form(sample.overload), result_of(sample)
        if form.out is None and form.inplace is not None and wanted.dtype == sample.args[0].dtype:
            operand = sample.args[0].clone()
            assert bits(form.inplace(operand, *sample.args[1:], **sample.kwargs)) == bits(wanted), sample
            seen.add(sample.overload)
    assert seen == {aten.relu.default, aten.celu.default, aten.masked_fill.Scalar}


@pytest.mark.parametrize("name", ["exp", "add", "sum", "amax", "mm", "bmm", "cat", "where", "gather", "index_select"])
def test_no_other_memory_is_taken(name):
    x = torch.rand(64, 64)
    args = {
        "exp": (x,),
        "add": (x, x),
        "sum": (x, [1], True),
        "amax": (x, [1]),
        "mm": (x, x),
        "bmm": (x[None], x[None]),
        "cat": ([x, x], 1),
        "where": (x > 0.5, x, x),
        "gather": (x, 1, (x > 0.5).long()),
        "index_select": (x, 0, torch.arange(64)),
    }[name]
    (overload,) = {sample_overload(name)}
    wanted = overload(*args)
    memory = torch.empty_strided(wanted.shape, wanted.stride(), dtype=wanted.dtype)
    assert taken(lambda: _form(overload).out(*args, out=memory)) < wanted.nbytes


def sample_overload(name):
    kinds = {"add": "Tensor", "sum": "dim_IntList", "where": "self"}
    return getattr(getattr(aten, name), kinds.get(name, "default"))


def taken(function):
    """Bytes that a call allocates."""
    # Without `acc_events` torch 2.11 and 2.12 warn of events that a next cycle clears; there is one cycle.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        function()
    return sum(max(event.self_cpu_memory_usage, 0) for event in found.events())


def test_ops_that_take_other_memory_have_no_form():
    assert taken(lambda: aten.special_ndtr.out(torch.rand(64, 64), out=torch.empty(64, 64))) > 2 * 64 * 64 * 4
    for name in present(NOT_INTO_MEMORY):
        packet = getattr(aten, name)
        assert all(_form(getattr(packet, each)) == Form(None, None, False) for each in packet.overloads()), name


def test_ops_whose_out_form_is_generated_or_composed_have_none():
    for overload in (aten.convolution.default, aten.embedding.default, aten.add.Scalar, aten.matmul.default):
        assert _form(overload).out is None


def test_random_ops_and_ops_of_several_results_have_none():
    for overload in (aten.bernoulli.default, aten.rand.default, aten.max.dim, aten.native_layer_norm.default):
        assert _form(overload) == Form(None, None, False)


def test_views_and_writes_have_none():
    for overload in (aten.view.default, aten.add_.Tensor, aten.add.out, aten.expand.default, aten.detach.default):
        assert _form(overload) == Form(None, None, False)
