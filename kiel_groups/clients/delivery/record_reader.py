"""
Deliver records to ``getone``, ``getmany``, ``consume_batches`` and ``consume``, with or without a group.

A loop gets records one by one. Each of these calls gets buffered records, in a form of its own. The records that a call
returned are *in flight* until the receiving coroutine calls again: after ``consume()``, until it calls for the same
topic. Then the records are finished. Automatic commits store only the offsets of finished records.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from kiel_groups.clients.calls.arguments import check_converters, check_on_bad_record
from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery.deserializer import Converted, Deserializer, OnBadRecord
from kiel_groups.clients.delivery.in_flight import UNCLAIMED_S, Span, ValuesInFlight
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.delivery.position_reset import PositionReset, ResetBrokers, ResetMember, ResetRule
from kiel_groups.clients.delivery.record_loop import RecordDelivery
from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import BrokerConfig, FetchConfig, ResetPolicy
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, FencingToken, PartitionBatch, Record, TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from kiel_groups.zookeeper.runtime import Runtime

log = logging.getLogger(__name__)


T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", covariant=True)


@dataclass(frozen=True, slots=True)
class Form(Generic[R, F]):
    """
    The form in which a call returns records: records, columns, or values.

    ``convert`` makes the records of one batch, and ``collect`` makes the call's result from all its batches.
    """

    convert: Callable[[Deserializer, FetchedBatch, FencingToken], Converted[R]]
    collect: Callable[[Iterable[tuple[TopicPartition, R]]], F]


Lists: TypeAlias = dict[TopicPartition, list[T]]


def _lists(taken: Iterable[tuple[TopicPartition, list[T]]]) -> Lists[T]:
    found: Lists[T] = {}
    for partition, items in taken:
        found.setdefault(partition, []).extend(items)
    return found


#: Records by partition, in order within each.
RECORDS: Form[list[Record], Lists[Record]] = Form(Deserializer.records, _lists)
#: Columns by partition: an item for each run of records.
COLUMNS: Form[list[RecordColumns], Lists[RecordColumns]] = Form(Deserializer.columns, _lists)
#: The values of a topic.
VALUES: Form[PartitionBatch, Batch] = Form(Deserializer.values, lambda taken: Batch(part for _, part in taken))


class ValueDelivery:
    """
    Delivers the owned records to calls, as values of a topic or as records, and tracks the records in flight of calls.

    The values of a topic are tracked under the topic's name. Records are tracked under None.
    """

    def __init__(self, owned: OwnedRecords, metrics: Metrics) -> None:
        self._owned = owned
        self._in_flight = owned.in_flight
        self._topics = owned.in_flight.topics
        self._metrics = metrics

    def take(
        self,
        selection: Selection,
        form: Form[R, T],
        call: ConsumeCall,
        most_records: int | None = None,
        most_bytes: int | None = None,
    ) -> T:
        """
        Return buffered records of the selected partitions.

        The result is empty if there are no records, or while the gate is shut (the session does not permit delivery).
        If this method raises, the records that it took are delivered again.

        Args:
            selection: The partitions. The values of a topic are tracked under the topic's name.
            form: The form of the result.
            call: The call that returns the records.
            most_records: The most records to return; None for no limit.
            most_bytes: The approximate most bytes to return, in the size of the records as fetched; None for no limit.

        Raises:
            KielGroupsError: There are no records, and a partition cannot be read or a start position is unknown.
        """
        self._in_flight.last_call = call
        found: list[tuple[TopicPartition, R]] = []
        spans: dict[TopicPartition, Span] = {}
        last: dict[TopicPartition, FetchedBatch] = {}
        records, size = most_records, most_bytes
        try:
            while records != 0 and (size is None or size > 0):
                batch = self._owned.poll(selection, form.convert, records, errors=not spans)
                if batch is None:
                    break
                fetched, partition = batch.fetched, batch.fetched.topic_partition
                start = spans[partition].start if partition in spans else fetched.first_offset
                batch.state.position = end = fetched.last_offset + 1
                spans[partition], last[partition] = Span(batch.state, start, end), fetched
                if batch.delivered:
                    found.append((partition, batch.records))
                records = None if records is None else records - batch.delivered
                size = None if size is None else size - fetched.size_bytes
        except BaseException:
            # Even SystemExit.
            for partition, span in spans.items():
                self._redeliver(partition, span.start)
            raise
        for partition, fetched in last.items():
            if not self._owned.is_current(fetched):
                # A deserializer has called ``seek``. As after any seek, what was taken before is not tracked.
                spans[partition] = spans[partition]._replace(state=None)
        self._track(selection.topic, spans, call, is_empty=not found)
        return form.collect(found)

    def _track(
        self, topic: str | None, spans: dict[TopicPartition, Span], call: ConsumeCall, *, is_empty: bool
    ) -> None:
        """Track the records that a call is about to return. If ``is_empty``, the deserializer skipped all records."""
        if not spans:
            return
        if is_empty:
            # Nothing that a caller could receive. The call itself may go on, and receive other values or give up.
            call = ConsumeCall()
            call.received = call.superseded = True
        self._topics.setdefault(topic, ValuesInFlight()).add(spans, call, self._owned.boot_time_s())
        if is_empty:
            self.finish([topic], {call})

    def finish(self, topics: Iterable[str | None] | None = None, calls: Collection[ConsumeCall] | None = None) -> bool:
        """
        Finish values that a caller has received, and return whether values of these topics were in flight.

        Also finish values whose coroutine has asked for more values or has ended, and redeliver values that no caller
        will receive.

        Args:
            topics: The topics of the values. An element None means records. By default, all topics and records.
            calls: The calls that returned the values. None means all calls.
        """
        asked = self._topics.keys() & (self._topics if topics is None else set(topics))
        for topic in asked:
            self._topics[topic].finish(calls)
            self._settle(topic)
        return bool(asked)

    def redeliver_unclaimed(self, topic: str | None) -> bool:
        """Redeliver values of a topic that no caller will receive. Return whether a caller may still receive values."""
        return topic in self._topics and self._settle(topic)

    def _settle(self, topic: str | None, now_s: float | None = None, *, finishes: bool = True) -> bool:
        values, now_s = self._topics[topic], self._owned.boot_time_s() if now_s is None else now_s
        for partition, start in values.settle(now_s, finishes=finishes).items():
            self._redeliver(partition, start)
        if not values.calls:
            del self._topics[topic]
        self._owned.progress.notify()
        return values.is_awaited(now_s)

    def _redeliver(self, partition: TopicPartition, start: int) -> None:
        state = self._owned.claim_of(partition)
        if state is not None:
            log.info("%s: delivering again from offset %d: no caller received the values", partition, start)
            self._metrics.count("values_unclaimed")
            state.position = start
            self._owned.fetch([partition])

    async def all_finished(self) -> None:
        """Wait until no values are in flight."""
        await self._owned.progress.until(lambda: not self._topics)

    def drop(self, calls: Collection[ConsumeCall] | None) -> None:
        """
        Stop tracking topics whose values all come from these calls, so that the values are delivered again.

        None as ``calls`` means all topics.
        """
        for topic, values in list(self._topics.items()):
            if calls is None or values.calls <= set(calls):
                del self._topics[topic]
        self._owned.progress.notify()

    async def drop_unclaimed(self, topics: Collection[str]) -> None:
        """
        Until cancelled, drop values of these topics that no caller will receive, every ``UNCLAIMED_S`` seconds.

        So a drain of the topics' partitions does not wait for these values. Records that no caller will receive are
        also dropped.
        """
        while True:
            now_s = self._owned.boot_time_s()  # Read before the pause: a blocked loop also delays the callers.
            await asyncio.sleep(UNCLAIMED_S)
            for topic in self._topics.keys() & {*topics, None}:
                self._settle(topic, now_s, finishes=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """
    The settings of a consumer that its reader uses.

    Raises:
        ConfigError: A function has the wrong type.
    """

    brokers: BrokerConfig
    fetching: FetchConfig
    deserializer: Callable[[bytes], Any] | None = None
    key_deserializer: Callable[[bytes], Any] | None = None
    on_bad_record: OnBadRecord = "raise"
    metrics: Metrics = field(default_factory=Metrics)
    runtime: Runtime = field(default_factory=Runtime)

    def __post_init__(self) -> None:
        check_converters(deserializer=self.deserializer, key_deserializer=self.key_deserializer)
        check_on_bad_record(self.on_bad_record)


def _available(callers: dict[ConsumeCall, Selection], call: ConsumeCall) -> Selection | None:
    """
    Return the partitions from which a call may take records now, or None if it may not take records.

    Newer calls get records first, because the callers of older calls may have given up.
    """
    excluded: set[TopicPartition] = set()
    for other in itertools.takewhile(lambda other: other is not call, reversed(callers.keys())):
        partitions = callers[other].partitions
        if partitions is None:
            return None
        excluded |= partitions
    return replace(callers[call], excluded=frozenset(excluded)) if excluded else callers[call]


class RecordReader:
    """
    Reads and delivers records: the parts of a connected consumer that need no group.

    The application's calls use the parts ``cluster``, ``records``, ``values`` and ``owned``. ``ConnectedConsumer`` or
    ``AssignedConsumer`` decides which partitions are read, and sets the gate that permits delivery.

    Args:
        settings: The consumer's settings.
        subscription: The state of the consumer's partitions.
        calls: Calls the hooks of the consumer's listener, if it has one.
        cluster: The brokers; closed with the reader.
    """

    def __init__(
        self, settings: ReaderSettings, subscription: SubscriptionState, calls: ListenerCalls, cluster: ClusterMetadata
    ) -> None:
        self._settings = settings
        self._subscription = subscription
        #: The selections of the calls of ``next`` in progress, by topic or under None, the newest call last.
        self._callers: defaultdict[str | None, dict[ConsumeCall, Selection]] = defaultdict(dict)
        self.calls = calls
        self.cluster = cluster
        self.fetcher = Fetcher(
            cluster,
            settings.fetching,
            settings.metrics,
            reset=lambda partition, position: self._position_reset(partition, position),
            runtime=settings.runtime,
            watermark=subscription.set_highwater,
        )
        deserializer = Deserializer(
            settings.deserializer,
            settings.metrics,
            settings.runtime.boot_time_s,
            key_deserializer=settings.key_deserializer,
            on_bad_record=settings.on_bad_record,
        )
        self.owned = OwnedRecords(self.fetcher, subscription, calls, deserializer, settings.runtime, settings.metrics)
        self.records = RecordDelivery(self.owned)
        self.values = ValueDelivery(self.owned, settings.metrics)

    def reset_positions(self, policy: ResetPolicy | ResetRule, member: ResetMember) -> None:
        """Set how positions are reset that are not in the log. Call this method before the first fetch."""
        brokers = ResetBrokers.of(self.cluster)
        self._position_reset = PositionReset(
            policy, brokers, self._subscription, self.owned, member, self._settings.metrics
        )

    def close(self) -> None:
        """Stop fetching, and close the connections."""
        self.end(None)
        self.owned.bad.close()
        self.fetcher.close()
        self.cluster.close()

    def end(self, error: KielGroupsError | None) -> None:
        """Stop all deliveries. Loops and calls end, or raise ``error`` if it is given. Later calls do nothing."""
        if not self.owned.ended:
            self.owned.end(error)
            self.owned.progress.notify()
            self.fetcher.ready.wake_all()

    async def next(
        self,
        selection: Selection,
        form: Form[R, T],
        call: ConsumeCall,
        timeout_s: float | None,
        most_records: int | None = None,
        most_bytes: int | None = None,
    ) -> T | None:
        """
        Wait for records of the selected partitions, and return them as ``ValueDelivery.take`` does.

        The result is empty if no records came within ``timeout_s`` seconds, or if the caller's coroutine has called
        again. With None as ``timeout_s``, there is no time limit. The result is None once the consumer is closed.

        Raises:
            NoBrokersError: No records came, and ``UNREACHABLE_AFTER`` metadata requests in a row were not answered.
            KielGroupsError: The member stopped for good, or a partition cannot be read.
        """
        loop, topic = asyncio.get_running_loop(), selection.topic
        callers = self._callers[topic]
        give_up_s = float("inf") if timeout_s is None else loop.time() + timeout_s

        callers[call] = selection
        try:
            # A buffered error is raised without a wait. A caller that retries in a loop must not starve the event loop.
            await asyncio.sleep(0)
            while not self.owned.ended:
                # Unclaimed values are redelivered before the values after them are taken.
                is_awaited = self.values.redeliver_unclaimed(topic)
                available = None if call.superseded else _available(callers, call)
                if available is None:
                    taken = form.collect(())
                else:
                    taken = self.values.take(available, form, call, most_records, most_bytes)
                if taken or call.superseded:
                    return taken
                patience_s = give_up_s - loop.time()
                if patience_s <= 0 and self.cluster.unreachable is not None:
                    raise self.cluster.unreachable
                if patience_s <= 0:
                    return taken
                await self._wait(selection, min(patience_s, UNCLAIMED_S) if is_awaited else patience_s)
        finally:
            del callers[call]
        self.owned.raise_failure()
        return None

    async def _wait(self, selection: Selection, patience_s: float) -> None:
        """Wait until records of these partitions may have come, or until the time is up or the consumer has ended."""
        if patience_s == float("inf"):
            await self.owned.wait(selection)
            return
        # A record that has arrived is delivered by the next step of this task. A task for the wait would cost two more
        # steps, and the next fetch would be sent before the record is delivered.
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.owned.wait(selection)
