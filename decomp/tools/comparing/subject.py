"""What is compared: a lowered program, and the backend or the function that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from decomp.capture.inputs.trees import flat_inputs
from decomp.errors import ArgumentError, spell_target
from decomp.ir.call import Call, call_if_bound
from decomp.loading import load as program_of
from decomp.lowering import Lowering
from decomp.rules.accuracy import Accuracy, Level, Spec
from decomp.runtime.loaded import Loaded
from decomp.runtime.tables import Backend
from decomp.tools.comparing.observing import Run, runs_prefixes
from decomp.torch_internals.graphs import PyTreeCodeGen


@dataclass(frozen=True)
class ProgramOnBackend:
    """A program, and what runs it."""

    root: fx.GraphModule
    loaded: Loaded | None
    """None on a runtime that is no `Backend`."""
    run: Run
    on: Backend | Run
    source_op: Callable[[fx.Node], str]
    accuracy: Accuracy

    @classmethod
    def of(cls, program: Any, on: Backend | Run | None, accuracy: Spec | None = None) -> ProgramOnBackend:
        """Raises `ArgumentError`, `LoadError` and `CaptureError`."""
        if isinstance(program, Loaded):
            if on is not None and on is not program.backend:
                raise ArgumentError("on= is for a program that is not loaded on a backend yet")
            level = Accuracy.of(accuracy or "standard")
            backend = program.backend
            return cls(program.root, program, runs_prefixes(backend), backend, _traced_op, level)
        if not callable(on) and not isinstance(on, Backend):
            raise ArgumentError(
                "compare() needs what runs the program\n  to do: pass on=backend, or a function on=run that runs a "
                "prefix of it: run(prefix, *inputs)"
            )
        own = program.internals.request.accuracy if isinstance(program, Lowering) else Accuracy()
        level = Accuracy.of(accuracy) if accuracy is not None else own
        unlifted = program_of(program, None, None, None)
        if not isinstance(on, Backend):
            return cls(unlifted.root, None, on, on, unlifted.source_op, level)
        loaded = on.load(program)
        of_lowering = unlifted.source_op if isinstance(program, Lowering) else _traced_op
        return cls(loaded.root, loaded, runs_prefixes(on), on, of_lowering, level)

    @property
    def backend(self) -> Backend | None:
        """None on a runtime that is no `Backend`."""
        return self.on if isinstance(self.on, Backend) else None

    @property
    def name(self) -> str:
        """The name of the backend, or of the function."""
        return self.on.name if isinstance(self.on, Backend) else getattr(self.on, "__name__", "the runtime")

    @property
    def is_compiled(self) -> bool:
        """Whether the program runs as a whole, so that running it call by call shows something else."""
        return self.backend is None or self.backend.jit is not None

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The inputs of the graph."""
        codegen = self.root.graph._codegen
        if isinstance(codegen, PyTreeCodeGen):
            return flat_inputs(codegen, args, kwargs)
        names = [str(node.target) for node in self.root.graph.nodes if node.op == "placeholder"]
        return [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]

    def level(self, node: fx.Node) -> Level:
        """The accuracy that is asked of a call."""
        call = call_if_bound(node)
        return self.accuracy.level(call.op) if call is not None else self.accuracy.default


def _traced_op(node: fx.Node) -> str:
    """The op of the model, where torch.export recorded its function; otherwise the op that the node calls."""
    function = node.meta.get("torch_fn")
    return str(function[1]).rpartition(".")[2] if function else spell_target(node.target)


def primitive_of(backend: Backend | None, call: Call) -> str:
    """The primitive of a call, as the target lists it: with the overload if it lists only that one."""
    exact = f"{call.op}.{call.overload}"
    listed = backend is not None and exact in set(backend.target)
    return (exact if listed else str(call.op)).removeprefix("aten.")
