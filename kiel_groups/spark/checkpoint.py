"""Read and write what the checkpoint of a query stores: its positions as JSON, and which batches are done."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.model import TopicPartition

log = logging.getLogger(__name__)


# The positions of a query, as its checkpoint stores them in JSON, and the ranges of offsets between two positions.
#
# ``{"topic": {"0": {"from": 10, "to": 42, "token": 8589934}}}``: the partition is read up to offset 42 (exclusive), in
# an interval of reading that began at offset 10. ``token`` identifies the interval. If the start and the end of a batch
# have different tokens, reading does not continue from the start, but begins at ``from``. An interval begins with the
# query, with a partition that appears later, after a loss of data, and, for a group's member, with each claim of the
# partition. So a repeated batch has the same records, even if a log has changed since. A member adds ``"group"``, the
# offset that the group had committed when the batch was planned.
#
# Names that begin with ``@`` are no topics. ``"@query"`` is the id of the query; the default name of its group contains
# that id. ``"@initial"`` marks the start of a new query that is not a group member.


# Names that no topic can have.
_MARKED = "@"
_QUERY = "@query"
_INITIAL = "@initial"
_TOKEN_BITS = 48
#: An id that Spark has given to a query.
_QUERY_ID = re.compile(r"[0-9a-f-]{36}")


class Mark(NamedTuple):
    """The offset of a message, and a checksum of its offset, key and value."""

    offset: int
    checksum: int


class Span(NamedTuple):
    """
    The position of a query in one partition: the next offset ``to``, and the interval of reading.

    An interval is a range of offsets that the query reads without a break. ``begin`` is its first offset, and ``token``
    identifies it. Before Spark 4.2, a source does not know the query's position. Then ``token`` is None. In that case,
    ``begin`` is the start of the first batch in that batch, and equals ``to`` in later batches. ``group`` is the offset
    that the group had committed when the batch was planned. While the group's offset is unchanged, no other member has
    read the partition.

    ``incarnation`` is the creation zxid of the topic that has the log, or None if unknown, as without ZooKeeper. Then
    ``mark`` identifies the log by a message before ``to``.
    """

    begin: int
    to: int
    token: int | None = None
    group: int | None = None
    incarnation: int | None = None
    mark: Mark | None = None

    def up_to(self, offset: int) -> Span:
        """Return a copy of this span whose next offset is ``offset``. Without a token, the copy begins there, too."""
        return self._replace(to=offset) if self.token is not None else self._replace(begin=offset, to=offset)


class OffsetRange(NamedTuple):
    """
    The messages of one partition from ``start`` (inclusive) to ``end`` (exclusive).

    ``incarnation`` is the creation zxid of the topic, or None if it is unknown.
    """

    topic_partition: TopicPartition
    start: int
    end: int
    incarnation: int | None = None

    @property
    def size(self) -> int:
        """The number of offsets; a compacted log may have fewer messages."""
        return self.end - self.start


class Loss(NamedTuple):
    """
    Messages of one partition that were lost before they were read, from ``start`` (inclusive) to ``end`` (exclusive).

    ``end`` is None if the end of the log is unknown. ``incarnation`` is the creation zxid of the topic, or None if
    unknown. ``reason`` names the wanted offsets and the cause of the loss.
    """

    topic_partition: TopicPartition
    start: int
    end: int | None
    incarnation: int | None
    reason: str

    def __str__(self) -> str:
        return f"{self.topic_partition}: {self.reason}"

    @property
    def size(self) -> int:
        """The number of lost offsets, or 0 if unknown."""
        return 0 if self.end is None else self.end - self.start


def loss_cause(wanted: int, first: int) -> str:
    """
    Return the text about why a log that begins at ``first`` lacks the offset ``wanted``.

    If ``wanted`` is below ``first``, retention has deleted it. Otherwise, the log ends before ``wanted``.
    """
    return "retention was faster" if wanted < first else SHORTER_LOG


#: Why a log ends before an offset that was read.
SHORTER_LOG: Final = "the topic was deleted and created again, or an election of a leader has lost messages"


@dataclass(frozen=True, slots=True)
class Positions:
    """
    The position of a query in each partition.

    ``query`` is the id of the query, or None if unknown. ``initial`` marks the start of a new query that is not a
    group member.
    """

    spans: Mapping[TopicPartition, Span] = field(default_factory=dict)
    query: str | None = None
    initial: bool = False

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition."""
        return {partition: span.to for partition, span in self.spans.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the positions as a JSON object for the checkpoint. Equal positions give equal objects."""
        document: dict[str, Any] = {} if self.query is None else {_QUERY: self.query}
        if self.initial:
            document[_INITIAL] = True
        for (topic, number), span in sorted(self.spans.items()):
            document.setdefault(topic, {})[str(number)] = _entry(span)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Positions:
        """
        Decode an object that ``to_json`` returned.

        Raises:
            ProtocolError: The document has another form: another data source wrote it, or it is damaged.
        """
        try:
            spans = {
                TopicPartition(topic, int(number)): _span(entry)
                for topic, entries in document.items()
                if not topic.startswith(_MARKED)
                for number, entry in entries.items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"the checkpoint holds offsets of another kind: {document!r:.300}; a query that is to read with another"
                " source than before needs a checkpoint of its own; restore a damaged one"
            ) from error
        return cls(spans, document.get(_QUERY), document.get(_INITIAL, False))


def new_token() -> int:
    """Return a random number that identifies a new interval of reading."""
    return uuid.uuid4().int & ((1 << _TOKEN_BITS) - 1)


def _entry(span: Span) -> dict[str, Any]:
    fields = {
        "from": None if span.token is None and span.begin == span.to else span.begin,
        "to": span.to,
        "token": span.token,
        "group": span.group,
        "incarnation": span.incarnation,
        "mark": span.mark and list(span.mark),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _span(entry: Mapping[str, Any]) -> Span:
    mark = Mark(*entry["mark"]) if "mark" in entry else None
    numbers = {name: entry[name] for name in ("from", "to", "token", "group", "incarnation") if name in entry}
    if not all(isinstance(each, int) for each in (*numbers.values(), *(mark or ()))):
        raise TypeError
    begin, end = numbers.get("from", numbers["to"]), numbers["to"]
    return Span(begin, end, numbers.get("token"), numbers.get("group"), numbers.get("incarnation"), mark)


def ranges_between(start: Positions, end: Positions, earliest: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """
    Return the ranges that a batch reads, in ascending order of partitions, without empty ranges.

    Args:
        start: The end of the previous batch, or the start of the query.
        end: The end of this batch. Partitions without an entry are not read.
        earliest: The first offsets of the partitions that ``start`` lacks and that have no token in ``end``.
    """
    ranges = []
    for partition, span in sorted(end.spans.items()):
        known = start.spans.get(partition)
        if known is not None and span.token is None:
            # A process that repeats the first batch has resolved ``start`` again; ``begin`` has the original start.
            begin = span.begin if start.initial else known.to
        elif known is not None and span.token == known.token:
            begin = known.to
        elif span.token is not None:
            begin = span.begin
        else:
            begin = earliest[partition]
        if begin < span.to:
            ranges.append(OffsetRange(partition, begin, span.to, span.incarnation))
    return ranges


def without_reading(topics: Collection[str], start: Positions | None, end: Positions) -> Positions:
    """
    Return a new end for a batch, so that the batch reads nothing of ``topics``. Its other ranges are unchanged.

    Args:
        topics: The names of the topics.
        start: The start of the batch, or None for the first batch of a query.
        end: The present end of the batch.
    """
    spans = {partition: span for partition, span in end.spans.items() if partition.topic not in topics}
    for partition, span in end.spans.items():
        # Without a token, a partition that appeared after the first batch has no known beginning. It appears again.
        if partition.topic in topics and (start is None or span.token is not None):
            spans[partition] = span._replace(to=span.begin, mark=None)
    if start is not None:
        spans |= {partition: span for partition, span in start.spans.items() if partition.topic in topics}
    return replace(end, spans=spans)


# Read from a query's checkpoint whether its last batch is done: Spark does not notify a source of that.
#
# Spark writes ``offsets/<number>`` when it has planned a batch, and ``commits/<number>`` once the sink has stored it.
# Both are in the checkpoint folder, which the user names in an option of the query's writer.


def local_folder(name: str, text: str) -> Path:
    """
    Return the path of a checkpoint location. The location must be a path or a ``file:`` URI of this machine.

    Args:
        name: The name of the option, for errors.
        text: The location.

    Raises:
        ConfigError: The location has no path, or is on a file system that this source cannot read.
    """
    location = urlsplit(text.strip())
    if location.scheme not in ("", "file") or location.netloc or not location.path:
        raise ConfigError(
            f"{name}: {text!r} given to the reader, which looks into folders of the driver's machine only; expected a"
            " path or none at all: only the writer has to have it, and the last batch is committed by the next run"
        )
    return Path(location.path)


def query_id(checkpoint: Path) -> str | None:
    """Return the id that Spark gave to the query, from its checkpoint, or None if the file is missing or damaged."""
    try:
        found = json_object((checkpoint / "metadata").read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    named = (found or {}).get("id")
    return named if isinstance(named, str) and _QUERY_ID.fullmatch(named) else None


def is_done(checkpoint: Path, end: Positions) -> bool:
    """
    Return whether the last batch that the checkpoint records as done ended exactly at ``end``.

    If the checkpoint cannot be read, log a warning and return False. This is safe: the next run makes a commit that is
    missing. The commit of an unfinished batch would lose records.
    """
    try:
        done = [int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()]
        if not done:
            return False
        lines = (checkpoint / "offsets" / str(max(done))).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("not committing the last batch, as the checkpoint does not show whether it is done: %s", error)
        return False
    # The file begins with lines of Spark's own. Then it has one line for each source of the query.
    wanted = end.to_json()
    return any(json_object(line) == wanted for line in lines)


def json_object(text: str) -> dict[str, Any] | None:
    """Return the object in a JSON text, or None if the text is anything else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
