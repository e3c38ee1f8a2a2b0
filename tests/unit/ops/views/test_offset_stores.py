"""Offsets of groups whose config names no store: each has its store, and two that differ are both shown."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import pytest
from rich.console import Console

from kiel_groups.group.commit_note import NotedOffset
from kiel_groups.group.znodes.contents import GroupSettings, Snapshot, Znode
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.documents import lag_document
from kiel_groups.ops.views.group_view import GroupView, StoreTracker
from kiel_groups.ops.views.report import lag_report
from kiel_groups.ops.views.znodes import view_group

pytestmark = pytest.mark.unit

T = [TopicPartition("t", number) for number in range(4)]


def znodes(offsets: Mapping[int, int], **others: bytes) -> Snapshot:
    """Return the znodes of a group of Java, whose topic has four partitions, one of which is owned."""
    topic = json.dumps({"version": 1, "partitions": {str(number): [0] for number in range(4)}}).encode()
    paths = {"/consumers/g/owners/t": b"", "/consumers/g/owners/t/3": b"java-0", "/brokers/topics/t": topic}
    paths |= {f"/consumers/g/offsets/t/{number}": b"%d" % at for number, at in offsets.items()}
    paths |= {"/consumers/g/offsets/t": b"", "/consumers/g/offsets": b"", "/consumers/g/owners": b""}
    paths |= {f"/kiel-groups/g/{name}": data for name, data in others.items()}
    return {path: Znode(data, modified_ms=7) for path, data in paths.items()}


def view_of(in_zookeeper: Mapping[int, int], in_kafka: Mapping[int, int], end: int = 100) -> GroupView:
    view = view_group("g", znodes(in_zookeeper))
    view = view.with_kafka_offsets({T[number]: NotedOffset(at, None) for number, at in in_kafka.items()})
    return view.with_log_ends(dict.fromkeys(T, end), 1)


def lags(view: GroupView) -> dict[int, int | None]:
    return {each.topic_partition.partition: each.lag for each in view.partitions}


def report(view: GroupView) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(*lag_report("g", view.partitions, ""))
    return out.getvalue()


def test_each_offset_has_its_store() -> None:
    """A partition that ZooKeeper does not show is there if Kafka has its offset, even if no member owns it."""
    view = view_of({0: 10, 1: 20}, {1: 20, 2: 30})
    assert {each.topic_partition.partition: dict(each.stores) for each in view.partitions} == {
        0: {"zookeeper": 10},
        1: {"zookeeper": 20, "kafka": 20},
        2: {"kafka": 30},
        3: {},
    }
    assert {each.topic_partition.partition: each.committed_ms for each in view.partitions} == {
        0: 7,
        1: 7,
        2: None,
        3: None,
    }
    assert lags(view) == {0: 90, 1: 80, 2: 70, 3: None}
    assert not view.is_disputed
    lines = [line.split() for line in report(view).splitlines()]
    assert ["0", "10", "100", "90", "ZooKeeper"] in lines
    assert ["1", "20", "100", "80", "ZooKeeper", "and", "Kafka"] in lines
    assert ["2", "30", "100", "70", "Kafka"] in lines


@pytest.mark.parametrize(("in_zookeeper", "in_kafka"), [(10, 100), (98, 5)])
def test_the_larger_lag_counts_while_the_stores_differ(in_zookeeper: int, in_kafka: int) -> None:
    """Both offsets are shown, and the lags by either."""
    view = view_of({0: in_zookeeper}, {0: in_kafka, 3: 100})
    least, most = 100 - max(in_zookeeper, in_kafka), 100 - min(in_zookeeper, in_kafka)
    assert view.is_disputed
    assert lags(view) == {0: most, 3: 0}
    text = " ".join(report(view).split())
    assert f"ZooKeeper {in_zookeeper}, Kafka {in_kafka}" in text
    assert f"lag of group g: {least} to {most}, in 2 partitions; ZooKeeper and Kafka have different" in text
    document = lag_document("g", view.partitions, "")
    assert document["lag"] == most
    assert document["partitions"][0]["stores"] == {"zookeeper": in_zookeeper, "kafka": in_kafka}


def test_the_store_whose_offsets_move_counts() -> None:
    """It counts for all partitions, also for those that are idle. Where it has no offset, the other one counts."""
    tracker = StoreTracker()
    assert tracker.take(view_of({0: 10, 1: 20, 2: 30}, {0: 50, 1: 60})).is_disputed
    assert tracker.take(view_of({0: 10, 1: 20, 2: 30}, {0: 50, 1: 60})).is_disputed, "nothing has moved"
    moved = tracker.take(view_of({0: 10, 1: 20, 2: 30}, {0: 51, 1: 60}))
    assert [dict(each.stores) for each in moved.partitions] == [{"kafka": 51}, {"kafka": 60}, {"zookeeper": 30}, {}]
    assert lags(moved) == {0: 49, 1: 40, 2: 70, 3: None}
    assert tracker.take(view_of({0: 10, 1: 20, 2: 30}, {0: 51, 1: 60})).partitions == moved.partitions, "and it stays"
    both = tracker.take(view_of({0: 11, 1: 20, 2: 30}, {0: 51, 1: 60}))
    assert both.is_disputed, "offsets move in both stores"


def test_the_offsets_of_one_group_say_nothing_about_another() -> None:
    """Groups are tracked each for itself; the time of a commit is known again if it is in ZooKeeper."""
    tracker = StoreTracker()
    tracker.take(view_of({0: 10}, {0: 50}))
    other = view_group("h", {})
    tracker.take(other)
    moved = tracker.take(view_of({0: 60}, {0: 50}))
    assert [(each.committed, each.committed_ms) for each in moved.partitions] == [(60, 7), (None, None)]
    assert tracker.take(other) == other


def test_a_config_names_the_store() -> None:
    """The offsets that a group of this package has left in another store do not count."""
    config = GroupSettings(store="zookeeper", mode="cooperative", auto_offset_reset="earliest").encode()
    view = view_group("g", znodes({0: 10}, config=config))
    assert not view.has_any_store
    assert view.further == ()
    assert all(not each.stores for each in view.partitions)
    assert view_group("g", znodes({0: 10})).has_any_store
