"""The start positions of assigned partitions: the group's offsets, else what the reset policy says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import pytest

from kiel_groups.config import GroupConfig
from kiel_groups.errors import (
    BrokerError,
    CommitFailedError,
    KielGroupsError,
    NoBrokersError,
    NoOffsetsError,
    SessionLostError,
)
from kiel_groups.group.partition_offsets import StartOrigin
from kiel_groups.group.seen_topics import LogSight
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.start_positions import Positions, StartPositions
from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.metrics import Metrics
from kiel_groups.model import GenerationToken, TopicPartition
from tests.helpers.coordinated_consumer import ScriptedTopics

pytestmark = pytest.mark.unit

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
TOKEN = GenerationToken(3, "m")


def gate(generation: int) -> GenerationGate:
    """Return the gate of another assignment, in this generation."""
    return GenerationGate(GenerationToken(generation, "m"), 10_000, 0.0)


GATE = gate(3)


class Store:
    """The offsets of a group, and logs that have the offsets 100 to 200."""

    def __init__(self, policy: str, stored: Mapping[TopicPartition, int]) -> None:
        self.stored = dict(stored)
        self.lost: dict[TopicPartition, int] = {}
        self.fetch_error: KielGroupsError | None = None
        self.look_up_errors: dict[TopicPartition, KielGroupsError] = {}
        self.refused: set[TopicPartition] = set()
        self.unknown: frozenset[TopicPartition] = frozenset()
        self.store_error: KielGroupsError | None = None
        self.before_store: Callable[[], None] = lambda: None
        self.end = 200
        self.trace: list[str] = []
        self.metrics = Metrics()
        self.topics = ScriptedTopics(t=3)
        self.seen = self.topics.seen
        self.sights: dict[TopicPartition, LogSight] = {}
        self.starts = StartPositions(
            GroupConfig(group="g", auto_offset_reset=cast(Any, policy)),
            cast(Any, self),
            cast(Any, self),
            self.metrics,
            self.topics,
        )

    async def fetch(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.trace.append("fetch")
        if self.fetch_error is not None:
            raise self.fetch_error
        return {partition: self.stored[partition] for partition in partitions if partition in self.stored}

    def remembered(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(self.lost.keys() & partitions)

    def lost_offsets(self, missing: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: offset for partition, offset in self.lost.items() if partition in missing}

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        self.trace.append(f"{policy} {', '.join(map(str, sorted(partitions)))}")
        found = {p: 100 if policy == "earliest" else self.end for p in partitions if p not in self.look_up_errors}
        return LogOffsets(found, {p: error for p, error in self.look_up_errors.items() if p in partitions})

    async def look_at_logs(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogSight]:
        self.trace.append("look")
        return self.sights

    async def store(
        self, offsets: Mapping[TopicPartition, int], may_store: Callable[[TopicPartition], bool]
    ) -> frozenset[TopicPartition]:
        self.trace.append("store")
        self.before_store()
        if self.store_error is not None:
            raise self.store_error
        done = frozenset(filter(may_store, offsets.keys() - self.refused))
        self.stored |= {partition: offsets[partition] for partition in done}
        return frozenset(done)

    async def find(self, *partitions: TopicPartition, count: int = 3, gate: GenerationGate = GATE) -> Positions:
        return await self.starts.find(partitions, {"t": count}, gate)


def starts(found: Positions) -> dict[TopicPartition, tuple[int, StartOrigin]]:
    assert all(start.token == TOKEN for start in found.found.values())
    return {partition: (start.offset, start.origin) for partition, start in found.found.items()}


async def test_the_groups_offsets_need_no_look_up() -> None:
    """Nothing is stored again either."""
    store = Store("latest", {P0: 7, P1: 0})
    assert starts(await store.find(P0, P1)) == {P0: (7, StartOrigin.STORED), P1: (0, StartOrigin.STORED)}
    assert store.trace == ["fetch"]


@pytest.mark.parametrize(("policy", "offset"), [("earliest", 100), ("latest", 200)])
async def test_a_start_by_the_policy_is_stored_first(policy: str, offset: int) -> None:
    """The next owner finds it, and does not choose another one."""
    store = Store(policy, {P0: 7})
    assert starts(await store.find(P0, P1)) == {P0: (7, StartOrigin.STORED), P1: (offset, StartOrigin.FIRST)}
    assert store.trace == ["fetch", f"{policy} t:1", "store"]
    assert store.stored == {P0: 7, P1: offset}


async def test_a_start_that_was_not_stored_is_not_chosen_again() -> None:
    """
    The log may grow between two tries, and its new end would skip the records between (seed 887480439105). Only another
    membership chooses anew: another owner may have had the partition before it.
    """
    store = Store("latest", {})
    store.store_error = CommitFailedError("no answer")
    with pytest.raises(CommitFailedError):
        await store.find(P0)
    store.end, store.store_error = 230, None
    assert starts(await store.find(P0, P1)) == {P0: (200, StartOrigin.FIRST), P1: (230, StartOrigin.FIRST)}
    assert store.stored == {P0: 200, P1: 230}
    store.stored.clear()
    store.end = 260
    (start,) = (await store.find(P0, gate=gate(4))).found.values()
    assert start.offset == 260


async def test_a_start_by_the_policy_beside_stored_offsets_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A group that has committed in a topic has lost the offset, or the topic has grown: no silent reset."""
    store = Store("latest", {P0: 7})
    await store.find(P0, P1)
    assert store.metrics.total("offsets_missing") == 1
    assert "group g: 1 partition, first t:1, had no committed offset, but others of the topic have one" in caplog.text
    assert "starting at the latest offset" in caplog.text


