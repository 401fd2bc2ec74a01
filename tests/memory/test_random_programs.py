"""Random programs, with views, writes, state, draws and control flow, as they are and lowered."""

import warnings

import pytest
import torch

import decomp
from decomp.memory import placing
from decomp.memory.planning import memory_plan
from decomp_rules import targets
from tests.fuzzing.checking import Loaded
from tests.fuzzing.programs import program
from tests.memory.agreement import agrees, run


def captured(loaded):
    """The exported program; None where PyTorch cannot capture it."""
    try:
        example = loaded.given(0, loaded.sizes[0], False)[1]
        return torch.export.export(loaded.module, example, dynamic_shapes=loaded.dynamic_shapes(), strict=False)
    except Exception:  # whatever it says
        return None


def runs(module, args):
    try:
        run(module, args)
    except Exception:  # PyTorch's own module of a program that it captured wrongly
        return False
    return True


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("lowered", [False, True])
def test_planned_programs_do_what_the_programs_do(seed, lowered, monkeypatch):
    monkeypatch.setattr(placing, "SMALLEST", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = Loaded(program(seed))
        source = captured(loaded)
        if source is None:
            return
        if lowered:
            source = decomp.lower(source, to=targets.tinygrad, partial=True)
        for arena in (None, True):
            plan = memory_plan(source, arena=arena)
            assert arena or plan.peak <= plan.unplanned_peak
            for size in loaded.sizes:
                args = loaded.given(1, size, False)[1]
                if runs(plan.program.root, args):
                    assert agrees(plan, plan.program.root, args)
