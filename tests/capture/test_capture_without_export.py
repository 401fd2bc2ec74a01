"""Modules that export refuses: because PyTorch cannot run an op on fake tensors, where rules say what such a call
gives, or because they look at the data of a mask. Lazy modules are refused with what to do."""

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp import Rules
from decomp.capture import dynamo_export, exporting
from decomp.errors import InternalError, is_own_fault
from decomp.ir.call import call_target
from decomp_rules import targets

LOGITS = torch.randn(10, 2, 6, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
CTC = (LOGITS, torch.tensor([[1, 2, 3, 4], [5, 5, 1, 2]]), torch.tensor([10, 8]), torch.tensor([4, 3]))


@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad], ids=lambda t: t.name)
def test_a_module_whose_loss_has_no_fake_kernel(target):
    lowered = decomp.lower(nn.CTCLoss(), to=target, args=CTC).result
    torch.testing.assert_close(lowered(*CTC), nn.CTCLoss()(*CTC))


def test_a_traced_graph_with_such_a_call():
    traced = torch.fx.symbolic_trace(lambda a, b, c, d: F.ctc_loss(a, b, c, d) * 2)
    lowered = decomp.lower(traced, to=targets.core_aten, args=CTC).result
    torch.testing.assert_close(lowered(*CTC), 2 * nn.CTCLoss()(*CTC))


def test_lengths_are_data_and_are_not_baked_in():
    lowered = decomp.lower(nn.CTCLoss(), to=targets.core_aten, args=CTC).result
    others = (*CTC[:2], torch.tensor([7, 10]), torch.tensor([2, 4]))
    torch.testing.assert_close(lowered(*others), nn.CTCLoss()(*others))


