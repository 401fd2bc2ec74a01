"""What a program loses, op by op: on programs whose errors anybody can work out, and on a model, held against a run of
what was lowered."""

import copy
import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.validation import error_sources
from tests.forms import Holder

CHIP = decomp.Target("chip", ["add", "mul", "sin", "matmul", "mm", "linear", "where", "gt", "sum", "view", "clone"])
X = torch.linspace(-1, 1, 64).reshape(8, 8)


def off_by(factor, exact=lambda x: x):
    """A rule that is wrong by a factor that float32 holds."""
    return lambda x: exact(x) * (1 + factor)


def budget(function, rules, *args, **how):
    return decomp.budget(Holder(function), to=CHIP, rules=rules, args=args or (X,), **how)


SMALL = 2.0**-10


def test_two_outputs_share_the_squared_error_as_their_errors_say():
    rules = {"neg": off_by(SMALL, lambda x: x * -1), "positive": off_by(2 * SMALL)}
    found = budget(lambda x: (torch.neg(x), torch.positive(x) * 1), rules)
    assert found["neg"].share == pytest.approx(0.2, rel=1e-4)
    assert found["positive"].share == pytest.approx(0.8, rel=1e-4)
    assert found.error == pytest.approx(math.sqrt((SMALL**2 + 4 * SMALL**2) / 2), rel=1e-4)
    assert found["neg"].error == pytest.approx(SMALL / math.sqrt(2), rel=1e-4)
    assert (found["neg"].own, found.original) == (0, 0)
    assert found.growth == math.inf
    assert [loss.op for loss in found.losses][:2] == ["aten.positive", "aten.neg"]


def test_errors_that_make_up_for_each_other_have_shares_of_both_signs():
    rules = {"neg": off_by(3 * SMALL, lambda x: x * -1), "tanh": off_by(SMALL), "relu": off_by(0)}
    found = budget(lambda x: torch.neg(x) * 2 + torch.tanh(x), rules)
    shares = [loss.share for loss in found.losses]
    assert sum(shares) + found.interaction == pytest.approx(1)
    assert found["tanh"].share > 1 and found["neg"].share < 0 or found["neg"].share > 1 > found["tanh"].share


