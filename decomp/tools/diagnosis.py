"""The verb `doctor`: what this installation is made of, what of it is not there, and whether the library works in it.
Each fact is found independently, so an error in one hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
import functools
import importlib
from importlib import metadata
import os
from pathlib import Path
import pkgutil
import platform
import re
import tempfile
import time
from typing import Any

import torch
from torch import nn

from decomp import cache_directory, torch_internals
from decomp.cache import places
from decomp.costs.machine import describe_machine
from decomp.errors import count_noun, first_line
from decomp.lowering import lower
from decomp.rules.library import library, shipped_targets
from decomp.tools.measurement.joint_graphs import NoCompiler, require_compiler
from decomp.torch_internals import versions
from decomp.torch_internals.schemas import lacking_ops
from decomp_rules.backends import c_compilers

STATES = ("fine", "absent", "broken")
"""Of a fact. What is absent is not needed unless it is used."""
DEVELOPERS = ("test", "lint", "docs")
"""Extras that only those who work on the project need."""
_MOST_OPS = 2
"""So many ops are named that this PyTorch lacks: those that the library has rules for come first."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a diagnosis."""

    group: str
    """"versions"."""
    name: str
    """"torch"."""
    state: str
    """One of `STATES`."""
    text: str
    """"2.13.0+cpu"."""
    remedy: str = ""
    """What to do where it is absent or broken."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All facts, in groups."""

    facts: tuple[Fact, ...]

    @property
    def broken(self) -> tuple[Fact, ...]:
        """What keeps the library from working."""
        return tuple(fact for fact in self.facts if fact.state == "broken")

    @property
    def ok(self) -> bool:
        """Whether the library works."""
        return not self.broken

    @property
    def headline(self) -> str:
        """`decomp works here`, or what does not."""
        if self.ok:
            return "decomp works here"
        return f"decomp does not work here: {', '.join(f'{fact.group}, {fact.name}' for fact in self.broken)}"

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {"ok": self.ok, "facts": [asdict(fact) for fact in self.facts]}


Report = Callable[[str], None]
Found = Iterator[tuple[str, str, str, str]]
"""Name, state, text and remedy of each fact of a group."""


def diagnose(report: Report = lambda name: None) -> Diagnosis:
    """Find all facts. `report` is called with the name of each before it is found."""
    facts = []
    for (group, name), (find, state_of_failure) in CHECKS.items():
        report(name)
        try:
            facts += [Fact(group, *found) for found in find()]
        except Exception as error:  # a check may fail in any way
            said = f"{type(error).__name__}: {first_line(error)}"
            facts.append(Fact(group, name, state_of_failure, said, "report this line, with those above and below it"))
    return Diagnosis(tuple(facts))


# What it is made of.


def _python() -> Found:
    yield "Python", "fine", f"{platform.python_version()}, {platform.python_implementation()}", ""


def _torch() -> Found:
    known = f"{versions.in_words(versions.OLDEST)} to {versions.in_words(versions.NEWEST)}"
    if versions.INSTALLED > versions.NEWEST:
        yield "torch", "absent", f"{torch.__version__}, newer than those tested ({known})", ""
    else:
        yield "torch", "fine", f"{torch.__version__} (tested: {known})", ""


def _decomp() -> Found:
    place = Path(torch_internals.__file__).parents[2]
    try:
        yield "decomp", "fine", f"{metadata.version('decomp')}, in {_short(place)}", ""
    except metadata.PackageNotFoundError:
        yield "decomp", "absent", f"in {_short(place)}, not installed as a package", "pip install -e ."


def _networkx() -> Found:
    yield "networkx", "fine", importlib.import_module("networkx").__version__, ""


def _platform() -> Found:
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield "platform", "fine", " ".join([system, *platform.libc_ver()]).strip(), ""


def _short(path: Path) -> str:
    """A path as one would type it."""
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(path)


# Whether it works.


def _library() -> Found:
    rules = list(library())
    counts = f"{len(rules):,} rules for {len({rule.op for rule in rules})} ops, {len(shipped_targets())} targets"
    yield "library", "fine", counts, ""


