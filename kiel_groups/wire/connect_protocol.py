"""
The "connect" protocol: what workers of a group of connectors tell their leader, and what the leader assigns to them.

The bytes are those of version 0 of Kafka's ConnectProtocol, which all releases of Kafka Connect read. A later version
appends fields. The decoders read the fields of version 0, and ignore the rest. ``StickyMetadata`` is the metadata of a
protocol of this package only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from kiel_groups.errors import ConfigError
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = [
    "CONFIG_MISMATCH",
    "CONNECTOR_TASK",
    "DEFAULT_PROTOCOL",
    "NO_OFFSET",
    "STICKY_PROTOCOL",
    "ConnectAssignment",
    "ConnectMetadata",
    "StickyMetadata",
]


#: The name of the protocol whose metadata is ``ConnectMetadata``.
DEFAULT_PROTOCOL = "default"
#: The name of the protocol whose metadata is ``StickyMetadata``.
STICKY_PROTOCOL = "kiel-sticky"

#: The number that stands for the connector itself among the numbers of its tasks.
CONNECTOR_TASK = -1
#: The configuration offset of a worker that has not read any configuration.
NO_OFFSET = -1

#: Errors of an assignment: none, and a leader whose configuration is behind that of another worker.
_NO_ERROR, CONFIG_MISMATCH = 0, 1

_LEAST_CONNECTOR_BYTES = 2 + 4
_TASK_BYTES = 4


@dataclass(frozen=True, slots=True)
class ConnectMetadata:
    """
    A worker as it tells the leader when it joins.

    Args:
        url: The URL of its REST interface.
        offset: The offset of the configuration that it has read; ``NO_OFFSET`` if it has not read any.
        version: The version of the bytes that were parsed; only version 0 is encoded.
    """

    url: str
    offset: int
    version: int = 0

    def encode(self) -> bytes:
        """
        Encode the metadata of a ``GroupProtocol`` named ``DEFAULT_PROTOCOL``.

        Raises:
            ConfigError: The version is not 0, the URL is too long, or the offset does not fit its type.
        """
        writer = _writer(self.version)
        writer.string(self.url)
        writer.int64(self.offset)
        return writer.getvalue()

    @classmethod
    def parse(cls, data: Buffer, what: str) -> Self:
        """
        Parse the metadata of any worker.

        Args:
            data: The member's metadata.
            what: The name of the data in errors, such as "the metadata of member m-1".

        Raises:
            ProtocolError: The data is no metadata of a worker.
        """
        reader = Reader(data, f"{what} (expected: version, URL, configuration offset)")
        version = _read_version(reader)
        url, offset = reader.string(), reader.int64()
        _end(reader, version)
        return cls(url, offset, version)


@dataclass(frozen=True, slots=True)
class StickyMetadata:
    """
    A worker as it tells a leader that lets it keep its work: the bytes of ``ConnectMetadata``, and two more fields.

    Args:
        url: The URL of its REST interface.
        offset: The offset of the configuration that it has read; ``NO_OFFSET`` if it has not read any.
        generation: The generation in which it got its last work; -1 if it had none.
        work: The numbers of its last tasks by connector, ``CONNECTOR_TASK`` for the connector itself.
        version: The version of the bytes that were parsed; only version 0 is encoded.
    """

    url: str
    offset: int
    generation: int
    work: Mapping[str, tuple[int, ...]]
    version: int = 0

    def encode(self) -> bytes:
        """
        Encode the metadata of a ``GroupProtocol`` named ``STICKY_PROTOCOL``.

        Raises:
            ConfigError: The version is not 0, a text is too long, or a number does not fit its type in the protocol.
        """
        writer = _writer(self.version)
        writer.string(self.url)
        writer.int64(self.offset)
        writer.int32(self.generation)
        _write_work(writer, self.work)
        return writer.getvalue()

    @classmethod
    def parse(cls, data: Buffer, what: str) -> Self:
        """Parse the metadata of any worker, as ``ConnectMetadata.parse`` does."""
        reader = Reader(data, f"{what} (expected: version, URL, configuration offset, generation, work)")
        version = _read_version(reader)
        url, offset, generation = reader.string(), reader.int64(), reader.int32()
        work = _read_work(reader)
        _end(reader, version)
        return cls(url, offset, generation, work, version)


@dataclass(frozen=True, slots=True)
class ConnectAssignment:
    """
    What the leader assigns to one worker.

    Args:
        error: 0, or ``CONFIG_MISMATCH``.
        leader: The member id of the leader.
        leader_url: The URL of the leader's REST interface.
        offset: The offset of the configuration by which the leader assigns.
        work: The numbers of the assigned tasks by connector, ``CONNECTOR_TASK`` for the connector itself.
        version: The version of the bytes that were parsed; only version 0 is encoded.
    """

    error: int
    leader: str
    leader_url: str
    offset: int
    work: Mapping[str, tuple[int, ...]]
    version: int = 0

    @property
    def is_failed(self) -> bool:
        """Whether the leader could not assign anything to any worker."""
        return self.error != _NO_ERROR

    def encode(self) -> bytes:
        """
        Encode the assignment as one of the assignments of a ``SyncGroupRequest``.

        Raises:
            ConfigError: The version is not 0, a text is too long, or a number does not fit its type in the protocol.
        """
        writer = _writer(self.version)
        writer.int16(self.error)
        writer.string(self.leader)
        writer.string(self.leader_url)
        writer.int64(self.offset)
        _write_work(writer, self.work)
        return writer.getvalue()

    @classmethod
    def parse(cls, data: Buffer, what: str) -> Self:
        """
        Parse the assignment that any leader has made. A task that the leader names twice counts once.

        Args:
            data: The member's assignment.
            what: The name of the data in errors, such as "the assignment of member m-1".

        Raises:
            ProtocolError: The data is no assignment of a worker.
        """
        reader = Reader(data, f"{what} (expected: version, error, leader, URL, configuration offset, work)")
        version = _read_version(reader)
        error, leader, url, offset = reader.int16(), reader.string(), reader.string(), reader.int64()
        work = _read_work(reader)
        _end(reader, version)
        return cls(error, leader, url, offset, work, version)


def _writer(version: int) -> Writer:
    if version != 0:
        raise ConfigError(f"version {version} of the connect protocol cannot be encoded; only version 0 can")
    writer = Writer()
    writer.int16(version)
    return writer


def _write_work(writer: Writer, work: Mapping[str, tuple[int, ...]]) -> None:
    writer.int32(len(work))
    for connector, tasks in work.items():
        writer.string(connector)
        writer.int32(len(tasks))
        for task in tasks:
            writer.int32(task)


def _read_version(reader: Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise reader.refuse(f"version {version} of the connect protocol")
    return version


def _read_work(reader: Reader) -> dict[str, tuple[int, ...]]:
    # Dictionaries are sets that keep the order.
    work: dict[str, dict[int, None]] = {}
    for _ in reader.array(_LEAST_CONNECTOR_BYTES):
        tasks = work.setdefault(reader.string(), {})
        for _ in reader.array(_TASK_BYTES):
            tasks[_read_task(reader)] = None
    return {connector: tuple(tasks) for connector, tasks in work.items()}


def _read_task(reader: Reader) -> int:
    task = reader.int32()
    if task < CONNECTOR_TASK:
        raise reader.refuse(f"task {task}")
    return task


def _end(reader: Reader, version: int) -> None:
    if version == 0:
        reader.end()
