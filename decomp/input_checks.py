"""What a lowered graph was made for: sizes of its inputs, and numbers among them, are part of what rules saw. With
others its results would be wrong without a word, so it looks at what it is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from decomp.calls import metadata
from decomp.errors import InputMismatch


def check_inputs(module: fx.GraphModule, source: fx.Graph, derived: Collection[fx.Node]) -> None:
    """Make `module` check the inputs on which the calls `derived` of its source depend: the sizes of tensors that
    reach one, and the values of numbers that reach one as numbers."""
    inputs = [node for node in source.nodes if node.op == "placeholder"]
    expected = [_expected(node) if _reaches(node, derived) else None for node in inputs]
    if any(each is not None for each in expected):
        names = [str(node.target) for node in inputs]
        codegen = source._codegen if isinstance(source._codegen, fx.graph._PyTreeCodeGen) else None
        module.register_forward_pre_hook(InputCheck(names, expected, codegen), with_kwargs=True)


def _expected(node: fx.Node) -> Any:
    """The shape of a tensor, or the value of anything else that is plain; None for what is not looked at."""
    value = metadata(node) if not str(node.target).startswith("*") else None
    if isinstance(value, torch.Tensor):
        return torch.Size(value.shape) if all(type(size) is int for size in value.shape) else None
    return value if _is_plain(value) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return type(value) in (int, float, bool, str)


def _reaches(start: fx.Node, derived: Collection[fx.Node]) -> bool:
    """Whether a derived call sees the input: a tensor through any calls, a number as far as it is one."""
    seen, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        if node in derived:
            return True
        if isinstance(metadata(node), torch.Tensor) and not isinstance(metadata(start), torch.Tensor):
            continue
        waiting += [user for user in node.users if user not in seen]
        seen.update(node.users)
    return False


class InputCheck:
    """Compares the inputs of each call with what the program was lowered for: shapes, or values of numbers; None is not
    looked at. `codegen`: of a program that takes trees, which come in flat."""

    def __init__(
        self, names: Sequence[str], expected: Sequence[Any], codegen: fx.graph._PyTreeCodeGen | None = None
    ) -> None:
        self.names, self.expected, self.codegen = names, expected, codegen

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        given = self._by_name(args, kwargs)
        for name, expected in zip(self.names, self.expected):
            if expected is None or name not in given:
                continue
            found = given[name]
            if isinstance(expected, torch.Size):
                if isinstance(found, torch.Tensor) and found.shape != expected:
                    raise InputMismatch(name, tuple(expected), tuple(found.shape))
            elif isinstance(found, torch.Tensor) or type(found) is not type(expected) or found != expected:
                raise InputMismatch(name, expected, found, "value")

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self.codegen is not None:
            return dict(zip(self.names, self.codegen.process_inputs(*args, **kwargs)))
        return {**dict(zip(self.names, args)), **kwargs}
