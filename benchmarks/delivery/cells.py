"""The cells of the benchmark of consumers: each is a topic with messages of one size, one codec and one set size."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

__all__ = ["CELLS", "CHOSEN", "FULL", "QUICK", "Cell"]

#: Offset, size, CRC, magic, attributes, and the lengths of key and value.
_OVERHEAD_BYTES = 26
_VALUE_BYTES = {"100B": 100, "1K": 1024}
_CODECS = ("none", "snappy", "gzip", "lz4")
_PARTITIONS = (1, 16, 200)
_SET_SIZES = ("large", "500", "16k")

#: With the largest sets that a broker accepts by default, 1,000,000 bytes with what it adds.
_LARGE_BYTES, _LARGE_MESSAGES = 900_000, 5_000
_16K_BYTES = 16 << 10

#: By the bytes of a value: as many as make runs of 2 to 5 s with most of the clients.
_RECORDS = {100: 2_000_000, 1024: 500_000}
_QUICK_RECORDS = {100: 100_000, 1024: 30_000}


@dataclass(frozen=True, slots=True)
class Cell:
    """
    A topic to read.

    ``sets`` is ``large`` (900 kB, at most 5,000 messages), ``500`` (messages) or ``16k`` (bytes). Sizes of sets are
    those before compression.
    """

    value_bytes: int
    codec: str
    partitions: int
    sets: str

    @property
    def name(self) -> str:
        size = next(name for name, found in _VALUE_BYTES.items() if found == self.value_bytes)
        return f"{size}-{self.codec}-{self.partitions}p-{self.sets}"

    @property
    def messages_per_set(self) -> int:
        each = self.value_bytes + _OVERHEAD_BYTES
        most = {"large": min(_LARGE_MESSAGES, _LARGE_BYTES // each), "500": 500, "16k": _16K_BYTES // each}
        return most[self.sets]

    def sets_each(self, *, quick: bool = False) -> int:
        """Return how many sets each partition gets, so that the topic has about the right number of records."""
        records = (_QUICK_RECORDS if quick else _RECORDS)[self.value_bytes]
        return max(1, round(records / self.partitions / self.messages_per_set))

    def records(self, *, quick: bool = False) -> int:
        """Return the number of records in the topic."""
        return self.sets_each(quick=quick) * self.messages_per_set * self.partitions


CELLS = {
    cell.name: cell
    for cell in (Cell(*each) for each in product(_VALUE_BYTES.values(), _CODECS, _PARTITIONS, _SET_SIZES))
}

#: Cells in which all peers are measured.
FULL = (
    "100B-none-16p-500",
    "100B-none-16p-16k",
    "1K-none-16p-large",
    "1K-none-16p-16k",
    "100B-snappy-16p-large",
    "100B-gzip-16p-large",
)

#: Cells that are measured by default, with confluent-kafka.
CHOSEN = (
    *FULL,
    "100B-none-1p-large",
    "100B-none-200p-large",
    "100B-none-200p-16k",
    "100B-snappy-200p-16k",
    "100B-lz4-16p-large",
    "1K-none-1p-large",
    "1K-none-200p-16k",
    "1K-snappy-16p-16k",
    "1K-gzip-16p-large",
    "1K-lz4-1p-large",
)

QUICK = ("100B-none-16p-16k",)
