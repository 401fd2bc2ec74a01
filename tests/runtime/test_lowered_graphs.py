"""What a backend of `torch.compile` says of the graphs that it lowered: records, their table, the log and warnings."""

import gc
import logging
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules import targets

CORE = targets.core_aten - {F.gelu}
pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Gelu(nn.Module):
    def forward(self, x):
        return F.gelu(x) * 2


LINE = f"test_lowered_graphs.py:{Gelu.forward.__code__.co_firstlineno + 1} return F.gelu(x) * 2"


def trained(*rows):
    """A backend, and a module that it compiled, after a step of training on inputs of so many rows each."""
    backend = decomp.backend(to=CORE)
    compiled = torch.compile(Gelu(), backend=backend, dynamic=False)
    for count in rows:
        compiled(torch.ones(count, 2, requires_grad=True)).sum().backward()
    return backend, compiled


def test_training_has_a_record_before_autograd_and_of_forward_and_backward():
    backend, compiled = trained(3, 3)
    before, forward, backward = backend.graphs
    assert [each.stage for each in backend.graphs] == ["before autograd", "forward", "backward"]
    assert [each.called for each in backend.graphs] == [None, 2, 2]
    assert {(each.compilation, each.line, each.recompiled, each.behind_autograd) for each in backend.graphs} == {
        ("0/0", LINE, "", "")
    }
    assert "aten.gelu.default" in before.report.before
    assert not any("aten.gelu.default" in each.report.before for each in (forward, backward))
    assert list(before.seconds) == ["trace", "lower"] and list(forward.seconds) == ["lower", "compile"]
    assert before.seconds["lower"] == sum(before.report.seconds.values()) > 0 < forward.seconds["compile"]
    assert all("f32[3, 2] = aten.mul.Tensor(" in each.program for each in backend.graphs)


def test_a_recompilation_has_the_reason_that_dynamo_gives():
    backend, compiled = trained(3, 4)
    assert [each.compilation for each in backend.graphs] == ["0/0"] * 3 + ["0/1"] * 3
    assert {each.recompiled for each in backend.graphs[:3]} == {""}
    (reason,) = {each.recompiled for each in backend.graphs[3:]}
    assert "size mismatch at index 0. expected 3, actual 4" in reason


def test_the_table_has_every_graph_in_eighty_columns():
    backend, compiled = trained(3, 4)
    title, *lines = str(backend).splitlines()
    assert title == "decomp(core_aten), run by eager: 6 graphs lowered, 1 recompilation"
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line[:2] == "  " and line[2] != " "] == [
        *("before", "forward", "backward"),
        *("recompiled:", "before", "forward", "backward"),
    ]


def test_the_records_keep_no_graph_alive():
    backend, compiled = trained(3)
    assert isinstance(backend.graphs[1].graph, torch.fx.GraphModule)
    assert [str(n.target) for n in backend.graphs[1].graph.graph.nodes if n.op == "call_function"]
    del compiled
    torch.compiler.reset()
    gc.collect()
    assert [each.graph for each in backend.graphs] == [None] * 3
    assert "aten.mul.Tensor" in backend.graphs[1].program


def test_only_the_latest_records_are_kept(monkeypatch):
    monkeypatch.setattr("decomp.backends.MOST", 2)
    backend, compiled = trained(3)
    assert [each.stage for each in backend.graphs] == ["forward", "backward"]
    assert str(backend).splitlines()[0].endswith("2 graphs lowered, 0 recompilations; 1 earlier graph not listed")


def test_a_graph_behind_autograd_says_why_and_the_warning_is_at_the_line_of_the_user():
    def write(x, view, y):
        x.mul_(2)
        return F.gelu(y) + view

    backend, x = decomp.backend(to=CORE), torch.ones(3, 3)
    with pytest.warns(UserWarning, match="lowers a graph only after autograd.*shares its memory") as warned:
        torch.compile(write, backend=backend)(x, x.t(), torch.ones(3, 3, requires_grad=True))
    assert warned[0].filename == __file__
    assert [each.stage for each in backend.graphs] == ["forward"]
    reason = "it writes to an input that shares its memory with another input or an output"
    assert backend.graphs[0].behind_autograd == reason
    assert "  lowered only after autograd: it writes to an input" in str(backend)


def test_dynamo_names_the_backend():
    backend = decomp.backend(to=decomp.Target("few", ["add"]))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"backend='decomp\(few\)' raised:\nNotLowered: "):
        torch.compile(torch.linalg.qr, backend=backend)(torch.ones(2, 2))


def test_another_process_begins_without_records():
    backend, compiled = trained(3)
    other = pickle.loads(pickle.dumps(backend))
    assert other.graphs == () and len(backend.graphs) == 3
    assert str(other) == "decomp(core_aten), run by eager: 0 graphs lowered, 0 recompilations"


@pytest.fixture
def log():
    """The logger of the package, as it is before anybody changed it; put back afterwards."""
    log = logging.getLogger("decomp")
    was = log.level, list(log.handlers), log.propagate
    log.propagate = False
    yield log
    log.setLevel(was[0])
    log.handlers[:], log.propagate = was[1:]


def test_the_log_has_a_line_for_each_graph_where_the_environment_asks_for_it(log, monkeypatch, capsys):
    trained(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("DECOMP_LOG", "lowering")
    torch.compiler.reset()
    trained(3)
    trained(3)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(f"at {LINE}: lowered to core_aten: ")[0] for line in lines] == [
        f"decomp: {number} {stage} "
        for number in ("0/0", "0/1")
        for stage in ("before autograd", "forward", "backward")
    ]
    assert all(" ms: capture " in line for line in lines)


def test_the_handlers_of_a_program_are_used_where_it_has_some(log, monkeypatch, capsys):
    own = logging.NullHandler()
    log.addHandler(own)
    monkeypatch.setenv("DECOMP_LOG", "lowering")
    trained(3)
    assert log.handlers == [own] and capsys.readouterr().err == ""


def test_a_log_that_there_is_not_is_warned_of(monkeypatch):
    monkeypatch.setenv("DECOMP_LOG", "everything")
    with pytest.warns(UserWarning, match="DECOMP_LOG is everything; there is only DECOMP_LOG=lowering"):
        decomp.backend(to=CORE)
