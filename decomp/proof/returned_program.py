"""The program returned to the user, compared with the verified graph: it must have that graph, and the signature, state
and hooks of the source; and the source must still be the program that was lowered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind

from decomp.capture.lowered_module import check_of
from decomp.capture.module_hooks import added_hooks
from decomp.capture.rebuild_exported import WRITES, write_spec
from decomp.graphs.lowered_modules import lowered_modules
from decomp.ir.agreement import shown
from decomp.ir.aliases import attribute
from decomp.ir.module import Module
from decomp.ops import aten
from decomp.proof.correspondence import (
    AnotherSource,
    HooksChanged,
    NotAsRecorded,
    OutputsChanged,
    PlaceholdersChanged,
    StateChanged,
    VerificationError,
    WritesChanged,
)
from decomp.proof.outlined import require_recorded_composites
from decomp.proof.replay import same
from decomp.torch_internals import pytree

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class ReturnedProgram:
    """A program as it is returned to the user."""

    result: Any
    """The module or `ExportedProgram` itself."""
    module: Module
    """The verified graphs that it was built from."""
    exported: ExportedProgram | None
    """The `ExportedProgram` that `result` is, or from which it was unlifted."""
    hooks: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, module: Module, result: Any, exported: ExportedProgram | None) -> ReturnedProgram:
        """The program `result`, with the hooks that it has now."""
        return cls(result, module, exported, cls.hooks_of(result))

    @staticmethod
    def hooks_of(result: Any) -> tuple[tuple[Any, ...], ...]:
        """The hooks of a module by kind, including its input check; empty for anything else."""
        before, *others = (tuple(getattr(result, kind, {}).values()) for kind in _HOOKS)
        check = check_of(result)
        return (before if check is None or check in before else (*before, check), *others)


def check_returned_program(program: ReturnedProgram) -> list[str]:
    """Compare the returned program with the verified graph. Returns a phrase for each fact; raises the
    `VerificationError` of the first that does not hold."""
    if isinstance(program.result, ExportedProgram):
        phrases = [_same_graph(program, program.result.graph), _signature_kept(program, program.result)]
    elif program.exported is not None:
        # First the exported program that it was made from: the module's inputs are compared by its signature.
        phrases = [_signature_kept(program, program.exported), _same_unlifted_graph(program)]
    else:
        phrases = [_same_graph(program, program.result.graph)]
    return [*phrases, *_composites_kept(program), _state_kept(program), _hooks_kept(program)]


def _composites_kept(program: ReturnedProgram) -> Iterator[str]:
    """Composite calls must say of themselves what was recorded, and run the verified bodies."""
    graphs = [*program.module.graphs.values()]
    found = zip(graphs, lowered_modules(graphs, program.result))
    with_bodies = [(own, module) for own, module in found if own.composite is not None or own.at("composites")]
    for own, module in with_bodies:
        if module is None:
            raise NotAsRecorded(f"the body {own.name!r} is missing")
        if own.composite is not None:
            require_same_graph(own.graph, module.graph, NotAsRecorded, f"the body {own.name!r}")
        if own.at("composites") is not None:
            require_recorded_composites(module.graph, own.record("composites"))
    if with_bodies:
        yield "each composite call is as recorded, and runs its verified body"


def _same_graph(program: ReturnedProgram, graph: fx.Graph) -> str:
    """The graph must be the verified one, or a copy of it."""
    # A module that was not rebuilt holds the verified graph itself. A rebuilt one may have other names.
    if graph is not program.module.graph:
        require_same_graph(program.module.graph, graph, NotAsRecorded, "the lowered graph")
    return "the returned program has the verified graph"


def require_same_graph(expected: fx.Graph, found: fx.Graph, error: type[VerificationError], what: str) -> None:
    """Raise `error` unless two graphs have the same nodes in the same order, ignoring names."""
    values: dict[fx.Node, Any] = {}
    ours, nodes = iter(expected.nodes), iter(found.nodes)
    for wanted in ours:
        node = next(nodes, None)
        if node is None:
            raise error(f"{what} ends before {wanted.name!r}", None, wanted)
        values[wanted] = node
        if not _same_node(node, wanted, values):
            raise error(
                f"{what} has {node.name!r} where {wanted.name!r} is expected",
                node,
                wanted,
                expected=_call(wanted),
                found=_call(node),
            )
    extra = next(nodes, None)
    if extra is not None:
        raise error(f"{what} has {extra.name!r} after its last node", extra)


def _same_node(node: fx.Node, wanted: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    # Overloads are unique objects; two with equal names from different libraries are not the same.
    target = node.target is wanted.target or (isinstance(node.target, str) and node.target == wanted.target)
    return (
        node.op == wanted.op
        and target
        and same(node.args, wanted.args, values)
        and same(node.kwargs, wanted.kwargs, values)
    )


def _call(node: fx.Node) -> str:
    return shown((node.target, node.args, node.kwargs))


# exported programs


def _signature_kept(program: ReturnedProgram, lowered: ExportedProgram) -> str:
    """The signature must name the inputs and outputs of the graph, and have the writes of the source."""
    assert program.module.exported is not None
    before, after = program.module.exported.graph_signature, lowered.graph_signature
    added = {name for spec in after.input_specs if (name := spec.target) in program.module.main.constants}
    kept = [_input(spec) for spec in after.input_specs if spec.target not in added]
    if kept != [_input(spec) for spec in before.input_specs]:
        raise PlaceholdersChanged("the input specs of the signature changed", expected=before.input_specs, found=kept)
    # A signature that is off by one would feed each weight to the next op, without any error when shapes agree.
    names = [node.name for node in lowered.graph.nodes if node.op == "placeholder"]
    if names != [spec.arg.name for spec in after.input_specs]:
        raise PlaceholdersChanged("the signature does not name the inputs of the graph", found=names)
    _require_same_kinds(program, before, after)
    _require_outputs_named(lowered)
    return f"a signature of the same {len(kept)} inputs, with every output under its name"


def _input(spec: Any) -> tuple[Any, ...]:
    return spec.kind, type(spec.arg), getattr(spec.arg, "name", None), spec.target, spec.persistent


def _require_same_kinds(program: ReturnedProgram, before: ExportGraphSignature, after: ExportGraphSignature) -> None:
    """The output specs must be those of the source, after those of writes made explicit by lowering."""
    inputs = {spec.arg.name: spec for spec in after.input_specs}
    expected_writes = [write_spec(inputs[write.source.name], write.value) for write in program.module.main.signed]
    expected = [(spec.kind, spec.target) for spec in (*expected_writes, *before.output_specs)]
    found = [(spec.kind, spec.target) for spec in after.output_specs]
    if found != expected:
        raise WritesChanged("the signature writes back other inputs than the source", expected=expected, found=found)


def signatures_agree(source: Any, lowered: Any) -> list[str]:
    """Require that two exported programs have the same state and writes, and that their signatures name their outputs.
    Returns a phrase, or none if one of them has no signature."""
    if not (isinstance(source, ExportedProgram) and isinstance(lowered, ExportedProgram)):
        return []
    # No record here: the source may have been exported by another version, with names of its own.
    _require_outputs_named(lowered)
    before, after = (_state_of_signature(program) for program in (source, lowered))
    if before - after:
        raise PlaceholdersChanged("the signature lacks state of the source", found=sorted(map(str, before - after)))
    written, expected_writes = (_mutations(program) for program in (lowered, source))
    if written - _may_write(source) or expected_writes - written:
        raise WritesChanged("other state is written back", expected=sorted(expected_writes), found=sorted(written))
    return ["the same state, and every output under its name in the signature"]


def _state_of_signature(program: ExportedProgram) -> set[tuple[Any, ...]]:
    return {(spec.kind, spec.target) for spec in program.graph_signature.input_specs if spec.target}


def _mutations(program: ExportedProgram) -> set[str]:
    return {str(spec.target) for spec in program.graph_signature.output_specs if spec.kind in WRITES}


def _may_write(program: ExportedProgram) -> set[str]:
    """The names of the inputs to which a program may write: those of its signature or, if it has in-place calls,
    all."""
    mutable = any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in program.graph.nodes)
    if not mutable:
        return _mutations(program)
    return {str(spec.target or spec.arg.name) for spec in program.graph_signature.input_specs}


def _require_outputs_named(lowered: ExportedProgram) -> None:
    values = lowered.graph.output_node().args[0]
    specs = lowered.graph_signature.output_specs
    if len(values) != len(specs):
        raise OutputsChanged("the signature and the graph have different numbers of outputs", found=len(values))
    for spec, value in zip(specs, values):
        name = value.name if isinstance(value, fx.Node) else ""
        if name != spec.arg.name:
            error = OutputsChanged if spec.kind == OutputKind.USER_OUTPUT else WritesChanged
            problem = f"{spec.kind.name.lower().replace('_', ' ')} {spec.target or ''}".strip()
            raise error(f"the output for the {problem} is another value", value, expected=spec.arg.name, found=name)


# modules made of exported programs


def _same_unlifted_graph(program: ReturnedProgram) -> str:
    """The module's graph must be that of the exported program with its state as attributes: the same calls in the same
    order, the same results, and a `copy_` for every value that is written back."""
    exported, graph = program.exported, program.result.graph
    assert exported is not None
    values = inputs_of_module(exported, graph)
    # Attributes that replace inputs of the exported program are no calls of its graph.
    lifted = set(values.values())
    nodes = (node for node in graph.nodes if node not in lifted and node.op not in ("placeholder", "output"))
    for wanted in exported.graph.nodes:
        if wanted.op in ("placeholder", "output"):
            continue
        node = values[wanted] = next(nodes, None)
        if node is None or not _same_node(node, wanted, values):
            found = None if node is None else _call(node)
            problem = f"the module lacks {wanted.name!r}, or has another call in its place"
            raise NotAsRecorded(problem, node, wanted, expected=_call(wanted), found=found)
    _require_results(exported, graph, values, _require_written(exported, nodes, values))
    return "the module has the verified graph"


def inputs_of_module(exported: ExportedProgram, graph: fx.Graph) -> dict[fx.Node, Any]:
    """For each input of an exported program, the input or attribute of its module."""
    given = iter(graph.find_nodes(op="placeholder"))
    attributes = {str(node.target): node for node in graph.nodes if node.op == "get_attr"}
    inputs = exported.graph.find_nodes(op="placeholder")
    values: dict[fx.Node, Any] = {}
    for node, spec in zip(inputs, exported.graph_signature.input_specs):
        if spec.kind == InputKind.USER_INPUT:
            values[node] = placeholder = next(given, None)
            if placeholder is None or placeholder.target != node.target:
                raise PlaceholdersChanged(
                    f"the module does not take {node.target!r} at this position", placeholder, node
                )
        # An unused weight has no node in the module.
        elif str(spec.target) in attributes:
            values[node] = attributes[str(spec.target)]
    extra = next(given, None)
    if extra is not None:
        raise PlaceholdersChanged(f"the module takes {extra.target!r}, which the source does not", extra)
    return values


def _require_written(
    exported: ExportedProgram, rest: Iterator[fx.Node], values: Mapping[fx.Node, Any]
) -> dict[fx.Node, fx.Node]:
    """After the calls there must be the `copy_` nodes that write back, in order. Returns them by the value that they
    write."""
    by_name = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    by_target = {spec.target: by_name[spec.arg.name] for spec in exported.graph_signature.input_specs if spec.target}
    copies: dict[fx.Node, fx.Node] = {}
    results = exported.graph.output_node().args[0]
    for spec, value in zip(exported.graph_signature.output_specs, results):
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT, OutputKind.TOKEN):
            continue
        place = by_name[spec.target] if spec.kind == OutputKind.USER_INPUT_MUTATION else by_target[spec.target]
        node, wanted = next(rest, None), (values.get(place), values.get(value, value))
        if node is None or node.target is not aten.copy_.default or not same(node.args, wanted):
            raise WritesChanged(f"the new value of {spec.target!r} is not written back", node, place, expected=wanted)
        # The module may return the written tensor itself where the program returns the new value.
        copies.setdefault(value, node)
    extra = next(rest, None)
    if extra is not None:
        raise NotAsRecorded(f"the module has {extra.name!r} after its last node", extra)
    return copies


def _require_results(
    exported: ExportedProgram, graph: fx.Graph, values: Mapping[fx.Node, Any], copies: Mapping[fx.Node, fx.Node]
) -> None:
    """The module must return the results of the exported program, possibly in the containers of the model."""
    specs, results = exported.graph_signature.output_specs, exported.graph.output_node().args[0]
    wanted = [value for spec, value in zip(specs, results) if spec.kind == OutputKind.USER_OUTPUT]
    # None is a result like any other; pytree takes it for an empty container.
    found = pytree.tree_leaves(graph.output_node().args[0], is_leaf=lambda value: value is None)
    if len(wanted) != len(found):
        raise OutputsChanged("the module has another number of results", expected=len(wanted), found=len(found))
    for node, value in zip(found, wanted):
        if not same(node, value, values) and node is not copies.get(value):
            raise OutputsChanged("the module returns another value", node, expected=shown(value), found=shown(node))


# state and hooks


def _state_kept(program: ReturnedProgram) -> str:
    """Parameters, buffers and constants must be the source's own tensors, or equal."""
    compared = 0
    for name, expected, found in _state(program):
        compared += 1
        if not _same_tensor(expected, found):
            raise StateChanged(f"{name!r} is not the source's", expected=_shown(expected), found=_shown(found))
    return f"the {compared} parameters, buffers and constants of the source and of its rules"


