"""The grouped consumer: a member of a group, which shares the partitions of its topics with the other members."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack, overload

from kiel_groups.allocators.assignors import AssignorChoice
from kiel_groups.allocators.round_robin import round_robin
from kiel_groups.clients.calls.arguments import BrokerSettings, broker_config, check_functions, check_setting_names
from kiel_groups.clients.calls.eager_methods import connect_or_close, fails_in_future, starts_at_call
from kiel_groups.clients.connected_consumer import ConsumerSettings
from kiel_groups.clients.consumer import Consumer
from kiel_groups.clients.coordination import CoordinationName, Member, Timeouts, coordination_of
from kiel_groups.clients.delivery.deserializer import OnBadRecord
from kiel_groups.clients.lifecycle import CommitCallback, Commits, GroupLifecycle, Offsets
from kiel_groups.config import DebounceConfig, FetchConfig, GroupConfig, ResetPolicy
from kiel_groups.listeners import RebalanceListener
from kiel_groups.metrics import Metrics, kafka_metrics
from kiel_groups.model import Batch, FencingToken, OffsetAndMetadata, Record, TopicPartition

#: kiel's name for its default allocator, which assigns the partitions as this package's default allocator does.
naive_allocator = round_robin


class GroupedConsumer(Consumer):
    """
    A member of a consumer group, with at-least-once delivery.

    ``async for record in consumer`` delivers records of the partitions that the group's leader assigns to this member.
    A record is finished when the loop asks for the next record. Finished records are committed every
    ``auto_commit_interval_ms``, before a partition is released, and at close. Methods that do I/O return a future, and
    start their work before they return. The constructor needs no event loop. Arguments whose names end in ``_ms`` are
    in milliseconds.

    Args:
        brokers: ``host`` or ``host:port`` (9092) of some brokers; the consumer discovers the other brokers.
        group: The group's name: letters, digits, ``.``, ``_`` and ``-``.
        zk_hosts: ZooKeeper servers, ``host`` or ``host:port`` (2181); a chroot may follow the last server. Required,
            unless brokers coordinate the group.
        deserializer: Converts a message's bytes to a value. Without a deserializer, records keep bytes, and
            ``consume()`` decodes JSON.
        partition_allocator: ``fn(members, partitions)``, ``"round_robin"`` (the default), ``"sticky"``, ``"weighted"``,
            ``"lag_aware"``, ``"rack_aware"`` or ``"range"``, or the name of an allocator of an installed package (entry
            points ``kiel_groups.allocators``). The allocator is used while this member leads the group. If brokers
            coordinate the group, Java's ``"roundrobin"`` and a list are also possible; the group takes the list's first
            assignor that all members offer. Then the default is Java's ``"range"``, then ``"roundrobin"``.
        autocommit: Whether the consumer commits finished records by itself.
        max_wait_time: How long a broker may wait for ``min_bytes`` before it responds, in milliseconds.
        min_bytes: For how many bytes a broker waits before it responds.
        max_bytes: The approximate limit, in bytes, of one result of ``consume()``, and of one response of a broker.
            While partitions lag behind, a response grows with the speed of the broker, up to four times ``max_bytes``.
        max_message_bytes: The size of the largest message that is accepted, even if its share of ``max_bytes`` is less.
        max_decompressed_bytes: How many bytes one compressed message set may unpack to.
        fetch_buffer_bytes: How many bytes of fetched records may wait for their delivery, counted without compression.
        coordination: The system that coordinates the group: ``"zookeeper"`` (the default), or ``"brokers"``, from Kafka
            0.9 on. Groups that brokers coordinate have other members, such as Java's, and other offsets. The settings
            of the leader's plans (``debounce_…_ms``, ``static_grace_ms``), ``reconcile_interval_ms`` and
            ``zk_timeout_ms`` have no effect there. ``docs/ownership-brokers.rst`` says what replaces them.
        api_version: The release of coordinating brokers, such as ``(0, 9)``; by default, the consumer asks the brokers.
            The consumer's request makes brokers of 0.9 drop requests of other clients, so name the release of such
            brokers here.
        session_timeout_ms: How long ZooKeeper (10,000 by default) or the coordinator (30,000) waits for a heartbeat
            before this member's session expires. A ZooKeeper server may grant a different timeout; a coordinator
            refuses a timeout beyond its bounds.
        heartbeat_interval_ms: The time between two heartbeats of this member: at most a third of the session timeout.
            By default, a sixth of the timeout that ZooKeeper granted, or 3,000 if brokers coordinate the group.
        instance_id: A name for this member that survives restarts. The leader keeps the member's assignment for
            ``static_grace_ms`` after the member has left, so a restart moves no partition. If two live members share a
            name, the newer member stops the older member.
        static_grace_ms: How long the assignment of a static member that left is kept, while this member is the leader.
        capacity: This member's weight, in relation to the weights of other members, for the allocators ``"sticky"``,
            ``"weighted"`` and ``"lag_aware"``. With 0, this member gets only partitions of topics to which no other
            member subscribes.
        rack: The name of the rack where this member runs, for ``"rack_aware"``. Use the names that the brokers, or the
            group's ``broker_racks``, give to racks.
        max_poll_interval_ms: How long the application may process the same record or values, or run the same listener
            hook, before this member's session is closed; 0: no limit. In a rebalance, coordinating brokers wait this
            long for a member. Brokers of Kafka 0.9 and 0.10.0 wait for the member's session timeout.
        loop_stall_ms: How long the event loop may be blocked before this member's session is closed; 0: no limit.
        key_deserializer: Converts the key of a record that has a key. Without a key deserializer, keys are bytes.
        on_bad_record: What happens to a record on which a deserializer fails, or whose message is damaged: ``"raise"``
            raises a BadRecordError, again and again until the record is passed by ``seek()``; ``"skip"`` logs and
            counts the record. A function, plain or ``async``, is called with the record (in bytes) and the error, and
            the record is finished when the function has returned. ``consume()`` skips values that fail even with
            ``"raise"``.
        store: Where offsets are written, and how. ``zookeeper``: members write to ZooKeeper, with fencing.
            ``broker-v0``: brokers write to ZooKeeper on request, as with kiel. ``broker-v1``: the coordinator of the
            group writes to Kafka, from 0.8.2 on. All members of a group must agree.
        auto_offset_reset: Where a group without offsets starts, and where a group resumes if its offset is not in the
            log: ``earliest``, ``latest`` or ``none``. All members of a group must agree.
        auto_commit_interval_ms: How often finished records are committed.
        debounce_quiet_ms: How long the group must be without changes before the leader plans.
        debounce_bound_ms: The longest time between a change and the plan, even if further changes follow.
        debounce_initial_delay_ms: How long a new leader waits for other members before its first plan.
        drain_alarm_ms: How long a revoked partition may wait for the application before the delay is reported.
        reconcile_interval_ms: How often the member reads its assignment and claims even if no watch fired, plus or
            minus a third.
        allocator_timeout_ms: How long the allocator function may run for one plan.
        zk_timeout_ms: How long joining may take, from the first connection to the end of the registration.
        retry_backoff_ms: The first pause before a join is tried again. The pause doubles up to 5 s, and varies by half.
        default_offset_commit_callback: The callback of each ``commit_async`` call that passes no callback.
        listener: Notified when partitions are assigned, revoked or lost. If the listener has a hook ``on_stalled``, the
            hook is called when half of ``max_poll_interval_ms`` or ``loop_stall_ms`` has passed.
        metrics: The registry to count in; a new one by default.
        broker_settings: ``client_id``, ``request_timeout_ms`` and the other settings of ``BrokerConfig``.

    Raises:
        ConfigError: A setting is not valid.
    """

    _lifecycle: GroupLifecycle

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
        capacity: float = 1.0,
        rack: str | None = None,
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
        fetching = FetchConfig(
            max_wait_ms=max_wait_time,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_message_bytes=max_message_bytes,
            max_decompressed_bytes=max_decompressed_bytes,
            fetch_buffer_bytes=fetch_buffer_bytes,
            auto_offset_reset=auto_offset_reset,
        )
        config = GroupConfig(
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
            capacity=capacity,
            rack=rack,
            retry_backoff_ms=retry_backoff_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            loop_stall_ms=loop_stall_ms,
        )
        connections = broker_config(brokers, **broker_settings)
        timeouts = Timeouts(session_timeout_ms, heartbeat_interval_ms, zk_timeout_ms)
        settings = ConsumerSettings(
            brokers=connections,
            fetching=fetching,
            group=config,
            coordination=coordination_of(
                coordination, config, connections, zk_hosts, api_version, partition_allocator, timeouts
            ),
            deserializer=deserializer,
            key_deserializer=key_deserializer,
            on_bad_record=on_bad_record,
            listener=listener,
            metrics=metrics or Metrics(),
        )
        super().__init__(GroupLifecycle(settings, self._at_exit), settings)
        self._commits = Commits(self._lifecycle, self._calls, default_offset_commit_callback)

    # ------------------------------------------------------------------ the life cycle

    def connect(self) -> asyncio.Future[None]:
        """
        Connect to the brokers and join the group. After ``assign``, only connect to the brokers.

        Further calls return the same future, or try again after an error.

        Raises:
            NoBrokersError: No broker answered. Each broker has at most twice ``connect_timeout_ms``.
            ConfigError: The brokers are of another cluster than ZooKeeper's, or do not support the store, ``broker-v0``
                or ``broker-v1``.
            NoZooKeeperError: ZooKeeper did not answer within ``zk_timeout_ms``. The message names the pending step.
            ChrootMissingError: The chroot does not exist.
            GroupConfigError: The settings that the group has stored differ from this consumer's settings.
            ForeignMemberError: The group has live members of another library (kiel, pykafka, Java's consumer).
            ClosedError: The consumer was closed.
        """
        return self._lifecycle.connect()

    async def __aenter__(self) -> Self:
        await connect_or_close(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._calls.end_record(finished=kind is None)
        await self.close()

    def close(self, autocommit: bool = True, timeout_s: float | None = None) -> asyncio.Future[None]:
        """
        Commit finished records, release all partitions and leave the group.

        The first call decides about ``autocommit``. Further calls return the same outcome. The ``timeout_s`` of a
        further call may end the close earlier, but not later.

        What the closing coroutine has in flight counts as finished, unless it is handling an exception. The close then
        waits for the other coroutines: for a loop until it has finished its record, limited only by ``timeout_s``; for
        a caller of ``consume()`` or ``getmany()`` until it calls again, at most two seconds. If the event loop does not
        run any more, as after a Ctrl-C, the member leaves the group before this method returns, and records in flight
        are delivered again.

        Args:
            autocommit: Whether the close commits finished records. A consumer that was created with
                ``autocommit=False`` commits no records here. A position that ``auto_offset_reset`` chose is stored even
                then.
            timeout_s: How long the close may take, in seconds, even if the application or a server delays it. After
                this time, the member leaves, and unfinished records are not committed. A thread closes the session; if
                the thread fails, the session expires.

        Raises:
            ConfigError: An argument is not valid; nothing is closed.
            IllegalStateError: A coroutine hook of the listener has called this method, or the event loop of the
                consumer runs on another thread; nothing is closed.
        """
        return self._lifecycle.close(autocommit, timeout_s, self._calls.end_in_flight)

    def wind_down(self) -> asyncio.Future[None]:
        """Close the consumer: an alias of ``close()`` for programs written for kiel."""
        return self.close()

    def _at_exit(self) -> None:
        """Complete a close whose event loop has stopped, when the interpreter exits."""
        if self._lifecycle.closed:
            self.close()

    # ------------------------------------------------------------------ topics, partitions and values

    @fails_in_future
    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> asyncio.Future[None]:
        """
        Replace the subscription, to topics or to a pattern. The new subscription applies at the call.

        The future is done once the member has registered the subscription. If brokers coordinate the group, the future
        is done once the member has joined. But if the member owns partitions, the future is done at once, because the
        member joins again only when the records in flight of the partitions are finished.

        Topics that remain subscribed are delivered without a pause, unless brokers coordinate the group. Removed topics
        are no longer delivered. The records in flight of removed topics are finished and committed as usual. A topic
        that does not exist is logged, and consumed as soon as it is created.

        Args:
            topics: One topic or several.
            pattern: A regular expression, in place of ``topics``. All topics whose names match from the beginning are
                consumed, except the brokers' internal topics. A topic that is created later is consumed soon, and a
                deleted one leaves. ``subscription()`` returns the matches that are known, none at first. On ZooKeeper,
                the leader finds the matches. If brokers coordinate the group, each member finds its own every
                ``metadata_max_age_ms``, and joins again if they have changed. A pattern that takes more than a second
                to match is logged, and matches nothing.
            listener: Notified of assigned, revoked and lost partitions until the next call of ``subscribe``, in place
                of the constructor's listener. By default, the constructor's listener is notified. ``consume()`` does
                not change the listener.

        Raises:
            ConfigError: There is neither a topic nor a pattern, a name is not legal for a topic of Kafka 0.8, the
                pattern is not a regular expression of at most 1,000 characters, or the topics exceed what ZooKeeper can
                store for one member. The previous subscription remains. Or the coordinator refuses the member's
                settings.
            ArgumentTypeError: The listener is not an object with hooks. The error is a TypeError and a ConfigError.
            IllegalStateError: Both topics and a pattern are given, or the application gets partitions in another way:
                by topics, by a pattern, or by ``assign``. Call ``unsubscribe()`` first.
            KielGroupsError: After ``assign`` and ``unsubscribe``, the consumer cannot join the group. The errors are
                the same as for ``connect``.
            ClosedError: The consumer was closed.
        """
        return self._lifecycle.subscribe(topics, pattern, listener)

    @fails_in_future
    def unsubscribe(self) -> asyncio.Future[None]:
        """
        Leave all topics, or end an assignment of ``assign``. No record is delivered after the call.

        The future is done once the member has registered that it has no topics. The member remains in the group. The
        member's records in flight are finished and committed as usual, and then the partitions are released.

        Raises:
            ClosedError: The consumer was closed.
        """
        return self._lifecycle.unsubscribe()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Read these partitions alone, without the group: no member, no claims, no commits, and no calls of the listener.

        The call takes effect at once, so ``seek`` and ``pause`` may follow. Members of the group, if there are any,
        may read the same records. A partition starts where the application seeks, else at the group's committed offset,
        else as ``auto_offset_reset`` says. Another call replaces the partitions: partitions that stay keep their
        position, pause and high watermark. A consumer that has joined its group leaves the group. If ``assign`` is
        called before ``connect``, the consumer does not join.

        Commits raise an IllegalStateError, because no claim protects them. The group's offsets are read through the
        brokers. Brokers of Kafka 0.8.0 cannot return offsets: with such brokers, seek in each partition.

        Args:
            partitions: At least one partition. A partition that does not exist yet is read once it exists.

        Raises:
            ArgumentTypeError: The argument is not a list of partitions. The error is a TypeError and a ConfigError.
            ConfigError: There is no partition, or a partition has no legal topic and number.
            IllegalStateError: The consumer has subscribed to topics, or has not released one of the partitions yet.
            ClosedError: The consumer was closed.
        """
        self._lifecycle.assign(partitions)

    def consume(self, topic: str, start: object = None) -> asyncio.Future[Batch | None]:
        """
        Return the available values of one topic, from all of its partitions that this member owns.

        The first call connects and subscribes to the topic. The values that a coroutine received are finished when the
        coroutine calls ``consume()`` for the topic again. If the coroutine has ended, its values are finished when
        another coroutine calls ``consume()`` for the topic. Until then, the partitions of the values are not released.
        Values that arrive after the caller has given up (``asyncio.wait_for``, ``gen.with_timeout``) are delivered
        again.

        Args:
            topic: The topic's name. As long as the topic does not exist, it has no values.
            start: Ignored: a group resumes at its committed offsets.

        Returns:
            Values that the deserializer made (``json.loads`` by default), or [] if no values came within
            ``max_wait_time``, or None once the consumer is closed. A value on which the deserializer raises is logged,
            counted and skipped. But if ``on_bad_record`` is a function, the function is called instead. The list's
            ``parts`` have the values by partition, with their records and ``fencing_token``.

        Raises:
            ConfigError: The name is not legal for a topic of Kafka 0.8, or the consumer is used in
                another style, such as iteration.
            IllegalStateError: The application has assigned partitions; call ``unsubscribe()`` first.
            NoBrokersError: 8 metadata requests in a row were not answered. The next call may succeed.
            KielGroupsError: ``connect()`` failed, or a partition cannot be read. The next call may succeed.
        """
        return self._calls.consume(topic, partial(self._lifecycle.read_topic, topic))

    # ------------------------------------------------------------------ commits

    @fails_in_future
    def commit(self, offsets: Offsets | None = None) -> asyncio.Future[frozenset[TopicPartition]]:
        """
        Commit all finished records and the caller's records in flight, or the offsets that the application chooses.

        Records and values that other tasks are processing are not committed.

        Chosen offsets must lie between the start of this claim of the partition (or the offset of a later ``seek()``)
        and the next offset to deliver. If one offset is refused, no offset is stored. A commit of chosen offsets does
        not move the position, and finishes no records: the next automatic commit, or ``commit()`` without offsets,
        stores the finished offsets again. Applications that choose offsets usually set ``autocommit=False``.

        While ``close()`` runs, hooks may still commit, such as ``on_partitions_revoked``.

        Args:
            offsets: The next offset to read of some partitions that this member owns: a number, or an
                ``OffsetAndMetadata``, whose text Kafka 0.8 does not keep. None: the finished offsets of all partitions.

        Returns:
            The partitions whose offsets were stored.

        Raises:
            ConfigError: An offset is malformed, before the start of the claim, beyond the next offset to deliver, or
                beyond the end of a log that was truncated.
            CommitFailedError: A partition is not owned (the message names its owner), or its topic was created again,
                or the offset was delivered under an earlier claim. Or another writer has changed the partition's
                offset; then delivery resumes at the other writer's offset. Or brokers have not stored an offset
                (``store="broker-v0"`` and ``"broker-v1"``). The message says which offsets were stored.
            SessionLostError: The session has ended. Records whose offsets were not stored are delivered again.
            AuthorizationError: ZooKeeper refused the write because of an ACL. The member has lost its partitions, and
                joins again when it has the right.
            IllegalStateError: The application has assigned the partitions: no claim protects a commit. Or the event
                loop of the consumer runs on another thread.
            ClosedError: The consumer is not connected, or was closed.
        """
        return self._commits.commit(offsets)

    @fails_in_future
    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> asyncio.Future[frozenset[TopicPartition]]:
        """
        Start a commit as ``commit`` does, and report its outcome to a callback, as kafka-python does.

        Callbacks are called in the order of the commits. A callback that raises is logged and counted
        (``commit_callbacks_failed``).

        Args:
            offsets: As for ``commit``.
            callback: Called on the event loop as ``callback(offsets, outcome)``; with ``kiel_groups.sync``, on a thread
                of its own. ``offsets`` are the offsets of this commit, by partition. ``outcome`` is the partitions
                whose offsets were stored, or the error. The callback may be a coroutine function. By default, the
                callback is the constructor's ``default_offset_commit_callback``.

        Returns:
            A future with the outcome of the commit. Without a callback, an error that is not retrieved is logged.

        Raises:
            ConfigError: ``callback`` is not a function. All errors of ``commit`` go to the callback and to the future.
        """
        check_functions(callback=callback)
        return self._commits.commit_async(offsets, callback)

    @fails_in_future
    def commit_offsets(self, metadata: str | None = None) -> asyncio.Future[None]:
        """
        Finish the values that ``consume()`` has returned, and commit all finished values.

        A coroutine that calls ``consume()`` finishes only its own values. Any other caller, such as a timer, finishes
        all values that callers have received. A failure is logged and counted (``commits_failed``). Then the next
        commit stores these offsets as well.

        Args:
            metadata: A text for stores that keep a text with an offset; by default "committed by" and this member's
                name.

        Raises:
            IllegalStateError: The application has assigned the partitions: no claim protects a commit.
        """
        return self._commits.commit_offsets(lambda: f"committed by {self.name}" if metadata is None else metadata)

    @overload
    def committed(self, partition: TopicPartition) -> asyncio.Future[int | None]: ...

    @overload
    def committed(self, partition: Iterable[TopicPartition]) -> asyncio.Future[dict[TopicPartition, int | None]]: ...

    def committed(
        self, partition: TopicPartition | Iterable[TopicPartition]
    ) -> asyncio.Future[int | None] | asyncio.Future[dict[TopicPartition, int | None]]:
        """
        Return the offset that the group has committed, whether or not this member owns the partition.

        The offset is read from the group's store: from ZooKeeper, or from the brokers with ``store="broker-v0"`` and
        ``"broker-v1"``, and after ``assign``.

        Args:
            partition: A partition, or several partitions. Several partitions are read in one round trip.

        Returns:
            The next offset to read. None if the group has no offset, or if the stored data is not an offset; the second
            case is logged. For several partitions, a dict with an entry for each partition.

        Raises:
            ConfigError: An argument is not a partition.
            SessionLostError: With ``store="zookeeper"``, there is no session at the moment.
            NoOffsetsError: Brokers refuse for good to read an offset.
            BrokerError: No broker answered.
            ClosedError: The consumer is not connected, or was closed.
        """
        return self._commits.committed(partition)

    @starts_at_call
    async def fetch_committed_offsets(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """
        Return the offsets that the group has committed, as ``committed`` reads them.

        Args:
            partitions: The partitions to read. None: all partitions for which the group has an offset, of any topic.

        Returns:
            The next offsets to read, with "" as metadata. A partition is left out if it has no offset, or if its stored
            data is not an offset.

        Raises:
            ConfigError: An argument is not a partition.
            IllegalStateError: After ``assign``, no partitions are named.
            KielGroupsError: The errors of ``committed``. Without ``partitions``, a session is always needed.
        """
        return await self._commits.fetch_committed(partitions)

    # ------------------------------------------------------------------ the member

    def kafka_metrics(self) -> dict[str, dict[str, float | None]]:
        """
        Return the metrics of the membership by the names of kafka-python and the Java client.

        ``docs/metrics-clients.rst`` explains the metrics. ``metrics`` has all counters of this consumer, under the
        names of this package.

        Returns:
            ``{"consumer-coordinator-metrics": {"heartbeat-rate": 0.33, ...}}``. Times are in milliseconds, unless the
            name says seconds. A value is None if nothing was observed lately.
        """
        return kafka_metrics(self.metrics, len(self.assignment()))

    @property
    def member_id(self) -> str | None:
        """
        This member's id in the group. Each new session has a new id.

        The id is None before the first session, and after ``assign``.
        """
        return None if self._member is None else self._member.member_id

    @property
    def _member(self) -> Member | None:
        """The connected member, or None before ``connect`` and after ``assign``."""
        return None if self._lifecycle.connected is None else self._lifecycle.connected.member

    @property
    def name(self) -> str:
        """
        The ``member_id``. Without a ``member_id``, the name is the host's name and a number that is unique in this
        process.
        """
        return self.member_id or super().name

    @property
    def group_name(self) -> str:
        """The group's name."""
        return self._lifecycle.settings.group.group

    @property
    def coordinator_id(self) -> None:
        """Always None, as in kiel before ``connect()``. The client finds the brokers that store offsets by itself."""
        return None

    @property
    def autocommit(self) -> bool:
        """Whether the consumer commits finished records by itself."""
        return self._lifecycle.settings.group.autocommit

    @property
    def closing(self) -> bool:
        """Whether ``close()`` was called."""
        return self._lifecycle.closed

    @property
    def is_leader(self) -> bool:
        """Whether this member is the group's leader."""
        return self._member is not None and self._member.leads

    @property
    def is_member(self) -> bool:
        """
        Whether this consumer is a live member of its group, for example for the readiness check of a service.

        True while the consumer may deliver records and commit: it has joined, and its session, or its generation, is
        trusted. False before the first join, while the connection to ZooKeeper is broken or a lost session is replaced,
        after ``assign``, and once ``close()`` was called. If brokers coordinate the group, also False while the group
        rebalances and this consumer waits for its next assignment.
        """
        connected = None if self._lifecycle.closed else self._lifecycle.connected
        return self._member is not None and connected is not None and connected.reader.owned.may_deliver()

    @property
    def settled(self) -> bool:
        """Whether this member owns exactly the partitions that the group's leader assigned to the member."""
        return self._member is not None and self._member.settled

    def fencing_token(self, of: Record | TopicPartition) -> FencingToken | None:
        """
        Return the fencing token of a record: the number of the claim under which the record was delivered.

        Each later claim of the partition has a larger token. Write the token to a store together with the results of
        the record. The store must reject a write whose token is smaller than a token that the store has seen for the
        partition. Then a member that has lost the partition, and does not know it yet, cannot overwrite the work of the
        next owner. Values of ``consume()`` have their tokens in ``Batch.parts``.

        Args:
            of: The record in flight of a loop, not a copy. Get the token before the loop asks for the next record, even
                if a task processes the record for longer. Records of ``getone()`` and ``getmany()`` have no token; use
                a loop, or ``consume_batches()``, whose columns have a ``fencing_token``. If ``of`` is a partition, the
                token is the token of the current claim. The current claim is *not* always the claim of records that
                were delivered earlier: if the partition was lost and claimed again since, the newer token would let
                late writes pass.

        Returns:
            The czxid of the owner znode, or, if brokers coordinate the group, a ``GenerationToken``: the group's
            generation and the member id. None after ``assign``, because no partition is claimed. None for a partition
            that the member does not own. None for a record that is not in flight any more. None for a record that is
            not tracked any more, because its partition was lost or another client has set the group's offset; in this
            case, discard the record's results.
        """
        if isinstance(of, Record):
            if self._lifecycle.connected is None:
                return None
            return self._lifecycle.connected.reader.records.in_flight.fencing_token_of(of) or None
        state = self._subscription.offsets.of(of)
        # The token is 0 without a claim.
        return None if state is None else state.token or None
