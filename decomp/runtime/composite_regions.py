"""Composites inside `torch.compile`: AOTAutograd inlines each `wrap`, so that composite calls pass it as regions, of
which it makes one call forward and one backward, and are composites again in the graphs that it returns."""

from __future__ import annotations

from collections.abc import Sequence
import json
from typing import Any

import torch
from torch import fx

from decomp.ir.call import metadata
from decomp.ir.composites import KEY, CompositeCall, composites_in
from decomp.runtime.shared_outputs import shared_pairs
from decomp.validation.running_programs import is_random


def composites_as_regions(module: fx.GraphModule, trains: bool) -> None:
    """Make composite calls regions. Those that cannot be one, and those in the bodies of control flow, which PyTorch
    traces by itself, keep their `wrap`, which AOTAutograd inlines."""
    from decomp.torch_internals.regions import region  # takes seconds, and only torch.compile needs it

    for node, made in composites_in(module.graph).items():
        body: Any = module.get_submodule(node.args[0].target)
        # Of a region, results are new tensors; and its backward runs the body again, which would draw again.
        if not shared_pairs(body.graph) and not (trains and is_random(body)):
            node.target, node.kwargs = region, {"label": json.dumps(made.meta)}
            composites_as_regions(body, trains)
    module.recompile()


def regions_as_composites(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of AOTAutograd in which each region is a composite call again. Calls of equal bodies share one."""
    from decomp.torch_internals.regions import region

    for inner in [inner for inner in module.modules() if isinstance(inner, fx.GraphModule)]:
        known: dict[Any, str] = {}
        for node in inner.graph.find_nodes(op="call_function", target=region):
            attribute: Any = node.args[0]
            name, attribute.target = attribute.target, known.setdefault(_signature(node, inner), attribute.target)
            if attribute.target != name:
                inner.delete_submodule(name)
            made = _composite(node, **node.kwargs)
            node.target, node.kwargs = torch.ops.higher_order.wrap, {}
            node.meta["custom"] = {**node.meta.get("custom", {}), KEY: made.meta}
        inner.recompile()
    return module


def _signature(node: fx.Node, inside: fx.GraphModule) -> Any:
    """By what calls are compared that may run one body."""
    name = str(node.args[0].target)
    body = inside.get_submodule(name)
    # The code of a body names its constants and bodies, but does not hold them.
    if body.graph.find_nodes(op="get_attr"):
        return name
    operands = [metadata(each) for each in body.graph.find_nodes(op="placeholder")]
    layouts = [each.stride() if isinstance(each, torch.Tensor) else () for each in operands]
    return body.code, str(node.kwargs), str(operands), str(layouts)


def _composite(node: fx.Node, label: str, gradients: Sequence[int] = (), wanted: Sequence[int] = ()) -> CompositeCall:
    """What the call of a region says of itself, forward or backward."""
    found = json.loads(label)
    made = CompositeCall(**{**found, "results": tuple(found["results"])})
    first = len(node.args) - 1 - len(gradients)
    return made.backward({result: first + i for i, result in enumerate(gradients)}, wanted) if gradients else made
