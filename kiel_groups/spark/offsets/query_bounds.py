"""The start and end offsets of a query: resolve the options to offsets, and check them against the logs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from kiel_groups.errors import ConfigError, OffsetOutOfRangeError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint.query_offsets import OffsetRange
from kiel_groups.spark.offsets.log_view import LogView
from kiel_groups.spark.options.read_options import EARLIEST, GROUP, LATEST, Place
from kiel_groups.wording import some

__all__ = ["check_bounds", "handle_data_loss", "resolve"]

log = logging.getLogger(__name__)

_EARLIEST_OFFSET = -2
_LATEST_OFFSET = -1


def resolve(
    name: str,
    place: Place,
    partitions: Collection[TopicPartition],
    view: LogView,
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """
    Resolve the value of an option, such as ``earliest``, to an offset for each partition.

    Args:
        name: The name of the option, for errors.
        place: The value of the option.
        partitions: All partitions that the query reads.
        view: Looks up first and next offsets, where the option asks for them.
        committed: The group's offsets, for ``group``. A partition without an offset starts at its earliest offset.

    Raises:
        ConfigError: The option gives offsets, but not for exactly these partitions.
        BrokerError: A lookup failed.
    """
    wanted = _wanted(name, place, partitions, committed)
    resolved = {partition: offset for partition, offset in wanted.items() if offset >= 0}
    for special, lookup in ((_EARLIEST_OFFSET, view.earliest), (_LATEST_OFFSET, view.latest)):
        if asked := [partition for partition, offset in wanted.items() if offset == special]:
            resolved |= lookup(asked)
    return {partition: resolved[partition] for partition in sorted(resolved)}


def _wanted(
    name: str, place: Place, partitions: Collection[TopicPartition], committed: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    if place == EARLIEST:
        return dict.fromkeys(partitions, _EARLIEST_OFFSET)
    if place == LATEST:
        return dict.fromkeys(partitions, _LATEST_OFFSET)
    if place == GROUP:
        return {partition: committed.get(partition, _EARLIEST_OFFSET) for partition in partitions}
    assert not isinstance(place, str)
    if missing := sorted(set(partitions) - place.keys()):
        raise ConfigError(
            f"{name}: {_names(missing)} missing; every partition needs an offset there, -2 for the earliest and -1 for"
            " the latest"
        )
    if unknown := sorted(place.keys() - set(partitions)):
        raise ConfigError(f"{name}: {_names(unknown)} named, and not among the partitions that are read; drop it")
    return place


def check_bounds(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    *,
    fail_on_data_loss: bool,
) -> dict[TopicPartition, OffsetRange]:
    """
    Return the range of a batch in each partition, limited to the offsets in the logs.

    Raises:
        ConfigError: A range ends before it begins.
        OffsetOutOfRangeError: A range is not entirely in its log, and ``fail_on_data_loss`` is set.
    """
    found = {}
    for partition, start in starts.items():
        end, first, last = ends[partition], earliest[partition], latest[partition]
        if start > end and end < last:
            raise ConfigError(f"endingOffsets: {partition} ends at offset {end}, before it starts at {start}")
        if start < first or max(start, end) > last:
            handle_data_loss(
                f"{partition}: offsets {start} to {end} are to be read, and the log has {first} to {last}",
                fail_on_data_loss=fail_on_data_loss,
            )
        found[partition] = OffsetRange(partition, min(max(start, first), last), min(end, last))
    return found


def handle_data_loss(what: str, *, fail_on_data_loss: bool, offset_znode: str | None = None) -> None:
    """
    Raise an error or log a warning, as the options say, because messages were lost before they were read.

    Args:
        what: The partition and the missing offsets, for the message.
        fail_on_data_loss: Whether to raise.
        offset_znode: The znode of the group's offset, if a query with a new checkpoint would start at that offset.

    Raises:
        OffsetOutOfRangeError: ``fail_on_data_loss`` is set.
    """
    if fail_on_data_loss:
        first = "" if offset_znode is None else f"set the group's offset ('set {offset_znode} 0' in zkCli) and "
        start = f"{first}start with a new checkpoint"
        raise OffsetOutOfRangeError(
            f"{what}: retention was faster, or the topic was deleted and created again."
            f" {start[0].upper()}{start[1:]} (a batch: with other offsets; an archive: in another folder), or set"
            " failOnDataLoss to false to go on with what there is"
        )
    log.warning("%s; continuing with the messages that are left, as failOnDataLoss is false", what)


def _names(partitions: list[TopicPartition]) -> str:
    return f"{some(partitions, most=3)} {'are' if len(partitions) > 1 else 'is'}"
