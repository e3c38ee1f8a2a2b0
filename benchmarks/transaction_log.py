"""
Read every write to a ZooKeeper server, with the server's time, from the server's transaction log.

Reading the log does not disturb the measured group. A session that watched the same znodes would cost the server as
much as another member.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = ["Change", "Kind", "TransactionLog"]


class Kind(Enum):
    """
    What one operation did. Except for OTHER, the values are the numbers of ZooKeeper's operation types.

    CREATE also stands for the other types that create a znode, such as create2.
    """

    CREATE = 1
    DELETE = 2
    SET = 5
    SESSION_OPENED = -10
    SESSION_CLOSED = -11
    #: Any other type, such as a check or an error.
    OTHER = 0


_CREATES = (1, 15, 19, 21)
_MULTI = 14

#: Magic number, version, database id.
_FILE_HEADER = 16
#: Checksum and length, before each transaction.
_ENTRY = struct.Struct(">qi")
#: Session, number of the request, zxid, milliseconds since 1970, operation type.
_HEADER = struct.Struct(">qiqqi")
_INT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Change:
    """One operation of one transaction. The operations of a transaction share its ``zxid``."""

    zxid: int
    time_ms: int
    session: int
    kind: Kind
    path: str = ""


class TransactionLog:
    """The log of one running server. Each ``read`` starts where the previous one ended."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "version-2"
        self._file: Path | None = None
        self._at = 0

    def read(self) -> Iterator[Change]:
        """Yield the changes since the last call. A transaction of several operations has several changes."""
        for file in sorted(self._folder.glob("log.*"), key=lambda path: int(path.suffix[1:], 16)):
            if self._file is not None and int(file.suffix[1:], 16) < int(self._file.suffix[1:], 16):
                continue
            if file != self._file:
                self._file, self._at = file, _FILE_HEADER
            with file.open("rb") as opened:
                opened.seek(self._at)
                while (entry := _entry(opened.read(_ENTRY.size), opened)) is not None:
                    self._at = opened.tell()
                    yield from _changes(entry)


def _entry(head: bytes, opened) -> bytes | None:  # type: ignore[no-untyped-def]
    """
    Return the bytes of one transaction, or None if it is not written completely. Unwritten parts of the file are zeros.
    """
    if len(head) < _ENTRY.size:
        return None
    _, length = _ENTRY.unpack(head)
    if length <= 0:
        return None
    data: bytes = opened.read(length + 1)
    # The last byte of a transaction that is written completely is "B".
    return data[:-1] if len(data) == length + 1 and data[-1:] == b"B" else None


def _changes(entry: bytes) -> Iterator[Change]:
    session, _, zxid, time_ms, number = _HEADER.unpack_from(entry)
    at = _HEADER.size
    if number != _MULTI:
        yield _change(zxid, time_ms, session, number, entry[at:])
        return
    (count,) = _INT.unpack_from(entry, at)
    at += 4
    for _ in range(count):
        number, length = struct.unpack_from(">ii", entry, at)
        at += 8
        yield _change(zxid, time_ms, session, number, entry[at : at + length])
        at += length


def _change(zxid: int, time_ms: int, session: int, number: int, record: bytes) -> Change:
    kind = Kind.CREATE if number in _CREATES else Kind(number) if number in _KNOWN else Kind.OTHER
    path = ""
    if kind in (Kind.CREATE, Kind.DELETE, Kind.SET):
        (length,) = _INT.unpack_from(record)
        path = record[4 : 4 + length].decode()
    return Change(zxid, time_ms, session, kind, path)


_KNOWN = frozenset(kind.value for kind in Kind)
