"""A test bench for record delivery, with a fake fetcher and without a group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.connected_consumer import DeliveryHandler
from kiel_groups.clients.delivery.deserializer import Deserializer, OnBadRecord
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.delivery.record_loop import RecordDelivery, RecordLoop
from kiel_groups.clients.delivery.record_reader import VALUES, RecordReader, ValueDelivery
from kiel_groups.clients.fetch.fetch_requests import ANY, Selection
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.errors import BadRecordError
from kiel_groups.group.partition_offsets import PartitionOffsets, StartPosition
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, Record, TopicPartition
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from kiel_groups.zookeeper.runtime import Runtime

P0, P1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def received_call() -> ConsumeCall:
    """Return a call of ``consume()`` whose caller has received its values."""
    call = ConsumeCall()
    call.received = True
    return call


#: A call whose caller has received its values; the default of :func:`take_values`.
CALL = received_call()


def open_gate() -> DeliveryGate:
    """Return a gate that stays open for half an hour."""
    gate, now_s = DeliveryGate(), Runtime().boot_time_s()
    gate.grant(3_600_000, now_s)
    gate.renew(now_s)
    return gate


class FakeFetcher:
    """Returns the batches that the test added, and drops the batches of partitions that are unassigned."""

    def __init__(self) -> None:
        self.batches: deque[FetchedBatch | Exception] = deque()
        self.positions: dict[TopicPartition, int] = {}
        self.lost: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.epochs: dict[TopicPartition, int | None] = {}
        self.has_batch = asyncio.Event()
        self.passed: set[TopicPartition] = set()

    def position(self, partition: TopicPartition) -> int | None:
        return self.positions.get(partition)

    def add(self, partition: TopicPartition, *offsets: int) -> None:
        """Add one batch. The value of each record is its offset."""
        self.put(partition, [Record(partition.topic, partition.partition, n, None, str(n).encode()) for n in offsets])

    def put(self, partition: TopicPartition, records: list[Record]) -> None:
        """Add one batch, of the partition's present assignment."""
        if self.epoch(partition) is None:
            self.epochs[partition] = len(self.epochs) + 2
        epoch = self.epoch(partition)
        assert epoch is not None
        self.batches.append(FetchedBatch(partition, records, epoch, 1))
        self.has_batch.set()

    def assign(
        self,
        positions: Mapping[TopicPartition, int],
        lost: Collection[TopicPartition] = (),
        paused: Collection[TopicPartition] = (),
    ) -> None:
        self.unassign(positions)
        self.positions |= positions
        self.epochs |= dict.fromkeys(positions, len(self.epochs) + 2)
        self.lost = set(lost)
        self.paused |= set(paused)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.positions)

    def forget_logs(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: no log is recognised."""

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self.positions = {p: position for p, position in self.positions.items() if p not in gone}
        self.batches = deque(
            batch
            for batch in self.batches
            if (isinstance(batch, Exception) and not isinstance(batch, BadRecordError))
            or getattr(batch, "topic_partition", None) not in gone
        )
        self.paused -= gone
        self.epochs |= dict.fromkeys(gone, None)

    def epoch(self, partition: TopicPartition) -> int | None:
        return self.epochs.get(partition, 1)

    def pause(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        self.paused |= set(partitions)
        return []

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.paused -= set(partitions)
        self.has_batch.set()

    def put_back(self, batch: FetchedBatch, taken: int) -> None:
        self.batches.appendleft(batch._replace(records=batch.records[taken:]))

    def skip(self, partition: TopicPartition, offset: int) -> None:
        assert partition in self.paused
        for number, batch in enumerate(self.batches):
            if isinstance(batch, FetchedBatch) and batch.topic_partition == partition:
                assert batch.records[0].offset == offset
                self.batches[number] = batch._replace(records=batch.records[1:])
                if not batch.records[1:]:
                    del self.batches[number]
                return

    def poll(
        self, selection: Selection = ANY, most_records: int | None = None, *, errors: bool = True
    ) -> FetchedBatch | None:
        for number, batch in enumerate(self.batches):
            if isinstance(batch, BadRecordError) and batch.topic_partition in self.paused:
                continue
            if isinstance(batch, Exception):
                if errors:
                    raise batch
                return None
            if selection.has(batch.topic_partition) and batch.topic_partition not in self.paused:
                most = len(batch.records) if most_records is None else most_records
                rest = batch.records[most:]
                if rest:
                    self.batches[number] = batch._replace(records=rest)
                else:
                    del self.batches[number]
                return batch._replace(records=batch.records[:most])
        return None

    def is_buffering(self, partition: TopicPartition) -> bool:
        return any(not isinstance(b, Exception) and b.topic_partition == partition for b in self.batches)

    @property
    def ready(self) -> FakeFetcher:
        """The fake is its own ready queue."""
        return self

    def notify(self, topic: str) -> None:
        self.has_batch.set()

    async def wait(self, selection: Selection = ANY) -> None:
        await asyncio.sleep(0)
        await self.has_batch.wait()


class RecordingListener:
    """Records the calls of the hooks. The assigned hook waits for the event ``ready``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ready = asyncio.Event()
        self.ready.set()

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append("assigned")
        await self.ready.wait()

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append("revoked")

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append("lost")


class FakeBrokers:
    """Ignores which leaders are doubted."""

    def drop_overrides(self, partitions: Iterable[TopicPartition]) -> None:
        pass


class DeliveryBench:
    """Record delivery with a fake fetcher. It owns partitions 0 and 1 of topic t, which start at offset 10."""

    def __init__(
        self, deserializer: Any = None, on_bad_record: OnBadRecord = "skip", key_deserializer: Any = None
    ) -> None:
        self.fetcher = FakeFetcher()
        self.subscription = SubscriptionState()
        self.listener = RecordingListener()
        self.metrics = Metrics()
        self.gate = open_gate()
        runtime = Runtime()
        self.calls = ListenerCalls(self.listener, self.metrics, lambda: self.subscription.listener)
        self.owned = OwnedRecords(
            cast(Fetcher, self.fetcher),
            self.subscription,
            self.calls,
            Deserializer(
                deserializer,
                self.metrics,
                runtime.boot_time_s,
                key_deserializer=key_deserializer,
                on_bad_record=on_bad_record,
            ),
            runtime,
            self.metrics,
        )
        self.records = RecordDelivery(self.owned)
        self.values = ValueDelivery(self.owned, self.metrics)
        self.cluster = cast(ClusterMetadata, FakeBrokers())
        self.handler = DeliveryHandler(cast(RecordReader, self), "g", self.metrics)
        self.handler.gate_changed(self.gate)
        self.subscription.subscribe(["t", "u"])
        self.claim(P0, P1)

    def claim(self, *partitions: TopicPartition) -> None:
        """Own these partitions, at offset 10 and with their assigned hook ended."""
        self.subscription.offsets.open({p: StartPosition(10, 1, 1) for p in partitions})
        self.subscription.assign_from_subscribed(self.subscription.assigned_partitions() | set(partitions))
        self.owned.ready._ready.update(partitions)

    def state(self, partition: TopicPartition = P0) -> PartitionOffsets:
        found = self.subscription.offsets.of(partition)
        assert found is not None
        return found

    def take(self) -> int | None:
        """Take one record, and return its offset, or None if there is no record."""
        record = self.records.take()
        return None if record is None else record.offset

    @property
    def finished(self) -> dict[TopicPartition, int]:
        """The offsets that a commit would store."""
        return {partition: commit.offset for partition, commit in self.subscription.offsets.commits().items()}


def loop_over(bench: DeliveryBench) -> RecordLoop:
    """Begin a loop over the records of a bench."""
    bench.records.begin_loop()
    return RecordLoop(bench.records)


def take_values(bench: DeliveryBench, topic: str = "t", most_bytes: int = 1_000, call: ConsumeCall = CALL) -> Batch:
    """Take the fetched values of a topic, as one call of ``consume()`` does."""
    return bench.values.take(Selection(topic), VALUES, call, most_bytes=most_bytes)


async def next_values(reader: RecordReader, call: ConsumeCall) -> Batch | None:
    """Wait for values of the topic t, as one call of ``consume()`` does."""
    fetching = reader._settings.fetching
    return await reader.next(Selection("t"), VALUES, call, fetching.max_wait_ms / 1000, most_bytes=fetching.max_bytes)
