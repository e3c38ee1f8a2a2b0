"""
Translate offsets of the source into offsets of the target, by the checkpoints of a mirror.

A checkpoint says: the records of a source partition from one offset on are on the target from another offset on. This
holds for each checkpoint by itself, also if an at-least-once mirror has written the records before again. So no
checkpoint at or below the offset of a group skips a record, and the group continues at the one furthest on the target.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from kiel_groups.errors import ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wording import some


class Checkpoint(NamedTuple):
    """
    The records of a source partition from ``source`` on are on the target from ``targets`` on, by target partition.

    A target partition that is not named may have such records from its start on. If records keep their partition, it is
    the only one.
    """

    source: int
    targets: Mapping[int, int]


class MirroredPartition(NamedTuple):
    """
    How far a partition of the source is mirrored.

    Args:
        position: The offset up to which records are mirrored.
        checkpoints: The checkpoints whose target is known, ascending by their source.
        is_hashed: Whether the keys are hashed anew, so that records do not keep their partition.
    """

    position: int
    checkpoints: Sequence[Checkpoint]
    is_hashed: bool = False


def source_end(mirrored: MirroredPartition | None, copied_back: Mapping[str, Any] | None) -> int | None:
    """
    Return where a partition of the source ends after the last record that was mirrored or copied back.

    Records from there on are those of a producer that still writes to the source of a topic that was turned round.

    Args:
        mirrored: How far the partition is mirrored, or None without a checkpoint.
        copied_back: The stored source offset of what is copied back to the partition, or None before the first record.

    Returns:
        The end, or None if it is not known, as after a record that an earlier release has copied back.
    """
    ends = [] if mirrored is None else [mirrored.position]
    if copied_back is not None:
        if "end" not in copied_back:
            return None
        ends.append(copied_back["end"])
    return max(ends, default=None)


class TranslatedOffset(NamedTuple):
    """
    The offsets of a group in a partition of the source, and in the target partition with the same number.

    Args:
        partition: The topic on the source, and the number of the partition.
        target_topic: The topic on the target, or "" if the topic is not mirrored.
        source: The offset of the group on the source, or None if it has none.
        target: The offset to continue from on the target, or None if it is not known.
        again: The most records that the group reads on the target although it has read them on the source, or None if
            the number is not known.
        refusal: Why the offset cannot be translated, or "".
        note: A remark about the translated offset, or "".
    """

    partition: TopicPartition
    target_topic: str
    source: int | None
    target: int | None = None
    again: int | None = None
    refusal: str = ""
    note: str = ""

    @property
    def copy(self) -> TopicPartition:
        """The partition of the target."""
        return TopicPartition(self.target_topic, self.partition.partition)


#: The remarks about a group whose offset is beyond the position of the mirror.
_BEHIND, _COPIED_BACK = "the mirror is {:,} behind", "{:,} of them were copied back from the target"
#: The start and the end of the log of each partition of the target.
Logs = Mapping[TopicPartition, tuple[int, int]]


def parse_checkpoints(records: Iterable[tuple[bytes, bytes | None]]) -> dict[TopicPartition, MirroredPartition]:
    """
    Return the position and the checkpoints of each partition of the source.

    A null value deletes the earlier checkpoints with its key, which the topic has until it is compacted.

    Args:
        records: The keys and values of the topic of checkpoints, in the order of each partition.

    Raises:
        ProtocolError: A record is no checkpoint.
    """
    found: dict[TopicPartition, list[tuple[Checkpoint, bool]]] = {}
    listed = list(records)
    deleted = {key: at for at, (key, value) in enumerate(listed) if not value}
    for at, (key, value) in enumerate(listed):
        if value and at > deleted.get(key, -1):
            try:
                (topic, number, _), checkpoint = json.loads(key), json.loads(value)
                is_hashed = "targets" in checkpoint
                targets = checkpoint["targets"] if is_hashed else {number: checkpoint["target"]}
                known = {int(each): int(end) for each, end in targets.items() if end is not None}
                parsed = Checkpoint(int(checkpoint["source"]), known), is_hashed
                found.setdefault(TopicPartition(topic, int(number)), []).append(parsed)
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
                raise ProtocolError(
                    f"the checkpoint with the key {key[:100]!r} cannot be read: {value[:100]!r}; a record with this key"
                    " and a null value in the same partition deletes it"
                ) from error
    return {
        partition: MirroredPartition(
            max(each.source for each, _ in rows),
            sorted((each for each, is_hashed in rows if each.targets or is_hashed), key=lambda each: each.source),
            is_hashed=any(is_hashed for _, is_hashed in rows),
        )
        for partition, rows in found.items()
    }


def last_ends(mirrored: Mapping[TopicPartition, MirroredPartition]) -> dict[TopicPartition, int]:
    """Return where partitions of the target ended at the last checkpoints, by topic of the source and their number."""
    found: dict[TopicPartition, int] = {}
    for partition, each in mirrored.items():
        for checkpoint in each.checkpoints:
            for number, end in checkpoint.targets.items():
                own = TopicPartition(partition.topic, number)
                found[own] = max(found.get(own, 0), end)
    return found


def translate(
    offsets: Mapping[TopicPartition, int],
    topics: Mapping[str, str],
    mirrored: Mapping[TopicPartition, MirroredPartition],
    logs: Logs,
    turned: Collection[str] = (),
) -> list[TranslatedOffset]:
    """
    Translate the offsets of a group. Each record from an offset on is at the translated offset or after it.

    Args:
        offsets: The offsets of the group in partitions of the source.
        topics: The name on the target of each mirrored topic.
        mirrored: How far partitions of the source are mirrored.
        logs: The starts and the ends of the partitions of the target.
        turned: The topics of the source whose new records are copied back from the target.
    """
    found: list[TranslatedOffset] = []
    for topic, partitions in groupby(sorted(offsets), key=lambda each: each.topic):
        target, listed = topics.get(topic, ""), list(partitions)
        if not target:
            refusal = "the topic is not mirrored"
            found += [TranslatedOffset(each, "", offsets[each], refusal=refusal) for each in listed]
        elif any(each.topic == topic and mirrored[each].is_hashed for each in mirrored):
            found += _hashed(topic, target, offsets, mirrored, logs)
        else:
            ahead = _COPIED_BACK if topic in turned else _BEHIND
            found += [_translated(each, target, offsets[each], mirrored.get(each), logs, ahead) for each in listed]
    return found


def _translated(
    partition: TopicPartition, target: str, offset: int, mirrored: MirroredPartition | None, logs: Logs, ahead: str
) -> TranslatedOffset:
    translated = TranslatedOffset(partition, target, offset)
    lower, refusal = _at_or_below(partition, target, offset, mirrored, logs)
    if refusal or mirrored is None:
        return translated._replace(refusal=refusal)
    number = partition.partition
    best = max(lower, key=lambda each: (each.targets[number], each.source))
    start, at = logs[TopicPartition(target, number)][0], best.targets[number]
    note = "from the first record that the target has" if at < start and best.source < offset else ""
    if (behind := offset - mirrored.position) > 0:
        note = ahead.format(behind)
    return translated._replace(target=max(at, start), again=offset - best.source, note=note)


def _at_or_below(
    partition: TopicPartition, target: str, offset: int, mirrored: MirroredPartition | None, logs: Logs
) -> tuple[list[Checkpoint], str]:
    """Return the checkpoints that an offset may be translated by, or the reason why there are none."""
    is_hashed = mirrored is not None and mirrored.is_hashed
    if not is_hashed and TopicPartition(target, partition.partition) not in logs:
        return [], "the target has no such partition"
    if mirrored is None or not mirrored.checkpoints:
        return [], "no checkpoint yet"
    # A topic that was deleted on the target and created again ends before its checkpoints.
    ends = {each.partition: end for each, (_, end) in logs.items() if each.topic == target}
    usable = [
        checkpoint
        for checkpoint in mirrored.checkpoints
        if all(at <= ends.get(number, -1) for number, at in checkpoint.targets.items())
    ]
    if not usable:
        return [], "the checkpoints are of a former target topic"
    lower = [checkpoint for checkpoint in usable if checkpoint.source <= offset]
    return lower, "" if lower else f"before {usable[0].source}, where the mirror begins"


def _hashed(
    topic: str,
    target: str,
    offsets: Mapping[TopicPartition, int],
    mirrored: Mapping[TopicPartition, MirroredPartition],
    logs: Logs,
) -> Iterator[TranslatedOffset]:
    """
    Yield the offsets of a topic whose keys are hashed anew.

    Records of each source partition may be in each target partition. So the offset in a target partition is the
    smallest one that any of the source partitions needs.
    """
    lower: dict[TopicPartition, list[Checkpoint]] = {}
    refusals: dict[TopicPartition, str] = {}
    for partition in sorted(each for each in {*offsets, *mirrored} if each.topic == topic):
        if partition not in offsets:
            refusals[partition] = "the group has no offset"
            continue
        lower[partition], refusal = _at_or_below(partition, target, offsets[partition], mirrored.get(partition), logs)
        if refusal:
            refusals[partition] = refusal
    others = f"needs {some(sorted(refusals))}, as keys are hashed anew" if refusals else ""
    starts = {each.partition: start for each, (start, _) in logs.items() if each.topic == target}
    for number in sorted({*starts, *(each.partition for each in {*lower, *refusals})}):
        partition = TopicPartition(topic, number)
        at = None
        if not refusals and number in starts:
            needed = (max(each.targets.get(number, 0) for each in found) for found in lower.values())
            at = max(min(needed), starts[number])
        behind = offsets.get(partition, 0) - mirrored[partition].position if partition in mirrored else 0
        yield TranslatedOffset(
            partition,
            target,
            offsets.get(partition),
            at,
            refusal=refusals.get(partition, others),
            note=_BEHIND.format(behind) if behind > 0 else "",
        )


def aligned(mirrored: MirroredPartition, number: int) -> list[tuple[int, int]]:
    """
    Return the offsets on both sides that divide a partition into ranges, ascending on both sides.

    An at-least-once mirror that has continued at an earlier record has checkpoints that are no such limits.

    Args:
        mirrored: The checkpoints of a partition whose records keep their partition.
        number: The number of the partition.
    """
    found: list[tuple[int, int]] = []
    for target, source in sorted((each.targets[number], each.source) for each in mirrored.checkpoints):
        if not found or (source > found[-1][0] and target > found[-1][1]):
            found.append((source, target))
    return found
