"""Expansions kept on disk: the next process runs no rule, and nothing that is wrong with a file does any harm."""

from __future__ import annotations

import json
import os
from pathlib import Path
import shutil
import sqlite3
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp import cache_directory
from decomp.cache import fingerprints, places
from decomp.cache.store import Store
from decomp_rules import RULES, targets

CHIP = targets.tinygrad
ROOT = Path(decomp.__file__).parents[1]
X = torch.ones(2, 6)


class Net(nn.Module):
    def forward(self, x):
        return F.gelu(x).softmax(-1), F.softsign(x), x.split(2, 1)[0].sum(1), x.clone()


class Small(nn.Module):
    def forward(self, x):
        return F.softsign(x), x.split(2, 1)[0].float().sum(1)


pytestmark = pytest.mark.usefixtures("place")


def lowered(model=None, rules=None, to=CHIP, **options):
    """Lowered as another process would, which remembers nothing."""
    rules = decomp.Rules(RULES.entries) if rules is None else rules
    return decomp.lower(Net() if model is None else model, to=to, args=(X,), rules=rules, **options)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """What one lowering keeps, and what a later one comes to by it: of a program of few ops, lowered once for all."""
    place = tmp_path_factory.mktemp("once") / "kept"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECOMP_CACHE", str(place))
        lowered(Small())
        found = lowered(Small())
    assert found.report().runs == 0
    return place, described(found)


@pytest.fixture
def kept(once, place):
    """A directory of one's own with that in it; and what a lowering comes to, whatever is wrong with its files."""
    shutil.copytree(once[0], place)
    return once[1]


def files(place):
    return sorted(place.glob(f"*{places.SUFFIX}"))


def described(lowering):
    def spec(value):
        if isinstance(value, (tuple, list)):
            return [spec(item) for item in value]
        return (
            str(value)
            if not isinstance(value, torch.Tensor)
            else [type(value).__name__, list(value.shape), list(value.stride()), str(value.dtype), str(value.device)]
        )

    nodes = [
        (n.op, n.name, str(n.target), str(n.args), str(n.kwargs), spec(n.meta.get("val")))
        for n in lowering.result.graph.nodes
    ]
    chains = [str(lowering.provenance(n.name)) for n in lowering.result.graph.nodes]
    return nodes, chains, str(lowering.plan)


def test_what_was_planned_is_not_planned_again(place):
    first, second = lowered(), lowered()
    assert first.report().runs > 0 and second.report().runs == 0
    assert described(first) == described(second)
    assert len(files(place)) == 1
    for got, expected in zip(second.result(X), Net()(X)):
        torch.testing.assert_close(got, expected)


def test_where_nothing_is_kept_no_code_is_hashed(monkeypatch):
    hashed = []
    monkeypatch.setattr(fingerprints, "_code_of_package", hashed.append)
    lowered(Small())
    assert hashed == ["decomp", "decomp_rules"]
    monkeypatch.setenv("DECOMP_CACHE", "off")
    assert lowered(Small()).report().runs > 0 and len(hashed) == 2


def test_what_is_kept_passes_every_check():
    lowered()
    again = lowered(verify="values")
    assert again.report().runs == 0 and again.proof is not None
    assert decomp.lower(Net(), to=CHIP, args=(X,), rules=decomp.Rules(RULES.entries), verify="full").report().runs == 0


def test_each_level_of_accuracy_and_target_is_kept_for_itself():
    exact = lowered()
    fast = lowered(accuracy="fast")
    assert fast.report().runs > 0 and lowered(accuracy="fast").report().runs == 0 and lowered().report().runs == 0
    assert described(lowered()) == described(exact) != described(fast) == described(lowered(accuracy="fast"))
    assert lowered(to=targets.luminal).report().runs > 0
    assert lowered(to=CHIP - ["exp2"] | ["exp"]).report().runs > 0


def test_another_shape_or_dtype_is_planned():
    lowered()
    assert decomp.lower(Net(), to=CHIP, args=(torch.ones(3, 6),), rules=decomp.Rules(RULES.entries)).report().runs > 0
    assert decomp.lower(Net(), to=CHIP, args=(X.double(),), rules=decomp.Rules(RULES.entries)).report().runs > 0


@pytest.mark.parametrize("off", ["0", "off", "OFF"])
def test_it_can_be_switched_off(off, place, monkeypatch):
    monkeypatch.setenv("DECOMP_CACHE", off)
    assert lowered(Small()).report().runs > 0 and lowered(Small()).report().runs > 0
    assert not place.exists() and cache_directory.directory() is None


def test_what_is_decided_of_dynamic_sizes_is_kept(place):
    def runs(batch):
        program = torch.export.export(nn.Softsign(), (X,), dynamic_shapes=({0: batch},))
        lowering = decomp.lower(program, to=CHIP, rules=decomp.Rules(RULES.entries))
        for rows in (2, 5):
            given = torch.randn(rows, *X.shape[1:])
            torch.testing.assert_close(lowering.result.module()(given), F.softsign(given))
        return lowering.report().runs

    first, again = (runs(torch.export.Dim.DYNAMIC) for _ in range(2))
    assert files(place) and first > again == 0


