"""Between fetched and finished: what is handed out, what is in hand, and what counts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery import record_delivery
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.record_delivery import RecordDelivery
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.coordination.session.delivery_gate import DeliveryGate
from kiel_groups.coordination.zookeeper.runtime import boot_time_s
from kiel_groups.errors import NoOffsetsError, ProtocolError
from kiel_groups.group.member.subscription import PartitionState, StartPosition, SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition

pytestmark = pytest.mark.unit

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause on a slow machine, but where a test asks for one."""
    monkeypatch.setattr(record_delivery, "QUANTUM_S", 3_600.0)


class FakeFetcher:
    """Hands out what it is given; drops what is unassigned."""

    def __init__(self) -> None:
        self.batches: deque[FetchedBatch | Exception] = deque()
        self.positions: dict[TopicPartition, int] = {}
        self.lost: set[TopicPartition] = set()
        self.has_batch = asyncio.Event()

    def add(self, partition: TopicPartition, *offsets: int) -> None:
        """One batch, with its offsets for values."""
        records = [Record(partition.topic, partition.partition, n, None, str(n).encode()) for n in offsets]
        self.batches.append(FetchedBatch(partition, records, offsets[-1] + 1, 1, 1))
        self.has_batch.set()

    def assign(self, positions: Mapping[TopicPartition, int], lost: Collection[TopicPartition] = ()) -> None:
        self.unassign(positions)
        self.positions |= positions
        self.lost = set(lost)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.positions)

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self.positions = {p: position for p, position in self.positions.items() if p not in gone}
        self.batches = deque(b for b in self.batches if isinstance(b, Exception) or b.topic_partition not in gone)

    def poll(self, topic: str | None = None) -> FetchedBatch | None:
        for batch in self.batches:
            if isinstance(batch, Exception):
                raise batch
            if topic in (None, batch.topic_partition.topic):
                self.batches.remove(batch)
                return batch
        return None

    def is_buffering(self, partition: TopicPartition) -> bool:
        return any(not isinstance(b, Exception) and b.topic_partition == partition for b in self.batches)

    def wake(self, topic: str) -> None:
        self.has_batch.set()

    async def wait_for_batch(self, topic: str | None = None) -> None:
        await self.has_batch.wait()


class Listener:
    """Notes its calls; ``assigned`` waits for ``ready``."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.ready = asyncio.Event()
        self.ready.set()

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append("assigned")
        await self.ready.wait()

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append("revoked")

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append("lost")


class Bench:
    """What hands out, on a fake fetcher, with partitions 0 and 1 held from offset 10 on."""

    def __init__(self, deserializer: Any = None) -> None:
        self.fetcher = FakeFetcher()
        self.subscription = SubscriptionState()
        self.listener = Listener()
        self.metrics = Metrics()
        self.gate = DeliveryGate()
        self.gate.grant(3_600_000)
        self.gate.renew(boot_time_s())
        self.out = RecordDelivery(
            cast(Fetcher, self.fetcher),
            self.subscription,
            ListenerCalls(self.listener, self.metrics),
            self,
            deserializer,
            self.metrics,
        )
        self.subscription.subscribe(["t", "u"])
        self.claim(P0, P1)

    def claim(self, *partitions: TopicPartition) -> None:
        """Hold these, as after their assigned hook."""
        self.subscription.assign_from_subscribed({p: StartPosition(10, 1, 1) for p in partitions})
        self.out._ready._ready.update(partitions)

    def state(self, partition: TopicPartition = P0) -> PartitionState:
        found = self.subscription.state(partition)
        assert found is not None
        return found

    def take(self) -> int | None:
        record = self.out.take()
        return None if record is None else record.offset

    @property
    def finished(self) -> dict[TopicPartition, int]:
        return self.subscription.all_consumed_offsets()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_record_is_finished_when_the_next_is_asked_for() -> None:
    """In hand it does not count, although the position is past it."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() == 10
    assert bench.finished == {}
    assert bench.state().position == 11
    assert bench.take() == 11
    assert bench.finished == {P0: 11}
    assert bench.take() is None
    assert bench.finished == {P0: 12}


