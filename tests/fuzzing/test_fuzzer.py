"""The fuzzer: its programs are what their seeds say, what it is to see it sees, and what is not known it lets pass."""

from dataclasses import replace

import pytest
import torch

import decomp
from tests import fuzz
from tests.fuzzing import checking
from tests.fuzzing.checking import FORMS, Loaded, Verdict, check, pairs
from tests.fuzzing.outcomes import difference, restored
from tests.fuzzing.programs import Program, program
from tests.fuzzing.reducing import reduced, smallest
from tests.fuzzing.statements import FAMILIES

X34, WEIGHT = "x0 = given.tensor(3, 4, dtype=torch.float32)", "self.w0 = nn.Parameter(torch.randn(3, 4))"
BUFFER = 'self.register_buffer("b0", torch.ones(3, 4))'
CASE = (1, 3, True)


def made(*body, setup=(), returned=("v1",), inputs=(X34,)):
    return Program(0, tuple(setup), inputs, body, returned)


def compared(one, other):
    """How a run of `other` differs from a run of `one`, in the words of the fuzzer."""
    wanted, found = Loaded(one), Loaded(other)
    return difference(wanted.eager(*CASE), found.eager(*CASE), lambda: wanted.run(wanted.module, wanted.module, *CASE))


def test_a_seed_is_a_program():
    assert program(7).source == program(7).source != program(8).source


def test_programs_have_every_feature_and_run():
    found = [program(seed) for seed in range(60)]
    features = frozenset().union(*(one.features for one in found))
    assert features >= {
        *FAMILIES,
        "buffer",
        "parameter",
        "shared state",
        "hook",
        "no_grad",
        "autocast",
        "dynamic size",
        "aliased inputs",
        "strided inputs",
        "special values",
        "writes to inputs",
        "output is input",
        "constant output",
        "empty",
        "float32",
        "bfloat16",
        "int64",
        "bool",
    }
    for one in found:
        Loaded(one).eager(2, 3, False)


RIGHT = made(
    "v1 = x0 * 2 + self.w0",
    "x0.add_(self.b0)",
    "self.b0.mul_(2)",
    "v2 = x0[0]",
    setup=(BUFFER, WEIGHT),
    returned=("v1", "v2", "x0"),
)
SABOTAGES = {
    "another op": (0, "v1 = x0 * 3 + self.w0", "output 0: values"),
    "another dtype": (0, "v1 = (x0 * 2 + self.w0).double()", "output 0: dtype"),
    "another shape": (0, "v1 = (x0 * 2 + self.w0)[None]", "output 0: shape"),
    "no gradient": (0, "v1 = (x0 * 2 + self.w0).detach()", "output 0: requires_grad"),
    "half a gradient": (0, "v1 = x0.detach() * 2 + self.w0", "gradient of input 0: values"),
    "dropped write to an input": (1, "x0 = x0 + self.b0", "memory shared with inputs is lost"),
    "dropped write to a buffer": (2, "pass", "buffer b0 afterwards: values"),
    "doubled write": (2, "self.b0.mul_(4)", "buffer b0 afterwards: values"),
    "a copy in the place of a view": (3, "v2 = x0[0].clone()", "memory shared with inputs is lost"),
    "another view": (3, "v2 = x0[1]", "memory shared with inputs is gained"),
}


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_planted_fault_is_seen(name):
    index, line, text = SABOTAGES[name]
    body = (*RIGHT.body[:index], line, *RIGHT.body[index + 1 :])
    assert compared(RIGHT, RIGHT) == ""
    assert compared(RIGHT, replace(RIGHT, body=body)).startswith(text)


def test_what_comes_of_an_infinite_gradient_is_anybodys_and_all_else_is_seen():
    whole, by_parts = "v1 = x0.floor().abs().sqrt()", "v1 = (x0 - (x0 - x0.floor())).abs().sqrt()"
    assert compared(made(whole), made(by_parts)) == ""
    assert compared(made(whole), made(f"{by_parts} + x0 - x0.detach()")).startswith("gradient of input 0: values")
    assert compared(made("v1 = x0 * 2"), made("v1 = x0 * float('inf') * 0 + x0 * 2")).startswith("output 0: values")


