"""
The hierarchy of errors, grouped by the party that can act.

A ``ConfigError`` is about the user's settings and arguments, a ``CoordinationError`` about ZooKeeper or the group, and
a ``ProtocolError`` about malformed bytes. A ``BrokerError`` is about a broker, and has Kafka's error code. The class
attribute ``retriable`` is True if the same call may succeed later without any intervention. All errors can be pickled.
"""

from __future__ import annotations

from typing import Any, ClassVar

from kiel_groups.model import TopicPartition


class KielGroupsError(Exception):
    """The base class of all errors that this package raises deliberately."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with self.args, which fails for subclasses with keyword-only fields.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[KielGroupsError], args: tuple[Any, ...], fields: dict[str, Any]) -> KielGroupsError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConfigError(KielGroupsError, ValueError):
    """A setting or an argument is invalid. The message has the name, the expected value, and what to do."""


class UnknownTopicError(ConfigError):
    """A topic or a partition does not exist in the cluster."""


class UnknownGroupError(ConfigError):
    """No such group exists in ZooKeeper, or at the brokers that coordinate groups."""


class UnknownConnectorError(ConfigError):
    """The group of workers has no connector of this name."""


class ConnectorExistsError(ConfigError):
    """The group of workers already has a connector of this name."""


class TokenError(ConfigError):
    """A worker requires a token, and the request has no token or a wrong token."""


class GroupConfigError(ConfigError):
    """
    The settings in the group's ``/config`` znode differ from the caller's settings, are unreadable, or are for another
    type of members.
    """


class IllegalStateError(ConfigError):
    """A call does not fit the state of its client, such as a pause of a partition that is not assigned."""


class ArgumentTypeError(ConfigError, TypeError):
    """An argument has the wrong type, such as a listener without any hook."""


class HookError(ConfigError):
    """A hook of a program with a ``GenericMember`` raised, or returned a value that the group cannot use."""


class AllocatorError(KielGroupsError):
    """An allocator raised, took too long, or returned an invalid allocation."""


class CoordinationError(KielGroupsError):
    """ZooKeeper refused or did not answer a request, or the state of the group does not permit an action."""


class NoZooKeeperError(CoordinationError):
    """No ZooKeeper server answered within the time allowed."""

    retriable = True


class ChrootMissingError(CoordinationError):
    """The chroot of the connection string does not exist."""


class CredentialsError(CoordinationError):
    """ZooKeeper refused the user or the password, or requires SASL; or the file with the credentials has a mistake."""

    retriable = True


class AuthorizationError(CoordinationError):
    """
    ZooKeeper refused a request because the ACL of the znode ``path`` does not give the client the ``right``.

    The rights are "read", "write", "administer" and, for the children of the znode, "create" and "delete". A member, an
    allocator process or a worker that has joined continues as soon as it has the right again.
    """

    retriable = True

    def __init__(self, message: str, *, path: str, right: str) -> None:
        super().__init__(message)
        self.path, self.right = path, right


class SessionLostError(CoordinationError):
    """The member has no trusted session, or has lost claims: other members may own its partitions."""

    retriable = True


class ClaimLostError(CoordinationError):
    """A worker tried to write for a connector or a task without having its claim. Nothing was written."""


class RebalanceError(CoordinationError):
    """A worker cannot carry out a request before the rebalance of its group is over."""

    retriable = True


class CommitFailedError(CoordinationError):
    """
    Offsets that the application chose were not stored: the partition is not owned, or another writer was faster.

    The member continues. The same offsets may succeed only if the message says so.
    """


class ConflictError(CoordinationError):
    """Another client has made a change since the caller has read the state, or is making one. A retry may succeed."""

    retriable = True


class ForeignMemberError(CoordinationError):
    """Foreign members (Java consumers, pykafka, kiel) are alive in the group."""


class DuplicateInstanceError(CoordinationError):
    """Another member with the same ``instance_id`` has replaced this member, so this member has stopped."""


class BrokerError(KielGroupsError):
    """
    A broker answered with an error code, or could not be reached.

    ``code`` is the Kafka error number, or None if no broker answered.
    """

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class RetriableBrokerError(BrokerError):
    """A broker refused a request for now; a retry may succeed, sometimes only at another broker."""

    retriable = True


class NoBrokersError(BrokerError):
    """No broker answered, or no broker is registered."""

    retriable = True

    def __init__(self, message: str = "none of the brokers answered", *, code: int | None = None) -> None:
        super().__init__(message, code=code)


class BrokerConnectionError(BrokerError):
    """
    A connection to a broker could not be opened, or broke.

    ``host``, ``port`` and ``broker_id`` identify the broker; an unknown value is None. Programs written for kiel
    construct this error from a host, a port and a broker id. So if ``port`` is given, and ``host`` is not, the first
    argument is the host.
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
            host, message = message, f"Error connecting to {message}:{port}"
        super().__init__(message, code=code)
        self.host, self.port, self.broker_id = host, port, broker_id


