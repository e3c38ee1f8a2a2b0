"""The metrics of a membership, by kafka-python's names, in groups that ZooKeeper or brokers coordinate."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.metrics import KAFKA_GROUP
from tests.helpers.cluster_data import produce
from tests.helpers.group_backends import GroupBackend
from tests.helpers.members import Member, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def of(member: Member) -> dict[str, float | None]:
    return member.consumer.kafka_metrics()[KAFKA_GROUP]


async def test_a_membership_is_measured(release_backend: GroupBackend, unique: Unique) -> None:
    """
    A member's heartbeats, joins, syncs and commits are observed. Another member's join counts for both: the first one
    learns of a rebalance, or of a plan.
    """
    topic, name, backend = unique("topic"), unique("group"), release_backend
    await backend.cluster.create_topic(topic, 4)
    values = await produce(backend.cluster, topic, 40)
    settings = {**backend.settings, "heartbeat_interval_ms": 100, "auto_commit_interval_ms": 50}
    async with group_of(backend.cluster, name, [topic], **settings) as group:
        first = await group.join()
        await group.balanced(topic, 4)
        await group.delivered(values)
        await eventually(lambda: of(first)["commit-latency-max"], "a commit is observed")
        alone = of(first)
        assert alone["assigned-partitions"] == 4
        assert alone["join-rate"] == alone["sync-rate"] == 1 / 30, "one in half a minute"
        assert alone["join-time-max"] == pytest.approx(alone["join-time-avg"])
        second = await group.join()
        await group.balanced(topic, 4)
        for member in (first, second):
            await eventually(lambda: of(member)["heartbeat-response-time-max"], "heartbeats are observed")  # noqa: B023
        both = of(first)
        assert both["assigned-partitions"] == of(second)["assigned-partitions"] == 2
        assert both["join-rate"] == pytest.approx(2 / 30)
        assert both["sync-rate"] == pytest.approx(2 / 30)
        assert both["join-time-max"] > both["join-time-avg"] > 0  # type: ignore[operator]
        assert 0 < both["heartbeat-response-time-max"] < 10_000  # type: ignore[operator]
        assert 0 < both["last-heartbeat-seconds-ago"] < 10  # type: ignore[operator]
        assert both["commit-rate"] > 0  # type: ignore[operator]
        assert first.consumer.metrics.counter("joins") == 2
        gauges = {sample: value for sample, _, value in first.consumer.metrics.samples()}
        assert gauges["assigned_partitions"] == 2