def test_the_gradient_of_equal_maxima_is_anybodys_and_that_of_others_is_seen():
    def largest(function):
        return made("v1 = x0 - x0.detach()", f"v2 = {function}", returned=("v2",))

    assert compared(largest("v1.max(1)[0]"), largest("v1.amax(1)")) == ""
    assert compared(largest("v1.max(1)[0]"), largest("v1.amax(1) * 99")).startswith("gradient of input 0: values")
    assert compared(made("v1 = x0.max(1)[0]"), made("v1 = x0.min(1)[0]")).startswith("output 0: values")


def test_infinite_parts_of_a_complex_number_are_compared_as_they_are():
    infinite = "v1 = torch.complex(x0 * float('inf'), x0 * float('inf'))"
    other = "v1 = torch.complex(x0 * float('inf'), x0 * float('nan'))"
    assert compared(made(infinite), made(infinite)) == ""
    assert compared(made(infinite), made(other)).startswith("output 0: values")


def test_what_a_normalisation_of_one_element_cancels_is_anybodys_and_all_else_is_seen():
    one = dict(inputs=("x0 = given.tensor(3, 1, dtype=torch.float32)",))
    whole = "v1 = F.layer_norm(x0, (1,))"
    rest = "v1 = F.layer_norm(x0, (1,)) + {} * (x0 - x0.detach())"
    assert compared(made(whole, **one), made(rest.format("1e-5"), **one)) == ""
    assert compared(made(whole, **one), made(rest.format("1e-2"), **one)).startswith("gradient of input 0: values")


def test_outputs_that_share_memory_no_more_are_seen():
    one, other = (
        Loaded(made("v1 = x0 * 2", line, returned=("v1", "v2"))).eager(*CASE)
        for line in ("v2 = v1.view(-1)", "v2 = v1.clone().view(-1)")
    )
    assert difference(one, other) == ""
    assert difference(one, other, shared=True) == "outputs that share memory are [], not [(0, 1)]"


def test_strides_of_dimensions_of_size_one_are_no_difference():
    one, other = "v1 = x0[:, 0:1]", "v1 = x0.as_strided((3, 1), (4, 7))"
    assert compared(made(one), made(other)) == ""


def test_a_view_made_without_gradients_is_as_good_as_one_that_needs_none():
    one = made("with torch.no_grad():\n    v1 = x0.view(-1)", "v2 = v1 * 2", returned=("v2",))
    assert compared(one, made("v1 = x0.detach().view(-1)", "v2 = v1 * 2", returned=("v2",))) == ""
    assert "requires_grad True" in compared(one, made("v1 = x0.view(-1)", "v2 = v1 * 2", returned=("v2",)))


def test_views_that_no_target_has_are_no_difference():
    complex_ = dict(inputs=("x0 = given.tensor(3, 4, dtype=torch.complex64)",), returned=("v1", "v2"))
    views, copies = (
        made("v1 = x0.conj()", "v2 = x0.imag", **complex_),
        made("v1 = x0.conj().resolve_conj()", "v2 = x0.imag.clone()", **complex_),
    )
    assert compared(views, copies) == ""
    itself, copy = (made("v1 = x0.conj()", line, **complex_) for line in ("v2 = x0", "v2 = x0 * 1"))
    assert "is lost" in compared(itself, copy)


def test_a_write_to_elements_that_share_memory_is_not_a_fault():
    def twice(view):
        written = made(f"v1 = (x0 * 2).{view}", "F.leaky_relu(v1, 0.1, inplace=True)")
        return checking._written(Loaded(written), CASE).twice

    assert twice("as_strided((2, 2), (1, 1))") and not twice("as_strided((2, 2), (2, 1))") and not twice("t()[::2]")


@pytest.mark.parametrize("view, wanted", [("x0[:, 1]", True), ("x0", False)])
def test_a_view_of_memory_that_its_operand_does_not_hold_is_seen(view, wanted):
    assert checking._written(Loaded(made(f"v1 = torch.as_strided({view}, (2, 2), (1, 1))")), CASE).beside is wanted


@pytest.mark.parametrize("numbers, wanted", [("x0", False), ("(x0 / 0)", True)])
def test_what_is_not_finite_and_rounded_is_seen(numbers, wanted):
    assert checking._written(Loaded(made(f"v1 = {numbers}.floor()")), CASE).rounds == wanted


@pytest.mark.parametrize("line, wanted", [("x0.copysign(x0 * 0)", True), ("x0.copysign(x0)", False), ("x0 * 0", False)])
def test_signs_of_zeros_that_decide_are_seen(line, wanted):
    assert checking._written(Loaded(made(f"v1 = {line}")), CASE).signs == wanted


