"""The mutation check of the rules: `python -m tests.rule_mutations`. In a lowered program a constant is perturbed, or a
node is dropped; then the very comparison that the tests make must fail. What survives is a rule that could be wrong
without a test that sees it, or a change that changes nothing."""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import asdict, dataclass
import json
import logging
import random
import sys
from typing import Any
import warnings

import torch
from torch import fx

import decomp
import decomp_rules
from tests.opinfo_cases import Case, Program, cases
from tests.opinfo_table import RESULTS
from tests.opinfo_verdict import Disagreement, Outcome, compare, evaluate, in_double

TARGET = "tinygrad"
PASSIVE = {"clone", "detach", "_to_copy", "view", "expand", "permute", "constant_pad_nd", "slice", "getitem"}
"""Ops whose removal need not change a value, and whose numbers are sizes."""
ARITHMETIC = {"add", "mul", "maximum", "pow", "full", "where", "fmod", "remainder", "div"}
"""Ops whose numbers are values."""


@dataclass(frozen=True)
class Mutant:
    """One change, and whether the comparison noticed."""

    family: str
    rule: str
    entry: str
    change: str
    killed: bool


def main(argv: list[str]) -> None:
    """Mutate until every family has had its share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=int, default=40, help="mutants of a family")
    parser.add_argument("--each", type=int, default=4, help="mutants of a case")
    parser.add_argument("--family", help="only this one")
    parser.add_argument("--cases", type=int, help="so many cases, drawn by the seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="keep the result beside the benchmark results")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    mutants = collected(options)
    print(table(mutants))
    for mutant in mutants:
        if not mutant.killed:
            print(f"survived: {mutant.family}.{mutant.rule} in {mutant.entry}: {mutant.change}")
    if options.write:
        head = f"Made by `python -m tests.rule_mutations {' '.join(argv)}`.\n\n"
        (RESULTS / "mutations.md").write_text(head + table(mutants) + "\n")
        kept = [asdict(mutant) for mutant in mutants if not mutant.killed]
        (RESULTS / "mutations.json").write_text(json.dumps({"seed": options.seed, "survivors": kept}, indent=0) + "\n")


def collected(options: Any) -> list[Mutant]:
    """Mutants over cases in a seeded order, until every family has its share."""
    chance = random.Random(options.seed)
    chosen = [case for case in cases((torch.float32,)) if case.capture in ("exported", "training") and not case.random]
    chance.shuffle(chosen)
    chosen = chosen[: options.cases]
    mutants: list[Mutant] = []
    counts: dict[str, int] = defaultdict(int)
    for i, case in enumerate(chosen):
        for mutant in _of_case(case, chance, options, counts):
            mutants.append(mutant)
            counts[mutant.family] += 1
        if i % 50 == 0:
            print(f"... {i} of {len(chosen)} cases, {len(mutants)} mutants", file=sys.stderr, flush=True)
    return mutants


def _of_case(case: Case, chance: random.Random, options: Any, counts: dict[str, int]) -> list[Mutant]:
    try:
        programs = list(case.programs(3))
        lowerings = [decomp.lower(torch.export.export(p.module, p.inputs), to=_target()) for p in programs]
        judged = [(p, low, *_expected(case, p)) for p, low in zip(programs, lowerings)]
        if not judged or not all(_passes(low.result.module(), p, e, x) for p, low, e, x in judged):
            return []
    except Exception:
        return []  # what is not clean to begin with says nothing
    first = judged[0][1]
    wanted = [
        (node, change, family, rule)
        for node in first.result.graph.nodes
        for family, rule in _made_by(first, node)
        for change in _changes(node)
        if counts[family] < options.share and (options.family in (None, family))
    ]
    found = []
    for node, change, family, rule in chance.sample(wanted, min(options.each, len(wanted))):
        killed = any(not _survives(low, node.name, change, p, e, x) for p, low, e, x in judged)
        found.append(Mutant(family, rule, str(case), f"{node.name} ({node.target}): {change}", killed))
    return found


def _target() -> decomp.Target:
    return getattr(decomp_rules.targets, TARGET)


def _expected(case: Case, program: Program) -> tuple[Outcome, Outcome | None]:
    graded = case.differentiable and not program.special
    return evaluate(program.module, program, graded), in_double(program, graded)


def _passes(module: Any, program: Program, expected: Outcome, exact: Outcome | None) -> bool:
    try:
        compare(evaluate(module, program, bool(expected.gradients)), expected, exact, False)
    except Disagreement:
        return False
    return True


def _made_by(lowering: decomp.Lowering, node: fx.Node) -> list[tuple[str, str]]:
    """Family and name of the innermost rule that made a node; nothing for a node that was copied."""
    try:
        chain = lowering.provenance(node).chain
    except KeyError:
        return []
    rules = [(where.partition(".py")[0], name) for name, where in chain if ".py:" in where]
    return rules[-1:]


def _changes(node: fx.Node) -> list[str]:
    """What can be done to a node: "drop", or the perturbation of one of its numbers."""
    if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
        return []
    short = getattr(node.target, "_opname", "")
    changes = []
    first = node.args[0] if node.args else None
    if short not in PASSIVE and isinstance(first, fx.Node) and _alike(first, node):
        changes.append("drop")
    if short in ARITHMETIC:
        changes += [f"perturb {i}" for i, arg in enumerate(node.args) if _is_number(arg)]
    return changes


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value == value and abs(value) != float("inf")


def _alike(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    return isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and (x.shape, x.dtype) == (y.shape, y.dtype)


def _survives(
    lowering: decomp.Lowering, name: str, change: str, program: Program, expected: Outcome, exact: Outcome | None
) -> bool:
    """Whether the comparison passes although the node of that name is changed. Where a sample's program has no such
    node, or another one, it is left alone."""
    module = lowering.result.module()
    node = next((n for n in module.graph.nodes if n.name == name), None)
    if node is None or change not in _changes(node):
        return True
    if change == "drop":
        node.replace_all_uses_with(node.args[0])
    else:
        place = int(change.split()[1])
        value = node.args[place]
        node.update_arg(place, value + 1 if isinstance(value, int) else value * 1.25 + 0.01)
    module.recompile()
    try:
        return _passes(module, program, expected, exact)
    except Exception:
        return False


def table(mutants: list[Mutant]) -> str:
    """Killed of all by family, as Markdown."""
    families: dict[str, list[bool]] = defaultdict(list)
    for mutant in mutants:
        families[mutant.family].append(mutant.killed)
    lines = ["| family | mutants | killed |", "|---|---|---|"]
    for family, killed in sorted(families.items()):
        lines.append(f"| {family} | {len(killed)} | {sum(killed)} ({sum(killed) / len(killed):.0%}) |")
    total = [mutant.killed for mutant in mutants]
    lines.append(f"| **all** | {len(total)} | **{sum(total)}** ({sum(total) / max(len(total), 1):.0%}) |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