def _lowering() -> Found:
    target = next(each for each in shipped_targets() if each.name == "tinygrad")
    model, began = nn.Sequential(nn.Linear(4, 4), nn.GELU()), time.perf_counter()
    found = lower(model, to=target, args=(torch.randn(2, 4),), verify="values")
    calls, seconds = sum(found.report().after.values()), time.perf_counter() - began
    yield "lowering", "fine", f"Linear and GELU to {calls} calls of tinygrad, verified, {seconds:.1f} s", ""


def _private_api() -> Found:
    """Each module that names private API of PyTorch imports what it names."""
    names = [module.name for module in pkgutil.iter_modules(torch_internals.__path__)]
    changed = {}
    for name in names:
        try:
            importlib.import_module(f"{torch_internals.__name__}.{name}")
        except Exception as error:  # an attribute that has gone, above all
            changed[name] = first_line(error)
    for name, said in changed.items():
        remedy = f"pip install 'torch<={versions.in_words(versions.NEWEST)}', and report this line"
        yield "private API", "broken", f"{name}: {said}", remedy
    if not changed:
        yield "private API", "fine", f"{len(names)} modules find what they use of PyTorch's", ""


# What comes with extras.


def _extras() -> Found:
    shown: set[str] = set()
    for extra, requirements in sorted(_requirements().items(), key=lambda item: len(item[1])):
        found = {package: _installed(package) for package, _ in requirements}
        missing = [package for package, version in found.items() if version is None]
        unfit = [f"{each} {found[each]}, not {fit}" for each, fit in requirements if _is_unfit(found[each], fit)]
        if missing or unfit:
            said = "; ".join([*([f"no {', '.join(missing)}"] if missing else []), *unfit])
            yield extra, "absent", said, f'pip install "decomp[{extra}]"'
        else:
            own = [f"{package} {version}" for package, version in found.items() if package not in shown]
            yield extra, "fine", ", ".join(own) or "all of it", ""
        shown.update(found)


def _requirements() -> Mapping[str, list[tuple[str, str]]]:
    """By extra, the packages that it installs, each with the versions that fit. Raises `PackageNotFoundError`."""
    extras: dict[str, list[tuple[str, str]]] = {}
    for line in metadata.requires("decomp") or ():
        found = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*?)\s*;\s*extra == [\"']([\w-]+)", line)
        if found and found[3] not in DEVELOPERS:
            extras.setdefault(found[3], []).append((found[1], found[2].strip("() ")))
    return extras


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_unfit(version: str | None, wanted: str) -> bool:
    """Whether a version is outside of what an extra asks for, as far as that is known: the package that compares
    versions comes with pip, and not with this one."""
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:
        return False
    return version is not None and bool(wanted) and not SpecifierSet(wanted).contains(version, prereleases=True)


# Where it runs.


def _cpu() -> Found:
    machine = describe_machine(torch.device("cpu"))
    yield "cpu", "fine", f"{machine['processor']}, {machine['cores']} cores, {machine['vectors']}", ""


def _threads() -> Found:
    said = f"{torch.get_num_threads()} within ops, {torch.get_num_interop_threads()} between ops"
    wanted = os.environ.get("OMP_NUM_THREADS")
    yield "threads", "fine", said + (f" (OMP_NUM_THREADS={wanted})" if wanted else ""), ""


def _cuda() -> Found:
    built = torch.version.hip or torch.version.cuda
    kind = "ROCm" if torch.version.hip else "CUDA"
    if not torch.cuda.is_available():
        said = "this PyTorch is built without it" if built is None else f"built with {kind} {built}, and no device"
        yield "cuda", "absent", said, ""
        return
    for i in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(i)
        said = f"{device.name}, {device.total_memory / 2**30:.0f} GiB, sm_{device.major}{device.minor}, {kind} {built}"
        yield "cuda", "fine", said, ""


def _other_device(name: str) -> Found:
    is_there = getattr(torch, name, None) or getattr(torch.backends, name)
    yield name, *(("fine", "available") if is_there.is_available() else ("absent", "no device")), ""


