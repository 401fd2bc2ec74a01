"""Programs as ONNX models: whole models, open sizes, names, state, control flow, files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import decomp
from decomp_rules import samples, targets

onnx = pytest.importorskip("onnx", reason="the backend onnx: pip install decomp[onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason="the backend onnx: pip install decomp[onnx]")

from decomp_rules import backends
from decomp_rules.backends import onnx_models
from tests.models import error_over_its_own

chip = backends.onnx


def lowered(model: nn.Module, args: tuple[Any, ...], **how: Any) -> decomp.Lowering:
    return decomp.lower(export(model, args, strict=False, **how), to=chip.target)


def loaded(model: nn.Module, args: tuple[Any, ...], **how: Any) -> Any:
    """The program, whose model passes the checker and strict inference of shapes."""
    found = chip.load(lowered(model, args, **how))
    model_proto = found.function.emitted.model
    onnx.checker.check_model(model_proto, full_check=True)
    onnx.shape_inference.infer_shapes(model_proto, check_type=True, strict_mode=True, data_prop=True)
    return found


def named(values: Any) -> dict[str, list[Any]]:
    """Inputs or outputs by name, with their sizes."""
    return {each.name: [d.dim_param or d.dim_value for d in each.type.tensor_type.shape.dim] for each in values}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt", "resnet", "lstm"])
def test_a_model_is_as_right_as_in_pytorch(name: str) -> None:
    model, args = samples.model(name)
    model.eval()
    assert error_over_its_own(model, loaded(model, args), args) <= 2


def test_functions_of_onnx_may_be_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.ReLU(), nn.Softmax(-1), nn.LogSoftmax(0))
    args = (torch.randn(3, 4),)
    program = export(model, args)
    found = chip.load(decomp.lower(program, to=targets.onnxruntime))
    frozen = onnx_models.model_of(decomp.lower(program, to=chip.target, freeze=True, training=False))
    assert sum(each.dims == [6, 4] for each in frozen.graph.initializer) == 0  # it is carried transposed, once
    kinds = [node.op_type for node in found.function.emitted.model.graph.node]
    assert kinds[-5:] == ["LayerNormalization", "Gelu", "Relu", "Softmax", "LogSoftmax"]
    torch.testing.assert_close(found(*args), model(*args))


def test_batch_and_length_may_be_open() -> None:
    model, tokens = samples.GPT(layers=1).eval(), torch.randint(96, (2, 16))
    sizes = ({0: Dim("batch", min=2, max=64), 1: Dim("length", min=2, max=32)},)
    program = loaded(model, (tokens,), dynamic_shapes=sizes)
    graph = program.function.emitted.model.graph
    (batch, length) = named(graph.input)["tokens"]
    assert isinstance(batch, str) and isinstance(length, str)
    assert list(named(graph.output).values()) == [[batch, length, 96]]
    for shape in ((2, 16), (5, 16), (3, 7)):
        other = torch.randint(96, shape)
        torch.testing.assert_close(program(other), model(other), rtol=1e-5, atol=2e-6)


class Sizes(nn.Module):
    """Arithmetic on sizes, as numbers, in shapes and in results."""

    def forward(self, x: torch.Tensor) -> Any:
        n, m = x.shape
        filled = x.new_full((m // 2, n + 1), n / m)
        return x.sum() * n / m, torch.arange(n * 2) + (n + 1) // 2, filled, n * m, x.view(-1, m), x[1:]


def test_sizes_are_computed_when_the_model_runs() -> None:
    sizes = ({0: Dim("n", min=3, max=20), 1: Dim("m", min=4, max=20)},)
    program = loaded(Sizes(), (torch.randn(4, 6),), dynamic_shapes=sizes)
    for shape in ((4, 6), (5, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), Sizes()(x))


class Controlled(nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
        from torch._higher_order_ops.while_loop import while_loop

        chosen = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))
        return chosen, *while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 2 + i), (i, x))


def test_control_flow_becomes_if_and_loop() -> None:
    program = loaded(Controlled(), (torch.randn(3), torch.tensor(0)))
    kinds = {node.op_type for node in program.function.emitted.model.graph.node}
    assert {"If", "Loop"} <= kinds
    for x, i in ((torch.ones(3), 0), (-torch.ones(3), 7), (torch.zeros(3), 3)):
        torch.testing.assert_close(program(x, torch.tensor(i)), Controlled()(x, torch.tensor(i)))


class Steps(nn.Module):
    """A recurrent cell, a running product, and a function of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        from torch._higher_order_ops.map import map as map_rows
        from torch._higher_order_ops.scan import scan

        def step(carried: Any, row: Any) -> Any:
            new = torch.tanh(self.cell(torch.cat([carried[0], row], -1)))
            return (new, carried[1] * 2), (new * 2, carried[1] + 1)

        carried, rows = scan(step, (h, torch.ones((), dtype=torch.int64)), x, dim=0)
        return *carried, *rows, map_rows(lambda row, h: (row + h).sum(-1), x, h)