async def test_batches_follow_each_other_over_partitions() -> None:
    """One record in hand at a time, whichever partition it is of."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10, 12)
    bench.fetcher.add(P0, 15)
    assert [bench.take() for _ in range(5)] == [10, 10, 12, 15, None]
    assert bench.metrics.counter("records_handed_out") == 4, "the last batch, too"
    assert bench.finished == {P0: 16, P1: 13}


async def test_commit_counts_the_record_in_hand() -> None:
    """And it stays in hand."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.take()
    bench.out.count_in_flight()
    assert bench.finished == {P0: 11}
    assert bench.out.stop([P0]) == {P0}


async def test_a_record_that_is_put_back_does_not_count_and_comes_again() -> None:
    """As after an exception: who asks next gets it first, then what follows it."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    bench.take()
    bench.out.put_back()
    assert bench.finished == {}
    assert bench.state().position == 10
    bench.out.finish()
    assert bench.finished == {}
    assert [bench.take(), bench.take()] == [10, 11]
    assert bench.finished == {P0: 11}


async def test_what_was_dropped_is_not_put_back() -> None:
    """A record whose partition is gone, or was moved, is not this member's to hand out again."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    bench.take()
    bench.out.lost([P0])
    bench.subscription.unassign([P0])
    bench.out.put_back()
    assert bench.take() is None


async def test_the_end_of_a_record_in_flight_does_not_undo_a_reset() -> None:
    """The operator's offset counts, although the record was delivered before and is finished after it."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() == 10
    bench.subscription.seek(P0, 3)
    bench.out.moved(P0, 3)
    bench.out.finish()
    assert bench.state().finished == 3
    assert bench.fetcher.positions == {P0: 3}


async def test_records_pause_for_the_loops_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that never awaits must not hold up hand-overs for as long as there are records."""
    bench = Bench()
    bench.fetcher.add(P0, *range(10, 20))
    bench.out.enter()
    assert bench.take() == 10
    monkeypatch.setattr(record_delivery, "QUANTUM_S", 0.0)
    await asyncio.wait_for(bench.out.wait(), 5)
    assert bench.take() is None, "the time is up"
    assert bench.finished == {P0: 11}
    monkeypatch.setattr(record_delivery, "QUANTUM_S", 3_600.0)
    await asyncio.wait_for(bench.out.wait(), 5)
    assert bench.take() == 11


async def test_after_the_end_nothing_is_handed_out() -> None:
    """The record in hand may still be finished."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    bench.take()
    bench.out.end()
    assert bench.take() is None
    assert bench.finished == {P0: 11}


async def test_a_finished_record_is_finished_once() -> None:
    """Nothing is in hand after it."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.take()
    bench.out.finish()
    assert bench.finished == {P0: 11}
    assert bench.out.stop([P0]) == frozenset()


async def test_a_shut_gate_hands_nothing_out_and_loses_nothing() -> None:
    """Asked before every record, in the middle of a batch too."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    bench.gate.suspended = True
    assert bench.take() is None
    assert bench.state().position == 10
    bench.gate.suspended = False
    assert bench.take() == 10
    bench.gate.suspended = True
    assert bench.take() is None
    assert bench.finished == {P0: 11}
    bench.gate.suspended = False
    assert bench.take() == 11


async def test_an_error_of_the_fetcher_comes_after_what_was_read_before() -> None:
    """The record before it is finished by asking."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.batches.append(ProtocolError("t:0 at offset 11: broken"))
    assert bench.take() == 10
    with pytest.raises(ProtocolError, match="broken"):
        bench.take()
    assert bench.finished == {P0: 11}


