"""The file map in the documentation matches the docstrings of packages and modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.file_map import WIDTH, file_map

# One process reads the package, for all of these modules.
pytestmark = [pytest.mark.unit, pytest.mark.xdist_group("the package's sources")]

MAP = Path(__file__).parents[2] / "docs" / "layers.txt"


def test_the_file_map_is_what_the_command_writes() -> None:
    """The file map equals what ``python -m tests.architecture`` writes."""
    assert MAP.read_text(encoding="utf-8") == file_map()


def test_the_file_map_fits_its_width() -> None:
    """The lines of the file map have at most ``WIDTH`` columns, which fit a terminal as well as a page."""
    assert max(map(len, file_map().splitlines())) <= WIDTH
