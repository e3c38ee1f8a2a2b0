"""How large the metadata and the assignments of programs may be, by what stores them: znodes, or a message of Kafka."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from kiel_groups.group.znodes.transactions import LARGEST_BYTES
from kiel_groups.wire.groups.join_group import GroupProtocol
from kiel_groups.wording import counted, some

__all__ = ["MessageSizes", "StoredSizes", "ZnodeSizes"]

#: The largest data of one member, as they are stored. The rest of a znode names the member and the generation. The
#: default of the brokers' ``message.max.bytes`` is 1,000,000 bytes or a little more, so the same number fits both.
_LARGEST = LARGEST_BYTES - 4_096

#: What a coordinator stores for each member beside the data: its id, its client, its host, and its timeouts.
_MEMBER_BYTES = 512

_ADVICE = "store larger data elsewhere, and offer or assign its place"


class StoredSizes(Protocol):
    """Whether the data of programs can be stored. Each method returns what is too large, or ""."""

    def excess_of_offer(self, protocols: Sequence[GroupProtocol]) -> str:
        """Check what a member offers at its join."""

    def excess_of_assignments(self, metadata: Mapping[str, bytes], assignments: Mapping[str, bytes]) -> str:
        """Check the assignments that a leader has made, given the metadata of all members."""


class ZnodeSizes:
    """ZooKeeper: the offer of a member and each assignment has a znode of its own, with bytes in base64."""

    def excess_of_offer(self, protocols: Sequence[GroupProtocol]) -> str:
        """Check what a member offers at its join."""
        size = sum(len(json.dumps(name)) + _in_base64(metadata) for name, metadata in protocols)
        return _excess(_offer(protocols), size, "in ZooKeeper")

    def excess_of_assignments(self, metadata: Mapping[str, bytes], assignments: Mapping[str, bytes]) -> str:
        """Check each assignment."""
        for member_id, assignment in assignments.items():
            if what := _excess(f"the assignment of {member_id} takes", _in_base64(assignment), "in ZooKeeper"):
                return what
        return ""


class MessageSizes:
    """
    Brokers: the coordinator stores a group as one message, which has the metadata and the assignments of all members.

    It takes any join. If the message is larger than ``message.max.bytes``, it refuses the leader's sync without a
    reason, so the leader checks the sum.
    """

    def excess_of_offer(self, protocols: Sequence[GroupProtocol]) -> str:
        """Check what a member offers at its join."""
        size = sum(len(name.encode()) + len(metadata) for name, metadata in protocols)
        return _excess(_offer(protocols), size, "in its coordinator's message")

    def excess_of_assignments(self, metadata: Mapping[str, bytes], assignments: Mapping[str, bytes]) -> str:
        """Check the sum of all metadata and assignments."""
        size = sum(len(data) + _MEMBER_BYTES for data in metadata.values()) + sum(map(len, assignments.values()))
        what = f"the metadata and the assignments of {counted(metadata, 'member')} take"
        return _excess(what, size, "in its coordinator's message")


def _in_base64(data: bytes) -> int:
    return (len(data) + 2) // 3 * 4


def _offer(protocols: Sequence[GroupProtocol]) -> str:
    return f"what this member offers ({some(name for name, _ in protocols)}) takes"


def _excess(what: str, size: int, place: str) -> str:
    if size <= _LARGEST:
        return ""
    return f"{what} {size >> 10} KiB {place}; expected at most {_LARGEST >> 10}; {_ADVICE}"
