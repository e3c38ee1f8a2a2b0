"""Plan fetch requests: select the partitions of the next request to a broker, its size, and how long it may wait."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from operator import attrgetter
from typing import NamedTuple

from kiel_groups.clients.fetch.partition_fetch import BiteSize, Demand, PartitionFetch, Phase, fill_answer
from kiel_groups.config import FetchConfig
from kiel_groups.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Selection:
    """
    The partitions that a caller asks for, without ``excluded``.

    The caller asks for the partitions of ``topic``, or of any topic if ``topic`` is None. If ``partitions`` is given,
    the caller asks only for these partitions.
    """

    topic: str | None = None
    partitions: frozenset[TopicPartition] | None = None
    excluded: frozenset[TopicPartition] = frozenset()

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the caller asks for this partition."""
        if self.partitions is not None and partition not in self.partitions:
            return False
        return (self.topic is None or partition.topic == self.topic) and partition not in self.excluded


#: All partitions.
ANY = Selection()


class ReadyQueue:
    """
    The queue of partitions with buffered batches.

    Callers wait for one topic, for some partitions, or for any partition. There is an event for each topic, and an
    event for any partition. Such an event is set when there may be a batch, and cleared by a ``pop`` that finds no
    batch. A caller that waits for some partitions has an event of its own, because the ``pop`` of another caller cannot
    tell whether those partitions have a batch.
    """

    def __init__(self) -> None:
        #: A partition is removed from the middle at once: an application may pause thousands of partitions together.
        self._queue: OrderedDict[PartitionFetch, None] = OrderedDict()
        self._any_topic = asyncio.Event()
        #: An event for each topic that a caller has asked for.
        self._by_topic: dict[str, asyncio.Event] = {}
        #: The callers that wait for some partitions.
        self._by_partitions: dict[asyncio.Event, frozenset[TopicPartition]] = {}

    def add(self, state: PartitionFetch) -> None:
        """Put a partition at the end of the queue."""
        self._queue[state] = None
        self._wake(state)

    def add_first(self, state: PartitionFetch) -> None:
        """Put a partition at the front of the queue."""
        self._queue[state] = None
        self._queue.move_to_end(state, last=False)
        self._wake(state)

    def _wake(self, state: PartitionFetch) -> None:
        self.notify(state.topic_partition.topic)
        for event, partitions in self._by_partitions.items():
            if state.topic_partition in partitions:
                event.set()

    def remove(self, state: PartitionFetch) -> None:
        """Remove a partition that has no buffered batch any more, or that is paused."""
        self._queue.pop(state, None)

    def pop(self, selection: Selection = ANY) -> PartitionFetch | None:
        """Remove and return the next selected partition, or None if no selected partition is in the queue."""
        is_any = selection == ANY
        for _ in range(len(self._queue)):
            state, _ = self._queue.popitem(last=False)
            if state.dropped:
                continue
            if is_any or selection.has(state.topic_partition):
                return state
            self._queue[state] = None
        if selection.partitions is None and (selection.topic is not None or not self._queue):
            self._event_of(selection.topic).clear()
        return None

    async def wait(self, selection: Selection = ANY) -> None:
        """
        Wait until ``pop`` is likely to return a partition. ``pop`` may still return None, as after an unassign.

        This method always yields to the event loop, because a caller that may not take the batches calls it in a loop.
        """
        if self._may_pop(selection):
            await asyncio.sleep(0)
        elif selection.partitions is None:
            await self._event_of(selection.topic).wait()
        else:
            event = asyncio.Event()
            self._by_partitions[event] = selection.partitions
            try:
                await event.wait()
            finally:
                del self._by_partitions[event]

    @property
    def waiting(self) -> set[frozenset[TopicPartition]]:
        """The partitions of each caller that waits for chosen partitions, and not for a topic or for any partition."""
        return set(self._by_partitions.values())

    def _may_pop(self, selection: Selection) -> bool:
        if selection.partitions is None:
            return self._event_of(selection.topic).is_set()
        return any(selection.has(state.topic_partition) for state in self._queue if not state.dropped)

    def notify(self, topic: str) -> None:
        """Wake the callers that wait for this topic or for any topic, although there may be no batch."""
        self._any_topic.set()
        if topic in self._by_topic:
            self._by_topic[topic].set()

    def wake_all(self) -> None:
        """Wake every caller that waits, although there may be no batch."""
        for event in (self._any_topic, *self._by_topic.values(), *self._by_partitions):
            event.set()

    def _event_of(self, topic: str | None) -> asyncio.Event:
        if topic is None:
            return self._any_topic
        if topic not in self._by_topic:
            event = self._by_topic[topic] = asyncio.Event()
            if any(state.topic_partition.topic == topic for state in self._queue):
                event.set()
        return self._by_topic[topic]


