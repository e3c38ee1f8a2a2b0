"""The commits of a grouped consumer, and the questions about what its group has committed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias, cast, overload

from kiel_groups.clients.assigned_consumer import AssignedConsumer
from kiel_groups.clients.calls.arguments import check_functions, is_partition, offsets_of, partition_of, partitions_of
from kiel_groups.clients.calls.callers import consume_calls_here
from kiel_groups.clients.calls.eager_methods import cancels_this_task, failed_future, spawn, starts_at_call
from kiel_groups.clients.connected_consumer import ConnectedConsumer
from kiel_groups.clients.lifecycle import GroupMembership
from kiel_groups.errors import ClosedError, CommitFailedError, IllegalStateError, KielGroupsError
from kiel_groups.metrics import Metrics
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wording import some

__all__ = ["CommitCallback", "ConsumerCommits"]

log = logging.getLogger(__name__)

#: Offsets as applications pass them: the next offset to read, alone or with a text, by partition.
Offsets: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]

#: Called with the offsets of an asynchronous commit, and the partitions that were stored, or the error.
CommitCallback: TypeAlias = Callable[[dict[TopicPartition, OffsetAndMetadata], Any], object]


class ConsumerCommits(GroupMembership):
    """The methods of a grouped consumer that commit offsets, or read those that its group has committed."""

    metrics: Metrics
    _default_callback: CommitCallback | None
    #: Set when the callback of the last ``commit_async`` is called; the next callback waits for it.
    _called: asyncio.Event | None = None

    # ------------------------------------------------------------------ commits

    def commit(self, offsets: Offsets | None = None) -> asyncio.Future[frozenset[TopicPartition]]:
        """
        Commit all finished records and what the caller has in flight, or the offsets that the application chooses.

        Records and values that other tasks are processing do not count, whether a loop or a call returned them.

        Chosen offsets may lie between the start of this claim of the partition (or where ``seek()`` went under it) and
        the next offset to deliver. If one of them is refused, none is stored. A chosen commit changes neither the
        position nor what is finished: the next automatic commit, or ``commit()`` without offsets, stores the finished
        offsets again. Applications that choose offsets usually set ``autocommit=False``.

        While ``close()`` runs, hooks may still commit, such as ``on_partitions_revoked``.

        Args:
            offsets: The next offset to read of some partitions that this member owns: a number, or an
                ``OffsetAndMetadata``, whose text Kafka 0.8 does not keep. None: what is finished, of all partitions.

        Returns:
            The partitions whose offsets were stored.

        Raises:
            ConfigError: An offset is malformed, before the start of the claim, beyond the next offset to deliver, or
                beyond the end of a log that was truncated.
            CommitFailedError: A partition is not owned (the message names its owner), its topic was created again,
                another writer has changed its offset, from which delivery continues, or the offset was delivered
                before the claim was lost and taken again. Or brokers have not stored an offset,
                chosen or not (``store="broker-v0"`` and ``"broker-v1"``). The message says which offsets were stored.
            SessionLostError: The session has ended. Records whose offsets were not stored are delivered again.
            CoordinationError: ZooKeeper refused the write because rights are missing. The member stops.
            IllegalStateError: The application has assigned the partitions: no claim protects a commit.
            ClosedError: The consumer is not connected, or was closed.
        """
        try:
            return self._begin_commit(None if offsets is None else offsets_of(offsets, "commit()"))
        except KielGroupsError as error:
            return failed_future(error, "GroupedConsumer.commit")

    def _begin_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None
    ) -> asyncio.Future[frozenset[TopicPartition]]:
        """Start a commit; what the caller has in flight counts from now on, unless the offsets are chosen."""
        connected = self._require_member("commit()")
        if offsets is None:
            # Counted at the call: the task of the commit has a context of its own, without the caller's calls.
            self._count_record()
            connected.reader.values.finish(calls=consume_calls_here(self))
            return spawn(self._commit_finished(connected), "GroupedConsumer.commit")
        chosen = {partition: value.offset for partition, value in offsets.items()}
        return spawn(_result_of(lambda: connected.commit_chosen_shielded(chosen)), "GroupedConsumer.commit")

    async def _commit_finished(self, connected: ConnectedConsumer) -> frozenset[TopicPartition]:
        tracker = self._subscription.offsets
        due = tracker.commits().keys()
        stored = await connected.commit_shielded()
        left = tracker.commits(due - stored)
        if left and tracker.rules.asks_brokers:
            raise CommitFailedError(
                f"group {self.group_name}: commit(): {some(sorted(left))} not stored: brokers did not confirm it in"
                f" time, or refused it as the log says; they may still store it. Commit again"
                + (f" (stored: {some(sorted(stored))})" if stored else "")
            )
        return stored

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> asyncio.Future[frozenset[TopicPartition]]:
        """
        Start a commit as ``commit`` does, and report its outcome to a callback: kafka-python's way to commit.

        Callbacks are called in the order of the commits. A callback that raises is logged and counted
        (``commit_callbacks_failed``).

        Args:
            offsets: As for ``commit``.
            callback: Called on the event loop (with ``kiel_groups.sync``: on a thread beside it) as
                ``callback(offsets, outcome)``: with the offsets of this commit, by partition, and the partitions that
                were stored, or the error. By default it is ``default_offset_commit_callback`` of the constructor. It
                may be a coroutine function.

        Returns:
            A future with the outcome of the commit. Without a callback, an error that is not retrieved is logged.

        Raises:
            ConfigError: ``callback`` is not a function. All errors of ``commit`` go to the callback and to the future.
        """
        try:
            check_functions(callback=callback)
        except KielGroupsError as error:
            return failed_future(error, "GroupedConsumer.commit_async")
        notify = callback or self._default_callback
        reported: dict[TopicPartition, OffsetAndMetadata] = {}
        try:
            chosen = None if offsets is None else offsets_of(offsets, "commit_async()")
            committing = self._begin_commit(chosen)
            reported = self._finished() if chosen is None else chosen
        except KielGroupsError as error:
            committing = failed_future(error, "GroupedConsumer.commit_async")
        if notify is None:
            return committing
        before, self._called = self._called, asyncio.Event()
        notified = spawn(
            self._notify(committing, reported, notify, before, self._called), "GroupedConsumer.commit_async"
        )
        # The callback has the error.
        notified.add_done_callback(lambda done: done.cancelled() or done.exception())
        return notified

    def _finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        commits = self._subscription.offsets.commits()
        return {partition: OffsetAndMetadata(commit.offset) for partition, commit in commits.items()}

    async def _notify(
        self,
        committing: asyncio.Future[frozenset[TopicPartition]],
        offsets: dict[TopicPartition, OffsetAndMetadata],
        callback: CommitCallback,
        before: asyncio.Event | None,
        called_now: asyncio.Event,
    ) -> frozenset[TopicPartition]:
        """Call a callback after the commit, and after the callback of the commit before this one was called."""
        try:
            await asyncio.wait({committing})
            if before is not None:
                await before.wait()
        finally:
            called_now.set()
        error = committing.exception()
        try:
            called = callback(offsets, committing.result() if error is None else error)
            if inspect.isawaitable(called):
                await called
        except (Exception, asyncio.CancelledError) as failure:
            if cancels_this_task(failure):
                raise
            log.exception("group %s: the callback of a commit failed", self.group_name)
            self.metrics.count("commit_callbacks_failed")
        return committing.result()

    def commit_offsets(self, metadata: str | None = None) -> asyncio.Future[None]:
        """
        Commit the values that ``consume()`` returned before this call, which count as finished from now on.

        A coroutine that consumes commits only its own values. Any other caller, such as a timer, commits all values.
        A failure is logged and counted (``commits_failed``). The next commit stores these offsets as well.

        Args:
            metadata: A text for stores that have room for one; by default "committed by" and this member's name.

        Raises:
            IllegalStateError: The application has assigned the partitions: no claim protects a commit.
        """
        if self._connected is not None:
            try:
                connected = self._require_member("commit_offsets()")
            except IllegalStateError as error:
                return failed_future(error, "GroupedConsumer.commit_offsets")
            except ClosedError:
                connected = cast(ConnectedConsumer, self._connected)
            connected.reader.values.finish(calls=consume_calls_here(self) or None)
        return spawn(self._commit_offsets(metadata), "GroupedConsumer.commit_offsets")

    async def _commit_offsets(self, metadata: str | None) -> None:
        if self._connected is not None and not isinstance(self._connected, AssignedConsumer):
            await self._connected.commit_values(f"committed by {self.name}" if metadata is None else metadata)

    # ------------------------------------------------------------------ what is committed

    @overload
    def committed(self, partition: TopicPartition) -> asyncio.Future[int | None]: ...

    @overload
    def committed(self, partition: Iterable[TopicPartition]) -> asyncio.Future[dict[TopicPartition, int | None]]: ...

    def committed(
        self, partition: TopicPartition | Iterable[TopicPartition]
    ) -> asyncio.Future[int | None] | asyncio.Future[dict[TopicPartition, int | None]]:
        """
        Return the offset that the group has committed, whether or not this member owns the partition.

        It is read from the group's store: from ZooKeeper, or from the brokers with ``store="broker-v0"`` and
        ``"broker-v1"``, and after ``assign``.

        Args:
            partition: A partition, or several, which are read in one round trip.

        Returns:
            The next offset to read, or None if the group has none, or if the stored data is no offset (which is
            logged). For several partitions, a dict with an entry for each.

        Raises:
            ConfigError: An argument is no partition.
            SessionLostError: There is no session at the moment; only with ``store="zookeeper"``.
            NoOffsetsError: Brokers refuse for good to read an offset.
            BrokerError: No broker answered.
            ClosedError: The consumer is not connected, or was closed.
        """
        if is_partition(partition):
            return spawn(self._committed_of(partition), "GroupedConsumer.committed")
        return spawn(self._committed_of_all(partition), "GroupedConsumer.committed")

    async def _committed_of(self, partition: object) -> int | None:
        asked = partition_of(partition, "committed()")
        return (await self._group_offsets([asked])).get(asked)

    async def _committed_of_all(self, partitions: object) -> dict[TopicPartition, int | None]:
        asked = partitions_of(partitions, "committed()")
        found = await self._group_offsets(asked)
        return {partition: found.get(partition) for partition in asked}

    async def _group_offsets(
        self, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, int | None]:
        connected = self._require_connected()
        if not isinstance(connected, AssignedConsumer):
            return await connected.stored_offsets(partitions)
        if partitions is None:
            raise IllegalStateError(
                "fetch_committed_offsets(): without a session, a consumer after assign() cannot list the group's"
                " offsets; name the partitions"
            )
        return await self._stored_offsets(partitions) if partitions else {}

    @starts_at_call
    async def fetch_committed_offsets(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """
        Return the offsets that the group has committed, as ``committed`` reads them.

        Args:
            partitions: Some partitions. None: each partition of any topic for which the group has an offset.

        Returns:
            The next offsets to read, with "" as metadata, which Kafka 0.8 does not keep. A partition without an
            offset, or with stored data that is no offset, is left out.

        Raises:
            ConfigError: An argument is no partition.
            IllegalStateError: After ``assign``, no partitions are named.
            KielGroupsError: The errors of ``committed``. Without ``partitions``, a session is always needed.
        """
        asked = None if partitions is None else partitions_of(partitions, "fetch_committed_offsets()")
        found = await self._group_offsets(asked)
        return {partition: OffsetAndMetadata(offset) for partition, offset in found.items() if offset is not None}


async def _result_of(begin: Callable[[], Awaitable[frozenset[TopicPartition]]]) -> frozenset[TopicPartition]:
    """Begin a commit, and return its result. On a loop that does not run yet, the commit begins with the loop."""
    return await begin()
