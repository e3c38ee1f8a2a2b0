"""
A query's driver as a member of a consumer group, for the blocking thread that Spark asks.

The driver joins and owns; executors are told what to read and are members of nothing. A batch is planned of what is
owned at that moment, and committed, with the member's fences, once it is known to be done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from kiel_groups.allocators import round_robin
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.coordination.member.group_member import GroupMember
from kiel_groups.coordination.zookeeper.runtime import boot_time_s
from kiel_groups.errors import KielGroupsError, SessionLostError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint.query_offsets import Span
from kiel_groups.spark.member.microbatch_handler import BatchHandler
from kiel_groups.sync import LoopThread

__all__ = ["SparkMember"]

log = logging.getLogger(__name__)

#: How long the first batch waits for the group to give this member its share, in seconds: others may have to finish
#: their work first, and what comes later is read later.
SETTLE_S = 10.0

#: How often it is looked whether it has come, in seconds; nobody tells of a share that stays empty.
LOOK_S = 0.02

#: How long leaving may take, in seconds: who was told to end is killed before long.
CLOSE_S = 5.0

#: What one call may take, in seconds: the session's own waits are shorter.
CALL_S = 60.0


class SparkMember:
    """
    Membership of one query; for one thread, which every call blocks for a bounded time.

    Args:
        loop: Where the membership lives.
        cluster: The brokers, used on that loop.
        config: The group, and what this member calls itself.
        zookeeper: Where the group lives.
        fail_on_commit_error: Whether a batch that could not be committed ends the query.
        metrics: Where to count.
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
    ) -> None:
        self.metrics = metrics or Metrics()
        self._loop = loop
        self._group = config.group
        self._fail_on_commit_error = fail_on_commit_error
        self._subscription = SubscriptionState()
        self._handler = BatchHandler(config.group, cluster, self._subscription, self.metrics)
        self._failure: KielGroupsError | None = None
        self._member = GroupMember(
            config, zookeeper, self._handler, self._subscription, round_robin, self.metrics, self._failed
        )

    @property
    def member_id(self) -> str | None:
        """Its id in the group; another one after a lost session."""
        return self._member.member_id

    def start(self, topics: Collection[str], settle_s: float = SETTLE_S) -> None:
        """
        Join, and wait a while for a share.

        Args:
            topics: What to subscribe to.
            settle_s: How long to wait for all that the group's leader gives this member.

        Raises:
            GroupConfigError: The group lives by other settings.
            CoordinationError: ZooKeeper did not answer, refused, or has members that are not ours.
        """
        self._loop.run(self._start(topics, settle_s), CALL_S + settle_s)

    def next_batch(
        self,
        topics: Collection[str],
        reached: Mapping[TopicPartition, Span] | None,
        known: Mapping[TopicPartition, Span],
    ) -> dict[TopicPartition, Span]:
        """
        End the batch before, with a commit of what it read, and tell what the next one may read.

        Args:
            topics: What to be subscribed to from now on.
            reached: Where the query stands, by which one sees whether the batch before was run; None: it was.
            known: Where the query stands, as far as it is known.

        Returns:
            Where each partition stands that this member owns and is to keep.

        Raises:
            KielGroupsError: What has stopped this member for good; or, where ``fail_on_commit_error`` is set, why the
                batch before was not committed.
        """
        return self._loop.run(self._next_batch(topics, reached, known), CALL_S)

    def plan(self, wanted: Mapping[TopicPartition, Span]) -> dict[TopicPartition, Span]:
        """
        Begin a batch of partitions that ``next_batch`` told, each up to where its span says.

        Returns:
            What it may read: without partitions that were asked back meanwhile. None of these is let go before the next
            call of ``next_batch``, but by a loss of the session.
        """
        return self._loop.run(self._plan(wanted), CALL_S)

    def restart(
        self, firsts: Mapping[TopicPartition, int], known: Mapping[TopicPartition, Span]
    ) -> dict[TopicPartition, Span]:
        """
        Go on in logs that are other ones than before, which the group's offsets follow.

        Args:
            firsts: Where they begin.
            known: Where the query stands, as far as it is known.

        Returns:
            Where each of these partitions stands now; without those that were asked back meanwhile.
        """
        return self._loop.run(self._restart(firsts, known), CALL_S)

    def close(self, done: Mapping[TopicPartition, Span] | None = None, timeout_s: float = CLOSE_S) -> None:
        """
        Leave the group: what is known to be done is committed, the batch that runs is not.

        Args:
            done: How far the last batch is known to be done, where it is.
            timeout_s: How long that may take; then the session is given up, and its partitions with it.
        """
        try:
            self._loop.run(self._close(done or {}, timeout_s), 2 * timeout_s)
        except TimeoutError:
            log.error("group %s: ZooKeeper does not answer; the session ends by its timeout", self._group)

    # ------------------------------------------------------------------ on the loop

    async def _start(self, topics: Collection[str], settle_s: float) -> None:
        self._subscription.subscribe(topics)
        await self._member.start()
        loop = asyncio.get_running_loop()
        patient_until_s = loop.time() + settle_s
        while not (self._member.settled or self._failure) and loop.time() < patient_until_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        if not self._member.settled:
            log.warning(
                "group %s: others have not let go of all that is to be read here; it follows later", self._group
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
        if self._subscription.subscribe(topics):
            await self._member.resubscribe()
        unfenced = self._handler.finish(reached)
        await self._commit()
        if unfenced:
            self._report(
                SessionLostError(
                    f"a batch was done after this query had lost {len(unfenced)} of its partitions, first"
                    f" {unfenced[0].topic_partition} (offsets {unfenced[0].start} to {unfenced[0].end}): that is not"
                    " committed, and whoever owns them now reads it again"
                )
            )
        return self._handler.standing(known)

    async def _commit(self) -> None:
        if not self._subscription.all_consumed_offsets():
            return
        try:
            # Once begun it goes on: a SIGTERM that cuts it short would leave open what stands there.
            await asyncio.shield(spawn(self._member.commit_on_session(), "commit"))
        except KielGroupsError as error:
            if not error.retriable:
                raise
            self._report(error)

    def _report(self, error: KielGroupsError) -> None:
        """A batch is not committed; as loud as the user wants it."""
        self.metrics.count("batches_not_committed")
        if self._fail_on_commit_error:
            raise error
        log.error("group %s: %s", self._group, error)

    async def _plan(self, wanted: Mapping[TopicPartition, Span]) -> dict[TopicPartition, Span]:
        if self._handler.resume(wanted):
            await self._commit()
        return self._handler.plan(wanted, may_read=self._member.gate.is_open(boot_time_s()))

    async def _restart(
        self, firsts: Mapping[TopicPartition, int], known: Mapping[TopicPartition, Span]
    ) -> dict[TopicPartition, Span]:
        self._handler.restart(firsts)
        await self._commit()
        return {each: span for each, span in self._handler.standing(known).items() if each in firsts}

    async def _close(self, done: Mapping[TopicPartition, Span], timeout_s: float) -> None:
        self._handler.finish(done)
        await self._member.close(timeout_s)
