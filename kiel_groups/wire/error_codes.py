"""
Define Kafka's error codes: the number and name of each code, whether a retry may help, and a hint for the user.

Kafka 0.8.0 has the codes −1 to 11. 0.8.1 adds 12 and 13, 0.8.2 adds 14 to 20, 0.9 adds 21 to 31, and 133 is the last
code of 4.1. Codes that other modules compare with are constants. An unknown number comes from a newer or patched
broker, and becomes an ``ErrorCode``, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from kiel_groups.errors import BrokerError, OffsetOutOfRangeError, RequestTimeoutError, RetriableBrokerError
from kiel_groups.wire.primitives import FieldType


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """
    The outcome that a broker reports for a request, or for one partition, topic or group in the request.

    ``retriable`` is true if the same request may succeed later without a change by the user. ``refuses`` is true if the
    broker has certainly not executed the request, for example has not stored the record. After an error without
    ``refuses``, it is unknown whether the broker has executed the request.
    """

    number: int
    name: str
    retriable: bool
    hint: str
    refuses: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.number})"

    def exception(self, message: str) -> BrokerError:
        """Return the exception for this code. Its text has ``message``, and the code's name, number and hint."""
        if self.number == OFFSET_OUT_OF_RANGE.number:
            kind: type[BrokerError] = OffsetOutOfRangeError
        elif self.number == REQUEST_TIMED_OUT.number:
            kind = RequestTimeoutError
        else:
            kind = RetriableBrokerError if self.retriable else BrokerError
        return kind(f"{message}: {self}: {self.hint}", code=self.number)


_KNOWN: dict[int, ErrorCode] = {}


def _code(number: int, name: str, hint: str, *, retriable: bool = False, refuses: bool = True) -> ErrorCode:
    """Create an error code, and register it for ``error_code``."""
    code = _KNOWN[number] = ErrorCode(number, name, retriable, hint, refuses)
    return code


#: ``_retriable``: after this error, the same request may succeed later, perhaps at another broker. ``_unknown``: after
#: this error, it is unknown whether the broker has executed the request.
_retriable = partial(_code, retriable=True, refuses=False)
_unknown = partial(_code, refuses=False)

UNKNOWN = _retriable(-1, "UNKNOWN", "the broker failed in a way that it has no code for; its log says how")
NO_ERROR = _unknown(0, "NO_ERROR", "nothing is wrong")
OFFSET_OUT_OF_RANGE = _code(1, "OFFSET_OUT_OF_RANGE", "the log starts later or ends earlier; reset the position")
INVALID_MESSAGE = _code(
    2,
    "INVALID_MESSAGE",
    "a message does not match its checksum: if a fetch says so again and again, the log is damaged; or a record without"
    " a key was produced to a compacted topic",
    retriable=True,
)
UNKNOWN_TOPIC_OR_PARTITION = _retriable(
    3, "UNKNOWN_TOPIC_OR_PARTITION", "this broker does not know the topic or partition (yet); check the name"
)
_code(4, "INVALID_FETCH_SIZE", "the fetch asked for a negative number of bytes")
LEADER_NOT_AVAILABLE = _retriable(5, "LEADER_NOT_AVAILABLE", "a leader is being elected")
NOT_LEADER_FOR_PARTITION = _retriable(6, "NOT_LEADER_FOR_PARTITION", "another broker leads the partition by now")
REQUEST_TIMED_OUT = _retriable(
    7, "REQUEST_TIMED_OUT", "the replicas did not confirm in time; the messages may be stored"
)
_retriable(8, "BROKER_NOT_AVAILABLE", "the broker in question is not alive")
REPLICA_NOT_AVAILABLE = _retriable(9, "REPLICA_NOT_AVAILABLE", "a replica is down; the leader works all the same")
MESSAGE_SIZE_TOO_LARGE = _code(
    10, "MESSAGE_SIZE_TOO_LARGE", "a message, compressed sets included, exceeds the broker's message.max.bytes"
)
_BETWEEN_BROKERS = "brokers tell each other this, clients should not see it"
_unknown(11, "STALE_CONTROLLER_EPOCH", _BETWEEN_BROKERS)
OFFSET_METADATA_TOO_LARGE = _code(
    12, "OFFSET_METADATA_TOO_LARGE", "the text committed with the offset exceeds offset.metadata.max.bytes"
)
_unknown(13, "STALE_LEADER_EPOCH", _BETWEEN_BROKERS)
OFFSETS_LOAD_IN_PROGRESS = _retriable(14, "OFFSETS_LOAD_IN_PROGRESS", "the coordinator is still reading the offsets")
CONSUMER_COORDINATOR_NOT_AVAILABLE = _retriable(
    15, "CONSUMER_COORDINATOR_NOT_AVAILABLE", "the group has no coordinator yet"
)
NOT_COORDINATOR_FOR_CONSUMER = _retriable(16, "NOT_COORDINATOR_FOR_CONSUMER", "another broker coordinates the group")
INVALID_TOPIC = _code(17, "INVALID_TOPIC", "the topic's name is not allowed, or the topic is internal")
MESSAGE_SET_SIZE_TOO_LARGE = _code(
    18, "MESSAGE_SET_SIZE_TOO_LARGE", "the batch exceeds the broker's segment size; send smaller batches"
)
NOT_ENOUGH_REPLICAS = _code(
    19, "NOT_ENOUGH_REPLICAS", "fewer replicas are in sync than min.insync.replicas; nothing was stored", retriable=True
)
NOT_ENOUGH_REPLICAS_AFTER_APPEND = _retriable(
    20,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "fewer replicas are in sync than min.insync.replicas; the messages are stored on those",
)

