"""The token that comes with what is handed out: that of the claim under which this was done, whatever comes later."""

from __future__ import annotations

import copy
import json
import pickle
from typing import cast

import pytest

from kiel_groups.clients.compat.attributes import MemberAttributes
from kiel_groups.clients.delivery.connected_consumer import ConnectedConsumer
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.group.member.subscription import StartPosition
from kiel_groups.model import Batch, PartitionBatch, Record, TopicPartition
from tests.helpers.delivery_bench import CALL, P0, P1, DeliveryBench

pytestmark = pytest.mark.unit


class Member(MemberAttributes):
    """What an application asks, on a bench that hands out to it."""

    def __init__(self, bench: DeliveryBench) -> None:
        class Parts:
            delivery = bench.delivery

        self._subscription = bench.subscription
        self._consuming = cast(ConnectedConsumer, Parts())


def lose_and_claim_again(bench: DeliveryBench, token: int, partition: TopicPartition = P0) -> None:
    """As a lost session does, and the next one of this consumer."""
    bench.subscription.unassign([partition])
    bench.delivery.lost([partition])
    bench.subscription.assign_from_subscribed({partition: StartPosition(10, 2, token)})


def handed(bench: DeliveryBench) -> Record:
    record = bench.delivery.take()
    assert record is not None
    return record


async def test_a_record_of_an_earlier_claim_is_not_lent_the_later_token() -> None:
    """Work that was begun before the partition was lost must not pass for that of who has it now."""
    bench = DeliveryBench()
    member = Member(bench)
    bench.fetcher.add(P0, 10)
    record = handed(bench)
    assert member.fencing_token(record) == 1
    lose_and_claim_again(bench, 7)
    assert member.fencing_token(P0) == 7
    assert member.fencing_token(record) is None


async def test_a_record_that_comes_again_does_not_vouch_for_the_one_before() -> None:
    """They are of one offset, and equal; only one of them is the later claim's."""
    bench = DeliveryBench()
    member = Member(bench)
    bench.fetcher.add(P0, 10)
    before = handed(bench)
    lose_and_claim_again(bench, 7)
    bench.fetcher.add(P0, 10)
    again = handed(bench)
    assert again == before
    assert member.fencing_token(again) == 7
    assert member.fencing_token(before) is None


async def test_a_record_has_its_token_while_it_is_in_hand() -> None:
    """Read by a deserialiser or not; afterwards, or once an operator has set the offset, nothing is said of it."""
    bench = DeliveryBench(json.loads)
    member = Member(bench)
    bench.subscription.assign_from_subscribed({P1: StartPosition(10, 1, 5)})
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10, 11)
    first = handed(bench)
    assert member.fencing_token(first) == 1
    second = handed(bench)
    assert (member.fencing_token(first), member.fencing_token(second)) == (None, 5)
    bench.delivery.count_in_flight()
    assert member.fencing_token(second) == 5
    bench.delivery.moved(P1, 3)
    assert member.fencing_token(second) is None


async def test_nothing_is_known_of_a_record_before_the_consumer_is_connected() -> None:
    """Nor of a partition."""
    member = Member(DeliveryBench())
    member._consuming = None
    assert member.fencing_token(Record("t", 0, 10, None, b"10")) is None
    assert member.fencing_token(TopicPartition("t", 2)) is None


async def test_values_come_with_the_claims_they_were_handed_out_under() -> None:
    """Partition by partition; and stay with them when the partition is claimed again, and they come again."""
    bench = DeliveryBench()
    bench.subscription.assign_from_subscribed({P1: StartPosition(10, 1, 5)})
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    bench.fetcher.add(P0, 12)
    batch = bench.delivery.take_topic("t", 1_000, CALL)
    assert batch == [10, 11, 10, 12]
    claims = [(part.topic_partition, part.fencing_token, part.values) for part in batch.parts]
    assert claims == [(P0, 1, [10, 11]), (P1, 5, [10]), (P0, 1, [12])]
    lose_and_claim_again(bench, 7)
    bench.fetcher.add(P0, 10)
    again = bench.delivery.take_topic("t", 1_000, CALL)
    assert [part.fencing_token for part in batch.parts] == [1, 5, 1]
    assert [(part.records, part.fencing_token) for part in again.parts] == [([Record("t", 0, 10, None, 10)], 7)]


async def test_records_of_a_batch_have_the_values_that_were_read_of_them() -> None:
    """What could not be read is in neither; a partition of which nothing could is not mentioned."""
    bench = DeliveryBench(json.loads)
    fetched = [Record("t", 0, 10, b"k", b"[1]"), Record("t", 0, 11, None, b"{"), Record("t", 0, 12, None, b"null")]
    bench.fetcher.batches.append(FetchedBatch(P0, fetched, 13, 1, 1))
    bench.fetcher.batches.append(FetchedBatch(P1, [Record("t", 1, 10, None, b"{")], 11, 1, 1))
    batch = bench.delivery.take_topic("t", 1_000, CALL)
    assert batch == [[1], None]
    (part,) = batch.parts
    assert part.records == [Record("t", 0, 10, b"k", [1]), Record("t", 0, 12, None, None)]


def test_a_batch_is_a_list() -> None:
    """As kiel's programs take it for one: it is sorted, emptied, sent elsewhere; its parts stay as they were."""
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
