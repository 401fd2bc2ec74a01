"""The cost of calls under a fusing compiler: arithmetic, but no memory traffic."""

from __future__ import annotations

from dataclasses import dataclass

from decomp.costs.counting import FLOPS
from decomp.costs.model import CostModel
from decomp.costs.sizes import numel, results, returns_view
from decomp.ir.call import Call
from decomp.ir.op_facts import FACTORIES

# The time of each op in additions, as compiled by Inductor of torch 2.13: vectorised, AVX512, float32, one thread,
# operands in cache, not overlapped with other calls. Other ops take 1.
_ADDITIONS = {
    "trunc": 3,
    "floor": 3,
    "ceil": 3,
    "round": 3,
    "_to_copy": 4,
    "where": 4,
    "maximum": 4,
    "minimum": 4,
    "lt": 4,
    "le": 4,
    "gt": 4,
    "ge": 4,
    "eq": 4,
    "ne": 4,
    "reciprocal": 8,
    "div": 8,
    "cat": 8,
    "stack": 8,
    "constant_pad_nd": 8,
    "sqrt": 15,
    "rsqrt": 26,
    "exp2": 28,
    "exp": 35,
    "expm1": 36,
    "sin": 40,
    "cos": 40,
    "sigmoid": 42,
    "erf": 58,
    "log": 60,
    "log2": 60,
    "log10": 60,
    "log1p": 80,
    "tan": 100,
    "atan": 115,
    "tanh": 150,
    "pow": 260,
}
_GATHERS = frozenset(
    "gather index _unsafe_index index_select embedding take scatter scatter_add scatter_reduce index_put "
    "index_add".split()
)
_GATHERED = 100
"""The same for an element that is gathered or scattered, which is not vectorised."""


@dataclass(frozen=True)
class FusedCost(CostModel):
    """Time in the kernels of a fusing compiler, in additions of one element, as measured under Inductor: an exp2 takes
    as long as 28 of them, while all pointwise calls cost the same if each is a kernel of its own. Matrix products take
    two operations for each multiplication; views and constants are free, and so are reads and writes of memory.
    """

    unit = "additions"
    aim = "a compiler that fuses: least arithmetic"

    def __call__(self, call: Call) -> float:
        short = call.op.short
        if returns_view(call) or short in FACTORIES:
            return 0.0
        if short in _GATHERS:
            return float(_GATHERED * sum(map(numel, results(call))))
        # Casts, `where` and the like are free by FLOPS, and are vector code here.
        return _ADDITIONS.get(short, 1) * (FLOPS(call) or sum(map(numel, results(call))))

    def __repr__(self) -> str:
        return "decomp.costs.fused"


FUSED = FusedCost()
