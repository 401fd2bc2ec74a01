"""The kinds of operands on which an expansion is measured, and for which rules each is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from decomp.graphs.template import ExpansionTemplate
from decomp.ir.call import bound_call, metadata
from decomp.metadata.symbolic_sizes import size_hint
from decomp.rules.library import is_shipped
from decomp.rules.rules import Rule
from decomp.torch_internals import pytree
from decomp.validation.limits import float_limits, integer_limits, of_integers
from decomp.validation.operands import (
    edge_operands,
    is_pointwise,
    large_operands,
    numbers_compared,
    random_operands,
    special_operands,
    variants,
)
from decomp.validation.promises import Promise

SEEN, RANDOM, LARGE, SPECIAL = "operands of the program", "random operands", "large operands", "special values"
EDGES = "operands where branches meet"
LIMITS = "limits of the dtype"
TURNS = 4
"""The most sets of operands where branches meet; small operands differ in each set."""
_DEGENERATE = ("linalg", "cholesky", "svd", "eig", "qr", "lu_", "solve", "inverse", "det", "lstsq", "pinv")
"""Ops that are not meant for matrices of equal, sorted or negative numbers."""


def operand_sets(
    node: fx.Node, template: ExpansionTemplate, seen: list[Any] | None, promise: Promise
) -> Iterator[tuple[str, Iterator[list[Any]]]]:
    """Kinds of operands to measure on, each with several choices, of which the first is used that the op's own kernel
    accepts. Random operands are used for pointwise ops, and if no others are known; large ones if special values are
    not promised. Certificates measure rules of the library on their whole domain; for other rules there are also
    operands that authors often forget."""
    pointwise = is_pointwise(node)
    if seen is not None:
        yield SEEN, iter([seen])
    if pointwise or seen is None:
        # For other ops, random operands may be outside the domain (a matrix that is not positive definite, an index),
        # and operands of a run are known to be inside.
        yield RANDOM, random_operands(node)
    shipped = [is_shipped(rule.function) for each in template.entries for rule in each.chain if isinstance(rule, Rule)]
    if pointwise and of_integers(node):
        turns = int(promise.special_values) if all(shipped) else TURNS if _are_few(node) else 1
        yield from ((LIMITS, integer_limits(node, turn)) for turn in range(turns))
    elif pointwise:
        exact = promise.subnormals
        yield (SPECIAL, special_operands(node, exact)) if promise.special_values else (LARGE, large_operands(node))
    if all(shipped):
        return
    if pointwise:
        # Only at the level exact do rules of the library promise anything for subnormal numbers.
        if promise.subnormals or not any(shipped):
            yield LIMITS, float_limits(node)
        yield from _edges(node, template)
    elif seen is not None and not any(name in str(node.target) for name in _DEGENERATE):
        yield from ((f"operands that are {name}", iter([operands])) for name, operands in variants(node, seen))


def _edges(node: fx.Node, template: ExpansionTemplate) -> Iterator[tuple[str, Iterator[list[Any]]]]:
    bound = bound_call(node)
    numbers = [float(each) for each in bound.arguments.values() if type(each) in (int, float)] if bound else []
    for turn in range(TURNS if _are_few(node) else 1):
        yield EDGES, edge_operands(node, [*numbers, *numbers_compared(template.graph)], turn)


def _are_few(node: fx.Node) -> bool:
    """Whether some operand has so few elements that one set of operands does not hold all that is of interest."""
    counts = [leaf.numel() for leaf in pytree.tensors_in([metadata(given) for given in node.all_input_nodes])]
    return min((size_hint(count) or 1 for count in counts), default=1) < 256
