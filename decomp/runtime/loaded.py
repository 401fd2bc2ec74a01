"""`Loaded`: a lowered program that runs on a backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
import functools
import traceback
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.inputs.exported_guards import ExportedGuards
from decomp.capture.inputs.trees import flat_inputs
from decomp.capture.lowered_module import check_of
from decomp.errors import (
    ArgumentError,
    BackendError,
    CaptureError,
    DecompError,
    InputMismatch,
    LoadError,
    NotPortable,
    PrimitiveError,
    WrongInputs,
    boundary,
    count_noun,
    first_line,
)
from decomp.ir.arguments import nodes_in, substituted
from decomp.ir.call import kind_of, metadata
from decomp.ir.dtypes import dtype_named
from decomp.ir.narrow_calls import NARROWER
from decomp.loading import load as program_of
from decomp.lowering import Lowering
from decomp.metadata.meta_values import known_value
from decomp.partitioning.outcome import Partition
from decomp.runtime.border import ComplexBoundary, as_complex, as_real
from decomp.runtime.building import CodeBuilder, Problems
from decomp.runtime.code import GeneratedProgram, GeneratedStep, Visit
from decomp.runtime.misfits import describe_kind, describe_tensor, first_misfit, fits_metadata
from decomp.runtime.tables import Backend
from decomp.torch_internals.fakes import unset_fake_temporarily
from decomp.torch_internals.graphs import PyTreeCodeGen
from decomp.torch_internals.pytree import tree_map_only
from decomp.type_conversion.ranges import narrow_tensor


@dataclass
class Leaf:
    """A value that a program reads and does not compute."""

    name: str
    """Its name in the program: `layers.0.weight`, or the name of an input."""
    kind: str
    """ "parameter", "buffer", "constant" or "input"."""
    value: Any
    """Its current array; None for inputs, and for tensors without values, as on the meta device."""
    meta: Any
    """A tensor with its shape and dtype, possibly a fake one with symbolic sizes; or a number, or None if unknown."""
    node: fx.Node = field(repr=False)
    as_real: bool = False
    """Whether it is a complex tensor, of which the backend has the real view."""


class Loaded:
    """A program loaded on a backend. It is called like the lowered program, with torch tensors, and returns torch
    tensors; writes to buffers persist, and writes to inputs are copied back to them."""

    def __init__(
        self, backend: Backend, root: fx.GraphModule, narrower: Mapping[torch.dtype, torch.dtype] = MappingProxyType({})
    ) -> None:
        """`narrower`: maps each wide dtype to the one the program computes in instead. Raises `LoadError`, and
        `OutOfRange` for a tensor whose values do not fit."""
        problems = Problems()
        known = backend.dtypes or {}
        # A backend that has the wide dtype runs the program in it, casts and all.
        self.narrower = {wide: dtype for wide, dtype in narrower.items() if wide not in known and dtype in known}
        built = CodeBuilder(backend, root, problems, self.narrower).build(root.graph)
        problems.raise_any(backend)
        self.backend, self.source = backend, root.graph
        self.root, self._results = root, built.results
        """The program, with parameters as attributes."""
        self._guards = ExportedGuards.of(root.graph, root)
        # State first: generated code takes inputs last, and a caller passes only these.
        self.leaves: tuple[Leaf, ...] = (
            *_state(backend, root, built.state, built.border, self.narrower),
            *(_input(node, built.border) for node in built.inputs),
        )
        """Parameters, buffers and constants, then the inputs, in order."""
        inputs = [leaf.meta for leaf in self.leaves if leaf.kind == "input"]
        self._is_of_meta = any(isinstance(meta, torch.Tensor) and meta.device.type == "meta" for meta in inputs)
        self._absent = [leaf for leaf in self.leaves if leaf.kind != "input" and leaf.value is None]
        by_node = {leaf.node: leaf.name for leaf in self.leaves}
        self.writes: tuple[str, ...] = tuple(by_node[node] for node in built.written)
        """Names of the leaves that a run writes to."""
        self.returned: tuple[fx.Node, ...] = tuple(dict.fromkeys(nodes_in(built.results)))
        """The nodes whose values `walk` and `function` return, after those of `writes`."""
        self._complex = frozenset(built.border)
        # Writes first, so that their number cuts the tuple.
        flat = (*built.written.values(), *map(built.array_of, self.returned))
        self._code = GeneratedProgram(tuple(leaf.node for leaf in self.leaves), tuple(built.steps), flat)

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPortable(
            f"a program on the backend {self.backend.name} cannot be pickled: it holds arrays and code of this "
            "process\n  to do: save the lowered program, and load it on the backend in the other process"
        )

    def __copy__(self) -> Loaded:
        return self

    def __deepcopy__(self, memo: Any) -> Loaded:
        raise NotPortable(
            f"a program on the backend {self.backend.name} cannot be copied with its arrays\n  to do: load the lowered "
            "program again"
        )

    @property
    def steps(self) -> tuple[GeneratedStep, ...]:
        """The calls, in order."""
        return self._code.steps

    @functools.cached_property
    def function(self) -> Any:
        """The program as a function of one array (or number) for each of `leaves`. It returns a flat tuple: the values
        of `writes`, then the results. It has no side effects, and is compiled by the backend's `jit` if it has one."""
        plain = self._code.function
        if self.backend.jit is None:
            return plain
        try:
            compiled = self.backend.jit(plain)
        except Exception as error:
            raise _failed_option(self.backend.name, "jit", "the program", error) from error
        if not callable(compiled):
            raise ArgumentError(f"jit= of {self.backend.name} must return a function, but returned {compiled!r}")
        return compiled

    @property
    def text(self) -> str:
        """The generated Python source of `function`."""
        return self._code.source[0]

    def walk(self, *values: Any, visit: Visit | None = None) -> tuple[Any, ...]:
        """Run like `function`, but call by call and uncompiled. Meanwhile `backend.node` is the node being computed;
        `visit(node, args, kwargs, result)` is called after each call of a primitive. Raises `ArgumentError` if there is
        not one value for each leaf, and any exception that a function of the backend raises."""
        if len(values) != len(self.leaves):
            names = ", ".join(leaf.name for leaf in self.leaves)
            raise ArgumentError(f"walk() takes {len(self.leaves)} values: {names}; not {len(values)}")
        found: tuple[Any, ...] = self._code.walk(values, visit)
        return found

    @boundary("Loaded")
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on torch tensors. Raises `InputMismatch` for inputs that the program was not lowered for,
        `PrimitiveError` if a function of the backend fails, and `BackendError` if a conversion fails, or a result does
        not have its shape and dtype in the program."""
        return self._called(args, kwargs, True)

    def unchecked(self, *args: Any) -> Any:
        """Like a call, without checks of the results' shapes and dtypes."""
        return self._called(args, {}, False)

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any], checked: bool) -> Any:
        if self._absent:
            self.require_numbers()
        given = self._flat(args, kwargs)
        values = self._values(given)
        found = self._run(values)
        self._write(dict(zip(self.writes, found)), given)
        # Programs without expanded calls also run on inputs of other shapes, for which their metadata is wrong.
        inputs = self.leaves[len(self.leaves) - len(given) :]
        checked = checked and all(fits_metadata(value, leaf.meta) for value, leaf in zip(given, inputs))
        return self._returned_from(found[len(self.writes) :], values if checked else None)

    def values(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The arrays (or numbers) of `leaves` for a call with these arguments, which `walk` and `function` take."""
        return self._values(self._flat(args, kwargs))

    def _values(self, given: Sequence[Any]) -> tuple[Any, ...]:
        inputs = self.leaves[len(self.leaves) - len(given) :]
        state = [leaf.value for leaf in self.leaves[: len(self.leaves) - len(given)]]
        return (*state, *(self._moved(value, leaf) for value, leaf in zip(given, inputs)))

    def results(self, found: Sequence[Any]) -> Any:
        """What the program returns, as tensors, from what `walk` and `function` return; not checked."""
        return self._returned_from(found[len(self.writes) :], None)

    def require_numbers(self) -> None:
        """Raise `LoadError` if there are parameters, buffers or constants without values: they were on the meta device
        or fake when the program was loaded, and have not been set since."""
        if self._absent:
            first, rest = self._absent[0], len(self._absent) - 1
            others = f" and {rest} more" if rest else ""
            problem = f"no values for {first.kind} {first.name!r}{others} (meta or fake tensors)"
            remedies = ("set them by load_state_dict({name: tensor})", "lower the model with its weights")
            raise LoadError(self.backend.name, (problem,), remedies)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The current parameters, buffers and constants, as tensors. Raises `LoadError` if one has no values."""
        self.require_numbers()
        kept = (leaf for leaf in self.leaves if leaf.kind != "input")
        return {leaf.name: self._tensor(leaf.value, leaf.as_real, leaf.name, leaf.meta) for leaf in kept}

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Set parameters and buffers, by name. Raises `CaptureError` for an unknown name, or a tensor of the wrong
        shape or dtype, and `ArgumentError` if `tensors` is not a dict of tensors by name."""
        if not isinstance(tensors, Mapping) or not all(isinstance(each, torch.Tensor) for each in tensors.values()):
            raise ArgumentError("load_state_dict() takes a dict of tensors by name, as state_dict() returns it")
        known = {leaf.name: leaf for leaf in self.leaves if leaf.kind != "input"}
        for name, tensor in tensors.items():
            if name not in known:
                raise CaptureError(f"the program has no {name!r}; it has {', '.join(known)}")
            own, given = known[name].meta, as_real(tensor) if known[name].as_real and tensor.is_complex() else tensor
            if (own.shape, own.dtype) != (given.shape, given.dtype):
                raise CaptureError(f"{name!r} is {describe_tensor(own)} and cannot be set to {describe_tensor(given)}")
            known[name].value = self._moved(tensor, known[name])
        self._absent = [leaf for leaf in self._absent if leaf.value is None]

    def _moved(self, value: Any, leaf: Leaf) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if isinstance(leaf.meta, torch.Tensor) and value.layout is not leaf.meta.layout:
            raise InputMismatch(leaf.name, leaf.meta.layout, value.layout, "layout")
        # Conjugation is a bit of the tensor that other libraries do not see.
        plain = value.detach().resolve_conj().resolve_neg()
        found = as_real(plain) if leaf.as_real else plain
        return _on(
            self.backend, narrow_tensor(f"{leaf.kind} {leaf.name!r}", found, self.narrower), leaf.kind, leaf.name
        )

    def _tensor(self, array: Any, is_complex: bool, name: str, meta: Any) -> torch.Tensor:
        """A value as a tensor, in its dtype in the program if it is computed in a narrow one."""
        try:
            found = self.backend.to_torch(array)
        except Exception as error:
            raise _failed_option(
                self.backend.name, "to_torch", f"{name}, which is {describe_kind(array)}", error
            ) from error
        if not isinstance(found, torch.Tensor):
            raise ArgumentError(f"to_torch= of {self.backend.name} must return a tensor, not {type(found).__name__}")
        found = as_complex(found) if is_complex else found
        dtype = getattr(meta, "dtype", found.dtype)
        dtype = dtype.to_complex() if is_complex and not dtype.is_complex else dtype
        return found.to(dtype) if self.narrower and found.dtype == NARROWER.get(dtype) else found

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The values of the inputs, in order, checked as the lowered module checks them."""
        flat, inputs = self._in_order(args, kwargs), [leaf for leaf in self.leaves if leaf.kind == "input"]
        if self._guards is not None:
            try:
                self._guards(self.root, {str(leaf.node.target): value for leaf, value in zip(inputs, flat)})
            except AssertionError as error:
                raise _wrong_inputs(inputs, error) from error
        return flat

    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        # Hooks of the root are run here, as the graph is not run as a module.
        hooks, check = self.root._forward_pre_hooks, check_of(self.root)
        placed, by_name = tree_map_only(torch.Tensor, _on_meta, (args, kwargs)) if self._is_of_meta else (args, kwargs)
        try:
            for key, hook in hooks.items():
                hook(self.root, placed, *([by_name] if key in self.root._forward_pre_hooks_with_kwargs else []))
            if check is not None and check not in hooks.values():
                check(self.root, placed, by_name)
        except (RuntimeError, TypeError, ValueError) as error:  # raised by torch.export's input check, without details
            if isinstance(error, DecompError):
                raise
            raise _wrong_inputs([leaf for leaf in self.leaves if leaf.kind == "input"], error) from error
        if isinstance(self.source._codegen, PyTreeCodeGen):
            return flat_inputs(self.source._codegen, args, kwargs)
        names = [leaf.name for leaf in self.leaves if leaf.kind == "input"]
        defaults = {leaf.name: leaf.node.args[0] for leaf in self.leaves if leaf.kind == "input" and leaf.node.args}
        named: Mapping[str, Any] = {**defaults, **dict(zip(names, args)), **kwargs}
        missing = [name for name in names if name not in named]
        if missing or len(args) > len(names) or named.keys() - set(names):
            takes = f"{count_noun(len(names), 'input')}: {', '.join(names)}"
            other = ", ".join(key for key in kwargs if key not in names)
            given = f"{len(args)} by position" + (f", {', '.join(kwargs)} by name" if kwargs else "")
            raise ArgumentError(
                f"the program takes {takes}; {f'it has no {other}' if other else f'you passed {given}'}"
            )
        return [named[name] for name in names]

    def _run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        try:
            found: tuple[Any, ...] = self.function(*values)
        except Exception as error:
            step = self._failed(error)
            if step is None:
                raise
            # Only after a failure: walking call by call takes several times as long.
            before = self._first_misfit(values)
            raise PrimitiveError(self.backend.name, step.function, step.node, error, before) from error
        return found

    def _first_misfit(self, values: Sequence[Any]) -> str:
        return first_misfit(self._code, values, lambda value, meta: self._tensor(value, False, "a value", meta))

    def _failed(self, error: Exception) -> GeneratedStep | None:
        """The step that raised an error."""
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in frames if frame.filename == self._code.filename), None)
        # Not one of the program's calls, such as an error of `jit`.
        return None if line is None else self._code.step_at(line)

    def _write(self, values: Mapping[str, Any], given: Sequence[Any]) -> None:
        inputs = dict(zip((leaf.name for leaf in self.leaves[len(self.leaves) - len(given) :]), given))
        for leaf in self.leaves:
            if leaf.name not in values:
                continue
            if leaf.kind == "input":
                # An input may be a leaf that requires a gradient.
                with torch.no_grad():
                    inputs[leaf.name].copy_(self._tensor(values[leaf.name], leaf.as_real, leaf.name, leaf.meta))
            else:
                leaf.value = values[leaf.name]

    def _returned_from(self, found: Sequence[Any], given: Sequence[Any] | None) -> Any:
        values = {
            node: value if kind_of(node) == "host" else self._result(node, value, metadata(node), given)
            for node, value in zip(self.returned, found)
        }
        results = substituted(self._results, values.__getitem__)
        codegen = self.source._codegen
        return codegen.process_outputs(results) if isinstance(codegen, PyTreeCodeGen) else results

    def _result(self, node: fx.Node, value: Any, meta: Any, given: Sequence[Any] | None) -> Any:
        """A value of the program as a tensor; for a call with several results, each as a tensor. It is checked if the
        inputs are known."""
        if isinstance(meta, (list, tuple)):
            return [self._result(node, each, of, given) for each, of in zip(value, meta)]
        found = self._tensor(value, node in self._complex, f"result {node.name!r}", meta)
        if given is not None and not fits_metadata(found, meta):
            problem = f"result {node.name!r} is {describe_tensor(found)}, but {describe_tensor(meta)} in the program"
            before = self._first_misfit(given)
            search = f'decomp.bring_up({self.backend.name}, models={{"this": (model, args)}}) finds the function'
            remedy = "fix that function" if before else search
            raise BackendError(self.backend.name, problem, remedy, node, before)
        return found

    def __repr__(self) -> str:
        return f"Loaded({len(self.steps)} calls on {self.backend.name})"


