"""Targets, one small TOML file each, read when first asked for: `decomp_rules.targets.tinygrad`. One has no file:
`onnxruntime` is `onnx` with the ops of `onnx_functions`. `openvino`, `iree`, `torch_mlir` and `coremltools` have
conditions beside their files; those of `attention_masks` are about attention on four, of `concatenation` about two."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decomp import Target

_HERE = Path(__file__).parent


@functools.cache
def names() -> tuple[str, ...]:
    """The names of all targets, sorted."""
    return tuple(sorted(["onnxruntime", *(path.stem for path in _HERE.glob("*.toml"))]))


@functools.cache
def get(name: str) -> Target:
    """The target called `name`. Raises `LookupError`, naming those that there are."""
    if name not in names():
        raise LookupError(f"no target {name!r}; there are {', '.join(names())}")
    from decomp import Target  # deferred: the command line shows its help without PyTorch

    if name == "onnxruntime":
        from decomp_rules.targets.onnx_functions import with_functions

        return with_functions(get("onnx"))
    found = Target.load(_HERE / f"{name}.toml")
    if name == "openvino":
        from decomp_rules.targets.openvino_conditions import with_conditions

        found = with_conditions(found)
    if name == "iree":
        from decomp_rules.targets.iree_conditions import with_conditions as with_broadcasts

        found = with_broadcasts(found)
    if name in ("iree", "torch_mlir"):
        from decomp_rules.targets.iree_conditions import with_places

        found = with_places(found)
    if name == "coremltools":
        from decomp_rules.targets import coremltools_conditions

        found = coremltools_conditions.with_conditions(found)
    from decomp_rules.targets import attention_masks, concatenation

    for part in (attention_masks, concatenation):
        found = part.with_condition(found) if name in part.TARGETS else found
    return found


def __getattr__(name: str) -> Target:
    if name in names():
        return get(name)
    raise AttributeError(f"no target {name!r}; there are {', '.join(names())}")


def __dir__() -> list[str]:
    return [*names(), "get", "names"]
