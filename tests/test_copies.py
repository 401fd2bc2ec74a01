"""Returned objects can be copied and pickled with equal meaning, or say why not and what to do instead."""

import copy
import pickle
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules import RULES, backends, samples, targets
from tests.pickled import again

X = torch.randn(2, 4)
MODEL = nn.Sequential(nn.Linear(4, 4), nn.GELU())
PROGRAM = torch.export.export(MODEL, (X,))
TRACED = torch.fx.symbolic_trace(MODEL)
CHIP = targets.tinygrad
LOWERING = decomp.lower(PROGRAM, to=CHIP)
MODULE = decomp.lower(MODEL, to=CHIP, args=(X,)).result
FEW = decomp.Target("few", ["add", "mul"])


def gelu_of_linear(x, w, b):
    return F.gelu(F.linear(x, w, b))


def read_beside(x):
    y = F.relu(x)
    return y + 1, y


def own_relu(x):
    return x.clamp(min=0)


def raised(function, *args, **kwargs):
    with pytest.raises(decomp.DecompError) as error:
        function(*args, **kwargs)
    return error.value


PORTABLE = {
    "report": lambda: LOWERING.report(),
    "provenance": lambda: LOWERING.provenance(next(n for n in LOWERING.result.graph.nodes if n.op == "call_function")),
    "proof": lambda: LOWERING.proof,
    "costs": lambda: LOWERING.plan.costs(),
    "suggestion": lambda: decomp.plan(PROGRAM, to=FEW).suggest(),
    "target": lambda: CHIP.with_dtypes(["float32"]),
    "rules": lambda: decomp.Rules({F.relu: own_relu}, version="1.3"),
    "op": lambda: decomp.op("relu"),
    "pattern": lambda: decomp.Pattern.of(gelu_of_linear),
    "budget": lambda: decomp.budget(PROGRAM, to=CHIP, args=(X,)),
    "advice": lambda: decomp.advise({"mine": PROGRAM}, to=FEW),
    "refold report": lambda: decomp.refold(LOWERING).report(),
    "certificate": lambda: decomp.certify(RULES["relu"][0], samples=[(X,)]),
    "sample": lambda: samples.calls_of(torch.ops.aten.gelu)[0],
    "limitation": lambda: RULES.limitations[0],
    "declined": lambda: decomp.decline("no"),
    "not lowered": lambda: raised(decomp.lower, PROGRAM, to=FEW),
    "input mismatch": lambda: raised(MODULE, torch.randn(2, 5)),
}


@pytest.mark.parametrize("make", PORTABLE.values(), ids=PORTABLE)
def test_copies_of_it_mean_the_same(make):
    found = make()
    for other in (copy.copy(found), copy.deepcopy(found), again(found)):
        assert type(other) is type(found) and str(other) == str(found)


def test_a_version_comes_back_with_the_rules():
    rules = again(decomp.Rules({F.relu: own_relu}, version="1.3"))
    assert rules.version == "1.3" and rules["relu"][0].version == "1.3"


def test_a_sample_calls_the_same_op_when_it_comes_back():
    sample = again(samples.calls_of(torch.ops.aten.gelu)[0])
    assert sample.overload is torch.ops.aten.gelu.default


def test_a_backend_of_the_library_comes_back_as_itself():
    for name in ("numpy", "tinygrad"):
        assert again(backends.get(name)) is backends.get(name)


def test_a_backend_for_torch_compile_comes_back_and_lowers():
    backend = again(decomp.backend(to=CHIP, accuracy="exact"))
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(MODEL, backend=backend)(X), MODEL(X))


HOLDS = "it holds nodes of your program\n  to do: pickle "
BOUND = {
    "a Match": (
        lambda: decomp.match(TRACED, lambda x: F.gelu(x))[0],
        f"{HOLDS}str(match), or the names of match.nodes",
    ),
    "a NearMiss": (
        lambda: decomp.match(torch.fx.symbolic_trace(read_beside), lambda x: F.relu(x) + 1).refused[0],
        f"{HOLDS}str(miss)",
    ),
    "a Call": (
        lambda: next(iter(decomp.ir.call.calls(MODULE, "mul"))),
        f"{HOLDS}str(call.op) and what you need of call.arguments",
    ),
    "a MemoryPlan": (
        lambda: decomp.memory_plan(LOWERING),
        f"{HOLDS}str(plan), or plan the program's memory in the other process",
    ),
    "a Refolding": (
        lambda: decomp.refold(LOWERING),
        f"{HOLDS}refolding.report(); save refolding.result by torch.export.save where it is an ExportedProgram, or "
        "pickle it where it is a GraphModule",
    ),
}


@pytest.mark.parametrize("what", BOUND)
def test_what_holds_nodes_is_copied_with_the_same_ones_and_says_what_to_pickle(what):
    make, why = BOUND[what]
    found = make()
    message = f"{what} cannot be pickled: {why}"
    with pytest.raises(decomp.errors.NotPortable, match=f"^{re.escape(message)}$"):
        pickle.dumps(found)
    for other in (copy.copy(found), copy.deepcopy(found)):
        assert type(other) is type(found) and str(other) == str(found)
        assert getattr(other, "root", None) is getattr(found, "root", None)


def test_a_program_on_a_backend_says_what_to_do_instead():
    loaded = backends.numpy.load(LOWERING)
    with pytest.raises(decomp.errors.NotPortable) as said:
        pickle.dumps(loaded)
    assert str(said.value) == (
        "a program on the backend numpy cannot be pickled: it holds arrays and code of this process\n"
        "  to do: save the lowered program, and load it on the backend in the other process"
    )
    with pytest.raises(decomp.errors.NotPortable) as said:
        copy.deepcopy(loaded)
    assert str(said.value) == (
        "a program on the backend numpy cannot be copied with its arrays\n  to do: load the lowered program again"
    )


def test_objects_with_local_functions_say_where_to_define_them():
    own = decomp.Backend("mine", from_torch=lambda x: x, to_torch=lambda x: x)
    compiling = decomp.backend(to=CHIP, rules={F.relu: lambda x: x})
    messages = []
    for what in (own, decomp.Pattern.of(lambda x: F.relu(x), "relu"), compiling):
        with pytest.raises(decomp.errors.NotPortable) as said:
            pickle.dumps(what)
        messages.append(re.sub(" at 0x[0-9a-f]+", "", str(said.value)))
    assert messages[0] == (
        "the backend mine cannot be pickled: it is a table of functions\n"
        "  to do: define it at the top level of a module, and import it in the other process"
    )
    assert messages[1].startswith("pattern relu cannot be pickled: ")
    assert messages[1].endswith("\n  to do: define its function at the top level of a module, under a name of its own")
    assert messages[2].startswith("a backend for torch.compile cannot be pickled: ")
    assert messages[2].endswith("\n  to do: make it in the other process, by decomp.backend(...)")
