"""The picture of the layers in the documentation matches the rules and the docstrings of the packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.layers import LAYERS
from tests.architecture.picture import WIDTH, picture

pytestmark = pytest.mark.unit

PICTURE = Path(__file__).parents[2] / "docs" / "layers.txt"


def test_the_picture_is_what_the_command_prints() -> None:
    """The picture in the documentation equals what ``python -m tests.architecture`` writes."""
    assert PICTURE.read_text(encoding="utf-8") == picture()


def test_the_picture_names_every_layer() -> None:
    """The picture shows every layer, whether it is a package or a module."""
    text = picture()
    assert not [layer for layer in LAYERS if layer.rpartition("/")[2] not in text]


def test_the_picture_fits_its_width() -> None:
    """The longest line of the picture has exactly ``WIDTH`` columns, which fit a terminal as well as a page."""
    assert max(map(len, picture().splitlines())) == WIDTH