def test_every_second_of_one_element_is_a_view_that_a_target_may_not_have():
    one = dict(inputs=("x0 = given.tensor(3, 1, dtype=torch.float32)",))

    def differ(line, other, **how):
        runs = [Loaded(made(text, **one)).eager(*CASE) for text in (line, other)]
        return difference(*runs, **how)

    assert "is lost" in differ("v1 = x0[:, ::2]", "v1 = x0[:, ::2].clone()")
    assert differ("v1 = x0[:, ::2]", "v1 = x0[:, ::2].clone()", views=False) == ""
    assert "is lost" in differ("v1 = x0[:, :2]", "v1 = x0[:, :2].clone()", views=False)


def test_expanded_constants_of_a_program_are_not_written():
    module = torch.nn.Module()
    module.register_buffer("narrow", torch.ones(3))
    module.register_buffer("wide", torch.zeros(3, 1).expand(3, 4))
    with restored(module):
        module.narrow.add_(1)
    assert torch.equal(module.narrow, torch.ones(3))


def test_buffers_that_a_program_turns_in_place_are_turned_back():
    module = torch.nn.Module()
    module.register_buffer("square", torch.arange(4.0).view(2, 2))
    module.register_buffer("row", torch.arange(2.0).view(1, 2))
    with restored(module):
        module.square.t_()
        module.row.t_()
    assert module.square.tolist() == [[0, 1], [2, 3]] and module.row.tolist() == [[0, 1]]
    assert module.square.is_contiguous() and module.row.is_contiguous()


def test_a_constant_that_is_a_view_of_a_buffer_can_be_written_again():
    module = torch.nn.Module()
    module.register_buffer("whole", torch.ones(3))
    module.register_buffer("part", module.whole[1:])
    weight = torch.nn.Parameter(torch.zeros(2))
    for _ in range(2):
        with restored(module):
            module.part.copy_(weight)
            assert module.whole.tolist() == [1, 0, 0] and module.whole.requires_grad
        assert module.whole.tolist() == [1, 1, 1] and not module.part.requires_grad


def test_inputs_have_the_same_strides_with_gradients_and_without():
    program = made(inputs=("x0 = given.tensor(3, 4, dtype=torch.float32, order=[1, 0], step=2)",), returned=("x0",))
    loaded = Loaded(program)
    assert {loaded.given(1, 3, tracked)[1][0].stride() for tracked in (True, False)} == {(2, 6)}


def test_another_structure_is_seen():
    assert compared(RIGHT, replace(RIGHT, packing="[{}]")).startswith("structure of the outputs")


@pytest.mark.parametrize(
    "one, other",
    [
        ("v1 = (x0 * 3).sin() * 1e3", "v1 = (x0 + x0 + x0).sin() * 1e3"),
        ("v1 = (x0 + 1e4 - x0 - 1e4) * 1e3", "v1 = torch.zeros_like(x0) * x0"),
        ("v1 = F.batch_norm(torch.full((4, 3), 0.1), None, None, training=True)", "v1 = torch.zeros(4, 3)"),
        ("v1 = (x0 / 3 * 3 == x0).float() * x0", "v1 = 1.0 * x0"),
        ("v1 = torch.topk(x0 * 0, 2)[1]", "v1 = 3 - torch.topk(x0 * 0, 2)[1]"),
        ("v1 = torch.topk(x0 * torch.nan, 2)[1]", "v1 = 3 - torch.topk(x0 * torch.nan, 2)[1]"),
        ("v1 = F.gelu(x0.data.abs() / 0)", "v1 = x0.data.abs() / 0"),
        ("v1 = F.gelu(x0.data * 0 - 5.3059, approximate='tanh')", "v1 = x0.data * 0 - 2.62e-8"),
    ],
)
def test_what_rounding_decides_is_no_fault(one, other):
    assert compared(made(one), made(other)) == ""


def test_a_wrong_rule_is_a_fault_and_its_program_is_reduced(monkeypatch):
    wrong = decomp.Rules({torch.relu: lambda x: torch.where(x > 0.5, x, 0)})
    monkeypatch.setattr(checking, "DECOMPOSING", wrong)
    source = made("v1 = x0.sin()", "v2 = v1.relu()", "v3 = v2 * 2", "v4 = x0 + 1", returned=("v3", "v4"))
    (verdict,) = check(source, [("decomposed", "rules")])
    assert verdict.status == "fault" and "output 0: values differ" in verdict.text
    assert reduced(replace(source, body=("v1 = x0", *source.body[1:])), verdict).body == (
        "v1 = x0",
        "v2 = v1.relu()",
        "v3 = v2 * 2",
    )