def test_loops_over_rows_become_scan() -> None:
    torch.manual_seed(0)
    model, steps = Steps().requires_grad_(False), Dim("steps", min=2, max=50)
    args = torch.randn(5, 3, 4), torch.randn(3, 4)
    program = loaded(model, args, dynamic_shapes=({0: steps}, {}))
    kinds = [node.op_type for node in program.function.emitted.model.graph.node]
    assert kinds.count("Scan") == 2
    for count in (5, 9):
        x = torch.randn(count, 3, 4)
        for found, expected in zip(program(x, args[1]), model(x, args[1]), strict=True):
            torch.testing.assert_close(found, expected)


def test_names_provenance_and_shared_weights() -> None:
    model, args = samples.model("gpt")
    low = lowered(model.eval(), args)
    graph = onnx_models.model_of(low).graph
    assert list(named(graph.input)) == ["tokens"]
    output = low.result.graph.output_node().args[0][0]
    assert list(named(graph.output)) == [output.name]
    weights = {each.name for each in graph.initializer}
    assert "blocks.0.attention.project.weight/transposed" in weights
    assert len(weights & {"tokens.weight", "head.weight"}) == 1
    said = [{each.key: each.value for each in node.metadata_props} for node in graph.node]
    linear = next(each for each in said if each.get("decomp.module") == "blocks.0.attention.project")
    assert linear["decomp.source"] == "linear = aten.linear.default" and linear["decomp.rules"]


def test_what_a_program_writes_is_kept() -> None:
    model = nn.BatchNorm1d(3)
    reference, x = copy.deepcopy(model), torch.randn(5, 3)
    program = loaded(model, (x,))
    graph = program.function.emitted.model.graph
    assert {"running_mean", "running_var", "num_batches_tracked"} < set(named(graph.input))
    assert {"running_mean/updated", "running_var/updated"} < set(named(graph.output))
    for _ in range(2):
        torch.testing.assert_close(program(x), reference(x))
    state = program.state_dict()
    torch.testing.assert_close({key: state[key] for key in reference.state_dict()}, dict(reference.state_dict()))


def test_parameters_may_be_given_other_values() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    program = loaded(model, (x,))
    program(x)
    other = nn.Linear(3, 2)
    program.load_state_dict(other.state_dict())
    torch.testing.assert_close(program(x), other(x))


@pytest.mark.parametrize("external, files", [(1 << 31, ["m.onnx"]), (0, ["m.onnx", "m.onnx.data"])])
def test_a_model_is_saved_and_runs_without_this_package(tmp_path: Path, external: int, files: list[str]) -> None:
    model, args = nn.Sequential(nn.Linear(64, 64), nn.GELU()), (torch.randn(2, 64),)
    for _ in range(2):  # the second takes the place of the first
        onnx_models.save(lowered(model, args), tmp_path / "m.onnx", external)
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    (found,) = session.run(None, {given.name: args[0].numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(*args))


def test_what_cannot_be_a_model_is_refused() -> None:
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(decomp.CaptureError, match="ONNX needs the shapes and dtypes of all values"):
        onnx_models.model_of(decomp.lower(module, to=decomp.Target("any", ["add"])))
    program = export(nn.SiLU(), (torch.randn(3),))
    with pytest.raises(decomp.errors.LoadError, match="aten.silu.* not implemented"):
        onnx_models.model_of(program)
    assert targets.onnx is chip.target


@pytest.mark.parametrize(
    "layer, op_type",
    [
        (nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), "LSTM"),
        (nn.GRU(3, 4, bias=False), "GRU"),
        (nn.RNN(3, 4, nonlinearity="relu"), "RNN"),
    ],
)
def test_recurrent_layers_may_be_kept(layer: nn.Module, op_type: str) -> None:
    x = torch.randn(2, 5, 3)
    lowering = decomp.lower(layer.eval(), to=targets.onnxruntime, args=(x,))
    loaded = backends.get("onnx").load(lowering)
    torch.testing.assert_close(loaded(x), layer(x))
    kinds = [each.op_type for each in loaded.function.emitted.model.graph.node]
    assert kinds.count(op_type) == layer.num_layers and "Sigmoid" not in kinds
    with torch.no_grad():
        layer.weight_hh_l0.mul_(3)
    loaded.load_state_dict({"weight_hh_l0": layer.weight_hh_l0})
    torch.testing.assert_close(loaded(x), layer(x))


