"""A lock: the same lowering is accepted, another is refused with what differs, and a file that is not one is named."""

import dataclasses
import json
import pickle

import pytest
import torch
from torch import nn
import torch.nn.functional as F

import decomp
from decomp.errors import LockMismatch
from decomp.locking.comparing import compare
from decomp.locking.lock import Lock
from decomp_rules import targets


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        left, right = self.linear(x * self.scale).chunk(2, -1)
        return F.gelu(left) * right + torch.arange(4)


def lowered(lock=None, model=None, to=targets.tinygrad, **options):
    torch.manual_seed(0)
    return decomp.lower(model or Gated(), to=to, args=(torch.randn(2, 4),), lock=lock, **options)


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "gated.lock"
    lowered(path)
    return path


def mismatch(lock, **options):
    with pytest.raises(LockMismatch) as error:
        lowered(lock, **options)
    return error.value


def test_the_same_lowering_is_accepted_and_leaves_the_file_as_it_is(lock):
    before = lock.read_text()
    assert Lock.load(lock) == Lock.of(lowered(str(lock)))
    assert lock.read_text() == before


def test_weights_are_not_locked(lock):
    torch.manual_seed(1)
    other = Gated()
    other.scale.fill_(3.0)
    lowered(lock, other)


def test_names_of_nodes_make_no_difference(lock):
    class Renamed(Gated):
        def forward(self, other):
            return super().forward(other)

    lowered(lock, Renamed())


def test_an_option_is_named_with_the_calls_that_it_changed(lock):
    error = mismatch(lock, accuracy="fast")
    assert "options: accuracy: fast, was standard" in error.changes
    (calls,) = [line for line in error.changes if line.startswith("how calls of the source are lowered: ")]
    assert calls.partition(": ")[2].startswith("aten.gelu.default(f32[2, 4]): gelu_by_binary, ")
    assert str(error).splitlines()[0] == f"the lowered program is not that of {lock}"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_another_target_is_named(lock):
    lines = mismatch(lock, to=targets.core_aten).changes
    ops = [len(each.conditions()) for each in (targets.core_aten, targets.tinygrad)]
    assert lines[0] == f"the target: target: core_aten of {ops[0]} ops, was tinygrad of {ops[1]} ops"


def rules_with(slope):
    rules = decomp.Rules()

    def leaky(x):
        return torch.maximum(x, x * slope)

    rules.register("relu")(leaky)
    return rules


def test_a_rule_whose_code_closes_over_another_number_is_named(tmp_path):
    chip = decomp.Target("chip", ["maximum", "mul"])
    path = tmp_path / "relu.lock"
    decomp.lower(nn.ReLU(), to=chip, args=(torch.ones(2),), rules=rules_with(0.0), lock=path)
    with pytest.raises(LockMismatch) as error:
        decomp.lower(nn.ReLU(), to=chip, args=(torch.ones(2),), rules=rules_with(0.5), lock=path)
    assert "rules: leaky: its code changed" in error.value.changes
    assert error.value.changes[-1].startswith("the lowered program: program: line 2 is %")


def test_a_constant_of_other_values_is_named(tmp_path):
    def table(value):
        rules = decomp.Rules()
        rules.register("relu")(lambda x: x + torch.tensor([value, 1.0]))
        return rules

    chip = decomp.Target("chip", ["add"])
    path = tmp_path / "table.lock"
    decomp.lower(nn.ReLU(), to=chip, args=(torch.ones(2),), rules=table(2.0), lock=path, verify=False)
    with pytest.raises(LockMismatch, match="a constant of other values"):
        decomp.lower(nn.ReLU(), to=chip, args=(torch.ones(2),), rules=table(3.0), lock=path, verify=False)


