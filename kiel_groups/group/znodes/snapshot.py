"""Znodes as an onlooker reads them: what stands in them, whose session holds them, since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Snapshot", "Znode"]


@dataclass(frozen=True, slots=True)
class Znode:
    """
    One znode.

    ``session`` is the session that an ephemeral one belongs to, 0 for a persistent one. ``created_ms`` and
    ``modified_ms`` are epoch milliseconds on the clock of the ZooKeeper server that led at the time; ``czxid`` and
    ``mzxid`` are the transactions that created and last wrote it, in one order for all znodes. Of a ``closed`` one
    nothing else is known, nor what stands below it: its ACL does not let this reader in.
    """

    data: bytes = b""
    session: int = 0
    created_ms: int = 0
    modified_ms: int = 0
    closed: bool = False
    czxid: int = 0
    mzxid: int = 0


#: Path below the chroot → znode. Not of one moment: a level of the tree is read after the one above it.
Snapshot: TypeAlias = Mapping[str, Znode]
