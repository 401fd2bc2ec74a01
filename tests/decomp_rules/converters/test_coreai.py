"""Core AI: what its converter is given, and what it writes. Nothing runs that outside Apple's systems."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.tools.converting.conversion import conversion
from decomp_rules import targets
from decomp_rules.converters import coreai
from tests.installed import converter

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Calls(nn.Module):
    """Of one function, with one buffer."""

    def __init__(self, function, buffer=None):
        super().__init__()
        self.function = function
        self.register_buffer("table", buffer)

    def forward(self, x):
        return self.function(x) if self.table is None else self.function(x, self.table)


def exported(function, x=X, buffer=None):
    return torch.export.export(Calls(function, buffer), (x,))


def result_types(made):
    """`3x4xf32` for each result of the last graph, which is the program."""
    *_, output = re.findall(r"coreai\.output .* : (.*)", str(made))
    return re.findall(r"tensor<(.+?)>", output)


def kthvalue(x):
    return x.kthvalue(2).values


def test_what_core_ai_refuses_as_exported_is_converted_and_written(tmp_path):
    coreai = converter("coreai")
    with pytest.raises(ValueError, match=r"unsupported ATen ops: aten\.kthvalue\.default"):
        coreai.convert(exported(kthvalue))
    found = conversion(Calls(kthvalue), coreai, (X,), None, None, None, True, {})
    assert found.verified.endswith("but not run, as there is no runtime for models of coreai here")
    assert result_types(found.result) == ["3xf32"]
    for _ in range(2):  # one that is there is replaced
        coreai.save(found.result, tmp_path / "kth.aimodel")
    assert (tmp_path / "kth.aimodel" / "main.mlirb").stat().st_size


def test_calls_of_its_table_are_not_decomposed_and_others_are_by_its_own():
    coreai = converter("coreai")
    assert "coreai.softmax" in str(coreai.convert(exported(lambda x: x.softmax(1))))
    assert "coreai.softmax" in str(coreai.convert(exported(lambda x: x.softmax(1).detach())))
    assert result_types(coreai.convert(exported(lambda x, w: x * w.detach() + w, buffer=X))) == ["3x4xf32"]
    assert result_types(coreai.convert(exported(lambda x: F.silu(torch.addcmul(x, x, x))))) == ["3x4xf32"]


def test_the_program_that_it_is_given_is_not_edited():
    program = exported(lambda x: (x, x))
    before = str(program)
    converter("coreai").convert(program)
    assert str(program) == before


def test_each_result_is_returned_in_its_place_but_for_none():
    def repeated(x):
        y = x.sum(1)
        return y, None, x, y, x.argmax(1), y > 0

    made = converter("coreai").convert(exported(repeated))
    assert result_types(made) == ["3xf32", "3x4xf32", "3xf32", "3xsi32", "3xi1"]


def test_sizes_stay_open():
    batch = torch.export.Dim("batch", min=2, max=8)
    converter("coreai")
    made = decomp.convert(
        nn.Sequential(nn.Linear(4, 6), nn.GLU()), to="coreai", args=(X,), dynamic_shapes=({0: batch},), verify=False
    )
    assert result_types(made) == ["?x3xf32"]


def test_numbers_are_refused_as_inputs_and_as_results():
    coreai = converter("coreai")
    with pytest.raises(NotImplementedError, match="Core AI returns tensors alone, and result 1 is 3"):
        coreai.convert(exported(lambda x: (x + 1, 3)))
    with pytest.raises(NotImplementedError, match="Core AI takes tensors alone, and the input x is 2"):
        coreai.convert(exported(lambda x: torch.ones(3) * x, 2))


def test_constants_beyond_int32_are_refused():
    coreai, x = converter("coreai"), torch.tensor([1, 2])
    with pytest.raises(NotImplementedError, match="Core AI has int32 alone, and table holds -1 to 2147483648"):
        coreai.convert(exported(torch.add, x, torch.tensor([-1, 2**31])))
    assert result_types(coreai.convert(exported(torch.add, x, torch.tensor([-(2**31), 2**31 - 1])))) == ["2xsi32"]


def test_indices_of_pooling_are_refused_where_they_are_used():
    coreai, x = converter("coreai"), torch.randn(1, 2, 6, 6)
    assert result_types(coreai.convert(exported(lambda x: F.max_pool2d(x, 2), x))) == ["1x2x3x3xf32"]
    with pytest.raises(NotImplementedError, match=r"^aten\.max_pool2d_with_indices\.default: Core AI does"):
        coreai.convert(exported(lambda x: F.max_pool2d(x, 2, return_indices=True), x))


def test_arguments_that_its_lowerings_do_not_read_are_not_legal():
    def program(x):
        return torch.sub(x, x, alpha=2), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), torch.fmod(x, 2.0)

    lowered = decomp.lower(exported(program, torch.randn(1, 2, 6, 6)), to=targets.coreai, training=False)
    calls = [node for node in lowered.result.graph.nodes if node.op == "call_function"]
    called = {node.target for node in calls}
    assert not called & {torch.ops.aten.fmod.Scalar, torch.ops.aten.fmod.Tensor}
    assert not any(node.kwargs.get("alpha", 1) != 1 for node in calls)
    assert not any(len(node.args) > 5 for node in calls if node.target is torch.ops.aten.avg_pool2d.default)


class Norms(nn.Module):
    """Two calls of one signature, and one of another op that returns two tensors."""

    def forward(self, x):
        y = F.gelu(F.layer_norm(F.gelu(x), [4]))
        return (*torch.median(y, -1), F.scaled_dot_product_attention(y, y, y))


def composites(made):
    """Of each composite, its declaration, the calls inside, and how often it is invoked."""
    found = {}
    for graph in re.split(r"(?=coreai\.graph )", str(made))[1:]:
        name = re.search(r"@(\w+)", graph)[1]
        declared = re.search(r"composite_decl = #coreai\.composite_declaration<(.*?)>}", graph)
        found[name] = (declared and declared[1], graph.count(" = coreai."), str(made).count(f"invoke @{name}("))
    return found


NAMED = {"gelu": 3, "median": 1, "scaled_dot_product_attention": 2}


def test_composites_are_graphs_that_declare_them_and_hold_their_decomposition():
    coreai, x = converter("coreai"), torch.randn(2, 3, 4)
    target = coreai.target - {"gelu", "scaled_dot_product_attention"}
    found = conversion(Norms(), coreai, (x,), None, None, target, True, {"composites": NAMED})
    graphs = composites(found.result)
    assert {name: count for name, (_, _, count) in graphs.items()} == {
        "aten_gelu_0": 2,
        "aten_median_1": 1,
        "aten_scaled_dot_product_attention_2": 1,
        "main": 0,
    }
    declared, inside, _ = graphs["aten_gelu_0"]
    assert declared.startswith('"aten.gelu" = {input_names = ["self"]') and inside > 4
    assert 'approximate = "none", decomp.version = 3 : si64' in declared
    assert 'input_names = ["query,key,value"]' in graphs["aten_scaled_dot_product_attention_2"][0]
    assert result_types(found.result)[-3:] == ["2x3xf32", "2x3xsi32", "2x3x4xf32"]


def test_the_program_with_composites_is_not_edited_and_calls_of_open_sizes_are_decomposed():
    coreai = converter("coreai")
    batch = torch.export.Dim("batch", min=2, max=8)
    options = {"target": coreai.target - {"gelu"}, "composites": {"gelu"}}
    program = torch.export.export(Calls(F.gelu), (X,), dynamic_shapes=({0: batch},))
    made = decomp.convert(program, to="coreai", verify=False, **options)
    assert [*composites(made)] == ["main"] and result_types(made) == ["?x4xf32"]
    lowered = decomp.lower(exported(F.gelu), to=options["target"], composites={"gelu"}, training=False).result
    before = str(lowered)
    assert [*composites(coreai.convert(lowered))] == ["aten_gelu_0", "main"] and str(lowered) == before


def test_what_cannot_be_written_is_refused_when_it_is_converted():
    with pytest.raises(
        NotImplementedError, match=r"Core AI does not write it: 'aicode\.primitive\.greater_v1' op operand"
    ):
        converter("coreai").convert(exported(lambda x: (x > 0) > (x > 1)))


class Gated(nn.Module):
    """Two products of the rows of one tensor, multiplied, as in the feed-forward layers of Llama."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 6), nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False)

    def forward(self, x):
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def test_products_of_the_rows_of_a_tensor_are_converted_where_core_ai_ends_the_process():
    x = torch.randn(2, 3, 4)
    found = conversion(Gated(), converter("coreai"), (x,), None, None, None, True, {})  # in another process first
    assert result_types(found.result) == ["2x3x4xf32"]
    model = Calls(lambda x, y: torch.addmm(y, x.view(6, 4), x[0, 0].outer(y[0])), torch.randn(6, 5))
    added = conversion(model, converter("coreai"), (x,), None, None, None, True, {})
    assert result_types(added.result) == ["6x5xf32"]


