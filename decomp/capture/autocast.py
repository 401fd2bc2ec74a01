"""Makes autocast explicit: the casts that a region applies implicitly to the inputs of its calls become calls of the
graph, so that each call is lowered to the dtypes that it computed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from typing import Any

import torch
from torch import fx

from decomp.errors import CaptureError, describe
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.tracing import fake_like, on_metadata
from decomp.ir.call import metadata
from decomp.ops import aten
from decomp.torch_internals.fakes import FakeTensor, FakeTensorMode
from decomp.torch_internals.modes import TorchDispatchMode
from decomp.torch_internals.pytree import tree_leaves

Policy = tuple[str, torch.dtype]
"""Device type and dtype of an enabled autocast region."""


def region_policy(call: fx.Node) -> Policy | None:
    """What a `wrap_with_autocast` call enables, or None if it disables autocast."""
    device, dtype, enabled = call.args[:3]
    if not enabled:
        return None
    assert isinstance(device, str)
    chosen = dtype if isinstance(dtype, torch.dtype) else torch.get_autocast_dtype(device)
    return device, chosen


def is_region(node: fx.Node) -> bool:
    """Whether the node calls the body of an autocast region."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() == "wrap_with_autocast"


def region_marker(node: fx.Node) -> int:
    """1 for the call with which a Dynamo graph enters an autocast region, -1 for the one that leaves it, else 0."""
    name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    return {"_enter_autocast": 1, "_exit_autocast": -1}.get(name, 0)


def disable_region(call: fx.Node) -> None:
    """Disable autocast in a region whose body now casts explicitly."""
    call.args = (*call.args[:2], False, *call.args[3:])


def ambient_policy(value: Any) -> Policy | None:
    """The autocast that is enabled for the device of a value."""
    device = value.device.type if isinstance(value, torch.Tensor) else "cpu"
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return device, torch.get_autocast_dtype(device)


def make_casts_explicit(body: fx.GraphModule, policy_of: Callable[[fx.Node], Policy | None]) -> fx.GraphModule:
    """A copy of a graph with the casts of autocast as calls; `policy_of` returns the autocast under which a call runs.
    Raises `CaptureError` for a call whose dtypes under autocast cannot be obtained by casting its inputs."""
    rewrite = Rewrite.of(body.graph)
    # One cast per value and dtype, as with autocast's cache of weights.
    casts: dict[tuple[fx.Node, torch.dtype], fx.Node] = {}
    for node in body.graph.nodes:
        policy = policy_of(node) if isinstance(node.target, torch._ops.OpOverload) else None
        wanted = _casts_needed(node, policy) if policy is not None else {}
        for source, dtype in wanted.items():
            if (source, dtype) not in casts:
                casts[source, dtype] = _add_cast(rewrite, source, dtype, node)
        cast_or_copied = {n: casts[n, wanted[n]] if n in wanted else rewrite.values[n] for n in node.all_input_nodes}
        new = rewrite.copy(node, cast_or_copied.__getitem__)
        if policy is not None:
            _set_dtype(new)
            if node.target._schema.is_mutable:
                # An in-place call may have changed a source, so that its casts are stale.
                casts.clear()
    module = fx.GraphModule(body, rewrite.graph)
    module.meta = dict(body.meta)
    return module


def _add_cast(rewrite: Rewrite, source: fx.Node, dtype: torch.dtype, user: fx.Node) -> fx.Node:
    value, given = rewrite.values[source], metadata(source)
    to = aten._to_copy.default
    node = rewrite.add("call_function", to, (value,), {"dtype": dtype}, f"{value.name}_cast", at=user)
    with given.fake_mode:
        node.meta["val"] = given.to(dtype)
    node.meta.update({k: v for k, v in value.meta.items() if k in ("stack_trace", "nn_module_stack")})
    return node


