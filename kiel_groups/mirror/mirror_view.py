"""Read how far a mirror is: its tasks and positions in ZooKeeper, and the logs of the source."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kiel_groups.errors import ConfigError, CoordinationError, KielGroupsError, ProtocolError, UnknownTopicError
from kiel_groups.group.znodes.contents import Snapshot, Znode
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.worker_contents import SourceOffset, TargetState, WorkState, WorkStatus
from kiel_groups.mirror.checkpoints import MirroredPartition, last_ends
from kiel_groups.mirror.settings import hashed_partitions, open_target, parse_properties
from kiel_groups.mirror.topics import plan_topics
from kiel_groups.mirror.values import (
    BACK,
    BACK_KEY,
    CLAIMS_TOPIC,
    FORWARD,
    INTERRUPTED,
    PARTITIONS_KEY,
    TOPIC_IN_FORMAT,
    Claim,
    MirroredTopic,
    is_mirrored,
    names_of,
    target_topic,
    topic_problems,
)
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import partitions_of
from kiel_groups.ops.loaded_groups import find_logs
from kiel_groups.ops.zookeeper_client import Client, zookeeper
from kiel_groups.ops.zookeeper_reader import broker_addresses, list_topics, read_brokers, read_tree
from kiel_groups.sync import SingleConsumer
from kiel_groups.wording import some
from kiel_groups.workers.plugins.secret_references import has_reference
from kiel_groups.workers.stores.worker_group_view import WorkerGroup, worker_group_of
from kiel_groups.workers.values import ConnectorEntry, TaskId, Work

if TYPE_CHECKING:
    from kiel_groups.mirror.target import TargetCluster


#: The source offsets of a mirror, and when each was stored in epoch milliseconds. The keys are those of
#: ``MirrorView.stored``.
StoredOffsets: TypeAlias = Mapping[tuple[str | None, str, int], tuple[Mapping[str, Any], int]]


class PartitionProgress(NamedTuple):
    """
    How far a partition is mirrored.

    Args:
        partition: The partition of the source.
        target: The name of its topic on the target.
        task: The task of the mirror that writes it, or None if the mirror has not noticed the partition yet.
        is_back: Whether records are copied back from the target to the source.
        position: The offset after the last copied record, on the source or, if copied back, on the target. Before the
            first record, where the copies begin: after a turn, or at the setting ``start.offsets``; else None.
        start: Where the log of the source begins, or None if unknown.
        end: Where the log of the source ends, or None if unknown.
        records: The number of records that were mirrored to the target. It stays if records are copied back.
        size_bytes: The number of bytes of their keys and values.
        stored_ms: When the position was stored, in epoch milliseconds, or None before the first record.
        checkpoint: The source offset of the last checkpoint on the target, or None if unknown.
        left: If copied back, how many offsets of the target's log are not copied back yet, or None if unknown. The
            number is negative if the log ends before the position.
    """

    partition: TopicPartition
    target: str
    task: TaskId | None
    is_back: bool = False
    position: int | None = None
    start: int | None = None
    end: int | None = None
    records: int = 0
    size_bytes: int = 0
    stored_ms: int | None = None
    checkpoint: int | None = None
    left: int | None = None

    def behind(self, end: int | None) -> int | None:
        """Return how many offsets before ``end`` are not mirrored yet, or None if unknown."""
        if end is None or (self.position is None and self.start is None):
            return None
        return max(0, end - max(self.position or 0, self.start or 0))

    @property
    def copy(self) -> TopicPartition:
        """The partition of the target."""
        return TopicPartition(self.target, self.partition.partition)

    @property
    def lag(self) -> int | None:
        """How many offsets of the log that the mirror copies are not copied yet, or None if unknown."""
        if self.is_back:
            return None if self.left is None or self.left < 0 else self.left
        return None if self.has_restarted else self.behind(self.end)

    @property
    def has_restarted(self) -> bool:
        """Whether the log of the source ends before the offset up to which it was mirrored."""
        return not self.is_back and self.end is not None and self.end < (self.position or 0)


@dataclass(frozen=True, slots=True)
class MirrorView:
    """
    A mirror at one moment.

    Args:
        name: The name of the mirror's connector.
        group: The worker group, with this connector only.
        partitions: The partitions of the mirror's tasks, and those that no task has yet if these were asked for, in
            their order; empty before the connector has made its tasks.
        stored: The stored source offsets, also of partitions that no task has at the moment: by None or, for what is
            copied back, "target"; by topic and number of the partition that records are copied from.
        lag_problem: The first reason why ends of logs are unknown, or "".
        target_problem: Why the checkpoints on the target are unknown, and how much is left to copy back, or "".
        stopped: Why topics, or partitions of them, are not copied: a text for each of them, by topic of the source.
        seen_ms: When the mirror was read, in epoch milliseconds.
    """

    name: str
    group: WorkerGroup
    partitions: tuple[PartitionProgress, ...] = ()
    stored: Mapping[tuple[str | None, str, int], Mapping[str, Any]] = field(default_factory=dict)
    lag_problem: str = ""
    target_problem: str = ""
    stopped: Mapping[str, str] = field(default_factory=dict)
    seen_ms: int = 0

    @property
    def connector(self) -> ConnectorEntry | None:
        """The stored connector, or None if there is none of this name."""
        return self.group.configuration.connectors.get(self.name)

    @property
    def is_exactly_once(self) -> bool:
        """Whether the mirror writes each record once."""
        return self.connector is not None and self.connector.config.get("exactly.once", "").lower() == "true"

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused the connector."""
        return self.connector is not None and self.connector.target is TargetState.PAUSED

    def position(self, side: str | None, partition: TopicPartition) -> int | None:
        """Return the stored position of a partition, or None. The arguments are the keys of ``stored``."""
        return self.stored.get((side, *partition), {}).get("offset")

    @property
    def topics(self) -> int:
        """The number of mirrored topics."""
        return len({each.partition.topic for each in self.partitions})

    @property
    def records(self) -> int:
        """The number of mirrored records, since the mirror was created."""
        return sum(each.records for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all mirrored keys and values, since the mirror was created."""
        return sum(each.size_bytes for each in self.partitions)

    @property
    def lag(self) -> int | None:
        """How many offsets of all logs are not copied yet, or None if not all are known, or no task is made yet."""
        topics = {each.partition.topic for each in self.partitions}
        return None if self.stopped.keys() - topics else _sum([each.lag for each in self.partitions] or [None])

    @property
    def forward_lag(self) -> int | None:
        """The lag without the partitions that are copied back."""
        return _sum([each.lag for each in self.partitions if not each.is_back] or ([] if self.partitions else [None]))

    @property
    def failed(self) -> Mapping[Work, WorkStatus]:
        """The statuses of the connector and of its tasks that have failed."""
        return {work: status for work, status in self.group.statuses.items() if status.state is WorkState.FAILED}


def _sum(lags: Sequence[int | None]) -> int | None:
    return None if None in lags else sum(lag for lag in lags if lag is not None)


def read_mirror(hosts: str, group: str, name: str, *, timeout_s: float, with_new: bool = False) -> MirrorView:
    """
    Read a mirror. The call blocks, and changes nothing.

    Args:
        hosts: ZooKeeper of the source, with its chroot.
        group: The group of workers that runs the mirror.
        name: The name of the mirror's connector.
        timeout_s: How long to wait for ZooKeeper's first answer, and then for the brokers, in seconds.
        with_new: Whether to include the partitions of the source that no task has yet.

    Raises:
        CoordinationError: ZooKeeper does not answer, or has no such chroot.
    """
    with zookeeper(hosts, timeout_s=timeout_s) as client:
        return _read(client, group, name, timeout_s, with_new=with_new)


def follow_mirror(
    hosts: str, group: str, name: str, *, timeout_s: float, with_new: bool = False
) -> Generator[MirrorView | KielGroupsError, None, None]:
    """
    Read a mirror whenever the caller requests the next item. Yield the mirror, or the error of the read.

    The arguments are as for ``read_mirror``. All reads use one session, until a read fails.
    """
    while True:
        try:
            with zookeeper(hosts, timeout_s=timeout_s) as client:
                while client.connected:  # Otherwise, a read would wait without limit for a new connection.
                    yield _read(client, group, name, timeout_s, with_new=with_new)
                raise CoordinationError(f"the connection to ZooKeeper at {hosts} broke")
        except KielGroupsError as error:
            yield error


def _read(client: Client, group: str, name: str, timeout_s: float, *, with_new: bool) -> MirrorView:
    layout, found = WorkerLayout(group), dict[str, Znode]()
    # A status that is read after its owner is not older than the owner's claim.
    for path in (layout.workers, layout.connector(name), layout.connector_owners(name), layout.status(name)):
        found |= read_tree(client, path)
    offsets = read_tree(client, layout.connector_offsets(name))
    brokers = broker_addresses(read_brokers(client))
    workers, stored = worker_group_of(group, found), stored_offsets(offsets)
    partitions = mirrored_partitions(name, workers, stored)
    if with_new and (entry := workers.configuration.connectors.get(name)) is not None:
        partitions = sorted([*partitions, *_new_partitions(client, entry.config, partitions, stored)])
    seen_ms = time.time_ns() // 1_000_000
    logs = asyncio.run(find_logs(brokers, [each.partition for each in partitions], timeout_s=timeout_s))
    known = [
        each._replace(start=logs.starts.get(each.partition), end=logs.ends.get(each.partition)) for each in partitions
    ]
    offsets_only = {place: offset for place, (offset, _) in stored.items()}
    return MirrorView(name, workers, tuple(known), offsets_only, logs.problem, seen_ms=seen_ms)


def _new_partitions(
    client: Client, config: Mapping[str, str], known: Sequence[PartitionProgress], stored: StoredOffsets
) -> Iterator[PartitionProgress]:
    """Yield the partitions of a mirror's topics that no task has, such as those that are new since a process ran."""
    owned = {each.partition for each in known}
    for topic in list_topics(client):
        numbers = dict[int, list[int]]()
        if is_mirrored(topic, config.get("topics", "").split(",")):
            with suppress(UnknownTopicError, ProtocolError):
                numbers = partitions_of(client, topic)
        new = (TopicPartition(topic, number) for number in numbers)
        yield from (_progress(partition, None, config, stored) for partition in new if partition not in owned)


def _progress(
    partition: TopicPartition,
    task: TaskId | None,
    config: Mapping[str, str],
    stored: StoredOffsets,
    back: int | None = None,
) -> PartitionProgress:
    """
    Return the progress of a partition by the stored offsets.

    Args:
        partition: The partition of the source.
        task: The task that has it, or None.
        config: The settings of the task, or of the mirror.
        stored: The source offsets of the mirror.
        back: Where the copies back begin, or None if the partition is copied to the target.
    """
    (topic, number), is_back, nothing = partition, back is not None, dict[str, Any]()
    target = target_topic(config.get("target.topic.format", TOPIC_IN_FORMAT), topic)
    offset, stored_ms = stored.get(("target", target, number) if is_back else (None, topic, number), (nothing, None))
    mirrored, _ = stored.get((None, topic, number), (nothing, None))
    start = _starts(config.get("start.offsets") or "{}").get(topic, {}).get(str(number))
    return PartitionProgress(
        partition,
        target,
        task,
        is_back,
        # A position in the target's log may be that of an earlier turn.
        position=offset.get("offset", start) if back is None else max(offset.get("offset", 0), back),
        records=mirrored.get("records", 0),
        size_bytes=mirrored.get("bytes", 0),
        stored_ms=stored_ms,
    )


@lru_cache(maxsize=4)
def _starts(text: str) -> Mapping[str, Mapping[str, int]]:
    """Return the setting ``start.offsets``, which is the same for all partitions."""
    found: Mapping[str, Mapping[str, int]] = json.loads(text)
    return found


def with_checkpoints(view: MirrorView, target: Mapping[str, Any], *, timeout_s: float) -> MirrorView:
    """
    Return a mirror with the checkpoints on its target, and the topics that are stopped there.

    Args:
        view: The mirror, whose connector exists.
        target: The settings of librdkafka that the user has given for the target. The connector has all others.
        timeout_s: How long to wait for the first answer of the target, in seconds.
    """
    assert view.connector is not None
    config = view.connector.config
    stored = {"bootstrap.servers": config.get("target.bootstrap.servers", "")}
    properties = config.get("target.properties", "")
    if has_reference(properties):
        if not target.keys() - {"bootstrap.servers"}:
            return replace(
                view, target_problem="the mirror's workers have its target.properties; give --target-properties"
            )
        properties = ""
    try:
        cluster = open_target(stored | parse_properties(properties) | dict(target))
        present = cluster.partitions(timeout_s)
        all_claims = cluster.claims() if CLAIMS_TOPIC in present else {}
        claims = {name: claim for name, claim in all_claims.items() if claim.mirror == view.name}
        found = cluster.mirrored(view.name)
        rows = [_as_claimed(view, each, claims.get(each.target)) for each in view.partitions]
        copies = {each.copy for each in rows if each.is_back and each.target in claims}
        logs = cluster.logs(sorted({copy.topic for copy in copies}))
        # A topic that is copied back may have partitions that the source does not have.
        rows += [
            PartitionProgress(TopicPartition(claims[topic].topic, number), topic, None, is_back=True, position=0)
            for topic, number in sorted(logs.keys() - copies)
        ]
        left = left_on_target(cluster, view, claims, {each: end for each, (_, end) in logs.items()})
        # While a process runs, the status of the connector has these problems.
        waiting = {} if view.group.workers else _waiting(cluster, view, found, all_claims, present)
    except (KielGroupsError, ValueError) as error:
        return replace(view, target_problem=str(error))
    partitions = [
        each._replace(
            checkpoint=found[each.partition].position if each.partition in found else None,
            left=left.get(each.copy) if each.is_back else None,
        )
        for each in rows
    ]
    return replace(view, partitions=tuple(sorted(partitions)), stopped=waiting | dict(_stopped(view, claims)))


def _as_claimed(view: MirrorView, row: PartitionProgress, claim: Claim | None) -> PartitionProgress:
    """
    Return a partition with the direction and the position that its claim says.

    The tasks do not have them before the mirror has noticed a turn, which takes as long as no process runs it.
    """
    if claim is None or claim.direction not in (FORWARD, BACK):
        return row
    is_back = claim.direction == BACK
    if is_back != row.is_back:
        position = view.position("target", row.copy) if is_back else view.position(None, row.partition)
        row = row._replace(is_back=is_back, position=position, stored_ms=None)
    begun = claim.start(row.partition.partition) if is_back else claim.resume(row.partition.partition)
    return row if begun is None else row._replace(position=max(begun, row.position or 0))


def _stopped(view: MirrorView, claims: Mapping[str, Claim]) -> Iterator[tuple[str, str]]:
    """Yield each topic that a mirror does not copy, although it may have records that are not copied, and why."""
    assert view.connector is not None
    patterns = view.connector.config.get("topics", "").split(",")
    known = {each.partition.topic for each in view.partitions if each.task is not None}
    for claim in sorted(claims.values(), key=lambda claim: claim.topic):
        if claim.direction in INTERRUPTED:
            yield claim.topic, f"the topic {claim.topic} {INTERRUPTED[claim.direction]}"
        # A topic that was left out of the mirror keeps its claim.
        if claim.direction == BACK and is_mirrored(claim.topic, patterns) and claim.topic not in known:
            yield claim.topic, f"the topic {claim.topic} was turned round, and no task copies it back yet"


def _waiting(
    cluster: TargetCluster,
    view: MirrorView,
    mirrored: Mapping[TopicPartition, MirroredPartition],
    claims: Mapping[str, Claim],
    present: Mapping[str, int],
) -> dict[str, str]:
    """Return why topics, or partitions of them, will not be copied, by topic of the source, as the target shows it."""
    assert view.connector is not None
    hashed = view.connector.config.get("target.partitions", "")
    rows = {topic: list(own) for topic, own in groupby(view.partitions, lambda each: each.partition.topic)}
    topics = [
        MirroredTopic(topic, own[0].target, len(own), {}, hashed_partitions=hashed_partitions(hashed, len(own)))
        for topic, own in rows.items()
    ]
    begun = [topic for topic in topics if topic.target in claims and topic.target in present]
    problems = dict(plan_topics(begun, claims, present).problems)
    lost = cluster.lost_topics(names_of(topics), last_ends(mirrored), claims)
    return problems | lost | topic_problems(claims, view.name, topics, present)


def left_on_target(
    target: TargetCluster, view: MirrorView, claims: Mapping[str, Claim], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """
    Return how many records of partitions of the target are not copied back, at most.

    A number is negative if the log ends before the position of the mirror.

    Args:
        target: The target cluster.
        view: The mirror.
        claims: The claims of the mirror by target topic.
        ends: The end of the log of each partition of the target.

    Raises:
        KielGroupsError: The target does not answer.
    """
    ranges = {}
    for copy, end in ends.items():
        ranges[copy] = max(claims[copy.topic].start(copy.partition), view.position("target", copy) or 0), end
    # The last offsets may be those of transactions: their markers, or records that were aborted.
    filled = target.with_records(ranges)
    return {copy: end - start if copy in filled or end < start else 0 for copy, (start, end) in ranges.items()}


def source_logs(consumer: SingleConsumer, topics: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
    """
    Return the start and the end of the log of each partition of topics of the source, in the order of the topics.

    Raises:
        ConfigError: The source does not have one of the topics any more.
        KielGroupsError: The source does not answer.
    """
    wanted = list(topics)
    if gone := sorted(set(wanted) - consumer.topics()):
        raise ConfigError(f"the source has no topic {some(gone)} any more")
    numbers = {topic: sorted(consumer.partitions_for_topic(topic) or ()) for topic in wanted}
    partitions = [TopicPartition(topic, number) for topic in wanted for number in numbers[topic]]
    starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    return {each: (starts[each], ends[each]) for each in partitions}


def stored_offsets(offsets: Snapshot) -> StoredOffsets:
    """
    Return the source offsets of a mirror, and when each was stored in epoch milliseconds.

    The keys are those of ``MirrorView.stored``. A znode with garbage is ignored.
    """
    found: dict[tuple[str | None, str, int], tuple[Mapping[str, Any], int]] = {}
    for path, znode in offsets.items():
        with suppress(ProtocolError, LookupError):
            each = SourceOffset.parse(znode.data, path)
            place = each.partition.get("cluster"), each.partition["topic"], each.partition["partition"]
            found[place] = each.offset, znode.modified_ms
    return found


def mirrored_partitions(name: str, workers: WorkerGroup, stored: StoredOffsets) -> list[PartitionProgress]:
    """
    Return the partitions of a mirror's tasks, in the order of topics and numbers, without the ends of their logs.

    Args:
        name: The name of the mirror's connector.
        workers: The worker group.
        stored: The source offsets of the mirror.
    """
    entry = workers.configuration.connectors.get(name)
    tasks = () if entry is None else entry.tasks or ()
    found = []
    for number, config in enumerate(tasks):
        task = TaskId(name, number)
        forward, back = (json.loads(config.get(key, "[]")) for key in (PARTITIONS_KEY, BACK_KEY))
        found += [_progress(TopicPartition(*each), task, config, stored) for each in forward]
        found += [_progress(TopicPartition(*each[:2]), task, config, stored, each[2]) for each in back]
    return sorted(found)
