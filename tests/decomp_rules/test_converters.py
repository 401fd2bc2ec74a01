"""The converters that ship: what a runtime says of a failure, in one line."""

import os
import sys

import pytest
import torch
from torch import nn

from decomp_rules import converters
from decomp_rules.converters import executorch, tvm
from decomp_rules.support.mlir import mlir_reason
from tests.installed import converter

FAILED = """\
[tensor_util.cpp:130] Check failed (all_contiguous || all_channels_last): 3 input tensors have different dim orders
[op_add.cpp:44] Check failed (tensors_have_same_dim_order(a, b, out)):
[method.cpp:1483] KernelCall failed at instruction 0:2 in operator aten::add.out: 0x12
[method.cpp:1493] arg 0 with type id 1
"""
UNEXPLAINED = FAILED.partition("\n")[2]
MISSING = """[operator_registry.cpp:277] kernel 'aten::sort.values' not found.
[method.cpp:822] Missing operator: [0] aten::sort.values
[method.cpp:822] Missing operator: [3] aten::erfinv.out
[method.cpp:1128] There are 2 instructions don't have corresponding operator registered. See logs for details
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (FAILED, "aten.add.out fails: 3 input tensors have different dim orders"),
        (UNEXPLAINED, "aten.add.out fails: tensors_have_same_dim_order(a, b, out)"),
        (FAILED.splitlines()[2], "aten.add.out fails"),
        (MISSING, "the runtime has no kernel for aten.sort.values, aten.erfinv.out"),
        ("[program.cpp:100] Verification failed", ""),
    ],
)
def test_executorch_is_quoted_by_the_kernel_that_fails_and_the_first_check_in_it(said, reason):
    assert executorch.reason(said) == reason


ILLEGAL = """\
loc("model.py":3:0): error: failed to legalize operation 'torch.operator' that was explicitly marked illegal: \
%0 = "torch.operator"(%arg0) <{name = "torch.aten.lgamma"}> : (!torch.vtensor<[3],f32>) -> !torch.vtensor<[3],f32>
"""
NAMED = """\
loc("model.py":3:0): error: failed to legalize operation 'torch.constant.int': %1 = "torch.constant.int"()
loc("model.py":4:0): error: failed to legalize operation 'torch.aten.median.dim': %2:2 = "torch.aten.median.dim"(%1)
"""
UNNAMED = "loc(unknown): error: 'math.absf' op operand #0 must be floating-point-like, but got 'complex<f32>'\n"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (ILLEGAL, "aten.lgamma.default: failed to legalize operation 'torch.operator'"),
        (NAMED, "aten.median.dim: failed to legalize operation 'torch.constant.int'"),
        (UNNAMED, "'math.absf' op operand #0 must be floating-point-like, but got 'complex<f32>'"),
        ("warning: no target\n", ""),
    ],
)
def test_mlir_is_quoted_by_its_first_error_and_the_overload_that_its_errors_name(said, reason):
    assert mlir_reason(said) == reason


def test_what_libraries_and_python_write_to_standard_error_is_captured(capfd):
    with converters.StandardError() as said:
        os.write(2, b"from a library\n")
        print("from Python", file=sys.stderr)
        assert sorted(said.text().splitlines()) == ["from Python", "from a library"]
    print("after", file=sys.stderr)
    assert capfd.readouterr().err == "after\n"


def test_every_converter_that_ships_has_a_target_of_its_name():
    for name in converters.names():
        assert converters.get(name).target.name == name


class Scaled(nn.Module):
    def forward(self, x, factor):
        return x * factor


def test_a_dynamic_size_is_refused_with_its_input_and_a_remedy():
    x, rows = torch.randn(3, 4), torch.export.Dim("rows")
    static, dynamic = (torch.export.export(Scaled(), (x, x), dynamic_shapes=each) for each in (None, [{0: rows}] * 2))
    converters.refuse_dynamic_sizes(static, "Mine")
    with pytest.raises(NotImplementedError) as raised:
        converters.refuse_dynamic_sizes(dynamic, "Mine")
    size = next(node for node in dynamic.graph.nodes if node.op == "placeholder").meta["val"].shape[0]
    assert str(raised.value) == (
        f"Mine is given static sizes alone, and x has ['{size}', '4']: "
        "export without dynamic_shapes=, once for each size"
    )


def test_an_input_that_is_a_number_is_refused_by_its_name():
    converters.refuse_numbers(torch.export.export(Scaled(), (torch.ones(2), torch.ones(2))), "Mine")
    with pytest.raises(NotImplementedError) as raised:
        converters.refuse_numbers(torch.export.export(Scaled(), (torch.ones(2), 3)), "Mine")
    assert str(raised.value) == "Mine takes tensors alone, and the input factor is 3"


class Extremes(nn.Module):
    def forward(self, x):
        return x.amax(-1), x.amin(-1, True), x.amax((0, 1))


class Promoting(nn.Module):
    """Operands of several dtypes: numbers and tensors beside those of another kind, one without dimensions."""

    def forward(self, i, x, short, number):
        compared = i > 1.5, i == 5.5, short <= x, i != number
        cut = torch.div(i, 2, rounding_mode="trunc"), torch.div(x, 2, rounding_mode="trunc"), i // 2, i // 2.5, x // 2
        results = i * 2.5, 2.5 - i, 2.5 / i, i + x, x * short, i % 2.5, i**0.5, short * number, torch.maximum(i, x)
        chosen = torch.where(i > 5, x, i), torch.where(compared[0], compared[0], x)
        return *compared, *cut, *results, *chosen, torch.cat([i, x]), i.prod(dtype=torch.float32)


def test_tvm_computes_in_the_dtype_that_operands_of_several_are_promoted_to():
    converter("tvm")
    given = torch.tensor([7, 5, 9]), torch.tensor([-7.5, 5, 9.25]), torch.tensor([2, 5, -2]).int(), torch.tensor(2)
    made = tvm.run(tvm.convert(torch.export.export(Promoting(), given)), given)
    for mine, own in zip(made, Promoting()(*given), strict=True):
        torch.testing.assert_close(mine, own)


class BySize(nn.Module):
    def forward(self, x):
        return x * x.shape[0], x.long() // x.shape[0], x >= x.shape[0]


def test_tvm_computes_with_open_sizes():
    converter("tvm")
    program = torch.export.export(BySize(), (torch.ones(3, 2),), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}})
    x = torch.arange(10.0).view(5, 2)
    made = tvm.run(tvm.convert(program), [x])
    assert [each.tolist() for each in made] == [each.tolist() for each in BySize()(x)]


def test_tvm_makes_infinity_of_infinities_alone():
    converter("tvm")
    x = torch.tensor([[-torch.inf] * 3, [torch.inf] * 3, [-torch.inf, 1.0, 2.0]])
    made = tvm.run(tvm.convert(torch.export.export(Extremes(), (x,))), [x])
    assert [each.tolist() for each in made] == [each.tolist() for each in Extremes()(x)]
