"""The whole check on another PyTorch, one command a version: an environment of its own, the demo, the blocks of the
documents and the tests, and how many passed. `--quick` runs the tests that name versions, and lowers sample
calls:

    python -m tests.on_version 2.12.1
    python -m tests.on_version 2.14.1 --keep /tmp/torch-2.14.1 -- tests/decomp_rules

A build with CUDA takes about 7 GB, so where less than 20 GB are free nothing is begun."""

import argparse
from pathlib import Path
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = Path(__file__).parents[1]
NEEDED = 20 << 30
"""Bytes that have to be free before PyTorch is installed."""
QUICK = ["tests/test_versions.py", "tests/decomp_rules/pointwise/test_shared_ties.py"]
"""The tests that name versions."""


def reason_to_skip(version: str, place: Path) -> str:
    """Why this machine cannot check a version; empty if it can."""
    free = shutil.disk_usage(place).free
    if free < NEEDED:
        return f"{free >> 30} GB are free at {place}, and an environment with torch {version} needs {NEEDED >> 30}"
    return ""


def installed(version: str, place: Path, quick: bool) -> Path | None:
    """The Python of an environment with this PyTorch and what the tests need; one that is there is taken as it is. None
    where pip cannot install it."""
    python = place / "bin" / "python"
    needs = ["-e", ".[cli,certify,plot]", "pytest>=8", "pytest-xdist>=3.6"] if quick else ["-e", ".[test]"]
    install = [str(python), "-m", "pip", "install", "--quiet", f"torch=={version}", *needs]
    if python.exists() or run([sys.executable, "-m", "venv", str(place)]) and run(install):
        return python
    return None


def run(command: list[str]) -> bool:
    return subprocess.run(command, cwd=ROOT).returncode == 0


def step(name: str, command: list[str]) -> bool:
    """Run a step and say how it ended, with the last line that it printed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    print(f"{name:10} {'passed' if done.returncode == 0 else 'FAILED'}: {counts(done.stdout) or (lines or [''])[-1]}")
    if done.returncode:
        print(f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}")
    return done.returncode == 0


def counts(text: str) -> str:
    """`6250 passed, 1 failed` of what pytest printed; empty if it printed none."""
    found = re.findall(r"^.*\b\d+ (?:passed|failed|error).*$", text, re.MULTILINE)
    return found[-1].strip("= ") if found else ""


LOAD = "import decomp_rules.targets as t, torch; print('torch', torch.__version__, [t.get(n).name for n in t.names()])"


def check(python: Path, tests: list[str], quick: bool, pairs: int) -> bool:
    """The steps, each of which is run whatever became of the one before it."""
    pytest = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    steps = {"targets": [str(python), "-c", LOAD], "demo": [str(python), "-m", "decomp", "demo"]}
    if quick:
        steps["tests"] = [*pytest, "-n", "0", *tests]
        steps["calls"] = [str(python), "-W", "ignore", "-m", "tests.sample_calls", "--pairs", str(pairs)]
    else:
        steps["documents"] = [*pytest, "-n", "0", "tests/test_readme.py", "tests/test_contributing.py"]
        steps["tests"] = [*pytest, *tests]
    return all([step(name, command) for name, command in steps.items()])


def main() -> int:
    parser = argparse.ArgumentParser(description="Check decomp on another version of PyTorch.")
    parser.add_argument("version", help="of PyTorch: 2.12.1")
    parser.add_argument("--keep", type=Path, help="the environment to make and leave there, or one that is there")
    parser.add_argument("--quick", action="store_true", help="of the tests those that name versions, and sample calls")
    parser.add_argument("--pairs", type=int, default=200, help="with --quick, how many sample calls are lowered")
    parser.add_argument("tests", nargs="*", help="what to run of the tests, if not all")
    # Intermixed: options may stand between the version and the tests.
    asked = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = asked.keep or Path(temporary) / "venv"
        reason = "" if (place / "bin").exists() else reason_to_skip(asked.version, place.parent)
        if reason:
            print(f"skipped: {reason}")
            return 0
        python = installed(asked.version, place, asked.quick)
        if python is None:
            print(f"skipped: pip cannot install torch {asked.version} here")
            return 0
        tests = asked.tests or (QUICK if asked.quick else ["tests"])
        return 0 if check(python, tests, asked.quick, asked.pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