def test_a_layer_that_drops_values_is_no_operator() -> None:
    x, layer = torch.randn(2, 5, 3), nn.LSTM(3, 4, 2, dropout=0.5).train()
    lowering = decomp.lower(layer, to=targets.onnx, args=(x,), keep=["lstm"], verify=False)
    with pytest.raises(
        decomp.errors.LoadError, match="not implemented, only for other calls: dropout=0 or evaluation mode"
    ):
        backends.get("onnx").load(lowering)


@pytest.mark.parametrize("target", [targets.onnx, targets.onnxruntime])
def test_a_model_names_its_target(target: decomp.Target) -> None:
    model = onnx_models.model_of(decomp.lower(nn.ReLU(), to=target, args=(torch.ones(2),)))
    assert {each.key: each.value for each in model.metadata_props} == {"decomp.target": target.name}


class Heads(nn.Module):
    """Parts a last dimension into heads, and joins them again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        apart = x.view(batch, length, 4, 2).transpose(1, 2)
        return apart.transpose(1, 2).reshape(batch, length, 8).exp().view(batch * length, 8)


def test_no_sizes_are_computed_where_dimensions_stay() -> None:
    sizes = ({0: Dim("batch", min=2, max=64), 1: Dim("length", min=2, max=32)},)
    model, x = Heads(), torch.randn(3, 5, 8)
    program = loaded(model, (x,), dynamic_shapes=sizes)
    kinds = {node.op_type for node in program.function.emitted.model.graph.node}
    assert kinds <= {"Reshape", "Transpose", "Exp"}
    torch.testing.assert_close(program(x[:2]), model(x[:2]))


def test_empty_batches_are_reshaped_where_they_are_allowed() -> None:
    model, x = Heads(), torch.randn(3, 5, 8)
    program = loaded(model, (x,), dynamic_shapes=({0: Dim("batch", min=0, max=64)},))
    torch.testing.assert_close(program(x), model(x))
    torch.testing.assert_close(program(x[:0]), model(x[:0]))


def test_copies_are_not_operators() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.1), nn.Flatten()).eval()
    x = torch.randn(2, 3)
    program = chip.load(decomp.lower(model, to=targets.onnxruntime, args=(x,), training=False))
    assert [node.op_type for node in program.function.emitted.model.graph.node] == ["Gemm", "Relu"]
    torch.testing.assert_close(program(x), model(x))


def test_linear_layers_of_sequences_are_a_product_and_a_sum() -> None:
    model, x = nn.Linear(3, 4), torch.randn(2, 5, 3)
    model_proto = onnx_models.model_of(decomp.lower(model, to=targets.onnxruntime, args=(x,)))
    assert [node.op_type for node in model_proto.graph.node] == ["MatMul", "Add"]
    assert {each.name: list(each.dims) for each in model_proto.graph.initializer} == {
        "weight/transposed": [3, 4],
        "bias": [4],
    }


def test_edges_have_shapes_with_the_names_of_axes_and_nodes_say_where_they_come_from() -> None:
    model, tokens = samples.GPT(layers=1).eval(), torch.randint(96, (2, 16))
    sizes = ({0: Dim("batch", min=2, max=64), 1: Dim("length", min=2, max=32)},)
    program = export(model, (tokens,), dynamic_shapes=sizes)
    proto = onnx_models.model_of(decomp.lower(program, to=targets.onnxruntime))
    assert named(proto.graph.input) == {"tokens": ["batch", "length"]}
    assert list(named(proto.graph.output).values()) == [["batch", "length", 96]]
    edges = named(proto.graph.value_info)
    assert set(edges) | set(named(proto.graph.output)) == {name for node in proto.graph.node for name in node.output}
    assert ["batch", 4, "length", 8] in edges.values()
    said = [{each.key: each.value for each in node.metadata_props} for node in proto.graph.node]
    attention = next(each for each in said if each.get("decomp.module") == "blocks.0.attention.output")
    *stack, call = attention["namespace"].split("/")
    assert call.startswith("linear_") and call.endswith(": aten.linear.default")
    assert stack[-1] == "blocks.0.attention.output: torch.nn.modules.linear.Linear"
    assert "in forward" in attention["pkg.torch.onnx.stack_trace"]
    assert "'blocks.0.attention.output', 'linear_" in attention["pkg.torch.onnx.name_scopes"]
