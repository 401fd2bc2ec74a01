"""One group of gloo processes that does everything, as starting them takes longer than what they do. Each writes what
it found, by name: nothing where all is well, or what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import copy
import datetime
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import traceback
from typing import Any
import warnings

import torch
from torch import nn
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import decomp
from decomp.validation.error_budget import Error
from decomp_rules import RULES, collectives, targets
from tests.sharded.calls import CALLS, Call
from tests.sharded.models import MODELS, Sharded

TOLERANCE, ROUNDING = 3.0, 1e-6
"""The most error in units of the error of the source, and what is added for sources without any."""
GATHERS = targets.core_aten | {f"_c10d_functional.{name}" for name in ("all_gather_into_tensor", "wait_tensor")}
TARGETS = {
    "core_aten": (targets.core_aten | collectives.OPS, RULES),
    "tinygrad": (targets.tinygrad | collectives.OPS, RULES),
    "gathers only": (GATHERS, RULES | collectives.RULES),
}


LONG = ("Llama", "GPT, FSDP")
"""Models that take seconds, left out unless everything is run."""


def run_everywhere(size: int, whole: bool) -> list[dict[str, str]]:
    """What each rank of a group of so many processes found; `whole`: with the models that take longer, and to every
    target."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.sharded.processes", folder, str(size), *["whole"] * whole]
        started = [
            subprocess.Popen([*command[:5], str(rank), *command[5:]], cwd=Path(__file__).parents[2])
            for rank in range(size)
        ]
        try:
            codes = [process.wait(timeout=1800 if whole else 600) for process in started]
        finally:
            for process in started:
                process.kill()
        assert codes == [0] * size
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]


def main(folder: str, size: int, rank: int, whole: bool) -> None:
    torch.set_num_threads(1)
    # A rank that fails in a check leaves the others in its collective; by default they wait for half an hour.
    store, patience = f"file://{folder}/store", datetime.timedelta(minutes=5)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=patience)
    warnings.filterwarnings("ignore", message="decomp.backend lowers a graph only after autograd")
    found: dict[str, str] = {}
    for name, check in checks(size, whole):
        dist.barrier()
        try:
            found[name] = check()
        except Exception:
            found[name] = traceback.format_exc()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def checks(size: int, whole: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    for name, call in CALLS.items():
        for legal in call.derived_from if whole else call.derived_from[:1]:
            yield f"{name} by {legal}", lambda call=call, legal=legal: check_call(call, legal, size)
    mesh = init_device_mesh("cpu", (size,))
    for name in ("MLP", "embeddings"):
        yield f"{name}, lowered", lambda name=name: check_lowered(MODELS[name], mesh)
    for name, model in MODELS.items():
        if name in LONG and not whole:
            continue
        for target in TARGETS if whole else ["gathers only" if name == "MLP" else "tinygrad"]:
            yield f"{name} to {target}", lambda model=model, target=target: check_model(model, target, mesh)


def check_call(call: Call, legal: str, size: int) -> str:
    """Whether a collective and what it is derived from compute the same."""
    x = call.example(size, dist.get_rank())
    program = torch.export.export(call.module(size), (x,))
    target = targets.core_aten | {f"_c10d_functional.{legal}", "_c10d_functional.wait_tensor"}
    lowered = decomp.lower(program, to=target, rules=RULES | collectives.RULES, verify="full")
    assert legal in {node.target._opname for node in lowered.result.graph.nodes if hasattr(node.target, "_opname")}
    torch.testing.assert_close(lowered.result.module()(x), call.module(size)(x), rtol=1e-6, atol=1e-6)
    return ""


def check_model(model: Sharded, name: str, mesh: Any) -> str:
    """Whether values and gradients of a compiled distributed model are those of the model in one process, as exact as
    those of the distributed model itself."""
    torch.manual_seed(0)
    whole = model.whole(mesh.size())
    x = model.example(mesh.size())
    exact = results(copy.deepcopy(whole).double(), x.double() if x.is_floating_point() else x)
    if model.of_rank is not None:
        part = model.of_rank(dist.get_rank())
        exact = {k.replace(part, "expert"): v for k, v in exact.items() if k in ("", "x") or part in k}
        exact = {k: v if k in ("", "x") else v * mesh.size() for k, v in exact.items()}
    source = results(model.distribute(copy.deepcopy(whole), mesh), x)
    torch._dynamo.reset()
    target, rules = TARGETS[name]
    backend = decomp.backend(to=target, rules=rules)
    distributed = model.distribute(copy.deepcopy(whole), mesh)
    lowered = results(torch.compile(distributed, backend=backend), x)
    assert backend.graphs and exact.keys() == lowered.keys(), (exact.keys(), lowered.keys())
    errors = [Error.of([one[k] for k in exact], list(exact.values())).size for one in (source, lowered)]
    close = errors[1] <= TOLERANCE * errors[0] + ROUNDING
    return "" if close else f"error {errors[1]:.2g}, of the source {errors[0]:.2g}"


def check_lowered(model: Sharded, mesh: Any) -> str:
    """Whether the lowered program of a rank, of its shards, returns what the distributed model returns."""
    torch.manual_seed(0)
    distributed, x = model.distribute(model.whole(mesh.size()), mesh), model.example(mesh.size())
    to = targets.tinygrad | collectives.OPS
    lowered = decomp.lower(distributed, to=to, args=(x,), training=False, verify="full")
    assert any("the collectives of 1 group" in each for each in lowered.proof.checks)
    torch.testing.assert_close(lowered.result(x), distributed(x), rtol=1e-5, atol=1e-6)
    return ""


def results(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The result, by "", the gradient of the input, and those of the parameters, whole."""
    given = x.clone().requires_grad_() if x.is_floating_point() else x
    result = _whole(model(given))
    result.square().mean().backward()
    found = {"": result, **({"x": given.grad} if x.is_floating_point() else {})}
    for name, parameter in model.named_parameters():
        found[name.removeprefix("_orig_mod.")] = _whole(parameter.grad)
    return {name: value.detach() for name, value in found.items()}


def _whole(value: Any) -> torch.Tensor:
    found: torch.Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return found


if __name__ == "__main__":
    os.environ["DECOMP_CACHE"] = "off"
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "whole" in sys.argv)