def test_errors_add_up_and_what_they_do_to_each_other_is_the_interaction():
    rules = {"neg": off_by(0.5, lambda x: x * -1), "abs": off_by(0.5, lambda x: torch.where(x > 0, x, x * -1))}
    found = budget(lambda x: torch.abs(torch.neg(x)), rules)  # 1.5 · 1.5 = 1 + 0.5 + 0.5 + 0.25
    shares = (found["neg"].share, found["abs"].share, found.interaction)
    assert found.error == pytest.approx(1.25)
    # The error of abs is taken as it was in that run, where its operand was 1.5 times too large: 0.75 of 1.25.
    assert shares == pytest.approx((0.4, 0.6, 0.0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.sin(F.relu(self.first(x))))


def bad_relu(x):
    return torch.where(x > 0, x * (1 + SMALL), x * 0)


def test_an_op_that_is_bad_on_purpose_gets_nearly_all_of_the_error():
    found = decomp.budget(Net(), to=CHIP, rules={"relu": bad_relu}, args=(X,))
    assert found["relu"].share > 0.999
    assert abs(found.interaction) < 1e-3
    assert found.growth > 100
    assert 0 < found["linear"].own < 1e-6
    assert found["linear"].error == pytest.approx(found["linear"].own, rel=0.2)
    assert sum(loss.share for loss in found.losses) + found.interaction == pytest.approx(1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_the_error_of_a_model_is_that_of_its_lowered_program(name):
    from decomp_rules import samples, targets

    module, args = samples.model(name)
    found = decomp.budget(module, to=targets.tinygrad, args=args)
    lowered = decomp.lower(module, to=targets.tinygrad, args=args).result
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(*(a.double() if a.is_floating_point() else a for a in args))
        error = (lowered(*args).double() - exact).norm() / exact.norm()
    assert found.error == pytest.approx(float(error), rel=0.05)
    assert sum(loss.share for loss in found.losses) + found.interaction == pytest.approx(1)
    assert abs(found.interaction) < 0.1


def test_the_source_is_run_once_an_op_however_many_layers_there_are(monkeypatch):
    runs = []
    original = error_sources.Experiment._run
    monkeypatch.setattr(error_sources.Experiment, "_run", lambda *args: runs.append(1) or original(*args))

    def counted(layers):
        runs.clear()
        chain = nn.Sequential(*(Holder(lambda x: torch.sin(F.relu(x) * 1.1)) for _ in range(layers)))
        decomp.budget(chain, to=CHIP, rules={"relu": bad_relu}, args=(X,))
        return len(runs)

    assert counted(1) == counted(6)


def test_nan_where_a_number_should_be_is_the_fault_of_the_op_that_makes_it():
    rules = {"relu": lambda x: x * float("inf"), "neg": off_by(SMALL, lambda x: x * -1)}
    found = budget(lambda x: torch.neg(F.relu(x)), rules)
    assert (found.error, found["relu"].error, found["relu"].share) == (math.inf, math.inf, 1.0)
    assert (found["neg"].share, found.interaction) == (0.0, 0.0)


def test_where_the_exact_value_is_no_number_nothing_is_wrong():
    found = budget(lambda x: torch.sin(F.relu(x)), {"relu": bad_relu}, torch.tensor([float("inf"), -1.0, 2.0]))
    assert 0 < found.error < 0.01


class Dropped(nn.Module):
    def forward(self, x):
        return F.relu(F.dropout(x, 0.5, True)) * 3


def test_random_ops_draw_the_same_in_all_runs_and_lose_nothing():
    chip = CHIP | ["rand_like", "lt", "dropout", "native_dropout", "bernoulli"]
    before = torch.random.get_rng_state()
    first, second, other = (
        decomp.budget(Dropped(), to=chip, rules={"relu": bad_relu}, args=(X,), seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert first == second
    assert first.random and first["relu"].share > 0.999
    assert other["relu"].share > 0.999


def test_the_bodies_of_control_flow_are_part_of_the_program():
    def chosen(x):
        return torch.cond(x.sum() > 0, lambda x: F.relu(x), lambda x: F.relu(x) * 2, (x,)) * 3

    found = budget(chosen, {"relu": bad_relu}, X + 0.1)
    assert found["relu"].share > 0.999
    assert found["relu"].calls == 4  # of the branch that ran


class Loop(nn.Module):
    def forward(self, x):
        count = torch.tensor(0)
        return torch._higher_order_ops.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, torch.tanh(x) * 1.5), (count, x)
        )[1]


def test_a_loop_runs_as_often_as_it_does():
    rules = {"tanh": lambda x: torch.sin(x) * 0.9}
    found = decomp.budget(Loop(), to=CHIP | ["lt", "lift_fresh_copy", "detach"], rules=rules, args=(X,))
    assert found["tanh"].share > 0.9
    assert found.error > 0.01


def test_a_half_precision_program_is_compared_with_float64():
    found = decomp.budget(Net().bfloat16(), to=CHIP, rules={"relu": bad_relu}, args=(X.bfloat16(),))
    assert 1e-4 < found.original < 0.1
    assert found["linear"].own > found["linear"].error / 10 > 0


def test_a_table_and_data():
    found = decomp.budget(Net(), to=CHIP, rules={"relu": bad_relu}, args=(X,))
    text = str(found).splitlines()
    assert text[0] == found.headline
    assert text[0].startswith("error ") and f" on chip at {found.accuracy}, " in text[0]
    assert text[2].split() == ["op", "error", "calls", "of", "all", "alone", "PyTorch's", "at", "other", "levels"]
    assert text[3].split()[:2] == ["relu", "100%"]
    assert json.loads(json.dumps(found.as_dict()))["losses"][0]["op"] == "aten.relu"
    with pytest.raises(KeyError, match="the program has no calls of aten.gelu; it has aten.relu"):
        found[F.gelu]


# What cannot be measured.


def test_without_inputs_there_is_nothing_to_run():
    with pytest.raises(decomp.DecompError, match=r"measured by running it: pass args=\(...\)"):
        decomp.budget(Net(), to=CHIP, rules={"relu": bad_relu})


def test_an_exported_program_brings_its_own_inputs():
    program = torch.export.export(Net(), (X,))
    assert decomp.budget(program, to=CHIP, rules={"relu": bad_relu})["relu"].share > 0.999


def test_inputs_that_do_not_fit():
    program = torch.export.export(Net(), (X,))
    with pytest.raises(decomp.DecompError, match="does not accept these inputs"):
        decomp.budget(program, to=CHIP, rules={"relu": bad_relu}, args=(X, X))


def test_a_program_without_float_outputs():
    with pytest.raises(decomp.DecompError, match="returns no floats"):
        budget(lambda x: F.relu(x) > 0, {"relu": bad_relu})


def test_a_program_in_float64():
    with pytest.raises(decomp.DecompError, match="computes in float64"):
        budget(F.relu, {"relu": bad_relu}, X.double())


def test_a_program_that_is_not_lowered():
    with pytest.raises(decomp.NotLowered, match="aten.tanh"):
        budget(torch.tanh, {"relu": bad_relu})
