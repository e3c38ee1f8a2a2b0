"""
What a consumer writes down about each record it was given, and what the sum of that proves.

A receipt is a line ``partition offset number`` in a file of the consumer's own. It is written before the consumer asks
for its next record, so before the record can count as finished: what was committed has a receipt, whatever happens. A
record that the demo has not sent carries no number; its receipt has ``-`` in that place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kiel_groups.wording import counted

__all__ = ["Receipt", "ReceiptFile", "Proof", "foreign_lines", "prove"]


class Receipt(NamedTuple):
    """One delivery: where the record stood, and the number it carried; None for a foreign record."""

    partition: int
    offset: int
    number: int | None

    def line(self) -> str:
        return f"{self.partition} {self.offset} {'-' if self.number is None else self.number}\n"

    @classmethod
    def parse(cls, line: bytes) -> Receipt:
        """Read what ``line`` returned."""
        partition, offset, number = line.split()
        return cls(int(partition), int(offset), None if number == b"-" else int(number))


class ReceiptFile:
    """Reads a file of receipts while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.receipts: list[Receipt] = []

    def read_on(self) -> int:
        """Read what has come since; how many receipts there are now. A line that is not complete yet is left."""
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        self.receipts += map(Receipt.parse, whole.splitlines())
        return len(self.receipts)


@dataclass(frozen=True, slots=True)
class Proof:
    """
    Whether every record was delivered at least once, and the group's offsets say so too.

    ``delivered`` counts how often each record number was delivered. ``misplaced`` are receipts of another partition or
    offset than the producer was told; ``uncommitted`` maps a partition to its committed offset (None without one) and
    the end of its log, where they differ.
    """

    sent: int
    missing: tuple[int, ...]
    delivered: Mapping[int, int]
    misplaced: tuple[Receipt, ...]
    uncommitted: Mapping[int, tuple[int | None, int]]

    @property
    def holds(self) -> bool:
        return not (self.missing or self.misplaced or self.uncommitted)

    @property
    def repeated(self) -> int:
        """How many records were delivered more than once."""
        return sum(times > 1 for times in self.delivered.values())

    @property
    def most_often(self) -> int:
        """How often the most delivered record was delivered."""
        return max(self.delivered.values(), default=0)


def prove(
    sent: Mapping[int, tuple[int, int]], receipts: Iterable[Receipt], committed: Mapping[int, int | None]
) -> Proof:
    """
    Compare what was sent, what was received and what was committed.

    Args:
        sent: Record number → partition and offset, as the brokers acknowledged it.
        receipts: All that the consumers wrote.
        committed: Partition → the group's next offset.
    """
    delivered: Counter[int] = Counter()
    misplaced = []
    for receipt in receipts:
        if receipt.number is None:
            continue
        delivered[receipt.number] += 1
        if sent.get(receipt.number) != (receipt.partition, receipt.offset):
            misplaced.append(receipt)
    ends: dict[int, int] = {}
    for partition, offset in sent.values():
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    uncommitted = {
        partition: (committed.get(partition), end) for partition, end in ends.items() if committed.get(partition) != end
    }
    missing = tuple(sorted(sent.keys() - delivered.keys()))
    return Proof(len(sent), missing, delivered, tuple(misplaced), uncommitted)


def foreign_lines(receipts: Iterable[Receipt]) -> Iterator[str]:
    """A line for each partition of these records, none of which the demo has sent."""
    offsets: dict[int, list[int]] = {}
    for receipt in receipts:
        offsets.setdefault(receipt.partition, []).append(receipt.offset)
    for partition, listed in sorted(offsets.items()):
        records = counted(listed, "record")
        where = f"offset {listed[0]}" if len(listed) == 1 else f"offsets {min(listed)} to {max(listed)}"
        yield f"{records} that the demo has not sent: partition {partition}, {where}"
