"""What models lose on backends: `python -m benchmarks.backends --errors`. A figure is an error over the model's own in
float32, both against float64 and over several inputs, as one input alone moves such a quotient by a factor of three;
the first is of the largest errors, the second of the root mean squares. The package of a backend that is not there is
named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.backend_models import SMALL, Built, Drawn, built
import decomp
from decomp_rules import backends

INPUTS = 8


@dataclass
class Errors:
    """Of all elements so far: the largest error, and the sum of squares."""

    largest: float = 0.0
    squares: float = 0.0

    def add(self, found: Any, exact: Any) -> None:
        for one, other in zip(_floats(found), _floats(exact), strict=True):
            error = one.double() - other
            self.largest = max(self.largest, float(error.abs().max()))
            self.squares += float(error.square().sum())


def _floats(values: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def in_float64(values: Any) -> Any:
    """Inputs of a model with their floats in float64."""
    return torch.utils._pytree.tree_map_only(
        Tensor, lambda x: x.double() if x.is_floating_point() else x.clone(), values
    )


def ratio(model: nn.Module, program: Callable[..., Any], drawn: Drawn) -> str:
    """What a program loses over what its model does, as a cell of the table."""
    exact_model = copy.deepcopy(model).double()
    found, own = Errors(), Errors()
    for _ in range(INPUTS):
        args = drawn()
        exact = exact_model(*in_float64(args))
        own.add(model(*copy.deepcopy(args)), exact)
        found.add(program(*copy.deepcopy(args)), exact)
    return f"{found.largest / own.largest:.2f} ({(found.squares / own.squares) ** 0.5:.2f})"


def row(name: str, make: Callable[[], Built], chosen: Sequence[str], **how: Any) -> str:
    """A row of the table for a model on these backends; what is refused says so."""
    model, drawn = built(make)
    cells = []
    for each in chosen:
        torch.manual_seed(1)
        program = _loaded(each, model, drawn(), how)
        cells.append(program if isinstance(program, str) else ratio(model, program, drawn))
    return f"| {name} | {' | '.join(cells)} |"


def _loaded(name: str, model: nn.Module, args: tuple[Any, ...], how: dict[str, Any]) -> Any:
    """A model on a backend, or what is in the way."""
    try:
        backend = backends.get(name)
        return backend.load(decomp.lower(model, to=backend.target, args=copy.deepcopy(args), **how))
    except (decomp.DecompError, ImportError) as error:
        return str(error).partition("\n")[0]


def table(chosen: Sequence[str], models: Sequence[str] = (), **how: Any) -> None:
    """Print the table of these models, or of all; `how` goes to `decomp.lower`."""
    print(f"| model | {' | '.join(chosen)} |")
    print("|---" * (len(chosen) + 1) + "|")
    for name in models or SMALL:
        print(row(name, SMALL[name], chosen, **how), flush=True)
