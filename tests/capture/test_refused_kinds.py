"""Modules and tensors that no graph of calls on strided tensors can express are refused by name, with what to do."""

import pytest
import torch
from torch import nn

import decomp
from decomp.capture import refused_kinds
from decomp_rules import targets
from tests.forms import Holder

X = torch.randn(2, 3)


def nested(layout):
    return torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=layout)


def quantised():
    return torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


def refusal(model, *args, **kwargs):
    with pytest.raises(decomp.CaptureError) as error:
        decomp.lower(model, to=targets.tinygrad, args=args, kwargs=kwargs)
    return str(error.value).split("\n  to do: ")


NESTED = "a nested tensor, whose row sizes a graph cannot express"
TO_PAD = "pass it padded, by torch.nested.to_padded_tensor, or use torch.compile with decomp.backend(to=...)"
QUANTISED = "a quantised tensor, whose scale is not a value of a graph"
TO_DEQUANTISE = "use value.dequantize(), or keep int8 values and their scale as two tensors"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are(layout):
    assert refusal(Holder(torch.sin), nested(layout)) == [f"the example input args[0] is {NESTED}", TO_PAD]
    held = Holder(lambda self, x: self.rows * x, rows=nested(layout))
    assert refusal(held, X) == [f"the buffer rows of Holder is {NESTED}", TO_PAD]
    traced = torch.fx.symbolic_trace(nn.ReLU())
    traced.register_buffer("rows", nested(layout))
    assert refusal(traced, X) == [f"the buffer rows of {type(traced).__name__} is {NESTED}", TO_PAD]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_tensors_are():
    model = Holder(lambda x, scale: x.dequantize() * scale["by"])
    assert refusal(model, quantised(), {"by": X}) == [f"the example input args[0] is {QUANTISED}", TO_DEQUANTISE]
    assert refusal(model, X, {"by": quantised()})[0] == f"the example input args[1]['by'] is {QUANTISED}"
    held = Holder(lambda self, x: self.table.dequantize() * x, table=quantised())
    assert refusal(held, X) == [f"the buffer table of Holder is {QUANTISED}", TO_DEQUANTISE]


@pytest.mark.parametrize("dtype", [torch.uint4, torch.int3])
def test_integers_of_less_than_a_byte_are(dtype):
    bits = torch.zeros(2, 3, dtype=torch.uint8).view(dtype)
    reason = "a tensor of integers of less than 8 bits, which PyTorch can neither copy nor compute with"
    to_do = "keep its bytes, value.view(torch.uint8), and take them apart in forward by & and >>"
    held = Holder(lambda self, x: self.table.view(torch.uint8) * x, table=bits)
    assert refusal(held, X) == [f"the buffer table of Holder is {reason}", to_do]
    assert refusal(Holder(lambda x: x.view(torch.uint8) * 2), bits) == [
        f"the example input args[0] is {reason}",
        to_do,
    ]


@pytest.mark.skipif(not hasattr(torch.Tensor, "rename"), reason="torch 2.13 has no named tensors any more")
@pytest.mark.filterwarnings("ignore:Named tensors")
def test_named_tensors_are():
    named = X.clone().refine_names("rows", "columns")
    reason = "a named tensor, and export drops names"
    assert refusal(Holder(lambda x: x * 2), named) == [
        f"the example input args[0] is {reason}",
        "pass value.rename(None)",
    ]


class Positive(nn.Module):
    def forward(self, x):
        return x.relu()


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("made", [torch.jit.script, lambda module: torch.jit.trace(module, X)])
@pytest.mark.parametrize("args", [(X,), None])
def test_script_modules_are(made, args):
    script = made(Positive())
    for model, name in ((script, type(script).__name__), (nn.Sequential(nn.Tanh(), script), "Sequential, its 1,")):
        with pytest.raises(decomp.CaptureError) as error:
            decomp.lower(model, to=targets.tinygrad, args=args)
        assert str(error.value) == (
            f"{name} is a ScriptModule, which is a program of torch.jit and not of Python\n"
            "  to do: lower the module as it was before torch.jit.script or torch.jit.trace"
        )


@pytest.mark.parametrize(
    ("wrapper", "reason"),
    [
        (
            "DistributedDataParallel",
            ["whose forward talks to other processes", "lower the module in it, model.module"],
        ),
        (
            "FullyShardedDataParallel",
            ["which holds a part of each parameter", "lower the module as it was before it was wrapped"],
        ),
        (
            "FSDPModule",
            [
                "which holds a part of each parameter, and gathers it by hooks that no graph records",
                "use torch.compile with decomp.backend(to=...), or lower the module as it was before fully_shard",
            ],
        ),
    ],
)
def test_what_distributes_a_module_over_processes_is(wrapper, reason):
    """Without processes: classes of the names that PyTorch has."""
    kind = type(wrapper, (nn.Sequential,), {"__module__": "torch.distributed.somewhere"})
    problem, remedy = reason
    assert refusal(kind(nn.Linear(3, 3)), X) == [f"{wrapper} is a {wrapper}, {problem}", remedy]
    assert refusal(nn.Sequential(kind(nn.Linear(3, 3))), X)[0] == f"Sequential, its 0, is a {wrapper}, {problem}"
    mine = type(wrapper, (nn.Sequential,), {"__module__": "my_package"})
    decomp.lower(mine(nn.Linear(3, 3)), to=targets.tinygrad, args=(X,))


def test_the_wrappers_are_classes_of_pytorch():
    from torch.distributed import fsdp
    from torch.nn import parallel

    for name in refused_kinds._WRAPPERS:
        owner = parallel if hasattr(parallel, name) else fsdp
        assert issubclass(getattr(owner, name), object) and getattr(owner, name).__module__.startswith("torch.")


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_call_on_sparse_tensors_is_blocked_by_name_and_may_be_kept(layout):
    model, sparse = Holder(lambda a, x: (a @ x).relu()), torch.eye(2).to_sparse(layout=layout)
    with pytest.raises(decomp.NotLowered) as error:
        decomp.lower(model, to=targets.tinygrad, args=(sparse, X))
    assert f"an operand or result has the layout {layout}, and rules compute with strided tensors" in str(error.value)
    assert "keep={...} (of aten.matmul)" in str(error.value)
    lowered = decomp.lower(model, to=targets.tinygrad, args=(sparse, X), keep={torch.matmul}).result
    assert torch.equal(lowered(sparse, X), model(sparse, X))
