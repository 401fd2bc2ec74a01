"""The index of the library has every rule, with the figures of its certificate, and every limitation and error."""

from decomp import errors
from decomp.rules.certificates import read_committed
from decomp.rules.library import library
from decomp.tools.certification.rule_index import error_index, limitation_index, rule_index
from decomp_rules import RULES


def test_every_rule_is_in_the_table_of_its_module_with_its_error_and_price():
    found = rule_index(list(library()), read_committed(), ("core_aten", "tinygrad"))
    assert sum(len(table.rows) for table in found.values()) == len(list(RULES))
    gelu = {row[1]: row for row in found["pointwise.gelu"].rows}
    row = gelu["gelu_of_parts"]
    assert row[0] == "aten.gelu" and row[2] == "exact" and " / " in row[3]
    assert row[4] == "native" and int(row[5]) > 10 and row[6].startswith("x·Φ(x)")


def test_limitations_and_errors_are_listed():
    limits = limitation_index(library().limitations)
    assert len(limits.rows) == len(library().limitations) and all(row[2] for row in limits.rows)
    listed = {row[0]: row for row in error_index().rows}
    assert listed["NotLowered"][1] == "DecompError" and listed["InputsOverlap"][1] == "InputMismatch"
    own = {
        name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, errors.DecompError)
    }
    assert set(listed) == own
