"""Ready-made cost models, as values for `cost=`. Each is imported on first access."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decomp.costs.counting import BYTES as bytes, CALLS as calls, FLOPS as flops
    from decomp.costs.fusing import FUSED as fused
    from decomp.costs.measuring import MEASURED as measured, Measured as Measured
    from decomp.costs.memory import PEAK_MEMORY as peak_memory
    from decomp.costs.programs import total as total
    from decomp.costs.tables import Formula as Formula, PriceTable as PriceTable, Table as Table, table as table

__all__ = [
    "Formula",
    "Measured",
    "PriceTable",
    "Table",
    "bytes",
    "calls",
    "flops",
    "fused",
    "measured",
    "peak_memory",
    "table",
    "total",
]
NAMED = ("calls", "flops", "bytes", "peak_memory", "fused", "measured")
"""The cost models that need no file."""


# Lazily, as measuring and tables import much that a plan by calls does not need.
def __getattr__(name: str) -> Any:
    if name in ("calls", "flops", "bytes"):
        from decomp.costs import counting

        return getattr(counting, name.upper())
    if name == "fused":
        from decomp.costs import fusing

        return fusing.FUSED
    if name in ("measured", "Measured"):
        from decomp.costs import measuring

        return measuring.MEASURED if name == "measured" else measuring.Measured
    if name == "peak_memory":
        from decomp.costs import memory

        return memory.PEAK_MEMORY
    if name == "total":
        from decomp.costs import programs

        return programs.total
    if name in ("table", "PriceTable", "Table", "Formula"):
        from decomp.costs import tables

        return getattr(tables, name)
    raise AttributeError(f"module 'decomp.costs' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
