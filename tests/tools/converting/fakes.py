"""Converters for tests, found by other processes: their models are the programs that they are given, run by PyTorch."""

import dataclasses
import os
import signal

import torch
from torch.utils._pytree import tree_leaves

import decomp

OPS = ["mm", "add.Tensor", "permute", "relu", "clone"]
TARGET = decomp.Target("fake", OPS, description="what fake converts")


def convert(program):
    return program.module()


def run(model, inputs):
    return tree_leaves(model(*inputs))


def one_more(model, inputs):
    return [result + 1 for result in run(model, inputs)]


def refuse(program):
    raise NotImplementedError("conversion fails\nno rule for aten.mm.default")


def crash(program):
    os.kill(os.getpid(), signal.SIGSEGV)


def take_some(program):
    """Refuses the smallest elements of topk, computes cumsum of integers wrong, and crashes on erfinv."""
    module = program.module()
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten.topk.default and node.args[3:4] == (False,):
            raise NotImplementedError("largest=False")
        if node.target is torch.ops.aten.erfinv.default:
            crash(program)
        if node.target is torch.ops.aten.cumsum.default and not node.meta["val"].is_floating_point():
            with module.graph.inserting_after(node):
                wrong = module.graph.call_function(torch.ops.aten.neg.default, (node,))
            node.replace_all_uses_with(wrong, delete_user_cb=lambda user, wrong=wrong: user is not wrong)
    module.recompile()
    return module


def approximate(program):
    """Computes exp to four digits, and tanh to six."""
    module, errors = program.module(), {torch.ops.aten.exp.default: 1.0001, torch.ops.aten.tanh.default: 1.000001}
    for node in list(module.graph.nodes):
        if node.target in errors:
            with module.graph.inserting_after(node):
                off = module.graph.call_function(torch.ops.aten.mul.Tensor, (node, errors[node.target]))
            node.replace_all_uses_with(off, delete_user_cb=lambda user, off=off: user is not off)
    module.recompile()
    return module


def take_floats(program):
    """Refuses all inputs that are not floats."""
    if not all(node.meta["val"].is_floating_point() for node in program.graph.find_nodes(op="placeholder")):
        raise NotImplementedError("only floats")
    return program.module()


def take_constant_weights(program):
    """Refuses convolutions whose weights are inputs."""
    inputs = set(program.graph_signature.user_inputs)
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default):
        if node.args[1].name in inputs:
            raise NotImplementedError("only constant weights")
    return program.module()


def save(model, path):
    path.write_text(str(model.graph))


FAKE = decomp.Converter(
    "fake", package="pytest", at_least="8", target=TARGET, convert=convert, run=run, save=save, suffix=".txt"
)
COMPOSITES = dataclasses.replace(FAKE, name="composites", composites=True)
WRONG = dataclasses.replace(FAKE, name="wrong", run=one_more)
REFUSES = dataclasses.replace(FAKE, name="refuses", convert=refuse)
CRASHES = dataclasses.replace(FAKE, name="crashes", convert=crash)
NO_RUNTIME = dataclasses.replace(FAKE, name="compiled", run=None)
ABSENT = dataclasses.replace(FAKE, name="absent", package="no-such-converter", at_least="1.2")
OLD = dataclasses.replace(FAKE, name="old", at_least="999.1")
PARTLY = dataclasses.replace(FAKE, name="partly", convert=take_some)
APPROXIMATE = dataclasses.replace(FAKE, name="approximate", convert=approximate)
FLOATS = dataclasses.replace(FAKE, name="floats", convert=take_floats)
WEIGHTS = dataclasses.replace(FAKE, name="weights", convert=take_constant_weights)
