"""Modules whose parameters are DTensors: the program of one rank, and what is refused by name."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import collectives, targets
from tests.sharded.groups import process_group

CHIP = targets.core_aten | collectives.OPS


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x, *, scale=2.0):
        return {"y": self.down(torch.relu(self.up(x))) * scale}


@pytest.fixture
def distributed():
    """The MLP of one rank of four, and its mesh."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with process_group(rank=1):
        mesh = init_device_mesh("cpu", (4,))
        yield parallelize_module(MLP(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}), mesh


X = torch.ones(2, 8)


def refused(model, **how):
    with pytest.raises(decomp.CaptureError) as caught:
        decomp.lower(model, to=CHIP, **how)
    return str(caught.value)


def test_the_program_of_a_rank_computes_on_its_shards(distributed):
    model, _ = distributed
    lowering = decomp.lower(model, to=CHIP, args=(X,), kwargs={"scale": 3.0}, training=False, verify="full")
    state = dict(lowering.result.named_parameters())
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "up.weight": (4, 8),
        "up.bias": (4,),
        "down.weight": (8, 4),
        "down.bias": (8,),
    }
    assert state["up.weight"].data_ptr() == model.up.weight.to_local().data_ptr()
    assert not any(value.requires_grad for value in state.values())
    made = [node.target for node in lowering.result.graph.nodes if "c10d" in str(node.target)]
    ops = torch.ops._c10d_functional
    assert made == [ops.all_reduce.default, ops.wait_tensor.default]
    found = lowering.result(X, scale=3.0)
    assert list(found) == ["y"] and found["y"].shape == (2, 8)


def test_gradients_of_dtensors_are_left_to_torch_compile(distributed):
    assert refused(distributed[0], args=(X,)) == (
        "the gradients of MLP, whose parameters are DTensors, are not captured\n"
        "  to do: pass training=False, for inference alone; or use torch.compile with decomp.backend(to=...)"
    )


def test_dtensors_without_example_inputs_are_refused(distributed):
    assert refused(distributed[0]) == (
        "the parameter up.weight of MLP is a DTensor, which is one process's part of a tensor\n"
        "  to do: pass example inputs (args=) and training=False, or use torch.compile with decomp.backend(to=...)"
    )


def test_dtensors_as_inputs_and_results_are_refused(distributed):
    from torch.distributed.tensor import distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model, mesh = distributed
    assert refused(model, args=(distribute_tensor(X, mesh),), training=False) == (
        "the example input args[0] is a DTensor, which is one process's part of a tensor\n"
        "  to do: pass its to_local(), or use torch.compile with decomp.backend(to=...)"
    )
    layer = parallelize_module(nn.Linear(8, 8), mesh, ColwiseParallel(use_local_output=False))
    assert refused(layer, args=(X,), training=False) == (
        "Linear returns a DTensor, which is one process's part of a tensor\n"
        "  to do: return its to_local() or full_tensor(), or use torch.compile with decomp.backend(to=...)"
    )


def test_fsdp_modules_are_left_to_torch_compile(distributed):
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nn.Linear(8, 8), mesh=distributed[1])
    assert refused(model, args=(X,), training=False) == (
        "FSDPLinear is a FSDPModule, which holds a part of each parameter, and gathers it by hooks that no graph "
        "records\n"
        "  to do: use torch.compile with decomp.backend(to=...), or lower the module as it was before fully_shard"
    )


def test_what_cannot_be_traced_is_refused_with_the_reason(distributed):
    model, _ = distributed
    model.register_forward_pre_hook(lambda module, given: given[0].sum().item() and None)
    assert refused(model, args=(X,), training=False).startswith(
        "MLP has DTensors as parameters, and PyTorch cannot trace what this process computes on its shards: "
    )
