"""Encode and parse a group's znodes (members, assignments, state, settings, owners, offsets), and parse Kafka's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from six import ensure_binary, ensure_text

from kiel_groups.config import PROTOCOLS, HostPort, check_capacity, check_name, check_rack
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.topic_patterns import LONGEST_PATTERN, PatternMatch, is_storable
from kiel_groups.model import INTERNAL_TOPICS, MemberId, Slot, TopicPartition, numbers_by_topic


@dataclass(frozen=True, slots=True)
class Znode:
    """
    One znode, as it was read.

    ``session`` is the session that an ephemeral znode belongs to, or 0 for a persistent znode. ``created_ms`` and
    ``modified_ms`` are epoch milliseconds on the clock of the ZooKeeper server that led at the time. ``czxid`` and
    ``mzxid`` are the ids of the transactions that created and last wrote the znode. These ids ascend over all znodes.
    ``version`` is the number of writes of the znode's data. ``closed`` is true if the znode's ACL refuses this reader.
    Then neither the other fields nor the children are known.
    """

    data: bytes = b""
    session: int = 0
    created_ms: int = 0
    modified_ms: int = 0
    closed: bool = False
    czxid: int = 0
    mzxid: int = 0
    version: int = 0


#: Path below the chroot → znode. A snapshot is not atomic: each level of the tree is read after the level above it.
Snapshot: TypeAlias = Mapping[str, Znode]


# The data of a group's znodes: values, and how they are encoded and parsed.
#
# All data is JSON that an operator can read with zkCli's ``get``, except owners and offsets, which are plain text as
# Kafka 0.8 writes them. Parsing is strict: any other data raises ProtocolError, which names the path, and the caller
# decides what to do (an unreadable member is left out, an unreadable assignment is "unknown").


PublicationState = str
PUBLISHING: PublicationState = "publishing"
DONE: PublicationState = "done"

_VERSION = 1

#: The limits of Kafka's protocol: an int64 and an int32.
LARGEST_OFFSET = 2**63 - 1
LARGEST_PARTITION = 2**31 - 1


def make_member_id(group: str, host: str, started_ms: int, session_id: int) -> MemberId:
    """
    Return a member id in the form and charset of Java consumer ids. The id ends in the whole session id, in hex.

    ZooKeeper never reuses a session id, so member ids are unique.
    """
    legal_host = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in host
    )
    return f"{group}_{legal_host}-{started_ms}-{unsigned_hex(session_id)}"


def unsigned_hex(session_id: int) -> str:
    """Return a session id, a signed int64, as unsigned hex: the form that ZooKeeper's tools print."""
    return f"{session_id & 0xFFFFFFFFFFFFFFFF:x}"


def encode_object(fields: Mapping[str, Any]) -> bytes:
    """Encode a JSON object, with sorted keys and no blanks between its parts."""
    return ensure_binary(json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def named_fields(value: Any, **renamed: str) -> dict[str, Any]:
    """Return the values of a dataclass by their names in JSON. ``renamed`` has the JSON names of renamed fields."""
    return {renamed.get(each.name, each.name): getattr(value, each.name) for each in fields_of(value)}


def parse_object(data: bytes, path: str) -> dict[str, Any]:
    """Parse a JSON object. Raise ProtocolError if the data is not a JSON object."""
    try:
        fields = json.loads(ensure_text(data))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{path}: not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"{path}: a JSON object was expected, found {type(fields).__name__}")
    return fields


def check_version(fields: Mapping[str, Any], known: int, path: str) -> None:
    """Raise ProtocolError if the data has another version than ``known``. Data without a version has version 1."""
    if (version := fields.get("version", 1)) != known:
        raise ProtocolError(f"{path}: data of version {known} was expected, found version {version!r:.40}")


