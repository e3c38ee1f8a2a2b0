"""The page of failures says what their tests say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failures.__main__ import document

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).parents[2]


def test_the_page_is_what_the_tests_say() -> None:
    """``python -m tests.failures > docs/failures.rst`` writes it anew."""
    assert (REPOSITORY / "docs/failures.rst").read_text(encoding="utf-8") == document()
