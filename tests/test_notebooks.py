"""The notebooks run, in the order of their cells and in an empty folder, and are stored with what they print."""

import re

import nbformat
import pytest

from tests.notebooks import NOTEBOOKS, printed, ran

SAID = {
    "bring-up": ["numpy: exp2, sum.dim_IntList are wrong: 2 of 48 calls", "numpy: 48 calls and the results are right"],
    "chip": [
        "2 ops cannot be lowered to chip; the program is unchanged",
        "lowered to chip: 26 calls of 10 ops became ",
    ],
    "converter": ["3 ops cannot be lowered to steps", "the program to one with other results", "the fault is in steps"],
}
"""What each is there to show."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_stored_with_what_it_prints(path, tmp_path):
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    for found in (stored, ran(path, tmp_path)):
        assert [text for text in SAID[path.stem] if text not in printed(found)] == []
    assert not re.search(r"/(?:tmp|root|home|work)/", printed(stored))


def test_each_notebook_is_one_of_these():
    assert sorted(SAID) == [path.stem for path in NOTEBOOKS]