def typed_field(fields: Mapping[str, Any], name: str, kind: type, path: str) -> Any:
    """Return a field of a JSON object. Raise ProtocolError if the field is missing or has another type."""
    value = fields.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"{path}: field {name!r} should be {kind.__name__}, found {value!r:.80}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """
    A member's description of itself, the data of its member znode.

    ``session_timeout_ms`` is the timeout that the server granted. ``instance_id`` is the name by which a static member
    keeps its slot, or None for a dynamic member. The znode has ``capacity`` and ``rack`` only if they were set.
    ``settings`` has the settings that differ from their defaults (``GroupConfig.changed_settings``), for operators.
    ``pattern`` is the regular expression of a subscription by pattern, whose ``subscription`` is empty: a leader of a
    version that knows no patterns gives such a member no partitions.
    """

    member_id: MemberId
    session_timeout_ms: int
    subscription: tuple[str, ...]
    host: str = ""
    pid: int = 0
    client: str = "tornado"
    started_at_ms: int = 0
    instance_id: str | None = None
    capacity: float = 1.0
    rack: str | None = None
    settings: tuple[tuple[str, int], ...] = ()
    pattern: str | None = None

    @property
    def subscribes(self) -> bool:
        """Whether the member subscribes to topics or to a pattern. A member that leaves first drops both."""
        return bool(self.subscription or self.pattern)

    def with_matches(self, state: GroupState | None) -> MemberInfo:
        """Return the member with the topics that its pattern matches in a plan, if it has a pattern."""
        match = None if state is None or self.pattern is None else state.patterns.get(self.pattern)
        return self if match is None else replace(self, subscription=match.topics)

    @property
    def slot(self) -> Slot:
        """The key of this member in the plan: the instance id if the member has one, or else the member id."""
        return self.instance_id or self.member_id

    def encode(self) -> bytes:
        found = named_fields(self, started_at_ms="started_at")
        del found["member_id"]
        found |= {"subscription": sorted(self.subscription), "settings": dict(self.settings)}
        unset: dict[str, object] = {"capacity": 1, "rack": None, "settings": {}, "pattern": None}
        given = {name: value for name, value in found.items() if name not in unset or value != unset[name]}
        return encode_object({"version": _VERSION, **given})

    @classmethod
    def parse(cls, member_id: MemberId, data: bytes, path: str) -> MemberInfo:
        fields = parse_object(data, path)
        topics = typed_field(fields, "subscription", list, path)
        instance_id = fields.get("instance_id")
        # Nothing depends on the settings, so invalid settings are no reason to leave the member out.
        settings = fields["settings"] if isinstance(fields.get("settings"), dict) else {}
        pattern = None if fields.get("pattern") is None else typed_field(fields, "pattern", str, path)
        if pattern is not None and not is_storable(pattern):
            raise ProtocolError(f"{path}: field 'pattern' should have 1 to {LONGEST_PATTERN} whole characters")
        try:
            for topic in topics:
                check_name(topic, "subscription")
            if instance_id is not None:
                check_name(instance_id, "instance_id")
            capacity, rack = check_capacity(fields.get("capacity", 1.0)), check_rack(fields.get("rack"))
        except ConfigError as error:
            raise ProtocolError(f"{path}: {error}") from error
        return cls(
            member_id=member_id,
            session_timeout_ms=typed_field(fields, "session_timeout_ms", int, path),
            subscription=tuple(topics),
            host=str(fields.get("host", "")),
            pid=fields["pid"] if isinstance(fields.get("pid"), int) else 0,
            client=str(fields.get("client", "")),
            started_at_ms=fields["started_at"] if isinstance(fields.get("started_at"), int) else 0,
            instance_id=instance_id,
            capacity=capacity,
            rack=rack,
            settings=tuple((name, value) for name, value in settings.items() if isinstance(value, int)),
            pattern=pattern,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """
    The state of the group's latest plan: the data of the ``allocation`` znode.

    ``partitions`` counts the assigned partitions, and ``members`` counts the members with a subscription.
    ``unassigned`` has the number of unassigned partitions by reason, and ``unassigned_names`` has the names of the
    first hundred of these partitions. ``fallback`` describes what replaced the plan of a failed allocator, or is "" if
    the allocator did not fail. ``request_ms`` is the time of the newest operator's request that a plan has answered;
    see ``PlanRequest``. ``patterns`` has what each pattern of a member matches.
    """

    generation: int
    state: PublicationState
    leader: MemberId
    allocator: str = ""
    cause: str = ""
    members: int = 0
    partitions: int = 0
    unassigned: Mapping[str, int] = field(default_factory=dict)
    unassigned_names: tuple[str, ...] = ()
    fallback: str = ""
    created_at_ms: int = 0
    request_ms: int | None = None
    patterns: Mapping[str, PatternMatch] = field(default_factory=dict)

    def encode(self) -> bytes:
        found = named_fields(self, created_at_ms="created_at", request_ms="rebalance")
        if self.request_ms is None:
            del found["rebalance"]
        found["patterns"] = {pattern: match._asdict() for pattern, match in self.patterns.items()}
        if not self.patterns:
            del found["patterns"]
        return encode_object({"version": _VERSION, **found})

    @classmethod
    def parse(cls, data: bytes, path: str) -> GroupState:
        fields = parse_object(data, path)
        check_version(fields, _VERSION, path)
        state = typed_field(fields, "state", str, path)
        if state not in (PUBLISHING, DONE):
            raise ProtocolError(f"{path}: field 'state' should be 'publishing' or 'done', found {state!r:.80}")
        unassigned = fields.get("unassigned")
        names = fields.get("unassigned_names")
        return cls(
            generation=typed_field(fields, "generation", int, path),
            state=state,
            leader=typed_field(fields, "leader", str, path),
            allocator=str(fields.get("allocator", "")),
            cause=str(fields.get("cause", "")),
            members=fields["members"] if isinstance(fields.get("members"), int) else 0,
            partitions=fields["partitions"] if isinstance(fields.get("partitions"), int) else 0,
            unassigned=unassigned if isinstance(unassigned, dict) else {},
            unassigned_names=tuple(names) if isinstance(names, list) else (),
            fallback=str(fields.get("fallback", "")),
            created_at_ms=fields["created_at"] if isinstance(fields.get("created_at"), int) else 0,
            request_ms=fields["rebalance"] if isinstance(fields.get("rebalance"), int) else None,
            patterns=_matches(fields.get("patterns")),
        )


def _matches(patterns: object) -> dict[str, PatternMatch]:
    """Return what patterns match, from a group state. Leave out invalid entries, as for a pattern not compared yet."""
    listed = patterns.items() if isinstance(patterns, dict) else ()
    return {
        pattern: PatternMatch(tuple(topics), str(match.get("problem", "")))
        for pattern, match in listed
        if isinstance(match, dict)
        and isinstance(topics := match.get("topics"), list)
        and all(isinstance(topic, str) for topic in topics)
    }


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """
    The partitions that the member of one slot must own.

    ``generation`` is the generation that last changed the assignment. ``member_id`` names the member that filled the
    slot at that time. ``away_since_ms`` is the time when a leader first found that a static member had left, in
    milliseconds since 1970, or None while the slot has a member.
    """

    generation: int
    member_id: MemberId
    partitions: frozenset[TopicPartition]
    away_since_ms: int | None = None

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"generation": self.generation, "for": self.member_id}
        fields["partitions"] = numbers_by_topic(sorted(self.partitions))
        if self.away_since_ms is not None:
            fields["away_since"] = self.away_since_ms
        return encode_object(fields)

    @classmethod
    def parse(cls, data: bytes, path: str) -> MemberAssignment:
        fields = parse_object(data, path)
        return cls(
            generation=typed_field(fields, "generation", int, path),
            member_id=typed_field(fields, "for", str, path),
            partitions=frozenset(_partitions(typed_field(fields, "partitions", dict, path), path)),
            away_since_ms=None if fields.get("away_since") is None else typed_field(fields, "away_since", int, path),
        )


def _partitions(topics: Mapping[str, Any], path: str) -> Iterable[TopicPartition]:
    for topic, numbers in topics.items():
        if not isinstance(numbers, list) or not all(
            type(number) is int and 0 <= number <= LARGEST_PARTITION for number in numbers
        ):
            raise ProtocolError(f"{path}: partitions of topic {topic!r:.80} should be numbers, found {numbers!r:.80}")
        for number in numbers:
            yield TopicPartition(topic, number)


class SettingDifference(NamedTuple):
    """A setting that has different values in two members."""

    setting: str
    own: str
    other: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The settings that all members of a group must agree on, as the first member wrote them."""

    store: str
    mode: str
    auto_offset_reset: str

    def encode(self) -> bytes:
        return encode_object({"version": _VERSION, **named_fields(self)})

    @classmethod
    def parse(cls, data: bytes, path: str) -> GroupSettings:
        found = parse_object(data, path)
        return cls(**{each.name: typed_field(found, each.name, str, path) for each in fields_of(cls)})

    def differences(self, other: GroupSettings) -> list[SettingDifference]:
        """Return the settings that have different values here (``own``) and in ``other``."""
        return [
            SettingDifference(name, getattr(self, name), getattr(other, name))
            for name in named_fields(self)
            if getattr(self, name) != getattr(other, name)
        ]


