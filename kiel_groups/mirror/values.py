"""The values that the connector and its use of the target share."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from kiel_groups.config import KAFKA_PORT, parse_hosts
from kiel_groups.errors import ConfigError, KielGroupsError, ProtocolError
from kiel_groups.model import INTERNAL_TOPICS, TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from kiel_groups.wording import counted

#: How the names of the topics begin that mirrors keep on a target.
OWN_TOPICS = "kiel-mirror-"
#: The compacted topic of a target with the claims of all mirrors: the name of a target topic, and its mirror.
CLAIMS_TOPIC = f"{OWN_TOPICS}claims"
#: The slot of the checkpoint at the beginning of a mirrored partition, and of the one after its last turn forward.
BEGINNING_SLOT, RESUMED_SLOT = -1, -2

#: The settings of a task that the connector writes: the partitions that the task copies to the target, and those that
#: it copies back.
PARTITIONS_KEY, BACK_KEY = "mirror.partitions", "mirror.back"
#: In the format of the target's topics, the place of the name that the topic has on the source.
TOPIC_IN_FORMAT = "${topic}"

#: What an operator does about a topic whose offsets on one side have started over.
ELSEWHERE = "mirror it by a connector of another name to another topic (target.topic.format)"

#: The settings of a topic of 0.8 that brokers of 3.x and 4.x still know under the same name, with the same meaning.
CARRIED_SETTINGS = frozenset(
    {
        "cleanup.policy",
        "delete.retention.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.message.bytes",
        "min.cleanable.dirty.ratio",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)

#: A greater number of milliseconds than any difference of times.
NO_LIMIT = (1 << 63) - 1
#: How far the clocks of the task and of a broker may differ, with the time of a write, in milliseconds.
_CLOCKS_MS = 10_000
#: How long the end of a log may be smaller than it was, in seconds: until 2.1, that of a new leader.
SETTLED_S = 1.0

#: Returns the timestamp of a record with this value, in milliseconds, or 0 for the present time.
Timestamps: TypeAlias = Callable[[bytes | None], int]


class LostTopicsError(KielGroupsError):
    """
    Topics have started over on one side, or lack records that were copied. A task leaves them out, and copies others.

    Args:
        problems: Why nothing is copied to or from a topic any more, by its name on the target.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems = problems


def gone_text(topic: str) -> str:
    """Return why nothing is copied to a topic of the target that brokers do not show any more."""
    return (
        f"the target does not show {topic} with its partitions any more: the topic was deleted; {ELSEWHERE}. Or the"
        " right to describe it was removed: give it back, and start the mirror again"
    )


def short_text(partition: TopicPartition, records: int, end: int) -> str:
    """Return why nothing is copied to a topic of the target that ends at an offset before records that it had."""
    return (
        f"the target's partition {partition} had {records} records, and ends at {end} now: the topic was deleted and"
        f" created again, or has lost records; {ELSEWHERE}"
    )


class MirroredTopic(NamedTuple):
    """
    A topic of the source with its number of partitions and its settings, and its name on the target.

    ``created`` is the creation zxid of the topic in the source's ZooKeeper, or 0 if it is not known.
    """

    source: str
    target: str
    partitions: int
    config: Mapping[str, str]
    created: int = 0
    #: The partitions of the topic on the target if keys are hashed anew, or 0 for the partitions of the source.
    hashed_partitions: int = 0

    @property
    def target_partitions(self) -> int:
        """The number of partitions of the topic on the target."""
        return max(self.hashed_partitions, self.partitions)


def names_of(topics: Iterable[MirroredTopic]) -> dict[str, str]:
    """Return the names of topics on the target by their names on the source."""
    return {topic.source: topic.target for topic in topics}


#: The directions of a topic: the mirror copies it to the target, or back to the source. While a topic is turned, the
#: mirror copies nothing of it: ``STOPPED`` on the way back, ``RETURNING`` on the way forward again.
FORWARD, STOPPED, BACK, RETURNING = "forward", "stopped", "back", "returning"


#: Why a topic is copied in no direction, and what an operator does about it.
INTERRUPTED = {
    STOPPED: "is stopped while 'kiel-groups mirror reverse' turns it round; if that command was interrupted, call it"
    " again",
    RETURNING: "is stopped while 'kiel-groups mirror reverse --forward' turns it; if that command was interrupted, call"
    " it again",
}


