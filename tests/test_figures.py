"""Files of plots."""

import sys

import pytest

from decomp.errors import ArgumentError, PackageMissing
from decomp.figures import new_figure, place_of_plot, save_figure


def test_without_matplotlib_a_plot_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PackageMissing, match=r'^plots need matplotlib\n  to do: pip install "decomp\[plot\]"$'):
        new_figure(3, 2)


def test_a_plot_that_fails_leaves_the_earlier_file(tmp_path):
    pytest.importorskip("matplotlib")
    path = save_figure(new_figure(3, 2), tmp_path / "plot.svg")
    before = path.read_bytes()
    assert before and list(tmp_path.iterdir()) == [path]

    class Failing:
        def savefig(self, path, dpi):
            path.write_text("half")
            raise ValueError("no such format")

    with pytest.raises(ValueError, match="no such format"):
        save_figure(Failing(), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_plot_is_refused_before_it_is_drawn_where_matplotlib_writes_no_such_file(tmp_path):
    pytest.importorskip("matplotlib")
    assert place_of_plot(str(tmp_path / "plot.PNG")) == tmp_path / "plot.PNG"
    refusals = {
        3: "plot: path= must be the path of a file, not int",
        tmp_path: f"plot: {tmp_path} is a directory\n  to do: name a file, as {tmp_path / 'plot.png'}",
        tmp_path / "plot": f"plot: the suffix of a file says its format, and {tmp_path / 'plot'} has none\n",
        tmp_path / "plot.txt": f"plot: the suffix of a file says its format, and {tmp_path / 'plot.txt'} has .txt\n",
    }
    for path, text in refusals.items():
        with pytest.raises(ArgumentError) as refused:
            place_of_plot(path)
        assert str(refused.value).startswith(text)
    assert "\n  to do: name it plot.png; there are " in str(refused.value)