def _state(program: ReturnedProgram) -> Iterator[tuple[str, Any, Any]]:
    """Each attribute with its name, expected and actual value."""
    if isinstance(program.result, ExportedProgram):
        yield from _state_of_exported(program, program.result)
        return
    own, source = program.module.main, program.module.exported
    names = {str(node.target) for node in program.result.graph.nodes if node.op in ("get_attr", "call_module")}
    for name in sorted(names):
        # Bodies are modules, verified as graphs of their own.
        if name in own.bodies:
            continue
        expected = own.constants.get(name)
        if expected is None and source is not None:
            expected = {**source.constants, **source.state_dict}.get(name)
        elif expected is None:
            expected = attribute(own.owner, name)
        if expected is not None:
            yield name, expected, attribute(program.result, name)


def _state_of_exported(program: ReturnedProgram, result: ExportedProgram) -> Iterator[tuple[str, Any, Any]]:
    source = program.module.exported
    assert source is not None
    expected: dict[str, Any] = {**source.constants, **source.state_dict, **program.module.main.constants}
    found: dict[str, Any] = {**result.constants, **result.state_dict}
    for name, value in expected.items():
        yield name, value, found.get(name)


def _same_tensor(expected: Any, found: Any) -> bool:
    # Script objects and the like are compared by identity only.
    if expected is found or not isinstance(expected, torch.Tensor):
        return expected is found or not isinstance(found, torch.Tensor)
    if not isinstance(found, torch.Tensor) or expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    if expected.device.type == "meta" or type(expected) not in (torch.Tensor, nn.Parameter, nn.Buffer):
        return True  # fake tensors and other subclasses have no bytes to compare
    # Comparing values of large weights would dominate verification, and state is normally shared.
    same_memory = expected.untyped_storage().data_ptr() == found.untyped_storage().data_ptr()
    if same_memory and expected.stride() == found.stride() and expected.storage_offset() == found.storage_offset():
        return True
    # `equal` is fast and enough but for NaN, which equals itself here.
    return bool(torch.equal(expected, found) or torch.allclose(expected, found, rtol=0, atol=0, equal_nan=True))