class Claim(NamedTuple):
    """
    The claim of a mirror for a topic of the target, as the topic of claims has it.

    Args:
        mirror: The name of the mirror's connector.
        topic: The name of the topic on the source.
        source: The addresses of the source.
        created: The creation zxid of the topic in the source's ZooKeeper, or 0 if it is not known.
        direction: ``FORWARD``, ``STOPPED``, ``BACK`` or ``RETURNING``.
        starts: The offset of each partition of the target from which records are copied to the source, since the last
            turn back; empty before.
        resumes: The offset of each partition of the source from which records are copied to the target again, since the
            last turn forward; empty before.
        turner: The call of ``turn_round`` that has stopped the topic last, or "" if the topic was continued since.
        target_id: The id of the topic of the target, or "" if it is not known, as on brokers before 2.8.
        ends: The end of each partition of the source at the last turn back; empty before.
    """

    mirror: str
    topic: str
    source: str
    created: int = 0
    direction: str = FORWARD
    starts: Sequence[int] = ()
    resumes: Sequence[int] = ()
    turner: str = ""
    target_id: str = ""
    ends: Sequence[int] = ()

    def start(self, number: int) -> int:
        """Return the offset of a partition of the target to copy back from. One that is newer than the turn has 0."""
        return max(self.starts[number : number + 1], default=0)

    def resume(self, number: int) -> int | None:
        """Return the offset of a partition of the source to continue at after the last turn forward, or None."""
        return next(iter(self.resumes[number : number + 1]), None)

    @property
    def turn(self) -> tuple[object, ...]:
        """What changes with a turn: the direction, and where records are copied from; and the mirror."""
        return self.mirror, self.direction, self.starts, self.resumes

    def encode(self) -> bytes:
        """Return the claim as JSON."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def parse(cls, data: bytes, target: bytes) -> Claim:
        """
        Return the claim of a target topic from its JSON. ``target`` is the key of its record.

        Raises:
            ProtocolError: The data is not a claim.
        """
        try:
            claim = cls(**json.loads(data))
            starts, resumes, ends = tuple(claim.starts), tuple(claim.resumes), tuple(claim.ends)
            claim = claim._replace(starts=starts, resumes=resumes, ends=ends)
            is_legal = all(isinstance(text, str) for text in (*claim[:3], claim.turner, claim.target_id))
            is_legal &= isinstance(claim.created, int)
            is_legal &= claim.direction in (FORWARD, STOPPED, BACK, RETURNING)
            is_legal &= all(isinstance(at, int) and at >= 0 for at in (*starts, *resumes, *ends))
        except (ValueError, TypeError, RecursionError):
            is_legal = False
        if not is_legal:
            raise ProtocolError(
                f"the claim with the key {target[:100]!r} in {CLAIMS_TOPIC} cannot be read: {data[:100]!r}; a record"
                " with this key and a null value deletes it"
            )
        return claim


def parse_claims(records: Iterable[tuple[bytes, bytes | None]]) -> dict[str, Claim]:
    """
    Return the claims of all mirrors by target topic.

    Args:
        records: The keys and values of the topic of claims.

    Raises:
        ProtocolError: A record is no claim.
    """
    # A null value deletes a claim. Until the topic is compacted, the former value precedes it.
    claims = {key: Claim.parse(value, key) for key, value in dict(records).items() if value}
    try:
        return {str(json.loads(key)): claim for key, claim in claims.items()}
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a claim in {CLAIMS_TOPIC} has a key that is not JSON: {error}") from error


def replaced_text(topic: str, claim: Claim) -> str:
    """Return why nothing is copied to or from a topic of the target that is not the one that was claimed."""
    advice = lost_copy_advice(claim.topic) if claim.direction == BACK else ELSEWHERE
    return (
        f"the target's topic {topic} is not the one that the connector {claim.mirror!r} has begun, as its id shows: the"
        f" topic was deleted and created again; {advice}"
    )


def lost_copy_advice(topic: str) -> str:
    """Return what an operator does about a topic of the source whose copy, which is copied back, is lost."""
    return (
        f"its new records are not on the source: leave {topic} out of the topics of this mirror, and {ELSEWHERE}, where"
        " its producers and consumers continue"
    )


class SourceBatch(NamedTuple):
    """The next records of one source partition, and the topic of the target that they are written to."""

    partition: TopicPartition
    columns: Sequence[RecordColumns]
    topic: str
    #: Whether a record with a key goes to the partition that the hash of its key names.
    is_hashed: bool = False

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.columns[-1].next_offset

    @property
    def records(self) -> int:
        """The number of the records."""
        return sum(map(len, self.columns))

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all keys and values."""
        return sum(each.size_bytes for each in self.columns)

    def divided(self, limit: int) -> list[SourceBatch]:
        """Divide the batch at records of more than ``limit`` bytes. Each of these is a part, at odd places."""
        parts: list[list[RecordColumns]] = [[]]
        for columns in self.columns:
            start = 0
            for row in large_rows(columns, limit):
                parts[-1] += _rows(columns, start, row)
                parts += [_rows(columns, row, row + 1), []]
                start = row + 1
            parts[-1] += _rows(columns, start, len(columns))
        return [self._replace(columns=part) for part in parts]


