"""Mutual exclusion of lowerings, and rollback of those that fail. PyTorch's tracing is not thread-safe: its stack of
modes above autograd is per process, a fake mode stores where it was entered, and a `ShapeEnv` belongs to a program that
several threads may lower. Hence one lock, which is reentrant, as a lowering may run inside a backend of `torch.compile`
that another lowering called."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from typing import Any

from decomp.derive.pipeline import CaptureRequest, capture_program
from decomp.derive.planning_memory import forget_if_full, keep_symbolic_memory
from decomp.derive.rule_selection import RuleSelection
from decomp.forks import ForkSafeLock, collector_paused, undone_in_child
from decomp.graphs.tracing import without_guards
from decomp.ir.module import Module
from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.metadata.shape_env import Snapshot, shape_env_of
from decomp.rules.rules import Rules
from decomp.torch_internals.modes import compile_lock, process_state_kept

# Neither Dynamo nor the tracers of PyTorch are thread safe: https://github.com/pytorch/pytorch/issues/118260,
# https://github.com/pytorch/pytorch/issues/105943
_LOCK = ForkSafeLock()


@contextlib.contextmanager
def lowering_session(rules: Rules, model: Any, captures: bool) -> Iterator[Snapshot]:
    """Inside this context no other thread lowers. On exit, PyTorch's state and the shape environment of `model` are
    restored; after an exception, so is the planning memory of `rules`. `captures`: whether the model may be captured by
    `torch.export`."""
    # The lock of `torch.compile` is taken first, as that does: otherwise a thread that lowers and needs Dynamo could
    # deadlock with one that compiles and then lowers.
    with compile_lock(captures), _LOCK, process_state_kept():
        # Cleared here and not while planning, which holds references into the memory.
        forget_if_full(rules.memory)
        before, sizes = _SessionState(rules), Snapshot(shape_env_of(model))
        try:
            # A fork in another thread copies the process in the middle
            # of a lowering: the child puts back what is half done.
            with undone_in_child(before.restore), undone_in_child(sizes.restore):
                yield sizes
        # KeyboardInterrupt and SystemExit too: half of a memory would poison every lowering after it.
        except BaseException:
            before.restore()
            raise
        finally:
            sizes.restore()


@contextlib.contextmanager
def capture_session(source: CaptureRequest, matching: RuleSelection) -> Iterator[Module]:
    """The graph of a model, for planning inside this context, without other threads and the caller's modes interfering.
    Raises `CaptureError`."""
    captures = source.args is not None
    # Planning makes many objects and frees few: collections would walk the whole program again and again.
    with lowering_session(matching.rules, source.model, captures), without_ambient_modes(), collector_paused():
        program = capture_program(source, matching)
        with planning(program):
            yield program


@contextlib.contextmanager
def resumed_session(program: Module, rules: Rules) -> Iterator[Snapshot]:
    """Inside this context a program that was captured earlier may be planned again, as in `capture_session`."""
    with (
        lowering_session(rules, program, captures=False) as sizes,
        without_ambient_modes(),
        collector_paused(),
        planning(program),
    ):
        yield sizes


@contextlib.contextmanager
def planning(program: Module) -> Iterator[None]:
    """The context of planning: no guards are added, and memory of symbolic sizes that end with the program is
    dropped."""
    with without_guards(program.mode), keep_symbolic_memory(program.mode):
        yield


class _SessionState:
    """A snapshot of the state that a lowering may change."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.remembered = {key: (memory, memory.mark()) for key, memory in rules.memory.items()}

    def restore(self) -> None:
        """Undo changes since the snapshot."""
        # Memories that were made by the failed lowering go as a whole.
        for key in [key for key in self.rules.memory if key not in self.remembered]:
            self.rules.memory.pop(key, None)
        for memory, mark in self.remembered.values():
            memory.rewind(mark)
