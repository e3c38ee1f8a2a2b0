"""
A topic that was deleted, created again, and has grown past the query's position: the log looks like the one before.

With ZooKeeper the topic's incarnation shows it, without ZooKeeper a message that was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import OffsetOutOfRangeError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.spark import log_view
from tests.helpers.cluster_data import incarnation_of, stored_offsets, zookeeper
from tests.helpers.spark.queries import (
    Checkpoint,
    Query,
    fill,
    filled,
    read_batch,
    recreate_topic,
    running,
    values_of,
)

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("impatient")]

Unique = Callable[[str], str]

OLD = [b"%d" % number for number in range(100)]
#: More records than before, so that the new log has the next offset of the old one.
NEW = [b"%d" % number for number in range(1000, 1150)]

IMPATIENT = {"fetchOffset_retryIntervalMs": "10", "startingOffsets": "earliest"}


def options_of(cluster: Cluster, topic: str, *, with_zookeeper: bool, **further: str) -> dict[str, str]:
    known = {"kiel_zookeeper_connect": cluster.zk_hosts} if with_zookeeper else {}
    return {"subscribe": topic, **IMPATIENT, **known, **further}


def in_checkpoint(query: Query, topic: str) -> dict[str, Any]:
    """Return the last position in partition 0."""
    entry: dict[str, Any] = json.loads(query.checkpoint.ends[-1])[topic]["0"]
    return entry


def copy_of(checkpoint: Checkpoint) -> Checkpoint:
    return Checkpoint(list(checkpoint.ends), checkpoint.done)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at topics and messages in every trigger of a running query."""
    monkeypatch.setattr(log_view, "_INCARNATIONS_S", 0.0)
    monkeypatch.setattr(log_view, "_MARKS_S", 0.0)


