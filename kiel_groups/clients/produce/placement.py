"""Place records in the queues of their partitions. Keep records while the partitions of their topic are looked up."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import Any, NamedTuple

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.produce.batches import MESSAGE_OVERHEAD_BYTES, messages_bytes
from kiel_groups.clients.produce.outcomes import Outcome, settle_failed
from kiel_groups.clients.produce.partitioners import Partitioner, as_number, divide, with_any_sequence
from kiel_groups.clients.produce.sender import PartitionQueue, Sender
from kiel_groups.config import check_name
from kiel_groups.errors import ClosedError, ConfigError, KielGroupsError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted

log = logging.getLogger(__name__)

#: The least time between two log lines about records of a topic that cannot be sent, in seconds.
_LOG_PAUSE_S = 10.0


class Unplaced(NamedTuple):
    """Records of one call whose partitions are not known yet. The partitioner chooses if a partition is None."""

    #: The keys as the application gave them, for the partitioner.
    app_keys: Sequence[Any]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    partitions: Sequence[int | None]
    outcomes: Sequence[Outcome]
    #: Whether the producer sends these records, and all that wait, at once.
    ends_round: bool = False


@dataclass(slots=True)
class _Lookup:
    """
    A running lookup of a topic's partitions, and the calls whose records wait for it, oldest first.

    ``known`` are the partitions whose records do not wait, because no record before them does. It is None if all
    records of the topic wait. ``ended`` is done when the lookup has ended.
    """

    known: tuple[int, ...] | None
    ended: asyncio.Future[None]
    calls: list[Unplaced] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class _Refused(NamedTuple):
    """How many records of a topic were refused since the last log line about it, and the error of the last one."""

    records: int
    error: Exception | None


class Placement:
    """
    Adds records to the queues of their partitions, on one event loop.

    While the partitions of a topic are looked up for the first time, all its records wait, so that they keep their
    order. The partitions are looked up again before a record is refused because its partition is above the known ones:
    partitions may have been added. Then other records wait only behind a call that has records for both. If no broker
    answers, only the calls with such records fail.

    ``used`` is called before a lookup.
    """

    def __init__(
        self,
        cluster: ClusterMetadata,
        sender: Sender,
        metrics: Metrics,
        choose: Partitioner,
        retries: int,
        used: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._sender = sender
        self._metrics = metrics
        self._retries = retries
        self._choose = with_any_sequence(choose)
        self._used = used
        #: The partition numbers of each topic as last seen, and the queues of these partitions.
        self._queues = sender.appender.topics
        self._lookups: dict[str, _Lookup] = {}
        #: When a topic was last looked up without a partition that the application had given, on the loop's clock.
        self._missed_s: dict[str, float] = {}
        #: By topic, for ``_LOG_PAUSE_S`` after each log line.
        self._refused: dict[str, _Refused] = {}

    @property
    def waiting(self) -> Iterator[Outcome]:
        """The outcomes of the records that wait for a lookup."""
        return (outcome for lookup in self._lookups.values() for outcome in _outcomes(lookup.calls))

    async def placed(self) -> None:
        """Wait until the records that wait now are in queues, or have failed."""
        if self._lookups:
            await asyncio.wait([lookup.ended for lookup in self._lookups.values()])

    def close(self) -> None:
        """Fail the records that wait for a lookup."""
        for topic, lookup in list(self._lookups.items()):
            calls = self._end(topic)
            if lookup.task is not None:
                lookup.task.cancel()
            error = ClosedError(f"the producer was closed before the partitions of {topic} were known")
            self.refuse(topic, _outcomes(calls), error)
        while self._refused:
            self._log_rest(next(iter(self._refused)))

    # ------------------------------------------------------------------ adding

    def add(
        self,
        topic: str,
        key: Any,
        encoded_key: bytes | None,
        value: bytes | None,
        partition: int | None,
        outcome: Outcome,
    ) -> None:
        """Add one record. ``outcome`` gets its place, or the error. Raise ConfigError if the topic is not legal."""
        numbers = self._known(topic)
        if numbers is not None:
            try:
                queue = self._queue(topic, numbers, self._choose(key, numbers) if partition is None else partition)
            except Exception as error:  # the application's partitioner may raise anything
                if not self._may_have_grown(topic, numbers, [partition], looked_up=False):
                    self.refuse(topic, [outcome], error)
                    return
            else:
                size_bytes = MESSAGE_OVERHEAD_BYTES + len(value or b"") + len(encoded_key or b"")
                self._sender.add(queue, encoded_key, value, size_bytes, outcome)
                return
        self._look_up(topic, Unplaced([key], [encoded_key], [value], [partition], [outcome]))

    def add_many(self, topic: str, records: Unplaced) -> None:
        """Add the records of one call, or none if one is not valid. Raise ConfigError if the topic is not legal."""
        numbers = self._known(topic)
        if numbers is None:
            self._look_up(topic, records)
        else:
            self._place(topic, numbers, records, looked_up=False)

    def _known(self, topic: str) -> tuple[int, ...] | None:
        if type(topic) is not str:
            check_name(topic, "topic")
        lookup = self._lookups.get(topic)
        return self._cluster.known_partitions(topic) if lookup is None else lookup.known

    def _queue(self, topic: str, numbers: tuple[int, ...], partition: int) -> PartitionQueue:
        """Return the queue of a partition. Raise ConfigError if ``numbers``, the present partitions, lack it."""
        known = self._queues.get(topic)
        if known is None or known[0] is not numbers:
            queues = {number: self._sender.queue_of(TopicPartition(topic, number)) for number in numbers}
            known = self._queues[topic] = (numbers, queues)
        try:
            return known[1][partition if partition in known[1] else index(partition)]
        except (KeyError, TypeError):
            raise ConfigError(f"partition: {partition!r} given; {topic} has {numbers[0]} to {numbers[-1]}") from None

    def _place(self, topic: str, numbers: tuple[int, ...], records: Unplaced, *, looked_up: bool) -> None:
        """Queue the records of one call. If one of them cannot be placed, refuse them all, or look up first."""
        try:
            shares = [
                (self._queue(topic, numbers, partition), indexes)
                for partition, indexes in divide(self._choose, records.app_keys, records.partitions, numbers)
            ]
        except Exception as error:  # the application's partitioner may raise anything
            if self._may_have_grown(topic, numbers, records.partitions, looked_up=looked_up):
                self._look_up(topic, records)
            else:
                self.refuse(topic, records.outcomes, error)
            return
        for queue, indexes in shares:
            keys, values = [records.keys[each] for each in indexes], [records.values[each] for each in indexes]
            self._sender.add_many(queue, keys, values, [records.outcomes[each] for each in indexes])
        if records.ends_round:
            self._sender.send_waiting()

    def refuse(self, topic: str, outcomes: Sequence[Outcome], error: Exception) -> None:
        """Fail records that were never sent. Log the first ones at once, and the next ones together."""
        self._metrics.count("produce_failures", len(outcomes))
        for outcome in outcomes:
            settle_failed(outcome, error)
        unlogged = self._refused.get(topic)
        if unlogged is not None:
            self._refused[topic] = _Refused(unlogged.records + len(outcomes), error)
            return
        log.error("%s for %s cannot be sent: %s", counted(outcomes, "record"), topic, _reason(error))
        self._refused[topic] = _Refused(0, None)
        asyncio.get_running_loop().call_later(_LOG_PAUSE_S, self._log_rest, topic)

    def _log_rest(self, topic: str) -> None:
        count, error = self._refused.pop(topic, _Refused(0, None))
        if count and error is not None:
            records = counted(count, "more record")
            log.error("%s for %s could not be sent: %s", records, topic, _reason(error))

    # ------------------------------------------------------------------ lookups

    def _may_have_grown(
        self, topic: str, numbers: tuple[int, ...], given: Iterable[int | None], *, looked_up: bool
    ) -> bool:
        """
        Return whether a given partition may have been added since the lookup that has found ``numbers``.

        ``looked_up`` says that this lookup has just ended. A program that gives a wrong partition again and again must
        not keep the topic's other records waiting: after a lookup in vain, there is none for ``backoff_ms``.
        """
        if not any(_are_above(numbers, given)):
            return False
        if topic in self._lookups:
            return True
        now_s = asyncio.get_running_loop().time()
        if looked_up:
            self._missed_s[topic] = now_s
            return False
        return now_s - self._missed_s.get(topic, -math.inf) >= self._cluster.config.backoff_ms / 1000

    def _look_up(self, topic: str, records: Unplaced) -> None:
        """
        Keep records until the partitions of their topic are known, and look them up, unless a lookup is running.

        Raise ConfigError if the topic's name is not legal.
        """
        known = self._known(topic)
        if topic not in self._lookups:
            check_name(topic, "topic")
            self._used()
            self._lookups[topic] = _Lookup(known, asyncio.get_running_loop().create_future())
            self._start(topic)
        lookup = self._lookups[topic]
        if known is None or not all(_are_above(known, records.partitions)):
            # Later records must not overtake these.
            lookup.known = None
            self._queues.pop(topic, None)
        lookup.calls.append(records)
        self._sender.appender.buffered_bytes += messages_bytes(records.keys, records.values)

    def _start(self, topic: str) -> None:
        if topic in self._lookups:
            resume = partial(self._start, topic)
            self._lookups[topic].task = spawn(self._find_partitions(topic), f"lookup of {topic}", resume)

    async def _find_partitions(self, topic: str) -> None:
        failure: KielGroupsError | None = None
        backoff = self._cluster.new_backoff()
        for failures in range(self._retries + 1):
            await asyncio.sleep(backoff.delay_s(failures))
            failure = None
            try:
                await self._cluster.await_topics([topic])
            except KielGroupsError as error:
                failure = error
            except Exception as error:
                # A bug, or garbage from the broker. The records must not wait for ever.
                log.exception("the lookup of %s failed in a way that is not expected", topic)
                failure = KielGroupsError(f"unexpected: {error!r}")
            if failure is None or not failure.retriable or self._cluster.known_partitions(topic):
                break
        calls, numbers = self._end(topic), self._cluster.known_partitions(topic) or ()
        if not numbers and failure is not None:
            self.refuse(topic, _outcomes(calls), failure)
            return
        for number, records in enumerate(calls):
            if failure is not None and any(_are_above(numbers, records.partitions)):
                self._missed_s[topic] = asyncio.get_running_loop().time()
                self.refuse(topic, records.outcomes, failure)
                continue
            try:
                self._place(topic, numbers, records, looked_up=True)
            except BaseException as error:
                # The application's partitioner has raised, for instance, SystemExit, which ends the loop.
                self.refuse(topic, _outcomes(calls[number:]), ClosedError(f"{error!r} has ended the event loop"))
                raise

    def _end(self, topic: str) -> list[Unplaced]:
        """End a lookup, and return the calls whose records have waited for it."""
        lookup = self._lookups.pop(topic)
        lookup.ended.set_result(None)
        # Records that go to open batches without a call of this object must see the partitions that were found.
        self._queues.pop(topic, None)
        calls = lookup.calls
        self._sender.appender.buffered_bytes -= sum(messages_bytes(each.keys, each.values) for each in calls)
        self._sender.wake()
        return calls


def _reason(error: Exception) -> str:
    # The text of another error, such as a KeyError of the partitioner, says little without its type.
    return str(error) if isinstance(error, KielGroupsError) else f"the partitioner raised {error!r}"


def _are_above(numbers: tuple[int, ...], given: Iterable[int | None]) -> Iterator[bool]:
    """Yield for each given partition whether it is a number above the known ones."""
    return ((number := as_number(each)) is not None and number > numbers[-1] for each in given)


def _outcomes(calls: Iterable[Unplaced]) -> list[Outcome]:
    return [outcome for records in calls for outcome in records.outcomes]
