"""Symbolic sizes. Importing this module takes 0.25 s, partly for sympy, so it is imported only for programs with
dynamic sizes, which have imported it already. All of it is experimental.

`TLS.suppress_guards` says whether queries of sizes are answered by the example, without a guard;
`sizes_config.backed_size_oblivious` whether a size may be specialised to 0 or 1 because the example's is."""

from collections.abc import Iterator
import contextlib
from typing import Any

from torch._dynamo.source import ConstantSource as ConstantSource
import torch.fx.experimental._config
from torch.fx.experimental.symbolic_shapes import (
    SYMPY_INTERP as SYMPY_INTERP,
    TLS as TLS,
    DimDynamic as DimDynamic,
    GuardOnDataDependentSymNode as GuardOnDataDependentSymNode,
    ShapeEnv as ShapeEnv,
    StatelessSymbolicContext as StatelessSymbolicContext,
    compute_unbacked_bindings as compute_unbacked_bindings,
    free_unbacked_symbols as free_unbacked_symbols,
    rebind_unbacked as rebind_unbacked,
    statically_known_true as statically_known_true,
)
from torch.utils._sympy import functions as _functions
from torch.utils._sympy.interp import sympy_interp as sympy_interp
from torch.utils._sympy.printers import PythonPrinter as PythonPrinter
from torch.utils._sympy.reference import PythonReferenceAnalysis as PythonReferenceAnalysis
from torch.utils._sympy.symbol import (
    SymT as SymT,
    symbol_is_type as symbol_is_type,
)
from torch.utils._sympy.value_ranges import (
    ValueRanges as ValueRanges,
    bound_sympy as bound_sympy,
)

sizes_config = torch.fx.experimental._config
sympy_functions = _functions
"""Operations that PyTorch adds to those of sympy."""


# `metadata/symbolic_sizes.py` knows it by its name, which therefore is that of PyTorch's own class.
class _ShapeEnvGuardError(RuntimeError):
    """The error that PyTorch raises for a refused guard, from torch 2.12 on."""


@contextlib.contextmanager
def errors_on_new_guards(env: ShapeEnv) -> Iterator[None]:
    """`env.error_on_new_guards()`, which torch 2.11 lacks: inside this context a new guard raises."""
    if hasattr(env, "error_on_new_guards"):
        with env.error_on_new_guards():
            yield
        return

    def refuse(expr: Any, value: Any) -> None:
        if env._error_on_new_guards:
            raise _ShapeEnvGuardError(f"{expr} == {value}")

    frozen, erring = env.frozen, getattr(env, "_error_on_new_guards", False)
    env.frozen = env._error_on_new_guards = True
    # `refusing_guards` may have set the attribute around this context, in order to see each query.
    is_asked = "_check_frozen" in env.__dict__
    if not is_asked:
        env._check_frozen = refuse
    try:
        yield
    finally:
        env.frozen, env._error_on_new_guards = frozen, erring
        if not is_asked:
            del env._check_frozen
