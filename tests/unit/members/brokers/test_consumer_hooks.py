"""What a consumer does with the partitions of a generation: it opens them, drains them, and loses what it must."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kiel_groups.errors import BrokerConnectionError, CommitFailedError, NoBrokersError, SessionLostError
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest
from kiel_groups.group.partition_offsets import PendingReset, StartOrigin
from kiel_groups.members.brokers import member as held_assignment
from kiel_groups.model import GenerationToken, TopicPartition
from kiel_groups.wire.group_requests import HeartbeatRequest, JoinGroupRequest
from kiel_groups.wire.offsets import OffsetCommitRequestV2, OffsetFetchRequestV1
from tests.helpers.coordinated_consumer import P0, P1, ConsumerBench
from tests.helpers.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.unit

C = CoordinatorCode
SILENCE = BrokerConnectionError("broker 1: the connection broke")
U0 = TopicPartition("u", 0)


def offset(bench: ConsumerBench, partition: TopicPartition) -> tuple[int, StartOrigin]:
    state = bench.tracker.of(partition)
    assert state is not None
    return state.start, state.origin


# Opening


async def test_partitions_open_at_the_offsets_of_the_group() -> None:
    """A partition with an offset starts there; one without starts by the policy, and that start is stored before."""
    bench = ConsumerBench()
    bench.committed(p0=7)
    await bench.joined()
    assert offset(bench, P0) == (7, StartOrigin.STORED)
    assert offset(bench, P1) == (100, StartOrigin.FIRST)
    assert bench.stored() == {P0: 7, P1: 100}
    state = bench.tracker.of(P0)
    assert state is not None
    assert state.token == GenerationToken(1, "m-1")
    assert bench.handler.gates[-1].is_open(bench.runtime.now_s)
    assert bench.subscription.assigned_partitions() == {P0, P1}
    await bench.member.close()


@pytest.mark.parametrize("answer", [C.LOADING, C.NOT_COORDINATOR, SILENCE, {P0: 0}])
async def test_offsets_that_cannot_be_read_yet_are_read_again(answer: object) -> None:
    """No partition is reset because the coordinator loads, moves, or leaves a partition out of its answer."""
    bench = ConsumerBench()
    bench.committed(p0=7, p1=8)
    bench.transport.script[OffsetFetchRequestV1].append(answer)  # type: ignore[arg-type]
    await bench.joined()
    assert (offset(bench, P0)[0], offset(bench, P1)[0]) == (7, 8)
    assert bench.handler.unknown == []
    await bench.member.close()


async def test_a_partition_without_a_log_delays_no_other() -> None:
    """A partition whose leader does not answer is looked up again; the others are delivered meanwhile."""
    bench = ConsumerBench()
    bench.handler.look_up_errors[P1] = NoBrokersError()
    await bench.member.start()
    await bench.traced("assigned t:0")
    assert not bench.member.settled
    bench.handler.look_up_errors.clear()
    await bench.traced("assigned t:1")
    await eventually(lambda: bench.member.settled, "all partitions are open")
    await bench.member.close()


async def test_an_opened_topic_leaves_the_failures_of_others() -> None:
    """They count as unopened until they are opened, and the warning about them is not postponed."""
    bench = ConsumerBench("t", "u")
    bench.topics.counts["u"] = 1
    bench.handler.look_up_errors |= {P1: NoBrokersError(), U0: NoBrokersError()}
    await bench.member.start()
    unopened = bench.member._hooks._unopened._failures
    await eventually(lambda: unopened.keys() == {P1, U0}, "two partitions have failed")
    since_s = unopened[U0].since_s
    del bench.handler.look_up_errors[P1]
    await bench.traced("assigned t:1")
    await eventually(lambda: bench.member._hooks.open_partitions == {P0, P1}, "topic t is open")
    await run_ready_tasks()
    assert unopened[U0].since_s == since_s
    await bench.member.close()


async def test_a_start_that_is_not_stored_is_not_delivered() -> None:
    """A position that another owner might choose differently is stored before the first record is delivered."""
    bench = ConsumerBench()
    bench.transport.script[OffsetCommitRequestV2].append({P0: 0, P1: 28})
    await bench.member.start()
    await bench.traced("assigned t:0")
    assert bench.tracker.of(P1) is None
    await bench.traced("assigned t:1")
    await bench.member.close()


async def test_an_application_that_wants_no_reset_gets_an_error() -> None:
    """Without a reset policy, a partition without an offset is an error of the next request for its topic."""
    bench = ConsumerBench(group={"auto_offset_reset": "none"})
    bench.committed(p0=7)
    await bench.member.start()
    await bench.traced("assigned t:0")
    await eventually(lambda: bench.handler.unknown, "the application gets an error")
    assert "has no offsets of t:1, and auto_offset_reset is 'none'" in str(bench.handler.unknown[0])
    assert bench.stored() == {P0: 7}
    await bench.member.close()


async def test_an_application_that_wants_no_reset_chooses_the_start_by_a_commit() -> None:
    """
    A commit for an assigned partition without an offset stores it, and returns when the partition is open there. The
    commit may have offsets of open partitions, too.
    """
    bench = ConsumerBench(group={"auto_offset_reset": "none"})
    bench.committed(p0=7)
    await bench.member.start()
    await bench.traced("assigned t:0")
    await eventually(lambda: bench.handler.unknown, "the application gets an error")
    assert "start them by commit({partition: offset})" in str(bench.handler.unknown[0])
    bench.finish(P0, 9)
    assert await bench.member.commit_chosen({P0: 8, P1: 150}) == {P0, P1}
    assert bench.stored() == {P0: 8, P1: 150}
    assert offset(bench, P1) == (150, StartOrigin.STORED)
    await bench.traced("assigned t:1")
    assert bench.metrics.counter("offsets_expired") == 0
    await bench.member.close()


async def test_a_start_is_chosen_for_assigned_partitions_only() -> None:
    """A commit for a partition without a start is refused if it is not this member's, or not in this generation."""
    bench = ConsumerBench(group={"auto_offset_reset": "none"})
    bench.assign(P0)
    await bench.member.start()
    await eventually(lambda: bench.handler.unknown, "the application gets an error")
    with pytest.raises(CommitFailedError, match="t:1 is not owned by this member, m-1, but by no member; its"):
        await bench.member.commit_chosen({P0: 100, P1: 100})
    assert bench.stored() == {}
    bench.transport.script[OffsetCommitRequestV2].append(C.ILLEGAL_GENERATION)
    with pytest.raises(SessionLostError):
        await bench.member.commit_chosen({P0: 100})
    await eventually(lambda: len(bench.handler.unknown) > 1, "the next generation has no start either")
    bench.transport.script[OffsetCommitRequestV2].append({P0: 28})
    with pytest.raises(CommitFailedError, match="commit\\(\\): t:0 not stored: the coordinator has refused it"):
        await bench.member.commit_chosen({P0: 100})
    assert bench.stored() == {}
    assert bench.failures == []
    await bench.member.close()


