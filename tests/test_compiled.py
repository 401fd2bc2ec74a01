"""Rules and models inside `torch.compile`: values and gradients of eager, forward and backward, for static
and dynamic sizes; and, for fewer of them, once more as Inductor compiles them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import copy
from itertools import islice
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import decomp
from decomp.results import Certificate
from decomp.rules.certificates import identity
from decomp.tools.certification.certificates import read_committed
from decomp_rules import RULES, targets
from decomp_rules.samples import MODELS, calls_of, model
from tests.installed import NEEDS_COMPILER

SEED, DRAWN, COMPILED = 0, 24, 3


@pytest.fixture(autouse=True)
def _with_rnns(fresh_compiler: None) -> Iterator[None]:
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


class Call(nn.Module):
    """One call of an op, its tensors being inputs."""

    def __init__(self, sample: decomp.Sample) -> None:
        super().__init__()
        self.op, self.kwargs = sample.overload, dict(sample.kwargs)
        leaves, self.spec = pytree.tree_flatten(sample.args)
        self.rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = tuple(leaves[i] for i in self.places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.rest)
        for place, tensor in zip(self.places, tensors):
            leaves[place] = tensor
        return self.op(*pytree.tree_unflatten(leaves, self.spec), **self.kwargs)


def _drawn(count: int, seed: int, dynamic: bool = False) -> list[Any]:
    """Ops of the library that have a sample with a reference in float64, and that PyTorch differentiates; if `dynamic`,
    those of which no rule, by which they or their gradients are lowered, declines open sizes, by its certificate."""
    left_out = _of_known_sizes() if dynamic else set()
    packets = sorted({rule.op.packet for rule in RULES if rule.op.packet is not None}, key=str)
    chosen = []
    for packet in random.Random(seed).sample(packets, len(packets)):
        found = [s for s in calls_of(packet) if _is_comparable(s)][:1]
        found = [s for s in found if not left_out or left_out.isdisjoint(_rules_of(Call(s)))]
        chosen += [pytest.param(s, id=str(packet)) for s in found]
        if len(chosen) == count:
            break
    return chosen


def _of_known_sizes() -> set[tuple[str, str]]:
    """The rules that decline open sizes, by name and place."""
    committed = read_committed()
    found = [(rule, way) for rule in RULES for way in committed.get(identity(rule), Certificate("")).ways[:1]]
    declining = (rule for rule, way in found if way.notes.get("dynamic shapes", "").startswith("declines"))
    return {(rule.name, rule.location) for rule in declining}


def _rules_of(call: Call) -> set[tuple[str, str]]:
    """The rules by which a call and its gradient are lowered, also those of the calls that they make."""
    with_gradient = make_fx(lambda *inputs: _results(call, call, inputs))(*call.tensors)
    lowering = decomp.lower(with_gradient, to=targets.core_aten, args=call.tensors, partial=True)
    return {rule for node in lowering.result.graph.nodes for rule in lowering.provenance(node).chain}


def _is_comparable(sample: decomp.Sample) -> bool:
    tags = getattr(sample.overload, "tags", ())
    exact = sample.exact == "float64" and sample.differentiable is None  # else PyTorch's own gradient is another one
    plain = sample.leeway is None and exact and torch.Tag.nondeterministic_seeded not in tags
    tensors = [leaf for leaf in pytree.tree_leaves(sample.args) if isinstance(leaf, torch.Tensor)]
    known = plain and all(t.dtype == torch.float32 for t in tensors)
    return known and _is_traced(Call(sample), tensors) and _differentiates(Call(sample), tensors)


def _is_traced(call: nn.Module, tensors: list[torch.Tensor]) -> bool:
    """Whether PyTorch itself can compile a call: `cov` with weights looks at their values, and kernels of MKL-DNN
    take no fake tensors."""
    mode = FakeTensorMode()
    try:
        with mode:
            call(*(mode.from_tensor(tensor) for tensor in tensors))
    except RuntimeError:
        return False
    return True


def _differentiates(call: nn.Module, tensors: list[torch.Tensor]) -> bool:
    try:
        return bool(_results(call, call, tensors)[1])
    except (RuntimeError, NotImplementedError):
        return False


def _results(function: Callable[..., Any], module: nn.Module, inputs: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """What it returns, and the gradients by its float inputs and parameters."""
    given = [x.clone().requires_grad_() if x.is_floating_point() else x.clone() for x in inputs]
    out = [leaf for leaf in pytree.tree_leaves(function(*given)) if isinstance(leaf, torch.Tensor)]
    wanted = [x for x in (*given, *module.parameters()) if x.requires_grad]
    weighted = [(o * torch.linspace(0.5, 1.5, o.numel()).view(o.shape)).sum() for o in out if o.requires_grad]
    gradients = torch.autograd.grad(sum(weighted), wanted, materialize_grads=True) if weighted else ()
    return [o.detach() for o in out], list(gradients)


def _same(
    module: nn.Module,
    inputs: Any,
    to: decomp.Target,
    dynamic: bool = False,
    compiler: str = "eager",
    near: float = 1e-4,
) -> None:
    expected = _results(module, module, inputs)
    other = copy.deepcopy(module)
    compiled = torch.compile(other, backend=decomp.backend(to=to, compiler=compiler), dynamic=dynamic, fullgraph=True)
    torch.testing.assert_close(_results(compiled, other, inputs), expected, rtol=near, atol=near, equal_nan=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sample", _drawn(DRAWN, SEED))
def test_a_rule_gives_the_value_and_gradient_of_eager(sample: decomp.Sample) -> None:
    call = Call(sample)
    _same(call, call.tensors, targets.core_aten)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sample", _drawn(DRAWN // 3, SEED + 1, dynamic=True))
def test_a_rule_gives_them_for_dynamic_sizes(sample: decomp.Sample) -> None:
    call = Call(sample)
    _same(call, call.tensors, targets.core_aten, dynamic=True)


class Beside(nn.Module):
    """Calls that share nothing, which are compiled as one program: a kernel of each would take a second."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self.calls = nn.ModuleList(calls)
        self.counts = [len(call.tensors) for call in calls]
        self.tensors = tuple(tensor for call in calls for tensor in call.tensors)

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        given = iter(tensors)
        return [call(*islice(given, count)) for call, count in zip(self.calls, self.counts)]


