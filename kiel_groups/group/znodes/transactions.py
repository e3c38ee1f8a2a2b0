"""
Transactions on ZooKeeper as values: what a pure machine asks for, and what came of it.

A transaction happens whole or not at all. Its answer is one of three: ``Done``, ``Refused`` (nothing happened; says
which operation was in the way) or ``Unknown`` (the connection broke: it may have happened or not).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

__all__ = [
    "Check",
    "Create",
    "Put",
    "Delete",
    "Operation",
    "Failure",
    "Done",
    "Refused",
    "Unknown",
    "Answer",
    "chunks",
    "MOST_OPERATIONS",
    "MOST_BYTES",
    "LARGEST_BYTES",
    "size_of",
]

#: Operations in one transaction: few enough that one which is refused because of a single operation is cheap to repeat.
MOST_OPERATIONS = 200

#: A server refuses requests of 1 MiB and more (jute.maxbuffer) by closing the connection: what can be cut is cut here …
MOST_BYTES = 512 << 10
#: … and what cannot be is refused here.
LARGEST_BYTES = 960 << 10


@dataclass(frozen=True, slots=True)
class Check:
    """The znode exists, at this version (−1: any)."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Replace the data of a znode that stands at this version (−1: any)."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = -1


Operation: TypeAlias = Check | Create | Put | Delete


class Failure(Enum):
    """Why ZooKeeper refused an operation."""

    NO_NODE = auto()
    NODE_EXISTS = auto()
    BAD_VERSION = auto()
    NOT_EMPTY = auto()
    NO_AUTH = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Done:
    """
    It happened.

    ``versions`` holds, per operation, the version a ``Put`` produced (None for the rest); ``paths`` the path a
    ``Create`` produced, with the digits of a sequence.
    """

    versions: tuple[int | None, ...]
    paths: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing happened: the operation at ``index`` failed."""

    index: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Unknown:
    """The connection broke before an answer came."""


Answer: TypeAlias = Done | Refused | Unknown


def size_of(operation: Operation) -> int:
    """About how many bytes an operation takes in a request."""
    data = operation.data if isinstance(operation, (Create, Put)) else b""
    return len(operation.path) + len(data) + 64


def chunks(operations: Iterable[Operation]) -> Iterator[tuple[Operation, ...]]:
    """Cut into transactions of at most MOST_OPERATIONS operations and about MOST_BYTES bytes each."""
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
