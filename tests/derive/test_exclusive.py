"""Lowering from several threads, and what an interrupted or failed lowering leaves behind: nothing."""

import gc
import inspect
import random
import sys
import threading

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _python_dispatch as dispatch

import decomp
from decomp_rules import RULES, targets


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return F.gelu(F.softsign(self.linear(x)).softmax(-1) + x)


class Rolled(torch.nn.Module):
    def forward(self, x):
        return F.softplus(x.roll(1, 0)).cumsum(0)


X = torch.linspace(-2, 2, 12).reshape(3, 4)
DYNAMIC = {0: torch.export.Dim("b", min=2, max=64)}


def exported(model=None, dynamic=False):
    return torch.export.export(model or Net(), (X,), dynamic_shapes=(DYNAMIC,) if dynamic else None)


def in_threads(*works):
    """The exception that each of `works` raised, if any, when all ran at once."""
    raised = []

    def run(work):
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def torch_state():
    pre_dispatch = torch._ops._len_torch_dispatch_stack_pre_dispatch()
    stacks = dispatch._get_current_dispatch_mode_stack(), torch._C._len_torch_function_stack(), pre_dispatch
    flags = dispatch.is_in_torch_dispatch_mode(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    keys = torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch)
    return stacks, flags, keys, gc.isenabled()


def test_threads_that_share_rules_and_a_program():
    source, rules, results = exported(), RULES | decomp.Rules(), []

    def work():
        results.append(decomp.lower(source, to=targets.tinygrad, rules=rules).result)

    assert in_threads(*[work] * 6) == []
    assert len(results) == 6
    for result in results:
        torch.testing.assert_close(result.module()(X), source.module()(X))


def test_threads_with_different_programs_targets_and_verbs():
    rules = RULES | decomp.Rules()
    static, dynamic, failures = exported(), exported(Rolled(), dynamic=True), []

    def fails():
        try:
            decomp.lower(static, to=decomp.Target("none", ["add"]), rules=rules)
        except decomp.NotLowered as error:
            failures.append(error)

    works = [
        lambda: decomp.lower(static, to=targets.tinygrad, rules=rules),
        lambda: decomp.lower(dynamic, to=targets.stablehlo, rules=rules),
        lambda: decomp.lower(Net(), to=targets.core_aten, rules=rules, args=(X,)),
        lambda: decomp.plan(dynamic, to=targets.tinygrad, rules=rules),
        lambda: decomp.decompose(Net(), {F.gelu: lambda x: x * 2}, args=(X,)),
        fails,
    ]
    assert in_threads(*works * 2) == [] and len(failures) == 2
    lowered = decomp.lower(dynamic, to=targets.tinygrad, rules=rules).result
    longer = torch.randn(7, 4)
    torch.testing.assert_close(lowered.module()(longer), Rolled()(longer))


def test_threads_that_lower_while_others_compile():
    torch._dynamo.reset()
    rules, net = RULES | decomp.Rules(), Net()
    compiled = [torch.compile(Net(), backend=decomp.backend(to=targets.tinygrad, rules=rules)) for _ in range(2)]
    works = [lambda model=model: model(X) for model in compiled]
    works += [lambda: decomp.lower(net, to=targets.tinygrad, rules=rules, args=(X,))] * 2
    assert in_threads(*works) == []
    torch._dynamo.reset()


class Interrupt:
    """Raises an exception at the n-th call of a Python function of this project. Not of torch: where its C++ calls
    Python and takes no exception, the process is gone. Generators are none: Python drops an exception that is raised
    while one is closed because nobody reads on."""

    def __init__(self, number, error):
        self.left, self.error = number, error

    def __call__(self, frame, event, arg):
        if event != "call" or frame.f_code.co_flags & inspect.CO_GENERATOR:
            return
        if "/decomp/" in frame.f_code.co_filename or "/decomp_rules/" in frame.f_code.co_filename:
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise self.error

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *exc):
        sys.setprofile(None)