@pytest.mark.sampled(1)
@NEEDS_COMPILER
@pytest.mark.parametrize("sample", _drawn(COMPILED, SEED + 2))
def test_softmax_by_bits_and_another_rule_give_them_as_inductor_compiles_them(sample: decomp.Sample) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    calls = Beside([Call(decomp.Sample(torch.ops.aten.softmax.int, (x, -1))), Call(sample)])
    _same(calls, calls.tensors, targets.tinygrad, compiler="inductor", near=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_the_value_and_gradients_of_eager(name: str) -> None:
    module, inputs = model(name)
    _same(module, inputs, targets.core_aten, near=5e-4)


class Attending(nn.Module):
    """Attention and a norm around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.split, self.norm = nn.Linear(8, 24), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.split(x).unflatten(-1, (2, -1)).transpose(1, 2).chunk(3, -1)
        attended = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        normed: torch.Tensor = self.norm(x + attended)
        return normed


def test_a_layer_gives_them_for_dynamic_sizes() -> None:
    torch.manual_seed(SEED)
    _same(Attending(), (torch.randn(3, 5, 8),), targets.core_aten, dynamic=True, near=5e-4)


@pytest.mark.sampled(1)
@NEEDS_COMPILER
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_gives_them_as_inductor_compiles_it(dynamic: bool) -> None:
    module, inputs = model("mlp")
    _same(module, inputs, targets.core_aten, dynamic, "inductor", near=5e-4)
