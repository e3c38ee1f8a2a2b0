"""Which broker a task asks for leaders after one has failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kiel_groups.config import HostPort
from kiel_groups.errors import BrokerConnectionError, KielGroupsError, RequestTimeoutError
from kiel_groups.model import TopicPartition
from kiel_groups.spark import read_task
from kiel_groups.spark.checkpoint import OffsetRange
from kiel_groups.spark.columns import READ_SCHEMA, arrow_schema
from kiel_groups.spark.options import ReadOptions
from kiel_groups.spark.task_planner import ReadTask

pytestmark = pytest.mark.spark

HERE = TopicPartition("clicks", 0)
ONE, TWO, THREE = (HostPort(name, 9092) for name in ("one", "two", "three"))


@pytest.mark.parametrize(
    ("failure", "order"),
    [
        (BrokerConnectionError("cannot connect", host="one", port=9092), [TWO, THREE, ONE]),
        (RequestTimeoutError("no answer"), [ONE, TWO, THREE]),
    ],
)
def test_a_broker_that_accepts_no_connection_is_asked_last(
    failure: KielGroupsError, order: list[HostPort], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its computer may be down, and a task would wait for seconds before it asks the next broker."""
    asked: list[Sequence[HostPort]] = []

    def find_leaders(brokers: Sequence[HostPort], *_: object) -> dict[TopicPartition, HostPort]:
        asked.append(brokers)
        return {HERE: TWO}

    monkeypatch.setattr(read_task, "find_leaders", find_leaders)
    options = ReadOptions.parse({"kafka.bootstrap.servers": "one,two", "subscribe": "clicks"}, streaming=False)
    reader: Any = read_task._TaskReader(
        ReadTask({HERE: THREE}, (OffsetRange(HERE, 0, 1),)), options, arrow_schema(READ_SCHEMA)
    )
    reader._refresh_leaders(failure)
    assert asked == [order]