def large_rows(columns: RecordColumns, limit: int) -> Sequence[int]:
    """Return the numbers of the records whose keys and values have more than ``limit`` bytes."""
    keys, values = columns.keys, columns.values
    if keys.longest + values.longest <= limit:
        return ()
    sizes = enumerate(len(key or b"") + len(value or b"") for key, value in zip(keys, values, strict=True))
    return [row for row, size in sizes if size > limit]


def _rows(columns: RecordColumns, start: int, stop: int) -> list[RecordColumns]:
    """Return a list with some of the records, or an empty list without records."""
    return [replace(columns, rows=columns.rows[start:stop])] if start < stop else []


class TopicLimits(NamedTuple):
    """
    What a topic of the target takes.

    Args:
        is_compacted: Whether the topic is compacted, and so refuses records without a key.
        past_ms: How far the timestamp of a record may be in the past, in milliseconds.
        future_ms: How far it may be in the future.
        largest_bytes: The largest size of a batch of records, or 0 if it is not known.
    """

    is_compacted: bool = False
    past_ms: int = NO_LIMIT
    future_ms: int = NO_LIMIT
    largest_bytes: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> TopicLimits:
        """Return the limits of a topic by its settings, which are those of its broker's release."""
        both = int(settings.get("message.timestamp.difference.max.ms", NO_LIMIT))
        past, future = (
            min(both, int(settings.get(f"message.timestamp.{name}.max.ms", NO_LIMIT))) for name in ("before", "after")
        )
        largest = int(settings.get("max.message.bytes", 0))
        return cls("compact" in settings["cleanup.policy"], past, future, largest)

    def legal(self, timestamp_ms: int, now_ms: int) -> int:
        """Return a timestamp if the topic takes it at the time ``now_ms``, or 0 for the present time."""
        is_legal = now_ms - self.past_ms + _CLOCKS_MS < timestamp_ms < now_ms + self.future_ms - _CLOCKS_MS
        return timestamp_ms if is_legal else 0


class WriterSettings(NamedTuple):
    """The settings that all writers of a task share."""

    mirror: str
    is_exactly_once: bool
    compression: str
    timestamps: Timestamps | None
    has_headers: bool
    #: The topic for records that a topic of the target never takes, or "" to fail.
    dead_letter_topic: str
    #: The limits of each topic of the target. A topic that is not named has none.
    limits: Mapping[str, TopicLimits] = {}


def is_mirrored(topic: str, patterns: Iterable[str]) -> bool:
    """Return whether a mirror of these names, which may have the wildcards ``*`` and ``?``, copies a topic."""
    is_own = topic.startswith(OWN_TOPICS) or topic in INTERNAL_TOPICS
    return not is_own and any(fnmatchcase(topic, pattern.strip()) for pattern in patterns)


def target_topic(template: str, topic: str) -> str:
    """Return the name on the target of a topic of the source. ``template`` is the setting ``target.topic.format``."""
    return template.replace(TOPIC_IN_FORMAT, topic)


def checkpoints_topic(mirror: str) -> str:
    """
    Return the name of the compacted topic of the target that has the checkpoints of a mirror.

    The key of a checkpoint is ``[topic, partition, slot]`` of the source. Its value is ``{"source": S, "target": T}``:
    the records from offset S of the source's partition on are those from offset T of the target's partition on. T is
    null if it is not known.

    If keys are hashed anew (``target.partitions``), T is null, and the value has ``"targets": {"0": T0, "3": T3}``:
    records from offset S on that are in the target's partition 0 have offset T0 or a greater one. A partition of the
    target that is not named may have them from its start on.
    """
    return f"{OWN_TOPICS}{mirror}"


def set_of(partition: TopicPartition, sets: int) -> int:
    """
    Return the number of the set that a partition belongs to.

    The number depends on nothing but the arguments. So every task that ever writes a partition uses the same
    transactional id. The partitions of one topic are spread evenly.
    """
    return (zlib.crc32(partition.topic.encode()) + partition.partition) % sets


def check_mirror(claims: Mapping[str, Claim], mirror: str, source: str) -> None:
    """
    Check that a name may be the name of a mirror, and that no mirror of another source has it.

    Sources are the same if they have an address in common.

    Raises:
        ConfigError: It may not, or one has it.
    """
    if checkpoints_topic(mirror) == CLAIMS_TOPIC:
        raise ConfigError(f"name: {mirror!r} given; {CLAIMS_TOPIC} has the claims of all mirrors: choose another name")
    addresses = set(parse_hosts(source, KAFKA_PORT, "source.bootstrap.servers"))
    for name, claim in sorted(claims.items()):
        if claim.mirror == mirror and addresses.isdisjoint(parse_hosts(claim.source, KAFKA_PORT, CLAIMS_TOPIC)):
            raise ConfigError(
                f"source.bootstrap.servers: {source} given; the connector {mirror!r} has mirrored {claim.topic} of"
                f" {claim.source} to {name}, and its checkpoints count the offsets of that source: add one of those"
                " addresses if it is the same cluster, else choose another name for the connector"
            )