@pytest.mark.parametrize(("code", "is_final"), [(29, True), (C.LOADING, False)])
async def test_only_a_refusal_for_good_is_an_error_of_the_application(code: int, is_final: bool) -> None:
    """A coordinator that refuses to read offsets is reported; one that loads them is asked again."""
    bench = ConsumerBench(group={"auto_offset_reset": "none"})
    bench.committed(p0=7, p1=8)
    bench.transport.script[OffsetFetchRequestV1].append(code)
    await bench.joined()
    assert bool(bench.handler.unknown) is is_final
    await bench.member.close()


async def test_a_new_partition_starts_at_its_beginning() -> None:
    """A partition that is added to a topic while this process consumes it starts at its first record."""
    bench = ConsumerBench(group={"auto_offset_reset": "latest"})
    await bench.joined()
    assert offset(bench, P1)[0] == 200
    bench.topics.counts["t"] = 3
    await bench.member.resubscribe()
    await bench.traced("assigned t:0, t:1, t:2")
    assert offset(bench, TopicPartition("t", 2)) == (100, StartOrigin.FIRST)
    await bench.member.close()


async def test_a_rebalance_between_the_read_and_the_opening_opens_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A partition whose offset was read for a former generation is read again for the next one."""
    bench = ConsumerBench()
    joined = asyncio.Event()
    bench.transport.script[OffsetCommitRequestV2].append(asyncio.Event())
    await bench.member.start()
    await bench.traced("commit")
    bench.transport.script[JoinGroupRequest].append(joined)
    bench.member._member.request_rejoin()
    await bench.traced("join m-1")
    await run_ready_tasks()
    assert bench.tracker.open_partitions() == frozenset()
    joined.set()
    await bench.traced("assigned t:0, t:1")
    assert bench.trace.count("assigned t:0, t:1") == 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    await bench.member.close()


async def test_a_start_whose_commit_removes_the_member_is_dropped() -> None:
    """The membership may turn out to be over while a start is stored: nothing is opened, and the member joins anew."""
    bench = ConsumerBench()
    bench.transport.script[OffsetCommitRequestV2].append(C.UNKNOWN_MEMBER)
    await bench.member.start()
    await bench.traced("assigned t:0, t:1")
    assert bench.trace.count("join anew") == 2
    assert bench.failures == []
    await bench.member.close()


async def test_topics_that_were_not_offered_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A leader that assigns a topic that this member does not subscribe to is reported, and the rest is opened."""
    bench = ConsumerBench()
    bench.assign(P0, U0)
    await bench.joined()
    assert bench.tracker.open_partitions() == {P0}
    assert "the leader has assigned u:0, whose topic this member does not subscribe to; refused" in caplog.text
    assert bench.metrics.counter("assignments_of_unsubscribed_topics") == 1
    await bench.member.close()


