"""Read and deliver the records of one connected consumer, with or without a group, on one event loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from kiel_groups.clients.calls.arguments import check_functions, check_on_bad_record
from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.calls.eager_methods import home_loop
from kiel_groups.clients.delivery.deserializer import Deserializer, OnBadRecord
from kiel_groups.clients.delivery.in_flight import UNCLAIMED_S
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.delivery.record_loop import RecordDelivery
from kiel_groups.clients.delivery.value_delivery import ValueDelivery
from kiel_groups.clients.fetch.fetcher import Fetcher, ResetCallback, Selection
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import BrokerConfig, FetchConfig
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, Record, TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from kiel_groups.zookeeper.runtime import Runtime

__all__ = ["ReaderSettings", "RecordReader"]

_Taken = TypeVar("_Taken")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """
    The settings of a consumer that its reading depends on.

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
        check_functions(deserializer=self.deserializer, key_deserializer=self.key_deserializer)
        check_on_bad_record(self.on_bad_record)


@dataclass(frozen=True, slots=True, eq=False)
class _Asking:
    """A call that waits, and what it asks for."""

    call: ConsumeCall
    selection: Selection


def _available(callers: Sequence[_Asking], asking: _Asking) -> Selection | None:
    """
    Return what a call may take now, or None for nothing.

    Newer calls get records first: the callers of older ones may have given up.
    """
    newer = [other.selection.partitions for other in callers[callers.index(asking) + 1 :]]
    excluded: set[TopicPartition] = set()
    for partitions in newer:
        if partitions is None:
            return None
        excluded |= partitions
    return replace(asking.selection, excluded=frozenset(excluded)) if excluded else asking.selection