# 0.9: rights, and the coordinators of groups. None is retriable, since repeating the request does not help: after 22,
# 25 and 27 the member has to rejoin first, and after the others the user has to change something.
_code(21, "INVALID_REQUIRED_ACKS", "brokers from 0.9 on take -1, 0 and 1 only")
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
_code(
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

# Later brokers: the codes with which they answer requests of this package, as far as a module tests for them.
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
NOT_CONTROLLER = _retriable(41, "NOT_CONTROLLER", "another broker is the controller by now")
_code(
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
NON_EMPTY_GROUP = _code(68, "NON_EMPTY_GROUP", "the group has members; stop them first")
GROUP_ID_NOT_FOUND = _code(69, "GROUP_ID_NOT_FOUND", "the coordinator has no group of this name; check it")
UNSUPPORTED_COMPRESSION_TYPE = _code(
    76,
    "UNSUPPORTED_COMPRESSION_TYPE",
    "the log has batches compressed with zstd, which brokers do not send to clients of this protocol version;"
    " let producers, or the topic's compression.type, use gzip, snappy or lz4, and seek past the batches in the log",
)
MEMBER_ID_REQUIRED = _code(79, "MEMBER_ID_REQUIRED", "a member joins again with the id that the coordinator gave it")
GROUP_MAX_SIZE_REACHED = _code(
    81, "GROUP_MAX_SIZE_REACHED", "the group has as many members as the broker's group.max.size allows"
)
INVALID_RECORD = _code(
    87, "INVALID_RECORD", "the topic's settings do not allow the record; in a compacted topic, each needs a key"
)

# The other codes of later brokers, up to 4.1. Some answer requests of this package; most answer requests that it does
# not send, and are here so that a broker's answer is never a bare number.
_SECURITY = "the broker expects another kind of login; let clients use a listener without one"
_TOKENS = "the request concerns delegation tokens, which this package does not use"
_TRANSACTIONS = "the request concerns transactions and idempotent producers, which this package does not use"
_NEW_GROUPS = "the request concerns groups of a protocol of Kafka 4, which this package does not use"
_CONTROLLERS = "the request concerns the cluster's controllers, which this package does not ask"
_SESSIONS = "the request concerns fetch sessions, which this package does not use"
_MOVED = "another broker leads the partition by now, or this one has not heard of it yet"
for _number, _name, _hint in (
    (32, "INVALID_TIMESTAMP", "the record's time differs from the broker's by more than the topic's settings allow"),
    (33, "UNSUPPORTED_SASL_MECHANISM", _SECURITY),
    (34, "ILLEGAL_SASL_STATE", _SECURITY),
    (39, "INVALID_REPLICA_ASSIGNMENT", "each partition needs replicas on brokers that exist, each of them once"),
    (40, "INVALID_CONFIG", "a setting of the topic has an unknown name or a value that is not allowed"),
    (43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", "the topic's messages have a format that cannot hold what was asked for"),
    (45, "OUT_OF_ORDER_SEQUENCE_NUMBER", _TRANSACTIONS),
    (46, "DUPLICATE_SEQUENCE_NUMBER", _TRANSACTIONS),
    (47, "INVALID_PRODUCER_EPOCH", _TRANSACTIONS),
    (48, "INVALID_TXN_STATE", _TRANSACTIONS),
    (49, "INVALID_PRODUCER_ID_MAPPING", _TRANSACTIONS),
    (50, "INVALID_TRANSACTION_TIMEOUT", _TRANSACTIONS),
    (52, "TRANSACTION_COORDINATOR_FENCED", _TRANSACTIONS),
    (53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _TRANSACTIONS),
    (54, "SECURITY_DISABLED", "the brokers have no authorizer.class.name"),
    (55, "OPERATION_NOT_ATTEMPTED", "another part of the request failed first; nothing was done for this one"),
    (57, "LOG_DIR_NOT_FOUND", "the broker has no log.dirs of this name"),
    (58, "SASL_AUTHENTICATION_FAILED", _SECURITY),
    (59, "UNKNOWN_PRODUCER_ID", _TRANSACTIONS),
    (61, "DELEGATION_TOKEN_AUTH_DISABLED", _TOKENS),
    (62, "DELEGATION_TOKEN_NOT_FOUND", _TOKENS),
    (63, "DELEGATION_TOKEN_OWNER_MISMATCH", _TOKENS),
    (64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", _TOKENS),
    (65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", _TOKENS),
    (66, "DELEGATION_TOKEN_EXPIRED", _TOKENS),
    (67, "INVALID_PRINCIPAL_TYPE", _TOKENS),
    (73, "TOPIC_DELETION_DISABLED", "topics are deleted only if the brokers have delete.topic.enable=true"),
    (82, "FENCED_INSTANCE_ID", "another member has joined with the same instance id; give each its own"),
    (84, "ELECTION_NOT_NEEDED", "the partition has the leader that it should have"),
    (85, "NO_REASSIGNMENT_IN_PROGRESS", "no replicas of the partition are being moved"),
    (86, "GROUP_SUBSCRIBED_TO_TOPIC", "members of the group read the topic; stop them first"),
    (90, "PRODUCER_FENCED", _TRANSACTIONS),
    (91, "RESOURCE_NOT_FOUND", "the request names something that does not exist"),
    (92, "DUPLICATE_RESOURCE", "the request names something twice"),
    (93, "UNACCEPTABLE_CREDENTIAL", _SECURITY),
    (94, "INCONSISTENT_VOTER_SET", _CONTROLLERS),
    (95, "INVALID_UPDATE_VERSION", _CONTROLLERS),
    (97, "PRINCIPAL_DESERIALIZATION_FAILURE", "brokers cannot tell each other who this client is; their logs say why"),
    (98, "SNAPSHOT_NOT_FOUND", _CONTROLLERS),
    (99, "POSITION_OUT_OF_RANGE", _CONTROLLERS),
    (101, "DUPLICATE_BROKER_REGISTRATION", _CONTROLLERS),
    (102, "BROKER_ID_NOT_REGISTERED", _CONTROLLERS),
    (104, "INCONSISTENT_CLUSTER_ID", "the broker belongs to another cluster than the request; check the addresses"),
    (105, "TRANSACTIONAL_ID_NOT_FOUND", _TRANSACTIONS),
    (109, "OFFSET_MOVED_TO_TIERED_STORAGE", "the broker has the offset in remote storage only"),
    (110, "FENCED_MEMBER_EPOCH", _NEW_GROUPS),
    (111, "UNRELEASED_INSTANCE_ID", _NEW_GROUPS),
    (112, "UNSUPPORTED_ASSIGNOR", _NEW_GROUPS),
    (113, "STALE_MEMBER_EPOCH", _NEW_GROUPS),
    (114, "MISMATCHED_ENDPOINT_TYPE", "the address is one of a controller; give those of brokers"),
    (115, "UNSUPPORTED_ENDPOINT_TYPE", "the address is one of a controller; give those of brokers"),
    (116, "UNKNOWN_CONTROLLER_ID", _CONTROLLERS),
    (117, "UNKNOWN_SUBSCRIPTION_ID", "the request concerns metrics of clients, which this package does not send"),
    (118, "TELEMETRY_TOO_LARGE", "the request concerns metrics of clients, which this package does not send"),
    (119, "INVALID_REGISTRATION", _CONTROLLERS),
    (121, "INVALID_RECORD_STATE", _NEW_GROUPS),
    (124, "FENCED_STATE_EPOCH", _NEW_GROUPS),
    (125, "INVALID_VOTER_KEY", _CONTROLLERS),
    (126, "DUPLICATE_VOTER", _CONTROLLERS),
    (127, "VOTER_NOT_FOUND", _CONTROLLERS),
    (128, "INVALID_REGULAR_EXPRESSION", _NEW_GROUPS),
    (129, "REBOOTSTRAP_REQUIRED", "the broker belongs to another cluster by now; connect anew"),
    (130, "STREAMS_INVALID_TOPOLOGY", _NEW_GROUPS),
    (131, "STREAMS_INVALID_TOPOLOGY_EPOCH", _NEW_GROUPS),
    (132, "STREAMS_TOPOLOGY_FENCED", _NEW_GROUPS),
):
    _code(_number, _name, _hint)
for _number, _name, _hint in (
    (51, "CONCURRENT_TRANSACTIONS", _TRANSACTIONS),
    (70, "FETCH_SESSION_ID_NOT_FOUND", _SESSIONS),
    (71, "INVALID_FETCH_SESSION_EPOCH", _SESSIONS),
    (75, "UNKNOWN_LEADER_EPOCH", _MOVED),
    (78, "OFFSET_NOT_AVAILABLE", "the new leader has not heard from its replicas yet"),
    (88, "UNSTABLE_OFFSET_COMMIT", "a transaction that commits the offsets is not over"),
    (89, "THROTTLING_QUOTA_EXCEEDED", "the client asks more often than its quota allows"),
    (106, "FETCH_SESSION_TOPIC_ID_ERROR", _SESSIONS),
    (122, "SHARE_SESSION_NOT_FOUND", _NEW_GROUPS),
    (123, "INVALID_SHARE_SESSION_EPOCH", _NEW_GROUPS),
    (133, "SHARE_SESSION_LIMIT_REACHED", _NEW_GROUPS),
    (56, "KAFKA_STORAGE_ERROR", "a disk of the broker failed; its log says which"),
    (72, "LISTENER_NOT_FOUND", "the leader has no listener of the name that the asked broker has"),
    (74, "FENCED_LEADER_EPOCH", _MOVED),
    (80, "PREFERRED_LEADER_NOT_AVAILABLE", "the first replica of the partition is not in sync"),
    (83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", "no replica that may lead the partition is alive"),
    (100, "UNKNOWN_TOPIC_ID", "the broker does not know the topic (yet); it may have been deleted"),
    (103, "INCONSISTENT_TOPIC_ID", "the topic was deleted and created again"),
):
    _retriable(_number, _name, _hint)
for _number, _name, _hint in (
    (77, "STALE_BROKER_EPOCH", _BETWEEN_BROKERS),
    (96, "FEATURE_UPDATE_FAILED", _CONTROLLERS),
    (107, "INELIGIBLE_REPLICA", _BETWEEN_BROKERS),
    (108, "NEW_LEADER_ELECTED", _BETWEEN_BROKERS),
    (120, "TRANSACTION_ABORTABLE", _TRANSACTIONS),
):
    _unknown(_number, _name, _hint)


_UNKNOWN_CODE = "the code is newer than this package; the error codes in Kafka's protocol guide explain it"


def error_code(number: int) -> ErrorCode:
    """Return the error code with this number. An unknown code is not retriable, and is named ``ERROR_<number>``."""
    known = _KNOWN.get(number)
    if known is not None:
        return known
    return ErrorCode(number, f"ERROR_{number}", False, _UNKNOWN_CODE)


#: The type of an error code in an answer.
ERROR: Final = FieldType[ErrorCode](
    lambda reader: error_code(reader.int16()), lambda writer, error: writer.int16(error.number), 2
)
