"""Random programs as Python source: each statement is run while it is drawn, so that what is written is valid, and the
source of a seed is always the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
import linecache
import random
import re
import sys
import types
from typing import Any
import warnings

import torch

from tests.fuzzing.statements import FAMILIES, REGIONS, WEIGHTS, WRITING

SIZES = (3, 5)
"""The size of the example inputs, and another one for programs whose first dimension is dynamic."""

DTYPES = (
    (torch.float32, 62),
    (torch.float64, 9),
    (torch.bfloat16, 5),
    (torch.float16, 4),
    (torch.int64, 9),
    (torch.int32, 3),
    (torch.bool, 4),
    (torch.uint8, 2),
    (torch.complex64, 2),
)
SHAPES = (
    ((3, 4), 40),
    ((2, 3, 4), 14),
    ((4,), 8),
    ((3,), 6),
    ((4, 4), 10),
    ((), 5),
    ((3, 1), 5),
    ((1, 4), 3),
    ((1, 2, 4, 4), 6),
    ((0, 4), 1),
    ((0,), 1),
    ((2, 3, 4, 4), 2),
)
PREAMBLE = """import torch
from torch import nn
from torch.nn import functional as F
from tests.fuzzing.prelude import (
    Clipped, Counting, Given, Reversed, Rounded, Scaled, cond, doubled, energy, mapped, mixed, repeated, scanned,
    scored, shifted)
"""
LARGEST, MOST_ELEMENTS = 1e3, 1024


@dataclass(frozen=True)
class Program:
    """Lines of a program; `source` puts them together."""

    seed: int
    setup: tuple[str, ...]
    """Lines of `__init__`."""
    inputs: tuple[str, ...]
    """Lines that make an input each."""
    body: tuple[str, ...]
    returned: tuple[str, ...]
    packing: str = "({})"
    dynamic: bool = False
    writes_inputs: bool = False
    features: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(line.partition(" = ")[0] for line in self.inputs)

    @property
    def source(self) -> str:
        """The program as a person would write it."""
        arguments, listed = ", ".join(self.names), ", ".join(self.names) + ","
        lines = [
            PREAMBLE,
            "",
            "class Program(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            "        torch.manual_seed(0)",
            *_indented(self.setup),
            "",
            f"    def forward(self, {arguments}):",
            *_indented(self.body),
            f"        return {self.packing.format(', '.join(self.returned) + ',')}",
            "",
            "",
            f"def inputs(given, n={SIZES[0]}):",
            *(f"    {line}" for line in self.inputs),
            f"    return ({listed})",
            "",
        ]
        return "\n".join(lines)

    def loaded(self) -> dict[str, Any]:
        """The namespace of the source: `Program`, `inputs`."""
        name = f"<program {self.seed}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        # Dynamo imports the module whose globals a lambda has.
        module = sys.modules["fuzzed_program"] = types.ModuleType("fuzzed_program")
        exec(compile(self.source, name, "exec"), module.__dict__)
        return module.__dict__

    def without(self, part: str, index: int) -> Program:
        """The program without one line of `part`."""
        lines = getattr(self, part)
        return replace(self, **{part: lines[:index] + lines[index + 1 :]})


def _indented(lines):
    return [f"        {part}" for line in lines for part in line.splitlines()]


def program(seed: int) -> Program:
    """The program of a seed. What PyTorch warns of once in a process must not decide about programs."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
            return _Writer(seed).written()
    finally:
        torch.set_warn_always(always)


