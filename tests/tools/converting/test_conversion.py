"""`decomp.convert`, with converters of these tests: what is returned, what is compared, and what each failure says."""

import dataclasses
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.ir.composites import composites_in
from decomp.tools.converting.conversion import conversion
from decomp_rules import targets
from tests.derive.nested import NESTED, NESTED_RULES, Nested, queries
from tests.forms import Holder
from tests.installed import converter
from tests.tools.converting import fakes

MODEL, X = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def failure(to, **options):
    with pytest.raises(decomp.errors.ConversionError) as raised:
        decomp.convert(MODEL, to=to, args=(X,), **options)
    return str(raised.value)


def test_convert_returns_what_the_converter_returns_for_the_lowered_program():
    made = decomp.convert(MODEL, to=fakes.FAKE, args=(X,))
    assert isinstance(made, torch.fx.GraphModule)
    called = {node.target for node in made.graph.nodes if node.op == "call_function"}
    assert torch.ops.aten.linear.default not in called and torch.ops.aten.mm.default in called
    torch.testing.assert_close(made(X), MODEL(X))


def test_composites_are_handed_over_or_lowered_with_a_warning():
    made = decomp.convert(MODEL, to=dataclasses.replace(fakes.FAKE, composites=True), args=(X,), composites={"linear"})
    assert [found.name for found in composites_in(made.graph).values()] == ["aten.linear"]
    with pytest.warns(UserWarning) as warned:
        plain = decomp.convert(MODEL, to=fakes.FAKE, args=(X,), composites={"linear"}, verify=False)
    said = "fake takes no composites: the calls that would be some are lowered to its target"
    assert [str(each.message) for each in warned] == [said] and not composites_in(plain.graph)
    with pytest.raises(decomp.errors.UnknownOp, match="unknown op 'linaer'"):
        decomp.convert(MODEL, to=fakes.FAKE, args=(X,), composites={"linaer"})


def test_the_converted_model_is_run_and_compared_with_the_model_in_float64():
    program = torch.export.export(MODEL, (X,))
    for model, args in ((MODEL, (X,)), (program, None)):
        found = conversion(model, fakes.FAKE, args, None, None, None, True, {})
        said = r"the whole program run on the example inputs, against itself in float64: 1 result within \S+ \(.*\)"
        assert re.fullmatch(said, found.verified)


def test_without_a_runtime_the_model_is_converted_in_another_process_and_not_run():
    found = conversion(MODEL, fakes.NO_RUNTIME, (X,), None, None, None, True, {})
    assert found.verified == (
        "converted in a process of its own, but not run, as there is no runtime for models of compiled here"
    )


def test_other_results_are_the_fault_of_the_converter():
    text = failure(fakes.WRONG)
    assert re.match(
        r"wrong \S+ converts the program to one with other results: result of the lowered program differs: it .*\n"
        r"  the lowered program, 4 calls, is verified: the fault is in wrong\n"
        r"  to do, the easiest first:\n"
        r"    1\. if it is another version than the target's: decomp probe wrong -o wrong\.toml, and pass "
        r'target=decomp\.Target\.load\("wrong\.toml"\)\n'
        r"    2\. report it to wrong, with the lowered program \(decomp\.lower\) and these inputs$",
        text,
    )


def test_a_refusal_has_the_words_of_the_converter_and_the_op_to_leave_out():
    text = failure(fakes.REFUSES)
    assert re.match(
        r"refuses \S+ refuses the lowered program: NotImplementedError: conversion fails\n"
        r"  no rule for aten\.mm\.default\n"
        r"  its target says that it takes each call, 4 calls: what fake converts\n"
        r"  to do, the easiest first:\n"
        r"    1\. if it .*\n"
        r"    2\. lower it without the op at fault: target=TARGET - \{\"mm\"\}$",
        text,
    )
    assert isinstance(decomp.Target("fake", ["mm", "add"]) - {"mm"}, decomp.Target)


