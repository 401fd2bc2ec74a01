"""The packages built from the tree: the wheel holds both packages and describes itself, the source distribution holds
the tests and benchmarks as well."""

from configparser import ConfigParser
from email import message_from_bytes
from pathlib import Path
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("decomp", "decomp_rules")
BESIDE = ("tests", "benchmarks", ".ci")
DESCRIPTION = ("setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the wheel and the source distribution, built without isolation from a copy of the tree."""
    pytest.importorskip("setuptools", "77", reason="older ones do not know license_expression")
    copy = tmp_path_factory.mktemp("tree")
    for folder in (*PACKAGES, *BESIDE):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in DESCRIPTION:
        shutil.copy(ROOT / name, copy)
    build = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def files_of(folders):
    """The files below these folders of the tree, but what Python compiled."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return {path.relative_to(ROOT).as_posix() for path in files if path.is_file() and path.suffix != ".pyc"}


def test_the_wheel_holds_every_file_of_both_packages_and_no_other(wheel):
    expected = files_of(PACKAGES)
    assert {"decomp/py.typed", "decomp_rules/py.typed", "decomp_rules/targets/tinygrad.toml"} < expected
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_the_wheel_has_the_readme_and_the_licence(wheel):
    (metadata,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    described = message_from_bytes(wheel.read(metadata))
    assert described["License-Expression"] == "BSD-3-Clause AND MIT"
    assert described["Description-Content-Type"] == "text/markdown"
    assert described.get_payload(decode=True).decode().strip() == (ROOT / "README.md").read_text("utf-8").strip()
    (licence,) = [name for name in wheel.namelist() if name.endswith("/licenses/LICENSE")]
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    (vendored,) = [name for name in wheel.namelist() if "/licenses/" in name and name.endswith("dagre.LICENSE")]
    assert b"Chris Pettitt" in wheel.read(vendored)


def test_the_source_distribution_holds_the_whole_tree(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {*DESCRIPTION, *files_of((*PACKAGES, *BESIDE))} - held == set()


def test_the_version_is_one_and_the_changes_begin_with_it():
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg", "utf-8")
    version = settings["metadata"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines() if line.startswith("## ")]
    assert headings[0] in (f"## {version}", f"## {version} (unreleased)")
