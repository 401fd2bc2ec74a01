"""The backend `stablehlo`: lowered programs as StableHLO, compiled and run by XLA on the CPU, through `jax`. It has the
ops of the target of that name, each a call that emits one operation (`xla_operands.SEVERAL` has those that are a few).

The 64-bit dtypes that JAX leaves out by default are enabled while a function of the backend runs, and in no other code.
Arrays and tensors share memory where their alignment allows it. XLA flushes subnormal numbers to 0, and its random
numbers are its own: `torch.manual_seed` has no part in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
import functools
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.extend.mlir import ir
from jax.interpreters import mlir
import ml_dtypes
import numpy as np
import torch

from decomp import ArgumentError, Backend, Loaded
from decomp_rules import targets
from decomp_rules.backends import departures, xla_arithmetic, xla_control, xla_direct, xla_shapes
from decomp_rules.backends.xla_operands import CALLS

DTYPES: Mapping[torch.dtype, Any] = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 bfloat16 float16 float32 float64 complex64 complex128"
    ).split()
}
"""What JAX calls the dtypes that both have."""


NUMBERS = (bool, int, float, complex)
TABLES = (xla_arithmetic, xla_control, xla_direct, xla_shapes)
"""The modules that fill `CALLS`."""


def make() -> Backend:
    """The backend `stablehlo`."""
    backend = Backend(
        "stablehlo", targets.stablehlo, from_torch=from_torch, to_torch=to_torch, dtypes=DTYPES, jit=Compiled
    )
    for name, function in CALLS.items():
        backend.implements(name)(_with_64_bits(function))
    departures.state(backend, departures.STABLEHLO)
    return backend


def _with_64_bits(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return scoped


def from_torch(tensor: torch.Tensor) -> jax.Array:
    """A tensor as an array; one that is dense and aligned is not copied."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    with jax.enable_x64(True):
        if dense.numel() == 0:
            return jax.numpy.zeros(tuple(dense.shape), DTYPES[dense.dtype])
        return jax.dlpack.from_dlpack(dense)


def to_torch(array: jax.Array) -> torch.Tensor:
    """An array as a tensor that shares its memory."""
    return torch.from_dlpack(array)


class Compiled:
    """A function of arrays that XLA compiles, anew for each combination of shapes and of inputs that are numbers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._numbers: tuple[int, ...] = ()
        """Which results are Python numbers: sizes, known when the shapes are."""
        self._jitted: dict[tuple[int, ...], Any] = {}

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        with jax.enable_x64(True):
            results = list(self.jitted(*values)(*values))
        for place in self._numbers:
            results[place] = results[place].item()
        return tuple(results)

    def jitted(self, *values: Any) -> Any:
        """The function under `jax.jit`, where those of `values` that are Python numbers are constants."""
        static = tuple(place for place, value in enumerate(values) if isinstance(value, NUMBERS))
        if static not in self._jitted:
            self._jitted[static] = jax.jit(self._traced, static_argnums=static)
        return self._jitted[static]

    def _traced(self, *values: Any) -> tuple[Any, ...]:
        results = self._function(*values)
        self._numbers = tuple(place for place, result in enumerate(results) if isinstance(result, NUMBERS))
        return tuple(results)


@dataclass(frozen=True)
class Module:
    """A program as a module of StableHLO."""

    text: str
    """The module, behind comments that name its arguments."""
    bytecode: bytes
    """The same as a portable artifact of StableHLO, for other versions of it."""
    exported: export.Exported
    """The same for JAX: `exported.call(*arrays)`, `exported.serialize()`."""

    def save(self, path: str | Path) -> None:
        """Write the text (`.mlir`) or the bytecode (`.mlirbc`). Raises `ArgumentError` for another name."""
        path = Path(path)
        if path.suffix not in (".mlir", ".mlirbc"):
            raise ArgumentError(f"{path}: the name must end in .mlir (text) or .mlirbc (bytecode)")
        path.write_bytes(self.bytecode if path.suffix == ".mlirbc" else self.text.encode())


def module_of(program: Any) -> Module:
    """A program lowered to the target `stablehlo` as a module whose `main` takes the leaves of `Backend.load(program)`
    (parameters, buffers, constants, inputs) and returns what is written and then the results. Symbolic sizes stay
    symbolic. It has passed the verifier of the dialect. Raises `LoadError`."""
    loaded = program if isinstance(program, Loaded) else make().load(program)
    scope = export.SymbolicScope(_ranges([leaf.meta for leaf in loaded.leaves]))
    values = [_type_of(leaf.meta, scope) for leaf in loaded.leaves]
    with jax.enable_x64(True):
        exported = export.export(loaded.function.jitted(*values), platforms=["cpu"])(*values)
    with mlir.make_ir_context():
        module = ir.Module.parse(str(exported.mlir_module()))
        module.operation.verify()
        text = str(module)
    names = [f"// %arg{i}: {leaf.kind} {leaf.name}" for i, leaf in enumerate(loaded.leaves)]
    return Module("\n".join((*names, text)), bytes(exported.mlir_module_serialized), exported)


def save(program: Any, path: str | Path) -> None:
    """Write the module of a program lowered to `stablehlo`, as text (`.mlir`) or bytecode (`.mlirbc`). Raises
    `LoadError`, and `ArgumentError` for another name."""
    module_of(program).save(path)


def _ranges(metas: Iterable[Any]) -> list[str]:
    """What is known of the symbolic sizes of tensors, as JAX writes it."""
    found: dict[str, None] = {}
    for size in (size for meta in metas if isinstance(meta, torch.Tensor) for size in meta.shape):
        if isinstance(size, torch.SymInt):
            bounds = size.node.shape_env.bound_sympy(size.node.expr)
            found[f"{size} >= {max(1, int(bounds.lower))}"] = None
            if bounds.upper < 2**31:
                found[f"{size} <= {int(bounds.upper)}"] = None
    return list(found)


def _type_of(meta: Any, scope: export.SymbolicScope) -> Any:
    """The shape and dtype of a leaf, or the number that it is."""
    if not isinstance(meta, torch.Tensor):
        if isinstance(meta, (bool, int, float)):
            return meta
        raise ArgumentError("an input of a module is a tensor or a known number; lower the model with the number")
    shape = export.symbolic_shape(f"({', '.join(map(str, meta.shape))},)", scope=scope) if meta.dim() else ()
    return jax.ShapeDtypeStruct(shape, DTYPES[meta.dtype])
