"""Products by group agree with PyTorch's, and models that send rows to experts are lowered and trained."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from decomp_rules.linalg import grouped_products
from tests.decomp_rules.rule_agreement import agrees

aten = torch.ops.aten
RULES = grouped_products.RULES
ENDS = torch.tensor([2, 2, 8], dtype=torch.int32)
LAST = torch.tensor([4, 4, 16], dtype=torch.int32)


def sample(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(
    ("left", "right", "ends"),
    [
        ((8, 16), (3, 16, 8), ENDS),
        ((3, 4, 16), (16, 8), ENDS),
        ((8, 16), (16, 8), LAST),
        ((3, 4, 16), (3, 16, 8), None),
    ],
)
def test_products_by_group(left: tuple[int, ...], right: tuple[int, ...], ends: torch.Tensor | None) -> None:
    agrees(RULES, aten._grouped_mm.default, sample(*left), sample(*right, seed=1), ends)


def test_what_belongs_to_no_group_is_zero_and_what_is_not_finite_stays_in_its_group() -> None:
    rows, matrices = sample(6, 4, dtype=torch.float64), sample(2, 4, 3, seed=1, dtype=torch.float64)
    matrices[1, 0, 0], rows[5] = torch.inf, torch.nan
    found = grouped_products._grouped_mm(rows, matrices, torch.tensor([2, 4]))
    assert torch.equal(found[:2], rows[:2] @ matrices[0]) and torch.equal(found[2:4], rows[2:4] @ matrices[1])
    assert not found[4:].any()


class Mixture(nn.Module):
    """Two of four experts for each row, as `transformers` computes them."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import MixtralConfig, MixtralModel

        torch.manual_seed(0)
        self.model = MixtralModel(
            MixtralConfig(
                hidden_size=16,
                intermediate_size=24,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                vocab_size=11,
                num_local_experts=4,
                num_experts_per_tok=2,
                max_position_embeddings=16,
            )
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(input_ids=ids, use_cache=False, return_dict=False)[0]
        return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
def test_a_mixture_of_experts_is_lowered_and_trained(target: str) -> None:
    model, ids = Mixture(), torch.tensor([[1, 5, 2, 7], [3, 3, 9, 0]])
    program = torch.export.export(model, (ids,), strict=False)
    lowered = decomp.lower(program, to=getattr(targets, target)).result.module()
    found, expected = lowered(ids), model(ids)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    weights = torch.arange(found.numel(), dtype=torch.float32).reshape(found.shape).cos()
    for one, two in zip(
        *(
            torch.autograd.grad((out * weights).sum(), list(module.parameters()), allow_unused=True)
            for out, module in ((found, lowered), (expected, model))
        ),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
