"""Calls recorded without PyTorch's dispatcher agree with those that the dispatcher records."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from decomp.derive.proxies import RuleTracer, run_on_proxies
from decomp.graphs import shortcuts
from decomp.graphs.tracing import Tape
from decomp.metadata.fakes import Fakes, new_mode
from decomp.torch_internals.pytree import tree_leaves
import decomp_rules
from decomp_rules.samples import calls_of

aten = torch.ops.aten


def recorded(function, args, kwargs=None, short=True):
    """The text of what a function records on proxies of these arguments, with the metadata of each node."""
    mode = new_mode()
    tape = Tape(fx.Graph(), mode, Fakes(mode))
    tracer = RuleTracer(tape, "rule", "aten")
    if not short:
        tracer._shortcuts = None
    given = iter(range(99))

    def proxy(value):
        if isinstance(value, (list, tuple)):
            return type(value)(map(proxy, value))
        if not isinstance(value, torch.Tensor):
            return value
        return tracer.proxy(tape.placeholder(f"x{next(given)}", tape.fake_like(value)))

    args, kwargs = [proxy(arg) for arg in args], {name: proxy(value) for name, value in (kwargs or {}).items()}
    try:
        result = run_on_proxies(function, tracer, args, kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    storages = {}
    lines = [
        f"{node.name} = {node.target}{node.args}{node.kwargs} {layout(node.meta.get('val'), storages)}"
        for node in tape.graph.nodes
    ]
    return "\n".join([*lines, str(result)])


def layout(value, storages):
    return [
        (
            leaf.shape,
            leaf.stride(),
            leaf.storage_offset(),
            leaf.dtype,
            leaf.device,
            leaf.requires_grad,
            storages.setdefault(leaf.untyped_storage()._cdata, len(storages)),
        )
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    ]


def seen(function, *several):
    """Each of several arguments is recorded as the dispatcher does, once its kinds are known and before."""
    for args in several * 2:
        assert recorded(function, args) == recorded(function, args, short=False)


A, B, ROW, ONE = torch.ones(2, 3), torch.ones(2, 3), torch.ones(3), torch.tensor(1.0)
ODD = torch.ones(2, 3).as_strided((2, 1, 3), (3, 7, 1))
WIDE = torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)

CALLS = {
    "same and other": (operator.mul, [(A, A), (A, B), (B, A)]),
    "numbers": (operator.mul, [(A, 2), (A, 2.5), (A, True), (2, A), (A, 3), (A, 1e300)]),
    "subtracted": (lambda x, n: n - x, [(A, 2), (A, 0.5), (A.int(), 0.5), (A.int(), 3)]),
    "divided": (lambda x, y: (x / y, 2.0 / x), [(A, B), (A, 3), (A.int(), 3)]),
    "powers": (lambda x, n: (x**n, n**x), [(A, 2), (A, 0.5), (A, 3)]),
    "default of a number": (lambda x, y, n: torch.add(x, y, alpha=n), [(A, B, 2), (A, B, 1), (A, B, 3), (A, B, 1.0)]),
    "by name": (lambda x, lo, hi: torch.clamp(x, max=hi, min=lo), [(A, 2, 2), (A, 0, 1), (A, 1, 5), (A, None, 1)]),
    "in a list": (lambda x, d: x.sum(d), [(A, [0]), (A, [1]), (A, [0, 1]), (A, [-1]), (A, 0), (WIDE, [1, 2])]),
    "kept": (lambda x, keep: x.sum(1, keepdim=keep), [(A, False), (A, True)]),
    "defaults at the end": (lambda x, a, b: torch.flatten(x, a, b), [(WIDE, 0, -1), (WIDE, 1, -1), (WIDE, 1, 2)]),
    "padded": (lambda x, p, v: torch.constant_pad_nd(x, p, v), [(A, [1, 0], 0), (A, [1, 2], 1.0), (A, [2, 0], 0)]),
    "a step": (lambda x, *n: aten.slice.Tensor(x, *n), [(A, 1, 0, 2, 1), (A, 1, 0, 3, 2), (A, 0, 1, 2, 1)]),
    "narrowed": (lambda x, *n: x.narrow(*n), [(A, 0, 0, 1), (A, 1, 1, 2), (WIDE, 1, 0, 2), (ODD, 1, 0, 1)]),
    "indexed": (lambda x, i: x[i], [(A, 0), (A, 1), (A, slice(0, 2)), (A, slice(1, 2)), (A, None), (A, (..., 1))]),
    "to a dtype": (lambda x, d: x.to(d), [(A, torch.float32), (A, torch.float64), (A, torch.int), (A.int(), A.dtype)]),
    "broadcast": (operator.add, [(A, ROW), (ROW, A), (A, ONE), (ONE, ONE), (ODD, A), (ODD, ODD), (ODD, ONE)]),
    "of bits": (operator.and_, [(A > 0, B > 1), (A.int(), ROW.bool()), (A.int(), 3), (ROW.int(), B.short())]),
    "promoted": (operator.add, [(A, B.double()), (A.int(), ONE), (A.int(), B.bool()), (A.half(), ONE.double())]),
    "both broadcast": (operator.mul, [(torch.ones(2, 1), torch.ones(1, 3)), (torch.ones(1, 1), torch.ones(1)),
                                      (torch.ones(3, 1), A), (torch.ones(1, 3, 1, 1), torch.ones(1, 1, 2, 1)),
                                      (torch.ones(0, 1), torch.ones(1, 3)), (torch.ones(2, 2), torch.ones(2, 3))]),
    "compared": (torch.where, [(A > 0, A, B), (A > 0, A, 0.0), (A > 0, 0.5, ROW), (A > 0, 1, 2.0),
                               (ODD > 0, ODD, ODD), (ONE > 0, A, B)]),
    "empty": (operator.add, [(torch.ones(0, 3), ROW), (torch.ones(0), torch.ones(0)), (torch.ones(2, 0), ONE)]),
    "laid out otherwise": (operator.mul, [(WIDE, WIDE), (WIDE, 2.0), (WIDE, torch.ones(3, 1, 1)), (A.t(), A.t())]),
    "viewed": (lambda x, s: x.view(s).transpose(0, 1), [(A, [3, 2]), (A, [1, 6]), (A, (6, 1)), (A, [-1, 2])]),
    "permuted": (lambda x, *d: x.permute(*d), [(WIDE, 0, 2, 3, 1), (WIDE, 3, 2, 1, 0), (WIDE, 0, 1, 2, 3)]),
    "expanded": (lambda x, *s: x.expand(*s), [(ROW, 2, 3), (ROW, 1, 3), (ONE, 2, 2), (ROW, -1)]),
    "joined": (lambda *xs: torch.cat(xs, -1), [(A, B), (A, A), (A, B, A), (ROW, ROW)]),
    "made": (lambda n, v: torch.full([n, 2], v), [(2, 1.0), (3, 1), (2, True), (4, 2.0)]),
    "made and used": (lambda x, n: x * torch.arange(n) + torch.ones(n), [(ROW, 3), (ONE, 4)]),
    "made like": (lambda x, n: x.new_full((n,), 2) + torch.zeros_like(x)[0], [(ROW, 3), (ROW.int(), 2)]),
    "read": (lambda x: x * x.shape[0] + x.dim() + x.numel(), [(A,), (ROW,), (WIDE,)]),
    "several": (lambda x: x.max(0), [(A,), (ROW,)]),
    "split": (lambda x, n: x.split(n, 1)[0] + 1, [(A, 1), (A, 2)]),
    "normalized": (lambda x, m: torch._native_batch_norm_legit_no_training(x, None, m, m, m + 1, 0.1, 1e-5),
                   [(WIDE, ROW), (torch.ones(4, 3), ROW), (WIDE.half(), ROW), (torch.ones(1, 3, 1, 2), ROW)]),
    "normalized wrongly": (lambda x, m: torch._native_batch_norm_legit_no_training(x, m, m, m, m, 0.1, 1e-5),
                           [(torch.ones(4, 2), ROW), (WIDE.double(), ROW)]),
}  # fmt: skip # a function a line, with its calls below


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_recorded_as_the_dispatcher_does_it(name, monkeypatch):
    function, several = CALLS[name]
    monkeypatch.setattr(shortcuts, "_RECIPES", {})
    seen(function, *several)
    monkeypatch.setattr(shortcuts, "_RECIPES", {})
    seen(function, *reversed(several))


def test_a_way_is_taken_for_other_sizes_and_numbers(monkeypatch):
    monkeypatch.setattr(shortcuts, "_RECIPES", {})
    recorded(lambda x: x.sum([1]) * 2.0, [A])
    ways = dict(shortcuts._RECIPES)
    recorded(lambda x: x.sum([0]) * 3.0, [torch.ones(5, 7)])
    assert shortcuts._RECIPES == ways and all(ways.values())


def test_numbers_that_are_promoted_go_by_the_default_dtype(monkeypatch):
    monkeypatch.setattr(shortcuts, "_RECIPES", {})
    seen(operator.mul, (A.int(), 0.5))
    torch.set_default_dtype(torch.float64)
    try:
        seen(operator.mul, (A.int(), 0.5))
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_a_rule_may_not_do_is_refused_by_known_ways_too():
    stale = []

    def leaks(x):
        stale.append(x)
        return stale[0] * x

    def writes(x, y):
        return torch.add(x, y, out=y)

    def switched(x):
        with torch.autocast("cpu"):
            return torch.mm(x, x)

    for function, args in ((lambda x: x * x, [A]), (leaks, [A])):
        recorded(function, args)
    for function, args, said in ((leaks, [A], "another run"), (writes, [A, B], "writes"), (switched, [A], "autocast")):
        for _ in range(2):
            assert said in recorded(function, args)


@pytest.mark.sampled(40)
@pytest.mark.parametrize("rule", [rule for rule in decomp_rules.RULES if rule.op.packet is not None], ids=str)
def test_the_rules_of_the_library_record_what_the_dispatcher_records(rule):
    for sample in calls_of(rule.op.packet)[:3]:
        given = sample.args, sample.kwargs
        assert recorded(rule.function, *given) == recorded(rule.function, *given, short=False)
