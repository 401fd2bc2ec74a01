"""Programs of `convert_pt2e` come down to any target with the arithmetic, as they come and exported, with the bits of
PyTorch's reference; models with weights quantised by torchao are lowered as they are."""

from collections.abc import Iterator
import copy
from typing import Any
import warnings

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import patterns, targets

pytest.importorskip("torchao", reason="torchao is not installed: pip install torchao==0.18.0")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Ignore warnings of torchao and of torch's passes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    return nn.Sequential(*layers).eval()


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 8)).eval()


def converted(model: nn.Module, x: torch.Tensor, dynamic: bool = False) -> torch.fx.GraphModule:
    """The model after `prepare_pt2e`, calibration and `convert_pt2e`."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
    prepared(x)
    return convert_pt2e(prepared)


PROGRAMS = {
    "static": lambda: (converted(network(), x := torch.randn(2, 3, 8, 8)), x),
    "dynamic": lambda: (converted(perceptron(), x := torch.randn(4, 64), dynamic=True), x),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_convert_pt2e_gives_is_lowered_to_the_bit(name: str) -> None:
    program, x = PROGRAMS[name]()
    wanted, text = program(x), str(program.graph)
    for args in (None, (x,)):
        lowering = decomp.lower(program, to=targets.core_aten, args=args, verify="values")
        assert torch.equal(lowering.result(x), wanted) and str(program.graph) == text
        assert not any("quantized" in str(call.op) for call in decomp.calls(lowering.result))
    exported = decomp.lower(torch.export.export(program, (x,)), to=targets.core_aten).result
    assert torch.equal(exported.module()(x), wanted)


class Chained(nn.Module):
    """Convolutions and linear layers without activations between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.next = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.linear, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.linear(self.next(self.conv(x)).flatten(2)[..., :16]))


def test_layers_on_quantised_values_are_found_in_what_convert_pt2e_gives() -> None:
    program = converted(Chained().eval(), x := torch.randn(2, 1, 8, 8))
    names = ("qlinear", "qlinear_quantised", "qconv", "qconv_quantised")
    found = {name: len(list(decomp.match(program, getattr(patterns, name), args=(x,)))) for name in names}
    assert found == {"qlinear": 2, "qlinear_quantised": 1, "qconv": 2, "qconv_quantised": 1}


def test_products_of_another_order_are_all_that_differs_on_a_small_target() -> None:
    program, x = PROGRAMS["static"]()
    found = decomp.lower(program, to=targets.tinygrad, args=(x,), accuracy="exact").result(x)
    torch.testing.assert_close(found, program(x), rtol=1e-6, atol=1e-7)


def test_levels_are_picked_though_the_reference_refuses_float64() -> None:
    program, x = PROGRAMS["dynamic"]()
    found = decomp.lower(program, to=targets.core_aten, args=(x,), max_error=2.0).result(x)
    torch.testing.assert_close(found, program(x))


def test_example_inputs_are_those_of_the_converted_program() -> None:
    program, x = PROGRAMS["static"]()
    with pytest.raises(decomp.CaptureError, match="the program does not run on the example inputs"):
        decomp.lower(program, to=targets.core_aten, args=(torch.randn(5, 3, 8, 8),))


def configurations() -> dict[str, Any]:
    from torchao import quantization as q
    from torchao.quantization.granularity import PerGroup

    return {
        "int8 weights": q.Int8WeightOnlyConfig(),
        "int8 weights and activations": q.Int8DynamicActivationInt8WeightConfig(),
        "int4 weights in groups": q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        "int4 weights, int8 activations": q.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        ),
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    ["int8 weights", "int8 weights and activations", "int4 weights in groups", "int4 weights, int8 activations"],
)
def test_weights_of_torchao(name: str) -> None:
    from torchao.quantization import quantize_

    model, x = perceptron(), torch.randn(4, 64)
    quantize_(model, configurations()[name])
    before = copy.copy(dict(model.state_dict(keep_vars=True)))
    lowered = decomp.lower(model, to=targets.core_aten, args=(x,), verify="values").result
    assert torch.equal(lowered(x), model(x))
    after = dict(model.state_dict(keep_vars=True))
    assert list(after) == list(before) and all(after[key] is before[key] for key in before)
    quantised = dict(lowered.named_buffers())["0.weight_qdata"]
    assert quantised.dtype == torch.int8 and quantised.data_ptr() == model[0].weight.qdata.data_ptr()


def test_an_exported_program_with_such_weights_is_unwrapped_by_torch() -> None:
    from torchao.quantization import quantize_

    model, x = perceptron(), torch.randn(4, 64)
    quantize_(model, configurations()["int8 weights"])
    exported = torch.export.export(model, (x,))
    assert any("qdata" not in name for name in exported.state_dict)
    lowered = decomp.lower(exported, to=targets.core_aten, verify="values").result
    torch.testing.assert_close(lowered.module()(x), model(x))


def blocks_of_4_bits() -> dict[str, Any]:
    from torchao.prototype.mx_formats import inference_workflow as formats
    from torchao.quantization.quantize_.common import KernelPreference

    e2m1, emulated = torch.float4_e2m1fn_x2, KernelPreference.EMULATED
    return {
        "nvfp4": formats.NVFP4WeightOnlyConfig(),
        "mxfp4": formats.MXDynamicActivationMXWeightConfig(
            activation_dtype=e2m1, weight_dtype=e2m1, kernel_preference=emulated
        ),
    }


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_4_bit_floats_in_blocks_have_the_bits_of_the_model(name: str) -> None:
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 32)).bfloat16(), torch.randn(32, 32).bfloat16()
    quantize_(model, blocks_of_4_bits()[name])
    lowered = decomp.lower(model, to=targets.tinygrad, args=(x,), training=False, verify="values").result
    assert torch.equal(lowered(x), model(x))
    packed = dict(lowered.named_buffers())["0.weight_qdata"]
    assert packed.data_ptr() == model[0].weight.qdata.data_ptr() and packed.nbytes == 32 * 32 // 2