def _casts_needed(node: fx.Node, policy: Policy) -> dict[fx.Node, torch.dtype]:
    """The inputs of a call that autocast casts, with the dtype it casts them to."""
    sources = [
        # Autocast casts nothing else (`at::autocast::is_eligible`).
        n
        for n in node.all_input_nodes
        if isinstance(metadata(n), FakeTensor) and n.meta["val"].is_floating_point()
    ]
    if not sources:
        return {}
    mode = metadata(sources[0]).fake_mode
    # New ones, as the observer knows inputs by identity, and two nodes may share a fake tensor.
    fakes = {n: fake_like(mode, metadata(n)) for n in node.all_input_nodes}
    under = _observe_casts(node, fakes, mode, policy)
    with mode:
        cast = {n: fakes[n].to(dtype) for n, dtype in under.items() if dtype == policy[1]}
    own = _own_casts(node, fakes, cast, mode)
    # Casts that the op does without autocast as well must not be added: they would be done twice.
    return {source: under[source] for source in sources if source in under and own.get(source) != under[source]}


def _own_casts(
    node: fx.Node, fakes: dict[fx.Node, Any], cast: dict[fx.Node, Any], mode: FakeTensorMode
) -> dict[fx.Node, torch.dtype]:
    """Casts that the op does by itself. Some ops accept mixed dtypes only under autocast (a product of float16 and
    float32): their own casts show once their inputs are `cast`."""
    for given in (fakes, {**fakes, **cast}):
        with contextlib.suppress(RuntimeError):
            return _observe_casts(node, given, mode, None)
    return {}


def _observe_casts(
    node: fx.Node, fakes: dict[fx.Node, Any], mode: FakeTensorMode, policy: Policy | None
) -> dict[fx.Node, torch.dtype]:
    """The casts of inputs observed while the call runs."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), fakes.__getitem__)
    seen = _CastObserver({id(fake) for fake in fakes.values()})
    with on_metadata(mode), seen, _policy(policy):
        node.target(*args, **kwargs)
    return {given: seen.found[id(fake)] for given, fake in fakes.items() if id(fake) in seen.found}


@contextlib.contextmanager
def _policy(policy: Policy | None) -> Iterator[None]:
    if policy is None:
        yield
        return
    # With the cache a second use of a tensor would show no cast.
    with torch.autocast(policy[0], dtype=policy[1], cache_enabled=False):
        yield


class _CastObserver(TorchDispatchMode):
    """Records which inputs are cast, and to which dtype."""

    def __init__(self, inputs: set[int]) -> None:
        super().__init__()
        self.inputs = inputs
        self.found: dict[int, torch.dtype] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._to_copy.default and id(args[0]) in self.inputs and kwargs.get("dtype") is not None:
            self.found.setdefault(id(args[0]), kwargs["dtype"])
        return func(*args, **(kwargs or {}))


def _set_dtype(node: fx.Node) -> None:
    """Set `dtype` on a call that autocast makes compute in another dtype through that argument (such as `sum`)."""
    expected = metadata(node)
    if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(expected, FakeTensor):
        return
    if (
        any(not isinstance(v, torch.Tensor) for v in map(metadata, node.all_input_nodes))
        or node.target._schema.is_mutable
    ):
        return
    fakes = {n: fake_like(expected.fake_mode, metadata(n)) for n in node.all_input_nodes}
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), fakes.__getitem__)
    with on_metadata(expected.fake_mode):
        found = tree_leaves(node.target(*args, **kwargs))[0]
    if found.dtype == expected.dtype:
        return
    if any(argument.name == "dtype" for argument in node.target._schema.arguments) and "dtype" not in node.kwargs:
        node.kwargs = {**node.kwargs, "dtype": expected.dtype}
        return
    raise CaptureError(
        f"{describe(node)} returns {expected.dtype} under autocast and {found.dtype} without, even with cast inputs\n"
        "  to do: export the model without autocast, or cast where the model is written"
    )
