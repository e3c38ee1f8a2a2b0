"""What kiel's programs read off a client: its settings, as they were given, and where it stands."""

from __future__ import annotations

import json
import socket
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kiel_groups.config import FetchConfig, ProducerConfig
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.model import Record, TopicPartition

if TYPE_CHECKING:
    from kiel_groups.clients.delivery.connected_consumer import ConnectedConsumer, ConsumerSettings

__all__ = ["ConsumerAttributes", "MemberAttributes", "ProducerAttributes"]


class ConsumerAttributes:
    """Of both consumers; all of them for reading only."""

    _fetching: FetchConfig
    _deserializer: Callable[[bytes], Any] | None

    @property
    def name(self) -> str:
        """This host, and a number that no other consumer of this process has."""
        return f"{socket.gethostname()}:{id(self)}"

    @property
    def deserializer(self) -> Callable[[bytes], Any]:
        """What ``consume()`` makes values with."""
        return self._deserializer or json.loads

    @property
    def max_wait_time(self) -> int:
        """How long a broker may wait for ``min_bytes``, in milliseconds."""
        return self._fetching.max_wait_ms

    @property
    def min_bytes(self) -> int:
        """How many bytes a broker waits for."""
        return self._fetching.min_bytes

    @property
    def max_bytes(self) -> int:
        """How many bytes one answer may hold."""
        return self._fetching.max_bytes


class MemberAttributes(ConsumerAttributes):
    """Of the grouped consumer: also how it stands in its group at this moment."""

    _settings: ConsumerSettings
    _subscription: SubscriptionState
    _consuming: ConnectedConsumer | None
    _shut: bool

    @property
    def subscription(self) -> frozenset[str]:
        """The topics asked for."""
        return self._subscription.subscription

    @property
    def allocation(self) -> defaultdict[str, list[int]]:
        """The partitions that this member holds at this moment, ascending, per topic; [] of any other."""
        return self._subscription.allocation()

    @property
    def member_id(self) -> str | None:
        """This member's id in the group; another one after a lost session, None before the first."""
        return self._consuming.member.member_id if self._consuming else None

    @property
    def name(self) -> str:
        """``member_id`` once there is one: as allocator functions see this member, and as commits are signed."""
        return self.member_id or super().name

    @property
    def group_name(self) -> str:
        """The group's name."""
        return self._settings.group.group

    @property
    def autocommit(self) -> bool:
        """Whether finished records are committed without being told."""
        return self._settings.group.autocommit

    @property
    def closing(self) -> bool:
        """Whether it was closed."""
        return self._shut

    @property
    def is_leader(self) -> bool:
        """Whether this member leads the group."""
        return self._consuming is not None and self._consuming.member.leads

    @property
    def settled(self) -> bool:
        """Whether this member holds just what the group's leader wants it to hold."""
        return self._consuming is not None and self._consuming.member.settled

    def fencing_token(self, of: Record | TopicPartition) -> int | None:
        """
        The number of the claim under which a record was handed out; a later claim, whoever makes it, has a larger one.

        Give it to a store along with what comes of the record, and have the store refuse what comes with a smaller
        number than it has seen for that partition. So a member that lost the partition without knowing cannot write
        over the work of the next one. What ``consume()`` returns has its tokens with it (``Batch.parts``).

        Args:
            of: The record in hand, itself and not a copy: whoever goes on with it when the loop has asked for the next
                one, as a task does, asks first and keeps the answer. Or a partition, for the claim by which it is held
                at this moment. That is *not* the claim of what was handed out before: the partition may have been lost
                and claimed again meanwhile, and the newer number would let late work pass.

        Returns:
            The czxid of the owner znode. None where the record is not in hand any more, or does not count any more
            (its partition was lost, or its group's offset set by somebody else: drop what was made of it); of a
            partition, None where it is not held.
        """
        if isinstance(of, Record):
            return None if self._consuming is None else self._consuming.handing_out.token_of(of)
        state = self._subscription.state(of)
        return None if state is None else state.token

    def lag(self) -> dict[TopicPartition, int]:
        """How many messages of each held partition are not handed out, as brokers last said; unknown ones left out."""
        if self._consuming is None:
            return {}
        lags = {tp: self._consuming.fetcher.lag(tp) for tp in self._subscription.assigned_partitions()}
        return {partition: lag for partition, lag in lags.items() if lag is not None}


class ProducerAttributes:
    """Of the producer; all of them for reading only."""

    _config: ProducerConfig

    @property
    def batch_size(self) -> int:
        """How many records wait for each other."""
        return self._config.batch_size

    @property
    def compression(self) -> str | None:
        """The codec's name."""
        return self._config.compression

    @property
    def required_acks(self) -> int:
        """How many replicas are to have a record: -1 for all that are in sync."""
        return self._config.required_acks

    @property
    def ack_timeout(self) -> int:
        """How long a broker may wait for its replicas, in milliseconds."""
        return self._config.ack_timeout_ms
