"""Offsets that a coordinator does not have any more, though this process has stored them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.config import CoordinatorConfig, GroupConfig
from kiel_groups.errors import SessionLostError
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.partition_offsets import StartOrigin
from kiel_groups.members.brokers.coordinator_commits import CoordinatorOffsets
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import CoordinatedContext
from kiel_groups.members.brokers.start_positions import StartPositions
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.metrics import Metrics
from kiel_groups.model import GenerationToken, TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR, error_code
from kiel_groups.wire.offsets import FetchedOffset, OffsetCommitRequestV2
from tests.helpers.coordinated_consumer import ScriptedTopics
from tests.helpers.manual_runtime import ManualRuntime

pytestmark = pytest.mark.unit

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOKEN = GenerationToken(3, "m")
GATE = GenerationGate(TOKEN, 30_000, 0.0)


class Coordinator:
    """Stores offsets; ``code`` is its answer to commits."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self.code = NO_ERROR

    async def send(self, coordinator: int, request: Any, timeout_s: float, *, aside: bool) -> Any:
        if isinstance(request, OffsetCommitRequestV2):
            if self.code == NO_ERROR:
                self.offsets |= {partition: value.offset for partition, value in request.offsets.items()}
            return dict.fromkeys(request.offsets, self.code)
        return {each: FetchedOffset(self.offsets.get(each, -1), "", NO_ERROR) for each in (P0, P1)}


class Member:
    """A member whose coordinator is known."""

    def __init__(self, runtime: ManualRuntime) -> None:
        self.token = TOKEN
        self.may_commit = True
        self.gate = GenerationGate(TOKEN, 30_000, runtime.now_s)

    async def send(self, kind: object, request: Callable[[int], Awaitable[Any]]) -> Any:
        return await request(1)

    def note(self, kind: object, code: int, token: GenerationToken) -> None:
        """The member follows the code."""


class Ends:
    """Looks up the ends of logs: "latest" is 90."""

    def __init__(self) -> None:
        self.asked: list[frozenset[TopicPartition]] = []

    async def log_offsets(self, partitions: frozenset[TopicPartition], policy: str) -> Any:
        self.asked.append(partitions)
        return SimpleNamespace(found=dict.fromkeys(partitions, 90), failures={})


class Process:
    """A member that starts partitions at the group's offsets, else at the end of the log."""

    def __init__(self) -> None:
        runtime, self.metrics = ManualRuntime(), Metrics()
        self.coordinator, self.ends, self.topics = Coordinator(), Ends(), ScriptedTopics(t=2)
        group = GroupConfig(group="g", auto_offset_reset="latest")
        context = CoordinatedContext(
            group=group,
            timing=CoordinatorConfig(),
            transport=cast(Any, self.coordinator),
            versions=GroupVersions((0, 9)),
            metrics=self.metrics,
            runtime=runtime,
        )
        self.offsets = CoordinatorOffsets(context, cast(Any, Member(runtime)), OffsetTracker(), self.topics.seen)
        self.starts = StartPositions(group, cast(Any, self.ends), self.offsets, self.metrics, self.topics)

    async def start(self) -> dict[TopicPartition, tuple[int, StartOrigin]]:
        found = await self.starts.find([P0, P1], {"t": 2}, GATE)
        assert found.failures == {}
        return {partition: (start.offset, start.origin) for partition, start in found.found.items()}


async def test_an_expired_offset_is_started_at_and_stored_again(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is looked up for it, and the alarm says what to do. It is not raised again while the offset is there."""
    process = Process()
    await process.offsets.store({P0: 5, P1: 6})
    del process.coordinator.offsets[P0]
    for alarms in (1, 1):
        assert await process.start() == {P0: (5, StartOrigin.STORED), P1: (6, StartOrigin.STORED)}
        assert process.coordinator.offsets == {P0: 5, P1: 6}
        assert process.metrics.total("offsets_expired") == alarms
    assert process.ends.asked == []
    assert "has lost the offsets of 1 partition, first t:0" in caplog.text
    assert "offsets.retention.minutes" in caplog.text


async def test_an_offset_that_nobody_has_stored_is_the_policys() -> None:
    """It is stored before anything is delivered; a commit that was refused is no offset that was stored."""
    process = Process()
    process.coordinator.code = error_code(25)
    with pytest.raises(SessionLostError):
        await process.offsets.store({P0: 5})
    process.coordinator.code = NO_ERROR
    process.coordinator.offsets = {P1: 6}
    assert await process.start() == {P0: (90, StartOrigin.FIRST), P1: (6, StartOrigin.STORED)}
    assert process.coordinator.offsets == {P0: 90, P1: 6}
    assert process.metrics.total("offsets_expired") == 0