@pytest.mark.parametrize("with_zookeeper", [True, False])
def test_a_new_log_that_has_grown_past_the_position_is_a_loss(
    cluster_39: Cluster, unique: Unique, with_zookeeper: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The query fails, again and again. With failOnDataLoss=false, it reads the whole new log, once, and says so."""
    topic = filled(cluster_39, unique("topic"), 1, OLD)
    options = options_of(cluster_39, topic, with_zookeeper=with_zookeeper)
    before = incarnation_of(cluster_39, topic)
    with running(Query(cluster_39, **options)) as query:
        assert values_of(query.trigger()) == OLD
        assert query.tasks()[0].value.ranges[0].incarnation == (before if with_zookeeper else None)
        assert query.trigger() == []
    recreate_topic(cluster_39, topic, 1, NEW)
    now = incarnation_of(cluster_39, topic)
    cause = (
        rf"\(incarnation {before}, and now {now}\)" if with_zookeeper else "at offset 99 the log has another message"
    )
    for _ in range(2):
        with (
            running(Query(cluster_39, query.checkpoint, **options)) as strict,
            pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: offset 100 is to be .*{cause}.* failOnDataLoss"),
        ):
            strict.trigger()
    with running(Query(cluster_39, query.checkpoint, **options, failOnDataLoss="false")) as lenient:
        assert values_of(lenient.trigger()) == NEW
        assert lenient.tasks()[0].value.ranges[0].incarnation == (now if with_zookeeper else None)
    assert f"{topic}:0: offset 100 is to be read next" in caplog.text
    with running(Query(cluster_39, query.checkpoint, **options)) as again:
        assert again.trigger() == []
        fill(cluster_39, topic, [b"2000"])
        assert values_of(again.trigger()) == [b"2000"]


@pytest.mark.parametrize("with_zookeeper", [True, False])
def test_a_running_query_notices_a_new_log(
    cluster_39: Cluster, unique: Unique, with_zookeeper: bool, at_once: None
) -> None:
    """Each partition with messages is noticed; one without is read as a new one."""
    topic = filled(cluster_39, unique("topic"), 2, OLD)
    options = options_of(cluster_39, topic, with_zookeeper=with_zookeeper, failOnDataLoss="false")
    with running(Query(cluster_39, **options)) as query:
        assert values_of(query.trigger()) == OLD
        assert query.trigger() == []
        recreate_topic(cluster_39, topic, 2, NEW)
        assert values_of(query.trigger()) == NEW
        fill(cluster_39, topic, [b"2000"], partition=1)
        assert values_of(query.trigger()) == [b"2000"]


def test_a_new_log_is_identified_by_the_batch_that_reads_it(cluster_39: Cluster, unique: Unique) -> None:
    """The query may end before messages are compared again, and the log be replaced meanwhile."""
    topic = filled(cluster_39, unique("topic"), 1, OLD)
    with running(
        Query(cluster_39, **options_of(cluster_39, topic, with_zookeeper=False, failOnDataLoss="false"))
    ) as query:
        assert values_of(query.trigger()) == OLD
        assert query.trigger() == []
        recreate_topic(cluster_39, topic, 1, NEW[:2])
        assert values_of(query.trigger()) == NEW[:2]
        assert in_checkpoint(query, topic)["mark"][0] == 1


@pytest.mark.parametrize("with_zookeeper", [True, False])
def test_a_checkpoint_from_before_is_completed_at_the_first_look(
    cluster_39: Cluster, unique: Unique, with_zookeeper: bool
) -> None:
    """The first trigger stores what identifies the log, even if there is nothing to read. After that, nothing does."""
    topic = filled(cluster_39, unique("topic"), 1, OLD)
    options = options_of(cluster_39, topic, with_zookeeper=with_zookeeper)
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
        (end,) = query.checkpoint.ends
        document = json.loads(end)
        entry = document[topic]["0"]
        del entry["incarnation" if with_zookeeper else "mark"]
        query.checkpoint.ends[:] = [json.dumps(document)]
    with running(Query(cluster_39, query.checkpoint, **options)) as later:
        assert later.trigger() == []
        assert in_checkpoint(later, topic) == json.loads(end)[topic]["0"]
        assert later.trigger() == []
        assert len(later.checkpoint.ends) == 2
    recreate_topic(cluster_39, topic, 1, NEW)
    strict = Query(cluster_39, query.checkpoint, **options)
    with running(strict), pytest.raises(OffsetOutOfRangeError, match="offset 100 is to be read next"):
        strict.trigger()


@pytest.mark.parametrize("with_zookeeper", [True, False])
def test_a_planned_batch_is_not_read_from_another_log(
    cluster_39: Cluster, unique: Unique, with_zookeeper: bool
) -> None:
    """A batch that was planned in the old log is lost. The batch after it has the new log from its beginning."""
    topic = filled(cluster_39, unique("topic"), 1, OLD)
    options = options_of(cluster_39, topic, with_zookeeper=with_zookeeper)
    with running(Query(cluster_39, **options)) as query:
        assert values_of(query.trigger(fails=True)) == OLD
    recreate_topic(cluster_39, topic, 1, NEW)
    strict = Query(cluster_39, copy_of(query.checkpoint), **options)
    with (
        running(strict),
        pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: offsets 0 to 100 are to be read, and "),
    ):
        strict.trigger()
    with running(Query(cluster_39, query.checkpoint, **options, failOnDataLoss="false")) as lenient:
        assert lenient.trigger() == []
    with running(Query(cluster_39, query.checkpoint, **options, failOnDataLoss="false")) as lenient:
        assert values_of(lenient.trigger()) == NEW


@pytest.mark.parametrize("size", [len(NEW), 50], ids=["grown past the position", "shorter"])
def test_offsets_of_an_earlier_log_are_not_committed(cluster_39: Cluster, unique: Unique, size: int) -> None:
    """
    The commit of a batch that is done would be younger than the new topic, so that every consumer of the group took it
    for an offset of the new log. A query that starts at the group's offsets recognises the one of the old log.
    """
    topic, group = filled(cluster_39, unique("topic"), 1, OLD), unique("group")
    options = options_of(cluster_39, topic, with_zookeeper=True, kafka_group_id=group)
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
        query.trigger()
        fill(cluster_39, topic, [b"100"])
        query.trigger()
    recreate_topic(cluster_39, topic, 1, NEW[:size])
    by_group = {**options, "startingOffsets": "group"}
    strict = Query(cluster_39, query.checkpoint, **options)
    with running(strict), pytest.raises(OffsetOutOfRangeError, match="offset 101 is to be read next"):
        strict.trigger()
    with zookeeper(cluster_39) as client:
        assert stored_offsets(client, group, topic) == {0: 100}
    znode = GroupLayout(group).offset(TopicPartition(topic, 0))
    outdated = f"{topic}:0: the group's offset 100 is from before the topic was .*'set {znode} 0' in zkCli"
    with running(Query(cluster_39, **by_group)) as strict, pytest.raises(OffsetOutOfRangeError, match=outdated):
        strict.trigger()
    batch = {name: text for name, text in by_group.items() if name != "startingOffsets"}
    found = read_batch(cluster_39, **batch, startingOffsets="group", failOnDataLoss="false")
    assert values_of(found) == NEW[:size]
    with running(Query(cluster_39, **by_group, failOnDataLoss="false")) as lenient:
        assert values_of(lenient.trigger()) == NEW[:size]
        assert lenient.trigger() == []
    with zookeeper(cluster_39) as client:
        assert stored_offsets(client, group, topic) == {0: size}


def test_a_message_that_cannot_be_compared_is_no_loss(cluster_39: Cluster, unique: Unique) -> None:
    """Large and compressed messages are compared. A message that cannot be fetched any more proves nothing."""
    topic = unique("topic")
    ZooKeeperTopics(cluster_39.zk_hosts).create(topic, 2)
    fill(cluster_39, topic, [b"1", b"2" * 50_000], partition=0)
    fill(cluster_39, topic, [b"3", b"4"] * 500, partition=1, compression="gzip")
    options = options_of(cluster_39, topic, with_zookeeper=False)
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
        entries = json.loads(query.checkpoint.ends[-1])[topic]
        assert [entries[number]["mark"][0] for number in "01"] == [1, 999]
        document = json.loads(query.checkpoint.ends[-1])
        # As if retention, or compaction, had removed the message.
        document[topic]["0"]["mark"] = [5_000, 1]
        query.checkpoint.ends[:] = [json.dumps(document)]
    fill(cluster_39, topic, [b"5"], partition=0)
    fill(cluster_39, topic, [b"6"], partition=1)
    with running(Query(cluster_39, query.checkpoint, **options)) as later:
        assert values_of(later.trigger()) == [b"5", b"6"]
        assert json.loads(later.checkpoint.ends[-1])[topic]["0"]["mark"][0] == 2
