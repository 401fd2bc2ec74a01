"""The backend `stablehlo`: lowered programs as StableHLO, compiled and run by XLA on the CPU, through `jax`. It has the
ops of the target of that name, each a call that emits one operation (`xla_operands.SEVERAL` has those that are a few).

The 64-bit dtypes that JAX leaves out by default are enabled while a function of the backend runs, and in no other code.
Arrays and tensors share memory where their alignment allows it. XLA flushes subnormal numbers to 0, and its random
numbers are its own: `torch.manual_seed` has no part in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
import functools
import os
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.extend.core import Jaxpr, Literal
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from decomp import Backend, errors
from decomp.results import Loaded
from decomp_rules import targets
from decomp_rules.backends import (
    deviations,
    safetensors,
    xla_arithmetic,
    xla_control,
    xla_direct,
    xla_locations,
    xla_shapes,
)

DTYPES: Mapping[torch.dtype, Any] = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 bfloat16 float16 float32 float64 complex64 complex128"
    ).split()
}
"""JAX's names for the dtypes that both have."""


Order = tuple[int, ...]
NUMBERS = (bool, int, float, complex)
TABLES = (xla_arithmetic.CALLS, xla_control.CALLS, xla_direct.CALLS, xla_shapes.CALLS)
"""The functions of the backend."""


def make() -> Backend:
    """The backend `stablehlo`."""
    backend = Backend(
        "stablehlo", targets.stablehlo, from_torch=from_torch, to_torch=to_torch, dtypes=DTYPES, jit=Compiled
    )
    for table in TABLES:
        for name, function in table.items():
            backend.implements(name)(_scoped(backend, function))
    deviations.state(backend, deviations.STABLEHLO)
    return backend


