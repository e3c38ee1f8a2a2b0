"""Topics that are created again under a member of a group that brokers coordinate."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kiel_groups.errors import NoBrokersError, SessionLostError
from kiel_groups.group.member_state import CoordinatorCode
from kiel_groups.group.partition_offsets import StartOrigin
from kiel_groups.group.seen_topics import LogSight
from kiel_groups.members.brokers import renewed_topics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from kiel_groups.wire.offsets import OffsetCommitRequestV2
from tests.helpers.coordinated_consumer import P0, P1, ConsumerBench
from tests.helpers.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at doubted topics again at once."""
    monkeypatch.setattr(renewed_topics, "_PAUSES_S", (0.0, 0.0, 0.0))


async def joined_at(p0: int, p1: int) -> ConsumerBench:
    """Return a member whose partitions start at these offsets."""
    bench = ConsumerBench()
    bench.committed(p0=p0, p1=p1)
    return await bench.joined()


async def test_partitions_of_another_topic_restart_at_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    """Position and stored offset are those of the new log, and the log says what was left."""
    bench = await joined_at(150, 160)
    bench.topics.seen.identified("t", "a")
    bench.topics.seen.identified("t", "b")
    await bench.traced("continue t:1 at 100")
    assert bench.stored() == {P0: 100, P1: 100}
    state = bench.tracker.of(P0)
    assert state is not None
    assert (state.position, state.origin, state.outdated) == (100, StartOrigin.NEW_LOG, False)
    assert "topic t was deleted and created again: 2 partitions, first t:0 at offset 150, continue" in caplog.text
    assert bench.metrics.total("topics_recreated") == 1
    await bench.member.close()


async def test_the_start_of_a_new_log_that_this_process_has_stored_is_trusted() -> None:
    """It is not compared when the partition comes back; the stored offsets of other members are."""
    bench = await joined_at(150, 160)
    bench.topics.seen.renew("t")
    await bench.traced("continue t:1 at 100")
    assert bench.topics.seen.trusted("t") == {P0, P1}
    await bench.member.close()


async def test_no_offset_of_the_old_log_is_stored_until_the_restart() -> None:
    """Brokers do not know where the new log begins yet. What is given back then starts at 0 with its next owner."""
    bench = await joined_at(150, 160)
    bench.finish(P0, 170)
    bench.handler.look_up_errors = {P0: NoBrokersError(), P1: NoBrokersError()}
    bench.topics.seen.renew("t")
    assert await bench.member.commit_on_session() == frozenset()
    await bench.member.close()
    assert bench.stored() == {P0: 0, P1: 0}


async def test_a_restart_that_is_not_stored_is_tried_again() -> None:
    """A coordinator that refuses the start, or loads, ends neither the member nor the restart."""
    bench = await joined_at(150, 160)
    bench.transport.script[OffsetCommitRequestV2].append(CoordinatorCode.LOADING)
    bench.topics.seen.renew("t")
    await bench.traced("continue t:1 at 100")
    assert bench.stored() == {P0: 100, P1: 100}
    assert bench.failures == []
    await bench.member.close()


async def test_a_position_that_the_log_lacks_has_the_logs_compared() -> None:
    """The first record that was read is another one now: the topic is new, also for partitions that show no sign."""
    bench = await joined_at(150, 160)
    bench.handler.sights = {P0: LogSight(150, 100, 200, has_record=False, is_first=True), P1: LogSight(160, 100, 200)}
    await bench.member.confirm_leaders()
    await bench.traced("continue t:1 at 100")
    assert bench.topics.seen.number("t") == 1
    await bench.member.close()


async def test_a_truncated_log_is_no_new_one(caplog: pytest.LogCaptureFixture) -> None:
    """An unclean election: the early record is there, and the reset policy goes on to apply."""
    bench = await joined_at(150, 160)
    bench.handler.sights = {P0: LogSight(150, 100, 120, in_doubt=True), P1: LogSight(160, 100, 200, has_record=True)}
    await bench.member.confirm_leaders()
    assert bench.topics.seen.number("t") == 0
    assert "it cannot be known" not in caplog.text
    await bench.member.close()


