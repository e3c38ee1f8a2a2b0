"""
The whole hierarchy of errors, by who can act.

``ConfigError`` is the user's, ``CoordinationError`` ZooKeeper's, ``BrokerError`` a broker's (with the Kafka code),
``ProtocolError`` means bytes that nobody could have meant. ``retriable`` stands on the class: True where the same
call may succeed later without anybody changing anything. All of them survive pickling.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "KielGroupsError",
    "ConfigError",
    "UnknownTopicError",
    "UnknownGroupError",
    "GroupConfigError",
    "AllocatorError",
    "CoordinationError",
    "NoZooKeeperError",
    "ChrootMissingError",
    "SessionLostError",
    "ForeignMemberError",
    "DuplicateInstanceError",
    "BrokerError",
    "RetriableBrokerError",
    "NoBrokersError",
    "BrokerConnectionError",
    "RequestTimeoutError",
    "OutcomeUnknownError",
    "NoOffsetsError",
    "OffsetOutOfRangeError",
    "ProtocolError",
    "MessageTooLargeError",
    "ServerError",
    "BufferFullError",
    "ClosedError",
]


class KielGroupsError(Exception):
    """Everything that this package raises on purpose."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with self.args, which breaks every subclass with keyword-only fields.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[KielGroupsError], args: tuple[Any, ...], fields: dict[str, Any]) -> KielGroupsError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConfigError(KielGroupsError, ValueError):
    """A setting or argument that cannot work; says which one, what was expected and what to do."""


class UnknownTopicError(ConfigError):
    """A topic that no broker of the cluster knows."""


class UnknownGroupError(ConfigError):
    """A group of which nothing stands in ZooKeeper."""


class GroupConfigError(ConfigError):
    """This member disagrees with the group's ``/config`` znode, or that znode cannot be read."""


class AllocatorError(KielGroupsError):
    """An allocator raised, took too long, or returned something that is no allocation."""


class CoordinationError(KielGroupsError):
    """ZooKeeper could not do, or did not answer, what the group needs."""


class NoZooKeeperError(CoordinationError):
    """No ZooKeeper server answered within the time allowed."""

    retriable = True


class ChrootMissingError(CoordinationError):
    """The chroot of the connection string does not exist."""


class SessionLostError(CoordinationError):
    """The session that a call belonged to is over; its claims are gone with it."""

    retriable = True


class ForeignMemberError(CoordinationError):
    """Members that are not ours (Java consumers, pykafka, kiel) are alive in the group."""


class DuplicateInstanceError(CoordinationError):
    """Another member of the same ``instance_id`` joined later and has its place; this one stopped."""


class BrokerError(KielGroupsError):
    """
    A broker answered with an error code, or could not be reached.

    ``code`` is the Kafka error number, None where no broker answered.
    """

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class RetriableBrokerError(BrokerError):
    """A broker refused for the moment; a later try may succeed, at times at another broker."""

    retriable = True


class NoBrokersError(BrokerError):
    """None of the given brokers answered."""

    retriable = True

    def __init__(self, message: str = "none of the brokers answered", *, code: int | None = None) -> None:
        super().__init__(message, code=code)


class BrokerConnectionError(BrokerError):
    """
    A connection to a broker could not be opened, or broke.

    ``host``, ``port`` and ``broker_id`` are those of the broker, None where they are not known. kiel's programs make
    it of these three, in this order; with a port, the first argument is the host.
    """

    retriable = True

    def __init__(
        self,
        message: str,
        port: int | None = None,
        broker_id: int | None = None,
        *,
        host: str | None = None,
        code: int | None = None,
    ) -> None:
        if port is not None and host is None:
            host, message = message, f"{message}:{port}: the connection failed"
        super().__init__(message, code=code)
        self.host, self.port, self.broker_id = host, port, broker_id


class RequestTimeoutError(BrokerError):
    """A broker did not answer a request in time."""

    retriable = True


class OutcomeUnknownError(BrokerError):
    """
    A record was sent, and no broker said whether it stored it: the record may or may not be in its partition.

    ``topic`` and ``partition`` say where it was sent. The cause is the last failure, or a ClosedError where the
    producer was closed before the answer came; ``code`` is the cause's. Producing the record again loses nothing, and
    may store it twice.
    """

    retriable = True

    def __init__(
        self, message: str, *, topic: str | None = None, partition: int | None = None, code: int | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.topic, self.partition = topic, partition


class NoOffsetsError(BrokerError):
    """The offsets of the group could not be fetched."""

    def __init__(self, message: str = "the offsets of the group are not known", *, code: int | None = None) -> None:
        super().__init__(message, code=code)


class OffsetOutOfRangeError(BrokerError):
    """A position lies outside the log of its partition, and the reset policy is ``none``."""


class ProtocolError(KielGroupsError):
    """Bytes from the wire, or from a znode, that do not mean anything."""


class MessageTooLargeError(ProtocolError):
    """A message, or what it decompresses to, is larger than the bound."""


class ServerError(KielGroupsError):
    """An embedded server did not start, died, or its jars could not be had."""


class BufferFullError(KielGroupsError):
    """The producer holds as many unsent bytes as it may."""

    retriable = True


class ClosedError(KielGroupsError):
    """The client was closed."""
