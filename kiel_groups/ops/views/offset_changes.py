"""
Parse the partitions and the target of an offset reset, compute the new offsets, and render them.

Options of ``kafka-consumer-groups`` have the same meaning here. Times are in epoch milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NamedTuple

from rich.console import RenderableType

from kiel_groups.config import BROKER_V1, HostPort, check_name
from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.contents import LARGEST_OFFSET, whole_number
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.report import Column, report_table
from kiel_groups.wording import counted, own_command, some

#: The store of a group that brokers coordinate. Groups in ZooKeeper have a store of ``config.STORES``.
IN_BROKERS = "brokers"

#: Topics, each with its selected partition numbers, or with None for all its partitions.
Selection = Mapping[str, frozenset[int] | None]

#: The first words of the note of a change if a segment was found for the time, and not a record.
_SEGMENT = "segment's start"

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SHORT = re.compile(r"([0-9]{1,15})(ms|s|m|h|d|w)")
_ISO = re.compile(
    r"P(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,3})?)S)?)?"
)
_ISO_UNITS = ("w", "d", "h", "m", "s")


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """
    The offsets of a group at one moment, with the data that a change of the offsets requires.

    ``store`` is the store of the offsets: one of ``config.STORES``, or ``IN_BROKERS``. ``versions`` has the versions of
    offset znodes. Unreadable offset znodes are in ``versions``, but not in ``offsets``. ``versions`` is empty if the
    offsets are in Kafka. ``topics`` has the partition numbers of existing topics that the caller asked for, that
    members subscribe to, or that have offsets. ``starts`` and ``ends`` are the first offsets and the ends of logs whose
    leaders answered. ``problem`` is the reason why some starts or ends are missing, or "". ``members`` are live
    members, described for people. ``foreign`` are live members that follow another protocol. ``has_settings`` is
    whether the group's settings were read. ``brokers`` are addresses of live brokers. ``gone`` has partitions of
    deleted topics that the group has read, if its offsets are in Kafka: Kafka does not return these offsets.
    """

    group: str
    store: str
    offsets: Mapping[TopicPartition, int]
    topics: Mapping[str, tuple[int, ...]]
    exists: bool = True
    versions: Mapping[TopicPartition, int] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    problem: str = ""
    members: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    subscribed: frozenset[str] = frozenset()
    has_settings: bool = False
    brokers: tuple[HostPort, ...] = ()
    gone: frozenset[TopicPartition] = frozenset()

    @property
    def stored(self) -> frozenset[TopicPartition]:
        """The partitions with an offset, including unreadable offsets, and the partitions in ``gone``."""
        return frozenset(self.offsets) | frozenset(self.versions) | self.gone

    @property
    def is_in_kafka(self) -> bool:
        return self.store in (BROKER_V1, IN_BROKERS)


class OffsetChange(NamedTuple):
    """
    One partition's offset before and after a change, or None for a missing or unreadable offset.

    ``note`` is the reason why ``after`` differs from the requested offset, or says how ``after`` was found.
    """

    partition: TopicPartition
    before: int | None
    after: int | None
    note: str = ""


class FoundTime(NamedTuple):
    """
    The offset that was found for a time.

    ``time_ms`` is the time of the record at the offset, in epoch milliseconds. If records have no times, as before
    Kafka 0.10, ``time_ms`` is None. Then the offset is the start of a segment, and ``segments`` has the first offset of
    each segment, ascending, and then the end of the log.
    """

    offset: int
    time_ms: int | None = None
    segments: tuple[int, ...] = ()


class Target(NamedTuple):
    """
    The target of an offset reset.

    ``kind`` is ``earliest``, ``latest``, ``current``, ``offset``, ``shift``, ``time`` or ``file``. ``value`` is the
    offset, the number of records to shift by, or the time in epoch milliseconds.
    """

    kind: str
    value: int = 0


# What an operator types


def parse_selection(names: Iterable[str]) -> dict[str, frozenset[int] | None]:
    """
    Parse names of topics and partitions, such as ``topic`` or ``topic:0,1``. Several values of one topic are combined.

    Raises:
        ConfigError: The name of a topic or the number of a partition is not legal.
    """
    found: dict[str, frozenset[int] | None] = {}
    for name in names:
        topic, colon, listed = name.partition(":")
        check_name(topic, "topics")
        numbers = [whole_number(each.strip()) for each in listed.split(",")] if colon else []
        if None in numbers:
            raise ConfigError(f"topics: {name!r:.300} given; expected TOPIC or TOPIC:0,1,2")
        given = frozenset(number for number in numbers if number is not None) if colon else None
        former = found.get(topic, frozenset())
        found[topic] = None if given is None or former is None else former | given
    return found


def parse_time(text: str) -> int:
    """
    Return an ISO 8601 time, such as ``2026-11-28T13:05:00+01:00``, in epoch milliseconds. The default zone is UTC.

    Raises:
        ConfigError: The text is not a time, or the time is before 1970.
    """
    expected = "expected a time such as 2026-11-28T13:05:00Z, from 1970 on; without a zone, it is UTC"
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"time: {text!r:.80} given; {expected}") from None
    time_ms = round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    if time_ms < 0:
        raise ConfigError(f"time: {text!r:.80} given; {expected}")
    return time_ms


def duration_ms(text: str) -> int:
    """
    Return a duration in milliseconds. The text is ISO 8601, such as ``P1DT2H30M``, or short, such as ``90m``.

    Raises:
        ConfigError: The text is not a duration.
    """
    short = _SHORT.findall(text)
    if short and "".join(map("".join, short)) == text:
        return sum(int(number) * _UNITS_MS[unit] for number, unit in short)
    iso = _ISO.fullmatch(text)
    if iso is None or not any(iso.groups()) or text.endswith("T"):
        raise ConfigError(f"ago: {text!r:.80} given; expected one such as 90m, 2h, 1d12h or P1DT2H30M")
    return round(
        sum(float(number or 0) * _UNITS_MS[unit] for number, unit in zip(iso.groups(), _ISO_UNITS, strict=True))
    )


# Partitions


def is_selected(selection: Selection, partition: TopicPartition) -> bool:
    """Return whether a partition is selected, by its number or with its topic."""
    numbers = selection.get(partition.topic, frozenset())
    return numbers is None or partition.partition in numbers


def named_partitions(selection: Selection) -> set[TopicPartition]:
    """Return the partitions that are selected by their numbers."""
    return {TopicPartition(topic, each) for topic, numbers in selection.items() for each in numbers or ()}


def check_exist(found: GroupOffsets, partitions: Iterable[TopicPartition]) -> None:
    """
    Check that partitions exist. The topics of the partitions must be in ``found.topics``.

    Raises:
        ConfigError: A topic lacks the partition; the text says which partitions the topic has.
    """
    if missing := min((each for each in partitions if each.partition not in found.topics[each.topic]), default=None):
        known = found.topics[missing.topic]
        raise ConfigError(
            f"{missing} does not exist; topic {missing.topic!r} has"
            f" {counted(known, 'partition')}, {min(known, default=0)} to {max(known, default=0)}"
        )


def select(found: GroupOffsets, selection: Selection | None, *, stored: bool) -> list[TopicPartition]:
    """
    Return the selected partitions, ascending.

    Args:
        found: The group.
        selection: The topics; None selects all topics in which the group has offsets or members.
        stored: True for partitions with an offset, whether or not they exist; False for existing partitions.
    """
    if selection is None:
        selection = dict.fromkeys({each.topic for each in found.stored} | found.subscribed)
    existing = (TopicPartition(topic, number) for topic, numbers in found.topics.items() for number in numbers)
    return sorted(each for each in (found.stored if stored else existing) if is_selected(selection, each))


def unmatched(selection: Selection, partitions: Collection[TopicPartition]) -> list[str]:
    """Return the selected topics of which ``partitions`` has none, and the selected partitions that it lacks."""
    topics = {each.topic for each in partitions}
    bare = [topic for topic, numbers in selection.items() if numbers is None and topic not in topics]
    return [*sorted(bare), *map(str, sorted(named_partitions(selection).difference(partitions)))]


def check_selected(found: GroupOffsets, selection: Selection | None, partitions: Collection[TopicPartition]) -> None:
    """
    Check that each selected topic and partition is among ``partitions``.

    Raises:
        ConfigError: The group has no offset of a selected topic or partition. The text suggests a similar topic.
    """
    if missing := unmatched(selection or {}, partitions):
        near = get_close_matches(missing[0], {each.topic for each in found.stored}, 1)
        meant = f" (did you mean {near[0]!r}?)" if near and near[0] != missing[0] else ""
        raise ConfigError(
            f"group {found.group} has no offset of {some(missing)}{meant};"
            f" {own_command('offsets', 'show', found.group)} shows those it has"
        )


# Targets


def compute_changes(
    found: GroupOffsets,
    partitions: Iterable[TopicPartition],
    target: Target,
    given: Mapping[TopicPartition, FoundTime] | None = None,
) -> tuple[OffsetChange, ...]:
    """
    Compute the offset of each partition before and after a reset, in ascending order of partitions.

    A target before the start of the log becomes the start, and a target beyond the end becomes the end.

    Args:
        found: The group, with the starts and ends of the logs.
        partitions: Existing partitions.
        target: The target of the reset.
        given: The offset of each partition, if the target is a time or a file.

    Raises:
        ConfigError: The target is a shift, and a partition has no offset.
    """
    listed = sorted(partitions)
    if target.kind == "shift" and (bare := [each for each in listed if each not in found.offsets]):
        raise ConfigError(
            f"shift: group {found.group} has no offset of {some(bare)} to shift; name other partitions, or reset these"
            " to the earliest or the latest offset, or to an offset by its number"
        )
    return tuple(_change(found, each, target, (given or {}).get(each, FoundTime(0))) for each in listed)


def _change(found: GroupOffsets, partition: TopicPartition, target: Target, at: FoundTime) -> OffsetChange:
    start, end, before = found.starts[partition], found.ends[partition], found.offsets.get(partition)
    note = ""
    match target.kind:
        case "earliest":
            wanted = start
        case "latest":
            wanted = end
        case "current":
            wanted, note = (end, "no offset: the log's end") if before is None else (before, "")
        case "offset":
            wanted = target.value
        case "shift":
            wanted = (before or 0) + target.value
        case _:
            wanted, note = at.offset, _time_note(at, target.value, end) if target.kind == "time" else ""
    if wanted < start:
        return OffsetChange(partition, before, start, f"{wanted} is gone: the log's start")
    if wanted > end:
        return OffsetChange(partition, before, end, f"{min(wanted, LARGEST_OFFSET)} is not there: the log's end")
    return OffsetChange(partition, before, wanted, note)


def _time_note(at: FoundTime, asked_ms: int, end: int) -> str:
    """Return a text on the distance of the found record or segment from the requested time."""
    if at.time_ms is not None:
        return f"its record is of {_utc(at.time_ms)}, {_apart(at.time_ms - asked_ms)}"
    if at.offset >= end:
        return "the log's end: nothing is as late"
    # The found segment was last modified before the time, and the next segment after the time. The broker does not say
    # when. If no segment is as old, the time is in the first segment, or before the log.
    later = [each for each in at.segments if each > at.offset]
    if not later:
        return _SEGMENT
    most = later[min(1, len(later) - 1)] - at.offset
    return f"{_SEGMENT}, up to {counted(most, 'record')} early"


def time_remark(changes: Iterable[OffsetChange]) -> str:
    """Return a remark on partitions whose records have no times, or "" if the changes have no such partition."""
    if not any(each.note.startswith(_SEGMENT) for each in changes):
        return ""
    return "records have no times there: a time finds a segment, by the segment's last modification"


def _apart(difference_ms: int) -> str:
    seconds = difference_ms / 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit} later"
    return f"{seconds:.1f} s later" if difference_ms else "exactly"


def _utc(time_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return str(time_ms)  # A producer chose the time of its record.


# Reports


def status_of(found: GroupOffsets, partition: TopicPartition) -> str:
    """Return the problem of the group's offset in a partition, or "" if there is no known problem."""
    offset, start, end = found.offsets.get(partition), found.starts.get(partition), found.ends.get(partition)
    if partition.partition not in found.topics.get(partition.topic, ()):
        return "the topic is gone" if partition.topic not in found.topics else "no such partition"
    if offset is None:
        return "unreadable" if partition in found.versions else "no offset"
    if start is not None and offset < start:
        return f"before the log: {start - offset:,} lost"
    return "beyond the log's end" if end is not None and offset > end else ""


