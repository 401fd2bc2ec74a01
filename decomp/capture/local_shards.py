"""Modules whose parameters are DTensors, as `parallelize_module` leaves them, captured for inference: the calls that
this process makes on its own shards, and the collectives between them. DTensor dispatches below autograd, so gradients,
which for a collective of DTensor are not those of the collective itself, are not captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.refused_kinds import is_distributed
from decomp.errors import CaptureError, first_line
from decomp.graphs.stateless import call_with_state
from decomp.torch_internals.graphs import PyTreeCodeGen, make_fx, tree_info
from decomp.torch_internals.pytree import tree_flatten, tree_unflatten

_COMPILE = "torch.compile with decomp.backend(to=...)"


def holds_shards(model: nn.Module) -> bool:
    """Whether a parameter or buffer is a DTensor."""
    return any(map(is_distributed, (*model.parameters(), *model.buffers())))


def local_program(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> fx.GraphModule:
    """The program of this process: a GraphModule of overloads with metadata, which takes and returns what `model` does.
    Its parameters are the local shards, in the memory and by the names of those of `model`; they require no gradient.
    Raises `CaptureError` if an input or a result is a DTensor, or PyTorch cannot trace the module."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shards = {name: _local(value) for name, value in state.items()}
    leaves, in_spec = tree_flatten((tuple(args), dict(kwargs)))
    out: list[Any] = []

    def run(*given: Any) -> list[Any]:
        own, inputs = given[: len(shards)], given[len(shards) :]
        whole = {name: _distributed(value, state[name]) for name, value in zip(shards, own)}
        named_args, named = tree_unflatten(inputs, in_spec)
        results: list[Any]
        results, spec = tree_flatten(call_with_state(model, whole, named_args, named))
        if any(map(is_distributed, results)):
            raise _DistributedResult
        out.append(spec)
        return results

    try:
        with torch.no_grad():
            # The tracer is below DTensor, which has made local calls and collectives of each call by then. Constants of
            # the model are real tensors.
            traced = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*shards.values(), *leaves)
    except _DistributedResult:
        raise CaptureError(
            f"{type(model).__name__} returns a DTensor, which is one process's part of a tensor\n"
            f"  to do: return its to_local() or full_tensor(), or use {_COMPILE}"
        ) from None
    except Exception as error:  # whatever a model's own code raises
        raise CaptureError(
            f"{type(model).__name__} has DTensors as parameters, and PyTorch cannot trace what this process computes "
            f"on its shards: {type(error).__name__}: {first_line(error)}\n  to do: use {_COMPILE}"
        ) from error
    return _as_module(traced, shards, in_spec, out[-1], [*(f"args_{i}" for i in range(len(args))), *kwargs])


class _DistributedResult(Exception):
    """A result of the module is a DTensor."""


def _local(value: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is in this process, detached, in the same memory."""
    with torch.no_grad():
        return (value.to_local() if is_distributed(value) else value).detach()


def _distributed(shard: torch.Tensor, like: Any) -> torch.Tensor:
    """A shard as the DTensor that it is part of."""
    if not is_distributed(like):
        return shard
    from torch.distributed.tensor import DTensor  # deferred: it takes half a second to import

    found: torch.Tensor = DTensor.from_local(
        shard, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return found


def _as_module(
    traced: fx.GraphModule, shards: Mapping[str, torch.Tensor], in_spec: Any, out_spec: Any, arguments: list[str]
) -> fx.GraphModule:
    """A traced graph, which takes the state as its first inputs, with the state as attributes."""
    graph = traced.graph
    inputs = graph.find_nodes(op="placeholder")
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for name, node in zip(shards, inputs):
        with graph.inserting_before(first):
            attribute = graph.create_node("get_attr", name)  # the module does not have it yet
        attribute.meta = dict(node.meta)
        node.replace_all_uses_with(attribute)
        graph.erase_node(node)
        if not attribute.users:
            graph.erase_node(attribute)
    graph._codegen = PyTreeCodeGen(tree_info(arguments, in_spec, out_spec))
    used = dict.fromkeys(str(node.target) for node in graph.find_nodes(op="get_attr"))
    state = {name: _frozen(shards[name]) if name in shards else getattr(traced, name) for name in used}
    return fx.GraphModule(state, graph)


def _frozen(shard: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(shard, requires_grad=False)
