"""Certificates of correct rules, and of rules with each kind of fault."""

from concurrent.futures import ThreadPoolExecutor
import json
import platform

import pytest
import torch

import decomp
from decomp import Rules
from decomp.results import Certificate
from decomp.tools.certification.implementations import under_symbolic_sizes
from decomp.tools.measurement.measuring import measure_rule
import decomp_rules
from decomp_rules import samples, targets
from tests.tools.certification import certified_rules

aten = torch.ops.aten
FLOAT32 = (torch.float32,)


def certified(op, function, **options):
    """The certificate of a function as the rule of an op, as written and in float32 unless asked otherwise."""
    return decomp.certify(Rules({op: function})[op][0], **{"dtypes": FLOAT32, **options})


def faults(op, function, **options):
    return "\n".join(certified(op, function, **options).faults)


# devices


def test_a_sample_is_placed_on_the_device_that_it_runs_on_and_its_own_tensors_stay():
    meta = torch.device("meta")
    sample = decomp.Sample(
        aten.full_like.default, (torch.ones(2, 3), 1.5), {"device": torch.device("cpu")}, device=meta
    )
    placed = sample.on_its_device()
    assert (placed.args[0].device, placed.kwargs["device"]) == (meta, meta)
    assert sample.tensors[0].device.type == "cpu"
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        sample.run()  # its results are copied to the CPU


def test_a_rule_measured_on_a_named_device_has_the_certificate_that_it_has_without():
    (rule,) = Rules({"rsqrt": lambda x: 1 / torch.sqrt(x)})["rsqrt"]
    how = {"targets": [targets.tinygrad], "dtypes": FLOAT32, "levels": ("exact",)}
    named, plain = measure_rule(rule, **how, device=torch.device("cpu")), measure_rule(rule, **how)
    assert [way.values for way in named.ways] == [way.values for way in plain.ways]
    assert [way.gradients for way in named.ways] == [way.gradients for way in plain.ways]
    assert plain.ways[0].flushed and not named.ways[0].flushed  # the switch for that is the CPU's


# values


def test_a_right_rule_has_no_faults_and_its_figures_stand_next_to_pytorchs():
    found = certified("rsqrt", lambda x: 1 / torch.sqrt(x))
    figures = found.way("as written").values["float32"]
    assert found.ok, found.faults
    assert 0 < figures.mean < figures.max < 2 and figures.points > 30_000
    assert 0 < figures.own_max < 2
    assert found.reference["float32"] == "the op in float64, its worst points by mpmath"


def test_a_textbook_identity_shows_its_error_and_where():
    found = certified("log1p", lambda x: torch.log(1 + x))
    figures = found.way("as written").values["float32"]
    assert figures.max > 1e6 and abs(float(figures.worst)) < 1e-3
    assert any("ULP at" in fault and "where PyTorch has" in fault for fault in found.faults)


def test_sixteen_bits_are_measured_at_every_value():
    found = certified("exp", lambda x: torch.exp2(x * 1.4426950408889634), dtypes=(torch.bfloat16,))
    figures = found.way("as written").values["bfloat16"]
    assert "all 65,536 values of 16 bits" in found.domain
    assert figures.points > 65_000 and figures.max > 1


def test_float64_is_measured_by_mpmath():
    accurate = certified("tanh", torch.tanh, dtypes=(torch.float64,))
    rough = certified("tanh", lambda x: torch.tanh(x.float()).double(), dtypes=(torch.float64,))
    assert accurate.reference["float64"] == "mpmath with 140 bits, at 400 points"
    assert accurate.way("as written").values["float64"].max < 2
    assert rough.way("as written").values["float64"].max > 1e6
    assert not rough.ok


def test_nan_and_infinity_and_the_sign_of_zero_are_distinguished():
    assert "nan instead of inf at inf" in faults("square", lambda x: (x * x - x) + x)
    assert "0 instead of -0 at -0" in faults("trunc", lambda x: torch.trunc(x) + 0.0)
    assert "inf instead of" in faults("square", lambda x: (x * 1e10) * (x * 1e10) / 1e20)


