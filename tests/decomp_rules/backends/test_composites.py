"""Composites in files: functions of ONNX, and composites of StableHLO."""

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.derive.nested import NESTED, NESTED_RULES, Nested, queries

OPS = {F.gelu: 3, F.scaled_dot_product_attention: 1}


class Model(nn.Module):
    """Two calls of one signature, one of another, and constants inside of one."""

    def forward(self, x):
        y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return F.gelu(F.gelu(y)) + F.gelu(y, approximate="tanh")


def x(size=4):
    return torch.randn(1, 2, size, 3, generator=torch.Generator().manual_seed(0))


def lowered(to, ops=OPS, **options):
    return decomp.lower(Model(), to=to, args=(x(),), composites=ops, **options)


def test_a_composite_is_an_onnx_function(tmp_path):
    onnx = pytest.importorskip("onnx", reason="the backend onnx: pip install decomp[onnx]")
    pytest.importorskip("onnxruntime", reason="the backend onnx: pip install decomp[onnx]")
    from decomp_rules.backends import onnx_models

    open_sizes = {"dynamic_shapes": ({2: Dim("length", min=2, max=64)},)}
    found, plain = (onnx_models.make().load(lowered(targets.onnx, ops, **open_sizes)) for ops in (OPS, {}))
    model = onnx_models.save(found, tmp_path / "model.onnx")
    functions = {(each.domain, each.name, each.overload): each for each in model.functions}
    assert list(functions) == [
        ("aten", "scaled_dot_product_attention", ""),
        ("aten", "gelu", ""),
        ("aten", "gelu", "1"),
    ]
    assert all(not node.domain for each in model.functions for node in each.node)
    assert [each.value for each in functions["aten", "gelu", ""].metadata_props] == ["3"]
    calls = [node for node in model.graph.node if node.domain]
    assert [(node.op_type, node.overload) for node in calls] == [
        ("scaled_dot_product_attention", ""),
        ("gelu", ""),
        ("gelu", ""),
        ("gelu", "1"),
    ]
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in calls[0].attribute}
    assert attributes == {"dropout_p": 0.0, "is_causal": 1, "enable_gqa": 0}
    for size in (4, 6):
        assert torch.equal(found(x(size)), plain(x(size)))
    assert onnx_models.model_of(found, opset=18).functions[0].opset_import[0].version == 18


def nested(to, ops=NESTED):
    return decomp.lower(Nested(), to=to, args=(queries(),), rules=NESTED_RULES, composites=ops)


def test_onnx_functions_call_onnx_functions():
    pytest.importorskip("onnx", reason="the backend onnx: pip install decomp[onnx]")
    pytest.importorskip("onnxruntime", reason="the backend onnx: pip install decomp[onnx]")
    from decomp_rules.backends import onnx_models

    chip = onnx_models.make()
    found, plain = (chip.load(nested(targets.onnx, ops)) for ops in (NESTED, ()))
    model = onnx_models.model_of(found)
    calls = {(each.name, each.overload): [n.op_type for n in each.node if n.domain] for each in model.functions}
    # The softmax outside and the two inside are calls of one function.
    assert calls == {
        ("softmax", ""): [],
        ("scaled_dot_product_attention", ""): ["softmax"],
        ("scaled_dot_product_attention", "1"): ["softmax"],
    }
    assert [n.op_type for n in model.graph.node if n.domain] == ["scaled_dot_product_attention"] * 2 + ["softmax"]
    torch.testing.assert_close(found(queries()), plain(queries()))


def test_decompositions_of_stablehlo_call_composites():
    pytest.importorskip("jax", reason="the backend needs jax: pip install decomp[stablehlo]")
    from decomp_rules.backends import xla

    text = xla.module_of(nested(targets.stablehlo)).text
    main, *functions = text.split("func.func private ")
    inner = 'stablehlo.composite "aten.softmax"'
    assert main.count('stablehlo.composite "aten.scaled_dot_product_attention"') == 2 and main.count(inner) == 1
    attention = [each for each in functions if each.startswith("@aten.scaled_dot_product_attention")]
    assert [each.count(inner) for each in attention] == [1, 1]
    chip = xla.make()
    torch.testing.assert_close(chip.load(nested(targets.stablehlo))(queries()), Nested()(queries()))


def test_a_composite_is_one_of_stablehlo():
    pytest.importorskip("jax", reason="the backend needs jax: pip install decomp[stablehlo]")
    from decomp_rules.backends import xla

    found, plain = (lowered(targets.stablehlo, ops) for ops in (OPS, {}))
    text = xla.module_of(found).text
    assert text.count('stablehlo.composite "aten.gelu"') == 3 and "version = 3 : i32" in text
    assert 'composite_attributes = {approximate = "tanh"}, decomposition = @aten.gelu' in text
    chip = xla.make()
    torch.testing.assert_close(chip.load(found)(x()), chip.load(plain)(x()))
