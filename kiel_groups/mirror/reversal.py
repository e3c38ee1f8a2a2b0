"""Turn a mirrored topic: its new records are copied back to the source, or to the target again."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.mirror.checkpoints import MirroredPartition, source_end
from kiel_groups.mirror.mirror_view import MirrorView, left_on_target, source_logs
from kiel_groups.mirror.values import (
    BACK,
    FORWARD,
    INTERRUPTED,
    RETURNING,
    STOPPED,
    Claim,
    check_mirror,
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
    The state of a partition before a turn.

    Args:
        end: The end of the source's partition.
        left: How many records the mirror has not copied yet in the present direction, at most. The number is negative
            if the log that it copies ends before the position of the mirror.
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
        others: How many records that the mirror has not copied back are at the end of each partition of the source that
            has some, before a turn forward: those of a producer that still writes there.
    """

    target: str
    claim: Claim
    direction: str
    partitions: Sequence[PartitionReversal]
    others: Mapping[TopicPartition, int] = {}

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
    check_mirror(claims, view.name, brokers)
    (other,) = {STOPPED, RETURNING} - {_STEPS[direction][1]}
    for topic in topics:
        if claims[names[topic]].direction == other:
            raise ConfigError(f"the topic {topic} {INTERRUPTED[other]}")
    logs = target.logs(names[topic] for topic in topics)
    with SingleConsumer(brokers) as consumer:
        # Read before the ends: a record that is written meanwhile counts as not mirrored.
        mirrored, sources = target.mirrored(view.name), source_logs(consumer, topics)
    plans = []
    for topic in topics:
        others: Mapping[TopicPartition, int] = {}
        own = [each for each in sources if each.topic == topic]
        copies = sorted(each for each in logs if each.topic == names[topic])
        if len(copies) != len(own) or any(each in mirrored and mirrored[each].is_hashed for each in own):
            raise ConfigError(
                f"the topic {topic} has {counted(own, 'partition')}, and {names[topic]} on the target has"
                f" {len(copies)}: records keep their partition on the way back, so the numbers must be equal, and keys"
                " must not have been hashed anew"
            )
        if direction == BACK:
            plan = [_plan_back(view, each, mirrored.get(each), *sources[each]) for each in own]
        else:
            left = left_on_target(target, view, claims, {each: logs[each][1] for each in copies})
            ends = [sources[each][1] for each in own]
            plan = [PartitionReversal(end, left[each], end) for end, each in zip(ends, copies, strict=True)]
            if claims[names[topic]].direction != direction:
                others = _others(view, names[topic], {each: sources[each] for each in own}, mirrored)
        plans.append(TopicReversal(names[topic], claims[names[topic]], direction, plan, others))
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
        stored = view.position(None, partition)
        position = min(position, start if stored is None else stored)
    return PartitionReversal(end, end - position, last)


def _others(
    view: MirrorView,
    target: str,
    sources: Mapping[TopicPartition, tuple[int, int]],
    mirrored: Mapping[TopicPartition, MirroredPartition],
) -> dict[TopicPartition, int]:
    """Return ``TopicReversal.others`` of a topic from the starts and the ends of its partitions on the source."""
    found = {}
    for partition, (start, end) in sources.items():
        back = view.stored.get(("target", target, partition.partition))
        # Without a checkpoint, the partition had no record before the turn.
        is_empty = back is None and partition not in mirrored
        known = start if is_empty else source_end(mirrored.get(partition), back)
        if known is not None and end > max(known, start):
            found[partition] = end - max(known, start)
    return found


def check_copied(plan: TopicReversal, mirror: str) -> None:
    """
    Check that all records of a topic are copied in its present direction, unless it is turned already.

    Raises:
        ConfigError: The mirror is ahead of the log that it copies.
        KielGroupsError: Records are left.
    """
    left = {f"{plan.claim.topic}:{number}": each.left for number, each in enumerate(plan.partitions) if each.left}
    if plan.is_turned or not left:
        return
    is_back = plan.direction == BACK
    if min(left.values()) < 0:
        place = f"{plan.claim.topic} of the source" if is_back else f"{plan.target} of the target"
        raise ConfigError(
            f"the topic {place} ends before the offset up to which it is {'mirrored' if is_back else 'copied back'}: it"
            " was deleted and created again, or has lost records"
        )
    where = some(f"{counted(count, 'record')} of {partition}" for partition, count in left.items())
    side, sign = ("source", "its lag is 0") if is_back else ("target", "it has copied the rest back")
    hint = "" if is_back else "; those of an open transaction are left until its producer ends it, or its timeout does"
    raise KielGroupsError(
        f"the mirror {mirror!r} has not copied everything: {where} are left; stop the producers of the {side}, and run"
        f" the mirror until {sign}{hint}"
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

    No call can tell whether another one that has stopped a topic was killed, or waits. So of several calls at the same
    time, the one that has stopped a topic last may turn it. The others fail, and turn none of their topics.

    Args:
        target: The target cluster.
        mirror: The name of the mirror.
        plans: The topics, which are not turned yet, with one direction.
        plan_again: Calls ``plan_reversal`` again for at least these topics.
        pause: Waits for records of producers that still write.

    Raises:
        KielGroupsError: A producer still writes, another call turns a topic, or a cluster does not answer.
    """
    names, direction = {plan.target: plan for plan in plans}, plans[0].direction
    turner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    def stopped(claims: Mapping[str, Claim]) -> Mapping[str, Claim]:
        origin, between = _STEPS[direction]
        found = {name: claims[name] for name in names if name in claims}
        return {
            name: claim._replace(direction=between, turner=turner)
            for name, claim in found.items()
            if claim.direction in (origin, between)
        }

    try:
        target.change_claims(stopped)
        pause()
        last = {plan.target: plan for plan in plan_again()}
        for name, plan in names.items():
            check_copied(last[name], mirror)
            if not last[name].is_turned and last[name].ends != plan.ends:
                raise KielGroupsError(
                    f"a producer still writes to the topic {plan.claim.topic}; the mirror continues as before"
                )

        def turned(claims: Mapping[str, Claim]) -> Mapping[str, Claim]:
            for name, plan in names.items():
                claim = claims.get(name, plan.claim)
                if claim.turner != turner:
                    other = f"another command ({claim.turner})" if claim.turner else "another command"
                    raise KielGroupsError(
                        f"{other} has changed the direction of the topic {plan.claim.topic} meanwhile, or turns it now;"
                        " this one has turned no topic"
                    )
            return {name: _turned(claims[name], last[name]) for name in names}

        target.change_claims(turned)
    except BaseException:
        continue_copying(target, names, direction, turner)
        raise


def _turned(claim: Claim, plan: TopicReversal) -> Claim:
    starts = tuple(each.start for each in plan.partitions)
    claim = claim._replace(direction=plan.direction)
    if plan.direction == BACK:
        return claim._replace(starts=starts, ends=tuple(plan.ends))
    return claim._replace(resumes=starts)


def continue_copying(target: TargetCluster, names: Collection[str], direction: str, turner: str = "") -> None:
    """
    Let the mirror continue with target topics whose turn to a direction has stopped them.

    Topics that are not stopped stay as they are. If a ``turner`` is given, so do those that another one has stopped.
    """
    origin, between = _STEPS[direction]

    def continued(claims: Mapping[str, Claim]) -> Mapping[str, Claim]:
        found = {name: claims[name] for name in names if name in claims and claims[name].direction == between}
        return {
            name: claim._replace(direction=origin, turner="")
            for name, claim in found.items()
            if not turner or claim.turner == turner
        }

    target.change_claims(continued)
