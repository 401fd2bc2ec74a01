"""Options of the public functions: one value or keywords, and the errors for arguments of a wrong kind and for
unexpected exceptions."""

import copy
from dataclasses import replace
import inspect
import pickle
import re

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp.errors import boundary
from decomp_rules import RULES, targets

X = torch.ones(2, 3)
CORE = targets.core_aten
TRACED = fx.symbolic_trace(nn.ReLU())

OPTIONS = [
    ({"args": X}, "args= must be a tuple of the inputs by position, not Tensor; of one input: args=(x,)"),
    ({"args": {"x": X}}, "args= must be a tuple of the inputs by position, not dict; of one input: args=(x,)"),
    ({"args": 3}, "args= must be a tuple of the inputs by position, not int; of one input: args=(x,)"),
    ({"args": "x"}, "args= must be a tuple of the inputs by position, not str; of one input: args=(x,)"),
    ({"kwargs": [X]}, "kwargs= must be a dict of the inputs by name, not list"),
    ({"kwargs": {3: X}}, "kwargs= must have the names of inputs as keys, not 3"),
    ({"tracer_class": object}, "tracer_class= must be a class derived from torch.fx.Tracer, not the class object"),
    ({"tracer_class": fx.Tracer()}, "tracer_class= must be a class derived from torch.fx.Tracer, not Tracer"),
    ({"tracer_class": None}, "tracer_class= must be a class derived from torch.fx.Tracer, not NoneType"),
    (
        {"dynamic_shapes": 3},
        "dynamic_shapes= must be a dict or a tuple of sizes, as torch.export takes it, not int; as "
        "dynamic_shapes=({0: Dim.DYNAMIC},)",
    ),
    (
        {"dynamic_shapes": "batch"},
        "dynamic_shapes= must be a dict or a tuple of sizes, as torch.export takes it, not str; as "
        "dynamic_shapes=({0: Dim.DYNAMIC},)",
    ),
]
VERIFY = [
    ({"verify": "maybe"}, "verify= must be one of True, False, 'structure', 'values', 'full', not 'maybe'"),
    ({"verify": 3}, "verify= must be one of True, False, 'structure', 'values', 'full', not 3"),
]
OF_TARGET = [
    ({"rules": 5}, "rules= must be decomp.Rules or a dict of functions by op, not int"),
    ({"rules": [torch.relu]}, "rules= must be decomp.Rules or a dict of functions by op, not list"),
    ({"rules": {F.relu: 5}}, "a rule must be a function over tensors, not 5"),
    ({"keep": 3}, 'keep= must be a set of ops, not int; as keep={"softmax", F.gelu}'),
    ({"keep": {"nope"}}, "unknown op 'nope'"),
    ({"keep": {3}}, "unknown op 3"),
    ({"keep": [["relu"]]}, "unknown op ['relu']"),
    ({"cost": 3}, "cost= must be a function of a call that returns a number, not int"),
    (
        {"cost": "fuse"},
        "cost= must be one of 'calls', 'flops', 'bytes', 'peak_memory', 'fused', 'measured', or a function, not 'fuse'",
    ),
    (
        {"to": "tinygrad"},
        "to= must be a decomp.Target, not the name 'tinygrad': pass decomp_rules.targets.tinygrad, or "
        "Target.load(path)",
    ),
    (
        {"to": "tinygrd"},
        "to= must be a decomp.Target, not the name 'tinygrd': pass decomp_rules.targets.tinygrad, or Target.load(path)",
    ),
    (
        {"to": "my chip"},
        "to= must be a decomp.Target, not the name 'my chip': pass one of decomp_rules.targets "
        "(core_aten, coreai, coremltools, executorch, iree, litert, luminal, onnx, onnxruntime, openvino, prims, "
        "stablehlo, tensorrt, tinygrad, torch_mlir, torch_onnx, tosa, ttnn, tvm), or Target.load(path)",
    ),
    ({"to": None}, "to= must be a decomp.Target, not NoneType; decomp_rules.targets has some"),
    ({"to": ["add"]}, "to= must be a decomp.Target, not list; decomp_rules.targets has some"),
]
PARTIAL = [({"partial": "x"}, "partial= must be True or False, not str")]


