"""Several methods of a model in one report."""

import pytest
import torch
from torch import nn

import decomp
from decomp.results import Methods
from decomp_rules import targets


class Steps(nn.Module):
    """A model of two methods."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.own = nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False)


class Prefill(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.shared(x).relu()


class Decode(Prefill):
    def forward(self, x, past):
        return self.model.own(self.model.shared(x) + past).erf()


def plans(to=targets.core_aten, plan=decomp.plan):
    model, x, token = Steps(), torch.ones(8, 4), torch.ones(1, 4)
    decode = plan(torch.export.export(Decode(model), (token, torch.ones(1, 4))), to=to)
    return {"prefill": plan(torch.export.export(Prefill(model), (x,)), to=to), "decode": decode}


def test_weights_of_all_methods_count_once_and_inputs_for_each():
    found = Methods.of(plans())
    assert [each.name for each in found.methods] == ["prefill", "decode"]
    assert [each.inputs for each in found.methods] == [8 * 4 * 4, 2 * 4 * 4]
    assert found.weights == (16 + 8) * 4
    assert all(each.weights == found.weights for each in found.methods)  # a wrapper holds the whole model


def test_programs_that_were_loaded_apart_share_weights_by_name():
    first, second = plans()["prefill"], plans()["prefill"]
    assert Methods.of({"one": first, "two": second}).weights == Methods.of({"one": first}).weights


def test_ops_say_which_methods_need_them():
    found = Methods.of(plans())
    assert found.ops["aten.mm.default" if "aten.mm.default" in found.ops else "aten.addmm.default"].keys() >= {"decode"}
    assert found.ops["aten.relu.default"] == {"prefill": 1} and found.ops["aten.erf.default"] == {"decode": 1}
    assert list(found.ops)[-1] in ("aten.relu.default", "aten.erf.default", "aten.add.Tensor")


def test_a_plan_and_a_lowering_count_the_same_calls_of_the_source():
    planned, lowered = Methods.of(plans()), Methods.of(plans(plan=decomp.lower))
    assert [each.before for each in planned.methods] == [each.before for each in lowered.methods] == [2, 4]
    assert planned.weights == lowered.weights and all(each.peak > 0 for each in lowered.methods)


def test_what_blocks_a_method_is_in_its_row():
    chip = decomp.Target("chip", ["mm", "permute", "relu", "add", "mul", "sum.dim_IntList", "view"])
    found = Methods.of(plans(chip))
    assert not found.complete and found.blocked == ("aten.erf",)
    assert [each.blocked for each in found.methods] == [(), ("aten.erf",)]
    lines = str(found).splitlines()
    assert lines[0] == found.headline == f"2 methods on chip: {len(found.ops)} ops, weights of 96 B"
    assert lines[3].startswith("  decode") and lines[3].endswith("aten.erf")
    assert lines[4].startswith("  all, weights once") and "<table>" in found._repr_html_()
    assert found.as_dict()["methods"][1]["blocked"] == ("aten.erf",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Methods.of() takes plans or lowerings by name, not {}"),
        (3, "Methods.of() takes plans or lowerings by name, not 3"),
        (
            {"decode": 3},
            "'decode' is of type int, not a plan or a lowering\n  to do: pass what decomp.plan or decomp.lower returns",
        ),
    ],
)
def test_what_is_no_lowering_is_refused(given, said):
    with pytest.raises(decomp.errors.ArgumentError) as caught:
        Methods.of(given)
    assert str(caught.value) == said


def test_methods_have_one_target():
    with pytest.raises(decomp.errors.ArgumentError) as caught:
        Methods.of({"prefill": plans()["prefill"], "decode": plans(targets.tinygrad)["decode"]})
    assert str(caught.value) == (
        "the methods are lowered to several targets, core_aten and tinygrad\n"
        "  to do: pass lowerings to one target, and compare targets by a report of each"
    )
