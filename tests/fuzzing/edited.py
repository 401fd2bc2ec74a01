"""Rules of a user's that are edited between two processes with one disk cache: the second computes by the rules as they
are then. A set of rules is its seed; several sets share the two processes, as most of the time is their start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import json
import os
from pathlib import Path
import random
import subprocess
import sys
import tempfile

import torch

ROOT = Path(__file__).parents[2]
SECONDS = 900
"""A process may take so long by the clock, as other work may have the processor."""
OPS = ("relu", "silu", "exp", "sin", "cos", "tan", "erf", "sinh", "cosh", "exp2", "log1p", "tanh", "sigmoid")
FORMULAS = ("x * {k}", "x + {k}", "{k} - x", "x * x - {k}", "x * {k} + x")
ROUTES: dict[str, tuple[str, str, str, str, str]] = {
    # what is registered; lines before it; lines of helpers.py; lines of deep.py; what it computes
    "its own body": ("lambda x: {f}", "", "", "", "{f}"),
    "a helper": ("lambda x: helpers.h{i}(x)", "", "def h{i}(x):\n    return {f}", "", "{f}"),
    "an imported helper": ("h{i}", "from {helpers} import h{i}", "def h{i}(x):\n    return {f}", "", "{f}"),
    "a helper of the helper": (
        "lambda x: helpers.h{i}(x)", "", "def h{i}(x):\n    return deep.d{i}(x) + 1.0",
        "def d{i}(x):\n    return {f}", "{f} + 1.0"),
    "a default of the helper": (
        "lambda x: helpers.h{i}(x)", "", "def h{i}(x, k={k}):\n    return x * k", "", "x * {k}"),
    "a constant": ("lambda x: x * helpers.C{i}", "", "C{i} = {k}", "", "x * {k}"),
    "an imported constant": ("lambda x: x * C{i}", "from {helpers} import C{i}", "C{i} = {k}", "", "x * {k}"),
    "a constant that the helper imports": (
        "lambda x: helpers.h{i}(x)", "", "from .deep import C{i}\ndef h{i}(x):\n    return x * C{i}", "C{i} = {k}",
        "x * {k}"),
    "a global": ("lambda x: x * G{i}", "G{i} = helpers.C{i} + 0.5", "C{i} = {k}", "", "x * ({k} + 0.5)"),
    "a closure over a number": ("closing(helpers.C{i})", "", "C{i} = {k}", "", "x * {k}"),
    "a closure over a function": ("calling(helpers.h{i})", "", "def h{i}(x):\n    return {f}", "", "{f}"),
    "a partial": ("functools.partial(scaled, k=helpers.C{i})", "", "C{i} = {k}", "", "x * {k}"),
    "a method": ("Scale(helpers.C{i}).rule", "", "C{i} = {k}", "", "x * {k}"),
    "an object": ("Scale(helpers.C{i})", "", "C{i} = {k}", "", "x * {k}"),
    "a class": ("lambda x: x * helpers.T{i}.K", "", "class T{i}:\n    K = {k}", "", "x * {k}"),
    "a container": (
        "lambda x: x * helpers.T{i}['k'][0]", "", "T{i} = {{'k': [{k}]}}", "", "x * {k}"),
    "a decorator": (
        "helpers.w{i}(lambda x: x + 1.0)", "",
        "def w{i}(rule):\n    @functools.wraps(rule)\n    def wrapped(x):\n        return rule(x) * {k}\n"
        "    return wrapped", "", "(x + 1.0) * {k}"),
    "a file": (
        "lambda x: helpers.h{i}(x)", "", "def h{i}(x):\n    return x * json.loads(NUMBERS.read_text())['{i}']", "",
        "x * {k}"),
    "another rule": ("lambda x: torch.ops.aten.{other}(x) + 1.0", "", "", "", "({theirs}) + 1.0"),
}  # fmt: skip # a route a line, where it fits
"""Where a rule reads what is edited: files with `{i}` (the place of the rule), `{k}` a number, `{f}` a formula."""
RULES = """
import functools
import torch
import decomp
import {helpers} as helpers

def scaled(x, k):
    return x * k

def closing(k):
    return lambda x: x * k

def calling(function):
    return lambda x: function(x)

class Scale:
    def __init__(self, k):
        self.k = k
    def rule(self, x):
        return x * self.k
    __call__ = rule

"""
HELPERS_OF = "HELPERS"
"""Replaced by the name of the module of helpers."""
HELPERS = """
import functools, json, pathlib
from . import deep

NUMBERS = pathlib.Path(__file__).with_name("numbers.json")

"""
RUN = """
import importlib, json, sys
import torch
import decomp
from decomp.cache import expansions
from decomp_rules import RULES, targets

expansions.SHARE = 1 << 60  # that something is recorded again, which is drawn, would hide that it is stale
torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self, ops):
        super().__init__()
        self.ops = ops

    def forward(self, x):
        return [getattr(torch.ops.aten, op)(x) for op in self.ops]


