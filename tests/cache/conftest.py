"""What the tests of the cache share."""

import pytest


@pytest.fixture
def place(monkeypatch, tmp_path):
    """The directory of a cache that is empty."""
    monkeypatch.setenv("DECOMP_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"
