"""The sender with a scripted broker: order, retries, and the errors of records that were not stored."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import pytest

from kiel_groups.clients.calls import eager_methods
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net import cluster_metadata
from kiel_groups.clients.produce import sender
from kiel_groups.clients.produce.outcomes import RecordMetadata
from kiel_groups.errors import (
    BrokerConnectionError,
    BrokerError,
    ConfigError,
    IllegalStateError,
    KielGroupsError,
    OutcomeUnknownError,
    RetriableBrokerError,
)
from kiel_groups.wire.primitives import Reader
from tests.helpers.coordinator_answers import API_VERSIONS, versions
from tests.helpers.fake_broker import FETCH, METADATA, PRODUCE, FakeBroker, Fault, Request
from tests.helpers.producers import T0, cancel_tasks, producing, stored
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.unit


async def test_retries_keep_the_order() -> None:
    """A failed batch is sent again before later batches, whatever its error was."""
    async with producing(batch_size=1) as (broker, producer):
        broker.fail_next(PRODUCE, T0, 6, 5, 7)
        futures = []
        for n in range(20):
            futures.append(producer.produce("t", b"%d" % n, partition=0))
            await asyncio.sleep(0)
        assert [outcome.offset for outcome in await asyncio.gather(*futures)] == list(range(20))
        assert stored(broker, T0) == [(None, b"%d" % n) for n in range(20)]
        assert producer.metrics.counter("produce_retries") == 3


async def test_without_retries_all_batches_fail_when_the_leader_is_lost() -> None:
    """However many wait, each gets its outcome. A drain that sends them ends."""
    async with producing(batch_bytes=1, retries=0, linger_ms=None, max_buffered_bytes=30_000) as (broker, producer):
        await producer.connect()
        for n in range(700):
            producer.produce("t", b"%d" % n, partition=0)
        broker.leaders[T0] = -1
        await producer._cluster.refresh(["t"], "test")
        await asyncio.wait_for(producer.drain(), 5)
        with pytest.raises(RetriableBrokerError):
            await asyncio.wait_for(producer.flush(), 5)
        assert (producer.unsent_count, producer.metrics.counter("produce_failures")) == (0, 700)


class SlowBroker(FakeBroker):
    """Takes 0.4 s for a produce request, as a leader with slow replicas. It answers one request after the other."""

    async def _answer(self, api_key: int, body: Reader) -> bytes | None:
        if api_key == PRODUCE:
            await asyncio.sleep(0.4)
        return await super()._answer(api_key, body)


async def test_a_request_may_wait_for_the_replicas_of_the_one_before_it() -> None:
    """A broker begins with the second request in flight after ``ack_timeout``. The request is not sent again."""
    settings = {"ack_timeout": 400, "request_timeout_ms": 250}
    async with producing(SlowBroker({"t": 2}), linger_ms=0, required_acks=-1, **settings) as (broker, producer):
        first = producer.produce("t", b"a", partition=0)
        await broker.wait_for_requests(PRODUCE, 1)
        await asyncio.gather(first, producer.produce("t", b"b" * (256 << 10), partition=1))
        assert (broker.count(PRODUCE), broker.connections) == (2, 2)


class ReadingBroker(FakeBroker):
    """Reads the next request of a connection while it answers the one before."""

    async def _handle(self, *request: Any) -> None:
        spawn(super()._handle(*request), "answer")


async def test_a_second_request_is_sent_only_with_much() -> None:
    """Until 256 KiB are ready, records of other partitions wait for the answer, and then need nothing else."""
    async with producing(ReadingBroker({"t": 4}), linger_ms=0) as (broker, producer):
        broker.gates[PRODUCE] = asyncio.Event()
        futures = [producer.produce("t", b"a", partition=0)]
        await broker.wait_for_requests(PRODUCE, 1)
        futures.append(producer.produce("t", b"b", partition=1))
        await throughout(lambda: broker.count(PRODUCE) == 1, "the record waits", 0.02)
        futures.append(producer.produce("t", b"c" * (256 << 10), partition=2))
        await broker.wait_for_requests(PRODUCE, 2)
        futures += [producer.produce("t", b"d" * (256 << 10), partition=3), producer.produce("t", b"e", partition=0)]
        await throughout(lambda: broker.count(PRODUCE) == 2, "two requests are in flight", 0.02)
        broker.gates[PRODUCE].set()
        await asyncio.wait_for(asyncio.gather(*futures), 5)
        assert broker.count(PRODUCE) <= 4


async def test_no_batch_overtakes_one_that_waits_for_its_retry() -> None:
    """While the leader for a failed batch is looked up, neither that batch nor later ones are sent."""
    async with producing(batch_size=1, request_timeout_ms=5_000) as (broker, producer):
        broker.gates[METADATA] = asyncio.Event()
        broker.fail_next(PRODUCE, T0, 6)
        first = producer.produce("t", b"first", partition=0)
        await broker.wait_for_requests(METADATA, 2)
        second = producer.produce("t", b"second", partition=0)
        await throughout(lambda: broker.count(PRODUCE) == 1, "no later batch is sent", 0.02)
        broker.gates[METADATA].set()
        assert [(await first).offset, (await second).offset] == [0, 1]


async def test_a_batch_is_sent_again_after_a_broken_connection() -> None:
    """A batch is sent again after the broker has closed the connection without an answer or after half an answer."""
    faults = iter([Fault.CLOSE, Fault.HALF])

    def script(request: Request) -> Fault | None:
        return next(faults, None) if request.api_key == PRODUCE else None

    async with producing(FakeBroker({"t": 2}, script=script)) as (broker, producer):
        assert (await producer.produce("t", b"x", partition=0)).offset == 0
        assert broker.count(PRODUCE) == 3


async def test_records_follow_a_leader_that_moves() -> None:
    """After "not leader", the metadata is requested again, and the batch is sent to the new leader."""
    async with FakeBroker({"t": 2}, node_id=1) as other, producing() as (broker, producer):
        await producer.produce("t", b"old", partition=0)
        for peer in (broker, other):
            peer.peers = [broker, other]
            peer.leaders = {T0: 1}
        await producer.produce("t", b"new", partition=0)
        assert stored(other, T0) == [(None, b"new")]


async def test_records_with_acks_zero_follow_a_leader_that_moves() -> None:
    """A broker refuses them by ending the connection, after which the metadata is requested again."""

    def script(request: Request) -> Fault | None:
        return Fault.CLOSE if request.api_key == PRODUCE else None

    async with FakeBroker({"t": 2}, node_id=1) as other, producing(required_acks=0) as (broker, producer):
        await producer.produce("t", b"old", partition=0)
        await broker.wait_for_requests(PRODUCE, 1)
        for peer in (broker, other):
            peer.peers = [broker, other]
            peer.leaders = {T0: 1}
        broker.script = script

        async def is_stored() -> bool:
            await producer.produce("t", b"new", partition=0)
            return bool(stored(other, T0))

        await eventually(is_stored, "a record is sent to the new leader")
        assert broker.count(PRODUCE) < 10


async def test_a_broker_of_kafka_4_stores_nothing_with_acks_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends each connection on which it gets a record, so that later records fail, rather than vanish."""
    monkeypatch.setattr(cluster_metadata, "_FIRST_PAUSE_S", 0.001)

    def script(request: Request) -> bytes | Fault | None:
        if request.api_key == API_VERSIONS:
            return versions({FETCH: (4, 17)})
        return None if request.api_key == METADATA else Fault.CLOSE

    async with producing(FakeBroker({"t": 2}, script=script), required_acks=0) as (_, producer):

        async def produce() -> str:
            try:
                await producer.produce("t", b"x", partition=0)
            except ConfigError as error:
                return str(error)
            return ""

        await eventually(produce, "the failure names the release")
        assert "no longer support the requests of Kafka 0.8" in await produce()


