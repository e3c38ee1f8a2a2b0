"""
The group member of a query's driver, with blocking methods for the thread that Spark calls.

Only the driver is a member and owns partitions; executors read the ranges that it plans. A batch is planned from the
partitions owned at that moment, and committed, under the member's fencing, once it is known to be done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from kiel_groups.allocators import round_robin
from kiel_groups.clients.calls.eager_methods import shielded
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.coordination.member.group_member import GroupMember
from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.coordination.session.session_context import ProcessContext
from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import KielGroupsError, SessionLostError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint.query_offsets import Span
from kiel_groups.spark.member.microbatch_handler import BatchHandler
from kiel_groups.sync import LoopThread

__all__ = ["SparkMember"]

log = logging.getLogger(__name__)

#: How long the first batch waits for the member's assignment, in seconds: other members may have to finish their work
#: first, and partitions that arrive later are read by a later batch.
SETTLE_S = 10.0

#: How often to poll for the assignment, in seconds: the member notifies of claims, but not of an empty assignment.
POLL_S = 0.02

#: How long leaving may take, in seconds: Spark kills a process soon after its SIGTERM.
CLOSE_S = 5.0

#: How long one call may take, in seconds; the session's own timeouts are shorter.
CALL_S = 60.0


class SparkMember:
    """
    The group member of one query, for use by one thread; every call blocks for a bounded time.

    Args:
        loop: The event loop that the member runs on.
        cluster: The brokers, used on that loop.
        config: The group, and the names of this member.
        zookeeper: The ZooKeeper of the group.
        fail_on_commit_error: Whether a batch that could not be committed ends the query.
        metrics: Counts ``batches_not_committed``, besides the member's own metrics.
        runtime: Clocks, randomness and threads; None means those of this process.
    """

    def __init__(
        self,
        loop: LoopThread,
        cluster: ClusterMetadata,
        config: GroupConfig,
        zookeeper: ZooKeeperConfig,
        *,
        fail_on_commit_error: bool = False,
        metrics: Metrics | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.metrics = metrics or Metrics()
        self._loop = loop
        self._group = config.group
        self._fail_on_commit_error = fail_on_commit_error
        self._subscription = SubscriptionState(config)
        self._handler = BatchHandler(config.group, cluster, self._subscription, self.metrics)
        self._failure: KielGroupsError | None = None
        self._runtime = runtime or Runtime()
        process = ProcessContext(config, zookeeper, self.metrics, self._runtime)
        self._member = GroupMember(process, self._handler, self._subscription, round_robin, self._failed)

    @property
    def member_id(self) -> str | None:
        """The member's id in the group; it changes after a lost session."""
        return self._member.member_id

    def start(self, topics: Collection[str], settle_s: float = SETTLE_S) -> None:
        """
        Join the group, and wait for an assignment.

        Args:
            topics: The topics to subscribe to.
            settle_s: How long to wait until this member owns all partitions that the leader assigned to it.

        Raises:
            GroupConfigError: The group has other settings.
            CoordinationError: ZooKeeper did not answer or refused, or the group has foreign members.
        """
        self._loop.run(self._start(topics, settle_s), CALL_S + settle_s)

    def next_batch(
        self,
        topics: Collection[str],
        reached: Mapping[TopicPartition, Span] | None,
        known: Mapping[TopicPartition, Span],
    ) -> dict[TopicPartition, Span]:
        """
        End and commit the previous batch, and return the positions from which the next batch may read.

        Args:
            topics: The topics to be subscribed to from now on.
            reached: The query's position, which shows whether the previous batch ran. None means that the batch ran.
            known: The query's position, as far as it is known.

        Returns:
            The position of each partition that this member owns and keeps.

        Raises:
            NoOffsetsError: The start position of a topic is unknown.
            KielGroupsError: The member has stopped for good, or the previous batch could not be committed: a retriable
                failure is raised only if ``fail_on_commit_error`` is set.
        """
        return self._loop.run(self._next_batch(topics, reached, known), CALL_S)

    def plan(self, wanted: Mapping[TopicPartition, Span]) -> dict[TopicPartition, Span]:
        """
        Start a batch of partitions that ``next_batch`` returned, each up to the end of its span.

        Returns:
            The spans that the batch may read, without partitions that were revoked meanwhile. The member releases none
            of these partitions before the next call of ``next_batch`` or ``close``, but it can lose them.
        """
        return self._loop.run(self._plan(wanted), CALL_S)

    def restart(
        self, firsts: Mapping[TopicPartition, int], known: Mapping[TopicPartition, Span]
    ) -> dict[TopicPartition, Span]:
        """
        Restart recreated partitions at the first offsets of their new logs, and commit these offsets.

        Args:
            firsts: The first offsets of the new logs.
            known: The query's position, as far as it is known.

        Returns:
            The new position of each partition in ``firsts``, without partitions that were revoked meanwhile.
        """
        return self._loop.run(self._restart(firsts, known), CALL_S)

    def close(self, done: Mapping[TopicPartition, Span] | None = None, timeout_s: float = CLOSE_S) -> None:
        """
        Leave the group. Before that, commit the last batch if ``done`` shows that the batch is done.

        Args:
            done: The end of the last batch, if it is known to be done.
            timeout_s: The seconds after which the session is closed without a further commit, which deletes the claims.
                The claims last until the session expires only if ZooKeeper does not answer within twice this time.
        """
        try:
            self._loop.run(self._close(done or {}, timeout_s), 2 * timeout_s)
        except TimeoutError:
            log.error("group %s: ZooKeeper does not answer; the session will expire by its timeout", self._group)

    # ------------------------------------------------------------------ on the loop

    async def _start(self, topics: Collection[str], settle_s: float) -> None:
        self._subscription.change_subscription(topics)
        await self._member.start()
        loop = asyncio.get_running_loop()
        patient_until_s = loop.time() + settle_s
        while not (self._member.settled or self._failure) and loop.time() < patient_until_s:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        if not self._member.settled:
            log.warning(
                "group %s: other members have not released all partitions assigned to this query; they follow later",
                self._group,
            )

    def _failed(self, error: KielGroupsError) -> None:
        self._failure = error

    async def _next_batch(
        self,
        topics: Collection[str],
        reached: Mapping[TopicPartition, Span] | None,
        known: Mapping[TopicPartition, Span],
    ) -> dict[TopicPartition, Span]:
        if self._failure is not None:
            raise self._failure
        self._member.check_subscription(topics)
        # A query's pattern may match no topic for a while, which subscribe() refuses.
        if self._subscription.change_subscription(topics):
            await self._member.resubscribe()
        unfenced = self._handler.finish(reached)
        await self._commit()
        if unfenced:
            self._report(
                SessionLostError(
                    f"a batch was done after this query had lost {len(unfenced)} of its partitions, first"
                    f" {unfenced[0].topic_partition} (offsets {unfenced[0].start} to {unfenced[0].end}): that is not"
                    " committed, and their present owners read it again"
                )
            )
        return self._handler.positions(known)

    async def _commit(self) -> None:
        if not self._subscription.offsets.has_uncommitted():
            return
        try:
            # A SIGTERM must not cancel a commit in flight: whether it had been stored would be unknown.
            await shielded(self._member.commit_on_session(), f"group {self._group}: a commit")
        except KielGroupsError as error:
            if not error.retriable:
                raise
            self._report(error)

    def _report(self, error: KielGroupsError) -> None:
        """Count an uncommitted batch. Raise the error if ``fail_on_commit_error`` is set. Otherwise, log the error."""
        self.metrics.count("batches_not_committed")
        if self._fail_on_commit_error:
            raise error
        log.error("group %s: %s", self._group, error)

    async def _plan(self, wanted: Mapping[TopicPartition, Span]) -> dict[TopicPartition, Span]:
        if self._handler.resume(wanted):
            await self._commit()
        return self._handler.plan(wanted, may_read=self._handler.gate.is_open(self._runtime.boot_time_s()))

    async def _restart(
        self, firsts: Mapping[TopicPartition, int], known: Mapping[TopicPartition, Span]
    ) -> dict[TopicPartition, Span]:
        self._handler.restart(firsts)
        await self._commit()
        return {each: span for each, span in self._handler.positions(known).items() if each in firsts}

    async def _close(self, done: Mapping[TopicPartition, Span], timeout_s: float) -> None:
        self._handler.finish(done)
        await self._member.close(CloseLimit(timeout_s))