def test_a_converter_that_crashes_is_an_error_and_not_the_end_of_the_process():
    assert re.match(r"crashes \S+ crashes on the lowered program: SIGSEGV\n  its target says", failure(fakes.CRASHES))


@pytest.mark.parametrize("verify", [True, False])
def test_weights_without_values_are_refused_by_name_before_anything_is_converted(verify):
    def never(program):
        raise AssertionError("it was converted")

    x = torch.ones(2, 8, device="meta")
    to = dataclasses.replace(fakes.FAKE, convert=never)
    with pytest.raises(decomp.errors.ConversionError) as refused:
        decomp.convert(nn.Linear(8, 8, device="meta"), to=to, args=(x,), verify=verify)
    assert str(refused.value) == (
        "the weight 'weight' and 1 more has no values (the meta device or fake tensors)\n"
        "  to do: convert the model with its weights"
    )


def test_a_converter_that_is_absent_or_old_says_what_to_install():
    assert failure(fakes.ABSENT) == (
        'to="absent" needs no-such-converter, which is not installed\n  to do: pip install "no-such-converter>=1.2"'
    )
    assert failure(fakes.OLD) == (
        f'to="old" needs pytest 999.1 or later, and {pytest.__version__} is installed\n'
        '  to do: pip install --upgrade "pytest>=999.1"'
    )
    assert failure(dataclasses.replace(fakes.FAKE, runtime="no-such-runtime")) == (
        'to="fake" needs no-such-runtime, which is not installed\n  to do: pip install "pytest>=8" "no-such-runtime"'
    )


def test_what_cannot_be_lowered_is_named_as_in_lower():
    with pytest.raises(decomp.NotLowered, match="aten.unique_dim"):
        decomp.convert(Unique(), to=fakes.FAKE, args=(X,))


def test_an_op_that_pytorch_cannot_export_is_converted_by_its_rule():
    class Loss(nn.Module):
        def forward(self, x, labels):
            return nn.functional.ctc_loss(x.log_softmax(2), labels, (4, 4), (2, 2))

    args = (torch.randn(4, 2, 5), torch.randint(1, 5, (2, 2)))
    found = conversion(Loss(), fakes.FAKE, args, None, None, targets.executorch, True, {})
    assert "1 result within" in found.verified


def test_a_draw_that_nothing_reads_needs_no_op_of_the_converter():
    class Initialised(nn.Module):
        def forward(self, x):
            nn.init.uniform_(torch.empty(4, 3))
            return x.relu()

    made = decomp.convert(Initialised(), to=fakes.FAKE, args=(X,))
    assert [node.target for node in made.graph.nodes if node.op == "call_function"] == [torch.ops.aten.relu.default]
    with pytest.raises(decomp.NotLowered, match="aten.uniform"):
        decomp.convert(Initialised(), to=fakes.FAKE, args=(X,), drop_draws=False)


def test_a_program_whose_sizes_data_decide_is_tried_in_another_process():
    model = Holder(lambda x: x.masked_select(x > 0) * 2)
    found = conversion(model, fakes.FAKE, (X,), None, None, targets.core_aten, True, {})
    assert "1 result within" in found.verified
    torch.testing.assert_close(found.result(X), model(X))


class Unique(nn.Module):
    def forward(self, x):
        return torch.unique(x, dim=0)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"to": 3}, "to= must be the name of a converter or a decomp.Converter, not int"),
        (
            {"to": "opnvino"},
            "no converter 'opnvino'; there are coreai, coremltools, executorch, iree, litert, openvino, torch_mlir, "
            "torch_onnx, tvm, and any decomp.Converter",
        ),
        ({"args": None}, "a module is captured by running it: pass args=(...), or an ExportedProgram"),
        ({"model": len}, "a model must be an nn.Module or an ExportedProgram, not builtin_function_or_method"),
        ({"to": "onnx"}, 'to="onnx" is not a converter: the ONNX backend writes models itself'),
    ],
)
def test_wrong_arguments_are_refused(wrong, text):
    given = {"model": MODEL, "to": fakes.FAKE, "args": (X,), **wrong}
    with pytest.raises(decomp.errors.ArgumentError) as raised:
        decomp.convert(given.pop("model"), **given)
    assert str(raised.value).splitlines()[0] == text


