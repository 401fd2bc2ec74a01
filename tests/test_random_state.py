"""What the project does draws no number of the caller's: the random state of PyTorch, Python and NumPy is as it was."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules import RULES, targets

X = torch.randn(2, 4)
MODEL = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.5), nn.Softmax(-1)).eval()
TRAINED = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.5))
PROGRAM = torch.export.export(MODEL, (X,))
CHIP = targets.tinygrad
LOWERING = decomp.lower(PROGRAM, to=CHIP)
TRACED = torch.fx.symbolic_trace(MODEL)


def compiled():
    torch._dynamo.reset()
    torch.compile(MODEL, backend=decomp.backend(to=CHIP))(X)


VERBS = {
    "lower a module": lambda: decomp.lower(MODEL, to=CHIP, args=(X,)),
    "lower a module that is trained": lambda: decomp.lower(TRAINED, to=CHIP, args=(X,)),
    "lower a traced module": lambda: decomp.lower(TRACED, to=CHIP, args=(X,)),
    "lower an exported program": lambda: decomp.lower(PROGRAM, to=CHIP, rules=decomp.Rules(RULES.entries)),
    "verify values": lambda: decomp.lower(PROGRAM, to=CHIP, verify="values"),
    "plan": lambda: str(decomp.plan(PROGRAM, to=CHIP)),
    "advise a target": lambda: decomp.plan(PROGRAM, to=decomp.Target("few", ["add", "mul"])).suggest(),
    "price by measuring": lambda: decomp.plan(PROGRAM, to=CHIP, cost=decomp.costs.measured),
    "decompose": lambda: decomp.decompose(TRACED, {F.gelu: lambda x: x * torch.sigmoid(1.702 * x)}),
    "simplify": lambda: decomp.simplify(PROGRAM),
    "refold": lambda: decomp.refold(LOWERING),
    "match": lambda: decomp.match(TRACED, lambda x: F.gelu(x)),
    "verify": lambda: decomp.verify(PROGRAM, LOWERING),
    "report": lambda: str(LOWERING.report()),
    "budget": lambda: decomp.budget(PROGRAM, to=CHIP, args=(X,)),
    "advise": lambda: decomp.advise({"mine": PROGRAM}, to=CHIP),
    "plan memory": lambda: decomp.memory_plan(LOWERING),
    "certify": lambda: decomp.certify(RULES["relu"][0], samples=[(X,)]),
    "compile": compiled,
}


def states():
    name, keys, *rest = np.random.get_state()
    return [torch.get_rng_state().tolist(), random.getstate(), name, keys.tolist(), *rest]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_the_random_state_is_left_alone(verb):
    before = states()
    verb()
    assert states() == before


@pytest.mark.parametrize("load", ["numpy", "tinygrad", "stablehlo", "onnx"])
def test_what_is_loaded_on_a_backend_leaves_it_alone(load):
    backend = __import__("decomp_rules.backends", fromlist=["backends"]).get(load)
    before = states()
    backend.load(decomp.lower(PROGRAM, to=backend.target))(X)
    assert states() == before