found, x = {}, torch.tensor([0.5, 2.0])
for name in sys.argv[2:]:
    try:
        rules = importlib.import_module(name + ".rules").rules
        ops = [op.short for op in rules.ops]
        program = torch.export.export(Net(ops), (x,))
        low = decomp.lower(program, to=getattr(targets, sys.argv[1]) - ops, rules=rules | RULES)
        found[name] = dict(zip(ops, [value.tolist() for value in low.result.module()(x)]))
    except Exception as error:
        found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Stage:
    """The rules as they are in one of the processes."""

    files: Mapping[str, str]
    meanings: Mapping[str, str]
    """What the rule of each op computes, as an expression of x."""

    def expected(self, op: str) -> torch.Tensor:
        x = torch.tensor([0.5, 2.0])
        return eval(self.meanings[op], {"x": x})


@dataclass(frozen=True)
class Edited:
    """A set of rules before and after it is edited."""

    before: Stage
    after: Stage
    routes: Mapping[str, str]
    """By which route the rule of each op reads what may be edited."""
    apart: bool
    """Whether the helpers are in a package of their own."""


def edited(
    seed: int, versions: tuple[str | None, str | None] | None = None, by: Sequence[str] = tuple(ROUTES)
) -> Edited:
    """The rules of a seed. `versions`: those that their author gives before and after, or none; drawn if not given.
    `by`: the routes that are drawn from."""
    draw = random.Random(seed)
    ops = draw.sample(OPS, draw.randint(2, 4))
    first = [route for route in by if route != "another rule"]
    routes = [draw.choice(by if place else first) for place in range(len(ops))]
    changed = [draw.random() < 0.6 for _ in ops]
    changed[draw.choice([place for place, route in enumerate(routes) if route != "another rule"])] = True
    numbers = [(draw.choice("234"), draw.choice("567")) for _ in ops]
    formulas = [draw.sample(FORMULAS, 2) if draw.random() < 0.5 else [draw.choice(FORMULAS)] * 2 for _ in ops]
    others = [draw.randrange(place) if place else 0 for place in range(len(ops))]
    drawn = draw.choice([(None, None), ("1", "2")])
    stages = []
    for late, version in enumerate(versions or drawn):
        meanings: dict[str, str] = {}
        read = {i: float(numbers[i][late and changed[i]]) for i in range(len(ops))}
        files = {
            "rules.py": RULES.replace("{helpers}", HELPERS_OF),
            "helpers.py": HELPERS,
            "deep.py": "",
            "numbers.json": json.dumps(read),
        }
        registered = ""
        for i, op in enumerate(ops):
            now = late and changed[i]
            k = f"{numbers[i][now]}.0"
            names = {"i": i, "k": k, "helpers": HELPERS_OF, "f": formulas[i][now].format(k=k), "other": ops[others[i]]}
            names["theirs"] = meanings.get(ops[others[i]], "")
            rule, own, helpers, deep, meaning = (part.format(**names) for part in ROUTES[routes[i]])
            files["rules.py"] += own + "\n"
            files["helpers.py"] += helpers + "\n"
            files["deep.py"] += deep + "\n"
            registered += f"    {op!r}: {rule},\n"
            meanings[op] = meaning
        files["rules.py"] += f"rules = decomp.Rules({{\n{registered}}}, version={version!r})\n"
        stages.append(Stage(files, meanings))
    return Edited(*stages, dict(zip(ops, routes)), draw.random() < 0.5)


def faults_of_edited(sets: Mapping[str, Edited], target: str) -> dict[str, str]:
    """What is wrong with each set of rules on a target, by name; empty if nothing is."""
    faults = dict.fromkeys(sets, "")
    with tempfile.TemporaryDirectory() as folder:
        for process in ("before", "after"):
            stages = {name: getattr(one, process) for name, one in sets.items()}
            for name, stage in stages.items():
                _write(Path(folder), name, stage.files, sets[name].apart)
            found = _run(Path(folder), target, list(sets))
            for name, stage in stages.items():
                faults[name] = faults[name] or fault_in(found[name], stage, sets[name].routes, process)
    return faults


def _write(folder: Path, name: str, files: Mapping[str, str], apart: bool) -> None:
    helpers = f"{name}_helpers" if apart else name
    for file, text in files.items():
        path = folder / (name if file == "rules.py" else helpers) / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace(HELPERS_OF, f"{helpers}.helpers"))
        os.utime(path, (1e9, 1e9))  # neither the time nor, often, the size says that it was edited


def _run(folder: Path, target: str, names: Sequence[str]) -> dict[str, dict[str, list[float]] | str]:
    env = {
        **os.environ,
        "DECOMP_CACHE": str(folder / "kept"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", "-c", RUN, target, *names]
    text = subprocess.check_output(command, env=env, cwd=folder, text=True, timeout=SECONDS)
    return json.loads(text.splitlines()[-1])


def fault_in(found: dict[str, list[float]] | str, stage: Stage, routes: Mapping[str, str], process: str) -> str:
    if isinstance(found, str):
        return f"{process} the edit it raises {found}"
    for op, values in found.items():
        expected = stage.expected(op)
        if not torch.allclose(torch.tensor(values), expected, rtol=1e-4):
            return f"{process} the edit, by {routes[op]}: {op} is {values}, not {expected.tolist()}"
    return ""