def test_a_converter_whose_functions_no_other_process_finds_is_tried_in_this_one():
    def here(program):
        return program.module()

    made = decomp.Converter("here", "pytest", "8", fakes.TARGET, here, fakes.run)
    assert not made.can_travel and fakes.FAKE.can_travel
    torch.testing.assert_close(decomp.convert(MODEL, to=made, args=(X,))(X), MODEL(X))


def test_importing_the_package_imports_no_converter():
    import subprocess
    import sys

    program = (
        "import sys, decomp; from decomp_rules import converters; made = [*map(converters.get, converters.names())];"
        "modules = {'apache-tvm': 'tvm', 'litert-torch': 'litert_torch', 'iree-base-compiler': 'iree',"
        "'torch-mlir': 'torch_mlir'};"
        "print([name for each in made if (name := modules.get(each.package, each.package)) in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown == "[]\n"


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x).abs(), torch.kthvalue(x, 2, dim=1).values


def test_openvino_converts_a_model_that_it_refuses_as_exported():
    openvino = converter("openvino")
    model, x = Spectrum(), torch.randn(3, 8)
    found = conversion(model, openvino, (x,), None, None, None, True, {})
    assert "2 results within" in found.verified
    for mine, own in zip(openvino.run(found.result, [x]), model(x)):
        torch.testing.assert_close(mine, own)
    assert [list(port.shape) for port in found.result.inputs] == [[3, 8]]


def test_openvino_keeps_a_dynamic_size():
    openvino = converter("openvino")
    batch = {"input": {0: torch.export.Dim.DYNAMIC}}
    made = decomp.convert(MODEL.eval(), to="openvino", args=(X,), dynamic_shapes=batch)
    for size in (2, 5):
        (found,) = openvino.run(made, [torch.ones(size, 4)])
        torch.testing.assert_close(found, MODEL(torch.ones(size, 4)).detach())


def test_executorch_converts_a_model_that_it_refuses_as_exported():
    executorch = converter("executorch")
    model, x = Spectrum(), torch.randn(3, 8)
    with pytest.raises(Exception, match="aten.kthvalue"):
        executorch.convert(torch.export.export(model, (x,)))
    found = conversion(model, executorch, (x,), None, None, None, True, {})
    assert "2 results within" in found.verified
    assert type(found.result).__name__ == "ExecutorchProgramManager"
    for mine, own in zip(executorch.run(found.result, [x]), model(x)):
        torch.testing.assert_close(mine, own)


def test_executorch_takes_numbers_and_transposed_inputs(tmp_path):
    executorch = converter("executorch")

    class Scaled(nn.Module):
        def forward(self, x, factor, bias):
            return torch.relu(x) * factor + bias

    args = (X.t(), 3, X.t()[:, :1].expand(4, 2))
    made = decomp.convert(Scaled(), to="executorch", args=args)
    (found,) = executorch.run(made, [args[0], args[2]])
    torch.testing.assert_close(found, Scaled()(*args))
    executorch.save(made, tmp_path / "scaled.pte")
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(tmp_path / "scaled.pte").load_method("forward")
    (again,) = method.execute([args[0].contiguous(), 3, args[2].contiguous()])
    torch.testing.assert_close(again, found)


def test_executorch_takes_a_model_that_returns_what_topk_returns():
    executorch = converter("executorch")

    class Top(nn.Module):
        def forward(self, x):
            return torch.topk(x, 2), x + 1

    found = conversion(Top(), executorch, (X,), None, None, None, True, {})
    assert "3 results within" in found.verified and "topk" in str(found.lowering.result.call_spec.out_spec)


