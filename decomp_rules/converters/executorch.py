"""ExecuTorch: `executorch.exir.to_edge` of an ExportedProgram, then `to_executorch`, without a delegate; the runtime of
its Python package runs the model with the kernels that it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
import re
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind

from decomp import Converter
from decomp_rules import targets
from decomp_rules.converters import Quiet, StandardError, refuse_data_parts


def convert(program: ExportedProgram) -> Any:
    """The `ExecutorchProgramManager` of a program, which computes with contiguous tensors, whatever strides the program
    has inside: its kernels refuse operands that are laid out in several ways. Its inputs must be contiguous. Raises
    `NotImplementedError` for an op that is not in Core ATen and for parts whose sizes are data, and whatever ExecuTorch
    raises."""
    refuse_data_parts(program, "ExecuTorch")
    with Quiet():
        from executorch.exir import to_edge

        try:
            with _Adapted(program):
                return _made_contiguous(to_edge(program)).to_executorch()
        except Exception as error:  # the class of what the verifier raises is private to PyTorch
            refusal = _refusal(str(error))
            if refusal is None:
                raise
            raise refusal from error


def run(model: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of the method `forward`. Raises `RuntimeError` with the op that fails, and the check in it."""
    with Quiet():
        from executorch.runtime import Runtime

    with StandardError() as said:
        try:
            method = Runtime.get().load_program(model.buffer).load_method("forward")
            results = method.execute(_arguments(model, inputs))
        except RuntimeError as error:
            raise RuntimeError(reason(said.text()) or str(error)) from error
    return [result.clone() for result in results if isinstance(result, torch.Tensor)]


def save(model: Any, path: Path) -> None:
    """Write the `.pte` that the runtime loads."""
    with path.open("wb") as file:
        model.write_to_file(file)


def registry() -> list[str]:
    """The overloads of the ops that the runtime has kernels of, by the names of ops: kernels write to `out`, and views
    are copies, so that of `view` is `view_copy.out`."""
    with Quiet():
        from executorch.runtime import Runtime

    kernels = (name.partition("::") for name in Runtime.get().operator_registry.operator_names)
    ops = {name.partition(".")[0] for namespace, _, name in kernels if namespace == "aten"}
    ops |= {name.removesuffix("_copy") for name in ops}
    packets = [getattr(torch.ops.aten, name) for name in sorted(ops) if hasattr(torch.ops.aten, name)]
    return [str(getattr(packet, overload)) for packet in packets for overload in packet.overloads()]


def _refusal(said: str) -> NotImplementedError | None:
    """The first line of what is said of an op that is not in Core ATen; the rest is about the flags of `to_edge`."""
    found = re.search(r"Operator torch\._ops\.(\S+) is not in Core ATen opset", said)
    return NotImplementedError(f"{found[1]} is not in Core ATen, and `to_edge` takes no other op") if found else None


def _made_contiguous(edge: Any) -> Any:
    """A program of the edge dialect whose copies are contiguous, also where a model, or a decomposition of PyTorch's,
    asks for channels-last ones."""
    from executorch.exir.pass_base import ExportPass

    class Contiguous(ExportPass):
        def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
            order = kwargs.get("dim_order")
            return super().call_operator(op, args, {**kwargs, "dim_order": sorted(order)} if order else kwargs, meta)

    graphs = (each.graph for each in edge.exported_program().graph_module.modules() if isinstance(each, fx.GraphModule))
    orders = (list(node.kwargs.get("dim_order") or ()) for graph in graphs for node in graph.nodes)
    return edge.transform([Contiguous()]) if any(order != sorted(order) for order in orders) else edge


