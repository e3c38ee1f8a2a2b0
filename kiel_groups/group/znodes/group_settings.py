"""Encode and parse the settings, weights and requests that operators write for a group, and the group's history."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeAlias

from kiel_groups.allocators import named_allocator
from kiel_groups.allocators.registry import ENTRY_POINTS
from kiel_groups.config import DebounceConfig, check_name, check_rack, is_number
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.contents import (
    LARGEST_PARTITION,
    GroupSettings,
    encode_object,
    parse_object,
    typed_field,
    whole_number,
)
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import LARGEST_BYTES, Create, Delete, Operation
from kiel_groups.model import MemberId, Slot, TopicPartition

# Settings of a group that operators may change while it runs: fields of its ``config`` znode that the leader follows.
#
# The same znode has the settings that all members must agree on (see ``contents.GroupSettings``). The dynamic fields
# take precedence over the settings that the leader's process was started with.


_DURATIONS = tuple(field.name for field in fields(DebounceConfig))
#: The other fields of the ``config`` znode: its version, and the settings that all members agree on.
_AGREED = ("version", *(field.name for field in fields(GroupSettings)))


class PlanRequest(NamedTuple):
    """
    An operator's request for a plan.

    ``at_ms`` is the time of the request, in milliseconds since 1970. A later request has a later time. ``reason``
    becomes a cause of the plan. The leader answers a request with a new generation, even if no partition moves; see
    ``GroupState.request_ms``.
    """

    at_ms: int
    reason: str


#: The most characters of a request's reason.
LONGEST_REASON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicConfig:
    """
    The dynamic settings of a group. If a field is None or empty, the leader's own setting applies.

    ``allocator`` is a name that ``named_allocator`` knows. ``debounce`` has fields of ``DebounceConfig``, in
    milliseconds. ``static_grace_ms`` is how long the slot of an absent static member is kept. Slots in ``drained`` get
    no partitions. ``broker_racks`` has the racks of brokers by id, because brokers before Kafka 0.10 register no rack.
    ``request`` is the last request for a plan, from the znode's field ``rebalance``. ``unknown`` has the field names
    that this version does not know. A later version may know these names, so ``parse`` does not refuse these names.
    """

    allocator: str | None = None
    debounce: tuple[tuple[str, int], ...] = ()
    static_grace_ms: int | None = None
    drained: frozenset[Slot] = frozenset()
    broker_racks: tuple[tuple[int, str], ...] = ()
    request: PlanRequest | None = None
    unknown: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: bytes, path: str) -> DynamicConfig:
        """
        Read a group's ``config`` znode.

        Raises:
            ProtocolError: The data is not a JSON object, or a field is invalid. The text names the field and what was
                expected.
        """
        found = parse_object(data, path)
        try:
            return cls(
                allocator=_allocator(found.get("allocator")),
                debounce=_debounce(found.get("debounce")),
                static_grace_ms=_milliseconds(found.get("static_grace_ms"), "static_grace_ms"),
                drained=_drained(found.get("drained")),
                broker_racks=_broker_racks(found.get("broker_racks")),
                request=_request(found.get("rebalance")),
                unknown=tuple(sorted(found.keys() - {*_AGREED, *_FIELDS, "rebalance"})),
            )
        except ConfigError as error:
            raise ProtocolError(f"{path}: {error}") from error

    @property
    def overrides(self) -> dict[str, Any]:
        """The allocator, grace and debounce that override the leader's own, by names such as ``debounce.quiet_ms``."""
        given = {"allocator": self.allocator, "static_grace_ms": self.static_grace_ms}
        given |= {f"debounce.{name}": value for name, value in self.debounce}
        return {name: value for name, value in given.items() if value is not None}

    def debounced(self, own: DebounceConfig) -> DebounceConfig:
        """Return the leader's own debounce with the fields that operators have set for the group."""
        return replace(own, **dict(self.debounce))

    def unknown_field_hints(self) -> Iterator[str]:
        """Yield a text for each unknown field, with the known field that was probably meant, if any."""
        for name in self.unknown:
            near = get_close_matches(name[:80], _FIELDS, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(_FIELDS)}"
            yield f"field {name!r:.80} means nothing here; {meant}"

    def unknown_drained(self, slots: Collection[Slot]) -> tuple[Slot, ...]:
        """
        Return the drained slots that are probably misspelt: slots that are neither in ``slots`` nor departed members.

        A member id ends in the id of its session. The id of a departed member may stay in the list. But a drained id
        that ends in the session id of a member in ``slots``, and differs from that member's id, is a misspelling.
        """
        return tuple(sorted(self.drained.difference(slots, _departed(self.drained, slots))))