async def test_starts_of_a_new_group_and_of_a_growing_topic_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The policy is for the former; nothing is skipped of the latter."""
    store = Store("latest", {})
    await store.find(P0, P1, count=2)
    await store.find(P0, P1, P2)
    store.stored.clear()
    store.lost = {P0: 7}
    await store.find(P0)
    assert store.metrics.total("offsets_missing") == 0
    assert caplog.text == ""


async def test_a_partition_that_is_added_later_starts_at_its_first_record() -> None:
    """The policy is for what was there when the group began with the topic: new records must not be skipped."""
    store = Store("latest", {})
    assert starts(await store.find(P0, count=2)) == {P0: (200, StartOrigin.FIRST)}
    assert starts(await store.find(P1, P2, count=3)) == {P1: (200, StartOrigin.FIRST), P2: (100, StartOrigin.FIRST)}


async def test_a_lost_offset_is_stored_again() -> None:
    """This process has stored it, so it is no start by the policy."""
    store = Store("latest", {})
    store.lost = {P0: 50, P2: 60}
    assert starts(await store.find(P0, P1)) == {P0: (50, StartOrigin.STORED), P1: (200, StartOrigin.FIRST)}
    assert store.stored == {P0: 50, P1: 200}


async def test_without_a_policy_a_missing_offset_is_an_error_of_its_partition() -> None:
    """The others start."""
    store = Store("none", {P0: 7})
    found = await store.find(P0, P1, P2)
    assert starts(found) == {P0: (7, StartOrigin.STORED)}
    assert found.failures.keys() == {P1, P2}
    assert all(isinstance(error, NoOffsetsError) for error in found.failures.values())
    assert store.trace == ["fetch"]


@pytest.mark.parametrize("error", [NoBrokersError(), SessionLostError("the partitions are not this member's any more")])
async def test_offsets_that_cannot_be_read_are_an_error_of_all_partitions(error: KielGroupsError) -> None:
    """No partition is reset because the coordinator does not answer."""
    store = Store("latest", {P0: 7})
    store.fetch_error = error
    with pytest.raises(type(error)):
        await store.find(P0, P1)
    assert store.trace == ["fetch"]


async def test_a_log_that_cannot_be_looked_up_delays_its_partition_only() -> None:
    """The start of the other one is stored."""
    store = Store("latest", {})
    store.look_up_errors[P1] = NoBrokersError()
    found = await store.find(P0, P1)
    assert starts(found) == {P0: (200, StartOrigin.FIRST)}
    assert found.failures.keys() == {P1}
    assert store.stored == {P0: 200}


async def test_a_start_that_is_refused_is_no_start() -> None:
    """It would be another one for the next owner."""
    store = Store("latest", {P0: 7})
    store.refused = {P2}
    found = await store.find(P0, P1, P2)
    assert starts(found) == {P0: (7, StartOrigin.STORED), P1: (200, StartOrigin.FIRST)}
    assert "the start of t:2 was not stored" in str(found.failures[P2])


@pytest.mark.parametrize("error", [SessionLostError("over"), CommitFailedError("no answer")])
async def test_a_commit_that_fails_is_raised(error: KielGroupsError) -> None:
    """Nothing is delivered, not even where the group has offsets; all is looked up again."""
    store = Store("latest", {P0: 7})
    store.store_error = error
    with pytest.raises(type(error)):
        await store.find(P0, P1)


# Topics that are created again


OLD, UNSURE = LogSight(7, 0, 5), LogSight(3, 0, 5)


async def test_stored_offsets_of_a_deleted_topic_are_no_starts(caplog: pytest.LogCaptureFixture) -> None:
    """Coordinators of 0.9 keep them. One that is beyond its log shows it for all; the policy does not matter."""
    store = Store("latest", {P0: 7, P1: 3})
    store.seen.missing("t")
    store.sights = {P0: OLD, P1: UNSURE}
    found = await store.find(P0, P1)
    assert starts(found) == {P0: (100, StartOrigin.NEW_LOG), P1: (100, StartOrigin.NEW_LOG)}
    assert store.stored == {P0: 100, P1: 100}
    assert "the stored offsets of 2 partitions, first t:0 at offset 7, are of the old log" in caplog.text


async def test_a_stored_offset_that_may_be_of_a_deleted_topic_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the offset. Another member may have stored it in the new log, so it stays."""
    store = Store("latest", {P0: 3})
    store.seen.missing("t")
    store.sights = {P0: UNSURE}
    assert starts(await store.find(P0)) == {P0: (3, StartOrigin.STORED)}
    assert "may be skipped: t:0 (0 to 3)" in caplog.text
    assert store.metrics.total("new_logs_unknown") == 1


