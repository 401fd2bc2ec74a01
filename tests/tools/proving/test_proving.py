"""`decomp prove`: what a proof holds, that it goes on, that it is checked without a rule, and how two differ."""

from dataclasses import replace
import json

import pytest
import torch

import decomp
from decomp.advice.jobs import Setting
from decomp.rules.library import library
from decomp.tools.proving.checking import check
from decomp.tools.proving.comparing import compare
from decomp.tools.proving.proving import prove, table_of
from decomp.tools.proving.records import TargetProof
from decomp_rules import targets
from tests.commands import run, said

OPS = ("add", "dropout", "fft_fft", "gelu", "nonzero", "split", "square")
"""With legal, blocked and random calls, complex numbers, and several results."""


def asked(to=targets.tinygrad, **options):
    return lambda: (to, decomp.Options(**options))


@pytest.fixture(scope="module")
def proof():
    return prove(asked(), ops=OPS)


@pytest.fixture(scope="module")
def saved(proof, tmp_path_factory):
    path = tmp_path_factory.mktemp("proofs") / "proof.json"
    proof.save(path)
    return path


def test_a_proof_has_the_derivation_of_each_call_and_the_program_that_it_becomes(proof):
    assert list(proof.ops) == sorted(f"aten.{op}" for op in OPS) and proof.lost == {}
    (call, *_) = proof.ops["aten.gelu"]
    assert call.verdict == "derived" and call.rules[0] in {rule.name for rule in library().of(decomp.op("gelu"))}
    assert sum(call.calls.values()) == len(
        [row for row in call.program if row[0] not in ("input", "constant", "output")]
    )
    assert call.ulp is not None and call.own_ulp is not None and proof.ops["aten.add"][0].verdict == "legal"
    assert len(proof.rules[next(rule for rule in proof.rules if rule.endswith(" for aten.gelu"))]) == 16


def test_a_proof_is_read_as_it_was_written(proof, saved, tmp_path):
    found = TargetProof.load(saved)
    found.save(tmp_path / "copy.json")
    assert (tmp_path / "copy.json").read_text() == saved.read_text()
    assert found.headline == proof.headline and compare(proof, found).changes == ()


def test_two_proofs_of_one_environment_are_equal(saved, tmp_path):
    again = prove(asked(), ops=("gelu", "split"))
    first = TargetProof.load(saved)
    again.save(tmp_path / "again.json")
    assert TargetProof.load(tmp_path / "again.json").ops.items() <= first.ops.items()


def test_the_smallest_set_is_enough_for_a_blocked_call():
    few = decomp.Target("few", ["add"])
    (call, *_) = prove(asked(few), ops=["square"]).ops["aten.square"]
    assert call.verdict == "blocked" and ("mul",) in call.needs and call.is_smallest and "aten.square" in call.reason
    for needs in call.needs:
        (same, *_) = prove(asked(few | needs), ops=["square"]).ops["aten.square"]
        assert same.is_reached, needs


def test_the_table_has_ops_for_which_there_is_no_rule():
    names = table_of(Setting.of(targets.tinygrad, decomp.Options()))
    assert {"aten.linalg_eig", "aten.nonzero", "aten.gelu", "aten.exp2", "operator.getitem"} <= {*names}
    assert len(names) == len({*names}) > 800


def test_an_op_whose_result_depends_on_data_waits_for_itself(proof):
    assert {(call.verdict, call.needs) for call in proof.ops["aten.nonzero"]} == {("blocked", (("nonzero",),))}
    assert proof.blocking_sets() == [(("nonzero",), ["aten.nonzero"], len(proof.ops["aten.nonzero"]))]


def test_a_proof_goes_on_where_it_ended(proof):
    looked_at, kept = [], []
    part = replace(proof, ops={op: calls for op, calls in proof.ops.items() if op != "aten.add"})
    found = prove(
        asked(),
        ops=OPS,
        known=part,
        progress=lambda done, total, op: looked_at.append((done, total, op)),
        save=kept.append,
    )
    assert looked_at == [(len(OPS), len(OPS), "aten.add")]
    assert found.ops == proof.ops and found.rules == proof.rules and kept[-1] == found


def test_a_proof_that_is_interrupted_is_saved(proof):
    kept = []

    def interrupt(done, total, op):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prove(asked(), ops=["add", "square"], progress=interrupt, save=kept.append)
    assert list(kept[-1].ops) == ["aten.add"]


