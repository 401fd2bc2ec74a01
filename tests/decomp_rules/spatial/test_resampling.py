"""Upsampling and grid sampling agree with the ops and their gradients, for sizes and for factors, up and down."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import backends, targets
from decomp_rules.spatial import grid, resampling
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
RULES = resampling.RULES | grid.RULES
NEAREST = [(f"{name}{dims}d", dims) for name in ("upsample_nearest", "_upsample_nearest_exact") for dims in (1, 2, 3)]
SMOOTH = [("upsample_linear1d", 1), ("upsample_bilinear2d", 2), ("upsample_trilinear3d", 3), ("upsample_bicubic2d", 2)]
OPS = [(name, dims, ()) for name, dims in NEAREST] + [(n, d, (c,)) for n, d in SMOOTH for c in (False, True)]


@pytest.mark.parametrize("factor", [2.0, 1.7, 0.6, 3.3])
@pytest.mark.parametrize("name, dims, corners", OPS)
def test_upsample_by_a_factor(name: str, dims: int, corners: tuple, factor: float) -> None:
    op = getattr(aten, name)
    for dtype in (torch.float32, torch.float64):
        x = sample(2, 3, *[7, 6, 5][:dims], dtype=dtype)
        agrees(RULES, op.vec, x, None, *corners, [factor] * dims)
        sizes = list(op.vec(x, None, *corners, [factor] * dims).shape[2:])
        agrees(RULES, op.default, x, sizes, *corners, *[factor] * dims)
        grad = sample(2, 3, *sizes, dtype=dtype, seed=1)
        backward = getattr(aten, f"{name}_backward").default
        agrees(RULES, backward, grad, sizes, list(x.shape), *corners, *[factor] * dims, gradient=False, tolerance=5e-5)


@pytest.mark.parametrize("name, dims, corners", OPS)
def test_upsample_to_a_size(name: str, dims: int, corners: tuple) -> None:
    x, op = sample(2, 3, *[7, 6, 5][:dims]), getattr(aten, name)
    for sizes in ([2 * n for n in x.shape[2:]], [3 * n - 1 for n in x.shape[2:]], [1] * dims, list(x.shape[2:])):
        agrees(RULES, op.vec, x, sizes, *corners, None)
        backward = getattr(aten, f"{name}_backward").default
        agrees(RULES, backward, sample(2, 3, *sizes), sizes, list(x.shape), *corners, gradient=False, tolerance=5e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "before, after, scales",
    [
        ((3, 4), (3, 6), (1.3, 1.5)),
        ((3, 4), (3, 4), (1.4, 1.2)),
        ((4, 3), (8, 6), (2.2, 2.3)),
        ((3, 4), (3, 140), (1.3, 35.0)),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "upsample_nearest2d",
        "_upsample_nearest_exact2d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_bilinear2d_aa",
    ],
)
def test_a_size_that_stays_or_doubles_goes_by_the_size_where_the_kernel_does(name, before, after, scales, layout):
    x, corners = sample(1, 5, *before).contiguous(memory_format=layout), () if "nearest" in name else (False,)
    agrees(RULES, getattr(aten, name).default, x, list(after), *corners, *scales)
    backward = getattr(aten, f"{name}_backward").default
    agrees(RULES, backward, sample(1, 5, *after), list(after), [1, 5, *before], *corners, *scales, gradient=False)


@pytest.mark.parametrize("dims", [1, 3])
def test_nearest_neighbours_in_one_and_three_dimensions_have_the_gradient_of_the_sizes_alone(dims):
    x, op = sample(1, 5, *[4, 3, 2][:dims]), getattr(aten, f"upsample_nearest{dims}d").default
    agrees(RULES, op, x, [4, 6, 3][:dims], *[1.2, 2.2, 1.5][:dims])
    if dims == 3:
        agrees(RULES, op, x.contiguous(memory_format=torch.channels_last_3d), [4, 6, 3], 1.2, 2.2, 1.5)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("dims, mode", [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1)])
def test_grid_sampler(dims: int, mode: int, padding: int, corners: bool) -> None:
    x = sample(2, 3, *[5, 6, 4][:dims], dtype=torch.float64)
    grid = sample(2, *[4, 3, 5][:dims], dims, dtype=torch.float64, seed=1)
    op = getattr(aten, f"grid_sampler_{dims}d").default
    agrees(RULES, op, x, grid, mode, padding, corners)
    grad = sample(2, 3, *grid.shape[1:-1], dtype=torch.float64, seed=2)
    backward = getattr(aten, f"grid_sampler_{dims}d_backward").default
    agrees(RULES, backward, grad, x, grid, mode, padding, corners, [True, True], gradient=False)


def test_values_outside_the_image_do_not_leak() -> None:
    x = torch.full((1, 1, 2, 2), float("inf"))
    rule = RULES[aten.grid_sampler_2d][0].function
    assert rule(x, torch.full((1, 1, 1, 2), 9.0), 0, 0, False).item() == 0


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("sides", [(5, 6), (1, 3), (4, 5, 6)])
def test_affine_grid(sides: tuple, corners: bool) -> None:
    theta = sample(2, len(sides), len(sides) + 1)
    agrees(RULES, aten.affine_grid_generator.default, theta, [2, 3, *sides], corners)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_interpolate_in_the_torch_dialect(mode: str) -> None:
    x = sample(1, 2, 4, 4)
    graph = torch.fx.symbolic_trace(lambda x: F.interpolate(x, scale_factor=2, mode=mode))
    found = decomp.decompose(graph, {F.interpolate: resampling.interpolate}, args=(x,))
    assert F.interpolate not in [node.target for node in found.graph.nodes]
    torch.testing.assert_close(found(x), F.interpolate(x, scale_factor=2, mode=mode))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"scale_factor": 2},
        {"size": (7, 5)},
        {"scale_factor": 2, "mode": "bilinear"},
        {"size": (7, 9), "mode": "bilinear", "align_corners": True},
        {"scale_factor": 2, "mode": "bicubic"},
    ],
    ids=str,
)
def test_interpolation_reaches_the_targets(kwargs: dict) -> None:
    lowered_agrees(lambda x: F.interpolate(x, **kwargs), sample(1, 2, 4, 4))


def test_grid_sampling_reaches_the_targets() -> None:
    lowered_agrees(lambda x, grid: F.grid_sample(x, grid, align_corners=False), sample(1, 2, 4, 4), sample(1, 3, 3, 2))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_an_image_of_any_size_is_brought_to_one_size(mode: str) -> None:
    class Resize(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(x, size=(6, 5), mode=mode)

    auto = torch.export.Dim.AUTO
    program = torch.export.export(Resize(), (torch.randn(1, 2, 9, 7),), dynamic_shapes=({2: auto, 3: auto},))
    module = decomp.lower(program, to=targets.tinygrad).result.module()
    for shape in ((1, 2, 9, 7), (1, 2, 11, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(module(x), Resize()(x))


@pytest.mark.parametrize(
    "name", ["upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]
)
def test_bytes_are_resampled_to_the_last_bit(name: str) -> None:
    x = torch.randint(256, (2, 3, 9, 11), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for size in ((4, 3), (10, 23), (9, 5)):
        agrees(RULES, getattr(aten, name).default, x, list(size), False, gradient=False)
    lowered_agrees(lambda x: getattr(aten, name)(x, [4, 15], True), x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", [1.2, 1.5, 2.2])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_open_sizes_are_scaled_by_a_fraction(mode: str, scale: float, recomputed: bool) -> None:
    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(x, scale_factor=scale, mode=mode, recompute_scale_factor=recomputed)

    auto = torch.export.Dim.AUTO
    program = torch.export.export(Scale(), (torch.randn(1, 2, 9, 7),), dynamic_shapes=({2: auto, 3: auto},))
    module = decomp.lower(program, to=targets.tinygrad).result.module()
    for shape in ((1, 2, 3, 4), (1, 2, 11, 8)):
        x = torch.randn(shape, requires_grad=True)
        found, expected = module(x), Scale()(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
        grads = [torch.autograd.grad(result.square().sum(), x)[0] for result in (found, expected)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear"])
@pytest.mark.parametrize("open_dims", [(2,), (2, 3)])
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
def test_open_sizes_are_doubled_without_indices(mode: str, open_dims: tuple[int, ...], target) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(x, scale_factor=2, mode=mode)

    x = torch.randn(2, 2, 4, 6)
    shapes = ({dim: torch.export.Dim.AUTO for dim in open_dims},)
    open_, known = (
        decomp.lower(Twice(), to=target, args=(x,), dynamic_shapes=given).result for given in (shapes, None)
    )
    most = len(decomp.calls(known)) + 1
    assert len(decomp.calls(open_)) <= most
    for sizes in ((4, 6), (9, 6), (70, 6), (5, 65)[: len(open_dims)] + (6,) * (2 - len(open_dims))):
        x = torch.randn(2, 2, *sizes, requires_grad=True)
        found, expected = open_(x), Twice()(x)
        torch.testing.assert_close(found, expected)
        grads = [torch.autograd.grad(result.square().sum(), x)[0] for result in (found, expected)]
        torch.testing.assert_close(*grads)


def test_a_size_that_only_the_kernel_of_open_ones_takes_by_its_scale() -> None:
    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(x, scale_factor=2.3, mode="nearest")

    shapes = ({2: torch.export.Dim.AUTO},)
    module = decomp.lower(Scale(), to=targets.tinygrad, args=(torch.randn(2, 2, 4, 3),), dynamic_shapes=shapes).result
    for size in (3, 9, 90):
        x = torch.randn(2, 2, size, 3)
        torch.testing.assert_close(module(x), Scale()(x), rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("factor", [3, 41, 47])
def test_factors_whose_inverse_float32_rounds_down(mode: str, factor: int) -> None:
    x = torch.randn(1, 2, 5)
    lowered_agrees(lambda x: F.interpolate(x, scale_factor=factor, mode=mode), x)
    shape = (1, 2, 5 * factor)
    lowered_agrees(lambda x: F.interpolate(x, size=shape[-1], mode=mode), x)


def test_open_sizes_are_scaled_by_a_fraction_in_an_onnx_model() -> None:
    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(x, scale_factor=1.2, mode="nearest")

    auto = torch.export.Dim.AUTO
    program = torch.export.export(Scale(), (torch.randn(1, 2, 9, 7),), dynamic_shapes=({2: auto, 3: auto},))
    loaded = backends.onnx.load(decomp.lower(program, to=targets.onnxruntime))
    for shape in ((1, 2, 3, 4), (1, 2, 11, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(loaded(x), Scale()(x), rtol=0, atol=0)
