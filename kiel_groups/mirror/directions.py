"""The direction of a mirrored topic: check it while records are copied, and turn a topic round."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kiel_groups.errors import ConfigError, KielGroupsError, ProtocolError, TaskStoppedError
from kiel_groups.mirror.checkpoints import MirroredPartition
from kiel_groups.mirror.values import (
    BACK,
    FORWARD,
    STOPPED,
    Claim,
    Waiting,
    check_source,
)
from kiel_groups.model import TopicPartition
from kiel_groups.sync import SingleConsumer
from kiel_groups.wording import counted, some

if TYPE_CHECKING:
    from kiel_groups.mirror.target import TargetCluster

log = logging.getLogger(__name__)

#: How long a task that copies no records relies on the claims that it has read, in seconds.
_IDLE_S = 5.0
#: The pause before the target is asked again, in seconds.
_PAUSE_S = 0.25


class DirectionCheck:
    """
    Checks by the claims on the target that topics still have the direction in which a task copies their records.

    A task calls ``turned`` after it has read records and before it writes them. A topic is copied back only after its
    claim was changed. So a task that copies forward never writes a record that was copied back, however long the task
    was frozen.

    Args:
        target: The target cluster.
        mirror: The name of the mirror.
        topics: The direction of each target topic of the task.
        waiting: The functions of the worker.
    """

    def __init__(self, target: TargetCluster, mirror: str, topics: Mapping[str, str], waiting: Waiting) -> None:
        self._target = target
        self._mirror = mirror
        self._topics = topics
        self._waiting = waiting
        self._turned: frozenset[str] = frozenset()
        #: The end of the topic of claims when it was read last.
        self._end = -1
        self._checked_s = float("-inf")
        self._problem = ""

    @property
    def is_due(self) -> bool:
        """Whether a task that has read no records checks the claims."""
        return time.monotonic() - self._checked_s > _IDLE_S

    def turned(self) -> frozenset[str]:
        """
        Return the target topics that have another direction now, or no claim any more.

        Wait until the target answers.

        Raises:
            ConfigError: The target denies access to the claims.
            ProtocolError: A claim cannot be read.
            TaskStoppedError: The task must stop.
        """
        while True:
            try:
                # The end is read first. A claim that changes after that is found by the next check.
                if (end := self._target.claims_end()) != self._end:
                    self._turned = self._read()
                    self._end = end
            except (ConfigError, ProtocolError):
                raise
            except KielGroupsError as error:
                self._report(f"{error}; trying again")
                if self._waiting.should_stop:
                    raise TaskStoppedError(f"stopped while {self._target.servers} does not answer") from error
                time.sleep(_PAUSE_S)
            else:
                self._report("")
                self._checked_s = time.monotonic()
                return self._turned

    def _read(self) -> frozenset[str]:
        claims = self._target.claims()
        return frozenset(
            topic
            for topic, direction in self._topics.items()
            if (claim := claims.get(topic)) is None or (claim.mirror, claim.direction) != (self._mirror, direction)
        )

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._waiting.metrics.count("mirror_problems", int(bool(problem)))
            log.warning("%s: %s", self._mirror, problem or f"the target {self._target.servers} answers again")
            self._waiting.report_problem(problem)


class PartitionReversal(NamedTuple):
    """
    How far a partition is mirrored, and where it is copied back from.

    Args:
        end: The end of the source's partition.
        mirrored: The source offset up to which records are mirrored.
        start: The target's offset after the last record that the mirror has written.
    """

    end: int
    mirrored: int
    start: int


class TopicReversal(NamedTuple):
    """A topic that can be turned round, with its claim, its name on the target and its partitions by number."""

    target: str
    claim: Claim
    partitions: Sequence[PartitionReversal]

    @property
    def is_turned(self) -> bool:
        """Whether the topic is turned round already."""
        return self.claim.direction == BACK

    @property
    def ends(self) -> list[int]:
        """The ends of the source's partitions."""
        return [partition.end for partition in self.partitions]


