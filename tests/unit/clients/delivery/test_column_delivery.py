"""Records of ``consume_batches()`` between fetch and finish: the rules of ``getmany()``, by the same code."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery.record_reader import COLUMNS, RECORDS
from kiel_groups.clients.fetch.fetch_requests import ANY, Selection
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.errors import DamagedRecordError, ProtocolError
from kiel_groups.group.partition_offsets import StartPosition
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from tests.helpers.delivery_bench import CALL, P0, P1, DeliveryBench
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

Offsets = dict[TopicPartition, list[list[int]]]


def take(
    bench: DeliveryBench, most: int | None = None, call: ConsumeCall = CALL, selection: Selection = ANY
) -> dict[TopicPartition, list[RecordColumns]]:
    """Take records as one call of ``consume_batches()`` does."""
    return bench.values.take(selection, COLUMNS, call, most)


def offsets(found: dict[TopicPartition, list[RecordColumns]]) -> Offsets:
    """Return the offsets of each run of each partition."""
    return {partition: [each.offsets.tolist() for each in runs] for partition, runs in found.items()}


async def test_columns_are_finished_when_records_are_requested_again() -> None:
    """Each run is an item of its partition's list, with its values and the token of its claim."""
    bench = DeliveryBench()
    bench.subscription.offsets.end([P1])
    bench.subscription.offsets.open({P1: StartPosition(10, 1, 77)})
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    bench.fetcher.add(P0, 14)
    found = take(bench)
    assert offsets(found) == {P0: [[10, 11], [14]], P1: [[10]]}
    assert [bytes(value or b"") for value in found[P0][0].values] == [b"10", b"11"]
    assert [run.fencing_token for runs in found.values() for run in runs] == [1, 1, 77]
    assert (bench.finished, bench.state().position) == ({}, 15)
    assert bench.handler.stop([P0, P1]) == {P0, P1}, "a release waits"
    bench.values.finish([None], ())
    bench.values.finish([None], {CALL})
    assert bench.finished == {P0: 15, P1: 11}
    assert bench.metrics.counter("records_handed_out") == 4


async def test_a_consumer_without_a_group_has_no_token() -> None:
    """Its partitions have no claim."""
    bench = DeliveryBench()
    bench.subscription.offsets.end([P0])
    bench.subscription.offsets.open({P0: StartPosition(10, 0, 0)})
    bench.fetcher.add(P0, 10)
    assert [run.fencing_token for run in take(bench)[P0]] == [None]


async def test_a_limit_cuts_a_run() -> None:
    """The next call returns the rest. Records and columns may be taken by turns."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11, 12)
    bench.fetcher.add(P1, 10, 11)
    assert offsets(take(bench, 2)) == {P0: [[10, 11]]}
    assert bench.state().position == 12
    assert offsets(take(bench, 2)) == {P0: [[12]], P1: [[10]]}
    assert [record.offset for record in bench.values.take(ANY, RECORDS, CALL, None)[P1]] == [11]


async def test_only_selected_partitions_are_taken() -> None:
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10)
    assert offsets(take(bench, selection=Selection(None, frozenset({P1})))) == {P1: [[10]]}


async def test_a_shut_gate_delivers_no_columns() -> None:
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.gate.suspended = True
    assert take(bench) == {}
    bench.gate.suspended = False
    assert offsets(take(bench)) == {P0: [[10]]}


async def test_an_error_comes_after_the_columns_before_it() -> None:
    """A call does not raise while it has records to return."""
    bench = DeliveryBench()
    bench.fetcher.add(P1, 10)
    bench.fetcher.batches.append(ProtocolError("broken"))
    assert offsets(take(bench)) == {P1: [[10]]}
    with pytest.raises(ProtocolError, match="broken"):
        take(bench)


@pytest.mark.parametrize("way", ["raise", "skip"])
async def test_damage_is_handled_as_on_bad_record_says(way: str) -> None:
    """It is raised, or passed once nothing of the partition is in flight."""
    bench = DeliveryBench(on_bad_record=way)  # type: ignore[arg-type]
    bench.fetcher.assign({P0: 10})
    bench.fetcher.add(P0, 10)
    assert offsets(take(bench)) == {P0: [[10]]}
    damage = DamagedRecordError("damaged", topic_partition=P0, offset=11, next_offset=12, value=b"")
    bench.fetcher.batches.append(damage)
    if way == "raise":
        with pytest.raises(DamagedRecordError):
            take(bench)
        assert bench.state().position == 11
        return
    assert take(bench) == {}
    bench.values.finish([None], {CALL})
    await run_ready_tasks()
    assert bench.finished == {P0: 12}


async def test_columns_whose_caller_has_given_up_come_again() -> None:
    """The records of a call whose future the program does not read are delivered again."""
    bench, call = DeliveryBench(), ConsumeCall()
    bench.fetcher.add(P0, 10, 11)
    assert offsets(take(bench, call=call)) == {P0: [[10, 11]]}
    call.superseded = True
    bench.values.finish([None], ())
    assert (bench.finished, bench.state().position) == ({}, 10)
    assert bench.fetcher.positions == {P0: 10}


async def test_an_exit_while_columns_are_made_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the run that is being decoded, nor what the call took before."""
    bench = DeliveryBench()
    bench.fetcher.add(P1, 10)
    bench.fetcher.add(P0, 10, 11)
    columns = FetchedBatch.columns

    def fails(batch: FetchedBatch, token: int | None) -> RecordColumns:
        if batch.topic_partition == P0:
            raise MemoryError
        return columns(batch, token)

    with monkeypatch.context() as patch:
        patch.setattr(FetchedBatch, "columns", fails)
        with pytest.raises(MemoryError):
            take(bench)
    assert (bench.state(P0).position, bench.state(P1).position) == (10, 10)
    assert bench.fetcher.positions == {P1: 10}
    assert offsets(take(bench)) == {P0: [[10, 11]]}


async def test_columns_of_a_partition_that_was_sought_do_not_count() -> None:
    """As records of ``getmany()``: the release still waits for them."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    take(bench)
    bench.subscription.seek(P0, 5)
    bench.owned.resume_at(P0, 5)
    draining = asyncio.ensure_future(bench.handler.drained([P0]))
    await run_ready_tasks()
    assert not draining.done()
    bench.values.finish([None], {CALL})
    await asyncio.wait_for(draining, 5)
    assert bench.state().finished == 5
