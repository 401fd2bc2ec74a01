"""Each legal call of the samples on ONNX: one operator, which the checker takes and ONNX Runtime computes as PyTorch
does, in every dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import decomp
from decomp import Sample
from decomp_rules import samples, targets
from decomp_rules.targets.onnx_functions import CONDITIONS
from tests.forms import Holder

onnx = pytest.importorskip("onnx", reason="the backend onnx: pip install decomp[onnx]")
pytest.importorskip("onnxruntime", reason="the backend onnx: pip install decomp[onnx]")

from decomp_rules import backends

aten = torch.ops.aten
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 100.0, 1.5, -0.5])
NO_NAN = {
    "amax",
    "amin",
    "argmax",
    "argmin",
    "topk",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "grid_sampler_2d",
    "grid_sampler_3d",
    "_prelu_kernel",
    "scatter_reduce",
}
"""Ops for which ONNX does not specify NaN, which ONNX Runtime sometimes ignores."""
BESIDE = {
    "eye": {"ConstantOfShape"},
    "index_put": {"Unsqueeze"},
    "nonzero": {"Transpose"},
    "repeat": {"Unsqueeze"},
    "index": {"Reshape"},
    "pow": {"Reciprocal"},
    "arange": {"Neg"},
    "gather": {"Reshape", "Squeeze"},
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), {"Slice", "Reshape", "Squeeze"}),
}
"""The operators emitted in addition to an op's own, other than casts."""
KERNELS = {
    "layer_norm": "layernormalization",
    "rnn_tanh": "rnn",
    "rnn_relu": "rnn",
    "linear": "gemm matmul",
    "_prelu_kernel": "prelu",
    "clamp": "clip",
    "hardtanh": "clip",
    "pixel_shuffle": "depthtospace",
    "upsample_nearest2d": "resize",
    "upsample_bilinear2d": "resize",
    "group_norm": "instancenormalization",
    "scaled_dot_product_attention": "softmax",
}
"""The operators of ops of `onnxruntime` where their names differ."""
NAMES = sorted({name.split(".")[1] for name in targets.onnx})
OWN = {
    "index": [
        Sample(aten.index.Tensor, (torch.randn(3, 4, 5), indices))
        for indices in (
            [torch.tensor([2, -1])],
            [None, torch.tensor([[0, 3]])],
            [torch.tensor([True, False, True])],
            [None, torch.rand(4, 5) > 0.5],
            [torch.rand(3, 4, 5) > 0.5],
        )
    ],
}


