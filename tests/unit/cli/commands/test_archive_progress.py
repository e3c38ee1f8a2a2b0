"""The progress of an archive on standard error."""

from __future__ import annotations

import pytest

from kiel_groups.cli.commands.spark import progress
from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.spark.spark_session import Batch

pytestmark = pytest.mark.unit


def test_progress_without_a_terminal_is_a_line_for_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """
    The line has the number of records, the rate, and the rest, which is computed from the initial number if it is not
    reported.
    """
    with progress(Lines(), 100, quiet=False) as report:
        report(Batch(0, 60, 1040))
        report(Batch(1, 30, None))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("info: 60 records, ")
    assert first.endswith(" records/s, 1,040 left")
    assert second.endswith(" records/s, 10 left")
