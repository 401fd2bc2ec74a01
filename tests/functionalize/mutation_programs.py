"""Random programs of views and in-place ops, as graphs in both dialects, for tests/test_mutation.py."""

import operator
import random

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

VIEWS = {
    "select": lambda x, i: (torch.select, (x, i % x.dim(), 0)),
    "first": lambda x, i: (operator.getitem, (x, i % x.shape[0])),
    "slice": lambda x, i: (operator.getitem, (x, (slice(None),) * (i % x.dim()) + (slice(1, None),))),
    "step": lambda x, i: (operator.getitem, (x, (Ellipsis, slice(0, None, 2)))),
    "none": lambda x, i: (operator.getitem, (x, (None, Ellipsis))),
    "transpose": lambda x, i: ("transpose", (x, 0, i % x.dim())),
    "permute": lambda x, i: ("permute", (x, *reversed(range(x.dim())))),
    "view": lambda x, i: ("view", (x, -1)),
    "reshape": lambda x, i: ("reshape", (x, -1)),
    "flatten": lambda x, i: (torch.flatten, (x, 0, i % x.dim())),
    "unsqueeze": lambda x, i: ("unsqueeze", (x, i % x.dim())),
    "squeeze": lambda x, i: ("squeeze", (x,)),
    "diagonal": lambda x, i: ("diagonal", (x, 0, 0, 1)),
    "contiguous": lambda x, i: ("contiguous", (x,)),
    "narrow": lambda x, i: ("narrow", (x, i % x.dim(), 0, 1)),
    "expand": lambda x, i: ("expand", (x, *x.shape)),
    "T": lambda x, i: (getattr, (x, "mT")),
    "movedim": lambda x, i: (torch.movedim, (x, 0, -1)),
    "alias": lambda x, i: ("view_as", (x, x)),
    "to": lambda x, i: ("to", (x, torch.float32)),
    "as_strided": lambda x, i: ("as_strided", (x, (2, 2), (2, 1))),
}
WRITES = {
    "add_": lambda x, y, i: ("add_", (x, i + 1)),
    "mul_": lambda x, y, i: ("mul_", (x, 0.5)),
    "add_ other": lambda x, y, i: ("add_", (x, y)),
    "copy_": lambda x, y, i: ("copy_", (x, y)),
    "iadd": lambda x, y, i: (operator.iadd, (x, y)),
    "relu_": lambda x, y, i: (torch.relu_, (x,)),
    "zero_": lambda x, y, i: ("zero_", (x,)),
    "fill_": lambda x, y, i: ("fill_", (x, i)),
    "setitem": lambda x, y, i: (operator.setitem, (x, 0, float(i))),
    "setitem slice": lambda x, y, i: (operator.setitem, (x, (Ellipsis, slice(1, None)), y)),
    "setitem none": lambda x, y, i: (operator.setitem, (x, (0, None), 7.0)),
    "setitem all": lambda x, y, i: (operator.setitem, (x, slice(None), y)),
    "setitem list": lambda x, y, i: (operator.setitem, (x, (slice(None), [0]), 3.0)),
    "masked_fill_": lambda x, y, i: ("masked_fill_", (x, y, 1.0)),
    "unsqueeze_": lambda x, y, i: ("unsqueeze_", (x, 0)),
    "t_": lambda x, y, i: ("transpose_", (x, 0, -1)),
    "clamp_": lambda x, y, i: ("clamp_", (x, 0.0, 2.0)),
    "uniform_": lambda x, y, i: ("uniform_", (x,)),
}
OTHERS = {
    "add": lambda x, y, i: (torch.add, (x, y)),
    "mul": lambda x, y, i: (operator.mul, (x, 1.5)),
    "mask": lambda x, y, i: (operator.gt, (x, 0.7)),
    "clone": lambda x, y, i: ("clone", (x,)),
}
PIECES = {
    "chunk": lambda x, i: ("chunk", (x, 2, i % x.dim())),
    "unbind": lambda x, i: (torch.unbind, (x, i % x.dim())),
    "split": lambda x, i: ("split", (x, 1, i % x.dim())),
}


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.arange(12.0).reshape(3, 4) / 5)
        self.weight = nn.Parameter(torch.tensor(1.25))


