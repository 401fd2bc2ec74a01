"""What is done to a program in front of LiteRT; its package is not needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from decomp_rules.converters import litert
from tests.forms import Holder

aten = torch.ops.aten
QUERY, KEY, LINE = (
    torch.arange(float(n)).reshape(s) / n for n, s in ((48, (2, 2, 3, 4)), (24, (2, 1, 3, 4)), (4, (4,)))
)
BROADCASTS = (aten.expand.default, aten.repeat.default, aten.repeat_interleave.self_int)


def _spelled_out(function: Callable[..., Tensor], *args: Tensor) -> list[object]:
    """The broadcasts that are left, in a program whose results are the same."""
    module = torch.export.export(Holder(function), args).module()
    litert._spell_out_broadcasts(module.graph)
    module.recompile()
    torch.testing.assert_close(module(*args), function(*args), rtol=0, atol=0)
    return [node.target for node in module.graph.nodes if node.target in BROADCASTS]


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k: q @ k.expand(2, 2, 3, 4).mT,
        lambda q, k: q @ k.repeat(1, 2, 1, 1).mT,
        lambda q, k: q @ k.repeat_interleave(2, 1).mT,
        lambda q, k: q @ k[:, :, None].expand(2, 1, 2, 3, 4).reshape(2, 2, 3, 4).mT,
        lambda q, k: q @ (k.expand(2, 2, 3, 4) * 2).mT,
    ],
    ids=["expand", "repeat", "repeat_interleave", "heads", "scaled"],
)
def test_a_broadcast_that_may_be_transposed_reads_by_an_index(function: Callable[..., Tensor]) -> None:
    assert not _spelled_out(function, QUERY, KEY)


def test_new_dimensions_are_repeated_and_longer_ones_tiled() -> None:
    assert not _spelled_out(lambda q, line: q @ line.expand(2, 2, 3, 4).mT, QUERY, LINE)
    assert _spelled_out(lambda k: k.repeat(2, 2, 1, 3).mT.contiguous(), KEY) == [aten.repeat.default]
    assert _spelled_out(lambda k: k.repeat(0, 2, 1, 1).mT.contiguous(), KEY) == [aten.repeat.default]


def test_a_broadcast_beside_an_operand_as_large_stays() -> None:
    assert _spelled_out(lambda q, k: (q + k.expand(2, 2, 3, 4)).mT, QUERY, KEY) == [aten.expand.default]
    both = _spelled_out(lambda k: (k.expand(2, 2, 3, 4) + k.expand(2, 2, 3, 4)).mT, KEY)
    assert both == [aten.expand.default]  # the other reads by an index, and is as large
