"""Faults that are planted into backends are found, at the primitive that has them."""

import functools

import pytest
import torch

import decomp
from decomp_rules import backends
from tests.forms import Holder
from tests.tools.comparing.faults import BUFFERS, FAULTS, INPUTS, made


@functools.cache
def lowered(backend, model):
    program = torch.export.export(Holder(model), INPUTS[model], strict=False)
    return decomp.lower(program, to=getattr(backends, backend).target, training=False, verify=False)


@pytest.mark.each_row
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_fault_is_found_at_its_primitive(fault):
    BUFFERS.clear()
    lowering = lowered(fault.backend, fault.model)
    comparison = decomp.compare(lowering, fault.model, INPUTS[fault.model], on=made(fault))
    assert comparison.verdict == "wrong" and not comparison.ok
    assert comparison.first.primitive.removesuffix(".default") == fault.primitive.removesuffix(".default")


@pytest.mark.each_row
@pytest.mark.parametrize("backend, model", sorted({(each.backend, each.model) for each in FAULTS}, key=str))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nothing_is_found_where_nothing_is_planted(backend, model):
    comparison = decomp.compare(lowered(backend, model), model, INPUTS[model], on=getattr(backends, backend))
    assert comparison.ok, str(comparison)


def test_there_are_more_than_fifty_faults():
    assert len(FAULTS) > 50 and len({str(fault) for fault in FAULTS}) == len(FAULTS)
