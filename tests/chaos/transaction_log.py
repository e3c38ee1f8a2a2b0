"""
Read the changes of ZooKeeper from the transaction logs of its servers.

The logs contain every committed write in order, with the session that made it and the leader's time. A client that
watches or polls would miss changes between two reads, and the faults would affect it as well.

The format is that of ``org.apache.zookeeper.server.persistence.FileTxnLog``: a file header, then for each transaction
its checksum, its length, a header, a record by type, and an end mark. Files are padded with zeros.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Create", "Delete", "EndSession", "Put", "Transaction", "Write", "committed", "read_log"]

_HEAD = struct.Struct(">4siq")
_ENTRY = struct.Struct(">qi")
_HEADER = struct.Struct(">qiqqi")
_INT = struct.Struct(">i")
_MAGIC = b"ZKLG"

_CREATES = {1, 15, 19, 21}  # create, create2, createContainer, createTTL
_DELETES = {2, 20}  # delete, deleteContainer
_SET_DATA, _MULTI, _CLOSE_SESSION, _ERROR = 5, 14, -11, -1


class Create(NamedTuple):
    """The creation of a znode. Its czxid is the zxid of the transaction."""

    path: str
    data: bytes
    ephemeral: bool


class Delete(NamedTuple):
    """The deletion of a znode."""

    path: str


class Put(NamedTuple):
    """The replacement of the data of a znode."""

    path: str
    data: bytes


class EndSession(NamedTuple):
    """The end of the transaction's session, by a close or by expiry. It deletes the session's ephemeral znodes."""


Write = Create | Delete | Put | EndSession


class Transaction(NamedTuple):
    """
    A transaction in the log of a server.

    Args:
        zxid: The transaction's number, larger than the number of any earlier transaction.
        at_ms: When ZooKeeper's leader received the request, in milliseconds since 1970.
        session: The session that sent the request.
        writes: The changes in order, or () if the transaction changed no znode or failed.
    """

    zxid: int
    at_ms: int
    session: int
    writes: tuple[Write, ...]


def committed(folders: Iterable[Path], majority: int = 2) -> list[Transaction]:
    """
    Merge the logs of the servers of one ensemble.

    A transaction is committed if a majority has logged it. A server that received a snapshot may lack some
    transactions. A leader that died before the others had its last transaction may have one that was never committed.

    Args:
        folders: The folder of each server with its ``log.*`` files.
        majority: How many servers must have a transaction.

    Returns:
        The transactions by ascending zxid.
    """
    found: dict[int, Transaction] = {}
    copies: Counter[int] = Counter()
    for folder in folders:
        logged = {entry.zxid: entry for path in folder.glob("log.*") for entry in read_log(path)}
        copies.update(logged.keys())
        found |= logged
    return [found[zxid] for zxid in sorted(found) if copies[zxid] >= majority]


def read_log(path: Path) -> Iterator[Transaction]:
    """Yield the transactions of one file, up to its end or to the first transaction that was not written completely."""
    with path.open("rb") as file:
        magic, _, _ = _HEAD.unpack(file.read(_HEAD.size).ljust(_HEAD.size, b"\0"))
        if magic != _MAGIC:
            return  # the server has created the file and not written to it yet
        while len(entry := file.read(_ENTRY.size)) == _ENTRY.size:
            _, length = _ENTRY.unpack(entry)
            body = file.read(length + 1)
            if length <= 0 or len(body) <= length:
                return
            yield _transaction(body)


def _transaction(body: bytes) -> Transaction:
    session, _, zxid, at_ms, kind = _HEADER.unpack_from(body)
    return Transaction(zxid, at_ms, session, tuple(_writes(kind, _Reader(body, _HEADER.size))))


def _writes(kind: int, record: _Reader) -> Iterator[Write]:
    if kind in _CREATES:
        path, data = record.text(), record.buffer()
        for _ in range(record.int()):  # the ACL: permissions, scheme, identity
            record.int(), record.buffer(), record.buffer()
        yield Create(path, data, record.flag() if kind in (1, 15) else False)
    elif kind in _DELETES:
        yield Delete(record.text())
    elif kind == _SET_DATA:
        yield Put(record.text(), record.buffer())
    elif kind == _CLOSE_SESSION:
        yield EndSession()
    elif kind == _MULTI:
        parts = [(record.int(), record.buffer()) for _ in range(record.int())]
        # If one operation fails, ZooKeeper undoes those before it, although the log contains them as requested.
        if all(part != _ERROR for part, _ in parts):
            for part, body in parts:
                yield from _writes(part, _Reader(body))


class _Reader:
    """Reads jute, ZooKeeper's encoding: numbers are big-endian, and the length of bytes precedes them."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    def int(self) -> int:
        (number,) = _INT.unpack_from(self._data, self._position)
        self._position += _INT.size
        return int(number)

    def buffer(self) -> bytes:
        length = max(0, self.int())
        self._position += length
        return self._data[self._position - length : self._position]

    def text(self) -> str:
        return self.buffer().decode()

    def flag(self) -> bool:
        self._position += 1
        return self._data[self._position - 1] != 0