def check_sets(present: Mapping[str, int], mirror: str, sets: int) -> None:
    """
    Check that the topic of checkpoints, if the target has it, has as many partitions as there are sets.

    Args:
        present: The number of partitions of each target topic.
        mirror: The name of the mirror.
        sets: The number of sets of partitions.

    Raises:
        ConfigError: It has another number.
    """
    if (found := present.get(checkpoints_topic(mirror), sets)) != sets:
        raise ConfigError(
            f"partition.sets: {sets} given; expected {found}, the number of partitions of the checkpoints in the"
            f" target topic {checkpoints_topic(mirror)}, which cannot change"
        )


def topic_problems(
    claims: Mapping[str, Claim], mirror: str, topics: Sequence[MirroredTopic], present: Mapping[str, int]
) -> dict[str, str]:
    """
    Return why a mirror cannot copy topics, by their names on the source.

    Another mirror has claimed the target topic, the topic of the source was created again, or the target topic would be
    one that mirrors keep for themselves. Or the mirror has not begun the topic yet, and its partitions do not suffice.
    A topic of the source is the same if it has the same creation zxid, or if one of the zxids is not known.

    Args:
        claims: The claims by target topic.
        mirror: The name of the mirror.
        topics: The topics to copy.
        present: The number of partitions of each target topic.
    """
    found = {}
    for topic in topics:
        problem = _claim_problem(claims, mirror, topic)
        if not problem and topic.target not in claims:
            problem = _size_problem(topic, present.get(topic.target, 0))
        if problem:
            found[topic.source] = problem
    return found


def _claim_problem(claims: Mapping[str, Claim], mirror: str, topic: MirroredTopic) -> str:
    if topic.target.startswith(OWN_TOPICS):
        return (
            f"target.topic.format: {topic.source} would be {topic.target} on the target; names that begin with"
            f" {OWN_TOPICS} are those of mirrors' own topics"
        )
    claim = claims.get(topic.target, Claim(mirror, topic.source, ""))
    if (claim.mirror, claim.topic) != (mirror, topic.source):
        return (
            f"the target topic {topic.target} is the mirror of {claim.topic} by the connector {claim.mirror!r}; a"
            " topic has one mirror: choose another target.topic.format, or delete the claim, which a record with"
            f" the key {json.dumps(topic.target)} and a null value in {CLAIMS_TOPIC} does"
        )
    former = sorted(name for name, each in claims.items() if (each.mirror, each.topic) == (mirror, topic.source))
    if others := [name for name in former if name != topic.target]:
        return (
            f"target.topic.format: {topic.source} would be {topic.target} on the target, and the connector"
            f" {mirror!r} has mirrored it to {others[0]}, where its checkpoints count the offsets: keep that name,"
            f" or choose another name for the connector; if nothing was mirrored yet, a record with the key"
            f" {json.dumps(others[0])} and a null value in {CLAIMS_TOPIC} deletes the claim"
        )
    if topic.created and claim.created and topic.created != claim.created:
        return (
            f"the source topic {topic.source} was deleted and created again since the connector {mirror!r} began to"
            f" mirror it to {topic.target}: its offsets have started over, and the checkpoints count the former"
            f" ones; {ELSEWHERE}"
        )
    return ""


def _size_problem(topic: MirroredTopic, present: int) -> str:
    if 0 < topic.hashed_partitions < topic.partitions:
        return (
            f"target.partitions: {topic.hashed_partitions} given; expected at least {topic.partitions}, the number of"
            f" partitions of {topic.source}"
        )
    if 0 < present < topic.target_partitions:
        asked = "target.partitions asks for" if topic.hashed_partitions else f"{topic.source} on the source has"
        return (
            f"the target topic {topic.target} has {counted(present, 'partition')}, and {asked}"
            f" {topic.target_partitions}; expected at least as many: add partitions on the target"
        )
    return ""


def check_dead_letters(topic: str, claims: Mapping[str, Claim], topics: Sequence[MirroredTopic]) -> None:
    """
    Check that the topic of dead letters, if there is one, is neither a mirror nor one that mirrors keep for themselves.

    Args:
        topic: The setting ``dead.letter.topic``.
        claims: The claims of all mirrors by target topic.
        topics: The topics that the mirror copies.

    Raises:
        ConfigError: It is. Dead letters would be records of a mirror that its source does not have.
    """
    if topic in claims or topic in {each.target for each in topics} or topic.startswith(OWN_TOPICS):
        raise ConfigError(
            f"dead.letter.topic: {topic!r} given; mirrors write to this topic of the target: choose one of its own"
        )
