"""The table of an archive: where values have the times that choose folders."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.spark.archive_table import TimeField

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "path", "form", "pattern"),
    [
        ("at", "at", "iso", None),
        ("meta.at:ms", "meta.at", "ms", None),
        ("@at:s", "@at", "s", None),
        ("at:dd/MM/yyyy HH:mm", "at", "dd/MM/yyyy HH:mm", "dd/MM/yyyy HH:mm VV"),
        ("at:yyyy-MM-dd'T'HH:mm:ssXXX", "at", "yyyy-MM-dd'T'HH:mm:ssXXX", "yyyy-MM-dd'T'HH:mm:ssXXX"),
        ("at:yyyy'V'", "at", "yyyy'V'", "yyyy'V' VV"),
    ],
)
def test_a_time_field_has_a_path_and_a_format(text: str, path: str, form: str, pattern: str | None) -> None:
    """A pattern without a time zone gets one, which is then UTC. Letters in quotes are text."""
    field = TimeField.parse(text)
    assert (field.path, field.form, field.pattern) == (path, form, pattern)
    assert TimeField.parse(str(field)) == field


@pytest.mark.parametrize("text", ["", ":s", "at:", "a..b", "a b", "a['b']", "at.", "a'b"])
def test_an_invalid_time_field_is_refused(text: str) -> None:
    """The error shows what a time field looks like."""
    with pytest.raises(ConfigError, match=r"^time_field: .* given; expected the name of a field, such as 'at'"):
        TimeField.parse(text)