class _Writer:
    """Draws statements and runs them, at both sizes if the first dimension is dynamic."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.dynamic = self.chance.random() < 0.25
        self.setup: list[str] = []
        self.inputs: list[str] = []
        self.body: list[str] = []
        self.features: set[str] = set()
        self.variables: list[str] = []
        self.fresh = 0
        self.spaces: list[dict[str, Any]] = []

    def written(self) -> Program:
        self._draw_inputs()
        self._draw_state()
        self._start()
        wanted = self.chance.randint(3, 8)
        for _ in range(wanted * 12):
            if len(self.body) >= wanted:
                break
            self._try_statement()
        returned, packing = self._draw_returned()
        changed = self._inputs_changed()
        if self.dynamic:
            self.features.add("dynamic size")
        if changed:
            self.features.add("writes to inputs")
        return Program(
            self.seed,
            tuple(self.setup),
            tuple(self.inputs),
            tuple(self.body),
            returned,
            packing,
            self.dynamic,
            changed,
            frozenset(self.features),
        )

    def _pick(self, weighted):
        return self.chance.choices([item for item, _ in weighted], [weight for _, weight in weighted])[0]

    # Inputs and state

    def _draw_inputs(self) -> None:
        main = self._pick(DTYPES)
        for index in range(self.chance.randint(1, 3)):
            name = f"x{index}"
            if index and self.chance.random() < 0.12:
                alias = self.chance.choice(["x0", "x0[0]", "x0.t()", "x0[..., :1]", "x0.view(-1)"])
                self.inputs.append(f"{name} = {alias}")
                self.features.add("aliased inputs")
                continue
            dtype = main if self.chance.random() < 0.8 else self._pick(DTYPES)
            self.features.add(str(dtype).removeprefix("torch."))
            self.inputs.append(f"{name} = given.tensor({self._drawn_shape(index)}dtype={dtype}{self._extras(dtype)})")

    def _drawn_shape(self, index: int) -> str:
        self.shape = shape = self._pick(SHAPES) if not index or self.chance.random() < 0.4 else self.shape
        sizes = list(map(str, shape))
        if self.dynamic and sizes and shape[0] != 1:
            sizes[0] = "n"
        if 0 in shape:
            self.features.add("empty")
        return "".join(f"{size}, " for size in sizes)

    def _extras(self, dtype) -> str:
        text = ""
        if dtype.is_floating_point and self.chance.random() < 0.06:
            text += ", special=True"
            self.features.add("special values")
        if self.shape and self.chance.random() < 0.12:
            order = list(range(len(self.shape)))
            self.chance.shuffle(order)
            text += f", order={order}, step={self.chance.choice([1, 1, 2])}"
            self.features.add("strided inputs")
        return text

    def _draw_state(self) -> None:
        shape = self.chance.choice(["4", "3, 4", "3, 4", "1", "4, 4"])
        if self.chance.random() < 0.6:
            self.setup.append(f'self.register_buffer("b0", torch.randn({shape}))')
            self.features.add("buffer")
        if self.chance.random() < 0.2:
            self.setup.append('self.register_buffer("b1", torch.zeros(3, 4, dtype=torch.int64))')
        if self.chance.random() < 0.5:
            self.setup.append(f"self.w0 = nn.Parameter(torch.randn({shape}))")
            self.features.add("parameter")
        if self.setup and self.chance.random() < 0.12:
            kept = self.setup[0].partition("b0")[1]
            self.setup.append(
                'self.register_buffer("b2", self.b0[0])'
                if kept and self.chance.random() < 0.3
                else 'self.register_buffer("b2", self.b0)'
                if kept
                else "self.w1 = self.w0"
            )
            self.features.add("shared state")

    def _start(self) -> None:
        self._open_spaces()
        self.setup = [line for line in self.setup if self._run(line)]
        self.inputs = [line for line in self.inputs if line.partition(" = ")[0] in self.spaces[0]]
        self.variables = [line.partition(" = ")[0] for line in self.inputs]
        module = self.spaces[0]["self"]
        self.variables += [f"self.{name}" for name in ("b0", "b1", "b2", "w0", "w1") if hasattr(module, name)]
        self.before = [self._state_of(name) for name in self.variables]
        self.first = list(self.variables)

    def _open_spaces(self) -> None:
        lines = Program(self.seed, (), tuple(self.inputs), ("pass",), ("1",))
        self.spaces = []
        for size in SIZES if self.dynamic else SIZES[:1]:
            space = lines.loaded()
            torch.manual_seed(0)
            space["self"] = space["Program"]()
            self._make_inputs(space, size)
            self.spaces.append(space)

    def _begin_again(self) -> None:
        """Undo the writes of a refused statement."""
        self._open_spaces()
        self._run(*self.setup, *self.body)

    def _make_inputs(self, space, size) -> None:
        """Inputs that do not fit (a view of a tensor without dimensions) are left out."""
        space["given"], space["n"] = space["Given"](0, True), size
        for line in self.inputs:
            try:
                exec(line, space)
            except (RuntimeError, IndexError):
                continue

    def _inputs_changed(self) -> bool:
        names = [line.partition(" = ")[0] for line in self.inputs]
        return any(self._state_of(name) != was for name, was in zip(self.first, self.before) if name in names)

    def _state_of(self, name: str) -> tuple[int, str]:
        """What a write changes: the version, or through `.data`, which counts none, the elements alone."""
        return self._value(name)._version, str(self._value(name).tolist())

    # Statements

    def _value(self, name: str, space: int = 0) -> torch.Tensor:
        return eval(name, self.spaces[space])

    def _try_statement(self) -> None:
        family = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self.extra: list[str] = []
        if family == "guard" and not self.dynamic:
            return
        text = self._filled(self.chance.choice(FAMILIES[family]), family)
        if text is None or family in WRITING and self._overlaps(text):
            return
        feature, text = self._wrapped(text)
        if self._run(*self.extra, text) and self._fits(text):
            self.setup += self.extra
            self.body.append(text)
            self.features |= {family, *feature}
            self._adopt(text)
        elif family in (*WRITING, "module"):
            self._begin_again()

    def _wrapped(self, text: str) -> tuple[tuple[str, ...], str]:
        chance = self.chance.random()
        if chance < 0.05:
            return ("no_grad",), f"with torch.no_grad():\n    {text}"
        if chance < 0.065:
            return ("autocast",), f'with torch.autocast("cpu", torch.bfloat16):\n    {text}'
        return (), text

    def _run(self, *lines: str) -> bool:
        """Whether every space takes the lines."""
        try:
            for space in self.spaces:
                for line in lines:
                    exec(line, space)
        except Exception:  # whatever PyTorch says: the statement is not valid here
            return False
        return True

    def _fits(self, text: str) -> bool:
        """Whether values stay small enough to be distinguished."""
        for space in self.spaces:
            for name in _assigned(text):
                value = space.get(name)
                if not isinstance(value, torch.Tensor) or value.numel() > MOST_ELEMENTS or value.dim() > 5:
                    return False
                if "as_strided(" in text and value._base is not None and _reach(value) > _reach(value._base):
                    return False  # behind the last element there may be anything
            values = [eval(name, space) for name in self.variables + _assigned(text)]
            if not all(_is_small(value) and _has_known_history(value) for value in values):
                return False
        return True

    def _adopt(self, text: str) -> None:
        for name in _assigned(text):
            if name not in self.variables:
                self.variables.append(name)

    def _overlaps(self, text: str) -> bool:
        """Whether a write reads the memory that it writes through another tensor, whose result PyTorch leaves open."""
        used = [
            self._value(name)
            for name in dict.fromkeys(re.findall(r"self\.[bw]\d|\b[vx]\d+x?i?\b", text))
            if name in self.variables
        ]
        places = [value.untyped_storage().data_ptr() for value in used]
        return len(set(places)) < len(places) or any(_overlaps_itself(value) for value in used)

    def _filled(self, template: str, family: str) -> str | None:
        if family == "module":
            return self._module_call(template)
        chosen: dict[str, Any] = {}
        for hole in dict.fromkeys(re.findall(r"\{(\w+)\}", template)):
            value = self._hole(hole, chosen)
            if value is None:
                return None
            chosen[hole] = value
        return template.format(**chosen)

    def _hole(self, hole: str, chosen: dict[str, str]) -> Any:
        first = next((chosen[name] for name in "xfib" if name in chosen), None)
        if hole == "new":
            return self._new()
        if hole in "xfib":
            return self._variable({"x": "", "f": "f", "i": "i", "b": "b"}[hole])
        if hole in "yz":
            return self._fitting(first)
        if hole in ("mode", "inner"):
            return self.chance.choice(REGIONS)
        if hole in "de":
            rank = self._value(first).dim() if first else 2
            return self.chance.randrange(-rank, rank) if rank else 0
        if hole == "k":
            return self.chance.choice([0, 1, 2, 3])
        if hole == "c":
            return self.chance.choice([0.5, -1.25, 2, 0.0, 1.5])
        shape = f"{first}.shape"
        return f"{shape}[-1]" if hole == "size" else f"tuple(reversed({shape}))"

    def _new(self) -> str:
        self.fresh += 1
        return f"v{self.fresh}"

    def _variable(self, kind: str) -> str | None:
        fitting = [name for name in self.variables if _is_kind(self._value(name), kind)]
        if not fitting:
            return None
        weights = [2 + name.startswith("v") + 3 * (i >= len(fitting) - 2) for i, name in enumerate(fitting)]
        return self.chance.choices(fitting, weights)[0]

    def _fitting(self, first: str) -> str:
        like = self._value(first)
        shape = like.shape
        near = [name for name in self.variables if self._value(name).shape == shape and name != first]
        same = [name for name in near if self._value(name).dtype == like.dtype]
        pool = same if same and self.chance.random() < 0.6 else near if near and self.chance.random() < 0.6 else None
        return self.chance.choice(pool or self.variables)

    def _module_call(self, template: str) -> str | None:
        x = self._variable("f")
        if x is None or not self._value(x).dim():
            return None
        shape = self._value(x).shape
        fixed = dict(size=shape[-1], channels=shape[1] if len(shape) > 1 else shape[0], k=self.chance.choice([2, 4]))
        used = sorted(set(re.findall(r"self\.m\d+\b", "\n".join(self.setup))))
        if used and self.chance.random() < 0.25:
            return f"{self._new()} = {self.chance.choice(used)}({x})"
        name = f"self.m{len(used)}"
        self.extra = [f"{name} = {template.format(**fixed)}"]
        if self.chance.random() < 0.08:
            self.extra.append(
                self.chance.choice(
                    [f"{name}.register_forward_hook(doubled)", f"{name}.register_forward_pre_hook(shifted)"]
                )
            )
            self.features.add("hook")
        if self.chance.random() < 0.15:
            self.extra.append(f"{name}.eval()")
        return f"{self._new()} = {name}({x})"

    # What is returned

    def _draw_returned(self) -> tuple[tuple[str, ...], str]:
        made = [name for name in self.variables if name.startswith("v")] or self.variables
        chosen = [made[-1]] + self.chance.choices(self.variables, k=self.chance.randint(0, 3))
        if self.chance.random() < 0.1:
            chosen.append(self.chance.choice(["3", "None", "1.5", "True"]))
            self.features.add("constant output")
        if self.chance.random() < 0.1:
            chosen.append(f"{self.chance.choice(self.variables)}.view(-1)")
            if not self._run(chosen[-1]):
                chosen.pop()
        if any(name in self.first for name in chosen):
            self.features.add("output is input")
        packing = self.chance.choice(["({})"] * 4 + ["[{}]", "({})[0]", '{{"a": ({}), "b": [1]}}', "(({}), {{}})"])
        return tuple(chosen), packing


def _assigned(text: str) -> list[str]:
    """Names that a statement makes."""
    made = [line.strip().partition(" = ")[0] for line in text.splitlines() if " = " in line]
    return [
        name for left in made if "(" not in left and "[" not in left for name in re.findall(r"^v\w+|(?<=, )v\w+", left)
    ]


def _overlaps_itself(value: torch.Tensor) -> bool:
    place = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(value.shape, value.stride()):
        place = place.unsqueeze(-1) + torch.arange(size) * stride
    return len(place.unique()) < value.numel()


@torch.no_grad()
def _reach(value: torch.Tensor) -> int:
    """How many elements of its memory a tensor reaches."""
    return 1 + value.storage_offset() + sum((n - 1) * step for n, step in zip(value.shape, value.stride()))


def _is_small(value: torch.Tensor) -> bool:
    size = value.detach().abs() if value.dtype != torch.bool else value.detach()
    return not bool((size[size.isfinite()] > LARGEST).any())


def _has_known_history(value: torch.Tensor) -> bool:
    """Whether its gradient can be asked for: it cannot once the base of one of several views is written."""
    try:
        _ = value.grad_fn
        return True
    except RuntimeError:
        return False


def _is_kind(value: torch.Tensor, kind: str) -> bool:
    if kind == "f":
        return value.is_floating_point()
    if kind == "i":
        return value.dtype in (torch.int64, torch.int32, torch.uint8)
    return kind == "" or value.dtype == torch.bool