def calls_of(work):
    counter = Interrupt(-1, None)
    with counter:
        work()
    return -1 - counter.left


def remembered(rules):
    return {
        key: (
            list(memory.decisions),
            list(memory.expansions),
            list(memory.sure),
            memory.signatures.mark(),
            len(memory.mode.enter_stack),
        )
        for key, memory in rules.memory.items()
    }


def env_of(program):
    return next(n.meta["val"] for n in program.graph.nodes if "val" in n.meta).fake_mode.shape_env


def sizes_of(program):
    """The contents of a shape environment, as text."""
    return {
        name: _text(value)
        for name, value in vars(env_of(program)).items()
        if name not in ("counter", "_version_counter", "_replacements_version_counter")
    }


def _text(value):
    if isinstance(value, dict):
        return {str(key): _text(item) for key, item in value.items()}
    return [str(item) for item in value] if isinstance(value, (list, set)) else str(value)


CASES = [
    (False, KeyboardInterrupt, 10),
    (False, GeneratorExit, 5),
    (False, MemoryError, 5),
    (True, KeyboardInterrupt, 6),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic, error, points", CASES)
def test_an_interrupt_at_any_point_leaves_nothing_behind(dynamic, error, points, request):
    """Of the points a default run has a third, drawn by its seed; `--whole` has all."""
    drawn = random.Random(request.config.getoption("--sample-seed"))
    chosen = range(points) if request.config.getoption("--whole") else drawn.sample(range(points), (points + 2) // 3)
    source, chip = exported(Rolled() if dynamic else Net(), dynamic), targets.stablehlo
    decomp.lower(source, to=chip, rules=decomp.Rules(RULES.entries))
    total = calls_of(lambda: decomp.lower(source, to=chip, rules=decomp.Rules(RULES.entries)))
    rules = decomp.Rules(RULES.entries)
    decomp.lower(exported(torch.nn.Softsign()), to=chip, rules=rules)
    known, sizes, state = remembered(rules), sizes_of(source), torch_state()
    for n in [1 + total * i // (points * 2) for i in chosen]:
        with pytest.raises(BaseException) as caught, Interrupt(n, error("stopped")):
            decomp.lower(source, to=chip, rules=rules)
        assert isinstance(caught.value, (error, decomp.DecompError))
        assert torch_state() == state
        assert remembered(rules) == known
        assert sizes_of(source) == sizes
    lowered = decomp.lower(source, to=chip, rules=rules).result
    torch.testing.assert_close(lowered.module()(X), source.module()(X))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_interrupt_in_a_rule_leaves_nothing_behind(n):
    runs = []

    def rule(x):
        runs.append(1)
        if len(runs) == n:
            raise KeyboardInterrupt
        return x.clamp(min=0)

    class Three(torch.nn.Module):
        def forward(self, x):
            return F.relu(x), F.relu(x[0]), F.relu(x[0, 0])

    rules, state = decomp.Rules({F.relu: rule}), torch_state()
    with pytest.raises(KeyboardInterrupt):
        decomp.decompose(Three(), rules, args=(X,))
    assert rules.memory == {} and torch_state() == state
    result = decomp.decompose(Three(), rules, args=(X,))
    for got, expected in zip(result(X), Three()(X)):
        torch.testing.assert_close(got, expected)


def test_what_was_found_out_before_a_failure_is_still_known():
    runs = []

    def rule(x):
        runs.append(1)
        return x.clamp(min=0)

    rules = decomp.Rules({F.relu: rule})
    chip = decomp.Target("chip", ["clamp"])
    decomp.lower(torch.nn.ReLU(), to=chip, rules=rules, args=(X,))
    known = remembered(rules)
    with pytest.raises(decomp.NotLowered):
        decomp.lower(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.GELU()), to=chip, rules=rules, args=(X,))
    assert remembered(rules) == known
    decomp.lower(torch.nn.ReLU(), to=chip, rules=rules, args=(X,))
    assert len(runs) == 1