def test_of_sizes_that_have_no_example_nothing_is_kept(place):
    class Found(nn.Module):
        def forward(self, x):
            return F.softsign(x[x.sum(1).nonzero()[:, 0]])

    program = torch.export.export(Found(), (X,))
    for _ in range(2):
        assert (
            decomp.lower(program, to=CHIP | {"nonzero", "index"}, rules=decomp.Rules(RULES.entries)).report().runs > 0
        )
    assert not files(place)


def test_a_failed_lowering_keeps_nothing(place):
    def broken(x):
        raise ValueError("no")

    with pytest.raises(decomp.errors.RuleError):
        lowered(rules=decomp.Rules({F.gelu: broken}) | RULES)
    assert not files(place)


# Files that are not as they were written.


def damaged(place, expected, damage):
    """What a lowering comes to behind damaged files must be what it comes to without any; and one after it."""
    for path in files(place):
        damage(path)
    after = lowered(Small())
    assert after.report().runs > 0 and described(after) == expected
    assert lowered(Small()).report().runs == 0


def test_a_truncated_file_is_rewritten(place, kept):
    damaged(place, kept, lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]))


def test_an_empty_file_is_filled(place, kept):
    damaged(place, kept, lambda path: path.write_bytes(b""))


def test_a_foreign_file_is_replaced(place, kept):
    damaged(place, kept, lambda path: path.write_text("print('hello')\n" * 500))


def test_a_database_of_another_kind_is_replaced(place, kept):
    for path in files(place):
        path.unlink()
        with sqlite3.connect(path) as file:
            file.execute("CREATE TABLE expansions (something TEXT)")
        file.close()
    assert described(lowered(Small())) == kept


@pytest.mark.parametrize("part", range(6))
def test_flipped_bytes_are_noticed(place, kept, part):
    def flip(path):
        with sqlite3.connect(path) as file:
            for key, text in file.execute("SELECT key, text FROM expansions").fetchall():
                at = (len(text) - 1) * part // 5
                changed = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
                file.execute("UPDATE expansions SET text = ? WHERE key = ?", (changed, key))
        file.close()

    damaged(place, kept, flip)