def encode_consumer_id(subscription: Iterable[str], started_ms: int, pattern: str | None = None) -> bytes:
    """
    Encode the consumer id znode as Kafka 0.8 reads it. A pattern is a white list there.

    Kafka's JSON parser reads every number as an int32, so the timestamp is a string.
    """
    topics = dict.fromkeys(sorted(subscription) if pattern is None else [pattern], 1)
    kind = "static" if pattern is None else "white_list"
    return encode_object({"version": 1, "subscription": topics, "pattern": kind, "timestamp": str(started_ms)})


def encode_owner(member_id: MemberId) -> bytes:
    """Encode an owner znode as Kafka 0.8 reads it: a consumer id, a dash, and a thread index, here always 0."""
    return ensure_binary(f"{member_id}-0")


def parse_owner(data: bytes, path: str) -> MemberId:
    """
    Return the member that an owner znode names, without the thread index. Raise ProtocolError if the data is invalid.
    """
    member_id, dash, thread = ensure_text(data, errors="replace").rpartition("-")
    if not dash or not member_id or whole_number(thread, LARGEST_PARTITION) is None:
        raise ProtocolError(f"{path}: a consumer id and the index of a thread were expected, found {data[:80]!r}")
    return member_id


def encode_offset(offset: int) -> bytes:
    """Encode the next offset as a plain decimal number. Newlines, blanks or quotes would break Kafka's own tools."""
    return ensure_binary(str(offset))


