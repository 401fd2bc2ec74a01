"""`decomp diff` and `decomp lower --lock`: two lowerings, and what is missing to compare them."""

import json

import pytest

from tests.commands import run, said


@pytest.fixture(scope="module")
def lock(tmp_path_factory):
    path = tmp_path_factory.mktemp("locks") / "mlp.lock"
    assert run("lower", "mlp", "--to", "tinygrad", "--no-verify", "--lock", path).exit_code == 0
    return path


def test_a_lock_is_compared_with_the_model_lowered_now(lock):
    result = run("diff", lock, "mlp", "--to", "tinygrad")
    assert (result.exit_code, result.output.strip()) == (
        0,
        "tinygrad, 11 calls → tinygrad, 11 calls: the same in everything",
    )


def test_a_lowering_of_another_level_is_held_to_the_lock(lock):
    words = ("lower", "mlp", "--no-verify", "--lock", lock)
    assert run(*words, "--to", "tinygrad", "--accuracy", "fast").exit_code == 0  # the same calls
    code, text = said(run(*words, "--to", "core_aten"))
    assert code == 3 and text.startswith(
        f"error: the lowered program is not that of {lock}\n  the target: target: core_aten"
    )


def test_one_model_for_two_targets(lock):
    result = run("diff", "mlp", "--to", "tinygrad", "--to", "core_aten", "--lines")
    assert result.exit_code == 1
    assert "tinygrad, 11 calls → core_aten, 5 calls: " in result.output
    assert "  aten.relu.default(f32[3, 16]): legal, was relu_where_positive, where, 3 calls" in result.output
    assert "\n--- before\n+++ after\n" in result.output
    found = json.loads(run("diff", lock, "mlp", "--to", "core_aten", "--json").stdout)
    assert (
        not found["same_program"]
        and {"kind": "module", "about": "0", "text": "2 calls, was 4 calls"} in found["changes"]
    )


def test_two_lowerings_are_a_page(tmp_path):
    page = tmp_path / "page.html"
    result = run("diff", "mlp", "--to", "tinygrad", "--to", "core_aten", "--html", page)
    assert result.exit_code == 1 and result.output.endswith(f"saved {page}\n")
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "mlp (tinygrad) → mlp (core_aten)" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("x.lock", "mlp", "--to", "tinygrad", "--html", "x.html"),
            "error: --html shows two programs that are lowered now",
        ),
        (("x.lock",), "error: x.lock: name another to compare it with, or a model with two targets: "),
        (("mlp", "--to", "tinygrad"), "error: mlp: name another to compare it with, or a model with two targets: "),
        (("mlp", "gpt"), "error: mlp is not a lock (*.lock), and a model needs --to TARGET"),
        (("x.lock", "mlp", "--to", "tinygrad"), "error: x.lock: No such file or directory"),
        (("mlp", "gpt", *("--to", "tinygrad") * 3), "error: --to TARGET: at most two, one for each"),
    ],
)
def test_what_cannot_be_compared_is_said(words, message):
    code, text = said(run("diff", *words))
    assert code == 2 and text.startswith(message)