@pytest.mark.parametrize(
    "other",
    [
        {"to": targets.tinygrad - ["exp2"]},
        {"accuracy": "fast"},
        {"rules": {"relu": lambda x: x * (x > 0)}},  # a function of yours, which may be another tomorrow
    ],
    ids=["target", "accuracy", "rules"],
)
def test_a_proof_of_something_else_is_begun_anew(proof, other):
    looked_at = []
    prove(asked(**other), ops=["add"], known=proof, progress=lambda done, total, op: looked_at.append(op))
    assert looked_at == ["aten.add"]


def asked_of_tinygrad():
    return targets.tinygrad, decomp.Options()


@pytest.mark.filterwarnings("ignore")  # of the cluster's own event loop, when it closes
def test_ops_are_proved_and_checked_over_dask(proof):
    distributed = pytest.importorskip("distributed", reason="needs Dask: pip install decomp[dask]")
    how = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "protocol": "tcp", "dashboard_address": None}
    with distributed.LocalCluster(**how) as cluster, distributed.Client(cluster) as client:
        found = prove(asked_of_tinygrad, ops=["square"], executor=client.get_executor())
        assert found.ops.items() <= proof.ops.items() and found.lost == {} and len(found.ops) == 1
        assert check(found, asked_of_tinygrad, executor=client.get_executor()).counts["checked"] == 1


# checking


def refuse(*args, **kwargs):
    raise AssertionError("a rule ran")


def test_a_proof_is_checked_without_running_a_rule(proof):
    rules = decomp.Rules({op: refuse for op in ("gelu", "square", "fft_fft", "dropout", "split")})
    found = check(proof, asked(rules=rules))
    assert found.ok and found.faults == []
    assert found.counts["checked"] > 10 and found.counts["open"] == 1
    assert found.counts["unseen"] == len(proof.ops["aten.nonzero"])


def first_call(proof, op):
    return proof.ops[f"aten.{op}"][0]


def altered(proof, op, **changes):
    return replace(proof, ops={f"aten.{op}": (replace(first_call(proof, op), **changes),)})


def with_row(call, at, row):
    return (*call.program[:at], row, *call.program[at + 1 :])


def why_wrong(proof, to=targets.tinygrad):
    ((_, why),) = check(proof, asked(to)).faults
    return why


def last_call(call):
    return max(i for i, row in enumerate(call.program) if row[0].startswith("aten."))


def test_an_op_that_the_target_lacks_is_found(proof):
    call = first_call(proof, "gelu")
    at = last_call(call)
    row = ["aten.erfinv.default", call.program[at][1][:1]]
    assert (
        why_wrong(altered(proof, "gelu", program=with_row(call, at, row)))
        == "tinygrad does not have aten.erfinv.default"
    )


def test_a_call_that_the_target_takes_under_a_condition_is_found(proof):
    call = first_call(proof, "gelu")
    op = next(iter(call.calls)).removeprefix("aten.").partition(".")[0]
    strict = targets.tinygrad.legal_if(op, lambda call: False, "never")
    assert why_wrong(altered(proof, "gelu"), strict) == f"aten.{op} is not legal: never"


def test_other_values_are_found(proof):
    call = first_call(proof, "gelu")
    at = last_call(call)
    row = ["aten.add.Tensor", [["node", 0], ["node", 0]]]
    said_of_it = why_wrong(altered(proof, "gelu", program=with_row(call, at, row)))
    assert "not used" in said_of_it or "differ" in said_of_it


def test_another_dtype_is_found(proof):
    program = [
        ["input", "x0"],
        ["input", "x1"],
        ["aten.lt.Scalar", [["node", 0], 0]],
        ["output", ["node", 2]],
    ]
    false = altered(proof, "add", verdict="derived", program=tuple(program))
    assert why_wrong(false) == "it returns bool[4, 4] on cpu, and the op float32[4, 4] on cpu"


def test_a_call_that_is_no_longer_legal_is_found(proof):
    assert why_wrong(altered(proof, "add"), targets.tinygrad - ["add"]).startswith("it is not legal")


def test_a_call_that_is_not_blocked_is_found(proof):
    assert why_wrong(altered(proof, "add", verdict="blocked")) == "the target takes it"


def test_a_blocked_call_that_the_host_could_make_is_not_taken_by_the_target():
    found = prove(asked(), ops=["equal"])
    assert [call.verdict for call in found.ops["aten.equal"]] == ["blocked"]
    assert check(found, asked()).counts["unseen"] == 1


