"""Offsets of several leaders at once: one leader's failure is not the others'."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import EARLIEST, LATEST, ask_leaders, segment_starts
from kiel_groups.errors import ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR, error_code
from kiel_groups.wire.list_offsets import FoundOffset, ListedOffsets, ListOffsetsRequest, ListOffsetsRequestV1

pytestmark = pytest.mark.unit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class TwoLeaders:
    """Leader 0 has the first partition, and answers after leader 1, whose answer cannot be decoded."""

    def __init__(self) -> None:
        self.failed = asyncio.Event()

    def leader_of(self, partition: TopicPartition) -> int:
        return partition.partition

    def drop_overrides(self, partitions: Iterable[TopicPartition]) -> None:
        """There are none."""

    async def send(self, target: int, request: object, *, timeout_ms: int | None = None) -> Any:
        if target == 1:
            self.failed.set()
            raise ProtocolError("the answer has one byte")
        await self.failed.wait()
        return {T0: ListedOffsets(NO_ERROR, (5,))}


async def test_an_undecodable_answer_does_not_end_the_wait_for_other_leaders() -> None:
    """The later answer of the other leader counts, and only the partition of the first one has failed."""
    found: dict[TopicPartition, int] = {}
    failures = await ask_leaders(cast(ClusterMetadata, TwoLeaders()), [T0, T1], EARLIEST, found)
    assert found == {T0: 5}
    assert failures.keys() == {T1}
    assert isinstance(failures[T1], ProtocolError)


class TimedLeader:
    """A leader of 0.10.1 or later, whose answers to ListOffsets v1 come from a log of times; -1 is "no time"."""

    def __init__(self, *times: int, refuses: bool = False) -> None:
        self.log = list(times)
        self.refuses = refuses
        self.arriving: list[int] = []
        self.asked: list[object] = []

    def leader_of(self, partition: TopicPartition) -> int:
        return 0

    def drop_overrides(self, partitions: Iterable[TopicPartition]) -> None:
        """There are none."""

    async def knows(self, node_id: int, request: type[object]) -> bool:
        return request is ListOffsetsRequestV1

    async def send(self, target: int, request: Any, *, timeout_ms: int | None = None) -> Any:
        self.asked.append(request)
        if isinstance(request, ListOffsetsRequest):
            most = request.partitions[T0].max_offsets
            return {T0: ListedOffsets(NO_ERROR, (9, 4, 2, 0) if most > 1 else (2,))}
        (at,) = request.partitions.values()
        if self.refuses and at >= 0:
            return {T0: FoundOffset(error_code(43), -1, -1)}
        found = next((n for n, time in enumerate(self.log) if time >= at), -1) if at >= 0 else len(self.log)
        time = self.log[found] if 0 <= found < len(self.log) else -1
        self.log += self.arriving
        self.arriving = []
        return {T0: FoundOffset(NO_ERROR, time, found)}


@pytest.mark.parametrize(
    ("leader", "expected", "time", "requests"),
    [
        (TimedLeader(10, 20, 30), 2, {T0: 30}, 1),
        (TimedLeader(10, 20), 2, {}, 4),
        (TimedLeader(-1, -1, -1, -1), 2, {}, 5),
        (TimedLeader(10, 20, refuses=True), 2, {}, 5),
    ],
    ids=["a message of that time", "only older messages", "messages without times", "a format without times"],
)
async def test_a_time_is_looked_up_by_message_from_0_10_1_on(
    leader: TimedLeader, expected: int, time: dict[TopicPartition, int], requests: int
) -> None:
    """
    The first message of the time or later is found, with its time, or the end of the log if all are older. If no
    message has a time, the segment counts, as before 0.10.1.
    """
    found: dict[TopicPartition, int] = {}
    times_ms: dict[TopicPartition, int] = {}
    assert await ask_leaders(cast(ClusterMetadata, leader), [T0], 25, found, times_ms=times_ms) == {}
    assert (found, times_ms) == ({T0: expected}, time)
    assert len(leader.asked) == requests


async def test_a_message_that_arrives_during_the_look_up_of_a_time_is_not_skipped() -> None:
    """The end that replaces a time is never behind a message of that time."""
    leader = TimedLeader(10, 20)
    leader.arriving = [30]
    found: dict[TopicPartition, int] = {}
    await ask_leaders(cast(ClusterMetadata, leader), [T0], 25, found)
    assert found == {T0: 2}


async def test_the_starts_of_segments_are_ascending_and_end_with_the_log() -> None:
    assert await segment_starts(cast(ClusterMetadata, TimedLeader()), [T0]) == {T0: (0, 2, 4, 9)}


async def test_the_beginning_and_the_end_of_a_log_need_no_versions() -> None:
    """Only a time is a reason to ask a broker for its versions."""
    leader = TimedLeader(10, 20)
    for at in (EARLIEST, LATEST):
        await ask_leaders(cast(ClusterMetadata, leader), [T0], at, {})
    assert all(isinstance(request, ListOffsetsRequest) for request in leader.asked)
