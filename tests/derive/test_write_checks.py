"""A lowered program writes its inputs when it has read everything, so it refuses inputs that share what it writes."""

import pytest
import torch
from torch import fx, nn

import decomp
from decomp_rules import targets


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x, y, unused=None):
        x.add_(1)
        self.seen.add_(1)
        return x * y * self.weight


def ones(count):
    return tuple(torch.ones(3) for _ in range(count))


FORMS = {
    "module": lambda: decomp.lower(Writes(), to=targets.tinygrad, args=ones(2)),
    "module without args": lambda: decomp.lower(Writes(), to=targets.tinygrad),
    "graph with args": lambda: decomp.lower(fx.symbolic_trace(Writes()), to=targets.tinygrad, args=ones(3)),
    "exported graph": lambda: decomp.lower(torch.export.export(Writes(), ones(2)).module(), to=targets.tinygrad),
}


@pytest.fixture(params=FORMS)
def lowered(request):
    return FORMS[request.param]().result


def call(module, x, y):
    return module(x, y, *ones("unused" in str(module.graph)))


def test_one_tensor_given_twice_is_refused(lowered):
    x = torch.ones(3)
    with pytest.raises(decomp.errors.InputMismatch) as refused:
        call(lowered, x, x)
    assert str(refused.value) == (
        "input 'x' and input 'y' share memory, and the program writes to input 'x': it would not see that write in "
        "input 'y'\n  to do: call it with a clone of one of them, or with tensors that do not overlap"
    )
    assert x.tolist() == [1, 1, 1]


def test_views_that_overlap_are_refused_and_views_that_do_not_are_served(lowered):
    wide = torch.ones(4)
    with pytest.raises(decomp.errors.InputMismatch, match="input 'x' and input 'y' share memory"):
        call(lowered, wide[:3], wide[1:])
    with pytest.raises(decomp.errors.InputMismatch, match="input 'x' and input 'y' share memory"):
        call(lowered, wide[1:], wide[:3])
    wide = torch.ones(6)
    assert call(lowered, wide[:3], wide[3:]).tolist() == [2, 2, 2] and wide.tolist() == [2, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("form", ["module", "module without args", "exported graph"])
def test_inputs_that_share_memory_with_state_are_refused(form):
    lowered = FORMS[form]().result
    state = dict(lowered.named_parameters()) | dict(lowered.named_buffers())
    with pytest.raises(
        decomp.errors.InputMismatch, match="input 'x' and 'weight' share memory, and the program writes to"
    ):
        call(lowered, state["weight"].detach(), torch.ones(3))
    with pytest.raises(
        decomp.errors.InputMismatch, match="'seen' and input 'y' share memory, and the program writes to"
    ):
        call(lowered, torch.ones(3), state["seen"])


def test_inputs_that_are_not_written_may_be_one_tensor():
    class Reads(nn.Module):
        def forward(self, x, y):
            return x - 2 * y

    x = torch.ones(3)
    low = decomp.lower(Reads(), to=targets.tinygrad, args=(x, x)).result
    assert low(x, x).tolist() == [-1] * 3
    assert low(torch.ones(3), torch.zeros(3)).tolist() == [1] * 3  # a tensor passed twice counts as two inputs


def test_a_tensor_that_is_passed_twice_keeps_its_strides_and_its_layout():
    class Reads(nn.Module):
        def forward(self, x, y):
            return x + y * y.stride(0)

    class Adds(nn.Module):
        def forward(self, x, y):
            return (x + y).to_dense()

    row, sparse = torch.ones(8)[::2].view(1, 4).as_strided((1, 4), (5, 2)), torch.eye(2).to_sparse()
    assert decomp.lower(Reads(), to=targets.core_aten, args=(row, row)).result(row, row).tolist() == [[6] * 4]
    assert decomp.lower(Adds(), to=targets.core_aten, args=(sparse, sparse), partial=True).result(
        sparse, sparse
    ).tolist() == [[2, 0], [0, 2]]


def test_interleaved_pieces_of_one_buffer_are_served():
    class Cache(nn.Module):
        def forward(self, keys, values):
            keys.mul_(2)
            return keys + values

    wide = torch.arange(12.0).view(2, 6)
    low = decomp.lower(Cache(), to=targets.tinygrad, args=(torch.ones(2, 3), torch.ones(2, 3))).result
    keys, values = wide.chunk(2, 1)
    wanted = 2 * keys + values
    assert torch.equal(low(keys, values), wanted)


@pytest.mark.parametrize(
    "second", [lambda x: x, lambda x: x.view(-1), lambda x: x[1:].expand(2)], ids=["itself", "view", "part"]
)
def test_example_inputs_that_share_what_is_written_are_refused(second):
    class Shared(nn.Module):
        def forward(self, x, y):
            x.add_(1)
            return x.sum() * y

    x = torch.ones(2)
    args = (x, second(x))
    for model in (Shared(), fx.symbolic_trace(Shared())):
        with pytest.raises(decomp.errors.MutationError) as refused:
            decomp.lower(model, to=targets.tinygrad, args=args)
        text = str(refused.value)
        assert "it shares memory with the input 'x', and one of them is written" in text
        assert text.endswith("to do: lower and call the program with inputs that do not overlap (y.clone())")


def test_an_exported_program_whose_inputs_overlap_is_refused():
    class Shared(nn.Module):
        def forward(self, x, y):
            y.add_(1)
            return x * y

    x = torch.ones(2)
    program = torch.export.export(Shared(), (x, x.view(-1)))
    with pytest.raises(decomp.errors.MutationError, match="it shares memory with the input 'x'"):
        decomp.lower(program, to=targets.tinygrad)


def test_an_unused_input_may_share_written_memory():
    class Unused(nn.Module):
        def forward(self, x, y):
            return x.add_(1) * 2

    x = torch.ones(2)
    for low in (
        decomp.lower(Unused(), to=targets.tinygrad, args=(x, x.view(-1))),
        decomp.lower(Unused(), to=targets.tinygrad),
    ):
        x = torch.ones(2)
        assert low.result(x, x).tolist() == [4, 4] and x.tolist() == [2, 2]


def test_a_program_that_stays_as_it_is_takes_any_inputs():
    x = torch.ones(3)
    same = decomp.decompose(Writes(), {torch.relu: lambda x: x.clamp(0)})
    assert same(x, x).tolist() == Writes()(y := torch.ones(3), y).tolist()


def test_who_compiles_or_exports_a_lowered_program_is_not_in_its_way(lowered):
    assert call(lowered, *ones(2)).tolist() == [2, 2, 2]
    args = ones(2 + ("unused" in str(lowered.graph)))
    torch.export.export(lowered, args)
    assert torch.compile(lowered, backend="eager", fullgraph=True)(*args)[0] > 1
