"""Programs that take pytrees: the arguments of a call, and their leaves in the order of placeholders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from decomp.errors import InputMismatch, InputMissing
from decomp.torch_internals import pytree
from decomp.torch_internals.graphs import PyTreeCodeGen


def flat_inputs(codegen: PyTreeCodeGen, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The leaves of a call's arguments, in the order of the placeholders of a program that takes pytrees."""
    spec = codegen.pytree_info.in_spec
    if _is_of_export(spec):
        names = codegen.pytree_info.orig_args
        # A call may name arguments that were positional in the example; the tree has them by position.
        by_place = dict(zip(names[len(args) :], range(len(args), spec.child(0).num_children)))
        moved = tuple(kwargs[name] for name in by_place if name in kwargs)
        named = {name: value for name, value in kwargs.items() if name not in by_place}
        return list(pytree.tree_flatten_spec(((*args, *moved), named), spec))
    more = [kwargs[name] for name in codegen.pytree_info.orig_args[len(args) :] if name in kwargs]
    return list(codegen.process_inputs(*args, *more))


def checked_inputs(codegen: PyTreeCodeGen, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """As `flat_inputs`. Raises `InputMissing` for too few, too many or unknown arguments, and `InputMismatch` where
    containers differ from those that the program was lowered for."""
    spec, names = codegen.pytree_info.in_spec, list(codegen.pytree_info.orig_args)
    refuse_others(names, args, kwargs)
    given = {**dict(zip(names, args)), **kwargs}
    missing = [name for name in names if name not in given]
    if missing:
        raise InputMissing(missing, names)
    if not _is_of_export(spec):
        specs = spec.children()
    else:
        by_name = dict(zip(spec.child(1).context, spec.child(1).children()))
        specs = [*spec.child(0).children(), *(by_name[name] for name in names[spec.child(0).num_children :])]
    return [leaf for name, each in zip(names, specs) for leaf in _leaves(each, given[name], name)]


def refuse_others(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `InputMissing` where a call passes more than these arguments, or others."""
    if len(args) > len(names):
        raise InputMissing((), names, given=len(args))
    taken = names[: len(args)]
    unknown = [name for name in kwargs if name not in names or name in taken]
    if unknown:
        raise InputMissing((), names, unknown=unknown, twice=unknown[0] in taken)


def _is_of_export(spec: pytree.TreeSpec) -> bool:
    return spec.type is tuple and spec.num_children == 2 and spec.child(1).type is dict and spec.child(0).type is tuple


def _leaves(spec: pytree.TreeSpec, value: Any, name: str) -> Iterator[Any]:
    if spec.is_leaf():
        yield value
        return
    # One level at a time, so that the error can name the container that differs.
    parts, own = pytree.tree_flatten_with_path(value, is_leaf=lambda each: each is not value)
    if (own.type, own.context, own.num_children) != (spec.type, spec.context, spec.num_children):
        raise InputMismatch(name, _describe_container(spec), _describe_container(own, value), "structure")
    for (path, part), inner in zip(parts, spec.children()):
        yield from _leaves(inner, part, name + pytree.keystr(path))


def _describe_container(spec: pytree.TreeSpec, value: Any = None) -> str:
    """A container in words, or the type of a leaf."""
    if spec.is_leaf():
        return "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    if spec.type is dict:
        return f"a dict of {', '.join(map(repr, spec.context))}" if spec.context else "an empty dict"
    kind = spec.context if isinstance(spec.context, type) else spec.type
    return f"a {kind.__name__} of {spec.num_children}"
