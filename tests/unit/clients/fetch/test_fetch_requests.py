"""Fetch requests: which partitions they have, how long a broker may wait, and how bytes are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.clients.fetch.fetch_requests import (
    ANY,
    LEAST_SHARE_BYTES,
    SHORT_WAIT_MS,
    WIDE_PARTITIONS,
    BrokerLanes,
    BulkTurns,
    PlannedFetch,
    Room,
    Selection,
    StarvingCallers,
    divide_budget,
    new_bite,
)
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, MessageSizes, PartitionFetch, Phase
from kiel_groups.config import FetchConfig
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

LONG = 5_000
MIB = 1 << 20
CONFIG = FetchConfig(max_wait_ms=LONG)
MOST = CONFIG.max_message_bytes
ROOM = Room(MIB, 64 * MIB)


def partition(number: int, *, idle: bool = False, needed_bytes: int = 0) -> PartitionFetch:
    """Return the fetch state of a partition of topic t that has caught up."""
    tp = TopicPartition("t", number)
    return PartitionFetch(tp, 1, 0, high_watermark=0, empty_answers=int(idle), needed_bytes=needed_bytes)


def behind(number: int, rest: int = 1_000_000, *, buffered: bool = False, needed_bytes: int = 0) -> PartitionFetch:
    """Return the fetch state of a partition whose log has ``rest`` more messages of 100 bytes."""
    state = partition(number, needed_bytes=needed_bytes)
    state.high_watermark, state.sizes = rest, MessageSizes(100_000, 1_000)
    if buffered:
        state.buffered.append(FetchedBatch(state.topic_partition, [], 1, 1))
    return state


def unknown(number: int) -> PartitionFetch:
    """Return the fetch state of a partition that was just assigned."""
    return PartitionFetch(TopicPartition("t", number), 1, 0)


def lanes_with(*ready: PartitionFetch, config: FetchConfig = CONFIG) -> BrokerLanes:
    lanes = BrokerLanes(0, config)
    add(lanes, *ready)
    return lanes


def add(lanes: BrokerLanes, *ready: PartitionFetch) -> None:
    for state in ready:
        state.enter(Phase.READY)
        lanes.add(state)


def poll(lanes: BrokerLanes, *ready: PartitionFetch) -> PlannedFetch | None:
    """Add ready partitions to a broker's lanes, and plan the next poll."""
    add(lanes, *ready)
    return lanes.plan_poll(ROOM)


# ---------------------------------------------------------------------- polls


def test_a_single_poll_has_all_partitions_and_waits_long() -> None:
    """If no other poll is in flight, it has all partitions that have caught up, even idle ones, and a long wait."""
    lanes, hot, idle = lanes_with(), partition(0), partition(1, idle=True)
    planned = poll(lanes, hot, idle)
    assert planned is not None
    assert (set(planned.shares), planned.wait_ms, planned.is_bulk) == ({hot, idle}, LONG, False)
    assert hot.phase is Phase.FETCHING
    assert not list(lanes.ready)


def test_a_second_poll_waits_briefly_and_a_third_is_not_sent() -> None:
    """A second poll uses the second lane, with a short wait. A third is not sent while both lanes are in use."""
    lanes = lanes_with()
    first, second = poll(lanes, partition(0)), poll(lanes, partition(1))
    assert first is not None
    assert second is not None
    assert (first.lane, second.lane, second.wait_ms) == ("poll-0", "poll-1", SHORT_WAIT_MS)
    assert poll(lanes, partition(2)) is None
    assert lanes.has_free_lane, "those of bulk requests are free"


def test_idle_partitions_wait_for_a_short_poll_to_merge_with() -> None:
    """
    While a short poll is in flight, idle partitions are requested only together with a partition that has had data.
    After it, one long poll has all idle partitions.
    """
    lanes, idle = lanes_with(), partition(2, idle=True)
    assert poll(lanes, partition(0)) is not None
    assert poll(lanes, partition(1)) is not None
    del lanes.in_flight["poll-0"]
    assert poll(lanes, idle) is None, "the short poll is still in flight"
    hot = partition(3)
    beside = poll(lanes, hot)
    assert beside is not None, "a partition that has had data does not wait"
    assert set(beside.shares) == {idle, hot}
    lanes.in_flight.clear()
    merged = poll(lanes, partition(4, idle=True))
    assert merged is not None
    assert merged.wait_ms == LONG


