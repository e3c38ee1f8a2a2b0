"""Turn a mirrored topic: its new records are copied back to the source, or to the target again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.mirror.checkpoints import MirroredPartition
from kiel_groups.mirror.mirror_view import MirrorView
from kiel_groups.mirror.values import (
    BACK,
    FORWARD,
    INTERRUPTED,
    RETURNING,
    STOPPED,
    Claim,
    check_source,
)
from kiel_groups.model import TopicPartition
from kiel_groups.sync import SingleConsumer
from kiel_groups.wording import counted, some

if TYPE_CHECKING:
    from kiel_groups.mirror.target import TargetCluster

#: For each direction that a topic can be turned to: its direction before, and the one between.
_STEPS = {BACK: (FORWARD, STOPPED), FORWARD: (BACK, RETURNING)}


class PartitionReversal(NamedTuple):
    """
    What a turn has to know of a partition.

    Args:
        end: The end of the source's partition.
        left: How many records the mirror has not copied yet in the present direction, at most. The number is negative
            if the source ends before the position of the mirror.
        start: Where the copies begin after the turn: an offset of the target for ``BACK``, else of the source.
    """

    end: int
    left: int
    start: int


class TopicReversal(NamedTuple):
    """
    A topic that can be turned.

    Args:
        target: Its name on the target.
        claim: Its claim.
        direction: The direction after the turn, ``BACK`` or ``FORWARD``.
        partitions: Its partitions by number.
    """

    target: str
    claim: Claim
    direction: str
    partitions: Sequence[PartitionReversal]

    @property
    def is_turned(self) -> bool:
        """Whether the topic has the direction already."""
        return self.claim.direction == self.direction

    @property
    def ends(self) -> list[int]:
        """The ends of the source's partitions."""
        return [partition.end for partition in self.partitions]


def plan_reversal(
    target: TargetCluster, view: MirrorView, brokers: str, topics: Sequence[str], direction: str
) -> list[TopicReversal]:
    """
    Return what is left to copy of topics, and where the copies would begin after a turn. Nothing changes.

    Args:
        target: The target cluster.
        view: The mirror.
        brokers: The addresses of the source's brokers.
        topics: The names of the topics on the source.
        direction: ``BACK`` or ``FORWARD``.

    Raises:
        ConfigError: A topic is not mirrored from this source, its numbers of partitions differ, or a turn in the other
            direction was interrupted.
        KielGroupsError: A cluster does not answer.
    """
    claims = target.claims_of(view.name)
    names = {claim.topic: name for name, claim in claims.items()}
    if missing := [topic for topic in topics if topic not in names]:
        raise ConfigError(
            f"the mirror {view.name!r} has no topic {some(missing)}; its topics are {some(sorted(names), 10) or 'none'}"
        )
    check_source(claims, view.name, brokers)
    (other,) = {STOPPED, RETURNING} - {_STEPS[direction][1]}
    for topic in topics:
        if claims[names[topic]].direction == other:
            raise ConfigError(f"the topic {topic} {INTERRUPTED[other]}")
    logs = target.logs(names[topic] for topic in topics)
    with SingleConsumer(brokers) as consumer:
        known = consumer.topics()
        if gone := [topic for topic in topics if topic not in known]:
            raise ConfigError(f"the source has no topic {some(gone)} any more")
        partitions = [
            TopicPartition(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic) or ()
        ]
        # Read before the ends: a record that is written meanwhile counts as not mirrored.
        mirrored = target.mirrored(view.name)
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    plans = []
    for topic in topics:
        own = sorted(partition for partition in partitions if partition.topic == topic)
        copies = sorted(each for each in logs if each.topic == names[topic])
        if len(copies) != len(own) or any(each in mirrored and mirrored[each].is_hashed for each in own):
            raise ConfigError(
                f"the topic {topic} has {counted(own, 'partition')}, and {names[topic]} on the target has"
                f" {len(copies)}: records keep their partition on the way back, so the numbers must be equal, and keys"
                " must not have been hashed anew"
            )
        if direction == BACK:
            plan = [_plan_back(view, each, mirrored.get(each), starts[each], ends[each]) for each in own]
        else:
            left = [_left_on_target(target, view, claims[each.topic], each, logs[each][1]) for each in copies]
            plan = [PartitionReversal(ends[each], count, ends[each]) for each, count in zip(own, left, strict=True)]
        plans.append(TopicReversal(names[topic], claims[names[topic]], direction, plan))
    return plans