def parse_offset(data: bytes, path: str) -> int:
    """
    Return the offset in an offset znode, which Kafka's tools write, too. Raise ProtocolError if the data is invalid.
    """
    text = ensure_text(data, errors="replace")
    offset = whole_number(text, LARGEST_OFFSET)
    if offset is None:
        raise ProtocolError(f"{path}: a decimal offset was expected, found {text[:40]!r}")
    return offset


def whole_number(text: str, largest: int = LARGEST_PARTITION) -> int | None:
    """Parse a decimal number from 0 to ``largest``. Return None for any other text, such as thousands of digits."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(largest)) or int(text) > largest:
        return None
    return int(text)


@dataclass(frozen=True, slots=True)
class JavaSubscription:
    """
    The topics that a Java consumer subscribes to.

    Args:
        names: The names of topics, or the regular expression if ``kind`` is not ``static``.
        kind: ``static``; ``white_list`` for all topics that the expression matches; or ``black_list`` for all others.
    """

    names: tuple[str, ...]
    kind: str

    @classmethod
    def parse(cls, data: bytes, path: str) -> JavaSubscription:
        """Parse the consumer's znode under ``ids``. Raise ProtocolError if the data is invalid."""
        fields = parse_object(data, path)
        names = typed_field(fields, "subscription", dict, path)
        return cls(tuple(sorted(names)), str(fields.get("pattern")))

    @property
    def is_pattern(self) -> bool:
        """Whether the consumer subscribes by a regular expression."""
        return self.kind in ("white_list", "black_list")

    @property
    def _compiled(self) -> re.Pattern[str] | None:
        """The regular expression, if ``java_pattern`` compiles it. Java writes one: several are another program's."""
        is_short = len(self.names) == 1 and len(self.names[0]) <= _LONGEST_PATTERN
        return java_pattern(self.names[0]) if is_short else None

    @property
    def unevaluated(self) -> str:
        """The start of the regular expression, if it is not evaluated, or else ""."""
        is_evaluated = not self.is_pattern or self._compiled is not None
        return "" if is_evaluated else ", ".join(name[:_LONGEST_PATTERN] for name in self.names[:_MOST_SHOWN])

    def topics(self, existing: Iterable[str]) -> tuple[str, ...]:
        """
        Return the topics of the subscription in ascending order, or () if its regular expression is not evaluated.

        Args:
            existing: The names of topics that exist. The result of a regular expression has no other topics.
        """
        if not self.is_pattern:
            return self.names
        if (pattern := self._compiled) is None:
            return ()
        is_listed = self.kind == "white_list"
        return tuple(
            topic
            for topic in sorted(frozenset(existing) - INTERNAL_TOPICS)
            if (pattern.fullmatch(topic) is not None) is is_listed
        )