def variants(sample: Sample) -> Iterator[Sample]:
    """A call in other dtypes, on special values, without elements, without dimensions, and with other strides."""
    if not sample.tensors:
        yield sample
        return
    main = sample.tensors[0].dtype
    for dtype in DTYPES:
        if main.is_floating_point or not dtype.is_floating_point:
            yield sample.replaced(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype == main else x)
    if main.is_floating_point:

        def floats(f):
            return sample.replaced(lambda x: f(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x)

        if sample.overload._schema.name.removeprefix("aten::") not in NO_NAN:
            yield floats(lambda x: SPECIAL.repeat(x.numel() // 12 + 1)[: x.numel()].reshape(x.shape))
        yield floats(lambda x: x.mT.contiguous().mT if x.dim() > 1 else x)
        yield floats(lambda x: x.flatten()[0].clone())


def program(sample: Sample) -> tuple[fx.GraphModule, list[torch.Tensor], fx.Node] | None:
    """The call as a program with metadata; None where PyTorch has no shapes for it."""
    graph, mode = fx.Graph(), FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    tensors: list[torch.Tensor] = []

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(value)
        return graph.placeholder(f"x{len(tensors)}")

    try:
        call = graph.call_function(sample.overload, *fx_arguments(sample, placed))
        graph.output(call)
        with mode:
            rest = iter(tensors)
            for node in graph.find_nodes(op="placeholder"):
                node.meta["val"] = mode.from_tensor(next(rest), static_shapes=True)
            fakes = [fx.node.map_arg(given, lambda node: node.meta["val"]) for given in (call.args, call.kwargs)]
            call.meta["val"] = sample.overload(*fakes[0], **fakes[1])
    except (RuntimeError, ValueError, NotImplementedError, IndexError, AssertionError):
        return None
    return fx.GraphModule(nn.Module(), graph), tensors, call


def fx_arguments(sample: Sample, placed: Any) -> tuple[Any, Any]:
    found = sample.replaced(placed)
    return found.args, dict(found.kwargs)


def assert_as_pytorch(sample: Sample, got: Any, wanted: Any) -> None:
    """Equal, or floats within 8 ULP: of each value if the op is pointwise, else of the largest."""
    ours, theirs = ([found] if isinstance(found, torch.Tensor) else list(found) for found in (got, wanted))
    assert [(x.dtype, x.shape) for x in ours] == [(x.dtype, x.shape) for x in theirs]
    if torch.Tag.nondeterministic_seeded in sample.tags:
        return
    if sample.leeway is not None:
        ours, theirs = (list(sample.leeway.results(sample, each)) for each in (ours, theirs))
    for one, other in zip(ours, theirs):
        if not other.is_floating_point():
            assert torch.equal(one, other)
            continue
        eps, finite = torch.finfo(other.dtype).eps, other[other.isfinite()].double().abs()
        largest = float(finite.max()) if len(finite) else 0.0
        how = dict(rtol=8 * eps, atol=0.0 if sample.pointwise else 8 * eps * largest)
        torch.testing.assert_close(one.double(), other.double(), equal_nan=True, **how)


def operators_of(name: str, target: decomp.Target) -> Iterator[list[str]]:
    """The operators, other than casts, that each legal call of an op comes to, which compute what PyTorch does."""
    for sample in (*samples.calls_of(getattr(aten, name)), *OWN.get(name, ())):
        for each in variants(sample):
            try:
                wanted = each.run()
            except (RuntimeError, IndexError, ValueError, NotImplementedError):  # PyTorch does not take it
                continue
            made = program(each)
            if made is None or not legal(made[2], target):
                continue
            module, tensors, _ = made
            loaded = backends.onnx.load(module)
            model = loaded.function.emitted.model
            onnx.checker.check_model(model, full_check=True)
            onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
            assert_as_pytorch(each, loaded(*tensors), wanted)
            yield [node.op_type for node in model.graph.node if node.op_type not in ("Cast", "Identity")]


def legal(call: fx.Node, target: decomp.Target) -> bool:
    (found,) = decomp.calls(call.graph)
    return target.why_illegal(found) is None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_a_legal_call_is_one_operator_and_computes_the_same(name: str) -> None:
    found = list(operators_of(name, targets.onnx))
    assert found, f"no sample of {name} is legal"
    for kinds in found:
        assert sum(kind not in BESIDE.get(name, ()) for kind in kinds) <= 1, kinds


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", sorted({op.partition(".")[0] for op in CONDITIONS}))
def test_what_onnx_runtime_has_kernels_for_computes_the_same(name: str) -> None:
    kernel = KERNELS.get(name, name.replace("_", ""))
    found = list(operators_of(name, targets.onnxruntime))
    assert found, f"no sample of {name} is legal"
    assert all(any(kind.lower() in kernel.split() for kind in kinds) for kinds in found)


@pytest.mark.parametrize(
    "model, x",
    [
        (nn.ReLU(), torch.randint(-3, 3, (2, 3))),
        (nn.GELU(), torch.randn(4).double()),
        (nn.LogSoftmax(0), torch.tensor(2.0)),
        (nn.LSTM(4, 5, proj_size=2), torch.randn(2, 3, 4)),
    ],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_what_onnx_runtime_has_no_kernel_for_is_lowered_further(model: nn.Module, x: torch.Tensor) -> None:
    lowering = decomp.lower(model.eval(), to=targets.onnxruntime, args=(x,), training=False)
    torch.testing.assert_close(backends.onnx.load(lowering)(x), model(x))
    kept = decomp.lower(model, to=targets.onnx, args=(x,), training=False, keep=["relu", "gelu", "log_softmax", "lstm"])
    with pytest.raises(decomp.errors.LoadError, match="not implemented, only for other calls"):
        backends.onnx.load(kept)


def test_every_op_of_the_target_is_implemented() -> None:
    assert backends.onnx.missing() == ()


@pytest.mark.parametrize(
    "function, args",
    [
        (lambda x: x % 3.0, (torch.randn(4),)),
        (lambda i: i << 1, (torch.arange(4),)),
        (lambda x: x + x, (torch.randn(4, dtype=torch.complex64),)),
        (lambda x: x.argmax(), (torch.randn(3, 4),)),
        (lambda x: torch.nn.functional.avg_pool2d(x, 2, divisor_override=3), (torch.randn(1, 2, 4, 4),)),
        (lambda x, i: x[i, i], (torch.randn(3, 4), torch.tensor([0, 2]))),
        (lambda i: i / i, (torch.arange(1, 5),)),
        (lambda x: torch.multinomial(x, 2), (torch.rand(4),)),
        (lambda x: x.sign(), (torch.randn(4),)),
        (lambda x: x.erf(), (torch.randn(4).double(),)),
        (
            lambda x: aten.instance_norm(x, None, None, torch.zeros(2), torch.ones(2), False, 0.1, 1e-5, False),
            (torch.randn(1, 2, 5),),
        ),
    ],
)
def test_what_is_no_operator_of_onnx_is_illegal(function: Any, args: tuple[torch.Tensor, ...]) -> None:
    class Model(nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return function(*args)

    calls = decomp.calls(torch.export.export(Model(), args))
    assert any(targets.onnx.why_illegal(call) is not None for call in calls)


BY_A_RANGE = [
    lambda x: torch.cat([x, x.flip(0)]),
    lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
    lambda x: x.rot90(),
    lambda x: x[torch.arange(-3, 0)],
    lambda x: x[torch.arange(-x.shape[0], 0)],
    lambda x: nn.functional.embedding(torch.arange(x.shape[0] - 1, -1, -1), x),
    lambda x: x.roll(1, 0),
]


@pytest.mark.parametrize("function", BY_A_RANGE)
def test_what_is_taken_by_a_range_counts_from_the_start(function: Any) -> None:
    x = torch.randn(6, 2)
    shapes = (({0: torch.export.Dim("n", min=4, max=64)},),)
    program = torch.export.export(Holder(function), (x,), dynamic_shapes=shapes)
    loaded = backends.get("onnx").load(decomp.lower(program, to=targets.onnxruntime))
    for rows in (x, torch.randn(9, 2)):
        torch.testing.assert_close(loaded(rows), function(rows), rtol=0, atol=0)


SCATTERED = [
    (lambda x, i, u: x.scatter_add(0, i, u), (10, 4), (6, 3), (10, 4)),
    (lambda x, i, u: x.scatter_add(-1, i, u), (10, 4), (6, 3), (7, 5)),
    (lambda x, i, u: x.scatter(0, i[:1], u), (10, 4), (6, 3), (10, 4)),
    (lambda x, i, u: x.scatter_reduce(0, i, u, "amax"), (10, 4), (6, 3), (10, 4)),
    (lambda x, i, u: x.scatter_add(0, i, u), (10, 4), (0, 3), (10, 4)),
    (lambda x, i, u: x.scatter_add(0, i * 0, u), (), (), ()),
    (lambda x, i, u: x.gather(0, i * 0), (), (2,), ()),
    (lambda x, i, u: x.gather(0, i), (4,), (), ()),
    (lambda x, i, u: x.index_fill(0, i[0] - 4, 2.0), (10, 4), (6, 3), ()),
]


@pytest.mark.parametrize("function, size, of_index, of_source", SCATTERED)
def test_sources_may_be_larger_than_the_index_and_single_numbers(function, size, of_index, of_source) -> None:
    args = torch.randn(size), torch.randint(0, 4, of_index), torch.randn(of_source)
    loaded = backends.get("onnx").load(decomp.lower(Holder(function), to=targets.onnxruntime, args=args))
    torch.testing.assert_close(loaded(*args), function(*args))


REDUCED = [("amax", False), ("amin", False), ("prod", False), ("sum", False), ("mean", True), ("mean", False)]


@pytest.mark.parametrize("reduce, include_self", REDUCED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_reductions_by_index_are_not_written_densely(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x, index, source = torch.randn(9, 4) * 9, torch.randint(0, 7, (20, 3)), torch.randn(20, 4) * 9
    model = Holder(lambda x, i, u: x.scatter_reduce(0, i, u, reduce, include_self=include_self))
    args = x.to(dtype), index, source.to(dtype)
    loaded = backends.get("onnx").load(decomp.lower(model, to=targets.onnxruntime, args=args, training=False))
    kinds = {node.op_type for node in loaded.function.emitted.model.graph.node}
    assert "ScatterElements" in kinds and not kinds & {"Equal", "ReduceMax", "ReduceSum"}
    torch.testing.assert_close(loaded(*args), model(*args))


def test_rows_of_which_a_mask_hides_everything_are_zero() -> None:
    attend = Holder(lambda q, k, mask: nn.functional.scaled_dot_product_attention(q, k, k, mask))
    q, k, mask = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 5, 8), torch.rand(2, 1, 6, 5) > 0.5
    mask[0, 0, 1] = False
    for given in (mask, torch.where(mask, 0.3, -torch.inf)):
        loaded = backends.get("onnx").load(decomp.lower(attend, to=targets.onnxruntime, args=(q, k, given)))
        found = loaded(q, k, given)
        torch.testing.assert_close(found, attend(q, k, given))
        assert not found[0, :, 1].any()


def test_a_known_mask_that_hides_no_row_costs_one_addition() -> None:
    mask = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf)
    attend = Holder(lambda q: nn.functional.scaled_dot_product_attention(q, q, q, mask))
    args = (torch.randn(2, 4, 5, 8),)
    loaded = backends.get("onnx").load(decomp.lower(attend, to=targets.onnxruntime, args=args))
    kinds = [node.op_type for node in loaded.function.emitted.model.graph.node]
    assert sorted(kinds) == ["Add", "MatMul", "MatMul", "Mul", "Softmax", "Transpose"]
    torch.testing.assert_close(loaded(*args), attend(*args))


TRANSFORMS = [
    (lambda x: torch.view_as_real(torch.fft.rfft(x)), (3, 48)),
    (lambda x: torch.fft.fftn(x, dim=(1, 2)).real, (2, 6, 128)),
    (lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * 2, dim=1, n=130), (2, 130, 3)),
]


@pytest.mark.parametrize("function, size", TRANSFORMS)
def test_fourier_transforms_are_products_of_matrices(function: Any, size: tuple[int, ...]) -> None:
    x = torch.randn(size)
    lowering = decomp.lower(Holder(function), to=targets.onnxruntime, args=(x,), training=False)
    loaded = backends.get("onnx").load(lowering)
    kinds = {node.op_type for node in loaded.function.emitted.model.graph.node}
    assert "MatMul" in kinds and "ReduceSum" not in kinds
    exact = function(x.double())
    assert float((loaded(x) - exact).norm() / exact.norm()) < 2.5e-7
