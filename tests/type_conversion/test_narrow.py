"""Programs in int32 and float32 on targets that have no wider dtype."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
import torch.nn.functional as F

import decomp
from decomp.type_conversion.narrowing_checks import check_narrow
from decomp_rules import backends, targets

DTYPES = ["float32", "int32", "bool"]
CORE = targets.core_aten.with_dtypes(DTYPES).named("core32")
FEW = targets.tinygrad.with_dtypes(DTYPES).named("few32")
CAST = torch.ops.aten._to_copy.default
WIDE = {torch.int64: torch.int32, torch.float64: torch.float32}


def x(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def n(*shape, below=5):
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(1))


class Of(nn.Module):
    """A function, with parts and buffers of its own."""

    def __init__(self, function, **own):
        super().__init__()
        self.function = function
        for name, value in own.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *args):
        return self.function(self, *args)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.inner(self.norm(x)).chunk(3, -1)
        return x + self.outer(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def decoder(self, ids):
    mask = torch.arange(ids.shape[1])[None] <= torch.arange(ids.shape[1])[:, None]
    hidden = self.table(ids) * mask.sum(0)[:, None] + self.places[: ids.shape[1]]
    logits = self.head(hidden)
    return logits, logits.argmax(-1), logits.topk(3), (ids > 3).sum(), ids.double().mean()


def integers(self, a, b):
    halves = (a.sum(), a.cumsum(0), a.prod(), a.max(), (a > b).sum(0), a.pow(2), -a, a.clamp(1, 3))
    return a + b, a * 3, a // 2, a % 3, a / b, a.float(), a & b, torch.where(a > b, a, b), halves


def factories(self, x):
    made = torch.arange(x.shape[0]), torch.full((3,), 7), torch.zeros(3, dtype=torch.int64), torch.tensor([1, 2])
    return *made, torch.ones(2, dtype=torch.float64) * x.sum(), x.to(torch.int64).to(torch.float64) * 1.5


def indices(self, x, i):
    return x.gather(1, i), x.scatter(1, i, 1.0), x.take(i), x.index_fill(0, i[0], 2.0), x[i[0]]


def orders(self, x):
    return x.sort(), x.argsort(), x.max(1), x.cummax(1), x.kthvalue(2)


PROGRAMS = {
    "decoder": (Of(decoder, table=nn.Embedding(20, 8), head=nn.Linear(8, 20), places=x(9, 8)), (n(2, 6, below=20),)),
    "integers": (Of(integers), (n(4) + 1, n(4) + 1)),
    "factories": (Of(factories), (x(4),)),
    "indices": (Of(indices), (x(5, 5), n(5, 5))),
    "orders": (Of(orders), (x(3, 5),)),
    "loss": (Of(lambda self, x, t: F.cross_entropy(x, t)), (x(4, 5), n(4))),
    "one hot": (Of(lambda self, t: F.one_hot(t, 6)), (n(4),)),
    "pooling": (Of(lambda self, x: F.max_pool2d(x, 2, return_indices=True)), (x(1, 1, 4, 4),)),
    "attention in float64": (Attention().double(), (x(2, 5, 8, dtype=torch.float64),)),
    "batch norm in float64": (
        nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)).double(),
        (x(2, 3, 5, 5, dtype=torch.float64),),
    ),
    "recurrent in float64": (nn.LSTM(4, 5).double(), (x(3, 2, 4, dtype=torch.float64),)),
    "complex128": (Of(lambda self, x: (torch.fft.fft(x), x.abs())), (x(6, dtype=torch.complex128),)),
    "a written input": (Of(lambda self, x: (x.mul_(2), x + 1)[1]), (x(4, dtype=torch.float64),)),
    "branches": (
        Of(
            lambda self, x, i: torch.cond(x.sum() > 0, lambda x, i: (x + i, i + 1), lambda x, i: (x - i, i * 2), (x, i))
        ),
        (x(4, dtype=torch.float64), n(4)),
    ),
}


def wide_inside(graph):
    """Wide tensors that are neither given, nor returned, nor next to a cast."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or value.dtype not in WIDE:
            continue
        users = [user for user in node.users if user.op != "output" and "copy_" not in str(user.target)]
        around = [node, *users]
        if node.target is CAST or all(user.target is CAST for user in users):
            continue
        if not any(user.target in (torch.ops.aten.view_as_complex.default,) for user in around):
            yield node


