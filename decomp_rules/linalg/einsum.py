"""Einstein summation: operands are contracted pair by pair, each pair as one matrix product over the summed labels,
batched over the labels that both keep."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten

RULES = Rules(level="exact")
register = RULES.register

Label = Hashable
Labelled = tuple[Tensor, list[Label]]


@register(aten.einsum)
def einsum(equation: str, tensors: Sequence[Tensor], path: Sequence[int] | None = None) -> Tensor:
    """Σ of products over the labels that the output lacks; pairs are taken from the left unless a path is given."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(tensors):
        return decline("the equation and the operands differ in number")
    labels = [spread_ellipsis(term, x.dim()) for term, x in zip(terms, tensors)]
    wanted = output_labels(output, labels) if arrow else implied_output(labels)
    operands = without_ones([diagonalised(x, found) for x, found in zip(tensors, labels)], wanted)
    steps = list(path) if path is not None else [0, 1] * (len(operands) - 1)
    while len(operands) > 1:
        i, j, *steps = steps
        first, second = operands[i], operands[j]
        rest = [operand for k, operand in enumerate(operands) if k not in (i, j)]
        needed = {*wanted, *(label for _, found in rest for label in found)}
        pair = contracted_pair(first, second, needed)
        operands = [*rest, pair] if path is not None else [pair, *rest]
    return arranged(*operands[0], wanted)


def spread_ellipsis(term: str, rank: int) -> list[Label]:
    """The label of each dimension; those under an ellipsis are numbered from the right, where broadcasting aligns."""
    before, dots, after = term.partition("...")
    covered = rank - len(before) - len(after)
    return [*before, *(range(-covered, 0) if dots else ()), *after]


def output_labels(output: str, labels: Sequence[Sequence[Label]]) -> list[Label]:
    """The labels that an explicit output names, with its ellipsis expanded to the widest among the operands."""
    before, dots, after = output.partition("...")
    return [*before, *(numbered(labels) if dots else ()), *after]


def implied_output(labels: Sequence[Sequence[Label]]) -> list[Label]:
    """The dimensions under the ellipsis, then the letters that occur once, in alphabetical order."""
    letters = [label for found in labels for label in found if isinstance(label, str)]
    return [*numbered(labels), *sorted(letter for letter in set(letters) if letters.count(letter) == 1)]


def numbered(labels: Sequence[Sequence[Label]]) -> list[int]:
    """The dimensions under ellipses, of all operands together."""
    return sorted({label for found in labels for label in found if isinstance(label, int)})


def diagonalised(x: Tensor, labels: list[Label]) -> Labelled:
    """x with each label once: where one is repeated, the diagonal is taken."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            x = torch.diagonal(x, 0, i, j)
            labels = [*labels[:i], *labels[i + 1 : j], *labels[j + 1 :], label]
    return x, labels


def without_ones(operands: list[Labelled], wanted: Sequence[Label]) -> list[Labelled]:
    """The operands without dimensions of size 1 that another operand has at full size, for they broadcast, or that are
    not in the output, for nothing is summed over them: products of such operands promote dtypes, as in PyTorch."""
    full = {label for x, labels in operands for size, label in zip(x.shape, labels) if not is_one(size)}
    found = []
    for x, labels in operands:
        ones = [d for d, size in enumerate(x.shape) if is_one(size)]
        gone = [d for d in ones if labels[d] in full or labels[d] not in wanted]
        x = x.squeeze(tuple(gone)) if gone else x
        found.append((x, [label for d, label in enumerate(labels) if d not in gone]))
    return found


def contracted_pair(first: Labelled, second: Labelled, needed: set[Label]) -> Labelled:
    """The product of two operands, summed over the labels that nothing else needs."""
    (x, left), (y, right) = summed_alone(first, second, needed), summed_alone(second, first, needed)
    batch = [label for label in left if label in right and label in needed]
    inner = [label for label in left if label in right and label not in needed]
    rows = [label for label in left if label not in right]
    columns = [label for label in right if label not in left]
    sizes = dict(zip([*left, *right], [*x.shape, *y.shape]))
    result = [*batch, *rows, *columns]
    if not inner:
        return product(x, left, y, right, result), result
    a = blocks(permuted(x, left, [*batch, *rows, *inner]), len(batch), len(rows), len(inner))
    b = blocks(permuted(y, right, [*batch, *inner, *columns]), len(batch), len(inner), len(columns))
    out = torch.bmm(a, b) if batch else torch.mm(a, b)
    merged = len(batch) > 1 or len(rows) != 1 or len(columns) != 1
    return out.reshape([sizes[label] for label in result]) if merged else out, result


def summed_alone(operand: Labelled, other: Labelled, needed: set[Label]) -> Labelled:
    """An operand summed over the labels that are only its own and that nothing needs."""
    x, labels = operand
    alone = [d for d, label in enumerate(labels) if label not in other[1] and label not in needed]
    x = torch.sum(x, alone) if alone else x
    return x, [label for d, label in enumerate(labels) if d not in alone]


def product(x: Tensor, left: list[Label], y: Tensor, right: list[Label], result: list[Label]) -> Tensor:
    """x y, each laid along the labels of the result."""
    return laid_along(x, left, result) * laid_along(y, right, result)


def laid_along(x: Tensor, labels: list[Label], result: list[Label]) -> Tensor:
    """x with its dimensions in the order of `result` and size 1 where it lacks a label."""
    x = permuted(x, labels, [label for label in result if label in labels])
    for d, label in enumerate(result):
        x = x if label in labels else x.unsqueeze(d)
    return x


def blocks(x: Tensor, batch: int, rows: int, columns: int) -> Tensor:
    """x as a matrix, or a batch of them, each of the three runs of dimensions merged into one."""
    if columns != 1:
        x = merged_run(x, batch + rows, columns)
    if rows != 1:
        x = merged_run(x, batch, rows)
    return merged_run(x, 0, batch) if batch > 1 else x


def merged_run(x: Tensor, start: int, count: int) -> Tensor:
    """x with `count` dimensions from `start` merged into one, which has size 1 if `count` is 0."""
    return x.flatten(start, start + count - 1) if count else x.unsqueeze(start)


def permuted(x: Tensor, labels: list[Label], order: list[Label]) -> Tensor:
    """x with its dimensions in the order of `order`."""
    return x if labels == order else x.permute([labels.index(label) for label in order])


def arranged(x: Tensor, labels: list[Label], wanted: list[Label]) -> Tensor:
    """x summed over the labels not in the result, in the order of the result."""
    alone = [d for d, label in enumerate(labels) if label not in wanted]
    x = torch.sum(x, alone) if alone else x
    return permuted(x, [label for label in labels if label in wanted], wanted)


def is_one(size: int) -> bool:
    """Whether a size is known to be 1; False for a symbolic size, without a guard."""
    return isinstance(size, int) and size == 1
