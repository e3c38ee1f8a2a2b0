"""
The records that the demo sends, the receipts of their delivery, and the proof that is made from these.

The records are 100,000 page views of a shop, each starting with its number, or the lines of a given file.

A receipt is a line ``partition offset number``. Each consumer writes its receipts to its own file. It writes a receipt
before it asks for the next record, that is, before the record counts as finished. So each record below the committed
offset has a receipt, even after kill -9. A record that the demo did not send has no number; its receipt has ``-``.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, TypeAlias

from kiel_groups.errors import ConfigError
from kiel_groups.model import Record
from kiel_groups.wording import counted

GROUP = "demo"
TOPIC = "page-views"

#: The partition and the offset that the broker has acknowledged for each record, by the record's number.
Places: TypeAlias = Mapping[int, tuple[int, int]]

#: All records are in memory at once, and so is a receipt of each.
_MOST_LINES = 1_000_000


@dataclass(frozen=True, slots=True)
class Input:
    """
    The records to send, in the order of their numbers, from 0.

    ``keys[n]`` belongs to ``values[n]``. Shipped values start with their number. Lines of the user's file do not, so
    their number is the key.
    """

    values: list[bytes]
    keys: list[bytes]
    number_in_key: bool


def shipped() -> Input:
    """Return the records that come with the package, with the visitor as key."""
    values = load_records()
    return Input(values, [visitor_of(value) for value in values], number_in_key=False)


def lines_of(path: Path) -> Input:
    """
    Return the lines of a file, without line ends, as records.

    Raises:
        ConfigError: The file cannot be read, is empty, or has too many lines.
    """
    try:
        values = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--records: {path} cannot be read: {error.strerror}") from error
    if not 0 < len(values) <= _MOST_LINES:
        raise ConfigError(f"--records: {path} has {len(values):,} lines; expected 1 to {_MOST_LINES:,}")
    return Input(values, [b"%d" % number for number in range(len(values))], number_in_key=True)


def load_records() -> list[bytes]:
    """Return the shipped records in the order of their numbers, from 0."""
    return gzip.decompress((files(__package__) / "records.txt.gz").read_bytes()).splitlines()


def number_of(value: bytes) -> int:
    """Return the number at the start of a shipped record."""
    return int(value.partition(b" ")[0])


def visitor_of(value: bytes) -> bytes:
    """Return the visitor of a page view. As the key, it keeps the views of one visitor in one partition, in order."""
    return value.split(b" ")[2]


def received_number(record: Record, *, number_in_key: bool) -> int | None:
    """Return the number of a consumed record, or None if the demo did not send it."""
    value = record.value or b""
    if not number_in_key and (len(value.split(b" ")) < 3 or record.key != visitor_of(value)):
        return None
    try:
        return int(record.key or b"") if number_in_key else number_of(value)
    except ValueError:
        return None


class Receipt(NamedTuple):
    """One delivery: partition, offset and number of the record; ``number`` is None for a foreign record."""

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


def prove(sent: Places, receipts: Iterable[Receipt], committed: Mapping[int, int | None]) -> Proof:
    """
    Compare the sent records with the receipts and the committed offsets.

    Args:
        sent: The places of the sent records.
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
    ends = log_ends(sent)
    uncommitted = {
        partition: (committed.get(partition), end) for partition, end in ends.items() if committed.get(partition) != end
    }
    missing = tuple(sorted(sent.keys() - delivered.keys()))
    return Proof(len(sent), missing, delivered, tuple(misplaced), uncommitted)


def log_ends(sent: Places) -> dict[int, int]:
    """Return where the log of each partition with records ends."""
    ends: dict[int, int] = {}
    for partition, offset in sent.values():
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends


def foreign_lines(receipts: Iterable[Receipt]) -> Iterator[str]:
    """Describe records that the demo did not send, in one line for each partition."""
    offsets: dict[int, list[int]] = {}
    for receipt in receipts:
        offsets.setdefault(receipt.partition, []).append(receipt.offset)
    for partition, listed in sorted(offsets.items()):
        records = counted(listed, "record")
        where = f"offset {listed[0]}" if len(listed) == 1 else f"offsets {min(listed)} to {max(listed)}"
        yield f"{records} that the demo did not send: partition {partition}, {where}"