def _lag(found: GroupOffsets, partition: TopicPartition) -> int | None:
    offset, end = found.offsets.get(partition), found.ends.get(partition)
    return None if offset is None or end is None else max(0, end - offset)


def offsets_document(found: GroupOffsets, partitions: Iterable[TopicPartition]) -> dict[str, Any]:
    """Return the document of a group's offsets in these partitions, for ``offsets show --json``."""
    return {
        "group": found.group,
        "store": found.store,
        "members": list(found.members + found.foreign),
        "lag_problem": found.problem or None,
        "partitions": [
            {
                **each._asdict(),
                "committed": found.offsets.get(each),
                "log_start": found.starts.get(each),
                "log_end": found.ends.get(each),
                "lag": _lag(found, each),
                "status": status_of(found, each) or None,
            }
            for each in partitions
        ],
    }


def offsets_table(found: GroupOffsets, partitions: Iterable[TopicPartition]) -> RenderableType:
    """Return the table of a group's offsets in these partitions, for ``offsets show``."""
    rows = offsets_document(found, partitions)["partitions"]
    return _table(rows, "topic", "partition", "committed", "log_start", "log_end", "lag", "status")


def changes_document(changes: Iterable[OffsetChange]) -> list[dict[str, Any]]:
    """Return the changes for ``--json``. A deleted offset has null in ``after``."""
    return [
        {**each.partition._asdict(), "before": each.before, "after": each.after, "note": each.note or None}
        for each in changes
    ]


def changes_table(changes: Iterable[OffsetChange]) -> RenderableType:
    """Return the table of a change: each partition's offset before and after."""
    return _table(changes_document(changes), "topic", "partition", "before", "after", "note")


def _table(rows: Iterable[dict[str, Any]], topic: str, *numbers_and_text: str) -> RenderableType:
    """Return a table of a document's rows. The columns are a topic, numbers, and, last, a text without a heading."""
    *numbers, text = numbers_and_text

    def column(name: str) -> Column[dict[str, Any]]:
        def cell(row: dict[str, Any]) -> str:
            return str(row[name]) if row[name] is not None else "" if name == text else "-"

        return Column("" if name == text else name.replace("_", " "), cell, is_right=name in numbers)

    return report_table([column(name) for name in (topic, *numbers_and_text)], rows)