async def test_records_fail_after_their_retries(caplog: pytest.LogCaptureFixture) -> None:
    """
    Records fail after their retries with an error that has topic, partition, number of tries and code. One line is
    logged for all records of the batch.
    """
    async with producing(retries=2) as (broker, producer):
        broker.fail_next(PRODUCE, T0, *[6] * 3)
        outcomes = await asyncio.gather(
            *(producer.produce("t", b"x", partition=0) for _ in range(5)), return_exceptions=True
        )
        assert {str(outcome) for outcome in outcomes} == {str(outcomes[0])}
        error = outcomes[0]
        assert isinstance(error, BrokerError)
        assert error.code == 6
        assert "producing to t:0 failed after 3 tries" in str(error)
        assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1
        assert (await producer.produce("t", b"later", partition=0)).offset == 0, "later records are stored"


@pytest.mark.parametrize(("left", "why"), [(1, "the topic has 1 partition"), (0, "no broker knows the topic")])
async def test_records_for_a_partition_that_is_gone_fail_with_this_reason(left: int, why: str) -> None:
    """The topic was deleted, and perhaps created again with fewer partitions."""
    async with producing(retries=2) as (broker, producer):
        await producer.produce("t", b"stored", partition=1)
        broker.logs = {tp: log for tp, log in broker.logs.items() if tp.partition < left}
        with pytest.raises(RetriableBrokerError) as caught:
            await producer.produce("t", b"lost", partition=1)
        assert caught.value.code == 3
        assert str(caught.value) == f"producing to t:1 failed after 3 tries: t:1 does not exist (any more): {why}"


