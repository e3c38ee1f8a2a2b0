"""The batch handler of a member: the offsets that a batch may read, the drain of its partitions, and its commit."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.group.partition_offsets import StartPosition
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint import OffsetRange, Span
from kiel_groups.spark.member import BatchHandler

pytestmark = pytest.mark.spark

FIRST, SECOND = TopicPartition("topic", 0), TopicPartition("topic", 1)


class MemberSession:
    """A batch handler, and methods for the calls that the group makes."""

    def __init__(self) -> None:
        self.subscription = SubscriptionState()
        cluster = ClusterMetadata(BrokerConfig(hosts=(HostPort("127.0.0.1", 1),)), Metrics())
        self.handler = BatchHandler("group", cluster, self.subscription, Metrics())

    def claim(self, partition: TopicPartition, offset: int, token: int) -> None:
        """Assign a partition to the member, with its start offset and fencing token."""
        self.subscription.offsets.open({partition: StartPosition(offset, 0, token)})
        self.handler.assigned([partition]).close()

    def lose(self, partition: TopicPartition) -> None:
        """End the session, which loses the partition."""
        self.subscription.offsets.end([partition])
        self.handler.lost([partition])

    def finished(self, partition: TopicPartition) -> int:
        """Return the offset that a commit would store."""
        state = self.subscription.offsets.of(partition)
        assert state is not None
        return state.finished

    def read(self, partition: TopicPartition, to: int, known: dict[TopicPartition, Span] | None = None) -> Span:
        """Plan a batch of one partition up to an offset, and return its span."""
        span = self.handler.positions(known or {})[partition]
        return self.handler.plan({partition: span.up_to(to)}, may_read=True)[partition]


@pytest.fixture
def member() -> MemberSession:
    return MemberSession()


def test_a_batch_is_finished_when_the_query_has_passed_it(member: MemberSession) -> None:
    """
    If the query's position is not the end of the batch, the batch was not run. Spark before 4.2 passes no position; the
    batch then counts as run.
    """
    member.claim(FIRST, 10, token=7)
    span = member.read(FIRST, 20)
    assert span == Span(10, 20, 7, 10)
    assert member.handler.finish({}) == []
    assert member.finished(FIRST) == 10
    span = member.read(FIRST, 30)
    assert member.handler.finish({FIRST: span}) == []
    assert member.finished(FIRST) == 30
    member.read(FIRST, 40, {FIRST: span})
    assert member.handler.finish(None) == []
    assert member.finished(FIRST) == 40


def test_an_unchanged_position_has_the_same_text(member: MemberSession) -> None:
    """Spark compares positions as text. An unchanged position has the same text, so that Spark plans no empty batch."""
    member.claim(FIRST, 10, token=7)
    span = member.read(FIRST, 20)
    member.handler.finish({FIRST: span})
    member.subscription.offsets.stored(FIRST, 20, 1)
    assert member.read(FIRST, 20, {FIRST: span}) == span
    assert member.read(FIRST, 21, {FIRST: span}) == Span(10, 21, 7, 20)


async def test_a_partition_waits_for_the_batch_that_reads_it(member: MemberSession) -> None:
    """
    A revoked partition waits for the batch that reads it. A partition that no batch reads is released without waiting.
    The next batch reads neither.
    """
    member.claim(FIRST, 0, token=7)
    member.claim(SECOND, 0, token=8)
    span = member.read(FIRST, 5)
    assert member.handler.stop([FIRST, SECOND]) == {FIRST}
    await member.handler.drained([SECOND])
    waiting = asyncio.ensure_future(member.handler.drained([FIRST]))
    await asyncio.sleep(0)
    assert not waiting.done()
    member.handler.finish({FIRST: span})
    await waiting
    # The offset is committed together with the release.
    assert member.finished(FIRST) == 5
    assert member.handler.positions({FIRST: span}) == {}


def test_a_revoked_partition_is_not_planned(member: MemberSession) -> None:
    """
    A partition that is revoked between ``standing`` and ``plan`` is not planned, because another member may own it
    already.
    """
    member.claim(FIRST, 0, token=7)
    standing = member.handler.positions({})
    assert member.handler.stop([FIRST]) == frozenset()
    assert member.handler.plan({FIRST: standing[FIRST].up_to(5)}, may_read=True) == {}
    member.claim(FIRST, 3, token=9)
    assert member.handler.plan({FIRST: standing[FIRST].up_to(5)}, may_read=True) == {}


def test_without_a_lease_no_record_is_read(member: MemberSession) -> None:
    """Without a lease, the batch is empty, and the query keeps its position."""
    member.claim(FIRST, 4, token=7)
    standing = member.handler.positions({})
    planned = member.handler.plan({FIRST: standing[FIRST].up_to(9)}, may_read=False)
    assert planned == {FIRST: Span(4, 4, 7, 4)}
    assert member.handler.stop([FIRST]) == frozenset()


def test_a_batch_of_a_lost_partition_is_not_finished(member: MemberSession) -> None:
    """
    A batch of a lost partition is not finished. When the partition is claimed again, a new interval starts at the
    group's offset.
    """
    member.claim(FIRST, 0, token=7)
    span = member.read(FIRST, 5)
    member.lose(FIRST)
    member.claim(FIRST, 0, token=9)
    assert member.handler.finish({FIRST: span}) == [OffsetRange(FIRST, 0, 5)]
    assert member.finished(FIRST) == 0
    assert member.handler.positions({})[FIRST] == Span(0, 0, 9, 0)


@pytest.mark.parametrize(
    ("stored", "begins"),
    [
        pytest.param(10, 20, id="no commit since"),
        pytest.param(15, 15, id="another member has committed 15"),
        pytest.param(25, 25, id="another member is ahead"),
        pytest.param(0, 0, id="an operator has reset it"),
    ],
)
def test_a_restarted_query_resumes_after_its_last_batch(member: MemberSession, stored: int, begins: int) -> None:
    """
    The last batch up to offset 20 is done, and was planned when the group's offset was 10. The query resumes at 20
    unless the group's offset has changed.
    """
    known = {FIRST: Span(0, 20, 7, 10)}
    member.claim(FIRST, stored, token=9)
    standing = member.handler.positions(known)
    assert standing[FIRST][:3] == (begins, begins, 9)
    # No record counts as finished before the log is known to reach that offset.
    assert member.finished(FIRST) == stored
    assert member.handler.resume(standing) == (begins != stored)
    assert member.finished(FIRST) == begins


def test_an_operators_reset_starts_an_interval(member: MemberSession) -> None:
    """
    An operator's reset does not change the claim, so it is not visible in the fencing token. The new interval gets a
    token of its own.
    """
    member.claim(FIRST, 0, token=7)
    span = member.read(FIRST, 5)
    member.subscription.offsets.seek(FIRST, 2)
    member.subscription.offsets.stored(FIRST, 2, 1)
    member.handler.offset_changed(FIRST, 2)
    assert member.handler.finish({FIRST: span}) == [OffsetRange(FIRST, 0, 5)]
    started = member.handler.positions({FIRST: span})[FIRST]
    assert (started.begin, started.to) == (2, 2)
    assert started.token not in (7, None)


def test_a_recreated_log_is_read_from_its_start(member: MemberSession) -> None:
    """
    A new interval starts at the given offset, whatever the positions were. Partitions that are not owned are skipped.
    """
    known = {FIRST: Span(0, 20, 7, 20)}
    member.claim(FIRST, 20, token=9)
    member.handler.restart({FIRST: 3, SECOND: 0})
    standing = member.handler.positions(known)
    assert standing.keys() == {FIRST}
    assert standing[FIRST][:2] == (3, 3)
    assert standing[FIRST].token not in (7, 9)
    assert member.finished(FIRST) == 3
