"""Core AI: `coreai_torch.TorchConverter` of an ExportedProgram. What it writes is compiled and run on Apple's systems
alone: the package for Linux has no compiler for its runtime, so programs are converted here, and not run."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from dataclasses import replace
import io
from pathlib import Path
import re
import tempfile
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from decomp import Converter
from decomp.ops import aten
from decomp_rules import targets
from decomp_rules.converters import Quiet, refuse_number_results, refuse_numbers
from decomp_rules.support.coreai_composites import has_composites, outlined


def convert(program: ExportedProgram) -> Any:
    """The `coreai.authoring.AIProgram` of a program, with the names of its inputs. A program with calls that Core AI
    has no lowering for is decomposed by its own table before, as its documentation asks for. Composite calls become
    graphs of their own, which declare the composite. Raises `NotImplementedError` for inputs and results that are
    numbers, for constants that int32 does not hold and for the indices of pooling, and whatever Core AI raises."""
    refuse_numbers(program, "Core AI")
    refuse_number_results(program, "Core AI")
    _refuse_wide_constants(program)
    with Quiet(), contextlib.redirect_stdout(io.StringIO()):  # its progress
        import coreai_torch

        given, composites = _outlined(program) if has_composites(program) else (prepared(program), {})
        made = coreai_torch.TorchConverter().add_exported_program(given, **composites).to_coreai()
        _refuse_unwritable(made)
    return made


def prepared(program: ExportedProgram) -> ExportedProgram:
    """What Core AI is given: a copy, which it edits, without what it converts wrong or ends the process for."""
    import coreai_torch

    table = {} if _takes_all_calls(program) else coreai_torch.get_decomp_table()
    return _mended(program.run_decompositions(table))


def _outlined(program: ExportedProgram) -> tuple[ExportedProgram, dict[str, Any]]:
    """The same of a program with composites, and the option with which Core AI makes graphs of these."""
    given, graphs = outlined(program, prepared)
    return _mended(given), {"_externalized_exported_programs": graphs}


def _mended(program: ExportedProgram) -> ExportedProgram:
    _refuse_pooled_indices(program)
    # Where nothing has a gradient, `run_decompositions` leaves them.
    for node in program.graph.find_nodes(op="call_function", target=aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        node.graph.erase_node(node)
    return _with_results_apart(_with_products_apart(program))


def _refuse_unwritable(model: Any) -> None:
    """Core AI (0.4.3) checks some operands when it writes a program, and not before."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            save(model, Path(folder) / "model.aimodel")
        except RuntimeError as error:
            found = re.search(r"'aicode\S+' op .*", str(error.__cause__ or error.__context__))
            raise NotImplementedError(f"Core AI does not write it: {found[0] if found else error}") from error


def _refuse_wide_constants(program: ExportedProgram) -> None:
    """Core AI (0.4.3) makes int32 of int64, and cuts off what is beyond."""
    limits = torch.iinfo(torch.int32)
    for name, value in {**program.state_dict, **program.constants}.items():
        if isinstance(value, torch.Tensor) and value.dtype is torch.int64 and value.numel():
            least, most = value.min().item(), value.max().item()
            if least < limits.min or most > limits.max:
                raise NotImplementedError(f"Core AI has int32 alone, and {name} holds {least} to {most}")


def _refuse_pooled_indices(program: ExportedProgram) -> None:
    """Core AI (0.4.3) returns zeros as indices."""
    for node in program.graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default):
        if any(item.args[1] == 1 and item.users for item in node.users):
            raise NotImplementedError(f"{node.target}: Core AI does not compute the indices of {node.name}")


def _takes_all_calls(program: ExportedProgram) -> bool:
    # `run_decompositions` makes an alias of a detached tensor, whatever the table.
    known = {*registry(), str(aten.detach.default)}
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return all(str(call) in known for call in calls if getattr(call, "namespace", "") == "aten")


def _with_products_apart(program: ExportedProgram) -> ExportedProgram:
    """The program, with a batch of one in the place of matrix products for which Core AI (0.4.3) ends the process: it
    moves a reshape of the left operand below the product, and on below an addition, a subtraction or a multiplication,
    whose other operand it leaves in its shape. That is not a condition of the target, as simplification moves views as
    well, after calls were found to be legal."""
    for node in [each for op in _PRODUCTS for each in program.graph.find_nodes(op="call_function", target=op)]:
        if _is_layout(node.args[-2]) and not all(_keeps_product(user, node) for user in node.users):
            node.replace_all_uses_with(_batched(node))
            node.graph.erase_node(node)
    return program


