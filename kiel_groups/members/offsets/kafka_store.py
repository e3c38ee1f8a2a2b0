"""Keep the offsets of a member's partitions in Kafka (``broker-v1``), while ZooKeeper coordinates the members."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kiel_groups.backoff import Backoff
from kiel_groups.errors import KielGroupsError, NoBrokersError, NoOffsetsError, ProtocolError, RetriableBrokerError
from kiel_groups.group.commit_note import CommitNote, NotedText
from kiel_groups.group.partition_offsets import Commit, PartitionOffsets, StartOrigin, StartPosition, StoredOffset
from kiel_groups.group.znodes.contents import FirstOffsets, parse_topic
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import Create, Operation, Put
from kiel_groups.members.offsets.owned_offsets import Starts, Written
from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.members.offsets.zookeeper_store import OffsetZnodes
from kiel_groups.members.partition_handler import LogOffsets, StoreAnswer
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.primitives import LONGEST_STRING
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.fenced_writes import FencedWriter, Renew, give_up
from kiel_groups.zookeeper.session import Node
from kiel_groups.zookeeper.tasks import CloseLimit, MemberContext

log = logging.getLogger(__name__)


# Store the offsets of one member's partitions in Kafka, each with a note of the log and the claim that it belongs to.
#
# The coordinator of the group checks no version, so a request that is delayed may set an offset back, which repeats
# records and loses none. A member sends a request only while its gate is open, and waits for the answer no longer than
# its lease runs. Offsets that another writer stores while a partition is owned are not looked for: the owner's next
# commit replaces them.


#: How long a commit is repeated while the coordinator moves or does not answer, in seconds. Kafka notices a dead broker
#: after six seconds, and then loads the group's offsets elsewhere.
COMMIT_PATIENCE_S = 10.0

#: How long the stored offsets are read again after a commit whose outcome is unknown, in seconds.
REREAD_S = 1.5

#: The first and the longest pause before a commit is repeated, in seconds.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0

#: Offsets in Kafka have no versions.
_VERSION = 0


class NewOffset(NamedTuple):
    """An offset to store under a ``claim``: a position in the log of the topic whose creation zxid is ``created``."""

    offset: int
    created: int
    claim: int


class StoredNotes(NamedTuple):
    """
    The stored offsets, each with the creation zxid of its topic, or None if another program has stored the offset.

    ``failures`` has the error of each partition whose offset could not be read.
    """

    found: Mapping[TopicPartition, tuple[int, int | None]]
    failures: Mapping[TopicPartition, KielGroupsError]


@dataclass(slots=True)
class StoreOutcome:
    """The outcome of storing offsets. Offsets of partitions in neither set were refused, or were not sent."""

    stored: set[TopicPartition] = field(default_factory=set)
    unknown: set[TopicPartition] = field(default_factory=set)


class KafkaStore:
    """
    Stores offsets in Kafka; see ``OffsetStore``.

    Args:
        context: The member. The lease of the member's session limits each request.
        writer: Proves the member's session. The session's gate must be open before each request.
        topics: The incarnations of the member's topics.
        limit: Limits all waits for brokers once the member leaves.
    """

    def __init__(
        self, context: MemberContext, writer: FencedWriter, topics: TopicIncarnations, limit: CloseLimit
    ) -> None:
        self._context = context
        self._brokers = context.handler.kafka_offsets
        self._tracker = context.tracker
        self._writer = writer
        self._topics = topics
        #: Whether offsets get a note; not if the brokers' offset.metadata.max.bytes has no room for one.
        self._notes = True
        self._limit = limit

    # ------------------------------------------------------------------ the OffsetStore

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """Store offsets with a text; see ``OffsetStore.commit``. The result lacks offsets with an unknown outcome."""
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

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """
        Return an empty mapping: offsets of other writers are not adopted while the partition is owned.

        A broker that is cut off from the other brokers returns old offsets, and a delayed request of a former owner
        stores an old offset. Such an offset cannot be distinguished from an operator's offset, because any program can
        write the note in an offset's text.
        """
        return {}

    async def store_starts(
        self,
        topic: str,
        earliest: Mapping[TopicPartition, int],
        is_known: Callable[[TopicPartition, StoredOffset], bool],
        renew: Renew[object],
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Store the earliest offsets of a topic that was created again; see ``OffsetStore.store_starts``."""
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
        """Return the stored offsets, each with the creation zxid of the topic incarnation that it belongs to."""
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
        Store offsets. Retry while the coordinator changes or does not answer, for ``COMMIT_PATIENCE_S`` at most.

        Right before each request, ``may_store`` confirms each partition. If the outcome stays unknown, read the stored
        offsets, and take equal offsets as stored. Leave out a text that is too long.

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
            if asyncio.get_running_loop().time() + pause_s >= min(until_s, self._limit.by_s):
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
        """Send one request, and return its answers. If no answer comes within the lease, all outcomes are unknown."""
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
        try:
            async with self._limit.timeout(min(lease_s, until_s - asyncio.get_running_loop().time())):
                return await self._brokers.store(texts)
        except TimeoutError:
            return dict.fromkeys(offsets, StoreAnswer.UNKNOWN)

    async def _resolve(self, offsets: Mapping[TopicPartition, NewOffset], outcome: StoreOutcome) -> None:
        """Read the offsets whose outcome is unknown, and add the stored offsets to the outcome."""
        try:
            async with self._limit.timeout(REREAD_S):
                found = (await self._brokers.read(outcome.unknown)).found
        except TimeoutError:
            found = {}
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
    return noted if len(noted.encode()) <= LONGEST_STRING else note.after("")


