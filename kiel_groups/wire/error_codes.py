"""
Define Kafka's error codes as values: number, name, whether a retry may help, and what to do.

0.8.0 has −1 to 11, 0.8.1 adds 12 and 13, 0.8.2 adds 14 to 20, and 0.9 adds 21 to 31. Of later codes, only those are
defined that answer requests of this package. Any other number comes from a newer or a patched broker, and becomes an
``ErrorCode``, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from kiel_groups.errors import BrokerError, OffsetOutOfRangeError, RequestTimeoutError, RetriableBrokerError

__all__ = [
    "ErrorCode",
    "error_code",
    "UNKNOWN",
    "NO_ERROR",
    "OFFSET_OUT_OF_RANGE",
    "INVALID_MESSAGE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "INVALID_FETCH_SIZE",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "REQUEST_TIMED_OUT",
    "BROKER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "MESSAGE_SIZE_TOO_LARGE",
    "STALE_CONTROLLER_EPOCH",
    "OFFSET_METADATA_TOO_LARGE",
    "STALE_LEADER_EPOCH",
    "OFFSETS_LOAD_IN_PROGRESS",
    "CONSUMER_COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR_FOR_CONSUMER",
    "INVALID_TOPIC",
    "MESSAGE_SET_SIZE_TOO_LARGE",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "INVALID_REQUIRED_ACKS",
    "ILLEGAL_GENERATION",
    "INCONSISTENT_GROUP_PROTOCOL",
    "INVALID_GROUP_ID",
    "UNKNOWN_MEMBER_ID",
    "INVALID_SESSION_TIMEOUT",
    "REBALANCE_IN_PROGRESS",
    "INVALID_COMMIT_OFFSET_SIZE",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "UNSUPPORTED_VERSION",
    "TOPIC_ALREADY_EXISTS",
    "INVALID_PARTITIONS",
    "INVALID_REPLICATION_FACTOR",
    "NOT_CONTROLLER",
    "INVALID_REQUEST",
    "POLICY_VIOLATION",
    "REASSIGNMENT_IN_PROGRESS",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "GROUP_MAX_SIZE_REACHED",
]


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """
    The outcome that a broker reports for one partition, topic or offset.

    ``retriable``: the same request may succeed later without a change by the user. ``refresh_metadata``: the request
    went to the wrong broker, so look up the leader before the retry.
    """

    number: int
    name: str
    retriable: bool
    refresh_metadata: bool
    hint: str

    def __str__(self) -> str:
        return f"{self.name} ({self.number})"

    def exception(self, message: str) -> BrokerError:
        """Return the error to raise: its class fits the code, its text is ``message``, then name and hint."""
        if self.number == OFFSET_OUT_OF_RANGE.number:
            kind: type[BrokerError] = OffsetOutOfRangeError
        elif self.number == REQUEST_TIMED_OUT.number:
            kind = RequestTimeoutError
        else:
            kind = RetriableBrokerError if self.retriable else BrokerError
        return kind(f"{message}: {self}: {self.hint}", code=self.number)


_KNOWN: dict[int, ErrorCode] = {}


def _code(number: int, name: str, hint: str, *, retriable: bool = False, refresh_metadata: bool = False) -> ErrorCode:
    code = ErrorCode(number, name, retriable, refresh_metadata, hint)
    _KNOWN[number] = code
    return code


UNKNOWN = _code(-1, "UNKNOWN", "the broker failed in a way that it has no code for; its log says how", retriable=True)
NO_ERROR = _code(0, "NO_ERROR", "nothing is wrong")
OFFSET_OUT_OF_RANGE = _code(1, "OFFSET_OUT_OF_RANGE", "the log starts later or ends earlier; reset the position")
INVALID_MESSAGE = _code(
    2, "INVALID_MESSAGE", "a message does not match its checksum; if it stays so, the log is damaged", retriable=True
)
UNKNOWN_TOPIC_OR_PARTITION = _code(
    3,
    "UNKNOWN_TOPIC_OR_PARTITION",
    "this broker does not know the topic or partition (yet); check the name",
    retriable=True,
    refresh_metadata=True,
)
INVALID_FETCH_SIZE = _code(4, "INVALID_FETCH_SIZE", "the fetch asked for a negative number of bytes")
LEADER_NOT_AVAILABLE = _code(
    5, "LEADER_NOT_AVAILABLE", "a leader is being elected", retriable=True, refresh_metadata=True
)
NOT_LEADER_FOR_PARTITION = _code(
    6, "NOT_LEADER_FOR_PARTITION", "another broker leads the partition by now", retriable=True, refresh_metadata=True
)
REQUEST_TIMED_OUT = _code(
    7, "REQUEST_TIMED_OUT", "the replicas did not confirm in time; the messages may be stored", retriable=True
)
BROKER_NOT_AVAILABLE = _code(
    8, "BROKER_NOT_AVAILABLE", "the broker in question is not alive", retriable=True, refresh_metadata=True
)
REPLICA_NOT_AVAILABLE = _code(
    9, "REPLICA_NOT_AVAILABLE", "a replica is down; the leader works all the same", retriable=True
)
MESSAGE_SIZE_TOO_LARGE = _code(
    10, "MESSAGE_SIZE_TOO_LARGE", "a message, compressed sets included, exceeds the broker's message.max.bytes"
)
STALE_CONTROLLER_EPOCH = _code(11, "STALE_CONTROLLER_EPOCH", "brokers tell each other this, clients should not see it")
OFFSET_METADATA_TOO_LARGE = _code(
    12, "OFFSET_METADATA_TOO_LARGE", "the text committed with the offset exceeds offset.metadata.max.bytes"
)
STALE_LEADER_EPOCH = _code(13, "STALE_LEADER_EPOCH", "brokers tell each other this, clients should not see it")
OFFSETS_LOAD_IN_PROGRESS = _code(
    14, "OFFSETS_LOAD_IN_PROGRESS", "the coordinator is still reading the offsets", retriable=True
)
CONSUMER_COORDINATOR_NOT_AVAILABLE = _code(
    15, "CONSUMER_COORDINATOR_NOT_AVAILABLE", "the group has no coordinator yet", retriable=True
)
NOT_COORDINATOR_FOR_CONSUMER = _code(
    16, "NOT_COORDINATOR_FOR_CONSUMER", "another broker coordinates the group", retriable=True
)
INVALID_TOPIC = _code(17, "INVALID_TOPIC", "the topic's name is not allowed, or the topic is internal")
MESSAGE_SET_SIZE_TOO_LARGE = _code(
    18, "MESSAGE_SET_SIZE_TOO_LARGE", "the batch exceeds the broker's segment size; send smaller batches"
)
NOT_ENOUGH_REPLICAS = _code(
    19, "NOT_ENOUGH_REPLICAS", "fewer replicas are in sync than min.insync.replicas; nothing was stored", retriable=True
)
NOT_ENOUGH_REPLICAS_AFTER_APPEND = _code(
    20,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "fewer replicas are in sync than min.insync.replicas; the messages are stored on those",
    retriable=True,
)

# 0.9: rights, and the coordinators of groups. None is retriable, since repeating the request does not help: after 22,
# 25 and 27 the member has to rejoin first, and after the others the user has to change something.
INVALID_REQUIRED_ACKS = _code(21, "INVALID_REQUIRED_ACKS", "brokers from 0.9 on take -1, 0 and 1 only")
ILLEGAL_GENERATION = _code(
    22,
    "ILLEGAL_GENERATION",
    "the group has another generation by now; the member has to rejoin, and may have lost its assignment",
)
INCONSISTENT_GROUP_PROTOCOL = _code(
    23,
    "INCONSISTENT_GROUP_PROTOCOL",
    "this member and the others have no assignment strategy in common, or the group is not one of consumers;"
    " configure one strategy for all members, or choose another group",
)
INVALID_GROUP_ID = _code(24, "INVALID_GROUP_ID", "the group's name is empty or not allowed; choose another name")
UNKNOWN_MEMBER_ID = _code(
    25,
    "UNKNOWN_MEMBER_ID",
    "the coordinator has removed the member, or never knew it; it has to join anew, and may have lost its assignment",
)
INVALID_SESSION_TIMEOUT = _code(
    26,
    "INVALID_SESSION_TIMEOUT",
    "the session timeout is outside of the broker's group.min.session.timeout.ms and group.max.session.timeout.ms",
)
REBALANCE_IN_PROGRESS = _code(
    27,
    "REBALANCE_IN_PROGRESS",
    "the group rebalances; the member has to rejoin and sync before such a request can succeed",
)
INVALID_COMMIT_OFFSET_SIZE = _code(
    28,
    "INVALID_COMMIT_OFFSET_SIZE",
    "the commit is larger than a message of the topic of the offsets may be; commit fewer partitions, or less metadata",
)
TOPIC_AUTHORIZATION_FAILED = _code(
    29, "TOPIC_AUTHORIZATION_FAILED", "this client has no right to the topic; grant it on the brokers"
)
GROUP_AUTHORIZATION_FAILED = _code(
    30, "GROUP_AUTHORIZATION_FAILED", "this client has no right to the group; grant it on the brokers"
)
CLUSTER_AUTHORIZATION_FAILED = _code(
    31, "CLUSTER_AUTHORIZATION_FAILED", "this client has no right to the cluster; grant it on the brokers"
)

# Later brokers: the codes with which they answer requests of this package.
UNSUPPORTED_VERSION = _code(
    35,
    "UNSUPPORTED_VERSION",
    "the broker does not take this version of the request any more, or does not convert the topic's messages to it;"
    " if it was a fetch, set message.downconversion.enable of the topic to true",
)
TOPIC_ALREADY_EXISTS = _code(36, "TOPIC_ALREADY_EXISTS", "delete the topic first, or choose another name")
INVALID_PARTITIONS = _code(37, "INVALID_PARTITIONS", "a topic has one partition at least, and can only get more")
INVALID_REPLICATION_FACTOR = _code(
    38, "INVALID_REPLICATION_FACTOR", "there are fewer live brokers than replicas, or the number is below 1"
)
NOT_CONTROLLER = _code(41, "NOT_CONTROLLER", "another broker is the controller by now", retriable=True)
INVALID_REQUEST = _code(
    42,
    "INVALID_REQUEST",
    "the broker's settings do not allow the request; topics are deleted only if delete.topic.enable=true is set",
)
POLICY_VIOLATION = _code(
    44, "POLICY_VIOLATION", "the brokers' create.topic.policy.class.name does not allow such a topic; its log says why"
)
REASSIGNMENT_IN_PROGRESS = _code(
    60, "REASSIGNMENT_IN_PROGRESS", "replicas of the topic are being moved; try again when that is done"
)
UNSUPPORTED_COMPRESSION_TYPE = _code(
    76,
    "UNSUPPORTED_COMPRESSION_TYPE",
    "the log has batches compressed with zstd, which brokers do not send to clients of this protocol version;"
    " let producers, or the topic's compression.type, use gzip, snappy or lz4, and seek past the batches in the log",
)
GROUP_MAX_SIZE_REACHED = _code(
    81, "GROUP_MAX_SIZE_REACHED", "the group has as many members as the broker's group.max.size allows"
)


_UNKNOWN_CODE = "the code is newer than this package; the error codes in Kafka's protocol guide explain it"


def error_code(number: int) -> ErrorCode:
    """Return the error code of a number. An unknown code is not retriable, and is named after its number."""
    known = _KNOWN.get(number)
    if known is not None:
        return known
    return ErrorCode(number, f"ERROR_{number}", False, False, _UNKNOWN_CODE)
