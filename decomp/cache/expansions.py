"""The disk cache of derivations: later processes reuse what one has planned. There is one file for each set of rules,
target and version; it is written once, at the end of a lowering."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import hashlib
from pathlib import Path
import random
from typing import Any
import uuid

import torch
from torch import fx

from decomp.cache import places, portable
from decomp.cache.portable import Record
from decomp.cache.store import Store
from decomp.cache.symbols import NotSerialisable, Symbols
from decomp.errors import warn
from decomp.ir.call import metadata
from decomp.ir.signature import Signature
from decomp.metadata.fakes import Fakes
from decomp.rules.rules import Rule, Rules
from decomp.torch_internals.fakes import FakeTensorMode

SHARE = 16
"""One in this many cached expansions that are used is recorded again, and compared."""
# Not the generator of `random`: a user's seed must not fix which entries are checked, nor its state advance.
_DRAWING = random.SystemRandom()


class Segment:
    """The cache for one set of rules, target, dialect and cost."""

    def __init__(self, name: str | None, rules: Rules) -> None:
        """`name`: a fingerprint of everything that the cached values depend on; None if that is unknown, so that
        nothing can be cached."""
        self.name, self.rules = name, tuple(rules)
        self.places = {rule: place for place, rule in enumerate(self.rules)}
        self.tensors: dict[str, torch.Tensor] = {}
        """Constants of rules by name: one shared by several expansions becomes one attribute of the lowered program."""
        self.names: dict[int, str] = {}
        self.is_doubtful = False
        """Whether a cached value differed from a new recording: then all of them are recorded again."""


class ExpansionCache:
    """A segment during the planning of one program."""

    def __init__(
        self,
        segment: Segment,
        place: Path,
        fakes: Fakes,
        composite: Callable[[str], Any],
        mode: FakeTensorMode | None = None,
    ) -> None:
        """`composite` returns PyTorch's composite kernel of a name, as a rule; `mode`: that of the program, which has
        its open sizes."""
        self.segment, self.composite, self._fakes = segment, composite, fakes
        self._env = mode.shape_env if mode is not None else None
        self._open_fakes = Fakes(mode) if mode is not None else fakes
        self._entries: dict[Any, tuple[str, Symbols | None]] = {}
        self.store = Store(place / f"{segment.name}{places.SUFFIX}") if segment.name is not None else None
        self.depth = 0
        """The depth of nested derivations of the calls being decided."""
        self._new: dict[str, tuple[Record, Symbols | None]] = {}
        self._gone: list[str] = []

    def find(self, signature: Signature, node: fx.Node, level: str) -> Record | None:
        """The cached record of a call, if any."""
        if self.store is None:
            return None
        try:
            key, symbols = self._entry(signature, node, level)
            text = self.store.find(key)
            fakes = self._fakes if symbols is None else self._open_fakes
            if text is None:
                return None
            return portable.load_record(text, fakes, self._rule_at, self._constant_at, symbols)
        except NotSerialisable:
            return None

    def _entry(self, signature: Signature, node: fx.Node, level: str) -> tuple[str, Symbols | None]:
        """The key of a call, and the symbols of its open sizes. Raises `NotSerialisable`."""
        known = signature.key, level
        if known not in self._entries:
            values = [metadata(each) for each in (*signature.tensor_args, node)] if signature.symbolic else []
            symbols = Symbols(values, self._env) if signature.symbolic else None
            text = portable.key_of(signature, node, level, symbols)
            self._entries[known] = hashlib.sha256(text.encode()).hexdigest()[:32], symbols
        return self._entries[known]

    def note(self, signature: Signature, node: fx.Node, level: str, record: Record) -> None:
        """Cache a derivation, at the end."""
        if self.store is not None:
            with contextlib.suppress(NotSerialisable):
                key, symbols = self._entry(signature, node, level)
                self._new[key] = record, symbols

    def is_drawn(self) -> bool:
        """Whether a cached value must be recorded again."""
        return self.segment.is_doubtful or not _DRAWING.randrange(SHARE)

    def confirm(self, found: Record, signature: Signature, node: fx.Node, level: str, recorded: Record | None) -> bool:
        """Whether the cached value of a call equals a new recording; if not, it is dropped with a warning."""
        key, symbols = self._entry(signature, node, level)
        if recorded is not None and self._is_kept(key, recorded, symbols):
            self._new.pop(key, None)
            return True
        self.segment.is_doubtful = True
        if key not in self._new:
            self._gone.append(key)
        warn(_CHANGED.format(op=node.target, rule=found.rule))
        return False

    def _is_kept(self, key: str, record: Record, symbols: Symbols | None) -> bool:
        kept = self.store.find(key) if self.store is not None else None
        try:
            text = portable.dump_record(record, self._place_of, self._name_of, symbols)
        except NotSerialisable:
            return False
        return kept is not None and portable.comparable_text(kept) == portable.comparable_text(text)

    def close(self) -> None:
        """Write new values."""
        if self.store is None:
            return
        texts = {}
        for key, (record, symbols) in self._new.items():
            try:
                texts[key] = portable.dump_record(record, self._place_of, self._name_of, symbols)
            except NotSerialisable:
                continue
        # `add` may replace the file; an open connection would go on reading the old one.
        self.store.close()
        if texts or self._gone:
            self.store.add(texts, self._gone)
            # Only after a write, as a directory is otherwise no larger than it was.
            places.trim(self.store.path.parent)
        self._new, self._gone = {}, []

    def _place_of(self, rule: Any) -> Any:
        if not isinstance(rule, Rule):
            return rule.name
        if rule not in self.segment.places:
            raise NotSerialisable(rule)
        return self.segment.places[rule]

    def _rule_at(self, place: Any) -> Any:
        if isinstance(place, str):
            return self.composite(place)
        if not 0 <= place < len(self.segment.rules):
            raise NotSerialisable(place)
        return self.segment.rules[place]

    def _name_of(self, tensor: torch.Tensor) -> str:
        # Several processes write to one file, so a counter would name two constants alike.
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


_CHANGED = (
    "the cached expansion of {op} by {rule} is not what the rule records now: it was dropped, and the new recording is "
    "used\n  to do: change the version of Rules(version=...) when a rule changes, or what it reads; "
    "`decomp cache clear` deletes the cache"
)
