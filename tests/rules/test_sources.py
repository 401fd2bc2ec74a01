"""The hash of a rule changes when what it computes may, and only then."""

import importlib
import inspect
import itertools
import sys

import pytest
import torch

from decomp import Rules
from decomp.rules.sources import _parts, content_hash, numbers_in
from decomp_rules import RULES

HELP = "SCALE = 0.25\n\n\ndef scaled(x):\n    return x * SCALE\n\n\ndef unused(x):\n    return x\n"
RULE = "from {0}.help import scaled\n\n\ndef rule(x):\n    return scaled(x) + 0.125\n"
COUNT = itertools.count()


@pytest.fixture
def hashed(tmp_path, monkeypatch):
    """The hash of `rule` in a package of two modules, and the numbers in it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def hash_of(rule=RULE, help_=HELP):
        name = f"hashed_{next(COUNT)}"
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "help.py").write_text(help_)
        (package / "main.py").write_text(rule.format(name))
        importlib.invalidate_caches()
        function = importlib.import_module(f"{name}.main").rule
        found = next(iter(Rules({"relu": function})))
        # The package has another name each time, which is part of what is hashed.
        return "".join(_parts_without(name, function)), numbers_in(found)

    yield hash_of
    for name in [name for name in sys.modules if name.startswith("hashed_")]:
        del sys.modules[name]


def _parts_without(name, function):
    return sorted(part.replace(name, "package") for part in _parts(function))


def test_comments_docstrings_annotations_and_lines_do_not_matter(hashed):
    told = RULE.replace("def rule(x):", '# about\n\ndef rule(x: object) -> object:\n    """What it does."""')
    assert hashed(told) == hashed()
    assert hashed(help_="# more\n\n" + HELP) == hashed()


def test_code_matters_and_that_of_what_is_called(hashed):
    assert hashed(RULE.replace("+ 0.125", "- 0.125")) != hashed()
    assert hashed(help_=HELP.replace("x * SCALE", "SCALE * x * 1")) != hashed()


def test_constants_that_are_named_matter_and_others_do_not(hashed):
    assert hashed(help_=HELP.replace("SCALE = 0.25", "SCALE = 0.5")) != hashed()
    assert hashed(help_=HELP + "\n\nOTHER = 7\n") == hashed()
    assert hashed(help_=HELP.replace("return x\n", "return -x\n")) == hashed()


def test_numbers_of_all_that_is_reached_are_found(hashed):
    assert hashed()[1] == (0.125, 0.25)


def made(factor):
    return next(iter(Rules({"relu": lambda x: x * factor})))


def test_functions_that_a_factory_makes_differ_by_what_they_close_over():
    assert content_hash([made(2)]) == content_hash([made(2)]) != content_hash([made(3)])
    assert content_hash([next(iter(Rules({"relu": torch.relu})))]) != content_hash([made(2)])


def test_the_hash_of_several_does_not_depend_on_their_order():
    one, two = made(1), made(2)
    assert content_hash([one, two]) == content_hash([two, one]) != content_hash([one])


def test_no_rule_of_the_library_is_hashed_by_what_one_version_of_python_compiles():
    for rule in RULES:
        code = inspect.unwrap(rule.function).__code__
        assert not any(code.co_code.hex() in part for part in _parts(rule.function)), rule.function