async def test_what_cannot_be_known_is_said_with_topic_and_offsets(caplog: pytest.LogCaptureFixture) -> None:
    """A broker denied the position, and has it again; nothing was read that could be compared."""
    bench = await joined_at(150, 160)
    bench.handler.sights = {P0: LogSight(150, 100, 200, in_doubt=True), P1: LogSight(160, 100, 200)}
    await bench.member.confirm_leaders()
    assert "known whether the topic was created again. If it was" in caplog.text
    assert "skipped: t:0 (100 to 150)" in caplog.text
    assert bench.metrics.total("new_logs_unknown") == 1
    assert bench.trace == ["look at t:0, t:1"]
    await bench.member.close()


async def test_a_topic_with_an_id_is_not_compared() -> None:
    """The refresh of the metadata has brought the id, which is the same."""
    bench = await joined_at(150, 160)
    bench.topics.seen.identified("t", "a")
    bench.topics.seen.doubt("t")
    await bench.member.confirm_leaders()
    await run_ready_tasks()
    assert bench.trace == []
    await bench.member.close()


@pytest.mark.parametrize("is_denied", [True, False])
async def test_a_first_id_that_follows_a_doubt_may_be_that_of_another_topic(is_denied: bool) -> None:
    """No broker had told the member the id of the topic that it opened: the logs decide (seed 6000003678)."""
    bench = await joined_at(150, 160)
    bench.handler.sights = {P0: LogSight(150, 100, 200, has_record=False, is_first=True), P1: LogSight(160, 100, 200)}
    refresh = bench.topics.refresh

    async def refresh_and_learn(topics: object, reason: str) -> None:
        await refresh(["t"], reason)
        bench.topics.seen.identified("t", "b")

    bench.topics.refresh = refresh_and_learn  # type: ignore[method-assign, assignment]
    if is_denied:
        bench.topics.seen.doubt("t")
    else:
        await bench.member.confirm_leaders()
    await bench.traced("continue t:1 at 100")
    await bench.member.close()


async def test_a_doubt_is_looked_into_again_while_leaders_do_not_answer() -> None:
    """The topic is missing for a while."""
    bench = await joined_at(150, 160)
    bench.topics.seen.missing("t")
    bench.topics.seen.listed("t")
    await eventually(lambda: bench.trace.count("look at t:0, t:1") == 3, f"three looks: {bench.trace}", 5)
    bench.handler.sights = {each: LogSight(150, 100, 120) for each in (P0, P1)}
    bench.topics.seen.doubt("t")
    await bench.traced("continue t:1 at 100")
    await bench.member.close()


async def test_a_topic_that_is_missing_while_its_logs_are_compared_is_looked_at_again() -> None:
    """
    The leaders answered before the topic was deleted. No fetch fails meanwhile, and the new log is shorter. Without the
    absence, the reset policy would skip its records.
    """
    bench = await joined_at(150, 160)
    bench.handler.sights = {each: LogSight(150, 100, 200, has_record=True) for each in (P0, P1)}
    look = bench.handler.look_at_logs

    async def delete_meanwhile(positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogSight]:
        answered = await look(positions)
        bench.topics.seen.missing("t")
        return answered

    bench.handler.look_at_logs = delete_meanwhile  # type: ignore[method-assign]
    await bench.member.confirm_leaders()
    bench.handler.look_at_logs = look  # type: ignore[method-assign]
    bench.handler.sights = {each: LogSight(150, 100, 120) for each in (P0, P1)}
    bench.topics.seen.listed("t")
    await bench.traced("continue t:1 at 100")
    await bench.member.close()


