"""Read how far a mirror is: its tasks and positions in ZooKeeper, and the logs of the source."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kiel_groups.errors import ConfigError, KielGroupsError, ProtocolError
from kiel_groups.group.znodes.contents import Snapshot, Znode
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.worker_contents import SourceOffset, WorkState, WorkStatus
from kiel_groups.mirror.settings import open_target, parse_properties
from kiel_groups.mirror.values import (
    BACK_KEY,
    CLAIMS_TOPIC,
    INTERRUPTED,
    PARTITIONS_KEY,
    TOPIC_IN_FORMAT,
    target_topic,
)
from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import find_logs
from kiel_groups.ops.zookeeper_client import zookeeper
from kiel_groups.ops.zookeeper_reader import broker_addresses, read_brokers, read_tree
from kiel_groups.sync import SingleConsumer
from kiel_groups.wording import some
from kiel_groups.workers.plugins.secret_references import has_reference
from kiel_groups.workers.stores.worker_group_view import WorkerGroup, worker_group_of
from kiel_groups.workers.values import ConnectorEntry, TaskId, Work


class PartitionProgress(NamedTuple):
    """
    How far a partition is mirrored.

    Args:
        partition: The partition of the source.
        target: The name of its topic on the target.
        task: The task of the mirror that writes it.
        is_back: Whether records are copied back from the target to the source.
        position: The offset after the last copied record, on the source or, if copied back, on the target. Before the
            first record, where the setting ``start.offsets`` begins, or None.
        start: Where the log of the source begins, or None if unknown.
        end: Where the log of the source ends, or None if unknown.
        records: The number of records that were mirrored to the target. It stays if records are copied back.
        size_bytes: The number of bytes of their keys and values.
        stored_ms: When the position was stored, in epoch milliseconds, or None before the first record.
        checkpoint: The source offset of the last checkpoint on the target, or None if unknown.
    """

    partition: TopicPartition
    target: str
    task: TaskId
    is_back: bool = False
    position: int | None = None
    start: int | None = None
    end: int | None = None
    records: int = 0
    size_bytes: int = 0
    stored_ms: int | None = None
    checkpoint: int | None = None

    def behind(self, end: int | None) -> int | None:
        """Return how many offsets before ``end`` are not mirrored yet, or None if unknown."""
        if end is None or (self.position is None and self.start is None):
            return None
        return max(0, end - max(self.position or 0, self.start or 0))

    @property
    def lag(self) -> int | None:
        """How many offsets of the source's log are not mirrored yet, or None if unknown, or if copied back."""
        return None if self.is_back else self.behind(self.end)


@dataclass(frozen=True, slots=True)
class MirrorView:
    """
    A mirror at one moment.

    Args:
        name: The name of the mirror's connector.
        group: The worker group, with this connector only.
        partitions: The partitions of the mirror's tasks, in their order; empty before the connector has made its tasks.
        stored: The stored positions: by None or, for what is copied back, "target"; by topic and number of the
            partition that records are copied from.
        counts: The numbers of mirrored records and of their bytes of each partition of the source, also of those that
            no task mirrors at the moment.
        copied_back: The stored source offsets of what is copied back, by partition of the target.
        lag_problem: The first reason why ends of logs are unknown, or "".
        target_problem: Why the checkpoints on the target are unknown, or "".
        stopped: Why topics are copied in no direction: a text for each of them.
        seen_ms: When the mirror was read, in epoch milliseconds.
    """

    name: str
    group: WorkerGroup
    partitions: tuple[PartitionProgress, ...] = ()
    stored: Mapping[tuple[str | None, str, int], int] = field(default_factory=dict)
    counts: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    copied_back: Mapping[TopicPartition, Mapping[str, Any]] = field(default_factory=dict)
    lag_problem: str = ""
    target_problem: str = ""
    stopped: tuple[str, ...] = ()
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
        """How many offsets of all logs are not mirrored yet, or None if not all are known, or no task is made yet."""
        lags = [each.lag for each in self.partitions if not each.is_back] or ([] if self.partitions else [None])
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def failed(self) -> Mapping[Work, WorkStatus]:
        """The statuses of the connector and of its tasks that have failed."""
        return {work: status for work, status in self.group.statuses.items() if status.state is WorkState.FAILED}


