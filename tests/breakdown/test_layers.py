"""What layers cost: which are one row, and that nothing is counted twice or lost."""

import pytest
import torch
from torch import fx, nn

import decomp
from decomp.breakdown.layers import _numbers
from decomp_rules import samples, targets


class Block(nn.Module):
    def __init__(self, gated: bool = False) -> None:
        super().__init__()
        self.linear, self.gated = nn.Linear(4, 4), gated

    def forward(self, x):
        found = self.linear(x)
        return found * found.sigmoid() if self.gated else found.relu()


class Model(nn.Module):
    """Blocks of two kinds in turn, and a last one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.layers = nn.ModuleList(Block(gated=i % 2 == 1) for i in range(6))
        self.layers[5].linear = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x + 1)


@pytest.fixture(scope="module")
def lowering():
    return decomp.lower(Model(), to=targets.core_aten, args=(torch.zeros(3, dtype=torch.int64),))


def test_equal_blocks_are_one_row_and_others_rows_of_their_own(lowering):
    rows = {row.path: (row.kind, row.count, row.before) for row in lowering.layers().rows}
    assert rows == {
        "": ("", 1, 1),
        "embed": ("Embedding", 1, 1),
        "layers.0, 2, 4": ("Block", 3, 6),
        "layers.1, 3": ("Block", 2, 6),
        "layers.5": ("Block", 1, 3),
        "head": ("Linear", 1, 1),
    }


def test_calls_are_those_of_the_report_and_costs_those_of_the_program(lowering):
    total, report = lowering.layers().total, lowering.report()
    assert (total.before, total.after) == (sum(report.before.values()), sum(report.after.values()))
    assert total.operations == decomp.costs.total(lowering.result, decomp.costs.flops)
    assert total.moved == decomp.costs.total(lowering.result, decomp.costs.bytes)


def test_weights_count_once_for_the_first_module_that_has_them(lowering):
    weights = {row.path: row.weights for row in lowering.layers().rows}
    assert weights["embed"] == 8 * 4 * 4 and weights["head"] == 0
    assert weights["layers.0, 2, 4"] == 3 * (16 + 4) * 4
    assert lowering.layers().total.weights == sum(p.numel() * 4 for p in lowering.internals.model.parameters())


def test_a_plan_has_the_layers_of_the_program_before_it_is_simplified(lowering):
    plan = decomp.plan(Model(), to=targets.core_aten, args=(torch.zeros(3, dtype=torch.int64),))
    assert [row.path for row in plan.layers().rows] == [row.path for row in lowering.layers().rows]
    assert plan.layers().total.after == plan.costs().calls == lowering.report().unsimplified


def test_the_table_says_how_many_blocks_a_row_is(lowering):
    lines = str(lowering.layers()).splitlines()
    assert lines[0] == f"layers on core_aten: 18 calls became {lowering.layers().total.after}"
    assert any(line.split()[:3] == ["layers.0,", "2,", "4"] and line.endswith("3 × Block") for line in lines)
    assert "100%" in lines[-1] and "<table>" in lowering.layers()._repr_html_()
    assert lowering.layers().as_dict()["rows"][1]["path"] == "embed"


def test_an_exported_program_and_a_trace_have_the_same_layers():
    model, args = samples.model("encoder")
    exported = decomp.lower(torch.export.export(model, args), to=targets.core_aten).layers()
    assert exported == decomp.lower(model, to=targets.core_aten, args=args).layers()
    assert [row.path for row in exported.rows] == ["layers.0, 1"]


def test_a_program_without_module_paths_has_no_layers():
    traced = fx.symbolic_trace(lambda x: torch.relu(x))
    with pytest.raises(decomp.errors.ArgumentError) as caught:
        decomp.lower(traced, to=targets.core_aten, args=(torch.ones(2),)).layers()
    assert str(caught.value) == (
        "the calls of this program have no module paths (nn_module_stack), so there are no layers\n"
        "  to do: lower the nn.Module, or its ExportedProgram"
    )


def test_numbers_are_spelled_as_runs_and_steps():
    assert _numbers([0, 1, 2, 3]) == "0…3" and _numbers([1, 3, 5, 7]) == "1, 3…7"
    assert _numbers([0, 1]) == "0, 1" and _numbers([0, 1, 5]) == "0, 1, 5"
