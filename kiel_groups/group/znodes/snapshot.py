"""Znodes as a tool reads them: their data, their session, and when they were created and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Snapshot", "Znode"]


@dataclass(frozen=True, slots=True)
class Znode:
    """
    One znode, as it was read.

    ``session`` is the session that an ephemeral znode belongs to, or 0 for a persistent znode. ``created_ms`` and
    ``modified_ms`` are epoch milliseconds on the clock of the ZooKeeper server that led at the time. ``czxid`` and
    ``mzxid`` are the ids of the transactions that created and last wrote the znode; ids ascend over all znodes.
    ``closed``: the znode's ACL refuses this reader, so neither the other fields nor the children are known.
    """

    data: bytes = b""
    session: int = 0
    created_ms: int = 0
    modified_ms: int = 0
    closed: bool = False
    czxid: int = 0
    mzxid: int = 0


#: Path below the chroot → znode. A snapshot is not atomic: each level of the tree is read after the level above it.
Snapshot: TypeAlias = Mapping[str, Znode]
