"""Reset a partition's position that is not in the log, because of retention or because the log was truncated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self, TypeAlias

from kiel_groups.backoff import Backoff
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import LogRange, log_range
from kiel_groups.config import ResetPolicy
from kiel_groups.errors import CommitFailedError, CoordinationError, OffsetOutOfRangeError
from kiel_groups.group.partition_offsets import PendingReset
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import LEADER_NOT_AVAILABLE, OFFSET_OUT_OF_RANGE
from kiel_groups.wording import counted

log = logging.getLogger(__name__)

#: Called with a partition whose position is not in its log. Returns a policy, or the offset to continue at.
ResetRule: TypeAlias = Callable[[TopicPartition], Awaitable[ResetPolicy | int]]


@dataclass(frozen=True, slots=True)
class ResetBrokers:
    """The functions by which a reset gets information from the brokers."""

    #: Returns the leader of a partition, or None if none is known.
    leader_of: Callable[[TopicPartition], int | None]
    #: Asks the leader of a partition for the range of its log; see ``offset_lookup.log_range``.
    log_range: Callable[[TopicPartition], Awaitable[LogRange]]
    #: Returns the delays between the tries to store a position.
    new_backoff: Callable[[], Backoff]

    @classmethod
    def of(cls, cluster: ClusterMetadata) -> Self:
        """Return the functions that send requests to the brokers of a cluster."""
        return cls(cluster.leader_of, partial(log_range, cluster), cluster.new_backoff)


class ResetMember(Protocol):
    """The methods of the member that a reset uses."""

    def confirm_leaders(self) -> Awaitable[None]:
        """Read the leaders of the owned partitions from ZooKeeper; see ``GroupMember``."""

    def store_reset(self, partition: TopicPartition, reset: PendingReset) -> Awaitable[int | None]:
        """Store the position that a reset chose. Return the offset to fetch next, or None; see ``GroupMember``."""


class PositionReset:
    """
    Chooses and stores new positions. The fetcher of a consumer calls this object as its ``reset``.

    The member stores the chosen position before it delivers the first record. Therefore the next owner resumes at this
    position and does not choose again. A consumer without a member stores no positions, and may have a ``ResetRule``
    instead of a policy.

    A broker that has not noticed that it no longer leads a partition answers "out of range" for offsets that the new
    leader appended. Therefore the leader that ZooKeeper names is asked for the range of the log before a position is
    reset.
    """

    def __init__(
        self,
        policy: ResetPolicy | ResetRule,
        brokers: ResetBrokers,
        subscription: SubscriptionState,
        records: OwnedRecords,
        member: ResetMember,
        metrics: Metrics,
    ) -> None:
        self._policy = policy
        self._brokers = brokers
        self._subscription = subscription
        self._records = records
        self._member = member
        self._metrics = metrics
        self._read: asyncio.Task[None] | None = None
        self._next_read: asyncio.Task[None] | None = None

    async def __call__(self, partition: TopicPartition, position: int) -> int | None:
        """
        Choose a position, wait until all fetched records are finished, and ask the member to store the position.

        Returns:
            The offset to fetch next, or None if the partition is not fetched from ``position`` any more, or if the log
            has that offset again.

        Raises:
            OffsetOutOfRangeError: The policy is ``none``.
            BrokerError: The range of the log could not be looked up, or the leader has changed meanwhile.
            SessionLostError: The member has no session to read the leaders.
            CoordinationError: ZooKeeper refused a read or the write for good.
        """
        is_fetched = self._records.while_fetched(partition)
        reset = self._subscription.offsets.reset_of(partition) or await self._choose(partition, position, is_fetched)
        if reset is None:
            return None
        await self._records.wait_until_consumed(partition, is_fetched)
        return await self._store(partition, reset, is_fetched)

    async def _choose(
        self, partition: TopicPartition, position: int, is_fetched: Callable[[], bool]
    ) -> PendingReset | None:
        """
        Choose a position, or return None if no reset is needed.

        The subscription keeps the choice until the position is stored, or until another writer sets an offset.
        """
        await self._confirm_leaders()
        if not self._subscription.offsets.may_store(partition):
            # The topic was created again, and its partitions are restarted in the new log.
            return None
        leader = self._brokers.leader_of(partition)
        found = await self._brokers.log_range(partition)
        if leader is None or leader != self._brokers.leader_of(partition):
            # The answer may be that of another broker, which ZooKeeper has not confirmed as the leader.
            raise LEADER_NOT_AVAILABLE.exception(f"{partition}: the leader changed while its log's range was looked up")
        if found.start <= position <= found.end:
            return None
        policy = await self._policy(partition) if callable(self._policy) else self._policy
        if not is_fetched():
            return None
        if policy == "none":
            raise OffsetOutOfRangeError(
                f"{partition}: offset {position} is not in the log, which has {found.start} to {found.end}, and"
                " auto_offset_reset is 'none'",
                "seek() to an offset that exists, set the group's offset, or choose 'earliest' or 'latest'",
                code=OFFSET_OUT_OF_RANGE.number,
            )
        if isinstance(policy, int):
            start = min(max(policy, found.start), found.end)
        else:
            start = found.start if policy == "earliest" else found.end
        reset = PendingReset(position, found.start, found.end, start)
        self._subscription.offsets.choose_reset(partition, reset)
        self._cut(partition, reset, policy)
        return reset

    async def _store(
        self, partition: TopicPartition, reset: PendingReset, is_fetched: Callable[[], bool]
    ) -> int | None:
        """
        Ask the member to store the position, and retry after retriable errors. Return the offset to fetch next, or
        None.

        Until the position is stored, the partition is not fetched, and no other position is chosen: a second choice of
        ``latest`` would skip the records that were written after the first choice.
        """
        backoff = self._brokers.new_backoff()
        while is_fetched():
            try:
                return await self._member.store_reset(partition, reset)
            except CoordinationError as error:
                if not error.retriable and not isinstance(error, CommitFailedError):
                    raise
                self._metrics.count("resets_put_off")
                log.warning("%s: the reset to %d was not stored: %s; retrying", partition, reset.position, error)
                await asyncio.sleep(backoff.next_s())
        return None

    async def _confirm_leaders(self) -> None:
        """
        Make the member read the leaders from ZooKeeper, with a read that starts after this call.

        Partitions that are reset at the same time share a read, because retention may overtake a thousand partitions at
        once. A read in progress may have read this partition's leader before a change, so wait for the next read.
        """
        if self._next_read is None:
            self._next_read = spawn(self._read_leaders(self._read), "read of leaders before a reset")
            # Every waiting reset gets the failure. If all resets were cancelled, as by a close, no caller needs the
            # failure.
            self._next_read.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._next_read)

    async def _read_leaders(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        self._read, self._next_read = self._next_read, None
        await self._member.confirm_leaders()

    def _cut(self, partition: TopicPartition, reset: PendingReset, policy: ResetPolicy | int) -> None:
        """
        Drop fetched records that are not in the log any more, and report the reset.

        The reset is counted here, and not when its position is stored. If the partition is released before its position
        is stored, the release stores the position. And a consumer that closes may not get the answer to its write.
        """
        dropped = self._records.truncate(partition, reset.end)
        self._metrics.count("offset_resets")
        self._metrics.count("records_cut_off", dropped)
        log.warning(
            "%s: offset %d is out of range, the log has %d to %d; resetting to %s, %d, once all fetched records are"
            " finished; %s",
            partition,
            reset.lost,
            reset.start,
            reset.end,
            policy,
            reset.position,
            counted(
                dropped,
                "fetched record is not in the log any more and is dropped",
                "fetched records are not in the log any more and are dropped",
            ),
        )