def test_a_call_that_the_table_does_not_have_is_found(proof):
    false = altered(proof, "add", call="aten.add.Tensor(float32[9], float32[9])")
    assert why_wrong(false) == "the table of sample calls does not have it"


@pytest.mark.parametrize("row", [["os.system.default", []], ["aten.mul.Tensor", [["node", 99]]], ["input"]])
def test_a_damaged_program_is_found(proof, row):
    call = first_call(proof, "gelu")
    false = altered(proof, "gelu", program=with_row(call, last_call(call), row))
    assert why_wrong(false).startswith("its program is damaged: ")


def test_rules_and_a_target_that_changed_are_noted(proof):
    rules = {name: "0" * 16 if name.endswith(" for aten.gelu") else code for name, code in proof.rules.items()}
    notes = check(replace(altered(proof, "gelu"), rules=rules, conditions={}, header={}), asked()).notes
    assert notes[0].startswith(f"it was made with torch None, and checked with {torch.__version__}")
    assert notes[1].startswith("the target tinygrad changed since: ") and notes[1].endswith(" and more")
    assert " for aten.gelu" in notes[2] and notes[2].endswith("what they recorded is checked")


# differences


def test_what_is_no_longer_reached_comes_first(proof):
    few = decomp.Target("tinygrad", ["add"])
    found = compare(proof, prove(asked(few), ops=["add", "square"]))
    kinds = list(dict.fromkeys(change.kind for change in found.changes))
    assert kinds[0] == "unreached" and not found.is_same and {"table", "target"} <= set(kinds)
    assert compare(prove(asked(few), ops=["square"]), proof).changes[0].kind == "reached"


def test_another_derivation_is_a_change_and_another_version_is_none(proof):
    fast = prove(asked(accuracy="fast"), ops=OPS)
    assert {change.kind for change in compare(proof, fast).changes} == {"derived"}
    newer = replace(proof, header={**proof.header, "torch": "9.0"})
    assert compare(proof, newer).is_same and compare(proof, newer).changes[0].text.startswith("9.0, was ")


def test_proofs_of_two_targets_are_not_compared(proof):
    with pytest.raises(decomp.errors.ArgumentError) as error:
        compare(proof, replace(proof, target="chip"))
    assert str(error.value) == "one proof is of the target tinygrad, the other of chip: compare those of one"


# the command


def test_the_command_proves_goes_on_checks_and_compares(proof, tmp_path):
    path = tmp_path / "proof.json"
    replace(proof, ops={op: proof.ops[op] for op in ("aten.add", "aten.nonzero")}).save(path)
    result = run("prove", "--to", "tinygrad", "--workers", 1, "-o", path, "--op", "gelu")
    lines = result.output.splitlines()
    assert result.exit_code == 0 and lines[0] == "tinygrad: 2 of 3 ops reached, by 8 of 9 sample calls"
    assert any(line.split() == ["nonzero", "1", "nonzero"] for line in lines) and lines[-1] == f"saved {path}"
    checked = run("prove", "--check", path, "--workers", 1)
    assert checked.exit_code == 0 and checked.output.startswith("tinygrad: the proof holds in ")
    assert run("diff", path, path).output.strip().endswith("the same in everything")

    data = json.loads(path.read_text())
    data["ops"]["aten.add"][0]["verdict"] = "blocked"
    (tmp_path / "other.json").write_text(json.dumps(data))
    wrong = run("prove", "--check", tmp_path / "other.json", "--workers", 1)
    assert wrong.exit_code == 1 and "the target takes it" in wrong.output
    differ = run("diff", path, tmp_path / "other.json")
    assert differ.exit_code == 1 and "no longer reached (1)" in differ.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("prove",), "error: name a target: --to TARGET"),
        (("prove", "--to", "tinygrad", "-o", "proof.txt"), "error: -o proof.txt: the name must end in .json"),
        (("prove", "--to", "tinygrad", "--op", "gelo"), "error: unknown op 'gelo'; did you mean 'gelu'"),
        (("prove", "--check", "none.json"), "error: none.json: No such file or directory"),
        (("diff", "a.json"), "error: a.json: name another proof to compare it with: OLD.json NEW.json"),
        (("diff", "a.json", "mlp"), "error: a.json: name another proof to compare it with: OLD.json NEW.json"),
    ],
)
def test_wrong_words_are_refused(words, message):
    code, text = said(run(*words))
    assert code == 2 and text.startswith(message)