def test_executorch_keeps_a_dynamic_size():
    executorch = converter("executorch")
    batch = {"input": {0: torch.export.Dim("batch", min=2, max=8)}}
    made = decomp.convert(MODEL.eval(), to="executorch", args=(X,), dynamic_shapes=batch)
    for size in (2, 8):
        (found,) = executorch.run(made, [torch.ones(size, 4)])
        torch.testing.assert_close(found, MODEL(torch.ones(size, 4)).detach())


def test_openvino_gets_rules_in_place_of_its_own_kernels_that_are_wrong():
    openvino, x = converter("openvino"), torch.rand(3, 40) * 2 - 1

    class Wrong(nn.Module):
        def forward(self, x):
            return torch.erfinv(x), torch.ops.aten.var.correction(x), torch.ops.aten.std.correction(x, [1])

    assert "3 results within" in conversion(Wrong(), openvino, (x,), None, None, None, True, {}).verified


def test_executorch_names_the_kernel_that_fails_and_the_check_in_it():
    executorch = converter("executorch")
    x = torch.randn(2, 3)

    class Shifted(nn.Module):
        def forward(self, x):
            return F.pad(x, [1, -1])

    model = executorch.convert(torch.export.export(Shifted(), (x,)))
    with pytest.raises(RuntimeError) as raised:
        executorch.run(model, [x])
    said = "aten.constant_pad_nd.out fails: Padding values must be non-negative, but got pad[1] = -1"
    assert str(raised.value) == said


def test_litert_converts_a_model_that_it_refuses_as_exported(tmp_path):
    litert = converter("litert")
    model, x = Transformed(), torch.randn(3, 8)
    with pytest.raises(Exception, match="scatter"):
        litert.run(litert.convert(torch.export.export(model, (x,))), [x])
    found = conversion(model, litert, (x,), None, None, None, True, {})
    assert "2 results within" in found.verified
    litert.save(found.result, tmp_path / "transformed.tflite")
    assert (tmp_path / "transformed.tflite").stat().st_size


def test_litert_converts_order_and_sums_by_index_which_its_runtime_does_not_have():
    class Ordered(nn.Module):
        def forward(self, x, i):
            values, places = torch.kthvalue(x, 2, dim=1)
            return values, places, torch.cummax(x, 1).indices, x.index_put((i,), x, accumulate=True), i % 2

    args = (torch.randn(3, 5), torch.tensor([2, 0, 2]))
    found = conversion(Ordered(), converter("litert"), args, None, None, None, True, {})
    assert "5 results within" in found.verified


def test_litert_has_composites_as_composites_of_its_own():
    litert = converter("litert")

    class Named(nn.Module):
        def forward(self, x):
            y = Nested()(x)
            return F.gelu(y, approximate="tanh"), y.max(-1)[1]

    options = {"composites": {**NESTED, "gelu": 3}, "rules": NESTED_RULES}
    target = litert.target - {"gelu", "softmax", "_softmax", F.scaled_dot_product_attention}
    found = conversion(Named(), litert, (queries(),), None, None, target, True, options)
    assert "2 results within" in found.verified
    attention, softmax = "aten.scaled_dot_product_attention.default", "aten.softmax.int"
    calls = list(litert_calls(found.result.model_content()))
    # LiteRT knows the name aten.gelu.default, and has an operator for it.
    assert calls[0] == [attention, attention, softmax, "GELU", "ARG_MAX"]
    assert sum(softmax in each for each in calls) == 3 and sum(attention in each for each in calls) == 1


def litert_calls(content):
    """The operators of each graph of a model, composites by name."""
    from ai_edge_litert import schema_py_generated as schema

    names = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    model = schema.ModelT.InitFromPackedBuf(content)
    for graph in model.subgraphs:
        codes = [names[model.operatorCodes[each.opcodeIndex].builtinCode] for each in graph.operators or []]
        options = [each.builtinOptions2 for each in graph.operators or []]
        yield [own.name.decode() if code == "STABLEHLO_COMPOSITE" else code for code, own in zip(codes, options)]


class Transformed(nn.Module):
    def forward(self, x):
        return x.scatter_add(0, torch.zeros(1, 8, dtype=torch.int64), x), x.to(torch.int64)