def test_the_shortest_program_keeps_what_the_fault_needs():
    source = made("v1 = x0 + 1", "with torch.no_grad():\n    v2 = x0.relu()", returned=("v1", "v2"))
    shortest = smallest(source, lambda one: "v2" in one.returned and "x0.relu" in one.source)
    assert shortest.body == ("v2 = x0.relu()",) and shortest.returned == ("v2",)


def test_an_error_that_is_not_the_projects_own_is_a_fault(monkeypatch):
    def lower(*_, **__):
        raise KeyError("x")

    monkeypatch.setattr(checking.decomp, "lower", lower)
    (verdict,) = check(made("v1 = x0 + 1"), [("exported", "core_aten")])
    assert (verdict.status, verdict.text) == ("fault", "raises KeyError: 'x'")


def test_the_summary_counts_programs_by_form_and_says_why_some_were_refused():
    tally = fuzz.Tally()
    tally.add(
        dict(
            seed=5,
            features=["view"],
            seconds=0.5,
            verdicts=[
                ("exported", "tinygrad", "right", ""),
                ("graph", "tinygrad", "refused", "NotLowered: aten.gelu: pass args="),
            ],
        )
    )
    text = "\n".join(tally.lines())
    assert "1 programs, 0 with a fault, 0.50 s" in text and "NotLowered: aten.gelu: pass args=" in text


def test_programs_in_a_row_get_every_form_on_every_target():
    first = 20000
    given = [share for seed in range(first, first + 99) for share in fuzz.share(seed)]
    assert {*given} >= {*pairs([form for form in FORMS if form not in ("inductor", "narrow")])}
    often = [share for seed in range(first, first + 3 * fuzz.EVERY) for share in fuzz.share(seed)]
    assert {*often} == {*pairs([form for form in FORMS if form != "narrow"] + [fuzz.EDITED])}
    slow = [fuzz.share(seed)[0] for seed in range(first, first + 132) if seed % 4 == 1]  # inputs without gradients
    assert {*slow} == {*pairs(fuzz.SLOW)}


def faults(found):
    return [verdict for verdict in found if verdict.status == "fault"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(20001, 20034))
def test_random_programs_are_right(seed):
    assert faults(Verdict(*line) for line in fuzz.verdicts(seed)["verdicts"]) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(20034, 20038))
def test_random_programs_are_right_in_every_form_on_every_target(seed):
    found = [Verdict(*line) for line in fuzz.verdicts(seed, pairs())["verdicts"]]
    assert faults(found) == []
    assert any(verdict.status == "right" for verdict in found)


def test_a_write_through_data_is_a_write_to_an_input():
    assert ".data.add_" in program(7000073).source and program(7000073).writes_inputs


def test_tracing_leaves_the_buffers_of_the_program_as_they_were():
    loaded = Loaded(made("self.b0.mul_(2)", "v1 = x0 * self.b0", setup=(BUFFER,)))
    checking._traced(loaded)
    assert torch.equal(loaded.module.b0, torch.ones(3, 4))


def test_what_a_trace_keeps_has_no_history_from_run_to_run():
    one = made("v1 = self.b0.floor()", "v1 += self.w0", "v2 = x0 * 1", setup=(BUFFER, WEIGHT), returned=("v1", "v2"))
    one = replace(one, inputs=("x0 = given.tensor(n, 4)",), dynamic=True)
    assert [verdict.status for verdict in check(one, [("module without args", "core_aten")])] == ["right"]


def test_what_inductor_does_not_compile_itself_is_no_fault():
    state = 'self.register_buffer("b0", torch.randn(1))'
    scan = "v1 = scanned(lambda a, b: a * 0.5 + b, torch.zeros_like(self.b0[0]), self.b0)"
    (verdict,) = check(made(scan, setup=(state,)), [("inductor", "core_aten")])
    assert verdict.status == "torch"


def test_programs_read_no_memory_behind_the_last_element():
    from tests.fuzzing import programs

    scalar = torch.ones(4)
    view = torch.as_strided(scalar, (2, 2), (1, 2))
    assert programs._reach(view) == 4 == programs._reach(scalar)
    assert "as_strided(v1" not in program(701414).source
