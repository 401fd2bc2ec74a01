"""`simplify`: a program is captured, simplified, rebuilt as the same kind of program, and checked; a `Lowering` is
simplified again with other settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import fx

from decomp.capture import frontends, rebuild_exported
from decomp.capture.lowered_module import check_inputs
from decomp.derive.session import lowering_session
from decomp.errors import ArgumentError, boundary
from decomp.forks import collector_paused
from decomp.graphs.rewrite import copy_graph
from decomp.graphs.tracing import without_guards
from decomp.ir.module import Module, ProgramGraph
from decomp.lowering import Lowering, resimplify
from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.proof.returned_program import ReturnedProgram, check_returned_program
from decomp.rules.options import CHECKS
from decomp.rules.rules import Rules
from decomp.rules.target import MatchAllTarget, Target
from decomp.simplification.checking import check_simplified
from decomp.simplification.simplifier import PASSES, Settings, simplify_module


@boundary("simplify", CHECKS)
def simplify(
    program: Any,
    passes: Iterable[str] | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    to: Target | None = None,
    freeze: bool = False,
    exact: bool = True,
    training: bool | None = None,
    tracer_class: type[fx.Tracer] = fx.Tracer,
    dynamic_shapes: Any = None,
) -> Any:
    """Return a program that computes the same with fewer calls, or as many: of the same kind (a GraphModule for a
    module).

    - `program`: a module, GraphModule or ExportedProgram, which is not changed; or a `Lowering`, for which a new
      `Lowering` is returned.
    - `passes`: some of "dead_code", "common_subexpressions", "no_ops" (copies, casts, views, sums and products that
      change nothing), "chains" (views of views merged), "sinking" (views moved below pointwise ops, or ops along
      dimensions that they leave alone, where that saves calls), "broadcasting" (expands that the op does by itself),
      "scalars" (numbers instead of constant-filled tensors) and "constants" (values computed from factories alone, such
      as masks and positions, folded into tensors of up to 65,536 elements); by default all. They run as one, and their
      order does not matter. All but the first two need calls of ATen with shapes: those of an ExportedProgram, or of a
      module with `args`. (A GraphModule that calls functions of PyTorch can be exported first.)
    - `to`: new calls are legal in this target; by default any are. A `Lowering` has its own target.
    - `freeze`: treat parameters and buffers that are never written as constants: what depends on them alone is computed
      once, by the same kernels, into buffers of the result.
    - `exact`: results are bitwise the same, and so are gradients, except for the order in which autograd adds where a
      value has several uses. False also allows changes in rounding, in the sign of zero, and in such sums.
    - `training`: None keeps the ops that only gradients need where an input or a parameter may require one; False
      removes them, mainly `detach`; True keeps them.
    - `args`, `kwargs`, `tracer_class`, `dynamic_shapes`: as for `lower`.

    `meta["simplified"]` of the result (of `result.graph_module`, for an ExportedProgram) has the number of calls before
    and after, how many each pass removed, and how often each law was applied. For a `Lowering` see its report. The
    result is checked against the program, node by node. Raises `ArgumentError`, `CaptureError`, `VerificationError`.
    """
    settings = _settings(passes, freeze, exact, training)
    if isinstance(program, Lowering):
        return resimplify(program, settings)
    with (
        lowering_session(Rules(), program, captures=args is not None) as sizes,
        without_ambient_modes(),
        collector_paused(),
    ):
        captured = frontends.capture(
            program,
            args,
            kwargs,
            tracer_class=tracer_class,
            dynamic_shapes=dynamic_shapes,
            trains=lambda _: settings.training is not False,
        )
        # Laws ask sizes whether they are equal. With a recording shape environment
        # each such question would become an assumption of the program.
        with without_guards(captured.mode):
            module = simplify_module(captured.with_bodies(), to or _ANY, settings).map(_as_copy)
            result, exported = frontends.rebuild(module, captured.graph)
        if captured.by_example:
            check_inputs(result, captured.graph, None)
        _check(ReturnedProgram.of(module, result, exported))
        _record(module, result)
        sizes.keep(result)
    return result


_ANY = MatchAllTarget("any call")


def _settings(passes: Iterable[str] | None, freeze: bool, exact: bool, training: bool | None) -> Settings:
    if passes is not None and not isinstance(passes, Iterable):
        raise ArgumentError(f"passes= takes names, not {passes!r}; there are {', '.join(PASSES)}")
    chosen = tuple(PASSES if passes is None else (passes,) if isinstance(passes, str) else passes)
    unknown = next((name for name in chosen if name not in PASSES), None)
    if unknown is not None:
        raise ArgumentError(f"no pass {unknown!r}; there are {', '.join(PASSES)}")
    if freeze and training:
        raise ArgumentError("freeze=True makes parameters constants, which cannot train: leave out training=True")
    return Settings(frozenset(chosen), exact, False if freeze else training, freeze)


def _as_copy(own: ProgramGraph) -> ProgramGraph:
    """A graph that may be changed: the captured one belongs to the user."""
    return own.rewritten(copy_graph(own.graph), "copy") if own.by == "capture" else own


def _check(returned: ReturnedProgram) -> None:
    """Raise a `VerificationError` unless each graph is what its record says, and the program has these graphs."""
    check_returned_program(returned)
    module = returned.module
    for each in module.graphs.values():
        if (found := each.record("simplify")) is not None:
            check_simplified(found, rebuild_exported.input_names(each.constants) if each is module.main else ())


def _record(module: Module, result: Any) -> None:
    """Write into the metadata of a program what was simplified."""
    before = sum(each.captured.calls for each in module.graphs.values())
    found = [record for each in module.graphs.values() if (record := each.record("simplify")) is not None]
    removed = sum((Counter(each.counts) for each in found), Counter[str]())
    laws = Counter(name for each in found for names in each.applied.values() for name in names)
    owner = result.graph_module if hasattr(result, "graph_module") else result
    owner.meta["simplified"] = {
        "before": before,
        "after": before - removed.total(),
        "removed": dict(removed),
        "laws": dict(laws.most_common()),
    }