def read_mirror(hosts: str, group: str, name: str, *, timeout_s: float) -> MirrorView:
    """
    Read a mirror. The call blocks, and changes nothing.

    Args:
        hosts: ZooKeeper of the source, with its chroot.
        group: The group of workers that runs the mirror.
        name: The name of the mirror's connector.
        timeout_s: How long to wait for ZooKeeper's first answer, and then for the brokers, in seconds.

    Raises:
        CoordinationError: ZooKeeper does not answer, or has no such chroot.
    """
    layout = WorkerLayout(group)
    with zookeeper(hosts, timeout_s=timeout_s) as client:
        found: dict[str, Znode] = {}
        # A status that is read after its owner is not older than the owner's claim.
        for path in (layout.workers, layout.connector(name), layout.connector_owners(name), layout.status(name)):
            found |= read_tree(client, path)
        offsets = read_tree(client, layout.connector_offsets(name))
        brokers = broker_addresses(read_brokers(client))
    seen_ms = time.time_ns() // 1_000_000
    workers = worker_group_of(group, found)
    stored = stored_offsets(offsets)
    partitions = mirrored_partitions(name, workers, stored)
    logs = asyncio.run(find_logs(brokers, [each.partition for each in partitions], timeout_s=timeout_s))
    known = [
        each._replace(start=logs.starts.get(each.partition), end=logs.ends.get(each.partition)) for each in partitions
    ]
    positions = {place: offset["offset"] for place, (offset, _) in stored.items() if "offset" in offset}
    counts, back = dict[TopicPartition, tuple[int, int]](), dict[TopicPartition, Mapping[str, Any]]()
    for (side, topic, number), (offset, _) in stored.items():
        if side is None:
            counts[TopicPartition(topic, number)] = offset.get("records", 0), offset.get("bytes", 0)
        else:
            back[TopicPartition(topic, number)] = offset
    return MirrorView(name, workers, tuple(known), positions, counts, back, logs.problem, seen_ms=seen_ms)


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
        claims = cluster.claims() if CLAIMS_TOPIC in cluster.partitions(timeout_s) else {}
        found = cluster.mirrored(view.name)
    except (KielGroupsError, ValueError) as error:
        return replace(view, target_problem=str(error))
    partitions = [
        each._replace(checkpoint=found[each.partition].position) if each.partition in found else each
        for each in view.partitions
    ]
    own = sorted((claim.topic, claim.direction) for claim in claims.values() if claim.mirror == view.name)
    stopped = [f"the topic {topic} {INTERRUPTED[direction]}" for topic, direction in own if direction in INTERRUPTED]
    return replace(view, partitions=tuple(partitions), stopped=tuple(stopped))


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


def stored_offsets(offsets: Snapshot) -> dict[tuple[str | None, str, int], tuple[Mapping[str, Any], int]]:
    """
    Return the source offsets of a mirror, and when each was stored in epoch milliseconds.

    The keys are those of ``MirrorView.stored``. A znode with garbage is ignored.
    """
    found = {}
    for path, znode in offsets.items():
        with suppress(ProtocolError, LookupError):
            each = SourceOffset.parse(znode.data, path)
            place = each.partition.get("cluster"), each.partition["topic"], each.partition["partition"]
            found[place] = each.offset, znode.modified_ms
    return found


def mirrored_partitions(
    name: str, workers: WorkerGroup, stored: Mapping[tuple[str | None, str, int], tuple[Mapping[str, Any], int]]
) -> list[PartitionProgress]:
    """
    Return the partitions of a mirror's tasks, in the order of topics and numbers, without the ends of their logs.

    Args:
        name: The name of the mirror's connector.
        workers: The worker group.
        stored: The source offsets of the mirror.
    """
    entry = workers.configuration.connectors.get(name)
    tasks = () if entry is None else entry.tasks or ()
    nothing: tuple[Mapping[str, Any], int | None] = {}, None
    found = []
    for number, config in enumerate(tasks):
        template = config.get("target.topic.format", TOPIC_IN_FORMAT)
        starts = json.loads(config.get("start.offsets") or "{}")
        owned = [(*each, False) for each in json.loads(config.get(PARTITIONS_KEY, "[]"))]
        owned += [(*each[:2], True) for each in json.loads(config.get(BACK_KEY, "[]"))]
        for topic, partition, is_back in owned:
            target = target_topic(template, topic)
            place = ("target", target, partition) if is_back else (None, topic, partition)
            offset, stored_ms = stored.get(place, nothing)
            mirrored, _ = stored.get((None, topic, partition), nothing)
            row = PartitionProgress(
                TopicPartition(topic, partition),
                target,
                TaskId(name, number),
                is_back,
                position=offset.get("offset", None if is_back else starts.get(topic, {}).get(str(partition))),
                records=mirrored.get("records", 0),
                size_bytes=mirrored.get("bytes", 0),
                stored_ms=stored_ms,
            )
            found.append(row)
    return sorted(found)