async def test_a_topic_that_was_unsubscribed_meanwhile_is_no_error_of_the_leader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What a member has offered in its join may be assigned to it; the next join offers less."""
    bench = ConsumerBench("t", "u")
    bench.topics.counts["u"] = 1
    joined = asyncio.Event()
    bench.transport.script[JoinGroupRequest].append(joined)
    starting = asyncio.ensure_future(bench.member.start())
    await bench.traced("join anew")
    bench.subscription.subscribe("t")
    joined.set()
    await starting
    await eventually(lambda: bench.member.settled, "the partitions of t are open")
    assert bench.tracker.open_partitions() == {P0, P1}
    assert "refused" not in caplog.text
    assert bench.trace.count("sync") == 2
    await bench.member.close()


async def test_an_assignment_that_cannot_be_read_is_left_until_the_next_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader of another program may send what is no assignment: the member says so, and joins again."""
    monkeypatch.setattr(held_assignment, "FIRST_REJOIN_S", 0.01)
    bench = ConsumerBench()
    bench.transport.assignment = b"\x00\x00\x00\x00\x00\x09"
    await bench.member.start()
    await eventually(lambda: "cannot be read: the assignment of this member of 6 bytes" in caplog.text, "an error")
    assert not bench.member.settled
    assert not bench.tracker.open_partitions()
    bench.transport.assignment = None
    await eventually(lambda: bench.member.settled, "an assignment that can be read")
    assert bench.failures == []
    await bench.member.close()


