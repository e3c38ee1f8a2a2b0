"""What an operator's order does to the offsets of a partition, and the znodes of orders."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.partition_offsets import (
    Commit,
    Finding,
    PendingReset,
    Phase,
    Refusal,
    Release,
    StartOrigin,
    StartPosition,
    StoredOffset,
)
from kiel_groups.group.znodes.contents import OrderedOffset, OrderNotice
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
#: The creation zxid of the topic.
CREATED = 7


@pytest.fixture
def tracker() -> OffsetTracker:
    """Return the tracker of a consumer that owns partition 0, was at 20, and has delivered up to 25."""
    tracker = OffsetTracker()
    tracker.claim([T0], CREATED)
    tracker.open({T0: StartPosition(20, 3, 30, CREATED)})
    state = tracker.of(T0)
    assert state is not None
    state.position, state.finished = 25, 23
    return tracker


def perform(tracker: OffsetTracker, offset: int) -> None:
    (commit,) = tracker.orders({T0: OrderedOffset(offset, CREATED)}).values()
    tracker.ordered(T0, StoredOffset(offset, commit.version + 1))


@pytest.mark.parametrize("offset", [0, 20, 23, 99])
def test_delivery_continues_at_the_ordered_offset(tracker: OffsetTracker, offset: int) -> None:
    """Until a record is finished there, neither a commit nor a release stores anything, also if it was lower before."""
    assert tracker.orders({T0: OrderedOffset(offset, CREATED)}) == {T0: Commit(offset, 3)}
    perform(tracker, offset)
    state = tracker.of(T0)
    assert state is not None
    assert (state.position, state.finished, state.committed, state.version) == (offset, offset, offset, 4)
    assert (state.origin, state.floor) == (StartOrigin.ORDERED, offset)
    assert tracker.commits() == {}
    assert tracker.release(T0, None) == Release(None, 4)


def test_chosen_offsets_of_earlier_records_are_refused(tracker: OffsetTracker) -> None:
    """They are no mistake of the application: it has processed the records before the order."""
    perform(tracker, 5)
    assert tracker.choose({T0: 23}).refusals == {T0: Refusal.DELIVERED_EARLIER}
    perform(tracker, 99)
    assert tracker.choose({T0: 23}).refusals == {T0: Refusal.DELIVERED_EARLIER}


def test_only_an_open_partition_of_the_same_incarnation_takes_an_order(tracker: OffsetTracker) -> None:
    """An order of the old log must not move the position in the new one, and the other way round."""
    assert tracker.orders({T1: OrderedOffset(5, CREATED)}) == {}
    assert tracker.orders({T0: OrderedOffset(5, CREATED - 1)}) == {}
    assert tracker.orders({T0: OrderedOffset(5, CREATED + 1)}) == {}
    tracker.recreated("t", CREATED + 1)
    assert tracker.orders({T0: OrderedOffset(5, CREATED)}) == {}
    tracker.restart(T0, 0, 9, CREATED + 1)
    assert tracker.orders({T0: OrderedOffset(5, CREATED)}) == {}
    assert tracker.orders({T0: OrderedOffset(5, CREATED + 1)}) == {T0: Commit(5, 9)}


def test_an_order_voids_a_reset_that_is_chosen(tracker: OffsetTracker) -> None:
    """The operator has chosen another position."""
    tracker.choose_reset(T0, PendingReset(lost=25, start=40, end=50, position=50))
    perform(tracker, 41)
    state = tracker.of(T0)
    assert state is not None
    assert (state.phase, tracker.reset_of(T0), state.position) == (Phase.OPEN, None, 41)


def test_an_order_settles_commits_whose_outcome_is_unknown(tracker: OffsetTracker) -> None:
    """They expected an earlier version, so they are not stored any more."""
    tracker.sent(tracker.commits())
    perform(tracker, 5)
    assert tracker.commits() == {}


def test_an_ordered_offset_that_its_writer_has_not_seen_stored_is_followed(tracker: OffsetTracker) -> None:
    """The order does not count as sent: a stored offset of an interrupted write is taken for another writer's."""
    tracker.orders({T0: OrderedOffset(5, CREATED)})
    assert tracker.read(T0, StoredOffset(5, 4)) is Finding.ADOPTED
    assert tracker.position(T0) == 5


def test_an_ordered_offset_does_not_survive_a_new_log(tracker: OffsetTracker) -> None:
    """Unlike an offset that an operator has set himself, it belongs to the log that the order names."""
    perform(tracker, 5)
    state = tracker.of(T0)
    assert state is not None
    assert state.knows(StoredOffset(5, 4))


def test_the_znodes_of_an_order() -> None:
    """Their names have the order's id, the topic and the number; their data is JSON."""
    layout = GroupLayout("g")
    assert layout.order("1a-0", T0) == "/kiel-groups/g/orders/1a-0:t:0"
    notice, ordered = OrderNotice("1a-0", ("t",), "host:1", 1_000), OrderedOffset(12, CREATED)
    assert notice.encode() == b'{"at":1000,"by":"host:1","order":"1a-0","topics":["t"],"version":1}'
    assert ordered.encode() == b'{"created":7,"offset":12,"version":1}'
    assert OrderNotice.parse(notice.encode(), layout.orders) == notice
    assert OrderedOffset.parse(ordered.encode(), "p") == ordered


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"7",
        b"{}",
        b'{"version":2,"order":"a","topics":[]}',
        b'{"order":"a/b","topics":[]}',
        b'{"order":"a","topics":["x/y"]}',
        b'{"order":"a","topics":[7]}',
    ],
)
def test_a_notice_that_cannot_be_read(data: bytes) -> None:
    """The error names the path."""
    with pytest.raises(ProtocolError, match="/orders"):
        OrderNotice.parse(data, "/orders")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b'{"offset":-1,"created":1}',
        b'{"offset":true,"created":1}',
        b'{"offset":9223372036854775808,"created":1}',
        b'{"offset":5}',
        b'{"version":2,"offset":5,"created":1}',
    ],
)
def test_an_order_that_cannot_be_read(data: bytes) -> None:
    """The error names the path."""
    with pytest.raises(ProtocolError, match="/orders/x"):
        OrderedOffset.parse(data, "/orders/x")