@pytest.mark.parametrize("to", [CORE, FEW], ids=lambda to: to.name)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(4)
def test_a_program_computes_in_narrow_dtypes_and_its_caller_does_not_see_it(name, to):
    model, args = copy.deepcopy(PROGRAMS[name])
    found = decomp.lower(model, to=to, args=args, narrow=True, verify="values")
    assert not [*wide_inside(found.result.graph)]
    given = copy.deepcopy(args)
    want = torch.utils._pytree.tree_leaves(copy.deepcopy(model)(*copy.deepcopy(args)))
    for own, other in zip(torch.utils._pytree.tree_leaves(found.result(*given)), want, strict=True):
        torch.testing.assert_close(own, other, rtol=2e-5, atol=2e-5)


def on_32_bits():
    """A backend of NumPy that holds nothing wider than 32 bits."""
    numpy, known = backends.get("numpy"), {torch.float32: "float32", torch.int32: "int32", torch.bool: "bool"}

    def from_torch(tensor):
        assert tensor.dtype in known
        return numpy.from_torch(tensor)

    chip = decomp.Backend(
        "chip32",
        FEW,
        from_torch=from_torch,
        to_torch=numpy.to_torch,
        dtypes={dtype: numpy.dtypes[dtype] for dtype in known},
    )
    for each in numpy:
        if each.when is None:
            chip.implements(each.key)(each.function)
    return chip


@pytest.mark.parametrize("name", ["decoder", "orders", "batch norm in float64", "complex128", "branches", "factories"])
def test_a_backend_of_32_bits_is_given_no_more(name):
    model, args = copy.deepcopy(PROGRAMS[name])
    source, chip = copy.deepcopy(model), on_32_bits()
    program = chip.load(decomp.lower(model, to=chip.target, args=args, narrow=True))
    for _ in range(2):
        own, other = (torch.utils._pytree.tree_leaves(run(*args)) for run in (program, source))
        torch.testing.assert_close(own, other, rtol=2e-5, atol=2e-5)
    state = program.state_dict()
    for key, value in source.named_buffers():
        torch.testing.assert_close(state.get(key, value), value, rtol=2e-5, atol=2e-5)


def test_a_narrow_program_in_a_file_still_says_so_to_backends(tmp_path):
    model, args = Of(lambda self, i: i * 2 + self.counts, counts=n(3)), (n(3),)
    chip = on_32_bits()
    exported = torch.export.export(model, args)
    exported.graph_module.meta["custom"] = {"mine": 1}
    lowered = decomp.lower(exported, to=chip.target, narrow=True)
    torch.export.save(lowered.result, tmp_path / "narrow.pt2")
    read = torch.export.load(tmp_path / "narrow.pt2")
    assert torch.equal(chip.load(read)(*args), model(*args))
    assert read.graph_module.meta["custom"]["mine"] == 1
    assert exported.graph_module.meta["custom"] == {"mine": 1}


def test_a_program_in_float64_is_within_an_error_of_float32():
    model, args = Of(lambda self, a: torch.tanh(a).softmax(-1)), (x(4, 8, dtype=torch.float64),)
    picked = decomp.lower(model, to=FEW, args=args, narrow=True, max_error=4).picked
    single = decomp.lower(model, to=FEW, args=(args[0].float(),), max_error=4).picked
    assert 0 < picked.growth <= 4 and {op: picked.levels[op] for op in single.levels} == single.levels
    with pytest.raises(decomp.errors.AccuracyError, match="the program computes in float64"):
        decomp.lower(model, to=targets.tinygrad, args=args, max_error=4)


def test_numbers_that_do_not_fit_are_refused_by_name():
    refused = {
        r"aten.lt.Scalar \(at lt\) takes 1099511627776, which does not fit int32": (
            Of(lambda self, a: a < 2**40),
            n(3),
        ),
        r"masked_fill.Scalar .* takes -1.79.*, which does not fit float32": (
            Of(lambda self, a: a.masked_fill(a > 0, torch.finfo(torch.float64).min)),
            x(3, dtype=torch.float64),
        ),
        r"b_far holds 1099511627776, which does not fit int32": (
            Of(lambda self, a: a + self.far, far=torch.tensor(2**40)),
            n(3),
        ),
        r"b_big holds 1e\+300, which does not fit float32": (
            Of(lambda self, a: a + self.big, big=torch.tensor(1e300, dtype=torch.float64)),
            x(3),
        ),
        r"takes the bits of a float64": (Of(lambda self, a: a.view(torch.int64)), x(3, dtype=torch.float64)),
    }
    for said, (model, given) in refused.items():
        with pytest.raises(decomp.errors.OutOfRange, match=said):
            decomp.lower(model, to=CORE, args=(given,), narrow=True)
    infinite = Of(lambda self, a: a.masked_fill(a > 0, float("inf")))
    decomp.lower(infinite, to=CORE | {"masked_fill"}, args=(x(3, dtype=torch.float64),), narrow=True)


