"""Results that only a backward op reads have other shapes on a GPU than on a CPU."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import decomp
from decomp_rules import targets

aten = torch.ops.aten
TRAINED, EVALUATED = (None, None, True, 0.1, 1e-5), (False, 0.1, 1e-5)
CALLS = {
    aten.native_batch_norm.default: lambda x, w, m: (x, w, w, m, m, *EVALUATED),
    aten._native_batch_norm_legit.no_stats: lambda x, w, m: (x, w, w, True, 0.1, 1e-5),
    aten._native_batch_norm_legit_no_training.default: lambda x, w, m: (x, w, w, m, m, 0.1, 1e-5),
    aten._native_batch_norm_legit_functional.default: lambda x, w, m: (x, w, w, m, m, *EVALUATED),
    aten._batch_norm_no_update.default: lambda x, w, m: (x, w, w, m, m, 0.1, 1e-5),
    aten.cudnn_batch_norm.default: lambda x, w, m: (x, w, w, m, m, *EVALUATED),
    aten.miopen_batch_norm.default: lambda x, w, m: (x, w, w, m, m, *EVALUATED),
    aten.native_layer_norm.default: lambda x, w, m: (x, [4], None, None, 1e-5),
    aten.native_group_norm.default: lambda x, w, m: (x, None, None, 2, 3, 4, 3, 1e-5),
    aten.log_sigmoid_forward.default: lambda x, w, m: (x,),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
@pytest.mark.parametrize("op", CALLS, ids=str)
def test_what_is_saved_for_backward_is_what_the_device_saves(op, device, dtype):
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("x", "weight", "mean")]
    call = graph.call_function(op, CALLS[op](*nodes))
    graph.output(call)
    with FakeTensorMode():
        values = [torch.empty(2, 3, 4, dtype=dtype, device=device), *(torch.empty(3, device=device) for _ in "wm")]
        results = op(*CALLS[op](*values))
    for node, value in zip((*nodes, call), (*values, results), strict=True):
        node.meta["val"] = value
    lowered = decomp.lower(torch.fx.GraphModule(torch.nn.Module(), graph), to=targets.tinygrad).result
    found = [node.meta["val"] for node in lowered.graph.output_node().args[0]]
    assert [(a.shape, a.dtype, a.device) for a in found] == [(b.shape, b.dtype, b.device) for b in results]


@pytest.mark.parametrize("affine", [False, True])
def test_without_values_instances_are_normalised_as_on_a_CPU(affine):
    def ops_of(device):
        norm = torch.nn.InstanceNorm1d(3, affine=affine, dtype=torch.bfloat16, device=device)
        x = torch.empty(2, 3, 4, dtype=torch.bfloat16, device=device)
        return [call.op for call in decomp.calls(decomp.lower(norm, to=targets.tinygrad, args=(x,)).result)]

    assert ops_of("meta") == ops_of("cpu")
