"""Records and values have the fencing token of the claim under which they were delivered."""

from __future__ import annotations

import copy
import json
import pickle
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.clients import GroupedConsumer
from kiel_groups.clients.delivery.record_reader import VALUES
from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.group.partition_offsets import StartPosition
from kiel_groups.model import Batch, PartitionBatch, Record, TopicPartition
from tests.helpers.delivery_bench import CALL, P0, P1, DeliveryBench

pytestmark = pytest.mark.unit


def consumer_of(bench: DeliveryBench) -> GroupedConsumer:
    """Return a consumer that delivers by a bench."""
    consumer = GroupedConsumer("127.0.0.1:1", "g", "127.0.0.1:1")
    consumer._subscription = bench.subscription
    consumer._lifecycle.connected = cast(Any, SimpleNamespace(reader=bench))
    return consumer


def lose_and_claim_again(bench: DeliveryBench, token: int, partition: TopicPartition = P0) -> None:
    """Lose a partition with the session, and claim it in the next session."""
    bench.subscription.offsets.end([partition])
    bench.handler.lost([partition])
    bench.subscription.offsets.open({partition: StartPosition(10, 2, token)})


def deliver(bench: DeliveryBench) -> Record:
    """Return the next record."""
    record = bench.records.take()
    assert record is not None
    return record


async def test_a_record_of_an_earlier_claim_does_not_get_the_later_token() -> None:
    """
    A record that was delivered under an earlier claim does not get the token of a later claim, so that an external
    store can refuse writes for it.
    """
    bench = DeliveryBench()
    consumer = consumer_of(bench)
    bench.fetcher.add(P0, 10)
    record = deliver(bench)
    assert consumer.fencing_token(record) == 1
    lose_and_claim_again(bench, 7)
    assert consumer.fencing_token(P0) == 7
    assert consumer.fencing_token(record) is None


async def test_a_record_delivered_again_does_not_give_its_token_to_the_first_one() -> None:
    """
    A record that is delivered again under a later claim has the later token. The equal record of the first delivery has
    none.
    """
    bench = DeliveryBench()
    consumer = consumer_of(bench)
    bench.fetcher.add(P0, 10)
    before = deliver(bench)
    lose_and_claim_again(bench, 7)
    bench.fetcher.add(P0, 10)
    again = deliver(bench)
    assert again == before
    assert consumer.fencing_token(again) == 7
    assert consumer.fencing_token(before) is None


async def test_a_record_has_a_token_while_it_is_in_flight() -> None:
    """
    A record has a token only while it is in flight. A finished record has none, and neither has a record whose
    partition an operator has reset.
    """
    bench = DeliveryBench(json.loads)
    consumer = consumer_of(bench)
    bench.subscription.offsets.open({P1: StartPosition(10, 1, 5)})
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10, 11)
    first = deliver(bench)
    assert consumer.fencing_token(first) == 1
    second = deliver(bench)
    assert (consumer.fencing_token(first), consumer.fencing_token(second)) == (None, 5)
    bench.records.in_flight.count()
    assert consumer.fencing_token(second) == 5
    bench.handler.offset_changed(P1, 3)
    assert consumer.fencing_token(second) is None


async def test_there_is_no_token_before_the_consumer_is_connected() -> None:
    """Before the consumer is connected, the token of any record or partition is None."""
    consumer = consumer_of(DeliveryBench())
    consumer._lifecycle.connected = None
    assert consumer.fencing_token(Record("t", 0, 10, None, b"10")) is None
    assert consumer.fencing_token(TopicPartition("t", 2)) is None


async def test_values_have_the_tokens_of_the_claims_they_were_delivered_under() -> None:
    """
    Values have the token of the claim under which they were delivered. They keep it when the partition is claimed again
    and delivers the same values again.
    """
    bench = DeliveryBench()
    bench.subscription.offsets.open({P1: StartPosition(10, 1, 5)})
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    bench.fetcher.add(P0, 12)
    batch = bench.values.take(Selection("t"), VALUES, CALL, most_bytes=1_000)
    assert batch == [10, 11, 10, 12]
    claims = [(part.topic_partition, part.fencing_token, part.values) for part in batch.parts]
    assert claims == [(P0, 1, [10, 11]), (P1, 5, [10]), (P0, 1, [12])]
    lose_and_claim_again(bench, 7)
    bench.fetcher.add(P0, 10)
    again = bench.values.take(Selection("t"), VALUES, CALL, most_bytes=1_000)
    assert [part.fencing_token for part in batch.parts] == [1, 5, 1]
    assert [(part.records, part.fencing_token) for part in again.parts] == [([Record("t", 0, 10, None, 10)], 7)]


async def test_records_of_a_batch_have_deserialized_values() -> None:
    """
    The parts of a batch have records with deserialized values. Values that cannot be deserialized are in neither the
    batch nor its parts, and a part without other values is omitted.
    """
    bench = DeliveryBench(json.loads)
    fetched = [Record("t", 0, 10, b"k", b"[1]"), Record("t", 0, 11, None, b"{"), Record("t", 0, 12, None, b"null")]
    bench.fetcher.put(P0, fetched)
    bench.fetcher.put(P1, [Record("t", 1, 10, None, b"{")])
    batch = bench.values.take(Selection("t"), VALUES, CALL, most_bytes=1_000)
    assert batch == [[1], None]
    (part,) = batch.parts
    assert part.records == [Record("t", 0, 10, b"k", [1]), Record("t", 0, 12, None, None)]


def test_a_batch_is_a_list() -> None:
    """A batch can be sorted, shortened, pickled and copied like kiel's lists; its parts do not change."""
    part = PartitionBatch(P0, 3, [2, 1], [Record("t", 0, 10, None, b"2"), Record("t", 0, 11, None, b"1")])
    batch = Batch([part, part])
    assert isinstance(batch, list)
    assert (batch, json.dumps(batch), repr(batch)) == ([2, 1, 2, 1], "[2, 1, 2, 1]", "[2, 1, 2, 1]")
    for copied in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), copy.copy(batch)):
        assert (copied, copied.parts) == (batch, batch.parts)
    batch.sort()
    batch.pop()
    assert part.values == [2, 1]
    assert Batch() == []
    assert Batch().parts == ()
