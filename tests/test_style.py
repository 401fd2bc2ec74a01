"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import configparser
import functools
import inspect
import os
from pathlib import Path
import pkgutil
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import networkx
import pytest

import decomp

ROOT = Path(__file__).parent.parent
PARTS = ("decomp", "decomp_rules", "tests", "benchmarks")
FILES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))


def relative(path):
    return path.relative_to(ROOT).as_posix()


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path, tree):
    """Names of the modules that `path` imports when it is imported itself, relative ones made absolute."""
    package = module_name(path).split(".")[: None if path.name == "__init__.py" else -1]
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(
                [*package[: len(package) - node.level + 1], *filter(None, [node.module])]
                if node.level
                else [node.module]
            )
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def import_graph(package):
    modules = {module_name(path): path for path in sorted((ROOT / package).rglob("*.py"))}
    graph = networkx.DiGraph()
    for name, path in modules.items():
        graph.add_edges_from((name, other) for other in source(path).imports if other in modules and other != name)
    return graph


def text_of(path):
    return path.read_text(encoding="utf-8")


class Source(NamedTuple):
    """The facts about a module that the tests need."""

    docstring: str | None
    imports: list[str]
    imports_by_name: bool
    private_api: list[str]


@functools.cache
def source(path):
    """Parsed once, for all tests."""
    tree = ast.parse(text_of(path))
    by_name = any(
        isinstance(node, ast.Call) and last_name(node.func).endswith(("import_module", "__import__"))
        for node in ast.walk(tree)
    )
    return Source(ast.get_docstring(tree), list(imported(path, tree)), by_name, list(private_api(tree)))


def last_name(node):
    """`c` of `a.b.c` and of `c`; nothing of other expressions."""
    return getattr(node, "attr", getattr(node, "id", ""))


def test_files_are_short_and_their_lines_are_too():
    assert [relative(path) for path in FILES if len(text_of(path).splitlines()) > 600] == []
    lines = {f"{relative(path)}:{i}": line for path in FILES for i, line in enumerate(text_of(path).splitlines(), 1)}
    assert [place for place, line in lines.items() if len(line) > 120] == []


def test_a_module_opens_by_saying_what_it_is():
    modules = [path for path in FILES if "tests" not in path.relative_to(ROOT).parts and path.stem != "__main__"]
    assert [relative(path) for path in modules if text_of(path).strip() and not source(path).docstring] == []


def contracts_of(root):
    """The contracts on imports, checked in a directory that has the packages; what was said, and the exit status."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "140"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def packages(tmp_path):
    """A copy of what the contracts are about, to plant imports in."""
    pytest.importorskip("importlinter")
    for part in ("decomp", "decomp_rules", "benchmarks"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "certificates"))
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    return tmp_path


def test_imports_point_downwards(packages):
    assert contracts_of(packages)[0] == 0


def test_the_contract_names_every_module_in_at_most_twelve_layers():
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg")
    layers = read["importlinter:contract:parts"]["layers"].strip().splitlines()
    layers = [re.split(r" [:|] ", line) for line in layers if not line.startswith("#")]
    named = [name.strip() for layer in layers for name in layer]
    there = {f"decomp.{found.name}" for found in pkgutil.iter_modules([str(ROOT / "decomp")])}
    assert sorted(named) == sorted({"benchmarks", "decomp_rules", *there}) and len(layers) <= 12


PLANTED = {
    "decomp/ir/ops.py": "\nimport decomp.derive.planner\n",
    "decomp/proof/reachability.py": "\ndef late():\n    from decomp.tools.cli import app\n    return app\n",
    "decomp/lowering.py": "\ndef late():\n    import decomp_rules\n    return decomp_rules\n",
    "decomp_rules/nn/softmax.py": "\nfrom decomp.ir.ops import op\n",
}
"""Imports upwards, of a module and in a function; of the library; and by the library of what is not public."""


def test_planted_upward_imports_are_seen(packages):
    for module, planted in PLANTED.items():
        path = packages / module
        path.write_text(text_of(path) + planted, encoding="utf-8")
    status, said = contracts_of(packages)
    edges = [line.strip("- ").partition(" (")[0] for line in said.splitlines()]
    assert status == 1
    for edge in (
        "decomp.ir.ops -> decomp.derive.planner",
        "decomp.proof.reachability -> decomp.tools.cli",
        "decomp.lowering -> decomp_rules",
        "decomp_rules.nn.softmax -> decomp.ir.ops",
    ):
        assert any(edge in line for line in edges), edge


def test_only_doors_and_the_public_face_import_by_name():
    """A module imported by its name as a string escapes the contracts on imports."""
    found = {
        relative(path)
        for path in FILES
        if path.relative_to(ROOT).parts[0] == "decomp"
        and "tools" not in path.relative_to(ROOT).parts
        and source(path).imports_by_name
    }
    face = {"decomp/__init__.py", "decomp/results.py"}
    assert found == {"decomp/rules/library.py", "decomp/torch_internals/modes.py", *face}


def test_no_module_has_the_name_of_a_public_function():
    public = {name for name in dir(decomp) if not name.startswith("_") and inspect.isfunction(getattr(decomp, name))}
    for folder in {path.parent for path in FILES}:
        names = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
        assert folder.relative_to(ROOT).parts[0] != "decomp" or not names & public, relative(folder)


@pytest.mark.parametrize("package", ["decomp", "decomp_rules"])
def test_imports_go_round_in_no_circles(package):
    graph = import_graph(package)
    # A package's own `__init__` collects what its modules define; that modules live in it is not an import.
    graph.remove_node(package)
    assert graph.number_of_edges() > 5
    assert list(networkx.simple_cycles(graph)) == []


PUBLIC = ("torch._ops.OpOverload", "torch._ops.OpOverloadPacket", "torch._ops.HigherOrderOperator")
"""Private by their module, and yet how the documentation of `torch.export` and `torch.library` names their classes."""


def private_api(tree):
    """The names of torch that a module uses by a path with a private, or experimental, part."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known.update(
                {
                    a.asname or "torch": a.name if a.asname else "torch"
                    for a in node.names
                    if a.name.split(".")[0] == "torch"
                }
            )
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            known.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if is_private(name))

    def path_of(node):
        if isinstance(node, ast.Name):
            return known.get(node.id, "")
        above = path_of(node.value) if isinstance(node, ast.Attribute) else ""
        return above and f"{above}.{node.attr}"

    paths = (path_of(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    yield from (path for path in paths if is_private(path))


def is_private(path):
    parts = path.split(".")
    if parts[0] != "torch" or parts[1:2] == ["ops"] or path == "torch._ops" or path in PUBLIC:
        return False
    return "experimental" in parts or any(part.startswith("_") and not part.startswith("__") for part in parts)


def test_private_api_of_torch_has_one_home():
    modules = [path for path in FILES if path.relative_to(ROOT).parts[0] == "decomp"]
    found = {relative(path): source(path).private_api for path in modules if "torch_internals" not in path.parts}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import torch._dynamo",
        "from torch._guards import x",
        "from torch.utils import _pytree",
        "import torch\ntorch._C.x",
        "from torch import fx\nfx.graph._PyTreeCodeGen",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv",
        "def late():\n    from torch._inductor import config",
    ],
)
def test_planted_private_api_is_seen(text):
    assert list(private_api(ast.parse(text)))


@pytest.mark.parametrize("text", ["import torch\ntorch.ops.aten._to_copy", "import torch\ntorch._ops.OpOverload"])
def test_ops_and_their_classes_are_public(text):
    assert not list(private_api(ast.parse(text)))