def test_overflow_in_pytorch_itself_does_not_count_against_a_rule():
    own = certified("logaddexp2", torch.logaddexp2).way("as written").values["float32"]
    assert own.mismatches == 0 and own.max == own.own_max


def test_a_reduction_is_measured_against_pytorchs_own_error_where_it_is_ill_conditioned():
    def naive(x, dim, keepdim=False):
        return torch.log(torch.sum(torch.exp(x), dim, keepdim))

    assert "inf instead of 100" in faults("logsumexp", naive)
    cancelling = (
        certified("sum", lambda x, dim=None, keepdim=False, dtype=None: torch.sum(x, dim, keepdim, dtype=dtype))
        .way("as written")
        .values["float32"]
    )
    assert cancelling.worst == "cancelling" and cancelling.max == cancelling.own_max > 10


def test_random_ops_are_compared_with_their_distribution():
    def dropout(x, p, train):
        return torch.where(torch.rand(x.shape) < p, 0, x / (1 - p)) if train else x

    assert certified("dropout", dropout).way("as written").notes["random"] == "distributions agree"
    assert "another distribution" in faults("dropout", lambda x, p, train: dropout(x, p * p, train))


def test_a_call_of_a_random_op_that_draws_nothing_is_measured():
    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        if enable_gqa or is_causal or attn_mask is not None:
            return decomp.decline("what the plain call has not")
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        powers = torch.exp(scores)
        return powers / powers.sum(-1, keepdim=True) @ value

    found = certified("scaled_dot_product_attention", attention)
    assert "random" not in found.way("as written").notes and found.way("as written").gradients
    assert "nan instead of" in "\n".join(found.faults), "the exponentials of large scores overflow"


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_packed_sequences_are_not_tried_on_symbolic_sizes(name):
    packed = [sample for sample in samples.calls_of(getattr(aten, name)) if sample.overload._overloadname == "data"]
    (rule,) = [rule for rule in decomp_rules.RULES[name] if rule.name == f"{name}_packed"]
    assert packed and [under_symbolic_sizes(rule, sample) for sample in packed] == [None] * len(packed)


def test_imaginary_parts_count_where_sample_calls_have_none():
    def forgetful(x, dim):
        return torch.cumsum(x.real.to(x.dtype) if x.is_complex() else x, dim)

    assert "complex64" in faults("cumsum", forgetful, dtypes=None)


def test_what_pytorchs_kernel_for_numbers_apart_says_is_right_too():
    def beside_infinities(x):
        if not x.is_complex():
            return torch.sgn(x)
        return torch.where(x.isfinite(), torch.sgn(x), complex(float("nan"), float("nan")))

    # PyTorch 2.13 has nan + 0i for sgn(inf + 3i) in vectors, and NaN for both parts where there are gaps.
    assert not faults("sgn", beside_infinities, dtypes=None)


def test_what_is_infinite_counts_where_it_is_open_in_which_part():
    def lost(x, other):
        found = torch.mul(x, other)
        return torch.where(found.abs().isinf(), float("nan"), found) if found.is_complex() else found

    assert "nan instead of inf" in faults("mul", lost, dtypes=None)


def test_complex_draws_are_compared_by_their_parts():
    def too_wide(size, dtype=None, device=None):
        found = torch.randn(size, dtype=dtype, device=device)
        return torch.complex(found.real, found.imag * 2) if found.is_complex() else found

    assert "distribution" in faults("randn", too_wide)


# dtypes, shapes, gradients, symbolic sizes


def test_a_result_of_another_dtype_or_shape_is_a_fault():
    assert "float32[65536] on cpu where the op gives int64" in faults("abs", lambda x: torch.abs(x * 1.0))
    assert "where the op gives" in faults("sum", lambda x, dim=None, keepdim=False, dtype=None: x)


def test_digits_that_floats_lack_too_are_no_matter_of_integers():
    lacking = faults("log1p", lambda x: torch.log1p(x) * (1 + 2.0**-15))
    assert "float32: " in lacking and "uint8: " not in lacking
    assert "uint8: " in faults("log1p", lambda x: torch.log1p(x) * (1 if x.is_floating_point() else 1 + 2.0**-15))


