"""
Offsets as they stand in a query's checkpoint, and the ranges between two of them.

``{"topic": {"0": {"from": 10, "to": 42, "token": 8589934}}}``: the partition is read up to offset 42 (exclusive), in an
interval of reading that began at offset 10. ``token`` names the interval: where it is another one than the start of a
batch has, reading does not go on where that start is, but begins at ``from``. An interval begins with the query, with
a partition that appears later, after a loss of data, and, for a member of a group, with each claim of the partition.
So a batch that is done again is the same batch, whatever has happened since. A member of a group adds ``"group"``, what
the group had committed when the batch was planned.

``"@query"``, which no topic can be called, is the id of the query, of which the name of its group is made where none
was given; ``"@initial"`` marks where a query begins.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kiel_groups.errors import ProtocolError
from kiel_groups.model import TopicPartition

__all__ = ["OffsetRange", "Positions", "Span", "new_token", "ranges_between"]

# No topic can be called like these.
_QUERY = "@query"
_INITIAL = "@initial"
_TOKEN_BITS = 48


class Span(NamedTuple):
    """
    How far a partition is read: the next offset, and the interval of reading that it belongs to.

    ``token`` is None where the interval is not known: before Spark 4.2 a source is not told where its query stands.
    Then ``begin`` is where reading begins if this is the first batch, else the same as ``to``. ``group`` is what the
    group had committed when the batch was planned: where it has committed nothing else since, nobody else has read on.
    """

    begin: int
    to: int
    token: int | None = None
    group: int | None = None

    def up_to(self, offset: int) -> Span:
        """The same interval, read up to another offset."""
        return self._replace(to=offset) if self.token is not None else Span(offset, offset)


class OffsetRange(NamedTuple):
    """The messages of one partition from ``start`` on, up to but without ``end``."""

    topic_partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets; where a log was compacted, there are fewer messages."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Positions:
    """Where a query stands, partition by partition; ``initial`` where it has not read anything yet."""

    spans: Mapping[TopicPartition, Span] = field(default_factory=dict)
    query: str | None = None
    initial: bool = False

    def offsets(self) -> dict[TopicPartition, int]:
        """The next offset of each partition."""
        return {partition: span.to for partition, span in self.spans.items()}

    def to_json(self) -> dict[str, Any]:
        """The form that Spark stores; equal positions have equal forms, to the byte."""
        document: dict[str, Any] = {} if self.query is None else {_QUERY: self.query}
        if self.initial:
            document[_INITIAL] = True
        for (topic, number), span in sorted(self.spans.items()):
            document.setdefault(topic, {})[str(number)] = _entry(span)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Positions:
        """
        Read what ``to_json`` wrote.

        Raises:
            ProtocolError: Somebody else wrote it.
        """
        try:
            spans = {
                TopicPartition(topic, int(number)): Span(
                    entry.get("from", entry["to"]), entry["to"], entry.get("token"), entry.get("group")
                )
                for topic, entries in document.items()
                if topic not in (_QUERY, _INITIAL)
                for number, entry in entries.items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"the checkpoint holds offsets of another kind: {document!r}; a query that is to read with another"
                " source than before needs a checkpoint of its own"
            ) from error
        return cls(spans, document.get(_QUERY), document.get(_INITIAL, False))


def new_token() -> int:
    """A number that no other interval of reading has."""
    return uuid.uuid4().int & ((1 << _TOKEN_BITS) - 1)


def _entry(span: Span) -> dict[str, int]:
    if span.token is None:
        return {"to": span.to} if span.begin == span.to else {"from": span.begin, "to": span.to}
    interval = {"from": span.begin, "to": span.to, "token": span.token}
    return interval if span.group is None else {**interval, "group": span.group}


def ranges_between(start: Positions, end: Positions, earliest: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """
    What a batch reads, in the order of partitions; empty ranges are left out.

    Args:
        start: Where the batch before has ended, or the query began.
        end: Where this batch ends; partitions that it leaves out are not read.
        earliest: Where partitions begin that are new at ``end``, and have no interval.
    """
    ranges = []
    for partition, span in sorted(end.spans.items()):
        known = start.spans.get(partition)
        if known is not None and span.token is None:
            # A first batch that is done again, in a process that has resolved anew where the query begins.
            begin = span.begin if start.initial else known.to
        elif known is not None and span.token == known.token:
            begin = known.to
        elif span.token is not None:
            begin = span.begin
        else:
            begin = earliest[partition]
        if begin < span.to:
            ranges.append(OffsetRange(partition, begin, span.to))
    return ranges
