"""The driver's view of the cluster: which partitions there are, who leads them, where their logs begin and end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType
from typing import Self, TypeVar

from kiel_groups.clients.net.cluster_metadata import AGE, ClusterMetadata
from kiel_groups.clients.net.offset_lookup import list_offsets
from kiel_groups.config import HostPort
from kiel_groups.errors import KielGroupsError, RetriableBrokerError, UnknownTopicError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.spark.options.read_options import ReadOptions
from kiel_groups.sync import LoopThread
from kiel_groups.wire.api.list_offsets_v0 import EARLIEST, LATEST
from kiel_groups.wire.api.metadata_v0 import MetadataRequest

__all__ = ["LogView"]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Beyond what the requests themselves may take: lookups of leaders, with their own patience, in seconds.
_PATIENCE_S = 30.0


class LogView:
    """
    Blocking, on a loop of its own; for one thread. Every call ends within a time that the options bound.

    ``loop`` and ``cluster`` are for those who ask the same brokers something else.

    Args:
        options: Which brokers, and for how long they are asked.
        patient: Ask again after what may pass, as is right where nobody waits; else the first failure is raised, and
            whoever sits at a terminal is told.
    """

    def __init__(self, options: ReadOptions, *, patient: bool = True) -> None:
        self._options = options
        self._patient = patient
        self.loop = LoopThread("the Spark source's view of the brokers")
        self.cluster = ClusterMetadata(options.broker_config, Metrics())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and end the loop."""
        self.loop.post(self.cluster.close)
        self.loop.stop()

    def partitions(self, *, all_must_exist: bool = True) -> tuple[TopicPartition, ...]:
        """
        Those that are there of what the options name, in ascending order, as brokers see it at this moment.

        Raises:
            UnknownTopicError: A topic or partition that was named does not exist, and has to.
            BrokerError: Nobody could be asked.
        """
        return self._run(lambda: self._find_partitions(all_must_exist))

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets that the logs of these still have; errors as ``offset_lookup.list_offsets``."""
        return self._run(lambda: list_offsets(self.cluster, partitions, EARLIEST))

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that the next messages of these will get; errors as ``offset_lookup.list_offsets``."""
        return self._run(lambda: list_offsets(self.cluster, partitions, LATEST))

    def leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, HostPort | None]:
        """Who leads these, as last heard, asked for where nobody is known; None where nobody does."""
        if unled := {partition.topic for partition in partitions if self.cluster.leader_of(partition) is None}:
            self._run(lambda: self.cluster.refresh(unled, "leaders"))
        brokers = self.cluster.brokers
        nodes = {partition: self.cluster.leader_of(partition) for partition in partitions}
        return {partition: None if node is None else brokers.get(node) for partition, node in nodes.items()}

    def run(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Have the loop do something else with ``cluster``, in the same bounds, once."""
        return self.loop.run(_awaited(ask), self._most_s)

    # ------------------------------------------------------------------ asking

    @property
    def _most_s(self) -> float:
        return self._options.request_timeout_ms / 1000 + _PATIENCE_S

    def _run(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask; where one is patient, ``fetchOffset.numRetries`` times more, and for a request's time at least."""
        retries_s = self._options.offset_retries * self._options.offset_retry_interval_ms / 1000
        return self.loop.run(self._persist(ask), (self._options.offset_retries + 2) * self._most_s + retries_s)

    async def _persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        until_s = time.monotonic() + self._options.request_timeout_ms / 1000
        tries = 0
        while True:
            try:
                return await ask()
            except KielGroupsError as error:
                tries += 1
                if not (error.retriable and self._patient):
                    raise
                if tries > self._options.offset_retries and time.monotonic() > until_s:
                    raise
                # Once is enough for people; the others are for who wants to know all.
                log.log(logging.INFO if tries > 1 else logging.WARNING, "the brokers are asked again: %s", error)
            await asyncio.sleep(self._options.offset_retry_interval_ms / 1000)

    async def _find_partitions(self, all_must_exist: bool) -> tuple[TopicPartition, ...]:
        options = self._options
        topics = set(options.topics) or {partition.topic for partition in options.assigned}
        if options.topic_pattern is not None:
            topics = {topic for topic in await self._topics() if options.topic_pattern.fullmatch(topic)}
        # Whoever takes what is there looks again, and has the patience.
        # Each time of another broker than last time: one that is cut off from ZooKeeper would be asked for ever.
        await (self.cluster.learn(topics) if all_must_exist else self.cluster.refresh(topics, AGE))
        numbers = {topic: self.cluster.known_partitions(topic) or () for topic in topics}
        found = {TopicPartition(topic, number) for topic in topics for number in numbers[topic]}
        if not options.assigned:
            return tuple(sorted(found))
        if all_must_exist and (missing := sorted(set(options.assigned) - found)):
            raise UnknownTopicError(f"assign: {missing[0]} does not exist; {missing[0].topic} has fewer partitions")
        return tuple(sorted(found.intersection(options.assigned)))

    async def _topics(self) -> list[str]:
        await self.cluster.refresh((), "pattern")
        answer = await self.cluster.some_connection().request(MetadataRequest(()))
        if answer is None or not answer.brokers:
            raise RetriableBrokerError("the brokers do not tell which topics there are")
        return [topic.topic for topic in answer.topics]


async def _awaited(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()
