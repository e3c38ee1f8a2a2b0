"""Options that several commands share."""

from __future__ import annotations

import pytest

from kiel_groups.cli.parameters.options import separator_bytes
from kiel_groups.errors import ConfigError

pytestmark = pytest.mark.unit


def test_a_separator_may_be_an_escape() -> None:
    """A shell passes ``\t`` as two characters, which become a tab. An empty separator is refused."""
    assert (separator_bytes(None), separator_bytes(":"), separator_bytes("\\t")) == (None, b":", b"\t")
    with pytest.raises(ConfigError, match="--key-separator: nothing given"):
        separator_bytes("")
