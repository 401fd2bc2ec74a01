"""Lowering inside `torch.compile`: once before autograd, so that gradients are those of the lowered ops, and again on
the forward and backward graphs, for the ops that autograd added."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
import contextlib
from dataclasses import dataclass, replace
import functools
from itertools import chain
import re
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from typing_extensions import Unpack

from decomp.capture.listed_inputs import has_lists, listed, taking_lists, with_an_input_for_each
from decomp.costs.fusing import FUSED
from decomp.errors import ArgumentError, pickle_or_explain, warn
from decomp.functionalize.alias_sets import writes_alias_other_values
from decomp.graphs.traced_bodies import compare_with_numbers, lift_constants, prepare_bodies
from decomp.ir.call import metadata
from decomp.ir.effects import switches
from decomp.ir.op_facts import SWITCHED_REGIONS
from decomp.lowering import Lowering, lower
from decomp.ops import aten, prims
from decomp.partitioning.partitioning import partition
from decomp.rules.keywords import BackendOptions
from decomp.rules.options import CHECKS, Options, verb
from decomp.rules.target import Target
from decomp.runtime.composite_regions import composites_as_regions, regions_as_composites
from decomp.runtime.input_layouts import for_every_layout
from decomp.runtime.lowered_graphs import (
    MOST,
    Compilation,
    LoweredGraph,
    first_user_line,
    graphs_table,
    log,
    log_as_requested,
    record_of,
)
from decomp.runtime.output_layouts import with_layouts
from decomp.runtime.shared_outputs import (
    kept_pairs,
    merged_pairs,
    outputs_of,
    separate_merged_outputs,
    shared_pairs,
    view_bases,
)
from decomp.runtime.tables import Backend
from decomp.torch_internals.fakes import FakeTensor
from decomp.torch_internals.modes import DisableAutocast, is_any_autocast_enabled
from decomp.type_conversion.ranges import require_integers_fit

if TYPE_CHECKING:
    from decomp.torch_internals.compiling import Outputs

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""Takes a lowered graph of overloads and its example inputs, and returns a callable."""


@verb("backend", BackendOptions)
def backend(
    to: Target | None = None, *, compiler: str | Compiler | Backend = "eager", **given: Unpack[BackendOptions]
) -> TorchCompileBackend:
    """Return a `TorchCompileBackend`, for `torch.compile`: it lowers each graph to a target and passes it to a
    compiler. Its `graphs` has a record of each, and `print(backend)` shows them as a table.

    `compiler`: "eager" runs the lowered graph in PyTorch; "inductor" compiles it (with the `mode=` and `options=` of
    `torch.compile`); a `Backend` runs it on its own arrays, forward and backward (with `partial=True` in parts, as
    `decomp.partition` does, and PyTorch runs what it cannot); or a function that takes a GraphModule of ATen overloads
    and its example inputs and returns a callable. `to` defaults to the target of the
    `Backend`; `cost` for "inductor" to that of the target's file or `decomp.costs.fused`. The other arguments are those
    of `lower`. Composites are calls in the forward graph, and their gradients in the backward graph, where `gelu` is
    `aten.gelu.backward`; "inductor" knows none, and is refused with `composites`. Raises `ArgumentError` for wrong
    arguments; the compiled model raises what `lower` raises, when it is first called.
    """
    known = compiler in _NAMED if isinstance(compiler, str) else isinstance(compiler, Backend) or callable(compiler)
    if not known:
        raise ArgumentError(f"compiler must be 'eager', 'inductor', a Backend or a function, not {compiler!r}")
    to = compiler.target if to is None and isinstance(compiler, Backend) else to
    CHECKS["to"]("to", to)
    assert to is not None
    to = when_fused(to) if compiler == "inductor" else to
    options = Options.of(given)
    if options.composites and compiler == "inductor":
        raise ArgumentError(
            "compiler='inductor' compiles ops and knows no composites\n"
            "  to do: leave out composites=, or pass a Backend or a function as compiler="
        )
    log_as_requested()
    return TorchCompileBackend(to, options, compiler)


