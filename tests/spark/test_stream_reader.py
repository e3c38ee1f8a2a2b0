"""A stream, by the contract of Spark's readers, against a real broker and without a JVM."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kiel_groups.admin.cluster_admin import create_topic, delete_topic, grow_topic
from kiel_groups.embedded import Cluster
from kiel_groups.errors import BrokerError, ConfigError, OffsetOutOfRangeError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import Record
from kiel_groups.spark.offsets import group_offsets
from kiel_groups.spark.options.read_options import ReadOptions
from kiel_groups.spark.stream.stream_reader import StreamReader
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.spark.queries import Query, await_partitions, fill, filled, read_batch, running, source

pytestmark = pytest.mark.spark

Unique = Callable[[str], str]

VALUES = [b"%d" % number for number in range(100)]

#: What is believed to be lost is looked at again for that long.
IMPATIENT = {"fetchOffset_retryIntervalMs": "10", "kafka_request_timeout_ms": "1000"}


def values_of(records: Iterable[Record]) -> list[bytes]:
    return sorted((record.value for record in records), key=int)


def offsets_of(query: Query) -> dict[str, Any]:
    """Where the query stands, by topic and partition."""
    end = json.loads(query.checkpoint.ends[-1])
    end.pop("@query")
    return {topic: {number: entry["to"] for number, entry in entries.items()} for topic, entries in end.items()}


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """A topic of four partitions with 100 records."""
    return filled(cluster_39, unique("topic"), 4, VALUES)


def test_each_batch_has_what_came_since_the_last(cluster_39: Cluster, topic: str) -> None:
    """And there is none where nothing came."""
    with running(Query(cluster_39, subscribe=topic, startingOffsets="earliest")) as query:
        assert values_of(query.trigger()) == VALUES
        assert query.trigger() == []
        fill(cluster_39, topic, [b"100", b"101"])
        assert values_of(query.trigger()) == [b"100", b"101"]


def test_latest_is_resolved_once(cluster_39: Cluster, topic: str) -> None:
    """Spark asks twice where a query starts; what comes in between belongs to it."""
    with running(Query(cluster_39, subscribe=topic)) as query:
        first = query.reader.initialOffset()
        fill(cluster_39, topic, [b"100"])
        assert query.reader.initialOffset() == first
        assert values_of(query.trigger()) == [b"100"]


def test_a_first_batch_that_failed_is_done_again_where_it_began(cluster_39: Cluster, topic: str) -> None:
    """In a new process, which resolves 'latest' anew: what came in between would be skipped in silence."""
    with running(Query(cluster_39, subscribe=topic)) as query:
        query.reader.initialOffset()
        fill(cluster_39, topic, [b"100"])
        assert values_of(query.trigger(fails=True)) == [b"100"]
    fill(cluster_39, topic, [b"101"])
    with running(Query(cluster_39, query.checkpoint, subscribe=topic)) as again:
        assert values_of(again.trigger()) == [b"100"]
        assert values_of(again.trigger()) == [b"101"]


def test_a_later_batch_that_failed_is_the_same_although_limits_changed(cluster_39: Cluster, topic: str) -> None:
    """The checkpoint says what is in it, not the options."""
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    with running(Query(cluster_39, **options, maxOffsetsPerTrigger="30")) as query:
        first = query.trigger()
        failed = query.trigger(fails=True)
        assert (len(first), len(failed)) == (30, 30)
    with running(Query(cluster_39, query.checkpoint, **options, maxOffsetsPerTrigger="7")) as again:
        assert sorted(again.trigger()) == sorted(failed)
        assert len(again.trigger()) == 7


def test_a_bound_is_shared_in_proportion(cluster_39: Cluster, unique: Unique) -> None:
    """A small partition is not starved by a large one, nor the other way round."""
    name = unique("topic")
    create_topic(cluster_39.zk_hosts, name, 2)
    fill(cluster_39, name, VALUES[:90], partition=0)
    fill(cluster_39, name, VALUES[90:], partition=1)
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "50"}
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
        assert offsets_of(query) == {name: {"0": 45, "1": 5}}


def test_a_trigger_waits_for_as_many_as_are_worth_it(cluster_39: Cluster, topic: str) -> None:
    """Fewer are left until more have come."""
    options = {"subscribe": topic, "startingOffsets": "latest", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1h"}
    with running(Query(cluster_39, **options)) as query:
        query.reader.initialOffset()
        fill(cluster_39, topic, [b"100", b"101"])
        assert query.trigger() == []
        fill(cluster_39, topic, [b"102", b"103", b"104"])
        assert values_of(query.trigger()) == [b"100", b"101", b"102", b"103", b"104"]


def test_available_now_reads_what_was_there_and_stops(cluster_39: Cluster, topic: str) -> None:
    """In batches as large as the options let them be; the last one is committed, too."""
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    with running(Query(cluster_39, **options)) as query:
        query.reader.prepareForTriggerAvailableNow()
        fill(cluster_39, topic, [b"100"])
        assert [len(query.trigger()) for _ in range(4)] == [40, 40, 20, 0]
        group = f"kiel-spark-{json.loads(query.checkpoint.ends[-1])['@query']}"
    with zookeeper(cluster_39) as client:
        assert sum(stored_offsets(client, group, topic).values()) == len(VALUES)


def test_all_there_is_is_read_where_spark_asks_for_that(cluster_39: Cluster, topic: str) -> None:
    """Trigger.Once goes by no bound."""
    made = source(cluster_39, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    reader: Any = made.streamReader(made.schema())
    start = reader.initialOffset()
    ends = reader.latestOffset(start, ReadAllAvailable())[topic]
    reader.stop()
    assert sum(entry["to"] for entry in ends.values()) == len(VALUES)


def test_partitions_that_are_added_are_read_from_their_beginning(cluster_39: Cluster, topic: str) -> None:
    """Although the query started at latest."""
    with running(Query(cluster_39, subscribe=topic)) as query:
        query.trigger()
        grow_topic(cluster_39.zk_hosts, topic, 6)
        await_partitions(cluster_39, topic, 6)
        fill(cluster_39, topic, [b"100"], partition=4)
        fill(cluster_39, topic, [b"101"], partition=5)
        assert values_of(query.trigger(fails=True)) == [b"100", b"101"]
    with running(Query(cluster_39, query.checkpoint, subscribe=topic)) as again:
        assert values_of(again.trigger()) == [b"100", b"101"]


def test_topics_that_appear_later_match_a_pattern_too(cluster_39: Cluster, topic: str) -> None:
    """From their beginning."""
    with running(Query(cluster_39, subscribePattern=f"{topic}.*")) as query:
        query.trigger()
        create_topic(cluster_39.zk_hosts, f"{topic}-later", 1)
        fill(cluster_39, f"{topic}-later", [b"100"])
        assert [(record.topic, record.value) for record in query.trigger()] == [(f"{topic}-later", b"100")]


def test_a_hundred_partitions_share_a_few_tasks(cluster_39: Cluster, unique: Unique) -> None:
    """As many as maxPartitions says."""
    name = unique("topic")
    create_topic(cluster_39.zk_hosts, name, 100)
    fill(cluster_39, name, VALUES)
    with running(Query(cluster_39, subscribe=name, startingOffsets="earliest", maxPartitions="4")) as query:
        assert values_of(query.trigger()) == VALUES
        assert len(query.tasks()) == 4


# ---------------------------------------------------------------------- losses


def test_a_topic_that_was_made_anew_is_a_loss(cluster_39: Cluster, topic: str) -> None:
    """Names the partition, both offsets and the remedy; with failOnDataLoss=false it is read from its beginning."""
    options = {"subscribe": topic, "startingOffsets": "earliest", **IMPATIENT}
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
        delete_topic(cluster_39.zk_hosts, topic)
        create_topic(cluster_39.zk_hosts, topic, 4)
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


def test_a_topic_that_is_gone_is_a_loss(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """Others go on, where that is allowed."""
    other = unique("other")
    create_topic(cluster_39.zk_hosts, other, 1)
    options = {"subscribe": f"{topic},{other}", **IMPATIENT}
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
        delete_topic(cluster_39.zk_hosts, topic)
        await_partitions(cluster_39, topic, 0)
        with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: .* there is no such partition"):
            query.trigger()
    fill(cluster_39, other, [b"5"])
    with running(Query(cluster_39, query.checkpoint, **options, failOnDataLoss="false")) as lenient:
        assert values_of(lenient.trigger()) == [b"5"]


def made_anew(cluster: Cluster, topic: str, partitions: int, values: Iterable[bytes]) -> None:
    """Delete a topic and create it again, with these in its first partition."""
    delete_topic(cluster.zk_hosts, topic)
    create_topic(cluster.zk_hosts, topic, partitions)
    await_partitions(cluster, topic, partitions)
    fill(cluster, topic, values, partition=0)


def test_available_now_finds_a_topic_that_was_made_anew(cluster_39: Cluster, unique: Unique) -> None:
    """Where its run would otherwise say that there is nothing to read; allowed, it reads the new log."""
    name = filled(cluster_39, unique("topic"), 1, VALUES)
    options = {"subscribe": name, "startingOffsets": "earliest", **IMPATIENT}
    with running(Query(cluster_39, **options)) as query:
        assert values_of(query.trigger()) == VALUES
    made_anew(cluster_39, name, 1, [b"7", b"8"])
    with running(Query(cluster_39, query.checkpoint, **options)) as strict:
        strict.reader.prepareForTriggerAvailableNow()
        with pytest.raises(OffsetOutOfRangeError, match=f"{name}:0: offset 100 is to be .* the log ends at 2: "):
            strict.trigger()
    with running(Query(cluster_39, query.checkpoint, **options, failOnDataLoss="false")) as lenient:
        lenient.reader.prepareForTriggerAvailableNow()
        fill(cluster_39, name, [b"9"])
        assert values_of(lenient.trigger()) == [b"7", b"8"]
        assert lenient.trigger() == []


def test_available_now_finds_a_topic_that_is_gone(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """Although another one is still there; what came after the beginning of the run is not read for that."""
    other = unique("other")
    create_topic(cluster_39.zk_hosts, other, 1)
    options = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest", **IMPATIENT}
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
    delete_topic(cluster_39.zk_hosts, topic)
    await_partitions(cluster_39, topic, 0)
    fill(cluster_39, other, [b"5"])
    with running(Query(cluster_39, query.checkpoint, **options)) as strict:
        strict.reader.prepareForTriggerAvailableNow()
        with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: .* there is no such partition"):
            strict.trigger()
    with running(Query(cluster_39, query.checkpoint, **options, failOnDataLoss="false")) as lenient:
        lenient.reader.prepareForTriggerAvailableNow()
        grow_topic(cluster_39.zk_hosts, other, 2)
        await_partitions(cluster_39, other, 2)
        fill(cluster_39, other, [b"6"], partition=1)
        assert values_of(lenient.trigger()) == [b"5"]
        assert lenient.trigger() == []


# ---------------------------------------------------------------------- the group's offsets


def test_what_is_done_is_committed_when_spark_asks_next(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """Where it starts at once; a batch once it is done, and not when its sink has failed."""
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
def test_the_last_batch_is_committed_where_the_checkpoint_has_it(
    cluster_39: Cluster, topic: str, unique: Unique, tmp_path: Path, done: bool, offset: int
) -> None:
    """When a query is stopped between two triggers; a batch that was planned only is not."""
    group = unique("group")
    options = {"subscribe": topic, "kafka_group_id": group, "kiel_zookeeper_connect": cluster_39.zk_hosts}
    query = Query(cluster_39, **options, startingOffsets="earliest", checkpointLocation=f"file://{tmp_path}")
    with running(query), zookeeper(cluster_39) as client:
        query.trigger()
        query.checkpoint.write(tmp_path, done=done)
        query.stop()
        assert sum(stored_offsets(client, group, topic).values()) == offset


def test_offsets_never_go_back(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """A query that reads again what the group has read leaves its offsets alone until it has passed them."""
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


def test_what_others_commit_meanwhile_is_not_put_back(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """Another query of the group is ahead: that is said once for each partition, until this one has passed it."""
    name, group = filled(cluster_39, unique("topic"), 1, VALUES), unique("group")
    options = {"subscribe": name, "kafka_group_id": group, "kiel_zookeeper_connect": cluster_39.zk_hosts}
    slow = Query(cluster_39, **options, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    with zookeeper(cluster_39) as client, running(slow):
        slow.trigger()
        slow.trigger()
        assert stored_offsets(client, group, name) == {0: 10}
        client.set(GroupLayout(group).topic_offsets(name) + "/0", b"35")
        for stored in (35, 35, 40):
            slow.trigger()
            assert stored_offsets(client, group, name) == {0: stored}
    assert caplog.text.count(f"are ahead of this query, first {name}:0 (35, and the query is at 20)") == 1
    assert caplog.text.count("are ahead of this query") == 1


def test_a_member_that_comes_later_has_its_offsets_to_itself(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query reads on, and commits again when the member has gone."""
    monkeypatch.setattr(group_offsets, "_CHECK_INTERVAL_S", 0.0)
    name, group = filled(cluster_39, unique("topic"), 1, VALUES), unique("group")
    options = {"subscribe": name, "kafka_group_id": group, "kiel_zookeeper_connect": cluster_39.zk_hosts}
    query = Query(cluster_39, **options, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    strict = Query(cluster_39, query.checkpoint, **options, maxOffsetsPerTrigger="10", failOnCommitError="true")
    with zookeeper(cluster_39) as client, running(query), running(strict):
        query.trigger()
        query.trigger()
        strict.reader.latestOffset(json.loads(query.checkpoint.ends[0]), None)
        member = f"{GroupLayout(group).ids}/java-consumer-1"
        client.create(member, b"{}", ephemeral=True, makepath=True)
        assert len(query.trigger()) == 10
        assert stored_offsets(client, group, name) == {0: 10}
        assert re.search(r"not committed.*has live members \(java-consumer-1\).*membership=join", caplog.text)
        with pytest.raises(ConfigError, match=r"has live members \(java-consumer-1\)"):
            strict.trigger()
        client.delete(member)
        query.trigger()
        assert stored_offsets(client, group, name) == {0: 30}


def test_a_groups_offsets_of_an_earlier_log_are_told(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """They are never put back, so the operator is told where they stand, by the start and by the commit."""
    name, group = filled(cluster_39, unique("topic"), 1, VALUES), unique("group")
    options = {"subscribe": name, "kafka_group_id": group, "kiel_zookeeper_connect": cluster_39.zk_hosts, **IMPATIENT}
    with running(Query(cluster_39, **options, startingOffsets="earliest")) as query:
        query.trigger()
        query.trigger()
    made_anew(cluster_39, name, 1, [b"7", b"8"])
    with running(Query(cluster_39, **options, startingOffsets="earliest")) as anew:
        assert values_of(anew.trigger()) == [b"7", b"8"]
        assert anew.trigger() == []
    znode = GroupLayout(group).topic_offsets(name) + "/0"
    assert f"are ahead of this query, first {name}:0 (100, and the query is at 2)" in caplog.text
    assert f"'set {znode} 2' in zkCli" in caplog.text
    by_group = Query(cluster_39, **options, startingOffsets="group")
    with running(by_group), pytest.raises(OffsetOutOfRangeError, match=f"'set {znode} 0' in zkCli"):
        by_group.trigger()
    with zookeeper(cluster_39) as client:
        client.set(znode, b"0")
    with running(Query(cluster_39, **options, startingOffsets="group")) as helped:
        assert values_of(helped.trigger()) == [b"7", b"8"]


def test_reading_need_not_commit(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """kiel.commit=false leaves the group's offsets as they are, and needs no ZooKeeper."""
    group = unique("group")
    options = {"subscribe": topic, "kafka_group_id": group, "kiel_commit": "false", "startingOffsets": "group"}
    with running(Query(cluster_39, **options)) as query, zookeeper(cluster_39) as client:
        assert values_of(query.trigger()) == VALUES
        query.trigger()
        assert stored_offsets(client, group, topic) == {}


def test_a_group_with_live_members_is_refused(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """Its offsets would be moved; and without ZooKeeper nobody can tell."""
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
    """Otherwise it is logged, and made up for by the next one."""

    async def refuse(*_: object) -> None:
        raise BrokerError("the broker does not want to")

    options = {"subscribe": topic, "startingOffsets": "earliest"}
    group = {"kafka_group_id": unique("group"), "kiel_zookeeper_connect": cluster_39.zk_hosts}
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr("kiel_groups.spark.offsets.group_offsets.commit_offsets", refuse)
        with pytest.raises(BrokerError, match="does not want to"):
            Query(cluster_39, **options, **group, failOnCommitError="true").trigger()
        lenient = Query(cluster_39, **options, **group)
        assert values_of(lenient.trigger()) == VALUES
        lenient.trigger()
    assert "the offsets of this query are not committed, and lag behind: the broker does not want to" in caplog.text
    with running(lenient), zookeeper(cluster_39) as client:
        lenient.trigger()
        assert sum(stored_offsets(client, group["kafka_group_id"], topic).values()) == len(VALUES)


def test_brokers_that_store_no_offsets_are_read_without(release_cluster: Cluster, unique: Unique) -> None:
    """Those of 0.8.0; on every release, a stream reads what there is."""
    name = unique("topic")
    create_topic(release_cluster.zk_hosts, name, 2)
    fill(release_cluster, name, VALUES)
    with running(Query(release_cluster, subscribe=name, startingOffsets="earliest")) as query:
        assert values_of(query.trigger()) == VALUES
        assert query.trigger() == []


def test_a_group_has_got_nowhere_on_brokers_that_store_no_offsets(
    shared_clusters: Callable[..., Cluster], unique: Unique
) -> None:
    """Says what else there is."""
    cluster, name = shared_clusters("3.9.5", "0.8.0"), unique("topic")
    create_topic(cluster.zk_hosts, name, 1)
    with pytest.raises(ConfigError, match=r"those of Kafka 0\.8\.0 do not; name the offsets as JSON"):
        read_batch(cluster, subscribe=name, startingOffsets="group", kafka_group_id=unique("group"))


def reader_of_spark_4_0(cluster: Cluster, topic: str, **options: str) -> StreamReader:
    """One that is not told where its query stands, and is asked for an end before it is asked for a start."""
    made = source(cluster, **(options if "subscribePattern" in options else {"subscribe": topic, **options}))
    return StreamReader(ReadOptions.parse(made.options, streaming=True), made.schema())


def size_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> int:
    return sum(task.value.size for task in reader.partitions(start, end))


def test_before_spark_4_2_a_query_goes_on_from_its_checkpoint(cluster_39: Cluster, topic: str) -> None:
    """Also in a new process, and with partitions that were added in between."""
    first = reader_of_spark_4_0(cluster_39, topic, startingOffsets="earliest")
    end = first.latestOffset()
    start = first.initialOffset()
    assert size_of(first, start, end) == len(VALUES)
    fill(cluster_39, topic, [b"100"])
    later = first.latestOffset()
    assert size_of(first, end, later) == 1
    group = f"kiel-spark-{start['@query']}"
    with zookeeper(cluster_39) as client:
        assert sum(stored_offsets(client, group, topic).values()) == len(VALUES)
    first.stop()
    grow_topic(cluster_39.zk_hosts, topic, 5)
    await_partitions(cluster_39, topic, 5)
    fill(cluster_39, topic, [b"101"], partition=4)
    second = reader_of_spark_4_0(cluster_39, topic, startingOffsets="earliest")
    assert size_of(second, later, second.latestOffset()) == 1
    second.stop()


def test_before_spark_4_2_a_first_batch_is_done_again_where_it_began(cluster_39: Cluster, topic: str) -> None:
    """Although 'latest' is resolved anew in the new process."""
    first = reader_of_spark_4_0(cluster_39, topic)
    with pytest.MonkeyPatch.context() as patched:
        bounds = first._driver._bounds  # type: ignore[attr-defined]
        ends = bounds.ends

        def ends_later(known: Any) -> Any:
            fill(cluster_39, topic, [b"100"])
            return ends(known)

        patched.setattr(bounds, "ends", ends_later)
        end = first.latestOffset()
    assert size_of(first, first.initialOffset(), end) == 1
    first.stop()
    fill(cluster_39, topic, [b"101"])
    second = reader_of_spark_4_0(cluster_39, topic)
    assert size_of(second, second.initialOffset(), end) == 1
    assert size_of(second, end, second.latestOffset()) == 1
    second.stop()


def test_before_spark_4_2_a_new_process_finds_what_is_gone(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """It has looked where logs end before it is told where its query stands."""
    kept, anew = filled(cluster_39, unique("kept"), 1, VALUES), filled(cluster_39, unique("anew"), 1, VALUES)
    options = {"subscribePattern": f"{topic}|{kept}|{anew}", "startingOffsets": "earliest", **IMPATIENT}
    first = reader_of_spark_4_0(cluster_39, topic, **options)
    end = first.latestOffset()
    assert size_of(first, first.initialOffset(), end) == 3 * len(VALUES)
    first.stop()
    made_anew(cluster_39, anew, 1, [b"7", b"8"])

    def planned(**further: str) -> int:
        reader = reader_of_spark_4_0(cluster_39, topic, **options, **further)
        try:
            return size_of(reader, end, reader.latestOffset())
        finally:
            reader.stop()

    with pytest.raises(OffsetOutOfRangeError, match=f"{anew}:0: offset 100 is to be read next, and the log ended at 2"):
        planned()
    assert planned(failOnDataLoss="false") == 2
    made_anew(cluster_39, anew, 1, VALUES)
    assert planned() == 0
    delete_topic(cluster_39.zk_hosts, topic)
    await_partitions(cluster_39, topic, 0)
    fill(cluster_39, kept, [b"9"])
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: .* there is no such partition"):
        planned()
    assert planned(failOnDataLoss="false") == 1
