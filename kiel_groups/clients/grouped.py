"""The grouped consumer: a member of a group, which shares the partitions of its topics with the other members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack

from kiel_groups.allocators.assignors import AssignorChoice
from kiel_groups.allocators.round_robin import round_robin
from kiel_groups.clients.calls.arguments import BrokerSettings, broker_config, check_functions, check_setting_names
from kiel_groups.clients.commits import CommitCallback, ConsumerCommits
from kiel_groups.clients.connected_consumer import ConsumerSettings
from kiel_groups.clients.consumer import AssignedPartitions
from kiel_groups.clients.coordination import CoordinationChoice, CoordinationName, Timeouts
from kiel_groups.clients.delivery.deserializer import OnBadRecord
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.lifecycle import GroupValues
from kiel_groups.config import DebounceConfig, FetchConfig, GroupConfig, ResetPolicy
from kiel_groups.listeners import RebalanceListener
from kiel_groups.metrics import Metrics, kafka_metrics

__all__ = ["GroupedConsumer", "naive_allocator"]

#: kiel's name for its default allocator, which assigns the partitions as this package's default allocator does.
naive_allocator = round_robin


class GroupedConsumer(GroupValues, ConsumerCommits, AssignedPartitions):
    """
    A member of a consumer group, with at-least-once delivery.

    ``async for record in consumer`` delivers records of the partitions that the group's leader assigns to this member.
    A record is finished when the loop asks for the next. Finished records are committed every
    ``auto_commit_interval_ms``, before a partition is released, and at close. Methods that do I/O return a future
    whose work has already started; the constructor needs no event loop.

    Args:
        brokers: ``host`` or ``host:port`` (9092) of some brokers; the consumer discovers the others.
        group: The group's name: letters, digits, ``.``, ``_`` and ``-``.
        zk_hosts: ZooKeeper servers, ``host`` or ``host:port`` (2181); a chroot may follow the last one. They are needed
            unless brokers coordinate the group.
        deserializer: Converts a message's bytes to a value. Without a deserializer, records hold bytes.
        partition_allocator: ``fn(members, partitions)``, ``"round_robin"`` (the default), ``"sticky"``,
            ``"weighted"`` or ``"range"``; used while this member leads the group. If brokers coordinate the group, also
            ``"roundrobin"`` (Java's), or a list, of which the group takes the first that all members offer; the default
            is Java's ``"range"``, then ``"roundrobin"``.
        autocommit: Whether the consumer commits finished records by itself.
        max_wait_time: How long a broker may wait for ``min_bytes`` before it responds, in milliseconds.
        min_bytes: How many bytes a broker waits for.
        max_bytes: About how many bytes ``consume()`` returns at once, and one response holds. While partitions are
            behind, the size of a response follows how fast the broker sends, up to four times of this.
        max_message_bytes: The size of the largest message that is accepted, even if its share of ``max_bytes`` is less.
        max_decompressed_bytes: How many bytes one compressed message set may unpack to.
        fetch_buffer_bytes: How many bytes of fetched records may wait for their delivery, counted without compression.
        coordination: What coordinates the group: ``"zookeeper"`` (the default), or ``"brokers"``, from Kafka 0.9 on.
            Their groups have other members, such as those of Java, and other offsets. The settings of the leader's
            plans (``debounce_…_ms``, ``static_grace_ms``), ``reconcile_interval_ms`` and ``zk_timeout_ms`` have no
            effect there.
        api_version: The release of coordinating brokers, such as ``(0, 9)``; by default, they are asked. Those of 0.9
            may drop requests of other clients at that moment, so give it there.
        session_timeout_ms: How long ZooKeeper (10,000 by default) or the coordinator (30,000) waits for a heartbeat
            before this member's session expires. A ZooKeeper server may grant a different timeout; a coordinator
            refuses a timeout beyond its bounds.
        heartbeat_interval_ms: How often this member proves that its session is alive: at least every third of the
            session timeout. By default, every sixth of the timeout that ZooKeeper granted, or every 3,000.
        instance_id: A name for this member that survives restarts. Its assignment is kept for ``static_grace_ms`` after
            it left, so a restart moves no partition. If two live members share a name, the newer stops the older.
        static_grace_ms: How long the assignment of a static member that left is kept, while this member is the leader.
        max_poll_interval_ms: How long the application may process the same record or values, or run the same listener
            hook, before this member's session is closed; 0: no limit. Coordinating brokers wait as long for a member in
            a rebalance, except those of Kafka 0.9 and 0.10.0, which wait for its session timeout.
        loop_stall_ms: How long the event loop may be blocked before this member's session is closed; 0: no limit.
        key_deserializer: Converts a record's key, if it has one. Without it, keys are bytes.
        on_bad_record: What happens to a record on which a deserializer fails, or whose message is damaged: ``"raise"``
            raises a BadRecordError, again and again until the record is passed by ``seek()``; ``"skip"`` logs and
            counts it; a function, plain or ``async``, is called with the record (in bytes) and the error, and the
            record is finished when it has returned. ``consume()`` skips values that fail even with ``"raise"``.
        store: Where offsets are written, and how: to ZooKeeper by the members, with fencing (``zookeeper``), or by the
            brokers on request, as with kiel (``broker-v0``); or to Kafka, from 0.8.2 on, by the coordinator of the
            group (``broker-v1``). All members of a group must agree.
        auto_offset_reset: Where a group without offsets starts, and where it resumes if an offset is not in the log:
            ``earliest``, ``latest`` or ``none``. All members of a group must agree.
        auto_commit_interval_ms: How often finished records are committed.
        debounce_quiet_ms: How long the group must be without changes before the leader plans.
        debounce_bound_ms: The longest time between a change and the plan, even if further changes follow.
        debounce_initial_delay_ms: How long a new leader waits for other members before its first plan.
        drain_alarm_ms: How long a revoked partition may wait for the application before the delay is reported.
        reconcile_interval_ms: How often the member reads its assignment and claims even if no watch fired, plus or
            minus a third.
        allocator_timeout_ms: How long ``partition_allocator`` may run.
        zk_timeout_ms: How long joining may take, from the first connection to the end of the registration.
        retry_backoff_ms: The first pause before a join is tried again; it doubles up to 5 s, and varies by half.
        default_offset_commit_callback: The callback of each ``commit_async`` that passes none.
        listener: Notified when partitions are assigned, revoked or lost. If the listener has a hook ``on_stalled``, the
            hook is called when half of ``max_poll_interval_ms`` or ``loop_stall_ms`` has passed.
        metrics: The registry to count in; a new one by default.
        broker_settings: ``client_id``, ``request_timeout_ms`` and the other settings of ``BrokerConfig``.

    Raises:
        ConfigError: A setting is not valid.
    """

    @check_setting_names
    def __init__(
        self,
        brokers: str | Iterable[str],
        group: str,
        zk_hosts: str | Iterable[str] | None = None,
        deserializer: Callable[[bytes], Any] | None = None,
        partition_allocator: AssignorChoice | Sequence[AssignorChoice] | None = None,
        autocommit: bool = True,
        max_wait_time: int = 1_000,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        *,
        max_message_bytes: int = 64 << 20,
        max_decompressed_bytes: int = 64 << 20,
        fetch_buffer_bytes: int = 64 << 20,
        key_deserializer: Callable[[bytes], Any] | None = None,
        on_bad_record: OnBadRecord = "raise",
        coordination: CoordinationName = "zookeeper",
        api_version: tuple[int, ...] | None = None,
        session_timeout_ms: int | None = None,
        heartbeat_interval_ms: int | None = None,
        instance_id: str | None = None,
        static_grace_ms: int = 60_000,
        max_poll_interval_ms: int = 300_000,
        loop_stall_ms: int = 300_000,
        store: str = "zookeeper",
        auto_offset_reset: ResetPolicy = "earliest",
        auto_commit_interval_ms: int = 5_000,
        debounce_quiet_ms: int = 100,
        debounce_bound_ms: int = 1_000,
        debounce_initial_delay_ms: int = 300,
        drain_alarm_ms: int = 30_000,
        reconcile_interval_ms: int = 45_000,
        allocator_timeout_ms: int = 30_000,
        zk_timeout_ms: int = 15_000,
        retry_backoff_ms: int = 100,
        default_offset_commit_callback: CommitCallback | None = None,
        listener: RebalanceListener | None = None,
        metrics: Metrics | None = None,
        **broker_settings: Unpack[BrokerSettings],
    ) -> None:
        check_functions(default_offset_commit_callback=default_offset_commit_callback)
        self.metrics = metrics or Metrics()
        self._deserializer = deserializer
        self._default_callback = default_offset_commit_callback
        self._fetching = FetchConfig(
            max_wait_ms=max_wait_time,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_message_bytes=max_message_bytes,
            max_decompressed_bytes=max_decompressed_bytes,
            fetch_buffer_bytes=fetch_buffer_bytes,
            auto_offset_reset=auto_offset_reset,
        )
        group_config = GroupConfig(
            group=group,
            in_zookeeper=coordination != "brokers",
            store=store,
            auto_offset_reset=auto_offset_reset,
            debounce=DebounceConfig(
                quiet_ms=debounce_quiet_ms, bound_ms=debounce_bound_ms, initial_delay_ms=debounce_initial_delay_ms
            ),
            auto_commit_interval_ms=auto_commit_interval_ms,
            autocommit=autocommit,
            drain_alarm_ms=drain_alarm_ms,
            reconcile_interval_ms=reconcile_interval_ms,
            allocator_timeout_ms=allocator_timeout_ms,
            instance_id=instance_id,
            static_grace_ms=static_grace_ms,
            retry_backoff_ms=retry_backoff_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            loop_stall_ms=loop_stall_ms,
        )
        connections = broker_config(brokers, **broker_settings)
        timeouts = Timeouts(session_timeout_ms, heartbeat_interval_ms, zk_timeout_ms)
        choice = CoordinationChoice(group_config, connections, timeouts, zk_hosts, api_version, partition_allocator)
        settings = ConsumerSettings(
            brokers=connections,
            fetching=self._fetching,
            group=group_config,
            coordination=choice.named(coordination),
            deserializer=deserializer,
            key_deserializer=key_deserializer,
            on_bad_record=on_bad_record,
            listener=listener,
            metrics=self.metrics,
        )
        super().__init__(settings)

    def _owned_records(self) -> OwnedRecords | None:
        return None if self._connected is None else self._connected.reader.owned

    def kafka_metrics(self) -> dict[str, dict[str, float | None]]:
        """
        Return the metrics of the membership by the names of kafka-python and the Java client.

        ``docs/operating.rst`` explains them. ``metrics`` has all counters of this consumer by names of its own.

        Returns:
            ``{"consumer-coordinator-metrics": {"heartbeat-rate": 0.33, ...}}``. Times are in milliseconds, unless the
            name says seconds; None if nothing was observed lately.
        """
        return kafka_metrics(self.metrics, len(self.assignment()))

    def wind_down(self) -> asyncio.Future[None]:
        """Leave the group: kiel's name for ``close()``."""
        return self.close()
