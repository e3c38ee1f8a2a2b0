"""Logs that are recognised by a message that was read from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from kiel_groups.clients.fetch.partition_fetch import PartitionFetch
from kiel_groups.clients.net import log_marks
from kiel_groups.clients.net.log_marks import LogMark, ReadLog, look_at_logs
from kiel_groups.errors import NoBrokersError
from kiel_groups.group.seen_topics import LogSight
from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.fetch import FetchedPartition, FetchRequest
from tests.helpers.reference_codec import message, wrapper

pytestmark = pytest.mark.unit

P0 = TopicPartition("t", 0)


def marked(data: bytes) -> LogMark:
    mark = LogMark.of(data)
    assert mark is not None
    return mark


def test_a_message_is_its_own_mark_and_no_other_ones() -> None:
    """Offset, size and checksum tell messages apart."""
    assert marked(message(7, b"k", b"v") + b"more") == marked(message(7, b"k", b"v"))
    assert len({marked(message(7, b"k", b"v")), marked(message(7, b"k", b"w")), marked(message(8, b"k", b"v"))}) == 3


def test_compressed_messages_and_pieces_are_no_marks() -> None:
    """Brokers compact and pack the former anew."""
    assert LogMark.of(wrapper(message(7, b"k", b"v"), 7)) is None
    assert LogMark.of(message(7, b"k", b"v")[:10]) is None


def test_no_mark_is_taken_after_a_doubt() -> None:
    """What follows may be of another log (seed 575055255345). An earlier mark stays."""
    fetch = PartitionFetch(P0, 1, 0)
    fetch.doubt_log()
    fetch.answers += 1
    fetch.mark_log(message(7, b"k", b"v"))
    assert fetch.mark is None
    fetch = PartitionFetch(P0, 1, 0)
    fetch.answers += 1
    fetch.mark_log(message(7, b"k", b"v"))
    fetch.doubt_log()
    fetch.answers += 1
    fetch.mark_log(message(8, b"k", b"v"))
    assert fetch.mark == marked(message(7, b"k", b"v"))
    fetch.answers = 4096
    fetch.doubt_log()
    fetch.answers += 1
    fetch.mark_log(message(8, b"k", b"v"))
    assert fetch.mark == marked(message(7, b"k", b"v"))


class OneLog:
    """A cluster with one partition, whose log begins at 7 and ends at 9. ``sent`` is what a fetch gets."""

    def __init__(self, sent: bytes | None) -> None:
        self.sent = sent

    def leader_of(self, partition: TopicPartition) -> int:
        return 1

    async def send(self, leader: int, request: FetchRequest) -> Mapping[TopicPartition, FetchedPartition]:
        if self.sent is None:
            raise NoBrokersError()
        return {P0: FetchedPartition(NO_ERROR, 9, memoryview(self.sent))}


@pytest.mark.parametrize(
    ("mark", "sent", "has_record", "is_first"),
    [
        (message(7, b"k", b"v"), message(7, b"k", b"v"), True, True),
        (message(7, b"k", b"v"), message(7, b"k", b"other"), False, True),
        (message(8, b"k", b"v"), message(8, b"k", b"other"), False, False),
        # Compacted away, or not answered, or not in the log any more.
        (message(7, b"k", b"v"), message(8, b"k", b"v"), None, True),
        (message(8, b"k", b"v"), None, None, False),
        (message(6, b"k", b"v"), message(6, b"k", b"other"), None, False),
    ],
)
async def test_logs_are_compared_with_what_was_read(
    monkeypatch: pytest.MonkeyPatch, mark: bytes, sent: bytes | None, has_record: bool | None, is_first: bool
) -> None:
    """Only another message at the same offset says that the record is gone."""

    async def offsets(_: object, partitions: Mapping[TopicPartition, Any], policy: str) -> LogOffsets:
        return LogOffsets(dict.fromkeys(partitions, 7 if policy == "earliest" else 9), {})

    monkeypatch.setattr(log_marks, "policy_offsets", offsets)
    logs = {P0: ReadLog(9, marked(mark), in_doubt=True)}
    assert await look_at_logs(cast(Any, OneLog(sent)), logs) == {P0: LogSight(9, 7, 9, has_record, is_first, True)}
