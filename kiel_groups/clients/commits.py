"""The commits of a grouped consumer, and the questions about what its group has committed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

from kiel_groups.clients.calls.arguments import is_partition, offsets_of, partition_of, partitions_of
from kiel_groups.clients.calls.eager_methods import cancels_this_task, failed_future, spawn
from kiel_groups.clients.connected_consumer import AssignedConsumer, ConnectedConsumer
from kiel_groups.clients.lifecycle import GroupLifecycle
from kiel_groups.clients.record_calls import RecordCalls
from kiel_groups.errors import ClosedError, CommitFailedError, KielGroupsError
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wording import some

__all__ = ["CommitCallback", "Commits", "Offsets"]

log = logging.getLogger(__name__)

#: Offsets as applications pass them: the next offset to read, alone or with a text, by partition.
Offsets: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]

#: Called with the offsets of an asynchronous commit, and the partitions that were stored, or the error.
CommitCallback: TypeAlias = Callable[[dict[TopicPartition, OffsetAndMetadata], Any], object]

#: A commit that has begun, and the partitions whose offsets it has stored.
_Committing: TypeAlias = asyncio.Future[frozenset[TopicPartition]]


class Commits:
    """Commits the offsets of one grouped consumer, and reads those that its group has committed."""

    def __init__(self, lifecycle: GroupLifecycle, calls: RecordCalls, default_callback: CommitCallback | None) -> None:
        self._lifecycle = lifecycle
        self._calls = calls
        self._default_callback = default_callback
        self._group = lifecycle.settings.group.group
        #: Set when the callback of the last ``commit_async`` is called; the next callback waits for it.
        self._called: asyncio.Event | None = None

    # ------------------------------------------------------------------ commits

    def commit(self, offsets: Offsets | None) -> _Committing:
        """Start a commit of what is finished, or of chosen offsets."""
        return self._begin(None if offsets is None else offsets_of(offsets, "commit()"))

    def _begin(self, chosen: Mapping[TopicPartition, OffsetAndMetadata] | None) -> _Committing:
        """Start a commit; what the caller has in flight counts from now on, unless the offsets are chosen."""
        connected = self._lifecycle.require_member("commit()")
        if chosen is None:
            # Counted at the call: the task of the commit has a context of its own, without the caller's calls.
            self._calls.count_record()
            connected.reader.values.finish(calls=self._calls.calls_here())
            return spawn(self._commit_finished(connected), "GroupedConsumer.commit")
        numbers = {partition: value.offset for partition, value in chosen.items()}
        return spawn(_result_of(lambda: connected.commit_chosen_shielded(numbers)), "GroupedConsumer.commit")

    async def _commit_finished(self, connected: ConnectedConsumer) -> frozenset[TopicPartition]:
        tracker = self._lifecycle.subscription.offsets
        due = tracker.commits().keys()
        stored = await connected.commit_shielded()
        left = tracker.commits(due - stored)
        if left and tracker.rules.asks_brokers:
            raise CommitFailedError(
                f"group {self._group}: commit(): {some(sorted(left))} not stored: brokers did not confirm it in"
                f" time, or refused it as the log says; they may still store it. Commit again"
                + (f" (stored: {some(sorted(stored))})" if stored else "")
            )
        return stored

    def commit_async(self, offsets: Offsets | None, callback: CommitCallback | None) -> _Committing:
        """Start a commit, and report its outcome to a callback, after those of earlier commits."""
        notify = callback or self._default_callback
        reported: dict[TopicPartition, OffsetAndMetadata] = {}
        try:
            chosen = None if offsets is None else offsets_of(offsets, "commit_async()")
            committing = self._begin(chosen)
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
        commits = self._lifecycle.subscription.offsets.commits()
        return {partition: OffsetAndMetadata(commit.offset) for partition, commit in commits.items()}

    async def _notify(
        self,
        committing: _Committing,
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
            log.exception("group %s: the callback of a commit failed", self._group)
            self._lifecycle.settings.metrics.count("commit_callbacks_failed")
        return committing.result()

    def commit_offsets(self, metadata: Callable[[], str]) -> asyncio.Future[None]:
        """Start a commit of the caller's values, or of all values if the caller does not consume; log a failure."""
        connected = self._lifecycle.connected
        if connected is not None:
            try:
                connected = self._lifecycle.require_member("commit_offsets()")
            except ClosedError:
                connected = cast(ConnectedConsumer, connected)
            connected.reader.values.finish(calls=self._calls.calls_here() or None)
        return spawn(self._commit_values(metadata), "GroupedConsumer.commit_offsets")

    async def _commit_values(self, metadata: Callable[[], str]) -> None:
        connected = self._lifecycle.connected
        if connected is None or isinstance(connected, AssignedConsumer):
            return
        try:
            await connected.commit_shielded(metadata())
        except KielGroupsError as error:
            log.error("the offsets of group %s were not committed: %s", self._group, error)
            self._lifecycle.settings.metrics.count("commits_failed")

    # ------------------------------------------------------------------ what is committed

    def committed(
        self, partition: TopicPartition | Iterable[TopicPartition]
    ) -> asyncio.Future[int | None] | asyncio.Future[dict[TopicPartition, int | None]]:
        """Return the offset that the group has committed of a partition, or of each of several."""
        if is_partition(partition):
            return spawn(self._of_one(partition), "GroupedConsumer.committed")
        return spawn(self._of_all(partition), "GroupedConsumer.committed")

    async def _of_one(self, partition: object) -> int | None:
        asked = partition_of(partition, "committed()")
        return (await self._lifecycle.require_connected().stored_offsets([asked])).get(asked)

    async def _of_all(self, partitions: object) -> dict[TopicPartition, int | None]:
        asked = partitions_of(partitions, "committed()")
        found = await self._lifecycle.require_connected().stored_offsets(asked)
        return {partition: found.get(partition) for partition in asked}

    async def fetch_committed(
        self, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that the group has committed, of some partitions or of all; no entry without one."""
        asked = None if partitions is None else partitions_of(partitions, "fetch_committed_offsets()")
        found = await self._lifecycle.require_connected().stored_offsets(asked)
        return {partition: OffsetAndMetadata(offset) for partition, offset in found.items() if offset is not None}


async def _result_of(begin: Callable[[], Awaitable[frozenset[TopicPartition]]]) -> frozenset[TopicPartition]:
    """Begin a commit, and return its result. On a loop that does not run yet, the commit begins with the loop."""
    return await begin()