_PRODUCTS = (aten.mm.default, aten.addmm.default)
_ALONE = (aten.relu.default, aten.gelu.default, aten.sigmoid.default, aten.silu.default, aten.tanh.default)
"""Calls of one operand that Core AI has as one op."""


def _is_layout(value: Any) -> bool:
    """Whether Core AI may make a reshape of the call: a view of a tensor, or its copy."""
    return isinstance(value, fx.Node) and (getattr(value.target, "is_view", False) or value.target in _COPIES)


_COPIES = (aten.clone.default, aten._to_copy.default, aten._unsafe_view.default)


def _keeps_product(user: fx.Node, product: fx.Node) -> bool:
    """Whether no call on the elements of a product follows, before another shape is made of it: that of the tensor
    whose rows it multiplies, or one of three or more dimensions."""
    if user.op == "output" or user.target in _ALONE:
        return True
    if user.target is not aten.view.default:
        return False
    shape, rows = list(user.meta["val"].shape), product.args[-2]
    while shape and shape[0] == 1:
        shape = shape[1:]
    source: Any = rows.args[0] if isinstance(rows, fx.Node) and rows.target is aten.view.default else None
    return len(shape) > 2 or source is not None and source.meta["val"].shape[:-1] == user.meta["val"].shape[:-1]


def _batched(node: fx.Node) -> fx.Node:
    """The product, of batches of one."""
    *bias, x, y = node.args
    with node.graph.inserting_before(node):
        made = _made(aten.bmm.default, *(_made(aten.unsqueeze.default, each, 0) for each in (x, y)))
        made = _made(aten.squeeze.dims, made, [0])
        return _made(aten.add.Tensor, _scaled(made, node, "alpha"), _scaled(bias[0], node, "beta")) if bias else made


def _scaled(value: Any, node: fx.Node, name: str) -> fx.Node:
    factor: Any = node.kwargs.get(name, 1)
    return value if factor == 1 else _made(aten.mul.Tensor, value, factor)


def _made(op: Any, *args: Any) -> fx.Node:
    """A new call at the place at which the graph of its first operand inserts calls."""
    made: fx.Node = args[0].graph.call_function(op, args)
    made.meta["val"] = op(*(each.meta["val"] if isinstance(each, fx.Node) else each for each in args))
    return made


def _with_results_apart(program: ExportedProgram) -> ExportedProgram:
    """The program, with its results each a node of its own, and without those that are None: Core AI (0.4.3) finds
    results by the names of nodes, so that it returns one where a node is returned twice, and fails at None."""
    output, specs = program.graph.output_node(), program.graph_signature.output_specs
    kept = [(node, spec) for node, spec in zip(output.args[0], specs) if isinstance(node, fx.Node)]
    results: list[fx.Node] = []
    for node, spec in kept:
        if node in results:
            node = _copied(node, output)
        spec.arg = replace(spec.arg, name=node.name)
        results.append(node)
    specs[:] = [spec for _, spec in kept]
    output.args = (tuple(results),)
    return program


def _copied(node: fx.Node, output: fx.Node) -> fx.Node:
    with output.graph.inserting_before(output):
        copy = output.graph.call_function(aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy


def save(model: Any, path: Path) -> None:
    """Write the `.aimodel`, a folder. One that is there is replaced."""
    model.save_asset(path)


def registry() -> Sequence[str]:
    """The overloads that it has lowerings for."""
    with Quiet():
        from coreai_torch._aten_to_core import _aten_to_core_resolver

    names = (name.split(".") for name in _aten_to_core_resolver if "." in name)  # others are no ops
    return sorted(f"aten.{op}.{each}" for op, each in names if hasattr(getattr(torch.ops.aten, op, None), each))


CONVERTER = Converter(
    "coreai",
    package="coreai-torch",
    at_least="0.4.3",
    target=targets.get("coreai"),
    convert=convert,
    save=save,
    suffix=".aimodel",
    registry=registry,
    composites=True,
    note="Core AI compiles and runs it on Apple's systems alone: it was converted, and not run",
)
