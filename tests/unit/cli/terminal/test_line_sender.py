"""The report of lines that could not be sent."""

from __future__ import annotations

import pytest

from kiel_groups.cli.terminal.line_sender import ranges

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "3"),
        ([3, 4, 5], "3 to 5"),
        ([1, 3, 4, 9], "1, 3 to 4, 9"),
        (list(range(0, 30, 2)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 5 more ranges"),
    ],
)
def test_consecutive_numbers_are_a_range(numbers: list[int], text: str) -> None:
    """The numbers of a million failed lines must fit into one line."""
    assert ranges(numbers) == text
