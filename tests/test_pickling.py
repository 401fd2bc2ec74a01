"""Objects that can be sent to another process, and those that say why they cannot."""

import copy
import importlib
import pickle
import pkgutil
import subprocess
import sys

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp import errors
from decomp.errors import Blocker
from decomp.rules.limitation import Limitation
from decomp_rules import RULES, samples, targets
from tests.documents import ROOT
from tests.pickled import again


def own_relu(x):
    return torch.clamp(x, min=0)


def is_wide(call):
    return call.argument("dim") == 1


def sorting_node():
    graph = fx.Graph()
    return graph.call_method("sort", (graph.placeholder("x"),))


def family(cls=errors.DecompError):
    for module in pkgutil.walk_packages(decomp.__path__, "decomp."):
        if not module.name.endswith(("__main__", "worker", "ulp_plot", "plots")):
            importlib.import_module(module.name)
    return sorted({cls, *(each for sub in cls.__subclasses__() for each in family_of(sub))}, key=lambda c: c.__name__)


def family_of(cls):
    return [cls, *(each for sub in cls.__subclasses__() for each in family_of(sub))]


FAMILY = family()


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__name__)
def test_every_error_of_the_family_comes_back_with_type_message_and_attributes(kind):
    error = kind.__new__(kind, "what happened")
    error.args = ("what happened",)
    error.node, error.target, error.local, error.count = sorting_node(), "chip", lambda: 0, 3
    for found in (again(error), copy.deepcopy(error)):
        assert type(found) is kind and str(found) == str(error) and found.args == ("what happened",)
        assert found.node == "node 'sort' (call_method sort)" and found.target == "chip" and found.count == 3
        assert "<lambda>" in found.local
    assert copy.copy(error).node is error.node


def made():
    """Errors made as the package makes them."""
    local = decomp.Rules({F.relu: lambda x: x})["relu"][0]
    yield decomp.errors.UnknownOp("rleu", ["relu"])
    yield decomp.errors.TargetError("no name")
    yield decomp.CaptureError("no graph")
    yield decomp.errors.MutationError("lost")
    yield decomp.errors.RuleError(local, "mutates its input", "use another", sorting_node())
    yield decomp.errors.RuleCycle(RULES["gelu"][0], "calls itself")
    yield decomp.NotLowered("chip", [Blocker("aten.sort", ("sort",), None, (), None, "depends on data")])
    yield decomp.VerificationError("lost", sorting_node(), sorting_node(), expected=1, found=sorting_node())
    yield errors.InternalError("lower", ValueError("odd"))
    yield errors.ArgumentError("args= must be a tuple")


@pytest.mark.parametrize("error", list(made()), ids=lambda error: type(error).__name__)
def test_errors_come_back_as_they_were_made(error):
    for found in (again(error), copy.deepcopy(error)):
        assert type(found) is type(error) and str(found) == str(error)
        assert found.__dict__.keys() == error.__dict__.keys()


def test_a_rule_in_an_error_comes_back_where_it_can_be_found_and_as_its_name_elsewhere():
    assert again(decomp.errors.RuleError(RULES["gelu"][0], "is slow")).rule is RULES["gelu"][0]
    local = decomp.Rules({F.relu: lambda x: x})["relu"][0]
    assert again(decomp.errors.RuleError(local, "is slow")).rule == str(local)


def test_what_blocks_comes_back_with_the_error():
    blockers = (Blocker("aten.sort", ("sort",), "model.py:3", (("rule", "no"),), "x", None),)
    assert again(decomp.NotLowered("chip", blockers)).blockers == blockers


def test_notes_on_an_error_travel():
    error = decomp.CaptureError("no graph")
    error.add_note("in block 3")
    assert again(error).__notes__ == ["in block 3"]


IN_A_POOL = """
import concurrent.futures, multiprocessing
import pytest
import decomp
from decomp_rules import RULES
from tests.pickled import again, lower_to_nothing

with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
    for _ in range(2):
        with pytest.raises(decomp.NotLowered, match="1 op cannot be lowered to none") as caught:
            pool.submit(lower_to_nothing, 0).result()
        assert caught.value.blockers[0].op == "aten.gelu"
    print(len(pool.submit(again, RULES).result()))
"""