def _created(stored: OffsetAndMetadata) -> int | None:
    note = NotedText.parse(stored.metadata).note
    return None if note is None else note.created


#: The age of a group's first offsets, in milliseconds, after which the group has certainly stored offsets in Kafka.
#: Before that age, a partition without an offset may be one that no member has owned yet: members that start together
#: join within seconds.
_BEGUN_MS = 60_000

#: The most partitions that a log line or an error names.
_MOST_NAMES = 10


class KafkaClaimOpener:
    """
    Opens the claims of one member of a group whose offsets are in Kafka.

    The opener finds the start position of each claimed partition, and stores the position in Kafka, even if Kafka has
    this offset already. This write keeps Kafka from expiring the offset, and notes the new claim. The write does not
    stop former owners: a delayed request of a former owner may replace the offset. If Kafka has no offset of a
    partition, ``_first_offsets`` finds the start from the topic's first offsets, at which the group began to read the
    topic; see ``FirstOffsets``.

    Args:
        context: The member. The member's handler asks the brokers. The group's ``auto_offset_reset`` is the reset
            policy.
        writer: Writes in transactions that require the member znode to exist.
        topics: The incarnations of topics. After a topic was created again, offsets of its former incarnation are not
            stored.
        znodes: The offsets that the group has stored in ZooKeeper, if it had another store before.
        store: The offsets in Kafka.
    """

    def __init__(
        self,
        context: MemberContext,
        writer: FencedWriter,
        topics: TopicIncarnations,
        znodes: OffsetZnodes,
        store: KafkaStore,
    ) -> None:
        self._context = context
        self._session = context.session
        self._layout = context.layout
        self._tracker = context.tracker
        self._look_up = context.handler.log_offsets
        self._reset = context.config.auto_offset_reset
        self._writer = writer
        self._topics = topics
        self._znodes = znodes
        self._store = store

    async def open(self, topic: str, partitions: Sequence[TopicPartition]) -> Starts:
        """
        Open freshly claimed partitions of a topic, given in ascending order, and return their start positions.

        A partition starts at the group's offset in Kafka. If that offset belongs to a deleted topic of the same name,
        the partition starts at the beginning of the new log. Without an offset in Kafka, ``_first_offsets`` decides.
        """
        while True:
            await self._topics.catch_up()
            created = self._topics.creation(topic)
            self._tracker.claim(partitions, created)
            may_open = partial(self._may_open, created, {each: self._tracker.claimed(each) for each in partitions})
            claims = await self._claims(partitions)
            starts = await self._find(topic, created, claims)
            new = {p: NewOffset(start.offset, created, claims[p]) for p, start in starts.found.items()}
            outcome = await self._store.store(new, may_open)
            if self._topics.creation(topic) == created:
                found = {partition: start for partition, start in starts.found.items() if may_open(partition)}
                stored = {partition: start for partition, start in found.items() if partition in outcome.stored}
                return Starts(stored, starts.failures | self._not_stored(found.keys() - stored.keys()))

    def _may_open(self, created: int, claimed: Mapping[TopicPartition, object], partition: TopicPartition) -> bool:
        """
        Return whether a claim is still to be opened in the incarnation of its topic that ``created`` identifies.

        Return False if the claim was released meanwhile, even if the partition was claimed again.
        """
        is_known = self._topics.creation(partition.topic) == created
        return is_known and self._tracker.claimed(partition) is claimed[partition]

    async def _claims(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the czxid of the owner znode of each of these partitions that this session owns."""
        owners = await self._session.exists_many([self._layout.owner(partition) for partition in partitions])
        found = zip(partitions, owners, strict=True)
        return {p: owner.czxid for p, owner in found if owner is not None and owner.owner == self._session.id}

    async def _find(self, topic: str, created: int, claims: Mapping[TopicPartition, int]) -> Starts:
        """Return the start positions of claims: the group's offsets in Kafka, or else the group's first offsets."""
        stored, failed = await self._store.stored(claims.keys())
        found: dict[TopicPartition, StartPosition] = {}
        failures = dict(failed)
        outdated = set()
        for partition, (offset, log_of) in stored.items():
            if log_of in (None, created):
                found[partition] = _start(offset, claims[partition], created, StartOrigin.STORED)
            elif log_of is not None and log_of < created:
                outdated.add(partition)
            else:
                failures[partition] = RetriableBrokerError(
                    f"group {self._context.group}: the offset of {partition} belongs to a newer topic than the one that"
                    " ZooKeeper shows to this member"
                )
        missing = claims.keys() - found.keys() - failures.keys()
        if missing:
            first = await self._first_offsets(topic, missing, is_new_log=bool(outdated))
            origins = {p: StartOrigin.NEW_LOG if p in outdated else StartOrigin.FIRST for p in missing}
            found |= {p: _start(at, claims[p], created, origins[p]) for p, at in first.found.items()}
            failures |= first.failures
        return Starts(found, failures)

    def _not_stored(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, KielGroupsError]:
        group = self._context.group
        return {
            p: NoBrokersError(f"group {group}: the coordinator has not stored the start of {p}") for p in partitions
        }

    # ------------------------------------------------------------------ the first offsets of a group
    #
    # Kafka stores the offset of each partition on its own. So ZooKeeper has one znode for each topic, with the first
    # offsets of all its partitions: the member that creates the znode decides, and every owner of a partition without
    # an offset in Kafka starts at its first offset. The znode also tells a group that begins from one whose offsets
    # Kafka has lost.

    async def _first_offsets(
        self, topic: str, partitions: Collection[TopicPartition], *, is_new_log: bool
    ) -> LogOffsets:
        """
        Return start positions for those owned partitions of a topic for which Kafka has no offset.

        A partition starts at its first offset, where the group began to read the partition (see ``FirstOffsets``). A
        partition without a first offset was added to the topic later, or had no leader when the first offsets were
        chosen. Such a partition starts at its earliest offset, so that no record is skipped. With the policy ``none``,
        such a partition fails with NoOffsetsError. The result lacks a partition if its topic was created again
        meanwhile, or if the partition has an offset by now.

        Args:
            topic: The topic, as ``TopicIncarnations`` knows it.
            partitions: The partitions.
            is_new_log: Whether Kafka has an offset of one of these partitions that belongs to a deleted topic of the
                same name. Then no reset policy applies: the group has read the topic before.
        """
        created, path = self._topics.creation(topic), self._layout.topic_starts(topic)
        while self._topics.creation(topic) == created:
            node = await self._session.get(path)
            first = self._parse(node, path)
            if first is not None and first.created == created:
                return await self._starts(topic, partitions, first)
            decided = await self._decide(topic, created, is_new_log=is_new_log or node is not None)
            if not decided.found:
                return LogOffsets({}, {p: decided.failures[p] for p in partitions if p in decided.failures})
            await self._write(topic, created, node, decided.found)
        return LogOffsets({}, {})

    async def partitions(self) -> list[TopicPartition]:
        """Return the partitions of all topics that the group has begun to read, in ascending order."""
        topics = sorted(await self._session.children(self._layout.starts) or ())
        nodes = await self._session.get_many([topic_path(topic) for topic in topics])
        found = zip(topics, nodes, strict=True)
        return [each for topic, node in found if node is not None for each in _partitions(topic, node)]

    def _parse(self, node: Node | None, path: str) -> FirstOffsets | None:
        if node is None:
            return None
        try:
            return FirstOffsets.parse(node.data, path)
        except ProtocolError as error:
            self._context.metrics.count("offsets_unreadable")
            log.error(
                "group %s: %s; partitions without an offset in Kafka start at their earliest offset",
                self._context.group,
                error,
            )
            return None

    async def _starts(self, topic: str, partitions: Collection[TopicPartition], first: FirstOffsets) -> LogOffsets:
        """
        Return the first offset of each partition, or the partition's earliest offset if that is later, or if there is
        no first offset.
        """
        added = sorted(partition for partition in partitions if partition.partition not in first.offsets)
        refused: Mapping[TopicPartition, KielGroupsError] = {}
        if added and self._reset == "none":
            refused = dict.fromkeys(added, self._no_offsets(added))
        earliest, failures = await self._look_up(frozenset(partitions) - refused.keys(), "earliest")
        found = {each: max(offset, first.offsets.get(each.partition, 0)) for each, offset in earliest.items()}
        self._warn_of_added(topic, [partition for partition in added if partition in found])
        self._warn_of_lost(topic, [partition for partition in sorted(found) if partition not in added], first)
        return LogOffsets(found, {**failures, **refused})

    def _warn_of_added(self, topic: str, added: Sequence[TopicPartition]) -> None:
        if added and self._reset != "earliest":
            log.warning(
                "group %s: %s: starting at the earliest offset, although auto_offset_reset is %r. They were added to"
                " %s, or had no leader when the group began to read it. Nothing is skipped",
                self._context.group,
                some(added, _MOST_NAMES),
                self._reset,
                topic,
            )

    def _warn_of_lost(self, topic: str, lost: Sequence[TopicPartition], first: FirstOffsets) -> None:
        age_ms = self._context.runtime.wall_ms() - first.at_ms
        if lost and age_ms > _BEGUN_MS:
            self._context.metrics.count("offsets_expired", len(lost))
            log.error(
                "group %s: Kafka has no offset of %s, although the group began to read %s %s ago. Kafka has"
                " lost it, or it has expired (offsets.retention.minutes of the brokers), unless no member has owned"
                " these partitions yet. They start where the group began: records are repeated, and none is skipped",
                self._context.group,
                some(lost, _MOST_NAMES),
                topic,
                counted(age_ms // _BEGUN_MS, "minute"),
            )

    async def _decide(self, topic: str, created: int, *, is_new_log: bool) -> LogOffsets:
        """Choose the first offsets of all partitions of a topic that have no offset in Kafka. Write nothing."""
        node = await self._session.get(topic_path(topic))
        partitions = [] if node is None else _partitions(topic, node)
        stored, failures = await self._store.stored(partitions)
        if failures:
            # Whether the group begins cannot be decided without all answers.
            return LogOffsets({}, dict.fromkeys(partitions, failures[min(failures)]))
        in_kafka = {partition for partition, (_, log_of) in stored.items() if log_of in (None, created)}
        in_znodes = {} if is_new_log else await self._offsets_in_znodes(partitions, created)
        known = in_kafka | in_znodes.keys()
        missing = [partition for partition in partitions if partition not in known]
        if self._reset == "none" and not is_new_log:
            return LogOffsets(in_znodes, dict.fromkeys(missing, self._no_offsets(missing)) if missing else {})
        policy = "earliest" if is_new_log or in_kafka or in_znodes else self._reset
        found, failures = await self._look_up(missing, policy)
        log.info(
            "group %s: %s of %s without an offset in Kafka: starting at %s",
            self._context.group,
            counted(found, "partition"),
            topic,
            policy,
        )
        return LogOffsets({**in_znodes, **found}, failures)

    async def _offsets_in_znodes(self, partitions: Sequence[TopicPartition], created: int) -> dict[TopicPartition, int]:
        """
        Return the offsets that the group has stored in ZooKeeper with another store. The group continues there.

        Leave out an offset that is older than its topic: it belongs to a deleted topic of the same name.
        """
        found = await self._znodes.read(partitions)
        return {p: each.offset for p, each in found.items() if each.offset is not None and each.mzxid >= created}

    async def _write(self, topic: str, created: int, node: Node | None, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the znode of a topic's first offsets, unless another member has written it since ``node`` was read."""
        path = self._layout.topic_starts(topic)
        first = FirstOffsets(created, self._context.runtime.wall_ms(), {p.partition: at for p, at in offsets.items()})
        await self._session.ensure([self._layout.starts])
        write: Operation = Create(path, first.encode()) if node is None else Put(path, first.encode(), node.version)
        await self._writer.write({path: (write,)}, give_up, renew=self._topics.unless_recreated(topic))

    def _no_offsets(self, partitions: Sequence[TopicPartition]) -> NoOffsetsError:
        return NoOffsetsError(
            f"group {self._context.group} has no offsets of {some(partitions, _MOST_NAMES)} in Kafka, and"
            " auto_offset_reset is 'none'; commit them with another client first, or choose 'earliest' or 'latest'"
        )


def _partitions(topic: str, node: Node) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in parse_topic(node.data, topic_path(topic))]


def _start(offset: int, claim: int, created: int, origin: StartOrigin) -> StartPosition:
    # Offsets in Kafka have no versions.
    return StartPosition(offset, 0, claim, created, origin)
