"""How far a mirror is, by the znodes of its tasks and positions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kiel_groups.cli.terminal.mirror_report import mirror_problems
from kiel_groups.errors import KielGroupsError, NoZooKeeperError
from kiel_groups.group.znodes.contents import Znode
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.worker_contents import SourceOffset, partition_digest
from kiel_groups.mirror import mirror_view
from kiel_groups.mirror.mirror_view import (
    MirrorView,
    PartitionProgress,
    follow_mirror,
    mirrored_partitions,
    stored_offsets,
    with_checkpoints,
)
from kiel_groups.mirror.values import CLAIMS_TOPIC, RETURNING, STOPPED, Claim
from kiel_groups.model import TopicPartition
from kiel_groups.workers.stores.worker_group_view import WorkerGroup
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, TaskId

pytestmark = pytest.mark.unit

FIRST, SECOND, BACK = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def group_of(*tasks: Mapping[str, str]) -> WorkerGroup:
    """Return a worker group whose connector ``m`` has tasks with these settings."""
    return WorkerGroup({}, ConfigSnapshot(1, {"m": ConnectorEntry({}, tasks=tasks)}), {}, {}, ())


def stored(partition: Mapping[str, Any], **offset: int) -> tuple[str, Znode]:
    """Return the path and the znode of a source offset."""
    path = WorkerLayout("m").source_offset("m", partition_digest(partition))
    return path, Znode(SourceOffset(partition, offset).encode(), modified_ms=5)


def test_partitions_of_tasks_have_the_stored_positions() -> None:
    """
    Positions are found by partition and direction. A znode with garbage counts as no position. A partition without a
    position begins where a bulk copy has ended, or where its topic was turned. A topic that was turned round keeps the
    count of its mirrored records.
    """
    tasks = (
        {
            "mirror.partitions": json.dumps([SECOND]),
            "target.topic.format": "copy.${topic}",
            "start.offsets": '{"a": {"0": 3, "1": 4}}',
        },
        {"mirror.partitions": json.dumps([FIRST]), "mirror.back": json.dumps([(*BACK, 9)]), "start.offsets": ""},
    )
    offsets = dict(
        [
            stored(FIRST._asdict(), offset=7, records=6, bytes=60),
            stored(BACK._asdict(), offset=1, records=1, bytes=10),
            stored({"cluster": "target", **BACK._asdict()}, offset=12),
            ("/x", Znode(b"garbage")),
        ]
    )
    assert mirrored_partitions("m", group_of(*tasks), stored_offsets(offsets)) == [
        PartitionProgress(FIRST, "a", TaskId("m", 1), position=7, records=6, size_bytes=60, stored_ms=5),
        PartitionProgress(SECOND, "copy.a", TaskId("m", 0), position=4),
        PartitionProgress(BACK, "b", TaskId("m", 1), is_back=True, position=12, records=1, size_bytes=10, stored_ms=5),
    ]


@pytest.mark.parametrize(
    ("position", "start", "end", "lag"),
    [(7, 0, 10, 3), (7, 0, 5, None), (None, 4, 10, 6), (2, 4, 10, 6), (7, 0, None, None), (None, None, 10, None)],
    ids=["behind", "restarted", "new", "expired", "unknown end", "unknown start"],
)
def test_the_lag_of_a_partition(position: int | None, start: int | None, end: int | None, lag: int | None) -> None:
    """Records that the source has deleted do not count. A log that was started over may have new records."""
    each = PartitionProgress(FIRST, "a", TaskId("m", 0), position=position, start=start, end=end)
    assert each.lag == lag


def test_the_lag_of_a_mirror() -> None:
    """The lag is known if that of each partition is. Only the target knows how much is left to copy back."""
    known = PartitionProgress(FIRST, "a", TaskId("m", 0), position=7, start=0, end=10)
    unknown, back = known._replace(end=None), known._replace(is_back=True)
    left, lost = back._replace(left=5), back._replace(left=-1)
    rows = [(), (known, known), (known, unknown), (known, back), (known, left), (known, lost)]
    views = [MirrorView("m", group_of(), each) for each in rows]
    assert [view.lag for view in views] == [None, 6, None, None, 8, None]
    assert [view.forward_lag for view in views] == [None, 6, None, 3, 3, 3]
    assert [replace(views[1], stopped={topic: "it is stopped"}).lag for topic in "az"] == [6, None]


class TurnedTarget:
    """A target whose topics were turned, with a record at each offset but those of markers."""

    def __init__(self, claims: Mapping[str, Claim], ends: Mapping[str, int], markers: set[int]) -> None:
        self.claims, self._ends, self._markers = lambda: claims, ends, markers

    def partitions(self, _: float) -> Mapping[str, int]:
        return {CLAIMS_TOPIC: 1}

    def mirrored(self, _: str) -> Mapping[TopicPartition, object]:
        return {}

    def logs(self, topics: Sequence[str]) -> Mapping[TopicPartition, tuple[int, int]]:
        return {TopicPartition(topic, 0): (0, self._ends[topic]) for topic in topics if topic in self._ends}

    def lost_topics(self, *_: object) -> Mapping[str, str]:
        return {}

    def with_records(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]:
        return {partition for partition, limits in ranges.items() if set(range(*limits)) - self._markers}


def test_the_claims_say_how_much_is_left_to_copy_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Claims know a turn before the mirror notices it, which a mirror without processes does not. Markers of transactions
    are not left. A log that is gone, or ends too early, is a problem.
    """
    task = TaskId("m", 0)
    positions = {"a": 9, "b": 10, "c": 9, "d": 9}
    rows = [PartitionProgress(TopicPartition(name, 0), name, task, True, at) for name, at in positions.items()]
    rows.append(PartitionProgress(TopicPartition("e", 0), "e", task, position=9))
    rows.append(PartitionProgress(TopicPartition("f", 0), "f", task, position=9, start=0, end=9))
    claims = {name: Claim("m", name, "old:9092", direction="back", starts=(5,)) for name in "abcfz"}
    claims["d"] = Claim("m", "d", "old:9092", starts=(5,), resumes=(20,))
    target = TurnedTarget(claims, {"a": 12, "b": 12, "c": 8, "f": 12}, {10, 11})
    monkeypatch.setattr(mirror_view, "open_target", lambda _: target)
    stored: dict[tuple[str | None, str, int], Any] = {
        ("target", name, 0): {"offset": at} for name, at in positions.items()
    } | {(None, "e", 0): {"offset": 9}}
    entry = ConnectorEntry({"topics": "a*,z"})
    group = WorkerGroup({}, ConfigSnapshot(1, {"m": entry}), {}, {}, ())
    found = with_checkpoints(MirrorView("m", group, tuple(rows), stored), {}, timeout_s=1)
    assert [(each.is_back, each.position, each.lag) for each in found.partitions] == [
        (True, 9, 3),
        (True, 10, 0),
        (True, 9, None),
        (False, 20, None),
        (False, 9, None),
        (True, 5, 7),
    ]
    assert list(mirror_problems(found)) == [
        "the topic z was turned round, and no task copies it back yet",
        "how much is left to copy back to c:0 is not known: c:0 of the target ends before offset 9, up to which it was"
        " copied back: the topic was deleted and created again, or has lost records",
    ]


