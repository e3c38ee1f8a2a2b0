"""The move of a group's offsets, with a target in memory: what is written, what is left out, and refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as TargetPartition

from kiel_groups.errors import KielGroupsError, ProtocolError
from kiel_groups.mirror import group_offsets as module
from kiel_groups.mirror.checkpoints import parse_checkpoints
from kiel_groups.mirror.group_offsets import GroupMover
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import BACK, FORWARD, RETURNING, Claim
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.offset_changes import GroupOffsets

pytestmark = pytest.mark.unit

GROUP = ["moved"]


def settled(result: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


class FakeAdmin:
    """The offsets and the members of one group on the target. An error is raised in place of the members."""

    def __init__(self) -> None:
        self.members: list[Any] | KafkaError = []
        self.offsets: dict[tuple[str, int], int] = {}
        #: The error of each partition that is refused.
        self.refused: dict[int, KafkaError] = {}

    def describe_consumer_groups(self, _: object, **__: object) -> Mapping[str, Future[Any]]:
        if isinstance(self.members, KafkaError):
            return {"moved": settled(KafkaException(self.members))}
        return {"moved": settled(SimpleNamespace(members=self.members))}

    def list_consumer_group_offsets(self, _: object, **__: object) -> Mapping[str, Future[Any]]:
        if isinstance(self.members, KafkaError):
            return {"moved": settled(KafkaException(self.members))}
        found = [TargetPartition(*each, offset) for each, offset in self.offsets.items()]
        return {"moved": settled(SimpleNamespace(topic_partitions=found))}

    def alter_consumer_group_offsets(self, requests: Any, **_: object) -> Mapping[str, Future[Any]]:
        (request,) = requests
        assert request.group_id == "moved"
        answers = []
        for each in request.topic_partitions:
            error = self.refused.get(each.partition)
            if error is None:
                self.offsets[each.topic, each.partition] = each.offset
            answers.append(SimpleNamespace(topic=each.topic, partition=each.partition, error=error))
        return {"moved": settled(SimpleNamespace(topic_partitions=answers))}


class FakeTarget:
    """A target with a mirror of the topic ``a`` as ``copy``."""

    config: Mapping[str, Any] = {}
    servers = "new:9092"

    def __init__(self, direction: str = FORWARD) -> None:
        self._direction = direction
        #: The offsets of markers in all partitions. All other offsets are those of records.
        self.markers: set[int] = set()
        #: Why topics are not those that were claimed.
        self.other: Mapping[str, str] = {}

    def claims_of(self, _: str) -> Mapping[str, Claim]:
        return {"copy": Claim("m", "a", "old:9092", direction=self._direction)}

    def mirrored(self, _: str) -> Any:
        values = {"source": 100, "target": 90}
        return parse_checkpoints([(json.dumps(["a", n, 0]).encode(), json.dumps(values).encode()) for n in range(2)])

    def replaced(self, _: object) -> Mapping[str, str]:
        return self.other

    def logs(self, _: object) -> Mapping[TopicPartition, tuple[int, int]]:
        return {TopicPartition("copy", number): (0, 200) for number in range(2)}

    def with_records(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]:
        return {partition for partition, limits in ranges.items() if set(range(*limits)) - self.markers}

    def failure(self, what: str, error: KafkaException) -> KielGroupsError:
        return KielGroupsError(f"cannot {what}: {error}")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    admin = FakeAdmin()
    monkeypatch.setattr(module, "AdminClient", lambda *_, **__: admin)
    return admin


def mover(offsets: Mapping[int, int], target: FakeTarget | None = None, **more: Any) -> GroupMover:
    made = GroupMover("z:2181", cast("TargetCluster", target or FakeTarget()), "m")
    found = {TopicPartition("a", number): offset for number, offset in offsets.items()}
    read = GroupOffsets("g", "zookeeper", found, {}, **more)
    made._source = cast("Any", SimpleNamespace(read=lambda *_, **__: read))
    return made


def test_offsets_are_written_once_and_never_moved_back(admin: FakeAdmin) -> None:
    """
    An offset that the group has passed on the target stays; one that is there already is not written again, nor is one
    behind the marker of the transaction that ends there.
    """
    target = FakeTarget()
    moving = mover({0: 110, 1: 130}, target)
    (found,) = moving.translate(GROUP)
    assert (found.changes, found.again, found.left_out) == (
        {TopicPartition("copy", 0): 90, TopicPartition("copy", 1): 90},
        40,
        [],
    )
    moving.write(found)
    assert admin.offsets == {("copy", 0): 90, ("copy", 1): 90}
    admin.offsets["copy", 1] = 95
    (found,) = moving.translate(GROUP)
    assert (found.changes, found.again) == ({}, 10)
    assert [(each.partition.partition, each.target) for each in found.left_out] == [(1, 90)]
    target.markers = set(range(90, 95))
    (found,) = moving.translate(GROUP)
    assert (found.changes, found.left_out, [each.target for each in found.offsets]) == ({}, [], [90, 95])
    # However long its log is, a topic that was created again has other records there.
    target.other = {"copy": "it has another id"}
    (found,) = moving.translate(GROUP)
    assert [each.refusal for each in found.left_out] == ["the checkpoints are of a former target topic"] * 2


@pytest.mark.parametrize(
    ("direction", "note"),
    [
        (FORWARD, "the mirror is 10 behind"),
        *((each, "10 of them were copied back from the target") for each in (BACK, RETURNING)),
    ],
)
def test_a_group_beyond_the_position_of_the_mirror(admin: FakeAdmin, direction: str, note: str) -> None:
    """A group that has stayed on the source after the turn has read records that were copied back."""
    (found,) = mover({0: 110}, FakeTarget(direction)).translate(GROUP)
    assert [(each.target, each.note) for each in found.offsets] == [(90, note)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"x", b"{}"),
        (b'["a", 0]', b"{}"),
        (b'["a", 0, 0]', b"[]"),
        (b'["a", 0, 0]', b'{"source": "x", "target": 1}'),
        (b'["a", 0, 0]', b'{"source": 1}'),
        (b'["a", 0, 0]', b'{"source": 1, "targets": [1]}'),
        (b"[[], 0, 0]", b'{"source": 1, "target": 1}'),
        (b"[" * 100_000, b"{}"),
    ],
)
def test_a_hostile_checkpoint_is_one_line(key: bytes, value: bytes) -> None:
    """
    The error says which record of the topic of checkpoints has to be deleted, and how. That helps at once, because the
    topic is compacted much later.
    """
    with pytest.raises(
        ProtocolError, match=r"^the checkpoint with the key b.* cannot be read: b.*; a record with this"
    ):
        parse_checkpoints([(key, None), (key, value)])
    assert parse_checkpoints([(key, value), (key, None)]) == {}


@pytest.mark.parametrize("exists", [False, True], ids=["no group", "an empty group"])
def test_a_group_without_members_gets_offsets(admin: FakeAdmin, exists: bool) -> None:
    """Brokers from 4.0 on report a group that does not exist as an error."""
    admin.members = [] if exists else KafkaError(KafkaError.GROUP_ID_NOT_FOUND)
    (found,) = mover({0: 110, 5: 7}, members=("old (pid 1)",)).translate(GROUP)
    assert (found.members, found.target_members) == (("old (pid 1)",), [])
    assert [each.refusal for each in found.left_out] == ["the target has no such partition"]


def test_a_group_with_members_is_refused(admin: FakeAdmin) -> None:
    """The members are named. A member that joins between the look and the write is noticed by the broker."""
    moving = mover({0: 110, 1: 130})
    (found,) = moving.translate(GROUP)
    admin.refused = {1: KafkaError(KafkaError.UNKNOWN_MEMBER_ID)}
    with pytest.raises(KielGroupsError, match="1 of 2 offsets of group moved, first of copy:1: members have joined"):
        moving.write(found)
    admin.members = [SimpleNamespace(member_id="c-1", host="/10.0.0.7")]
    (found,) = moving.translate(GROUP)
    with pytest.raises(KielGroupsError, match=r"group moved has members on the target: c-1 \(host 10\.0\.0\.7\); only"):
        moving.write(found)