class Program:
    """A graph that grows op by op, with the tensors that it computes."""

    def __init__(self):
        self.root = Buffers()
        self.graph = fx.Graph()
        self.start = [torch.arange(24.0).reshape(2, 3, 4) / 9, torch.linspace(-1, 2, 12).reshape(3, 4)]
        state = Buffers()
        self.values = [(self.graph.placeholder(f"x{i}"), x.clone()) for i, x in enumerate(self.start)]
        self.values.append((self.graph.get_attr("state"), state.state))
        self.inputs = [value for _, value in self.values]
        weight = self.graph.get_attr("weight"), state.weight
        for node, value in list(self.values[:2]):
            self.add(operator.mul, (value, 2.0), [(node, value)])
            self.add(operator.add, (value, weight[1]), [(node, value), weight])

    def add(self, target, args, known=None):
        """Append a call if PyTorch takes it; tensors among `args` are those of nodes."""
        known = self.values if known is None else known
        nodes = {id(value): node for node, value in known}
        as_node = [nodes[id(a)] if isinstance(a, torch.Tensor) else a for a in args]
        random_state = torch.get_rng_state()
        try:
            out = getattr(args[0], target)(*args[1:]) if isinstance(target, str) else target(*args)
            if isinstance(out, torch.Tensor) and out.numel() == 0:
                return
        except (RuntimeError, IndexError, TypeError, ValueError):
            torch.set_rng_state(random_state)
            return
        create = self.graph.call_method if isinstance(target, str) else self.graph.call_function
        node = create(target, tuple(as_node))
        if isinstance(out, (tuple, list)):
            self.values += [(self.graph.call_function(operator.getitem, (node, k)), part) for k, part in enumerate(out)]
        elif out is not None:
            # `out` may be the tensor of a node that is known already; both names are tried.
            self.values = [(n, v) for n, v in self.values if v is not out] + [(node, out)]

    def finish(self, returned):
        self.graph.output(tuple(returned))
        self.graph.lint()
        return fx.GraphModule(self.root, self.graph)


def program(choices):
    """A GraphModule in the torch dialect, without metadata, from a list of triples of numbers."""
    torch.manual_seed(0)
    made = Program()
    table = [*VIEWS.items(), *WRITES.items(), *WRITES.items(), *OTHERS.items(), *PIECES.items()]
    for which, first, second in choices:
        name, build = table[which % len(table)]
        x = made.values[first % len(made.values)][1]
        y = made.values[second % len(made.values)][1]
        if name in WRITES and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            y = made.values[4][1]  # PyTorch leaves open what reading and writing the same memory gives
        if name.startswith("setitem") and y.dim() >= x.dim():
            y = 2.0  # more dimensions than the place takes need shapes to be known
        if name in ("unsqueeze_", "t_") and any(x is value for value in made.inputs):
            continue
        try:
            target, args = build(x, second) if name in VIEWS or name in PIECES else build(x, y, second)
        except (IndexError, ZeroDivisionError):
            continue
        made.add(target, args)
    used = made.values if len(choices) % 2 else made.values[-3:]
    return made.finish([node for node, _ in used]), made.start


def with_metadata(gm, args):
    """The same graph, with a fake tensor on each node."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(a) for a in args]

    class Fakes(fx.Interpreter):
        def run_node(self, node):
            value = super().run_node(node)
            node.meta["val"] = tree_map(lambda v: v.detach() if isinstance(v, torch.Tensor) else v, value)
            return value

        def get_attr(self, target, args, kwargs):
            value = attributes.setdefault(target, mode.from_tensor(super().get_attr(target, args, kwargs)))
            return value

    attributes = {}
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    new = fx.GraphModule(gm, graph)
    Fakes(new).run(*fakes)
    return new


def as_aten(gm, args):
    """The same program in the aten dialect, parameters and buffers being inputs, as export would record it; and its
    arguments."""
    state = {**dict(gm.named_buffers()), **dict(gm.named_parameters())}
    lifted = [value.detach().clone().requires_grad_(value.requires_grad) for value in (*state.values(), *args)]

    def run(*flat):
        return torch.func.functional_call(gm, dict(zip(state, flat)), flat[len(state) :])

    return make_fx(run, tracing_mode="fake", pre_dispatch=True)(*lifted), lifted


def choices(seed, length):
    """Numbers for `program`."""
    chance = random.Random(seed)
    return [tuple(chance.randrange(1000) for _ in range(3)) for _ in range(length)]
