"""
Decide how much a fetch asks for. The consumers and the Spark source share these rules.

A broker of 0.8 has one index entry for each set that a producer sent, at most. For each partition of a fetch it scans
the log message by message, from the last entry before the position, and once more before the high watermark. So a
partition costs up to a whole set, however few bytes are asked for, and a request has much of a few partitions rather
than little of many.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["FAST_S", "SLOW_S", "BiteSize", "MessageSizes", "fill_answer"]

#: Added to the expected size of a rest: message sizes vary, and another fetch costs more than this.
_SPARE_BYTES = 4 << 10
#: Sizes are averaged over the last messages: beyond this many offsets, older ones lose half of their weight.
_MOST_OFFSETS = 1 << 17

#: A full answer that takes less time than this in seconds may be larger.
FAST_S = 0.05
#: A full answer that takes more time than this in seconds should be smaller.
SLOW_S = 0.5

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class MessageSizes:
    """The size of a partition's messages in fetched sets, as measured so far."""

    read_bytes: int = 0
    read_offsets: int = 0

    def note(self, read_bytes: int, read_offsets: int) -> None:
        """Note that a message set of this size led this many offsets further."""
        self.read_bytes += read_bytes
        self.read_offsets += read_offsets
        while self.read_offsets > _MOST_OFFSETS:
            self.read_bytes //= 2
            self.read_offsets //= 2

    def expected_bytes(self, offsets: int, assumed: int) -> int:
        """
        Return how many bytes to ask for to get this many offsets, with some spare.

        Args:
            offsets: The number of offsets.
            assumed: The size of one message, until one was read.
        """
        measured = self.read_offsets > 0
        expected = offsets * self.read_bytes // self.read_offsets if measured else offsets * assumed
        return expected + expected // 8 + _SPARE_BYTES


def fill_answer(wanted: Iterable[tuple[Key, int]], most_bytes: int) -> dict[Key, int]:
    """
    Return the partitions of one request, and how much it asks of each: as many of the first ones as fill an answer.

    Args:
        wanted: Partitions in the order of their turns, and the bytes that each should get.
        most_bytes: The size of the answer. The first partition gets its bytes even if they are more.
    """
    asked: dict[Key, int] = {}
    left = most_bytes
    for key, wanted_bytes in wanted:
        if asked and wanted_bytes > left:
            break
        asked[key] = wanted_bytes
        left -= wanted_bytes
    return asked


@dataclass(slots=True)
class BiteSize:
    """
    The size of one answer with data that is known to be there. It follows how fast a broker sends.

    Attributes:
        bytes: The present size.
        least: The smallest size.
        most: The largest size.
    """

    bytes: int
    least: int
    most: int

    def note(self, asked_bytes: int, received_bytes: int, took_s: float) -> None:
        """
        Double the size after a full answer that came fast, and halve it after one that took long.

        Args:
            asked_bytes: How much the request asked for. One that asked for less than a bite proves nothing.
            received_bytes: How much came.
            took_s: The time from the request to the answer, in seconds.
        """
        if asked_bytes < self.bytes or received_bytes < asked_bytes - asked_bytes // 4:
            return
        if took_s > SLOW_S:
            self.bytes = max(self.least, self.bytes // 2)
        elif took_s < FAST_S:
            self.bytes = min(self.most, self.bytes * 2)
