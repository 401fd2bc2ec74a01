"""Assumptions of torch.export about sizes are checked before a lowered program runs, as export's own module does."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import decomp
from decomp_rules import backends, targets


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, y):
        return self.function(x, y)


def ones(*shape):
    return torch.ones(shape)


BRANCHES = {
    "numel": lambda x, y: x * (2 if x.numel() > 20 else 3),
    "remainder": lambda x, y: x * (2 if x.shape[0] % 4 == 0 else 3),
    "of two": lambda x, y: x * (2 if x.shape[0] == 2 * y.shape[0] else 3),
    "a number": lambda x, y: x * float(x.numel()),
    "less": lambda x, y: x * (2 if x.shape[0] < y.shape[0] + x.shape[1] else 3),
    "largest": lambda x, y: x * (2 if max(x.shape[0], y.shape[0]) < 7 else 3),
    "rounded": lambda x, y: x * (2 if math.floor(x.shape[0] / 2.5) > 1 else 3),
    "split": lambda x, y: x.split(2)[1] * 2,
    "added": lambda x, y: x[: y.shape[0]] + y,
}
SIZES = ((4, 3, 4), (8, 3, 4), (5, 5, 4), (7, 3, 7), (12, 2, 3), (3, 4, 3))


def taken(run, args):
    """The result of a program; None if it refuses its inputs."""
    try:
        return run(*args)
    except (decomp.errors.InputMismatch, AssertionError):
        return None


@pytest.mark.parametrize(
    "load",
    [
        lambda model, **how: decomp.lower(model, to=targets.core_aten, **how).result,
        lambda model, **how: backends.numpy.load(decomp.lower(model, to=backends.numpy.target, **how)),
        lambda model, **how: backends.numpy.load(decomp.lower(export(model, **how), to=backends.numpy.target).result),
        lambda model, **how: decomp.decompose(model, {}, **how),
    ],
    ids=["module", "loaded", "loaded exported", "decompose"],
)
@pytest.mark.parametrize("name", BRANCHES)
def test_inputs_are_taken_that_export_takes_and_no_others(name, load):
    model, how = Calls(BRANCHES[name]), {"args": (ones(4, 3), ones(4, 3))}
    how["dynamic_shapes"] = ({0: Dim.AUTO, 1: Dim.AUTO},) * 2
    how["dynamic_shapes"] = {"x": how["dynamic_shapes"][0], "y": how["dynamic_shapes"][1]}
    own, run = export(model, **how).module(), load(model, **how)
    for rows, columns, others in SIZES:
        args = ones(rows, columns), ones(others, columns)
        expected, found = taken(own, args), taken(run, args)
        assert (expected is None) is (found is None), (rows, columns, others)
        if expected is not None:
            torch.testing.assert_close(found, model(*args))


def broken(sizes=(5, 3), run=None):
    """The error of a program that was lowered for an even number of rows."""
    with pytest.raises(decomp.errors.InputMismatch) as refused:
        run(ones(*sizes))
    return str(refused.value)


class Even(nn.Module):
    def forward(self, x):
        return x * (2 if x.shape[0] % 2 == 0 else 3)


def even(**how):
    return decomp.lower(Even(), to=targets.core_aten, args=(ones(4, 3),), dynamic_shapes=({0: Dim.AUTO},), **how)


def test_what_was_assumed_is_said_with_the_sizes_that_were_given():
    assert broken(run=even().result) == (
        "input 'x' has shape (5, 3), the program was lowered for x.shape[0] % 2 == 0\n"
        "  to do: lower it with inputs like these, or export it so that it does not assume this about its sizes"
    )
    two = Calls(BRANCHES["of two"])
    shapes = {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}}
    run = decomp.lower(two, to=targets.core_aten, args=(ones(4, 3), ones(4, 3)), dynamic_shapes=shapes).result
    with pytest.raises(decomp.errors.InputMismatch) as refused:
        run(ones(8, 3), ones(4, 3))
    assert str(refused.value).startswith(
        "input 'x' has shape (8, 3) and input 'y' has shape (4, 3), the program was lowered for "
        "x.shape[0] != 2 * y.shape[0]\n"
    )


SAVED = {
    "copied": copy.deepcopy,
    "pickled": lambda module: pickle.loads(pickle.dumps(module)),
    "lowered again": lambda module: decomp.lower(module, to=targets.core_aten).result,
    "simplified": decomp.simplify,
    "compiled": lambda module: torch.compile(module, backend="eager", dynamic=True),
}


@pytest.mark.parametrize("made", SAVED)
def test_programs_derived_from_a_lowered_module_assume_the_same(made):
    module = even().result
    module(ones(4, 3))
    run = SAVED[made](module)
    assert run(ones(6, 3)).tolist() == ones(6, 3).mul(2).tolist()
    assert "x.shape[0] % 2 == 0" in broken(run=run)


def test_programs_derived_from_a_lowering_assume_the_same():
    lowering = even()
    for run in (
        decomp.memory_plan(lowering).apply(),
        decomp.refold(lowering).result,
        decomp.simplify(lowering).result,
        even(partial=True).result,
        even(simplify=False).result,
    ):
        assert run(ones(6, 3)).sum() == 36
        assert "x.shape[0] % 2 == 0" in broken(run=run)


def test_what_was_assumed_is_saved_with_an_exported_program():
    file = io.BytesIO()
    program = export(Even(), (ones(4, 3),), dynamic_shapes=({0: Dim.AUTO},))
    torch.export.save(decomp.lower(program, to=backends.numpy.target).result, file)
    file.seek(0)
    run = backends.numpy.load(torch.export.load(file))
    assert run(ones(6, 3)).sum() == 36
    assert "x.shape[0] % 2 == 0" in broken(run=run)


def test_ranges_and_sizes_computed_from_others_are_checked():
    size = Dim("n", min=3, max=8)
    shapes = {"x": {0: size + 1}, "y": {0: size}}
    run = decomp.lower(
        Calls(lambda x, y: x[1:] + y), to=targets.core_aten, args=(ones(5, 2), ones(4, 2)), dynamic_shapes=shapes
    ).result
    assert run(ones(4, 2), ones(3, 2)).shape == (3, 2)
    wrong = {
        ((3, 2), (2, 2)): "x.shape[0] >= 4",
        ((10, 2), (9, 2)): "x.shape[0] <= 9",
        ((5, 2), (5, 2)): "x.shape[0] == 1 + y.shape[0]",
        ((5, 3), (4, 3)): "('any', 2)",
    }
    for (x, y), said in wrong.items():
        with pytest.raises(decomp.errors.InputMismatch) as refused:
            run(ones(*x), ones(*y))
        assert f"the program was lowered for {said}\n" in str(refused.value)


def test_a_size_that_is_a_multiple_is_checked_to_be_one():
    double = decomp.lower(
        nn.ReLU(), to=targets.core_aten, args=(ones(8),), dynamic_shapes={"input": {0: 2 * Dim("n", min=2, max=9)}}
    ).result
    assert double(ones(6)).shape == (6,)
    assert "input.shape[0] % 2 == 0" in broken((7,), double)


class Named(nn.Module):
    def forward(self, x, *rest, parts, size):
        sizes = x.shape[0] + 3 * rest[0].shape[0] + 5 * parts["a"][0].shape[0] + size
        return x * (2 if sizes % 2 == 0 else 3)


@pytest.mark.parametrize("strict", [False, True])
def test_assumptions_on_trees_and_numbers_are_found_by_their_paths(strict):
    args, kwargs = (ones(4, 3), ones(6, 3)), {"parts": {"a": [ones(4, 3)], "b": 3}, "size": 2}
    shapes = {
        "x": {0: Dim.AUTO},
        "rest": ({0: Dim.AUTO},),
        "parts": {"a": [{0: Dim.AUTO}], "b": None},
        "size": Dim.AUTO,
    }
    program = export(Named(), args, kwargs, dynamic_shapes=shapes, strict=strict)
    run, own = backends.numpy.load(decomp.lower(program, to=backends.numpy.target)), program.module()
    for change in ({"size": 4}, {"size": 3}, {"x": 5}, {"rest": 7}, {"a": 5}, {"x": 5, "rest": 7}):
        args = ones(change.get("x", 4), 3), ones(change.get("rest", 6), 3)
        kwargs = {"parts": {"a": [ones(change.get("a", 4), 3)], "b": 3}, "size": change.get("size", 2)}
        expected, found = (taken(lambda *a: each(*a, **kwargs), args) for each in (own, run))
        assert (expected is None) is (found is None), change


def test_a_wide_open_program_looks_at_its_inputs_in_its_code():
    module = even().result
    module(ones(4, 3))
    assert not module._forward_pre_hooks and "x.shape[0] % 2 == 0" in module._input_check.line()


@pytest.mark.parametrize(
    "code",
    [
        "__import__('os').getpid() * L['x'].size()[0] > 0",
        "L['x'].__class__.__mro__[0] == L['x'].size()[0]",
        "(lambda: L['x'].size()[0])() > 0",
        "[n for n in (L['x'].size()[0],)][0] > 0",
    ],
)
def test_a_condition_that_does_more_than_compute_with_sizes_is_not_run(code):
    program = export(Calls(BRANCHES["added"]), (ones(4, 3), ones(4, 3)), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}))
    program._guards_code = [code]
    with pytest.raises(decomp.CaptureError, match="^a condition of the exported program does more than compute with"):
        backends.numpy.load(decomp.lower(program, to=backends.numpy.target).result)
