"""The sample calls of all ops, lowered to all targets and verified with values. A seed draws those that are run; their
number is printed. Calls whose results PyTorch leaves open are excluded. For a PyTorch on which the whole suite would
take too long:

    python -m tests.sample_calls --pairs 1000
"""

import argparse
from collections import Counter
import random
import sys
import warnings

import torch
from torch import fx
from torch.utils import _pytree as pytree

import decomp
from decomp_rules import samples, targets
from tests.pytorch_differences import present


def program(sample):
    """A graph of the call alone, and its tensors."""
    leaves, spec = pytree.tree_flatten((sample.args, dict(sample.kwargs)))
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") if isinstance(leaf, torch.Tensor) else leaf for i, leaf in enumerate(leaves)]
    args, kwargs = pytree.tree_unflatten(inputs, spec)
    graph.output(graph.call_function(sample.overload, args, kwargs))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    return fx.GraphModule(torch.nn.Module(), graph), tensors


def verdict(sample, target):
    """`verified`, `declared`: it says why it cannot; else what is wrong."""
    module, tensors = program(sample)
    torch.manual_seed(0)
    try:
        decomp.lower(module, to=target, args=tensors, verify="values")
        return "verified"
    except (decomp.NotLowered, decomp.MutationError):
        return "declared"
    except decomp.VerificationError as error:
        return f"wrong: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def determined(sample):
    """Whether PyTorch runs the call here, and every result of it is decided."""
    return sample.leeway is None and sample.documented is None and sample.exact == "float64"


def pairs(seed):
    """Each sample call of each op with each target, in an order that the seed draws."""
    packets = [getattr(torch.ops.aten, name) for name in present(n for n in samples.CALLS if "linear_cross" not in n)]
    found = [
        (sample, name)
        for packet in packets
        for sample in samples.calls_of(packet)
        if isinstance(sample.overload, torch._ops.OpOverload) and determined(sample)
        for name in targets.names()
    ]
    random.Random(seed).shuffle(found)
    return found


def main():
    parser = argparse.ArgumentParser(description="Lower sample calls to all targets, and verify them with values.")
    parser.add_argument("--pairs", type=int, default=200, help="how many pairs of a call and a target are run")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    every, found, wrong = pairs(asked.seed), Counter(), []
    for sample, name in every[: asked.pairs]:
        said = verdict(sample, targets.get(name))
        found[said.partition(":")[0]] += 1
        if said not in ("verified", "declared"):
            wrong.append(f"{sample.overload} to {name}: {said}")
    for line in wrong:
        print(line[:400])
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))
    drawn = f"{sum(found.values())} of {len(every)} pairs of a sample call and a target (seed {asked.seed})"
    print(f"torch {torch.__version__}: {drawn}: {counts}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
