"""
Represent ZooKeeper transactions: the operations that a state machine requests, and the answer to them.

A transaction is atomic. Its answer is ``Done``, ``Refused`` (one operation failed, so no operation was executed) or
``Unknown`` (the connection broke: the transaction may or may not have been executed).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

#: The most operations per transaction: if one operation fails, the whole transaction is repeated, which must be cheap.
MOST_OPERATIONS = 200

#: A server refuses requests of 1 MiB and more (jute.maxbuffer) by closing the connection. Writes that can be split
#: are split at this size.
MOST_BYTES = 512 << 10
#: Data that cannot be split is refused above this size.
LARGEST_BYTES = 960 << 10


@dataclass(frozen=True, slots=True)
class Check:
    """Require that a znode exists with this version. −1 means any version."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode. With ``sequence``, the server appends ten digits to its path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Replace the data of a znode that has this version. −1 means any version."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a znode that has this version. −1 means any version."""

    path: str
    version: int = -1


Operation: TypeAlias = Check | Create | Put | Delete


class Failure(Enum):
    """The reason why ZooKeeper refused an operation."""

    NO_NODE = auto()
    NODE_EXISTS = auto()
    BAD_VERSION = auto()
    NOT_EMPTY = auto()
    NO_AUTH = auto()
    INVALID_ACL = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Done:
    """
    The transaction was executed.

    For each operation, ``versions`` has the version that a ``Put`` produced, and ``paths`` has the path that a
    ``Create`` produced, with the appended digits of a sequential znode. For other operations, the entries are None.
    """

    versions: tuple[int | None, ...]
    paths: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The transaction was not executed: the operation at ``index`` failed."""

    index: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Unknown:
    """The connection broke before the answer arrived: the transaction may or may not have been executed."""


Answer: TypeAlias = Done | Refused | Unknown


def size_of(operation: Operation) -> int:
    """Estimate the bytes that an operation takes in a request."""
    data = operation.data if isinstance(operation, (Create, Put)) else b""
    return len(operation.path) + len(data) + 64


def chunks(operations: Iterable[Operation]) -> Iterator[tuple[Operation, ...]]:
    """Split operations into transactions of at most MOST_OPERATIONS operations and about MOST_BYTES bytes each."""
    chunk: list[Operation] = []
    size = 0
    for operation in operations:
        added = size_of(operation)
        if chunk and (len(chunk) == MOST_OPERATIONS or size + added > MOST_BYTES):
            yield tuple(chunk)
            chunk, size = [], 0
        chunk.append(operation)
        size += added
    if chunk:
        yield tuple(chunk)