#: The least number of selections before the selections of callers that no longer wait are dropped.
_MOST_SELECTIONS = 1_000


class StarvingCallers:
    """
    The selections for which ``pop`` has found no batch, until a batch of the selection is buffered.

    A caller whose selection is in this object is *starving*: the partitions of the selection are fetched even if the
    buffer is full. A selection of a caller that no longer waits causes the fetch of one more batch at most.

    Args:
        selections: The first selections.
    """

    def __init__(self, selections: Iterable[Selection] = ()) -> None:
        #: The selections, by partition if a selection has only one partition, or else by topic: there may be thousands
        #: of callers with a partition each.
        self._by_key: dict[TopicPartition | str | None, set[Selection]] = {}
        self._count = 0
        self._most = _MOST_SELECTIONS
        for each in selections:
            self.add(each)

    def __len__(self) -> int:
        return self._count

    def add(self, selection: Selection) -> None:
        """
        Add the selection of a caller that finds no batch.

        The excluded partitions of the selection are included. Another caller waits for the excluded partitions now. But
        when that caller gives up, this caller may get the records of these partitions.
        """
        if selection.excluded:
            selection = Selection(selection.topic, selection.partitions)
        partitions = selection.partitions
        key = selection.topic if partitions is None or len(partitions) != 1 else next(iter(partitions))
        same = self._by_key.setdefault(key, set())
        self._count += selection not in same
        same.add(selection)

    def has(self, partition: TopicPartition) -> bool:
        """Return whether a caller waits for this partition."""
        return any(each.has(partition) for key in _keys(partition) for each in self._by_key.get(key, ()))

    def feed(self, partition: TopicPartition) -> None:
        """Remove the selections that include this partition, because the partition has a batch now."""
        for key in _keys(partition):
            if key in self._by_key:
                self._replace(key, {each for each in self._by_key[key] if not each.has(partition)})

    def limit(self, waiting: Collection[frozenset[TopicPartition]]) -> None:
        """
        Drop the selections of partitions, except the selections in ``waiting``, for which a caller waits.

        A caller whose selection was dropped adds the selection again when it polls again. Selections without partitions
        are kept: there is at most one for each topic, and one for all topics.
        """
        for key in list(self._by_key):
            kept = {each for each in self._by_key[key] if each.partitions is None or each.partitions in waiting}
            self._replace(key, kept)
        self._most = _MOST_SELECTIONS + 2 * self._count

    @property
    def is_over(self) -> bool:
        """Whether the selections exceed the bound that the last ``limit`` has set, so that it is time for another."""
        return self._count > self._most

    def _replace(self, key: TopicPartition | str | None, kept: set[Selection]) -> None:
        self._count += len(kept) - len(self._by_key[key])
        if kept:
            self._by_key[key] = kept
        else:
            del self._by_key[key]


def _keys(partition: TopicPartition) -> tuple[TopicPartition, str, None]:
    return partition, partition.topic, None


