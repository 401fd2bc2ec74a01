"""Derivations kept on disk: what one process has planned, the next one reads. There is one file for each set of rules,
target and version; it is written once, at the end of a lowering."""

from __future__ import annotations

from collections.abc import Callable
import hashlib
from pathlib import Path
from typing import Any
import uuid

import torch
from torch import fx

from decomp.cache import places, portable
from decomp.cache.fingerprints import fingerprint
from decomp.cache.portable import NotPortable, Record
from decomp.cache.store import Store
from decomp.ir.signature import Signature
from decomp.metadata.fakes import Fakes
from decomp.rules.rules import Rule, Rules
from decomp.rules.target import Target


class Segment:
    """What is kept for one set of rules and target, of a dialect and a cost."""

    def __init__(self, rules: Rules, target: Target, dialect: str, cost: Any) -> None:
        self.rules = tuple(rules)
        self.name = fingerprint(rules, target, dialect, cost)
        """None if nothing can be kept, because the code or the data that it depends on cannot be hashed."""
        self.places = {rule: place for place, rule in enumerate(self.rules)}
        self.tensors: dict[str, torch.Tensor] = {}
        """Constants of rules by name: one that several expansions share is one attribute of the lowered program."""
        self.names: dict[int, str] = {}


class Kept:
    """A segment while one program is planned."""

    def __init__(self, segment: Segment, place: Path, fakes: Fakes, composite: Callable[[str], Any]) -> None:
        """In a directory; `composite` makes PyTorch's composite kernel of a name, as a rule."""
        self.segment, self.fakes, self.composite = segment, fakes, composite
        self.store = Store(place / f"{segment.name}{places.SUFFIX}") if segment.name is not None else None
        self._new: dict[str, Record] = {}

    def find(self, signature: Signature, node: fx.Node, level: str) -> Record | None:
        """What is kept for a call, if anything is."""
        try:
            text = self.store.find(_digest(signature, node, level)) if self.store is not None else None
            return None if text is None else portable.loaded(text, self.fakes, self._rule_at, self._constant_at)
        except NotPortable:
            return None

    def note(self, signature: Signature, node: fx.Node, level: str, record: Record) -> None:
        """Keep a derivation, when this is over."""
        if self.store is not None:
            try:
                self._new[_digest(signature, node, level)] = record
            except NotPortable:
                pass

    def close(self) -> None:
        """Write what is new."""
        if self.store is None:
            return
        texts = {}
        for key, record in self._new.items():
            try:
                texts[key] = portable.dumped(record, self._place_of, self._name_of)
            except NotPortable:
                continue
        self.store.close()
        self._new = {}
        if texts:
            self.store.add(texts)
            places.trim(self.store.path.parent)

    def _place_of(self, rule: Any) -> Any:
        if not isinstance(rule, Rule):
            return rule.name
        if rule not in self.segment.places:
            raise NotPortable(rule)
        return self.segment.places[rule]

    def _rule_at(self, place: Any) -> Any:
        if isinstance(place, str):
            return self.composite(place)
        if not 0 <= place < len(self.segment.rules):
            raise NotPortable(place)
        return self.segment.rules[place]

    def _name_of(self, tensor: torch.Tensor) -> str:
        name = self.segment.names.setdefault(id(tensor), uuid.uuid4().hex)
        self.segment.tensors[name] = tensor
        return name

    def _constant_at(self, given: Any) -> torch.Tensor:
        name, *data = given
        found = self.segment.tensors.get(name)
        if found is None:
            found = self.segment.tensors[name] = portable.constant(data)
            self.segment.names[id(found)] = name
        return found


def _digest(signature: Signature, node: fx.Node, level: str) -> str:
    return hashlib.sha256(portable.key_of(signature, node, level).encode()).hexdigest()[:32]