@pytest.mark.parametrize("assignment", [b"", b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"])
async def test_a_member_may_get_nothing(assignment: bytes) -> None:
    """A group with more members than partitions has members that only wait, and that join the next rebalance."""
    bench = ConsumerBench()
    bench.transport.assignment = assignment
    await bench.joined()
    assert bench.member.settled
    await bench.member.resubscribe()
    await eventually(lambda: bench.trace == ["join m-1", "sync"], "the member joins, and gives nothing back")
    await bench.member.close()


# Giving back


async def test_partitions_are_drained_committed_and_given_back() -> None:
    """The records that the application has finished until then are committed before the join."""
    bench = await ConsumerBench().joined()
    bench.finish(P0, 120)
    bench.handler.busy[P1] = asyncio.Event()
    bench.member._member.request_rejoin()
    await bench.traced("drained t:0")
    bench.finish(P1, 150)
    bench.handler.busy.pop(P1).set()
    await bench.traced("assigned t:0, t:1")
    assert bench.trace[:4] == ["drained t:0", "drained t:1", "commit", "join m-1"]
    assert bench.stored() == {P0: 120, P1: 150}
    await bench.member.close()


@pytest.mark.parametrize("rebalance_timeout", [False, True])
async def test_a_partition_that_does_not_drain_is_lost_loudly(
    rebalance_timeout: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """
    At the end of the gate, less the time for a commit, the partition is lost: an error says which, and after which
    time. The others are committed, and the member joins in time.
    """
    bench = await ConsumerBench(rebalance_timeout=rebalance_timeout, rebalance_timeout_ms=20_000).joined()
    bench.finish(P0, 120)
    bench.finish(P1, 150)
    bench.handler.busy[P1] = asyncio.Event()
    bench.member._member.note(GroupRequest.COMMIT, C.REBALANCE_IN_PROGRESS, GenerationToken(1, "m-1"))
    await bench.traced("drained t:0")
    if rebalance_timeout:
        # Answers during the rebalance renew the lease, but not beyond nine tenths of the rebalance timeout.
        bench.transport.script[HeartbeatRequest].extend([C.REBALANCE_IN_PROGRESS] * 17)
        for _ in range(17):
            bench.runtime.pass_s(1)
            await run_ready_tasks()
        assert "lost t:1" not in bench.trace
        bench.trace[:] = [entry for entry in bench.trace if entry != "beat"]
        bench.runtime.sleep_s(0.5)
    else:
        bench.runtime.sleep_s(2.5)
    await bench.traced("assigned t:0, t:1")
    assert bench.trace[:4] == ["drained t:0", "lost t:1", "commit", "join m-1"]
    assert bench.stored() == {P0: 120, P1: 100}
    assert "1 partition, first t:1, were not given back within" in caplog.text
    assert bench.metrics.counter("partitions_lost") == 1
    bench.handler.busy.clear()
    await bench.member.close()


async def test_an_unconfirmed_membership_gives_nothing_back(caplog: pytest.LogCaptureFixture) -> None:
    """
    The coordinator has confirmed nothing for half the session timeout, so other members may have the partitions. The
    error says so, and does not blame the application, which processes nothing.
    """
    bench = await ConsumerBench().joined()
    bench.finish(P0, 120)
    bench.runtime.sleep_s(60.0)
    bench.member._member.request_rejoin()
    await bench.traced("assigned t:0, t:1")
    assert bench.trace[:2] == ["lost t:0, t:1", "join m-1"]
    assert bench.stored() == {P0: 100, P1: 100}
    assert "2 partitions, first t:0, were not committed before the rebalance" in caplog.text
    assert "still processing" not in caplog.text
    await bench.member.close()


async def test_partitions_of_an_unconfirmed_membership_are_not_assigned_any_more() -> None:
    """The application sees at once that it has none of them, and need not wait for the next assignment."""
    bench = await ConsumerBench().joined()
    gate = bench.member._member.gate
    assert gate is not None
    bench.runtime.sleep_s(600.0)
    await bench.member._hooks.prepare(gate)
    assert bench.trace == ["lost t:0, t:1"]
    assert bench.subscription.assigned_partitions() == frozenset()
    await bench.member.close()


async def test_removal_loses_all_partitions_without_a_commit() -> None:
    """Another member may have the partitions already, so neither a drain nor a commit happens."""
    bench = await ConsumerBench().joined()
    bench.finish(P0, 120)
    bench.member._member.note(GroupRequest.COMMIT, C.UNKNOWN_MEMBER, GenerationToken(1, "m-1"))
    assert bench.trace == ["lost t:0, t:1"]
    assert bench.tracker.open_partitions() == frozenset()
    assert bench.subscription.assigned_partitions() == frozenset()
    await bench.traced("assigned t:0, t:1")
    assert bench.trace[:2] == ["lost t:0, t:1", "join anew"]
    assert offset(bench, P0)[0] == 100
    await bench.member.close()


@pytest.mark.parametrize("code", [C.ILLEGAL_GENERATION, C.UNKNOWN_MEMBER])
async def test_a_last_commit_that_removes_the_member_loses_its_partitions(code: int) -> None:
    """The commit before the join may be the first to learn of the removal, from within the drain."""
    bench = await ConsumerBench().joined()
    bench.finish(P0, 120)
    bench.transport.script[OffsetCommitRequestV2].append(code)
    bench.member._member.request_rejoin()
    await bench.traced("assigned t:0, t:1")
    assert bench.trace[:4] == ["drained t:0, t:1", "commit", "lost t:0, t:1", "join anew"]
    assert bench.failures == []
    await bench.member.close()


async def test_a_commit_is_not_repeated_in_a_later_generation() -> None:
    """Its partitions may have other owners by then, or have started before its offsets."""
    bench = await ConsumerBench().joined()
    bench.finish(P0, 120)
    bench.transport.script[OffsetCommitRequestV2].append(C.LOADING)
    commit = asyncio.ensure_future(bench.member.commit_on_session())
    await bench.traced("commit")
    bench.member._member.note(GroupRequest.COMMIT, C.UNKNOWN_MEMBER, GenerationToken(1, "m-1"))
    await bench.traced("assigned t:0, t:1")
    with pytest.raises(SessionLostError, match="no membership to commit with"):
        await commit
    assert bench.stored()[P0] == 100
    await bench.member.close()


async def test_a_drain_whose_hook_fails_stops_the_member() -> None:
    """A bug in giving back is not taken for success: the partitions are lost, and the member leaves."""
    bench = await ConsumerBench().joined()

    async def drained(partitions: object) -> None:
        raise ValueError("a bug")

    bench.handler.drained = drained  # type: ignore[method-assign]
    bench.member._member.request_rejoin()
    await bench.traced("leave m-1")
    assert bench.trace == ["lost t:0, t:1", "leave m-1"]
    assert "ValueError: a bug" in str(bench.failures[0])
    await bench.member.close()


async def test_a_drain_leaves_the_position_of_a_reset() -> None:
    """A reset that is chosen and not stored yet is what the next owner finds."""
    bench = await ConsumerBench().joined()
    bench.tracker.choose_reset(P0, PendingReset(lost=100, start=140, end=200, position=140))
    await bench.member.close()
    assert bench.stored()[P0] == 140


async def test_a_drain_waits_for_a_commit_of_the_application() -> None:
    """The last commit follows one that is under way, and stores what was finished since."""
    bench = await ConsumerBench().joined()
    bench.finish(P0, 120)
    answered = asyncio.Event()
    bench.transport.script[OffsetCommitRequestV2].append(answered)
    committing = asyncio.ensure_future(bench.member.commit_on_session())
    await bench.traced("commit")
    bench.finish(P0, 130)
    bench.member._member.request_rejoin()
    await bench.traced("drained t:0, t:1")
    await run_ready_tasks()
    assert "join m-1" not in bench.trace
    answered.set()
    assert await committing == {P0}
    await bench.traced("join m-1")
    assert bench.trace[:4] == ["commit", "drained t:0, t:1", "commit", "join m-1"]
    assert bench.stored()[P0] == 130
    await bench.member.close()


async def test_a_paused_partition_whose_topic_is_unsubscribed_while_it_opens_is_not_paused() -> None:
    """The look-up of its start takes a while; the next join gives the partition back (seed 593497194495)."""
    bench = ConsumerBench()
    bench.committed(p0=7, p1=8)
    await bench.joined()
    bench.subscription.pause(P0)
    reading = asyncio.Event()
    bench.transport.script[OffsetFetchRequestV1].append(reading)
    bench.member._member.request_rejoin()
    await bench.traced("read offsets")
    bench.subscription.subscribe(["u"])
    reading.set()
    await bench.traced("assigned t:0, t:1")
    assert bench.failures == []
    await bench.member.close()