def test_litert_refuses_a_dynamic_size_by_name():
    litert = converter("litert")
    batch = {"input": {0: torch.export.Dim.DYNAMIC}}
    with pytest.raises(decomp.errors.ConversionError) as raised:
        decomp.convert(MODEL.eval(), to=litert, args=(X,), dynamic_shapes=batch, verify=False)
    assert "LiteRT is given static sizes alone, and input has " in str(raised.value)


def test_tvm_converts_a_model_that_it_refuses_as_exported(tmp_path):
    tvm = converter("tvm")
    model, x = Transformed(), torch.randn(3, 8)
    with pytest.raises(Exception, match="scatter_add"):
        tvm.convert(torch.export.export(model, (x,)))
    found = conversion(model, tvm, (x,), None, None, None, True, {})
    assert "2 results within" in found.verified
    tvm.save(found.result, tmp_path / "transformed.so")
    assert (tmp_path / "transformed.so").stat().st_size


def test_tvm_keeps_a_size_open():
    tvm = converter("tvm")
    batch = {"input": {0: torch.export.Dim.DYNAMIC}}
    made = decomp.convert(MODEL.eval(), to=tvm, args=(X,), dynamic_shapes=batch)
    (found,) = tvm.run(made, [torch.ones(5, 4)])
    torch.testing.assert_close(found, MODEL(torch.ones(5, 4)).detach())


def test_iree_converts_a_model_that_it_refuses_as_exported(tmp_path):
    iree = converter("iree")
    model, x = Spectrum(), torch.randn(3, 8)
    with pytest.raises(NotImplementedError, match="'tm_tensor.topk' op region block must end with"):
        iree.convert(torch.export.export(model, (x,)))
    found = conversion(model, iree, (x,), None, None, None, True, {})
    assert "2 results within" in found.verified
    iree.save(found.result, tmp_path / "spectrum.vmfb")
    assert (tmp_path / "spectrum.vmfb").stat().st_size


def test_iree_keeps_a_size_open():
    iree = converter("iree")
    batch = {"input": {0: torch.export.Dim.DYNAMIC}}
    made = decomp.convert(MODEL.eval(), to=iree, args=(X,), dynamic_shapes=batch)
    (found,) = iree.run(made, [torch.ones(5, 4)])
    torch.testing.assert_close(found, MODEL(torch.ones(5, 4)).detach())


class Cast(nn.Module):
    def forward(self, x, factor):
        y = x * factor
        return y.to(torch.float64) / 3, y.to(torch.bfloat16), y.to(torch.uint8) + 100, y > 1, y.sum()


def test_iree_keeps_dtypes_and_takes_numbers_as_they_were_exported():
    iree, x = converter("iree"), torch.tensor([1.0, 100.0])
    for given in (x, x.to(torch.bfloat16)):
        made = iree.convert(torch.export.export(Cast(), (given, 2)))
        for mine, own in zip(iree.run(made, [given]), Cast()(given, 2), strict=True):
            torch.testing.assert_close(mine, own)


class Sized(nn.Module):
    def forward(self, x):
        return x + 1, x.shape[0]


def test_torch_mlir_converts_a_model_that_it_refuses_as_exported(tmp_path):
    torch_mlir = converter("torch_mlir")
    model, x = Spectrum(), torch.randn(3, 8)
    with pytest.raises(NotImplementedError, match="'math.absf' op operand #0 must be floating-point-like"):
        torch_mlir.convert(torch.export.export(model, (x,)))
    found = conversion(model, torch_mlir, (x,), None, None, None, True, {})
    assert "2 results within" in found.verified
    torch_mlir.save(found.result, tmp_path / "spectrum.mlir")
    assert "linalg.generic" in (tmp_path / "spectrum.mlir").read_text()


def test_torch_mlir_keeps_a_size_open():
    torch_mlir = converter("torch_mlir")
    batch = {"input": {0: torch.export.Dim.DYNAMIC}}
    made = decomp.convert(MODEL.eval(), to=torch_mlir, args=(X,), dynamic_shapes=batch)
    (found,) = torch_mlir.run(made, [torch.ones(5, 4)])
    torch.testing.assert_close(found, MODEL(torch.ones(5, 4)).detach())