# The part of Java's regular expressions that ``java_pattern`` evaluates, which means the same in Python: characters of
# topic names, classes of them, quantifiers, alternatives, and one group in each alternative.
_CHARACTER = r"(?:[\w.-]|\\[.dw-]|\[\^?(?:[\w.](?:-[\w.])?)+-?\])"
_SEQUENCE = rf"(?:{_CHARACTER}[*+?]?)*"
_ALTERNATIVE = re.compile(rf"\^?{_SEQUENCE}(?:\({_SEQUENCE}(?:\|{_SEQUENCE})*\){_SEQUENCE})?\$?(?:\||\Z)", re.ASCII)

#: The longest pattern, and the most quantifiers and groups in an alternative. A comparison takes time in proportion to
#: the length of the topic's name to the power of this number.
_LONGEST_PATTERN, _MOST_CHOICES = 500, 3

#: How many of several patterns are shown.
_MOST_SHOWN = 3


@lru_cache(maxsize=1_000)
def java_pattern(text: str) -> re.Pattern[str] | None:
    """
    Compile the regular expression of a Java consumer of Kafka 0.8, which must match whole names of topics.

    Return None for an expression that might take too long, or that has another meaning in Python. Every client of
    ZooKeeper can write one.
    """
    text = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    whole = text[1:-1] if re.fullmatch(r"\([^()]*\)", text) else text
    at = 0
    while at < len(whole) <= _LONGEST_PATTERN:
        found = _ALTERNATIVE.match(whole, at)
        if found is None or len(re.findall(r"[*+?(]", found[0])) > _MOST_CHOICES:
            return None
        at = found.end()
    try:
        return re.compile(whole, re.ASCII) if at == len(whole) else None
    except re.error:
        return None


def parse_topic(data: bytes, path: str) -> tuple[int, ...]:
    """
    Return the partition numbers of a topic, ascending, from its znode under ``/brokers/topics``.

    Raises:
        ProtocolError: The znode's data is invalid.
    """
    partitions = typed_field(parse_object(data, path), "partitions", dict, path)
    numbers = [whole_number(text, LARGEST_PARTITION) for text in partitions]
    found = [number for number in numbers if number is not None]
    if len(found) < len(numbers):
        raise ProtocolError(f"{path}: partition numbers were expected, found {sorted(partitions)[:5]!r:.200}")
    return tuple(sorted(found))