# Plan fetch requests: select the partitions of the next request to a broker, and how long the broker may wait.
#
# A broker works on one request of a connection at a time, also while it waits for data. So requests of two kinds have
# connections of their own (lanes), over disjoint partitions:
#
# - *Bulk* requests do not wait at the broker. They ask for partitions that are behind their logs' ends: much of a few
#   partitions (see ``partition_fetch``). Partitions that were just assigned go first, all in one request, which finds
#   out what there is. Up to two bulk requests are in flight: the broker works on one while the other's answer is
#   decoded.
# - *Polls* ask for partitions that have caught up, for a small share of each. A broker delays the answer until there is
#   data in one of them, so one poll for all would keep a partition that has just caught up waiting behind idle ones:
#
#   1. A poll that is sent alone takes every partition that is ready and may wait for ``max_wait_ms`` (long).
#   2. A poll that is sent beside another waits for ``SHORT_WAIT_MS`` at most, so that its lane is soon free again.
#   3. Partitions whose last answer was empty are not sent beside a short poll: they wait for its answer, and all go
#      into one long poll. So the lanes merge again when no data comes.
#   4. An answer costs time for each partition of its request, at the broker and here, also for those without data. So
#      ``WIDE_PARTITIONS`` partitions make a long poll of their own, on a further lane (wide). The rules above are for
#      the rest. Of ten thousand partitions, a record then concerns one wide poll in ten.


#: The most requests of each kind in flight to a broker.
LANES = 2
#: The most further bulk requests in flight whose partitions were all dropped since.
_ABANDONED_LANES = 2
#: How long a broker may wait on a short poll, in milliseconds. A record of an idle partition may wait for the poll's
#: end.
SHORT_WAIT_MS = 25
#: The partitions of a wide poll. Its answer without data takes some 5 ms here, and as long at the broker.
WIDE_PARTITIONS = 1_000
#: The least bytes that a request asks for from each partition, even if their sum exceeds ``max_bytes``.
LEAST_SHARE_BYTES = 4 << 10
#: The largest bite (the bytes of a bulk request) is ``max_bytes`` times the first number. The smallest bite is the
#: first bite divided by the second number.
_MOST_ANSWERS, _LEAST_ANSWERS = 4, 16
#: One bulk request may fill the buffer's size divided by this number.
_BUFFER_PART = 8

_BULK, _POLL, _WIDE = "bulk", "poll", "wide"


