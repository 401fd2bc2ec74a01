"""ONNX files are compared by what they compute: names of values make no difference; types, calls and weights do."""

import numpy as np
import pytest

from decomp.errors import ArgumentError
from decomp.locking.comparing import compare
from decomp.locking.onnx_files import read
from tests.commands import run, said

onnx = pytest.importorskip("onnx")
helper, FLOAT, BOOL = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL
WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


def node(op, given, made, module="", **attributes):
    found = helper.make_node(op, given, made, **attributes)
    if module:
        helper.set_metadata_props(found, {"namespace": f"net: Net/{module}: Module/call: aten.call"})
    return found


def written(path, nodes, weight=WEIGHT, opset=20, size="batch", external=False, made="y"):
    """A file with a weight and one input, of the calls `nodes`."""
    weights = [onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(np.float32(2), "two")]
    given = helper.make_tensor_value_info("x", FLOAT, [size, 3])
    out = helper.make_tensor_value_info(made, FLOAT, [size, 4])
    graph = helper.make_graph(nodes, "net", [given], [out], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="by hand")
    onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.data", size_threshold=0)
    return path


def product(between="p", made="y", op="Mul", **given):
    return [node("MatMul", ["x", "w"], [between], "net.0"), node(op, [between, "two"], [made], "net.1", **given)]


def texts(old, new):
    return {
        (kind, each.about): each.text for kind, changes in compare(read(old), read(new)).by_kind() for each in changes
    }


def test_names_of_values_make_no_difference_and_neither_does_where_weights_are(tmp_path):
    one = written(tmp_path / "one.onnx", product("p"))
    other = written(tmp_path / "other.onnx", product("another"), external=True)
    assert (tmp_path / "other.data").exists()
    found = compare(read(one), read(other))
    assert found.is_same_program and found.changes == ()


def test_names_of_weights_make_no_difference_and_what_reads_them_does(tmp_path):
    one = read(written(tmp_path / "one.onnx", product()))
    path = written(tmp_path / "other.onnx", product())
    model = onnx.load(path)
    names = {"w": "two", "two": "w"}
    for weight in model.graph.initializer:
        weight.name = names[weight.name]
    swapped = model.SerializeToString()
    for each in model.graph.node:
        each.input[:] = [names.get(name, name) for name in each.input]
    path.write_bytes(model.SerializeToString())
    assert compare(one, read(path)).is_same_program
    path.write_bytes(swapped)
    (change,) = compare(one, read(path)).changes
    assert change.text == "the same values in another order"


def test_what_differs_is_named_by_kind(tmp_path):
    one = written(tmp_path / "one.onnx", product())
    other = written(
        tmp_path / "other.onnx", [*product(made="q", op="Div"), node("Relu", ["q"], ["y"])], WEIGHT + 1, 21, 5
    )
    found = texts(one, other)
    assert found["versions", "opset ai.onnx"] == "21, was 20"
    assert found["inputs and outputs", "input x"] == "FLOAT[5, 3], was FLOAT[batch, 3]"
    assert found["calls by op", "Div"] == "new, 1 call" and found["calls by op", "Mul"] == "gone, was 1 call"
    assert found["calls by module", "outside of modules"] == "new, 1 call"
    assert found["the lowered program", "w"] == "a constant of other values"
    assert found["the lowered program", "program"].startswith("line 2 is %q = Div(%p, %two), was %y = Mul(%p, %two)")
    assert ("what the program costs", "bytes of weights") not in found
    wider = written(tmp_path / "wider.onnx", product(), np.zeros((3, 8), np.float32))
    assert texts(one, wider)["what the program costs", "bytes of weights"] == "100, were 52 (+92.3%)"


def test_weights_in_another_file_are_compared_by_their_bits_if_it_is_there(tmp_path):
    one = written(tmp_path / "one.onnx", product(), external=True)
    other = written(tmp_path / "other.onnx", product(), WEIGHT + 1, external=True)
    assert texts(one, other) == {("the lowered program", "w"): "a constant of other values"}
    (tmp_path / "one.data").unlink()
    assert read(one).tensors["w"].startswith("FLOAT[3, 4] at 0 of one.data")


def test_a_file_elsewhere_is_not_read(tmp_path):
    (tmp_path / "inside").mkdir()
    path = written(tmp_path / "inside" / "one.onnx", product(), external=True)
    (tmp_path / "inside" / "one.data").rename(tmp_path / "one.data")
    model = onnx.load(path, load_external_data=False)
    for weight in model.graph.initializer:
        for entry in weight.external_data:
            entry.value = "../one.data" if entry.key == "location" else entry.value
    path.write_bytes(model.SerializeToString())
    assert read(path).tensors["w"] == "FLOAT[3, 4] at 0 of ../one.data"


def test_calls_in_branches_count(tmp_path):
    def branch(op):
        return helper.make_graph([node(op, ["p"], ["r"])], op, [], [helper.make_tensor_value_info("r", FLOAT, None)])

    def choosing(op):
        yes = node("Constant", [], ["yes"], value=onnx.helper.make_tensor("yes", BOOL, [], [True]))
        chosen = node("If", ["yes"], ["y"], then_branch=branch(op), else_branch=branch("Neg"))
        return [node("MatMul", ["x", "w"], ["p"]), yes, chosen]

    one, other = (written(tmp_path / f"{op}.onnx", choosing(op)) for op in ("Abs", "Exp"))
    found = texts(one, other)
    assert found["calls by op", "Exp"] == "new, 1 call"
    assert found["the lowered program", "If/then_branch"] == "line 1 is %r = Exp(%p), was %r = Abs(%p)"


def test_the_command_compares_two_files(tmp_path):
    one = written(tmp_path / "one.onnx", product())
    other = written(tmp_path / "other.onnx", product(op="Div"))
    result = run("diff", one, other)
    assert result.exit_code == 1
    assert result.output.startswith("ONNX (opset 20), 2 calls → ONNX (opset 20), 2 calls: 3 changes\n")
    assert run("diff", one, one).exit_code == 0


def test_what_is_no_onnx_file_is_named(tmp_path):
    for name, content in (("noise", b"\xff\xfe no model"), ("empty", b"")):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        with pytest.raises(ArgumentError, match=f"{name}.onnx is not an ONNX file"):
            read(path)
    path = written(tmp_path / "one.onnx", product())
    for words in ((path, "mlp", "--to", "onnx"), (path,)):
        code, text = said(run("diff", *words))
        assert code == 2 and text.startswith("error: an ONNX file is compared with another one: OLD.onnx NEW.onnx")
    code, text = said(run("diff", path, path, "--html", tmp_path / "page.html"))
    assert code == 2 and text.startswith("error: --html shows two programs that are lowered now: name models")
    code, text = said(run("diff", tmp_path / "none.onnx", path))
    assert code == 2 and text.startswith("error: ") and "none.onnx: No such file or directory" in text
