"""Support programs written for kiel: the attributes that they read, and the four forms of a start that they pass."""

from __future__ import annotations

import functools
import json
import socket
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from kiel_groups.clients.produce.partitioners import Partitioner, Serializer, serialize_value
from kiel_groups.config import FetchConfig, ProducerConfig
from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ConfigError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import FencingToken, Record, TopicPartition

if TYPE_CHECKING:
    from kiel_groups.clients.assigned_consumer import AssignedConsumer
    from kiel_groups.clients.connected_consumer import ConnectedConsumer, ConsumerSettings
    from kiel_groups.clients.coordination import Member

__all__ = [
    "ConsumerAttributes",
    "MemberAttributes",
    "ProducerAttributes",
    "StartAt",
    "offset_time",
]


class ConsumerAttributes:
    """Read-only attributes of both consumers."""

    _fetching: FetchConfig
    _deserializer: Callable[[bytes], Any] | None

    @property
    def name(self) -> str:
        """This host's name and a number that is unique among the consumers of this process."""
        return f"{socket.gethostname()}:{id(self)}"

    @property
    def deserializer(self) -> Callable[[bytes], Any]:
        """The function that makes the values of ``consume()``, by default ``json.loads``."""
        return self._deserializer or json.loads

    @property
    def max_wait_time(self) -> int:
        """How long a broker may wait for ``min_bytes`` before it responds, in milliseconds."""
        return self._fetching.max_wait_ms

    @property
    def min_bytes(self) -> int:
        """How many bytes a broker waits for."""
        return self._fetching.min_bytes

    @property
    def max_bytes(self) -> int:
        """How many bytes one response may hold."""
        return self._fetching.max_bytes


class MemberAttributes(ConsumerAttributes):
    """Read-only attributes of the grouped consumer, including its present state in the group."""

    _settings: ConsumerSettings
    _subscription: SubscriptionState
    _connected: ConnectedConsumer | AssignedConsumer | None
    _closed: bool

    @property
    def allocation(self) -> defaultdict[str, list[int]]:
        """The partitions that this member owns now, by topic, in ascending order; [] for any other topic."""
        return self._subscription.offsets.allocation()

    @property
    def member_id(self) -> str | None:
        """
        This member's id in the group. Each new session has a new id.

        It is None before the first session, and after ``assign``.
        """
        return None if self._member is None else self._member.member_id

    @property
    def _member(self) -> Member | None:
        """The connected member, or None with partitions that the application assigned."""
        return None if self._connected is None else self._connected.member

    @property
    def name(self) -> str:
        """The ``member_id`` or, before the first session, this host's name and a number unique in this process."""
        return self.member_id or super().name

    @property
    def group_name(self) -> str:
        """The group's name."""
        return self._settings.group.group

    @property
    def coordinator_id(self) -> None:
        """None, as before ``connect()`` of kiel: the client finds the brokers that store its offsets by itself."""
        return None

    @property
    def autocommit(self) -> bool:
        """Whether the consumer commits finished records by itself."""
        return self._settings.group.autocommit

    @property
    def closing(self) -> bool:
        """Whether ``close()`` was called."""
        return self._closed

    @property
    def is_leader(self) -> bool:
        """Whether this member is the group's leader."""
        return self._member is not None and self._member.leads

    @property
    def settled(self) -> bool:
        """Whether this member owns exactly the partitions that the group's leader assigned to it."""
        return self._member is not None and self._member.settled

    def fencing_token(self, of: Record | TopicPartition) -> FencingToken | None:
        """
        Return the number of the claim under which a record was delivered. Each later claim has a larger number.

        Write the token to a store together with the results of the record, and have the store reject a write whose
        token is smaller than one it has seen for that partition. Then a member that lost the partition without
        noticing cannot overwrite the work of the next owner. Values of ``consume()`` carry their tokens
        (``Batch.parts``).

        Args:
            of: The record in flight, itself and not a copy. A task that still processes the record after the loop has
                asked for the next record must get the token before that. Or a partition, for the token of its current
                claim. This is *not* always the claim of records that were delivered earlier: if the partition was lost
                and claimed again since, the newer token would let late writes pass.

        Returns:
            The czxid of the owner znode, or, if brokers coordinate the group, a ``GenerationToken``: the group's
            generation and the member id. It is None after ``assign``, which claims nothing. For a partition, None if
            the member does not own it. For a record, None if it is not in flight any more, or is not counted any more
            because its partition was lost or another client set the group's offset. In this case, discard the record's
            results.
        """
        if isinstance(of, Record):
            if self._connected is None:
                return None
            return self._connected.reader.records.in_flight.fencing_token_of(of) or None
        state = self._subscription.offsets.of(of)
        # The token is 0 without a claim.
        return None if state is None else state.token or None


class ProducerAttributes:
    """Read-only attributes of the producer."""

    _config: ProducerConfig
    _serializer: Serializer | None
    _key_maker: Callable[[Any], Any] | None
    _partitioner: Partitioner

    @property
    def serializer(self) -> Serializer:
        """The function that makes the bytes of values."""
        return self._serializer or functools.partial(serialize_value, serializer=None)

    @property
    def key_maker(self) -> Callable[[Any], Any]:
        """The function that makes the key of a record without one, by default None."""
        return self._key_maker or (lambda _: None)

    @property
    def partitioner(self) -> Partitioner:
        """The function that chooses partitions, by default at random."""
        return self._partitioner

    @property
    def batch_size(self) -> int:
        """How many records are sent together."""
        return self._config.batch_size

    @property
    def compression(self) -> str | None:
        """The name of the compression codec, or None if records are not compressed."""
        return self._config.compression

    @property
    def required_acks(self) -> int:
        """How many replicas must have a record before it counts as stored: -1 for all in-sync replicas."""
        return self._config.required_acks

    @property
    def ack_timeout(self) -> int:
        """How long a broker may wait for its replicas, in milliseconds."""
        return self._config.ack_timeout_ms


#: BEGINNING, END, a datetime (in UTC if it has no time zone), or a timedelta into the past.
StartAt: TypeAlias = int | datetime | timedelta

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)


def offset_time(start: StartAt | None, now: datetime) -> int:
    """
    Return the time to ask brokers for: -2 (BEGINNING), -1 (END), or milliseconds since the epoch.

    Args:
        start: None means END. A datetime before 1970 means the epoch.
        now: An aware datetime, from which a timedelta counts back.

    Raises:
        ConfigError: The start has none of these forms.
    """
    if start is None:
        return END
    if isinstance(start, timedelta):
        # Compute with numbers: the resulting time may lie outside the years that a datetime can represent.
        return max(0, _milliseconds(now) - start // _MILLISECOND)
    if isinstance(start, datetime):
        return max(0, _milliseconds(start if start.tzinfo is not None else start.replace(tzinfo=UTC)))
    if type(start) is int and start in (BEGINNING, END):
        return start
    raise ConfigError(
        f"start: {start!r} given; expected BEGINNING (-2), END (-1), a datetime (UTC), or a timedelta into the past"
    )


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND
