"""One lowering at a time, and nothing left of one that fails. PyTorch's tracing is not safe in threads: its stack of
modes above autograd is one for the process, a fake mode remembers where it was entered, and a `ShapeEnv` belongs to a
program that several threads may lower. So there is one lock; it is reentrant, because a lowering may run inside a
backend of `torch.compile` that a lowering called."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from typing import Any

from decomp.capture.frontends import CapturedProgram
from decomp.derive.pipeline import CaptureRequest, capture_program
from decomp.derive.planning_memory import forget_if_full, remembering
from decomp.derive.rule_selection import RuleSelection
from decomp.forks import Lock, collector_paused, undone_in_child
from decomp.graphs.tracing import without_guards
from decomp.metadata.ambient_modes import neutral
from decomp.metadata.shape_env import Snapshot, shape_env_of
from decomp.rules.rules import Rules
from decomp.torch_internals.modes import compile_lock, process_state_kept

_LOCK = Lock()


@contextlib.contextmanager
def lowering_session(rules: Rules, model: Any, captures: bool) -> Iterator[Snapshot]:
    """Within, no other thread lowers. However it is left, PyTorch's state and the shape environment of `model` are as
    they were; if by an exception of any kind, what planning remembers in `rules` is, too. `captures`: whether the model
    may be captured by `torch.export`."""
    # The lock of `torch.compile` is taken first here too: a thread that lowers and needs Dynamo would else wait for one
    # that compiles and waits for it.
    with compile_lock(captures), _LOCK, process_state_kept():
        forget_if_full(rules.memory)
        before, sizes = _SessionState(rules), Snapshot(shape_env_of(model))
        try:
            with undone_in_child(before.restore), undone_in_child(sizes.restore):
                yield sizes
        except BaseException:
            before.restore()
            raise
        finally:
            sizes.restore()


@contextlib.contextmanager
def capture_session(source: CaptureRequest, matching: RuleSelection) -> Iterator[CapturedProgram]:
    """The graph of a model, with no other thread and none of the caller's modes in the way, to be planned within.
    Raises `CaptureError`."""
    captures = source.args is not None
    with lowering_session(matching.rules, source.model, captures), neutral(), collector_paused():
        program = capture_program(source, matching)
        with planning(program):
            yield program


@contextlib.contextmanager
def resumed_session(program: CapturedProgram, rules: Rules) -> Iterator[Snapshot]:
    """Within, a program that was captured before may be planned again, as within `capture_session`."""
    with lowering_session(rules, program, captures=False) as sizes, neutral(), collector_paused(), planning(program):
        yield sizes


@contextlib.contextmanager
def planning(program: CapturedProgram) -> Iterator[None]:
    """Within, a program is planned: no guard is added, and of its sizes nothing is remembered that ends with it."""
    with without_guards(program.mode), remembering(program.mode):
        yield


class _SessionState:
    """What a lowering may leave behind, as it is now."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.remembered = {key: (memory, memory.mark()) for key, memory in rules.memory.items()}

    def restore(self) -> None:
        """Put back what differs."""
        for key in [key for key in self.rules.memory if key not in self.remembered]:
            self.rules.memory.pop(key, None)
        for memory, mark in self.remembered.values():
            memory.rewind(mark)
