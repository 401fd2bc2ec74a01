"""`Backend`: the primitives that a runtime implements, as a table of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import fx

from decomp.errors import ArgumentError, NotPortable, TargetError, UnknownOp, boundary
from decomp.former_names import former_name
from decomp.ir.call import Call, Predicate
from decomp.ir.op_facts import CONTROL_FLOW
from decomp.ir.ops import Op, meant_overload, resolve
from decomp.ir.schema import overloads
from decomp.rules.library import shipped_backend
from decomp.rules.target import Target
from decomp.runtime.current import node_now
from decomp.runtime.known_deviations import KnownDeviation, Where

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from decomp.lowering import Lowering
    from decomp.partitioning.outcome import Partition
    from decomp.runtime.loaded import Loaded

F = TypeVar("F", bound=Callable[..., Any])
Key = tuple[Op, str | None]


@dataclass(frozen=True, slots=True)
class BackendFunction:
    """A function of a backend, and the calls that it implements."""

    key: Key
    function: Callable[..., Any]
    when: Predicate | None = None
    reason: str = ""


class Backend:
    """A runtime as a table: one function for each op that it has, on its own arrays. The functions can compute eagerly
    (NumPy), record (a lazy runtime), or emit into another graph.

    ```python
    chip = decomp.Backend("mychip", targets.tinygrad, from_torch=lambda x: x.numpy(), to_torch=torch.from_numpy)

    @chip.implements("add")
    def add(a, b):
        return a + b

    program = chip.load(decomp.lower(model, to=chip.target, args=(x,)))
    program(x)                                    # torch tensors in, torch tensors out
    ```

    A function is called with the arguments of the op's schema. Those without a default come by position, in the order
    of the schema: arrays, Python numbers, lists of either, None. Those with a default come by keyword, by the name in
    the schema, and only if they differ from the default: `aten.sum.dim_IntList(x, [0], True)` calls
    `sum(x, [0], keepdim=True)`. Placement and layout (`device`, `layout`, `memory_format`, `pin_memory`,
    `non_blocking`) are never passed. Several results are returned as a tuple. Bodies of `cond` and the like are passed
    as functions of arrays.
    """

    def __init__(
        self,
        name: str,
        target: Target | None = None,
        *,
        from_torch: Callable[[torch.Tensor], Any],
        to_torch: Callable[[Any], torch.Tensor],
        dtypes: Mapping[torch.dtype, Any] | None = None,
        jit: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        shape: Callable[[Any], Sequence[Any]] | None = None,
    ) -> None:
        """- `target`: what programs are lowered to; by default the ops that are implemented, on `dtypes`.
        - `from_torch`, `to_torch`: convert a (detached) tensor to an array, and back.
        - `dtypes`: maps PyTorch's dtypes to the backend's. Dtype arguments are converted by it, and programs with
          another dtype are refused when they are loaded. By default PyTorch's dtypes are passed.
        - `jit(function)`: compiles a function of arrays that returns a tuple of arrays; applied to whole programs.
        - `shape(array)`: the sizes of an array; by default `array.shape`.

        Raises `ArgumentError` for arguments of another kind."""
        if target is not None and not isinstance(target, Target):
            raise ArgumentError(f"target= takes a decomp.Target such as decomp_rules.targets.tinygrad, not {target!r}")
        functions = {"from_torch": from_torch, "to_torch": to_torch, "jit": jit, "shape": shape}
        for option, function in functions.items():
            if not callable(function) and (function is not None or option.endswith("torch")):
                raise ArgumentError(f"{option}= takes a function, not {function!r}")
        for dtype in dtypes or ():
            if not isinstance(dtype, torch.dtype):
                raise ArgumentError(f"dtypes= takes a dict by torch dtypes, {{torch.float32: ...}}, not by {dtype!r}")
        self.name, self.dtypes, self.jit = name, dict(dtypes) if dtypes is not None else None, jit
        self.from_torch, self.to_torch = from_torch, to_torch
        self.shape: Callable[[Any], Sequence[Any]] = shape or (lambda array: array.shape)
        self._target = target
        self._made: Target | None = None
        self._table: dict[Key, list[BackendFunction]] = {}
        self._deviations: dict[Key, list[KnownDeviation]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        if self is shipped_backend(self.name):
            return shipped_backend, (self.name,)
        raise NotPortable(
            f"the backend {self.name} cannot be pickled: it is a table of functions\n  to do: define it at the top "
            "level of a module, and import it in the other process"
        )

    @boundary("Backend.implements")
    def implements(self, *ops: Any, when: Predicate | None = None, reason: str = "") -> Callable[[F], F]:
        """Decorator of the function for one or more ops, spelled as in a target: `"add"` means all overloads without a
        function of their own, `"sum.dim_IntList"` that one; a key of another table is accepted too. With `when`, it is
        used for the calls for which the predicate is true; `reason` describes it ("groups must be 1"). Of several
        functions the last one is tried first. Raises `UnknownOp`, `TargetError` for a condition without a reason, and
        `ArgumentError` if there is no op or no function."""
        if when is not None and not reason:
            raise TargetError('when= needs reason=, its text in errors: reason="groups must be 1"')
        if not ops:
            raise ArgumentError('implements() needs the op that the function computes: implements("add")')
        keys = [_key(spelling) for spelling in ops]

        def implementing(function: F) -> F:
            if not callable(function):
                raise ArgumentError(f"implements({ops[0]!r}) takes a function, not {function!r}")
            self._made = None
            for key in keys:
                self._table.setdefault(key, []).insert(0, BackendFunction(key, function, when, reason))
            return function

        return implementing

    @boundary("Backend.deviates")
    def deviates(
        self, *ops: Any, reason: str, where: Where | None = None, epsilons: float = 0.0, ulp: float = 0.0
    ) -> None:
        """Declare that results of some ops (spelled as for `implements`) differ from PyTorch's by the runtime's design:
        bring-up then reports them as "by design", with the reason, and not as wrong.

        `where(expected, *tensors)`: a mask of the results that differ, or a bool for all of a call; `epsilons` (of the
        dtype) and `ulp` (of each result): the allowed error, by default any. Raises `TargetError` if none of the three
        is given, and `UnknownOp`."""
        if where is None and not epsilons and not ulp:
            raise TargetError("deviates() takes where=, epsilons= or ulp=: which results differ, or by how much")
        for spelling in ops:
            self._deviations.setdefault(_key(spelling), []).append(KnownDeviation(reason, where, epsilons, ulp))

    departs = former_name("Backend.departs", "deviates")

    def deviations(self, op: Any) -> tuple[KnownDeviation, ...]:
        """The deviations declared for an op, or for one overload of it. Raises `UnknownOp`."""
        name, overload = _key(op)
        of_overload = self._deviations.get((name, overload), ()) if overload is not None else ()
        return (*of_overload, *self._deviations.get((name, None), ()))

    def stated(self) -> set[str]:
        """The ops with declared deviations, as a target lists them."""
        return {f"{op}.{overload}" if overload else str(op) for op, overload in self._deviations}

    def __iter__(self) -> Iterator[BackendFunction]:
        """All functions, in the order of their ops' first mention."""
        return (each for found in self._table.values() for each in found)

    @property
    def target(self) -> Target:
        """The target that programs must be lowered to."""
        if self._target is not None:
            return self._target
        if self._made is None:
            self._made = self._of_table()
        return self._made

    def _of_table(self) -> Target:
        made = Target(self.name)
        for each in self:
            if each.key[0].name.startswith("higher_order."):
                continue  # a target need not have these
            one = Target(self.name, [each.key])
            made |= one if each.when is None else one.legal_if(each.key, each.when, each.reason)
        return (made if self.dtypes is None else made.with_dtypes(self.dtypes)).named(self.name)

    def missing(self) -> tuple[str, ...]:
        """The ops of the target without a function."""
        return tuple(name for name in self.target if not self._serves(*_key(name)))

    def _serves(self, op: Op, overload: str | None) -> bool:
        wanted = [overload] if overload is not None else [name for name, _ in overloads(op)]
        return (op, None) in self._table or all((op, name) in self._table for name in wanted)

    def implementation(self, call: Call) -> BackendFunction | None:
        """The function for a call, or None."""
        # The overload's own function is more specific than one for the whole op.
        for key in ((call.op, call.overload), (call.op, None)):
            for each in self._table.get(key, ()):
                if each.when is None or each.when(call):
                    return each
        return None

    def conditions(self, call: Call) -> tuple[str, ...]:
        """The conditions of the functions for the op of a call, as text."""
        keys = ((call.op, call.overload), (call.op, None))
        return tuple(dict.fromkeys(each.reason for key in keys for each in self._table.get(key, ()) if each.reason))

    @property
    def node(self) -> fx.Node:
        """While a function runs under `Loaded.walk`: the call being computed, with metadata in `node.meta["val"]`.
        Raises `LookupError` at any other time."""
        return node_now()

    @overload
    def load(self, program: Partition) -> fx.GraphModule: ...
    @overload
    def load(self, program: Lowering | ExportedProgram | fx.GraphModule) -> Loaded: ...
    def load(self, program: Any) -> Any:
        """Load a lowered program (a `Lowering`, an ExportedProgram or a GraphModule) on this backend. Its parameters
        are converted once, now. Of a `Partition`, the parts on the chip are loaded, and the program of all parts is
        returned. Raises `LoadError`, which lists everything that the backend has no function for."""
        from decomp.runtime.loaded import load  # deferred: it imports this module

        return load(self, program)

    def __repr__(self) -> str:
        return f"Backend({self.name!r}, {len(self._table)} ops implemented)"


def _key(spelling: Any) -> Key:
    if isinstance(spelling, tuple) and len(spelling) == 2 and isinstance(spelling[0], Op):
        return spelling
    if isinstance(spelling, str) and spelling.removeprefix("higher_order.") in CONTROL_FLOW:
        return Op(f"higher_order.{spelling.removeprefix('higher_order.')}"), None
    if isinstance(spelling, torch._ops.HigherOrderOperator):
        return Op(f"higher_order.{spelling.__name__}"), None
    found = resolve(spelling)
    if found.op.packet is None:
        raise UnknownOp(spelling)
    return found.op, meant_overload(found)
