"""Programs over several processes: derived collectives compute what the collectives compute, and compiled distributed
models have the values and gradients of the models in one process, on every rank."""

import pytest
import torch

from tests.sharded.processes import run_everywhere

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without distributed")


def test_on_every_rank_programs_compute_what_they_compute_in_one_process(request):
    """Two processes and small models; with --whole four, larger ones too, and every target."""
    whole = request.config.getoption("--whole")
    found = run_everywhere(4 if whole else 2, whole)
    names = {name for each in found for name in each}
    wrong = {
        f"{name}, rank {rank}": each.get(name, "was not run")
        for rank, each in enumerate(found)
        for name in names
        if each.get(name, "was not run")
    }
    assert len(names) > 20 and not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