class _Adapted:
    """While a program is converted: its inputs and state are contiguous; it returns its results alone, where ExecuTorch
    (1.5) would return the parameters that it writes to as well; and a tuple of the same tensors in the place of what
    `torch.sort` and others return, a class that ExecuTorch does not write. The runtime returns a list in any case."""

    def __init__(self, program: ExportedProgram) -> None:
        inputs = program.graph.find_nodes(op="placeholder")
        self.nodes = [node for node in inputs if _is_laid_out(node.meta["val"])]
        self.own = [node.meta["val"] for node in self.nodes]
        self.state = [
            (tensors, name, tensor)
            for tensors in (program.state_dict, program.constants)
            for name, tensor in tensors.items()
            if _is_laid_out(tensor)
        ]
        self.output, self.specs = program.graph.output_node(), program.graph_signature.output_specs
        self.outputs, self.every = self.output.args, list(self.specs)
        self.signature = program.module_call_graph[0].signature
        self.returned = self.signature.out_spec

    def __enter__(self) -> None:
        for node, value in zip(self.nodes, self.own):
            node.meta["val"] = torch.empty_like(value, memory_format=torch.contiguous_format)
        for tensors, name, tensor in self.state:
            contiguous = tensor.detach().contiguous()
            tensors[name] = nn.Parameter(contiguous, False) if isinstance(tensor, nn.Parameter) else contiguous
        kept = [place for place, spec in enumerate(self.every) if spec.kind is not OutputKind.PARAMETER_MUTATION]
        self.output.args = (tuple(list(self.outputs[0])[place] for place in kept),)
        self.specs[:] = [self.every[place] for place in kept]
        if any(kind.__module__ == "torch.return_types" for kind in _kinds(self.returned)):
            leaf = _leaf(self.returned)
            self.signature.out_spec = type(self.signature.in_spec)(tuple, None, [leaf] * self.returned.num_leaves)

    def __exit__(self, *error: Any) -> None:
        for node, value in zip(self.nodes, self.own):
            node.meta["val"] = value
        for tensors, name, tensor in self.state:
            tensors[name] = tensor
        self.output.args, self.specs[:] = self.outputs, self.every
        self.signature.out_spec = self.returned


def _is_laid_out(value: Any) -> bool:
    """Whether a value is a tensor with other strides than contiguous ones."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_contiguous()


def _leaf(spec: Any) -> Any:
    """The structure of a single tensor, taken from one that has some."""
    return spec if spec.is_leaf() else _leaf(spec.child(0))


def _kinds(spec: Any) -> Iterator[type]:
    """The classes of the containers in a structure."""
    if not spec.is_leaf():
        yield spec.type
        for child in spec.children():
            yield from _kinds(child)


def _user_inputs(program: ExportedProgram) -> list[InputSpec]:
    return [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]


def _arguments(model: Any, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The arguments of the method: these tensors, and the numbers that the program was exported with."""
    tensors = iter(tensor.detach().contiguous() for tensor in inputs)
    arguments = [spec.arg for spec in _user_inputs(model.exported_program())]
    return [arg.value if isinstance(arg, ConstantArgument) else next(tensors) for arg in arguments]


def reason(said: str) -> str:
    """`aten.add.out fails: 3 input tensors have different dim orders`; empty, if it says nothing of the kind."""
    missing = re.findall(r"Missing operator: \[\d+\] (\S+)", said)
    if missing:
        return f"the runtime has no kernel for {', '.join(map(_as_overload, missing))}"
    failed = re.search(r"in operator (\S+): 0x", said)
    check = re.search(r"Check failed \((.*)\): *(.*)", said)
    why = f": {check[2] or check[1]}" if check else ""
    return f"{_as_overload(failed[1])} fails{why}" if failed else ""


def _as_overload(kernel: str) -> str:
    """`aten::add.out` as `aten.add.out`."""
    return kernel.replace("::", ".", 1)


CONVERTER = Converter(
    "executorch",
    package="executorch",
    at_least="1.5",
    target=targets.get("executorch"),
    convert=convert,
    run=run,
    save=save,
    suffix=".pte",
    registry=registry,
    note="the kernels are ExecuTorch's own, without a delegate",
)