def test_a_wrong_gradient_at_a_kink_is_a_fault():
    assert certified("abs", torch.abs).ok
    found = faults("relu", lambda x: torch.where(x < 0, 0, x))
    assert "wrong, 1 instead of 0 at 0" in found


def test_a_nan_gradient_from_the_branch_not_taken_is_a_fault():
    assert "gradient in float32" in faults("sqrt", lambda x: torch.where(x == 0, 0, torch.sqrt(x)))


def test_second_gradients_are_measured():
    found = certified("sin", lambda x: x.detach().sin() + (x - x.detach()) * x.detach().cos())
    assert not found.way("as written").gradients["float32"].mismatches
    assert found.way("as written").second["float32"].mismatches


def test_a_rule_that_asks_for_a_size_adds_a_guard():
    assert certified("relu", torch.relu).way("as written").notes["dynamic shapes"] == "traces"
    found = faults("silu", lambda x: x * torch.sigmoid(x) if x.shape[0] > 3 else x * torch.sigmoid(x))
    assert "dynamic shapes: declines: adds a guard on dynamic sizes" in found


def test_a_rule_that_declines_everything_was_not_served():
    found = certified("relu", lambda x: decomp.decline("only on Sundays"))
    assert found.faults == ("as written: not served: only on Sundays",)


def test_a_rule_that_raises_is_a_finding_and_no_error():
    found = decomp.certify(certified_rules.RULES["square"][0], dtypes=FLOAT32)
    assert "failures: RuntimeError: no such kernel" in "\n".join(found.faults)


def test_gradients_that_primitives_lack_are_a_fact_and_no_fault():
    found = certified("sin", lambda x: torch.ops.prims.sin(x))
    assert found.way("as written").notes["gradients"] == "not defined by torch.ops.prims"
    assert found.ok, found.faults


def test_shapes_that_are_equal_wherever_the_op_is_defined_are_one_shape():
    halved = certified("pixel_shuffle", lambda x, upscale_factor: torch.pixel_shuffle(x, upscale_factor))
    assert halved.way("as written").notes["dynamic shapes"] == "traces"

    def doubled(x, upscale_factor):  # of the right size for the sizes of the sample alone
        return torch.pixel_shuffle(x, upscale_factor)[..., : x.shape[-1] + 3]

    assert "dynamic shapes: returned shape" in faults("pixel_shuffle", doubled)


def test_a_size_passed_to_a_gradient_as_a_number_is_a_number_in_its_tensors():
    def rule(grad_output, input_sizes, dim, index):
        pads = [0, 0] * (grad_output.dim() - dim) + [index, input_sizes[dim] - 1 - index]
        return torch.constant_pad_nd(grad_output.unsqueeze(dim), pads)

    assert certified("select_backward", rule).ok


# what ops leave open


def _topk(change):
    """A rule for `topk` with all that is asked for, by a stable sort whose results are changed."""

    def rule(x, k, dim=-1, largest=True, sorted=True):
        values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
        return change(x, values.narrow(dim, 0, k), indices.narrow(dim, 0, k), dim)

    return rule


def test_any_of_equal_values_may_be_pointed_at():
    found = certified("topk", _topk(lambda x, values, indices, dim: (values, indices)))
    assert found.ok, found.faults


@pytest.mark.parametrize(
    "change",
    [
        lambda x, values, indices, dim: (values, indices.roll(1, dim)),
        lambda x, values, indices, dim: (values, indices.narrow(dim, 0, 1).expand(indices.shape)),
        lambda x, values, indices, dim: (values, indices + x.shape[dim]),
        lambda x, values, indices, dim: (values + 1, indices),
        lambda x, values, indices, dim: (values.flip(dim), indices.flip(dim)),
    ],
    ids=["at another value", "at one value twice", "out of range", "wrong values", "in another order"],
)
def test_what_is_no_answer_is_a_fault(change):
    assert "float32" in faults("topk", _topk(change))


