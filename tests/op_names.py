"""Adds the ops of the installed PyTorch to the table of ops by version, `decomp/torch_internals/op_names.json`:

    python -m tests.op_names

To be run once with each supported version; the table is the same in any order."""

from __future__ import annotations

import json

from decomp.torch_internals.schemas import all_schemas
from decomp.torch_internals.versions import INSTALLED, OP_NAMES, in_words


def installed() -> set[str]:
    """The names of all ops of ATen and prims: `aten.relu`."""
    split = (schema.name.split("::") for schema in all_schemas())
    return {f"{namespace}.{name}" for namespace, name in split if namespace in ("aten", "prims")}


def table() -> dict[str, tuple[str, ...]]:
    """The versions that have each op, as far as the file says."""
    known = json.loads(OP_NAMES.read_text()) if OP_NAMES.exists() else {}
    return {name: tuple(versions.split()) for versions, names in known.items() for name in names}


def write(found: dict[str, tuple[str, ...]]) -> None:
    """The file: names by versions, both sorted."""
    grouped: dict[str, list[str]] = {}
    for name, versions in sorted(found.items()):
        grouped.setdefault(" ".join(versions), []).append(name)
    OP_NAMES.write_text(json.dumps(dict(sorted(grouped.items())), indent=0) + "\n")


def main() -> None:
    known, names, this = table(), installed(), in_words(INSTALLED)
    found = {}
    for name in {*known, *names}:
        versions = {*known.get(name, ())} - {this} | ({this} if name in names else set())
        found[name] = tuple(sorted(versions, key=lambda text: int(text.partition(".")[2])))
    write({name: versions for name, versions in found.items() if versions})


if __name__ == "__main__":
    main()