def parse_replicas(data: bytes, path: str) -> dict[int, tuple[int, ...]]:
    """
    Return the replicas of each partition of a topic, from the topic's znode.

    The result lacks partitions without a valid list of replicas.

    Raises:
        ProtocolError: The znode's data is invalid.
    """
    parse_topic(data, path)
    replicas = {int(text): its for text, its in parse_object(data, path)["partitions"].items()}
    listed = {number: tuple(its) for number, its in replicas.items() if isinstance(its, list) and its}
    return {number: its for number, its in listed.items() if all(type(broker) is int for broker in its)}


def parse_preferred_leaders(data: bytes, path: str) -> dict[int, int]:
    """Return the preferred leader of each partition of a topic, which is the first replica, from the topic's znode."""
    return {number: replicas[0] for number, replicas in parse_replicas(data, path).items()}


def parse_broker(data: bytes, path: str, protocol: str = PROTOCOLS[0]) -> HostPort:
    """
    Return the address of a broker's listener for this protocol, from the broker's znode under ``/brokers/ids``.

    Raises:
        ProtocolError: The data is invalid, or the broker has no such listener.
    """
    fields = parse_object(data, path)
    if protocol != PROTOCOLS[0] or fields.get("host") is None:
        # Without a listener in plain text, the host is null.
        listeners = parse_listeners(data, path)
        if protocol in listeners:
            return listeners[protocol]
        if listeners or protocol != PROTOCOLS[0]:
            others = ", ".join(f"{name} at {address}" for name, address in listeners.items()) or "none but plain text"
            raise ProtocolError(f"{path}: the broker has no listener for {protocol}, but {others} (docs/security.rst)")
    address = HostPort(typed_field(fields, "host", str, path), typed_field(fields, "port", int, path))
    if not address.host or not 0 < address.port < 65536:
        raise ProtocolError(f"{path}: a host and a port from 1 to 65535 were expected, found {address}")
    return address