class Views(nn.Module):
    def forward(self, x):
        return x, x[:0], x.t(), x.sum(), x > 0, x.to(torch.float64) / 3


def test_torch_mlir_returns_views_scalars_and_nothing_at_all_in_the_dtypes_of_the_program():
    torch_mlir, x = converter("torch_mlir"), torch.randn(3, 2).t()
    made = torch_mlir.convert(torch.export.export(Views(), (x,)))
    for _ in range(2):  # what is run is a copy
        for mine, own in zip(torch_mlir.run(made, [x]), Views()(x), strict=True):
            torch.testing.assert_close(mine, own, check_stride=False)


def test_torch_mlir_refuses_a_call_that_writes_to_an_operand():
    class Normed(nn.Module):
        def forward(self, x, mean, var):
            return nn.functional.batch_norm(x, mean, var, training=True)

    program = torch.export.export(Normed(), (torch.randn(4, 3), torch.zeros(3), torch.ones(3)))
    with pytest.raises(NotImplementedError) as raised:
        converter("torch_mlir").convert(program)
    assert str(raised.value) == "torch-mlir returns results alone, and the program writes to mean"


def test_torch_mlir_names_the_call_with_an_effect():
    class Inverse(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x)

    with pytest.raises(NotImplementedError) as raised:
        converter("torch_mlir").convert(torch.export.export(Inverse(), (torch.eye(3),)))
    assert str(raised.value) == (
        "torch-mlir returns results alone, and aten._linalg_check_errors.default has side effects"
    )


class Singular(nn.Module):
    def forward(self, x, y):
        return torch.linalg.det(x), torch.linalg.slogdet(x), y.reciprocal(), nn.functional.instance_norm(y[None, None])


@pytest.mark.parametrize("name", ["iree", "torch_mlir", "torch_onnx"])
def test_pivots_of_zero_and_reciprocals_of_zero_and_nan_are_right(name):
    """torch-mlir ends the process where it translates these calls itself, and IREE computes NaN."""
    x, y = torch.eye(3).roll(1, 0), torch.tensor([2.0, 0.0, -0.0, torch.inf, torch.nan])
    found = conversion(Singular(), converter(name), (x, y), None, None, None, True, {})
    assert "5 results within" in found.verified


def test_torch_mlir_names_the_pass_that_fails():
    torch_mlir, x = converter("torch_mlir"), torch.ones(2, dtype=torch.bfloat16)
    made = torch_mlir.convert(torch.export.export(nn.ReLU(), (x,)))
    with pytest.raises(RuntimeError, match="argument must be a memref of f16, f32, f64"):
        torch_mlir.run(made, [x])


@pytest.mark.parametrize(("name", "said"), [("iree", "IREE"), ("torch_mlir", "torch-mlir")])
def test_a_result_that_is_a_number_is_refused(name, said):
    with pytest.raises(NotImplementedError) as raised:
        converter(name).convert(torch.export.export(Sized(), (X,)))
    assert str(raised.value) == f"{said} returns tensors alone, and result 1 is 2"


def test_torch_onnx_converts_a_model_that_it_refuses_as_exported(tmp_path):
    torch_onnx = converter("torch_onnx")
    model, x = Spectrum(), torch.randn(3, 8)
    with pytest.raises(NotImplementedError, match=r"aten\.kthvalue\.default: No ONNX function found"):
        torch_onnx.convert(torch.export.export(model, (x,)))
    found = conversion(model, torch_onnx, (x,), None, None, None, True, {})
    assert "2 results within" in found.verified
    torch_onnx.save(found.result, tmp_path / "spectrum.onnx")
    assert (tmp_path / "spectrum.onnx").stat().st_size


