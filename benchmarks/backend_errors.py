"""The accuracy of models on backends: `python -m benchmarks.backends --errors`. A figure is the error on the backend
over the model's own float32 error, both against float64. The first is the ratio of the largest errors, the second of
the root mean squares. Several inputs are used, because with a single one such ratios vary by a factor of three. If the
package of a backend is not installed, the cell names it."""

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
    """The errors of all elements so far: the largest, and the sum of squares."""

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
    """The inputs of a model, with float tensors converted to float64."""
    return torch.utils._pytree.tree_map_only(
        Tensor, lambda x: x.double() if x.is_floating_point() else x.clone(), values
    )


def ratio(model: nn.Module, program: Callable[..., Any], drawn: Drawn) -> str:
    """The error of a program over that of its model, as a cell of the table."""
    exact_model = copy.deepcopy(model).double()
    found, own = Errors(), Errors()
    for _ in range(INPUTS):
        args = drawn()
        exact = exact_model(*in_float64(args))
        own.add(model(*copy.deepcopy(args)), exact)
        found.add(program(*copy.deepcopy(args)), exact)
    return f"{found.largest / own.largest:.2f} ({(found.squares / own.squares) ** 0.5:.2f})"


def row(name: str, make: Callable[[], Built], chosen: Sequence[str], **how: Any) -> str:
    """A row of the table for a model on these backends; an error message where it cannot be lowered or loaded."""
    model, drawn = built(make)
    cells = []
    for each in chosen:
        torch.manual_seed(1)
        program = _loaded(each, model, drawn(), how)
        cells.append(program if isinstance(program, str) else ratio(model, program, drawn))
    return f"| {name} | {' | '.join(cells)} |"


def _loaded(name: str, model: nn.Module, args: tuple[Any, ...], how: dict[str, Any]) -> Any:
    """A model loaded on a backend, or the error message."""
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
