"""Sample models run, train, and reach the targets; sample calls run."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import samples, targets
from tests.pytorch_differences import present


@pytest.mark.parametrize("name", samples.MODELS)
def test_a_sample_model_runs_and_every_parameter_gets_a_gradient(name):
    model, args = samples.model(name)
    model(*args).square().mean().backward()
    assert model.training
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_same_seed_gives_the_same_sample_and_leaves_the_random_state_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    (one, args), (other, same) = samples.model("gpt"), samples.model("gpt")
    assert torch.rand(1) == expected
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values()))
    assert torch.equal(*args, *same)
    assert not torch.equal(*args, *samples.model("gpt", seed=1)[1])


def test_the_head_of_the_gpt_is_its_embedding():
    model, _ = samples.model("gpt")
    assert model.head.weight is model.tokens.weight


def test_an_unknown_sample_names_those_that_there_are():
    with pytest.raises(LookupError) as caught:
        samples.model("gtp")
    assert str(caught.value) == "no sample model 'gtp'; there are gpt, mlp, resnet, lstm, unet, encoder, vit"


@pytest.mark.sampled
@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
@pytest.mark.parametrize("name", samples.MODELS)
def test_a_sample_model_lowers_with_equal_outputs_and_gradients(name, target):
    model, args = samples.model(name)
    expected = model(*args)
    (wanted,) = torch.autograd.grad(expected.square().mean(), [next(model.parameters())])
    model, args = samples.model(name)
    lowered = decomp.lower(model, to=targets.get(target), args=args).result
    found = lowered(*args)
    weight = lowered.get_parameter(next(model.named_parameters())[0])
    (gradient,) = torch.autograd.grad(found.square().mean(), [weight])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # some ops are deprecated, and say so
def test_every_sample_call_runs_and_makes_the_same_tensors_each_time():
    composed = {name for name in samples.CALLS if "linear_cross_entropy" in name}
    known = [name for name in composed if hasattr(F, "linear_cross_entropy")]
    for name in [*known, *present(samples.CALLS.keys() - composed)]:
        op = getattr(torch.ops.torch_nn if name in composed else torch.ops.aten, name)
        calls, again = (samples.calls_of(op) for _ in range(2))
        assert calls, name
        for call, same in zip(calls, again):
            torch.testing.assert_close(call.tensors, same.tensors, rtol=0, atol=0, equal_nan=True, msg=name)
            call.run()


def test_a_call_is_guessed_for_a_pointwise_op_and_none_for_another():
    (call,) = [c for c in samples.calls_of(torch.ops.aten.atan2) if c.overload is torch.ops.aten.atan2.default]
    assert call.run().shape == (4, 4)
    assert samples.calls_of(torch.ops.aten._cudnn_rnn) == ()


def test_a_sample_finds_the_overload_that_its_arguments_fit():
    call = decomp.Sample.of("sum", (torch.ones(2, 3), [1]), {"keepdim": True})
    assert call.overload is torch.ops.aten.sum.dim_IntList
    assert str(call) == "aten.sum.dim_IntList(float32[2, 3], [1], keepdim=True)"
    with pytest.raises(ValueError, match="fit no overload of aten.sum"):
        decomp.Sample.of("sum", ("three",))
