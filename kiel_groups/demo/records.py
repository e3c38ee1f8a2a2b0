"""
The records that the demo sends, the receipts of their delivery, and the proof that no record was lost.

The records are 100,000 page views of a shop, or the lines of a given file. A page view begins with its number.

A receipt is a line ``partition offset number``. Each consumer writes its receipts to its own file. A consumer writes
the receipt of a record before it asks for the next record, that is, before the record's offset can be committed. So
each record below the committed offset has a receipt, even after kill -9. A record that the demo did not send has no
number; its receipt has ``-``.
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
    The values and keys of the records to send, in the order of the records' numbers, from 0.

    ``keys[n]`` belongs to ``values[n]``. With ``number_in_key``, the key is the number of the record, as for the lines
    of a user's file. Without ``number_in_key``, the value begins with the number.
    """

    values: list[bytes]
    keys: list[bytes]
    number_in_key: bool


def shipped() -> Input:
    """Return the records that come with the package. The key of each record is the visitor."""
    values = load_records()
    return Input(values, [visitor_of(value) for value in values], number_in_key=False)


def lines_of(path: Path) -> Input:
    """
    Return the lines of a file, without line ends, as records. The key of each record is its number.

    Raises:
        ConfigError: The file cannot be read, is empty, or has more than 1,000,000 lines.
    """
    try:
        values = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--records: {path} cannot be read: {error.strerror}") from error
    if not 0 < len(values) <= _MOST_LINES:
        raise ConfigError(f"--records: {path} has {len(values):,} lines; expected 1 to {_MOST_LINES:,}")
    return Input(values, [b"%d" % number for number in range(len(values))], number_in_key=True)


def load_records() -> list[bytes]:
    """Return the values of the records that come with the package, in the order of their numbers, from 0."""
    return gzip.decompress((files(__package__) / "records.txt.gz").read_bytes()).splitlines()


def number_of(value: bytes) -> int:
    """Return the number at the start of a shipped record."""
    return int(value.partition(b" ")[0])


def visitor_of(value: bytes) -> bytes:
    """Return the visitor of a page view. With this key, all views of one visitor are in one partition, in order."""
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
    """One delivery of a record. ``number`` is None if the demo did not send the record."""

    partition: int
    offset: int
    number: int | None

    def line(self) -> str:
        return f"{self.partition} {self.offset} {'-' if self.number is None else self.number}\n"

    @classmethod
    def parse(cls, line: bytes) -> Receipt:
        """Return the receipt from a line that ``line`` returned."""
        partition, offset, number = line.split()
        return cls(int(partition), int(offset), None if number == b"-" else int(number))


class ReceiptFile:
    """Reads a file of receipts while a consumer writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.receipts: list[Receipt] = []

    def read_new(self) -> int:
        """Read the complete lines written since the last call. Return the number of all receipts read so far."""
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
    The result of the comparison of sent records, receipts and committed offsets. ``holds`` says whether the proof
    succeeded.

    ``missing`` has the numbers of records that were never delivered. ``delivered`` counts the deliveries of each record
    number. ``misplaced`` has the receipts whose partition or offset differs from the broker's acknowledgement.
    ``uncommitted`` has each partition whose committed offset is not the end of its log, with the committed offset (None
    without a commit) and the end.
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
        """The number of different records that were delivered more than once."""
        return sum(times > 1 for times in self.delivered.values())

    @property
    def most_often(self) -> int:
        """The largest number of deliveries of the same record, or 0 if nothing was delivered."""
        return max(self.delivered.values(), default=0)


def prove(sent: Places, receipts: Iterable[Receipt], committed: Mapping[int, int | None]) -> Proof:
    """
    Compare the sent records with the receipts and the committed offsets, and return the result.

    Receipts of records that the demo did not send are ignored.

    Args:
        sent: The acknowledged partition and offset of each sent record.
        receipts: The receipts of all consumers.
        committed: The group's committed offset of each partition.
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
    """Return the log end of each partition that has sent records: the offset after its last sent record."""
    ends: dict[int, int] = {}
    for partition, offset in sent.values():
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends


def foreign_lines(receipts: Iterable[Receipt]) -> Iterator[str]:
    """Yield a line for each partition that describes these receipts of records that the demo did not send."""
    offsets: dict[int, list[int]] = {}
    for receipt in receipts:
        offsets.setdefault(receipt.partition, []).append(receipt.offset)
    for partition, listed in sorted(offsets.items()):
        records = counted(listed, "record")
        where = f"offset {listed[0]}" if len(listed) == 1 else f"offsets {min(listed)} to {max(listed)}"
        yield f"{records} that the demo did not send: partition {partition}, {where}"
