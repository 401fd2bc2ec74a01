"""Programs on a backend: state, writes, sizes, bodies, several results, failures, and the two ways to run."""

import copy
import pickle
import re
import threading

import pytest
import torch
from torch import fx, nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

import decomp
from decomp_rules import backends, targets
from tests.forms import Holder, exported


def on_numpy(model, *args, **how):
    """The program of a model on NumPy."""
    return backends.numpy.load(decomp.lower(model, to=targets.tinygrad, args=args, **how))


class Counting(nn.Module):
    """Writes a buffer, an input and running statistics; returns a dict."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, counts):
        self.calls += 1
        counts.add_(self.calls)
        return {"y": self.norm(self.linear(x)), "size": (x.shape[0], counts * 2)}


def test_buffers_are_kept_and_inputs_written_back():
    torch.manual_seed(0)
    x, model = torch.randn(5, 3), Counting()
    twin, ours, theirs = copy.deepcopy(model), torch.zeros(2), torch.zeros(2)
    loaded = on_numpy(model, x, torch.zeros(2))
    for _ in range(3):
        found, expected = loaded(x, ours), twin(x, theirs)
    torch.testing.assert_close(found, {**expected, "y": expected["y"].detach()})
    assert torch.equal(ours, theirs)
    for name, value in loaded.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name])
    assert loaded.writes == ("calls", "counts", "norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
    assert model.calls == 0  # the model that was lowered is as it was


def test_parameters_are_moved_once_and_belong_to_the_program():
    moved = []
    chip = decomp.Backend("chip", from_torch=lambda x: moved.append(x.shape) or x, to_torch=lambda x: x)
    chip.implements("mul")(torch.mul)
    model = Holder(lambda self, x: x * self.scale, scale=torch.full((2,), 3.0))
    loaded = chip.load(torch.export.export(model, (torch.ones(2),)))
    model.scale.zero_()
    assert [loaded(torch.ones(2)).tolist() for _ in range(2)] == [[3, 3], [3, 3]]
    assert moved == [(2,), (2,), (2,)]  # the buffer, and an input a call
    loaded.load_state_dict({"scale": torch.full((2,), 4.0)})
    assert loaded(torch.ones(2)).tolist() == [4, 4]
    with pytest.raises(decomp.CaptureError, match="has no 'skale'; it has scale"):
        loaded.load_state_dict({"skale": torch.ones(2)})


def test_sizes_that_vary_come_from_the_arrays():
    size = torch.export.Dim("size", min=2, max=64)
    program = exported(
        lambda x: torch.softmax(x, 0).reshape(x.shape[0] * 3, 1), torch.ones(4, 3), dynamic_shapes=(({0: size},),)
    )
    loaded = backends.numpy.load(decomp.lower(program, to=targets.tinygrad))
    for n in (2, 7, 33):
        x = torch.randn(n, 3)
        torch.testing.assert_close(loaded(x), x.softmax(0).reshape(-1, 1))


def test_bodies_of_higher_order_ops_are_functions_of_arrays():
    def function(x, n):
        x = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))
        return torch.while_loop(lambda x, n: n > 0, lambda x, n: (x + x, n - 1), (x, n))

    x, n = torch.tensor([0.5, 1.0]), torch.tensor(3)
    loaded = on_numpy(Holder(function), x, n)
    torch.testing.assert_close(loaded(x, n)[0], x.sin() * 8)
    torch.testing.assert_close(loaded(-x, n)[0], x * -16)
    walked = loaded.walk(*(backends.numpy.from_torch(each) for each in (-x, n)))
    torch.testing.assert_close(backends.numpy.to_torch(walked[0]), x * -16)


def test_loops_over_rows():

    def function(x, scale):
        sums = scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4), x, dim=0)
        return sums, map_rows(lambda row, scale: row.sin() * scale, x, scale)

    args = torch.randn(3, 4), torch.ones(4)
    torch.testing.assert_close(on_numpy(Holder(function), *args)(*args), function(*args))


def test_a_region_without_gradients_runs_as_it_stands():
    def function(x):
        with torch.no_grad():
            y = x * 2
        return y + x

    assert on_numpy(Holder(function), torch.ones(2))(torch.ones(2)).tolist() == [3, 3]


def test_several_results_are_taken_apart():
    chip = decomp.Backend("chip", from_torch=lambda x: x, to_torch=lambda x: x)
    chip.implements("topk")(lambda x, k, dim=-1: torch.topk(x, k, dim))
    loaded = chip.load(exported(lambda x: torch.topk(x, 2, 0).indices, torch.arange(4.0)))
    assert loaded(torch.tensor([1.0, 5.0, 2.0])[:3].repeat(2)[:4]).tolist() == [1, 2]


def test_results_that_are_no_tensors_and_inputs_that_are_results():
    loaded = on_numpy(Holder(lambda x: (x, x.shape[0], None, 2.5)), torch.ones(3))
    result = loaded(torch.ones(3))
    assert torch.equal(result[0], torch.ones(3)) and result[1:] == (3, None, 2.5)


def test_inputs_are_checked_as_those_of_the_lowered_module():
    loaded = on_numpy(Holder(torch.sin), torch.ones(3))
    with pytest.raises(decomp.errors.InputMismatch, match="dtype"):
        loaded(torch.ones(3, dtype=torch.float64))
    with pytest.raises(decomp.errors.InputMismatch, match="shape"):
        loaded(torch.ones(4))


def test_a_function_that_fails_is_named_with_its_node_and_the_line_of_the_model():
    chip = decomp.Backend("chip", from_torch=lambda x: x, to_torch=lambda x: x)
    chip.implements("add")(torch.add)

    @chip.implements("sin")
    def sine(x):
        raise RuntimeError("the chip is on fire")

    class Model(nn.Module):
        def forward(self, x):
            return torch.sin(x + 1)  # the source line

    with pytest.raises(decomp.errors.PrimitiveError, match="the chip is on fire") as failed:
        chip.load(torch.export.export(Model(), (torch.ones(2),)))(torch.ones(2))
    assert failed.value.node.name == "sin"
    assert "sine (test_loaded.py:" in str(failed.value) and "# the source line" in str(failed.value)
    assert isinstance(pickle.loads(pickle.dumps(failed.value)), decomp.errors.PrimitiveError)


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda x: x.double().sin(), r"float64 \(2, 3\) at node 'sin'.* which is float32 \(2, 3\)"),
        (lambda x: x.sin()[0], r"float32 \(3\) at node 'sin'"),
        (lambda x: (x.sin(), x), "a tuple of 2 at node 'sin'"),
        (lambda x: None, "None at node 'sin'"),
    ],
)
def test_what_is_wrong_is_named_where_it_came_from(wrong, said):
    chip = decomp.Backend("chip", from_torch=lambda x: x, to_torch=lambda x: x)
    chip.implements("sin")(wrong)
    chip.implements("mul")(torch.mul)
    chip.implements("cat")(lambda tensors, dim=0: torch.cat(tensors, dim))
    x = torch.ones(2, 3)
    loaded = chip.load(exported(lambda x: torch.cat([x.sin() * 2, x]), x))
    with pytest.raises(
        (decomp.errors.PrimitiveError, decomp.errors.BackendError), match=rf"earlier, <lambda> \(test_loaded.*{said}"
    ):
        loaded(x)


def test_walking_gives_the_same_and_tells_of_each_call():
    torch.manual_seed(0)
    x, chip = torch.randn(3, 5), backends.numpy
    loaded, told, known = on_numpy(nn.Sequential(nn.Linear(5, 4), nn.GELU()), x), [], []

    def visit(node, args, kwargs, result):
        told.append(node.name)
        known.append(chip.node is node and tuple(node.meta["val"].shape) == result.shape)

    values = [*(leaf.value for leaf in loaded.leaves[:-1]), chip.from_torch(x)]
    walked = loaded.walk(*values, visit=visit)
    assert torch.equal(chip.to_torch(walked[0]), loaded(x))
    assert told == [step.node.name for step in loaded.steps if step.primitive] and all(known)
    with pytest.raises(LookupError, match="Loaded.walk"):
        chip.node


def test_a_jit_is_given_the_whole_program_as_a_function_without_state():
    compiled = []

    def jit(function):
        compiled.append(function)
        return lambda *values: tuple(value * 1 for value in function(*values))

    chip = decomp.Backend("chip", from_torch=lambda x: x, to_torch=lambda x: x, jit=jit)
    chip.implements("mul", "add")(lambda a, b: a + b)
    model = Holder(lambda self, x: self.seen.copy_(self.seen + x) * 1, seen=torch.zeros(2))
    chip.implements("clone")(torch.clone)
    loaded = chip.load(decomp.lower(model, to=chip.target, args=(torch.ones(2),)))
    assert [loaded(torch.ones(2)).tolist() for _ in range(2)] == [[2, 2], [3, 3]]
    assert len(compiled) == 1 and [leaf.kind for leaf in loaded.leaves] == ["buffer", "input"]


def test_values_are_given_back_at_their_last_use():
    """As many intermediate arrays live at once as the program needs, and not as many as it makes."""
    alive, most = set(), []

    class Array:
        shape = ()

        def __init__(self):
            alive.add(id(self))
            most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    chip = decomp.Backend("chip", from_torch=lambda x: Array(), to_torch=lambda x: torch.zeros(()))
    chip.implements("sin")(lambda x: Array())

    def function(x):
        for _ in range(50):
            x = torch.sin(x)
        return x

    loaded = chip.load(exported(function, torch.zeros(())))
    loaded(torch.zeros(()))
    assert max(most) <= 4


def test_a_loaded_program_runs_in_several_threads():
    torch.manual_seed(0)
    x = torch.randn(8, 5)
    loaded, wrong = on_numpy(nn.Linear(5, 5), x), []
    expected = loaded(x)

    def work():
        wrong.extend(n for n in range(20) if not torch.equal(loaded(x), expected))

    threads = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert not wrong


def test_what_is_no_program_is_refused():
    with pytest.raises(decomp.CaptureError, match="pass a Lowering"):
        backends.numpy.load(nn.Linear(2, 2))


def test_a_graph_in_pytorchs_own_functions_runs_where_they_are_implemented():
    chip = decomp.Backend("chip", from_torch=lambda x: x, to_torch=lambda x: x)
    chip.implements("relu", "add")(lambda *xs: sum(xs) + 1)
    loaded = chip.load(fx.symbolic_trace(_Relu()))
    assert loaded(torch.zeros(1)).item() == 2
    with pytest.raises(decomp.errors.ArgumentError, match="takes 1 input: x; you passed 0 by position"):
        loaded()


class _Relu(nn.Module):
    def forward(self, x):
        return torch.relu(x) + x


WRONG = {
    (): ("lacks 'x'", "lacks 'parts'"),
    (torch.ones(4),): ("has shape (4,)", "input 'parts' has structure a tensor, the program was lowered for a dict of"),
    (torch.ones(3),) * 2: ("has 2 inputs", "has 2 inputs; the program takes parts"),
    ("x",): ("a tensor", "input 'parts' has structure a str"),
}


@pytest.mark.parametrize("args", WRONG, ids=[of_one for of_one, _ in WRONG.values()])
def test_other_inputs_than_the_program_takes_are_refused_with_those(args):
    chip = decomp.Backend("chip", from_torch=lambda x: x, to_torch=lambda x: x)
    chip.implements("exp")(torch.exp)
    loaded = chip.load(decomp.lower(Exponential(), to=chip.target, args=(torch.ones(3),)))
    with pytest.raises(decomp.errors.InputMismatch, match=re.escape(WRONG[args][0])):
        loaded(*args)
    tree = chip.load(decomp.lower(OfATree(), to=chip.target, args=({"x": torch.ones(3)},)))
    with pytest.raises(decomp.errors.InputMismatch, match=re.escape(WRONG[args][1])):
        tree(*args)


class OfATree(nn.Module):
    def forward(self, parts):
        return torch.exp(parts["x"])


class Exponential(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        return {"scale": torch.exp(self.scale), "x": torch.exp(x)}


def test_what_jit_and_to_torch_and_new_weights_must_be_is_said():
    program = torch.export.export(Exponential(), (torch.ones(3),))
    chips = [
        decomp.Backend("chip", from_torch=lambda x: x, to_torch=how, jit=jit)
        for how, jit in ((lambda x: x, lambda f: None), (lambda x: x.tolist(), None))
    ]
    for chip, said in zip(chips, ("jit= of chip must return a function", "must return a tensor, not list")):
        chip.implements("exp")(torch.exp)
        loaded = chip.load(program)
        with pytest.raises(decomp.errors.ArgumentError, match=said):
            loaded(torch.ones(3))
    with pytest.raises(decomp.CaptureError, match=r"'scale' is float32 \(3\) and cannot be set to float64 \(2\)"):
        loaded.load_state_dict({"scale": torch.ones(2, dtype=torch.float64)})


def _fails(*_):
    raise RuntimeError("no link to the chip")


@pytest.mark.parametrize(
    "options, said",
    [
        ({"from_torch": _fails}, r"from_torch= failed on input 'args_0', float32 \(2\): RuntimeError: no link"),
        ({"to_torch": _fails}, r"to_torch= failed on result 'relu', which is a Tensor: RuntimeError: no link"),
        ({"jit": _fails}, "jit= failed on the program: RuntimeError: no link"),
        ({"to_torch": lambda x: x.double()}, r"result 'relu' is float64 \(2\), but float32 \(2\) in the program"),
        ({"to_torch": lambda x: x[:1]}, r"result 'relu' is float32 \(1\), but float32 \(2\) in the program"),
    ],
)
def test_what_a_backend_gives_beside_functions_is_named_where_it_fails(options, said):
    chip = decomp.Backend("chip", **{"from_torch": lambda x: x, "to_torch": lambda x: x, **options})
    chip.implements("relu")(torch.relu)
    loaded = chip.load(exported(lambda x: x.relu(), torch.ones(2)))
    with pytest.raises(decomp.errors.BackendError, match=said):
        loaded(torch.ones(2))


def test_results_of_other_sizes_and_dtypes_are_right_where_the_inputs_have_them():
    chip = decomp.Backend("chip", from_torch=lambda x: x, to_torch=lambda x: x)
    chip.implements("relu")(torch.relu)
    loaded = chip.load(exported(torch.relu, torch.ones(2)).graph_module)
    (found,) = loaded(torch.ones(3, dtype=torch.float64))
    assert torch.equal(found, torch.ones(3, dtype=torch.float64))


def test_other_arguments_are_refused_by_name():
    loaded = on_numpy(nn.Linear(2, 1), torch.ones(1, 2))
    with pytest.raises(decomp.errors.InputMismatch, match="a list.*\n.*call it with a tensor|a tensor"):
        loaded([torch.ones(1, 2)])
    with pytest.raises(decomp.errors.InputMismatch, match="layout torch.sparse_coo"):
        loaded(torch.ones(1, 2).to_sparse())
    with pytest.raises(decomp.errors.ArgumentError, match="tensors by name"):
        loaded.load_state_dict([torch.ones(1)])
    with pytest.raises(decomp.errors.ArgumentError, match="walk.. takes 3 values: weight, bias, input"):
        loaded.walk(1)
    with pytest.raises(decomp.errors.ArgumentError, match="workers="):
        decomp.bring_up(backends.numpy, workers=0)
    with pytest.raises(decomp.errors.ArgumentError, match="timeout="):
        decomp.bring_up(backends.numpy, timeout=-1)


def test_what_a_backend_cannot_load_comes_with_the_remedy_for_it():
    chip = decomp.Backend("chip", from_torch=lambda x: x, to_torch=lambda x: x)
    with pytest.raises(decomp.errors.LoadError, match="the module 0 .*\n.*\n *1. lower the program to backend.target"):
        chip.load(fx.symbolic_trace(nn.Sequential(nn.ReLU())))
    program = exported(lambda x: scan(lambda carry, row: (carry + row, row * 2), torch.zeros(2), x), torch.ones(3, 2))
    with pytest.raises(
        decomp.errors.LoadError, match='(?s)higher_order.scan.*implements."zeros".*loops of a known length'
    ):
        chip.load(program)


@pytest.mark.parametrize("backend", ["numpy", "onnx"])
@pytest.mark.parametrize("size", [(0,), (2, 0), (0, 2), (1, 1), ()])
def test_complex_results_without_elements_and_of_one(backend, size):
    backend, z = backends.get(backend), torch.randn(size, dtype=torch.complex64)
    loaded = backend.load(decomp.lower(Holder(lambda z: (z * 2, z + 1j)), to=backend.target, args=(z,)))
    torch.testing.assert_close(loaded(z), (z * 2, z + 1j))