def test_integers_that_do_not_fit_are_refused_when_the_program_is_called():
    model, chip = nn.Embedding(9, 2), on_32_bits()
    found = decomp.lower(model, to=chip.target, args=(n(3),), narrow=True)
    for program in (found.result, chip.load(found)):
        with pytest.raises(decomp.errors.OutOfRange, match="input 'input' holds 8589934592, which does not fit int32"):
            program(torch.tensor([1, 2, 2**33]))
        torch.testing.assert_close(program(n(3)), model(n(3)))


@pytest.mark.parametrize("verify", [True, False])
def test_integers_that_do_not_fit_are_refused_in_any_kind_of_program(verify):
    model, far = Of(lambda self, i: i * 2 + 1), torch.tensor([1, 2**40])
    how = {"to": CORE, "narrow": True, "verify": verify}
    torch._dynamo.reset()
    programs = {
        "exported": decomp.lower(torch.export.export(model, (n(2),)), **how).result.module(),
        "traced": decomp.lower(torch.fx.symbolic_trace(lambda i: i * 2 + 1), args=(n(2),), **how).result,
        "compiled": torch.compile(lambda i: i * 2 + 1, backend=decomp.backend(**how)),
        "refolded": decomp.refold(decomp.lower(model, args=(n(2),), **how)).result,
        "simplified": decomp.simplify(decomp.lower(model, args=(n(2),), **how)).result,
    }
    for program in programs.values():
        assert torch.equal(program(n(2)), n(2) * 2 + 1)
        with pytest.raises(decomp.errors.OutOfRange, match="holds 1099511627776, which does not fit int32"):
            program(far)


def test_a_number_that_varies_is_refused_where_it_does_not_fit():
    shapes = (({}, torch.export.Dim.AUTO),)
    program = decomp.lower(Of(lambda self, i, k: i + k), to=CORE, args=(n(2), 3), narrow=True, dynamic_shapes=shapes)
    assert torch.equal(program.result(n(2), 7), n(2) + 7)
    with pytest.raises(decomp.errors.OutOfRange, match="is 4294967296, which does not fit int32"):
        program.result(n(2), 2**32)


def test_a_rule_that_computes_beyond_32_bits_is_not_chosen():
    hashing = decomp.Rules({"relu": lambda x: ((x.to(torch.int64) * 2654435761) & 0xFFFF).to(x.dtype)})
    precise = decomp.Rules({"relu": lambda x: x.double().clamp(min=0).to(x.dtype)})
    counting = decomp.Rules({"relu": lambda x: x * (x > 0).to(torch.int64)})
    to = CORE - {"relu"} | decomp.Target("casts", ["to"], dtypes=DTYPES)
    for rules, said in ((hashing, "computes in int64: .* takes 2654435761, which int32"), (precise, "float64")):
        with pytest.raises(decomp.NotLowered, match=said):
            decomp.lower(nn.ReLU(), to=to, args=(x(3),), rules=rules, narrow=True)
    found = decomp.lower(nn.ReLU(), to=to, args=(x(3),), rules=counting, narrow=True)
    assert not [*wide_inside(found.result.graph)]


def test_a_program_trains_in_narrow_dtypes():
    source = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 1)).double()
    given = x(16, 4, dtype=torch.float64)
    lowered = decomp.lower(copy.deepcopy(source), to=CORE, args=(given,), narrow=True).result
    for model in (source, lowered):
        steps = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            steps.zero_grad()
            F.mse_loss(model(given), given.sum(1, keepdim=True)).backward()
            steps.step()
    torch.testing.assert_close(dict(lowered.named_parameters()), dict(source.named_parameters()), rtol=1e-4, atol=1e-5)


