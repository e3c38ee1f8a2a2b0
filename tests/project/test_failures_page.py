"""The pages of failures are up to date."""

from __future__ import annotations

import pytest

from tests.failures.__main__ import PAGES, document
from tests.helpers.commands import REPOSITORY

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_generated_from_the_tests(name: str) -> None:
    """The page equals what ``python -m tests.failures`` writes."""
    assert (REPOSITORY / "docs" / f"{name}.rst").read_text(encoding="utf-8") == document(name)