def test_many_partitions_make_wide_polls() -> None:
    """
    Each thousand has a long poll of its own, and an answer concerns no other thousand. The rest is polled as ever, and
    the answer of one partition of a wide poll waits for no wide poll.
    """
    lanes = lanes_with(*map(partition, range(2 * WIDE_PARTITIONS + 2)))
    wide = [poll(lanes), poll(lanes)]
    rest, nothing = poll(lanes), poll(lanes)
    assert [len(planned.shares) for planned in wide if planned] == [WIDE_PARTITIONS, WIDE_PARTITIONS]
    assert {planned.wait_ms for planned in wide if planned} == {LONG}
    assert rest is not None
    assert (rest.wait_ms, len(rest.shares), nothing) == (LONG, 2, None)
    answered = wide[0]
    assert answered is not None
    del lanes.in_flight[answered.lane]
    again = poll(lanes, *answered.shares)
    assert again is not None
    assert (again.lane, again.wait_ms, again.shares.keys()) == (answered.lane, LONG, answered.shares.keys())
    del lanes.in_flight[again.lane]
    few = [*again.shares][:-1]
    beside = poll(lanes, *few)
    assert beside is not None
    assert (beside.wait_ms, [*beside.shares]) == (SHORT_WAIT_MS, few), "beside the poll of the rest"


def test_a_wide_poll_always_has_a_lane() -> None:
    """It is sent although all other lanes are taken."""
    lanes = lanes_with(behind(0), behind(1), partition(2), partition(3))
    assert all([lanes.plan_bulk(ROOM), lanes.plan_bulk(ROOM), lanes.plan_poll(ROOM)])
    add(lanes, partition(4))
    assert lanes.plan_poll(ROOM) is not None
    add(lanes, *map(partition, range(5, 4 + WIDE_PARTITIONS)))
    assert not lanes.has_free_lane
    add(lanes, partition(4 + WIDE_PARTITIONS))
    assert lanes.has_free_lane
    assert lanes.plan_poll(ROOM) is not None
    assert not lanes.has_free_lane


def test_dropped_wide_polls_are_abandoned() -> None:
    """Their connections are closed as those of other polls."""
    lanes = lanes_with(*map(partition, range(WIDE_PARTITIONS)))
    planned = poll(lanes)
    assert planned is not None
    assert lanes.abandoned_polls() == []
    for state in planned.shares:
        state.drop()
    assert lanes.abandoned_polls() == [planned.lane]


def test_a_poll_whose_partitions_are_all_dropped_is_abandoned() -> None:
    """One live partition is enough to wait for it. Bulk requests are answered at once, so they are left alone."""
    first, second, bulk = partition(0), partition(1), behind(2)
    lanes = lanes_with(bulk)
    assert lanes.plan_bulk(ROOM) is not None
    assert poll(lanes, first, second) is not None
    bulk.drop()
    first.drop()
    assert lanes.abandoned_polls() == []
    second.drop()
    assert lanes.abandoned_polls() == ["poll-0"]


# ---------------------------------------------------------------------- bulk requests