def test_sizes_may_vary_and_other_kinds_of_programs_are_narrow_too():
    model = Of(lambda self, i: self.table(i).argmax(-1) + torch.arange(i.shape[1]), table=nn.Embedding(9, 4))
    sizes = {"args": ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)}
    program = torch.export.export(model, (n(3, 6),), dynamic_shapes=sizes)
    found = decomp.lower(program, to=FEW, narrow=True, verify="values")
    assert torch.equal(found.result.module()(n(5, 9)), model(n(5, 9)))
    compiled = torch.compile(nn.GELU(), backend=decomp.backend(to=CORE, narrow=True))
    given = x(3, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(compiled(given).sum(), given)
    (expected,) = torch.autograd.grad(F.gelu(given).sum(), given)
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-6)


def test_the_plan_and_the_report_say_what_stands_at_the_border():
    model, args = PROGRAMS["decoder"]
    said = "int32 instead of int64; still int64 at the border: given args_0, returned argmax, getitem_1, sum_2"
    plan = decomp.plan(model, to=CORE, args=args, narrow=True)
    assert any(said in note for note in plan.notes) and said in " ".join(str(plan).split())
    assert plan.notes == decomp.lower(model, to=CORE, args=args, narrow=True).report().notes
    assert not decomp.plan(model, to=CORE, args=args).complete
    assert decomp.advise({"decoder": (model, args)}, to=CORE - {"topk"}, narrow=True).target is not None


def test_narrow_has_to_know_dtypes():
    with pytest.raises(decomp.errors.TargetError, match="core_aten declares no dtypes"):
        decomp.lower(nn.ReLU(), to=targets.core_aten, args=(x(3),), narrow=True)
    with pytest.raises(decomp.CaptureError, match="narrow=True needs the dtypes"):
        decomp.lower(nn.ReLU(), to=CORE, narrow=True)
    with pytest.raises(decomp.DecompError, match="narrow= must be True or False, not int"):
        decomp.lower(nn.ReLU(), to=CORE, args=(x(3),), narrow=1)
    wide = targets.core_aten.with_dtypes(["float", "integer", "bool"])
    assert wide.narrowed().narrower == {} and CORE.narrowed().narrower == WIDE
    assert (CORE.narrowed() | {"relu"}).named("other").narrower == WIDE
    assert copy.deepcopy(CORE.narrowed()).narrower == WIDE


def spoilt(change, model=None, args=None):
    """The error of the check for a program in narrow dtypes whose graph was changed."""
    model = model or Of(lambda self, a, b: (a + 1) * b - a.argmax() + torch.full((4,), 3).double())
    lowering = decomp.lower(model, to=CORE, args=args or (n(4), n(4)), narrow=True)
    narrowed = lowering.internals.pieces[0].at("narrow")
    nodes = {node.name: node for node in narrowed.graph.nodes}
    change(nodes, narrowed)
    return check_narrow(narrowed)


def test_the_check_finds_what_is_not_the_source():
    def operand(nodes, found):
        nodes["mul"].args = (nodes["add"], nodes["add"])

    def number(nodes, found):
        nodes["add"].args = (nodes["add"].args[0], 2)

    def dtype(nodes, found):
        nodes["args_0_narrow"].kwargs = {"dtype": torch.int16}

    def asked(nodes, found):
        nodes["full"].kwargs = {**nodes["full"].kwargs, "dtype": torch.float32}

    def shape(nodes, found):
        nodes["mul"].meta["val"] = nodes["mul"].meta["val"].new_empty(5)

    def result(nodes, found):
        output = found.graph.output_node()
        output.args = ((nodes["args_0"],),)

    def target(nodes, found):
        nodes["mul"].target = torch.ops.aten.add.Tensor

    assert "calls in narrow dtypes are those of the source" in spoilt(lambda nodes, found: None)
    for change in (operand, number, dtype, asked, shape, result, target):
        with pytest.raises(decomp.VerificationError):
            spoilt(change)


def test_narrow_calls_of_a_far_number_do_not_pass_the_check():
    def far(nodes, found):
        source = next(node for node in found.before.graph.nodes if node.name == "add")
        source.args = (source.args[0], 2**40)
        nodes["add"].args = (nodes["add"].args[0], 2**40)

    with pytest.raises(decomp.VerificationError, match="is not the call 'add', in narrow dtypes"):
        spoilt(far)


def test_an_input_is_cast_in_each_region():
    def function(x):
        with torch.no_grad():
            known = x * 2
        return known, x * 3

    torch._dynamo.reset()
    given = x(3, dtype=torch.float64).requires_grad_()
    known, tracked = torch.compile(function, backend=decomp.backend(to=FEW, narrow=True))(given)
    assert not known.requires_grad
    assert torch.equal(torch.autograd.grad(tracked.sum(), given)[0], torch.full_like(given, 3))
