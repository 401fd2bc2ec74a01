"""The house rules that a machine can check."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("decomp", "decomp_rules", "tests", "benchmarks")
FILES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
LAZY: frozenset[tuple[str, str]] = frozenset()
"""Where the framework may import the library at module level: nowhere. Its verbs do so when they are called."""


def relative(path):
    return path.relative_to(ROOT).as_posix()


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path):
    """Names of the modules that `path` imports when it is imported itself, relative ones made absolute."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module_name(path).split(".")[: None if path.name == "__init__.py" else -1]
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])] if node.level
                            else [node.module])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def import_graph(package):
    modules = {module_name(path): path for path in sorted((ROOT / package).rglob("*.py"))}
    graph = networkx.DiGraph()
    for name, path in modules.items():
        graph.add_edges_from((name, other) for other in imported(path) if other in modules and other != name)
    return graph


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_is_short_and_its_lines_are_too(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 500
    assert [i for i, line in enumerate(lines, 1) if len(line) > 120] == []


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "__main__"], ids=relative)
def test_a_module_opens_by_saying_what_it_is(path):
    if path.parent.name != "tests" and path.read_text(encoding="utf-8").strip():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_the_framework_does_not_know_the_library():
    found = {(relative(path), name.split(".")[0]) for path in FILES if path.parent.name == "decomp"
             for name in imported(path) if name.split(".")[0] == "decomp_rules"}
    assert found <= LAZY


@pytest.mark.parametrize("package", ["decomp", "decomp_rules"])
def test_imports_go_round_in_no_circles(package):
    graph = import_graph(package)
    # A package's own `__init__` collects what its modules define; that modules live in it is no import.
    graph.remove_node(package)
    assert graph.number_of_edges() > 5
    assert list(networkx.simple_cycles(graph)) == []


def test_the_library_knows_only_public_names():
    private = {(relative(path), name) for path in FILES if path.parts[-2] == "decomp_rules" for name in imported(path)
               if name.startswith("decomp.") and name.count(".") > 1}
    assert private == set()
