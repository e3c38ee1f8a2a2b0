"""Random programs on faulty brokers: each record gets one outcome, and the outcome is true."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext, suppress
from random import Random
from typing import Any, NamedTuple

import pytest

from kiel_groups.clients.calls import eager_methods
from kiel_groups.clients.produce import batches, sender
from kiel_groups.clients.producer import Producer
from kiel_groups.errors import KielGroupsError, OutcomeUnknownError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.encoder import encode_message_set
from kiel_groups.wire.primitives import Reader
from tests.helpers.fake_broker import PRODUCE, FakeBroker, Fault, Log, Request
from tests.helpers.message_sets import decode_message_set
from tests.helpers.producers import cancel_tasks, stored
from tests.helpers.step_variants import on_python_steps

pytestmark = pytest.mark.unit

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
#: Refusals: corrupt, leader not available, not leader, timeout, too large, not enough replicas.
CODES = (2, 5, 6, 7, 10, 19)


class Sent(NamedTuple):
    """A call, and the values of its records."""

    values: list[bytes]
    partition: int | None
    future: asyncio.Future[Any]


class Broker(FakeBroker):
    """Stores the messages of a compressed set one by one, as brokers assign their offsets."""

    def append(self, tp: TopicPartition, message_set: bytes) -> int:
        records = decode_message_set(message_set, tp, 0, max_decompressed_bytes=1 << 20)
        plain = encode_message_set([record.key for record in records], [record.value for record in records])
        return super().append(tp, plain)


class Faults:
    """
    Answers produce requests of two brokers with random faults, before or after their records are stored.

    ``most`` is how many messages a set may have. ``tries`` counts how often each value has arrived.
    """

    def __init__(self, random: Random, share: float) -> None:
        self.random = random
        self.share = share
        self.most = random.choice([1, 3, 1_000])
        self.brokers: list[FakeBroker] = []

    def script(self, number: int) -> Any:
        return lambda request: self.answer(self.brokers[number], request)

    def answer(self, broker: FakeBroker, request: Request) -> bytes | Fault | None:
        if request.api_key != PRODUCE:
            return None
        body, random = Reader(request.body, "a request"), self.random
        body.int16(), body.int32()
        for _ in body.array(2):
            topic = body.string()
            for _ in body.array(4):
                tp = TopicPartition(topic, body.int32())
                records = decode_message_set(bytes(body.blob()), tp, 0, max_decompressed_bytes=1 << 20)
                if len(records) > self.most:
                    broker.fail_next(PRODUCE, tp, 10)
                elif random.random() < self.share:
                    broker.fail_next(PRODUCE, tp, random.choice(CODES))
                elif random.random() < self.share / 4:
                    leader = random.choice([0, 1, -1])
                    for each in self.brokers:
                        each.leaders[tp] = leader
        if random.random() < self.share:
            if random.random() < 0.5:
                broker._produce(Reader(request.body, "a request"))
            return random.choice([Fault.CLOSE, Fault.HALF, Fault.WRONG_CORRELATION_ID])
        return None


async def run_program(seed: int, share: float) -> None:
    random = Random(seed)
    faults = Faults(random, share)
    brokers = faults.brokers
    brokers += [Broker({"t": 3}, node_id=number, script=faults.script(number)) for number in range(2)]
    brokers[1].logs = brokers[0].logs
    for broker in brokers:
        broker.peers = brokers
        broker.leaders = {tp: random.randrange(2) for tp in PARTITIONS} if broker is brokers[0] else brokers[0].leaders
        if random.random() < 0.2:
            broker.compacted = {"t": 2}
    sizes: dict[str, int] = {"batch_size": random.choice([1, 2, 50])}
    batching: dict[str, int] = random.choice([{}, {"linger_ms": 0}, {"linger_ms": 1} | sizes, sizes])
    async with brokers[0], brokers[1]:
        client = Producer(
            [str(broker.address) for broker in brokers],
            required_acks=random.choice([1, -1]),
            compression=random.choice([None, None, "gzip"]),
            batch_bytes=random.choice([1, 200, 1_000, 1 << 20]),
            retries=random.choice([0, 1, 3, 10]),
            **(batching | {"backoff_ms": 1, "max_backoff_ms": 3}),
        )
        sent: list[Sent] = []
        for number in range(random.randrange(1, 30)):
            partition = random.choice([0, 1, 2, None, random.randrange(len(brokers[0].logs) + 1)])
            values = [b"%d.%d" % (number, each) for each in range(random.choice([1, 1, 2, 20]))]
            if random.random() < 0.05:
                values = [value + b" " * 20_000 for value in values]
            keys = [random.choice([None, b"key"]) for _ in values]
            kind = random.random()
            if kind < 0.4:
                futures = [client.produce("t", *each, partition) for each in zip(values, keys, strict=True)]
                sent += [Sent([value], partition, future) for value, future in zip(values, futures, strict=True)]
            elif kind < 0.7:
                futures = client.produce_many("t", values, keys, partition, each=True)
                sent += [Sent([value], partition, future) for value, future in zip(values, futures, strict=True)]
            else:
                sent.append(Sent(values, partition, client.produce_many("t", iter(values), keys, partition)))
            if random.random() < 0.05:
                random.choice(sent).future.cancel()
            if random.random() < 0.05:
                cancel_tasks()
            if random.random() < 0.3:
                with rounds_may_fail(client):
                    await random.choice([client.drain, client.flush, lambda: asyncio.sleep(0.001)])()
            if random.random() < 0.1:
                brokers[0].logs[added := TopicPartition("t", len(brokers[0].logs))] = Log()
                brokers[0].leaders[added] = random.randrange(2)
        with rounds_may_fail(client):
            await client.close(random.choice([None, None, 0, 3]))
        # The future of the last record of a round waits for others.
        await asyncio.wait([each.future for each in sent], timeout=10)
        check(client, sent, brokers[0])


def rounds_may_fail(client: Producer) -> AbstractContextManager[None]:
    """Ignore the failures of records whose futures were done before, which flush and close raise."""
    return suppress(KielGroupsError) if client._in_rounds else nullcontext()


def check(client: Producer, sent: list[Sent], broker: FakeBroker) -> None:
    """Check the outcomes against what the broker has stored."""
    logs = {tp.partition: [value for _, value in stored(broker, tp)] for tp in broker.logs}
    everything = {value for log in logs.values() for value in log}
    last: defaultdict[int, int] = defaultdict(lambda: -1)
    for values, partition, future in sent:
        assert future.done(), values
        if future.cancelled():
            continue
        error = future.exception()
        if error is None and future.result() == len(values):
            assert everything.issuperset(values)
        elif error is None:
            place = future.result()
            if client._in_rounds and place == ("t", -1, -1):
                continue
            assert partition in (None, place.partition)
            assert [logs[place.partition][place.offset]] == values
            assert place.offset > last[place.partition], "out of order"
            last[place.partition] = place.offset
        else:
            assert isinstance(error, KielGroupsError)
            if len(values) == 1 and not isinstance(error, OutcomeUnknownError) and not client._in_rounds:
                assert not everything.intersection(values), "stored, but reported as failed"
    counted = sum(map(client.metrics.counter, ("records_produced", "produce_failures", "produce_unknown")))
    assert counted == sum(len(each.values) for each in sent)
    assert (client.unsent_count, client.buffered_bytes) == (0, 0)
    for each in client._sender._brokers.values():
        assert each.ready_bytes == sum(each.ready.values())


def without_compiled_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have producers use what they use where there was no compiler."""
    batch = on_python_steps(batches.Batch, batches.PythonRecords)
    for module in (batches, sender):
        monkeypatch.setattr(module, "Batch", batch)
        monkeypatch.setattr(module, "track", batches.python_track)
    monkeypatch.setattr(batches, "set_places", batches.python_set_places)
    monkeypatch.setattr(sender, "Appender", batches.PythonAppender)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
async def test_each_record_has_one_true_outcome(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Whatever brokers do, each record gets one outcome, the outcome is true, and stored records keep their order.

    Every other program runs without the compiled code for batches. In every other pair of programs, few bytes are as
    good as many for a second request, and for another thread.
    """
    for seed in range(8):
        with monkeypatch.context() as patched:
            patched.setattr(eager_methods, "_RESUME_S", 0.001)
            if seed % 2:
                without_compiled_batches(patched)
            if seed & 2:
                patched.setattr(sender, "_LEAST_SECOND_BYTES", 100)
                patched.setattr(sender, "_MOST_COMPRESSED_HERE_BYTES", 100)
            await run_program(seed, share)
