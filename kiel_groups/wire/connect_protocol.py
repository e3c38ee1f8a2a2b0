"""
The "connect" protocol: the metadata that workers send to their leader, and the work that the leader assigns to them.

The format is version 0 of Kafka's ConnectProtocol. All releases of Kafka Connect can read this version.
``StickyMetadata`` belongs to a further protocol, which only the workers of this package support.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kiel_groups.wire.member_data import MemberData
from kiel_groups.wire.primitives import INT16, INT32, INT64, STRING, fields, numbers_by_name

#: The name of the protocol whose metadata is ``ConnectMetadata``.
DEFAULT_PROTOCOL = "default"
#: The name of the protocol whose metadata is ``StickyMetadata``.
STICKY_PROTOCOL = "kiel-sticky"

#: The number of the connector itself among the numbers of its tasks.
CONNECTOR_TASK = -1
#: The configuration offset of a worker that has not read any configuration.
NO_OFFSET = -1

#: Errors of an assignment: none, and a leader whose configuration is behind that of another worker.
_NO_ERROR, CONFIG_MISMATCH = 0, 1

_WORK = numbers_by_name("task", CONNECTOR_TASK)


@dataclass(frozen=True, slots=True)
class ConnectMetadata(MemberData):
    """
    The metadata that a worker sends to the leader when it joins, in a ``GroupProtocol`` named ``DEFAULT_PROTOCOL``.

    Args:
        url: The URL of the worker's REST interface.
        offset: The configuration offset up to which the worker has read, or ``NO_OFFSET`` if it has not read any.
        version: The version of the parsed bytes. Only version 0 can be encoded.
    """

    PROTOCOL, EXPECTED = "connect", " (expected: version, URL, configuration offset)"
    FIELDS = fields(url=STRING, offset=INT64)

    url: str
    offset: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class StickyMetadata(MemberData):
    """
    The metadata that a worker sends to the leader when it joins, in a ``GroupProtocol`` named ``STICKY_PROTOCOL``.

    It has the fields of ``ConnectMetadata``, and the last assignment of the worker. So the leader can leave connectors
    and tasks at their workers.

    Args:
        url: The URL of the worker's REST interface.
        offset: The configuration offset up to which the worker has read, or ``NO_OFFSET`` if it has not read any.
        generation: The generation of the worker's last assignment, or -1 if it had no assignment.
        work: The numbers of the last assigned tasks by connector. ``CONNECTOR_TASK`` means the connector itself.
        version: The version of the parsed bytes. Only version 0 can be encoded.
    """

    PROTOCOL, EXPECTED = "connect", " (expected: version, URL, configuration offset, generation, work)"
    FIELDS = fields(url=STRING, offset=INT64, generation=INT32, work=_WORK)

    url: str
    offset: int
    generation: int
    work: Mapping[str, tuple[int, ...]]
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConnectAssignment(MemberData):
    """
    The connectors and tasks that the leader assigns to one worker: one of the assignments of a ``SyncGroupRequest``.

    Args:
        error: 0, or ``CONFIG_MISMATCH`` if the leader's configuration is behind the configuration of another worker.
        leader: The member id of the leader.
        leader_url: The URL of the leader's REST interface.
        offset: The configuration offset up to which the leader has read.
        work: The numbers of the assigned tasks by connector. ``CONNECTOR_TASK`` means the connector itself. A task
            that the leader names twice is kept once.
        version: The version of the parsed bytes. Only version 0 can be encoded.
    """

    PROTOCOL, EXPECTED = "connect", " (expected: version, error, leader, URL, configuration offset, work)"
    FIELDS = fields(error=INT16, leader=STRING, leader_url=STRING, offset=INT64, work=_WORK)

    error: int
    leader: str
    leader_url: str
    offset: int
    work: Mapping[str, tuple[int, ...]]
    version: int = 0

    @property
    def is_failed(self) -> bool:
        """Whether the leader has reported an error, and so has assigned nothing to any worker."""
        return self.error != _NO_ERROR
