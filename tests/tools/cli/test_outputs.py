"""A file that a command cannot write is refused before the command computes anything, by the name of its option."""

import pytest

from tests.commands import run, said

PAGES = {
    ("bringup", "numpy", "--op", "add", "--quick", "--html"): ".html",
    ("bringup", "numpy", "--op", "add", "--quick", "-o"): ".json",
    ("diff", "mlp", "--to", "tinygrad", "--to", "core_aten", "--html"): ".html",
    ("explain", "mlp", "--to", "tinygrad", "--html"): ".html",
    ("prove", "--to", "tinygrad", "-o"): ".json",
    ("refold", "mlp", "-o"): ".pt2",
    ("score", "tinygrad", "--badge"): ".svg",
    ("score", "tinygrad", "--page"): ".html",
    ("score", "tinygrad", "--proof"): ".json",
    ("score", "tinygrad", "-o"): ".json",
    ("snapshot", "--to", "tinygrad", "-o"): ".json",
}
"""By command, up to the option that names the file: the suffix of the file."""
PLOTS = [
    ("advise", "mlp", "--to", "tinygrad", "--plot"),
    ("certify", "relu", "--plot"),
    ("memory", "mlp", "--plot"),
    ("rules", "exp", "--to", "tinygrad", "--plot"),
]
OTHERS = [("lower", "mlp", "--to", "tinygrad", "--lock"), ("targets", "tinygrad", "--header")]
EVERY = [*PAGES.items(), *((words, ".png") for words in PLOTS), *((words, ".x") for words in OTHERS)]


@pytest.mark.parametrize(("words", "suffix"), EVERY)
def test_a_directory_that_is_not_there_is_refused(tmp_path, words, suffix):
    path = tmp_path / "nodir" / f"x{suffix}"
    code, text = said(run(*words, path))
    assert (code, text) == (2, f"error: {words[-1]} {path}: there is no directory {path.parent}")


@pytest.mark.parametrize(("words", "suffix"), EVERY)
def test_a_directory_in_the_place_of_the_file_is_refused(tmp_path, words, suffix):
    path = tmp_path / f"x{suffix}"
    path.mkdir()
    assert said(run(*words, path)) == (2, f"error: {words[-1]} {path}: a directory is in its place")


@pytest.mark.parametrize(("words", "suffix"), PAGES.items())
def test_another_suffix_is_refused(tmp_path, words, suffix):
    path = tmp_path / "x.foo"
    assert said(run(*words, path)) == (2, f"error: {words[-1]} {path}: the name must end in {suffix}")


@pytest.mark.parametrize("words", PLOTS)
def test_a_plot_of_an_unknown_format_is_refused(tmp_path, words):
    code, text = said(run(*words, tmp_path / "x.foo"))
    assert code == 2 and text.startswith(f"error: --plot {tmp_path / 'x.foo'}: the name must end in ")
    assert " or .png or " in text and text.count("x.foo") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("advise", "mlp", "--to", "tinygrad", "--results"),
        ("bench", "gelu", "--out"),
        ("compare", "mlp", "--on", "numpy", "--save"),
    ],
)
def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path, words):
    path = tmp_path / "file"
    path.touch()
    assert said(run(*words, path / "x")) == (2, f"error: {words[-1]} {path / 'x'}: {path} is a file, not a directory")


def test_the_suffix_of_a_plot_may_be_in_capitals(tmp_path):
    path = tmp_path / "x.PNG"
    assert run("memory", "mlp", "--plot", path).exit_code == 0 and path.exists()