class Recognizer(nn.Module):
    """A recurrent layer, whose forward cannot be traced, before a loss that has no fake kernel."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.GRU(6, 6, batch_first=False)

    def forward(self, x, targets, input_lengths, target_lengths):
        return F.ctc_loss(self.layer(x)[0].log_softmax(-1), targets, input_lengths, target_lengths)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", [targets.core_aten, targets.luminal], ids=lambda t: t.name)
def test_a_layer_that_cannot_be_traced_before_such_a_loss(target):
    model = Recognizer()
    lowered = decomp.lower(model, to=target, args=CTC).result
    torch.testing.assert_close(lowered(*CTC), model(*CTC))


def test_a_layer_that_cannot_be_traced_in_a_model_that_cannot_be_exported():
    class Options:
        scale = 2

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(4, 4)

        def forward(self, x, options):
            return self.layer(x * options.scale)[0]

    model, args = Scaled(), (torch.ones(2, 4), Options())
    torch.testing.assert_close(decomp.lower(model, to=targets.core_aten, args=args).result(*args), model(*args))


def test_a_program_that_export_refuses_is_refused_with_its_reason():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(decomp.CaptureError, match="torch.export could not capture Branches"):
        decomp.lower(Branches(), to=targets.core_aten, args=(torch.ones(3),))


class Undecided(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_every_capture_that_was_tried_says_why_it_refuses(monkeypatch):
    def refuse(*_):
        raise decomp.CaptureError("the program returns a tensor that is neither computed nor an input")

    monkeypatch.setattr(exporting, "_by_dynamo", refuse)
    with pytest.raises(decomp.CaptureError) as error:
        decomp.lower(Undecided(), to=targets.core_aten, args=(torch.ones(3),))
    first, line, strict, dynamo, remedy = str(error.value).splitlines()
    assert first.startswith("torch.export could not capture Undecided: Could not guard on data-dependent expression")
    place = inspect.getsourcelines(Undecided.forward)[1] + 1
    assert line == f"  at test_capture_without_export.py:{place}, in forward: return x if x.sum() > 0 else -x"
    assert strict.startswith("  with strict=True: ")
    assert dynamo == "  by Dynamo's graph: the program returns a tensor that is neither computed nor an input"
    assert remedy.startswith("  to do: call torch.compile(model, backend=decomp.backend(to=...))")
    assert remedy.endswith("or rewrite the line that is named")


class Decides(nn.Module):
    def forward(self, x):
        if x.sum().item() > 0:
            return x
        return -x


def test_the_line_of_an_inner_module_is_named():
    with pytest.raises(decomp.CaptureError) as error:
        decomp.lower(nn.Sequential(nn.ReLU(), Decides()), to=targets.core_aten, args=(torch.ones(3),))
    place = inspect.getsourcelines(Decides.forward)[1] + 1
    line = f"  at test_capture_without_export.py:{place}, in forward: if x.sum().item() > 0"
    assert line in str(error.value).splitlines()


def test_no_line_is_promised_where_none_is_known(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("not by this")

    monkeypatch.setattr(torch.export, "export", refuse)
    monkeypatch.setattr(exporting, "_by_dynamo", refuse)
    monkeypatch.setattr(exporting, "refused_line", lambda error: None)
    with pytest.raises(decomp.CaptureError, match="or rewrite what cannot be captured$"):
        decomp.lower(Undecided(), to=targets.core_aten, args=(torch.ones(3),))


def test_a_fault_of_the_package_in_another_capture_is_not_hidden(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no export")

    monkeypatch.setattr(exporting, "_export", refuse)
    x = torch.randn(3)
    lowered = decomp.lower(nn.GELU(), to=targets.core_aten, args=(x,)).result
    torch.testing.assert_close(lowered(x), nn.GELU()(x))
    monkeypatch.setattr(dynamo_export, "new_mode", None)
    with pytest.raises(InternalError, match="lower failed: TypeError: 'NoneType' object is not callable"):
        decomp.lower(nn.GELU(), to=targets.core_aten, args=(x,))


@pytest.mark.parametrize("raised", ["by a kernel", "by a model", "as a refusal"])
def test_what_pytorch_and_models_raise_is_no_fault_of_the_package(raised):
    calls = {
        "by a kernel": lambda: call_target(torch.add, ("no tensor",), {}),
        "by a model": lambda: run_call(lambda: {}["missing"]),
        "as a refusal": lambda: decomp.Target("chip", ["no_such_op"]),
    }
    with pytest.raises(Exception) as error:
        calls[raised]()
    assert not is_own_fault(error.value)


def run_call(function):
    return call_target(function, (), {})


def test_without_a_rule_the_call_stays_unknown():
    with pytest.raises(decomp.CaptureError):
        decomp.lower(nn.CTCLoss(), to=targets.core_aten, args=CTC, rules=Rules())


def test_declared_limitations_are_reported():
    rules = Rules()
    rules.limit(torch.equal, reason="its result is a Python bool read from data")
    traced = torch.fx.symbolic_trace(lambda x, y: torch.equal(x, y))
    with pytest.raises(decomp.NotLowered, match="cannot be decomposed: its result is a Python bool read from data"):
        decomp.lower(traced, to=targets.core_aten, args=(LOGITS, LOGITS), rules=rules)


def test_a_size_that_is_data_cannot_disagree():
    class Places(nn.Module):
        def forward(self, x):
            return torch.argwhere(x) * 2

    x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    lowered = decomp.lower(torch.export.export(Places(), (x,)), to=targets.core_aten).result.module()
    assert [lowered(y).tolist() for y in (x, x * 0 + 1)] == [Places()(y).tolist() for y in (x, x * 0 + 1)]


def test_a_traced_graph_with_sizes_that_are_data_is_exported():
    traced = torch.fx.symbolic_trace(lambda x: torch.nonzero(x) + 1)
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    lowered = decomp.lower(traced, to=targets.core_aten, args=(x,)).result
    assert [lowered(y).tolist() for y in (x, x + 1)] == [traced(y).tolist() for y in (x, x + 1)]


class Speech(nn.Module):
    """A branch on a size, which tracing cannot follow, before a loss, which export cannot."""

    def __init__(self):
        super().__init__()
        self.linear, self.loss = nn.Linear(6, 6), nn.CTCLoss()

    def forward(self, x, targets, input_lengths, target_lengths):
        logits = self.linear(x) if x.shape[0] > 3 else x
        return self.loss(logits.log_softmax(-1), targets, input_lengths, target_lengths)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lengths", [CTC[2:], ([10, 8], [4, 3]), ((10, 8), (4, 3))], ids=["tensors", "lists", "tuples"])
def test_a_loss_behind_a_branch_on_sizes(lengths):
    model, args = Speech(), (*CTC[:2], *lengths)
    lowered = decomp.lower(model, to=targets.tinygrad, args=args).result
    torch.testing.assert_close(lowered(*args), model(*args))


MASK = torch.tensor([[False, True, True], [False, False, True], [False, False, False]])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", [MASK, torch.tensor([False, False, True]).expand(3, 3), torch.randn(3, 3)])
def test_encoders_and_decoders_with_masks(training, mask):
    model = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=True).train(training)
    args, masks = (torch.randn(2, 3, 4), torch.randn(2, 3, 4)), {"src_mask": mask, "tgt_mask": mask}
    lowered = decomp.lower(model, to=targets.core_aten, args=args, kwargs=masks).result
    torch.testing.assert_close(lowered(*args, **masks), model(*args, **masks))
    assert not model.encoder._forward_pre_hooks


def test_a_hint_that_is_given_is_kept():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.0), 1, enable_nested_tensor=False)
    args = (torch.randn(3, 2, 4), MASK.float().masked_fill(MASK, float("-inf")), None, True)
    lowered = decomp.lower(encoder, to=targets.core_aten, args=args).result
    torch.testing.assert_close(lowered(*args), encoder(*args))


@pytest.mark.parametrize("args", [(torch.ones(2, 3),), None])
def test_lazy_modules_must_be_run_once(args):
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(decomp.CaptureError) as refused:
        decomp.lower(model, to=targets.core_aten, args=args)
    assert str(refused.value) == (
        "Sequential has lazy modules without parameters: 0, 2\n"
        "  to do: run the module once on example inputs, which gives them their shapes, then lower it"
    )
    model(torch.ones(2, 3))
    assert decomp.lower(model, to=targets.core_aten, args=(torch.ones(2, 3),)).result(torch.ones(2, 3)).shape == (2, 2)


class Matched(nn.Module):
    """What it writes to an input of integers makes that input require a gradient, though its dtype cannot."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 1.0]))

    def forward(self, x):
        x.eq_(self.weight.prod())
        return self.weight.argsort()


def test_integers_that_a_comparison_wrote_may_require_a_gradient():
    lowered = decomp.lower(Matched(), to=targets.core_aten, args=(torch.tensor([2, 5]),), verify="values").result
    given = torch.tensor([2, 5])
    assert lowered(given).tolist() == [1, 0] and given.tolist() == [1, 0]
