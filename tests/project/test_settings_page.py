"""The page of settings is up to date."""

from __future__ import annotations

import pytest

from tests.helpers.commands import REPOSITORY
from tests.helpers.settings_page import settings_page

pytestmark = pytest.mark.unit


def test_the_page_has_the_settings_of_the_code() -> None:
    """The page equals what ``python -m tests.helpers.settings_page`` writes; each setting of a client is on it."""
    assert (REPOSITORY / "docs" / "settings.rst").read_text(encoding="utf-8") == settings_page()
