"""Names that attributes had before, for a release more."""

from __future__ import annotations

from typing import Any
import warnings


def former_name(old: str, new: str) -> Any:
    """A property that warns, and has the value of the attribute `new`. `old`: with its class, as `Report.stamped`."""
    text = f"{old} is {old.partition('.')[0]}.{new} now; the old name goes in release 0.3"

    def value(owner: Any) -> Any:
        warnings.warn(text, DeprecationWarning, stacklevel=2)  # at the line that asks for the name
        return getattr(owner, new)

    return property(value, doc=f"The former name of `{new}`.")
