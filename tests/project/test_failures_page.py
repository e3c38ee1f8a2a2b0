"""The page of failures, ``docs/failures.rst``, is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failures.__main__ import document

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).parents[2]


def test_the_page_is_generated_from_the_tests() -> None:
    """The page equals what ``python -m tests.failures > docs/failures.rst`` writes."""
    assert (REPOSITORY / "docs/failures.rst").read_text(encoding="utf-8") == document()
