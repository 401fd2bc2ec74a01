"""The rules on PyTorch's own operator and module tests: each case is lowered wholly and right in value, dtype, shape,
special values and gradient, or it is declared why it cannot be. A sample here, all with `--whole`."""

from dataclasses import asdict

from tests.opinfo.known_differences import KNOWN_DIFFERENCES
from tests.opinfo.sweep import verdict
from tests.opinfo.verdict import CLEAN, DECLARED


def test_a_case_is_clean_or_declared(opinfo_job, record_property):
    row = verdict(opinfo_job)
    record_property("verdict", asdict(row))
    known = KNOWN_DIFFERENCES.get(row.entry)
    assert row.status in (CLEAN, DECLARED) or known, f"{row.status}: {row.why}"