def _on(backend: Backend, tensor: torch.Tensor, kind: str, name: str) -> Any:
    """A tensor as an array. Raises `BackendError`."""
    try:
        return backend.from_torch(tensor)
    except Exception as error:
        raise _failed_option(
            backend.name, "from_torch", f"{kind} {name!r}, {describe_tensor(tensor)}", error
        ) from error


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """A stand-in on the meta device for checking an input: a program lowered on that device runs on others too."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _state(
    backend: Backend,
    root: nn.Module,
    state: Mapping[fx.Node, torch.Tensor],
    border: ComplexBoundary,
    narrower: Mapping[torch.dtype, torch.dtype],
) -> list[Leaf]:
    """The tensor attributes of a program, each converted once."""
    parameters = {id(tensor) for tensor in root.parameters()}
    buffers = {id(tensor) for tensor in root.buffers()}
    moved: dict[int, tuple[Any, torch.Tensor]] = {}
    leaves = []
    for node, tensor in state.items():
        kind = "parameter" if id(tensor) in parameters else "buffer" if id(tensor) in buffers else "constant"
        # Tied weights stay one array.
        if id(tensor) not in moved:
            value = known_value(tensor)
            given = tensor.detach() if value is None else value.detach()
            found = as_real(given) if node in border else given
            held = narrow_tensor(f"{kind} {str(node.target)!r}", found, narrower)
            # `from_torch` may share memory (`x.numpy()`), and training the model must not change a loaded program.
            array = None if value is None else _on(backend, held.clone(), kind, str(node.target))
            moved[id(tensor)] = array, held if value is None else found
        leaves.append(Leaf(str(node.target), kind, *moved[id(tensor)], node, node in border))
    order = ("parameter", "buffer", "constant")
    return sorted(leaves, key=lambda leaf: order.index(leaf.kind))


def _input(node: fx.Node, border: ComplexBoundary) -> Leaf:
    value = metadata(border.leaves.get(node, node))
    return Leaf(str(node.target).lstrip("*"), "input", None, value, node, node in border)


def load(backend: Backend, program: Any) -> Any:
    """Load a lowered program on a backend, as `Loaded`; of a `Partition`, its parts on the chip, in a GraphModule.
    Raises `LoadError`, and `CaptureError` if it is not a program."""
    if isinstance(program, Partition):
        return program.load(backend)
    if not isinstance(program, (Lowering, fx.GraphModule, torch.export.ExportedProgram)):
        raise CaptureError(
            f"cannot load {type(program).__name__}; pass a Lowering, an ExportedProgram or a GraphModule"
        )
    with unset_fake_temporarily():  # torch.compile calls backends under a fake mode, but constants are real
        return Loaded(backend, program_of(program, None, None, None).root, _narrower(program))


def _narrower(program: Any) -> Mapping[torch.dtype, torch.dtype]:
    """The narrow dtypes in which a program computes, as recorded by `lower`."""
    if isinstance(program, Lowering):
        return program.target.narrower
    module = program if isinstance(program, fx.GraphModule) else program.graph_module
    found = [tuple(map(dtype_named, pair)) for pair in module.meta.get("custom", {}).get("narrower", {}).items()]
    return {wide: narrow for wide, narrow in found if wide is not None and narrow is not None}


def _wrong_inputs(inputs: Iterable[Leaf], why: BaseException) -> WrongInputs:
    return WrongInputs(tuple(f"{leaf.name}: {describe_tensor(metadata(leaf.node))}" for leaf in inputs), why)


def _failed_option(backend: str, option: str, on: str, cause: BaseException) -> BackendError:
    """The error for a backend's option, a function, that failed on a value."""
    problem = f"{option}= failed on {on}: {type(cause).__name__}: {first_line(cause)}"
    return BackendError(backend, problem, f"fix the function passed as {option}= so that it accepts this")
