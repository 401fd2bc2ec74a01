"""The module of a lowered program looks at its inputs in the code of its graph, and copies of it do."""

from concurrent.futures import ThreadPoolExecutor
import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import fx, nn

import decomp
from decomp.capture.inputs.checks import ANYTHING, InputCheck, TensorInput
from decomp.capture.lowered_module import add_input_check, check_of, install_input_check
from decomp.capture.module_hooks import carry_hooks
from decomp_rules import targets

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("table", torch.ones(8), persistent=False)

    def forward(self, x):
        return torch.softmax(self.linear(x) + self.table, -1) * torch.tensor([1.0, 2.0]).repeat(4)


class Counting(nn.Module):
    """Writes a buffer, and so looks at the memory of its inputs as well."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        self.seen.add_(x.sum(0))
        return x.exp() * self.seen


class Tree(nn.Module):
    def forward(self, parts, scale):
        return parts["x"].exp() * scale


class Named(nn.Module):
    def forward(self, x):
        return {"powers": x.exp(), "both": [x, x * 2]}


MODELS = {"module": (Net, (X,)), "writes": (Counting, (X,)), "tree": (Tree, ({"x": X}, X[0])), "named": (Named, (X,))}


def made(name, kind):
    torch.manual_seed(0)
    model, args = MODELS[name]
    program = fx.symbolic_trace(model()) if kind == "graph" else model()
    return decomp.lower(program, to=targets.tinygrad, args=args).result


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def recompiled(module):
    module.recompile()
    return module


COPIES = {
    "itself": lambda module: module,
    "deep": copy.deepcopy,
    "shallow": copy.copy,
    "recompiled": recompiled,
    "pickled": lambda module: pickle.loads(pickle.dumps(module)),
    "saved": saved,
    "twice copied": lambda module: pickle.loads(pickle.dumps(copy.deepcopy(module))),
}


def wrong(args):
    return torch.utils._pytree.tree_map(lambda t: t.long(), args)


@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec")
@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("kind", ["module", "graph"])
@pytest.mark.parametrize("name", MODELS)
def test_copies_look_at_their_inputs(name, kind, copied):
    module, args = made(name, kind), MODELS[name][1]
    expected = copy.deepcopy(module)(*args)
    found = COPIES[copied](module)
    torch.testing.assert_close(found(*args), expected)
    with pytest.raises(decomp.errors.InputMismatch, match="dtype"):
        found(*wrong(args))
    assert found.state_dict().keys() == module.state_dict().keys()
    assert kind == "graph" or found.state_dict().keys() == MODELS[name][0]().state_dict().keys()


def test_the_code_that_is_shown_is_the_program():
    module = made("module", "module")
    module(X)
    assert "_input_check" not in module.code and "_input_check" not in module.print_readable(print_output=False)
    assert not module._forward_pre_hooks and "x" in inspect.signature(module.forward).parameters


def test_a_transformer_of_code_is_kept():
    module = made("module", "module")
    with module.graph.on_generate_code(lambda before: lambda body: ["print('begins')\n", *body]):
        module.recompile()
        assert "begins" in module.code
    module.recompile()
    assert "begins" not in module.code


class Masked(nn.Module):
    def forward(self, ids, mask=None, scale=None):
        return {"states": [ids * mask], "scaled": (ids * scale).exp()}


@pytest.mark.parametrize("order", [("mask", "scale"), ("scale", "mask")], ids="-".join)
def test_inputs_are_given_by_position_or_by_name(order):
    named = {"mask": X > 0, "scale": X[0]}
    named = {name: named[name] for name in order}
    module = decomp.lower(Masked(), to=targets.core_aten, args=(X,), kwargs=named).result
    expected = Masked()(X, **named)
    for found in (
        module(X, **named),
        module(ids=X, mask=X > 0, scale=X[0]),
        module(X, *named.values()),
        torch.compile(module, backend="eager", fullgraph=True)(X, **named),
    ):
        torch.testing.assert_close(found, expected)
    with pytest.raises(decomp.errors.InputMismatch, match="'mask' has dtype torch.float32"):
        module(X, mask=X, scale=X[0])
    with pytest.raises(decomp.errors.InputMissing, match="lacks 'scale'"):
        module(X, mask=X > 0)


@pytest.mark.parametrize("name", ["module", "named"])
def test_what_is_compiled_has_nothing_to_look_at(name):
    graphs = []
    compiled = torch.compile(made(name, "module"), backend=lambda g, _: graphs.append(g) or g.forward)
    compiled(X)
    assert len(graphs) == 1 and torch._dynamo.explain(made(name, "module"))(X).graph_break_count == 0
    with pytest.raises(decomp.errors.InputMismatch, match="shape"):
        compiled(X[:2])
    with pytest.raises(decomp.errors.InputMissing):
        compiled()


def test_threads_may_call_it_for_the_first_time_at_once():
    for _ in range(10):
        module = made("module", "module")
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(module, [X] * 16))
        assert all(torch.equal(each, found[0]) for each in found)
        module.recompile()
        assert "_input_check" not in module.code and module.graph._codegen._body_transformer is None


class Twice(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


def test_a_program_can_be_traced_exported_and_transformed():
    module = made("module", "module")
    expected = module(X)
    torch.testing.assert_close(fx.symbolic_trace(module)(X), expected)
    torch.testing.assert_close(fx.symbolic_trace(Twice(module))(X), expected * 2)
    for strict in (False, True):
        exported = torch.export.export(Twice(module), (X,), strict=strict)
        torch.testing.assert_close(exported.module()(X), expected * 2)
    torch.testing.assert_close(torch.vmap(module)(torch.stack([X, X]))[1], expected)
    torch.testing.assert_close(module(nn.Parameter(X)), expected)


def test_hooks_of_the_user_run_once_and_before_it_looks():
    module, calls = made("module", "module"), []
    module.register_forward_pre_hook(lambda module, args: calls.append(args) or (args[0].float(),))
    module(X.long())
    assert len(calls) == 1
    with pytest.raises(TypeError, match="the call has 2 inputs"):
        made("module", "module")(X, X)


def test_a_check_that_is_carried_on_stays_as_it_is_in_the_program_that_it_is_of():
    check = InputCheck(["x", "y"], [TensorInput(torch.float32, None), ANYTHING])
    once, looked = decomp.lower(Sums(), to=targets.tinygrad, args=(X, X)).result, []
    install_input_check(once, check)
    again = copy.deepcopy(once)
    add_input_check(again, lambda module, given: looked.append(sorted(given)))
    add_input_check(again, lambda module, given: looked.append(sorted(given)))
    again(X, X)
    assert looked == [["x", "y"]] * 2 and len(again._forward_pre_hooks) == 1
    assert not check.looks and once(X, X) is not None and not once._forward_pre_hooks


def test_a_hook_that_is_carried_on_runs_once():
    once, other = made("writes", "module"), made("module", "module")
    carry_hooks(once, other)
    assert list(other._forward_pre_hooks.values()) == list(once._forward_pre_hooks.values()) == [check_of(once)]


def test_what_a_program_looked_at_is_looked_at_when_it_is_lowered_again():
    before = InputCheck(["x", "y"], [TensorInput(torch.float32, None), TensorInput(torch.int64, None)])
    check = InputCheck(["x", "y"], [TensorInput(torch.float32, X.shape), ANYTHING]).after(before)
    assert check.expected == [TensorInput(torch.float32, X.shape), TensorInput(torch.int64, None)]


class Sums(nn.Module):
    def forward(self, x, y):
        return x.exp() + y