def test_partitions_that_were_just_assigned_share_the_first_request() -> None:
    """It does not wait at the broker, and goes before partitions that are behind."""
    late, new = behind(0), [unknown(1), unknown(2)]
    planned = lanes_with(late, *new).plan_bulk(ROOM)
    assert planned is not None
    assert planned.wait_ms == 0
    assert planned.shares == dict.fromkeys(new, MIB // 2)


def test_partitions_that_are_behind_get_whole_bites() -> None:
    """One each, in turn, in two requests at a time. A partition that has caught up is not among them."""
    lanes = lanes_with(behind(0), partition(1), behind(2), behind(3))
    first, second = lanes.plan_bulk(ROOM), lanes.plan_bulk(ROOM)
    assert first is not None
    assert second is not None
    assert [[(s.topic_partition.partition, n) for s, n in each.shares.items()] for each in (first, second)] == [
        [(0, MIB)],
        [(2, MIB)],
    ]
    assert (first.lane, second.lane) == ("bulk-0", "bulk-1")
    assert lanes.plan_bulk(ROOM) is None
    assert not lanes.is_held_back


def test_small_backlogs_share_an_answer() -> None:
    """Each is asked for what it is expected to have, and some spare."""
    small = [behind(n, 1_000) for n in range(20)]
    planned = lanes_with(*small).plan_bulk(ROOM)
    assert planned is not None
    expected = 100_000 * 9 // 8 + LEAST_SHARE_BYTES
    assert planned.shares == dict.fromkeys(small[: MIB // expected], expected)


def test_a_partition_without_a_batch_goes_first() -> None:
    """Others take their turns after it."""
    hungry = behind(1)
    planned = lanes_with(behind(0, buffered=True), hungry).plan_bulk(ROOM)
    assert planned is not None
    assert list(planned.shares) == [hungry]


def test_a_full_buffer_holds_bulk_requests_back() -> None:
    """Until there is room for a whole bite; but callers that wait for a partition get a small one."""
    lanes, full = lanes_with(behind(0), behind(1, buffered=True)), Room(LEAST_SHARE_BYTES, -1)
    assert lanes.plan_bulk(full) is None
    assert lanes.is_held_back
    planned = lanes.plan_bulk(full._replace(starving=StarvingCallers([ANY])))
    assert planned is not None
    assert [(s.topic_partition.partition, n) for s, n in planned.shares.items()] == [(0, MIB // 16)]
    assert lanes.plan_bulk(full._replace(starving=StarvingCallers([ANY]))) is None, "it has a batch to deliver"
    assert lanes.is_held_back
    assert lanes.plan_bulk(ROOM) is not None
    assert not lanes.is_held_back


@pytest.mark.parametrize("left", [MIB - 1, MIB // 2, 0, -MIB])
def test_a_caller_that_waits_gets_the_room_that_is_left(left: int) -> None:
    """A buffer that is nearly full does not make its partition as slow as a full one. The next one finds no room."""
    states = [behind(0), behind(1)]
    states[0].expansion = states[1].expansion = 4.0
    planned = lanes_with(*states).plan_bulk(Room(MIB, left, StarvingCallers([ANY])))
    assert planned is not None
    assert planned.shares == {states[0]: max(left // 4, MIB // 16), states[1]: MIB // 16}


def test_a_caller_that_waits_gets_room_before_what_no_caller_waits_for() -> None:
    """Its caller takes the records at once. The other partition, or the other broker, keeps its turn."""
    room = Room(MIB, MIB // 2, StarvingCallers([Selection(None, frozenset({TopicPartition("t", 1)}))]))
    for is_turn in (True, False):
        lanes = lanes_with(behind(0, needed_bytes=20 * MIB), behind(1))
        planned = lanes.plan_bulk(room._replace(is_turn=is_turn))
        assert planned is not None
        assert [(s.topic_partition.partition, n) for s, n in planned.shares.items()] == [(1, MIB // 2)]
        assert lanes.is_held_back


def test_compressed_messages_are_counted_as_they_will_be_buffered() -> None:
    """An answer is expected to unpack as the last one did, and its bytes are reserved; a bite is smaller then."""
    state = behind(0)
    state.expansion = 10.0
    planned = lanes_with(state, config=FetchConfig(fetch_buffer_bytes=16 * MIB)).plan_bulk(Room(MIB, 16 * MIB))
    assert planned is not None
    assert planned.shares == {state: 2 * MIB // 10}
    assert planned.reserved_bytes == 10 * (2 * MIB // 10)


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize(("left", "is_asked"), [(32 * MIB, True), (32 * MIB - 1, False)])
def test_a_message_that_is_too_large_for_the_buffer_waits_until_half_of_it_is_free(
    left: int, is_asked: bool, buffered: bool
) -> None:
    """It would wait for ever otherwise, or be asked for whatever the buffer holds, as would the next one."""
    state = behind(0, needed_bytes=20 * MIB, buffered=buffered)
    state.expansion = 4.0
    lanes = lanes_with(state)
    planned = lanes.plan_bulk(Room(MIB, left))
    assert (planned is not None and planned.shares == {state: 20 * MIB}) is is_asked
    assert lanes.is_held_back is not is_asked


def test_a_message_is_asked_for_by_a_caller_that_finds_nothing_else() -> None:
    """However little room there is, unless its partition has a batch to deliver."""
    state, other = behind(0, needed_bytes=20 * MIB), behind(1, needed_bytes=20 * MIB, buffered=True)
    planned = lanes_with(state, other).plan_bulk(Room(MIB, 0, starving=StarvingCallers([ANY])))
    assert planned is not None
    assert planned.shares == {state: 20 * MIB}


def test_only_what_a_caller_waits_for_is_asked_for_beyond_the_room() -> None:
    """Others wait for room, before and after it, and take none of what is left."""
    states = [behind(0, needed_bytes=20 * MIB), behind(1, 10), behind(2, needed_bytes=20 * MIB), behind(3, 10)]
    lanes = lanes_with(*states)
    starving = StarvingCallers([Selection("u"), Selection(None, frozenset({TopicPartition("t", 2)}))])
    planned = lanes.plan_bulk(Room(MIB, MIB, starving))
    assert planned is not None
    assert planned.shares == {states[2]: 20 * MIB}
    assert lanes.is_held_back
    assert list(lanes.ready) == [states[0], states[1], states[3]]


def test_no_share_is_larger_than_the_largest_message() -> None:
    """A larger message is never received whole, by a bulk request or a poll; so each of them is an error."""
    config = FetchConfig(max_message_bytes=1_000)
    bulk = lanes_with(behind(0), config=config).plan_bulk(ROOM)
    poll = lanes_with(partition(0), config=config).plan_poll(ROOM)
    first = lanes_with(unknown(0), config=config).plan_bulk(ROOM)
    assert [list(planned.shares.values()) for planned in (bulk, poll, first) if planned] == [[1_000]] * 3


def test_brokers_wait_for_room_in_turn() -> None:
    """A broker with small bites does not take each bit of room that a large bite waits for."""
    large, small = BrokerLanes(1, CONFIG), BrokerLanes(2, CONFIG)
    add(large, behind(0, needed_bytes=20 * MIB), behind(1))
    add(small, behind(2, 1_000), behind(3, 1_000))
    turns, little = BulkTurns(), Room(MIB, MIB)
    assert turns.plan(large, little) is None
    assert turns.plan(small, little) is None, "it is not its turn"
    assert turns.waiting == [large, small]
    assert turns.plan(large, ROOM) is not None
    assert turns.waiting == [small]
    assert turns.plan(small, little) is not None
    assert turns.waiting == []


def test_a_broker_does_not_wait_for_its_turn_if_a_caller_waits_for_its_partitions() -> None:
    """The buffer is full of what the caller does not ask for."""
    large, small = BrokerLanes(1, CONFIG), BrokerLanes(2, CONFIG)
    add(large, behind(0, needed_bytes=20 * MIB, buffered=True))
    add(small, behind(1, 1_000))
    turns, starving = BulkTurns(), Room(MIB, MIB, starving=StarvingCallers([ANY]))
    assert turns.plan(large, starving) is None
    assert turns.plan(small, starving) is not None
    assert turns.waiting == [large]


@pytest.mark.parametrize(
    ("wait_ms", "taken_s", "rest_s"),
    [
        pytest.param(SHORT_WAIT_MS, SHORT_WAIT_MS / 1_000, 0.0, id="the broker has waited"),
        pytest.param(SHORT_WAIT_MS, 0.01, 0.09, id="it has not waited for all of the time"),
        pytest.param(0, 0.01, 0.09, id="a bulk request"),
        pytest.param(5, 0.01, 0.09, id="polls that do not wait long enough"),
    ],
)
def test_partitions_rest_if_the_broker_has_not_waited(wait_ms: int, taken_s: float, rest_s: float) -> None:
    """Those without data must not be fetched in a tight loop."""
    idle = partition(0)
    idle.empty_answers = 20
    assert PlannedFetch("poll-0", wait_ms, {idle: 1}).rest_s([idle], taken_s) == pytest.approx(rest_s)
    assert PlannedFetch("poll-0", wait_ms, {idle: 1}).rest_s([], taken_s) <= 0


def test_dropped_partitions_free_their_lane() -> None:
    """Two more bulk requests are sent while the answers to abandoned ones are awaited."""
    lanes, sought = lanes_with(), []
    for number in range(6):
        sought.append(unknown(number))
        add(lanes, sought[-1])
        assert (lanes.plan_bulk(ROOM) is not None) is (number < 4)
        sought[-1].drop()


def test_the_bounds_of_a_bite() -> None:
    """They follow ``max_bytes``, and the buffer."""
    defaults = new_bite(CONFIG)
    assert (defaults.least, defaults.bytes, defaults.most) == (MIB // 16, MIB, 4 * MIB)
    small = new_bite(FetchConfig(fetch_buffer_bytes=4 * MIB))
    assert (small.least, small.bytes, small.most) == (MIB // 32, MIB // 2, MIB // 2)
    least = new_bite(FetchConfig(max_bytes=1, fetch_buffer_bytes=1))
    assert (least.least, least.bytes, least.most) == (1, 1, 1)


# ---------------------------------------------------------------------- shares


def test_large_messages_share_the_budget_and_one_always_fits() -> None:
    """
    Large messages that fit into the budget are requested together. A message above the budget is requested with minimal
    shares for the other partitions.
    """
    small, big, bigger = partition(0), partition(1, needed_bytes=30_000), partition(2, needed_bytes=40_000)
    assert divide_budget([small, big, bigger], 100_000, MOST) == {big: 30_000, bigger: 40_000, small: 30_000}
    assert divide_budget([small, big, bigger], 50_000, MOST) == {big: 30_000, small: 20_000}, (
        "the next request takes the other"
    )
    assert divide_budget([bigger, big, small], 10_000, MOST) == {bigger: 40_000, small: LEAST_SHARE_BYTES}


@pytest.mark.property
@given(
    needs=st.lists(st.sampled_from([0, 0, 5_000, 100_000, 5_000_000]), min_size=1, max_size=40),
    budget=st.integers(1, 1 << 21),
)
def test_shares_keep_to_the_budget(needs: list[int], budget: int) -> None:
    """
    Each partition in a request gets enough bytes for its message. Only a single message or minimal shares may exceed
    the budget.
    """
    partitions = [partition(n, needed_bytes=need) for n, need in enumerate(needs)]
    shares = divide_budget(partitions, budget, MOST)
    large = [shares[p] for p in partitions if p.needed_bytes and p in shares]
    plain = [shares[p] for p in partitions if not p.needed_bytes]
    assert shares
    assert len(plain) == needs.count(0)
    assert all(share == p.needed_bytes for p, share in shares.items() if p.needed_bytes)
    assert sum(large[1:]) <= budget
    least = min(LEAST_SHARE_BYTES, budget)
    assert all(share >= least for share in plain)
    if len(large) < 2 and sum(large) + least * len(plain) <= budget:
        assert sum(shares.values()) <= budget


@pytest.mark.property
@given(
    rests=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=40),
    expansion=st.sampled_from([1.0, 2.5, 40.0]),
    left=st.integers(-MIB, 80 * MIB),
)
def test_bulk_requests_keep_to_the_buffer(rests: list[int], expansion: float, left: int) -> None:
    """What all requests in flight are expected to bring fits into the room, whatever the partitions have."""
    partitions = [behind(n, rest) for n, rest in enumerate(rests)]
    for state in partitions:
        state.expansion = expansion
    lanes, room = lanes_with(*partitions), left
    while planned := lanes.plan_bulk(Room(MIB, room)):
        room -= planned.reserved_bytes
        assert room >= 0
        assert sum(planned.shares.values()) <= 4 * MIB
        lanes.in_flight.clear()
    assert lanes.is_held_back or not list(lanes.ready)
