"""Assign the partitions of a group's topics to its members, for the leader, and detect changes of the topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from kiel_groups.allocators.assignors import Assignor, AssignorMember, run_assignor
from kiel_groups.errors import AllocatorError, KielGroupsError, ProtocolError
from kiel_groups.group.seen_topics import SeenTopics
from kiel_groups.members.brokers.hooks import CoordinatedContext, JoinedGroup
from kiel_groups.model import TopicPartition, numbers_by_topic
from kiel_groups.wire.consumer_protocol import ConsumerAssignment, ConsumerSubscription
from kiel_groups.wording import some
from kiel_groups.zookeeper.runtime import ends_within

log = logging.getLogger(__name__)


#: The pause between two searches for topics that the brokers do not know yet, in seconds.
_MISSING_S = 5.0

#: The share of the session timeout after which a leader assigns the partitions that it knows.
_METADATA_SHARE = 1 / 6


class TopicSource(Protocol):
    """The topics of the cluster. ``ClusterMetadata`` has the topics of real brokers."""

    @property
    def seen(self) -> SeenTopics: ...
    @property
    def asks_ids(self) -> bool: ...
    async def refresh(self, topics: Collection[str], reason: str) -> None: ...
    async def all_topics(self) -> frozenset[str]: ...
    def known_partitions(self, topic: str) -> tuple[int, ...] | None: ...


class AssignmentPlanner:
    """
    Makes the assignments of a generation that this member leads.

    Args:
        context: The member's settings and runtime.
        assignors: The assignors that the member offers. The coordinator chooses one of these assignors by name.
        topics: The topics of the cluster.
    """

    def __init__(self, context: CoordinatedContext, assignors: Sequence[Assignor], topics: TopicSource) -> None:
        self._context = context
        self._group = context.group.group
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._topics = topics
        self._session_s = context.timing.session_timeout_ms / 1000
        #: The partitions of the members' topics in the last assignment of this leader.
        self._planned: Mapping[str, tuple[int, ...]] = {}
        #: Set while topics of that assignment are missing. The assignment may be made during any pause of ``changed``.
        self._lacks_topics = asyncio.Event()
        #: The request of the present join, and its topics.
        self._ahead: asyncio.Future[bool] | None = None
        self._ahead_topics: frozenset[str] = frozenset()

    async def ask_ahead(self, topics: Collection[str]) -> None:
        """
        Ask for the partitions of these topics and of the last assignment, while the coordinator answers a join.

        If this member leads, and no other member has further topics, ``plan`` then sends no request. Each join begins
        with a call of this method or of ``drop_ahead``, so ``plan`` uses no answer that is older than the join.
        """
        self._ahead = asked = asyncio.get_running_loop().create_future()
        self._ahead_topics = frozenset(topics) | self._planned.keys()
        try:
            if self._ahead_topics:
                await self._topics.refresh(self._ahead_topics, "join")
            asked.set_result(True)
        except KielGroupsError as error:
            log.info("group %s: no partitions while joining: %s", self._group, error)
        finally:
            if not asked.done():
                asked.set_result(False)

    def drop_ahead(self) -> None:
        """Forget the request that ``ask_ahead`` has sent for an earlier join."""
        self._ahead, self._ahead_topics = None, frozenset()

    async def plan(self, joined: JoinedGroup) -> dict[str, bytes]:
        """
        Return the assignment of each member, with an empty assignment for a member that gets no partitions.

        If no broker lists the partitions in time, assign the partitions that are known already. ``changed`` notices
        further partitions later.

        Raises:
            AllocatorError: The assignor has failed, took too long, or returned no valid assignment.
        """
        subscriptions = self._subscriptions(joined)
        topics = sorted({topic for member in subscriptions.values() for topic in member.topics})
        if topics:
            await self._refresh(topics)
        self._remember({topic: self._topics.known_partitions(topic) or () for topic in topics})
        partitions = {topic: numbers for topic, numbers in self._planned.items() if numbers}
        if missing := [topic for topic in topics if topic not in partitions]:
            self._context.metrics.count("subscribed_topics_missing", len(missing))
            log.warning(
                "group %s: no broker knows these topics of the group: %s; each is read as soon as it exists",
                self._group,
                some(missing),
            )
        started_s = self._context.runtime.boot_time_s()
        try:
            assigned = await self._assign(joined.protocol, subscriptions, partitions)
        except AllocatorError:
            self._context.metrics.count("allocator_failures")
            raise
        self._context.metrics.observe("allocator", self._context.runtime.boot_time_s() - started_s)
        by_topic = {member: numbers_by_topic(assigned.get(member, ())) for member in joined.members}
        return {
            member: ConsumerAssignment({topic: tuple(numbers) for topic, numbers in topics.items()}).encode()
            for member, topics in by_topic.items()
        }

    async def _refresh(self, topics: Sequence[str]) -> None:
        """Ask for the topics' partitions, but wait only for a part of the session timeout. Log a failure."""
        limit_s = self._session_s * _METADATA_SHARE
        try:
            async with asyncio.timeout(limit_s):
                if not await self._known_ahead(topics):
                    await self._topics.refresh(topics, "assignment")
        except (KielGroupsError, TimeoutError) as error:
            self._context.metrics.count("assignments_of_known_topics")
            why = str(error) or f"no answer within {limit_s:g} s"
            log.warning("group %s: assigning the partitions known before: %s", self._group, why)

    async def _known_ahead(self, topics: Sequence[str]) -> bool:
        """
        Wait for the answer to ``ask_ahead``. Return whether it has the partitions of all these topics.

        If ``ask_ahead`` did not ask for all these topics, return False at once.
        """
        if self._ahead is None or not self._ahead_topics.issuperset(topics):
            return False
        is_answered = await asyncio.shield(self._ahead)
        return is_answered and all(self._topics.known_partitions(topic) for topic in topics)

    def _subscriptions(self, joined: JoinedGroup) -> dict[str, AssignorMember]:
        """Return the readable subscriptions by member. Report members with an unreadable subscription."""
        found: dict[str, AssignorMember] = {}
        for member, metadata in joined.members.items():
            try:
                read = ConsumerSubscription.parse(metadata, f"the subscription of {member}")
            except ProtocolError as error:
                self._context.metrics.count("subscriptions_unreadable")
                log.error("group %s: %s; this member gets no partitions", self._group, error)
                continue
            found[member] = AssignorMember(read.topics, read.user_data)
        return found

    async def _assign(
        self, protocol: str, members: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        assignor = self._assignors.get(protocol)
        if assignor is None:
            raise AllocatorError(f"group {self._group}: the coordinator has chosen {protocol!r}, which is not offered")
        # The coordinator removes a leader that has not synced within its session.
        limit_s = min(self._context.group.allocator_timeout_ms / 1000, self._session_s)
        # The assignor runs on a thread: a function of the application may take long, and would block the event loop.
        try:
            call = self._context.runtime.in_thread(partial(run_assignor, assignor, members, partitions), "assignor")
            if not await ends_within(call, limit_s):
                raise AllocatorError(f"group {self._group}: assignor {protocol} took more than {limit_s:g} s")
            outcome = call.result()
        except KielGroupsError:
            raise
        except Exception as error:
            raise AllocatorError(f"group {self._group}: assignor {protocol} failed: {error!r}") from error
        for finding in outcome.findings:
            log.warning("group %s: %s", self._group, finding)
        return outcome.assignment

    async def changed(self, interval_s: float) -> None:
        """
        Wait until the topics' partitions differ from the last assignment. Check at least every ``interval_s`` seconds.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._lacks_topics.wait()
                    await asyncio.sleep(_MISSING_S)
            planned = self._planned
            try:
                if planned:
                    await self._topics.refresh(planned.keys(), "age")
            except KielGroupsError as error:
                log.info("group %s: the topics' partitions could not be read: %s", self._group, error)
                continue
            now = {topic: self._topics.known_partitions(topic) or () for topic in planned}
            if planned is self._planned and (
                grown := [each for each, numbers in planned.items() if now[each] != numbers]
            ):
                # Until the next plan, the same change is not reported again.
                self._remember(now)
                log.info("group %s: the partitions of %s have changed", self._group, some(grown))
                return

    def forget(self) -> None:
        """Forget the last assignment, because another member leads the group now."""
        self._remember({})

    def _remember(self, planned: Mapping[str, tuple[int, ...]]) -> None:
        self._planned = planned
        if all(planned.values()):
            self._lacks_topics.clear()
        else:
            self._lacks_topics.set()