def test_the_gradient_goes_to_any_of_equal_values_and_to_no_others():
    def misled(x, values, indices, dim):
        return values.detach() + (x - x.detach()).narrow(dim, 0, values.shape[dim]), indices

    assert "gradient in float32" in faults("topk", _topk(misled))


def test_singular_vectors_have_any_sign_but_stand_upright():
    def flipped(A, full_matrices=False, compute_uv=True, driver=None):
        u, s, vh = torch.ops.aten._linalg_svd.default(A, full_matrices, compute_uv)
        return -u, s, -vh

    def skewed(A, full_matrices=False, compute_uv=True, driver=None):
        u, s, vh = torch.ops.aten._linalg_svd.default(A, full_matrices, compute_uv)
        return u * 2, s, vh / 2

    found = certified("_linalg_svd", flipped)
    assert found.ok, found.faults
    assert "float32" in faults("_linalg_svd", skewed)


def test_an_op_without_a_kernel_here_is_compared_with_its_documentation():
    sample = decomp.Sample(
        aten.cudnn_convolution_relu.default,
        (torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], 1),
        documented=_convolution_relu,
    )

    def rule(x, weight, bias, stride, padding, dilation, groups):
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups).relu()

    def without_relu(x, weight, bias, stride, padding, dilation, groups):
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)

    found = certified("cudnn_convolution_relu", rule, samples=[sample])
    assert found.ok, found.faults
    assert found.reference["float32"].startswith("a formula for what the op is documented to compute")
    assert "float32" in faults("cudnn_convolution_relu", without_relu, samples=[sample])


def _convolution_relu(x, weight, bias, stride, padding, dilation, groups):
    return torch.relu(torch.conv2d(x, weight, bias, stride, padding, dilation, groups))


def test_the_sign_of_zero_counts_where_values_are_moved_and_not_where_they_are_added_up():
    assert "0 instead of -0" in faults("flip", lambda x, dims: torch.flip(x, dims) + 0.0)
    summed = certified("trace", lambda x: torch.diagonal(x).sum() + 0.0).way("as written")
    assert not summed.values["float32"].mismatches


def test_scales_stay_as_they_are_and_weights_are_not_infinite():
    def scaled(x, other):
        return torch.linalg.vecdot(x, other) if other.isfinite().all() else x.sum(-1)

    weights = decomp.Sample(aten.linalg_vecdot.default, (torch.randn(3, 4), torch.rand(3, 4)), parameters=(1,))

    def rule(x, y, dim=-1):
        return scaled(x, y)

    assert not certified("linalg_vecdot", rule, samples=[weights]).way("as written").values["float32"].mismatches


def test_points_stay_where_an_op_can_be_asked():
    def power(x, exponent):
        return torch.where(exponent == 1, x, float("nan"))

    sample = decomp.Sample(
        aten.pow.Tensor_Tensor,
        (torch.ones(4), torch.ones(4)),
        domain=lambda columns: (columns[0], torch.ones_like(columns[1])),
    )
    assert not certified("pow", power, samples=[sample]).way("as written").values["float32"].mismatches


def test_what_the_op_refuses_in_float64_is_no_point():
    signs = torch.tensor([[1.0, -1, 1, 1], [1, 1, -1, 1], [1, -1, 1, 1], [1, 1, 1, 1]])  # singular

    def inverse_of_regular(x):
        return torch.linalg.inv(torch.where(x.abs() < 1e30, x, float("nan")))

    # Where all are huge a kernel for float32 need not notice: what overflows on the way hides it.
    found = certified("linalg_inv", inverse_of_regular, samples=[(signs / 10 + 1.5 * torch.eye(4),)])
    assert "huge" not in found.domain


# targets


