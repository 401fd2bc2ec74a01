"""Reading `.pt2` files never executes anything in them."""

import collections
import dataclasses
import io
import json
import os
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn
from torch.export import Dim
from typer.testing import CliRunner

from decomp.tools.cli import archives
from decomp.tools.cli.app import app
from decomp.tools.cli.archive_contents import Newer, Unregistered
from decomp.tools.cli.archives import UnreadableArchive, Untrusted
from decomp_rules import samples

RAN = []


def payload():
    RAN.append(1)
    return torch.ones(2, 4)


class Evil:
    def __reduce__(self):
        return payload, ()


def pickled(value):
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(4))

    def forward(self, x, *, scale):
        return {"out": (self.linear(x) * scale)[: x.shape[0] // 2] + self.table + torch.tensor([1.0, 2, 3, 4])}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "good.pt2"
    shapes = {"x": {0: Dim.AUTO}, "scale": None}
    torch.export.save(torch.export.export(Model(), (torch.ones(6, 4),), {"scale": 2.0}, dynamic_shapes=shapes), path)
    return path


@pytest.fixture
def changed(good, tmp_path):
    """An archive like the good one, with a change to each record."""

    def write(change):
        path = tmp_path / "evil.pt2"
        with zipfile.ZipFile(good) as source, zipfile.ZipFile(path, "w") as target:
            for name in source.namelist():
                data = change(name, source.read(name))
                if data is not None:
                    target.writestr(name, data)
        return path

    return write


@pytest.fixture(autouse=True)
def nothing_ran(monkeypatch):
    RAN.clear()
    monkeypatch.setattr(os, "system", lambda command: RAN.append(command))
    yield
    assert RAN == []


def in_program(edit):
    """A change to the JSON of the program."""

    def change(name, data):
        if not name.endswith("models/model.json"):
            return data
        program = json.loads(data)
        edit(program)
        return json.dumps(program)

    return change


def test_a_program_comes_back_as_it_was_saved(good):
    found = archives.read_program(good)
    x = torch.randn(8, 4)
    own = torch.export.load(good)
    torch.testing.assert_close(found.module()(x, scale=2.0), own.module()(x, scale=2.0))
    assert found._guards_code == own._guards_code and found.range_constraints.keys() == own.range_constraints.keys()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", samples.MODELS)
def test_every_sample_model_is_read_as_data(name, tmp_path):
    model, args = samples.model(name)
    program = torch.export.export(model, args)
    torch.export.save(program, tmp_path / "model.pt2")
    found = archives.read_program(tmp_path / "model.pt2")
    assert [str(node.target) for node in found.graph.nodes] == [str(node.target) for node in program.graph.nodes]


class Branches(nn.Module):
    def forward(self, xs, choose: torch.Tensor):
        with torch.no_grad():
            y = torch.cond(choose.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (xs["key with space"],))
        n = (choose.sum() > 0).long().item()
        torch._check(n >= 0)
        return collections.OrderedDict(first=(y,), second=[torch.zeros(n + 2), xs["key with space"].max()])


def test_control_flow_containers_and_sizes_of_data_are_read_as_data(tmp_path):
    args = ({"key with space": torch.ones(3, 5)}, torch.ones(2))
    shapes = {"xs": {"key with space": {0: Dim.AUTO, 1: Dim.AUTO}}, "choose": None}
    torch.export.save(torch.export.export(Branches(), args, dynamic_shapes=shapes), tmp_path / "model.pt2")
    found = archives.read_program(tmp_path / "model.pt2").module()(*args)
    torch.testing.assert_close(found["second"][0], torch.zeros(3))


# payloads in each member


def test_a_payload_in_the_sample_inputs_is_refused(changed):
    path = changed(lambda name, data: pickled({"x": Evil()}) if "sample_inputs" in name else data)
    with pytest.raises(Untrusted, match=r"pickled with \S*payload\n  to do: .*pass --trust"):
        archives.read_program(path)


def test_a_payload_as_it_was_found_in_the_wild_is_refused(changed):
    evil = b"cposix\nsystem\n(S'echo PAYLOAD'\ntR."
    inner = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(pickled((1,)))) as made, zipfile.ZipFile(inner, "w") as target:
        for name in made.namelist():
            target.writestr(name, evil if name.endswith("data.pkl") else made.read(name))
    path = changed(lambda name, data: inner.getvalue() if "sample_inputs" in name else data)
    with pytest.raises(Untrusted, match=r"pickled with posix.system"):
        archives.read_program(path)


def with_pickle(kind):
    """A weight or a constant that is said to be pickled."""

    def change(name, data):
        if not name.endswith(f"model_{kind}_config.json"):
            return data
        config = json.loads(data)
        for payload_ in config["config"].values():
            payload_["use_pickle"] = True
        return json.dumps(config)

    return change


@pytest.mark.parametrize("kind, prefix", [("weights", "weight_"), ("constants", "tensor_")])
def test_a_pickled_weight_or_constant_is_refused(changed, kind, prefix):
    mark = with_pickle(kind)
    hit = []

    def change(name, data):
        if f"data/{kind}/{prefix}" in name:
            hit.append(name)
            return pickled(Evil())
        return mark(name, data)

    path = changed(change)
    assert hit
    with pytest.raises(Untrusted, match="pickled with"):
        archives.read_program(path)


@pytest.mark.parametrize("prefix", ["custom_obj_", "opaque_obj_"])
def test_an_object_among_the_constants_is_refused(changed, prefix):
    def change(name, data):
        if not name.endswith("model_constants_config.json"):
            return data
        config = json.loads(data)
        config["config"]["evil"] = {
            "path_name": f"{prefix}0",
            "is_param": False,
            "use_pickle": True,
            "tensor_meta": None,
        }
        return json.dumps(config)

    with pytest.raises(Untrusted, match="its constant 'evil' is a pickled object"):
        archives.read_program(changed(change))


def test_a_compiled_library_is_refused(changed):
    path = changed(lambda name, data: data)
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/data/aotinductor/model/a.so", b"\x7fELF")
    with pytest.raises(Untrusted, match="it holds a compiled library"):
        archives.read_program(path)


@pytest.mark.parametrize(
    "member", ["serialized_state_dict.pt", "serialized_constants.pt", "serialized_example_inputs.pt"]
)
def test_a_payload_in_the_older_layout_is_refused(good, tmp_path, member):
    path = old_layout(good, tmp_path / "old.pt2", {member: pickled({"x": Evil()})})
    with pytest.raises(Untrusted, match=r"pickled with \S*payload"):
        archives.read_program(path)


def old_layout(good, path, members, edit=lambda program: None):
    with zipfile.ZipFile(good) as source:
        (name,) = [name for name in source.namelist() if name.endswith("models/model.json")]
        program = json.loads(source.read(name))
    edit(program)
    state = {
        "linear.weight": nn.Parameter(torch.ones(4, 4)),
        "linear.bias": nn.Parameter(torch.ones(4)),
        "table": torch.ones(4),
    }
    records = {
        "version": ".".join(str(program["schema_version"][part]) for part in ("major", "minor")),
        "serialized_exported_program.json": json.dumps(program),
        "serialized_state_dict.pt": pickled(state),
        "serialized_constants.pt": pickled({"lifted_tensor_0": torch.ones(4)}),
        "serialized_example_inputs.pt": pickled(((torch.ones(6, 4),), {"scale": 2.0})),
        **members,
    }
    with zipfile.ZipFile(path, "w") as target:
        for name, data in records.items():
            target.writestr(name, data)
    return path


def test_the_older_layout_is_read_and_looked_at(good, tmp_path):
    path = old_layout(good, tmp_path / "old.pt2", {})
    assert archives.read_program(path).graph.find_nodes(op="output")
    path = old_layout(good, path, {}, lambda program: program.update(guards_code=["__import__('os').system('x')"]))
    with pytest.raises(Untrusted, match="the guard .* is no"):
        archives.read_program(path)


# payloads in the program itself

IMPORT = "__import__('os').system('x')"


def nodes(program):
    return program["graph_module"]["graph"]["nodes"]


def root_call(program):
    return program["graph_module"]["module_call_graph"][0]["signature"]


def set_size(text):
    def edit(program):
        graph = program["graph_module"]["graph"]
        value = next(v for v in graph["tensor_values"].values() if "as_expr" in v["sizes"][0])
        value["sizes"][0]["as_expr"]["expr_str"] = text

    return edit


def set_spec(which, **part):
    def edit(program):
        protocol, root = json.loads(root_call(program)[which])
        root["children_spec"][-1].update(part)
        root_call(program)[which] = json.dumps([protocol, root])

    return edit


def enum(context):
    return json.dumps([{"__enum__": True, "fqn": "test_archives_payload:X", "name": context}])


PROGRAMS = {
    "size": (set_size(IMPORT), "the size .* is not arithmetic"),
    "size, by attribute": (set_size("s0.__class__"), "the size .* is not arithmetic"),
    "size, by lambda": (set_size("(lambda: 1)()"), "the size .* is not arithmetic"),
    "size, by text": (set_size(f'Symbol("{IMPORT}")'), "the size .* is not arithmetic"),
    "size, by name": (set_size("exit(1)"), "the size .* is not arithmetic"),
    "size, two lines": (set_size("1\nimport os"), "the size .* is not an expression"),
    "guard": (lambda p: p.update(guards_code=[IMPORT + " == 1"]), "the guard .* is not arithmetic"),
    "guard, by text": (lambda p: p.update(guards_code=['L["x"] == 1']), "the guard .* is not a comparison"),
    "guard, by comment": (lambda p: p.update(guards_code=["1 == 1) #"]), "the guard .* is not a comparison"),
    "guard, by torch": (lambda p: p.update(guards_code=["torch.os.system('x') == 1"]), "the guard .* is not arithm"),
    "guard, by class": (lambda p: p.update(guards_code=["L.__class__ == 1"]), "the guard .* is not arithmetic"),
    "call of a function": (lambda p: nodes(p)[0].update(target="torch.os.system"), "it calls 'torch.os.system'"),
    "call of a class": (lambda p: nodes(p)[0].update(target="torch.hub.load"), "it calls 'torch.hub.load'"),
    "call by another root": (lambda p: nodes(p)[0].update(target="torchx.os.system"), "it calls 'torchx.os.system'"),
    "call of a method caller": (lambda p: nodes(p)[0].update(target="_operator.methodcaller"), "_operator.methodc"),
    "call through a class": (lambda p: nodes(p)[0].update(target="torch.ops.aten.__class__"), "aten.__class__'"),
    "call of a packet": (lambda p: nodes(p)[0].update(target="torch.ops.aten.add"), "it calls 'torch.ops.aten.add'"),
    "reading a file": (lambda p: nodes(p)[0].update(target="torch._ops.ops.aten.from_file.default"), "reads or wri"),
    "a function as an argument": (
        lambda p: nodes(p)[0]["inputs"].append({"name": "f", "arg": {"as_operator": "torch.os.system"}, "kind": 1}),
        "it calls 'torch.os.system'",
    ),
    "name of a node": (lambda p: nodes(p)[0].update(name="a):\n import os\ndef f("), "is not a valid name"),
    "name of an argument": (lambda p: nodes(p)[0]["inputs"][0].update(name="a=1, b"), "is not a valid name"),
    "name of an input": (
        lambda p: root_call(p).update(forward_arg_names=[f"x={IMPORT}", "scale"]),
        "is not a valid name",
    ),
    "name of an input in its container": (
        set_spec("in_spec", context=json.dumps([f"x={IMPORT}"])),
        "is not a valid name",
    ),
    "name of a parameter": (
        lambda p: p["graph_module"]["signature"]["input_specs"][0]["parameter"].update(
            parameter_name=f'a", 0) or {IMPORT}'
        ),
        "is not a valid name of a parameter",
    ),
    "import of an enum": (set_spec("out_spec", context=enum("A")), "name classes to import"),
    "import of a factory": (
        set_spec(
            "out_spec",
            type="collections.defaultdict",
            children_spec=[],
            context={"default_factory_module": "os", "default_factory_name": "abort", "dict_context": []},
        ),
        "name classes to import",
    ),
    "object of a class": (
        lambda p: nodes(p)[0]["inputs"].append(
            {"name": "o", "arg": {"as_custom_obj": {"name": "o", "class_fqn": "x"}}, "kind": 1}
        ),
        "an object of a custom class",
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_payload_in_the_program_is_refused(changed, what):
    edit, text = PROGRAMS[what]
    with pytest.raises(Untrusted, match=f"cannot read .* without executing code from it: .*{text}"):
        archives.read_program(changed(in_program(edit)))


@pytest.mark.parametrize("text", ["Integer(4)", "Symbol('s77', positive=True, integer=True)", "2 * 3"])
def test_arithmetic_of_sizes_is_no_payload(text):
    archives._size(text)


@pytest.mark.parametrize("names", ["TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"])
def test_the_environment_is_left_as_it_was(good, changed, monkeypatch, names):
    monkeypatch.setenv(names, "1")
    before = dict(os.environ)
    archives.read_program(good)
    with pytest.raises(Untrusted):
        archives.read_program(changed(lambda name, data: pickled(Evil()) if "sample_inputs" in name else data))
    assert dict(os.environ) == before


def test_a_file_that_is_trusted_is_read_as_torch_reads_it(changed):
    path = changed(lambda name, data: pickled(((Evil(),), {})) if "sample_inputs" in name else data)
    assert archives.read_program(path, trust=True).example_inputs is not None
    assert RAN == [1]
    RAN.clear()


@dataclasses.dataclass
class Own:
    x: int


def test_sample_inputs_of_a_class_of_the_users_own_are_refused_by_name(changed):
    path = changed(lambda name, data: pickled(((Own(1),), {})) if "sample_inputs" in name else data)
    with pytest.raises(Untrusted, match=r"test_archives.Own"):
        archives.read_program(path)


# damage


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"x" * 100, b"\x80\x02."])
def test_what_is_no_archive_is_unreadable(tmp_path, content):
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(UnreadableArchive, match="it is not a .pt2 archive, or damaged"):
        archives.read_program(path)


DAMAGE = {
    "no program": lambda name, data: None if "models/" in name else data,
    "empty program": lambda name, data: b"" if "models/" in name else data,
    "a program of another kind": lambda name, data: b"[1]" if "models/" in name else data,
    "deep nesting": lambda name, data: b"[" * 100_000 + b"]" * 100_000 if "models/" in name else data,
    "no weights": lambda name, data: None if "weights" in name else data,
    "short weights": lambda name, data: data[:4] if "weights/weight_" in name else data,
    "no text": lambda name, data: b"\xff\xfe" if "models/" in name else data,
    "no version": lambda name, data: None if "archive_version" in name else data,
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_reported_with_the_name_of_the_file(changed, what):
    path = changed(DAMAGE[what])
    with pytest.raises(
        UnreadableArchive, match="^cannot read .*evil.pt2: (it is damaged|it is not a .pt2 archive, or damaged) "
    ):
        archives.read_program(path)


def test_the_first_damage_is_reported(changed):
    path = changed(DAMAGE["short weights"])
    with pytest.raises(UnreadableArchive) as caught:
        archives.read_program(path)
    assert str(caught.value).startswith(f"cannot read {path}: it is damaged (RuntimeError: setStorage: sizes [4, 4]")


# what PyTorch lacks to read it


@pytest.mark.parametrize("trust", [False, True])
def test_ops_that_nothing_registers_are_named(changed, trust):
    path = changed(in_program(lambda p: nodes(p)[0].update(target="torch.ops.nolib.noop.default")))
    with pytest.raises(Unregistered) as caught:
        archives.read_program(path, trust)
    assert str(caught.value) == (
        f"cannot read {path}: it calls nolib.noop.default, and no imported module registers ops of 'nolib'\n"
        "  to do: pass --import MODULE, with the module that registers them"
    )


def test_ops_among_the_arguments_of_calls_are_named_too(changed):
    argument = {"name": "op", "arg": {"as_operator": "torch.ops.nolib.noop.default"}, "kind": 1}
    path = changed(in_program(lambda p: nodes(p)[0]["inputs"].append(argument)))
    with pytest.raises(Unregistered, match="it calls nolib.noop.default, and no imported module"):
        archives.read_program(path)


def test_a_package_that_is_not_installed_is_named(changed):
    path = changed(in_program(lambda p: nodes(p)[0].update(target="torch.ops.torch_sparse.spmm_sum.default")))
    with pytest.raises(Unregistered, match="to do: pip install torch_sparse, or pass --import MODULE"):
        archives.read_program(path)


def test_a_newer_format_is_named(changed):
    path = changed(in_program(lambda p: p.update(schema_version={"major": 99, "minor": 1}, torch_version="4.0.0")))
    with pytest.raises(Newer) as caught:
        archives.read_program(path)
    assert str(caught.value) == (
        f"cannot read {path}: PyTorch 4.0.0 wrote it, in version 99 of the format, and this PyTorch reads up to 8\n"
        "  to do: update PyTorch, or export the program with this one"
    )


QUANTISED = """
import sys, torch, torch.ao.quantization.fx._decomposed
class Q(torch.nn.Module):
    def forward(self, x):
        return torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.1, 0, -128, 127, torch.int8)
torch.export.save(torch.export.export(Q(), (torch.randn(2, 8),)), sys.argv[1])
"""
OWN_OP = """
import torch
lib = torch.library.Library("ownops", "DEF")
lib.define("twice(Tensor x) -> Tensor")
lib.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
torch.library.register_fake("ownops::twice", torch.empty_like, lib=lib)
"""
SAVING = """
import sys, torch, own_op
class M(torch.nn.Module):
    def forward(self, x):
        return torch.ops.ownops.twice(x)
torch.export.save(torch.export.export(M(), (torch.randn(2, 8),)), sys.argv[1])
"""


def in_process(folder, *command):
    how = {"cwd": folder, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, *map(str, command)], **how)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("code, options", [(QUANTISED, []), (SAVING, ["--import", "own_op"])], ids=["known", "named"])
def test_ops_of_known_packages_and_of_modules_that_are_named_are_imported(tmp_path, code, options):
    (tmp_path / "own_op.py").write_text(OWN_OP)
    assert in_process(tmp_path, "-c", code, "saved.pt2").returncode == 0
    done = in_process(tmp_path, "-m", "decomp", "lower", "saved.pt2", "--to", "core_aten", "--partial", *options)
    assert done.returncode == 0, done.stderr


def test_a_module_that_is_named_and_is_not_there_is_reported(tmp_path):
    torch.export.save(torch.export.export(nn.ReLU(), (torch.randn(2),)), tmp_path / "relu.pt2")
    words = ["lower", str(tmp_path / "relu.pt2"), "--to", "core_aten", "--import", "nowhere"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2 and "importing nowhere raised ModuleNotFoundError" in result.stderr
