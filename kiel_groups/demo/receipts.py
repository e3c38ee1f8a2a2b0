"""
Receipts of delivered records, and the proof that is made from them.

A receipt is a line ``partition offset number``. Each consumer writes its receipts to its own file. It writes a receipt
before it asks for the next record, that is, before the record counts as finished. So each record below the committed
offset has a receipt, even after kill -9. A record that the demo did not send has no number; its receipt has ``-``.
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
    """One delivery: partition, offset and number of the record; ``number`` is None if the demo did not send it."""

    partition: int
    offset: int
    number: int | None

    def line(self) -> str:
        return f"{self.partition} {self.offset} {'-' if self.number is None else self.number}\n"

    @classmethod
    def parse(cls, line: bytes) -> Receipt:
        """Parse a line that ``line`` returned."""
        partition, offset, number = line.split()
        return cls(int(partition), int(offset), None if number == b"-" else int(number))


class ReceiptFile:
    """Reads a file of receipts while a consumer writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.receipts: list[Receipt] = []

    def read_new(self) -> int:
        """Read the complete lines written since the last call. Return how many receipts there are now."""
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
    The evidence that every record was delivered at least once, and that the group's offsets agree.

    ``delivered`` counts the deliveries of each record number. ``misplaced`` has the receipts whose partition or offset
    differs from what the broker acknowledged. ``uncommitted`` maps a partition to its committed offset (None if there
    is none) and the end of its log, where these differ.
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
        """The number of records that were delivered more than once."""
        return sum(times > 1 for times in self.delivered.values())

    @property
    def most_often(self) -> int:
        """The largest number of deliveries of one record."""
        return max(self.delivered.values(), default=0)


def prove(
    sent: Mapping[int, tuple[int, int]], receipts: Iterable[Receipt], committed: Mapping[int, int | None]
) -> Proof:
    """
    Compare the sent records with the receipts and the committed offsets.

    Args:
        sent: Maps a record's number to the partition and offset that the broker acknowledged.
        receipts: The receipts of all consumers.
        committed: Maps a partition to the group's committed offset.
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
    """Describe records that the demo did not send, in one line for each partition."""
    offsets: dict[int, list[int]] = {}
    for receipt in receipts:
        offsets.setdefault(receipt.partition, []).append(receipt.offset)
    for partition, listed in sorted(offsets.items()):
        records = counted(listed, "record")
        where = f"offset {listed[0]}" if len(listed) == 1 else f"offsets {min(listed)} to {max(listed)}"
        yield f"{records} that the demo did not send: partition {partition}, {where}"