def forget_departed(fields: Mapping[str, Any], members: Collection[MemberId]) -> dict[str, Any]:
    """
    Return the fields of a valid ``config`` without the drained members that have left: no later member has their ids.

    An instance id stays drained, because its member may return under that id. A misspelt id stays, too, because tools
    warn of it.

    Args:
        fields: The fields of the group's ``config``.
        members: The ids of the live members. The caller has read them after the fields.
    """
    after = dict(fields)
    drained = after.pop("drained", None) or ()
    departed = _departed(drained, members)
    kept = [slot for slot in drained if slot not in departed]
    return after | ({"drained": kept} if kept else {})


def _departed(drained: Iterable[Slot], members: Collection[Slot]) -> frozenset[Slot]:
    """Return the drained ids of members that have left. An id with a live member's session is a misspelling instead."""
    sessions = {slot.rpartition("-")[2] for slot in members if is_member_id(slot)}
    return frozenset(
        slot
        for slot in drained
        if slot not in members and is_member_id(slot) and slot.rpartition("-")[2] not in sessions
    )


#: ``group_host-milliseconds-session``, the id of a member without an instance id.
_MEMBER_ID = re.compile(r".[^_]*_.+-\d{13}-[0-9a-f]+")

#: The fields that operators may set.
_FIELDS = tuple(field.name for field in fields(DynamicConfig) if field.name not in ("request", "unknown"))


def is_member_id(slot: Slot) -> bool:
    """Return whether a slot is the id of a member without an instance id. No later member ever has the same id."""
    return _MEMBER_ID.fullmatch(slot) is not None


