"""The files of a new backend, as `decomp init` writes them: a target, a function for each of its ops, tests, what a
server runs, and how to go on. It passes its tests as it is; its owner replaces one function after the other."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
import re


class Like(str, Enum):
    """The targets that a new one may start from (typer takes no list of literals); of the 200 ops of `core_aten` it has
    those of `_OF_CORE`."""

    tinygrad = "tinygrad"
    luminal = "luminal"
    core_aten = "core_aten"


LIKE = tuple(each.value for each in Like)
_OF_CORE = """
name = "core_aten"
description = ""
ops = [
    "add", "sub", "mul", "div", "neg", "maximum", "minimum", "where.self", "lt", "eq",
    "exp", "log", "sqrt", "rsqrt", "erf", "sigmoid", "tanh", "relu",
    "mm", "bmm", "convolution", "sum.dim_IntList", "mean.dim", "amax",
    "view.default", "permute", "expand", "slice.Tensor", "full.default", "clone", "detach", "_to_copy",
]
""".lstrip()


def files_of(name: str, like: str) -> dict[str, str]:
    """The text of each file by its path in the folder of the backend."""
    text = _target(name, like)
    ops = [op.removeprefix("aten.") for op in _ops_of(text)]
    words = {"NAME": name, "LIKE": like, "COUNT": str(len(ops))}
    functions = "".join(_FUNCTION.format(op=op, function=function_name(op)) for op in ops)
    return {
        f"{name}.toml": text,
        f"{name}.py": _filled(_BACKEND, words) + functions,
        f"test_{name}.py": _filled(_TESTS, words),
        ".github/workflows/test.yml": _filled(_WORKFLOW, words),
        "README.md": _filled(_README, words),
    }


def function_name(op: str) -> str:
    """The name of the function of an op: `sum_dim_IntList`."""
    return re.sub(r"\W", "_", op)


def _target(name: str, like: str) -> str:
    """The file of a target under another name."""
    from decomp_rules import targets

    shipped = Path(targets.__file__).with_name(f"{like}.toml")
    text = _OF_CORE if like == "core_aten" else shipped.read_text("utf-8")
    for key, value in (("name", name), ("description", f"ops of {like}, to begin with")):
        text = re.sub(rf'^{key} = ".*"$', f'{key} = "{value}"', text, count=1, flags=re.MULTILINE)
    return text


def _ops_of(text: str) -> list[str]:
    """The ops of a target as its file names them, in their order."""
    listed = re.search(r"^ops = \[(.*?)^\]", text, flags=re.MULTILINE | re.DOTALL)
    assert listed is not None
    lines = (line.partition("#")[0] for line in listed[1].splitlines())
    return re.findall(r'"([^"]+)"', "\n".join(lines))


def _filled(template: str, words: dict[str, str]) -> str:
    for word, text in words.items():
        template = template.replace(f"@{word}@", text)
    return template


_BACKEND = '''"""@NAME@: a backend of decomp. Each function below gets NumPy arrays and returns one.
It computes with PyTorch's kernel: replace it by your own, one after the other. The tests say which one is wrong."""

from enum import Enum
from pathlib import Path

import numpy as np
import torch

import decomp

FLOATS = (torch.float16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def to_array(x):
    """A tensor as an array of yours."""
    return x.detach().cpu().resolve_conj().resolve_neg().numpy()


def to_tensor(x):
    """An array of yours as a tensor."""
    return torch.from_numpy(np.array(x, order="C"))


def by_pytorch(op, args, kwargs):
    """What PyTorch's kernel computes on arrays: to stand in for a function that you have not written."""
    found = torch.ops.aten
    for part in op.split("."):
        found = getattr(found, part)
    if isinstance(found, torch._ops.OpOverload):  # what it takes by keyword alone
        names = [each.name for each in found._schema.arguments if each.kwarg_only]
        split = len(found._schema.arguments) - len(names)
        args, kwargs = args[:split], {**dict(zip(names, args[split:])), **kwargs}
    result = found(*map(_tensors, args), **kwargs)
    return tuple(map(to_array, result)) if isinstance(result, (tuple, list)) else to_array(result)


def _tensors(x):
    if isinstance(x, (list, tuple)):
        return [_tensors(each) for each in x]
    return to_tensor(x) if isinstance(x, (np.ndarray, np.generic)) else x


target = decomp.Target.load(Path(__file__).with_name("@NAME@.toml"))
backend = decomp.Backend(
    "@NAME@", target, from_torch=to_array, to_torch=to_tensor, dtypes={each: each for each in (*FLOATS, *INTEGERS)}
)
'''
_FUNCTION = """

@backend.implements("{op}")
def {function}(*args, **kwargs):
    return by_pytorch("{op}", args, kwargs)
"""
_TESTS = '''"""Whether the functions of @NAME@ are right, each on its own, and models that are lowered to it."""

import pytest
import torch
from torch import nn

import decomp
from @NAME@ import backend, target

IMAGE = torch.linspace(-1, 1, 48).reshape(1, 3, 4, 4)
MODELS = {
    "perceptron": (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Softmax(-1)), torch.ones(2, 4)),
    "convolution": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).eval(), IMAGE),
}


@pytest.mark.parametrize("op", target)
def test_a_function_computes_what_pytorch_computes(op):
    report = decomp.bring_up(backend, ops=[op], only=["primitive"], quick=True, isolate=False)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_lowered_and_runs_right(name):
    model, x = MODELS[name]
    lowering = decomp.lower(model, to=target, args=(x,), training=False, verify="values")
    torch.testing.assert_close(backend.load(lowering)(x), model(x))
'''
_WORKFLOW = """name: test
on: [push, pull_request]
env:
  DECOMP: decomp # what pip installs: a path, a wheel or a repository of yours
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - run: pip install "$DECOMP" numpy pytest
      - run: python -m pytest
"""
_README = """# @NAME@

A backend of decomp with @COUNT@ ops, of those of @LIKE@ to begin with.

- `@NAME@.toml`: the ops that the chip has, with conditions. Take out what it lacks, add what it has.
- `@NAME@.py`: a function for each op. They hand NumPy arrays to PyTorch's kernels: replace `add` and the others.
- `test_@NAME@.py`: each function compared with PyTorch, and two models. Add yours to `MODELS`.

```sh
python -m pytest                                              # what is wrong?
decomp plan mlp --to @NAME@.toml                              # what do rules make of a model?
decomp advise mlp gpt --to @NAME@.toml                        # which ops would help most?
decomp lower mlp --to @NAME@.toml -o mlp.pt2                  # the program that the chip runs
decomp bringup @NAME@.py:backend --quick                      # every op of the library, and sample models
decomp compare mlp --on @NAME@.py:backend                     # which call of a model is wrong?
```

If a compiler of yours fuses what it is handed, say `costs = "fused"` in `@NAME@.toml`, above the first `[[when]]`.
"""
