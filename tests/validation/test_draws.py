"""Which values depend on random draws, and that the others of a random program are compared."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.proof.correspondence import ValuesDiffer
from decomp.validation.draws import drawn_values
from decomp.validation.whole_programs import NOT_COMPARED, whole_programs
from decomp_rules import targets
from tests.forms import Holder

DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "rand": lambda x: torch.rand(3, 4) + x,
    "randperm": lambda x: x[torch.randperm(3)],
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 2),
    "normal": lambda x: torch.normal(x, 1.0),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: torch.rand_like(x) + x, lambda x: x + 1, (x,)),
    "rrelu": lambda x: F.rrelu(x, training=True),
}


def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Mixed(nn.Module):
    """Two results, one of which is drawn."""

    def __init__(self, draw, off=0.0):
        super().__init__()
        self.draw, self.off, self.scale = draw, off, nn.Parameter(torch.ones(4))

    def forward(self, x):
        return {"drawn": self.draw(x * self.scale), "kept": (x * self.scale).exp() + self.off}


@pytest.mark.parametrize("draw", DRAWS)
def test_results_that_depend_on_draws_are_known_by_name(draw):
    program = torch.export.export(Mixed(DRAWS[draw]), (x(),))
    assert drawn_values(program).names == {"result['drawn']"} and not drawn_values(program).every
    assert drawn_values(program.module()).names == {"result['drawn']"}
    assert not drawn_values(torch.export.export(Mixed(torch.relu), (x(),)))


def test_the_results_and_gradients_that_depend_on_no_draw_are_compared():
    model = Mixed(DRAWS["dropout"])
    said = decomp.lower(model, to=targets.tinygrad, args=(x(),), verify="values").proof.checks[-1]
    assert "1 result within" in said and "1 gradient within" in said
    assert said.endswith("; 1 result not compared, as it depends on random numbers")
    program = torch.export.export(model, (x(),))
    with pytest.raises(ValuesDiffer, match=r"^result\['kept'\] of the lowered program differs: it gives"):
        whole_programs(model, Mixed(DRAWS["dropout"], 0.01), (x(),), {}, drawn=drawn_values(program))


def test_what_is_drawn_has_the_dtype_and_the_dimensions_of_the_source():
    model = Mixed(DRAWS["rand"])
    program = torch.export.export(model, (x(),))
    for draw, said in (
        (lambda x: torch.rand(3, 4).double(), "float64 with 2 dimensions"),
        (lambda x: torch.rand(3), "float32 with 1 dimension"),
    ):
        with pytest.raises(ValuesDiffer) as raised:
            whole_programs(model, Mixed(draw), (x(),), {}, drawn=drawn_values(program))
        expected = f"is a tensor of {said}, and a tensor of float32 with 2 dimensions of the source"
        assert str(raised.value).splitlines()[0] == f"result['drawn'] of the lowered program {expected}"


def test_sizes_may_be_drawn():
    model = Holder(lambda x: (torch.rand(30) > 0.5).nonzero())
    other = Holder(lambda x: (torch.rand(30) > 0.1).nonzero())
    drawn = drawn_values(torch.export.export(model, (x(),)))
    assert whole_programs(model, other, (x(),), {}, drawn=drawn) == NOT_COMPARED


class Noise(nn.Module):
    """Writes what it draws to a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("noise", torch.zeros(3, 4))

    def forward(self, x):
        self.noise.copy_(torch.rand(3, 4))
        return x.exp()


def test_what_is_written_may_be_drawn_where_results_are_not():
    program = torch.export.export(Noise(), (x(),)).run_decompositions()
    assert {*drawn_values(program).names} == {" afterwards"}
    assert "['noise'] afterwards" in drawn_values(program) and "result" not in drawn_values(program)
    said = whole_programs(Noise(), program, (x(),), {})
    assert "1 result within" in said
    assert said.endswith("; 1 changed tensor not compared, as it depends on random numbers")


def test_of_a_random_graph_that_writes_nothing_is_compared_unless_another_shows_what_is_drawn():
    program = torch.export.export(Noise(), (x(),))
    writes = program.module()
    assert drawn_values(writes).every and whole_programs(Noise(), writes, (x(),), {}) == NOT_COMPARED
    assert "1 result within" in whole_programs(
        Noise(), writes, (x(),), {}, drawn=drawn_values(program.run_decompositions())
    )