class TorchCompileBackend:
    """A backend for `torch.compile`: pass it as `backend=`. `str(backend)` is a table of the graphs that it lowered.
    `DECOMP_LOG=lowering` in the environment logs a line for each when it is lowered (logger `decomp`)."""

    def __init__(self, target: Target, options: Options, compiler: str | Compiler | Backend) -> None:
        self.__name__ = f"decomp({target.name})"
        self.target, self.options, self.compiler = target, options, compiler
        # Bounded: a model that is compiled again and again must not keep all its graphs.
        self._records: deque[LoweredGraph] = deque(maxlen=MOST)
        self._count = 0

    @property
    def graphs(self) -> tuple[LoweredGraph, ...]:
        """A record of each graph that was lowered, in order; of the last 256, if there were more."""
        return tuple(self._records)

    def __call__(self, module: fx.GraphModule, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
        """Compile one graph of Dynamo. `given`: `mode=` and `options=` of `torch.compile`."""
        from decomp.torch_internals.compiling import current_compilation

        if has_lists(example_inputs):
            flat = self(with_an_input_for_each(module, example_inputs), listed(example_inputs), **given)
            return taking_lists(flat, module)
        number, reason = current_compilation()
        inner, own = _inner_compiler(self.compiler, given), self.compiler in _NAMED
        if isinstance(self.compiler, Backend) and self.options.partial:
            # Without `partial` for the inner lowering, since `partition`
            # has already given PyTorch what the chip cannot run.
            inner = functools.partial(_in_parts, self.compiler, self.target, replace(self.options, partial=False))
        compilation = _Compilation(
            self.target,
            self.options,
            inner,
            Compilation(number, first_user_line(module), reason),
            self._keep,
            self.compiler == "inductor",
            keeps_views=own,
        )
        inputs = [_name_of(node) for node in module.graph.find_nodes(op="placeholder")]
        found = compilation.of(module, list(example_inputs))
        narrow = self.options.narrow
        return _check_integers_fit(found, inputs, self.target.narrowed().narrower) if narrow else found

    def _keep(self, record: LoweredGraph) -> None:
        self._records.append(record)
        self._count += 1
        log(record)

    def __str__(self) -> str:
        return graphs_table(self._title, self.graphs, self._count - len(self._records))

    def __repr__(self) -> str:
        return f"<{self._title}: the graphs that it lowered are .graphs, a table of them print(backend)>"

    @property
    def _title(self) -> str:
        compiler = self.compiler
        name = compiler if isinstance(compiler, str) else getattr(compiler, "name", "a function")
        return f"{self.__name__}, run by {name}"

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.target, self.options, self.compiler
        pickle_or_explain(given, "a backend for torch.compile", "make it in the other process, by decomp.backend(...)")
        return TorchCompileBackend, given


def when_fused(target: Target) -> Target:
    """The target with the costs of a fusing compiler, `decomp.costs.fused`, unless its file has costs of its own."""
    return target if target.costs is not None else target.with_costs(FUSED)


@dataclass(frozen=True)
class _Compilation:
    """Compiles one graph of Dynamo."""

    target: Target
    options: Options
    inner: Callable[[fx.GraphModule, Sequence[Any], bool], Callable[..., Any]]
    """Runs or compiles a lowered graph, given its inputs and whether it is a backward graph."""
    compilation: Compilation
    keep: Callable[[LoweredGraph], None]
    """Takes the record of each lowered graph."""
    recomputes: bool = False
    """Whether the backward graph recomputes values where that is cheaper than saving them, as Inductor estimates it."""
    keeps_views: bool = True
    """Whether views of a lowered graph are still views when it runs."""

    def of(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        # Deferred: these imports take seconds, and only torch.compile needs them.
        from decomp.capture.dynamo import NotInOverloads, trace_to_overloads

        started = time.perf_counter()
        try:
            spelled = trace_to_overloads(module, inputs)
        except NotInOverloads as reason:
            if _gradient_is_wanted(inputs) or not reason.foreseen:
                _warn_of_gradients(str(reason))
            return self._by_autograd(module, inputs, may_write_shared=True, behind=str(reason))
        traced = time.perf_counter() - started
        if writes_alias_other_values(spelled.graph, spelled, inputs):
            if _gradient_is_wanted(inputs):
                _warn_of_gradients(_WRITES_SHARED)
            # AOTAutograd handles memory that inputs and outputs share.
            return self._by_autograd(module, inputs, may_write_shared=True, behind=_WRITES_SHARED)
        # Partial, because AOTAutograd decomposes composite ops: a call blocked before it can be legal after it.
        lowering = self._lower(spelled, None if _may_be_trained(spelled, inputs) else False, partial=True)
        before_autograd: fx.GraphModule = lowering.result
        if shared_pairs(spelled.graph) - kept_pairs(before_autograd.graph):
            if _gradient_is_wanted(inputs):
                _warn_of_gradients(_RETURNS_VIEW)
            # AOTAutograd replays such views on the inputs.
            return self._by_autograd(module, inputs, behind=_RETURNS_VIEW)
        self.keep(record_of(lowering, self.compilation, "before autograd", trace=traced))
        # Simplification may merge two outputs into one node, and the program would return one tensor twice.
        separate_merged_outputs(spelled.graph, before_autograd.graph)
        # The graph already has the casts of autocast: under autocast the lowered calls would be cast a second time.
        casts = is_any_autocast_enabled()
        prepare_bodies(before_autograd)
        compare_with_numbers(before_autograd)
        composites_as_regions(before_autograd, _may_be_trained(spelled, inputs))
        with DisableAutocast():
            result = self._by_autograd(before_autograd, _replace_bases_by_fakes(module, inputs))
        return _without_autocast(result) if casts else result

    def _by_autograd(
        self, module: fx.GraphModule, inputs: list[Any], may_write_shared: bool = False, behind: str = ""
    ) -> Callable[..., Any]:
        """A graph run by AOTAutograd, which lowers and compiles its forward and its backward."""
        from decomp.torch_internals import compiling

        compiled = functools.partial(self._compiled, any_layout=may_write_shared, behind=behind)

        def compiled_backward(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            run: Callable[..., Any] = torch.compiler.disable(compiled(module, inputs, is_backward=True))
            return run

        found: Callable[..., Any] = compiling.aot_module_simplified(
            module,
            inputs,
            fw_compiler=functools.partial(compiled, is_backward=False),
            # It is compiled at its first call, when Dynamo may be tracing frames: those of this compiler, too.
            bw_compiler=torch.compiler.disable(compiled_backward),
            partition_fn=compiling.recomputing_partition if self.recomputes else compiling.default_partition,
            keep_inference_input_mutations=True,  # mutations outside the graph lose gradients (torch 2.13)
        )
        return found

    def _compiled(
        self, module: fx.GraphModule, inputs: Sequence[Any], *, is_backward: bool, any_layout: bool, behind: str
    ) -> Callable[..., Any]:
        """A graph of AOTAutograd, lowered and compiled; `any_layout`: the strides of some inputs are not guarded;
        `behind`: why it was not lowered before autograd."""
        from decomp.torch_internals.compiling import Outputs, donate_nothing, outputs_as_traced

        donate_nothing()
        outputs = Outputs() if is_backward else outputs_as_traced()

        def made(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return self._with_outputs(module, inputs, outputs, is_backward, behind)

        return for_every_layout(made, module, inputs) if any_layout else made(module, inputs)

    def _with_outputs(
        self, module: fx.GraphModule, inputs: Sequence[Any], outputs: Outputs, is_backward: bool, behind: str
    ) -> Callable[..., Any]:
        graph, count = module.graph, len(outputs_of(module.graph))
        # After autograd nothing requires a gradient any more.
        lowering = self._lower(regions_as_composites(_without_prims(module)), training=False)
        lowered: fx.GraphModule = lowering.result
        kept = kept_pairs(lowered.graph) - merged_pairs(graph, lowered.graph) if self.keeps_views else frozenset()
        shown = view_bases(graph, outputs.results.intersection(chain(*(shared_pairs(graph) - kept))))
        if len(outputs_of(graph)) > count:
            # Outputs were added after lowering, so it is lowered once more with these.
            lowering = self._lower(module, training=False)
        record = record_of(lowering, self.compilation, "backward" if is_backward else "forward", behind_autograd=behind)
        started = time.perf_counter()
        found = record.counting(self.inner(lowering.result, inputs, is_backward))
        record.seconds["compile"] = time.perf_counter() - started
        self.keep(record)
        return found if is_backward else with_layouts(found, graph, outputs.views, outputs.whole, shown, count)

    def _lower(self, module: fx.GraphModule, training: bool | None, partial: bool = False) -> Lowering:
        options = replace(self.options, partial=partial or self.options.partial, training=training)
        lowering = lower(module, to=self.target, options=options)
        assert isinstance(lowering.result, fx.GraphModule)
        return lowering


def _replace_bases_by_fakes(module: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with Dynamo's fake tensor in place of each input that is the base of another input. AOTAutograd would
    give the base the symbolic sizes with which its view was made, and no guard can use these (torch 2.13). Only for
    programs that do not write to memory shared by inputs."""
    # AOTAutograd refers to a base as `tensor._base`, whose guards came with
    # https://github.com/pytorch/pytorch/pull/139554.
    bases = {id(value._base) for value in inputs if isinstance(value, torch.Tensor) and value._base is not None}
    fakes = [metadata(node) for node in module.graph.find_nodes(op="placeholder")]
    pairs = zip(inputs, fakes)
    return [fake if id(value) in bases and isinstance(fake, FakeTensor) else value for value, fake in pairs]


def _gradient_is_wanted(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)


def _may_be_trained(module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a result may have a gradient, also through a region of the graph that enables gradients."""
    return _gradient_is_wanted(inputs) or any(
        switches(node) or getattr(node.target, "__name__", "") in SWITCHED_REGIONS for node in module.graph.nodes
    )


def _warn_of_gradients(why: str) -> None:
    warn(
        "decomp.backend lowers a graph only after autograd, so its gradients are lowered from those of PyTorch's ops "
        f"and not derived from the rules: {why}"
    )


_WRITES_SHARED = "it writes to an input that shares its memory with another input or an output"
_RETURNS_VIEW = "an output is a view, of an input or another output, that the target does not have"


def _check_integers_fit(
    function: Callable[..., Any], names: Sequence[str], dtypes: Mapping[Any, Any]
) -> Callable[..., Any]:
    """Wraps a compiled graph in a check that its integer inputs fit their narrow dtypes. AOTAutograd traces the program
    without the check in its forward method."""

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        require_integers_fit(dict(zip(names, args)), dtypes)
        return function(*args)

    return called


def _name_of(node: fx.Node) -> str:
    """The argument's name in the user's program, from the name of an input of Dynamo's graph."""
    # Dynamo names inputs `L_x_` or, for attributes and elements, `L_self_modules_…`; the name is for messages only.
    return re.sub(r"^[Ll]_(.*?)_?$", r"\1", str(node.target))


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any) -> Any:
        with DisableAutocast():
            return function(*args)

    return called


def _without_prims(module: fx.GraphModule) -> fx.GraphModule:
    """Replaces prims by ATen ops: AOTAutograd casts symbolic Python numbers by a prim, and keeps Dynamo's prim of a
    fused multiply-add (torch 2.13)."""
    from decomp.capture.dynamo import is_fused_product

    for node in list(module.graph.nodes):
        if is_fused_product(node.target):
            _spell_product(node)
        if node.target is prims.convert_element_type.default:
            node.target = aten._to_copy.default
            node.args, node.kwargs = node.args[:1], {"dtype": node.args[1]}
    return module


def _spell_product(node: fx.Node) -> None:
    """Splits the call a · b + c into two calls."""
    # The value of the product for the metadata: under fake tensors this computes shapes only.
    a, b = (each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args[:2])
    with node.graph.inserting_before(node):
        product = node.graph.call_function(aten.mul.Tensor, node.args[:2])
    product.meta = {**node.meta, "val": a * b}
    node.target, node.args = aten.add.Tensor, (product, node.args[2])


_NAMED = ("eager", "inductor")


def _inner_compiler(
    compiler: str | Compiler | Backend, given: Mapping[str, Any]
) -> Callable[[fx.GraphModule, Sequence[Any], bool], Callable[..., Any]]:
    if compiler == "inductor":
        return _inductor(_inductor_config(given))
    if given:
        names = " and ".join(f"{name}=" for name in given)
        raise ArgumentError(
            f"torch.compile was given {names}, which are for Inductor; this backend runs graphs with {compiler!r}\n"
            "  to do: leave them out, or use decomp.backend(..., compiler='inductor')"
        )
    if isinstance(compiler, Backend):
        return lambda module, inputs, is_backward: _boxed(compiler.load(module))
    if callable(compiler):
        return lambda module, inputs, is_backward: _boxed(compiler(module, inputs))
    return lambda module, inputs, is_backward: _boxed(module.forward)


def _in_parts(
    backend: Backend, to: Target, options: Options, module: fx.GraphModule, inputs: Sequence[Any], is_backward: bool
) -> Callable[..., Any]:
    """A graph of which a backend runs what it can, and PyTorch the rest."""
    return _boxed(backend.load(partition(module, to=to, options=options)))


def _boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    # Graphs that Inductor compiles take their inputs as one list, and so do all others, so that wrappers need one form.
    from decomp.torch_internals.compiling import make_boxed_func

    found: Callable[..., Any] = make_boxed_func(function)
    return found


def _inductor_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Inductor's configuration for `mode=` and `options=`."""
    from decomp.torch_internals.compiling import list_mode_options, list_options

    unknown = sorted(set(given) - {"mode", "options"})
    if unknown:
        raise ArgumentError(f"torch.compile was given {unknown[0]}=, which this backend does not take; leave it out")
    # `torch.compile` itself checks options for its own backend "inductor" only.
    known = {option.replace("-", "_") for option in list_options()}
    config: dict[str, Any] = {}
    if given.get("mode") is not None:
        modes = list_mode_options()
        if given["mode"] not in modes:
            raise ArgumentError(f"mode must be one of {', '.join(map(repr, modes))}, not {given['mode']!r}")
        config.update(modes[given["mode"]])
    for name, value in (given.get("options") or {}).items():
        if name.replace("-", "_") not in known:
            raise ArgumentError(f"Inductor has no option {name!r}; torch._inductor.list_options() lists its options")
        config[name.replace("-", "_")] = value
    return config


def _inductor(config: dict[str, Any]) -> Callable[[fx.GraphModule, Sequence[Any], bool], Callable[..., Any]]:
    def compiled(module: fx.GraphModule, inputs: Sequence[Any], is_backward: bool) -> Callable[..., Any]:
        from decomp.torch_internals.compiling import compile_fx_inner, compiler_config, inductor_config

        # Inductor's cache key ignores whether AOTAutograd donates buffers to the graph; here it never does.
        tag = f"{compiler_config.cache_key_tag}, nothing donated"
        with inductor_config.patch(config), compiler_config.patch(cache_key_tag=tag):
            found: Callable[..., Any] = compile_fx_inner(
                _decompose_for_inductor(module, inputs), list(inputs), is_backward=is_backward
            )
        return found

    return compiled


def _decompose_for_inductor(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """Decomposes the ops for which Inductor has no kernel, but only a decomposition that it expects to be applied
    before."""
    from decomp.torch_internals.compiling import select_decomp_table
    from decomp.torch_internals.fakes import detect_fake_mode
    from decomp.torch_internals.graphs import make_fx

    graphs = [inner for inner in module.modules() if isinstance(inner, fx.GraphModule)]
    for inner in graphs:
        lift_constants(inner)
        _spell_comparisons_of_masks(inner)
    table = select_decomp_table()
    # Most lowered graphs have no such op, and need not be traced once more.
    if not any(node.target in table for inner in graphs for node in inner.graph.nodes):
        return module
    mode = detect_fake_mode(inputs)
    traced = make_fx(fx.Interpreter(module).run, decomposition_table=table, _allow_non_fake_inputs=True)
    with torch.no_grad(), mode or contextlib.nullcontext():
        # PyTorch gives inputs that are saved from two calls of one compile region the same fake tensor (torch 2.13),
        # and a tracer knows a tensor by its identity.
        first = {id(value): place for place, value in reversed(list(enumerate(inputs)))}
        return traced(*(value if first[id(value)] == place else _other(value) for place, value in enumerate(inputs)))


def _other(value: Any) -> Any:
    """Another object for the same tensor."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _spell_comparisons_of_masks(module: fx.GraphModule) -> None:
    """Rewrites `ne` of masks as `logical_xor` or `logical_not`: Inductor's bounds analysis fails on comparisons of
    Booleans with known bounds (torch 2.13)."""
    # `ValueRanges.ne` orders Booleans, which sympy refuses: https://github.com/pytorch/pytorch/pull/191886
    for node in module.graph.nodes:
        if node.target not in (aten.ne.Scalar, aten.ne.Tensor) or not all(map(_is_mask, node.args)):
            continue
        mask, other = node.args
        if other is True:
            node.target, node.args = aten.logical_not.default, (mask,)
        elif isinstance(other, fx.Node):
            node.target = aten.logical_xor.default
    module.recompile()


def _is_mask(operand: Any) -> bool:
    value = metadata(operand) if isinstance(operand, fx.Node) else operand
    return isinstance(value, bool) or isinstance(value, torch.Tensor) and value.dtype == torch.bool