class RecordReader:
    """
    The parts of a connected consumer that need no group.

    The application's calls reach the parts ``cluster``, ``records``, ``values`` and ``owned`` from here. Which
    partitions are read, and while which gate is open, is decided by ``ConnectedConsumer`` or ``AssignedConsumer``.

    Args:
        settings: How to read.
        subscription: The state of the consumer's partitions.
        calls: Calls the hooks of the consumer's listener, if it has one.
        cluster: The brokers; closed with the reader.
        reset: Chooses another position when a log does not have the old one.
    """

    def __init__(
        self,
        settings: ReaderSettings,
        subscription: SubscriptionState,
        calls: ListenerCalls,
        cluster: ClusterMetadata,
        reset: ResetCallback,
    ) -> None:
        self._settings = settings
        self._over: asyncio.Future[KielGroupsError | None] = home_loop().create_future()
        #: Calls of ``next_values`` under way, by topic, and of ``next_records``, under None; the newest last.
        self._callers: defaultdict[str | None, list[_Asking]] = defaultdict(list)
        self.cluster = cluster
        self.fetcher = Fetcher(
            cluster,
            settings.fetching,
            settings.metrics,
            reset=reset,
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

    def close(self) -> None:
        """Stop fetching, and close the connections."""
        self.end(None)
        self.owned.bad.close()
        self.fetcher.close()
        self.cluster.close()

    @property
    def is_over(self) -> bool:
        """Whether all deliveries have ended."""
        return self._over.done()

    def end(self, error: KielGroupsError | None) -> None:
        """Stop all deliveries. Loops end, or raise ``error`` if an error is given."""
        if not self._over.done():
            self._over.set_result(error)
            self.owned.end()
            self.owned.progress.notify()
            self.fetcher.ready.wake_all()

    async def next_record(self) -> Record | None:
        """
        Wait for the next record, however long it takes. Return None once the consumer is closed.

        Raises:
            KielGroupsError: The member stopped for good, or a partition cannot be read.
        """
        record = await self._take_else_wait(self.records.take, self.records.wait)
        if record is None:
            self._raise_failure()
        return record

    async def next_values(self, topic: str, call: ConsumeCall, timeout_s: float | None = None) -> Batch | None:
        """
        Return values of one topic, or None once the consumer is closed.

        The result is [] if no values came within ``timeout_s`` (None: ``max_wait_ms``), or if the caller's coroutine
        has called again.

        Raises:
            NoBrokersError: No values came, and ``UNREACHABLE_AFTER`` metadata requests in a row were not answered.
            KielGroupsError: The member stopped for good, or a partition cannot be read.
        """
        most_bytes = self._settings.fetching.max_bytes
        if timeout_s is None:
            timeout_s = self._settings.fetching.max_wait_ms / 1000
        return await self._next(
            _Asking(call, Selection(topic)), timeout_s, lambda _: self.values.take(topic, most_bytes, call), Batch
        )

    async def next_records(
        self,
        call: ConsumeCall,
        partitions: frozenset[TopicPartition] | None,
        most_records: int | None,
        timeout_s: float | None,
    ) -> dict[TopicPartition, list[Record]] | None:
        """
        Return records of these partitions (None: of all), or None once the consumer is closed.

        The result is {} if no records came within ``timeout_s`` (None: no limit), or if the caller's coroutine has
        called again.

        Raises:
            NoBrokersError: As ``next_values``.
            KielGroupsError: As ``next_values``.
        """
        return await self._next(
            _Asking(call, Selection(None, partitions)),
            timeout_s,
            lambda selection: self.values.take_records(selection, most_records, call),
            dict,
        )

    async def next_columns(
        self,
        call: ConsumeCall,
        partitions: frozenset[TopicPartition] | None,
        most_records: int | None,
        timeout_s: float | None,
    ) -> dict[TopicPartition, list[RecordColumns]] | None:
        """
        Return what ``next_records`` returns, but as columns.

        Raises:
            NoBrokersError: As ``next_values``.
            KielGroupsError: As ``next_values``.
        """
        return await self._next(
            _Asking(call, Selection(None, partitions)),
            timeout_s,
            lambda selection: self.values.take_columns(selection, most_records, call),
            dict,
        )

    async def _next(
        self,
        asking: _Asking,
        timeout_s: float | None,
        take: Callable[[Selection], _Taken],
        nothing: Callable[[], _Taken],
    ) -> _Taken | None:
        """Call ``take`` until it returns something, or the time is up; return None once the consumer is closed."""
        loop, call, topic = asyncio.get_running_loop(), asking.call, asking.selection.topic
        callers = self._callers[topic]
        give_up_s = float("inf") if timeout_s is None else loop.time() + timeout_s

        def take_now() -> _Taken | None:
            # Before the values behind them are taken.
            self.values.redeliver_unclaimed(topic)
            selection = None if call.superseded else _available(callers, asking)
            taken = nothing() if selection is None else take(selection)
            if taken or call.superseded:
                return taken
            if loop.time() < give_up_s:
                return None
            if self.cluster.unreachable is not None:
                raise self.cluster.unreachable
            return taken

        def patience_s() -> float | None:
            remaining_s = None if timeout_s is None else give_up_s - loop.time()
            if not self.values.redeliver_unclaimed(topic):
                return remaining_s
            return UNCLAIMED_S if remaining_s is None else min(remaining_s, UNCLAIMED_S)

        callers.append(asking)
        try:
            # A buffered error is raised without a wait. A caller that retries in a loop must not starve the event loop.
            await asyncio.sleep(0)
            taken = await self._take_else_wait(take_now, partial(self.owned.wait, asking.selection), patience_s)
        finally:
            callers.remove(asking)
        if taken is None:
            self._raise_failure()
        return taken

    async def _take_else_wait(
        self,
        take: Callable[[], _Taken | None],
        wait: Callable[[], Coroutine[Any, Any, None]],
        patience_s: Callable[[], float | None] = lambda: None,
    ) -> _Taken | None:
        """
        Call ``take`` until it does not return None, and return its result; return None once the consumer has ended.

        Between two tries, wait until ``wait`` returns, as it does when the consumer ends, or ``patience_s()`` seconds
        have passed.
        """
        while not self._over.done():
            taken = take()
            if taken is not None:
                return taken
            # A record that has arrived is delivered by the next step of this task. A task for the wait would cost two
            # more, and the next fetch would be sent before the record is delivered.
            timeout_s = patience_s()
            if timeout_s is None:
                await wait()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await wait()
        return None

    def _raise_failure(self) -> None:
        error = self._over.result()
        if error is not None:
            raise error

    # ------------------------------------------------------------------ what is finished

    def finish_topic(self, topic: str) -> bool:
        """Finish the topic's values whose coroutine has asked again or ended. Return whether there were values."""
        return self.values.finish([topic], ())

    def finish_records(self) -> None:
        """Finish the records of ``next_records`` whose coroutine has asked again or ended."""
        self.values.finish([None], ())
