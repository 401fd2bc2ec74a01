"""Random programs, with views, writes, state, draws and control flow, as they are and lowered."""

import warnings

import pytest
import torch

import decomp
from decomp.errors import MutationError
from decomp.memory import placing
from decomp.memory.planning import memory_plan
from decomp.torch_internals.modes import process_state_kept
from decomp_rules import targets
from tests.fuzzing.checking import Loaded
from tests.fuzzing.programs import program
from tests.memory.agreement import agrees, run


def captured(loaded):
    """The exported program. Skips the test if PyTorch cannot capture it."""
    try:
        example = loaded.given(0, loaded.sizes[0], False)[1]
        with process_state_kept():
            return torch.export.export(loaded.module, example, dynamic_shapes=loaded.dynamic_shapes(), strict=False)
    except Exception as error:  # export's refusals have no common class
        pytest.skip(f"torch.export refuses it: {error}")


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
    monkeypatch.setattr(placing, "MIN_ARENA_BYTES", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = Loaded(program(seed))
        source = captured(loaded)
        if lowered:
            try:
                source = decomp.lower(source, to=targets.tinygrad, training=False, partial=True)
            except MutationError as error:  # some of the fuzzer's programs write in ways that have no functional form
                pytest.skip(f"refused: {error}")
        for arena in (None, True):
            plan = memory_plan(source, arena=arena)
            assert arena or plan.peak <= plan.unplanned_peak
            for size in loaded.sizes:
                args = loaded.given(1, size, False)[1]
                if runs(plan.program.root, args):
                    assert agrees(plan, plan.program.root, args)
