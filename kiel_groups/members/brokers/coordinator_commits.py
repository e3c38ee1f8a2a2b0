"""
Store the offsets of a member's partitions with the coordinator of its group, and read the offsets of the group.

The coordinator protects the offsets from former members: it accepts a commit only from a member of the present
generation. So it protects the group as a whole, not each partition. When the coordinator answers a commit, the replicas
of its log have stored the commit (acks -1).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kiel_groups.backoff import Backoff
from kiel_groups.clients.net.offset_requests import report_refused
from kiel_groups.errors import CommitFailedError, KielGroupsError, SessionLostError
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest, Reaction, reaction_to
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.partition_offsets import Commit, StoredOffset
from kiel_groups.group.seen_topics import SeenTopics
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import CoordinatedContext
from kiel_groups.members.brokers.member import CoordinatedMember
from kiel_groups.members.brokers.offset_requests import (
    FIRST_READ_PAUSE_S,
    LONGEST_READ_PAUSE_S,
    REPEATED,
    read_offsets,
)
from kiel_groups.members.offsets.owned_offsets import Written
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import (
    NO_ERROR,
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
    error_code,
)
from kiel_groups.wire.offsets import OffsetCommitRequestV2
from kiel_groups.wire.primitives import LONGEST_STRING
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.fenced_writes import Renew

log = logging.getLogger(__name__)


#: The share of the session timeout that a read may take before it is repeated.
_READ_SHARE = 1 / 3

#: After these codes, the membership of the commit is over, or its group rebalances.
_OVER = frozenset(
    {CoordinatorCode.ILLEGAL_GENERATION, CoordinatorCode.UNKNOWN_MEMBER, CoordinatorCode.REBALANCE_IN_PROGRESS}
)


class CoordinatorOffsets:
    """
    Stores and reads the offsets of a group by requests to its coordinator; see ``OffsetStore``.

    Args:
        context: The member's settings and runtime.
        member: The member, whose generation and id each commit carries.
        tracker: The offsets of the member's partitions.
        seen: The incarnations of topics.
    """

    def __init__(
        self, context: CoordinatedContext, member: CoordinatedMember, tracker: OffsetTracker, seen: SeenTopics
    ) -> None:
        self._context = context
        self._group = context.group.group
        self._runtime = context.runtime
        self._metrics = context.metrics
        self._member = member
        self._tracker = tracker
        self._seen = seen
        self._timeout_s = context.timing.find_timeout_ms / 1000
        #: A join waits for reads under way, and must not be late because of them.
        self._read_s = min(self._timeout_s, context.timing.session_timeout_ms / 1000 * _READ_SHARE)
        #: The offsets that this process has last stored, each with the number of the topic's incarnation. Their absence
        #: from the coordinator is an alarm, unless the topic was created again: coordinators forget deleted topics.
        self._stored: dict[TopicPartition, tuple[int, int]] = {}
        #: The partitions that the coordinator does not know, according to its answer to the last commit.
        self.unknown: frozenset[TopicPartition] = frozenset()

    # ------------------------------------------------------------------ commits

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """
        Store next offsets with a text; see ``OffsetStore.commit``. While the lease runs, retry after temporary
        failures.

        Raises:
            SessionLostError: The lease is over, or the member has left its generation. Records whose offsets were not
                stored are delivered again.
            CommitFailedError: The coordinator has not confirmed an offset within the request timeout, or it refuses the
                member for good.
        """
        sent = self._tracker.sent(commits)
        offsets = {partition: commit.offset for partition, commit in commits.items()}
        numbers = {partition: self._seen.number(partition.topic) for partition in commits}

        def may_store(partition: TopicPartition) -> bool:
            # The tracker does not know a partition that was revoked meanwhile, and so does not see that it is outdated.
            return self._tracker.may_store(partition) and self._seen.number(partition.topic) == numbers[partition]

        done = await self.store(offsets, metadata, may_store)
        stored = {partition: StoredOffset(*commits[partition]) for partition in done}
        # After an error, the outcome stays unknown: the next commit stores an offset even if it has not changed.
        self._tracker.answered(sent, stored)
        return Written(stored, {})

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Return an empty mapping: while a group has members, its coordinator accepts offsets only from members."""
        return {}

    async def store_starts(
        self,
        topic: str,
        earliest: Mapping[TopicPartition, int],
        is_known: Callable[[TopicPartition, StoredOffset], bool],
        renew: Renew[object],
    ) -> Mapping[TopicPartition, StoredOffset]:
        """
        Store the starts of new logs, and return the stored offsets. The offsets that were stored before do not matter.

        The result is empty if there is no membership, or if an offset is not confirmed. Then the caller tries again.
        """
        trusted = self._seen.trusted(topic)
        try:
            done = await self.store(earliest)
        except KielGroupsError as error:
            log.info("group %s: the starts of new logs were not stored: %s", self._group, error)
            return {}
        if trusted is not None:
            trusted.update(done)
        return {partition: StoredOffset(earliest[partition], 0) for partition in done}

    async def store(
        self,
        offsets: Mapping[TopicPartition, int],
        metadata: str = "",
        may_store: Callable[[TopicPartition], bool] = lambda _: True,
    ) -> frozenset[TopicPartition]:
        """
        Store next offsets, and return the partitions whose offsets were stored.

        Before each try, leave out offsets that ``may_store`` no longer permits. The coordinator may refuse other
        offsets. Leave out a text that is too long.

        Raises:
            SessionLostError: As ``commit``.
            CommitFailedError: As ``commit``.
        """
        by_s = self._runtime.boot_time_s() + self._timeout_s
        if len(metadata.encode()) > LONGEST_STRING:
            metadata = ""
        waiting, backoff = dict(offsets), Backoff(FIRST_READ_PAUSE_S, LONGEST_READ_PAUSE_S)
        done: dict[TopicPartition, int] = {}
        gate: GenerationGate | None = None
        while waiting := {partition: offset for partition, offset in waiting.items() if may_store(partition)}:
            # In a later generation, the partitions may be assigned to other members, or restarted elsewhere.
            gate = self._open_gate(gate)
            answers = await self._attempt(gate, waiting, metadata)
            done |= {partition: waiting[partition] for partition, code in answers.items() if code == NO_ERROR}
            self._stored |= {each: (self._seen.number(each.topic), offset) for each, offset in done.items()}
            repeated = REPEATED
            if OFFSET_METADATA_TOO_LARGE in answers.values() and metadata:
                log.warning("group %s: the metadata of a commit is too long: left out", self._group)
                metadata = ""
                repeated = REPEATED | {OFFSET_METADATA_TOO_LARGE.number}
            passing = repeated | {NO_ERROR.number}
            refused = {partition: code for partition, code in answers.items() if code.number not in passing}
            report_refused(self._group, self._metrics, refused)
            self._doubt(answers)
            again = [p for p in waiting if p not in answers or answers[p].number in repeated]
            waiting = {partition: waiting[partition] for partition in again}
            if waiting:
                self._retry(waiting, answers, by_s)
                await asyncio.sleep(backoff.next_s())
        return frozenset(done)

    async def _attempt(
        self, gate: GenerationGate, offsets: Mapping[TopicPartition, int], metadata: str
    ) -> Mapping[TopicPartition, ErrorCode]:
        """
        Send one commit. Return the code of each partition, or an empty mapping if no answer came. The errors are those
        of ``store``.
        """
        token, now_s = gate.token, self._runtime.boot_time_s()
        texts = {partition: OffsetAndMetadata(offset, metadata) for partition, offset in offsets.items()}
        request = OffsetCommitRequestV2(self._group, token.generation, token.member_id, texts)
        try:
            timeout_s = min(self._timeout_s, gate.deadline_s - now_s)
            answers = await self._member.send(GroupRequest.COMMIT, self._context.aside(request, timeout_s))
        except KielGroupsError as error:
            log.info("group %s: no answer to a commit: %s", self._group, error)
            return {}
        self._metrics.observe("commit", self._runtime.boot_time_s() - now_s)
        codes = sorted({answer.number for answer in answers.values()})
        for code in codes:
            self._member.note(GroupRequest.COMMIT, code, token)
        if over := _OVER.intersection(codes):
            raise SessionLostError(
                f"group {self._group}: offsets were not stored: {error_code(min(over))}: the group rebalances without"
                " this member's generation; records since the last commit are delivered again"
            )
        if refused := [code for code in codes if reaction_to(GroupRequest.COMMIT, code) is Reaction.FAIL]:
            # The member stops, and its partitions are lost, so no later check reports them as uncommitted.
            raise CommitFailedError(f"group {self._group}: offsets were not stored: {error_code(min(refused))}")
        if NO_ERROR.number in codes:
            gate.renew_in_rebalance(token, now_s)
        return answers

    def _retry(
        self, offsets: Mapping[TopicPartition, int], answers: Mapping[TopicPartition, ErrorCode], by_s: float
    ) -> None:
        """Count the offsets that are not stored yet. Raise CommitFailedError if the time for retries is over."""
        self._metrics.count("commits_repeated", len(offsets))
        if self._runtime.boot_time_s() < by_s:
            return
        first = min(offsets)
        why = str(answers[first]) if first in answers else "no answer"
        raise CommitFailedError(
            f"group {self._group}: {some(sorted(offsets))} not stored within {self._timeout_s:g} s: {why}; the"
            " coordinator may still store it. Commit again"
        )

    def _open_gate(self, former: GenerationGate | None) -> GenerationGate:
        """
        Return the present gate.

        Raises:
            SessionLostError: The gate is closed, or the present gate is not the ``former`` gate, if one is given.
        """
        gate = self._member.gate
        if (
            gate is None
            or former not in (None, gate)
            or not self._member.may_commit
            or not gate.is_open(self._runtime.boot_time_s())
        ):
            raise SessionLostError(f"group {self._group}: no membership to commit with at the moment")
        return gate

    def _doubt(self, answers: Mapping[TopicPartition, ErrorCode]) -> None:
        self.unknown = frozenset(each for each, code in answers.items() if code == UNKNOWN_TOPIC_OR_PARTITION)
        for topic in sorted({partition.topic for partition in self.unknown}):
            self._seen.doubt(topic)

    # ------------------------------------------------------------------ reads

    async def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """
        Read the group's offsets, whether or not this member owns the partitions.

        Returns:
            The offset of each partition that has a committed offset.

        Raises:
            NoOffsetsError: As ``read_offsets``.
            KielGroupsError: As ``read_offsets``.
        """
        token = self._member.token

        def refused(code: int) -> None:
            if token is not None:
                self._member.note(GroupRequest.FETCH, code, token)

        return await read_offsets(
            self._group,
            partitions,
            lambda request: self._member.send(GroupRequest.FETCH, self._context.aside(request, self._read_s)),
            refused,
        )

    def remembered(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the given partitions whose offsets this process has stored itself."""
        return frozenset(partitions) & self._stored.keys()

    def lost_offsets(self, missing: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """
        Return the offsets of these partitions that this process has stored, and that the coordinator has lost.

        Brokers before Kafka 2.1 also expire the offsets of groups with members. This method logs an error about such
        offsets. The method leaves out offsets in earlier incarnations of a topic.
        """
        stored = {partition: self._stored[partition] for partition in missing if partition in self._stored}
        lost = {each: offset for each, (number, offset) in stored.items() if number == self._seen.number(each.topic)}
        if lost:
            self._metrics.count("offsets_expired", len(lost))
            log.error(
                "group %s: the coordinator has lost the offsets of %s, first %s, which this member had stored; starting"
                " where they were. Raise the brokers' offsets.retention.minutes, if they have expired",
                self._group,
                counted(lost, "partition"),
                min(lost),
            )
        return lost