@pytest.mark.parametrize("step", [37, 101])
def test_a_flipped_byte_anywhere_in_the_file_does_no_harm(place, kept, step):
    (path,) = files(place)
    whole = path.read_bytes()
    for at in range(step, len(whole), len(whole) // 4):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        assert described(lowered(Small())) == kept


def rewritten(place, change):
    """Let every text say something else, with the digest that belongs to it."""
    (path,) = files(place)
    with sqlite3.connect(path) as file:
        rows = file.execute("SELECT key, text FROM expansions").fetchall()
    file.close()
    Store(path).add({key: change(json.loads(text)) for key, text in rows})


HOSTILE = [
    lambda whole: b"not json",
    lambda whole: b"[]",
    lambda whole: b"cos\nsystem\n(S'touch hacked'\ntR.",
    lambda whole: json.dumps(
        [
            [["x", ["value", None], "os.system.default", ["tuple", "touch hacked"], ["dict"], [0]]],
            ["node", 0],
            [],
            0,
            [],
            None,
            0.0,
        ]
    ).encode(),
    lambda whole: json.dumps([*whole[:3], 10**6, *whole[4:]]).encode(),
    lambda whole: json.dumps([*whole[:3], -1, *whole[4:]]).encode(),
    lambda whole: json.dumps(whole).replace('["dict"', '["dict",["a=__import__(0)#",1]').encode(),
    lambda whole: json.dumps(whole).replace('"float32"', '"load"').encode(),
    lambda whole: json.dumps(whole).replace('"aten.', '"aten.__class__.').encode(),
    lambda whole: b"[" * 100_000,
]


@pytest.mark.parametrize("i", range(len(HOSTILE)))
def test_a_text_that_is_no_expansion_is_not_used_and_never_run(place, kept, i, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rewritten(place, HOSTILE[i])
    assert described(lowered(Small())) == kept
    assert not (tmp_path / "hacked").exists()


def test_a_directory_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DECOMP_CACHE", str(tmp_path / "file"))
    assert lowered().report().runs > 0


# What an expansion depends on.


def test_another_version_of_torch_does_not_find_it(monkeypatch):
    lowered()
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert lowered().report().runs > 0


def test_other_code_of_the_package_does_not_find_it(monkeypatch):
    lowered()
    monkeypatch.setattr(fingerprints, "_code_of_package", lambda name: f"{name} was changed")
    assert lowered().report().runs > 0


CONSTANT = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
LARGE = torch.ones(5000)


def by_constant(x):
    return x * CONSTANT


def by_large_constant(x):
    return x * LARGE[:6]


def test_a_small_constant_is_kept_as_data_and_shared():
    class Two(nn.Module):
        def forward(self, x):
            return F.gelu(x), F.gelu(x.t().contiguous().t() + 1)

    def rules():
        return decomp.Rules({F.gelu: by_constant}, version="1") | RULES

    first, second = lowered(Two(), rules()), lowered(Two(), rules())
    assert second.report().runs == 0 and described(first) == described(second)
    for got, expected in zip(second.result(X), first.result(X)):
        torch.testing.assert_close(got, expected)


def test_a_large_constant_is_not_kept():
    for _ in range(2):
        assert lowered(nn.GELU(), decomp.Rules({F.gelu: by_large_constant}, version="1")).report().runs > 0


# Processes.


RULE = """
import sys
import decomp, torch
from torch.nn import functional as F

rules = decomp.Rules(version="1")

@rules.register(F.gelu)
def gelu(x):
    return x * {factor}

low = decomp.lower(torch.nn.GELU(), to=decomp.Target("chip", ["mul"]), args=(torch.ones(3),), rules=rules)
print(low.report().runs, low.result(torch.ones(3))[0].item())
"""


def script(path, factor):
    path.write_text(textwrap.dedent(RULE.format(factor=factor)))
    os.utime(path, (1e9, 1e9))
    return path


def test_what_two_processes_write_at_once_others_find_until_the_rule_is_changed(place, tmp_path):
    env = {**os.environ, "DECOMP_CACHE": str(place), "PYTHONPATH": str(ROOT)}

    def said(*paths):
        codes = [f"import runpy; runpy.run_path({str(path)!r})" for path in paths]
        commands = [[sys.executable, "-c", code] for code in codes]
        runs = [subprocess.Popen(each, env=env, stdout=subprocess.PIPE, text=True) for each in commands]
        return [(run.communicate()[0].strip(), run.returncode) for run in runs]

    a, b = (script(tmp_path / f"{name}.py", "2.0") for name in "ab")
    assert said(a, b) == [("1 2.0", 0)] * 2
    assert said(a) == [("0 2.0", 0)]
    assert said(script(a, "3.0")) == [("1 3.0", 0)]


def test_many_writers_of_one_file_lose_nothing(tmp_path):
    code = (
        "import sys; from pathlib import Path; from decomp.cache.store import Store\n"
        "for i in range(20): Store(Path(sys.argv[1])).add({f'{sys.argv[2]}-{i}': b'text'})"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    path = tmp_path / f"one{places.SUFFIX}"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name], env=env) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    store = Store(path)
    assert all(store.find(f"{name}-{i}") == b"text" for name in "ab" for i in range(20))
    store.close()


def test_what_was_not_used_for_longest_goes_first(place, tmp_path, monkeypatch):
    def kept():
        return {path.name.removesuffix(places.SUFFIX) for path in tmp_path.glob(f"*{places.SUFFIX}")}

    for age, name in enumerate(("new", "old", "read", "oldest")):
        path = tmp_path / f"{name}{places.SUFFIX}"
        Store(path).add({"key": b"text"})
        os.utime(path, (1e9 - age, 1e9 - age))
    (tmp_path / "mine.txt").write_text("mine")
    size = places.contents(tmp_path).size // 4
    places.trim(tmp_path)
    assert kept() == {"new", "old", "read", "oldest"}
    assert Store(tmp_path / f"read{places.SUFFIX}").find("key") == b"text"
    places.trim(tmp_path, 2 * size)
    assert kept() == {"new", "read"} and (tmp_path / "mine.txt").exists()
    lowered()
    assert places.contents(place).files == 1
    (other,) = place.glob(f"*{places.SUFFIX}")
    other.rename(place / f"other{places.SUFFIX}")
    os.utime(place / f"other{places.SUFFIX}", (1e9, 1e9))
    monkeypatch.setattr(places, "CAPACITY", places.contents(place).size * 3 // 2)
    lowered()
    assert places.contents(place).files == 1 and not (place / f"other{places.SUFFIX}").exists()


# Where it is.


def test_the_directory_is_that_of_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("DECOMP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for platform, expected in (
        ("linux", tmp_path / "xdg" / "decomp"),
        ("win32", tmp_path / "local/decomp/Cache"),
        ("darwin", tmp_path / "Library/Caches/decomp"),
    ):
        monkeypatch.setattr(cache_directory.sys, "platform", platform)
        assert cache_directory.directory() == expected


def test_clearing_deletes_the_cache_and_nothing_else(place):
    lowered()
    (place / "mine.txt").write_text("mine")
    held = places.clear(place)
    assert held.files == 1 and held.size > 0 and places.contents(place).files == 0
    assert [path.name for path in place.iterdir()] == ["mine.txt"]
    assert lowered().report().runs > 0
    shutil.rmtree(place)
    assert places.contents(place).size == 0
