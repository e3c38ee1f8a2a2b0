"""The driver of a query that is no member of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition
from kiel_groups.spark import batches, drivers
from kiel_groups.spark.drivers import LogDriver, check_topics
from kiel_groups.spark.options import ReadOptions

pytestmark = pytest.mark.unit

P0 = TopicPartition("t", 0)


class LogViewOfOnePartition:
    """A log view of one partition that needs no broker."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[TopicPartition]:
        return [P0]


class OffsetsThatFailOnce:
    """Group offsets that fail to store the start of a query once."""

    def __init__(self, view: object, options: ReadOptions) -> None:
        self.attempts: list[tuple[str | None, Mapping[TopicPartition, int]]] = []

    def commit(self, group: str | None, offsets: Mapping[TopicPartition, int], *, only_missing: bool = False) -> bool:
        assert only_missing
        self.attempts.append((group, offsets))
        return len(self.attempts) > 1


def test_a_start_that_was_not_stored_is_stored_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If the start of a query could not be stored, the next call stores it. Otherwise, a query restarted before its first
    batch is done would resolve ``latest`` again, and skip records.
    """
    monkeypatch.setattr(drivers, "LogView", LogViewOfOnePartition)
    monkeypatch.setattr(drivers, "GroupOffsets", OffsetsThatFailOnce)
    monkeypatch.setattr(batches, "resolve", lambda *arguments: {P0: 7})
    options = ReadOptions.parse({"kafka.bootstrap.servers": "h:1", "subscribe": "t"}, streaming=True)
    driver: Any = LogDriver(options)
    first = driver.initial()
    assert [driver.initial() for _ in range(2)] == [first, first]
    assert [offsets for _, offsets in driver._offsets.attempts] == [{P0: 7}, {P0: 7}]


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ({"subscribe": "d.new,d.old"}, "d.new, d.old"),
        ({"subscribePattern": "n.*"}, "topics that match 'n.*'"),
        ({"assign": '{"d.new": [0]}'}, "d.new"),
    ],
)
def test_the_checkpoint_of_another_topic_is_named(named: dict[str, str], wanted: str) -> None:
    """Otherwise its records would seem to be lost, and failOnDataLoss=false would hide the mistake."""
    options = ReadOptions.parse({"kafka.bootstrap.servers": "h:1", **named}, streaming=True)
    with pytest.raises(ConfigError) as found:
        check_topics(options, [TopicPartition("d.mid", 0)])
    assert str(found.value) == (
        f"checkpointLocation: this checkpoint is of d.mid, and the query reads {wanted}; give it a checkpoint of its"
        " own"
    )
    check_topics(options, [])
    check_topics(options, [TopicPartition(each, 0) for each in ("d.new", "d.mid", "n1")])
