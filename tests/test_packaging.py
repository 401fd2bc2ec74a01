"""The wheel that the tree builds: it holds what the tree does, and describes itself."""

from email import message_from_bytes
from pathlib import Path
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("decomp", "decomp_rules")
DESCRIPTION = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built without isolation from a copy of the tree that has nothing else."""
    pytest.importorskip("setuptools", "77", reason="older ones do not know license_expression")
    copy = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in DESCRIPTION:
        shutil.copy(ROOT / name, copy)
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (built,) = (copy / "dist").glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


def test_the_wheel_holds_every_file_of_both_packages_and_no_other(wheel):
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*")]
    expected = {path.relative_to(ROOT).as_posix() for path in files if path.is_file() and path.suffix != ".pyc"}
    assert {"decomp/py.typed", "decomp_rules/py.typed", "decomp_rules/targets/tinygrad.toml"} < expected
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_the_wheel_has_the_readme_and_the_licence(wheel):
    (metadata,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    described = message_from_bytes(wheel.read(metadata))
    assert described["License-Expression"] == "BSD-3-Clause"
    assert described["Description-Content-Type"] == "text/markdown"
    assert described.get_payload(decode=True).decode().strip() == (ROOT / "README.md").read_text("utf-8").strip()
    (licence,) = [name for name in wheel.namelist() if name.endswith("/licenses/LICENSE")]
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