def test_torch_onnx_keeps_a_size_open():
    torch_onnx = converter("torch_onnx")
    batch = {"input": {0: torch.export.Dim.DYNAMIC}}
    made = decomp.convert(MODEL.eval(), to=torch_onnx, args=(X,), dynamic_shapes=batch)
    (found,) = torch_onnx.run(made, [torch.ones(5, 4)])
    torch.testing.assert_close(found, MODEL(torch.ones(5, 4)).detach())


@pytest.mark.parametrize("moved", [lambda x: x + 1e-9, lambda x: x * 1.000009, lambda x: x - x.new_tensor(1e-9)])
def test_torch_onnx_keeps_numbers_that_are_nearly_nothing(moved):
    torch_onnx, x = converter("torch_onnx"), torch.full((3,), 1e-9)
    made = decomp.convert(Holder(moved), to=torch_onnx, args=(x,))
    (found,) = torch_onnx.run(made, [x])
    assert torch.equal(found, moved(x)) and not torch.equal(found, x)


def test_torch_onnx_drops_what_changes_nothing():
    torch_onnx, x = converter("torch_onnx"), torch.ones(3)
    made = decomp.convert(Holder(lambda x: (x + 0.0) * 1.0 - 0.5), to=torch_onnx, args=(x,))
    assert [node.op_type for node in made.model.graph] == ["Sub"]


def test_torch_onnx_names_the_step_that_fails_where_no_call_is_at_fault():
    torch_onnx = converter("torch_onnx")
    with pytest.raises(NotImplementedError) as raised:
        torch_onnx.convert(torch.export.export(Sized(), (X,)))
    assert str(raised.value).startswith("Error when translating node return (add, 2): ")


LEAVES_FOLDERS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""coremltools (9.0) leaves its temporary folders to be cleaned up, of which Python warns."""


@LEAVES_FOLDERS
def test_coremltools_converts_a_model_that_it_refuses_as_exported(tmp_path):
    coremltools = converter("coremltools")
    model, x = Spectrum(), torch.randn(3, 8)
    with pytest.raises(NotImplementedError, match=r"^Unsupported fx node kthvalue"):
        coremltools.convert(torch.export.export(model, (x,)))
    found = conversion(model, coremltools, (x,), None, None, None, True, {})
    assert "2 results within" in found.verified
    for _ in range(2):  # one that is there is replaced
        coremltools.save(found.result, tmp_path / "spectrum.mlpackage")
    assert (tmp_path / "spectrum.mlpackage" / "Manifest.json").stat().st_size


@LEAVES_FOLDERS
def test_coremltools_keeps_a_size_open_and_the_dtypes_of_results():
    class Mixed(nn.Module):
        def forward(self, x, i):
            return F.max_pool1d(x, 2), i[:, None] + x.argmax(-1), i > 1

    coremltools = converter("coremltools")
    batch = {0: torch.export.Dim("batch", min=2, max=8)}
    args = (torch.randn(3, 2, 6), torch.tensor([1, 2, 3]))
    made = decomp.convert(Mixed(), to="coremltools", args=args, dynamic_shapes={"x": batch, "i": batch})
    args = (torch.randn(5, 2, 6), torch.arange(5))
    found = coremltools.run(made, args)
    assert [each.dtype for each in found] == [torch.float32, torch.int64, torch.bool]
    for mine, own in zip(found, Mixed()(*args)):
        torch.testing.assert_close(mine, own)


@LEAVES_FOLDERS
def test_coremltools_names_the_call_that_it_refuses_and_the_input_that_is_a_number():
    class Similar(nn.Module):
        def forward(self, x, factor):
            return F.cosine_similarity(x, x) * factor

    coremltools = converter("coremltools")
    with pytest.raises(NotImplementedError) as raised:
        coremltools.convert(torch.export.export(Similar(), (X, X[0, 0])))
    assert str(raised.value).startswith("aten.cosine_similarity.default: node cosine_similarity")
    with pytest.raises(decomp.errors.ConversionError, match="Core ML takes tensors alone, and the input factor is 3"):
        decomp.convert(Similar(), to=coremltools, args=(X, 3), verify=False)
