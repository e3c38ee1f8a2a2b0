"""A stream whose topic was deleted or created again: an error, or with failOnDataLoss=false the remaining records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import OffsetOutOfRangeError
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from tests.helpers.spark.queries import (
    Query,
    await_partitions,
    fill,
    filled,
    recreate_topic,
    running,
    values_of,
)

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("impatient")]

Unique = Callable[[str], str]

VALUES = [b"%d" % number for number in range(100)]

#: Repeat lookups at once, to see whether lost data reappears.
IMPATIENT = {"fetchOffset_retryIntervalMs": "10"}


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic of four partitions with 100 records."""
    return filled(cluster_39, unique("topic"), 4, VALUES)


def test_a_recreated_topic_is_a_loss(cluster_39: Cluster, topic: str) -> None:
    """The error has the partition, both offsets and the remedy. With failOnDataLoss=false the new log is read."""
    options = {"subscribe": topic, "startingOffsets": "earliest", **IMPATIENT}
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
        ZooKeeperTopics(cluster_39.zk_hosts).delete(topic)
        ZooKeeperTopics(cluster_39.zk_hosts).create(topic, 4)
        await_partitions(cluster_39, topic, 4)
        fill(cluster_39, topic, [b"7"], partition=2)
        with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: offset .* the log ends at 0.* failOnDataLoss"):
            query.trigger()
    with running(Query(cluster_39, query.checkpoint, **options, failOnDataLoss="false")) as lenient:
        assert values_of(lenient.trigger(fails=True)) == [b"7"]
    with running(Query(cluster_39, query.checkpoint, **options)) as again:
        assert values_of(again.trigger()) == [b"7"]
        fill(cluster_39, topic, [b"8"], partition=2)
        assert values_of(again.trigger()) == [b"8"]


def test_a_deleted_topic_is_a_loss(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """A deleted topic is a loss. With failOnDataLoss=false the other topics are read."""
    other = unique("other")
    ZooKeeperTopics(cluster_39.zk_hosts).create(other, 1)
    options = {"subscribe": f"{topic},{other}", **IMPATIENT}
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
        ZooKeeperTopics(cluster_39.zk_hosts).delete(topic)
        await_partitions(cluster_39, topic, 0)
        with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: .* there is no such partition"):
            query.trigger()
    fill(cluster_39, other, [b"5"])
    with running(Query(cluster_39, query.checkpoint, **options, failOnDataLoss="false")) as lenient:
        assert values_of(lenient.trigger()) == [b"5"]


def test_available_now_detects_a_recreated_topic(cluster_39: Cluster, unique: Unique) -> None:
    """
    With Trigger.AvailableNow, a recreated topic is an error although there is nothing to read. With
    failOnDataLoss=false the new log is read.
    """
    name = filled(cluster_39, unique("topic"), 1, VALUES)
    options = {"subscribe": name, "startingOffsets": "earliest", **IMPATIENT}
    with running(Query(cluster_39, **options)) as query:
        assert values_of(query.trigger()) == VALUES
    recreate_topic(cluster_39, name, 1, [b"7", b"8"])
    with running(Query(cluster_39, query.checkpoint, **options)) as strict:
        strict.reader.prepareForTriggerAvailableNow()
        with pytest.raises(OffsetOutOfRangeError, match=f"{name}:0: offset 100 is to be .* the log ends at 2: "):
            strict.trigger()
    with running(Query(cluster_39, query.checkpoint, **options, failOnDataLoss="false")) as lenient:
        lenient.reader.prepareForTriggerAvailableNow()
        fill(cluster_39, name, [b"9"])
        assert values_of(lenient.trigger()) == [b"7", b"8"]
        assert lenient.trigger() == []


def test_available_now_detects_a_deleted_topic(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """
    With Trigger.AvailableNow, a deleted topic is an error even if another topic exists. Records produced after the
    start of the run are not read.
    """
    other = unique("other")
    ZooKeeperTopics(cluster_39.zk_hosts).create(other, 1)
    options = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest", **IMPATIENT}
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
    ZooKeeperTopics(cluster_39.zk_hosts).delete(topic)
    await_partitions(cluster_39, topic, 0)
    fill(cluster_39, other, [b"5"])
    with running(Query(cluster_39, query.checkpoint, **options)) as strict:
        strict.reader.prepareForTriggerAvailableNow()
        with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: .* there is no such partition"):
            strict.trigger()
    with running(Query(cluster_39, query.checkpoint, **options, failOnDataLoss="false")) as lenient:
        lenient.reader.prepareForTriggerAvailableNow()
        ZooKeeperTopics(cluster_39.zk_hosts).grow(other, 2)
        await_partitions(cluster_39, other, 2)
        fill(cluster_39, other, [b"6"], partition=1)
        assert values_of(lenient.trigger()) == [b"5"]
        assert lenient.trigger() == []
