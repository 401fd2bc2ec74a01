"""`Pattern`: an ordinary function, recorded as a small graph. Its parameters are free variables; a parameter can also
be a module, whose weights and settings are then free variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import functools
import inspect
import math
from types import SimpleNamespace
from typing import Any

from torch import fx, nn

from decomp.errors import ArgumentError, NotPortable, first_line, locate_function, pickle_or_explain
from decomp.ir import spellings
from decomp.ir.arguments import nodes_in
from decomp.ir.call import call_target, kind_of
from decomp.ir.effects import Effect, EffectTable
from decomp.ir.ops import of_module_class
from decomp.ir.schema import parameters
from decomp.patterns.terms import EQUIVALENT_OPS, Terms, list_readings, op_name

_DATA = ("input", "self", "indices")
"""The argument of an op that a module takes as its input; the others come from the module's attributes."""


class Pattern:
    """Several calls to be found in programs. A pattern can be called: it computes its outputs from the values of its
    free variables, in order."""

    def __init__(
        self,
        graph: fx.Graph,
        name: str,
        location: str = "built in",
        optional: frozenset[str] = frozenset(),
        shape: Mapping[str, tuple[str, ...] | None] | None = None,
        source: tuple[Any, Mapping[str, type[nn.Module]]] = (None, {}),
    ) -> None:
        """`graph`: its placeholders are the free variables, its outputs those of the pattern. `optional`: variables
        that may be None. `shape`: the parameters of the function; for a module parameter, the attributes that became
        variables, named like `conv.weight`. `source`: the function that was recorded. Raises `ArgumentError`."""
        self.graph, self.name, self.location, self.optional, self.source = graph, name, location, optional, source
        self.variables = tuple(str(node.target) for node in graph.nodes if node.op == "placeholder")
        self.parameters = dict(shape) if shape is not None else dict.fromkeys(self.variables)
        # `fx.Graph` names a call after these, and its printed code qualifies them.
        self.__name__, self.__qualname__, self.__module__ = name, f"pattern {name}", ""
        self.terms = Terms(of_pattern=True)
        returned = graph.output_node().args[0]
        self.single = isinstance(returned, fx.Node)
        """Whether the pattern returns one value, not a tuple."""
        self.outputs = tuple(nodes_in(returned))
        self.calls = tuple(node for node in graph.nodes if node.op.startswith("call"))
        self._check(returned)
        # The last one depends on most: fewer places can be it than an earlier one.
        self.root = max(self.outputs, key=self.calls.index)
        """The output from which a match is searched backwards: the last one."""

    @classmethod
    def of(cls, function: Any, name: str | None = None, **modules: type[nn.Module]) -> Pattern:
        """Record a function of free variables as a pattern; a `Pattern` is returned unchanged. `modules`: the classes
        of parameters that are modules, which can also be annotated (`conv: nn.Conv2d`). Raises `ArgumentError`."""
        if isinstance(function, Pattern):
            return function
        if not inspect.isfunction(function):
            raise ArgumentError(f"a pattern is a function of free variables, not {function!r}")
        return _traced(function, name or function.__name__, modules)

    def __reduce__(self) -> tuple[Any, ...]:
        function, modules = self.source
        what = f"pattern {self.name}"
        remedy = "define its function at the top level of a module, under a name of its own"
        if function is None:
            raise NotPortable(f"{what} cannot be pickled: it was not recorded from a function\n  to do: {remedy}")
        pickle_or_explain(function, what, remedy)
        return _from_source, (function, self.name, dict(modules))

    def named(self, name: str) -> Pattern:
        """A separate pattern with the same calls and another name."""
        return Pattern(self.graph, name, self.location, self.optional, self.parameters, self.source)

    @functools.cached_property
    def effects_known(self) -> bool:
        """Whether the effects of all its calls are known. (Calls with known effects have none, or the pattern would
        have been refused.)"""
        table = EffectTable()
        return all(table.of(node).known for node in self.calls)

    def __call__(self, *values: Any) -> Any:
        """Compute the outputs from the values of the variables, in order."""
        env: dict[fx.Node, Any] = dict(zip(self.graph.find_nodes(op="placeholder"), values))
        for node in self.calls:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = call_target(node.target, args, kwargs)
        return fx.node.map_arg(self.graph.output_node().args[0], env.__getitem__)

    def values(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The values of the variables, in order, given arguments for the parameters: a module for a module parameter.
        Raises `ArgumentError` for a wrong number of arguments."""
        if len(arguments) != len(self.parameters):
            raise ArgumentError(f"the {self} takes ({', '.join(self.parameters)}), not {len(arguments)} arguments")
        found: list[Any] = []
        for given, attributes in zip(arguments, self.parameters.values()):
            found += [given] if attributes is None else [getattr(given, each) for each in attributes]
        return tuple(found)

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for a function with the parameters of the pattern, given values of the variables. A module
        parameter gets a namespace with the weights and settings as attributes."""
        found = {}
        for name, attributes in self.parameters.items():
            if attributes is None:
                found[name] = values[name]
            else:
                found[name] = SimpleNamespace(**{each: values[f"{name}.{each}"] for each in attributes})
        return found

    def __str__(self) -> str:
        return f"pattern {self.name} ({self.location})"

    __repr__ = __str__

    def __copy__(self) -> Pattern:
        return self

    def __deepcopy__(self, memo: Any) -> Pattern:
        return self

    def _check(self, returned: Any) -> None:
        """Raise `ArgumentError` for a pattern that can never match, or whose matches could not be replaced."""
        if not self.outputs or not all(node.op.startswith("call") for node in self.outputs):
            raise self._refused("returns one of its variables or a constant", "return the result of a call")
        # A constant among the outputs would be in no program.
        if any(not isinstance(item, fx.Node) for item in _leaves(returned)):
            raise self._refused("returns a constant", "return the result of a call")
        effects = EffectTable()
        for node in self.graph.nodes:
            if node.op in ("get_attr", "call_module"):
                raise self._refused("uses a tensor or a module from outside", "make it a parameter")
            does = effects.of(node)
            if Effect.MUTATION in does.kinds:
                raise self._refused(f"writes a tensor ({node.target})", "use the functional op")
            if does.most:
                raise self._refused(f"draws random numbers ({node.target})", "a match would draw others")
        used = self._used()
        for node in self.graph.nodes:
            # What nothing uses leaves no trace in a program, so that anything would match it.
            if node not in used and node.op.startswith("call"):
                raise self._refused(f"does not use the result of {node.target}", "return it, or leave the call out")
            if node not in used and node.op == "placeholder" and str(node.target) not in self.optional:
                raise self._refused(f"does not use its variable {node.target}", "leave it out: it matches nothing")

    def _refused(self, problem: str, remedy: str) -> ArgumentError:
        return ArgumentError(f"the {self} {problem}\n  to do: {remedy}")

    def _used(self) -> set[fx.Node]:
        used, waiting = set(self.outputs), list(self.outputs)
        for node in waiting:
            fresh = [given for given in node.all_input_nodes if given not in used]
            used.update(fresh)
            waiting += fresh
        return used

    def ops_of(self, node: fx.Node) -> frozenset[str]:
        """The ops that one of the pattern's calls can be read as."""
        return frozenset(term.op for term in self.terms.of(node)) | list_readings(op_name(node))

    @functools.cached_property
    def operands(self) -> tuple[frozenset[str], ...]:
        """For each call among the operands of the root: the ops that it can be read as. Calls that return numbers are
        left out, because a program may have the numbers as constants."""
        calls = [node for node in self.root.all_input_nodes if node.op.startswith("call") and kind_of(node) != "host"]
        return tuple(self.ops_of(node) for node in calls)

    @functools.cached_property
    def root_is_plain(self) -> bool:
        """Whether the root can be read as only one op, so that its operands are the operands of a matching call."""
        return len(self.roots) == 1 and not self.roots & EQUIVALENT_OPS

    @functools.cached_property
    def roots(self) -> frozenset[str]:
        """The ops that the root can be read as."""
        return frozenset(term.op for term in self.terms.of(self.root)) or frozenset({op_name(self.root)})


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


# Recording.


class _PatternRecorder(fx.Tracer):
    """Records a function whose arguments are free variables."""

    def __init__(self, function: Any, modules: Mapping[str, type[nn.Module]], name: str) -> None:
        # `math.sqrt(x.shape[-1])` is to be recorded, and not to fail on a proxy.
        super().__init__(autowrap_modules=(math,))
        self.function, self.modules, self.name = function, modules, name
        self.parameters: dict[str, tuple[str, ...] | None] = {}
        self.optional: set[str] = set()

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        args: list[Any] = []
        for parameter in inspect.signature(self.function).parameters.values():
            # fx gives `*args` one proxy, which has no number of values.
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ArgumentError(f"the pattern {self.name} takes {parameter}: name each free variable, by position")
            cls = self.modules.get(parameter.name)
            args.append(self._variable(parameter) if cls is None else self._module(parameter.name, cls))
        return self.function, args

    def _variable(self, parameter: inspect.Parameter) -> Any:
        self.parameters[parameter.name] = None
        if parameter.default is None:
            self.optional.add(parameter.name)
        elif parameter.default is not parameter.empty:
            raise ArgumentError(
                f"the pattern {self.name} has a default for {parameter.name}: a free variable takes the value of the "
                "program\n  to do: write the number into the pattern to require it; the default None marks an optional "
                "argument"
            )
        return self.create_proxy("placeholder", parameter.name, (), {})

    def _module(self, name: str, cls: type[nn.Module]) -> Any:
        """The argument for a module parameter: calling it records a call of the module's op, with a variable for each
        weight and setting."""
        packet = of_module_class(cls).packet
        if packet is None:
            raise ArgumentError(f"the pattern {self.name} takes a {cls.__name__} as {name}, which is not a single op")
        overload = getattr(packet, packet.overloads()[0])
        params = parameters(overload)
        data = next(p.name for p in params if p.name in _DATA)
        # Patterns are of inference: in training the op does something else.
        fixed: dict[str, Any] = {"training": False, "train": False}
        free = [p.name for p in params if p.name != data and p.name not in fixed and p.name not in spellings.IGNORED]
        proxies = {each: self.create_proxy("placeholder", f"{name}.{each}", (), {}) for each in free}
        self.parameters[name] = tuple(free)
        # A module without bias passes None.
        self.optional.update(f"{name}.{each}" for each in free)
        settings = {p.name: fixed.get(p.name, p.name in ("cudnn_enabled", "cudnn_enable")) for p in params}
        given = {p.name: proxies.get(p.name, settings[p.name]) for p in params if p.name != data}

        def called(x: Any) -> Any:
            return self.create_proxy("call_function", overload, (), {data: x, **given})

        return called


def _traced(function: Any, name: str, modules: Mapping[str, type[nn.Module]]) -> Pattern:
    annotated = _modules_of(function)
    unknown = modules.keys() - inspect.signature(function).parameters.keys()
    if unknown:
        raise ArgumentError(f"the pattern {name} has no parameter {sorted(unknown)[0]!r}")
    recorder = _PatternRecorder(function, {**annotated, **modules}, name)
    try:
        graph = recorder.trace(function)
    except ArgumentError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"the pattern {name} ({locate_function(function)}) cannot be recorded: {first_line(error)}\n"
            "  to do: compute only from the free variables, and do not branch on their values"
        ) from error
    # Users know the placeholders' targets, such as `conv.weight`; node names would be mangled.
    known = {each: cls for each, cls in recorder.modules.items() if recorder.parameters.get(each) is not None}
    optional = frozenset(recorder.optional)
    return Pattern(graph, name, locate_function(function), optional, recorder.parameters, (function, known))


def _modules_of(function: Any) -> dict[str, type[nn.Module]]:
    try:
        # With `from __future__ import annotations` the hints are strings.
        hints = inspect.get_annotations(function, eval_str=True)
    except Exception:  # names that only type checkers resolve
        return {}
    return {n: each for n, each in hints.items() if isinstance(each, type) and issubclass(each, nn.Module)}


def _from_source(function: Any, name: str, modules: Mapping[str, type[nn.Module]]) -> Pattern:
    return Pattern.of(function, name, **modules)
