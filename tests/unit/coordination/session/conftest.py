"""Fixtures for the tests of sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiel_groups.coordination.zookeeper.runtime import replaced
from tests.helpers.manual_runtime import ManualRuntime


@pytest.fixture
def runtime() -> Iterator[ManualRuntime]:
    """Return a runtime whose time the test advances."""
    manual = ManualRuntime()
    with replaced(manual):
        yield manual
