"""Fetch partitions again whose fetch has failed, with backoff, or have ``poll`` raise the error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.fetch.fetch_buffer import FetchBuffer
from kiel_groups.clients.fetch.partition_fetch import PartitionFetch, Phase
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.metadata_sources import UNREACHABLE_AFTER
from kiel_groups.errors import ClosedError, KielGroupsError, NoBrokersError, ProtocolError
from kiel_groups.metrics import Metrics
from kiel_groups.wording import counted, some

__all__ = ["FailedFetches", "TRIES_UNREADABLE"]

log = logging.getLogger(__name__)

#: Failures in a row before a warning: an election is over by then.
_FAILURES_TO_WARN = 5
#: Unreadable answers in a row after which the error is raised, because the log and not the network is damaged.
TRIES_UNREADABLE = 5


class FailedFetches:
    """
    Decides what follows when a fetcher cannot fetch partitions, and fetches them again.

    Args:
        cluster: Its metadata are refreshed before partitions are fetched again.
        buffer: Takes the errors that ``poll`` raises.
        metrics: Counts retries, unreadable answers, and failures that are more than a retry.
        offer: Called with partitions to fetch again. Ignores those that were unassigned meanwhile.
    """

    def __init__(
        self,
        cluster: ClusterMetadata,
        buffer: FetchBuffer,
        metrics: Metrics,
        offer: Callable[[Iterable[PartitionFetch]], None],
    ) -> None:
        self._cluster = cluster
        self._backoff = cluster.new_backoff()
        self._buffer = buffer
        self._metrics = metrics
        self._offer = offer
        self._tasks: set[asyncio.Task[None]] = set()

    def retry(
        self, states: Collection[PartitionFetch], why: str, level: int = logging.INFO, *, doubt: bool = True
    ) -> None:
        """Refresh the leaders and fetch again, after a delay that grows with the failures in a row."""
        waiting = [state for state in states if not state.dropped]
        if not waiting:
            return
        for state in waiting:
            state.enter(Phase.RETRYING)
            state.failures += 1
        failures = max(state.failures for state in waiting)
        if failures >= _FAILURES_TO_WARN:
            level = max(level, logging.WARNING)
        log.log(level, "cannot fetch %s (try %d): %s", some(state.topic_partition for state in waiting), failures, why)
        self._metrics.count("fetch_retries", len(waiting))
        if doubt:
            self._cluster.drop_overrides(state.topic_partition for state in waiting)
        self._start(self._recover(waiting, failures), "retry of fetches")

    def fetch_again(self, state: PartitionFetch) -> None:
        """Fetch a partition again whose error was raised, after a pause that grows with the failures in a row."""
        state.enter(Phase.RETRYING)
        state.failures += 1
        self._start(self._recover([state], state.failures + 1), f"another fetch of {state.topic_partition}")

    def unreadable(self, state: PartitionFetch, error: Exception) -> None:
        """Fetch unreadable records again. After ``TRIES_UNREADABLE`` tries in a row, have ``poll`` raise the error."""
        if not isinstance(error, KielGroupsError):
            place = f"{state.topic_partition} at offset {state.position}"
            error = ProtocolError(f"{place}: what the broker sent cannot be read: {error!r}")
        self._metrics.count("fetches_unreadable")
        state.unreadable += 1
        # The message's size may be damaged, too, so request an ordinary share again.
        state.needed_bytes = 0
        if state.unreadable < TRIES_UNREADABLE:
            self.retry([state], str(error), logging.WARNING)
        else:
            self.halt(state, error)

    def halt(self, state: PartitionFetch, error: Exception) -> None:
        """Have ``poll`` raise an error, and stop fetching the partition until then."""
        if state.dropped:
            return
        self.report(state, f"{error}; raising this to the application, then fetching again")
        state.enter(Phase.HALTED)
        self._buffer.put(state, error)

    def report(self, state: PartitionFetch, what: str) -> None:
        """Log and count a failure that is more than a retry."""
        log.error("fetching %s at offset %d: %s", state.topic_partition, state.position, what)
        self._metrics.count("fetch_failures")

    def close(self) -> None:
        """Fetch nothing again."""
        for task in self._tasks:
            task.cancel()

    async def _recover(self, states: list[PartitionFetch], failures: int) -> None:
        # The first refresh is sent at once: when a fetch fails, most leaders have moved already.
        await asyncio.sleep(self._backoff.delay_s(failures - 1))
        for _ in range(UNREACHABLE_AFTER):
            topics = {state.topic_partition.topic for state in states if not state.dropped}
            if not topics:
                return
            try:
                await self._cluster.refresh(topics, "fetch")
            except ClosedError:
                return
            except NoBrokersError:
                # Refresh again instead of fetching: a fetch from a silent broker takes the whole request timeout. But
                # limit this: a broker that is slow to send metadata may be quick to answer fetches.
                failures += 1
                await asyncio.sleep(self._backoff.delay_s(failures))
                continue
            except KielGroupsError as error:
                # INFO is enough: the next fetch fails, too, and is logged at the proper level.
                log.info("no metadata for %s: %s", counted(topics, "topic"), error)
            break
        self._offer(states)

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        task = spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
