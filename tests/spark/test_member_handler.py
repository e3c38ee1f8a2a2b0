"""What a batch may read, which partitions wait for it, and what of it counts: without servers."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.group.member.subscription import StartPosition, SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint.query_offsets import OffsetRange, Span
from kiel_groups.spark.member.microbatch_handler import BatchHandler

pytestmark = pytest.mark.spark

FIRST, SECOND = TopicPartition("topic", 0), TopicPartition("topic", 1)


class MemberSession:
    """A handler, and the group's side of it by hand."""

    def __init__(self) -> None:
        self.subscription = SubscriptionState()
        cluster = ClusterMetadata(BrokerConfig(hosts=(HostPort("127.0.0.1", 1),)), Metrics())
        self.handler = BatchHandler("group", cluster, self.subscription, Metrics())

    def claim(self, partition: TopicPartition, offset: int, token: int) -> None:
        """The member owns a partition from now on."""
        self.subscription.assign_from_subscribed({partition: StartPosition(offset, 0, token)})
        self.handler.assigned([partition]).close()

    def lose(self, partition: TopicPartition) -> None:
        """The session is over."""
        self.subscription.unassign([partition])
        self.handler.lost([partition])

    def finished(self, partition: TopicPartition) -> int:
        """What a commit would store."""
        state = self.subscription.state(partition)
        assert state is not None
        return state.finished

    def read(self, partition: TopicPartition, to: int, known: dict[TopicPartition, Span] | None = None) -> Span:
        """Plan a batch of one partition."""
        span = self.handler.standing(known or {})[partition]
        return self.handler.plan({partition: span.up_to(to)}, may_read=True)[partition]


@pytest.fixture
def member() -> MemberSession:
    return MemberSession()


def test_a_batch_counts_when_the_query_has_passed_it(member: MemberSession) -> None:
    """Where the query stands elsewhere, it was not run; before Spark 4.2 nobody says, and it was."""
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


def test_what_stands_still_is_written_as_it_was(member: MemberSession) -> None:
    """Spark takes another text for another place, and makes an empty batch of it."""
    member.claim(FIRST, 10, token=7)
    span = member.read(FIRST, 20)
    member.handler.finish({FIRST: span})
    member.subscription.mark_committed(FIRST, 20, 1)
    assert member.read(FIRST, 20, {FIRST: span}) == span
    assert member.read(FIRST, 21, {FIRST: span}) == Span(10, 21, 7, 20)


async def test_a_partition_waits_for_the_batch_that_reads_it(member: MemberSession) -> None:
    """One that no batch reads does not; neither is in the next batch."""
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
    # Committed together with the release.
    assert member.finished(FIRST) == 5
    assert member.handler.standing({FIRST: span}) == {}


def test_a_partition_that_is_asked_back_is_not_planned(member: MemberSession) -> None:
    """Between the question and the plan, too: it may be somebody else's already."""
    member.claim(FIRST, 0, token=7)
    standing = member.handler.standing({})
    assert member.handler.stop([FIRST]) == frozenset()
    assert member.handler.plan({FIRST: standing[FIRST].up_to(5)}, may_read=True) == {}
    member.claim(FIRST, 3, token=9)
    assert member.handler.plan({FIRST: standing[FIRST].up_to(5)}, may_read=True) == {}


def test_without_a_lease_nothing_is_read(member: MemberSession) -> None:
    """The query stays where it is."""
    member.claim(FIRST, 4, token=7)
    standing = member.handler.standing({})
    planned = member.handler.plan({FIRST: standing[FIRST].up_to(9)}, may_read=False)
    assert planned == {FIRST: Span(4, 4, 7, 4)}
    assert member.handler.stop([FIRST]) == frozenset()


def test_what_was_lost_meanwhile_is_not_counted(member: MemberSession) -> None:
    """Claimed again, it starts where the group stands, in an interval of its own."""
    member.claim(FIRST, 0, token=7)
    span = member.read(FIRST, 5)
    member.lose(FIRST)
    member.claim(FIRST, 0, token=9)
    assert member.handler.finish({FIRST: span}) == [OffsetRange(FIRST, 0, 5)]
    assert member.finished(FIRST) == 0
    assert member.handler.standing({})[FIRST] == Span(0, 0, 9, 0)


@pytest.mark.parametrize(
    ("stored", "begins"),
    [
        pytest.param(10, 20, id="nobody has committed since"),
        pytest.param(15, 15, id="another member has got to 15"),
        pytest.param(25, 25, id="another member is ahead"),
        pytest.param(0, 0, id="an operator has put it back"),
    ],
)
def test_a_query_that_comes_back_goes_on_where_nobody_else_has(member: MemberSession, stored: int, begins: int) -> None:
    """Its last batch, up to 20, is done, and was planned when the group stood at 10."""
    known = {FIRST: Span(0, 20, 7, 10)}
    member.claim(FIRST, stored, token=9)
    standing = member.handler.standing(known)
    assert standing[FIRST][:3] == (begins, begins, 9)
    # Nothing counts before the log is known to reach there.
    assert member.finished(FIRST) == stored
    assert member.handler.resume(standing) == (begins != stored)
    assert member.finished(FIRST) == begins


def test_an_offset_that_somebody_wrote_begins_an_interval(member: MemberSession) -> None:
    """Of the same claim: its token alone would not tell."""
    member.claim(FIRST, 0, token=7)
    span = member.read(FIRST, 5)
    member.subscription.seek(FIRST, 2)
    member.subscription.mark_committed(FIRST, 2, 1)
    member.handler.offset_changed(FIRST, 2)
    assert member.handler.finish({FIRST: span}) == [OffsetRange(FIRST, 0, 5)]
    begun = member.handler.standing({FIRST: span})[FIRST]
    assert (begun.begin, begun.to) == (2, 2)
    assert begun.token not in (7, None)


def test_a_log_that_began_anew_is_read_from_there(member: MemberSession) -> None:
    """In an interval of its own, wherever the query and the group stood; what was lost meanwhile is left alone."""
    known = {FIRST: Span(0, 20, 7, 20)}
    member.claim(FIRST, 20, token=9)
    member.handler.restart({FIRST: 3, SECOND: 0})
    standing = member.handler.standing(known)
    assert standing.keys() == {FIRST}
    assert standing[FIRST][:2] == (3, 3)
    assert standing[FIRST].token not in (7, 9)
    assert member.finished(FIRST) == 3
