"""Symbolic sizes. To import this module costs a quarter of a second, sympy among it, so that it is imported where a
program of dynamic sizes has come: such a program has imported it already. All of it is experimental.

`TLS.suppress_guards` says whether questions about sizes are answered by the example, without a guard;
`sizes_config.backed_size_oblivious` whether a size may be taken for 0 or 1 because the example's is."""

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
from torch.utils._sympy.interp import sympy_interp as sympy_interp
from torch.utils._sympy.printers import PythonPrinter as PythonPrinter
from torch.utils._sympy.reference import PythonReferenceAnalysis as PythonReferenceAnalysis
from torch.utils._sympy.symbol import (
    SymT as SymT,
    symbol_is_type as symbol_is_type,
)
from torch.utils._sympy.value_ranges import ValueRanges as ValueRanges

sizes_config = torch.fx.experimental._config
