"""
Store the offsets of one member's partitions in Kafka, each with a note of the log and the claim that it belongs to.

The coordinator of the group checks no version, so a request that is delayed may set an offset back, which repeats
records and loses none. A member sends a request only while its gate is open, and waits for the answer no longer than
its lease runs. Offsets that another writer stores while a partition is owned are not looked for: the owner's next
commit replaces them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kiel_groups.backoff import Backoff
from kiel_groups.coordination.offsets.offset_store import Written
from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.partition_handler import StoreAnswer
from kiel_groups.coordination.session.fenced_writes import FencedWriter, Renew
from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.member.commit_note import CommitNote, NotedText
from kiel_groups.group.member.partition_offsets import Commit, PartitionOffsets, StoredOffset
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wording import counted, some

__all__ = ["KafkaStore", "NewOffset", "StoreOutcome", "StoredNotes"]

log = logging.getLogger(__name__)

#: How long a commit is repeated while the coordinator moves or does not answer, in seconds. Kafka notices a dead broker
#: after six seconds, and then loads the group's offsets elsewhere.
COMMIT_PATIENCE_S = 10.0

#: How long the stored offsets are read again after a commit whose outcome is unknown, in seconds.
REREAD_S = 1.5

#: The first and the longest pause before a commit is repeated, in seconds.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0

#: The longest text that the protocol can carry.
_LONGEST_TEXT_BYTES = 32_767

#: Offsets in Kafka have no versions.
_VERSION = 0


class NewOffset(NamedTuple):
    """An offset to store: a position in the log of the topic that was ``created`` then, under a ``claim``."""

    offset: int
    created: int
    claim: int


class StoredNotes(NamedTuple):
    """
    The stored offsets, each with the creation zxid of its topic; None if another program has stored it.

    ``failures`` has the error of each partition that the coordinator has not answered for.
    """

    found: Mapping[TopicPartition, tuple[int, int | None]]
    failures: Mapping[TopicPartition, KielGroupsError]


@dataclass(slots=True)
class StoreOutcome:
    """What became of new offsets. Those in neither part were refused, or were not sent."""

    stored: set[TopicPartition] = field(default_factory=set)
    unknown: set[TopicPartition] = field(default_factory=set)


class KafkaStore:
    """
    The offsets in Kafka as an ``OffsetStore`` and a ``NewLogStore``.

    Args:
        context: The member; the lease of its session limits each request.
        writer: The writer that waits for the gate of the member's session.
        topics: The incarnations of the member's topics.
    """

    def __init__(self, context: MemberContext, writer: FencedWriter, topics: TopicIncarnations) -> None:
        self._context = context
        self._brokers = context.handler.kafka_offsets
        self._tracker = context.tracker
        self._writer = writer
        self._topics = topics
        #: Whether offsets get a note; not if the brokers' offset.metadata.max.bytes has no room for one.
        self._notes = True
        #: When to stop waiting for brokers altogether, on the event loop's clock; and the timeout of the current wait.
        self._give_up_s = math.inf
        self._timeout: asyncio.Timeout | None = None

    def hurry(self, within_s: float) -> None:
        """Limit all waits for brokers to ``within_s`` seconds from now, because the member leaves."""
        self._give_up_s = asyncio.get_running_loop().time() + within_s
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(min(self._give_up_s, self._timeout.when() or math.inf))

    # ------------------------------------------------------------------ the OffsetStore

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """Store offsets with a text; see ``OffsetStore.commit``. Those with an unknown outcome are stored again."""
        started_s = self._context.runtime.boot_time_s()
        states = {partition: self._tracker.of(partition) for partition in commits}
        sent = self._tracker.sent(commits)
        outcome = await self.store(
            {p: _new(commits[p].offset, state) for p, state in states.items() if state is not None},
            lambda partition: self._tracker.may_store(partition) and self._tracker.of(partition) is states[partition],
            metadata,
        )
        stored = {partition: StoredOffset(*commits[partition]) for partition in outcome.stored}
        if commits:
            self._context.metrics.observe("commit", self._context.runtime.boot_time_s() - started_s)
        known = {partition: offset for partition, offset in sent.items() if partition not in outcome.unknown}
        self._tracker.answered(known, stored)
        return Written(stored, {})

    async def commit_reset(self, commits: Mapping[TopicPartition, Commit]) -> Written:
        """Store the positions that resets chose; as ``commit``."""
        return await self.commit(commits, "")

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """
        Return nothing: an offset of another writer is not followed while the partition is owned.

        A broker that has lost touch with the others returns old offsets, and a delayed request of a former owner leaves
        one. Neither differs from an operator's offset, except by a text that any program can write.
        """
        return {}

    # ------------------------------------------------------------------ the NewLogStore

    async def store_starts(
        self,
        topic: str,
        earliest: Mapping[TopicPartition, int],
        is_known: Callable[[TopicPartition, StoredOffset], bool],
        renew: Renew[object],
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Store the earliest offsets of a topic that was created again; see ``NewLogStore.store_starts``."""
        created = self._topics.creation(topic)
        states = {partition: self._tracker.of(partition) for partition in earliest}
        new = {
            partition: _new(earliest[partition], state)._replace(created=created)
            for partition, state in states.items()
            if state is not None
        }
        outcome = await self.store(new, lambda _: self._topics.creation(topic) == created)
        if outcome.stored:
            self._context.metrics.count("offsets_of_deleted_topic", len(outcome.stored))
            log.warning(
                "group %s: topic %s was deleted and created again; %s at the earliest offset",
                self._context.group,
                topic,
                counted(outcome.stored, "partition starts", "partitions start"),
            )
        return {partition: StoredOffset(earliest[partition], _VERSION) for partition in outcome.stored}

    # ------------------------------------------------------------------ requests

    async def stored(self, partitions: Collection[TopicPartition]) -> StoredNotes:
        """Read the stored offsets, and find out which incarnation of its topic each of them belongs to."""
        read = await self._brokers.read(partitions)
        return StoredNotes(
            {partition: (each.offset, _created(each)) for partition, each in read.found.items()}, read.failures
        )

    async def store(
        self,
        offsets: Mapping[TopicPartition, NewOffset],
        may_store: Callable[[TopicPartition], bool],
        text: str = "",
    ) -> StoreOutcome:
        """
        Store offsets. Repeat that while the coordinator moves or does not answer, for ``COMMIT_PATIENCE_S`` at most.

        Right before each request, ``may_store`` confirms each partition. If the outcome stays unknown, the stored
        offsets are read: those that are found there count as stored.

        Raises:
            SessionLostError: The session is over.
        """
        outcome, waiting, backoff = StoreOutcome(), dict(offsets), Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        until_s = asyncio.get_running_loop().time() + COMMIT_PATIENCE_S
        while waiting:
            await self._writer.wait_ready()
            waiting = {partition: each for partition, each in waiting.items() if may_store(partition)}
            answers = await self._try(waiting, text, until_s)
            outcome.stored |= {partition for partition, each in answers.items() if each is StoreAnswer.STORED}
            too_long = {partition for partition, each in answers.items() if each is StoreAnswer.TOO_LONG}
            unknown = {partition for partition, each in answers.items() if each is StoreAnswer.UNKNOWN}
            outcome.unknown |= unknown
            if too_long and (text or self._notes):
                self._shorten(text)
                text, unknown = "", unknown | too_long
            waiting = {partition: each for partition, each in waiting.items() if partition in unknown}
            pause_s = backoff.next_s()
            if asyncio.get_running_loop().time() + pause_s >= min(until_s, self._give_up_s):
                break
            if waiting:
                await asyncio.sleep(pause_s)
        outcome.unknown -= outcome.stored
        if outcome.unknown:
            await self._resolve(offsets, outcome)
        return outcome

    def _shorten(self, text: str) -> None:
        """Leave out the text of a commit that is too long or, without a text, the notes of this and later commits."""
        if text:
            log.warning("group %s: the metadata of a commit is too long: left out", self._context.group)
            return
        self._notes = False
        log.warning(
            "group %s: the brokers' offset.metadata.max.bytes is too small for the note by which members recognise an"
            " offset of a deleted topic: offsets are stored without it. Stop the group before one of its topics is"
            " deleted and created again, or raise that setting to 256 or more",
            self._context.group,
        )

    async def _try(
        self, offsets: Mapping[TopicPartition, NewOffset], text: str, until_s: float
    ) -> Mapping[TopicPartition, StoreAnswer]:
        """Send one request, and wait for its answer while the lease runs."""
        if not offsets:
            return {}
        runtime, gate = self._context.runtime, self._context.session.gate
        at_ms = runtime.wall_ms()
        texts = {
            partition: OffsetAndMetadata(
                each.offset, _noted(CommitNote(each.created, each.claim, at_ms), text) if self._notes else text
            )
            for partition, each in offsets.items()
        }
        lease_s = gate.deadline_s - runtime.boot_time_s()
        at_most_s = min(asyncio.get_running_loop().time() + lease_s, until_s, self._give_up_s)
        try:
            async with asyncio.timeout_at(at_most_s) as self._timeout:
                return await self._brokers.store(texts)
        except TimeoutError:
            return dict.fromkeys(offsets, StoreAnswer.UNKNOWN)
        finally:
            self._timeout = None

    async def _resolve(self, offsets: Mapping[TopicPartition, NewOffset], outcome: StoreOutcome) -> None:
        """Read the offsets whose outcome is unknown; count those that are stored."""
        until_s = min(asyncio.get_running_loop().time() + REREAD_S, self._give_up_s)
        try:
            async with asyncio.timeout_at(until_s) as self._timeout:
                found = (await self._brokers.read(outcome.unknown)).found
        except TimeoutError:
            found = {}
        finally:
            self._timeout = None
        for partition, each in found.items():
            note = NotedText.parse(each.metadata).note
            wanted = offsets[partition]
            is_own = not self._notes if note is None else (note.created, note.claim) == (wanted.created, wanted.claim)
            if is_own and each.offset == wanted.offset:
                outcome.stored.add(partition)
        outcome.unknown -= outcome.stored
        if outcome.unknown:
            self._context.metrics.count("commits_timed_out")
            log.warning(
                "group %s: the coordinator has not confirmed the offsets of %s (%s) in time; they may be stored or not,"
                " and are stored again with the next commit, or their records are delivered again",
                self._context.group,
                counted(outcome.unknown, "partition"),
                some(sorted(outcome.unknown)),
            )


def _new(offset: int, state: PartitionOffsets) -> NewOffset:
    # Only ZooKeeper coordinates the members of such a group, so the token is the number of a claim.
    assert isinstance(state.token, int)
    return NewOffset(offset, state.created, state.token)


def _noted(note: CommitNote, text: str) -> str:
    noted = note.after(text)
    return noted if len(noted.encode()) <= _LONGEST_TEXT_BYTES else note.after("")


def _created(stored: OffsetAndMetadata) -> int | None:
    note = NotedText.parse(stored.metadata).note
    return None if note is None else note.created
