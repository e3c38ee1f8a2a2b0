"""The retries of the log view in Spark's driver, and their log lines."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator

import pytest

from kiel_groups.errors import NoBrokersError
from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.options import ReadOptions
from tests.helpers.fake_broker import FakeBroker

pytestmark = pytest.mark.unit

TRIES = 4


@pytest.fixture
def unreachable() -> Iterator[ReadOptions]:
    """Yield options whose only broker is a reserved port on which no process listens."""
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
def test_a_patient_view_retries(
    unreachable: ReadOptions, caplog: pytest.LogCaptureFixture, patient: bool, again: int
) -> None:
    """
    A log view with ``patient`` retries: the first failure is logged as a warning, further ones as infos, and the last
    one is raised. Without ``patient``, the first failure is raised.
    """
    with (
        caplog.at_level(logging.INFO, "kiel_groups.spark.log_view"),
        LogView(unreachable, patient=patient) as view,
        pytest.raises(NoBrokersError),
    ):
        view.partitions()
    levels = [record.levelname for record in caplog.records if record.name == "kiel_groups.spark.log_view"]
    assert levels == ["WARNING", *["INFO"] * (TRIES - 2)][:again]


async def test_a_pattern_leaves_out_kafkas_own_topics() -> None:
    """Internal topics, whatever matches them, are read only by name: their records are not the application's."""
    async with FakeBroker({"clicks": 1, "__consumer_offsets": 2, "__transaction_state": 1}) as broker:

        def partitions(**texts: str) -> list[str]:
            hosts = ",".join(map(str, broker.config().hosts))
            options = ReadOptions.parse({"kafka.bootstrap.servers": hosts, **texts}, streaming=True)
            with LogView(options, patient=False) as view:
                return list(map(str, view.partitions()))

        assert await asyncio.to_thread(partitions, subscribePattern=".*") == ["clicks:0"]
        named = await asyncio.to_thread(partitions, subscribe="__consumer_offsets")
        assert named == ["__consumer_offsets:0", "__consumer_offsets:1"]
