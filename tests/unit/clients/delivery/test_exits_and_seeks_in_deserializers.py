"""Deserializers that end the program, and deserializers that seek: nothing is skipped, and nothing is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.clients.delivery.record_reader import RECORDS, VALUES
from kiel_groups.clients.fetch.fetch_requests import ANY, Selection
from tests.helpers.delivery_bench import CALL, P0, P1, DeliveryBench
from tests.helpers.poison import take_offsets

pytestmark = pytest.mark.unit


def in_loop(bench: DeliveryBench) -> list[int]:
    """Take a record as a loop does, if there is one."""
    return [offset for offset in [bench.take()] if offset is not None]


def by_getmany(bench: DeliveryBench) -> list[int]:
    return [offset for offsets in take_offsets(bench).values() for offset in offsets]


def by_consume(bench: DeliveryBench) -> list[int]:
    return [int(value) for value in bench.values.take(Selection("t"), VALUES, CALL, most_bytes=1 << 20)]


def refetch(bench: DeliveryBench, last: int) -> None:
    """Play the broker: send what is fetched from the present positions, up to the offset ``last``."""
    for partition, position in bench.fetcher.positions.items():
        bench.fetcher.batches = type(bench.fetcher.batches)(
            batch for batch in bench.fetcher.batches if getattr(batch, "topic_partition", None) != partition
        )
        bench.fetcher.add(partition, *range(position, last + 1))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("ways", [in_loop, by_getmany, by_consume])
async def test_records_come_again_after_an_exit_in_the_deserializer(
    ways: Callable[[DeliveryBench], list[int]], error: BaseException
) -> None:
    """
    A Ctrl-C may interrupt a deserializer that blocks, and the program may catch it and continue.

    A call that has taken other batches already has not returned them: they come again, too.
    """
    exits = [error]

    def read(value: bytes) -> bytes:
        if value == b"12" and exits:
            raise exits.pop()
        return value

    bench = DeliveryBench(read)
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P0, 12, 13)
    taken: list[int] = []

    def take_all() -> None:
        while True:
            taken.extend(ways(bench))

    with pytest.raises(type(error)):
        take_all()
    assert bench.finished.get(P0, 10) <= 10 + len(taken)
    if P0 in bench.fetcher.positions:
        refetch(bench, 13)
    while more := ways(bench):
        taken += more
    assert taken == [10, 11, 12, 13]


async def test_a_seek_in_the_deserializer_disowns_what_the_call_took_before() -> None:
    """The call returns those records, and neither the position nor what is finished gets past the seek."""
    bench: Any = None

    def read(value: bytes) -> bytes:
        if value == b"12":
            bench.subscription.offsets.seek(P0, 0)
            bench.owned.resume_at(P0, 0)
        return value

    bench = DeliveryBench(read)
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 5)
    bench.fetcher.add(P0, 12, 13)
    assert take_offsets(bench) == {P0: [10, 11], P1: [5]}
    assert bench.state().position == 0
    bench.values.finish([None], {CALL})
    assert bench.finished == {P0: 0, P1: 6}
    assert bench.fetcher.positions == {P0: 0}
    assert bench.values.take(ANY, RECORDS, CALL, None) == {}