def by_kind(value):
    """A name of a case that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+| of type object at 0x[0-9a-f]+", "", repr(value))


def table(*cases):
    return pytest.mark.parametrize("wrong, text", [case for part in cases for case in part], ids=by_kind)


def refused(text, function, *args, **kwargs):
    with pytest.raises(decomp.DecompError) as caught:
        function(*args, **kwargs)
    assert str(caught.value).startswith(text)
    assert isinstance(caught.value, (TypeError, ValueError, LookupError))
    assert type(pickle.loads(pickle.dumps(caught.value))) is type(caught.value)


@table(OPTIONS, VERIFY, OF_TARGET, PARTIAL)
def test_lower_names_the_option_at_fault(wrong, text):
    refused(text, decomp.lower, nn.ReLU(), **{"to": CORE, **wrong})


@table(VERIFY, OF_TARGET[:8], PARTIAL)
def test_options_name_the_one_at_fault(wrong, text):
    refused(text, decomp.Options, **wrong)


EXCLUDED = [
    ({"max_error": 1.0, "max_ulp": 4}, "max_error= picks levels and max_ulp= replaces them: pass only one of the two"),
    ({"freeze": True, "simplify": False}, "freeze=True is part of simplification: leave out simplify=False"),
    (
        {"freeze": True, "training": True},
        "freeze=True makes parameters constants, which cannot train: leave out training=True",
    ),
]


@table(EXCLUDED)
def test_options_that_exclude_one_another_are_refused_however_they_are_given(wrong, text):
    refused(text, decomp.Options, **wrong)
    refused(text, decomp.lower, nn.ReLU(), to=CORE, **wrong)
    first, *others = wrong
    beside = {name: wrong[name] for name in others}
    refused(text, decomp.lower, nn.ReLU(), to=CORE, options=decomp.Options(**{first: wrong[first]}), **beside)


def test_options_as_one_value_are_the_keywords():
    options = decomp.Options(keep={"gelu"}, accuracy="exact")
    one = decomp.plan(nn.GELU(), to=targets.tinygrad, args=(X,), options=options)
    assert str(one).startswith("plan for tinygrad: 1 call legal, 0 derived, 0 blocked\n")
    assert str(one) == str(decomp.plan(nn.GELU(), to=targets.tinygrad, args=(X,), keep={"gelu"}, accuracy="exact"))


def test_a_keyword_beside_options_wins():
    options = decomp.Options(accuracy="exact", verify=False)
    lowering = decomp.lower(nn.GELU(), to=targets.tinygrad, args=(X,), options=options, accuracy="fast")
    assert str(lowering.accuracy) == "fast" and lowering.proof is None


def test_options_show_what_was_given_and_can_be_copied_changed_and_pickled():
    options = decomp.Options(keep=("softmax",), accuracy="fast")
    assert repr(options) == "Options(keep=(Op(name='aten.softmax'),), accuracy='fast')"
    assert repr(decomp.Options()) == "Options()"
    assert pickle.loads(pickle.dumps(options)) == copy.deepcopy(options) == options
    assert replace(options, freeze=True).freeze and not options.freeze


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda options: decomp.backend(CORE, options=replace(options, freeze=True)),
            "options= has freeze=True, and backend takes no freeze=",
        ),
        (
            lambda options: decomp.decompose(nn.ReLU(), {}, options=replace(options, narrow=True)),
            "options= has narrow=True, and decompose takes no narrow=",
        ),
        (
            lambda options: decomp.budget(nn.ReLU(), to=CORE, args=(X,), options=replace(options, max_ulp=4)),
            "options= has max_ulp=4, and budget takes no max_ulp=",
        ),
        (lambda options: decomp.plan(nn.ReLU(), to=CORE, options={}), "options= must be decomp.Options, not dict"),
    ],
)
def test_a_verb_refuses_options_that_it_does_not_take(call, text):
    refused(text, call, decomp.Options())


def test_a_verb_that_makes_no_program_passes_over_what_is_about_programs():
    options = decomp.Options(partial=True, simplify=False, verify="values", lock="somewhere.lock")
    assert decomp.plan(nn.ReLU(), to=CORE, args=(X,), options=options).complete


VERBS = [decomp.lower, decomp.plan, decomp.budget, decomp.advise, decomp.backend, decomp.decompose]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_an_option_has_one_name_and_one_default_in_every_signature(verb):
    taken = inspect.signature(verb).parameters
    named = inspect.signature(decomp.Options).parameters
    assert taken["options"].default is None and not any(each.kind is each.VAR_KEYWORD for each in taken.values())
    shared = taken.keys() & named.keys() - {"rules" if verb is decomp.decompose else ""}
    assert {name: taken[name].default for name in shared} == {name: named[name].default for name in shared}
    assert len(shared) >= 3 and (verb is not decomp.lower or shared == named.keys())


@table(OPTIONS, OF_TARGET)
def test_plan_names_the_option_at_fault(wrong, text):
    refused(text, decomp.plan, nn.ReLU(), **{"to": CORE, **wrong})


@table(OPTIONS, VERIFY, OF_TARGET[:3])
def test_decompose_names_the_option_at_fault(wrong, text):
    refused(text, decomp.decompose, nn.ReLU(), **{"rules": {}, **wrong})


@table(VERIFY, OF_TARGET[:2], OF_TARGET[3:4], OF_TARGET[7:], PARTIAL)
def test_backend_names_the_option_at_fault_at_once(wrong, text):
    refused(text, decomp.backend, **{"to": CORE, **wrong})


def test_backend_refuses_another_compiler():
    with pytest.raises(decomp.DecompError, match="must be 'eager', 'inductor', a Backend or a function, not 'gcc'"):
        run = torch.compile(nn.ReLU(), backend=decomp.backend(to=CORE, compiler="gcc"))
        run(X)


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"to": "tinygrad"}, "to= must be a decomp.Target, not the name 'tinygrad'"),
        ({"to": [3]}, "to= must be a decomp.Target, not int"),
        ({"dtypes": torch.float32}, "dtypes= must be a list of dtypes, not dtype; as dtypes=[torch.float32]"),
        ({"dtypes": ["float32"]}, "dtypes= must be a list of dtypes, not list"),
        ({"seed": "x"}, "seed= must be an integer, not str"),
        ({"samples": 3}, "samples= must be a list of sample calls, not int; as samples=[(torch.ones(3),)]"),
        ({"executor": 3}, "executor= must be a concurrent.futures.Executor, not int"),
        ({"timeout": -1}, "timeout= must be a number of seconds above 0, not -1"),
        ({"timeout": "x"}, "timeout= must be a number of seconds above 0, not 'x'"),
        ({"progress": 3}, "progress= must be a function, True or False, not int"),
    ],
    ids=by_kind,
)
def test_certify_names_the_option_at_fault(wrong, text):
    refused(text, decomp.certify, RULES["deg2rad"][0], **wrong)


@pytest.mark.parametrize("wrong", [3, None, [3], "relu", nn.ReLU()], ids=by_kind)
def test_certify_takes_rules_alone(wrong):
    refused('certify takes a rule or several, such as rules["relu"], not ', decomp.certify, wrong)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: decomp.lower(nn.ReLU()), "lower() missing 1 required keyword-only argument: 'to'"),
        (lambda: decomp.lower(nn.ReLU(), too=CORE, to=CORE), "lower() got an unexpected keyword argument 'too'"),
        (lambda: decomp.lower(to=CORE), "lower() missing 1 required positional argument: 'model'"),
        (lambda: decomp.decompose(nn.ReLU()), "decompose() missing 1 required positional argument: 'rules'"),
        (lambda: decomp.verify(TRACED), "verify() missing 1 required positional argument: 'lowered'"),
        (lambda: decomp.decompose(nn.ReLU(), 3), "rules= must be decomp.Rules or a dict of functions by op, not int"),
        (lambda: decomp.verify(TRACED, TRACED, full="x"), "full= must be True or False, not str"),
        (lambda: decomp.lint(3), "rules= must be decomp.Rules or a dict of functions by op, not int"),
        (lambda: decomp.Target("chip", 3), "the ops of a target must be a list of ops, not int"),
    ],
)
def test_a_call_that_python_cannot_make_is_an_error_of_the_family(call, text):
    refused(text, call)


@pytest.mark.parametrize("wrong", [3, "model", None, nn.ReLU, nn.ReLU(), [TRACED]], ids=by_kind)
def test_what_has_no_graph_is_refused_by_calls_and_verify(wrong):
    with pytest.raises(decomp.CaptureError, match="has no graph"):
        decomp.calls(wrong)
    with pytest.raises(decomp.CaptureError, match="has no graph"):
        decomp.verify(TRACED, wrong)


@pytest.mark.parametrize("wrong", [3, "model", None, nn.ReLU, [TRACED]], ids=by_kind)
@pytest.mark.parametrize(
    "verb",
    [
        lambda model: decomp.lower(model, to=CORE),
        lambda model: decomp.plan(model, to=CORE),
        lambda model: decomp.decompose(model, {}),
    ],
)
def test_what_is_no_program_is_a_capture_error(verb, wrong):
    with pytest.raises(decomp.CaptureError, match="cannot lower .*; pass an nn.Module"):
        verb(wrong)


@pytest.mark.parametrize(
    "shapes",
    [
        {"nobody": {0: 3}},
        ("x",),
        (3, 4),
        {"input": object()},
        ({0: torch.export.Dim("b", min=4)},),
    ],
    ids=by_kind,
)
def test_dynamic_shapes_that_do_not_fit_are_a_capture_error(shapes):
    with pytest.raises(decomp.CaptureError, match="torch.export could not capture ReLU"):
        decomp.lower(nn.ReLU(), to=CORE, args=(X,), dynamic_shapes=shapes)


# what nobody foresaw


def test_unexpected_errors_are_reported_with_stage_type_line_and_remedy(monkeypatch):
    def planned(*args, **options):
        raise ZeroDivisionError("no such plan")

    monkeypatch.setattr("decomp.lowering.plan_program", planned)
    with pytest.raises(decomp.errors.InternalError) as caught:
        decomp.lower(nn.Softmax(-1), to=targets.tinygrad, args=(X,))
    assert re.match(
        r"lower failed: ZeroDivisionError: no such plan\n"
        r"  at test_options.py:\d+, planned\n"
        r"  to do: look at the exception above this one; ",
        str(caught.value),
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and caught.value.stage == "lower"
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), decomp.errors.InternalError)


def test_a_wrapped_error_is_not_wrapped_twice():
    @boundary("outer")
    def outer():
        inner()

    @boundary("inner")
    def inner():
        raise KeyError("lost")

    with pytest.raises(decomp.errors.InternalError, match="^inner failed: KeyError: 'lost'"):
        outer()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError, torch.OutOfMemoryError])
def test_what_stops_a_program_passes(kind):
    @boundary("verb")
    def stopped():
        raise kind()

    with pytest.raises(kind):
        stopped()


def test_a_type_error_from_inside_is_no_wrong_call():
    @boundary("verb")
    def verb():
        return len(3)

    with pytest.raises(decomp.errors.InternalError, match="^verb failed: TypeError: "):
        verb()


def deep(depth):
    module = nn.Sequential(nn.ReLU())
    for _ in range(depth):
        module = nn.Sequential(module)
    return module


def nested(depth):
    value = X
    for _ in range(depth):
        value = [value]
    return value


class First(nn.Module):
    def forward(self, x):
        while isinstance(x, list):
            x = x[0]
        return x + 1


@pytest.mark.parametrize("model, args", [(deep(1500), (X,)), (deep(1500), None), (First(), (nested(1500),))])
@pytest.mark.parametrize("verb", [decomp.lower, decomp.plan])
def test_deep_nesting_is_an_error_of_the_family(verb, model, args):
    with pytest.raises(decomp.DecompError, match="maximum recursion depth exceeded"):
        verb(model, to=CORE, args=args)


def test_an_exception_of_the_model_itself_is_a_capture_error_with_its_cause():
    class Broken(nn.Module):
        def forward(self, x):
            raise LookupError("no weights here")

    with pytest.raises(decomp.CaptureError, match="no weights here") as caught:
        decomp.lower(Broken(), to=CORE, args=(X,))
    assert caught.value.__cause__ is not None


def test_an_interrupt_of_the_model_passes():
    class Interrupted(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    for args in ((X,), None):
        with pytest.raises(KeyboardInterrupt):
            decomp.lower(Interrupted(), to=CORE, args=args)


@pytest.mark.parametrize("given", [3, None, "relu", [3], object, nn.ReLU(), torch.ones(()), [lambda x: x]])
@pytest.mark.parametrize("use", [decomp.Rules, lambda given: RULES | given])
def test_rules_may_be_a_dict_or_a_sequence_of_rules(use, given):
    text = "^rules are a dict from op to function, or a sequence of rules, "
    with pytest.raises(decomp.errors.ArgumentError, match=text):
        use(given)
