"""
A consumer of a simulated sink, as its runner sees it: a ``GroupedConsumer`` on simulated time.

Its hooks run one at a time, and come as the product's consumer calls them. It fetches from the logs in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from kiel_groups.errors import ClosedError, CommitFailedError, ConfigError, NoBrokersError, SessionLostError
from kiel_groups.model import Record, TopicPartition
from tests.sim.worker_groups.sink_groups import SinkCluster, SinkGroup

if TYPE_CHECKING:
    from tests.sim.worker_groups.sim_worker import SimWorker

__all__ = ["SinkConsumerProcess"]

#: The longest times that a join, a commit, and a commit of a slow sink take, in seconds.
JOIN_S, COMMIT_S, SLOW_COMMIT_S = 1.0, 0.1, 8.0
#: How long a consumer that has lost its session waits before it joins again, in seconds.
REJOIN_S = (0.2, 3.0)
#: How long the coordination takes to notify a member, in seconds.
NOTICED_S = 0.01
#: How long a close waits for a hook, in seconds.
CLOSE_S = 10.0
#: The most records of a partition that one fetch returns.
MOST_FETCHED = 25

_Hook: TypeAlias = Callable[[Collection[TopicPartition]], Awaitable[None]]


class _Claim:
    """One claim of a partition. ``is_open`` is set when the hook of the assignment has ended."""

    def __init__(self, start: int) -> None:
        self.start = self.position = start
        self.is_open = False


class SinkConsumerProcess:
    """
    The consumer of one run of a sink task.

    Args:
        cluster: The topic.
        group: The group that it joins.
        worker: The worker whose process runs it.
        listener: The runner.
    """

    def __init__(self, cluster: SinkCluster, group: SinkGroup, worker: SimWorker, listener: Any) -> None:
        self._cluster, self._group, self._worker, self._listener = cluster, group, worker, listener
        self.process = worker.process
        self._claims: dict[TopicPartition, _Claim] = {}
        #: The partitions that the listener has been notified of, and has not given back or lost.
        self._notified: set[TopicPartition] = set()
        #: The partitions of the records that the last fetch has returned.
        self._in_flight: set[TopicPartition] = set()
        #: The furthest position of each partition under any claim.
        self._furthest: dict[TopicPartition, int] = {}
        #: When the last fetch has returned records, until the next one.
        self.busy_since_s: float | None = None
        self._is_expelled = self._is_closing = False
        #: The number of sessions that have ended.
        self._sessions = 0
        self._changed, self._arrived, self._closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        #: The running hook, if a loss of its partitions cancels it.
        self._hook: asyncio.Task[None] | None = None

    # The interface of runners

    async def connect(self) -> None:
        await self._pause(0.0, JOIN_S)
        self._check_reachable()

    async def subscribe(self, topics: Collection[str]) -> None:
        await self._pause(0.0, JOIN_S)
        self._check_reachable()
        if self._following is None:
            self._group.join(self)
            self._following = asyncio.ensure_future(self._follow())

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        self._in_flight.clear()
        self.busy_since_s = None
        self._changed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                while not (found := self._fetched()):
                    self._arrived.clear()
                    await self._arrived.wait()
                return found
        self._check_reachable()
        return {}

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if unknown := sorted(offsets.keys() - self._notified):
            raise self._worker.world.checker.violation(f"{self._group.connector} commits {unknown}, which it has lost")
        # A caller that is cancelled does not interrupt a commit, and does not look at its error.
        committing = asyncio.ensure_future(self._commit(dict(offsets)))
        committing.add_done_callback(_retrieve)
        await asyncio.shield(committing)

    async def close(self) -> None:
        self._leaving = self._leaving or asyncio.ensure_future(self._leave())
        await asyncio.shield(self._leaving)

    # Calls of the group

    def notify(self) -> None:
        """Have the consumer look soon for other claims, and for records."""
        self._cluster.timeline.after(NOTICED_S, self.process.run_on_loop, self.process.call, self._look)

    def _look(self) -> None:
        self._changed.set()
        self._arrived.set()

    def expelled(self) -> None:
        """Notice that the session is over: a running hook is cancelled."""
        self._is_expelled = True
        self._sessions += 1
        if self._hook is not None:
            self._hook.cancel()
        self._look()

    # Parts

    async def _pause(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self._cluster.timeline.random.uniform(least_s, most_s))

    def _check_reachable(self) -> None:
        if self._is_closing:
            raise ClosedError("the consumer was closed")
        if self._cluster.is_silent or self.process.stalled:
            raise NoBrokersError

    def _fetched(self) -> dict[TopicPartition, list[Record]]:
        if self._is_closing:
            raise ClosedError("the consumer was closed")
        if self._is_expelled or self._cluster.is_silent or self.process.stalled:
            return {}
        found = {}
        for partition, claim in self._claims.items():
            end = min(self._cluster.ends[partition], claim.position + MOST_FETCHED)
            if claim.is_open and self._group.targets.get(partition) is self and claim.position < end:
                found[partition] = [Record(*partition, n, None, b"") for n in range(claim.position, end)]
                claim.position = end
                self._furthest[partition] = max(end, self._furthest.get(partition, 0))
        self._in_flight = set(found)
        if found:
            self.busy_since_s = self._cluster.timeline.now_s
        return found

    async def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        random, sessions = self._cluster.timeline.random, self._sessions
        await self._answered(SLOW_COMMIT_S if self._cluster.is_slow and random.random() < 0.3 else COMMIT_S)
        if self._sessions != sessions:
            raise SessionLostError("the session is over")
        self._check_offsets(offsets)
        refuses = self._cluster.refuses
        if self._cluster.is_silent or self.process.stalled or (refuses and random.random() < 0.4):
            raise NoBrokersError
        if refuses and random.random() < 0.4:
            raise CommitFailedError("refused, as the scenario says")
        self._group.commit(offsets)
        await self._answered(COMMIT_S)
        if refuses and random.random() < 0.3:
            raise NoBrokersError

    async def _answered(self, most_s: float) -> None:
        """Wait for an answer to a commit. A close does not wait for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._cluster.timeline.random.uniform(0.0, most_s)):
                await self._closed.wait()
            raise ClosedError("the consumer was closed")

    def _check_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Refuse offsets as ``ChosenCommits`` does."""
        for partition, offset in sorted(offsets.items()):
            claim = self._claims.get(partition)
            if claim is None or self._group.owners.get(partition) is not self:
                raise CommitFailedError(f"{partition} is not owned")
            if not claim.start <= offset <= claim.position:
                if offset <= self._furthest.get(partition, 0):
                    raise CommitFailedError(f"{offset} of {partition} was delivered earlier")
                raise ConfigError(f"{offset} of {partition} is beyond {claim.position}")

    async def _leave(self) -> None:
        self._is_closing = True
        self._in_flight.clear()
        self.busy_since_s = None
        self._look()
        if self._following is not None:
            await asyncio.wait({self._following}, timeout=CLOSE_S)
            if not self._following.done():
                self._following.cancel()
                await asyncio.wait({self._following})
        self._group.leave(self)
        self._closed.set()

    # The claims, and the hooks

    async def _follow(self) -> None:
        """Revoke what the group has dealt to others, and claim what it has dealt to this member."""
        while True:
            self._changed.clear()
            if self._is_expelled:
                await self._lose()
                if self._is_closing:
                    return
                await self._pause(*REJOIN_S)
                if self._is_closing:
                    return
                self._is_expelled = False
                self._group.join(self)
            elif revoked := self._due_to_revoke():
                await self._revoke(revoked)
            elif self._is_closing:
                return
            elif claimed := self._free():
                await self._assign(claimed)
            else:
                await self._changed.wait()

    def _due_to_revoke(self) -> list[TopicPartition]:
        return [
            each
            for each in sorted(self._claims.keys() - self._in_flight)
            if self._is_closing or self._group.targets.get(each) is not self
        ]

    def _free(self) -> list[TopicPartition]:
        """Return the free partitions that are dealt to this consumer."""
        group = self._group
        return [each for each, target in group.targets.items() if target is self and each not in group.owners]

    async def _lose(self) -> None:
        lost = sorted(self._claims)
        self._claims.clear()
        self._in_flight.clear()
        self.busy_since_s = None
        if lost:
            await self._call(self._listener.on_partitions_lost, lost, forgets=True)

    async def _revoke(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._claims[partition].is_open = False
        if await self._call(self._listener.on_partitions_revoked, partitions, is_cancelled=True):
            self._notified.difference_update(partitions)
            for partition in partitions:
                del self._claims[partition]
                self._group.release(self, partition)

    async def _assign(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._claims[partition] = _Claim(self._group.claim(self, partition))
        if await self._call(self._listener.on_partitions_assigned, partitions, is_cancelled=True):
            for partition in partitions:
                self._claims[partition].is_open = True
            self._arrived.set()

    async def _call(
        self, hook: _Hook, partitions: Iterable[TopicPartition], *, forgets: bool = False, is_cancelled: bool = False
    ) -> bool:
        """Call a hook, and return whether it has returned. ``is_cancelled`` says whether a loss cancels it."""
        given = frozenset(partitions)

        async def call() -> None:
            # The listener changes its state in this very step.
            if forgets:
                self._notified.difference_update(given)
            else:
                self._notified.update(given)
            await hook(given)

        running = asyncio.ensure_future(call())
        self._hook = running if is_cancelled else None
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            # A close waits no longer.
            running.cancel()
            await asyncio.wait({running})
            raise
        finally:
            self._hook = None
        if running.cancelled():
            return False
        running.result()
        return True


def _retrieve(committing: asyncio.Future[None]) -> None:
    if not committing.cancelled():
        committing.exception()
