"""Products of matrices at the levels of accuracy, on targets that have none: they are right, and cost little."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.decomp_rules.draws import sample
from tests.levels import at_level, calls, holds

PRODUCTS = {
    "linear": (F.linear, (sample(2, 4, 8), sample(3, 8, seed=1), sample(3, seed=2)), 4),
    "linear of a vector": (F.linear, (sample(8), sample(3, 8, seed=1)), 3),
    "matmul": (torch.matmul, (sample(4, 8), sample(8, 3, seed=1)), 3),
    "matmul of batches": (torch.matmul, (sample(2, 3, 4, 8), sample(2, 3, 8, 5, seed=1)), 4),
    "matmul of a batch with one": (torch.matmul, (sample(2, 3, 4, 8), sample(8, 5, seed=1)), 3),
    "matmul broadcast": (torch.matmul, (sample(3, 4, 8), sample(2, 1, 8, 5, seed=1)), 4),
    "matmul with a vector": (torch.matmul, (sample(3, 4, 8), sample(8, seed=1)), 2),
    "matmul of a vector": (torch.matmul, (sample(8), sample(2, 8, 3, seed=1)), 3),
}


@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_broadcast_and_summed(name, target):
    function, args, most = PRODUCTS[name]
    holds(function, "standard", args, target, row=-1, gradient_most=16.0)
    assert calls(function, args, "standard", target) <= most


def test_halves_are_summed_in_float32_and_rounded_once_with_the_bias():
    args = tuple(x.bfloat16() for x in PRODUCTS["linear"][1])
    holds(F.linear, "standard", args, row=-1, orders=0, most=0.51)
    assert at_level(F.linear, args, "standard")(*args).dtype == torch.bfloat16


@pytest.mark.parametrize("level", ["standard", "fast"])
def test_a_target_with_products_of_matrices_keeps_them(level):
    chip = decomp.Target("chip", ["mm", "bmm", "add", "mul", "sum", "view", "permute", "expand", "clone"])
    for name in ("linear", "linear of a vector", "matmul of batches", "matmul of a batch with one"):
        function, args, _ = PRODUCTS[name]
        used = {node.target for node in at_level(function, args, level, chip).graph.nodes}
        assert used & {torch.ops.aten.mm.default, torch.ops.aten.bmm.default}
