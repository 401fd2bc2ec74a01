"""The backend `stablehlo`: its ops are operations of StableHLO, compute what PyTorch computes, and whole models run."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan

import decomp
from decomp.samples import program_of
from decomp_rules import samples, targets
from tests.models import MODELS, error_over_its_own

jax = pytest.importorskip("jax", reason="the backend needs jax: pip install decomp[stablehlo]")

from jax.extend.mlir import ir
from jax.interpreters import mlir

from decomp_rules import backends
from decomp_rules.backends.xla import module_of
from decomp_rules.backends.xla_operands import SEVERAL

XLA = backends.get("stablehlo")
OPS = tuple(name.removeprefix("aten.") for name in targets.stablehlo)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.int8,
    torch.bool,
    torch.complex64,
)
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, -0.5, 0.5, 1.5, 2.5, -1.0])
FREE = {"broadcast_in_dim", "constant", "convert", "iota", "reshape"}
"""Operations that do not count: promotion, broadcasting, constants."""
NOTHING = {"expand", "unsqueeze", "view.default", "arange.default", "full", "clone", "detach", "_to_copy"}
"""Ops that are such an operation, or none."""
OF_FLOATS = {"ceil", "floor", "round.default", "abs"}
"""Ops that leave integers, or unsigned ones, as they are."""
RANDOM = {"rand.default", "randn.default"}
TOLERANCE = {
    torch.float32: 4e-6,
    torch.float64: 2e-14,
    torch.bfloat16: 2e-2,
    torch.float16: 2e-3,
    torch.complex64: 8e-6,
    torch.complex128: 4e-14,
}


def changed(sample, variant):
    """The sample with its floats in another dtype, or with special values."""
    floats = [x.dtype for x in sample.tensors if x.is_floating_point()]
    if not floats:
        return (
            sample.replaced(lambda leaf: leaf.to(variant) if is_of(leaf, torch.int64) else leaf)
            if (isinstance(variant, torch.dtype) and not variant.is_floating_point and not variant.is_complex)
            else sample
        )
    if variant == "special":
        drawn = [
            special(i, x) if x.dtype == floats[0] and i not in sample.parameters else x
            for i, x in enumerate(sample.tensors)
        ]
        return sample.with_tensors(drawn)
    return sample.replaced(lambda leaf: converted(leaf, variant) if is_of(leaf, floats[0]) else leaf)


def is_of(leaf, dtype):
    return isinstance(leaf, torch.Tensor) and leaf.dtype == dtype


def special(i, x):
    generator = torch.Generator().manual_seed(i + x.numel())
    return SPECIAL.to(x.dtype)[torch.randint(0, len(SPECIAL), x.shape, generator=generator)]


def converted(x, dtype):
    if dtype.is_complex:
        return torch.complex(x, x.flip(0) if x.dim() else x).to(dtype)
    return x > 0 if dtype == torch.bool else x.to(dtype) if dtype.is_floating_point else (x * 3).to(dtype)


def legal_calls(op, variant):
    """The samples of an op that the target has as they are, each with its program and what PyTorch gives."""
    base, _, overload = op.partition(".")
    for sample in samples.calls_of(getattr(torch.ops.aten, base)):
        if overload not in ("", sample.overload._overloadname):
            continue
        sample = changed(sample, variant)
        try:
            expected = sample.run()
        except (RuntimeError, NotImplementedError, IndexError, TypeError):
            continue  # PyTorch has no kernel for it
        program, tensors = program_of(sample)
        plan = decomp.plan(program, to=XLA.target, args=tensors)
        if not (plan.derived or plan.blocked or variant == "special" and op == "convolution"):
            lowered = decomp.lower(program, to=XLA.target, args=tensors, simplify=False)
            yield sample, XLA.load(lowered), tensors, expected


def operations(loaded, tensors):
    """The operations of StableHLO that a program is, in order, those inside of operations left out."""
    values = [XLA.from_torch(x) for x in tensors]
    with jax.enable_x64(True):
        text = loaded.function.jitted(*values).lower(*values).as_text()
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        regions = [region for each in module.body.operations for region in each.regions]
        found = [op.operation.name for region in regions for block in region for op in block.operations]
    return [name.removeprefix("stablehlo.") for name in found if not name.startswith("func.")]


def test_each_op_of_the_target_is_implemented():
    assert XLA.missing() == ()


@pytest.mark.parametrize("variant", [*DTYPES, "special"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.sampled(8)
def test_each_legal_call_is_one_operation_and_computes_what_pytorch_computes(op, variant):
    for sample, loaded, tensors, expected in legal_calls(op, variant):
        counted = [name for name in operations(loaded, tensors) if name not in FREE]
        assert "custom_call" not in counted
        assert len(counted) <= 1 or op.partition(".")[0] in SEVERAL or op in SEVERAL, (sample, counted)
        assert counted or op in NOTHING or op in OF_FLOATS, sample
        check_results(op, sample, listed(loaded(*tensors)), listed(expected))


def check_results(op, sample, found, expected):
    for a, b in zip(expected, found, strict=True):
        assert (b.dtype, b.shape) == (a.dtype, a.shape), sample
        if op not in RANDOM and not is_open(op, a, sample.tensors):
            tolerance = TOLERANCE.get(a.dtype, 0)
            same = torch.isclose(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)
            assert same.all(), f"{sample}: {b[~same]} and not {a[~same]}"


def listed(value):
    return value if isinstance(value, (list, tuple)) else [value]


def is_open(op, result, tensors):
    """Unspecified: the conversion to integers of floats out of range."""
    whole = not result.is_floating_point() and not result.is_complex() and result.dtype != torch.bool
    return op == "_to_copy" and whole and any(x.is_floating_point() and not in_range(x, result) for x in tensors)


def in_range(x, result):
    limits = torch.iinfo(result.dtype)
    return bool(((x >= limits.min) & (x <= limits.max)).all())


def test_shifts_beyond_the_width_and_quotients_are_those_of_pytorch():
    x, n = torch.tensor([-9, 9, 5, -1]), torch.tensor([64, 70, 2, 63])

    class Shifts(nn.Module):
        def forward(self, x, n):
            return x << n, x >> n, torch.div(x, n, rounding_mode="trunc"), torch.div(x, n, rounding_mode="floor"), x % n

    found = XLA.load(decomp.lower(Shifts(), to=XLA.target, args=(x, n)))(x, n)
    assert [a.tolist() for a in found] == [a.tolist() for a in Shifts()(x, n)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt2", "resnet", "lstm"])
def test_models_are_as_exact_as_their_own_float32(name):
    torch.manual_seed(0)
    model, args = MODELS[name]()
    loaded = XLA.load(decomp.lower(model.eval(), to=XLA.target, args=args))
    assert error_over_its_own(model, loaded, args) <= 2


def test_a_module_has_text_and_bytecode_and_runs_at_any_size(tmp_path):
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    batch = torch.export.Dim("batch", max=64)
    program = torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: batch},))
    lowering = decomp.lower(program, to=XLA.target)
    module, loaded = module_of(lowering), XLA.load(lowering)
    assert "// %arg0: parameter 0.weight\n" in module.text and "tensor<?x4xf32>" in module.text
    x = torch.randn(5, 4)
    values = [leaf.value for leaf in loaded.leaves if leaf.kind != "input"] + [XLA.from_torch(x)]
    (found,) = jax.export.deserialize(module.exported.serialize()).call(*values)
    torch.testing.assert_close(XLA.to_torch(found), model(x))
    torch.testing.assert_close(loaded(x), model(x))
    for name in ("model.mlir", "model.mlirbc"):
        module.save(tmp_path / name)
    assert (tmp_path / "model.mlir").read_text() == module.text
    assert (tmp_path / "model.mlirbc").read_bytes()[:4] == b"ML\xefR"
    with pytest.raises(decomp.errors.ArgumentError, match=r"must end in \.mlir \(text\) or \.mlirbc"):
        module.save(tmp_path / "model.txt")


def test_64_bits_are_enabled_for_the_backend_alone():
    doubled = XLA.load(decomp.lower(nn.Softplus(), to=XLA.target, args=(torch.ones(3, dtype=torch.float64),)))
    assert doubled(torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    assert jax.numpy.zeros(1, int).dtype == "int32" and jax.numpy.zeros(1, float).dtype == "float32"


class Loops(nn.Module):
    """A branch, a loop that data ends, and a scan."""

    def forward(self, x, n):
        x = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))
        x, n = torch.while_loop(lambda x, n: n > 0, lambda x, n: (x + x, n - 1), (x, n))
        return x, n, *scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4), x, dim=0)


def test_bodies_of_higher_order_ops_are_regions():
    x, n = torch.rand(3, 4), torch.tensor(3)
    lowering = decomp.lower(torch.export.export(Loops(), (x, n)), to=XLA.target)
    loaded = XLA.load(lowering)
    for given in (x, -x):
        torch.testing.assert_close(loaded(given, n), Loops()(given, n))
    text = module_of(lowering).text
    assert "stablehlo.case" in text and "stablehlo.while" in text


class Twice(nn.Module):
    """A convolution by a kernel, and one by a kernel that is read otherwise, too."""

    def __init__(self):
        super().__init__()
        self.alone, self.shared = nn.Conv2d(3, 4, 2, bias=False), nn.Parameter(torch.randn(5, 4, 2, 2))

    def forward(self, x):
        return torch.conv2d(self.alone(x), self.shared) + self.shared.sum()


def test_kernels_are_transposed_once_and_not_those_that_are_read_otherwise():
    model, x = Twice().eval(), torch.randn(1, 3, 6, 6)
    loaded = backends.stablehlo.load(decomp.lower(model, to=targets.stablehlo, args=(x,), training=False))
    expected = model(x).detach()
    torch.testing.assert_close(loaded(x), expected)
    transposed = [array for _, array in loaded.function._transposed.values()]
    assert [array.shape for array in transposed] == [(2, 2, 3, 4)]
    torch.testing.assert_close(loaded(x), expected)
    assert next(array for _, array in loaded.function._transposed.values()) is transposed[0]

    compiled = loaded.function._transposing[()][0].lower(*_placed(loaded, x)).compile().as_text()
    assert "[2,2,3,4]" in compiled and "f32[4,3,2,2]" not in compiled

    loaded.load_state_dict({"alone.weight": -model.alone.weight.detach()})
    model.alone.weight.data.neg_()
    torch.testing.assert_close(loaded(x), model(x).detach())


def _placed(loaded, x):
    values = [leaf.value for leaf in loaded.leaves[:-1]] + [backends.stablehlo.from_torch(x)]
    transposed = loaded.function._transposed
    return [transposed[place][1] if place in transposed else value for place, value in enumerate(values)]
