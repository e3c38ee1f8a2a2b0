"""The accepted forms of the argument ``start``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from kiel_groups.clients.single import offset_time
from kiel_groups.errors import ConfigError

pytestmark = pytest.mark.unit

NOW = datetime(2016, 2, 1, 12, tzinfo=UTC)
NOW_MS = 1_454_328_000_000


@pytest.mark.parametrize(
    ("start", "time"),
    [
        (None, -1),
        (-1, -1),
        (-2, -2),
        (datetime(2016, 2, 1, 12), NOW_MS),
        (NOW, NOW_MS),
        (datetime(2016, 2, 1, 14, 0, 0, 1_999, tzinfo=timezone(timedelta(hours=2))), NOW_MS + 1),
        (timedelta(hours=1), NOW_MS - 3_600_000),
        (timedelta(milliseconds=5), NOW_MS - 5),
        (timedelta(days=50_000), 0),
        (timedelta(days=800_000), 0),
        (timedelta.max, 0),
        (timedelta.min, NOW_MS + 86_399_999_913_600_000),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), 0),
        (datetime(1969, 12, 31), 0),
    ],
)
def test_a_start_becomes_milliseconds(start: Any, time: int) -> None:
    """A start becomes milliseconds since 1970. A time without a zone is UTC, and times before 1970 become 0."""
    assert offset_time(start, NOW) == time


@pytest.mark.parametrize("start", [0, -3, 1_454_328_000, "earliest", True, 1.5])
def test_an_invalid_start_is_refused(start: Any) -> None:
    """An invalid start is refused with an error that has the given value and the accepted forms."""
    with pytest.raises(ConfigError, match=r"start: .* given; expected BEGINNING \(-2\), END \(-1\), a datetime"):
        offset_time(start, NOW)
