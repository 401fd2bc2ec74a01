"""What a search or a snapshot is asked with, as it was written on the command line, so that other processes can make it
too: neither rules nor targets with conditions can be pickled."""

from __future__ import annotations

from dataclasses import dataclass

from decomp.advice.jobs import Setting
from decomp.derive.rule_selection import RuleSelection
from decomp.lowering import rules_and_target
from decomp.rules.accuracy import Policy
from decomp.tools.cli.arguments import load_accuracy, load_cost, load_rules, load_target


@dataclass(frozen=True)
class Words:
    """Target, rules and options by the words for them."""

    to: str
    rules: tuple[str, ...]
    keep: tuple[str, ...]
    accuracy: tuple[str, ...]
    cost: str | None
    training: bool | None
    narrow: bool

    def __call__(self) -> Setting:
        """Load what the words mean. Raises `Unusable`, `TargetError`, `UnknownOp`."""
        rules, target = rules_and_target(load_target(self.to), load_rules(self.rules), self.keep, self.narrow)
        policy = Policy(load_accuracy(self.accuracy), load_cost(self.cost))
        return Setting(RuleSelection(rules, target, self.training), policy)