async def test_a_producer_refuses_a_second_loop() -> None:
    """Its parts are not thread-safe. The first loop continues."""
    async with producing() as (_, producer):

        async def produce() -> None:
            await producer.produce("t", b"x", partition=0)

        await produce()
        with pytest.raises(IllegalStateError, match="another event loop runs this client"):
            await asyncio.to_thread(asyncio.run, produce())
        await produce()


async def test_a_producer_refuses_a_thread_without_a_loop() -> None:
    """Nothing would run the calls there. They raise at once, since no future of theirs could get an outcome."""
    async with producing() as (_, producer):
        await producer.produce("t", b"x", partition=0)
        calls = [
            partial(producer.produce, "t", b"lost"),
            partial(producer.produce_many, "t", [b"lost"]),
            partial(producer.produce_many, "t", [b"lost"], each=True),
            producer.close,
        ]
        for call in calls:
            with pytest.raises(IllegalStateError, match="another event loop runs this client"):
                await asyncio.to_thread(call)
        assert producer.unsent_count == 0
        await producer.produce("t", b"x", partition=0)


async def test_a_failure_of_dropped_futures_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """If the futures of failed records are dropped, the failure is logged once, and asyncio logs nothing."""
    async with producing() as (broker, producer):
        broker.fail_next(PRODUCE, T0, 2, *[17] * 2)
        for _ in range(5):
            producer.produce("t", b"x", partition=0)
        await producer.flush()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [(e.name, "5 records" in e.getMessage()) for e in errors] == [("kiel_groups.clients.produce.sender", True)]


async def test_a_message_that_is_too_large_fails_alone() -> None:
    """
    If a message is too large, its batch is split until the message is alone. Its error has its size, and the other
    records are stored in order.
    """

    def script(request: Request) -> None:
        if request.api_key == PRODUCE and b"L" * 5_000 in request.body:
            broker.fail_next(PRODUCE, T0, 10)

    broker = FakeBroker({"t": 2}, script=script)
    async with producing(broker, linger_ms=20) as (_, producer):
        values = [b"0", b"1", b"2", b"L" * 5_000, b"4", b"5"]
        futures = [producer.produce("t", value, partition=0) for value in values]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        error = outcomes.pop(3)
        assert isinstance(error, BrokerError)
        assert error.code == 10
        assert "producing to t:0 failed: a message of 5026 bytes was refused" in str(error)
        assert [outcome.offset for outcome in outcomes if isinstance(outcome, RecordMetadata)] == [0, 1, 2, 3, 4]
        assert [value for _, value in stored(broker, T0)] == [b"0", b"1", b"2", b"4", b"5"]


