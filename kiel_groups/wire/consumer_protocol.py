"""
The "consumer" protocol: the subscriptions that members send to their leader, and the assignments that it returns.

A group may have members of other clients, such as Java's, so the format is Kafka's ConsumerProtocol. Versions after 0
append fields, such as the partitions that the member owns. User data belongs to the assignment strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from kiel_groups.wire.member_data import MemberData
from kiel_groups.wire.primitives import NULLABLE_BYTES, STRING, Buffer, array, fields, numbers_by_name

#: The protocol type of groups of consumers. A coordinator refuses a member whose type is not that of its group.
PROTOCOL_TYPE = "consumer"


@dataclass(frozen=True, slots=True)
class ConsumerSubscription(MemberData):
    """
    The subscription that a joining member sends to the leader: the metadata of a ``GroupProtocol``.

    ``topics`` are in the member's own order. ``version`` is the version of the parsed bytes. Only version 0 can be
    encoded.
    """

    PROTOCOL = "consumer"
    FIELDS = fields(topics=array(STRING), user_data=NULLABLE_BYTES)

    topics: tuple[str, ...]
    user_data: bytes | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerAssignment(MemberData):
    """
    The partitions that the leader assigns to one member: one of the assignments of a ``SyncGroupRequest``.

    ``partitions`` has the partition numbers of each topic, in the leader's order. ``version`` is the version of the
    parsed bytes. Only version 0 can be encoded. A topic or partition that a leader names twice is kept once, as in
    Java's consumer.
    """

    PROTOCOL = "consumer"
    FIELDS = fields(partitions=numbers_by_name("partition", 0), user_data=NULLABLE_BYTES)

    partitions: Mapping[str, tuple[int, ...]]
    user_data: bytes | None = None
    version: int = 0

    @classmethod
    def parse(cls, data: Buffer, what: str) -> Self:
        """
        Parse an assignment, which the leader may have encoded with another client. Empty data means no partitions.

        Raises:
            ProtocolError: The data is not an assignment.
        """
        # The coordinator sends no bytes to a member that the leader has not named.
        return super(ConsumerAssignment, cls).parse(data, what) if data else cls({})