class RequestTimeoutError(BrokerError):
    """A broker did not answer a request in time."""

    retriable = True


class OutcomeUnknownError(BrokerError):
    """
    A record was sent, but no broker confirmed the storage: the record may or may not be in its partition.

    ``topic`` and ``partition`` are the record's destination. The cause is the last failure, or a ClosedError if the
    producer was closed before the answer; ``code`` is the cause's code. Producing the record again loses nothing, but
    may store the record twice.
    """

    retriable = True

    def __init__(
        self, message: str, *, topic: str | None = None, partition: int | None = None, code: int | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.topic, self.partition = topic, partition


class NoOffsetsError(BrokerError):
    """The group's offsets could not be fetched, or a partition has no offset and the reset policy is ``none``."""

    def __init__(self, message: str = "the offsets of the group are not known", *, code: int | None = None) -> None:
        super().__init__(message, code=code)


class OffsetOutOfRangeError(BrokerError):
    """
    A position is outside its partition's log, and the reset policy is ``none``.

    ``cause`` is the message without the advice for programs that have the consumer.
    """

    def __init__(self, message: str, advice: str = "", *, code: int | None = None) -> None:
        super().__init__(f"{message}; {advice}" if advice else message, code=code)
        self.cause = message


class ProtocolError(KielGroupsError):
    """Bytes from a broker or from a znode are malformed."""


class MessageTooLargeError(ProtocolError):
    """A message is larger than the limit, compressed or decompressed."""


class BadRecordError(KielGroupsError):
    """
    A record cannot be delivered. This error is raised again until the consumer seeks past the record.

    ``offset`` is the record's offset. A seek to ``next_offset`` continues after the record. ``key`` and ``value`` are
    the bytes that were received, or None. The record does not count as finished.
    """

    def __init__(
        self,
        message: str,
        *,
        topic_partition: TopicPartition,
        offset: int,
        next_offset: int,
        key: bytes | None = None,
        value: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.topic_partition = topic_partition
        self.offset, self.next_offset = offset, next_offset
        self.key, self.value = key, value


class RecordDeserializationError(BadRecordError):
    """
    A deserializer of the application failed on a record's key or value; the cause is the application's error.

    ``field`` is ``"key"`` or ``"value"``.
    """

    def __init__(self, message: str, *, field: str, **record: Any) -> None:
        super().__init__(message, **record)
        self.field = field


class DamagedRecordError(BadRecordError, ProtocolError):
    """
    A message in the log is damaged, for example if it does not match its CRC.

    Records from ``offset`` to ``next_offset - 1`` are affected: all records of a compressed message. ``value`` is the
    message as the broker sent it, with its header.
    """


class ServerError(KielGroupsError):
    """An embedded server did not start or has died, or its jar files could not be obtained."""


class NoWorkerError(KielGroupsError):
    """No worker of a group answers at the URL of its REST interface."""

    retriable = True


class BufferFullError(KielGroupsError):
    """The producer's buffer is full: records without an outcome fill ``max_buffered_bytes``."""

    retriable = True


class ClosedError(KielGroupsError):
    """The client was closed."""


class TaskStoppedError(KielGroupsError):
    """A task of a connector gave up its present work because the worker stops the task. The task has not failed."""