def test_what_no_task_copies_is_shown_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A partition that only the target has of a topic that is copied back counts. Without a process, no status says which
    topics are lost, and why partitions of the source wait.
    """
    claims = {"a": Claim("m", "a", "old:9092", direction="back", starts=(5,)), "b": Claim("m", "b", "old:9092")}
    target = SimpleNamespace(
        partitions=lambda _: {CLAIMS_TOPIC: 1, "a": 2, "b": 1},
        claims=lambda: claims,
        mirrored=lambda _: {},
        logs=lambda topics: {TopicPartition(topic, number): (0, 8) for topic in topics for number in range(2)},
        with_records=set,
        lost_topics=lambda topics, *_: {"a": "it is gone"} if len(topics) == 2 else {},
    )
    monkeypatch.setattr(mirror_view, "open_target", lambda _: target)
    task = TaskId("m", 0)
    rows = (
        PartitionProgress(FIRST, "a", task, is_back=True, position=5),
        PartitionProgress(BACK, "b", task, position=9, start=0, end=9),
        PartitionProgress(TopicPartition("b", 1), "b", None, start=0, end=4),
    )
    for workers in ({}, {"w": b"{}"}):
        group = replace(group_of({}), workers=workers)
        found = with_checkpoints(MirrorView("m", group, rows), {}, timeout_s=1)
        assert [(each.partition, each.lag, each.task) for each in found.partitions] == [
            (FIRST, 3, task),
            (SECOND, 8, None),
            (BACK, 0, task),
            (TopicPartition("b", 1), 4, None),
        ]
        assert found.lag == 15
        shown = [text.partition(";")[0] for text in found.stopped.values()]
        waits = ["it is gone", "the target topic b has 1 partition, and b on the source has 2"]
        assert shown == ([] if workers else waits)


def test_a_topic_that_is_copied_in_no_direction_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a killed turn, no task has the topic, so no other line would name it. A new target has no claims."""
    claim = Claim("m", "a", "old:9092", direction=STOPPED)
    claims = {
        "copy.a": claim,
        "copy.b": claim._replace(topic="b", direction=RETURNING),
        "copy.c": claim._replace(topic="c", direction="forward"),
        "copy.d": claim._replace(mirror="other"),
    }
    counts = {CLAIMS_TOPIC: 1}
    nothing = dict.fromkeys(("mirrored", "logs", "with_records", "lost_topics"), lambda *_: {})
    target = SimpleNamespace(partitions=lambda _: counts, claims=lambda: claims, **nothing)
    monkeypatch.setattr(mirror_view, "open_target", lambda _: target)
    found = list(mirror_problems(with_checkpoints(MirrorView("m", group_of()), {}, timeout_s=1)))
    assert [each.partition(" is stopped while 'kiel-groups mirror reverse")[0] for each in found] == [
        "the topic a",
        "the topic b",
    ]
    counts.clear()
    assert with_checkpoints(MirrorView("m", group_of()), {}, timeout_s=1).stopped == {}


def test_a_mirror_that_is_followed_is_read_in_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that fails, or a connection that broke, begins another session with the next read."""
    sessions: list[SimpleNamespace] = []
    views = [MirrorView("m", group_of(), (), seen_ms=number) for number in range(4)]

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        sessions.append(client := SimpleNamespace(connected=True))
        try:
            yield client
        finally:
            client.connected = False

    def read(*_: object, **__: object) -> MirrorView:
        if isinstance(found := answers.pop(0), KielGroupsError):
            raise found
        return found

    failure = NoZooKeeperError("no answer")
    answers: list[MirrorView | KielGroupsError] = [*views[:2], failure, *views[2:]]
    monkeypatch.setattr(mirror_view, "zookeeper", opened)
    monkeypatch.setattr(mirror_view, "_read", read)
    with closing(follow_mirror("z:2181", "w", "m", timeout_s=1)) as following:
        assert [next(following) for _ in range(4)] == [*views[:2], failure, views[2]]
        sessions[-1].connected = False
        assert str(next(following)) == "the connection to ZooKeeper at z:2181 broke"
        assert next(following) == views[3]
        assert [each.connected for each in sessions] == [False, False, True]
    assert not sessions[-1].connected
