"""Fixtures for the tests of sessions."""

from __future__ import annotations

import pytest

from tests.helpers.manual_runtime import ManualRuntime


@pytest.fixture
def runtime() -> ManualRuntime:
    """Return a runtime whose time the test advances."""
    return ManualRuntime()
