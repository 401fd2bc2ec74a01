"""The backends that ship, brought up: a sample of their primitives, drawn by a seed; all of them with `--whole`."""

import pytest

from decomp.tools.bringup import trying
from decomp.tools.bringup.rows import FINE
from decomp_rules import backends, targets
from tests import installed

TARGETS = {name: getattr(targets, "tinygrad" if name == "numpy" else name) for name in backends.names()}
PRIMITIVES = [f"{backend} {name}" for backend, target in TARGETS.items() for name in target]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_a_primitive_is_right_but_for_what_is_stated(primitive):
    name, _, op = primitive.partition(" ")
    row = trying.primitive(installed.backend(name), op, True, lambda case: None)
    assert row.verdict in FINE, "\n".join(map(str, row.problems))


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_statements_are_about_primitives_of_the_target(name):
    backend = installed.backend(name)
    more = targets.onnxruntime if name == "onnx" else ()  # it runs programs of either target
    assert backend.stated() <= {*backend.target, *more}