async def test_a_batch_of_a_partition_that_is_not_held_is_passed_over() -> None:
    """It was fetched before the claim went."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10)
    bench.subscription.unassign([P0])
    assert bench.out.take() == Record("t", 1, 10, None, b"10")


def fragile(value: bytes) -> int:
    """Refuses uneven numbers."""
    if int(value) % 2:
        raise ValueError(value)
    return int(value)


async def test_a_message_that_cannot_be_deserialised_is_passed_over() -> None:
    """Counted, and finished with what comes before it."""
    bench = Bench(fragile)
    bench.fetcher.add(P0, 10, 11, 12)
    assert bench.out.take() == Record("t", 0, 10, None, 10)
    assert bench.out.take() == Record("t", 0, 12, None, 12)
    assert bench.finished == {P0: 12}
    assert bench.metrics.counter("deserializer_failures") == 1


async def test_a_message_that_cannot_be_deserialised_counts_also_as_the_last_one() -> None:
    """Or it would be fetched again after every restart, and the lag would never be nothing."""
    bench = Bench(fragile)
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 11)
    assert bench.take() == 10
    assert bench.take() is None
    assert bench.finished == {P0: 12, P1: 12}


async def test_a_message_without_a_value_is_handed_out_as_it_is() -> None:
    """The deserialiser is for bytes; a null is a deletion."""
    bench = Bench(fragile)
    bench.fetcher.batches.append(FetchedBatch(P0, [Record("t", 0, 10, b"k", None)], 11, 1, 1))
    assert bench.out.take() == Record("t", 0, 10, b"k", None)


async def test_a_deserialiser_may_make_nothing_of_a_value() -> None:
    """None is a value like any other."""
    bench = Bench(lambda _value: None)
    bench.fetcher.add(P0, 10)
    assert bench.out.take() == Record("t", 0, 10, None, None)


async def test_waiting_ends_when_there_is_something() -> None:
    """With the gate open it waits for the fetcher, with records at hand it does not wait for a batch."""
    bench = Bench()
    waiting = asyncio.ensure_future(bench.out.wait())
    await settled()
    assert not waiting.done()
    bench.fetcher.add(P0, 10, 11)
    await asyncio.wait_for(waiting, 5)
    bench.take()
    bench.fetcher.has_batch.clear()
    await asyncio.wait_for(bench.out.wait(), 5)


async def test_a_shut_gate_is_looked_at_again() -> None:
    """Nobody says when it opens."""
    bench = Bench()
    bench.gate.suspended = True
    await asyncio.wait_for(bench.out.wait(), 5)


async def test_a_topic_that_cannot_be_read_is_told_of_once() -> None:
    """Each time that it was found; records of others go on, and what is in hand is finished first."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() == 10
    bench.out.refused("u", NoOffsetsError("no offsets of u"))
    assert bench.take() == 11, "the rest of the batch comes first"
    with pytest.raises(NoOffsetsError, match="no offsets of u"):
        bench.take()
    assert bench.finished == {P0: 12}
    bench.fetcher.add(P1, 10)
    assert bench.take() == 10


async def test_a_topic_that_left_the_subscription_is_not_refused() -> None:
    """Its claims may still be looked up until a plan takes them away; the application does not want to know."""
    bench = Bench()
    bench.subscription.subscribe("u")
    bench.out.refused("t", NoOffsetsError("no offsets of t"))
    assert bench.take() is None


async def test_who_waits_for_a_topic_that_cannot_be_read_is_woken() -> None:
    """Of other topics nobody is told."""
    bench = Bench()
    waiting = asyncio.ensure_future(bench.out.wait("u"))
    await settled()
    bench.out.refused("u", NoOffsetsError("no offsets of u"))
    await asyncio.wait_for(waiting, 5)
    bench.fetcher.add(P0, 10)
    assert bench.out.take_topic("t", 1_000, ConsumeCall()) == [10]
    with pytest.raises(NoOffsetsError, match="no offsets of u"):
        bench.out.take_topic("u", 1_000, ConsumeCall())
    assert bench.out.take_topic("u", 1_000, ConsumeCall()) == []


async def test_a_reset_waits_for_the_rest_of_the_batch_and_for_nothing_else() -> None:
    """Although nothing of its partition is in flight meanwhile, and records of another one come without a pause."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10, 11)
    assert bench.take() == 10
    bench.out.finish()
    waiting = asyncio.ensure_future(bench.out.put_down(P0, lambda: True))
    await settled()
    assert not waiting.done(), "11 is not delivered yet"
    assert bench.take() == 11
    await settled()
    assert not waiting.done(), "11 is in flight"
    assert (bench.take(), bench.finished) == (10, {P0: 12})
    await asyncio.wait_for(waiting, 5)
    assert bench.take() == 11


async def test_a_reset_does_not_wait_for_the_batch_after_its_own() -> None:
    """The last record of its batch cannot be deserialized, so no record ends with the batch."""

    def readable(raw: bytes) -> bytes:
        if raw == b"12":
            raise ValueError("bad")
        return raw

    bench = Bench(readable)
    bench.fetcher.add(P0, 10, 11, 12)
    bench.fetcher.add(P1, *range(10, 100))
    assert bench.take() == 10
    waiting = asyncio.ensure_future(bench.out.put_down(P0, lambda: True))
    await asyncio.sleep(0)
    assert bench.take() == 11
    assert bench.take() == 10
    await asyncio.wait_for(waiting, 5)