def new_bite(config: FetchConfig) -> BiteSize:
    """Return how many bytes the first bulk request to a broker asks for, and the bounds for later requests."""
    most = max(1, min(_MOST_ANSWERS * config.max_bytes, config.fetch_buffer_bytes // _BUFFER_PART))
    first = min(config.max_bytes, most)
    return BiteSize(first, max(1, first // _LEAST_ANSWERS), most)


class PlannedFetch(NamedTuple):
    """
    A fetch request: its lane, how long the broker may wait, and the bytes to request of each partition (its share).

    A *lane* is one of a broker's connections. A *bulk* request does not wait at the broker, a *poll* may wait.
    ``reserved_bytes`` is the room in the buffer that is reserved for the answer.
    """

    lane: str
    wait_ms: int
    shares: dict[PartitionFetch, int]
    reserved_bytes: int = 0

    @property
    def is_bulk(self) -> bool:
        """Whether the request does not wait at the broker."""
        return self.lane.startswith(_BULK)

    def rest_s(self, answered: Iterable[PartitionFetch], taken_s: float) -> float:
        """
        Return how long to wait before the next fetch of these partitions, in seconds; 0 or less means no wait.

        The wait prevents a tight loop if the broker does not wait (``max_wait_ms`` of 0, errors of other partitions).

        Args:
            answered: The partitions that were read from the answer.
            taken_s: The time since the request was sent, in seconds.
        """
        if SHORT_WAIT_MS <= self.wait_ms <= 1_000 * taken_s:
            return 0.0
        busiest = min(answered, key=attrgetter("empty_answers"), default=None)
        return (busiest.idle_pause_s if busiest else 0.0) - taken_s

    @property
    def is_abandoned(self) -> bool:
        """Whether all partitions of the request were dropped, so that its answer will be ignored."""
        return all(state.dropped for state in self.shares)


class Room(NamedTuple):
    """
    The room that the buffer has for the next answer.

    The answer to a poll may have ``poll_bytes``, and the answer to a bulk request ``bulk_bytes``. ``starving`` has the
    selections for which callers wait. If ``is_turn`` is False, another broker has precedence: a bulk request asks only
    for partitions of these selections, and for newly assigned partitions.
    """

    poll_bytes: int
    bulk_bytes: int
    starving: StarvingCallers = StarvingCallers()
    is_turn: bool = True

    def is_awaited(self, state: PartitionFetch) -> bool:
        """
        Return whether a partition without a batch is fetched even if the buffer is full, because a caller waits for the
        partition.
        """
        return not state.buffered and self.starving.has(state.topic_partition)


@dataclass(slots=True)
class BrokerLanes:
    """
    The partitions that wait for a request to one broker, and the requests in flight to that broker, by lane
    (connection).
    """

    node_id: int
    config: FetchConfig
    #: The requests in flight, by lane.
    in_flight: dict[str, PlannedFetch] = field(default_factory=dict)
    #: Whether a partition that is behind waits for room in the buffer.
    is_held_back: bool = False
    #: The version of the leaders with which the partitions in the queue were last compared.
    leaders_version: int = -1
    bite: BiteSize = field(init=False)
    _ready: dict[Demand, dict[PartitionFetch, None]] = field(init=False)

    def __post_init__(self) -> None:
        self.bite = new_bite(self.config)
        self._ready = {demand: {} for demand in Demand}

    def add(self, state: PartitionFetch) -> None:
        """Queue a partition for one of the next requests."""
        self._ready[state.demand][state] = None

    def remove(self, state: PartitionFetch) -> None:
        """Remove a partition from the queue for requests, if it is in the queue."""
        for ready in self._ready.values():
            ready.pop(state, None)

    @property
    def ready(self) -> Iterator[PartitionFetch]:
        """The partitions that wait for a request."""
        return chain.from_iterable(self._ready.values())

    def take_ready(self) -> list[PartitionFetch]:
        """Remove and return the partitions that wait for a request."""
        taken = list(self.ready)
        for ready in self._ready.values():
            ready.clear()
        return taken

    @property
    def has_free_lane(self) -> bool:
        """Whether another request may be sent now, of any kind."""
        is_wide = len(self._ready[Demand.CAUGHT_UP]) >= WIDE_PARTITIONS
        return is_wide or self._free_lane(_BULK) is not None or self._free_lane(_POLL) is not None

    def _free_lane(self, kind: str) -> str | None:
        used = [planned for planned in self.in_flight.values() if planned.lane.startswith(kind)]
        if sum(not planned.is_abandoned for planned in used) >= LANES:
            return None
        lanes = LANES + (_ABANDONED_LANES if kind == _BULK else 0)
        return next((lane for n in range(lanes) if (lane := f"{kind}-{n}") not in self.in_flight), None)

    def plan_bulk(self, room: Room) -> PlannedFetch | None:
        """Return the bulk request to send now, or None. The partitions of the request no longer wait for a request."""
        self.is_held_back = False
        lane = self._free_lane(_BULK)
        if lane is None:
            return None
        if self._ready[Demand.UNKNOWN]:
            shares = self._divide(self._ready[Demand.UNKNOWN], room)
        else:
            shares = fill_answer(self._bites(room), self.bite.bytes)
        return self._send(lane, 0, shares) if shares else None

    def _bites(self, room: Room) -> Iterator[tuple[PartitionFetch, int]]:
        """
        Yield the partitions that are behind their logs' ends, in turn, and how many bytes to request of each partition.

        Partitions without buffered batches come first. If the buffer has no room, yield only awaited partitions.
        """
        behind, left, is_turn = self._ready[Demand.BEHIND], room.bulk_bytes, room.is_turn
        in_turn = chain((each for each in behind if not each.buffered), (each for each in behind if each.buffered))
        for state in in_turn:
            asked = self._bite_of(state)
            # A message that is too large for the buffer waits only until half of the buffer is free.
            if not is_turn or left < min(asked * state.expansion, self.config.fetch_buffer_bytes // 2):
                if not room.is_awaited(state):
                    self.is_held_back = True
                    if not room.starving:
                        return
                    # Another partition must not take the room for which this partition waits.
                    is_turn = False
                    continue
                # Request what the rest of the room allows, but not less than the smallest bite: each request costs a
                # round trip.
                asked = state.needed_bytes or min(asked, max(self.bite.least, int(left / state.expansion)))
            left -= int(asked * state.expansion)
            yield state, asked

    def _bite_of(self, state: PartitionFetch) -> int:
        """Return how many bytes to request of a partition that is behind its log's end."""
        most = min(self.bite.bytes, int(self.config.fetch_buffer_bytes / _BUFFER_PART / state.expansion))
        asked = state.needed_bytes or min(most, state.rest_bytes)
        return min(max(asked, min(LEAST_SHARE_BYTES, self.bite.bytes)), self.config.max_message_bytes)

    def plan_poll(self, room: Room) -> PlannedFetch | None:
        """Return the poll to send now, or None. The partitions of the poll no longer wait for a request."""
        ready = self._ready[Demand.CAUGHT_UP]
        if len(ready) >= WIDE_PARTITIONS:
            wide = next(name for n in count() if (name := f"{_WIDE}-{n}") not in self.in_flight)
            shares = self._divide(list(islice(ready, WIDE_PARTITIONS)), room)
            return self._send(wide, self.config.max_wait_ms, shares)
        lane = self._free_lane(_POLL)
        if lane is None or not ready:
            return None
        others = [planned for planned in self.in_flight.values() if planned.lane.startswith(_POLL)]
        if any(each.wait_ms <= SHORT_WAIT_MS for each in others) and all(state.idle for state in ready):
            return None
        wait_ms = min(self.config.max_wait_ms, SHORT_WAIT_MS) if others else self.config.max_wait_ms
        return self._send(lane, wait_ms, self._divide(ready, room))

    def _divide(self, partitions: Iterable[PartitionFetch], room: Room) -> dict[PartitionFetch, int]:
        return divide_budget(partitions, room.poll_bytes, self.config.max_message_bytes)

    def _send(self, lane: str, wait_ms: int, shares: dict[PartitionFetch, int]) -> PlannedFetch:
        reserved = 0
        for state, share in shares.items():
            self.remove(state)
            state.enter(Phase.FETCHING)
            reserved += int(share * state.expansion)
        planned = PlannedFetch(lane, wait_ms, shares, reserved if lane.startswith(_BULK) else 0)
        self.in_flight[lane] = planned
        return planned

    def abandoned_polls(self) -> list[str]:
        """Return the lanes of polls whose partitions were all dropped. A poll occupies its lane until its answer."""
        return [lane for lane, planned in self.in_flight.items() if not planned.is_bulk and planned.is_abandoned]


class BulkTurns:
    """
    The queue of the brokers whose bulk requests wait for room in the buffer.

    Without the queue, brokers with small requests would always take the free room, and a large request would starve.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, BrokerLanes] = {}

    def plan(self, broker: BrokerLanes, room: Room) -> PlannedFetch | None:
        """
        Return the bulk request to send to a broker now, or None. If the buffer lacks room, put the broker into the
        queue.

        While another broker is first in the queue, the request has only newly assigned partitions, or partitions for
        which callers wait.
        """
        first = next(iter(self._waiting), broker.node_id)
        planned = broker.plan_bulk(room if first == broker.node_id else room._replace(is_turn=False))
        if broker.is_held_back:
            self._waiting.setdefault(broker.node_id, broker)
        else:
            self._waiting.pop(broker.node_id, None)
        return planned

    @property
    def waiting(self) -> list[BrokerLanes]:
        """The brokers that wait, in their order."""
        return list(self._waiting.values())


def divide_budget(
    partitions: Iterable[PartitionFetch], budget_bytes: int, most_bytes: int
) -> dict[PartitionFetch, int]:
    """
    Divide a request's bytes among partitions.

    A partition with a large next message gets the bytes that the message needs. Other partitions get equal shares.
    Equal shares are ``most_bytes`` at most, because a larger message is refused.

    The first partition with a large message is always included. Further such partitions are included if their messages
    fit into the rest of the budget. Partitions that are not included wait for a later request.
    """
    shares: dict[PartitionFetch, int] = {}
    plain: list[PartitionFetch] = []
    room = budget_bytes
    for state in partitions:
        if not state.needed_bytes:
            plain.append(state)
        elif not shares or state.needed_bytes <= room:
            shares[state] = state.needed_bytes
            room -= state.needed_bytes
    if plain:
        share = max(room // len(plain), min(LEAST_SHARE_BYTES, budget_bytes))
        shares |= dict.fromkeys(plain, min(share, most_bytes))
    return shares
