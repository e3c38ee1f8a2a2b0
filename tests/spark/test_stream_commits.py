"""The offsets that a stream commits to a group, and the time of each commit."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import BrokerError, ConfigError, OffsetOutOfRangeError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.spark import offsets as group_offsets
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.spark.queries import (
    Query,
    fill,
    filled,
    read_batch,
    recreate_topic,
    running,
    values_of,
)

pytestmark = pytest.mark.spark

Unique = Callable[[str], str]

VALUES = [b"%d" % number for number in range(100)]

#: Repeat lookups at once, to see whether lost data reappears.
IMPATIENT = {"fetchOffset_retryIntervalMs": "10"}


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic of four partitions with 100 records."""
    return filled(cluster_39, unique("topic"), 4, VALUES)


def test_a_finished_batch_is_committed_when_the_next_is_planned(
    cluster_39: Cluster, topic: str, unique: Unique
) -> None:
    """
    A finished batch is committed when the next batch is planned, and a batch whose sink has failed is not. The start
    offsets are committed at once.
    """
    group = unique("group")
    options = {"subscribe": topic, "kafka_group_id": group, "kiel_zookeeper_connect": cluster_39.zk_hosts}
    with running(Query(cluster_39, **options, startingOffsets="earliest")) as query, zookeeper(cluster_39) as client:
        query.reader.initialOffset()
        assert stored_offsets(client, group, topic) == {0: 0, 1: 0, 2: 0, 3: 0}
        query.trigger(fails=True)
        assert sum(stored_offsets(client, group, topic).values()) == 0
        query.trigger()
        query.trigger()
        assert sum(stored_offsets(client, group, topic).values()) == len(VALUES)


@pytest.mark.parametrize(("done", "offset"), [(True, 100), (False, 0)])
def test_the_last_batch_of_a_stream_is_committed_if_the_checkpoint_has_it(
    cluster_39: Cluster, topic: str, unique: Unique, tmp_path: Path, done: bool, offset: int
) -> None:
    """
    If the query is stopped between two triggers, the last batch is committed if the checkpoint has it. A batch that was
    only planned is not committed.
    """
    group = unique("group")
    options = {"subscribe": topic, "kafka_group_id": group, "kiel_zookeeper_connect": cluster_39.zk_hosts}
    query = Query(cluster_39, **options, startingOffsets="earliest", checkpointLocation=f"file://{tmp_path}")
    with running(query), zookeeper(cluster_39) as client:
        query.trigger()
        query.checkpoint.write(tmp_path, done=done)
        query.stop()
        assert sum(stored_offsets(client, group, topic).values()) == offset