def plan_reversal(target: TargetCluster, mirror: str, brokers: str, topics: Sequence[str]) -> list[TopicReversal]:
    """
    Return how far topics are mirrored, and where the copies back would begin. Nothing changes.

    Args:
        target: The target cluster.
        mirror: The name of the mirror.
        brokers: The addresses of the source's brokers.
        topics: The names of the topics on the source.

    Raises:
        ConfigError: A topic is not mirrored from this source, or its numbers of partitions differ.
        KielGroupsError: A cluster does not answer.
    """
    claims = target.claims_of(mirror)
    names = {claim.topic: name for name, claim in claims.items()}
    if missing := [topic for topic in topics if topic not in names]:
        raise ConfigError(
            f"the mirror {mirror!r} has no topic {some(missing)}; its topics are {some(sorted(names), 10) or 'none'}"
        )
    check_source(claims, mirror, brokers)
    counts = target.partitions()
    with SingleConsumer(brokers) as consumer:
        known = consumer.topics()
        if gone := [topic for topic in topics if topic not in known]:
            raise ConfigError(f"the source has no topic {some(gone)} any more")
        partitions = [
            TopicPartition(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic) or ()
        ]
        # Read before the ends: a record that is written meanwhile counts as not mirrored.
        mirrored = target.mirrored(mirror)
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    plans = []
    for topic in topics:
        own = sorted(partition for partition in partitions if partition.topic == topic)
        count = counts.get(names[topic], 0)
        if count != len(own) or any(each in mirrored and mirrored[each].is_hashed for each in own):
            raise ConfigError(
                f"the topic {topic} has {counted(own, 'partition')}, and {names[topic]} on the target has {count}:"
                " records keep their partition on the way back, so the numbers must be equal, and keys must not have"
                " been hashed anew"
            )
        plan = [_partition_reversal(mirrored.get(each), each.partition, starts[each], ends[each]) for each in own]
        plans.append(TopicReversal(names[topic], claims[names[topic]], plan))
    return plans


def _partition_reversal(mirrored: MirroredPartition | None, number: int, start: int, end: int) -> PartitionReversal:
    if mirrored is None:
        # The mirror has copied no record, so a partition with records is not mirrored yet.
        return PartitionReversal(end, start, 0)
    last = max((checkpoint.targets[number] for checkpoint in mirrored.checkpoints), default=0)
    return PartitionReversal(end, mirrored.position, last)


def check_mirrored(plan: TopicReversal) -> None:
    """
    Check that all records of a topic are mirrored, if it is not turned round yet.

    Raises:
        ConfigError: The mirror is ahead of the source.
        KielGroupsError: Records are left.
    """
    behind = {
        f"{plan.claim.topic}:{number}": each.end - each.mirrored
        for number, each in enumerate(plan.partitions)
        if not plan.is_turned and each.mirrored != each.end
    }
    if any(count < 0 for count in behind.values()):
        raise ConfigError(
            f"the topic {plan.claim.topic} of the source ends before the offset up to which it is mirrored: it was"
            " deleted and created again, or has lost records"
        )
    if behind:
        where = some(f"{counted(count, 'record')} of {partition}" for partition, count in behind.items())
        raise KielGroupsError(
            f"the mirror {plan.claim.mirror!r} has not mirrored everything: {where} are left; stop the producers of the"
            " source, and run the mirror until its lag is 0"
        )


def turn_round(
    target: TargetCluster,
    plans: Sequence[TopicReversal],
    plan_again: Callable[[], Sequence[TopicReversal]],
    pause: Callable[[], object],
) -> None:
    """
    Turn topics round: from then on, the mirror copies records that producers write to the target to the source.

    First, the mirror stops copying the topics. If all records are mirrored after a pause, and the source has no new
    ones, the direction becomes ``BACK``. A crash leaves the topics stopped, and another call completes the turn. After
    an error, as when a producer still writes to the source, the mirror copies the topics to the target again.

    Args:
        target: The target cluster.
        plans: The topics, which are not turned round yet.
        plan_again: Calls ``plan_reversal`` again for at least these topics.
        pause: Waits for records of producers that still write.

    Raises:
        KielGroupsError: A producer still writes to the source, or a cluster does not answer.
    """
    names = {plan.target: plan for plan in plans}
    try:
        _move(target, names, FORWARD, lambda _, claim: claim._replace(direction=STOPPED))
        pause()
        last = {plan.target: plan for plan in plan_again()}
        for plan in last.values():
            check_mirrored(plan)
        for name, plan in names.items():
            if not last[name].is_turned and last[name].ends != plan.ends:
                raise KielGroupsError(
                    f"a producer still writes to the topic {plan.claim.topic} of the source; the mirror continues"
                )
        starts = {name: tuple(each.start for each in plan.partitions) for name, plan in last.items()}
        claims = _move(target, names, STOPPED, lambda name, claim: claim._replace(direction=BACK, starts=starts[name]))
        if any(claims[name].direction != BACK for name in names):
            raise KielGroupsError("another command has changed the directions meanwhile; call this one again")
    except BaseException:
        continue_forward(target, names)
        raise


def continue_forward(target: TargetCluster, names: Collection[str]) -> None:
    """Set the direction of stopped target topics to ``FORWARD``. Topics of another direction stay as they are."""
    _move(target, names, STOPPED, lambda _, claim: claim._replace(direction=FORWARD))


def _move(
    target: TargetCluster, names: Collection[str], origin: str, directed: Callable[[str, Claim], Claim]
) -> Mapping[str, Claim]:
    """Change the direction of each target topic that has the direction ``origin``. Return all claims."""
    return target.change_claims(
        lambda claims: {
            name: directed(name, claims[name]) for name in names if name in claims and claims[name].direction == origin
        }
    )