async def test_a_doubt_without_partitions_concerns_the_stored_offsets() -> None:
    """The partitions are given back while brokers look: the doubt must not be taken for settled (seed 425641964893)."""
    bench = await joined_at(150, 160)
    seen = bench.topics.seen
    seen.missing("t")
    seen.listed("t")
    bench.tracker.end([P0, P1])
    await asyncio.sleep(0.01)
    assert seen.was_missing("t")
    assert seen.trusted("t") == set()
    await bench.member.close()


async def test_an_offset_that_this_process_remembers_is_none_of_the_next_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Coordinators from 0.10 on forget the offsets of a deleted topic. That is no expiry: 5 of 2,000 were skipped."""
    bench = await joined_at(150, 160)
    bench.topics.seen.identified("t", "a")
    bench.finish(P0, 170)
    await bench.member.commit_on_session()
    bench.transport.offsets.clear()
    bench.topics.counts = {"t": 2}
    bench.assign(P0)
    refresh = bench.topics.refresh

    async def refresh_and_learn(topics: object, reason: str) -> None:
        await refresh(["t"], reason)
        bench.topics.seen.identified("t", "b")

    bench.tracker.end([P1])
    bench.topics.refresh = refresh_and_learn  # type: ignore[method-assign, assignment]
    await bench.member.resubscribe()
    await bench.traced("assigned t:0")
    state = bench.tracker.of(P0)
    assert state is not None
    assert state.start == 100
    assert "has lost the offsets" not in caplog.text
    await bench.member.close()


async def test_a_start_that_is_refused_because_the_topic_is_deleted_is_no_error_of_the_application() -> None:
    """It is looked up again, until the topic is there (seed 54)."""
    bench = ConsumerBench()
    bench.transport.script[OffsetCommitRequestV2].append(UNKNOWN_TOPIC_OR_PARTITION.number)
    await bench.joined()
    assert bench.handler.unknown == []
    assert bench.stored() == {P0: 100, P1: 100}
    await bench.member.close()


async def test_starts_of_new_logs_without_a_membership_are_left_for_later() -> None:
    """The partitions are lost then; the member goes on."""
    bench = await joined_at(150, 160)

    async def refuse(*_: object) -> frozenset[object]:
        raise SessionLostError("no membership")

    bench.member._offsets.store = refuse  # type: ignore[method-assign, assignment]
    assert await bench.member._offsets.store_starts("t", {P0: 0}, lambda *_: True, lambda *_: None) == {}
    await bench.member.close()


async def test_logs_are_compared_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    """
    A new log that has grown past the position at once denies nothing. Another record in the place of the log's first
    one shows it. In another place, it may be what a truncated log has got since; that is reported once.
    """
    bench = await joined_at(150, 160)
    bench.handler.sights = {P0: LogSight(150, 100, 200, has_record=False), P1: LogSight(160, 100, 200)}
    looking = asyncio.ensure_future(bench.member._renewed.look_regularly(0.001))
    await eventually(lambda: bench.trace.count("look at t:0, t:1") > 3, "several looks", 5)
    assert bench.metrics.total("new_logs_unknown") == 1
    assert "skipped: t:0 (100 to 150)" in caplog.text
    bench.handler.sights = {P0: LogSight(150, 100, 200, has_record=False, is_first=True), P1: LogSight(160, 100, 200)}
    await bench.traced("continue t:1 at 100")
    looking.cancel()
    await bench.member.close()


async def test_a_commit_is_not_repeated_once_its_topic_is_another_one() -> None:
    """The partition was given back while the coordinator did not answer (seed 915752963578)."""
    bench = await joined_at(150, 160)
    bench.finish(P0, 170)
    silent = asyncio.Event()
    bench.transport.script[OffsetCommitRequestV2].extend([CoordinatorCode.LOADING, silent])
    committing = asyncio.ensure_future(bench.member.commit_on_session())
    await bench.traced("commit")
    bench.tracker.end([P0])
    bench.topics.seen.renew("t")
    silent.set()
    await asyncio.wait({committing})
    assert bench.stored()[P0] == 150
    await bench.member.close()