def test_another_pytorch_is_accepted_where_the_program_is_the_same(lock):
    data = json.loads(lock.read_text())
    data["versions"]["torch"] = "2.12.0"
    lock.write_text(json.dumps(data))
    low = lowered(lock)
    found = compare(Lock.load(lock), Lock.of(low))
    assert found.is_same_program and found.summary() == [f"versions: PyTorch: {torch.__version__}, was 2.12.0"]
    assert found.headline.endswith(": 1 change") and found.lines == ()


@pytest.mark.parametrize("kind", ["exported", "open size", "branches"])
def test_programs_of_every_kind_are_the_same_again(tmp_path, kind):
    class Branches(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))

    x = torch.randn(3, 4)
    dynamic = ({0: torch.export.Dim("n", min=2)},) if kind == "open size" else None
    model = Branches() if kind == "branches" else Gated()
    for _ in range(2):
        program = torch.export.export(model, (x,), dynamic_shapes=dynamic)
        decomp.lower(program, to=targets.core_aten, lock=tmp_path / "program.lock")
    lines = Lock.load(tmp_path / "program.lock").program
    assert len(lines) == (3 if kind == "branches" else 1)


def test_a_diff_of_programs_shows_the_lines(lock):
    found = compare(Lock.load(lock), Lock.of(lowered(accuracy="exact")))
    assert not found.is_same_program and found.lines[:2] == ("--- before", "+++ after")
    assert any(line.startswith("+%gelu") for line in found.lines)
    assert next(title for title, _ in found.by_kind()) == "options"
    assert json.loads(json.dumps(found.as_dict()))["same_program"] is False


def test_no_lock_is_written_where_lowering_fails(tmp_path):
    with pytest.raises(decomp.NotLowered):
        lowered(tmp_path / "none.lock", to=decomp.Target("chip", ["add"]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a lock, or is damaged"),
        ('{"kind": "decomp snapshot"}', "is not a lock, or is damaged"),
        ('{"kind": "decomp lock", "format": 99}', "is of format 99, and this decomp reads format 1"),
        ('{"kind": "decomp lock", "format": 1}', "is a damaged lock: KeyError: 'target'"),
    ],
)
def test_a_file_that_is_not_a_lock_is_refused(tmp_path, text, message):
    path = tmp_path / "bad.lock"
    path.write_text(text)
    with pytest.raises(decomp.errors.ArgumentError) as error:
        lowered(path)
    assert str(error.value).startswith(f"{path} {message}") and "to do: make it by decomp.lower(" in str(error.value)
    assert path.read_text() == text


def test_where_no_file_can_be_is_said_before_lowering(tmp_path):
    with pytest.raises(decomp.errors.ArgumentError, match=r"lock= .*: there is no directory .*missing"):
        lowered(tmp_path / "missing" / "x.lock")
    with pytest.raises(decomp.errors.ArgumentError, match=r"lock= .*: is a directory"):
        lowered(tmp_path)
    with pytest.raises(decomp.errors.ArgumentError, match="lock= must be the path of a file, not int"):
        lowered(3)


def test_a_constant_more_is_named(lock):
    locked = Lock.load(lock)
    more = dataclasses.replace(locked, tensors={**locked.tensors, "more": "f32[1] 0"})
    (change,) = compare(locked, more).changes
    assert (change.about, change.text) == ("more", "new, f32[1] 0") and not compare(locked, more).is_same_program
    twice = dataclasses.replace(more, tensors={**more.tensors, "twice": "f32[1] 0"})
    (change,) = compare(more, twice).changes
    assert change.about == "twice"


def test_a_constant_of_another_name_is_the_same(lock):
    locked = Lock.load(lock)
    one, other = (dataclasses.replace(locked, tensors={**locked.tensors, name: "f32[1] 0"}) for name in ("a", "b"))
    assert compare(one, other).changes == ()


def test_constants_that_changed_places_are_named(lock):
    locked = Lock.load(lock)
    one, other = (dataclasses.replace(locked, tensors={"a": a, "b": b}) for a, b in (("0", "1"), ("1", "0")))
    (change,) = compare(one, other).changes
    assert change.text == "the same values in another order" and not compare(one, other).is_same_program