def _endpoints(data: bytes, path: str) -> list[tuple[str, HostPort]]:
    """Return the protocol and the address of each listener, from a broker's znode. Brokers of 0.8 list none."""
    fields = parse_object(data, path)
    listed, protocols = fields.get("endpoints"), fields.get("listener_security_protocol_map")
    texts = [each.partition("://") for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    parts = [(name, address.rpartition(":")) for name, _, address in texts]
    numbered = [(name, host.strip("[]"), whole_number(port, 65_535)) for name, (host, _, port) in parts if host]
    by_name = protocols if isinstance(protocols, dict) else {}
    return [(str(by_name.get(name, name)), HostPort(host, port)) for name, host, port in numbered if port]


def parse_endpoints(data: bytes, path: str) -> frozenset[HostPort]:
    """Return the addresses of all listeners of a broker, from its znode. Brokers of 0.8 have one listener."""
    found = frozenset(address for _, address in _endpoints(data, path))
    return found or frozenset({parse_broker(data, path)})


def parse_listeners(data: bytes, path: str) -> dict[str, HostPort]:
    """Return the address of the first listener of each protocol, from a broker's znode. Brokers of 0.8 list none."""
    found: dict[str, HostPort] = {}
    for protocol, address in _endpoints(data, path):
        found.setdefault(protocol, address)
    return found


def parse_broker_rack(data: bytes, path: str) -> str | None:
    """
    Return the rack of a broker, from its znode, or None if the znode names no rack. Kafka before 0.10 knows no racks.
    """
    rack = parse_object(data, path).get("rack")
    return rack if isinstance(rack, str) and rack else None


def parse_broker_version(data: bytes, path: str) -> int:
    """Return the version of a broker's znode: 1 up to Kafka 0.8.2, and a larger number from 0.9 on."""
    version: int = typed_field(parse_object(data, path), "version", int, path)
    return version


def parse_leader(data: bytes, path: str) -> int:
    """Return the broker id of a partition's leader, from its ``state`` znode, or −1 if the partition has no leader."""
    leader: int = typed_field(parse_object(data, path), "leader", int, path)
    return leader


@dataclass(frozen=True, slots=True)
class FirstOffsets:
    """
    The offsets at which a group began to read a topic.

    ``created`` is the topic's creation zxid, and ``at_ms`` is the time of the decision in milliseconds since 1970.
    ``offsets`` has the first offset of each partition, by its number. A partition whose leader returned no offset is
    missing.
    """

    created: int
    at_ms: int
    offsets: Mapping[int, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode the offsets as a list by partition, with null for an unknown offset, so that many fit into a znode."""
        listed = [self.offsets.get(number) for number in range(max(self.offsets, default=-1) + 1)]
        return encode_object({"version": _VERSION, "created": self.created, "at": self.at_ms, "offsets": listed})

    @classmethod
    def parse(cls, data: bytes, path: str) -> FirstOffsets:
        """Parse the data of the znode. Raise ProtocolError if the data is invalid."""
        fields = parse_object(data, path)
        listed = typed_field(fields, "offsets", list, path)
        if len(listed) > LARGEST_PARTITION or not all(each is None or _is_offset(each) for each in listed):
            raise ProtocolError(f"{path}: field 'offsets' should have offsets, found {listed[:5]!r}")
        return cls(
            typed_field(fields, "created", int, path),
            typed_field(fields, "at", int, path),
            {number: offset for number, offset in enumerate(listed) if offset is not None},
        )


@dataclass(frozen=True, slots=True)
class OrderNotice:
    """
    The announcement of the offsets that an operator's command orders, the data of the ``orders`` znode.

    ``order_id`` is part of the names of the order's znodes. ``topics`` are the topics of the ordered partitions. ``by``
    names the command for people. ``at_ms`` is the time of the order, in milliseconds since 1970.
    """

    order_id: str
    topics: tuple[str, ...]
    by: str = ""
    at_ms: int = 0

    def encode(self) -> bytes:
        return encode_object(
            {"version": _VERSION, "order": self.order_id, "topics": self.topics, "by": self.by, "at": self.at_ms}
        )

    @classmethod
    def parse(cls, data: bytes, path: str) -> OrderNotice:
        """Parse the data of the znode. Raise ProtocolError if the data is invalid."""
        fields = parse_object(data, path)
        check_version(fields, _VERSION, path)
        topics = typed_field(fields, "topics", list, path)
        try:
            order_id = check_name(typed_field(fields, "order", str, path), "order")
            names = tuple(check_name(topic, "topics") for topic in topics)
        except ConfigError as error:
            raise ProtocolError(f"{path}: {error}") from error
        at_ms = fields.get("at")
        return cls(order_id, names, str(fields.get("by", "")), at_ms if isinstance(at_ms, int) else 0)


@dataclass(frozen=True, slots=True)
class OrderedOffset:
    """
    The next offset that an operator orders for one partition: the data of an order's znode.

    ``created`` is the creation zxid of the topic whose log the offset belongs to.
    """

    offset: int
    created: int

    def encode(self) -> bytes:
        return encode_object({"version": _VERSION, "offset": self.offset, "created": self.created})

    @classmethod
    def parse(cls, data: bytes, path: str) -> OrderedOffset:
        """Parse the data of the znode. Raise ProtocolError if the data is invalid."""
        fields = parse_object(data, path)
        check_version(fields, _VERSION, path)
        offset = fields.get("offset")
        if not _is_offset(offset):
            raise ProtocolError(f"{path}: field 'offset' should be an offset, found {offset!r:.80}")
        return cls(offset, typed_field(fields, "created", int, path))


def _is_offset(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= LARGEST_OFFSET