MISSING_KEY = r"the record has no key, which brokers refuse in a compacted topic \(cleanup.policy=compact\): INVALID_"


@pytest.mark.parametrize(("code", "tries"), [(2, 3), (87, 1)])
async def test_a_record_without_a_key_to_a_compacted_topic_fails_at_once(code: int, tries: int) -> None:
    """
    The refusal is final, and names the missing key. Code 2 may also mean a damaged message, so that the record is sent
    two more times; later records without a key are sent once.
    """
    async with producing() as (broker, producer):
        broker.compacted["t"] = code
        for sent in (tries, tries + 1):
            with pytest.raises(BrokerError, match=MISSING_KEY) as caught:
                await producer.produce("t", b"x", partition=0)
            assert type(caught.value) is BrokerError
            assert not caught.value.retriable
            assert caught.value.code == code
            assert broker.count(PRODUCE) == sent
        assert producer.metrics.counter("produce_failures") == 2
        assert producer.metrics.counter("produce_unknown") == 0
        broker.compacted.clear()
        assert (await producer.produce("t", b"x", partition=0)).offset == 0, "the topic is not compacted any more"
        broker.fail_next(PRODUCE, T0, 2)
        assert (await producer.produce("t", b"y", partition=0)).offset == 1, "a damaged message is sent again"


async def test_without_retries_a_damaged_message_may_be_one_without_a_key() -> None:
    """Code 2 has both meanings, and only further tries tell which: the error names both."""
    async with producing(retries=0) as (broker, producer):
        broker.compacted["t"] = 2
        with pytest.raises(BrokerError, match=r"1 record was refused, perhaps because .* without a key: INV"):
            await producer.produce("t", b"x", partition=0)