def _accelerator() -> Found:
    """A device of a kind that none of the others is: an out-of-tree backend's."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is not None and found.type not in ("cuda", "mps", "xpu"):
        yield found.type, "fine", f"{torch.accelerator.device_count()} devices", ""


# What is kept, and what compiles.


def _cache() -> Found:
    place = cache_directory.directory()
    if place is None:
        yield "disk cache", "absent", f"off ({cache_directory.VARIABLE})", ""
        return
    held = places.contents(place)
    said = f"{_short(place)}: {count_noun(held.files, 'file')}, {held.size / 2**20:.1f} MiB"
    try:
        _try_to_write(place)
    except OSError as error:
        said = f"{said}; cannot be written: {error.strerror or first_line(error)}"
        yield "disk cache", "absent", said, f"set {cache_directory.VARIABLE} to a directory of your own"
    else:
        yield "disk cache", "fine", said, ""


def _try_to_write(place: Path) -> None:
    """Raise `OSError` where nothing can be kept. What is not there yet is not made: its parent decides."""
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(20, "a file is in its place")
    with tempfile.NamedTemporaryFile(dir=place) as file:
        file.write(b"0")


def _clang() -> Found:
    found = c_compilers.compiler()
    if found is None:
        yield "C, for tinygrad", "absent", "no clang", 'apt install clang, or pip install "decomp[tinygrad]"'
    else:
        yield "C, for tinygrad", "fine", _short(Path(found)), ""


def _cxx() -> Found:
    try:
        yield "C++, for Inductor", "fine", _short(Path(require_compiler())), ""
    except NoCompiler as error:
        said, _, remedy = str(error).partition(": ")
        yield "C++, for Inductor", "absent", said, remedy


# What this PyTorch has, and what others have.


def _lacking_ops() -> Found:
    lacking = lacking_ops()
    if not lacking:
        yield "ops", "fine", "all that some tested version has", ""
        return
    ruled = {str(rule.op) for rule in library()}
    lacking.sort(key=lambda name: (name not in ruled, "._" in name))
    named = [f"{name} ({_span(versions.versions_with(name))})" for name in lacking[:_MOST_OPS]]
    more = [f"{len(lacking) - _MOST_OPS} more"] if len(lacking) > _MOST_OPS else []
    yield "ops", "absent", f"without {', '.join([*named, *more])}", ""


def _span(known: tuple[str, ...]) -> str:
    return known[0] if len(known) == 1 else f"{known[0]}-{known[-1]}"


def _changes() -> Found:
    """What this PyTorch does otherwise than one before it."""
    for each in fields(versions.CHANGES):
        change = getattr(versions.CHANGES, each.name)
        if change:
            yield (
                "does otherwise",
                "fine",
                f"{each.name.replace('_', ' ')} (since {versions.in_words(change.since)})",
                "",
            )


Check = tuple[Callable[[], Found], str]
"""What finds facts, and the state of one where that fails."""
CHECKS: Mapping[tuple[str, str], Check] = {
    ("versions", "decomp"): (_decomp, "broken"),
    ("versions", "torch"): (_torch, "broken"),
    ("versions", "Python"): (_python, "absent"),
    ("versions", "networkx"): (_networkx, "broken"),
    ("versions", "platform"): (_platform, "absent"),
    ("does it work", "library"): (_library, "broken"),
    ("does it work", "lowering"): (_lowering, "broken"),
    ("does it work", "private API"): (_private_api, "broken"),
    ("this PyTorch", "ops"): (_lacking_ops, "absent"),
    ("this PyTorch", "does otherwise"): (_changes, "absent"),
    ("extras", "extras"): (_extras, "absent"),
    ("devices", "cpu"): (_cpu, "absent"),
    ("devices", "threads"): (_threads, "absent"),
    ("devices", "cuda"): (_cuda, "absent"),
    ("devices", "mps"): (functools.partial(_other_device, "mps"), "absent"),
    ("devices", "xpu"): (functools.partial(_other_device, "xpu"), "absent"),
    ("devices", "accelerator"): (_accelerator, "absent"),
    ("files and compilers", "disk cache"): (_cache, "absent"),
    ("files and compilers", "C, for tinygrad"): (_clang, "absent"),
    ("files and compilers", "C++, for Inductor"): (_cxx, "absent"),
}
