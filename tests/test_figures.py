"""Files of plots."""

import sys

import pytest

from decomp.figures import new_figure, save_figure


def test_without_matplotlib_a_plot_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'^plots need matplotlib\n  to do: pip install "decomp\[plot\]"$'):
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
