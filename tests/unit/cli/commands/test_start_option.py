"""Positions on the command line: words, times, ages and offsets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kiel_groups.cli.commands.consume import Offset, Tail, parse_position
from kiel_groups.clients import BEGINNING, END
from kiel_groups.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", BEGINNING),
        ("latest", END),
        ("90s", timedelta(seconds=90)),
        ("10m", timedelta(minutes=10)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("2026-11-21", datetime(2026, 11, 21)),
        ("2026-11-21T17:45:58+00:00", datetime(2026, 11, 21, 17, 45, 58, tzinfo=UTC)),
    ],
)
def test_a_position_is_a_word_a_time_or_an_age(text: str, position: object) -> None:
    """These are the forms of ``--from``."""
    assert parse_position(text) == position
    assert not isinstance(parse_position(text), Offset)


def test_a_number_is_an_offset() -> None:
    """The result is an Offset, not an int."""
    assert isinstance(parse_position("0"), Offset)
    assert parse_position("4711") == 4711


def test_a_negative_number_is_a_distance_to_the_end() -> None:
    """The result is a Tail, a positive number."""
    for text, number in (("-1", 1), ("-010", 10), ("-25", 25)):
        assert isinstance(parse_position(text), Tail)
        assert parse_position(text) == number


@pytest.mark.parametrize(
    "text", ["", "-0", "--1", "-", "-1.5", "10 m", "10y", "99999999999999d", "yesterday", "2026-13-01", "１０"]
)
def test_an_invalid_position_is_refused(text: str) -> None:
    """The error lists the valid forms."""
    with pytest.raises(
        ConfigError, match=r"^--from: .* given; expected 'earliest', 'latest', an offset, '-N' for the last N"
    ):
        parse_position(text)