def _shown(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _hooks_kept(program: ReturnedProgram) -> str:
    found = ReturnedProgram.hooks_of(program.result)
    for kind, expected, ours in zip(_HOOKS, program.hooks, found):
        lost = [hook for hook in expected if not any(_same_hook(hook, one) for one in ours)]
        if lost:
            raise HooksChanged(f"a hook of {kind} is gone", expected=lost[0], found=f"{len(ours)} hooks")
    require_no_more_hooks(program.result, [hook for kind in program.hooks for hook in kind])
    return f"its {sum(map(len, found))} hooks"


def require_no_more_hooks(result: Any, known: Iterable[Any]) -> None:
    """Raise `HooksChanged` if a module, or a body that it runs, has a hook besides the known ones."""
    # Modules that are kept as leaves have hooks of their own, which are the source's.
    graphs = [(name, inner) for name, inner in _modules(result) if not name or isinstance(inner, fx.GraphModule)]
    for name, module in graphs:
        for hook in added_hooks(module, known if not name else ()):
            owner = repr(name) if name else "the module"
            raise HooksChanged(f"{owner} has {hook}, which its source does not have: what it computes may change")


def _modules(result: Any) -> Iterator[tuple[str, nn.Module]]:
    return result.named_modules() if isinstance(result, nn.Module) else iter(())


def _same_hook(expected: Any, found: Any) -> bool:
    """Whether two hooks are the same; copying a program copies hooks that are objects, and shares functions."""
    # An object of the same class may be a copy; two functions of one class (`function`) are two functions.
    return found is expected or (type(found) is type(expected) and not hasattr(found, "__code__"))


# the source


def require_source(model: Any, given: Module, source: Any, captured: Callable[[Any], Module]) -> str:
    """Check that `source` is the program that was lowered: `model`, captured as `given`. `captured(source)` captures
    `source` as `model` was."""
    if source is model:
        return "the source is the program that was lowered"
    found = captured(source)
    require_same_graph(given.graph, found.graph, AnotherSource, "the source")
    for (name, expected), (_, other) in zip(_read_state(given), _read_state(found)):
        if not _same_tensor(expected, other):
            raise AnotherSource(f"the source has other values of {name!r} than the program that was lowered")
    return "the source has the graph and state of the program that was lowered"


def _read_state(program: Module) -> Iterator[tuple[str, Any]]:
    """The parameters, buffers and constants that the main graph reads, in its order, with their names."""
    exported = program.exported
    if exported is not None:
        kept = {**exported.constants, **exported.state_dict}
        targets = (spec.target for spec in exported.graph_signature.input_specs if spec.target is not None)
        yield from ((target, kept.get(target)) for target in targets)
    for node in program.graph.nodes:
        if node.op == "get_attr":
            yield str(node.target), attribute(program.root, str(node.target))
        elif node.op == "call_module":
            state = program.root.get_submodule(str(node.target)).state_dict()
            yield from ((f"{node.target}.{name}", value) for name, value in state.items())