async def test_what_was_read_in_the_new_log_does_not_vouch_for_other_offsets() -> None:
    """This process has restarted its own partition; the former owner of the other one had left (seed 140)."""
    store = Store("latest", {P0: 7, P1: 3})
    store.seen.renew("t")
    store.sights = {P0: OLD, P1: LogSight(3, 0, 5, has_record=True)}
    assert starts(await store.find(P0, P1)) == {P0: (100, StartOrigin.NEW_LOG), P1: (3, StartOrigin.STORED)}


async def test_offsets_in_doubt_wait_for_their_leaders() -> None:
    """Without an answer, nothing is opened, and the doubt remains."""
    store = Store("latest", {P0: 7})
    store.seen.missing("t")
    with pytest.raises(BrokerError, match="the logs of t:0 are not known"):
        await store.find(P0)
    store.sights = {P0: OLD}
    assert starts(await store.find(P0)) == {P0: (100, StartOrigin.NEW_LOG)}


async def test_each_partition_of_a_doubted_topic_is_compared_when_it_comes() -> None:
    """
    Other members may not have looked at it: they have not noticed the new log, or have left before they had opened
    anything (seeds 8, 5100001953, 5100002732). What was compared, or stored, is not compared again.
    """
    store = Store("latest", {P0: 7, P1: 7})
    store.seen.renew("t")
    await store.find(gate=gate(2))
    store.sights = {P0: OLD}
    assert starts(await store.find(P0, P2)) == {P0: (100, StartOrigin.NEW_LOG), P2: (100, StartOrigin.NEW_LOG)}
    store.trace.clear()
    store.sights = {P1: OLD}
    fifth = gate(5)
    assert (await store.find(P0, P2, gate=fifth)).found.keys() == {P0, P2}
    assert store.trace == ["fetch"]
    assert (await store.find(P1, gate=fifth)).found[P1].origin is StartOrigin.NEW_LOG