def test_a_rule_is_measured_as_each_target_computes_it():
    found = decomp.certify(certified_rules.RULES["log1p"][0], to=[targets.core_aten, targets.tinygrad], dtypes=FLOAT32)
    assert [way.name for way in found.ways] == ["as written", "core_aten", "tinygrad"]
    assert found.way("core_aten").verdict == "legal"
    lowered = found.way("tinygrad")
    assert lowered.verdict == "measured" and lowered.values["float32"].max > 1e6
    assert "tests.tools.certification.certified_rules:log1p_of_the_textbook for aten.log1p" in lowered.rules
    assert any(name.endswith(" for aten.log") for name in lowered.rules)


def test_a_target_that_is_not_reached_says_why():
    found = certified("relu", lambda x: torch.where(x <= 0, 0, x), to=decomp.Target("adder", ["add"]))
    assert found.way("adder").verdict == "not reached"
    assert "needs aten." in found.way("adder").reason


# samples, data, text


def test_a_rule_without_samples_says_what_to_pass():
    rule = next(iter(Rules({aten._cudnn_rnn: torch.relu})))
    with pytest.raises(ValueError) as caught:
        decomp.certify(rule)
    assert str(caught.value) == (
        "there are no sample calls of aten._cudnn_rnn; pass samples=[(torch.randn(3, 4), 1), …], each the arguments "
        "of a call, or decomp.Sample(overload, args, kwargs)"
    )


def test_samples_of_the_users_own_are_measured_instead():
    found = certified("cumsum", lambda x, dim, dtype=None: torch.cumsum(x, dim), samples=[(torch.randn(3, 4), 1)])
    assert found.domain.startswith("1 sample calls; as sampled; shifted by 1,000")
    assert found.ok


@pytest.fixture(scope="module")
def one():
    return decomp.certify(certified_rules.RULES["rad2deg"][0], to=targets.tinygrad, dtypes=FLOAT32)


def test_a_certificate_survives_json(one):
    assert Certificate.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_a_certificate_is_the_same_for_the_same_seed(one):
    assert decomp.certify(certified_rules.RULES["rad2deg"][0], to=targets.tinygrad, dtypes=FLOAT32) == one


def test_a_certificate_can_be_read(one):
    text = str(one)
    assert text.startswith("tests.tools.certification.certified_rules:rad2deg for aten.rad2deg: nothing wrong\n")
    assert "float32, max" not in text and "rule, max / mean ULP" in text
    assert "\n  tinygrad\n" in text and "dynamic shapes: traces" in text


def test_a_certificate_names_the_machine_it_was_measured_with(one):
    machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} thread"
    assert one.machine.rstrip("s") == machine and one.machine in str(one).splitlines()[1]
    assert Certificate.from_json({"rule": one.rule}).machine == ""


def test_worse_is_what_other_processors_do_not_explain(one):
    worse = decomp.certify(certified_rules.RULES["log1p"][0], dtypes=FLOAT32)
    better = certified("log1p", torch.log1p)
    assert better.worse_than(worse) == () and one.worse_than(one) == ()
    assert any("ULP at" in line for line in worse.worse_than(better))


# executors


def test_a_rule_that_hangs_or_crashes_costs_its_own_certificate_alone():
    hanging, crashing, good = (certified_rules.RULES[op][0] for op in ("sigmoid", "tanh", "rad2deg"))
    told = []
    with ThreadPoolExecutor(1) as executor:
        hung = decomp.certify(hanging, executor=executor, timeout=1)
        found = decomp.certify(
            [crashing, good], dtypes=FLOAT32, executor=executor, progress=lambda *progress: told.append(progress[:2])
        )
    assert hung.error == "hangs: no answer in 1 s"
    assert [one.error for one in found.values()] == ["crashes: SIGABRT", ""]
    assert told == [(1, 2), (2, 2)] and not found.ok
    assert str(found) == (
        "2 certificates, 1 without a fault\n"
        "  tests.tools.certification.certified_rules:crashes for aten.tanh: crashes: SIGABRT"
    )


def test_what_cannot_be_sent_is_measured_here():
    found = decomp.certify([next(iter(Rules({"rsqrt": lambda x: 1 / torch.sqrt(x)})))], dtypes=FLOAT32, timeout=60)
    assert found.ok, str(found)
