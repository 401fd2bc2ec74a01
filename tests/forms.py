"""One function as a program of each form: exported (ATen with metadata), traced (torch dialect), and traced with
example inputs (torch dialect with metadata). What holds for rules holds in all of them."""

import types

import pytest
import torch
from torch import fx, nn
from torch.export import ExportedProgram

import decomp

ATEN, TORCH, EXAMPLES = "exported", "traced", "traced with args"
FORMS = (ATEN, TORCH, EXAMPLES)
KNOWING = (ATEN, EXAMPLES)
anywhere = pytest.mark.parametrize("form", FORMS)
with_metadata = pytest.mark.parametrize("form", KNOWING)


class Holder(nn.Module):
    """A function as a module; tensors given by name are its buffers, and the function takes the module first."""

    def __init__(self, function, **buffers):
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)
        self.bound = bool(buffers)

    def forward(self, *args):
        return self.function(self, *args) if self.bound else self.function(*args)


class Calls(nn.Module):
    """Sample calls as one module, which takes their tensors, one call's after the other's."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def forward(self, *tensors):
        rest = iter(tensors)
        return [call.with_tensors([next(rest) for _ in call.tensors]).run() for call in self.calls]


def exported(function, *args, **how):
    """The exported program of a function; `how` is of `torch.export.export`."""
    return torch.export.export(Holder(function), args, **how)


def program(function, args, form):
    """`function` (or a module) as a program of the given form."""
    if form == ATEN:
        module = function if isinstance(function, nn.Module) else Holder(function)
        return torch.export.export(module, args, strict=False)
    if isinstance(function, (nn.Module, types.FunctionType)):
        return fx.symbolic_trace(function)
    return fx.symbolic_trace(lambda x: function(x))


def decomposed(function, rules, args, form, **options):
    """`function` with `rules` applied, and the program that it was. The source is left as it was."""
    source = program(function, args, form)
    text = str(source.graph)
    if form == EXAMPLES:
        options["args"] = args
    result = decomp.decompose(source, rules, verify="full", **options)
    assert isinstance(result, (type(source), fx.GraphModule))
    assert str(source.graph) == text
    return result


def module_of(program):
    """Anything callable."""
    return program.module() if isinstance(program, ExportedProgram) else program


def outcome(program, *args):
    """The result of the program for copies of `args`."""
    return module_of(program)(*[a.clone() if isinstance(a, torch.Tensor) else a for a in args])


def ops(program):
    """Short names of the ops that a program calls, in order: `["mul", "add"]`."""
    return [call.op.short for call in decomp.calls(program)]


def same(one, two):
    """Equal to the last bit, with dtypes and structure; NaN equals NaN."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(two, torch.Tensor)
            and one.dtype == two.dtype
            and one.shape == two.shape
            and bool(
                torch.equal(torch.nan_to_num(one, nan=0.5), torch.nan_to_num(two, nan=0.5))
                and torch.equal(one.isnan(), two.isnan())
            )
        )
    if isinstance(one, (list, tuple)):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return isinstance(two, dict) and list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    return one == two


def x():
    return torch.tensor([[-1.5, 0.0, 2.0], [4.0, -0.25, 1.0]])


def check(function, rules, form, args=None, expected=None):
    """The program with the rules applied gives what `expected` (by default the function itself) gives."""
    args = (x(),) if args is None else args
    result = decomposed(function, rules, args, form)
    assert same(outcome(result, *args), (expected or function)(*args))
    return result
