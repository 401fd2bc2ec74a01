"""Times of calls: measured once, kept in a file, and for each call of its own. Nothing here asks how long a call
takes."""

import json

import pytest
import torch
from torch import nn

import decomp
from decomp import costs
from decomp.costs import measuring
from tests.forms import exported

X = torch.ones(3, 4)


def call_of(function, *args, **how):
    return decomp.calls(exported(function, *args), **how)[-1]


def lines(directory):
    (path,) = directory.iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def counted(monkeypatch):
    """How often something was timed; each is a microsecond longer than the one before."""
    timed = []

    def seconds(call, device):
        timed.append(str(call.op))
        return 1e-6 * len(timed)

    monkeypatch.setattr(measuring, "_seconds", seconds)
    measuring._times.cache_clear()
    yield timed
    measuring._times.cache_clear()


def test_a_call_is_timed_once_and_a_file_keeps_it(tmp_path, counted):
    measured = costs.Measured(str(tmp_path))
    exp, other = call_of(torch.exp, X), call_of(torch.exp, torch.ones(5))
    assert [measured(exp), measured(other), measured(exp)] == [1, 2, 1]
    measuring._times.cache_clear()  # as in another process
    assert [measured(exp), measured(other)] == [1, 2]
    assert counted == ["aten.exp", "aten.exp"]
    machine, *taken = lines(tmp_path)
    assert machine["torch"] == torch.__version__
    assert taken == [
        {"call": "aten.exp.default(float32[3, 4]:[4, 1])", "microseconds": 1.0},
        {"call": "aten.exp.default(float32[5]:[1])", "microseconds": 2.0},
    ]


def test_shapes_dtypes_strides_and_numbers_are_calls_of_their_own():
    texts = {
        measuring.call_as_text(call_of(lambda x, n=n: x.mul(n), x))
        for x in (X, X.T, X.double(), torch.ones(4, 3))
        for n in (2, 3)
    }
    assert len(texts) == 8
    assert "aten.mul.Tensor(float32[4, 3]:[1, 4], 2)" in texts


def test_a_file_that_is_damaged_costs_its_damaged_lines(tmp_path, counted):
    measured = costs.Measured(str(tmp_path))
    measured(call_of(torch.exp, X))
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text() + '{"call": "x", "micro\n[]\n{"call": 3, "microseconds": 1}\n')
    measuring._times.cache_clear()
    assert measured(call_of(torch.exp, X)) == 1
    assert len(counted) == 1


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path, counted):
    (tmp_path / "file").write_text("")
    assert costs.Measured(str(tmp_path / "file"))(call_of(torch.exp, X)) == 1


def test_the_directory_is_the_user_s(tmp_path, monkeypatch, counted):
    monkeypatch.setenv("DECOMP_CACHE", str(tmp_path))
    assert costs.measured(call_of(torch.exp, X)) == 1
    assert len(lines(tmp_path)) == 2


def test_no_cache_keeps_times_in_memory_alone(tmp_path, monkeypatch, counted):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECOMP_CACHE", "off")
    assert [costs.measured(call_of(torch.exp, X)) for _ in range(2)] == [1, 1]
    assert len(counted) == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.exp, (X,)),
        (lambda w, i: torch.index_select(w, 0, i), (torch.ones(1, 4), torch.tensor([0, 0]))),  # ones are out of range
        (lambda x: torch.div(x, 3, rounding_mode="floor"), (torch.ones(3, dtype=torch.int64),)),
        (lambda x, y: torch.div(x, y, rounding_mode="floor"), (torch.ones(3, dtype=torch.int64),) * 2),  # zeros are
        (lambda x: torch.exp(x.expand(4, 3, 4)), (X,)),
        (lambda c, x: torch.where(c, x, 0), (X > 0, X)),
        (lambda x: torch.cat([x, x]), (X,)),
        (lambda x: x.sum((0, 1)), (X.to(torch.complex64),)),
        (lambda x: torch.rand(3) + x, (torch.ones(3),)),
    ],
)
def test_calls_of_many_kinds_can_be_timed(tmp_path, function, args):
    before = torch.random.get_rng_state()
    for call in decomp.calls(exported(function, *args)):
        assert costs.Measured(str(tmp_path))(call) > 0
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_call_that_does_not_run_is_reported():
    @torch.library.custom_op("costs_test::nowhere", mutates_args=())
    def nowhere(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such device")

    nowhere.register_fake(torch.empty_like)
    with pytest.raises(decomp.DecompError) as caught:
        costs.measured(call_of(nowhere, X))
    assert str(caught.value) == (
        "costs_test.nowhere.default(float32[3, 4]:[4, 1]) cannot be timed here: RuntimeError: no such device\n"
        "  to do: price it in a table, decomp.costs.table"
    )


def test_ways_are_chosen_by_what_was_measured(tmp_path, monkeypatch):
    taken = {"aten.sin": 5e-6, "aten.exp": 1e-6, "aten.mul": 1e-6}
    monkeypatch.setattr(measuring, "_seconds", lambda call, device: taken[str(call.op)])
    measuring._times.cache_clear()
    rules = decomp.Rules()
    rules.register("tanh", name="by sin")(lambda x: torch.sin(x))
    rules.register("tanh", name="by exp")(lambda x: torch.exp(x) * 2)
    plan = decomp.plan(
        nn.Tanh(),
        to=decomp.Target("chip", ["mul", "exp", "sin"]),
        rules=rules,
        args=(X,),
        cost=costs.Measured(str(tmp_path)),
    )
    (derived,) = plan.derived.values()
    assert derived.rule.name == "by exp"
    assert derived.passed_over[0][1] == "costlier: 5, not 2"
