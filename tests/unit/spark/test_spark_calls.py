"""The text that Spark reports of an error begins with the cause."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest

from kiel_groups.errors import BrokerError, ConfigError, KielGroupsError
from kiel_groups.spark.spark_calls import cause_first

pytestmark = pytest.mark.unit


class Reader:
    @cause_first
    def plan(self, *, fails: bool) -> int:
        if fails:
            raise ConfigError("subscribe: nothing given") from OSError("some reason")
        return 1

    @cause_first
    def read(self) -> Iterator[int]:
        yield 1
        raise BrokerError("views:0: gone", code=3)


def reported(error: KielGroupsError) -> list[str]:
    """Return the lines that Spark's worker sends. It drops the cause where it leaves out frames of its own."""
    error.__cause__ = None
    return traceback.format_exception(type(error), error, error.__traceback__, chain=True)


def test_the_cause_is_in_the_first_line_and_in_the_last() -> None:
    """The traceback is in between. The error is still what callers of the same process expect."""
    assert Reader().plan(fails=False) == 1
    with pytest.raises(ConfigError, match=r"^subscribe: nothing given$") as found:
        Reader().plan(fails=True)
    lines = reported(found.value)
    assert lines[0] == lines[-1] == "kiel_groups.errors.ConfigError: subscribe: nothing given\n"
    assert "Traceback (most recent call last):\n" in lines


def test_an_error_among_the_rows_has_its_cause_first() -> None:
    """Rows before the error are passed on. An error that passes two methods is restated once."""
    rows = Reader().read()
    assert next(rows) == 1
    with pytest.raises(BrokerError) as found:
        next(rows)
    assert found.value.code == 3
    lines = reported(found.value)
    assert lines[0] == lines[-1] == "kiel_groups.errors.BrokerError: views:0: gone\n"
    assert lines.count("Traceback (most recent call last):\n") == 1
