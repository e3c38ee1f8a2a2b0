"""The log of one partition at a newer broker, which has record batches (magic 2) and answers Fetch v0 in magic 0."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import Enum

from aiokafka.record.util import calc_crc32c

from tests.helpers.fake_broker import Log
from tests.helpers.message_sets import filler
from tests.helpers.reference_codec import message

#: The size of a control batch, as transactions write it.
CONTROL_BYTES = 78


class Release(Enum):
    """How the releases of brokers differ, as seen with 1.1.1, 2.8.2 and 3.9.1."""

    #: Without records to convert, the batches as they are in the log (magic 2).
    V1_1 = "0.11 to 1.1"
    #: Without whole batches, the beginning of one as it is in the log. Filler up to the announced size.
    V2_8 = "2.0 to 2.8"
    #: Without whole batches, nothing. Filler up to the announced size.
    V3_9 = "3.0 to 3.9"


@dataclass
class Batch:
    """A record batch: its offsets, its size in the log, and its records in magic 0."""

    first: int
    last: int
    size: int
    records: list[tuple[int, bytes]]
    is_control: bool = False

    @property
    def raw(self) -> bytes:
        """The bytes in the log; the records are left blank."""
        head = struct.pack(">hi", 0x30 if self.is_control else 0, self.last - self.first)
        checked = head.ljust(self.size - 21, b"\0")
        return struct.pack(">qiibI", self.first, self.size - 12, 0, 2, calc_crc32c(checked)) + checked

    def converted(self, offset: int) -> bytes:
        """The records at and after an offset in magic 0."""
        return b"".join(encoded for number, encoded in self.records if number >= offset)


@dataclass
class ConvertedLog(Log):
    """A log to put into ``FakeBroker.logs``. Its high watermark is its end."""

    release: Release = Release.V3_9
    batches: list[Batch] = field(default_factory=list)

    def write(self, *values: bytes, size: int | None = None) -> None:
        """Append a batch with these values, whose records take ``size`` bytes in the log (by default about theirs)."""
        records = [(self.end + n, message(self.end + n, None, value)) for n, value in enumerate(values)]
        last = self.end + len(values) - 1
        size = 61 + sum(10 + len(value) for value in values) if size is None else size
        self.batches.append(Batch(self.end, last, size, records))
        self.end = last + 1

    def end_transaction(self) -> None:
        """Append a control batch."""
        self.batches.append(Batch(self.end, self.end, CONTROL_BYTES, [], is_control=True))
        self.end += 1

    def compact_away(self, offsets: int) -> None:
        """Append a batch of which compaction has left the header."""
        self.batches.append(Batch(self.end, self.end + offsets - 1, 61, []))
        self.end += offsets

    def read(self, offset: int, max_bytes: int) -> bytes:
        following = [batch for batch in self.batches if batch.last >= offset]
        raw = b"".join(batch.raw for batch in following)[:max_bytes]
        whole: list[Batch] = []
        for batch in following:
            if sum(each.size for each in whole) + batch.size > max_bytes:
                break
            whole.append(batch)
        if not whole:
            return b"" if self.release is Release.V3_9 else raw
        converted = b"".join(batch.converted(offset) for batch in whole)
        if self.release is Release.V1_1:
            return converted or raw
        first = next((found for batch in whole if (found := batch.converted(offset))), b"")
        announced = max(len(raw), len(first)) if first else 12
        return (converted + filler(announced - len(converted)))[:announced]