def _allocator(given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise ConfigError(f"allocator: {given!r:.80} given; expected a name")
    if ":" in given:
        raise ConfigError(
            f"allocator: {given!r:.80} given; expected a name: any process of the group may lead, and must not import"
            " code because a znode names it; install a package in all of them that offers the function by a name, as"
            f" an entry point of {ENTRY_POINTS!r}, or pass the function to each member as partition_allocator"
        )
    named_allocator(given, "allocator")
    return given


def _debounce(given: Any) -> tuple[tuple[str, int], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given.keys() <= set(_DURATIONS):
        raise ConfigError(f"debounce: {given!r:.80} given; expected an object with {', '.join(_DURATIONS)}")
    found = {name: _milliseconds(value, f"debounce.{name}") for name, value in given.items()}
    return tuple(sorted((name, value) for name, value in found.items() if value is not None))


def _milliseconds(given: Any, setting: str) -> int | None:
    if given is not None and (type(given) is not int or given < 0):
        raise ConfigError(f"{setting}: {given!r:.80} given; expected milliseconds, 0 or more")
    return given


def _drained(given: Any) -> frozenset[Slot]:
    if given is None:
        return frozenset()
    if not isinstance(given, list):
        raise ConfigError(f"drained: {given!r:.80} given; expected a list of member or instance ids")
    return frozenset(check_name(slot, "drained") for slot in given)


def _broker_racks(given: Any) -> tuple[tuple[int, str], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ConfigError(f"broker_racks: {given!r:.80} given; expected an object of broker ids and names of racks")
    racks = {whole_number(name): check_rack(rack, f"broker_racks.{name:.20}") for name, rack in given.items()}
    if None in racks or None in racks.values():
        raise ConfigError(f"broker_racks: {given!r:.80} given; expected an object of broker ids and names of racks")
    return tuple(sorted((number, rack) for number, rack in racks.items() if number is not None and rack is not None))


def _request(given: Any) -> PlanRequest | None:
    if given is None:
        return None
    at_ms, reason = (given.get("at"), given.get("reason")) if isinstance(given, Mapping) else (None, None)
    if type(at_ms) is not int or not isinstance(reason, str):
        raise ConfigError(f"rebalance: {given!r:.80} given; expected an object with 'at' and 'reason'")
    return PlanRequest(at_ms, check_reason(reason))


def check_reason(reason: str) -> str:
    """Return the reason of a request unchanged. Raise ConfigError unless it has 1 to 200 printable characters."""
    if not 0 < len(reason) <= LONGEST_REASON or not reason.isprintable():
        raise ConfigError(f"reason: {reason!r:.80} given; expected 1 to {LONGEST_REASON} printable characters")
    return reason


# The data of a group's ``weights`` znode: the load of its partitions, as an operator or a program measured it.
#
# The data is JSON, ``{"version": 1, "weights": {"t:0": 12.5}}``, compressed by zlib so that 100,000 partitions fit into
# one znode. zkCli cannot show it; ``kiel-groups weights show`` does.


#: Loads by partition, in the unit in which they were measured.
Weights: TypeAlias = Mapping[TopicPartition, float]

_VERSION = 1

#: This is larger than any realistic measure, and small enough that the sum over all partitions stays exact enough.
LARGEST_LOAD = 10**15

#: The largest decompressed size, enough for about 300,000 partitions; zlib may expand a thousandfold, 1 MB to 1 GB.
LARGEST_TEXT = 32 << 20


def checked_weights(given: Mapping[str, Any]) -> dict[TopicPartition, float]:
    """
    Check loads that a user or a program has given by ``topic:partition``, and return them in the same order.

    Raises:
        ConfigError: A name is not a partition, or a load is not a number from 0 to ``LARGEST_LOAD``. The text gives the
            wrong value.
    """
    return {_partition(name): _load(name, load) for name, load in given.items()}


def printed_weights(weights: Weights) -> dict[str, float]:
    """Return weights by ``topic:partition``, sorted, with six significant digits. Whole numbers are ints."""
    return {str(partition): _rounded(weights[partition]) for partition in sorted(weights)}


def encode_weights(weights: Weights) -> bytes:
    """
    Encode the data of a ``weights`` znode. To save space, loads keep six significant digits: no measurement is more
    precise.

    Raises:
        ConfigError: The weights do not fit into a znode. The text gives their size.
    """
    text = encode_object({"version": _VERSION, "weights": printed_weights(weights)})
    data = zlib.compress(text)
    for size, most in ((len(data), LARGEST_BYTES), (len(text), LARGEST_TEXT)):
        if size > most:
            packed = " packed" if most == LARGEST_BYTES else ""
            raise ConfigError(
                f"weights: {len(weights):,} partitions take {-(-size // 1024):,} KiB{packed}, expected at most"
                f" {most >> 10:,}; leave out those of usual load: they count as the median of the others"
            )
    return data


def parse_weights(data: bytes, path: str) -> dict[TopicPartition, float]:
    """
    Return the loads in the data of a ``weights`` znode.

    Raises:
        ProtocolError: The data is invalid, has another version, or decompresses to more than ``LARGEST_TEXT``.
    """
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, LARGEST_TEXT)
    except zlib.error as error:
        raise ProtocolError(f"{path}: weights packed by zlib were expected, found {data[:40]!r}") from error
    if not unpacking.eof:
        what = f"more than {LARGEST_TEXT >> 20} MiB" if unpacking.unconsumed_tail else "the beginning only"
        raise ProtocolError(f"{path}: weights packed by zlib were expected, found {what} of something")
    fields = parse_object(text, path)
    # Another version may have other units or names, and misread loads would move partitions needlessly.
    if (version := typed_field(fields, "version", int, path)) != _VERSION:
        raise ProtocolError(f"{path}: field 'version' should be {_VERSION}, found {version}")
    try:
        return checked_weights(typed_field(fields, "weights", dict, path))
    except ConfigError as error:
        raise ProtocolError(f"{path}: {error}") from error


def _partition(name: str) -> TopicPartition:
    try:
        partition = TopicPartition.parse(name)
        check_name(partition.topic, "weights")
    except (ValueError, ConfigError):
        partition = None
    if partition is None or partition.partition > LARGEST_PARTITION or str(partition) != name:
        raise ConfigError(f"weights: {name!r:.80} given; expected a partition such as page-views:3")
    return partition


def _load(name: str, given: Any) -> float:
    if not is_number(given) or not 0 <= given <= LARGEST_LOAD:
        raise ConfigError(
            f"weights: {given!r:.80} given for {name}; expected a load, a number from 0 to {LARGEST_LOAD:,}"
        )
    return given


def _rounded(load: float) -> float:
    rounded = float(f"{load:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


#: The most entries that are kept, enough to reconstruct the incidents of a night.
MOST_KEPT = 100

_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """
    An entry of the group's history: the cause of one generation, and its effect.

    ``moved`` is the number of partitions that the plan moved from one slot to another. ``took_ms`` is the time in
    milliseconds from the first change that caused the generation to the plan.
    """

    generation: int
    cause: str
    leader: MemberId
    moved: int
    members: int
    partitions: int
    took_ms: int
    created_at_ms: int

    def encode(self) -> bytes:
        return encode_object(asdict(self))

    @classmethod
    def parse(cls, data: bytes, path: str) -> HistoryEntry:
        """Parse an entry. Raise ProtocolError for data that is not a JSON object with all fields of the right types."""
        found = parse_object(data, path)
        texts = {name: typed_field(found, name, str, path) for name in ("cause", "leader")}
        numbers = ("generation", "moved", "members", "partitions", "took_ms", "created_at_ms")
        return cls(**texts, **{name: typed_field(found, name, int, path) for name in numbers})


def generation_of(name: str) -> int | None:
    """Return the generation in the name of a history entry's znode, or None for any other name."""
    return int(name) if len(name) == _DIGITS and name.isascii() and name.isdigit() else None


def record(layout: GroupLayout, entry: HistoryEntry, kept: Iterable[int]) -> Iterator[Operation]:
    """
    Yield the writes that add an entry and delete the oldest entries.

    The writes belong to the last transaction of a publication.

    Args:
        layout: The group's paths.
        entry: The new entry.
        kept: The generations that already have an entry.
    """
    yield Create(_path(layout, entry.generation), entry.encode())
    for generation in sorted(kept)[: -(MOST_KEPT - 1)]:
        yield Delete(_path(layout, generation))


def _path(layout: GroupLayout, generation: int) -> str:
    return f"{layout.history}/{generation:0{_DIGITS}d}"
