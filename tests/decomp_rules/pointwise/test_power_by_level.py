"""Powers, roots and remainders at the fast level: errors where networks live, and what they cost."""

import torch

from decomp_rules import targets
from tests.levels import at_level, calls, holds, of_every_exponent

X, Y = of_every_exponent(40, -20, 20, seed=1), of_every_exponent(40, -20, 20, seed=2)
BASE = 0.1 + 3 * torch.rand(400, generator=torch.Generator().manual_seed(0))
EXPONENT = 8 * torch.rand(400, generator=torch.Generator().manual_seed(1)) - 4


def test_powers_of_positive_numbers_with_both_gradients():
    holds(torch.pow, "fast", (BASE, EXPONENT), targets.luminal, gradient_most=256.0, orders=1)
    assert calls(torch.pow, (BASE, EXPONENT), "fast", targets.luminal) <= 20


def test_whole_powers_of_numbers_of_either_sign():
    base, exponent = torch.cartesian_prod(torch.tensor([-2.5, -1.0, 0.5, 3.0]), torch.arange(-3.0, 4.0)).unbind(1)
    args = base.contiguous(), exponent.contiguous()
    torch.testing.assert_close(at_level(torch.pow, args, "fast", targets.luminal)(*args), torch.pow(*args), rtol=1e-5,
                               atol=0)  # fmt: skip


def test_hypotenuses():
    holds(torch.hypot, "fast", (X, Y), orders=1)
    assert calls(torch.hypot, (X, Y), "fast") <= 4