def _plan_back(
    view: MirrorView, partition: TopicPartition, mirrored: MirroredPartition | None, start: int, end: int
) -> PartitionReversal:
    # Without a checkpoint, the mirror has copied no record, so a partition with records is not mirrored yet.
    position, last = start, 0
    if mirrored is not None:
        position = mirrored.position
        last = max((checkpoint.targets[partition.partition] for checkpoint in mirrored.checkpoints), default=0)
    if not view.is_exactly_once:
        # A task that starts at an earlier position would write records again, after the start of the copies back.
        position = min(position, view.stored.get((None, *partition), start))
    return PartitionReversal(end, end - position, last)


def _left_on_target(target: TargetCluster, view: MirrorView, claim: Claim, copy: TopicPartition, end: int) -> int:
    """Return how many records of the target's partition are not copied back, at most."""
    position = max((*claim.starts[copy.partition :][:1], view.stored.get(("target", *copy), 0)))
    # The last offsets may be those of transactions: their markers, or records that were aborted.
    is_left = end > position and next(target.messages(copy.topic, copy.partition, start=position), None) is not None
    return end - position if is_left else 0


def check_copied(plan: TopicReversal, mirror: str) -> None:
    """
    Check that all records of a topic are copied in its present direction, unless it is turned already.

    Raises:
        ConfigError: The mirror is ahead of the source.
        KielGroupsError: Records are left.
    """
    left = {f"{plan.claim.topic}:{number}": each.left for number, each in enumerate(plan.partitions) if each.left}
    if plan.is_turned or not left:
        return
    if min(left.values()) < 0:
        raise ConfigError(
            f"the topic {plan.claim.topic} of the source ends before the offset up to which it is mirrored: it was"
            " deleted and created again, or has lost records"
        )
    where = some(f"{counted(count, 'record')} of {partition}" for partition, count in left.items())
    side, sign = ("source", "its lag is 0") if plan.direction == BACK else ("target", "it has copied the rest back")
    raise KielGroupsError(
        f"the mirror {mirror!r} has not copied everything: {where} are left; stop the producers of the {side}, and run"
        f" the mirror until {sign}"
    )


def turn_round(
    target: TargetCluster,
    mirror: str,
    plans: Sequence[TopicReversal],
    plan_again: Callable[[], Sequence[TopicReversal]],
    pause: Callable[[], object],
) -> None:
    """
    Turn topics: from then on, the mirror copies the records that producers write to the other side.

    First, the mirror stops copying the topics. If all records are copied after a pause, and neither side has new ones,
    the direction changes. A crash leaves the topics stopped, and another call completes the turn. After an error, as
    when a producer still writes, the mirror continues in the former direction.

    Args:
        target: The target cluster.
        mirror: The name of the mirror.
        plans: The topics, which are not turned yet, with one direction.
        plan_again: Calls ``plan_reversal`` again for at least these topics.
        pause: Waits for records of producers that still write.

    Raises:
        KielGroupsError: A producer still writes, or a cluster does not answer.
    """
    names, direction = {plan.target: plan for plan in plans}, plans[0].direction
    origin, between = _STEPS[direction]
    try:
        _move(target, names, origin, lambda _, claim: claim._replace(direction=between))
        pause()
        last = {plan.target: plan for plan in plan_again()}
        for plan in last.values():
            check_copied(plan, mirror)
        for name, plan in names.items():
            if not last[name].is_turned and last[name].ends != plan.ends:
                raise KielGroupsError(
                    f"a producer still writes to the topic {plan.claim.topic}; the mirror continues as before"
                )
        starts = {name: tuple(each.start for each in plan.partitions) for name, plan in last.items()}

        def turned(name: str, claim: Claim) -> Claim:
            claim = claim._replace(direction=direction)
            return claim._replace(starts=starts[name]) if direction == BACK else claim._replace(resumes=starts[name])

        claims = _move(target, names, between, turned)
        if any(claims[name].direction != direction for name in names):
            raise KielGroupsError("another command has changed the directions meanwhile; call this one again")
    except BaseException:
        continue_copying(target, names, direction)
        raise


def continue_copying(target: TargetCluster, names: Collection[str], direction: str) -> None:
    """
    Let the mirror continue with target topics whose turn to a direction has stopped them.

    Topics that are not stopped stay as they are.
    """
    origin, between = _STEPS[direction]
    _move(target, names, between, lambda _, claim: claim._replace(direction=origin))


def _move(
    target: TargetCluster, names: Collection[str], origin: str, directed: Callable[[str, Claim], Claim]
) -> Mapping[str, Claim]:
    """Change the direction of each target topic that has the direction ``origin``. Return all claims."""
    return target.change_claims(
        lambda claims: {
            name: directed(name, claims[name]) for name in names if name in claims and claims[name].direction == origin
        }
    )
