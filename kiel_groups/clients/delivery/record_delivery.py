"""
Between what was fetched and what the application has finished.

A record is *in hand* from the moment it is handed out until the next one is asked for, a topic's values until who got
them asks for that topic again; only then they are finished, and only what is finished is ever committed by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from kiel_groups.clients.calls.callers import ConsumeCall, context_without_calls
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.delivery.in_flight import UNCLAIMED_S, InFlight, RecordInFlight, Span, ValuesInFlight
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.ready_claims import ReadyClaims
from kiel_groups.clients.fetch.fetcher import FetchedBatch, Fetcher
from kiel_groups.coordination.partition_handler import Work
from kiel_groups.coordination.session.delivery_gate import Gate
from kiel_groups.coordination.zookeeper.runtime import boot_time_s
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.group.member.subscription import PartitionState, SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, PartitionBatch, Record, TopicPartition

__all__ = ["RecordDelivery"]

log = logging.getLogger(__name__)

#: How long records are handed out without a pause for the event loop's other work, in seconds: an application that
#: never awaits must not hold up hand-overs and commits for as long as there are records.
QUANTUM_S = 0.01

#: How often a shut gate is looked at, in seconds. It opens from another thread, and seldom.
GATE_PAUSE_S = 0.02


class HasGate(Protocol):
    """Whose present gate is asked before every record; another session has another gate."""

    gate: Gate


class RecordDelivery:
    """Hands out records of the partitions that are held, and knows which of them are finished."""

    def __init__(
        self,
        fetcher: Fetcher,
        subscription: SubscriptionState,
        calls: ListenerCalls,
        member: HasGate,
        deserializer: Callable[[bytes], Any] | None,
        metrics: Metrics,
    ) -> None:
        self._fetcher = fetcher
        self._subscription = subscription
        self._calls = calls
        self._member = member
        self._deserializing = Deserializer(deserializer, metrics)
        self._keeps_bytes = deserializer is None
        self._metrics = metrics
        # The batch that is being handed out: its partition's state (None once that is lost or revoked) and records.
        self._batch_of: TopicPartition | None = None
        self._state: PartitionState | None = None
        self._records: list[Record] = []
        self._next = 0
        self._hand = RecordInFlight()
        self._topics: dict[str, ValuesInFlight] = {}
        # Topics that cannot be read, and why: to be raised once for each time that this was found.
        self._refused: dict[str, KielGroupsError] = {}
        #: The last call that asked for a topic's values.
        self._asked: object = None
        self._ready = ReadyClaims(subscription, calls, self._fetch)
        # Whether a loop goes on, and whether there ever was one: part of a batch may be left over from it.
        self._looping = False
        self._iterated = False
        # How many drains and resets wait for what is in hand.
        self._drains, self._let_go = 0, asyncio.Event()
        self._pause_at_s = float("inf")
        self._ended = False

    # ------------------------------------------------------------------ the application's side

    def take(self) -> Record | None:
        """
        Finish the record in hand, and hand out the next one; None where none is there, or the gate is shut.

        Raises:
            KielGroupsError: What the fetcher cannot get past.
        """
        hand = self._hand
        if hand.record is not None:
            self.finish()
        while self._next < len(self._records) or self._turn_over():
            now_s = boot_time_s()
            if now_s >= self._pause_at_s or not self._member.gate.is_open(now_s):
                return None
            record = self._records[self._next]
            self._next += 1
            state = self._state
            assert state is not None
            state.position = record.offset + 1
            if not self._keeps_bytes:
                readable = self._deserializing.record(record)
                if readable is None:
                    state.finished = state.position
                    continue
                record = readable
            hand.record, hand.state = record, state
            return record
        return None

    def _turn_over(self) -> bool:
        """Go to the next batch of a partition that is still held; whether there is one."""
        if self._refused:
            raise self._refused.popitem()[1]
        if self._drains:
            self._let_go.set()
        while not self._ended and (batch := self._fetcher.poll()) is not None:
            state = self._subscription.state(batch.topic_partition)
            if state is None:
                continue
            self._metrics.count("records_handed_out", len(batch.records))
            self._batch_of, self._state = batch.topic_partition, state
            self._records, self._next = batch.records, 0
            return True
        return False

    def take_topic(self, topic: str, most_bytes: int, taker: ConsumeCall) -> Batch:
        """
        Hand out values of one topic, about so many bytes as they came over the wire; [] where nothing is there.

        Raises:
            KielGroupsError: What the fetcher cannot get past; only where there is nothing else of the topic.
            ConfigError: Records are handed out to a loop, too: nobody could tell what is finished.
        """
        if self._iterated:
            raise ConfigError("the consumer is iterated over already; iterate over it or call consume(), not both")
        self._asked = taker
        parts: list[PartitionBatch] = []
        spans: dict[TopicPartition, Span] = {}
        room = most_bytes
        while room > 0 and (batch := self._poll_topic(topic, or_raise=not spans)) is not None:
            tp = batch.topic_partition
            state = self._subscription.state(tp)
            if state is None:
                continue
            parts.append(self._deserializing.part(tp, batch.records, state.token))
            start = spans[tp].start if tp in spans else batch.records[0].offset
            state.position = batch.records[-1].offset + 1
            spans[tp] = Span(state, start, state.position)
            self._metrics.count("records_handed_out", len(batch.records))
            room -= batch.size_bytes
        if spans:
            hand = self._topics.setdefault(topic, ValuesInFlight())
            hand.add(spans, taker, boot_time_s())
            if not any(part.values for part in parts):
                # All of it was passed over: nobody needs to get it, or has it in hand.
                taker.got = True
                self.finish_topics([topic], {taker})
        return Batch(part for part in parts if part.values)

    def _poll_topic(self, topic: str, *, or_raise: bool) -> FetchedBatch | None:
        if self._ended or not self._member.gate.is_open(boot_time_s()):
            return None
        try:
            if or_raise and topic in self._refused:
                raise self._refused.pop(topic)
            return self._fetcher.poll(topic)
        except KielGroupsError:
            if or_raise:
                raise
            return None

    def finish_topics(self, topics: Iterable[str] | None = None, takers: Collection[ConsumeCall] | None = None) -> bool:
        """
        Whoever took of these topics, or of any, by these calls, or by any, is done with what it got.

        So is who has asked for the topic again, or is gone. What nobody got is handed out again.

        Returns:
            Whether anything was in hand.
        """
        asked = self._topics.keys() & (self._topics if topics is None else set(topics))
        for topic in asked:
            self._topics[topic].finish(takers)
            self._settle(topic)
        return bool(asked)

    def give_up_unclaimed(self, topic: str) -> bool:
        """Hand out again what nobody will get of a topic; whether something may still be about to be got."""
        return topic in self._topics and self._settle(topic)

    def _settle(self, topic: str, now_s: float | None = None, *, finishes: bool = True) -> bool:
        hand, now_s = self._topics[topic], boot_time_s() if now_s is None else now_s
        self._hand_out_again(hand.settle(now_s, finishes=finishes))
        if not hand.takers:
            del self._topics[topic]
        self._let_go.set()
        return hand.is_awaited(now_s)

    def _hand_out_again(self, starts: Mapping[TopicPartition, int]) -> None:
        for partition, start in starts.items():
            state = self._subscription.state(partition)
            if state is not None and partition in self._ready and not self._ended:
                log.info("%s is handed out again from offset %d: nobody got what came from there", partition, start)
                self._metrics.count("values_unclaimed")
                state.position = start
                self._fetch([partition])

    async def topics_finished(self) -> None:
        """Ends when no values are in hand."""
        while self._topics:
            self._let_go.clear()
            await self._let_go.wait()

    def put_down_taken(self, takers: Collection[ConsumeCall] | None) -> None:
        """Whoever took by these, or by any, is busy with nothing any more; it is not finished, and comes again."""
        for topic, hand in list(self._topics.items()):
            if takers is None or hand.takers <= set(takers):
                del self._topics[topic]
        self._let_go.set()

    async def wait(self, topic: str | None = None) -> None:
        """Wait until ``take``, or ``take_topic``, may have something."""
        now_s = boot_time_s()
        if not self._member.gate.is_open(now_s):
            await asyncio.sleep(GATE_PAUSE_S)
        elif self._next < len(self._records):
            await asyncio.sleep(0)
        else:
            await self._fetcher.wait_for_batch(topic)
        self._pause_at_s = boot_time_s() + QUANTUM_S

    def count_hand(self) -> None:
        """Count the record in hand as finished, although the application may go on with it."""
        self._hand.count()

    def token_of(self, record: Record) -> int | None:
        """The fencing token under which the record in hand was handed out; None of any other, or one that is lost."""
        return self._hand.token_of(record)

    def finish(self) -> None:
        """The application is done with the record in hand."""
        self._hand.count()
        self._hand.clear()
        # Within a batch nothing ends that a drain or a reset waits for: retention may overtake a thousand partitions at
        # once, and then a thousand resets would wake up after each record.
        if self._drains and self._next >= len(self._records):
            self._let_go.set()

    def put_back(self) -> None:
        """The record in hand was not finished, and nobody processes it any more: it is the next one again."""
        record, state = self._hand.record, self._hand.state
        if record is not None and state is not None:
            state.position = record.offset
            if state is self._state:
                self._next -= 1
            else:
                # Its batch was dropped: the topic left the subscription, and may have come back.
                self._fetch([record.topic_partition])
        self._hand.clear()
        self._let_go.set()

    def end(self) -> None:
        """Hand out nothing more; the record in hand may still be finished."""
        self._ended = True
        self._batch_of = self._state = None
        self._records, self._next = [], 0
        self._deserializing.close()

    def enter(self) -> None:
        """
        A loop begins.

        Raises:
            ConfigError: Another loop goes on, or values of a topic are in hand.
        """
        if self._topics:
            raise ConfigError("consume() was called already; iterate over the consumer or call consume(), not both")
        if self._looping:
            raise ConfigError(
                "another loop over this consumer goes on: nobody could tell which of its records are finished; leave"
                " that one first, or use a consumer for each"
            )
        self._looping = self._iterated = True
        self._pause_at_s = boot_time_s() + QUANTUM_S

    def leave(self, *, finished: bool) -> None:
        """The loop was left, in order or by an exception: then its record is handed out again to whoever asks next."""
        self._looping = False
        if finished:
            self.finish()
        else:
            self.put_back()

    def _busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset().union(*(hand.busy_with(partitions) for hand in self._hands()))

    def _hands(self) -> list[InFlight]:
        return [self._hand, *self._topics.values()]

    def in_progress(self) -> list[Work]:
        """What the application is busy with, its listener included; for any thread."""
        works = self._calls.in_progress()
        record = self._hand.record
        if record is not None:
            works.append(Work(record, "processing", frozenset({record.topic_partition})))
        # Who asks for another topic gets on, too: programs in kiel's style take several in turns.
        busy: defaultdict[object, frozenset[TopicPartition]] = defaultdict(frozenset)
        for hand in list(self._topics.values()):
            for taker, partitions in hand.busy():
                busy[self._asked if taker.over else taker.coroutine.latest] |= partitions
        return works + [Work(token, "processing", partitions) for token, partitions in busy.items()]

    # ------------------------------------------------------------------ the group's side

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """Fetch these claims when the listener's hook has ended, unless ``stop`` or ``lost`` comes before that."""
        return self._ready.assigned(partitions)

    def _fetch(self, partitions: Collection[TopicPartition]) -> None:
        """
        Fetch these from their positions on, and drop what was fetched of them before.

        A partition whose assigned hook has not ended, or whose topic is not subscribed to, is fetched when it has ended
        or the topic is subscribed to again: until then its position may move, and nothing of it is delivered.
        """
        self._drop(partitions)
        topics = self._subscription.subscription
        positions, lost = {}, set()
        for partition in partitions:
            state = self._subscription.state(partition)
            if state is not None and partition in self._ready and partition.topic in topics:
                positions[partition] = state.position
                reset = state.reset
                if reset is not None and reset.start <= state.position <= reset.end:
                    # What was dropped is in the log still: fetched again, it leads to the records after the choice.
                    # Nothing beyond the end of the log counts as finished.
                    state.finished, state.reset = min(state.finished, reset.end), None
                elif reset is not None:
                    # The log may have grown past the lost position: only the choice leads to what is before that.
                    positions[partition] = reset.lost
                    lost.add(partition)
        # Tasks that the fetcher starts must not inherit the caller's context: they would be taken for the caller.
        context_without_calls().run(self._fetcher.assign, positions, lost)

    def follow_subscription(self) -> None:
        """Deliver no more of topics that were unsubscribed; topics that came back go on from their positions."""
        topics, fetched = self._subscription.subscription, self._fetcher.assignment
        self._refused = {topic: error for topic, error in self._refused.items() if topic in topics}
        self._fetch([partition for partition in self._ready if (partition.topic in topics) != (partition in fetched)])

    def refused(self, topic: str, error: KielGroupsError) -> None:
        """Where to start in a topic cannot be told: whoever asks for it next is told why."""
        if topic in self._subscription.subscription:
            self._refused[topic] = error
            self._fetcher.wake(topic)

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Fetch and hand out no more of these; returns those of which something is in hand."""
        self._ready.remove(partitions)
        self._drop(partitions)
        return self._busy_with(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        """Ends when nobody is busy with anything of these, and the listener was told."""
        self._drains += 1
        looking = spawn(self._drop_unclaimed({partition.topic for partition in partitions}), "drop of unclaimed values")
        try:
            while self._busy_with(partitions):
                self._let_go.clear()
                await self._let_go.wait()
        finally:
            looking.cancel()
            self._drains -= 1
        await self._calls.revoked(partitions)

    async def _drop_unclaimed(self, topics: Collection[str]) -> None:
        """Give up the values of these topics that no caller has got, now and then: perhaps none asks again."""
        while True:
            now_s = boot_time_s()  # A blocked loop delays a caller as well: the time of the pause does not count.
            await asyncio.sleep(UNCLAIMED_S)
            for topic in self._topics.keys() & topics:
                self._settle(topic, now_s, finishes=False)

    def while_fetched(self, partition: TopicPartition) -> Callable[[], bool]:
        """Return a function that tells whether a partition is still fetched as it is now: held, and not sought."""
        epoch = self._fetcher.epoch(partition)
        return lambda: epoch is not None and self._fetcher.epoch(partition) == epoch

    def cut(self, partition: TopicPartition, end: int) -> int:
        """
        The log of a partition ends at ``end`` now: drop what is buffered from there on, and stop counting what is in
        flight of it.

        Returns:
            How many buffered records were dropped.
        """
        dropped = self._fetcher.cut(partition, end)
        if self._batch_of == partition:
            left = [record for record in self._records if record.offset < end]
            dropped += len(self._records) - max(len(left), self._next)
            self._records = left
        for hand in self._hands():
            hand.cut(partition, end)
        return dropped

    async def put_down(self, partition: TopicPartition, is_fetched: Callable[[], bool]) -> None:
        """Wait until nothing of a partition is buffered or in flight; ends early where ``is_fetched`` does not hold."""
        self._drains += 1
        try:
            while is_fetched() and (self._is_buffered(partition) or self._busy_with([partition])):
                self._let_go.clear()
                await self._let_go.wait()
        finally:
            self._drains -= 1

    def _is_buffered(self, partition: TopicPartition) -> bool:
        in_batch = self._batch_of == partition and self._next < len(self._records)
        return in_batch or self._fetcher.is_buffering(partition)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop everything of these; what is in hand of them does not count any more."""
        self._ready.remove(partitions)
        self._drop(partitions)
        for hand in self._hands():
            hand.disown(partitions)
        self._calls.lost(partitions)

    def moved(self, partition: TopicPartition, offset: int) -> None:
        """Deliver from ``offset`` on, once the assigned hook has ended; what is in flight does not count any more."""
        for hand in self._hands():
            hand.disown([partition])
        if (state := self._subscription.state(partition)) is not None:
            state.position = offset
        self._fetch([partition])

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        self._fetcher.unassign(partitions)
        self._let_go.set()
        if self._batch_of in partitions:
            self._batch_of = self._state = None
            self._records, self._next = [], 0