def products(program):
    """The products of matrices that Core AI is given."""
    converter("coreai")
    called = (node.target for node in coreai.prepared(program).graph.nodes)
    aten = torch.ops.aten
    return [op._opname for op in called if op in (aten.mm.default, aten.addmm.default, aten.bmm.default)]


def test_only_products_on_whose_elements_a_call_follows_become_batches():
    x, y = torch.randn(2, 3, 4), torch.randn(4, 5)
    layers = exported(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)).eval(), x)
    assert products(decomp.lower(layers, to=targets.coreai, training=False).result) == ["addmm", "addmm"]
    assert products(exported(lambda x, y: x.view(6, 4).mm(y).view(2, 3, 5) + 1, x, y)) == ["mm"]
    assert products(exported(lambda x, y: x.view(6, 4).mm(y), x, y)) == ["mm"]
    assert products(exported(lambda x, y: x.view(6, 4).mm(y).exp() + y.sum(), x, y)) == ["bmm"]
    assert products(exported(lambda x, y: x.mm(y) + y[:3], x[0], y)) == ["mm"]


def test_a_product_that_is_returned_as_well_is_a_batch_under_its_new_name():
    def gated(x, y):
        product = x.view(6, 4).mm(y)
        return product, product * product.exp()

    model, x = Calls(gated, torch.randn(4, 5)), torch.randn(2, 3, 4)
    found = conversion(model, converter("coreai"), (x,), None, None, None, True, {})
    assert products(found.lowering.result) == ["bmm"] and result_types(found.result) == ["6x5xf32", "6x5xf32"]


def test_a_product_with_an_addend_keeps_its_factors_as_a_batch():
    x, y = torch.randn(2, 3, 4), torch.randn(4, 5)
    program = exported(lambda x, y: 2 * torch.addmm(y[0], x.view(6, 4), y, beta=3, alpha=0.5) - y[:1], x, y)
    assert products(program) == ["bmm"]
    torch.testing.assert_close(coreai.prepared(program).module()(x), program.module()(x))