def _scoped(backend: Backend, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True), xla_locations.scope(backend):
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
    """A function of arrays that XLA compiles, once for each combination of shapes and of numbers among the inputs.

    XLA's CPU convolves with kernels whose channels come last, and transposes others in each run, which takes as long as
    a convolution with few positions. So an argument that is only used as a kernel is transposed beforehand, once for
    each array, and back in the program, where the two transpositions cancel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._numbers: tuple[int, ...] = ()
        """Which results are Python numbers: sizes, known when the shapes are."""
        self._jitted: dict[tuple[int, ...], Any] = {}
        self._transposing: dict[tuple[int, ...], tuple[Any, Mapping[int, Order]]] = {}
        """By the places of numbers, the function of transposed kernels, and the orders of their dimensions by place."""
        self._transposed: dict[int, tuple[Any, Any]] = {}
        """By place, the kernel that was given last, and the same transposed."""

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        with jax.enable_x64(True):
            static = _numbers_in(values)
            if static not in self._transposing:
                self._transposing[static] = self._of_transposed_kernels(static, values)
            function, orders = self._transposing[static]
            placed = list(values)
            for place, order in orders.items():
                if self._transposed.get(place, (None,))[0] is not values[place]:
                    self._transposed[place] = values[place], jnp.transpose(values[place], order)
                placed[place] = self._transposed[place][1]
            results = list(function(*placed))
        for place in self._numbers:
            results[place] = results[place].item()
        return tuple(results)

    def jitted(self, *values: Any) -> Any:
        """The function under `jax.jit`, where those of `values` that are Python numbers are constants."""
        static = _numbers_in(values)
        if static not in self._jitted:
            self._jitted[static] = jax.jit(self._traced, static_argnums=static)
        return self._jitted[static]

    def _traced(self, *values: Any) -> tuple[Any, ...]:
        results = self._function(*values)
        self._numbers = _numbers_in(results)
        return tuple(results)

    def _of_transposed_kernels(self, static: tuple[int, ...], values: Sequence[Any]) -> tuple[Any, Mapping[int, Order]]:
        arrays = [place for place in range(len(values)) if place not in static]
        found = _kernels(self.jitted(*values).trace(*values).jaxpr.jaxpr)
        orders = {arrays[place]: order for place, order in found.items()}

        def transposed_back(*placed: Any) -> tuple[Any, ...]:
            own = list(placed)
            for place, order in orders.items():
                own[place] = jnp.transpose(own[place], np.argsort(order))
            return self._traced(*own)

        return jax.jit(transposed_back, static_argnums=static, compiler_options=_options()), orders


@functools.cache
def _options() -> dict[str, str]:
    """Convolutions and matrix products are given to XLA's library one by one: a whole ResNet in one call of it, as by
    default (jaxlib 0.10), takes 1.8 times as long. None where `XLA_FLAGS` says otherwise, or XLA has no such option."""
    name, kinds = "xla_cpu_experimental_ynn_fusion_type", ("INDIVIDUAL_CONVOLUTION", "INDIVIDUAL_DOT")
    options = {name: ",".join(f"LIBRARY_FUSION_TYPE_{kind}" for kind in kinds)}
    if name in os.environ.get("XLA_FLAGS", ""):
        return {}
    try:
        jax.jit(jnp.negative, compiler_options=options)(1.0)
    except jax.errors.JaxRuntimeError:
        return {}
    return options


def _numbers_in(values: Sequence[Any]) -> tuple[int, ...]:
    """The places of Python numbers."""
    return tuple(place for place, value in enumerate(values) if isinstance(value, NUMBERS))


def _kernels(jaxpr: Jaxpr) -> dict[int, Order]:
    """By their places, the arguments that are read as kernels of convolutions and not otherwise, and the order of
    dimensions that XLA wants: positions, channels that come in, channels that go out."""
    orders: dict[Any, set[Order | None]] = {var: set() for var in jaxpr.invars}
    read = [(var, None) for var in jaxpr.outvars]
    for equation in jaxpr.eqns:
        read += [(var, equation if position == 1 else None) for position, var in enumerate(equation.invars)]
    for var, equation in read:
        if not isinstance(var, Literal) and var in orders:
            is_kernel = equation is not None and equation.primitive.name == "conv_general_dilated"
            outer, inner, *positions = equation.params["dimension_numbers"].rhs_spec if is_kernel else (0, 0)
            orders[var].add((*positions, inner, outer) if is_kernel else None)
    alone = ((place, next(iter(orders[var]))) for place, var in enumerate(jaxpr.invars) if len(orders[var]) == 1)
    return {place: order for place, order in alone if order is not None}


@dataclass(frozen=True)
class StableHloModule:
    """A program as a module of StableHLO."""

    text: str
    """The module, behind comments that name its arguments. The `loc` of an operation is the call of the source program
    that it came from, with its module and its line."""
    bytecode: bytes
    """The same as a portable artifact of StableHLO, for other versions of it."""
    exported: export.Exported
    """The same for JAX: `exported.call(*arrays)`, `exported.serialize()`."""
    weights: Mapping[str, Any] = field(repr=False, default_factory=dict)
    """The arrays of the arguments that are not inputs, by name; without those that have no numbers."""

    def save(self, path: str | Path, weights: bool = False) -> None:
        """Write the text (`.mlir`) or the bytecode (`.mlirbc`), and on request the weights into a `.safetensors` file
        of the same name beside it. Raises `ArgumentError` for another name, and for weights without numbers."""
        path = Path(path)
        if path.suffix not in (".mlir", ".mlirbc"):
            raise errors.ArgumentError(f"{path}: the name must end in .mlir (text) or .mlirbc (bytecode)")
        if weights:
            absent = [name for name, array in self.weights.items() if array is None]
            if absent:
                raise errors.ArgumentError(f"{path}: the program has weights without numbers: {', '.join(absent[:5])}")
            safetensors.write(path.with_suffix(".safetensors"), self.weights)
        path.write_bytes(self.bytecode if path.suffix == ".mlirbc" else self.text.encode())


def module_of(program: Any) -> StableHloModule:
    """A program lowered to the target `stablehlo` as a module whose `main` takes the leaves of `Backend.load(program)`
    (parameters, buffers, constants, inputs) and returns the written state and then the results. Symbolic sizes stay
    symbolic. It has passed the verifier of the dialect. Raises `LoadError`."""
    loaded = program if isinstance(program, Loaded) else make().load(program)
    scope = export.SymbolicScope(_ranges([leaf.meta for leaf in loaded.leaves]))
    values = [_type_of(leaf.meta, scope) for leaf in loaded.leaves]

    def traced(*given: Any) -> tuple[Any, ...]:
        return tuple(loaded.walk(*given))

    main = jax.jit(traced, static_argnums=_numbers_in(values), keep_unused=True)
    with jax.enable_x64(True), xla_locations.recording() as calls:
        exported = export.export(main, platforms=["cpu"])(*values)
    arguments = [leaf for leaf, value in zip(loaded.leaves, values) if not isinstance(value, NUMBERS)]
    with mlir.make_ir_context():
        module = ir.Module.parse(str(exported.mlir_module()))
        xla_locations.locate(module, calls, [leaf.name for leaf in arguments], program)
        module.operation.verify()
        text, bytecode = module.operation.get_asm(enable_debug_info=True), _bytecode(module)
    names = [f"// %arg{i}: {leaf.kind} {leaf.name}" for i, leaf in enumerate(arguments)]
    weights = {leaf.name: leaf.value for leaf in arguments if leaf.kind != "input"}
    return StableHloModule("\n".join((*names, text)), bytecode, exported, weights)


def _bytecode(module: ir.Module) -> bytes:
    """The module as an artifact that the StableHLO of four weeks ago reads, as JAX's are."""
    weeks = stablehlo.StablehloCompatibilityRequirement.WEEK_4
    version = stablehlo.get_version_from_compatibility_requirement(weeks)
    return bytes(stablehlo.serialize_portable_artifact(module, version))


def save(program: Any, path: str | Path, weights: bool = False) -> None:
    """Write the module of a program lowered to `stablehlo`, as text (`.mlir`) or bytecode (`.mlirbc`), and on request
    its weights beside it (`.safetensors`), by the names of the arguments. Raises `LoadError`, and `ArgumentError` for
    another name, and for weights without numbers."""
    module_of(program).save(path, weights)


def _ranges(metas: Iterable[Any]) -> list[str]:
    """The constraints on symbolic sizes, in JAX's syntax."""
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
        raise errors.ArgumentError(
            "an input of a module is a tensor or a known number; lower the model with the number"
        )
    shape = export.symbolic_shape(f"({', '.join(map(str, meta.shape))},)", scope=scope) if meta.dim() else ()
    return jax.ShapeDtypeStruct(shape, DTYPES[meta.dtype])
