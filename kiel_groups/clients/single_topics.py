"""The life cycle and the topics of a consumer without a group: from starts that the application chooses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias

from kiel_groups.clients.assigned_consumer import AssignedConsumer
from kiel_groups.clients.calls.arguments import offsets_of, partitions_of
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.calls.left_loop import LeftLoop
from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.clients.delivery.record_reader import ReaderSettings
from kiel_groups.clients.lifecycle import Lifecycle
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import LEADERLESS_PATIENCE_S, find_offsets, list_offsets
from kiel_groups.config import ResetPolicy, topic_names
from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ClosedError, ConfigError, KielGroupsError
from kiel_groups.group.subscription import SubscriptionKind, SubscriptionState
from kiel_groups.listeners import RebalanceListener
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted

__all__ = ["SingleLifecycle", "Start"]

log = logging.getLogger(__name__)

#: BEGINNING, END, a datetime (in UTC if it has no time zone), or a timedelta into the past.
StartAt: TypeAlias = int | datetime | timedelta

#: A time (see StartAt), or the next offset of each partition; partitions that are left out start at their beginning.
Start: TypeAlias = StartAt | Mapping[TopicPartition, int]

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)


def offset_time(start: StartAt | None, now: datetime) -> int:
    """
    Return the time to ask brokers for: -2 (BEGINNING), -1 (END), or milliseconds since the epoch.

    Args:
        start: None means END. A datetime before 1970 means the epoch.
        now: An aware datetime, from which a timedelta counts back.

    Raises:
        ConfigError: The start has none of these forms.
    """
    if start is None:
        return END
    if isinstance(start, timedelta):
        # Compute with numbers: the resulting time may lie outside the years that a datetime can represent.
        return max(0, _milliseconds(now) - start // _MILLISECOND)
    if isinstance(start, datetime):
        return max(0, _milliseconds(start if start.tzinfo is not None else start.replace(tzinfo=UTC)))
    if type(start) is int and start in (BEGINNING, END):
        return start
    raise ConfigError(
        f"start: {start!r} given; expected BEGINNING (-2), END (-1), a datetime (UTC), or a timedelta into the past"
    )


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


class SingleLifecycle(Lifecycle):
    """Connects a consumer at its first use, and reads topics, or the partitions that the application assigns."""

    connected: AssignedConsumer | None

    def __init__(self, settings: ReaderSettings) -> None:
        super().__init__(SubscriptionState(), LeftLoop(abandon=self._abandon))
        self._settings = settings
        self.ended = False
        #: The subscribed topics of which all partitions are read, including partitions that are added later.
        self._whole_topics: set[str] = set()
        #: Where ``consume`` starts each topic, and where it resumes if a position is not in the log any more.
        self._starts: dict[str, StartAt | None] = {}
        #: Lookups of start positions, by topic. A call of ``consume`` may time out before its lookup ends.
        self._lookups: dict[str, asyncio.Task[None]] = {}
        #: Calls of ``subscribe`` under way, whose topics are not subscribed yet.
        self._subscribing: set[asyncio.Task[None]] = set()
        self._unsubscribing = asyncio.Lock()
        #: Replaced by ``unsubscribe``, which voids the calls of ``subscribe`` under way.
        self._round = object()

    # ------------------------------------------------------------------ the connection

    async def connect(self) -> None:
        """Connect to a broker, and read the cluster's metadata."""
        self.left_loop.remember()
        connected = self.require_connected()
        await connected.reader.cluster.refresh([], "connect")
        connected.follow()

    def require_connected(self) -> AssignedConsumer:
        """Return the connected parts; they are made at the first use. Raise ClosedError once the consumer is closed."""
        if self.ended:
            raise ClosedError("the consumer was closed")
        if self.connected is None:
            self.connected = AssignedConsumer(
                self._settings, self.subscription, _no_offsets, self._reset_rule, self._read_new_partitions
            )
        return self.connected

    def close(self, timeout_s: float | None) -> asyncio.Future[None]:
        """Stop reading, notify the listener, and close the connections."""
        self._check_close(timeout_s)
        self.closing = self.left_loop.close(self.closing, partial(self._close, timeout_s), "SingleConsumer.close")
        return self.closing

    async def _close(self, timeout_s: float | None) -> None:
        # Without a running loop, ``close`` could not tell when the time began.
        self._limit.shorten(timeout_s)
        self.ended = True
        for lookup in self._lookups.values():
            lookup.cancel()
        if self.connected is not None:
            await self.connected.close(self._limit)

    def _abandon(self) -> None:
        if self.connected is not None:
            self.connected.abandon()

    # ------------------------------------------------------------------ partitions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions."""
        if self.ended:
            raise ClosedError("the consumer was closed")
        self.subscription.assign_from_user(partitions_of(partitions, "assign()"))
        self.require_connected().follow()

    def unsubscribe(self) -> asyncio.Future[None]:
        """Leave all topics, or end an assignment; the future is done once the listener's hook has returned."""
        connected = self.require_connected()
        self._round = object()
        for lookup in self._lookups.values():
            lookup.cancel()
        self._whole_topics, self._starts = set(), {}
        is_pending = self._unsubscribing.locked() or connected.must_revoke
        if not is_pending:
            self._leave_all(connected)
        return spawn(self._revoke(connected, is_pending), "SingleConsumer.unsubscribe")

    async def _revoke(self, connected: AssignedConsumer, is_pending: bool) -> None:
        if is_pending:
            async with self._unsubscribing:
                await connected.revoke()
                self._leave_all(connected)

    def _leave_all(self, connected: AssignedConsumer) -> None:
        self.subscription.unsubscribe()
        connected.follow()

    # ------------------------------------------------------------------ topics

    def subscribe(
        self,
        topics: str | Iterable[str],
        start: Start,
        partitions: Collection[int] | None,
        listener: RebalanceListener | None,
    ) -> asyncio.Future[None]:
        """Add topics; the future is done once their start positions are known."""
        adding = spawn(self._subscribe(topics, start, partitions, listener), "SingleConsumer.subscribe")
        self._subscribing.add(adding)
        adding.add_done_callback(self._subscribing.discard)
        return adding

    async def _subscribe(
        self,
        topics: str | Iterable[str],
        start: Start,
        partitions: Collection[int] | None,
        listener: RebalanceListener | None,
    ) -> None:
        check_listener(listener)
        cluster, this_round = self.require_reader().cluster, self._round
        async with self._unsubscribing:
            pass  # The hook of an `unsubscribe` under way ends before topics are added.
        self.subscription.check_kind(SubscriptionKind.TOPICS, "subscribe()")
        fresh = [name for name in topic_names(topics) if name not in self.subscription.topics]
        chosen = [
            TopicPartition(name, number)
            for name in fresh
            for number in _chosen(name, await cluster.partitions_of(name), partitions)
        ]
        positions = await _start_positions(cluster, chosen, start)
        if self._round is this_round:
            self.subscription.listener = listener
            self._add(fresh, positions)
            if partitions is None:
                self._whole_topics.update(fresh)

    def check_chosen(self, call: str) -> None:
        if not self._subscribing:
            super().check_chosen(call)

    def _add(self, topics: Collection[str], positions: Mapping[TopicPartition, int]) -> None:
        """Add topics, and read those partitions of them whose positions are known."""
        connected = self.require_connected()
        self.subscription.change_subscription(self.subscription.topics | frozenset(topics))
        connected.open(positions)

    def _read_new_partitions(self) -> None:
        connected = self.connected
        if connected is None or self.ended:
            return
        cluster, assigned = connected.reader.cluster, self.subscription.assigned_partitions()
        known = {TopicPartition(t, p) for t in self._whole_topics for p in cluster.known_partitions(t) or ()}
        fresh = {partition for partition in known - assigned if not connected.is_looking_up(partition)}
        if fresh:
            log.info("reading %s from the beginning", counted(fresh, "new partition"))
            connected.look_up(dict.fromkeys(fresh, BEGINNING))

    async def _reset_rule(self, partition: TopicPartition) -> ResetPolicy | int:
        """Resume a topic of ``consume`` where its last call would start it, others as ``auto_offset_reset`` says."""
        if partition.topic not in self._starts:
            return self._settings.fetching.auto_offset_reset
        cluster = self.require_reader().cluster
        return (await list_offsets(cluster, [partition], self._time_of(partition.topic)))[partition]

    # ------------------------------------------------------------------ the starts of values

    def check_start(self, start: StartAt | None) -> None:
        """Check that ``consume()`` may read a topic from a start."""
        offset_time(start, datetime.now(UTC))
        self.subscription.check_kind(SubscriptionKind.TOPICS, "consume()")
        self.left_loop.remember()

    async def read_topic(self, topic: str, start: StartAt | None) -> float | None:
        """
        Read a topic from a start, unless it is read already. Its start positions may be found after this has returned.

        Returns:
            How long the call may still wait for values, in seconds; None once the consumer was closed.
        """
        if self.ended:
            return None
        self._starts[topic] = start
        now_s = asyncio.get_running_loop().time
        due_s = now_s() + self._settings.fetching.max_wait_ms / 1000
        self.require_connected()
        if topic not in self.subscription.topics:
            await asyncio.wait({self._look_up(topic)}, timeout=due_s - now_s())
        return max(0.0, due_s - now_s())

    def _look_up(self, topic: str) -> asyncio.Task[None]:
        """Start to look up a topic's start positions, or return the lookup under way."""
        if topic not in self._lookups:
            self._lookups[topic] = spawn(self._find_start(topic), f"start of {topic}")
        return self._lookups[topic]

    async def _find_start(self, topic: str) -> None:
        connected = self.require_connected()
        cluster = connected.reader.cluster
        try:
            partitions = [TopicPartition(topic, number) for number in await cluster.partitions_of(topic)]
            at = self._time_of(topic)
            offsets = await find_offsets(
                cluster, partitions, at, patience_s=LEADERLESS_PATIENCE_S if at == END else 0.0
            )
            # While no partition has a position, retrying delays none, and all partitions get the same start time.
            found = offsets.found or await list_offsets(cluster, partitions, at)
            self._add([topic], found)
            self._whole_topics.add(topic)
            # Once a missing partition has a leader, its end may lie after records that were written since this call.
            missing = offsets.failures.keys() - found.keys()
            connected.look_up(dict.fromkeys(missing, BEGINNING if at == END else at))
        except KielGroupsError as error:
            if not self.ended:
                log.error("topic %s cannot be consumed yet: %s; the next call of consume() tries again", topic, error)
        finally:
            del self._lookups[topic]

    def _time_of(self, topic: str) -> int:
        return offset_time(self._starts[topic], datetime.now(UTC))


async def _no_offsets(_: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Return the stored offsets of a consumer without a group: none."""
    return {}


def _chosen(topic: str, known: Collection[int], partitions: Collection[int] | None) -> Collection[int]:
    numbers = sorted(known)
    for number in partitions or ():
        if number not in known:
            raise ConfigError(f"partitions: {number!r} given; {topic} has {numbers[0]} to {numbers[-1]}")
    return numbers if partitions is None else sorted(set(partitions))


async def _start_positions(
    cluster: ClusterMetadata, partitions: list[TopicPartition], start: Start
) -> dict[TopicPartition, int]:
    if not isinstance(start, Mapping):
        return await list_offsets(cluster, partitions, offset_time(start, datetime.now(UTC)))
    given = {each: offset for each, (offset, _) in offsets_of(start, "start").items()}
    if unknown := [str(each) for each in given if each not in partitions]:
        raise ConfigError(f"start: {', '.join(unknown)} given; expected partitions of the topics being subscribed")
    return await list_offsets(cluster, [each for each in partitions if each not in given], BEGINNING) | given