def test_a_process_pool_outlives_an_error():
    command = [sys.executable, "-c", IN_A_POOL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{len(RULES)}\n", "")


# rules and targets


def test_the_rules_of_the_library_come_back_as_themselves():
    found = again(RULES)
    assert found.entries == RULES.entries and found.composites == RULES.composites


def test_rules_of_a_module_come_back_and_serve():
    rules = decomp.Rules({F.relu: own_relu, "aten.exp": torch.ops.aten.exp.default}) | RULES
    found = again(rules)
    assert found["relu"][0].function is own_relu and found["relu"][1] is RULES["relu"][0]
    assert found["exp"][0].function is torch.ops.aten.exp.default
    lowered = decomp.lower(nn.ReLU(), to=decomp.Target("c", ["clamp"]), rules=found, args=(torch.ones(3),))
    assert "own_relu" in str(lowered.report())


def test_rules_of_a_table_come_back():
    table = decomp.Rules.from_torch({torch.ops.aten.relu.default: own_relu})
    (rule,) = again(table)
    assert rule.overload is torch.ops.aten.relu.default and rule.function is own_relu


def test_a_local_rule_says_why_it_cannot_travel():
    rules = decomp.Rules({F.relu: lambda x: x})
    with pytest.raises(errors.NotPortable, match=r"rule <lambda> \(test_pickling.py:\d+\) cannot be pickled: "):
        pickle.dumps(rules)
    rules.limit("sort", reason="data", when=lambda call: True)
    with pytest.raises(TypeError, match="limitation aten.sort: data cannot be pickled: "):
        pickle.dumps(rules.limitations[0])


def test_a_copy_of_rules_is_a_collection_of_its_own():
    rules = decomp.Rules({F.relu: lambda x: torch.clamp(x, min=0)})
    decomp.lower(nn.ReLU(), to=decomp.Target("c", ["clamp"]), rules=rules, args=(torch.ones(3),))
    for found in (copy.copy(rules), copy.deepcopy(rules)):
        found.register("exp")(own_relu)
        assert len(found) == 2 and len(rules) == 1 and found["relu"] == rules["relu"]
    assert copy.deepcopy(RULES).entries == RULES.entries


def test_a_limitation_comes_back():
    found = again(Limitation(decomp.op("sort"), "depends on data", when=is_wide))
    assert (found.op, found.reason, found.when) == (decomp.op("sort"), "depends on data", is_wide)


@pytest.mark.parametrize("name", targets.names())
def test_targets_of_the_library_come_back(name):
    target = targets.get(name)
    found = again(target)
    assert (found.name, found.conditions(), found.description) == (name, target.conditions(), target.description)
    assert copy.deepcopy(target) is target


def test_a_target_from_a_file_decides_alike_when_it_comes_back(tmp_path):
    path = tmp_path / "chip.toml"
    path.write_text(
        'ops = ["relu"]\n[[when]]\nop = "softmax"\nargument = "dim"\none_of = [1, 2]\n'
        '[[when]]\nop = "exp"\ndtype = "float"\n'
    )
    for target in (decomp.Target.load(path), again(decomp.Target.load(path))):
        for dim, legal in ((1, True), (0, False)):
            program = torch.export.export(nn.Softmax(dim), (torch.ones(2, 2, 2),))
            (call,) = decomp.calls(program, "softmax")
            assert (target.why_illegal(call) is None) == legal


def test_a_target_with_a_predicate_travels_where_the_predicate_can():
    chip = decomp.Target("chip", ["exp"])
    assert again(chip.legal_if("softmax", is_wide, "dim is 1")).conditions() == [
        ("aten.exp", ""),
        ("aten.softmax", "dim is 1"),
    ]
    local = chip.legal_if("softmax", lambda call: True, "dim is 1")
    with pytest.raises(errors.NotPortable, match="target chip, legal only if dim is 1, cannot be pickled: (.|\n)*TOML"):
        pickle.dumps(local)


# lowerings


@pytest.fixture(scope="module", params=samples.MODELS)
def lowering(request):
    model, args = samples.model(request.param)
    return decomp.lower(model, to=targets.core_aten, args=args)


@pytest.mark.sampled(3)
def test_report_proof_and_provenance_of_a_lowering_come_back(lowering):
    node = list(lowering.internals.pieces[0].graph.nodes)[-2].name
    for record in (lowering.report(), lowering.proof, lowering.provenance(node), lowering.blockers):
        assert again(record) == record and copy.deepcopy(record) == record


@pytest.mark.sampled(3)
def test_a_lowering_and_its_plan_say_what_to_pickle_instead(lowering):
    with pytest.raises(errors.NotPortable, match="pickle lowering.report()"):
        pickle.dumps(lowering)
    with pytest.raises(errors.NotPortable, match="or plan.blockers"):
        pickle.dumps(lowering.plan)


@pytest.mark.sampled(3)
def test_a_copy_of_a_lowering_keeps_its_provenance(lowering):
    names = [node.name for node in lowering.internals.pieces[0].graph.nodes if node.op == "call_function"]
    for found in (copy.copy(lowering), copy.deepcopy(lowering)):
        assert [found.provenance(name) for name in names] == [lowering.provenance(name) for name in names]
        assert str(found.plan) == str(lowering.plan)
    assert copy.copy(lowering).result is lowering.result


def test_a_deep_copy_of_a_lowering_is_verified_like_the_lowering():
    model, args = samples.model("mlp")
    for program in (model, torch.export.export(model, args), fx.symbolic_trace(model)):
        lowered = decomp.lower(program, to=targets.core_aten, args=args)
        found = copy.deepcopy(lowered)
        assert found is not lowered and found.result is lowered.result
        assert decomp.verify(program, found).checks == decomp.verify(program, lowered).checks


def test_a_certificate_comes_back():
    found = decomp.certify(RULES["deg2rad"][0], dtypes=[torch.float32])
    assert again(found) == found