def test_committed_offsets_never_decrease(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """A query that starts again at an earlier offset does not commit until it has passed the group's offsets."""
    group = unique("group")
    options = {"subscribe": topic, "kafka_group_id": group, "kiel_zookeeper_connect": cluster_39.zk_hosts}
    with zookeeper(cluster_39) as client:
        client.create(GroupLayout(group).topic_offsets(topic) + "/0", b"1000", makepath=True)
        with running(Query(cluster_39, **options, startingOffsets="earliest")) as query:
            query.trigger()
            query.trigger()
        stored = stored_offsets(client, group, topic)
    assert stored[0] == 1000
    assert sum(stored.values()) > 1000


def test_commits_of_another_query_are_not_overwritten(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    If another query of the group is ahead, this query does not commit until it has passed the other query's offset. One
    warning is logged.
    """
    name, group = filled(cluster_39, unique("topic"), 1, VALUES), unique("group")
    options = {"subscribe": name, "kafka_group_id": group, "kiel_zookeeper_connect": cluster_39.zk_hosts}
    slow = Query(cluster_39, **options, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    with zookeeper(cluster_39) as client, running(slow):
        slow.trigger()
        slow.trigger()
        slow.await_commits()
        assert stored_offsets(client, group, name) == {0: 10}
        client.set(GroupLayout(group).topic_offsets(name) + "/0", b"35")
        for stored in (35, 35, 40):
            slow.trigger()
            slow.await_commits()
            assert stored_offsets(client, group, name) == {0: stored}
    assert caplog.text.count(f"are ahead of this query, first {name}:0 (35, and the query is at 20)") == 1
    assert caplog.text.count("are ahead of this query") == 1


def test_a_query_does_not_commit_while_the_group_has_members(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While the group has members, the query continues to read and does not commit. It commits again when the members have
    left.
    """
    monkeypatch.setattr(group_offsets, "_CHECK_INTERVAL_S", 0.0)
    name, group = filled(cluster_39, unique("topic"), 1, VALUES), unique("group")
    options = {"subscribe": name, "kafka_group_id": group, "kiel_zookeeper_connect": cluster_39.zk_hosts}
    query = Query(cluster_39, **options, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    strict = Query(cluster_39, query.checkpoint, **options, maxOffsetsPerTrigger="10", failOnCommitError="true")
    with zookeeper(cluster_39) as client, running(query), running(strict):
        query.trigger()
        query.trigger()
        strict.reader.latestOffset(json.loads(query.checkpoint.ends[0]), None)
        for each in (query, strict):
            each.await_commits()
        member = f"{GroupLayout(group).ids}/java-consumer-1"
        client.create(member, b"{}", ephemeral=True, makepath=True)
        assert len(query.trigger()) == 10
        query.await_commits()
        assert stored_offsets(client, group, name) == {0: 10}
        assert re.search(r"not committed.*has live members \(java-consumer-1\).*membership=join", caplog.text)
        strict.reader.latestOffset(json.loads(query.checkpoint.ends[-1]), None)
        with pytest.raises(ConfigError, match=r"has live members \(java-consumer-1\)"):
            strict.await_commits()
        client.delete(member)
        query.trigger()
        query.await_commits()
        assert stored_offsets(client, group, name) == {0: 30}


def test_offsets_of_an_earlier_log_are_replaced(cluster_39: Cluster, unique: Unique, impatient: None) -> None:
    """
    An offset that is older than its topic is an error where a query starts at the group's offsets. A query that starts
    elsewhere replaces it, although that decreases it: no member would trust it.
    """
    name, group = filled(cluster_39, unique("topic"), 1, VALUES), unique("group")
    options = {"subscribe": name, "kafka_group_id": group, "kiel_zookeeper_connect": cluster_39.zk_hosts, **IMPATIENT}
    with running(Query(cluster_39, **options, startingOffsets="earliest")) as query:
        query.trigger()
        query.trigger()
    recreate_topic(cluster_39, name, 1, [b"7", b"8"])
    znode = GroupLayout(group).topic_offsets(name) + "/0"
    by_group = Query(cluster_39, **options, startingOffsets="group")
    with running(by_group), pytest.raises(OffsetOutOfRangeError, match=f"'set {znode} 0' in zkCli"):
        by_group.trigger()
    with running(Query(cluster_39, **options, startingOffsets="earliest")) as fresh:
        assert values_of(fresh.trigger()) == [b"7", b"8"]
        assert fresh.trigger() == []
    with zookeeper(cluster_39) as client:
        assert stored_offsets(client, group, name) == {0: 2}
        client.set(znode, b"0")
    with running(Query(cluster_39, **options, startingOffsets="group")) as helped:
        assert values_of(helped.trigger()) == [b"7", b"8"]


def test_a_query_can_read_without_commits(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """A query with kiel.commit=false does not change the group's offsets, and needs no ZooKeeper."""
    group = unique("group")
    options = {"subscribe": topic, "kafka_group_id": group, "kiel_commit": "false", "startingOffsets": "group"}
    with running(Query(cluster_39, **options)) as query, zookeeper(cluster_39) as client:
        assert values_of(query.trigger()) == VALUES
        query.trigger()
        assert stored_offsets(client, group, topic) == {}


def test_a_group_with_live_members_is_refused(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """
    A group with live members is refused, because the query would change the members' offsets. Without ZooKeeper the
    query cannot check for members.
    """
    group = unique("group")
    with pytest.raises(ConfigError, match=r"name it with kiel\.zookeeper\.connect, or set kiel\.commit to false"):
        Query(cluster_39, subscribe=topic, kafka_group_id=group).trigger()
    with zookeeper(cluster_39) as client:
        client.create(f"{GroupLayout(group).ids}/java-consumer-1", b"{}", ephemeral=True, makepath=True)
        with pytest.raises(ConfigError, match=r"has live members \(java-consumer-1\).*membership=join"):
            Query(
                cluster_39, subscribe=topic, kafka_group_id=group, kiel_zookeeper_connect=cluster_39.zk_hosts
            ).trigger()


def test_a_commit_that_fails_is_fatal_only_on_demand(
    cluster_39: Cluster,
    topic: str,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By default, a commit that fails is logged, and the next commit stores the offsets."""

    async def refuse(*_: object) -> None:
        raise BrokerError("the broker does not want to")

    options = {"subscribe": topic, "startingOffsets": "earliest"}
    group = {"kafka_group_id": unique("group"), "kiel_zookeeper_connect": cluster_39.zk_hosts}
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr("kiel_groups.spark.offsets.commit_offsets", refuse)
        with pytest.raises(BrokerError, match="does not want to"):
            Query(cluster_39, **options, **group, failOnCommitError="true").trigger()
        lenient = Query(cluster_39, **options, **group)
        assert values_of(lenient.trigger()) == VALUES
        lenient.trigger()
    assert "the offsets of this query are not committed, and lag behind: the broker does not want to" in caplog.text
    with running(lenient), zookeeper(cluster_39) as client:
        lenient.trigger()
        assert sum(stored_offsets(client, group["kafka_group_id"], topic).values()) == len(VALUES)


def test_brokers_that_store_no_offsets_can_be_read(release_cluster: Cluster, unique: Unique) -> None:
    """Brokers of 0.8.0 store no offsets. On every release a stream reads all records."""
    name = unique("topic")
    ZooKeeperTopics(release_cluster.zk_hosts).create(name, 2)
    fill(release_cluster, name, VALUES)
    with running(Query(release_cluster, subscribe=name, startingOffsets="earliest")) as query:
        assert values_of(query.trigger()) == VALUES
        assert query.trigger() == []


@pytest.mark.xdist_group("0.8.0")
def test_starting_at_a_group_needs_brokers_that_store_offsets(
    shared_clusters: Callable[..., Cluster], unique: Unique
) -> None:
    """Starting at the offsets of a group fails if the brokers store no offsets. The error has the remedy."""
    cluster, name = shared_clusters("3.9.5", "0.8.0"), unique("topic")
    ZooKeeperTopics(cluster.zk_hosts).create(name, 1)
    with pytest.raises(ConfigError, match=r"those of Kafka 0\.8\.0 do not; name the offsets as JSON"):
        read_batch(cluster, subscribe=name, startingOffsets="group", kafka_group_id=unique("group"))
