"""`decomp explain`: an op, or a model and its page."""

import pytest

from tests.commands import run, said


def squeezed(text):
    return " ".join(text.split())


def test_a_model_is_explained_and_its_page_written(tmp_path):
    page = tmp_path / "page.html"
    result = run("explain", "mlp", "--to", "core_aten", "--html", page)
    assert result.exit_code == 0
    assert "lowered to core_aten: 3 calls of 2 ops became 5 of 3" in result.output
    assert "2 × aten.linear by" in squeezed(result.output)
    assert f"saved {page}" in result.output and "<title>mlp → core_aten</title>" in page.read_text(encoding="utf-8")


def test_a_blocked_model_has_a_page_too_and_exits_with_1(tmp_path):
    target, page = tmp_path / "chip.toml", tmp_path / "page.html"
    target.write_text('name = "chip"\nops = ["add", "mul"]\n')
    result = run("explain", "mlp", "--to", target, "--html", page)
    assert result.exit_code == 1 and page.is_file()
    assert "aten.linear at linear" in squeezed(result.output)


def test_a_file_is_a_model(tmp_path):
    file = tmp_path / "file_model.py"
    file.write_text("import torch\n\ndef model():\n    return torch.nn.ReLU(), (torch.ones(2),)\n")
    result = run("explain", f"{file}:model", "--to", "core_aten")
    assert result.exit_code == 0 and "1 call of 1 op became" in result.output


def test_a_name_of_an_op_and_of_a_sample_is_the_op_unless_a_page_is_asked_for(tmp_path):
    assert "aten.lstm" in run("explain", "lstm").output
    assert said(run("explain", "lstm", "--html", tmp_path / "page.html")) == (
        2,
        "error: --to is missing: lstm is a model, which is explained for a target",
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["gelu", "--html", "page.html"], "error: --html shows a model, and gelu is an op"),
        (["mlp"], "error: --to is missing: mlp is a model, which is explained for a target"),
        (["missing.pt2", "--to", "tinygrad"], "error: no file missing.pt2"),
    ],
)
def test_wrong_usage_is_told(words, text):
    assert said(run("explain", *words)) == (2, text)


def test_a_page_that_cannot_be_written_is_wrong_usage(tmp_path):
    code, text = said(run("explain", "mlp", "--to", "core_aten", "--html", tmp_path))
    assert code == 2 and text == f"error: --html {tmp_path}: the name must end in .html"