async def test_another_assignment_in_the_same_generation_forgets_the_starts_of_the_former_one() -> None:
    """
    A member that joins a stable group again keeps its generation and its id. In between, the topic was created again on
    a broker of 0.9, which names no id (seed 9932006460).
    """
    store = Store("latest", {})
    assert starts(await store.find(P0)) == {P0: (200, StartOrigin.FIRST)}
    store.seen.missing("t")
    store.sights = {P0: OLD}
    assert starts(await store.find(P0, gate=gate(3))) == {P0: (100, StartOrigin.NEW_LOG)}


async def test_an_old_offset_stays_in_doubt_until_another_one_is_stored() -> None:
    """The partition may be lost before, and come back."""
    store = Store("latest", {P0: 7})
    store.seen.missing("t")
    store.sights = {P0: OLD}
    store.refused = {P0}
    assert (await store.find(P0)).failures.keys() == {P0}
    store.refused = set()
    found = await store.find(P0, gate=gate(4))
    assert found.found[P0].origin is StartOrigin.NEW_LOG


@pytest.mark.parametrize(("policy", "opened"), [("latest", [P0, P1]), ("none", [P0])])
async def test_offsets_that_were_forgotten_with_their_topic_are_no_expired_ones(
    policy: str, opened: list[TopicPartition], caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers from 0.10 on, without ids. With "none", the application may have chosen no start of another partition."""
    store = Store(policy, {P0: 7})
    await store.find(P0)
    store.stored.clear()
    store.lost = {P0: 9}
    store.seen.missing("t")
    found = await store.find(P0, P1, gate=gate(4))
    assert {each: start.offset for each, start in found.found.items()} == dict.fromkeys(opened, 100)
    assert "has forgotten the offsets of" in caplog.text
    assert store.metrics.total("topics_recreated") == 1


async def test_a_start_is_not_stored_once_its_topic_is_another_one() -> None:
    """The new id came after the log's end was looked up, whose records would be skipped (seed 5100002101)."""
    store = Store("latest", {})
    store.seen.identified("t", "a")
    store.before_store = lambda: store.seen.identified("t", "b")
    found = await store.find(P0)
    assert cast(BrokerError, found.failures[P0]).retriable
    assert store.stored == {}
    assert starts(await store.find(P0)) == {P0: (100, StartOrigin.FIRST)}


async def test_a_topic_whose_offsets_are_gone_is_not_started_while_a_broker_does_not_list_it() -> None:
    """It was deleted. What the process remembers is no start, and no alarm is due (seed 5100002101)."""
    store = Store("latest", {})
    store.lost = {P0: 7}
    store.seen.identified("t", "a")
    store.topics.counts = {}
    with pytest.raises(BrokerError, match="a broker does not list t"):
        await store.find(P0)
    assert store.trace == ["fetch"]


@pytest.mark.parametrize("policy", ["latest", "none"])
async def test_a_topic_that_is_created_again_starts_at_its_beginning_whatever_the_policy(policy: str) -> None:
    """Its first records were written while the group was there. The coordinator has forgotten the offsets."""
    store = Store(policy, {})
    store.seen.identified("t", "a")
    store.seen.identified("t", "b")
    assert starts(await store.find(P0)) == {P0: (100, StartOrigin.FIRST)}