@pytest.mark.parametrize("code", [2, 87])
async def test_records_with_keys_are_stored_although_others_in_their_batch_have_none(code: int) -> None:
    """In a compacted topic, only the records without a key fail; the others are stored in order, in few requests."""
    async with producing(linger_ms=20) as (broker, producer):
        broker.compacted["t"] = code
        keys = [b"key" if n % 2 else None for n in range(100)]
        futures = [producer.produce("t", b"%d" % n, key, partition=0) for n, key in enumerate(keys)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [outcome.offset for outcome in outcomes if isinstance(outcome, RecordMetadata)] == list(range(50))
        assert stored(broker, T0) == [(b"key", b"%d" % n) for n in range(1, 100, 2)]
        for error in outcomes[::2]:
            assert isinstance(error, BrokerError)
            assert str(error).startswith("producing to t:0 failed")
            assert "the record has no key" in str(error)
        assert broker.count(PRODUCE) <= 6


async def test_a_damaged_path_keeps_records_without_keys_in_their_order() -> None:
    """A batch that is refused once as damaged, in a topic that takes records without a key, is stored in order."""
    async with producing(linger_ms=20) as (broker, producer):
        broker.fail_next(PRODUCE, T0, 2, 2, 2, 0, 2)
        sent = [(b"key" if n % 3 else None, b"%d" % n) for n in range(9)]
        await asyncio.gather(*(producer.produce("t", value, key, partition=0) for key, value in sent))
        assert stored(broker, T0) == sent


@pytest.mark.parametrize(
    ("acks", "code", "kind"),
    [(1, 6, RetriableBrokerError), (-1, 6, OutcomeUnknownError), (-1, 19, RetriableBrokerError)]
    + [(-1, code, OutcomeUnknownError) for code in (7, 20, -1, 56, 32_767)]
    + [(-1, code, BrokerError) for code in (17, 21, 29, 35, 76, 87)],
)
async def test_a_refusal_shows_whether_records_may_be_stored(acks: int, code: int, kind: type[Exception]) -> None:
    """
    The error of a refused batch shows whether its records may be stored. A broker that fails while it waits for
    replicas has already appended them; other refusals mean that nothing was stored.
    """
    async with producing(retries=0, required_acks=acks) as (broker, producer):
        broker.fail_next(PRODUCE, T0, code)
        with pytest.raises(kind) as caught:
            await producer.produce("t", b"x", partition=0)
        assert type(caught.value) is kind
        assert isinstance(caught.value, BrokerError)
        assert caught.value.code == code
        unknown = kind is OutcomeUnknownError
        assert producer.metrics.counter("produce_unknown") == unknown
        assert producer.metrics.counter("produce_failures") == (not unknown)


async def test_a_record_that_could_not_be_sent_has_a_known_outcome() -> None:
    """Without a connection, no request is sent, so the record is not stored. The error has the reason."""
    async with producing(retries=1) as (broker, producer):
        await producer.connect()
        await producer.produce("t", b"x", partition=0)
        await broker.stop()
        # The first request may have been sent before the end of the connection was detected.
        await asyncio.wait([producer.produce("t", b"y", partition=0)])
        with pytest.raises(BrokerConnectionError, match="cannot connect"):
            await producer.produce("t", b"z", partition=0)


async def test_a_request_without_an_answer_is_retried() -> None:
    """
    A produce request without an answer is repeated after the timeout. If all retries fail, the timeout error is raised.
    """

    def script(request: Request) -> Fault | None:
        return Fault.SILENT if request.api_key == PRODUCE else None

    broker = FakeBroker({"t": 2}, script=script)
    async with producing(broker, retries=1, request_timeout_ms=20, ack_timeout=10) as (_, producer):
        with pytest.raises(BrokerError, match="no answer to a ProduceRequest within 30 ms") as caught:
            await producer.produce("t", b"x", partition=0)
        assert not isinstance(caught.value, BrokerConnectionError)
        assert broker.count(PRODUCE) == 2


@pytest.mark.parametrize(
    ("kind", "settings"), [(RuntimeError, {}), (MemoryError, {"compression": "snappy", "batch_bytes": 40_100})]
)
async def test_an_error_that_is_not_expected_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[Exception], settings: dict[str, Any]
) -> None:
    """
    The records fail with it, and the partition is not blocked for the next ones. So do those of a batch for which the
    compressor on its thread lacks memory.
    """

    def encode_badly(*_: object) -> bytes:
        raise kind("a bug")

    values = [bytes(40_000)] * 3
    async with producing(FakeBroker({"t": 1}), **settings) as (_, producer):
        with monkeypatch.context() as patched:
            patched.setattr(sender, "encode_message_set", encode_badly)
            for future in producer.produce_many("t", values, each=True):
                with pytest.raises(KielGroupsError, match=f"producing to t:0 failed: unexpected: {kind.__name__}"):
                    await asyncio.wait_for(future, 5.0)
        assert "in a way that is not expected" in caplog.text
        assert await asyncio.wait_for(producer.produce_many("t", values), 5.0) == 3


@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_a_program_may_cancel_all_tasks_and_continue(monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    """Whatever the producer does just then, such as a lookup, a request or a retry, all records are stored in order."""
    monkeypatch.setattr(eager_methods, "_RESUME_S", 0.001)
    monkeypatch.setattr(sender, "_MOST_COMPRESSED_HERE_BYTES", 0)
    for steps in range(40):
        async with producing(compression=compression, batch_bytes=100, linger_ms=0) as (broker, producer):
            broker.fail_next(PRODUCE, T0, 6)
            futures = []
            for number in range(1 + steps):
                futures.append(producer.produce("t", b"%02d" % number, partition=0))
                await asyncio.sleep(0)
            cancel_tasks()
            cancel_at = broker.count(PRODUCE)
            futures.append(producer.produce("t", b"last", partition=0))
            await asyncio.wait_for(asyncio.gather(*futures), 5)
            assert broker.count(PRODUCE) > cancel_at
            if compression is None:
                values = [value for _, value in stored(broker, T0)]
                assert sorted(set(values)) == [
                    value for number, value in enumerate(values) if value not in values[:number]
                ]
