"""The view of the brokers that Spark's driver has: how long it asks, and how often it complains."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from kiel_groups.errors import NoBrokersError
from kiel_groups.spark.offsets.log_view import LogView
from kiel_groups.spark.options.read_options import ReadOptions

pytestmark = pytest.mark.unit

TRIES = 4


@pytest.fixture
def nobody() -> Iterator[ReadOptions]:
    """Options whose one broker is a port at which nobody listens, and nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        texts = {
            "kafka.bootstrap.servers": f"127.0.0.1:{taken.getsockname()[1]}",
            "subscribe": "clicks",
            "kafka.request.timeout.ms": "1",
            "fetchOffset.numRetries": str(TRIES - 1),
            "fetchOffset.retryIntervalMs": "1",
        }
        yield ReadOptions.parse(texts, streaming=True)


@pytest.mark.parametrize(("patient", "again"), [(True, TRIES - 1), (False, 0)])
def test_who_is_patient_asks_again(
    nobody: ReadOptions, caplog: pytest.LogCaptureFixture, patient: bool, again: int
) -> None:
    """And warns once; the other attempts are for who wants to know all. Where somebody waits, the first one counts."""
    with (
        caplog.at_level(logging.INFO, "kiel_groups.spark.offsets.log_view"),
        LogView(nobody, patient=patient) as view,
        pytest.raises(NoBrokersError),
    ):
        view.partitions()
    told = [record.levelname for record in caplog.records if record.name == "kiel_groups.spark.offsets.log_view"]
    assert told == ["WARNING", *["INFO"] * (TRIES - 2)][:again]
