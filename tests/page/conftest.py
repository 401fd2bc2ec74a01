"""What the tests of pages share."""

import pytest

from tests.browser import browsing, path_of_browser


@pytest.fixture(scope="module")
def browser():
    if path_of_browser() is None:
        pytest.skip("there is no Chromium")
    with browsing() as found:
        yield found
