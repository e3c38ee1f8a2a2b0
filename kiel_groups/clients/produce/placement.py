"""Place records in the queues of their partitions. Keep records while the partitions of their topic are looked up."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.produce.batches import MESSAGE_OVERHEAD_BYTES, messages_bytes
from kiel_groups.clients.produce.outcomes import Outcome, settle_failed
from kiel_groups.clients.produce.partitioners import Partitioner, divide, with_any_sequence
from kiel_groups.clients.produce.sender import PartitionQueue, Sender
from kiel_groups.config import check_name
from kiel_groups.errors import ClosedError, ConfigError, KielGroupsError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted

log = logging.getLogger(__name__)


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


class _Lookup(NamedTuple):
    """A running lookup of a topic's partitions, and the calls whose records wait for it, oldest first."""

    calls: list[Unplaced]
    task: asyncio.Task[None]


class Placement:
    """
    Adds records to the queues of their partitions, on one event loop.

    While the partitions of a topic are looked up, all its records wait, so that they keep their order. The partitions
    are looked up before the topic's first record, and again before a record is refused because its partition is above
    the known ones: partitions may have been added. If no broker answers then, only such records fail.

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

    @property
    def waiting(self) -> Iterator[Outcome]:
        """The outcomes of the records that wait for a lookup."""
        return (outcome for lookup in self._lookups.values() for outcome in _outcomes(lookup.calls))

    async def placed(self) -> None:
        """Wait until the records that wait now are in queues, or have failed."""
        if self._lookups:
            await asyncio.wait([lookup.task for lookup in self._lookups.values()])

    def close(self) -> None:
        """Fail the records that wait for a lookup."""
        for topic, lookup in list(self._lookups.items()):
            lookup.task.cancel()
            error = ClosedError(f"the producer was closed before the partitions of {topic} were known")
            self._refuse(_outcomes(self._end(topic)), error, topic)

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
                    self._refuse([outcome], error)
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
        return None if topic in self._lookups else self._cluster.known_partitions(topic)

    def _queue(self, topic: str, numbers: tuple[int, ...], partition: int) -> PartitionQueue:
        """Return the queue of a partition. Raise ConfigError if ``numbers``, the present partitions, lack it."""
        known = self._queues.get(topic)
        if known is None or known[0] is not numbers:
            queues = {number: self._sender.queue_of(TopicPartition(topic, number)) for number in numbers}
            known = self._queues[topic] = (numbers, queues)
        try:
            return known[1][partition]
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
                self._refuse(records.outcomes, error)
            return
        for queue, indexes in shares:
            keys, values = [records.keys[each] for each in indexes], [records.values[each] for each in indexes]
            self._sender.add_many(queue, keys, values, [records.outcomes[each] for each in indexes])
        if records.ends_round:
            self._sender.send_waiting()

    def _refuse(self, outcomes: Sequence[Outcome], error: Exception, topic: str = "") -> None:
        """Fail records that were never sent."""
        records = f"{counted(outcomes, 'record')} for {topic}" if topic else counted(outcomes, "record")
        log.error("%s cannot be sent: %s", records, error)
        self._metrics.count("produce_failures", len(outcomes))
        for outcome in outcomes:
            settle_failed(outcome, error)

    # ------------------------------------------------------------------ lookups

    def _may_have_grown(
        self, topic: str, numbers: tuple[int, ...], given: Iterable[int | None], *, looked_up: bool
    ) -> bool:
        """
        Return whether a given partition may have been added since the lookup that has found ``numbers``.

        ``looked_up`` says that this lookup has just ended. A program that gives a wrong partition again and again must
        not keep the topic's other records waiting: after a lookup in vain, there is none for ``backoff_ms``.
        """
        if not _any_above(numbers, given):
            return False
        now_s = asyncio.get_running_loop().time()
        if looked_up:
            self._missed_s[topic] = now_s
            return False
        return now_s - self._missed_s.get(topic, -math.inf) >= self._cluster.config.backoff_ms / 1000

    def _look_up(self, topic: str, records: Unplaced) -> None:
        """
        Keep records until the partitions of their topic are known, and look them up, unless a lookup is running.

        Later records of the topic wait behind these records. Raise ConfigError if the topic's name is not legal.
        """
        if topic not in self._lookups:
            check_name(topic, "topic")
            self._used()
            # Later records must not overtake these.
            self._queues.pop(topic, None)
            self._lookups[topic] = _Lookup([], spawn(self._find_partitions(topic), f"lookup of {topic}"))
        self._lookups[topic].calls.append(records)
        self._sender.appender.buffered_bytes += messages_bytes(records.keys, records.values)

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
            if failure is None or not failure.retriable or self._cluster.known_partitions(topic):
                break
        calls, numbers = self._end(topic), self._cluster.known_partitions(topic) or ()
        if not numbers and failure is not None:
            self._refuse(_outcomes(calls), failure, topic)
            return
        for number, records in enumerate(calls):
            if failure is not None and _any_above(numbers, records.partitions):
                self._refuse(records.outcomes, failure, topic)
                continue
            try:
                self._place(topic, numbers, records, looked_up=True)
            except BaseException as error:
                # The application's partitioner has raised, for instance, SystemExit, which ends the loop.
                self._refuse(_outcomes(calls[number:]), ClosedError(f"{error!r} has ended the event loop"), topic)
                raise

    def _end(self, topic: str) -> list[Unplaced]:
        """End a lookup, and return the calls whose records have waited for it."""
        calls = self._lookups.pop(topic).calls
        self._sender.appender.buffered_bytes -= sum(messages_bytes(each.keys, each.values) for each in calls)
        self._sender.wake()
        return calls


def _any_above(numbers: tuple[int, ...], given: Iterable[int | None]) -> bool:
    return any(isinstance(each, int) and each > numbers[-1] for each in given)


def _outcomes(calls: Iterable[Unplaced]) -> list[Outcome]:
    return [outcome for records in calls for outcome in records.outcomes]
