"""The public face: few names, nothing beside them, and old ones for a release more."""

import inspect
import re
import subprocess
import sys

import pytest
import torch

import decomp

MOVED = {
    "InputMissing": "errors.InputMissing",
    "LoadError": "errors.LoadError",
    "TargetError": "errors.TargetError",
    "Advice": "results.Advice",
    "Certificate": "results.Certificate",
    "Leeway": "results.UnspecifiedBehaviour",
}


def test_the_public_face_has_some_forty_names_and_nothing_leaks_into_it():
    assert dir(decomp) == sorted(decomp.__all__)
    assert len(set(decomp.__all__)) == len(decomp.__all__) <= 40
    assert all(getattr(decomp, name) is not None for name in decomp.__all__)


VERBS = [getattr(decomp, name) for name in decomp.__all__[:14]]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_verb_says_first_what_it_returns(verb):
    """By its class, which has a public name, or that it is a program."""
    returned = str(inspect.signature(verb).return_annotation)
    first = inspect.getdoc(verb).partition("\n\n")[0]
    classes = {name for name in re.findall(r"\w+", returned) if name in dir(decomp) or name in decomp.results.__all__}
    assert all(f"`{name}`" in first for name in classes)
    assert classes or returned == "Any" and "a program" in first


def test_every_result_has_a_name():
    assert dir(decomp.results) == decomp.results.__all__
    assert all(isinstance(getattr(decomp.results, name), type) for name in decomp.results.__all__)


@pytest.mark.parametrize("name", MOVED)
def test_a_name_that_moved_works_and_says_where_it_is(name):
    module, new = MOVED[name].split(".")
    with pytest.warns(DeprecationWarning, match=f"decomp.{name} is decomp.{MOVED[name]} now") as warned:
        found = getattr(decomp, name)
    assert found is getattr(getattr(decomp, module), new)
    assert warned[0].filename == __file__


SHOWN = (
    "account accuracy blockers html inlined internals layers picked plan proof provenance report result save stages "
    "target trains"
).split()


def test_a_lowering_shows_what_its_users_read_and_old_names_still_work():
    lowering = decomp.lower(torch.nn.ReLU(), to=decomp.Target("chip", {"relu"}))
    assert [name for name in dir(lowering) if not name.startswith("_")] == SHOWN
    with pytest.warns(DeprecationWarning, match="Lowering.root is for the project's own tools"):
        assert lowering.root is lowering.internals.program.root
    with pytest.raises(AttributeError, match="'Lowering' object has no attribute 'reslut'"):
        lowering.reslut


def test_the_former_names_of_fields_still_work():
    chip = decomp.Target("chip", {"relu"})
    rules = {"silu": lambda x: torch.relu(x)}
    lowering = decomp.lower(torch.nn.SiLU(), to=chip, args=(torch.ones(2),), rules=rules)
    (derived,) = lowering.plan.derived.values()
    with pytest.warns(DeprecationWarning, match="Derived.stamp is Derived.template now"):
        assert derived.stamp is derived.template
    report = lowering.report()
    with pytest.warns(DeprecationWarning, match="Report.stamped is Report.inserted now"):
        assert report.stamped == report.inserted == 1


@pytest.mark.parametrize("module", [decomp, decomp.results])
def test_an_unknown_name_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'lowre'"):
        module.lowre


def test_the_package_is_imported_without_pytorch():
    """So that the command line shows its help at once; a name is imported when it is asked for."""
    program = "import sys, decomp; before = 'torch' in sys.modules; decomp.lower; print(before, 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["False", "True"]
