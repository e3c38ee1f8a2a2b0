"""The member of a consumer beside its rebalances: renewed offsets, subscriptions, stalls, and its close."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.errors import BrokerConnectionError, ClosedError, CommitFailedError, SessionLostError
from kiel_groups.members.partition_handler import Work
from kiel_groups.model import TopicPartition
from kiel_groups.wire.offsets import OffsetCommitRequestV2
from kiel_groups.zookeeper.tasks import CloseLimit
from tests.helpers.coordinated_consumer import P0, P1, ConsumerBench
from tests.helpers.scripted_coordinator import FIND
from tests.helpers.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.unit

SILENCE = BrokerConnectionError("broker 1: the connection broke")


def commits(bench: ConsumerBench) -> list[dict[TopicPartition, int]]:
    """Return the offsets of each commit so far."""
    sent = [request for request in bench.transport.sent if isinstance(request, OffsetCommitRequestV2)]
    return [{partition: each.offset for partition, each in request.offsets.items()} for request in sent]


# Offsets that are committed again


@pytest.mark.parametrize("autocommit", [True, False])
async def test_stored_offsets_are_renewed_also_of_partitions_with_uncommitted_records(autocommit: bool) -> None:
    """An application that processes for a day without a commit finds its offsets, which do not move meanwhile."""
    bench = ConsumerBench(group={"autocommit": autocommit}, offset_refresh_ms=20)
    bench.committed(p0=110, p1=120)
    await bench.joined()
    bench.finish(P0, 150)
    before = len(commits(bench))
    await eventually(lambda: len(commits(bench)) > before + 1, "offsets are renewed")
    assert all(commit == {P0: 110, P1: 120} for commit in commits(bench)[before:])
    assert bench.tracker.commits().keys() == {P0}
    await bench.member.close()


async def test_an_offset_that_may_be_stored_is_not_overwritten_by_a_renewal() -> None:
    """After a commit without an answer, the coordinator may have the new offset; only the next commit settles that."""
    bench = ConsumerBench(group={"autocommit": False}, offset_refresh_ms=20, find_timeout_ms=1)
    bench.committed(p0=110, p1=120)
    await bench.joined()
    bench.finish(P0, 150)
    bench.transport.script[OffsetCommitRequestV2].extend([SILENCE, SILENCE])
    committing = asyncio.ensure_future(bench.member.commit_on_session())
    await bench.traced("commit")
    bench.runtime.sleep_s(0.5)
    with pytest.raises(CommitFailedError, match=r"t:0 not stored within 0\.001 s"):
        await committing
    before = len(commits(bench))
    await eventually(lambda: len(commits(bench)) > before + 1, "other offsets are renewed")
    assert all(commit == {P1: 120} for commit in commits(bench)[before:])
    bench.finish(P0, 110)
    assert await bench.member.commit_on_session() == {P0}, "a seek back to the committed offset is stored, too"
    before = len(commits(bench))
    await eventually(lambda: {P0: 110, P1: 120} in commits(bench)[before:], "all offsets are renewed")
    await bench.member.close()


async def test_a_renewal_that_fails_is_tried_again() -> None:
    """The next one is an interval later, and nothing is raised: the application has not asked for a commit."""
    bench = ConsumerBench(offset_refresh_ms=20)
    bench.committed(p0=110, p1=120)
    await bench.joined()
    bench.transport.script[OffsetCommitRequestV2].append({P0: 28, P1: 28})
    before = len(commits(bench))
    await eventually(lambda: len(commits(bench)) > before + 1, "offsets are renewed")
    assert bench.failures == []
    await bench.member.close()


# Commits


@pytest.mark.parametrize("code", [24, 30])
async def test_a_commit_that_stops_the_member_is_raised(code: int) -> None:
    """Its partitions are lost at once, and so nothing uncommitted is found any more; the caller gets an error."""
    bench = await ConsumerBench(group={"autocommit": False}).joined()
    bench.finish(P0, 150)
    bench.transport.script[OffsetCommitRequestV2].append(code)
    with pytest.raises(CommitFailedError, match=rf"group g: offsets were not stored: .*\({code}\)"):
        await bench.member.commit_on_session()
    assert len(bench.failures) == 1
    assert "lost t:0, t:1" in bench.trace
    await bench.member.close()


async def test_a_commit_succeeds_whose_offsets_another_commit_has_stored() -> None:
    """Records that are finished meanwhile are due again. They are no offsets that the coordinator has refused."""
    bench = await ConsumerBench(group={"autocommit": False}).joined()
    answers = [asyncio.Event(), asyncio.Event()]
    bench.transport.script[OffsetCommitRequestV2].extend(answers)
    before = len(commits(bench))
    bench.finish(P0, 150)
    first = asyncio.ensure_future(bench.member.commit_on_session())
    await eventually(lambda: len(commits(bench)) == before + 1, "the first commit is sent")
    bench.finish(P1, 130)
    second = asyncio.ensure_future(bench.member.commit_on_session())
    await run_ready_tasks()
    answers[0].set()
    assert await first == {P0}
    await eventually(lambda: len(commits(bench)) == before + 2, "the second commit is sent")
    bench.finish(P0, 160)
    answers[1].set()
    assert await second == {P1}
    assert commits(bench)[before:] == [{P0: 150}, {P1: 130}]
    await bench.member.close()


async def test_a_member_without_a_membership_commits_nothing() -> None:
    """The caller may try again later: the member has not joined yet, or not again."""
    bench = ConsumerBench()
    with pytest.raises(SessionLostError, match="group g: no membership to commit with at the moment"):
        await bench.member.commit_on_session()
    await bench.member.close()


# Subscriptions and topics


async def test_a_member_joins_when_it_has_topics() -> None:
    """Before, no coordinator is looked for. Later it stays a member without topics, too."""
    bench = ConsumerBench()
    bench.subscription.unsubscribe()
    await bench.member.start()
    await bench.member.resubscribe()
    assert (bench.trace, bench.member.member_id) == ([], None)
    bench.subscription.subscribe(["t"])
    await bench.member.resubscribe()
    await bench.traced("assigned t:0, t:1")
    assert (bench.member.member_id, bench.member.leads) == ("m-1", True)
    bench.trace.clear()
    bench.subscription.unsubscribe()
    await bench.member.resubscribe()
    await eventually(lambda: bench.member.settled, "the member has joined with no topics")
    assert bench.trace[:2] == ["drained t:0, t:1", "join m-1"]
    await bench.member.close()


async def test_a_leader_whose_topics_have_grown_rebalances_once() -> None:
    """The new partitions are assigned by the next plan, after which nothing has changed."""
    bench = await ConsumerBench(metadata_max_age_ms=10).joined()
    bench.topics.counts["t"] = 3
    await bench.traced("assigned t:0, t:1, t:2")
    asked = len(bench.topics.reasons)
    await eventually(lambda: len(bench.topics.reasons) > asked + 3, "topics are asked for")
    assert bench.trace.count("join m-1") == 1
    await bench.member.close()


async def test_topics_of_a_member_that_does_not_lead_are_the_leaders_concern() -> None:
    """Their growth is no reason for a rebalance here."""
    bench = await ConsumerBench(metadata_max_age_ms=10).joined()
    bench.transport.leader = "m-2"
    bench.assign(P0)
    await bench.member.resubscribe()
    await bench.traced("assigned t:0")
    assert not bench.member.leads
    bench.topics.counts["t"] = 3
    await asyncio.sleep(0.05)
    assert bench.trace.count("join m-1") == 1
    await bench.member.close()


async def test_all_partitions_are_asked_for_offsets() -> None:
    """A coordinator does not list the offsets that it has."""
    bench = ConsumerBench()
    bench.topics.counts["u"] = bench.topics.known["u"] = 1
    assert await bench.member.partitions_with_offsets() == [P0, P1, TopicPartition("u", 0)]
    assert await bench.member.brokers() == []
    await bench.member.close()


async def test_leaders_are_confirmed_by_another_broker() -> None:
    """A deposed leader may not know yet that it is."""
    bench = await ConsumerBench().joined()
    await bench.member.confirm_leaders()
    assert bench.topics.reasons[-1] == "doubt"
    await bench.member.close()


# Stalls


def busy(bench: ConsumerBench) -> None:
    """Have the application begin with a piece of work."""
    bench.handler.work = [Work(object(), "processing", frozenset({P0}))]


async def test_a_member_whose_application_stalls_leaves_and_joins_when_that_continues() -> None:
    """The other members get its partitions at once; it would stall with the next ones, too."""
    bench = await ConsumerBench(group={"max_poll_interval_ms": 1_000, "loop_stall_ms": 0}).joined()
    busy(bench)
    bench.runtime.pass_s(0.6)
    assert bench.trace == ["stalled"]
    bench.runtime.pass_s(0.6)
    gate = bench.handler.gates[-1]
    assert not gate.is_open(bench.runtime.now_s)
    await bench.traced("lost t:0, t:1")
    assert "leave m-1" in bench.trace
    await asyncio.sleep(0.12)
    assert "join anew" not in bench.trace
    busy(bench)
    await bench.traced("assigned t:0, t:1")
    assert "join anew" in bench.trace
    busy(bench)
    bench.runtime.pass_s(1.2)
    await eventually(lambda: bench.trace.count("lost t:0, t:1") == 2, "the next stall is noticed, too")
    bench.handler.work = []
    await bench.member.close()


async def test_a_consumer_without_topics_does_not_join_after_a_stall() -> None:
    """It was no member before."""
    bench = ConsumerBench(group={"max_poll_interval_ms": 1_000, "loop_stall_ms": 0})
    bench.subscription.unsubscribe()
    await bench.member.start()
    busy(bench)
    bench.runtime.pass_s(1.2)
    assert bench.metrics.total("watchdog_exits") == 1
    bench.handler.work = []
    await asyncio.sleep(0.12)
    assert bench.trace == ["stalled"]
    await bench.member.close()


# The close


def tasks() -> set[asyncio.Task[object]]:
    """Return the tasks of the loop, without the test's own."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_a_close_that_is_cancelled_leaves_nothing() -> None:
    """The application holds a record, and its task gives the close up: the heartbeat's thread leaves the group."""
    bench = await ConsumerBench(group={"max_poll_interval_ms": 1_000}).joined()
    bench.handler.busy[P0] = asyncio.Event()
    closing = asyncio.ensure_future(bench.member.close())
    await bench.traced("drained t:1")
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    bench.runtime.pass_s(1)
    assert "leave m-1" in bench.trace
    assert bench.transport.is_beat_closed
    assert all(ticker.ended for ticker in bench.runtime.tickers if ticker.name in ("heartbeat", "watchdog"))
    await eventually(lambda: not tasks(), "no task is left", 5)


async def test_a_close_ends_the_tasks_of_a_member_that_never_joined() -> None:
    """A coordinator that is not found delays no close."""
    bench = ConsumerBench()
    bench.transport.script[FIND].append(asyncio.Event())
    starting = asyncio.ensure_future(bench.member.start())
    await bench.traced("find")
    await bench.member.close(CloseLimit(0.05))
    with pytest.raises(ClosedError):
        await starting
    await eventually(lambda: not tasks(), "no task is left", 5)


async def test_a_member_can_be_abandoned_without_a_loop() -> None:
    """The threads leave the group and end; nothing is committed."""
    bench = await ConsumerBench(group={"max_poll_interval_ms": 1_000}).joined()
    bench.finish(P0, 150)
    bench.member.abandon(0)
    bench.runtime.pass_s(1)
    assert bench.trace == ["leave m-1"]
    assert not bench.handler.gates[-1].is_open(bench.runtime.now_s)
    assert all(ticker.ended for ticker in bench.runtime.tickers if ticker.name in ("heartbeat", "watchdog"))
    await bench.member.close()
